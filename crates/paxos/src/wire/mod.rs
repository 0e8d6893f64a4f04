// SPDX-License-Identifier: Apache-2.0
//! The wire: one message a datagram; a 48-byte header, an optional 16-byte tag, then the value.
//! All fields are big-endian. `docs/wire.md` is the living text, `testdata/wire/` holds the golden
//! bytes that every implementation reads.
//!
//! | type | sender | receiver | trigger | effect |
//! |---|---|---|---|---|
//! | REQUEST | proposer | leader | `submit`, retry | takes the next instance |
//! | PHASE1A | candidate, recover | acceptors | failover, gap | promise |
//! | PHASE1B | acceptor | the asker | PHASE1A, QUERY | promise with the vote, or "no vote" |
//! | PHASE2A | leader, candidate, recover | acceptors | a value for an instance | vote |
//! | PHASE2B | acceptor | learners; the asker of a QUERY | PHASE2A, QUERY | f+1 equal ones decide |
//! | DELIVER | learner node | replicas | a decision | as a decision |
//! | REPLY | replica | client | execution | ends the request |
//! | REJECT | leader, acceptor | the sender | a refused message | names the reason |
//! | QUERY | replica, recover, candidate | acceptors | a gap, a check | shows a vote, changes nothing |
//! | TRIM | replica, candidate | acceptors, leader | checkpoint | forgets below an instance |
//! | PROBE | controller | every role | timer | PROBE_ACK |
//! | PROBE_ACK | every role | the prober | PROBE | shows boot nonce, start, round, position and trim point |

mod header;
mod msgtype;
mod reason;
pub mod value;

pub use header::{Flags, HEADER_LEN, Header, Packet, TAG_LEN, VERSION};
pub use msgtype::MsgType;
pub use reason::{Reason, ReasonCounters};

/// The largest value that fits a 1,500-byte MTU with IPv4, UDP, header and tag.
pub const MAX_VALUE_LEN: usize = 1500 - 20 - 8 - HEADER_LEN - TAG_LEN;
