// SPDX-License-Identifier: Apache-2.0
//! Bodies of the fuzz targets, one module each. They depend on nothing but the crate under test,
//! so that ordinary tests include the same files and run them on random input.

#[cfg(feature = "node")]
pub mod archive;
#[cfg(feature = "node")]
pub mod checkpoint;
#[cfg(feature = "node")]
pub mod cluster_file;
#[cfg(feature = "node")]
pub mod control;
#[cfg(any(feature = "node", feature = "replica"))]
pub mod disk;
pub mod header;
#[cfg(feature = "node")]
pub mod http;
pub mod image;
pub mod input;
#[cfg(feature = "apps")]
pub mod kv;
#[cfg(feature = "node")]
pub mod log;
pub mod members;
pub mod nopaxos;
#[cfg(feature = "redis")]
pub mod resp;
pub mod roles;
pub mod scratch;
pub mod tags;
#[cfg(feature = "transactions")]
pub mod transactions;
#[cfg(feature = "replica")]
pub mod worker;
