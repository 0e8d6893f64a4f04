//! Consensus as a network service: the library.

pub mod admin;
mod embedded;
mod error;
mod front_end;
pub mod services;

pub use embedded::Embedded;
pub use error::Error;
