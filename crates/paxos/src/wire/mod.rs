// SPDX-License-Identifier: Apache-2.0
//! The wire: one message a datagram; a 48-byte header, an optional 24-byte tag, then the value.
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
//! | QUERY | replica, recover, candidate | acceptors | a gap, a check | only shows a vote |
//! | TRIM | replica, candidate | acceptors, leader | checkpoint | forgets below an instance |
//! | PROBE | controller | every role | timer | PROBE_ACK |
//! | PROBE_ACK | every role | the prober | PROBE | boot nonce, start, round, position, trim point |
//!
//! NOPaxos (`rnd` is a view, or the session's base round; `inst` is a slot of the log):
//!
//! | type | sender | receiver | trigger | effect |
//! |---|---|---|---|---|
//! | ORDERED | sequencer | replicas | REQUEST | a slot of the log |
//! | ACK | follower | clients | ORDERED, READ | f of them and the leader's REPLY end requests |
//! | GAP_REQUEST | replica | leader, all | a lost ORDERED | asks for it |
//! | GAP_REPLY | replica | the asker | GAP_REQUEST | an entry of the log |
//! | GAP_COMMIT | leader | replicas | nobody has it | the slot is a no-op |
//! | GAP_COMMIT_REP | follower | leader | GAP_COMMIT | f of them: the leader goes on |
//! | VIEW_CHANGE_REQ | replica | all | a silent leader, a later session | asks for a later view |
//! | VIEW_CHANGE | replica | the view's leader | VIEW_CHANGE_REQ | tells its log |
//! | START_VIEW | leader | replicas | f+1 VIEW_CHANGEs | the log that the view begins with |
//! | START_VIEW_REP | follower | leader | START_VIEW | has that log |
//! | SYNC_PREPARE | leader | replicas | timer | everything below may become stable |
//! | SYNC_REP | follower | leader | SYNC_PREPARE | f of them: stable |
//! | SYNC_COMMIT | leader | replicas | f SYNC_REPs | everything below is stable |
//! | READ | client | replicas | a read | answered without a slot |

mod header;
mod msgtype;
pub mod nopaxos;
mod reason;
mod tag;
pub mod value;

pub use header::{Flags, HEADER_LEN, Header, Packet, VERSION};
pub use msgtype::MsgType;
pub use reason::{Reason, ReasonCounters};
pub use tag::{TAG_LEN, Tag};

/// The largest value that fits a 1,500-byte MTU with IPv4, UDP, header and tag.
pub const MAX_VALUE_LEN: usize = 1500 - 20 - 8 - HEADER_LEN - TAG_LEN;
