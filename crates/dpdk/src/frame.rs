// SPDX-License-Identifier: Apache-2.0
//! Frames around datagrams: what the kernel does for a socket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A hardware address.
pub type Mac = [u8; 6];

/// The hardware address of all hosts at the link.
pub const BROADCAST: Mac = [0xff; 6];
/// The shortest frame; cards and their drivers aren't agreed on who makes others that long.
pub const SHORTEST: usize = 60;

pub(crate) const ETHERNET: usize = 14;
const V4: usize = 20;
pub(crate) const V6: usize = 40;
const UDP: usize = 8;
const MAX_HEAD: usize = ETHERNET + V6 + UDP;
const OF_UDP: u8 = 17;
pub(crate) const OF_ICMP6: u8 = 58;
const HOPS: u8 = 64;

/// The ends of a datagram as they stand in its frame: addresses, then ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// The ends of an IPv4 datagram.
    V4([u8; 12]),
    /// The ends of an IPv6 datagram.
    V6([u8; 36]),
}

impl Ends {
    /// Returns the sender's address.
    pub fn from(&self) -> SocketAddr {
        match self {
            Ends::V4(ends) => (Ipv4Addr::from(octets(ends, 0)), u16_at(ends, 8)).into(),
            Ends::V6(ends) => (Ipv6Addr::from(octets(ends, 0)), u16_at(ends, 32)).into(),
        }
    }

    /// Returns a number that differs between most senders, and most receivers at one port.
    #[inline]
    pub(crate) fn spread(&self) -> usize {
        let parts = match self {
            Ends::V4(ends) => [ends[3], ends[7], ends[9]],
            Ends::V6(ends) => [ends[15], ends[31], ends[33]],
        };
        parts.into_iter().map(usize::from).sum()
    }

    /// Returns the address to which the datagram goes.
    pub fn to(&self) -> SocketAddr {
        match self {
            Ends::V4(ends) => (Ipv4Addr::from(octets(ends, 4)), u16_at(ends, 10)).into(),
            Ends::V6(ends) => (Ipv6Addr::from(octets(ends, 16)), u16_at(ends, 34)).into(),
        }
    }
}

/// A datagram that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Datagram<'a> {
    /// The hardware address that has put the frame on this link: the sender's or a router's.
    pub by: Mac,
    /// The addresses of the sender and the receiver.
    pub ends: Ends,
    /// The datagram's payload.
    pub payload: &'a [u8],
}

/// The contents of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// A whole datagram.
    Datagram(Datagram<'a>),
    /// A question or an answer about who has an address, for
    /// [`Neighbours`](crate::neighbours::Neighbours).
    Neighbour,
    /// Something else: another protocol, a fragment, a header with options.
    Other,
    /// A datagram whose lengths don't fit its frame.
    Malformed,
    /// A datagram with a wrong checksum.
    Damaged,
}

/// Looks at a frame; `checked` says that the card has looked at its checksums.
#[inline]
pub fn parse(frame: &[u8], checked: bool) -> Content<'_> {
    match frame.get(12..ETHERNET) {
        Some([0x08, 0x00]) => parse_v4(frame, checked),
        Some([0x86, 0xdd]) => parse_v6(frame, checked),
        Some([0x08, 0x06]) => Content::Neighbour,
        _ => Content::Other,
    }
}

#[inline]
fn parse_v4(frame: &[u8], checked: bool) -> Content<'_> {
    let Some((ip, rest)) = frame[ETHERNET..].split_at_checked(V4) else {
        return Content::Malformed;
    };
    let is_fragment = u16_at(ip, 6) & 0x3fff != 0;
    if ip[0] != 0x45 || is_fragment || ip[9] != OF_UDP {
        return Content::Other;
    }
    if !checked && fold(sum(ip, 0)) != 0xffff {
        return Content::Damaged;
    }
    // The bytes behind the packet are padding.
    let len = usize::from(u16_at(ip, 2)).checked_sub(V4);
    let Some(udp) = len.and_then(|len| rest.get(..len)) else {
        return Content::Malformed;
    };
    datagram(frame, udp, &ip[12..20], checked)
}

#[inline]
fn parse_v6(frame: &[u8], checked: bool) -> Content<'_> {
    let Some((ip, rest)) = frame[ETHERNET..].split_at_checked(V6) else {
        return Content::Malformed;
    };
    let Some(payload) = rest.get(..usize::from(u16_at(ip, 4))) else {
        return Content::Malformed;
    };
    match (ip[0] >> 4, ip[6]) {
        (6, OF_UDP) => {}
        (6, OF_ICMP6) => return Content::Neighbour,
        _ => return Content::Other,
    }
    datagram(frame, payload, &ip[8..40], checked)
}

