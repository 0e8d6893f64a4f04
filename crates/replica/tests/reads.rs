// SPDX-License-Identifier: Apache-2.0
//! Reads of the front end beside a replica that have no place in the log. The test writes the
//! acceptors' answers.

mod common;

use common::*;
use paxos::read::is_for_reads;
use paxos::{
    Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet, Reason, Round, Verdict,
};
use replica::protocol::ReplyAddress;
use replica::{
    AskedReads, EpochView, Gathered, Gathering, Piece, ReplyTo, Settings, Status, read_number,
};
use test_world::cluster::{nonce_of, range_answer};

/// The address at which a client is answered.
const CLIENT_AT: &str = "10.0.0.9:77";

fn typed(msgtype: MsgType) -> Header {
    Header {
        msgtype,
        ..deliver_header()
    }
}

fn fed() -> Fed {
    fed_with(|_| {})
}

fn fed_with(adjust: impl FnOnce(&mut Settings)) -> Fed {
    let mut settings = settings(REPLICAS[0]);
    adjust(&mut settings);
    Fed::new(settings)
}

impl Fed {
    fn read(&mut self, number: u64) {
        self.read_as(number, READ, false);
    }

    fn read_as(&mut self, number: u64, command: u64, stale: bool) {
        let mut reads = AskedReads::new(stale);
        reads.push(number, &command.to_be_bytes());
        self.worker.read(self.now, reads);
    }

    /// Opens a session of a client, which is answered at [`CLIENT_AT`].
    fn open_remote(&mut self) -> u64 {
        let reply_to = ReplyAddress {
            home: REPLICAS[1],
            address: Some(CLIENT_AT.parse().unwrap()),
            key: 0,
        };
        let inst = self.worker.next();
        self.op(9, open(false, 8, reply_to));
        (inst + 1) << 16
    }

    /// Hands over a client's READ.
    fn ask(&mut self, client: u64, number: u64, from: u64, command: u64) -> Verdict {
        let header = Header {
            client,
            request: number,
            inst: from,
            swid: 0,
            rnd: Round::NONE,
            vrnd: Round::NONE,
            ..typed(MsgType::Read)
        };
        let datagram = header.datagram(&command.to_be_bytes());
        let packet = Packet::parse(&datagram).unwrap();
        self.worker.step(self.now, &packet, &mut self.out)
    }

    /// Takes the answers to clients: number, status, bytes.
    fn told(&mut self) -> Vec<(u64, Status, Vec<u8>)> {
        let to = ReplyTo::Address(CLIENT_AT.parse().unwrap(), 0);
        let replies = self.finish().into_iter();
        let told = replies.map(|r| {
            assert_eq!((r.to, r.basis), (to, None));
            (r.request, r.status, r.bytes)
        });
        told.collect()
    }

    /// Ends the batch, and returns the questions for reads that were sent since.
    fn asked(&mut self) -> Vec<Header> {
        self.out.sent.clear();
        self.finish();
        let sent = self.out.sent.iter().map(|(_, header, _)| *header);
        sent.filter(|h| h.msgtype == MsgType::Query && is_for_reads(h))
            .collect()
    }

    fn only_question(&mut self) -> Header {
        let asked = self.asked();
        assert_eq!(asked.len(), 1);
        asked[0]
    }

    fn answer(&mut self, question: &Header, from: NodeId, floor: Epoch, end: Instance) -> Verdict {
        let member = Member {
            node: from,
            nonce: nonce_of(from),
        };
        let (header, value) = range_answer(question, member, floor, end);
        let packet = Packet {
            header,
            tag: None,
            value: &value,
        };
        self.worker.step(self.now, &packet, &mut self.out)
    }

    /// Lets f+1 acceptors answer.
    fn bound(&mut self, question: &Header, end: Instance) {
        for from in &ACCEPTORS[..2] {
            assert_eq!(self.answer(question, *from, 1, end), Verdict::Answered);
        }
    }

    /// Executes a command at the next instance.
    fn execute(&mut self) {
        let inst = self.worker.next();
        self.give(inst, Flags::NOOP, (0, 0), &[]);
    }

