// SPDX-License-Identifier: Apache-2.0
//! A shard of the example with transactions: any bytes as a command, an answer or a state, and
//! sequences of commands of clients that follow no rules.

use super::input::Input;
use transactions::shard::{Limits, Shard};
use transactions::wire::{Answer, Command, Participant, Refusal, Transaction, Work};
use wirepaxos::StateMachine;

/// Commands in one run.
const MAX_COMMANDS: usize = 200;
const LIMITS: Limits = Limits {
    clients: 4,
    bytes: 2_000,
};

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    bytes(data);
    commands(&mut Input(data));
}

/// Checks that whatever was read is exactly what would be written.
fn bytes(data: &[u8]) {
    if let Ok(command) = Command::parse(data) {
        assert_eq!(command.encode(), data);
    }
    if let Ok(answer) = Answer::parse(data) {
        assert_eq!(written(&answer), data);
    }
    if let Ok(shard) = Shard::load(&mut &data[..]) {
        assert_eq!(saved(&shard), data);
    }
}

fn written(answer: &Answer) -> Vec<u8> {
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    bytes
}

fn saved(shard: &Shard) -> Vec<u8> {
    let mut bytes = Vec::new();
    shard.save(&mut bytes).expect("memory");
    bytes
}

fn commands(input: &mut Input<'_>) {
    let mut shard = Shard::new(LIMITS);
    for _ in 0..MAX_COMMANDS {
        let Some(kind) = input.byte() else { break };
        let command = match kind {
            0..8 => {
                foreign(&mut shard, input);
                continue;
            }
            kind => command(kind, input).encode(),
        };
        let answer = shard.answer(&command);
        assert_eq!(Answer::parse(&written(&answer)), Ok(answer.clone()));
        assert!(answer != Answer::Malformed, "{command:?}");
        assert!(shard.known_clients() as u64 <= LIMITS.clients);
        if let Answer::No(Refusal::Full(oldest) | Refusal::Locked(oldest)) = answer {
            finish(&mut shard, oldest.client, oldest.transaction.number);
        }
    }
    restart(&mut shard);
}

/// Whoever is in the way can be finished.
fn finish(shard: &mut Shard, client: u64, number: u64) {
    let commit = shard.answer(&Command::Resolve { client, number }.encode()) == Answer::Yes;
    let finish = Command::Finish {
        client,
        number,
        commit,
    };
    let forget = Command::Forget { client, number };
    for command in [finish, forget] {
        assert_eq!(shard.answer(&command.encode()), Answer::Done);
    }
    let again = shard.answer(&Command::Resolve { client, number }.encode());
    assert_eq!(again == Answer::Yes, commit);
}

/// Bytes that are no command change nothing; a damaged state is refused, or is one that goes on.
fn foreign(shard: &mut Shard, input: &mut Input<'_>) {
    let before = saved(shard);
    let bytes = input.bytes(60);
    if Command::parse(bytes).is_err() {
        assert_eq!(shard.answer(bytes), Answer::Malformed);
        assert_eq!(saved(shard), before);
    }
    let mut damaged = before;
    input.damage(&mut damaged);
    if let Ok(mut loaded) = Shard::load(&mut &damaged[..]) {
        assert_eq!(saved(&loaded), damaged);
        for _ in 0..4 {
            let kind = input.small();
            loaded.answer(&command(kind, input).encode());
        }
    }
    restart(shard);
}

fn restart(shard: &mut Shard) {
    let bytes = saved(shard);
    *shard = Shard::load(&mut &bytes[..]).expect("what was saved");
    assert_eq!(saved(shard), bytes);
}

fn command(kind: u8, input: &mut Input<'_>) -> Command {
    let client = u64::from(input.small() % 8);
    let number = u64::from(input.small() % 8);
    match kind % 8 {
        0 => Command::Open,
        1 => Command::Read {
            keys: vec![key(input), key(input)],
        },
        2 => Command::Commit {
            client,
            number,
            work: work(input),
        },
        3 | 4 => Command::Prepare {
            client,
            transaction: Transaction {
                number,
                participants: participants(input),
            },
            work: work(input),
        },
        5 => Command::Finish {
            client,
            number,
            commit: input.small() % 2 == 0,
        },
        6 => Command::Resolve { client, number },
        _ => Command::Forget { client, number },
    }
}

/// One or two shards, which needn't exist.
fn participants(input: &mut Input<'_>) -> Vec<Participant> {
    let first = u16::from(input.small());
    let second = first + 1;
    let shards = [first, second].into_iter();
    let count = 1 + usize::from(input.small() % 2);
    let of = |shard| Participant {
        shard,
        client: u64::from(shard),
    };
    shards.take(count).map(of).collect()
}

fn work(input: &mut Input<'_>) -> Work {
    let mut reads = vec![(key(input), u64::from(input.small() % 4))];
    reads.truncate(usize::from(input.small() % 2));
    let mut writes = vec![(key(input), input.bytes(30).to_vec())];
    writes.truncate(usize::from(input.small() % 4));
    Work { reads, writes }
}

fn key(input: &mut Input<'_>) -> Vec<u8> {
    vec![b'a' + input.small() % 4]
}
