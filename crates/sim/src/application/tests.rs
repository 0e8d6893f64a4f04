// SPDX-License-Identifier: Apache-2.0
use super::*;

fn incr(app: &mut Kv, id: u64) -> u64 {
    let command = Command {
        id,
        key: 3,
        op: Op::Incr,
    };
    let mut reply = Vec::new();
    app.execute(&command.emit(5), &mut reply).unwrap();
    u64::from_be_bytes(reply.try_into().unwrap())
}

#[test]
fn commands_survive_the_wire() {
    for op in [
        Op::Get,
        Op::Set(1),
        Op::Incr,
        Op::Append(2),
        Op::CompareAndSet(3, 4),
    ] {
        let command = Command { id: 9, key: 8, op };
        assert_eq!(Command::parse(&command.emit(7)), Some(command));
    }
    assert_eq!(Command::parse(b""), None);
    assert_eq!(Command::parse(&[9; 40]), None);
}

#[test]
fn a_kill_loses_what_was_not_committed_and_power_what_was_not_checkpointed() {
    let store = SharedStore::default();
    let mut app = store.open();
    incr(&mut app, 1);
    app.commit(&[]).unwrap();
    app.checkpoint().unwrap()().unwrap();
    incr(&mut app, 2);
    app.commit(&[]).unwrap();
    assert_eq!(incr(&mut app, 3), 3);
    let mut app = store.open();
    assert_eq!(incr(&mut app, 3), 3, "the third was never committed");
    store.lose_power();
    let mut app = store.open();
    assert_eq!(incr(&mut app, 3), 2, "nor the second checkpointed");
}

#[test]
fn a_planned_kill_makes_everything_after_it_void() {
    let store = SharedStore::default();
    let mut app = store.open();
    store.kill_in(1);
    incr(&mut app, 1);
    assert!(app.commit(&[]).is_err() && store.killed());
    assert_eq!(incr(&mut store.open(), 1), 1);
}

#[test]
fn a_snapshot_carries_contents_and_records() {
    let (one, two) = (SharedStore::default(), SharedStore::default());
    let mut app = one.open();
    incr(&mut app, 1);
    let record = Record {
        key: b"next".to_vec(),
        value: Some(b"1".to_vec()),
    };
    app.commit(&[record]).unwrap();
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    let mut other = two.open();
    assert!(other.restore(&mut &bytes[..bytes.len() - 1]).is_err());
    other.restore(&mut bytes.as_slice()).unwrap();
    assert_eq!(one.contents(), two.contents());
    assert_eq!((two.durable_position(), two.committed_position()), (1, 1));
    let mut seen = Vec::new();
    other
        .records(&mut |k, v| seen.push((k.to_vec(), v.to_vec())))
        .unwrap();
    assert_eq!(seen, [(b"next".to_vec(), b"1".to_vec())]);
}
