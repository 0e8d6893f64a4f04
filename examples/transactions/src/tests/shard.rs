// SPDX-License-Identifier: Apache-2.0
//! A shard alone: repeated commands, limits, and damaged snapshots.

use wirepaxos::StateMachine;

use super::random::Random;
use crate::shard::{Limits, Shard};
use crate::wire::{
    Answer, Command, Found, MAX_KEYS, MAX_VALUE, Participant, Refusal, Transaction, Work,
};

fn ask(shard: &mut Shard, command: &Command) -> Answer {
    let mut bytes = Vec::new();
    shard.execute(&command.encode(), &mut bytes);
    Answer::parse(&bytes).unwrap()
}

fn open(shard: &mut Shard) -> u64 {
    match ask(shard, &Command::Open) {
        Answer::Opened(client) => client,
        other => panic!("{other:?}"),
    }
}

fn write(key: &[u8], value: &[u8]) -> Work {
    Work {
        reads: Vec::new(),
        writes: vec![(key.to_vec(), value.to_vec())],
    }
}

fn prepare(client: u64, number: u64, work: Work) -> Command {
    let participants = vec![
        Participant { shard: 0, client },
        Participant {
            shard: 1,
            client: 1,
        },
    ];
    let transaction = Transaction {
        number,
        participants,
    };
    Command::Prepare {
        client,
        transaction,
        work,
    }
}

fn value(shard: &mut Shard, key: &[u8]) -> Answer {
    let keys = vec![key.to_vec()];
    ask(shard, &Command::Read { keys })
}

fn found(version: u64, value: &[u8]) -> Answer {
    Answer::Values(vec![Found {
        version,
        value: Some(value.to_vec()),
    }])
}

fn saved(shard: &Shard) -> Vec<u8> {
    let mut bytes = Vec::new();
    shard.save(&mut bytes).unwrap();
    bytes
}

#[test]
fn repeated_commands_have_no_further_effect() {
    let mut shard = Shard::new(Limits::default());
    let client = open(&mut shard);
    let first = prepare(client, 1, write(b"k", b"one"));
    let commit = Command::Finish {
        client,
        number: 1,
        commit: true,
    };
    for _ in 0..3 {
        assert_eq!(ask(&mut shard, &first), Answer::Yes);
    }
    assert!(matches!(
        value(&mut shard, b"k"),
        Answer::No(Refusal::Locked(_))
    ));
    for _ in 0..3 {
        assert_eq!(ask(&mut shard, &commit), Answer::Done);
        assert_eq!(ask(&mut shard, &first), Answer::Yes);
    }
    assert_eq!(value(&mut shard, b"k"), found(1, b"one"));
    let second = Command::Commit {
        client,
        number: 2,
        work: write(b"k", b"two"),
    };
    for _ in 0..3 {
        assert_eq!(ask(&mut shard, &second), Answer::Yes);
        assert_eq!(ask(&mut shard, &first), Answer::No(Refusal::Late));
    }
    assert_eq!(value(&mut shard, b"k"), found(2, b"two"));
}

#[test]
fn a_prepared_transaction_isnt_dropped_by_its_own_clients_mistakes() {
    let mut shard = Shard::new(Limits::default());
    let client = open(&mut shard);
    let first = prepare(client, 1, write(b"k", b"one"));
    assert_eq!(ask(&mut shard, &first), Answer::Yes);
    let later = [
        prepare(client, 2, write(b"other", b"")),
        Command::Resolve { client, number: 2 },
    ];
    for command in later {
        let answer = ask(&mut shard, &command);
        assert!(
            matches!(answer, Answer::No(Refusal::Locked(_))),
            "{answer:?}"
        );
    }
    assert_eq!(shard.prepared(), 1);
    let cancel = Command::Finish {
        client,
        number: 1,
        commit: false,
    };
    assert_eq!(ask(&mut shard, &cancel), Answer::Done);
    assert_eq!(shard.prepared(), 0);
}

#[test]
fn memory_is_bounded_and_what_fills_it_can_be_finished() {
    let limits = Limits {
        clients: 10,
        bytes: 4_500,
    };
    let mut shard = Shard::new(limits);
    for n in 0..100u8 {
        open(&mut shard);
        let number = u64::from(n);
        assert!(shard.known_clients() <= 10, "after {number}");
    }
    let clients: Vec<u64> = shard.clients.all.keys().copied().collect();
    let big = vec![0; MAX_VALUE];
    let mut full = None;
    for (n, client) in clients.iter().enumerate() {
        let work = write(&[n as u8], if n < 4 { &big } else { b"" });
        match ask(&mut shard, &prepare(*client, 1, work)) {
            Answer::Yes => {}
            Answer::No(Refusal::Full(oldest)) => full = Some(oldest),
            other => panic!("{other:?}"),
        }
    }
    let oldest = full.expect("four values and their overhead don't leave room for six more");
    assert_eq!((oldest.client, oldest.transaction.number), (clients[0], 1));
    let client = oldest.client;
    let cancel = Command::Finish {
        client,
        number: 1,
        commit: false,
    };
    ask(&mut shard, &cancel);
    let last = *clients.last().unwrap();
    assert_eq!(
        ask(&mut shard, &prepare(last, 2, write(b"z", b""))),
        Answer::Yes
    );
}

