// SPDX-License-Identifier: Apache-2.0
//! Stations with somebody at the other end of their link: pairs of memif ports, in memory of this
//! process.
#![allow(dead_code)] // each test program uses a part

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dpdk::frame::{Content, parse};
use dpdk::neighbours::Neighbours;
use dpdk::{Eal, LIBRARY, Port, ROOM, Station};
use loader::frame::{self, PORT};

/// Pairs that one process has; each is for one test.
const PAIRS: usize = 8;
/// Ends a test that fails.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the library for DPDK, where it is built.
pub fn library() -> Option<PathBuf> {
    let directory = loader::program_files::directory("WIREPAXOS_DPDK_DIR", "dpdk", LIBRARY);
    let directory = directory.expect("this program has a place");
    directory.map(|directory| directory.join(LIBRARY))
}

/// Returns the library, or prints why there is none.
pub fn library_or_skip() -> Option<PathBuf> {
    let found = library();
    if found.is_none() {
        println!(
            "SKIPPED: no library for DPDK: apt-get install libdpdk-dev, make -C programs/dpdk"
        );
    }
    found
}

/// Returns DPDK of this process with pairs of memif ports, or prints why it isn't there.
pub fn dpdk_or_skip() -> Option<Eal> {
    library_or_skip().map(|library| start(&library, memifs()))
}

/// Starts DPDK with these ports.
pub fn start(library: &Path, ports: Vec<String>) -> Eal {
    let plain = [
        "--no-huge",
        "-m",
        "512",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
        "-l",
        "0",
    ];
    let arguments = plain.map(str::to_owned).into_iter().chain(ports);
    Eal::start(library, &arguments.collect::<Vec<_>>()).expect("DPDK starts")
}

fn memifs() -> Vec<String> {
    let socket = std::env::temp_dir().join(format!("wirepaxos-memif-{}", std::process::id()));
    let end = |pair, (end, role)| {
        format!(
            "--vdev=net_memif{},id={pair},role={role},mac=02:00:00:00:00:0{},socket={}",
            2 * pair + end,
            1 + end,
            socket.display()
        )
    };
    let ends = ["server", "client"].into_iter().enumerate();
    (0..PAIRS)
        .flat_map(|pair| ends.clone().map(move |role| end(pair, role)))
        .collect()
}

/// A station, and who is at the other end of its link: the sender of [`frame::build`], and two
/// other nodes.
pub struct Pair {
    pub station: Station,
    pub far: Port,
    others: Vec<Neighbours>,
    pub v6: bool,
}

/// Returns the addresses of the station's link: the station's, its usual sender's, and those of two
/// nodes.
pub fn address(last: u8, v6: bool) -> IpAddr {
    match v6 {
        true => [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into(),
        false => [10, 0, 0, last].into(),
    }
}

impl Pair {
    /// Returns the pair of this number, once each of its ends knows the other.
    pub fn open(eal: Eal, number: usize, v6: bool) -> Pair {
        Pair::with_room(eal, number, v6, ROOM)
    }

    /// Opens a pair whose station has buffers of this size.
    pub fn with_room(eal: Eal, number: usize, v6: bool, room: u16) -> Pair {
        assert!(number < PAIRS);
        let port = |end, room| eal.open(&format!("net_memif{}", 2 * number + end), room);
        let near = port(0, room).expect("it opens");
        let far = port(1, ROOM).expect("it opens");
        let nodes = [3, 4].map(|last| address(last, v6));
        let own = SocketAddr::new(address(1, v6), PORT);
        let mut pair = Pair {
            others: nodes
                .map(|node| Neighbours::new(node, far.mac(), [own.ip()]))
                .into(),
            station: Station::new(near, own, nodes),
            far,
            v6,
        };
        pair.until("both ends are there", |pair| {
            pair.station.receive();
            pair.hear();
            (pair.station.view().is_up() && pair.station.view().unreachable().is_empty())
                .then_some(())
        });
        pair
    }

    /// Does something again and again until it has a result.
    pub fn until<T>(&mut self, what: &str, mut attempt: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if let Some(done) = attempt(self) {
                return done;
            }
            std::thread::yield_now();
        }
        panic!("{what}: not within {LIMIT:?}");
    }

    /// Puts a frame onto the link, at the other end.
    pub fn send(&mut self, frame: &[u8]) {
        let pushed = self
            .far
            .push(frame.len(), |room| room.copy_from_slice(frame));
        assert!(pushed, "there is a buffer");
        self.far.flush();
    }

    /// Frames that have come to the other end. Questions there for one of the nodes are answered.
    pub fn hear(&mut self) -> Vec<Vec<u8>> {
        self.far.receive();
        let frames: Vec<_> = self
            .far
            .frames()
            .iter()
            .map(|f| f.bytes().to_vec())
            .collect();
        let is_question = |frame: &Vec<u8>| parse(frame, false) == Content::Neighbour;
        let (questions, others): (Vec<_>, Vec<_>) = frames.into_iter().partition(is_question);
        for question in &questions {
            let answers = self
                .others
                .iter_mut()
                .filter_map(|node| node.take(question));
            for answer in answers.collect::<Vec<_>>() {
                self.send(&answer);
            }
        }
        others
    }

    /// Returns what has come to the station, and from whom, once something has.
    pub fn taken(&mut self) -> (SocketAddr, Vec<u8>) {
        self.until("a datagram comes", |pair| {
            pair.station.receive().then_some(())
        });
        let all: Vec<_> = self.station.arrivals().collect();
        assert_eq!(all.len(), 1);
        (all[0].0, all[0].1.to_vec())
    }

    /// Returns a frame as a careful sender makes it.
    pub fn frame(&self, datagram: &[u8]) -> Vec<u8> {
        frame::build(datagram, self.v6)
    }
}
