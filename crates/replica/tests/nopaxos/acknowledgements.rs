// SPDX-License-Identifier: Apache-2.0
//! A follower's acknowledgements, and crowds, which hear the leader alone.

use super::*;

/// A client that waits for an answer gets one ACK a batch from each follower, whether or not the
/// follower has executed the session's OPEN. For a pack it is the sender of the first command.
/// [N-ACK]
#[test]
fn a_follower_acknowledges_to_all_whom_a_batch_names() {
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let now = c.now();
    let at = |port| ReplyAddress {
        address: Some(std::net::SocketAddr::from(([10, 0, 0, 9], port))),
        ..ReplyAddress::default()
    };
    let of = |home| ReplyAddress {
        home,
        ..ReplyAddress::default()
    };
    let (me, other) = (REPLICAS[1], REPLICAS[2]);
    let slot = c.sequencer.next(0);
    let opens = [(11, at(1)), (12, at(2)), (13, of(me)), (14, of(other))];
    let opens = opens.map(|(nonce, to)| (nonce, 0, open(false, 4, to).to_bytes()));
    let session = |n: u64| (slot + 1) << 16 | n;
    let first = [(session(1), 1, command(1)), (session(0), 1, command(2))];
    let second = [(session(3), 1, command(3)), (session(0), 2, command(4))];
    let third = [(session(2), 1, command(5)), (77 << 16, 1, command(6))];
    let mut acks = Vec::new();
    for (n, pack_of) in [&opens[..], &first, &second, &third].iter().enumerate() {
        let datagram = stamped(&mut c, Flags::PACKED, 5, 1, &pack(pack_of));
        let worker = c.hosts[1].worker.as_mut().unwrap();
        let mut out = Out::default();
        let packet = Packet::parse(&datagram).unwrap();
        assert_eq!(worker.step(now, &packet, &mut out), Verdict::Changed);
        assert_eq!((worker.next(), worker.sessions()), (slot, 0));
        // The first two make one batch.
        if n > 0 {
            worker.finish_batch(now, &mut out).unwrap();
            acks.push(out.acks);
        }
    }
    let told: Vec<Vec<_>> = acks
        .iter()
        .map(|acks| acks.iter().map(|(to, h)| (*to, h.inst - slot)).collect())
        .collect();
    let address = |port| ReplyTo::Address(at(port).address.unwrap(), 0);
    assert_eq!(told[0], [(address(1), 2), (address(2), 2)]);
    assert!(told[1].is_empty() && told[2].is_empty(), "front ends");
}

/// Clients wait only for a follower's word about its log, so nothing that it may execute comes
/// before that word. [N-ACK]
#[test]
fn a_follower_acknowledges_before_it_executes() {
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    // The session belongs to the front end beside a follower, so the leader makes its command
    // stable at once.
    let to = ReplyAddress {
        home: FOLLOWERS[0],
        ..ReplyAddress::default()
    };
    let first = stamped(&mut c, Flags::NONE, 5, 0, &open(false, 4, to).to_bytes());
    let second = stamped(
        &mut c,
        Flags::NONE,
        6,
        0,
        &open(false, 4, reply_to()).to_bytes(),
    );
    let step = |c: &mut Cluster<Disk>, index: usize, datagrams: &[&Vec<u8>]| {
        let worker = c.hosts[index].worker.as_mut().unwrap();
        let mut out = Out::default();
        for datagram in datagrams {
            let packet = Packet::parse(datagram).unwrap();
            let verdict = worker.step(now, &packet, &mut out);
            assert!(!matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
        }
        out
    };
    let batch = |c: &mut Cluster<Disk>, index: usize, datagrams: &[&Vec<u8>], sends: MsgType| {
        let mut out = step(c, index, datagrams);
        let worker = c.hosts[index].worker.as_mut().unwrap();
        worker.finish_batch(now, &mut out).unwrap();
        let sent = out.sent.iter().find(|(_, h, _)| h.msgtype == sends);
        let (_, header, value) = sent.expect("it sends one");
        header.datagram(value)
    };
    let prepare = batch(&mut c, 0, &[&first], MsgType::SyncPrepare);
    let prepared = batch(&mut c, 1, &[&first, &prepare], MsgType::SyncRep);
    let commit = batch(&mut c, 0, &[&prepared], MsgType::SyncCommit);
    let mut out = step(&mut c, 1, &[&second, &commit]);
    let worker = c.hosts[1].worker.as_mut().unwrap();
    assert_eq!(worker.agreement().stable(), slot + 1);
    assert!(worker.acknowledge(&mut out));
    let told: Vec<_> = out.acks.iter().map(|(_, h)| h.inst).collect();
    assert_eq!((worker.next(), told), (slot, vec![slot + 2]));
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), out.acks.len()), (slot + 1, 1));
}

