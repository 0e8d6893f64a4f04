// SPDX-License-Identifier: Apache-2.0
//! What replicas and clients say to one another inside values.
//!
//! | where | layout (big-endian) |
//! |---|---|
//! | command with `request` 0: OPEN | 1 u8, `flags` u8 (bit 0: ordered), `window` u16, address |
//! | CLOSE | 2 u8 |
//! | EXPIRE | 3 u8, `last_request` u64, `last_inst` u64 |
//! | MOVE | 4 u8, address |
//! | DIED | 5 u8, instance u64, index u16, node u16 |
//! | VOID | 6 u8, instance u64, index u16 |
//! | address | `home` u16, `family` u8 (in its lower 3 bits 4, 6, 0 = none; in the upper 5 the number of the client's key), 16 bytes (IPv4 in the first four), `port` u16 |
//! | REPLY, and each item of a packed REPLY | `status` u8, bytes |
//! | bytes of the reply to OPEN | session id u64 |
//! | command whose `request` has bit 63 | a part of a longer one ([`parts`](crate::parts)) |
//! | READ whose `request` has bit 62 | a command that only reads ([`read_number`](crate::read_number)) |
//!
//! In OPEN the command's client is a random number that names the attempt; everywhere else it is
//! the session id.

use paxos::{Instance, NodeId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The largest reply window that a session may ask for.
pub const MAX_WINDOW: u16 = 1024;

/// First byte of every reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Status {
    /// The application's answer follows.
    Ok = 0,
    /// No such session, or it has expired.
    UnknownSession = 1,
    /// At or below the session's window, and the reply is no longer recorded.
    StaleRequest = 2,
    /// An earlier request of an ordered session, or another part of the command, hasn't come yet; or there is no room
    /// yet for a command in parts.
    OutOfOrder = 3,
    /// Executed, but the reply is too large to be sent or to be recorded.
    ReplyTooLarge = 4,
    /// Such commands are not executed here.
    Unsupported = 5,
    /// Not a session operation, or one with impossible contents.
    Malformed = 6,
    /// As many sessions are open as the deployment allows.
    TooManySessions = 7,
    /// A command over several partitions that takes no effect at these places; its proposer sends it again.
    Dead = 8,
    /// A command in parts is longer than replicas take.
    TooLarge = 9,
    /// A piece of the answer to a read, which doesn't fit a packet. [B-PIECES]
    Piece = 10,
}

impl Status {
    /// The status with this number.
    pub fn from_u8(n: u8) -> Option<Status> {
        Some(match n {
            0 => Status::Ok,
            1 => Status::UnknownSession,
            2 => Status::StaleRequest,
            3 => Status::OutOfOrder,
            4 => Status::ReplyTooLarge,
            5 => Status::Unsupported,
            6 => Status::Malformed,
            7 => Status::TooManySessions,
            8 => Status::Dead,
            9 => Status::TooLarge,
            10 => Status::Piece,
            _ => return None,
        })
    }

    /// The name in errors and `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::UnknownSession => "unknown_session",
            Status::StaleRequest => "stale_request",
            Status::OutOfOrder => "out_of_order",
            Status::ReplyTooLarge => "reply_too_large",
            Status::Unsupported => "unsupported",
            Status::Malformed => "malformed",
            Status::TooManySessions => "too_many_sessions",
            Status::Dead => "dead",
            Status::TooLarge => "too_large",
            Status::Piece => "piece",
        }
    }
}

/// What an answer says about whether its command took effect. No command takes effect twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It took effect.
    Executed,
    /// It didn't and never will.
    Refused,
    /// It may have taken effect before, or may yet.
    Unknown,
}

impl Status {
    /// What this answer to a request of a session says. `ordered`: of an ordered one. [S-SAYS]
    pub const fn effect(self, ordered: bool) -> Effect {
        match self {
            Status::Ok | Status::ReplyTooLarge | Status::Piece => Effect::Executed,
            // An ordered session executes one after the other, without gaps.
            Status::StaleRequest if ordered => Effect::Executed,
            // It was executed and is forgotten, or it was passed by; the session was closed after
            // it was executed, or before.
            Status::StaleRequest | Status::UnknownSession => Effect::Unknown,
            // Another copy of it may come after the request that is missing, or be alive.
            Status::OutOfOrder | Status::Dead => Effect::Unknown,
            Status::Unsupported
            | Status::Malformed
            | Status::TooManySessions
            | Status::TooLarge => Effect::Refused,
        }
    }
}

/// Where a session's replies go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct ReplyAddress {
    /// The replica that answers; 0 = all of them.
    pub home: NodeId,
    /// The client's socket; none = the front end beside the home replica.
    pub address: Option<SocketAddr>,
    /// The number of the client's key, with which its replies are signed where packets are; below 32. 0 = the nodes'.
    pub key: u8,
}

