// SPDX-License-Identifier: Apache-2.0
use std::fs::{self, File};
use std::path::Path;

use super::segment::{BLOCK, SECTOR};
use super::*;
use crate::test_dir::TestDir;

/// A memory that keeps the records that it is given.
#[derive(Default, Debug, PartialEq, Clone)]
struct Records {
    heads: Vec<Vec<u8>>,
    records: Vec<(RecordKind, Vec<u8>)>,
    /// The instance below which everything is forgotten, in the only partition.
    trim: Instance,
}

const PARTITION: GroupPartition = (0, 0);

impl Replayed for Records {
    fn replay(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<Option<(GroupPartition, Instance)>, String> {
        if kind == RecordKind::Head {
            self.heads.push(bytes.to_vec());
            return Ok(None);
        }
        self.records.push((kind, bytes.to_vec()));
        // Frame `i` is about instance `i`.
        Ok(match kind {
            RecordKind::Packet => Some((PARTITION, bytes[0].into())),
            RecordKind::Slot => Some((PARTITION, bytes[4].into())),
            _ => None,
        })
    }
}

impl Remembered for Records {
    fn heads(&self, put: &mut dyn FnMut(&[u8])) {
        put(b"\0head");
    }

    fn trim(&self, _: GroupPartition) -> Instance {
        self.trim
    }

    fn save_slot(&self, _: GroupPartition, inst: Instance, out: &mut Vec<u8>) {
        out.extend_from_slice(&[inst as u8; 100]);
    }
}

const OWNER: Owner = Owner {
    cluster: 7,
    node: 11,
};
const SIZES: Sizes = Sizes {
    segment_bytes: 4 * BLOCK as u64,
    segments: 16,
};

fn read(directory: &Path, owner: Owner, sizes: Sizes) -> Result<(Read, Records), Error> {
    let files = Arc::new(Directory::create(directory).unwrap());
    let mut records = Records::default();
    Read::open(files, owner, sizes, &mut records).map(|read| (read, records))
}

fn open(directory: &Path) -> Result<(Wal, Records), Error> {
    let (read, records) = read(directory, OWNER, SIZES)?;
    Ok((read.go_on(&records)?, records))
}

fn refusal(directory: &Path) -> String {
    open(directory).map(|_| ()).unwrap_err().to_string()
}

fn store(wal: &mut Wal, memory: &Records) -> Result<(), Error> {
    wal.begin(memory)?;
    while !wal.synced(true)? {}
    Ok(())
}

/// Writes frame `i`: two records of 1 to 3 sectors together, in a block.
fn write_frame(wal: &mut Wal, memory: &Records, i: usize) {
    let slot = Some((PARTITION, i as Instance));
    wal.append(
        RecordKind::Packet,
        &vec![i as u8; 100 + i * 300 % 1000],
        slot,
    );
    wal.append(RecordKind::Enable, &[i as u8, 0xff], None);
    wal.tend(memory);
    store(wal, memory).unwrap();
}

fn frames(records: &Records) -> Vec<u8> {
    let packets = records.records.chunks(2);
    packets
        .map(|pair| {
            let [(RecordKind::Packet, packet), (RecordKind::Enable, order)] = pair else {
                panic!("half a frame was replayed");
            };
            assert_eq!(packet.len(), 100 + packet[0] as usize * 300 % 1000);
            assert_eq!(order, &[packet[0], 0xff]);
            packet[0]
        })
        .collect()
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.starts_with(prefix)).collect();
    names.sort();
    names
}

/// Stored frames are replayed over many starts. [A-DURABLE]
#[test]
fn what_was_stored_is_replayed_over_many_starts() {
    let dir = TestDir::new();
    for start in 0..5 {
        let (mut wal, records) = open(dir.path()).unwrap();
        assert_eq!(frames(&records), (0..start * 2).collect::<Vec<u8>>());
        for i in 0..2 {
            write_frame(&mut wal, &records, (start * 2 + i) as usize);
        }
        // This record is collected but never stored.
        wal.append(RecordKind::Packet, &[1, 2, 3], None);
    }
}

