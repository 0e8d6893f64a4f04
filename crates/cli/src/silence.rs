// SPDX-License-Identifier: Apache-2.0
//! Makes the error about nodes that don't answer.

use std::path::Path;

use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::Node;
use node::cluster_status;

/// Returns the error of silent nodes, which says what to do.
pub fn error(cluster: &ClusterFile, file: &Path, silent: &[&Node]) -> Result<Error, Error> {
    Ok(Error::new(cluster_status::remedy(cluster, file, silent)?))
}
