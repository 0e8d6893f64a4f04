// SPDX-License-Identifier: Apache-2.0
//! Runs every script of `testdata/roles/` on roles that get and send their packets by ports of
//! DPDK, in IPv4 and in IPv6 frames. The roles are those of `sim`'s own run; what is held to the
//! scripts here is their way in and out.

mod common;

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::slice;

use common::{Pair, address, dpdk_or_skip};
use dpdk::frame::{Content, parse};
use loader::frame;
use paxos::{Instance, PartitionId, To, Verdict};
use sim::script::{Device, Order, RustDevice, Setup, SlotState, State, complaints, run};

#[test]
fn every_role_script_holds_by_a_port() {
    let Some(eal) = dpdk_or_skip() else { return };
    let mut failures = String::new();
    let mut packets = 0;
    for (number, v6) in [false, true].into_iter().enumerate() {
        let pair = Rc::new(RefCell::new(Pair::open(eal, number, v6)));
        for (name, script) in scripts() {
            let mut build = |setup: &Setup| {
                let device = ByPort {
                    pair: pair.clone(),
                    role: RustDevice::build(setup)?,
                };
                Ok(Box::new(device) as Box<dyn Device>)
            };
            let what = format!("{name} (IPv6: {v6})");
            failures += &complaints(&what, run(&script, &mut build));
        }
        packets += pair.borrow().station.sent();
    }
    assert!(failures.is_empty(), "\n{failures}");
    assert!(packets > 100, "{packets} packets went by the ports");
}

/// A role behind a station.
struct ByPort {
    pair: Rc<RefCell<Pair>>,
    role: Box<dyn Device>,
}

impl Device for ByPort {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let mut pair = self.pair.borrow_mut();
        let v6 = pair.v6;
        let whole = pair.frame(datagram);
        pair.send(&whole);
        let (from, taken) = pair.taken();
        assert_eq!(taken, datagram);
        let (sent, verdict) = self.role.packet(&taken);
        let to: Vec<_> = sent
            .iter()
            .map(|(to, _)| address_of(*to, from, v6))
            .collect();
        let out = sent
            .iter()
            .zip(&to)
            .map(|((_, datagram), to)| (slice::from_ref(to), &datagram[..]));
        let refused = pair.station.outlet().send(out);
        assert_eq!(refused, 0, "all neighbours are known");
        let mut came = Vec::new();
        while came.len() < sent.len() {
            let more = pair.until("it comes", |pair| {
                Some(pair.hear()).filter(|f| !f.is_empty())
            });
            came.extend(more);
        }
        let came = came.iter().map(|frame| read(frame, from, v6)).collect();
        (came, verdict)
    }

    fn order(&mut self, order: &Order) -> Result<bool, String> {
        self.role.order(order)
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        self.role.state(pid)
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        self.role.slot(pid, inst)
    }

    fn fingerprint(&self) -> String {
        self.role.fingerprint()
    }
}

const GROUPS: [To; 4] = [To::Acceptors, To::Learners, To::Replicas, To::Leader];

/// Returns a port for each of those that a role sends to.
fn address_of(to: To, sender: SocketAddr, v6: bool) -> SocketAddr {
    match to {
        To::Sender => sender,
        To::Node(node) => (address(4, v6), node).into(),
        to => {
            let at = GROUPS.iter().position(|group| *group == to);
            (address(3, v6), 1 + at.expect("it is one of them") as u16).into()
        }
    }
}

/// Returns the receivers of a frame, and its datagram.
fn read(bytes: &[u8], sender: SocketAddr, v6: bool) -> (To, Vec<u8>) {
    let Content::Datagram(found) = parse(bytes, false) else {
        panic!("{bytes:02x?}");
    };
    let found_to = found.ends.to();
    if found_to == sender {
        let datagram = frame::datagram(bytes, v6, true).expect("a careful answer");
        return (To::Sender, datagram.to_vec());
    }
    let to = match found_to.ip() == address(4, v6) {
        true => To::Node(found_to.port()),
        false => GROUPS[usize::from(found_to.port()) - 1],
    };
    (to, found.payload.to_vec())
}

fn scripts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles");
    let entries = fs::read_dir(folder).expect("testdata is there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut scripts: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy();
            let script = fs::read_to_string(&path).expect("a script is readable");
            (name.into_owned(), script)
        })
        .collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "no scripts found");
    scripts
}