#[test]
fn a_frame_is_stored_while_the_next_one_is_collected() {
    let dir = TestDir::new();
    let (mut wal, records) = open(dir.path()).unwrap();
    wal.append(RecordKind::Packet, &[1; 100], None);
    wal.append(RecordKind::Packet, &[1; 100], None);
    wal.begin(&records).unwrap();
    wal.append(RecordKind::Packet, &[2; 100], None);
    assert!(wal.synced(true).unwrap());
    assert!(!wal.synced(true).unwrap(), "nothing is under way");
    drop(wal);
    let (_, records) = open(dir.path()).unwrap();
    let first: Vec<u8> = records.records.iter().map(|(_, bytes)| bytes[0]).collect();
    assert_eq!(first, [1, 1], "and not what was collected meanwhile");
}

#[test]
fn segments_are_let_go_and_used_again_once_they_are_trimmed() {
    let dir = TestDir::new();
    let (mut wal, mut records) = open(dir.path()).unwrap();
    for i in 0..100 {
        records.trim = (i as Instance).saturating_sub(5);
        write_frame(&mut wal, &records, i);
        assert!(wal.segments.len() <= 4, "{} segments", wal.segments.len());
    }
    assert_eq!(wal.shown().rewritten, 0);
    drop(wal);
    let files = names(dir.path(), "").len();
    assert!(files <= 12, "{files} files");
    let (wal, read) = open(dir.path()).unwrap();
    let frames = frames(&read);
    assert!(
        frames[0] <= 94 && frames.ends_with(&[97, 98, 99]),
        "{frames:?}"
    );
    assert!(wal.segments[0].number > 10);
}

/// Otherwise a partition that nobody uses would hold back the log.
#[test]
fn what_holds_segments_back_is_written_once_more() {
    let dir = TestDir::new();
    let (mut wal, records) = open(dir.path()).unwrap();
    write_frame(&mut wal, &records, 3);
    for _ in 0..200 {
        wal.append(RecordKind::Enable, &[0; 400], None);
        wal.tend(&records);
        store(&mut wal, &records).unwrap();
    }
    let shown = wal.shown();
    assert!(shown.segments <= SIZES.segments + 1, "{shown:?}");
    assert!(shown.rewritten >= 4, "{shown:?}");
    drop(wal);
    let (_, read) = open(dir.path()).unwrap();
    let slot = |(kind, bytes): &&(RecordKind, Vec<u8>)| {
        *kind == RecordKind::Slot && bytes[4..] == [3; 100]
    };
    assert!(read.records.iter().any(|r| slot(&r)));
}

/// Sets `progress` back to `synced` frames, as a power failure may leave it.
fn with_progress(directory: &Path, key: u64, synced: u64) {
    let bytes = with_checksum(key, synced.to_be_bytes());
    fs::write(directory.join(PROGRESS), bytes).unwrap();
}

/// Any of the last frame's sectors may be missing, but only whole ones, since a disk writes them in
/// any order.
#[test]
fn an_unfinished_frame_costs_only_itself() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, memory) = open(dir.path()).unwrap();
    for i in 0..2 {
        write_frame(&mut wal, &memory, i);
    }
    let from = wal.current().written as usize / SECTOR;
    write_frame(&mut wal, &memory, 2);
    let to = from + 2;
    let key = wal.key;
    drop(wal);
    let name = segment_name(0);
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    for lost in 1..1 << (to - from) {
        copy(dir.path(), scratch.path());
        let mut torn = bytes.clone();
        for sector in (from..to).filter(|sector| lost >> (sector - from) & 1 == 1) {
            torn[sector * SECTOR..][..SECTOR].fill(0);
        }
        fs::write(scratch.path().join(&name), &torn).unwrap();
        let found = refusal(scratch.path());
        assert!(found.contains("4 frames were synced"), "{found}");
        // The frame wasn't synced, if the power failed meanwhile.
        with_progress(scratch.path(), key, 3);
        let (mut wal, records) = open(scratch.path()).unwrap();
        assert_eq!(frames(&records), [0, 1]);
        write_frame(&mut wal, &memory, 2);
        drop(wal);
        let (_, records) = open(scratch.path()).unwrap();
        assert_eq!(frames(&records), [0, 1, 2], "it goes on from there");
    }
}

