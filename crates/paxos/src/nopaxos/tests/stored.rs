// SPDX-License-Identifier: Apache-2.0
//! Reads a durable replica's records: whole, cut, damaged, and of another replica. [N-STORED]
//! [N-RESTART]

use super::world::{SLOTS, START, deployment, ordered, settings};
use crate::nopaxos::stored::Saved;
use crate::nopaxos::{Loaded, Replica, Session, Stage, Status, view};
use crate::outbox::Sent;
use crate::{Deployment, Instance, Member, Packet, Reason, Verdict};

const MEMBER: Member = Member { node: 1, nonce: 7 };

/// Returns a replica that is alone in session 1, whose first view has begun.
fn replica() -> Replica {
    let mut replica = Replica::new(settings(MEMBER), 0);
    replica.keep(START);
    let session = Session {
        number: 1,
        sequencer: super::world::SEQUENCER,
        nonce: 9,
        members: vec![MEMBER],
        f: 0,
        lead: 0,
        stage: Stage::Writing,
        anew: None,
    };
    assert_eq!(replica.configure(&[session]), Ok(true));
    pass_time(&mut replica);
    assert_eq!(replica.status(), Status::Normal);
    replica
}

/// Hands a replica's packets to itself back to it.
fn pass_time(replica: &mut Replica) {
    let mut out = Sent::default();
    replica.tick(0, &mut out);
    for (_, header, value) in out.0 {
        let datagram = header.datagram(&value);
        let packet = Packet::parse(&datagram).unwrap();
        let _ = replica.step(0, &packet, &mut Sent::default());
    }
}

fn append(replica: &mut Replica, inst: Instance) {
    let datagram = ordered(1, inst, inst + 1).datagram(b"v");
    let packet = Packet::parse(&datagram).unwrap();
    let verdict = replica.step(0, &packet, &mut Sent::default());
    assert_eq!(verdict, Verdict::Changed);
}

fn head(replica: &Replica) -> Vec<u8> {
    let mut head = Vec::new();
    replica.save_stored_head(&mut head);
    head
}

/// Returns the records of what has changed.
fn changed(replica: &mut Replica) -> (Vec<Vec<u8>>, (Saved, Vec<u8>)) {
    let unstored = replica.unstored().expect("something has changed");
    let entry = |inst: &Instance| {
        let mut entry = Vec::new();
        replica.save_entry(*inst, &mut entry);
        entry
    };
    let entries = unstored.slots.iter().map(entry).collect();
    let mut bytes = Vec::new();
    let saved = unstored.save(replica, &mut bytes);
    replica.has_stored(unstored);
    (entries, (saved, bytes))
}

fn empty() -> Loaded {
    Loaded::new(deployment(1), 0, SLOTS)
}

fn next_of(loaded: Loaded) -> Result<Option<Instance>, &'static str> {
    let replica = loaded.into_replica(settings(MEMBER), START)?;
    Ok(replica.map(|replica| replica.next()))
}

#[test]
fn a_replica_comes_back_mute_and_goes_on() {
    let mut before = replica();
    let (_, (saved, change)) = changed(&mut before);
    assert_eq!(saved, Saved::Change);
    append(&mut before, 0);
    let (entries, (saved, reach)) = changed(&mut before);
    assert_eq!((entries.len(), saved), (1, Saved::Reach));
    let mut loaded = empty();
    let mut first = Replica::new(settings(MEMBER), 0);
    first.keep(START);
    loaded.head(&head(&first)).unwrap();
    loaded.commit(Saved::Change, &change).unwrap();
    loaded.entry(&entries[0]).unwrap();
    loaded.commit(Saved::Reach, &reach).unwrap();
    // A segment that begins there says the same once more.
    loaded.head(&head(&before)).unwrap();
    let start = START.next(5);
    let found = loaded.into_replica(settings(MEMBER), start).unwrap();
    let mut found = found.unwrap();
    assert!(found.is_mute() && !found.leads() && found.unstored().is_none());
    let packet = ordered(1, 1, 2).datagram(b"v");
    let packet = Packet::parse(&packet).unwrap();
    let mut out = Sent::default();
    let verdict = found.step(0, &packet, &mut out);
    assert_eq!(verdict, Verdict::Dropped(Reason::Restarted));
    found.tick(1 << 40, &mut out);
    assert_eq!((out.0.len(), found.take_ack()), (0, None));
    assert!(found.resume(0, 8, start, &mut out).is_err());
    assert!(found.resume(0, 7, START, &mut out).is_err());
    assert_eq!(found.resume(0, 7, start, &mut out), Ok(true));
    assert_eq!(found.resume(0, 7, start, &mut out), Ok(false));
    let place = |r: &Replica| (r.view(), r.last_normal(), r.status(), r.next());
    assert_eq!(place(&found), place(&before));
    assert_eq!(found.view(), view::first(1));
    append(&mut found, 1);
}

