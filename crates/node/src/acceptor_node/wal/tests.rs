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
    Wal::open_sized(directory, 4096, 2, &mut records).map(|wal| (wal, records))
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

#[test]
fn a_torn_tail_at_any_byte_costs_only_the_unfinished_frame() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, _) = open(dir.path()).unwrap();
    let mut ends = Vec::new();
    for i in 0..3 {
        write_frame(&mut wal, i);
        ends.push(wal.offset);
    }
    let key = wal.key;
    drop(wal);
    let name = segment_name(0);
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    assert_eq!(bytes.len(), 4096);
    // Padding behind a frame may be lost: it holds nothing.
    let mut at = 0;
    let needed: Vec<u64> = ends
        .iter()
        .enumerate()
        .map(|(i, end)| {
            let needed = at + (FRAME_HEAD + 3 + 100 + i * 300 % 1000 + 3 + 2) as u64;
            at = *end;
            needed
        })
        .collect();
    for cut in 0..=bytes.len() {
        for filler in [None, Some(0), Some(0xa5)] {
            let mut torn = bytes[..cut].to_vec();
            if let Some(filler) = filler {
                torn.resize(bytes.len(), filler);
            }
            let (mut records, mut next) = (Records::default(), 0);
            replay_segment(&torn, key, &mut next, &mut records).unwrap();
            let found = frames(&records);
            assert_eq!(found, (0..found.len() as u8).collect::<Vec<_>>());
            // Where a filler is what was there anyway, a frame cut short is whole.
            let is_whole = |n: &&u64| torn.get(..**n as usize) == Some(&bytes[..**n as usize]);
            assert_eq!(
                found.len(),
                needed.iter().filter(is_whole).count(),
                "cut at {cut}"
            );
            // And it goes on from there, over the next start too.
            if cut % 509 == 0 {
                copy(dir.path(), scratch.path());
                fs::write(scratch.path().join(&name), &torn).unwrap();
                let (mut wal, _) = open(scratch.path()).unwrap();
                write_frame(&mut wal, found.len());
                drop(wal);
                let (_, records) = open(scratch.path()).unwrap();
                assert_eq!(frames(&records).len(), found.len() + 1, "cut at {cut}");
            }
        }
    }
}

#[test]
fn damage_before_a_later_frame_is_refused() {
    let (dir, scratch) = (TestDir::new(), TestDir::new());
    let (mut wal, _) = open(dir.path()).unwrap();
    write_frame(&mut wal, 0);
    let first = FRAME_HEAD + 3 + 100 + 3 + 2;
    write_frame(&mut wal, 1);
    drop(wal);
    let name = segment_name(0);
    let bytes = fs::read(dir.path().join(&name)).unwrap();
    for at in (0..first).filter(|at| !(12..16).contains(at)) {
        copy(dir.path(), scratch.path());
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        fs::write(scratch.path().join(&name), &damaged).unwrap();
        let error = open(scratch.path()).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("frame 0 is damaged") && error.contains("remove it"),
            "{error}"
        );
    }
}

#[test]
fn a_damaged_frame_before_a_later_segment_is_refused() {
    let dir = TestDir::new();
    let (mut wal, _) = open(dir.path()).unwrap();
    write_frame(&mut wal, 0);
    drop(wal);
    let (mut wal, _) = open(dir.path()).unwrap();
    write_frame(&mut wal, 1);
    drop(wal);
    let path = dir.path().join(segment_name(0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[60] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = open(dir.path()).map(|_| ()).unwrap_err().to_string();
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
    for lost in [segment_name(0), "key".to_owned()] {
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

/// A value that looks like the next frame doesn't become one: it lacks the log's key.
#[test]
fn a_value_can_not_pass_for_a_frame() {
    let dir = TestDir::new();
    let (mut wal, _) = open(dir.path()).unwrap();
    let elsewhere = TestDir::new();
    let (mut forged, _) = open(elsewhere.path()).unwrap();
    forged.next_frame = 1;
    forged.append(Kind::Packet, b"forged");
    forged.seal_frame();
    let mut value = vec![0; ALIGNMENT - FRAME_HEAD - 3];
    value.extend_from_slice(&forged.frame);
    wal.append(Kind::Packet, &value);
    wal.commit().unwrap();
    drop(wal);
    let path = dir.path().join(segment_name(0));
    let mut bytes = fs::read(&path).unwrap();
    bytes[FRAME_HEAD] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (_, records) = open(dir.path()).unwrap();
    assert_eq!(records.records, []);
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
