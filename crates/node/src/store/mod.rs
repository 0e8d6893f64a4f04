//! Stores of the controller.

mod file;
mod lock;

pub use file::FileStore;
