// SPDX-License-Identifier: Apache-2.0
//! The process through which frames pass that must be duplicated, held back or delayed. It runs in
//! the namespace of the wires. A frame that the program there passes on reaches only its socket,
//! since the namespace has no addresses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::layout::{Handled, Wire};
use super::maps::Maps;
use super::queue::{Queue, Random};
use crate::topology::WIRES;
use crate::{Error, Lab, Result, namespace};
use p4::packet_socket::PacketSocket;

/// How many frames are taken before those that are due get their turn.
const BATCH: usize = 64;
/// How long rates may be out of date, and counters unwritten.
const REFRESH: Duration = Duration::from_millis(50);
const LONGEST_FRAME: usize = 65_536;

impl Lab {
    /// Runs the detour until it is killed.
    pub fn run_detour(&self) -> Result<()> {
        self.state_when_up()?;
        namespace::enter(&self.namespace(WIRES)).map_err(Error::at(WIRES))?;
        let maps = Maps::open(&self.bpffs())?
            .ok_or_else(|| Error::new("the fault injector isn't loaded"))?;
        let socket = PacketSocket::open().map_err(Error::at("packet socket"))?;
        Detour {
            maps,
            socket,
            queue: Queue::default(),
            ends: BTreeMap::new(),
            started: Instant::now(),
        }
        .run()
    }
}

struct Detour {
    maps: Maps,
    socket: PacketSocket,
    queue: Queue,
    /// The ends of wires, by interface.
    ends: BTreeMap<u32, End>,
    started: Instant,
}

struct End {
    wire: Wire,
    random: Random,
    handled: Handled,
}

impl Detour {
    fn run(&mut self) -> Result<()> {
        let mut buffer = vec![0; LONGEST_FRAME];
        let mut refreshed = self.now();
        loop {
            self.receive(&mut buffer)?;
            self.release();
            let now = self.now();
            if now - refreshed >= REFRESH.as_nanos() as u64 {
                self.refresh()?;
                refreshed = now;
            }
            let wait = match self.queue.next_due() {
                Some(due) => Duration::from_nanos(due.saturating_sub(now)).min(REFRESH),
                None => REFRESH,
            };
            if !wait.is_zero() {
                self.socket.wait(wait);
            }
        }
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<()> {
        for _ in 0..BATCH {
            let received = self.socket.receive(buffer);
            let Some((index, len)) = received.map_err(Error::at("packet socket"))? else {
                break;
            };
            let now = self.now();
            if !self.ends.contains_key(&index) {
                if let Some(wire) = self.maps.wire(index) {
                    self.ends.insert(index, End::new(wire));
                }
            }
            // The frame may come from an interface that is no wire.
            if let Some(End {
                wire,
                random,
                handled,
            }) = self.ends.get_mut(&index)
            {
                self.queue.take(now, wire, &buffer[..len], random, handled);
            }
        }
        Ok(())
    }

    fn release(&mut self) {
        let now = self.now();
        let (socket, ends) = (&self.socket, &mut self.ends);
        self.queue.release(now, |out, frame| {
            if socket.send(out, frame) {
                return;
            }
            // Both ends of a wire name each other.
            if let Some(end) = ends.values_mut().find(|end| end.wire.out == out) {
                end.handled.overflowed += 1;
            }
        });
    }

    /// Stores the counters, and reads new rates.
    fn refresh(&mut self) -> Result<()> {
        let handled = self.ends.iter().map(|(index, end)| (*index, end.handled));
        self.maps.set_handled(&handled.collect())?;
        for (index, end) in &mut self.ends {
            let newer = |wire: &Wire| wire.generation != end.wire.generation;
            if let Some(wire) = self.maps.wire(*index).filter(newer) {
                *end = End::new(wire);
            }
        }
        Ok(())
    }
}

impl End {
    fn new(wire: Wire) -> End {
        End {
            wire,
            random: Random::new(wire.seed, wire.stream),
            handled: Handled {
                generation: wire.generation,
                ..Handled::default()
            },
        }
    }
}
