// SPDX-License-Identifier: Apache-2.0
//! Order, commit, checkpoints and catch-up of one worker. The test writes the log.

#[path = "../common/mod.rs"]
mod common;

mod catch_up;
mod checkpoints;
mod commits;
mod epochs;
mod given_up;
mod in_memory;
mod order;

use common::*;
use paxos::wire::value::{Probe, ProbeReport, emit_marker};
use paxos::{Flags, Header, Instance, MsgType, NodeId, Packet, Reason, Round, To, Verdict};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::storage::Storage;
use replica::{Application, InMemory, Restored, Settings, Status, Worker};
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

fn fed() -> Fed {
    Fed::new(settings(REPLICAS[0]))
}

/// Returns a worker with a checkpoint every ten instances.
fn every_ten(node: NodeId) -> Fed {
    Fed::new(Settings {
        checkpoint_every: 10,
        ..settings(node)
    })
}

fn snapshot(r: &mut Fed) -> (Instance, Vec<u8>) {
    let (position, mut snapshot) = r.worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    (position, bytes)
}

/// Checks that the worker has stopped, since an epoch begins below its position.
#[track_caller]
fn assert_alarmed(r: &mut Fed) {
    assert!(r.worker.execution().is_alarmed());
    assert_stopped(r);
}

const GIVEN_UP: std::ops::Range<Instance> = 3..1 << 32;

/// Returns a worker that has executed everything below `next`, and holds a command behind a gap.
fn standing_at(next: Instance) -> Fed {
    let mut r = fed();
    let session = r.open(9, false, 8);
    for inst in 1..next {
        r.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    r.give(next + 1, Flags::NONE, (session, 1), &command(1));
    r.finish();
    r
}

/// Checks that the worker has stopped, and that nothing later is stored or answered.
#[track_caller]
fn assert_stopped(r: &mut Fed) {
    let stored = r.disk.committed();
    let error = r.worker.finish_batch(r.now, &mut r.out).unwrap_err();
    assert!(error.to_string().contains("ALARM"), "{error}");
    let next = r.worker.next();
    let more = r.decide(next, Flags::NOOP, (0, 0), &[]);
    assert_eq!(more, Verdict::Dropped(Reason::Busy));
    assert!(r.worker.finish_batch(r.now, &mut r.out).is_err());
    assert!(r.worker.tick(r.now, &mut r.out).is_err());
    assert!(r.worker.snapshot().is_err());
    assert_eq!((r.disk.committed(), r.out.replies.len()), (stored, 0));
}