    /// Takes the numbers of the answered reads, with how many commands each has seen; `None` = the
    /// read has to go through the log.
    fn answered(&mut self) -> Vec<(u64, Option<u64>)> {
        self.finish();
        let seen = |bytes: Vec<u8>| u64::from_be_bytes(bytes.try_into().unwrap());
        let reads = std::mem::take(&mut self.out.reads).into_iter();
        reads.map(|(n, answer)| (n, answer.map(seen))).collect()
    }
}

/// A read waits until everything that acceptors have shown is executed. [B-EXECUTE]
#[test]
fn a_read_waits_until_what_acceptors_show_is_executed() {
    let mut r = fed();
    let session = r.open(7, false, 8);
    r.read(1);
    let question = r.only_question();
    r.bound(&question, 3);
    assert_eq!(r.answered(), [], "1 and 2 are missing");
    r.log(session, 1, &command(5));
    assert_eq!(r.answered(), [], "2 is missing");
    r.log(session, 2, &command(5));
    assert_eq!(r.answered(), [(1, Some(2))]);
}

/// Reads are answered together, and see all commands that were begun before them. [B-EXECUTE]
/// [X-GATHER]
#[test]
fn reads_are_answered_together_and_see_all_that_was_begun() {
    let disk = Disk::default();
    disk.with(|d| (d.answers_later, d.cannot_discard) = (true, true));
    let mut r = Fed::on(settings(REPLICAS[0]), disk);
    let session = r.open(7, false, 200);
    for number in 1..=150 {
        r.read(number);
    }
    let question = r.only_question();
    r.bound(&question, 3);
    for request in [1, 2] {
        let inst = r.worker.next();
        r.give(inst, Flags::NONE, (session, request), &command(request));
    }
    // A stale read sees what is executed in the middle of a batch, too.
    r.read_as(999, READ, true);
    let mut expected: Vec<_> = (1..=150).map(|number| (number, Some(2))).collect();
    expected.insert(0, (999, Some(2)));
    assert_eq!(r.answered(), expected);
    assert_eq!([r.times(1), r.times(2)], [1, 1]);
}

/// Reads that arrive during a question share the next question. [B-ASK]
#[test]
fn reads_that_come_meanwhile_share_the_next_question() {
    let mut r = fed();
    r.read(1);
    r.read(2);
    let first = r.only_question();
    r.read(3);
    assert_eq!(r.asked(), [], "one is under way");
    r.execute();
    r.bound(&first, 0);
    assert_eq!(r.answered(), [(1, Some(0)), (2, Some(0))]);
    // The question left with the same batch.
    let sent = r.out.sent.iter().map(|(_, header, _)| *header);
    let second = sent.rev().find(is_for_reads).unwrap();
    assert_ne!(second.request, first.request);
    assert_eq!(
        r.answer(&first, ACCEPTORS[0], 1, 0),
        Verdict::Dropped(Reason::Unexpected)
    );
    r.bound(&second, 1);
    assert_eq!(r.answered(), [(3, Some(0))]);
}

/// A higher floor makes earlier answers void, and the replica asks for the new view. [B-COUNT]
#[test]
fn a_later_floor_makes_answers_void_and_the_view_is_asked_for() {
    let mut r = fed();
    r.read(1);
    let question = r.only_question();
    let _ = r.answer(&question, ACCEPTORS[0], 1, 0);
    assert_eq!(r.answer(&question, ACCEPTORS[1], 2, 0), Verdict::Answered);
    assert_eq!(r.worker.wanted().view_with, Some(2));
    let _ = r.answer(&question, ACCEPTORS[2], 1, 0);
    assert_eq!(r.answered(), []);
    // An epoch that isn't active proves nothing.
    let writing = EpochView {
        active: false,
        ..active(2)
    };
    r.worker.configure(r.now, &[active(1), writing]);
    r.now += r.settings.repair_after;
    assert_eq!(r.asked(), []);
    r.tell_epoch(2);
    let question = r.only_question();
    for from in &ACCEPTORS[..2] {
        let _ = r.answer(&question, *from, 2, 0);
    }
    assert_eq!(r.answered(), [(1, Some(0))]);
}

