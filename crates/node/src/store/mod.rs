// SPDX-License-Identifier: Apache-2.0
//! Stores of the controller.

mod file;
mod lock;

pub use file::FileStore;
