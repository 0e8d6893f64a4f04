//! Which plane a node's role runs on.

use xdp::pins::Pins;

use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Plane, Storage};

/// The role in the kernel, as `open` makes it, or nothing where it is to run behind sockets. Says
/// what was chosen, and why.
pub(crate) fn in_kernel<T>(
    cluster: &ClusterFile,
    node: &Node,
    open: impl FnOnce() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    let left = Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name);
    let why_not = match node.plane {
        Plane::Xdp => return open().map(Some),
        Plane::Udp if left => return Err(still_in_kernel(cluster, node)),
        Plane::Udp => return Ok(None),
        Plane::Auto if cluster.trace.is_some() => {
            Error::new("what passes in the kernel can't be recorded (`trace`)")
        }
        Plane::Auto if node.storage == Storage::Durable => {
            Error::new("programs in the kernel can't store votes on disk")
        }
        Plane::Auto => match open() {
            Ok(role) => return Ok(Some(role)),
            // Frames meet the programs that run before they meet any socket.
            Err(why) if left => return Err(why),
            Err(why) => {
                forget_attempt(cluster, node)?;
                why
            }
        },
    };
    eprintln!("plane: udp, since xdp isn't possible: {why_not}");
    Ok(None)
}

/// What a start that failed half-way has left would keep the node from its sockets next time.
fn forget_attempt(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
    if Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name) {
        Pins::of_node(&cluster.bpffs, cluster.cluster, &node.name)?.remove()?;
    }
    Ok(())
}

fn still_in_kernel(cluster: &ClusterFile, node: &Node) -> Error {
    Error::new(format!(
        "programs of {name} run in the kernel, with their memory in {bpffs}. Run the node with \
         `plane = \"xdp\"`, or do so once and stop it with `wirepaxos stop --name {name}`, which takes \
         them off. Without its memory, when that is removed, an acceptor re-joins as a new member",
        name = node.name,
        bpffs = cluster.bpffs.display(),
    ))
}