/// Whatever happens to a file, either no stored frame is missing, or the log is refused.
#[test]
fn damage_of_any_file_is_refused_or_costs_nothing() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, mut memory) = open(dir.path()).unwrap();
    let old = TestDir::new();
    for i in 0..20 {
        if i == 19 {
            copy(dir.path(), old.path());
        }
        memory.trim = (i as Instance).saturating_sub(8);
        write_frame(&mut wal, &memory, i);
    }
    drop(wal);
    let (_, whole) = {
        copy(dir.path(), scratch.path());
        open(scratch.path()).unwrap()
    };
    assert!(names(dir.path(), "segment-").len() >= 3);
    let needed = frames(&whole);
    assert!(needed.ends_with(&[12, 13, 14, 15, 16, 17, 18, 19]));
    let mut refused = 0;
    let mut check = |what: &str| match open(scratch.path()) {
        // Frames of freed segments may be there or not.
        Ok((mut wal, records)) => {
            let known = frames(&records);
            assert!(known.ends_with(&needed[needed.len() - 8..]), "{what}");
            write_frame(&mut wal, &records, 20);
            drop(wal);
            let again = open(scratch.path()).map(|(_, records)| frames(&records));
            let again = again.unwrap_or_else(|e| panic!("{what}, gone on: {e}"));
            assert!(again.ends_with(&[18, 19, 20]), "{what}, gone on: {again:?}");
        }
        Err(why) => {
            let why = why.to_string();
            assert!(why.contains("forget-log"), "{what}: {why}");
            refused += 1;
        }
    };
    for name in names(dir.path(), "") {
        let good = fs::read(dir.path().join(&name)).unwrap();
        let path = scratch.path().join(&name);
        let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
        for at in 0..good.len() {
            // In a segment this tries the heads of sectors that aren't empty, and some other bytes.
            let is_head = at % SECTOR < 24 && at % 3 == 0 && good[at / SECTOR * SECTOR] != 0;
            if good.len() < 1024 || at % 1499 == 0 || is_head {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                damaged.push((format!("bit flipped at {at}"), bad));
            }
        }
        let length = good.len();
        for length in [0, 1, length / 2, length.saturating_sub(512), length - 1] {
            damaged.push((format!("cut to {length}"), good[..length].to_vec()));
            let mut zeroed = good.clone();
            zeroed[length..].fill(0);
            damaged.push((format!("zeros from {length} on"), zeroed));
            let mut zeroed = good.clone();
            zeroed[..length].fill(0);
            damaged.push((format!("zeros up to {length}"), zeroed));
        }
        if let Ok(older) = fs::read(old.path().join(&name)) {
            damaged.push(("an old copy".to_owned(), older));
        }
        for (what, bytes) in damaged {
            copy(dir.path(), scratch.path());
            fs::write(&path, bytes).unwrap();
            check(&format!("{name:?}: {what}"));
        }
        copy(dir.path(), scratch.path());
        fs::remove_file(&path).unwrap();
        check(&format!("{name:?} is missing"));
    }
    assert!(refused > 100, "{refused}");
}

/// Damage is found while the log is in use, and the slots are stored again. [A-DURABLE]
#[test]
fn damage_is_found_while_the_log_is_in_use_and_stored_once_more() {
    let dir = TestDir::new();
    let (mut wal, memory) = open(dir.path()).unwrap();
    for i in 0..10 {
        write_frame(&mut wal, &memory, i);
    }
    assert!(wal.segments.len() > 2);
    let name = segment_name(1);
    let path = dir.path().join(&name);
    let mut bytes = fs::read(&path).unwrap();
    bytes[BLOCK + 60] ^= 1;
    fs::write(&path, &bytes).unwrap();
    while wal.shown().damaged == 0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        wal.tend(&memory);
    }
    assert_eq!(wal.shown().unrepaired, 0, "one frame was enough");
    store(&mut wal, &memory).unwrap();
    assert!(wal.shown().rewritten > 0);
    drop(wal);
    assert!(dir.path().join(format!("damaged-{name}")).exists());
    let (_, read) = open(dir.path()).unwrap();
    let slots = read
        .records
        .iter()
        .filter(|(kind, _)| *kind == RecordKind::Slot);
    let slots: Vec<u8> = slots.map(|(_, bytes)| bytes[4]).collect();
    assert!([0, 1].iter().all(|inst| slots.contains(inst)), "{slots:?}");
}

