// SPDX-License-Identifier: Apache-2.0
//! The archive: every value that the cluster decides, in order, beside its backups. A backup and
//! the values behind it give the state of any moment.
//!
//! Replicas keep what they have executed last in memory ([`Recent`]). The controller that acts asks
//! them for it several times a second, and appends it to a file.
//!
//! | in the directory of backups | |
//! |---|---|
//! | `archive-`cluster`/` | the archive of the cluster with this number |
//! | `archive-`cluster`/`time`-`random`.log` | a segment: values of all partitions, in order |
//!
//! Times are those at which a replica has executed values, since values have none that all agree
//! on. The controller writes, not the replicas: no replica's disk fills, none is relied on, and
//! none waits. Each writer has segments of its own, so that two writers never spoil one another's.
//! The same values may be in two segments, and count once. In a segment no instance is missing:
//! where one is, the writer begins another.
//!
//! [`Recent`]: crate::transfer::recent::Recent

mod directory;
mod moment;
mod reach;
mod record;
mod segment;

pub use directory::{Archive, Stretch, Tail};
pub use moment::{Cutoff, Moment};
pub use reach::{Range, Reach, Reaches};
pub use record::{GroupPartition, Record, Records};
pub use segment::{Ending, Reader, Writer};
