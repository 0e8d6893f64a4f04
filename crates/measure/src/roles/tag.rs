// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of making a packet's tag, and of checking one.

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keys::{KeyFile, NODES};
use node::auth::{Keyring, Signer, keyring};
use node::plane::SendBatch;
use paxos::auth::Algorithm;
use paxos::{Header, MsgType, Packet, Round};

use super::udp::{Measured, VALUE_LEN};
use crate::stats::median;
use local_cluster::Error;

/// Packets of a batch.
const BATCH: usize = 64;

/// Measures both, each as the difference from the same path without tags.
pub fn measure(runs: usize, seconds: f64) -> Result<[Measured; 2], Error> {
    let time = Duration::from_secs_f64(seconds / 2.0);
    let keyring = Arc::new(keyring(&KeyFile::new(1)?, Algorithm::SipHash));
    let of = |role, added: &dyn Fn() -> f64| Measured {
        role,
        ns_per_msg: median(&(0..runs).map(|_| added()).collect::<Vec<_>>()),
    };
    Ok([
        of("tag made", &|| {
            sending(time, Some(keyring.clone())) - sending(time, None)
        }),
        of("tag checked", &|| checking(time, &keyring)),
    ])
}

/// Returns the nanoseconds of sending a packet.
fn sending(time: Duration, keyring: Option<Arc<Keyring>>) -> f64 {
    let to = [SocketAddr::from(([127, 0, 0, 1], 1))];
    let (mut signer, mut batch) = (Signer::new(keyring), SendBatch::new());
    let mut header = header();
    timed(time, || {
        for _ in 0..BATCH {
            header.inst += 1;
            signer.push_all(&mut batch, &to, &header, &[0x5a; VALUE_LEN], NODES);
        }
        black_box(&mut batch).clear();
    })
}

fn checking(time: Duration, keyring: &Arc<Keyring>) -> f64 {
    let mut signer = Signer::new(Some(keyring.clone()));
    let datagram = signer.datagram(&header(), &[0x5a; VALUE_LEN]);
    let datagram = datagram.expect("there is a key");
    let check = |checks: bool| {
        timed(time, || {
            for _ in 0..BATCH {
                let datagram = black_box(&datagram);
                let packet = Packet::parse(datagram).expect("it is well-formed");
                if checks {
                    keyring.check(&packet, datagram).expect("it is signed");
                }
                black_box(packet);
            }
        })
    };
    check(true) - check(false)
}

fn header() -> Header {
    Header {
        cluster: 1,
        group: 1,
        swid: 1,
        rnd: Round::base(1),
        client: 5,
        request: 1,
        ..Header::new(MsgType::Phase2a)
    }
}

/// Runs batches until the time is up; nanoseconds a packet.
fn timed(time: Duration, mut batch: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut packets = 0;
    while start.elapsed() < time {
        batch();
        packets += BATCH;
    }
    start.elapsed().as_nanos() as f64 / packets as f64
}
