// SPDX-License-Identifier: Apache-2.0
//! An application that answers commands together after it has begun them: wherever batches end, the
//! result is as if each command had been executed by itself.

mod common;

use common::*;
use paxos::Flags;
use replica::parts::Sending;
use replica::protocol::{ReplyAddress, SessionOp};
use replica::{Limits, Settings, Status};

/// Returns settings with limits so small that each is met.
fn tight() -> Settings {
    Settings {
        limits: Limits {
            reply: 40,
            last_reply: 80,
            recorded: 900,
            ..Limits::default()
        },
        answers_wait: false,
        ..settings(REPLICAS[0])
    }
}

fn fed(answers_later: bool) -> Fed {
    let disk = Disk::default();
    disk.with(|d| {
        d.answers_later = answers_later;
        d.cannot_discard = true;
    });
    Fed::on(tight(), disk)
}

fn address(rng: &mut Rng) -> ReplyAddress {
    let remote = ReplyAddress {
        address: Some(([127, 0, 0, 1], 9).into()),
        ..ReplyAddress::default()
    };
    match rng.below(2) {
        0 => ReplyAddress::default(),
        _ => remote,
    }
}

/// Clients as a log meets them: their requests come twice, too late, out of order, in parts.
struct Clients {
    rng: Rng,
    /// The id of each session, if it is ordered, and its last request.
    open: Vec<(u64, bool, u64)>,
    nonce: u64,
}

impl Clients {
    fn items(&mut self) -> Vec<(u64, u64, Vec<u8>)> {
        let count = 1 + self.rng.below(5);
        (0..count).flat_map(|_| self.items_of_one()).collect()
    }

    fn items_of_one(&mut self) -> Vec<(u64, u64, Vec<u8>)> {
        if self.open.len() < 3 || self.rng.percent(4) {
            self.nonce += 1;
            let ordered = self.rng.percent(50);
            let window = 1 + self.rng.below(6) as u16;
            let op = open(ordered, window, address(&mut self.rng));
            return vec![(self.nonce, 0, op.to_bytes())];
        }
        let at = self.rng.below(self.open.len() as u64) as usize;
        let (session, _, max) = self.open[at];
        if self.rng.percent(4) {
            let op = match self.rng.below(3) {
                0 => SessionOp::Close,
                1 => SessionOp::Expire {
                    last_request: max,
                    last_inst: self.rng.below(100),
                },
                _ => SessionOp::Move {
                    reply_to: address(&mut self.rng),
                },
            };
            return vec![(session, 0, op.to_bytes())];
        }
        let request = match self.rng.below(10) {
            0 => max + 2,
            1..4 => max.saturating_sub(self.rng.below(5)).max(1),
            _ => max + 1,
        };
        self.open[at].2 = max.max(request);
        let reply_len = [8, 30, 60, 100][self.rng.below(4) as usize];
        let command = command_with_reply(session << 16 | request, reply_len);
        if self.rng.percent(10) {
            return self.parts(session, request, &command);
        }
        vec![(session, request, command)]
    }

    /// Returns the parts of a command as a client sends them, except one that may be missing.
    fn parts(&mut self, session: u64, request: u64, command: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let mut sending = Sending::new(request, command.len(), 11);
        let (mut items, mut bytes) = (Vec::new(), Vec::new());
        while let Some(number) = sending.next(command, &mut bytes) {
            items.push((session, number, bytes.clone()));
            sending.answered(number, true);
        }
        if self.rng.percent(30) {
            items.remove(self.rng.below(items.len() as u64) as usize);
        }
        items
    }

    /// Learns from replies which sessions there are.
    fn hear(&mut self, replies: &[Reply]) {
        for reply in replies.iter().filter(|r| r.request == 0) {
            if reply.status == Status::Ok && reply.bytes.len() == 8 {
                let ordered = self.rng.percent(50);
                self.open.push((reply.session_id(), ordered, 0));
            }
        }
        if self.open.len() > 8 {
            self.open.remove(0);
        }
    }
}

/// An application that answers later gives the same results, wherever its batches end. [X-GATHER]
/// [S-ONCE] [S-ORDERED] [S-PARTS]
#[test]
fn it_makes_no_difference_wherever_batches_end() {
    for seed in 0..60 {
        let (mut at_once, mut later) = (fed(false), fed(true));
        let mut clients = Clients {
            rng: Rng::new(seed),
            open: Vec::new(),
            nonce: 1_000,
        };
        let (mut expected, mut replies) = (Vec::new(), Vec::new());
        for inst in 0..400 {
            let value = pack(&clients.items());
            at_once.give(inst, Flags::PACKED, (55, 1), &value);
            let heard = at_once.finish();
            clients.hear(&heard);
            expected.extend(heard);
            later.give(inst, Flags::PACKED, (55, 1), &value);
            match clients.rng.below(40) {
                0..12 => replies.extend(later.finish()),
                12 => later.fold(),
                13 => {
                    replies.extend(later.finish());
                    for fed in [&mut at_once, &mut later] {
                        fed.fold();
                        fed.restart();
                    }
                }
                _ => {}
            }
        }
        replies.extend(later.finish());
        assert!(expected.iter().any(|r| r.status == Status::ReplyTooLarge));
        for (expected, reply) in expected.iter().zip(&replies) {
            assert_eq!(expected, reply, "seed {seed}");
        }
        assert_eq!(expected.len(), replies.len(), "seed {seed}");
        for fed in [&mut at_once, &mut later] {
            fed.fold();
        }
        let images = [&at_once, &later].map(|fed| fed.disk.committed().without_commits());
        assert_eq!(images[0], images[1], "seed {seed}");
    }
}
