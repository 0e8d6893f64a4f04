// SPDX-License-Identifier: Apache-2.0
//! Packets whose answers have no room in the frames that they came in: some drivers, veth among
//! them, leave next to none behind a short question. The program passes them to the node's socket;
//! from there they come here, and the same program handles them once more, as if the network had
//! repeated them, in a frame with all the room that there can be.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use aya::programs::ProgramFd;

use crate::frame;
use crate::object::{Object, Result};
use crate::run::action;
use crate::sys::test_run;

/// The most bytes of a frame.
const MAX_FRAME: usize = 2048;

/// A role's program, run from user space.
#[derive(Debug)]
pub struct Again {
    program: ProgramFd,
    out: Vec<u8>,
}

impl Again {
    /// Of a role that is loaded.
    pub fn new(object: &Object) -> Result<Again> {
        Ok(Again {
            program: object.program(object.role().name())?,
            out: vec![0; MAX_FRAME],
        })
    }

    /// Handles a datagram that came `from` there `to` this node, and returns the answer to its
    /// sender. What the program would multicast is lost; but that has room in the frame that it
    /// came in, so nothing of that kind is passed here.
    pub fn answer(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<Option<&[u8]>> {
        if from.is_ipv4() != to.is_ipv4() {
            return Ok(None);
        }
        let frame = frame::between(from, to, datagram);
        if frame.len() > MAX_FRAME {
            return Ok(None);
        }
        let run = test_run(self.program.as_fd(), &frame, &mut self.out, 1)
            .map_err(|e| format!("running the program on a passed packet: {e}"))?;
        match run.action {
            action::TX => Ok(frame::payload(&self.out[..run.len])),
            _ => Ok(None),
        }
    }
}
