// SPDX-License-Identifier: Apache-2.0
//! Stores of the controller, and locks of files.

mod file;
mod lock;

pub use file::FileStore;
pub(crate) use lock::Lock;
