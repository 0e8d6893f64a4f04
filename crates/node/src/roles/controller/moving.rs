// SPDX-License-Identifier: Apache-2.0
//! Moves the record of epochs from controllers' files into an etcd, and back.

use std::path::PathBuf;

use super::rebuilding::{controllers_directory, refuse_another_that_acts};
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::store::LostRecord;

/// Where the record of epochs is moved.
#[derive(Clone, Debug)]
pub enum RecordMove {
    /// Into etcd, from these files of controllers; from the controller's own file if there is none.
    ToEtcd(Vec<PathBuf>),
    /// Into the controller's own file.
    ToFile,
}

/// Moves the record of epochs while no controller runs. Returns the name under which a file that
/// was in its place is kept. A move that was interrupted is finished by the same call. [E-ETCD]
///
/// # Errors
/// If a controller acts, if there is no [controller.etcd] in the cluster file, or if a record is
/// missing, damaged, another cluster's, or older than what is in its place.
pub fn move_record(
    cluster: &ClusterFile,
    node: &Node,
    way: &RecordMove,
) -> Result<Option<PathBuf>, Error> {
    let Some(etcd) = &cluster.controller.etcd else {
        return Err(Error::configuration(
            "the cluster file has no [controller.etcd]",
            "write it: it names the etcd to which the record is moved, or where it is until the \
             move is done",
        ));
    };
    refuse_another_that_acts(cluster)?;
    controllers_directory(cluster, node)?;
    let moved = LostRecord::open(cluster, node, etcd).and_then(|record| match way {
        RecordMove::ToEtcd(files) => record.take_from(files),
        RecordMove::ToFile => record.give_back(),
    });
    moved.map_err(|e| Error::store(e.to_string()))
}
