// SPDX-License-Identifier: Apache-2.0
//! Programs in memory.

use super::*;

fn in_memory(disk: &MemoryDisk) -> Worker<InMemory<Tally, MemoryDisk>> {
    let app = InMemory::open(disk.clone(), Tally::default()).unwrap();
    let mut worker = Worker::open(settings(REPLICAS[0]), app, 1, 0).unwrap();
    worker.configure(0, &[active(1)]);
    worker
}

fn feed<A: Application>(worker: &mut Worker<A>, out: &mut Out, id: (u64, u64), value: &[u8]) {
    let header = Header {
        inst: worker.next(),
        client: id.0,
        request: id.1,
        ..deliver_header()
    };
    let datagram = header.datagram(value);
    let verdict = worker.step(0, &Packet::parse(&datagram).unwrap(), out);
    assert_eq!(verdict, Verdict::Changed);
    worker.finish_batch(0, out).unwrap();
}

#[test]
fn a_program_in_memory_restarts_from_its_checkpoint_and_the_log() {
    let disk = MemoryDisk::default();
    let mut out = Out::default();
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    let s = 1 << 16;
    let mut worker = in_memory(&disk);
    feed(&mut worker, &mut out, (1, 0), &op);
    feed(&mut worker, &mut out, (s, 1), &command(1));
    worker.checkpoint(0).unwrap();
    feed(&mut worker, &mut out, (s, 2), &command(2));
    let digest = worker.digest().unwrap();
    drop(worker);

    let mut worker = in_memory(&disk);
    assert_eq!((worker.next(), worker.checkpointed()), (2, 2));
    feed(&mut worker, &mut out, (s, 2), &command(2));
    assert_eq!(worker.digest().unwrap(), digest);
    feed(&mut worker, &mut out, (s, 2), &command(2));
    let tally = worker.application().state();
    assert_eq!((tally.by_command[&1], tally.by_command[&2]), (1, 1));

    // The program moves to another replica with its sessions.
    let (position, mut snapshot) = worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    let other_disk = MemoryDisk::default();
    let mut other = in_memory(&other_disk);
    other.restore(0, position, &mut &bytes[..]).unwrap();
    assert_eq!(other.digest().unwrap().1, digest.1);
    drop(other);
    let mut other = in_memory(&other_disk);
    assert_eq!(other.next(), position, "and is durable there");
    feed(&mut other, &mut out, (s, 1), &command(1));
    assert_eq!(other.application().state().by_command[&1], 1);
}

#[test]
fn a_damaged_checkpoint_is_never_loaded() {
    let disk = MemoryDisk::default();
    let mut worker = in_memory(&disk);
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    feed(&mut worker, &mut Out::default(), (1, 0), &op);
    worker.checkpoint(0).unwrap();
    let good = disk.0.lock().unwrap().0.clone().unwrap();
    let load = |bytes: &[u8]| {
        let disk = MemoryDisk(Arc::new(Mutex::new((Some(bytes.to_vec()), false))));
        InMemory::open(disk, Tally::default()).map(|_| ())
    };
    load(&good).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(load(&bad).is_err(), "byte {at} is wrong");
        assert!(load(&good[..at]).is_err(), "cut at {at}");
        let (before, _) = worker.digest().unwrap();
        let restored = worker.restore(0, 100, &mut &bad[..]).unwrap();
        assert!(matches!(restored, Restored::Failed(_)));
        assert_eq!(worker.digest().unwrap().0, before);
    }
}

#[test]
fn a_program_in_memory_goes_on_while_its_checkpoint_is_written() {
    let disk = MemoryDisk::default();
    let mut app = InMemory::open(disk.clone(), Tally::default()).unwrap();
    let mut reply = Vec::new();
    app.execute(&command(1), &mut reply).unwrap();
    let write = app.checkpoint().unwrap();
    app.execute(&command(2), &mut reply).unwrap();
    write().unwrap();
    let stored = InMemory::open(disk.clone(), Tally::default()).unwrap();
    assert_eq!(stored.state().total, 1, "what it had when that began");
    app.checkpoint().unwrap()().unwrap();
    let stored = InMemory::open(disk.clone(), Tally::default()).unwrap();
    assert_eq!(stored.state().total, 2);
    disk.0.lock().unwrap().1 = true;
    app.checkpoint().unwrap()().unwrap();
}

#[test]
fn a_full_disk_stops_a_program_in_memory_before_trim() {
    let disk = MemoryDisk::default();
    let mut worker = in_memory(&disk);
    let mut out = Out::default();
    worker.set_incarnation(7).unwrap();
    let op = open(true, 8, ReplyAddress::default()).to_bytes();
    feed(&mut worker, &mut out, (1, 0), &op);
    disk.0.lock().unwrap().1 = true;
    assert!(worker.checkpoint(0).is_err());
    assert!(worker.tick(100 * SECOND, &mut out).is_err());
    let said = out.of_type(MsgType::Trim);
    assert!(said.iter().all(|(_, h, _)| h.inst == 0));
}

#[test]
fn a_checkpoint_file_is_replaced_whole() {
    let dir = std::env::temp_dir().join(format!("checkpoint-file-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut file = replica::storage::CheckpointFile::new(dir.join("p0"));
    assert_eq!(file.load().unwrap(), None);
    file.replace(b"one").unwrap();
    // The file that a crash before the rename leaves behind disturbs nothing.
    std::fs::write(dir.join("p0.new"), b"tw").unwrap();
    assert_eq!(file.load().unwrap().as_deref(), Some(&b"one"[..]));
    file.replace(b"two").unwrap();
    assert_eq!(file.load().unwrap().as_deref(), Some(&b"two"[..]));
    std::fs::remove_dir_all(&dir).unwrap();
    let error = file.replace(b"three").unwrap_err().to_string();
    assert!(error.contains("p0"), "the message names the file: {error}");
}
