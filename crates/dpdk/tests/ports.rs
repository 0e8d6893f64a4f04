// SPDX-License-Identifier: Apache-2.0
//! What ports and their links do to datagrams, and what comes in by them that is none.

mod common;

use std::net::SocketAddr;

use common::{Pair, address, dpdk_or_skip};
use dpdk::{BURST, Counters};
use loader::frame::{self, PORT};

#[test]
fn what_is_no_datagram_for_the_station_is_counted_and_dropped() {
    let Some(eal) = dpdk_or_skip() else { return };
    for (number, v6) in [false, true].into_iter().enumerate() {
        let mut pair = Pair::open(eal, number, v6);
        let before = pair.station.counters();
        let good = pair.frame(b"datagram");
        let last = good.len() - 1;
        let mut damaged = good.clone();
        damaged[last] ^= 1;
        let mut another_type = good.clone();
        another_type[12..14].copy_from_slice(&[0x81, 0]);
        let from = SocketAddr::new(address(2, v6), 9001);
        let to = |last, port| SocketAddr::new(address(last, v6), port);
        let frames = [
            damaged,
            another_type,
            good[..last].to_vec(),
            frame::between(from, to(9, PORT), b"for another address"),
            frame::between(from, to(1, PORT + 1), b"for another port"),
        ];
        for frame in &frames {
            pair.send(frame);
        }
        // What comes behind them comes first.
        pair.send(&good);
        assert_eq!(pair.taken().1, b"datagram");
        let expected = Counters {
            others: before.others + 3,
            malformed: before.malformed + 1,
            damaged: before.damaged + 1,
            ..before
        };
        assert_eq!(pair.station.counters(), expected);
    }
}

#[test]
fn a_frame_longer_than_a_buffer_is_counted_and_dropped() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut pair = Pair::with_room(eal, 2, false, 512);
    let long = pair.frame(&[7; 1400]);
    pair.send(&long);
    let short = pair.frame(b"short");
    pair.send(&short);
    assert_eq!(pair.taken().1, b"short");
    assert_eq!(pair.station.counters().too_long, 1);
    // Nor is one sent.
    let head = pair.station.head(SocketAddr::new(address(3, false), 1));
    let head = head.expect("the neighbour is known");
    let dropped = pair.station.port().dropped();
    assert!(pair.station.push(&head, &[7; 1000]));
    assert!(!pair.station.push(&head, &[7; 1473]), "longer than the MTU");
    assert_eq!(pair.station.port().dropped(), dropped + 1);
}

#[test]
fn a_ring_that_nobody_reads_drops_and_goes_on() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut pair = Pair::open(eal, 3, false);
    let head = pair.station.head(SocketAddr::new(address(3, false), 1));
    let head = head.expect("the neighbour is known");
    let (sent, before) = (pair.station.port().sent(), pair.station.port().dropped());
    let many = 10_000;
    for number in 0..many {
        assert!(pair.station.push(&head, &number.to_string().into_bytes()));
    }
    pair.station.flush();
    let dropped = pair.station.port().dropped();
    let waiting = pair.station.port().sent() - sent;
    assert!(dropped > before && waiting > 0, "{waiting} {dropped}");
    assert_eq!(waiting + dropped - before, many);
    let mut came = 0;
    while came < waiting {
        came += pair.until("they come", |pair| {
            Some(pair.hear().len() as u64).filter(|n| *n > 0)
        });
    }
    // Buffers are back, and the link is as good as before.
    for _ in 0..many / BURST as u64 {
        for _ in 0..BURST {
            assert!(pair.station.push(&head, b"again"));
        }
        pair.station.flush();
        let mut came = 0;
        while came < BURST {
            came += pair.until("they come", |pair| {
                Some(pair.hear().len()).filter(|n| *n > 0)
            });
        }
    }
    assert_eq!(pair.station.port().dropped(), dropped);
}

#[test]
fn a_peer_that_is_gone_is_noticed_and_costs_packets_alone() {
    let Some(eal) = dpdk_or_skip() else { return };
    let Pair {
        mut station, far, ..
    } = Pair::open(eal, 4, false);
    let to = SocketAddr::new(address(3, false), 1);
    let head = station.head(to).expect("the neighbour is known");
    drop(far);
    let begun = std::time::Instant::now();
    while station.is_up() {
        assert!(!station.receive());
        assert!(begun.elapsed().as_secs() < 60, "it isn't noticed");
    }
    let dropped = station.port().dropped();
    assert!(station.push(&head, b"to nobody"));
    station.flush();
    assert_eq!(station.port().dropped(), dropped + 1);
    assert!(!station.receive());
}

#[test]
fn a_process_starts_dpdk_once() {
    let Some(eal) = dpdk_or_skip() else { return };
    let library = common::library().expect("it has started");
    let refused = dpdk::Eal::start(&library, &["--other".to_owned()]).err();
    let refused = refused.expect("it has started with other arguments");
    assert!(refused.contains("processes of their own"), "{refused}");
    let there = eal.ports();
    assert!(there.contains(&"net_memif15".to_owned()), "{there:?}");
    let refused = eal.open("net_memif99", 2048).err().expect("there is none");
    for part in [
        "no port net_memif99",
        "net_memif15",
        "another process has the socket",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    let _port = eal.open("net_memif14", 2048).expect("it opens");
    let refused = eal.open("net_memif14", 2048).err().expect("it is open");
    assert!(
        refused.contains("another node of this process"),
        "{refused}"
    );
}
