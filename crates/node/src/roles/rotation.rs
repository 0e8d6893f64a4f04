// SPDX-License-Identifier: Apache-2.0
//! Runs the nodes of a process that poll for packets, which are those at DPDK ports. One thread
//! gives each of them a turn after the other, so several nodes need only one CPU.

use std::sync::{Arc, mpsc};

use tracing::Span;

use super::control_loop::Turn;
use crate::Error;
use crate::host::Stop;
use crate::plane::Ports;

/// Control messages are polled once in this many rounds, since that costs a system call for each
/// node.
const ROUNDS_OF_A_LOOK: u32 = 256;
/// After this many rounds without work other threads may have the CPU.
const IDLE_ROUNDS: u32 = 32;

/// A node in the rotation.
pub(crate) trait Polled {
    /// Takes one turn without waiting; with `messages` it also handles control messages.
    fn turn(&mut self, messages: bool) -> Result<Turn, Error>;

    /// Ends in good order.
    fn end(self: Box<Self>) -> Result<(), Error>;
}

/// The nodes that share a thread.
pub(crate) struct Rotation<'a> {
    pub stop: &'a Arc<Stop>,
    pub ports: &'a Ports,
    seated: Vec<(Span, Box<dyn Polled + 'a>)>,
    entering: mpsc::Receiver<Newcomer>,
    /// Kept as long as doors can be made.
    door: Option<mpsc::Sender<Newcomer>>,
    result: Result<(), Error>,
}

/// A node that another thread has made.
struct Newcomer {
    span: Span,
    polled: Box<dyn Polled + Send>,
}

/// Lets another thread add nodes to a rotation.
pub(crate) struct Door<'a> {
    pub ports: &'a Ports,
    seats: mpsc::Sender<Newcomer>,
}

impl Door<'_> {
    /// Adds a node, which logs in this thread's span from then on.
    pub fn enter(&self, polled: Box<dyn Polled + Send>) -> Result<(), Error> {
        let span = Span::current();
        let entered = self.seats.send(Newcomer { span, polled });
        entered.map_err(|_| Error::new("the process is ending"))
    }
}

