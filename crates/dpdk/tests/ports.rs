// SPDX-License-Identifier: Apache-2.0
//! Tests of what ports and their links do to datagrams, and with frames that aren't datagrams.

mod common;

use std::net::SocketAddr;
use std::slice;
use std::time::Instant;

use common::{Pair, address, dpdk_or_skip};
use dpdk::neighbours::Neighbours;
use dpdk::{BURST, Counters, Link, ROOM, Station};
use loader::frame::{self, PORT};

/// Sends datagrams to a node that is at the link. How many it took.
fn sends(station: &mut Station, datagrams: &[&[u8]]) -> u64 {
    let to = SocketAddr::new(address(3, false), 1);
    let all = datagrams.iter().map(|datagram| (to, *datagram));
    datagrams.len() as u64 - send(station, &all.collect::<Vec<_>>())
}

/// Sends datagrams, each to an address. How many it refused.
fn send(station: &mut Station, all: &[(SocketAddr, &[u8])]) -> u64 {
    let all = all
        .iter()
        .map(|(to, datagram)| (slice::from_ref(to), *datagram));
    station.outlet().send(all)
}

#[test]
fn what_is_no_datagram_for_the_station_is_counted_and_dropped() {
    let Some(eal) = dpdk_or_skip() else { return };
    for (number, v6) in [false, true].into_iter().enumerate() {
        let mut pair = Pair::open(eal, number, v6);
        let before = pair.station.view().counters();
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
        // The datagram that was sent last is the first one that arrives.
        pair.send(&good);
        assert_eq!(pair.taken().1, b"datagram");
        let expected = Counters {
            others: before.others + 3,
            malformed: before.malformed + 1,
            damaged: before.damaged + 1,
            ..before
        };
        assert_eq!(pair.station.view().counters(), expected);
    }
}

#[test]
fn a_frame_longer_than_a_buffer_is_counted_and_dropped() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut pair = Pair::with_room(eal, 2, false, 512);
    // The frame comes in three buffers, each chained to the next.
    let long = pair.frame(&[7; 1400]);
    pair.send(&long);
    let short = pair.frame(b"short");
    pair.send(&short);
    assert_eq!(pair.taken().1, b"short");
    assert_eq!(pair.station.view().counters().too_long, 1);
    // No such datagram is sent, either.
    let dropped = pair.station.dropped();
    assert_eq!(sends(&mut pair.station, &[&[7; 1000]]), 1);
    assert_eq!(pair.station.dropped(), dropped + 1);
    let longer_than_the_mtu = [7; 1473];
    assert_eq!(sends(&mut pair.station, &[&longer_than_the_mtu]), 0);
}

#[test]
fn a_ring_that_nobody_reads_drops_and_goes_on() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut pair = Pair::open(eal, 3, false);
    let (sent, before) = (pair.station.sent(), pair.station.dropped());
    let many = 10_000;
    let numbers: Vec<_> = (0..many).map(|number: u64| number.to_string()).collect();
    let datagrams: Vec<_> = numbers.iter().map(String::as_bytes).collect();
    assert_eq!(sends(&mut pair.station, &datagrams), many);
    let dropped = pair.station.dropped();
    let waiting = pair.station.sent() - sent;
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
        sends(&mut pair.station, &[&b"again"[..]; BURST]);
        let mut came = 0;
        while came < BURST {
            came += pair.until("they come", |pair| {
                Some(pair.hear().len()).filter(|n| *n > 0)
            });
        }
    }
    assert_eq!(pair.station.dropped(), dropped);
}

#[test]
fn a_peer_that_is_gone_is_noticed_and_costs_packets_alone() {
    let Some(eal) = dpdk_or_skip() else { return };
    let Pair {
        mut station, far, ..
    } = Pair::open(eal, 4, false);
    drop(far);
    let begun = std::time::Instant::now();
    while station.view().is_up() {
        assert!(!station.receive());
        assert!(begun.elapsed().as_secs() < 60, "it isn't noticed");
    }
    let dropped = station.dropped();
    assert_eq!(sends(&mut station, &[b"to nobody"]), 1);
    assert_eq!(station.dropped(), dropped + 1);
    assert!(!station.receive());
}

