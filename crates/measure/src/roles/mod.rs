// SPDX-License-Identifier: Apache-2.0
//! What one message costs a role, on each plane.

pub mod dpdk;
pub mod p4;
pub mod tag;
pub mod udp;
pub mod xdp;
