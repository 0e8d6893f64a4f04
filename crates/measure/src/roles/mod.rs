//! What one message costs a role, on each plane.

pub mod udp;
pub mod xdp;
