// SPDX-License-Identifier: Apache-2.0
//! Decides which answers of a durable node may leave, while it takes the next packets during a
//! sync.
//!
//! The changes of the steps between two turns make one frame of the log, and only one frame is
//! written at a time. Answers are in two heaps: those of the frame that is being synced, and those
//! of the steps since then. An answer may show any change that was made before it, so it leaves
//! only when all of them are on disk. An answer that shows nothing new waits, too, and keeps its
//! place. [A-DURABLE]
//!
//! ```text
//! steps: collecting --turn, changed--> syncing --synced--> leaves
//!                   --turn, nothing changed, nothing syncing--> leaves
//! ```

/// The caller's task at the end of a turn.
#[derive(PartialEq, Eq, Debug)]
pub enum Turn<'a, A> {
    /// These answers may leave now. The caller must leave the heap empty.
    Leave(&'a mut A),
    /// The changes of the steps must be written as one frame and synced.
    Sync,
    /// A sync is under way, so there is nothing to do.
    Wait,
}

/// The answers of a durable node that wait for the disk. `A` is a heap of answers.
#[derive(Debug, Default)]
pub struct GroupCommit<A> {
    /// The answers of the steps since the last frame was begun.
    collecting: A,
    /// True if one of these steps has changed anything.
    changed: bool,
    /// The answers of the frame that is being synced; empty otherwise.
    waiting: A,
    syncing: bool,
}

impl<A> GroupCommit<A> {
    /// Returns the heap into which a step puts its answers.
    pub fn answers(&mut self) -> &mut A {
        &mut self.collecting
    }

    /// Notes that a step has changed something that must be on disk before its answers leave.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns true if a frame is being synced.
    pub fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// Returns true if any change is not on disk yet.
    pub fn is_open(&self) -> bool {
        self.changed || self.syncing
    }

    /// Ends a turn of steps, and returns the caller's next task.
    pub fn turn(&mut self) -> Turn<'_, A> {
        if self.syncing {
            return Turn::Wait;
        }
        if !std::mem::take(&mut self.changed) {
            return Turn::Leave(&mut self.collecting);
        }
        self.syncing = true;
        std::mem::swap(&mut self.collecting, &mut self.waiting);
        Turn::Sync
    }

    /// Notes that the frame that was begun last is on disk, and returns its answers, which may
    /// leave now. The caller must leave the heap empty.
    pub fn synced(&mut self) -> &mut A {
        self.syncing = false;
        &mut self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event that may happen to a node next.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Event {
        /// A packet that changes something and is answered.
        Change,
        /// A packet that is answered from memory, which shows all that was changed so far.
        Question,
        Turn,
        /// The disk is done with the frame.
        Synced,
        /// The process ends, and the next one reads the disk.
        Kill,
    }

    const EVENTS: [Event; 5] = [
        Event::Change,
        Event::Question,
        Event::Turn,
        Event::Synced,
        Event::Kill,
    ];

    /// A node whose memory is the number of changes; so an answer is the memory that it shows.
    #[derive(Default)]
    struct Node {
        commit: GroupCommit<Vec<u32>>,
        memory: u32,
        /// The state of the disk once the frame that is being synced is there.
        frame: Option<u32>,
        disk: u32,
        left: Vec<u32>,
        earned: Vec<u32>,
    }

    impl Node {
        fn happens(&mut self, event: Event) {
            match event {
                Event::Change => {
                    self.memory += 1;
                    self.commit.changed();
                    self.answer();
                }
                Event::Question => self.answer(),
                Event::Turn => match self.commit.turn() {
                    Turn::Leave(answers) => self.left.append(answers),
                    Turn::Sync => assert!(self.frame.replace(self.memory).is_none()),
                    Turn::Wait => assert!(self.frame.is_some()),
                },
                Event::Synced => {
                    if let Some(frame) = self.frame.take() {
                        self.disk = frame;
                        self.left.append(self.commit.synced());
                    }
                }
                Event::Kill => {
                    // The kernel may still write the frame, or not: here it doesn't.
                    let (disk, left) = (self.disk, std::mem::take(&mut self.left));
                    *self = Node {
                        disk,
                        memory: disk,
                        earned: left.clone(),
                        left,
                        ..Node::default()
                    };
                }
            }
            let shown = self.left.iter().max().copied().unwrap_or_default();
            assert!(
                shown <= self.disk,
                "{shown} was shown, {} is stored",
                self.disk
            );
            assert!(
                self.earned.starts_with(&self.left),
                "answers keep their order"
            );
        }

        fn answer(&mut self) {
            self.commit.answers().push(self.memory);
            self.earned.push(self.memory);
        }

        /// Lets all owed answers leave, since nothing else comes.
        fn ends_well(&mut self) {
            for _ in 0..2 {
                self.happens(Event::Turn);
                self.happens(Event::Synced);
            }
            self.happens(Event::Turn);
            assert_eq!(self.left, self.earned);
            assert!(!self.commit.is_open() && self.disk == self.memory);
        }
    }

    /// Tries every order of eight events. [A-DURABLE]
    #[test]
    fn nothing_leaves_that_shows_what_is_not_on_disk() {
        const LENGTH: u32 = 8;
        let orders = EVENTS.len().pow(LENGTH);
        for order in 0..orders {
            let mut node = Node::default();
            let mut rest = order;
            for _ in 0..LENGTH {
                node.happens(EVENTS[rest % EVENTS.len()]);
                rest /= EVENTS.len();
            }
            node.ends_well();
        }
    }

    #[test]
    fn the_next_packets_are_taken_while_a_frame_is_synced() {
        let mut node = Node::default();
        for event in [
            Event::Change,
            Event::Turn,
            Event::Change,
            Event::Question,
            Event::Turn,
        ] {
            node.happens(event);
        }
        assert_eq!((node.memory, node.frame), (2, Some(1)));
        node.happens(Event::Synced);
        assert_eq!(node.left, [1], "and not what came meanwhile");
        node.ends_well();
        assert_eq!(node.left, [1, 2, 2]);
    }
}
