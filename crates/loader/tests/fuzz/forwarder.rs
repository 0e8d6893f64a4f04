// SPDX-License-Identifier: Apache-2.0
//! Such frames through a forwarder: to addresses behind its ports, and to those of roles: one that
//! is there, one that isn't, and the forwarder itself.

use std::net::IpAddr;
use std::path::Path;

use loader::frame;
use loader::layout::{COUNTERS, Link, Route, RouteKey};
use loader::map_place::{self, MapPlace};
use loader::object::{Object, Role, Sizes};
use loader::run::{Runner, action, counter, test_device};
use test_world::Rng;

use crate::FRAMES;
use crate::common::random::{self, Near, SLOTS, deployment};
use crate::common::switch;
use crate::common::{Loaded, first_enable, number, objects_or_skip};
use crate::damage::{damage, forge};

/// Frames until the acceptor begins anew: forged promises close it by and by.
const LIFE: u64 = 1024;
const LOOPBACK: u32 = 1;
/// The address of the acceptor's copies, which is behind a port.
const MEMBER: [u8; 4] = [10, 1, 0, 1];
const MAC_TO: [u8; 6] = [2, 0, 0, 0, 3, 1];
const MAC_FROM: [u8; 6] = [2, 0, 0, 0, 3, 2];

/// The destinations of frames; each number is the last byte of the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Port = 1,
    AllPorts = 2,
    /// A role that nobody has put there.
    Nobody = 3,
    /// The forwarder, which calls itself again.
    Itself = 4,
    /// A role that hands its copies back to the forwarder.
    Acceptor = 5,
    /// No route leads there.
    Elsewhere = 6,
}

const ALL: [At; 6] = [
    At::Port,
    At::AllPorts,
    At::Nobody,
    At::Itself,
    At::Acceptor,
    At::Elsewhere,
];

#[test]
fn forwarders_withstand() {
    let Some(dir) = objects_or_skip() else { return };
    let (frames, seed) = (number("XDP_FUZZ", FRAMES), number("XDP_SEED", 1));
    let mut switch = Switch::new(&dir, seed);
    for done in 0..frames {
        if done % LIFE == 0 {
            switch.enable();
        }
        if let Err(why) = switch.one() {
            panic!("forwarder at frame {done} of seed {seed}: {why}");
        }
    }
    println!("forwarder: {frames} frames, by action:");
    for (n, name) in switch
        .actions
        .iter()
        .zip(["", "drop", "pass", "tx", "redirect"])
        .skip(1)
    {
        println!("  {n:>10} {name}");
    }
    let votes = switch.acceptor.object.counter(counter::CHANGED);
    println!("  {votes:>10} changes of its acceptor");
    assert!(votes > frames / 100, "the acceptor was hardly reached");
    assert!(switch.actions[action::REDIRECT as usize] > frames / 10);
}

struct Switch {
    object: Object,
    runner: Runner,
    acceptor: Loaded,
    random: Rng,
    near: Near,
    /// The forwarder's and the acceptor's.
    counters: [[u64; COUNTERS]; 2],
    actions: [u64; 5],
}

impl Switch {
    fn new(dir: &Path, seed: u64) -> Switch {
        let mut object = Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1)).expect("it loads");
        let mut acceptor = acceptor(dir);
        let own = object.own_program().expect("it is there");
        let acceptors = acceptor.object.own_program().expect("it is there");
        object
            .call("roles", At::Itself as u32 - 1, &own)
            .expect("room");
        object
            .call("roles", At::Acceptor as u32 - 1, &acceptors)
            .expect("room");
        acceptor.object.call("roles", 0, &own).expect("room");
        add_routes(&mut object);
        Switch {
            runner: Runner::new(&mut object, 1).expect("it runs"),
            object,
            acceptor,
            random: Rng::new(seed),
            near: Near::start(),
            counters: [[0; COUNTERS]; 2],
            actions: [0; 5],
        }
    }

    /// Enables the acceptor for the first time.
    fn enable(&mut self) {
        self.acceptor.forget(1);
        let role = self.acceptor.role.acceptor();
        role.enable(&first_enable(1)).expect("its nonce");
    }

    /// Sends one frame and checks the result.
    fn one(&mut self) -> Result<(), String> {
        let frame = self.frame();
        let (action, out) = self.runner.frame(&frame)?;
        let out = out.to_vec();
        let [own, acceptors] = self.counted();
        let failed = |why: &str| {
            let counted = format!("counters {own:?}, of the acceptor {acceptors:?}");
            Err(format!("{why}: action {action}, {counted}, {frame:02x?}"))
        };
        if action == action::ABORTED || action > action::REDIRECT {
            return failed("no action");
        }
        self.actions[action as usize] += 1;
        let untouched = action == action::PASS && out == frame;
        match destination(&frame) {
            // One verdict of the acceptor is counted, then one of the forwarder if that gets the
            // copy.
            At::Acceptor => match (&own[..], &acceptors[..]) {
                ([], [counter::PASSED]) if untouched => Ok(()),
                ([], [verdict]) if *verdict != counter::PASSED => Ok(()),
                // The one member has no address in the frame's family.
                ([], [counter::CHANGED | counter::ANSWERED, counter::UNSENT])
                    if action == action::DROP =>
                {
                    Ok(())
                }
                ([counter::CHANGED], [counter::CHANGED | counter::ANSWERED])
                    if action == action::REDIRECT =>
                {
                    Ok(())
                }
                _ => failed("at the acceptor"),
            },
            At::Port | At::AllPorts if hops(&frame) > 1 => {
                let counted = own == [counter::CHANGED] && acceptors.is_empty();
                match counted && action == action::REDIRECT && is_forwarded(&frame, &out) {
                    true => Ok(()),
                    false => failed("not forwarded"),
                }
            }
            _ if untouched && own == [counter::PASSED] && acceptors.is_empty() => Ok(()),
            _ => failed("not for the switch"),
        }
    }

    fn frame(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let mut datagram = random::for_acceptor(random, &self.near);
        if random.percent(30) {
            forge(random, &mut datagram);
        }
        let v6 = random.percent(30);
        let to = address(*random.pick(&ALL), v6);
        let from = address(At::Elsewhere, v6);
        let port = if random.percent(90) { frame::PORT } else { 1 };
        let mut frame = frame::between((from, 7).into(), (to, port).into(), &datagram);
        if random.percent(20) {
            let at = if v6 { 21 } else { 22 };
            frame[at] = random.below(3) as u8;
        }
        if random.percent(40) {
            damage(random, &mut frame);
        }
        frame
    }

    /// Returns the counters that rose, one for each time.
    fn counted(&mut self) -> [Vec<usize>; 2] {
        let objects = [&self.object, &self.acceptor.object];
        let now = objects.map(|object| object.counters_of(self.acceptor.cpu).of);
        let before = std::mem::replace(&mut self.counters, now);
        [0, 1].map(|of| {
            let times = |at: usize| now[of][at] - before[of][at];
            let risen = (0..COUNTERS).flat_map(|at| (0..times(at)).map(move |_| at));
            risen.collect()
        })
    }
}

