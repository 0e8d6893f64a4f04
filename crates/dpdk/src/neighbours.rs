// SPDX-License-Identifier: Apache-2.0
//! Who is at this link: hardware addresses of others, and answers to those who ask for the own one.
//! ARP for IPv4, and neighbour discovery for IPv6.
//!
//! Of the cluster's nodes only what they say about themselves counts. Others, who send from
//! anywhere, are answered where their last datagram came from: from themselves, or from a router.
//! One that was never heard, as a replica doesn't hear the clients that it answers, is asked for
//! when there is something to send.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::frame::{
    BROADCAST, ETHERNET, Mac, OF_ICMP6, SHORTEST, V6, fold, octets, of_pseudo, sum, u16_at, v6,
};

/// A node that hasn't said where it is is asked this often.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// A neighbour is asked for its hardware address again after this time, because it may have got
/// another card.
const ASK_AGAIN: Duration = Duration::from_secs(20);
/// At most this many others are known at once. If there are more, all are forgotten and learnt
/// again.
const MAX_OTHERS: usize = 4_096;

const ARP: usize = 28;
const ARP_ASKS: u16 = 1;
const ARP_ANSWERS: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The length of ICMPv6 questions and answers, with a hardware address as their only option.
const ICMP6: usize = 32;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDES: u8 = 0x20;
/// The hop limit of a packet that no router has passed on.
const ALL_HOPS: u8 = 255;

/// The hardware addresses of all hosts at this link.
#[derive(Debug)]
pub struct Neighbours {
    own: IpAddr,
    mac: Mac,
    nodes: Vec<Node>,
    others: HashMap<IpAddr, Mac>,
    /// Others who were asked for, and when. When there are too many, all are forgotten.
    sought: HashMap<IpAddr, Instant>,
}

#[derive(Debug)]
struct Node {
    address: IpAddr,
    mac: Option<Mac>,
    asked: Option<Instant>,
}

impl Neighbours {
    /// Creates the neighbours of the host with the address `own`, whose card has `mac`. The
    /// cluster's other nodes have the addresses `nodes`.
    pub fn new(own: IpAddr, mac: Mac, nodes: impl IntoIterator<Item = IpAddr>) -> Neighbours {
        let others = nodes.into_iter().filter(|address| *address != own);
        let mut addresses: Vec<_> = others.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let node = |address| Node {
            address,
            mac: None,
            asked: None,
        };
        Neighbours {
            own,
            mac,
            nodes: addresses.into_iter().map(node).collect(),
            others: HashMap::new(),
            sought: HashMap::new(),
        }
    }

    /// Returns the address of the host whose neighbours these are.
    pub fn own(&self) -> IpAddr {
        self.own
    }

    /// The hardware address that takes packets for `to`, if it is known.
    pub fn of(&self, to: IpAddr) -> Option<Mac> {
        match self.place(to) {
            Some(at) => self.nodes[at].mac,
            None => self.others.get(&to).copied(),
        }
    }

    /// Nodes that haven't said where they are.
    pub fn unknown(&self) -> impl Iterator<Item = IpAddr> {
        let unknown = self.nodes.iter().filter(|node| node.mac.is_none());
        unknown.map(|node| node.address)
    }

    /// Notes that a datagram has come from an address. Returns true if that tells anything new.
    pub fn heard(&mut self, from: IpAddr, by: Mac) -> bool {
        if self.place(from).is_some() || self.others.get(&from) == Some(&by) {
            return false;
        }
        self.insert(from, by);
        true
    }

    fn insert(&mut self, other: IpAddr, mac: Mac) {
        if self.others.len() == MAX_OTHERS {
            self.others.clear();
        }
        self.others.insert(other, mac);
    }

    /// Returns the question for the hardware address of `other`, to which something is to be sent.
    /// Returns nothing if the question was asked just now, or if `other` is a node, which is asked
    /// for anyway.
    pub fn seek(&mut self, other: IpAddr, now: Instant) -> Option<Vec<u8>> {
        let is_due = |asked: &Instant| now.saturating_duration_since(*asked) >= ASK_INTERVAL;
        let is_of_family = other.is_ipv4() == self.own.is_ipv4();
        let is_asked = self.sought.get(&other).is_some_and(|asked| !is_due(asked));
        if is_asked || !is_of_family || self.place(other).is_some() {
            return None;
        }
        if self.sought.len() == MAX_OTHERS {
            self.sought.clear();
        }
        self.sought.insert(other, now);
        Some(question(self.own, self.mac, other))
    }

