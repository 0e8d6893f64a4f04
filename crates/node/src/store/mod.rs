// SPDX-License-Identifier: Apache-2.0
//! Stores of the controller, copies of views at other nodes, and locks of files.

mod file;
mod kept_members;
mod kept_views;
mod lock;
mod lost_store;
mod register_file;

pub use file::FileStore;
pub(crate) use kept_members::KeptMembers;
pub(crate) use kept_views::{KeptViews, check_kept_views};
pub(crate) use lock::Lock;
pub use lost_store::LostStore;
pub(crate) use register_file::RegisterFile;
