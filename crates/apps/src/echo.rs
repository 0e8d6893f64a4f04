//! Answers every command with itself: what benchmarks of the agreement replicate.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use replica::application::{Record, RecordVisitor, Snapshot};
use replica::{Application, Error};
use sha2::{Digest, Sha256};

use crate::pairs;

const FILE: &str = "echo.records";

/// The echo application. It has no state but the replica's records, which it keeps in memory and
/// writes to a small file at each checkpoint: after a kill it goes on from the last one.
pub struct Echo {
    dir: Option<PathBuf>,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Echo {
    /// Without a directory, a restart begins anew.
    pub fn open(dir: Option<&Path>) -> Result<Echo, Error> {
        let mut records = BTreeMap::new();
        if let Some(dir) = dir {
            fs::create_dir_all(dir).map_err(|e| failed("create", dir, &e))?;
            let path = dir.join(FILE);
            match File::open(&path) {
                Ok(file) => {
                    records = load(&mut io::BufReader::new(file))
                        .map_err(|e| failed("read", &path, &e))?
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(failed("read", &path, &e)),
            }
        }
        Ok(Echo {
            dir: dir.map(Path::to_owned),
            records,
        })
    }

    fn save(&self) -> Result<(), Error> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let path = dir.join(FILE);
        pairs::replace_file(&path, |out| save(&self.records, out))
            .map_err(|e| failed("write", &path, &e))
    }
}

impl Application for Echo {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        reply.extend_from_slice(command);
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        for record in records {
            match &record.value {
                None => {
                    self.records.remove(&record.key);
                }
                Some(value) => match self.records.get_mut(&record.key) {
                    Some(old) => old.clone_from(value),
                    None => {
                        self.records.insert(record.key.clone(), value.clone());
                    }
                },
            }
        }
        Ok(())
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        self.records
            .iter()
            .for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        self.save()
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        Ok(Box::new(EchoSnapshot(self.records.clone())))
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> Result<(), Error> {
        let records = load(from).map_err(|e| Error(format!("cannot restore a snapshot: {e}")))?;
        self.records = records;
        self.save()
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        Ok(Sha256::new().finalize().into())
    }
}

struct EchoSnapshot(BTreeMap<Vec<u8>, Vec<u8>>);

impl Snapshot for EchoSnapshot {
    fn write_to(&mut self, out: &mut dyn io::Write) -> io::Result<()> {
        save(&self.0, out)
    }
}

fn save(records: &BTreeMap<Vec<u8>, Vec<u8>>, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = pairs::Writer::begin(out)?;
    for (key, value) in records {
        writer.pair(key, value)?;
    }
    writer.end()
}

fn load(from: &mut dyn io::Read) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut records = BTreeMap::new();
    pairs::read(from, |key, value| {
        records.insert(key.to_vec(), value.to_vec());
        Ok(())
    })?;
    Ok(records)
}

fn failed(doing: &str, path: &Path, e: &io::Error) -> Error {
    Error(format!("cannot {doing} {}: {e}", path.display()))
}