/// Bits of `family` below the key's number.
const FAMILY_BITS: u32 = 3;

impl ReplyAddress {
    /// Bytes in an operation and in a record.
    pub const LEN: usize = 2 + 1 + 16 + 2;

    /// Appends it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut ip = [0; 16];
        let family = match self.address.map(|a| a.ip()) {
            None => 0,
            Some(IpAddr::V4(v4)) => {
                ip[..4].copy_from_slice(&v4.octets());
                4
            }
            Some(IpAddr::V6(v6)) => {
                ip = v6.octets();
                6
            }
        };
        out.extend_from_slice(&self.home.to_be_bytes());
        out.push(self.key << FAMILY_BITS | family);
        out.extend_from_slice(&ip);
        out.extend_from_slice(&self.address.map_or(0, |a| a.port()).to_be_bytes());
    }

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<ReplyAddress> {
        let home = u16::from_be_bytes([bytes[0], bytes[1]]);
        let ip: [u8; 16] = bytes[3..19].try_into().ok()?;
        let port = u16::from_be_bytes([bytes[19], bytes[20]]);
        let key = bytes[2] >> FAMILY_BITS;
        let address = match bytes[2] % (1 << FAMILY_BITS) {
            0 => None,
            4 => Some(IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3]))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(ip))),
            _ => return None,
        };
        let address = address.map(|ip| SocketAddr::new(ip, port));
        // An IPv4 or IPv6 address without a port can't be answered; without an address all is zero.
        let sound = match address {
            Some(_) => port != 0,
            None => port == 0 && ip == [0; 16] && key == 0,
        };
        sound.then_some(ReplyAddress { home, address, key })
    }
}

/// The place of a command in the log of its partition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct CommandPlace {
    /// The instance that it lies in.
    pub inst: Instance,
    /// Its position among the commands that are packed there.
    pub index: u16,
}

impl CommandPlace {
    /// Bytes in an operation and in a record.
    pub const LEN: usize = 8 + 2;

    /// Returns its bytes.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.inst.to_be_bytes());
        bytes[8..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Reads it.
    pub fn parse(bytes: &[u8; Self::LEN]) -> CommandPlace {
        let (inst, index) = bytes.split_first_chunk().expect("it is long enough");
        CommandPlace {
            inst: u64::from_be_bytes(*inst),
            index: u16::from_be_bytes([index[0], index[1]]),
        }
    }
}

/// A command with request number 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionOp {
    /// Open a session. Its id is given by the log.
    Open {
        /// Requests take effect in the order of their numbers, without gaps.
        ordered: bool,
        /// Recorded replies: 1 to [`MAX_WINDOW`]. For an unordered session also how far a request
        /// may lag behind the largest.
        window: u16,
        /// Where replies go.
        reply_to: ReplyAddress,
    },
    /// Close it.
    Close,
    /// Close it if it saw nothing after this.
    Expire {
        /// The largest request that the proposer of the expiry has seen.
        last_request: u64,
        /// The last instance with anything of the session.
        last_inst: Instance,
    },
    /// From now on replies go elsewhere. Every replica answers this there, with `unknown_session`
    /// if there is no such session. A client sends it when it gets no answer any more, since nobody
    /// has to remember the address of a session that has expired.
    Move {
        /// Where.
        reply_to: ReplyAddress,
    },
    /// This replica's program died of a command twice. The replica hasn't passed it and never executes it. [X-DIED]
    Died {
        /// Where the command lies.
        place: CommandPlace,
        /// Which replica says so.
        node: NodeId,
    },
    /// A command takes no effect at those who haven't passed it. [X-VOID]
    Void {
        /// Where the command lies.
        place: CommandPlace,
    },
}

