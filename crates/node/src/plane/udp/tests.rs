// SPDX-License-Identifier: Apache-2.0
use std::time::Duration;

use super::*;
use crate::host::wait;
use paxos::auth::{Algorithm, KeyId, KeyPair, NODES};
use paxos::wire::{HEADER_LEN, TAG_LEN};
use paxos::{Header, MsgType, Reason};

fn plane(offload: bool, address: &str) -> UdpPlane {
    let options = PlaneOptions {
        offload,
        ..PlaneOptions::default()
    };
    UdpPlane::bind(address.parse().unwrap(), options).unwrap()
}

/// Receives until there are `n` datagrams, or none has come for two seconds.
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

/// Returns values of many sizes, with runs of equal ones.
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

/// Returns the nodes' key of a generation.
fn key(algorithm: Algorithm, odd: bool, bytes: u8) -> Keyring {
    let id = KeyId { odd, number: NODES };
    let mut keyring = Keyring::by(algorithm, id);
    let pair = KeyPair {
        mac: [bytes; 16],
        digest: [bytes; 16],
    };
    keyring.insert(id, pair);
    keyring
}

fn signed(keyring: &Keyring, value: &[u8]) -> Vec<u8> {
    let header = Header::new(MsgType::Phase2a);
    keyring.datagram(&header, value, NODES, 7).unwrap()
}

/// Sends these datagrams, and then a valid one that is longer, so that it arrives alone. Returns
/// those that arrived before it.
fn passing(
    sender: &mut UdpPlane,
    receiver: &mut UdpPlane,
    datagrams: &[&[u8]],
    keyring: &Keyring,
) -> Vec<Vec<u8>> {
    let to = receiver.local_addr().unwrap();
    let last = signed(keyring, b"the last of all");
    let mut batch = SendBatch::new();
    for datagram in datagrams.iter().chain([&&last[..]]) {
        batch.push_datagram(&to, datagram);
    }
    sender.send(&mut batch);
    let mut passing = Vec::new();
    loop {
        let came = collect(receiver, 1);
        assert!(!came.is_empty(), "the last one is lost");
        for (datagram, _) in came {
            if datagram == last {
                return passing;
            }
            passing.push(datagram);
        }
    }
}

/// Wrongly signed packets are dropped before the socket. [M-SIGNED]
#[test]
fn what_is_wrongly_signed_is_dropped_before_the_socket() {
    for algorithm in [Algorithm::SipHash, Algorithm::HalfSipHash] {
        let mut receiver = plane(true, "127.0.0.1:0");
        let own = key(algorithm, true, 1);
        receiver.use_keys(&own);
        if !receiver.filters() {
            println!("SKIPPED: it needs root, and the programs of programs/xdp");
            return;
        }
        let (mut one_by_one, mut together) =
            (plane(false, "127.0.0.1:0"), plane(true, "127.0.0.1:0"));
        let newer = key(algorithm, false, 2);
        let [good, of_newer] = [&own, &newer].map(|keyring| signed(keyring, b"value"));
        let of_stranger = signed(&key(algorithm, true, 3), b"value");
        let unsigned = Header::new(MsgType::Phase2a).datagram(b"");
        let mut other_way = good.clone();
        other_way[HEADER_LEN + 1] ^= 3;
        for (bad, reason) in [
            (&unsigned[..], Reason::Unsigned),
            (&unsigned[..HEADER_LEN - 1], Reason::Truncated),
            (&good[..HEADER_LEN + TAG_LEN - 1], Reason::Truncated),
            (&of_stranger[..], Reason::BadMac),
            (&of_newer[..], Reason::UnknownKey),
            (&other_way[..], Reason::UnknownKey),
        ] {
            let before = receiver.dropped().get(reason);
            let all = [bad, &good, bad];
            let came = passing(&mut one_by_one, &mut receiver, &all, &own);
            assert_eq!(came, [&good[..]], "{algorithm:?} {reason:?}");
            assert_eq!(receiver.dropped().get(reason), before + 2);
        }
        // Datagrams that arrive together are dropped if none of them is right.
        let before = receiver.dropped().get(Reason::BadMac);
        let mut burst = vec![&of_stranger[..]; 64];
        assert!(passing(&mut together, &mut receiver, &burst, &own).is_empty());
        assert_eq!(receiver.dropped().get(Reason::BadMac), before + 64);
        burst[63] = &good;
        let came = passing(&mut together, &mut receiver, &burst, &own);
        let whole = together.segments() && receiver.coalesces();
        assert_eq!(came.len(), if whole { 64 } else { 1 });
        // The keys are replaced.
        receiver.use_keys(&newer);
        let both = [&good[..], &of_newer];
        let came = passing(&mut one_by_one, &mut receiver, &both, &newer);
        assert_eq!(came, [of_newer], "{algorithm:?}");
    }
}

/// A closed port shows at once, and costs no datagram that goes elsewhere. [E-EVIDENCE]
#[test]
fn a_closed_port_is_told_and_nothing_else_is_lost() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (mut sender, mut receiver) = (plane(true, address), plane(true, address));
        sender.hear_refusals().unwrap();
        let closed = plane(true, address).local_addr().unwrap();
        let open = receiver.local_addr().unwrap();
        let mut batch = SendBatch::new();
        const ROUNDS: u64 = 50;
        for inst in 0..ROUNDS {
            let header = Header {
                inst,
                ..Header::new(MsgType::Probe)
            };
            for to in [&closed, &open, &closed, &open] {
                batch.push(to, &header, b"probe");
            }
            sender.send(&mut batch);
        }
        assert_eq!(
            collect(&mut receiver, 2 * ROUNDS as usize).len(),
            2 * ROUNDS as usize
        );
        let heard = wait(&[sender.as_fd()], Some(Duration::from_secs(10)));
        assert!(!heard.unwrap().none(), "the error wakes who waits");
        let refused = sender.refused();
        assert!(!refused.is_empty() && refused.iter().all(|by| *by == closed));
        assert_eq!(sender.refused(), [], "each is told once");
        assert_eq!(receiver.refused(), [], "who doesn't listen hears nothing");
    }
}