#[test]
fn clients_with_unfinished_transactions_arent_dropped_but_named() {
    let mut shard = Shard::new(Limits {
        clients: 2,
        ..Limits::default()
    });
    let (one, two) = (open(&mut shard), open(&mut shard));
    ask(&mut shard, &prepare(one, 1, write(b"1", b"")));
    ask(&mut shard, &prepare(two, 1, write(b"2", b"")));
    let commit = Command::Finish {
        client: one,
        number: 1,
        commit: true,
    };
    ask(&mut shard, &commit);
    let Answer::No(Refusal::Full(oldest)) = ask(&mut shard, &Command::Open) else {
        panic!("a vote was forgotten that others may need");
    };
    assert_eq!(oldest.client, one);
    let resolve = Command::Resolve {
        client: one,
        number: 1,
    };
    assert_eq!(ask(&mut shard, &resolve), Answer::Yes);
    let forget = Command::Forget {
        client: one,
        number: 1,
    };
    assert_eq!(ask(&mut shard, &forget), Answer::Done);
    let three = open(&mut shard);
    assert!(three > two, "numbers are never used again");
    assert_eq!(
        ask(&mut shard, &resolve),
        Answer::No(Refusal::UnknownClient)
    );
}

#[test]
fn a_full_store_refuses_more_values_but_replaces_them() {
    let mut shard = Shard::new(Limits {
        clients: 10,
        bytes: 2_500,
    });
    let client = open(&mut shard);
    let put = |number, key: &[u8]| Command::Commit {
        client,
        number,
        work: write(key, &[7; MAX_VALUE]),
    };
    assert_eq!(ask(&mut shard, &put(1, b"1")), Answer::Yes);
    assert_eq!(ask(&mut shard, &put(2, b"2")), Answer::Yes);
    assert_eq!(ask(&mut shard, &put(3, b"3")), Answer::No(Refusal::NoRoom));
    let replace = Command::Commit {
        client,
        number: 4,
        work: write(b"1", b"short"),
    };
    assert_eq!(ask(&mut shard, &replace), Answer::Yes);
    assert_eq!(ask(&mut shard, &put(5, b"3")), Answer::Yes);
}

#[test]
fn long_answers_are_cut_and_never_empty() {
    let mut shard = Shard::new(Limits::default());
    let client = open(&mut shard);
    let keys: Vec<Vec<u8>> = (0..MAX_KEYS as u8).map(|n| vec![n]).collect();
    for (n, key) in keys.iter().enumerate() {
        let command = Command::Commit {
            client,
            number: n as u64 + 1,
            work: write(key, &[1; MAX_VALUE / 2]),
        };
        assert_eq!(ask(&mut shard, &command), Answer::Yes);
    }
    let mut reply = Vec::new();
    shard.execute(&Command::Read { keys }.encode(), &mut reply);
    assert!(reply.len() < 1_100);
    let Ok(Answer::Values(found)) = Answer::parse(&reply) else {
        panic!("{reply:?}");
    };
    assert_eq!(found.len(), 2);
}

/// Whatever bytes come, a shard goes on, and its state can be saved and loaded.
#[test]
fn foreign_and_damaged_bytes_are_refused() {
    let mut random = Random(1);
    let mut shard = Shard::new(Limits::default());
    for n in 0..20 {
        let client = open(&mut shard);
        let work = write(&[n], &[n; 20]);
        ask(&mut shard, &prepare(client, 1, work));
    }
    let before = saved(&shard);
    let command = prepare(3, 9, write(b"key", b"value")).encode();
    for len in 0..command.len() {
        assert_eq!(shard.answer(&command[..len]), Answer::Malformed);
    }
    assert_eq!(
        shard.answer(&[&command[..], &[0]].concat()),
        Answer::Malformed
    );
    assert_eq!(saved(&shard), before, "a refused command changed something");
    for len in 0..before.len() {
        assert!(Shard::load(&mut &before[..len]).is_err(), "{len} bytes");
    }
    for _ in 0..20_000 {
        let mut damaged = before.clone();
        let at = random.below(damaged.len() as u64) as usize;
        damaged[at] ^= 1 << random.below(8);
        if let Ok(loaded) = Shard::load(&mut &damaged[..]) {
            assert_eq!(saved(&loaded), damaged);
        }
    }
}
