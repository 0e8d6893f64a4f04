// SPDX-License-Identifier: Apache-2.0
//! The way from a process to its switch: frames by the interface that leads to the switch's CPU
//! port.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::order::{ETHERTYPE, Order};
use crate::packet_socket::PacketSocket;
use crate::{Port, Result};

/// An order is sent this many times before the switch counts as silent. Orders may therefore arrive
/// twice.
const TRIES: u32 = 4;
/// The longest wait for the answer to an order.
const PATIENCE: Duration = Duration::from_millis(150);

/// The answers that an order may get.
enum Back {
    Answer(Order, Vec<u8>),
    /// No role took it: it came back as it was.
    Itself,
    Nothing,
}

/// Orders by an interface.
#[derive(Debug)]
pub struct CpuPort {
    socket: PacketSocket,
    interface: u32,
    number: u16,
}

impl CpuPort {
    /// Opens the port at the interface of this number, in the calling thread's namespace. Needs
    /// CAP_NET_RAW.
    pub fn open(interface: u32) -> Result<CpuPort> {
        let socket = PacketSocket::of(interface, ETHERTYPE);
        let socket = socket.map_err(|e| {
            format!(
                "orders to a switch are frames, for which there is no socket: {e}; run the \
                     node as root, or with CAP_NET_RAW"
            )
        })?;
        Ok(CpuPort {
            socket,
            interface,
            number: 0,
        })
    }

    fn wait_for(&self, order: &Order) -> Result<Back> {
        let begun = Instant::now();
        let mut buffer = [0; 2048];
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(Some((_, len))) => {
                    let frame = &buffer[..len];
                    match Order::parse_answer(frame) {
                        Some((answer, behind)) if answer.answers(order) => {
                            return Ok(Back::Answer(answer, behind.to_vec()));
                        }
                        None if frame.starts_with(&order.emit()) => return Ok(Back::Itself),
                        // A late answer to an earlier one.
                        _ => {}
                    }
                }
                Ok(None) => match PATIENCE.checked_sub(begun.elapsed()) {
                    Some(left) => self.socket.wait(left),
                    None => return Ok(Back::Nothing),
                },
                Err(error) => return Err(format!("the switch's CPU port: {error}")),
            }
        }
    }
}

impl Port for CpuPort {
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>)> {
        self.number = self.number.wrapping_add(1);
        let order = Order {
            number: self.number,
            ..order.clone()
        };
        for _ in 0..TRIES {
            // A frame that the kernel refuses is lost, as any frame may be.
            self.socket.send(self.interface, &order.emit());
            match self.wait_for(&order)? {
                Back::Answer(answer, behind) => return Ok((answer, behind)),
                Back::Itself => {
                    return Err(format!(
                        "the switch runs no role for node {}, or its tables are empty",
                        order.node
                    ));
                }
                Back::Nothing => {}
            }
        }
        Err(
            "the switch doesn't answer by its CPU port: is it running, with that port at the \
             interface that has the node's address?"
                .into(),
        )
    }
}

/// Several roles share a port.
impl<P: Port> Port for Rc<RefCell<P>> {
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>)> {
        self.borrow_mut().ask(order)
    }
}
