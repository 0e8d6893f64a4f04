// SPDX-License-Identifier: Apache-2.0
//! Backups of a whole cluster: made while it serves, checked, and made into a new cluster.
//!
//! | in a backup's directory | |
//! |---|---|
//! | `manifest.json` | the contents, with length and SHA-256 of all other files ([`Manifest`]) |
//! | `cluster.toml` | the cluster file, without its passwords |
//! | `epochs.json` | what the controller said of the epochs; null if none answered |
//! | `group-`number`/` | the state of one replica of that group, as [`Incoming`] keeps it |
//!
//! Beside the backups is what was decided behind them, if it is archived ([`crate::archive`]).
//!
//! A backup has the name `backup-`time from the beginning to the end only if it is whole and on the
//! disk; before that its name ends in `.unfinished`.
//!
//! [`Incoming`]: crate::transfer::incoming::Incoming

mod catalog;
mod check;
mod create;
mod manifest;
mod reachable;
mod restore;
mod roll_forward;
mod scratch;
mod states;

pub use catalog::{Catalog, Entry};
pub use check::{Checked, check};
pub use create::{Step, create};
pub use manifest::{GroupEntry, Manifest};
pub use reachable::{Instances, Missing, Overview, Reachable};
pub use restore::{Restored, refuse_unfinished, restore};
pub use roll_forward::{Goal, range_text};