/// Parses a datagram. `addresses` are as in the frame, with the ports behind them.
#[inline]
fn datagram<'a>(frame: &'a [u8], udp: &'a [u8], addresses: &[u8], checked: bool) -> Content<'a> {
    if udp.len() < UDP || usize::from(u16_at(udp, 4)) != udp.len() {
        return Content::Malformed;
    }
    let ends = match addresses.len() {
        8 => Ends::V4(octets(frame, ETHERNET + 12)),
        _ => Ends::V6(octets(frame, ETHERNET + 8)),
    };
    let is_right = || match u16_at(udp, 6) {
        // IPv4 knows datagrams without a checksum, IPv6 doesn't.
        0 => matches!(ends, Ends::V4(_)),
        _ => {
            let pseudo = of_pseudo(OF_UDP, udp.len()) + sum(addresses, 0);
            fold(sum(udp, pseudo)) == 0xffff
        }
    };
    if !checked && !is_right() {
        return Content::Damaged;
    }
    Content::Datagram(Datagram {
        by: octets(frame, 6),
        ends,
        payload: &udp[UDP..],
    })
}

/// The headers of all datagrams from one address to another, at one link.
#[derive(Clone, Debug)]
pub struct Head {
    /// The bytes of the head, with the lengths for a payload of `payload` bytes.
    bytes: [u8; MAX_HEAD],
    payload: usize,
    len: usize,
    /// The sums of the IP header, and of the pseudo and UDP headers, without lengths.
    sums: [u64; 2],
    /// The latter, with lengths.
    sum: u64,
}

impl Head {
    /// Creates the head of frames between two addresses of the same family.
    pub fn new(macs: [Mac; 2], from: SocketAddr, to: SocketAddr) -> Head {
        let [mac_from, mac_to] = macs;
        let mut bytes = [0; MAX_HEAD];
        bytes[..6].copy_from_slice(&mac_to);
        bytes[6..12].copy_from_slice(&mac_from);
        let ip = &mut bytes[ETHERNET..];
        let (ethertype, addresses, len) = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ip[..V4].copy_from_slice(&[
                    0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, OF_UDP, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ]);
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                ([0x08, 0x00], 12..20, V4)
            }
            (from, to) => {
                ip[0] = 0x60;
                (ip[6], ip[7]) = (OF_UDP, HOPS);
                ip[8..24].copy_from_slice(&v6(from).octets());
                ip[24..40].copy_from_slice(&v6(to).octets());
                ([0x86, 0xdd], 8..40, V6)
            }
        };
        let udp = &mut ip[len..];
        udp[..2].copy_from_slice(&from.port().to_be_bytes());
        udp[2..4].copy_from_slice(&to.port().to_be_bytes());
        let sums = [
            sum(&ip[..len], 0),
            sum(&ip[addresses], 0) + sum(&ip[len..len + 4], 0) + of_pseudo(OF_UDP, 0),
        ];
        bytes[12..ETHERNET].copy_from_slice(&ethertype);
        let mut head = Head {
            bytes,
            payload: 0,
            len: ETHERNET + len + UDP,
            sums,
            sum: 0,
        };
        head.put_lengths(0);
        head
    }

    /// Returns the length of a frame with a datagram of `payload` bytes.
    #[inline]
    pub fn frame_len(&self, payload: usize) -> usize {
        self.len + payload
    }

    /// Returns the bytes of the IP packet in the frame.
    pub fn packet_len(&self, payload: usize) -> usize {
        self.len - ETHERNET + payload
    }

    /// Writes the frame of a datagram, which is as long as [`frame_len`](Self::frame_len) says.
    /// `sum` is the [`payload_sum`] of the payload.
    #[inline]
    pub fn write(&mut self, payload: &[u8], sum: u64, frame: &mut [u8]) {
        if payload.len() != self.payload {
            self.put_lengths(payload.len());
        }
        // A copy of fixed length is no call. What it writes too much the payload covers.
        match frame.first_chunk_mut::<MAX_HEAD>() {
            Some(whole) => *whole = self.bytes,
            None => frame[..self.len].copy_from_slice(&self.bytes[..self.len]),
        }
        let (head, rest) = frame.split_at_mut(self.len);
        rest.copy_from_slice(payload);
        let check = match !fold(sum + self.sum) {
            0 => 0xffff,
            check => check,
        };
        head[self.len - 2..].copy_from_slice(&check.to_ne_bytes());
    }

    fn put_lengths(&mut self, payload: usize) {
        let [udp_len, ip_len] = [UDP, V4 + UDP].map(|len| ((len + payload) as u16).to_be_bytes());
        let udp_at = self.len - UDP;
        let ip = &mut self.bytes[ETHERNET..udp_at];
        if ip.len() == V4 {
            ip[2..4].copy_from_slice(&ip_len);
            let check = !fold(self.sums[0] + u64::from(u16::from_ne_bytes(ip_len)));
            ip[10..12].copy_from_slice(&check.to_ne_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_len);
        }
        self.bytes[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len);
        // The length is in the pseudo header, too.
        self.sum = self.sums[1] + 2 * u64::from(u16::from_ne_bytes(udp_len));
        self.payload = payload;
    }
}

