// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::test_dir::TestDir;

/// Keeps what it is given.
#[derive(Default, Debug, PartialEq, Clone)]
struct Records {
    image: Option<Vec<u8>>,
    records: Vec<(Kind, Vec<u8>)>,
}

impl Memory for Records {
    fn restore(&mut self, image: &[u8]) -> Result<(), String> {
        assert!(self.image.is_none() && self.records.is_empty());
        self.image = Some(image.to_vec());
        Ok(())
    }

    fn replay(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), String> {
        self.records.push((kind, bytes.to_vec()));
        Ok(())
    }
}

fn open(directory: &Path) -> Result<(Wal, Records), Error> {
    let mut records = Records::default();
    Wal::open_sized(directory, OWNER, SEGMENT, 2, &mut records).map(|wal| (wal, records))
}

const OWNER: Owner = Owner {
    cluster: 7,
    node: 11,
};
const SEGMENT: u64 = 4096;

fn refusal(directory: &Path) -> String {
    open(directory).map(|_| ()).unwrap_err().to_string()
}

/// Frame `i`: two records, of 1 to 3 blocks together.
fn write_frame(wal: &mut Wal, i: usize) -> bool {
    wal.append(Kind::Packet, &vec![i as u8; 100 + i * 300 % 1000]);
    wal.append(Kind::Enable, &[i as u8, 0xff]);
    wal.commit().unwrap()
}