#[test]
fn a_foreign_or_older_log_is_refused_by_name() {
    let dir = TestDir::new();
    drop(open(dir.path()).unwrap());
    let other_cluster = Owner {
        cluster: 8,
        ..OWNER
    };
    let other_node = Owner { node: 12, ..OWNER };
    for (owner, named) in [(other_cluster, "cluster 00000007"), (other_node, "node 11")] {
        let read = read(dir.path(), owner, SIZES);
        let error = read.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("it belongs to") && error.contains(named),
            "{error}"
        );
    }
    let path = dir.path().join(KEY);
    let mut key = fs::read(&path).unwrap();
    key[5] = 2;
    let body = key.len() - 4;
    fs::write(&path, with_checksum(0, &key[..body])).unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("it has format 2"), "{error}");
}

#[test]
fn what_is_kept_aside_is_the_log_as_it_was() {
    let (dir, other) = (TestDir::new(), TestDir::new());
    let (mut wal, mut memory) = open(dir.path()).unwrap();
    write_frame(&mut wal, &memory, 0);
    let aside = other.path();
    wal.keep_as(|name, changes| {
        let (from, to) = (dir.path().join(name), aside.join(name));
        match changes {
            true => fs::copy(from, to).map(|_| ()),
            false => fs::hard_link(from, to),
        }
    })
    .unwrap();
    for i in 1..60 {
        memory.trim = i as Instance;
        write_frame(&mut wal, &memory, i);
    }
    drop(wal);
    let (_, records) = open(aside).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(frames(&records), [0]);
}

#[test]
fn a_damaged_frame_before_a_later_segment_is_refused() {
    let dir = TestDir::new();
    for i in 0..2 {
        let (mut wal, memory) = open(dir.path()).unwrap();
        write_frame(&mut wal, &memory, i);
    }
    let path = dir.path().join(segment_name(0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[BLOCK + 60] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(refusal(dir.path()).contains("are damaged"));
    bytes[BLOCK..2 * BLOCK].fill(0);
    fs::write(&path, &bytes).unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("frame 1 is missing"), "{error}");
}

#[test]
fn a_missing_segment_or_key_is_refused() {
    let dir = TestDir::new();
    for i in 0..2 {
        let (mut wal, memory) = open(dir.path()).unwrap();
        write_frame(&mut wal, &memory, i);
    }
    let scratch = TestDir::new();
    for lost in [
        segment_name(0),
        segment_name(1),
        KEY.to_owned(),
        PROGRESS.to_owned(),
    ] {
        copy(dir.path(), scratch.path());
        fs::remove_file(scratch.path().join(&lost)).unwrap();
        let error = refusal(scratch.path());
        // Either nothing is left, or only an empty segment that was made ahead of time.
        let is_named = error.contains("missing") || error.contains("were synced");
        assert!(is_named, "{lost}: {error}");
    }
}

/// A value that looks like sectors of the next frame isn't taken for one, since it lacks the log's
/// key.
#[test]
fn a_value_can_not_pass_for_a_frame() {
    let dir = TestDir::new();
    let (wal, _) = open(dir.path()).unwrap();
    let mut forged = Vec::new();
    let mut records = vec![0; segment::PREFIX];
    records.extend_from_slice(&[0, 1, 1, 9]);
    let id = segment::SegmentId {
        key: wal.key + 1,
        segment: 0,
    };
    segment::seal(id, 1, &mut records, &mut forged);
    wal.file
        .write_all_at(&forged, wal.current().written)
        .unwrap();
    drop(wal);
    assert!(refusal(dir.path()).contains("are damaged"));
}

#[test]
fn a_full_disk_is_an_error_that_says_what_to_do() {
    let dir = TestDir::new();
    let (mut wal, memory) = open(dir.path()).unwrap();
    for records in [1, 2] {
        wal.file = Arc::new(File::options().write(true).open("/dev/full").unwrap());
        for _ in 0..records {
            wal.append(RecordKind::Packet, b"x", None);
        }
        let error = store(&mut wal, &memory).unwrap_err().to_string();
        assert!(
            error.contains("No space left") && error.contains("Free space"),
            "{error}"
        );
    }
}