impl<'a> Rotation<'a> {
    /// Returns an empty rotation.
    pub fn new(stop: &'a Arc<Stop>, ports: &'a Ports) -> Rotation<'a> {
        let (door, entering) = mpsc::channel();
        Rotation {
            stop,
            ports,
            seated: Vec::new(),
            entering,
            door: Some(door),
            result: Ok(()),
        }
    }

    /// Returns a door for another thread. The rotation lasts as long as there is one.
    pub fn door(&self) -> Door<'a> {
        let seats = self.door.clone();
        Door {
            ports: self.ports,
            seats: seats.expect("it hasn't begun"),
        }
    }

    /// Adds a node that this thread has made.
    pub fn seat(&mut self, polled: Box<dyn Polled + 'a>) {
        self.seated.push((Span::current(), polled));
    }

    /// Gives all nodes turns until each has ended. If one fails, all end in good order, and then
    /// the first error is returned.
    pub fn run(mut self) -> Result<(), Error> {
        self.door = None;
        let (mut rounds, mut idle) = (0_u32, 0_u32);
        while self.has_somebody() {
            rounds = rounds.wrapping_add(1);
            let looks = rounds % ROUNDS_OF_A_LOOK == 0;
            if looks {
                self.let_in();
            }
            idle = match self.turns(looks) {
                true => 0,
                false => idle + 1,
            };
            if looks || idle % IDLE_ROUNDS == IDLE_ROUNDS - 1 {
                std::thread::yield_now();
            }
        }
        self.result
    }

    /// Waits for a node to be added if there is none. Returns false if none can come any more.
    fn has_somebody(&mut self) -> bool {
        if self.seated.is_empty() {
            match self.entering.recv() {
                Ok(newcomer) => self.seated.push((newcomer.span, newcomer.polled)),
                Err(mpsc::RecvError) => return false,
            }
        }
        true
    }

    fn let_in(&mut self) {
        while let Ok(newcomer) = self.entering.try_recv() {
            self.seated.push((newcomer.span, newcomer.polled));
        }
    }

    /// Gives each node a turn, and returns whether any had work.
    fn turns(&mut self, messages: bool) -> bool {
        let (mut busy, mut ended) = (false, false);
        let mut at = 0;
        while at < self.seated.len() {
            let (span, polled) = &mut self.seated[at];
            let turn = match messages {
                // Only these turns write log messages.
                true => span.in_scope(|| polled.turn(true)),
                false => polled.turn(false),
            };
            match turn {
                Ok(Turn::Idle) => at += 1,
                Ok(Turn::Busy) => {
                    busy = true;
                    at += 1;
                }
                Ok(Turn::Ended) => {
                    let (span, polled) = self.seated.remove(at);
                    self.note(span.in_scope(|| polled.end()));
                    ended = true;
                }
                Err(why) => {
                    self.seated.remove(at);
                    self.note(Err(why));
                }
            }
        }
        busy || ended
    }

    fn note(&mut self, result: Result<(), Error>) {
        if result.is_err() {
            self.stop.request();
        }
        if self.result.is_ok() {
            self.result = result;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Takes this many turns, or all turns until the stop, and then fails if it must.
    struct Scripted {
        name: &'static str,
        turns: u32,
        fails: bool,
        stop: Arc<Stop>,
        ended: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Polled for Scripted {
        fn turn(&mut self, _: bool) -> Result<Turn, Error> {
            if self.stop.is_requested() {
                return Ok(Turn::Ended);
            }
            self.turns -= 1;
            match (self.turns, self.fails) {
                (0, true) => Err(Error::new(self.name)),
                (0, false) => Ok(Turn::Ended),
                (left, _) => Ok([Turn::Idle, Turn::Busy][left as usize % 2]),
            }
        }

        fn end(self: Box<Self>) -> Result<(), Error> {
            self.ended.borrow_mut().push(self.name);
            Ok(())
        }
    }

    fn run(nodes: &[(&'static str, u32, bool)]) -> (Vec<&'static str>, Option<String>) {
        let (stop, ports) = (Stop::new().unwrap(), Ports::default());
        let ended = Rc::default();
        let mut rotation = Rotation::new(&stop, &ports);
        for &(name, turns, fails) in nodes {
            rotation.seat(Box::new(Scripted {
                name,
                turns,
                fails,
                stop: Arc::clone(&stop),
                ended: Rc::clone(&ended),
            }));
        }
        let why = rotation.run().err().map(|e| e.to_string());
        let ended = ended.borrow().clone();
        (ended, why)
    }

    #[test]
    fn each_ends_when_its_turn_says_so() {
        let (ended, why) = run(&[("a", 1_000, false), ("b", 1, false), ("c", 300, false)]);
        assert_eq!((ended, why), (vec!["b", "c", "a"], None));
    }

    #[test]
    fn one_that_fails_ends_all_and_the_others_in_good_order() {
        let (ended, why) = run(&[("a", 1_000, false), ("b", 20, true), ("c", 1_000, true)]);
        assert_eq!((ended, why), (vec!["c", "a"], Some("b".to_owned())));
    }

    #[test]
    fn a_rotation_waits_for_whoever_holds_a_door() {
        struct Short(mpsc::Sender<()>);
        impl Polled for Short {
            fn turn(&mut self, _: bool) -> Result<Turn, Error> {
                Ok(Turn::Ended)
            }

            fn end(self: Box<Self>) -> Result<(), Error> {
                self.0.send(()).map_err(|_| Error::new("nobody waits"))
            }
        }
        let (stop, ports) = (Stop::new().unwrap(), Ports::default());
        let rotation = Rotation::new(&stop, &ports);
        let door = rotation.door();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..3 {
                    let (tell, told) = mpsc::channel();
                    door.enter(Box::new(Short(tell))).unwrap();
                    told.recv().unwrap();
                }
            });
            assert!(rotation.run().is_ok());
        });
    }
}