fn frames(records: &Records) -> Vec<u8> {
    let packets = records.records.chunks(2);
    packets
        .map(|pair| {
            let [(Kind::Packet, packet), (Kind::Enable, order)] = pair else {
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

/// [A-DURABLE]
#[test]
fn what_was_committed_is_replayed_over_many_starts() {
    let dir = TestDir::new();
    for start in 0..5 {
        let (mut wal, records) = open(dir.path()).unwrap();
        assert_eq!(frames(&records), (0..start * 2).collect::<Vec<u8>>());
        for i in 0..2 {
            write_frame(&mut wal, (start * 2 + i) as usize);
        }
        // Collected, never committed.
        wal.append(Kind::Packet, &[1, 2, 3]);
    }
}

#[test]
fn nothing_collected_writes_nothing() {
    let dir = TestDir::new();
    let (mut wal, _) = open(dir.path()).unwrap();
    assert!(!wal.commit().unwrap());
    assert_eq!((wal.offset, wal.next_frame), (0, 0));
}

#[test]
fn a_snapshot_replaces_what_precedes_it() {
    let dir = TestDir::new();
    let (mut wal, _) = open(dir.path()).unwrap();
    let mut snapshots = 0;
    for i in 0..40 {
        if write_frame(&mut wal, i) {
            snapshots += 1;
            wal.snapshot(vec![i as u8; 10]).unwrap();
        }
    }
    assert!(snapshots > 2);
    wal.finish_snapshot().unwrap();
    drop(wal);
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert!(files <= 6, "{files} files are left");
    let (_, records) = open(dir.path()).unwrap();
    let covered = records.image.as_ref().unwrap()[0];
    assert_eq!(frames(&records), (covered + 1..40).collect::<Vec<_>>());
}

/// A directory as a power failure leaves it, which takes what `progress` says back to `synced` frames.
fn with_progress(directory: &Path, key: u64, synced: u64) {
    let bytes = with_checksum(key, synced.to_be_bytes());
    fs::write(directory.join(PROGRESS), bytes).unwrap();
}

/// Any of the last frame's sectors may be missing, and only whole ones: a disk writes them in any order.
#[test]
fn an_unfinished_frame_costs_only_itself() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, _) = open(dir.path()).unwrap();
    for i in 0..2 {
        write_frame(&mut wal, i);
    }
    let from = wal.offset as usize / segment::SECTOR;
    write_frame(&mut wal, 2);
    let to = wal.offset as usize / segment::SECTOR;
    assert!(to - from >= 2, "frame 2 has some sectors");
    let key = wal.key;
    drop(wal);
    let name = segment_name(0);
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    for lost in 1..1 << (to - from) {
        copy(dir.path(), scratch.path());
        let mut torn = bytes.clone();
        for sector in (from..to).filter(|sector| lost >> (sector - from) & 1 == 1) {
            torn[sector * segment::SECTOR..][..segment::SECTOR].fill(0);
        }
        fs::write(scratch.path().join(&name), &torn).unwrap();
        let found = refusal(scratch.path());
        assert!(found.contains("3 frames were synced"), "{found}");
        // It wasn't, if the power failed meanwhile.
        with_progress(scratch.path(), key, 2);
        let (mut wal, records) = open(scratch.path()).unwrap();
        assert_eq!(frames(&records), [0, 1]);
        write_frame(&mut wal, 2);
        drop(wal);
        let (_, records) = open(scratch.path()).unwrap();
        assert_eq!(frames(&records), [0, 1, 2], "it goes on from there");
    }
}

/// Whatever becomes of a file, nothing that was committed is missing from what is read, or the log is refused.
#[test]
fn damage_of_any_file_is_refused_or_costs_nothing() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, _) = open(dir.path()).unwrap();
    let old = TestDir::new();
    for i in 0..20 {
        if i == 19 {
            copy(dir.path(), old.path());
        }
        if write_frame(&mut wal, i) {
            wal.snapshot(vec![i as u8; 10]).unwrap();
            wal.finish_snapshot().unwrap();
        }
    }
    drop(wal);
    let (_, whole) = {
        copy(dir.path(), scratch.path());
        open(scratch.path()).unwrap()
    };
    let names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(names.len() >= 4, "{names:?}");
    let mut refused = 0;
    let mut check = |what: &str| match open(scratch.path()) {
        Ok((_, records)) => assert_eq!(records, whole, "{what}"),
        Err(why) => {
            let why = why.to_string();
            assert!(
                why.contains("move the whole") && why.contains("log"),
                "{what}: {why}"
            );
            refused += 1;
        }
    };
    for name in &names {
        let good = fs::read(dir.path().join(name)).unwrap();
        let path = scratch.path().join(name);
        let mut damaged: Vec<(String, Vec<u8>)> = Vec::new();
        for at in 0..good.len() {
            // Of a segment the head of each sector, and some of the rest.
            if good.len() < 1024 || at % 37 == 0 || at % 512 < 20 {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                damaged.push((format!("bit flipped at {at}"), bad));
            }
        }
        for length in [
            0,
            1,
            good.len() / 2,
            good.len().saturating_sub(512),
            good.len() - 1,
        ] {
            damaged.push((format!("cut to {length}"), good[..length].to_vec()));
            let mut zeroed = good.clone();
            zeroed[length..].fill(0);
            damaged.push((format!("zeros from {length} on"), zeroed));
            let mut zeroed = good.clone();
            zeroed[..length].fill(0);
            damaged.push((format!("zeros up to {length}"), zeroed));
        }
        if let Ok(older) = fs::read(old.path().join(name)) {
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

#[test]
fn a_foreign_log_is_refused_by_name() {
    let dir = TestDir::new();
    open(dir.path()).unwrap();
    for (owner, named) in [
        (
            Owner {
                cluster: 8,
                ..OWNER
            },
            "cluster 00000007",
        ),
        (Owner { node: 12, ..OWNER }, "node 11"),
    ] {
        let opened = Wal::open(dir.path(), owner, &mut Records::default());
        let error = opened.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("it belongs to") && error.contains(named),
            "{error}"
        );
    }
}

#[test]
fn what_is_kept_aside_is_the_log_as_it_was() {
    let (dir, other) = (TestDir::new(), TestDir::new());
    let (mut wal, _) = open(dir.path()).unwrap();
    write_frame(&mut wal, 0);
    drop(wal);
    let (mut wal, _) = open(dir.path()).unwrap();
    let aside = other.path().join("log.forgotten");
    wal.keep_as(&aside).unwrap();
    wal.keep_as(&aside).unwrap();
    write_frame(&mut wal, 1);
    drop(wal);
    let (_, records) = open(&aside).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(frames(&records), [0]);
}

#[test]
fn a_damaged_frame_before_a_later_segment_is_refused() {
    let dir = TestDir::new();
    for i in 0..2 {
        let (mut wal, _) = open(dir.path()).unwrap();
        write_frame(&mut wal, i);
    }
    let path = dir.path().join(segment_name(0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[60] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(refusal(dir.path()).contains("are damaged"));
    bytes[..segment::SECTOR].fill(0);
    fs::write(&path, &bytes).unwrap();
    let error = refusal(dir.path());
    assert!(error.contains("frame 0 is missing"), "{error}");
}

#[test]
fn a_missing_segment_snapshot_or_key_is_refused() {
    let dir = TestDir::new();
    for i in 0..2 {
        let (mut wal, _) = open(dir.path()).unwrap();
        write_frame(&mut wal, i);
    }
    let scratch = TestDir::new();
    for lost in [segment_name(0), KEY.to_owned(), PROGRESS.to_owned()] {
        copy(dir.path(), scratch.path());
        fs::remove_file(scratch.path().join(&lost)).unwrap();
        let error = open(scratch.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("is missing"), "{lost}: {error}");
    }
    let (mut wal, _) = open(dir.path()).unwrap();
    wal.snapshot(vec![7]).unwrap();
    wal.finish_snapshot().unwrap();
    let snapshot = dir.path().join(snapshot_name(wal.last_snapshot));
    drop(wal);
    fs::remove_file(snapshot).unwrap();
    let error = open(dir.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is missing"), "{error}");
}

/// A value that looks like sectors of the next frame doesn't become one: it lacks the log's key.
#[test]
fn a_value_can_not_pass_for_a_frame() {
    let dir = TestDir::new();
    let (wal, _) = open(dir.path()).unwrap();
    let mut forged = Vec::new();
    let mut records = vec![0; segment::PREFIX];
    records.extend_from_slice(&[0, 1, 1, 9]);
    segment::seal(wal.key + 1, 0, &mut records, &mut forged);
    wal.file.write_all_at(&forged, 0).unwrap();
    drop(wal);
    assert!(refusal(dir.path()).contains("are damaged"));
}

#[test]
fn a_full_disk_is_an_error_that_says_what_to_do() {
    let dir = TestDir::new();
    let (mut wal, _) = open(dir.path()).unwrap();
    wal.file = File::options().write(true).open("/dev/full").unwrap();
    wal.append(Kind::Packet, b"x");
    let error = wal.commit().unwrap_err().to_string();
    assert!(
        error.contains("No space left") && error.contains("Free space"),
        "{error}"
    );
}