/// Returns the packets that a replica sends for a batch of packets.
fn batch(c: &mut Cluster<Disk>, index: usize, now: Time, datagrams: &[Vec<u8>]) -> Out {
    let worker = c.hosts[index].worker.as_mut().unwrap();
    let mut out = Out::default();
    for datagram in datagrams {
        let verdict = worker.step(now, &Packet::parse(datagram).unwrap(), &mut out);
        assert!(!matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
    }
    worker.finish_batch(now, &mut out).unwrap();
    out
}

fn sent(out: &Out, msgtype: MsgType) -> (Vec<u8>, Header) {
    let sent = out.sent.iter().find(|(_, h, _)| h.msgtype == msgtype);
    let (_, header, value) = sent.expect("it sends one");
    (header.datagram(value), *header)
}

/// If many clients wait at once, the leader answers what is stable, and followers don't acknowledge
/// until the leader ends the crowd, by a packet that may be lost. [N-CROWD]
#[test]
fn a_crowd_hears_the_leader_alone() {
    const CLIENTS: u16 = 8;
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    let open_at = |port| open(false, 4, at_port(port)).to_bytes();
    let opens: Vec<_> = (1..=CLIENTS)
        .map(|n| stamped(&mut c, Flags::NONE, 10 + u64::from(n), 0, &open_at(n)))
        .collect();
    let behind_opens = slot + u64::from(CLIENTS);
    let of_first = |c: &mut Cluster<Disk>, request| {
        stamped(c, Flags::NONE, (slot + 1) << 16, request, &command(request))
    };
    let told = |out: &Out| -> Vec<_> {
        let replies = out.replies.iter().filter(|reply| reply.request > 0);
        replies.map(|r| (r.request, r.basis.is_some())).collect()
    };

    // Nobody has noticed a crowd yet.
    let out = batch(&mut c, 0, now, &opens);
    assert_eq!(out.replies.len(), opens.len());
    assert!(out.replies.iter().all(|reply| reply.basis.is_some()));
    let (begins, header) = sent(&out, MsgType::SyncPrepare);
    assert_eq!((header.vrnd, header.inst), (header.rnd, behind_opens));
    let out = batch(
        &mut c,
        1,
        now,
        &[&opens[..], std::slice::from_ref(&begins)].concat(),
    );
    assert_eq!(out.acks.len(), opens.len());
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);

    // There is a crowd, and the answer is stable.
    let first = of_first(&mut c, 1);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&first));
    assert_eq!(told(&out), []);
    let (goes_on, _) = sent(&out, MsgType::SyncPrepare);
    let out = batch(&mut c, 1, now, &[first.clone(), goes_on.clone()]);
    assert_eq!(out.acks, []);
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    let out = batch(&mut c, 0, now, &[prepared]);
    assert_eq!(told(&out), [(1, false)]);

    // The crowd is over, but the follower doesn't hear of that at first.
    let now = now + 20 * MS;
    let second = of_first(&mut c, 2);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&second));
    assert_eq!(told(&out), [], "followers may not know yet");
    let (lost, header) = sent(&out, MsgType::SyncPrepare);
    assert!(header.vrnd.is_none());
    let third = of_first(&mut c, 3);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&third));
    assert_eq!(told(&out), [(3, true)]);
    let out = batch(&mut c, 1, now, &[second.clone(), third.clone()]);
    assert_eq!(out.acks, []);
    let now = now + 2 * MS;
    let mut out = Out::default();
    let leader = c.hosts[0].worker.as_mut().unwrap();
    leader.tick(now, &mut out).unwrap();
    let (over, header) = sent(&out, MsgType::SyncPrepare);
    assert!(header.vrnd.is_none());
    let acked = |out: Out| -> Vec<_> { out.acks.iter().map(|(_, h)| h.inst).collect() };
    let end = behind_opens + 3;
    assert_eq!(
        acked(batch(&mut c, 1, now, std::slice::from_ref(&over))),
        [end]
    );
    // A packet that comes late changes nothing.
    assert_eq!(acked(batch(&mut c, 1, now, &[lost, goes_on.clone()])), []);
    let fourth = of_first(&mut c, 4);
    assert_eq!(acked(batch(&mut c, 1, now, &[fourth])), [end + 1]);

    // A follower that hears everything at once still owes an ACK for the time before the crowd.
    let all = [&opens[..], &[begins, first, goes_on, second, third, over]];
    let acks = acked(batch(&mut c, 2, now, &all.concat()));
    assert_eq!(acks, vec![end; opens.len()]);
}