    /// Takes a frame for neighbours. Returns the answer if it was a question for the own address.
    pub fn take(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        match u16_at(frame.get(..ETHERNET)?, 12) {
            0x0806 => self.take_arp(frame.get(ETHERNET..ETHERNET + ARP)?),
            _ => self.take_icmp6(frame),
        }
    }

    /// Returns what to ask now. Those who are `here`, at the same port, aren't asked for.
    pub fn questions(&mut self, now: Instant, here: &[IpAddr]) -> Vec<Vec<u8>> {
        let (own, mac) = (self.own, self.mac);
        let is_due = |node: &&mut Node| {
            let interval = node.mac.map_or(ASK_INTERVAL, |_| ASK_AGAIN);
            let asked = node.asked;
            let is_long_ago = |asked| now.saturating_duration_since(asked) >= interval;
            !here.contains(&node.address) && asked.is_none_or(is_long_ago)
        };
        let due = self.nodes.iter_mut().filter(is_due);
        due.map(|node| {
            node.asked = Some(now);
            question(own, mac, node.address)
        })
        .collect()
    }

    /// Tells all at the link where the own address is: it may have been elsewhere before.
    pub fn announcement(&self) -> Vec<u8> {
        match self.own {
            IpAddr::V4(own) => arp(ARP_ASKS, self.mac, own, BROADCAST, own),
            IpAddr::V6(own) => advertisement(self.mac, own, all_nodes(), OVERRIDES),
        }
    }

    fn place(&self, address: IpAddr) -> Option<usize> {
        let found = self
            .nodes
            .binary_search_by_key(&address, |node| node.address);
        found.ok()
    }

    fn learn(&mut self, address: IpAddr, mac: Mac) {
        // No card has such an address: it is for several.
        if mac[0] & 1 != 0 {
            return;
        }
        if let Some(at) = self.place(address) {
            self.nodes[at].mac = Some(mac);
        } else if self.sought.remove(&address).is_some() {
            self.insert(address, mac);
        }
    }

    fn take_arp(&mut self, arp_packet: &[u8]) -> Option<Vec<u8>> {
        // Ethernet and IPv4.
        if arp_packet[..6] != [0, 1, 8, 0, 6, 4] {
            return None;
        }
        let by: Mac = octets(arp_packet, 8);
        let [from, to] = [14, 24].map(|at| Ipv4Addr::from(octets(arp_packet, at)));
        self.learn(from.into(), by);
        let is_question = u16_at(arp_packet, 6) == ARP_ASKS && IpAddr::V4(to) == self.own;
        (is_question && from != to).then(|| arp(ARP_ANSWERS, self.mac, to, by, from))
    }

    fn take_icmp6(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (ip, rest) = frame.get(ETHERNET..)?.split_at_checked(V6)?;
        let message = rest.get(..usize::from(u16_at(ip, 4)))?;
        let right = fold(sum(
            message,
            of_pseudo(OF_ICMP6, message.len()) + sum(&ip[8..], 0),
        ));
        if (ip[6], ip[7]) != (OF_ICMP6, ALL_HOPS) || right != 0xffff {
            return None;
        }
        if message.len() < 24 || message[1] != 0 {
            return None;
        }
        let (from, about) = (
            Ipv6Addr::from(octets(ip, 8)),
            Ipv6Addr::from(octets(message, 8)),
        );
        match message[0] {
            SOLICITATION => {
                if let Some(mac) = option(message, OPTION_SOURCE) {
                    self.learn(from.into(), mac);
                }
                let is_mine = IpAddr::V6(about) == self.own;
                is_mine.then(|| self.advertise(about, from, octets(frame, 6)))
            }
            ADVERTISEMENT => {
                if let Some(mac) = option(message, OPTION_TARGET) {
                    self.learn(about.into(), mac);
                }
                None
            }
            _ => None,
        }
    }

    /// Returns the answer to a question; an asker that has no address yet is answered by a message
    /// to all.
    fn advertise(&self, own: Ipv6Addr, asker: Ipv6Addr, by: Mac) -> Vec<u8> {
        match asker.is_unspecified() {
            true => advertisement(self.mac, own, all_nodes(), OVERRIDES),
            false => advertisement(self.mac, own, (by, asker), SOLICITED | OVERRIDES),
        }
    }
}