/// Loads an acceptor whose only member is a role of its switch; that role is the acceptor itself.
fn acceptor(dir: &Path) -> Loaded {
    let place = MapPlace::only(deployment(11), SLOTS);
    let mut acceptor = Loaded::new(dir, Role::Acceptor, place, 1);
    let object = &mut acceptor.object;
    let mut links = object.memory::<Link>("port_links").expect("a map").copy();
    links.retain(|link| link.ifindex == LOOPBACK);
    links[0].member[0].role = 1;
    object.set_links(&links).expect("there is room");
    object
        .multicast_to(&[LOOPBACK], true)
        .expect("there is room");
    map_place::open(object, &place, 0, &test_device(&place)).expect("it fits");
    acceptor
}

fn add_routes(object: &mut Object) {
    object.forward_by(LOOPBACK).expect("there is room");
    let route = |at: At| Route {
        port: LOOPBACK,
        broadcast: u32::from(at == At::AllPorts),
        mac_to: MAC_TO,
        mac_from: MAC_FROM,
        role: match at {
            At::Port | At::AllPorts => 0,
            role => role as u32,
        },
    };
    for at in ALL.into_iter().filter(|at| *at != At::Elsewhere) {
        for v6 in [false, true] {
            let key = RouteKey::of(address(at, v6));
            object.insert("routes", &key, &route(at)).expect("it fits");
        }
    }
    let member = RouteKey::of(MEMBER.into());
    object
        .insert("routes", &member, &route(At::Port))
        .expect("it fits");
}

fn address(at: At, v6: bool) -> IpAddr {
    switch::address(at as u16, v6)
}

/// Returns what is at a frame's destination, if it has a whole IP header.
fn destination(frame: &[u8]) -> At {
    let to: Option<IpAddr> = match frame[12..14] {
        [0x08, 0x00] => frame
            .get(30..34)
            .map(|ip| <[u8; 4]>::try_from(ip).expect("4 bytes").into()),
        [0x86, 0xdd] => frame
            .get(38..54)
            .map(|ip| <[u8; 16]>::try_from(ip).expect("16 bytes").into()),
        _ => None,
    };
    if to == Some(MEMBER.into()) {
        return At::Port;
    }
    let is_there = |at: &At| to == Some(address(*at, to.is_some_and(|to| to.is_ipv6())));
    ALL.into_iter().find(is_there).unwrap_or(At::Elsewhere)
}

/// Hops left; there is an IP header.
fn hops(frame: &[u8]) -> u8 {
    frame[if frame[12] == 0x08 { 22 } else { 21 }]
}

/// Returns whether `out` is the frame one hop further: new hardware addresses, and a checksum that
/// is right if it was.
fn is_forwarded(frame: &[u8], out: &[u8]) -> bool {
    let mut expected = frame.to_vec();
    expected[..6].copy_from_slice(&MAC_TO);
    expected[6..12].copy_from_slice(&MAC_FROM);
    if frame[12] != 0x08 {
        expected[21] -= 1;
        return out == expected;
    }
    expected[22] -= 1;
    let was_right = frame::ip_checksum_is_right(frame);
    if out.len() < 34 || frame::ip_checksum_is_right(out) != was_right {
        return false;
    }
    expected[24..26].copy_from_slice(&out[24..26]);
    out == expected
}