#[test]
fn what_is_sent_follows_a_node_to_another_card() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut pair = Pair::open(eal, 6, false);
    let goes_to = |pair: &mut Pair| {
        assert_eq!(sends(&mut pair.station, &[b"to a node"]), 1);
        pair.until("it comes", |pair| pair.hear().pop())[..6].to_vec()
    };
    let before = pair.far.mac();
    for _ in 0..2 {
        assert_eq!(goes_to(&mut pair), before);
    }
    let now = [2, 0, 0, 0, 0, 9];
    let moved = Neighbours::new(address(3, false), now, []);
    pair.send(&moved.announcement());
    assert!(!pair.station.receive());
    assert_eq!(goes_to(&mut pair), now);
}

#[test]
fn several_stations_share_a_port_and_reach_one_another() {
    let Some(eal) = dpdk_or_skip() else { return };
    let [port, mut far] = [10, 11].map(|n| eal.open(&format!("net_memif{n}"), ROOM).unwrap());
    let near = port.mac();
    let ips = [1, 2, 3].map(|last| address(last, false));
    let [a, b, outside] = ips.map(|ip| SocketAddr::new(ip, PORT));
    let link = Link::of(port);
    let [mut first, mut second] = [a, b].map(|own| Station::at(link.clone(), own, ips));
    let mut other = Neighbours::new(outside.ip(), far.mac(), ips);
    let begun = Instant::now();
    while !first.view().unreachable().is_empty() || !second.view().unreachable().is_empty() {
        assert!(begun.elapsed().as_secs() < 60, "they don't find the third");
        first.receive();
        second.receive();
        far.receive();
        let frames = far.frames().iter().map(|f| f.bytes().to_vec());
        for answer in frames.filter_map(|f| other.take(&f)).collect::<Vec<_>>() {
            far.push(answer.len(), |room| room.copy_from_slice(&answer));
        }
        far.flush();
    }
    // Nobody asks at the link for who is at the port; both have said where they are.
    for own in [a, b] {
        assert_eq!(other.of(own.ip()), Some(near));
    }
    let taken = |station: &mut Station| {
        station.receive();
        let all = station.arrivals();
        all.map(|(from, datagram)| (from, datagram.to_vec()))
            .collect::<Vec<_>>()
    };
    // Datagrams from one station to another don't appear at the link.
    far.receive();
    for n in [0_u8, 1] {
        let all = [(b, &[n][..]), (outside, &[9]), (b, &[n, n])];
        assert_eq!(send(&mut first, &all), 0);
        assert_eq!(taken(&mut second), [(a, vec![n]), (a, vec![n, n])]);
        assert_eq!(send(&mut second, &[(a, &[n])]), 0);
        assert_eq!(taken(&mut first), [(b, vec![n])]);
        assert_eq!(far.receive(), 1);
    }
    assert_eq!((first.sent(), second.sent()), (6, 2));
    // Each station gets its own datagrams from outside, whichever station looks.
    for to in [b, a, b] {
        let frame = frame::between(outside, to, b"from outside");
        far.push(frame.len(), |room| room.copy_from_slice(&frame));
    }
    far.flush();
    assert_eq!(taken(&mut first).len(), 1);
    assert_eq!(taken(&mut second).len(), 2);
    // A station that doesn't look for long loses what exceeds its room, and the others lose
    // nothing.
    let many = [(b, &[7][..]); 600];
    assert_eq!(send(&mut first, &many), 0);
    assert_eq!(
        first.view().counters().no_room,
        600 - taken(&mut second).len() as u64
    );
    // A station that has left has no address here any more.
    drop(second);
    assert_eq!(send(&mut first, &[(b, &[1])]), 1);
    let frame = frame::between(outside, b, b"from outside");
    far.push(frame.len(), |room| room.copy_from_slice(&frame));
    far.flush();
    let before = first.view().counters().others;
    assert_eq!(taken(&mut first).len(), 0);
    assert_eq!(first.view().counters().others, before + 1);
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