/// Returns what a payload adds to the checksum of its datagram, for any receiver.
#[inline]
pub fn payload_sum(payload: &[u8]) -> u64 {
    sum(payload, 0)
}

pub(crate) fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

pub(crate) fn octets<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut octets = [0; N];
    octets.copy_from_slice(&bytes[at..at + N]);
    octets
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Returns the sum of protocol and length, which the checksums of UDP and ICMPv6 cover beside the
/// addresses.
pub(crate) fn of_pseudo(protocol: u8, len: usize) -> u64 {
    u64::from(u16::from(protocol).to_be()) + u64::from((len as u16).to_be())
}

/// Returns the Internet checksum's sum, of words as they lie in memory; it has no more than 34
/// bits. What lies before `bytes` in a packet is of an even number.
#[inline]
pub(crate) fn sum(bytes: &[u8], start: u64) -> u64 {
    // Each lane has its own carry, so that the processor can add them in parallel.
    let mut lanes = [start, 0, 0, 0];
    let mut blocks = bytes.chunks_exact(8 * lanes.len());
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
            *lane = add(*lane, octets(word, 0));
        }
    }
    let [a, b, c, d] = lanes.map(halves);
    let mut words = blocks.remainder().chunks_exact(8);
    let sum = (&mut words).fold(a + b + c + d, |sum, word| add(sum, octets(word, 0)));
    halves(sum) + sum_of_few(words.remainder())
}

/// Sums fewer than eight bytes. Putting them together in memory and loading them as one word would
/// make the processor wait.
#[inline]
fn sum_of_few(bytes: &[u8]) -> u64 {
    let (fours, rest) = bytes.split_at(bytes.len() & 4);
    let (twos, last) = rest.split_at(rest.len() & 2);
    let four = fours
        .first_chunk()
        .map_or(0, |four| u32::from_ne_bytes(*four));
    let two = twos.first_chunk().map_or(0, |two| u16::from_ne_bytes(*two));
    let one = last.first().map_or(0, |one| u16::from_ne_bytes([*one, 0]));
    u64::from(four) + u64::from(two) + u64::from(one)
}

/// A sum of one's complement.
#[inline]
fn add(sum: u64, word: [u8; 8]) -> u64 {
    let (sum, carry) = sum.overflowing_add(u64::from_ne_bytes(word));
    sum + u64::from(carry)
}

#[inline]
fn halves(sum: u64) -> u64 {
    (sum & 0xffff_ffff) + (sum >> 32)
}

