// SPDX-License-Identifier: Apache-2.0
//! Data planes: how packets reach a role and leave it.
//!
//! The seam is two functions over batches of buffers that the caller owns:
//! [`UdpPlane::receive`] fills a [`RecvBatch`], [`UdpPlane::send`] empties a [`SendBatch`]. Both
//! batches are made once and used again, so the path of a packet allocates nothing. Packets may be
//! lost, repeated and reordered by every plane; no role relies on more.
//!
//! On the XDP plane (`xdp.rs`) the roles themselves are in the kernel, and a node's process only
//! controls them.

mod choice;
mod send_batch;
pub mod udp;
pub(crate) mod xdp;

pub(crate) use choice::{in_kernel, refuse_deafness};
pub use send_batch::SendBatch;
pub use udp::{PlaneOptions, RecvBatch, SendCounters, UdpPlane};
