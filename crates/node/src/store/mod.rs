// SPDX-License-Identifier: Apache-2.0
//! Stores of the controller, copies of views at other nodes, and locks of files.

mod etcd_record;
mod file;
mod kept_members;
mod kept_views;
mod lock;
mod lost_record;
mod lost_store;
mod own_file;
mod register_file;

pub(crate) use etcd_record::{EtcdRecord, EtcdStore, EtcdTerm};
pub use file::FileStore;
pub(crate) use kept_members::KeptMembers;
pub(crate) use kept_views::{KeptViews, check_kept_views};
pub(crate) use lock::Lock;
pub(crate) use lost_record::{LostRecord, was_moved};
pub use lost_store::LostStore;
pub(crate) use own_file::OwnFile;
pub(crate) use register_file::RegisterFile;