/// Instances that f+1 acceptors show are repaired without waiting for the next poll. [B-EXECUTE]
#[test]
fn what_f_plus_one_acceptors_show_is_repaired_without_a_poll() {
    let mut r = fed();
    let now = r.now;
    r.worker.tick(now, &mut r.out).unwrap();
    r.read(1);
    let question = r.only_question();
    r.bound(&question, 1);
    r.finish();
    r.out.sent.clear();
    // This is long before the next poll.
    r.now += 4 * r.settings.repair_after;
    let now = r.now;
    r.worker.tick(now, &mut r.out).unwrap();
    let asks = |h: &Header| h.msgtype == MsgType::Query && !h.flags.has(Flags::RANGE);
    assert!(r.out.sent.iter().any(|(_, h, _)| asks(h) && h.inst == 0));
}

/// A read that has waited for too long is sent through the log. [B-LIMIT]
#[test]
fn a_read_that_waits_for_long_goes_through_the_log() {
    let mut r = fed();
    r.read(1);
    r.read(2);
    let question = r.only_question();
    r.bound(&question, 1);
    let until = r.now + r.settings.read_patience;
    assert!(r.worker.next_deadline().is_some_and(|at| at <= until));
    r.now = until;
    r.worker.tick(until, &mut r.out).unwrap();
    assert_eq!(r.answered(), [(1, None), (2, None)]);
    r.execute();
    assert_eq!(r.answered(), [], "once");
}

#[test]
fn what_writes_goes_through_the_log() {
    let mut r = fed();
    r.read_as(1, 5, false);
    r.read_as(2, 5, true);
    let question = r.only_question();
    r.bound(&question, 0);
    assert_eq!(r.answered(), [(2, None), (1, None)]);
    assert_eq!(r.times(5), 0);
}

/// A read that may be stale needs no question to acceptors. [B-STALE]
#[test]
fn a_read_that_may_be_old_asks_nobody() {
    let mut r = fed();
    let session = r.open(7, false, 8);
    r.log(session, 1, &command(5));
    r.read_as(1, READ, true);
    assert_eq!(r.asked(), []);
    assert_eq!(r.answered(), [(1, Some(1))]);
}

/// A replica that is told to stop executes no reads until it goes on.
#[test]
fn a_replica_that_stands_still_lets_reads_wait() {
    let mut r = fed();
    r.worker.stop_execution(2).unwrap();
    r.read(1);
    let question = r.only_question();
    r.bound(&question, 0);
    r.read_as(2, READ, true);
    assert_eq!(r.answered(), []);
    r.worker.begins(2, 0);
    r.tell_epoch(2);
    assert_eq!(r.answered(), [(1, Some(0)), (2, Some(0))]);
}

/// If answers wait for a commit, everything executed is stored before a read shows it. [X-ANSWER]
#[test]
fn a_read_is_answered_like_a_command() {
    for answers_wait in [false, true] {
        let mut r = fed_with(|settings| settings.answers_wait = answers_wait);
        let session = r.open(7, false, 8);
        r.give(1, Flags::NONE, (session, 1), &command(5));
        r.read_as(1, READ, true);
        assert_eq!(r.answered(), [(1, Some(1))]);
        let stored = r.disk.committed().tally.total;
        assert_eq!(stored, u64::from(answers_wait));
    }
}

// ---- Clients

/// A client's read waits like a front end's, and is answered at the address of its session.
/// [B-CLIENT]
#[test]
fn a_clients_read_waits_as_the_front_ends_and_is_answered_where_its_session_says() {
    let mut r = fed();
    let session = r.open_remote();
    let number = read_number(1, false);
    assert_eq!(r.ask(session, number, 0, READ), Verdict::Answered);
    let question = r.only_question();
    let end = r.worker.next() + 1;
    r.bound(&question, end);
    assert_eq!(r.told(), [], "one is missing");
    r.execute();
    let ok = (number, Status::Ok, 0u64.to_be_bytes().to_vec());
    assert_eq!(r.told(), std::slice::from_ref(&ok));
    // A repetition is asked for and answered anew, since reads aren't recorded.
    assert_eq!(r.ask(session, number, 0, READ), Verdict::Answered);
    let question = r.only_question();
    r.bound(&question, end);
    assert_eq!(r.told(), [ok]);
    assert_eq!(r.worker.next(), end, "nothing has a place in the log");
}

