// SPDX-License-Identifier: Apache-2.0
use std::time::Duration;

use super::*;
use crate::host::wait;
use paxos::{Header, MsgType};

fn plane(offload: bool, address: &str) -> UdpPlane {
    let options = PlaneOptions {
        offload,
        ..PlaneOptions::default()
    };
    UdpPlane::bind(address.parse().unwrap(), options).unwrap()
}

/// Receives until `n` datagrams are there, or none came for two seconds.
fn collect(plane: &mut UdpPlane, n: usize) -> Vec<(Vec<u8>, SocketAddr)> {
    let mut batch = RecvBatch::new();
    let mut all = Vec::new();
    while all.len() < n {
        if plane.receive(&mut batch).unwrap() {
            for arrival in batch.iter() {
                all.extend(arrival.datagrams().map(|d| (d.to_vec(), arrival.from)));
            }
        } else if wait(&[plane.as_fd()], Some(Duration::from_secs(2)))
            .unwrap()
            .none()
        {
            break;
        }
    }
    all
}

/// Values of many sizes, with runs of equal ones.
fn values() -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    for i in 0..300usize {
        let len = [12, 12, 12, 64, 64, 1024, 0, 1400][i / 4 % 8].min(paxos::wire::MAX_VALUE_LEN);
        values.push((0..len).map(|b| (b * 7 + i) as u8).collect());
    }
    values.extend((0..150).map(|i| vec![i as u8; 16]));
    values
}

fn exchange(sender: &mut UdpPlane, receiver: &mut UdpPlane) {
    let to = receiver.local_addr().unwrap();
    let mut batch = SendBatch::new();
    let mut expected = Vec::new();
    for (i, value) in values().iter().enumerate() {
        let header = Header {
            inst: i as u64,
            ..Header::new(MsgType::Reply)
        };
        batch.push(&to, &header, value);
        expected.push(header.datagram(value));
    }
    sender.send(&mut batch);
    assert!(batch.is_empty());
    let received = collect(receiver, expected.len());
    let from = sender.local_addr().unwrap();
    assert!(received.iter().all(|r| r.1 == from));
    let received: Vec<_> = received.into_iter().map(|r| r.0).collect();
    assert_eq!(received, expected);
    let counters = sender.counters();
    assert_eq!(
        (counters.sent, counters.dropped),
        (expected.len() as u64, 0)
    );
    assert_eq!(counters.refused, 0);
}

#[test]
fn the_same_bytes_with_and_without_offload_over_both_families() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        for (offload_out, offload_in) in
            [(true, true), (true, false), (false, true), (false, false)]
        {
            exchange(
                &mut plane(offload_out, address),
                &mut plane(offload_in, address),
            );
        }
    }
}

#[test]
fn a_refusal_to_segment_loses_nothing() {
    let mut sender = plane(true, "127.0.0.1:0");
    if !sender.segments() {
        println!("SKIPPED: the kernel has no UDP_SEGMENT");
        return;
    }
    sys::disable_checksums(sender.as_fd()).unwrap();
    exchange(&mut sender, &mut plane(true, "127.0.0.1:0"));
    assert!(!sender.segments());
}

#[test]
fn empty_and_largest_datagrams_arrive() {
    let mut receiver = plane(true, "127.0.0.1:0");
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    for len in [0, 65_507, 1] {
        sender.send_to(&vec![7; len], to).unwrap();
    }
    let lens: Vec<_> = collect(&mut receiver, 3)
        .iter()
        .map(|r| r.0.len())
        .collect();
    assert_eq!(lens, [0, 65_507, 1]);
}

#[test]
fn what_the_kernel_refuses_is_counted_and_the_rest_goes_out() {
    let mut sender = plane(true, "127.0.0.1:0");
    let mut receiver = plane(true, "127.0.0.1:0");
    let mut batch = SendBatch::new();
    let header = Header::new(MsgType::Probe);
    batch.push(&"[::1]:9".parse().unwrap(), &header, &[]);
    batch.push(&receiver.local_addr().unwrap(), &header, &[1]);
    sender.send(&mut batch);
    assert_eq!(collect(&mut receiver, 1).len(), 1);
    assert_eq!((sender.counters().sent, sender.counters().refused), (1, 1));
}