/// Returns the addresses of all nodes at the link.
fn all_nodes() -> (Mac, Ipv6Addr) {
    let address = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    ([0x33, 0x33, 0, 0, 0, 1], address)
}

fn question(own: IpAddr, mac: Mac, about: IpAddr) -> Vec<u8> {
    match (own, about) {
        (IpAddr::V4(own), IpAddr::V4(about)) => arp(ARP_ASKS, mac, own, BROADCAST, about),
        (own, about) => {
            let [own, about] = [own, about].map(v6);
            // All hosts whose addresses end with the same bytes receive the question.
            let last: [u8; 3] = octets(&about.octets(), 13);
            let [a, b, c] = last;
            let (to, group) = (
                [0x33, 0x33, 0xff, a, b, c],
                Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]),
            );
            icmp6(
                (mac, own),
                (to, group),
                SOLICITATION,
                0,
                about,
                OPTION_SOURCE,
            )
        }
    }
}

fn advertisement(mac: Mac, own: Ipv6Addr, to: (Mac, Ipv6Addr), flags: u8) -> Vec<u8> {
    icmp6((mac, own), to, ADVERTISEMENT, flags, own, OPTION_TARGET)
}

fn arp(operation: u16, mac: Mac, own: Ipv4Addr, to: Mac, about: Ipv4Addr) -> Vec<u8> {
    let mut frame = Vec::with_capacity(SHORTEST);
    frame.extend(to);
    frame.extend(mac);
    frame.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(mac);
    frame.extend(own.octets());
    // The asker doesn't know the hardware address.
    frame.extend(if operation == ARP_ASKS { [0; 6] } else { to });
    frame.extend(about.octets());
    frame.resize(SHORTEST, 0);
    frame
}

/// Returns a message with the hardware address of who sends it as its option.
fn icmp6(
    (mac, own): (Mac, Ipv6Addr),
    (to_mac, to): (Mac, Ipv6Addr),
    kind: u8,
    flags: u8,
    about: Ipv6Addr,
    option: u8,
) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + V6 + ICMP6);
    frame.extend(to_mac);
    frame.extend(mac);
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((ICMP6 as u16).to_be_bytes());
    frame.extend([OF_ICMP6, ALL_HOPS]);
    frame.extend(own.octets());
    frame.extend(to.octets());
    frame.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
    frame.extend(about.octets());
    frame.extend([option, 1]);
    frame.extend(mac);
    let start = of_pseudo(OF_ICMP6, ICMP6);
    let check = !fold(sum(&frame[ETHERNET + 8..], start));
    let at = ETHERNET + V6 + 2;
    frame[at..at + 2].copy_from_slice(&check.to_ne_bytes());
    frame
}

