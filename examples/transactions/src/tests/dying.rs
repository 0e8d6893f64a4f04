// SPDX-License-Identifier: Apache-2.0
//! A client dies after each number of answers that it has got, and after each number of commands
//! that reach their shards. The next client finishes what it has left: everything or nothing.

use crate::coordinator::{Abort, Coordinator, Event};
use crate::shard::{Limits, Shard};

const SHARDS: u16 = 3;

/// Shards that answer at once.
struct World(Vec<Shard>);

impl World {
    fn new() -> World {
        World((0..SHARDS).map(|_| Shard::new(Limits::default())).collect())
    }

    /// Carries at most so many commands; returns the last event, and how many are left to carry.
    fn carry(&mut self, client: &mut Coordinator, most: usize) -> (Option<Event>, usize) {
        let (mut event, mut left) = (None, most);
        loop {
            let outgoing = client.take_outgoing();
            if outgoing.is_empty() {
                return (event, left);
            }
            for out in outgoing {
                if left == 0 {
                    return (event, 0);
                }
                left -= 1;
                let answer = self.0[usize::from(out.shard)].answer(&out.command);
                let mut bytes = Vec::new();
                answer.encode(&mut bytes);
                event = client.answer(out.tag, &bytes).or(event);
            }
        }
    }

    /// Tries a transaction that writes this value to all keys, and finishes what is in the way.
    fn write_all(&mut self, keys: &[Vec<u8>], value: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut client = Coordinator::new(SHARDS);
        for _ in 0..10 {
            client.begin();
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut event = client.read(&names);
            event = event.or(self.carry(&mut client, usize::MAX).0);
            if event == Some(Event::Read) {
                let seen = keys.iter().map(|key| client.value(key).map(<[u8]>::to_vec));
                let seen = seen.collect();
                keys.iter().for_each(|key| client.write(key, value));
                event = client.commit();
                event = event.or(self.carry(&mut client, usize::MAX).0);
                if event == Some(Event::Committed) {
                    return seen;
                }
            }
            let Some(Event::Aborted(Abort::Locked(other))) = event else {
                panic!("{event:?}");
            };
            client.resolve(&other);
            let (event, _) = self.carry(&mut client, usize::MAX);
            assert_eq!(event, Some(Event::Resolved));
        }
        panic!("locked out");
    }
}

/// One key in each shard.
fn keys() -> Vec<Vec<u8>> {
    let client = Coordinator::new(SHARDS);
    let key_in = |shard: u16| {
        let mut names = (0u8..=255).map(|n| vec![b'k', n]);
        names.find(|key| client.shard_of(key) == shard)
    };
    (0..SHARDS).filter_map(key_in).collect()
}

#[test]
fn whenever_a_client_dies_the_next_one_finishes_its_transaction() {
    let keys = keys();
    let mut outcomes = Vec::new();
    for most in 0.. {
        let mut world = World::new();
        let mut dies = Coordinator::new(SHARDS);
        dies.begin();
        keys.iter().for_each(|key| dies.write(key, b"first"));
        assert_eq!(dies.commit(), None);
        let (event, left) = world.carry(&mut dies, most);

        let seen = world.write_all(&keys, b"second");
        let all = seen.iter().all(|value| value.as_deref() == Some(b"first"));
        let none = seen.iter().all(Option::is_none);
        assert!(all || none, "after {most} commands: {seen:?}");
        if event == Some(Event::Committed) {
            assert!(all, "after {most} commands: an acknowledged commit is lost");
        }
        outcomes.push(all);
        assert!(world.0.iter().all(|shard| shard.prepared() == 0));
        if left > 0 {
            break;
        }
    }
    // It asks for three numbers and three votes, and tells three shards.
    assert_eq!(outcomes.len(), 11);
    assert_eq!(
        outcomes.iter().filter(|all| **all).count(),
        5,
        "{outcomes:?}"
    );
}

#[test]
fn who_comes_back_after_others_have_cancelled_learns_it() {
    let keys = keys();
    let mut world = World::new();
    let mut slow = Coordinator::new(SHARDS);
    slow.begin();
    keys.iter().for_each(|key| slow.write(key, b"slow"));
    assert_eq!(slow.commit(), None);
    // Numbers, and two of three votes.
    let opens = slow.take_outgoing();
    let mut votes = Vec::new();
    for out in opens {
        let mut bytes = Vec::new();
        world.0[usize::from(out.shard)]
            .answer(&out.command)
            .encode(&mut bytes);
        assert_eq!(slow.answer(out.tag, &bytes), None);
        votes.extend(slow.take_outgoing());
    }
    for out in &votes[..2] {
        let mut bytes = Vec::new();
        world.0[usize::from(out.shard)]
            .answer(&out.command)
            .encode(&mut bytes);
        assert_eq!(slow.answer(out.tag, &bytes), None);
    }
    let seen = world.write_all(&keys, b"other");
    assert!(seen.iter().all(Option::is_none), "{seen:?}");
    let out = &votes[2];
    let mut bytes = Vec::new();
    world.0[usize::from(out.shard)]
        .answer(&out.command)
        .encode(&mut bytes);
    let event = slow.answer(out.tag, &bytes);
    assert_eq!(event, Some(Event::Aborted(Abort::Cancelled)));
}