/// A process may end between the pieces of a large change. [W-UNTOUCHED]
#[test]
fn entries_count_together_with_what_is_behind_them() {
    let mut before = replica();
    let _ = changed(&mut before);
    let beginning = head(&before);
    let mut other = before.clone();
    (0..2).for_each(|inst| append(&mut before, inst));
    let (entries, (saved, reach)) = changed(&mut before);
    let mut cut = empty();
    cut.head(&beginning).unwrap();
    cut.entry(&entries[0]).unwrap();
    assert_eq!(next_of(cut), Ok(Some(0)));
    // The next process goes on from where the first had been.
    append(&mut other, 0);
    let (later, (also, short)) = changed(&mut other);
    let mut loaded = empty();
    loaded.head(&beginning).unwrap();
    loaded.entry(&entries[1]).unwrap();
    loaded.head(&beginning).unwrap();
    loaded.entry(&later[0]).unwrap();
    loaded.commit(also, &short).unwrap();
    assert_eq!(next_of(loaded), Ok(Some(1)));
    let mut torn = empty();
    torn.head(&beginning).unwrap();
    torn.entry(&entries[1]).unwrap();
    torn.commit(saved, &reach).unwrap();
    assert_eq!(next_of(torn), Err("entries are missing"));
    let mut without = empty();
    assert_eq!(without.commit(saved, &reach), Err("it has no beginning"));
    assert_eq!(next_of(empty()), Ok(None));
}

/// A process that died while it stored another view's log has left an entry for a slot that is
/// filled here. [W-UNTOUCHED]
#[test]
fn what_an_interrupted_change_has_left_replaces_nothing() {
    let mut before = replica();
    let _ = changed(&mut before);
    let beginning = head(&before);
    let mut other = before.clone();
    let datagram = ordered(1, 0, 99).datagram(b"w");
    let packet = Packet::parse(&datagram).unwrap();
    let _ = other.step(0, &packet, &mut Sent::default());
    let (left, _) = changed(&mut other);
    append(&mut before, 0);
    let (first, (saved, reach)) = changed(&mut before);
    append(&mut before, 1);
    let (second, (also, further)) = changed(&mut before);
    let mut loaded = empty();
    loaded.head(&beginning).unwrap();
    loaded.entry(&first[0]).unwrap();
    loaded.commit(saved, &reach).unwrap();
    loaded.entry(&left[0]).unwrap();
    loaded.entry(&second[0]).unwrap();
    loaded.commit(also, &further).unwrap();
    let found = loaded
        .into_replica(settings(MEMBER), START)
        .unwrap()
        .unwrap();
    let requests = [0, 1].map(|inst| found.entry(inst).map(|entry| entry.request));
    assert_eq!(requests, [Some(1), Some(2)]);
}

#[test]
fn what_is_of_others_is_refused_by_name() {
    let mut before = replica();
    let _ = changed(&mut before);
    let bytes = head(&before);
    let here = deployment(1);
    let read = |deployment, pid, slots| Loaded::new(deployment, pid, slots).head(&bytes);
    let of = |change: fn(&mut Deployment)| {
        let mut other = here;
        change(&mut other);
        read(other, 0, SLOTS).unwrap_err()
    };
    assert_eq!(read(here, 0, SLOTS), Ok(()));
    assert_eq!(
        of(|d| d.cluster += 1),
        "saved by another node, or in another cluster"
    );
    assert_eq!(
        of(|d| d.node += 1),
        "saved by another node, or in another cluster"
    );
    assert_eq!(of(|d| d.group += 1), "saved for another group");
    assert_eq!(
        of(|d| d.partitions += 1),
        "saved with another number of partitions"
    );
    assert_eq!(of(|d| d.max_value += 1), "saved with another maximum value");
    assert_eq!(read(here, 1, SLOTS), Err("saved for another partition"));
    assert_eq!(
        read(here, 0, SLOTS + 1),
        Err("saved with another number of slots")
    );
    let mut loaded = empty();
    loaded.head(&bytes).unwrap();
    let another = settings(Member { nonce: 8, ..MEMBER });
    let refused = loaded.into_replica(another, START).err();
    assert_eq!(refused, Some("it is of another memory of this replica"));
}

/// Checksums belong to the log. Bytes that come through them must be refused at worst.
#[test]
fn no_bytes_are_too_strange_to_be_read() {
    let mut before = replica();
    let (_, (_, change)) = changed(&mut before);
    append(&mut before, 0);
    let (entries, (_, reach)) = changed(&mut before);
    let whole = head(&before);
    let mut refused = 0;
    let mut try_all = |bytes: &[u8], take: &dyn Fn(&mut Loaded, &[u8]) -> bool| {
        for at in 0..bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            for bytes in [&flipped[..], &bytes[..at]] {
                let mut loaded = empty();
                loaded.head(&whole).unwrap();
                let taken = take(&mut loaded, bytes);
                refused += usize::from(!taken || next_of(loaded).is_err());
            }
        }
    };
    try_all(&whole, &|_, bytes| {
        let mut loaded = empty();
        loaded.head(bytes).is_ok() && next_of(loaded).is_ok()
    });
    try_all(&change, &|loaded, bytes| {
        loaded.commit(Saved::Change, bytes).is_ok()
    });
    try_all(&reach, &|loaded, bytes| {
        loaded.commit(Saved::Reach, bytes).is_ok()
    });
    try_all(&entries[0], &|loaded, bytes| loaded.entry(bytes).is_ok());
    let tried = 2 * (whole.len() + change.len() + reach.len() + entries[0].len());
    assert!(refused > tried / 2, "{refused} of {tried}");
}