/// Returns a hardware address among the options of a message.
fn option(message: &[u8], wanted: u8) -> Option<Mac> {
    let mut options = &message[24..];
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(8 * usize::from(units))?;
        if units == 0 {
            return None;
        }
        if kind == wanted {
            return Some(octets(option, 2));
        }
        options = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 2];
    const THIRD: Mac = [2, 0, 0, 0, 0, 3];

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Returns two nodes that know of each other, in both families, and a third that isn't there.
    fn pairs() -> impl Iterator<Item = [Neighbours; 2]> {
        let addresses = [
            ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
            ["fd00::1", "fd00::2", "fd00::3"],
        ];
        addresses.into_iter().map(|all| {
            let all = all.map(address);
            [
                Neighbours::new(all[0], MINE, all),
                Neighbours::new(all[1], THEIRS, all),
            ]
        })
    }

    #[test]
    fn nodes_find_each_other() {
        for [mut one, mut other] in pairs() {
            let now = Instant::now();
            let questions = one.questions(now, &[]);
            assert_eq!(questions.len(), 2, "one for each of the others");
            let answers: Vec<_> = questions.iter().filter_map(|q| other.take(q)).collect();
            assert_eq!(answers.len(), 1, "one of them is asked for");
            assert_eq!(other.of(one.own), Some(MINE), "who asks says where it is");
            assert_eq!(one.take(&answers[0]), None);
            assert_eq!(one.of(other.own), Some(THEIRS));
            assert_eq!(one.unknown().count(), 1, "the third one");
            assert_eq!(&answers[0][..6], &MINE);
            assert_eq!(&answers[0][6..12], &THEIRS);
            assert!(
                one.questions(now, &[]).is_empty(),
                "they were asked just now"
            );
            assert_eq!(
                one.questions(now + ASK_INTERVAL, &[]).len(),
                1,
                "who is unknown"
            );
            assert_eq!(one.questions(now + ASK_AGAIN, &[]).len(), 2);
        }
    }

    #[test]
    fn another_card_is_noticed() {
        for [mut one, other] in pairs() {
            let all = [one.own, other.own];
            assert_eq!(one.take(&other.announcement()), None);
            assert_eq!(one.of(other.own), Some(THEIRS));
            let again = Neighbours::new(other.own, THIRD, all);
            assert_eq!(one.take(&again.announcement()), None);
            assert_eq!(one.of(other.own), Some(THIRD));
            let for_all = Neighbours::new(other.own, BROADCAST, all);
            assert_eq!(one.take(&for_all.announcement()), None);
            assert_eq!(one.of(other.own), Some(THIRD), "nobody has such an address");
        }
    }

    #[test]
    fn a_datagram_in_a_nodes_name_moves_no_node() {
        for [mut one, other] in pairs() {
            one.heard(other.own, THIRD);
            assert_eq!(one.of(other.own), None);
            one.take(&other.announcement());
            one.heard(other.own, THIRD);
            assert_eq!(one.of(other.own), Some(THEIRS));
        }
    }

    #[test]
    fn others_are_answered_where_they_were_heard() {
        let [mut one, _] = pairs().next().expect("there are two");
        let client = address("192.168.7.7");
        assert_eq!(one.of(client), None);
        one.heard(client, THIRD);
        assert_eq!(one.of(client), Some(THIRD));
        one.heard(client, THEIRS);
        assert_eq!(one.of(client), Some(THEIRS));
        for number in 0..10 * MAX_OTHERS as u32 {
            one.heard(Ipv4Addr::from(number).into(), THIRD);
        }
        assert!(one.others.len() <= MAX_OTHERS);
    }

    #[test]
    fn somebody_who_was_never_heard_is_asked_for() {
        let clients = ["10.0.0.77", "fd00::77"].map(address);
        for ([mut one, _], client) in pairs().zip(clients) {
            let now = Instant::now();
            let mut other = Neighbours::new(client, THIRD, []);
            one.take(&other.announcement());
            assert_eq!(one.of(client), None, "nobody asked");
            let asked = one.seek(client, now).expect("a question");
            assert_eq!(one.seek(client, now), None, "it was asked just now");
            assert!(one.seek(client, now + ASK_INTERVAL).is_some());
            one.take(&other.take(&asked).expect("it is there"));
            assert_eq!(one.of(client), Some(THIRD));
            let node = one.nodes[0].address;
            assert_eq!(one.seek(node, now), None, "nodes are asked for anyway");
        }
    }

    #[test]
    fn whoever_has_no_address_yet_is_told_that_one_is_taken() {
        let [mut one, _] = pairs().nth(1).expect("there are two");
        let nobody = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let asked = one
            .take(&question(nobody, THIRD, one.own))
            .expect("an answer");
        let (to, address) = all_nodes();
        assert_eq!(asked[..6], to);
        assert_eq!(octets(&asked, ETHERNET + 24), address.octets());
    }

    #[test]
    fn damaged_and_foreign_frames_change_nothing() {
        for [mut one, mut other] in pairs() {
            let asks = one.questions(Instant::now(), &[]);
            let answer = asks.iter().find_map(|q| other.take(q)).expect("an answer");
            let whole = match one.own {
                IpAddr::V4(_) => ETHERNET + ARP,
                IpAddr::V6(_) => answer.len(),
            };
            for len in 0..whole {
                assert_eq!(one.take(&answer[..len]), None, "{len} bytes");
                assert_eq!(one.of(other.own), None, "{len} bytes");
            }
            if one.own.is_ipv6() {
                for bit in ETHERNET * 8..answer.len() * 8 {
                    let mut damaged = answer.clone();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    let mut fresh = Neighbours::new(one.own, MINE, [other.own]);
                    assert_eq!(fresh.take(&damaged), None, "bit {bit}");
                    // IPv6 has no checksum over its class and its flow.
                    let in_sum = bit / 8 >= ETHERNET + 4;
                    assert!(!in_sum || fresh.of(other.own).is_none(), "bit {bit}");
                }
            }
            assert_eq!(one.take(&answer), None);
            assert_eq!(one.of(other.own), Some(THEIRS));
        }
    }
}
