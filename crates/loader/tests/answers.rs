// SPDX-License-Identifier: Apache-2.0
//! An answer of a role in a switch reaches an end of a veth pair that has no program, also if nothing else passes.

mod common;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use common::random::{SLOTS, deployment};
use common::{Loaded, objects_or_skip};
use loader::frame;
use loader::object::Role;
use loader::place::Place;
use loader::veth::prepare_for_xdp;
use measure::network::{Namespace, veth};
use paxos::wire::value::Probe;
use paxos::{Header, MsgType, Packet};

const ASKER: [u8; 4] = [10, 4, 0, 1];
const ROLE: [u8; 4] = [10, 4, 0, 2];
/// Far more than an answer takes: nobody waits that long if it comes.
const PATIENCE: Duration = Duration::from_secs(5);

#[test]
fn an_answer_wakes_an_end_without_a_program() {
    let Some(dir) = objects_or_skip() else { return };
    if let Err(why) = answers(&dir) {
        println!("SKIPPED: {why}");
    }
}

/// An error says why it can't be tried here.
fn answers(dir: &Path) -> Result<(), String> {
    let (asker, node) = (Namespace::new()?, Namespace::new()?);
    let (near, far) = veth((&asker, "near"), (&node, "far"))?;
    asker.inside(|| prepare_for_xdp("near"))?;
    let hex = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    asker.ip(&[
        format!("addr add {}/24 dev near", IpAddr::from(ASKER)),
        format!(
            "neighbour add {} lladdr {} dev near nud permanent",
            IpAddr::from(ROLE),
            hex(far.mac)
        ),
    ])?;
    assert_ne!(near.mac, far.mac);
    let mut acceptor = Loaded::new(dir, Role::Acceptor, Place::only(deployment(11), SLOTS), 1);
    acceptor.object.redirect_answers()?;
    let _attached = node.inside(|| acceptor.object.attach(&far))?;
    let socket = asker.inside(|| UdpSocket::bind(SocketAddr::from((ASKER, 0))));
    let socket = socket.map_err(|e| e.to_string())?;
    socket.set_read_timeout(Some(PATIENCE)).expect("it is long");
    for request in 1..=3 {
        let question = Header {
            cluster: 0xc1,
            group: 1,
            client: 7,
            request,
            ..Header::new(MsgType::Probe)
        };
        let to = SocketAddr::from((ROLE, frame::PORT));
        let datagram = question.datagram(&Probe::Acceptor.emit());
        socket.send_to(&datagram, to).expect("there is a way");
        let mut buffer = [0; 256];
        let n = socket.recv(&mut buffer).expect("an answer");
        let answer = Packet::parse(&buffer[..n]).expect("it is one of ours");
        assert_eq!(answer.header.msgtype, MsgType::ProbeAck);
        assert_eq!(answer.header.request, request);
    }
    Ok(())
}
