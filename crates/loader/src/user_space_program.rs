// SPDX-License-Identifier: Apache-2.0
//! Packets that come to the socket of a role in the kernel, from two ways:
//!
//! - The program has passed them on, as their answers have no room in the frames that they came in:
//!   some drivers, veth among them, leave next to none behind a short question.
//! - No program saw them: their sender is on this very machine, so its stack takes them around by
//!   loopback. At a switch these are all roles there that aren't in the kernel.
//!
//! The same program handles them here (once more, as if the network had repeated them), in a frame
//! with all the room that there can be. Nothing leaves by that frame, so its process sends what the
//! program sends.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use aya::programs::ProgramFd;
use paxos::wire::value::Vector;
use paxos::{Flags, Header, MsgType, Packet};

use crate::frame;
use crate::layout::FROM_PROCESS;
use crate::object::{Object, Result};
use crate::run::action;
use crate::sys::marked_run;

/// The most bytes of a frame.
const MAX_FRAME: usize = 2048;
/// The mark that precedes each frame.
const MARK: usize = size_of_val(&FROM_PROCESS);

/// A role's program, run from user space.
#[derive(Debug)]
pub struct UserSpaceProgram {
    program: ProgramFd,
    out: Vec<u8>,
}

/// The result of running a packet, besides the change of the role's memory.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The role sends nothing.
    Nothing,
    /// A datagram goes back to the sender.
    Answer(&'a [u8]),
    /// This goes to all members of the role's multicast; see [`copies`].
    Multicast(Packet<'a>),
}

impl UserSpaceProgram {
    /// Opens the program of a role that is loaded.
    pub fn new(object: &Object) -> Result<UserSpaceProgram> {
        Ok(UserSpaceProgram {
            program: object.own_program()?,
            out: vec![0; MARK + MAX_FRAME],
        })
    }

    /// Handles a datagram that came `from` there `to` this node.
    pub fn handle(
        &mut self,
        datagram: &[u8],
        from: SocketAddr,
        to: SocketAddr,
    ) -> Result<Outcome<'_>> {
        if from.is_ipv4() != to.is_ipv4() {
            return Ok(Outcome::Nothing);
        }
        let frame = frame::between(from, to, datagram);
        if frame.len() > MAX_FRAME {
            return Ok(Outcome::Nothing);
        }
        let run = marked_run(self.program.as_fd(), FROM_PROCESS, &frame, &mut self.out)
            .map_err(|e| format!("running the program on a passed packet: {e}"))?;
        let out = self.out.get(MARK..run.len).and_then(frame::payload);
        Ok(match (run.action, out) {
            (action::TX, Some(answer)) => Outcome::Answer(answer),
            (action::REDIRECT, Some(multicast)) => match Packet::parse(multicast) {
                Ok(packet) => Outcome::Multicast(packet),
                Err(reason) => {
                    return Err(format!(
                        "the program multicasts no packet: {}",
                        reason.name()
                    ));
                }
            },
            _ => Outcome::Nothing,
        })
    }
}

/// Returns the header of each message that a multicast consists of, all with the same value: one,
/// and of a command over several partitions one for each, as the copies of `egress` have them.
pub fn copies(packet: &Packet<'_>) -> Vec<Header> {
    let header = packet.header;
    match has_stamped_vector(&header).then(|| Vector::parse(packet.value)) {
        Some(Ok(vector)) => {
            let copy = |(pid, inst)| Header {
                pid,
                inst,
                ..header
            };
            vector.iter().map(copy).collect()
        }
        _ => vec![header],
    }
}

/// Returns whether a command over several partitions was stamped: each of them gets a copy.
pub(crate) fn has_stamped_vector(header: &Header) -> bool {
    matches!(header.msgtype, MsgType::Phase2a | MsgType::Ordered) && header.flags.has(Flags::MULTI)
}
