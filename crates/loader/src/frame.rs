// SPDX-License-Identifier: Apache-2.0
//! Frames around datagrams, for test runs: builds frames as a network would deliver them, and
//! checks strictly what a program made of them.

use std::net::{IpAddr, SocketAddr};

/// The UDP port to which test frames go.
pub const PORT: u16 = 9000;
const FROM_PORT: u16 = 9001;
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
/// The IPv4 address from which test frames come.
pub const V4_FROM: [u8; 4] = [10, 0, 0, 2];
const V4_TO: [u8; 4] = [10, 0, 0, 1];
/// The IPv6 address from which test frames come.
pub const V6_FROM: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const V6_TO: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

const ETHERNET: usize = 14;
const V4: usize = 20;
const V6: usize = 40;
const UDP: usize = 8;

/// Returns the bytes of the frame's headers before the datagram.
pub const fn head_len(v6: bool) -> usize {
    ETHERNET + if v6 { V6 } else { V4 } + UDP
}

/// Returns a frame with this datagram, as a careful sender makes it.
pub fn build(datagram: &[u8], v6: bool) -> Vec<u8> {
    let (from, to) = addresses(v6);
    between(from, to, datagram)
}

/// Returns from where to where such frames go.
pub fn addresses(v6: bool) -> (SocketAddr, SocketAddr) {
    let (from, to): (IpAddr, IpAddr) = match v6 {
        true => (V6_FROM.into(), V6_TO.into()),
        false => (V4_FROM.into(), V4_TO.into()),
    };
    ((from, FROM_PORT).into(), (to, PORT).into())
}

/// Returns a frame with this datagram between two addresses of the same family.
pub fn between(from: SocketAddr, to: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let udp_len = (UDP + datagram.len()) as u16;
    let mut frame = MACS.to_vec();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((V4 as u16 + udp_len).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 9, 17, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
            set_ip_checksum(&mut frame);
        }
        (from, to) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(udp_len.to_be_bytes());
            frame.extend([17, 9]);
            frame.extend(v6_octets(from));
            frame.extend(v6_octets(to));
        }
    }
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend_from_slice(datagram);
    let v6 = to.is_ipv6();
    let check = match !udp_sum(&frame, v6) {
        0 => 0xffff,
        check => check,
    };
    let at = head_len(v6) - 2;
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
    frame
}

fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the datagram of the frame into which a program has turned one of [`between`].
pub fn payload(frame: &[u8]) -> Option<&[u8]> {
    let v6 = frame.get(12..14)? == [0x86, 0xdd];
    let head = head_len(v6);
    let udp_len = usize::from(u16_at(frame.get(..head)?, head - 4));
    frame.get(head..(head - UDP).checked_add(udp_len)?)
}

/// Checks every length and checksum of a frame that a program has made of one by [`build`], and
/// that its addresses are `back` to the sender, or untouched. Returns the datagram.
pub fn datagram(frame: &[u8], v6: bool, back: bool) -> Result<&[u8], String> {
    let head = head_len(v6);
    if frame.len() < head {
        return Err(format!("a frame of {} bytes", frame.len()));
    }
    let ip_len = if v6 { V6 } else { V4 };
    let udp_len = u16_at(frame, head - 4) as usize;
    let said = if v6 {
        u16_at(frame, ETHERNET + 4) as usize
    } else {
        (u16_at(frame, ETHERNET + 2) as usize)
            .checked_sub(V4)
            .ok_or("an IP length below the header's")?
    };
    if said != udp_len || ETHERNET + ip_len + udp_len != frame.len() {
        return Err(format!(
            "lengths differ: IP {said}, UDP {udp_len}, frame {}",
            frame.len()
        ));
    }
    if !v6 && sum(&frame[ETHERNET..ETHERNET + V4], 0) != 0xffff {
        return Err("the IP checksum is wrong".into());
    }
    if udp_sum(frame, v6) != 0xffff {
        return Err("the UDP checksum is wrong".into());
    }
    let addresses = if v6 { ETHERNET + 8 } else { ETHERNET + 12 };
    let half = (head - UDP - addresses) / 2;
    let (from, to) = if v6 {
        (&V6_FROM[..], &V6_TO[..])
    } else {
        (&V4_FROM[..], &V4_TO[..])
    };
    let mut expected = [&MACS[..6], &MACS[6..], from, to];
    let mut ports = [FROM_PORT, PORT];
    if back {
        expected = [expected[1], expected[0], expected[3], expected[2]];
        ports.reverse();
    }
    let found = [
        &frame[..6],
        &frame[6..12],
        &frame[addresses..addresses + half],
        &frame[addresses + half..addresses + 2 * half],
    ];
    let found_ports = [u16_at(frame, head - 8), u16_at(frame, head - 6)];
    if found != expected || found_ports != ports {
        return Err("the addresses are not those expected".into());
    }
    Ok(&frame[head..])
}

/// Returns whether a frame's UDP checksum is right.
pub fn checksum_is_right(frame: &[u8], v6: bool) -> bool {
    udp_sum(frame, v6) == 0xffff
}

fn udp_sum(frame: &[u8], v6: bool) -> u16 {
    let addresses = if v6 { ETHERNET + 8 } else { ETHERNET + 12 };
    let udp_len = (frame.len() - head_len(v6) + UDP) as u32;
    sum(&frame[addresses..], 17 + udp_len)
}

/// Returns the Internet checksum's sum, folded.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Sets the header checksum of an IPv4 frame to what is right now.
pub fn set_ip_checksum(frame: &mut [u8]) {
    let header = &mut frame[ETHERNET..ETHERNET + V4];
    header[10..12].fill(0);
    let check = !sum(header, 0);
    header[10..12].copy_from_slice(&check.to_be_bytes());
}

/// Returns whether the header checksum of an IPv4 frame is right.
pub fn ip_checksum_is_right(frame: &[u8]) -> bool {
    sum(&frame[ETHERNET..ETHERNET + V4], 0) == 0xffff
}

/// Returns whether a frame, however damaged, still holds a datagram as long as its UDP header says,
/// with the right checksum. What follows it is padding.
pub fn checksum_is_right_if_whole(frame: &[u8], v6: bool) -> bool {
    let head = head_len(v6);
    if frame.len() < head {
        return false;
    }
    let udp_len = usize::from(u16_at(frame, head - 4));
    let end = head - UDP + udp_len;
    udp_len >= UDP && end <= frame.len() && checksum_is_right(&frame[..end], v6)
}
