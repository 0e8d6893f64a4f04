//! Bodies of the fuzz targets, one module each. They depend on nothing but the crate under test,
//! so that ordinary tests include the same files and run them on random input.

#[cfg(feature = "node")]
pub mod cluster_file;
pub mod header;
pub mod input;
#[cfg(feature = "apps")]
pub mod kv;
#[cfg(feature = "redis")]
pub mod resp;
pub mod roles;
#[cfg(feature = "replica")]
pub mod worker;
