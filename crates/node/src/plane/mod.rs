//! Data planes: how packets reach a role and leave it.
//!
//! The seam is two functions over batches of buffers that the caller owns:
//! [`UdpPlane::receive`] fills a [`RecvBatch`], [`UdpPlane::send`] empties a [`SendBatch`]. Both
//! batches are made once and used again, so the path of a packet allocates nothing. Packets may be
//! lost, repeated and reordered by every plane; no role relies on more.

mod send_batch;
pub mod udp;

pub use send_batch::SendBatch;
pub use udp::{PlaneOptions, RecvBatch, SendCounters, UdpPlane};
