// SPDX-License-Identifier: Apache-2.0
//! The messages between replicas and clients that travel inside values.
//!
//! | where | layout (big-endian) |
//! |---|---|
//! | command with `request` 0: OPEN | 1 u8, `flags` u8 (bit 0: ordered), `window` u16, address |
//! | CLOSE | 2 u8 |
//! | EXPIRE | 3 u8, `last_request` u64, `last_inst` u64 |
//! | MOVE | 4 u8, address |
//! | DIED | 5 u8, instance u64, index u16, node u16 |
//! | VOID | 6 u8, instance u64, index u16 |
//! | address | `home` u16, `family` u8, 16 bytes (IPv4 in the first four), `port` u16 |
//! | `family` | lower 3 bits: 4, 6, 0 = none; upper 5 bits: the number of the client's key |
//! | REPLY, and each item of a packed REPLY | `status` u8, bytes |
//! | bytes of the reply to OPEN | session id u64 |
//! | command whose `request` has bit 63 | a part of a longer one ([`parts`](crate::parts)) |
//! | READ whose `request` has bit 62 | a read-only command ([`read_number`](crate::read_number)) |
//!
//! In OPEN the command's client is a random number that names the attempt; in all other commands it
//! is the session id.

use paxos::{Instance, NodeId};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The largest reply window that a session may ask for.
pub const MAX_WINDOW: u16 = 1024;

/// The first byte of every reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Status {
    /// The application's answer follows.
    Ok = 0,
    /// There is no such session, or it has expired.
    UnknownSession = 1,
    /// The request is at or below the session's window, and its reply is no longer recorded.
    StaleRequest = 2,
    /// An earlier request of an ordered session, or another part of the command, hasn't come yet;
    /// or there is no room yet for a command in parts.
    OutOfOrder = 3,
    /// The command was executed, but its reply is too large to be sent or recorded.
    ReplyTooLarge = 4,
    /// This deployment doesn't execute such commands.
    Unsupported = 5,
    /// The command isn't a session operation, or its contents are impossible.
    Malformed = 6,
    /// As many sessions are open as the deployment allows.
    TooManySessions = 7,
    /// A command over several partitions that takes no effect at these places; its proposer sends
    /// it again.
    Dead = 8,
    /// A command in parts is longer than replicas take.
    TooLarge = 9,
    /// A piece of the answer to a read, which doesn't fit a packet. [B-PIECES]
    Piece = 10,
}

impl Status {
    /// Returns the status with this number.
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

    /// Returns the name that errors and `status` show.
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

/// The effect of a command, as far as an answer tells it. No command takes effect twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The command took effect.
    Executed,
    /// The command didn't take effect and never will.
    Refused,
    /// The command may have taken effect before, or may yet.
    Unknown,
}

impl Status {
    /// Returns what this answer to a request of a session says about its effect. `ordered`: the
    /// session is ordered. [S-SAYS]
    pub const fn effect(self, ordered: bool) -> Effect {
        match self {
            Status::Ok | Status::ReplyTooLarge | Status::Piece => Effect::Executed,
            // An ordered session executes its requests in order and without gaps, so a stale one
            // was executed.
            Status::StaleRequest if ordered => Effect::Executed,
            // The request may have been executed and forgotten, or skipped by later ones; and the
            // session may have been closed before or after it was executed.
            Status::StaleRequest | Status::UnknownSession => Effect::Unknown,
            // Another copy of the request may come after the missing one, or may be alive.
            Status::OutOfOrder | Status::Dead => Effect::Unknown,
            Status::Unsupported
            | Status::Malformed
            | Status::TooManySessions
            | Status::TooLarge => Effect::Refused,
        }
    }
}

/// The address of a session's replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct ReplyAddress {
    /// The replica that answers; 0 = all of them.
    pub home: NodeId,
    /// The client's socket; `None` = the front end beside the home replica answers over a
    /// connection.
    pub address: Option<SocketAddr>,
    /// The number of the client's key, with which its replies are signed where packets are; below
    /// 32. 0 = the nodes' key.
    pub key: u8,
}

/// The bits of `family` below the key's number.
const FAMILY_BITS: u32 = 3;

impl ReplyAddress {
    /// The length in an operation and in a record.
    pub const LEN: usize = 2 + 1 + 16 + 2;

    /// Appends the address.
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

    /// Reads an address; returns `None` if it is malformed.
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
        // An IPv4 or IPv6 address needs a port to be answered; without an address all fields must
        // be zero.
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
    /// The instance of the command.
    pub inst: Instance,
    /// The command's position among the commands that are packed in the instance.
    pub index: u16,
}

impl CommandPlace {
    /// The length in an operation and in a record.
    pub const LEN: usize = 8 + 2;

    /// Returns the bytes of the place.
    pub fn emit(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.inst.to_be_bytes());
        bytes[8..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Reads a place.
    pub fn parse(bytes: &[u8; Self::LEN]) -> CommandPlace {
        let (inst, index) = bytes.split_first_chunk().expect("it is long enough");
        CommandPlace {
            inst: u64::from_be_bytes(*inst),
            index: u16::from_be_bytes([index[0], index[1]]),
        }
    }
}

/// An operation on a session or about the log: a command with request number 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionOp {
    /// Opens a session, whose id its place in the log determines.
    Open {
        /// Requests take effect in the order of their numbers, without gaps.
        ordered: bool,
        /// The number of recorded replies: 1 to [`MAX_WINDOW`]. In an unordered session it is also
        /// how far a request may lag behind the largest.
        window: u16,
        /// The address of the replies.
        reply_to: ReplyAddress,
    },
    /// Closes the session.
    Close,
    /// Closes the session unless it was used after this proposal.
    Expire {
        /// The largest request that the proposer of the expiry has seen.
        last_request: u64,
        /// The last instance with anything of the session.
        last_inst: Instance,
    },
    /// Changes the address of the replies. Every replica answers this operation there, with
    /// `unknown_session` if there is no such session; a client sends it when it gets no more
    /// answers, since nobody has to remember the address of a session that has expired.
    Move {
        /// The new address.
        reply_to: ReplyAddress,
    },
    /// Says that this replica's program died twice of a command, which the replica hasn't passed
    /// and never executes. [X-DIED]
    Died {
        /// The place of the command.
        place: CommandPlace,
        /// The replica that says so.
        node: NodeId,
    },
    /// Says that a command takes no effect on replicas that haven't passed it. [X-VOID]
    Void {
        /// The place of the command.
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

    /// Returns the bytes of the command.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + ReplyAddress::LEN);
        self.emit(&mut out);
        out
    }

    /// Reads an operation; `None` = it is malformed.
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

    /// Only a request that no replica executes, wherever a copy of it comes from, is called
    /// refused. [S-SAYS]
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