/// A request that a client may not send as a read changes nothing. [B-CLIENT]
#[test]
fn what_a_client_may_not_read_so_changes_nothing() {
    let mut r = fed();
    let session = r.open_remote();
    let of_front_end = r.open(7, true, 8);
    let number = read_number(1, false);
    // This command writes.
    assert_eq!(r.ask(session, number, 0, 5), Verdict::Answered);
    assert_eq!(r.told(), [(number, Status::Unsupported, Vec::new())]);
    assert_eq!(r.asked(), [], "nobody is asked for it");
    assert_eq!(r.times(5), 0);
    // These numbers may be a command's, which the read would end.
    for number in [1, 1 << 63, u64::MAX] {
        let refused = Verdict::Dropped(Reason::NotForRole);
        assert_eq!(r.ask(session, number, 0, READ), refused);
    }
    // The session belongs to somebody else, or doesn't exist.
    let stale = read_number(2, true);
    for client in [of_front_end, session + 1] {
        assert_eq!(r.ask(client, stale, 0, READ), Verdict::Answered);
        assert_eq!(r.ask(client, stale, 0, 5), Verdict::Answered);
        assert_eq!(r.told(), []);
    }
    assert_eq!(r.times(5), 0);
}

/// A client's stale read needs no question to acceptors, and a read that waits for too long is
/// dropped. [B-STALE] [B-CLIENT]
#[test]
fn a_clients_stale_read_asks_nobody_and_one_that_waits_for_long_is_forgotten() {
    let mut r = fed();
    let session = r.open_remote();
    let [stale, fresh] = [true, false].map(|stale| read_number(1, stale));
    let _ = r.ask(session, stale, 0, READ);
    assert_eq!(r.told().len(), 1);
    assert_eq!(r.asked(), []);
    let _ = r.ask(session, fresh, 0, READ);
    let question = r.only_question();
    let end = r.worker.next() + 1;
    r.bound(&question, end);
    r.now += r.settings.read_patience;
    let now = r.now;
    r.worker.tick(now, &mut r.out).unwrap();
    r.execute();
    assert_eq!(r.told(), [], "its client has asked another replica");
}

/// A client gets a long answer in pieces, which need no further question to acceptors. [B-PIECES]
#[test]
fn a_long_answer_leaves_in_pieces_that_are_asked_for_without_a_bound() {
    // No answer fits, and a piece has one byte.
    let mut r = fed_with(|settings| settings.limits.reply = 7);
    let session = r.open_remote();
    let number = read_number(1, true);
    let _ = r.ask(session, number, 0, READ);
    let told = r.told();
    let mut gathering = Gathering::default();
    // The last pieces are lost.
    for (_, status, bytes) in &told[..5] {
        assert_eq!(*status, Status::Piece);
        let gathered = gathering.take(&Piece::parse(bytes).unwrap());
        assert_eq!(gathered, Gathered::Waits);
    }
    assert_eq!((told.len(), gathering.from()), (8, 5));
    let fresh = read_number(1, false);
    let _ = r.ask(session, fresh, 5, READ);
    assert_eq!(r.asked(), [], "the beginning says which answer it is");
    let _ = r.ask(session, fresh, 5, READ);
    let mut came = Gathered::Waits;
    for (_, _, bytes) in r.told() {
        came = gathering.take(&Piece::parse(&bytes).unwrap());
    }
    assert_eq!(came, Gathered::Whole);
    assert_eq!(gathering.into_answer(), 0u64.to_be_bytes());
    // After a change the rest belongs to another answer.
    let mut gathering = Gathering::default();
    let _ = r.ask(session, number, 0, READ);
    let begun = r.told();
    let first = Piece::parse(&begun[0].2).unwrap();
    let _ = gathering.take(&first);
    let local = r.open(8, false, 8);
    r.log(local, 1, &command(5));
    let later = read_number(2, false);
    let _ = r.ask(session, later, 1, READ);
    for (_, _, bytes) in r.told() {
        let gathered = gathering.take(&Piece::parse(&bytes).unwrap());
        assert_eq!(gathered, Gathered::Waits, "it isn't mixed");
    }
    assert_eq!(gathering.from(), 0);
}