#[inline]
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use loader::frame;

    use super::*;

    const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]];

    fn ends(v6: bool) -> [SocketAddr; 2] {
        match v6 {
            true => [
                (Ipv6Addr::from(frame::V6_FROM), 9001).into(),
                "[fd00::1]:9000".parse().unwrap(),
            ],
            false => [
                (Ipv4Addr::from(frame::V4_FROM), 9001).into(),
                "10.0.0.1:9000".parse().unwrap(),
            ],
        }
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + 255) as u8).collect()
    }

    /// Returns frames that other code than ours has written.
    fn frames() -> impl Iterator<Item = (bool, Vec<u8>, Vec<u8>)> {
        let cases = [false, true].into_iter();
        let lens = [0, 1, 2, 3, 4, 5, 48, 63, 64, 1400, 1472];
        let cases = cases.flat_map(move |v6| lens.map(|len| (v6, payload(len))));
        cases.map(|(v6, payload)| {
            let whole = frame::build(&payload, v6);
            (v6, payload, whole)
        })
    }

    #[test]
    fn a_datagram_is_written_as_a_careful_sender_does() {
        for (v6, payload, expected) in frames() {
            let [from, to] = ends(v6);
            let mut head = Head::new(MACS, from, to);
            let mut written = vec![0x55; head.frame_len(payload.len())];
            head.write(&payload, payload_sum(&payload), &mut written);
            assert_eq!(
                frame::datagram(&written, v6, false),
                Ok(&payload[..]),
                "{written:02x?}"
            );
            assert_eq!(written.len(), expected.len());
            assert_eq!(head.packet_len(payload.len()), written.len() - ETHERNET);
        }
    }

    #[test]
    fn a_sum_is_that_of_its_words_however_long_it_is() {
        let bytes: Vec<u8> = (0..200).map(|at| 255 - (at % 7) as u8).collect();
        for len in 0..bytes.len() {
            for start in [0, 1, u64::from(u32::MAX)] {
                let words = bytes[..len].chunks(2).map(|word| {
                    let mut pair = [0; 2];
                    pair[..word.len()].copy_from_slice(word);
                    u64::from(u16::from_ne_bytes(pair))
                });
                let expected = fold(start + words.sum::<u64>());
                let found = sum(&bytes[..len], start);
                assert!(found < 1 << 34);
                assert_eq!(fold(found), expected, "{len} {start}");
            }
        }
    }

    #[test]
    fn a_checksum_of_zero_is_written_as_its_other_form() {
        let [from, to] = ends(false);
        let mut head = Head::new(MACS, from, to);
        let mut written = vec![0; head.frame_len(2)];
        let checks: Vec<u16> = (0..=u16::MAX)
            .map(|word| {
                let word = word.to_be_bytes();
                head.write(&word, payload_sum(&word), &mut written);
                u16_at(&written, ETHERNET + V4 + 6)
            })
            .collect();
        assert!(checks.contains(&0xffff) && !checks.contains(&0));
    }

    #[test]
    fn what_was_written_is_read() {
        for (v6, payload, mut whole) in frames() {
            let [from, to] = ends(v6);
            let expected = (MACS[0], from, to, &payload[..]);
            assert_eq!(read(&whole), expected);
            // A short frame is made longer on its way.
            whole.resize(whole.len().max(SHORTEST), 0xee);
            assert_eq!(read(&whole), expected);
        }
    }

    fn read(frame: &[u8]) -> (Mac, SocketAddr, SocketAddr, &[u8]) {
        let Content::Datagram(Datagram { by, ends, payload }) = parse(frame, false) else {
            panic!("{frame:02x?}");
        };
        (by, ends.from(), ends.to(), payload)
    }

    #[test]
    fn any_bit_that_is_flipped_is_noticed_or_of_no_matter() {
        for v6 in [false, true] {
            let [from, to] = ends(v6);
            let payload = payload(49);
            let whole = frame::build(&payload, v6);
            for bit in ETHERNET * 8..whole.len() * 8 {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                if let Content::Datagram(datagram) = parse(&damaged, false) {
                    // IPv6 has no checksum over its class, its flow and its hops.
                    let byte = bit / 8 - ETHERNET;
                    assert!(v6 && (byte < 4 || byte == 7), "bit {bit}");
                    assert_eq!((datagram.ends.from(), datagram.ends.to()), (from, to));
                    assert_eq!(datagram.payload, payload);
                }
            }
        }
    }

    #[test]
    fn any_beginning_of_a_frame_is_none() {
        for (v6, payload, whole) in frames() {
            for len in 0..whole.len() {
                let found = parse(&whole[..len], false);
                let is_none = matches!(found, Content::Malformed | Content::Other);
                assert!(is_none, "{v6} {} {len}: {found:?}", payload.len());
            }
        }
    }

    #[test]
    fn what_is_no_plain_datagram_is_something_else() {
        let v4 = frame::build(b"x", false);
        let v6 = frame::build(b"x", true);
        let with = |frame: &[u8], changes: &[(usize, u8)]| {
            let mut frame = frame.to_vec();
            for (at, byte) in changes {
                frame[*at] = *byte;
            }
            frame
        };
        for (what, frame, expected) in [
            ("VLAN", with(&v4, &[(12, 0x81), (13, 0)]), Content::Other),
            ("options", with(&v4, &[(14, 0x46)]), Content::Other),
            ("a first fragment", with(&v4, &[(20, 0x20)]), Content::Other),
            ("a last fragment", with(&v4, &[(21, 1)]), Content::Other),
            ("TCP", with(&v4, &[(23, 6)]), Content::Other),
            ("ARP", with(&v4, &[(13, 6)]), Content::Neighbour),
            ("TCP over IPv6", with(&v6, &[(20, 6)]), Content::Other),
            ("ICMPv6", with(&v6, &[(20, 58)]), Content::Neighbour),
            (
                "IPv6 without a checksum",
                with(&v6, &[(60, 0), (61, 0)]),
                Content::Damaged,
            ),
            (
                "a wrong IP checksum",
                with(&v4, &[(24, 9)]),
                Content::Damaged,
            ),
        ] {
            assert_eq!(parse(&frame, false), expected, "{what}");
        }
        let unchecked = with(&v4, &[(40, 0), (41, 0)]);
        let Content::Datagram(datagram) = parse(&unchecked, false) else {
            panic!("IPv4 may do without a checksum of UDP");
        };
        assert_eq!(datagram.payload, b"x");
        // The card's word is believed without computing the checksum.
        let damaged = with(&v4, &[(42, b'y')]);
        assert_eq!(parse(&damaged, false), Content::Damaged);
        assert!(matches!(parse(&damaged, true), Content::Datagram(_)));
    }
}