impl SessionOp {
    /// Appends the bytes of the command.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            SessionOp::Open {
                ordered,
                window,
                reply_to,
            } => {
                out.extend_from_slice(&[1, u8::from(*ordered)]);
                out.extend_from_slice(&window.to_be_bytes());
                reply_to.emit(out);
            }
            SessionOp::Close => out.push(2),
            SessionOp::Expire {
                last_request,
                last_inst,
            } => {
                out.push(3);
                out.extend_from_slice(&last_request.to_be_bytes());
                out.extend_from_slice(&last_inst.to_be_bytes());
            }
            SessionOp::Move { reply_to } => {
                out.push(4);
                reply_to.emit(out);
            }
            SessionOp::Died { place, node } => {
                out.push(5);
                out.extend_from_slice(&place.emit());
                out.extend_from_slice(&node.to_be_bytes());
            }
            SessionOp::Void { place } => {
                out.push(6);
                out.extend_from_slice(&place.emit());
            }
        }
    }

    /// The bytes of the command.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + ReplyAddress::LEN);
        self.emit(&mut out);
        out
    }

    /// Reads it; `None` = malformed.
    pub fn parse(command: &[u8]) -> Option<SessionOp> {
        let (op, rest) = command.split_first()?;
        match op {
            1 => {
                let (head, address) = rest.split_first_chunk::<3>()?;
                let window = u16::from_be_bytes([head[1], head[2]]);
                if head[0] > 1 || window == 0 || window > MAX_WINDOW {
                    return None;
                }
                Some(SessionOp::Open {
                    ordered: head[0] == 1,
                    window,
                    reply_to: ReplyAddress::parse(address.try_into().ok()?)?,
                })
            }
            2 => rest.is_empty().then_some(SessionOp::Close),
            3 => {
                let rest: &[u8; 16] = rest.try_into().ok()?;
                let (request, inst) = rest.split_at(8);
                Some(SessionOp::Expire {
                    last_request: u64::from_be_bytes(request.try_into().ok()?),
                    last_inst: u64::from_be_bytes(inst.try_into().ok()?),
                })
            }
            4 => Some(SessionOp::Move {
                reply_to: ReplyAddress::parse(rest.try_into().ok()?)?,
            }),
            5 => {
                let (place, node) = rest.split_first_chunk()?;
                Some(SessionOp::Died {
                    place: CommandPlace::parse(place),
                    node: u16::from_be_bytes(node.try_into().ok()?),
                })
            }
            6 => Some(SessionOp::Void {
                place: CommandPlace::parse(rest.try_into().ok()?),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> [ReplyAddress; 3] {
        [
            ReplyAddress::default(),
            ReplyAddress {
                home: 7,
                address: Some("10.1.2.3:99".parse().unwrap()),
                key: 31,
            },
            ReplyAddress {
                address: Some("[2001:db8::5]:65535".parse().unwrap()),
                ..ReplyAddress::default()
            },
        ]
    }

    #[test]
    fn operations_survive_the_wire_and_nothing_else_does() {
        let mut ops = vec![
            SessionOp::Close,
            SessionOp::Expire {
                last_request: u64::MAX,
                last_inst: 3,
            },
            SessionOp::Died {
                place: CommandPlace {
                    inst: 1 << 40,
                    index: 7,
                },
                node: 9,
            },
            SessionOp::Void {
                place: CommandPlace { inst: 5, index: 0 },
            },
        ];
        for reply_to in addresses() {
            ops.push(SessionOp::Move { reply_to });
            ops.push(SessionOp::Open {
                ordered: true,
                window: MAX_WINDOW,
                reply_to,
            });
        }
        for op in ops {
            let bytes = op.to_bytes();
            assert_eq!(SessionOp::parse(&bytes), Some(op));
            for cut in 0..bytes.len() {
                assert_eq!(SessionOp::parse(&bytes[..cut]), None, "{op:?} cut at {cut}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(SessionOp::parse(&longer), None, "{op:?} with a byte more");
        }
    }

    /// Only what no replica executes, wherever a copy of it comes from, is called refused. [S-SAYS]
    #[test]
    fn nothing_that_may_have_taken_effect_is_called_refused() {
        let all: Vec<Status> = (0..=u8::MAX).filter_map(Status::from_u8).collect();
        let with = |effect, ordered| -> Vec<&str> {
            let statuses = all.iter().filter(|s| s.effect(ordered) == effect);
            statuses.map(|s| s.name()).collect()
        };
        let refused = ["unsupported", "malformed", "too_many_sessions", "too_large"];
        assert_eq!(with(Effect::Refused, false), refused);
        assert_eq!(with(Effect::Refused, true), refused);
        let executed = ["ok", "reply_too_large", "piece"];
        assert_eq!(with(Effect::Executed, false), executed);
        assert_eq!(
            with(Effect::Executed, true),
            ["ok", "stale_request", "reply_too_large", "piece"]
        );
    }

    #[test]
    fn impossible_contents_are_malformed() {
        let open = SessionOp::Open {
            ordered: false,
            window: 1,
            reply_to: addresses()[1],
        }
        .to_bytes();
        let with = |at: usize, byte: u8| {
            let mut bytes = open.clone();
            bytes[at] = byte;
            SessionOp::parse(&bytes)
        };
        assert!(with(0, 1).is_some());
        assert_eq!(with(0, 9), None, "unknown operation");
        assert_eq!(with(1, 2), None, "unknown flag");
        assert_eq!(with(2, 5), None, "window beyond the maximum");
        assert_eq!(with(3, 0), None, "no window");
        assert_eq!(with(6, 5), None, "unknown address family");
        assert_eq!(with(6, 0), None, "no family, yet an address");
        let none = SessionOp::Move {
            reply_to: ReplyAddress::default(),
        };
        let mut keyed = none.to_bytes();
        keyed[3] = 1 << FAMILY_BITS;
        assert_eq!(SessionOp::parse(&keyed), None, "no address, yet a key");
        assert_eq!(SessionOp::parse(&[]), None);
    }
}