/// Commands between two crowds are acknowledged, also by a follower that hears only of the second
/// one. [N-CROWD]
#[test]
fn a_crowd_begins_once_the_end_of_the_last_one_is_heard() {
    const CLIENTS: u64 = 8;
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    let of_all = |c: &mut Cluster<Disk>, request: u64| -> Vec<_> {
        let ask = |n: u64| match request {
            0 => {
                let open = open(false, 4, at_port(n as u16)).to_bytes();
                stamped(c, Flags::NONE, 10 + n, 0, &open)
            }
            _ => stamped(c, Flags::NONE, (slot + n) << 16, request, &command(request)),
        };
        (1..=CLIENTS).map(ask).collect()
    };
    let prepares = |c: &mut Cluster<Disk>, now| {
        let mut out = Out::default();
        let leader = c.hosts[0].worker.as_mut().unwrap();
        leader.tick(now, &mut out).unwrap();
        sent(&out, MsgType::SyncPrepare)
    };
    let mut follower = of_all(&mut c, 0);
    let (begins, header) = sent(&batch(&mut c, 0, now, &follower), MsgType::SyncPrepare);
    assert!(!header.vrnd.is_none());
    follower.push(begins);
    let (prepared, _) = sent(&batch(&mut c, 1, now, &follower), MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);

    // The crowd is over, the next commands are answered at once, and their clients are a crowd
    // again. The packet that ends the first crowd is lost.
    let now = now + 20 * MS;
    let alone = stamped(&mut c, Flags::NONE, (slot + 1) << 16, 1, &command(1));
    let out = batch(&mut c, 0, now, std::slice::from_ref(&alone));
    assert!(sent(&out, MsgType::SyncPrepare).1.vrnd.is_none());
    let asked = of_all(&mut c, 2);
    let out = batch(&mut c, 0, now, &asked);
    assert_eq!(out.replies.len(), asked.len());
    assert!(out.replies.iter().all(|reply| reply.basis.is_some()));
    let now = now + 2 * MS;
    let (next, header) = prepares(&mut c, now);
    assert!(header.vrnd.is_none(), "nobody has heard of the end");
    let out = batch(&mut c, 1, now, &[&[alone], &asked[..], &[next]].concat());
    assert_eq!(out.acks.len() as u64, CLIENTS);
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);
    let (_, header) = prepares(&mut c, now + 2 * MS);
    assert!(!header.vrnd.is_none(), "the second crowd");
}
