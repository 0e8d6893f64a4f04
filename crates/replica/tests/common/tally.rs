// SPDX-License-Identifier: Apache-2.0
//! The application that counts, and its disk.

use super::*;

/// The number of a command that shows how many commands were executed, and changes nothing.
pub const READ: u64 = u64::MAX;

/// Counts the executions of all commands, and of each command by its number. A command is a number
/// u64 and, optionally, the length of the reply.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub total: u64,
    pub by_command: BTreeMap<u64, u64>,
}

/// A command over several partitions is noted, with what it saw, under this number plus its own.
pub const SUM_OF: u64 = 1 << 32;

pub fn command(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

pub fn command_with_reply(number: u64, reply_len: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &reply_len.to_be_bytes()].concat()
}

impl replica::StateMachine for Tally {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        if Self::is_read(command) {
            reply.extend_from_slice(&self.total.to_be_bytes());
            return;
        }
        let number = u64::from_be_bytes(command[..8].try_into().unwrap());
        self.total += 1;
        *self.by_command.entry(number).or_default() += 1;
        reply.extend_from_slice(&self.total.to_be_bytes());
        if let Ok(len) = command[8..].try_into() {
            reply.resize(u32::from_be_bytes(len) as usize, b'.');
        }
    }

    fn is_read(command: &[u8]) -> bool {
        command == READ.to_be_bytes()
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.total.to_be_bytes())?;
        for (number, times) in &self.by_command {
            out.write_all(&number.to_be_bytes())?;
            out.write_all(&times.to_be_bytes())?;
        }
        Ok(())
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        if bytes.len() % 16 != 8 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|c| u64::from_be_bytes(c.try_into().unwrap()));
        let total = numbers.next().unwrap();
        let mut by_command = BTreeMap::new();
        while let (Some(number), Some(times)) = (numbers.next(), numbers.next()) {
            by_command.insert(number, times);
        }
        Ok(Tally { total, by_command })
    }
}

/// State and records, as one commit left them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Image {
    pub tally: Tally,
    pub records: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Image {
    /// Removes the records of commits, which depend on the batches; after a fold they don't count.
    pub fn without_commits(mut self) -> Image {
        self.records.retain(|key, _| key[0] != b'c');
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = (self.records.len() as u64).to_be_bytes().to_vec();
        for part in self.records.iter().flat_map(|(k, v)| [k, v]) {
            out.extend_from_slice(&(part.len() as u64).to_be_bytes());
            out.extend_from_slice(part);
        }
        replica::StateMachine::save(&self.tally, &mut out).unwrap();
        out
    }

    fn decode(mut from: &[u8]) -> io::Result<Image> {
        let number = |from: &mut &[u8]| {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes)
                .map(|()| u64::from_be_bytes(bytes))
        };
        let mut records = BTreeMap::new();
        for _ in 0..number(&mut from)? {
            let mut parts = [Vec::new(), Vec::new()];
            for part in &mut parts {
                let len = number(&mut from)? as usize;
                *part = from
                    .get(..len)
                    .ok_or(io::ErrorKind::UnexpectedEof)?
                    .to_vec();
                from = &from[len..];
            }
            let [key, value] = parts;
            records.insert(key, value);
        }
        let tally = replica::StateMachine::load(&mut from)?;
        Ok(Image { tally, records })
    }
}

#[derive(Default)]
pub struct Platter {
    pub committed: Image,
    pub durable: Image,
    pub fail_commits: bool,
    pub fail_checkpoints: bool,
    pub fail_execute: bool,
    /// The numbers of commands on which the program dies.
    pub dies_of: Option<Arc<dyn Fn(u64) -> bool + Send + Sync>>,
    /// Commands over several partitions are executed.
    pub spans: bool,
    /// The application can't take back what it has executed.
    pub cannot_discard: bool,
    /// The number of commands that may wait for one commit.
    pub most_ahead: Option<u64>,
    /// The application executes begun commands only when it is asked for the answers.
    pub answers_later: bool,
    pub commits: u64,
}

/// A disk, which survives the application.
#[derive(Clone, Default)]
pub struct Disk(pub Arc<Mutex<Platter>>);

impl Disk {
    pub fn committed(&self) -> Image {
        self.0.lock().unwrap().committed.clone()
    }

    /// Takes everything that no checkpoint has made durable.
    pub fn power_failure(&self) {
        let mut platter = self.0.lock().unwrap();
        platter.committed = platter.durable.clone();
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut Platter) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

/// An application that loses everything since the last commit when it is dropped.
pub struct Durable {
    pub disk: Disk,
    pub tally: Tally,
    pub(super) begun: Vec<Vec<u8>>,
    /// The number of begun commands before the one on which it has died.
    pub(super) died_of: Option<usize>,
    pub(super) taken: Arc<Mutex<Option<Image>>>,
}

impl Durable {
    pub fn open(disk: &Disk) -> Durable {
        Durable {
            disk: disk.clone(),
            tally: disk.committed().tally,
            begun: Vec::new(),
            died_of: None,
            taken: Arc::default(),
        }
    }
}

impl Application for Durable {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        if self.disk.with(|d| d.fail_execute) {
            return Err(Error("the test forbids to execute".into()));
        }
        let number = u64::from_be_bytes(command[..8].try_into().unwrap());
        if self
            .disk
            .with(|d| d.dies_of.as_ref().is_some_and(|dies| dies(number)))
        {
            self.died_of = Some(0);
            return Err(Error(format!("the program died of {number:#x}")));
        }
        assert_eq!(self.begun.len(), 0);
        replica::StateMachine::execute(&mut self.tally, command, reply);
        Ok(())
    }

    fn answers_later(&self) -> bool {
        self.disk.with(|d| d.answers_later)
    }

    fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        self.begun.push(command.to_vec());
        Ok(())
    }

    fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        for command in std::mem::take(&mut self.begun) {
            let mut reply = Vec::new();
            self.execute(&command, &mut reply)?;
            take(&reply);
        }
        Ok(())
    }

    fn died_of(&self) -> Option<usize> {
        self.died_of
    }

    fn is_read(&self, command: &[u8]) -> bool {
        <Tally as replica::StateMachine>::is_read(command)
    }

    fn spans_partitions(&self) -> bool {
        self.disk.with(|d| d.spans)
    }

    /// Returns how many commands were executed here.
    fn prepare(&mut self, _: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        prepared.extend_from_slice(&self.tally.total.to_be_bytes());
        Ok(())
    }

    /// Counts the command in each partition, and notes there how many were executed in all of them.
    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let total = |part: &Part| u64::from_be_bytes(part.prepared[..].try_into().unwrap());
        let sum: u64 = parts.iter().map(total).sum();
        for part in parts {
            part.effect = [&command[..8], &sum.to_be_bytes()].concat();
        }
        reply.extend_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        let (number, sum) = effect.split_at(8);
        replica::StateMachine::execute(&mut self.tally, number, &mut Vec::new());
        let number = u64::from_be_bytes(number.try_into().unwrap());
        let sum = u64::from_be_bytes(sum.try_into().unwrap());
        *self.tally.by_command.entry(SUM_OF + number).or_default() += sum;
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        assert_eq!(self.begun.len(), 0);
        let tally = self.tally.clone();
        self.disk.with(|d| {
            if d.fail_commits {
                return Err(Error("the disk is full".into()));
            }
            d.commits += 1;
            d.committed.tally = tally;
            for record in records {
                match &record.value {
                    Some(value) => d
                        .committed
                        .records
                        .insert(record.key.clone(), value.clone()),
                    None => d.committed.records.remove(&record.key),
                };
            }
            Ok(())
        })
    }

    fn can_discard(&self) -> bool {
        !self.disk.with(|d| d.cannot_discard)
    }

    fn most_ahead(&self) -> u64 {
        self.disk.with(|d| d.most_ahead.unwrap_or(u64::MAX))
    }

    fn discard(&mut self) -> Result<(), Error> {
        assert!(self.can_discard());
        self.tally = self.disk.committed().tally;
        Ok(())
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        for (key, value) in &self.disk.committed().records {
            visit(key, value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        let disk = self.disk.clone();
        let begun = disk.committed();
        Ok(Box::new(move || {
            disk.with(|d| {
                if d.fail_checkpoints {
                    return Err(Error("the disk is full".into()));
                }
                d.durable = begun;
                Ok(())
            })
        }))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        struct Bytes(Vec<u8>);
        impl Snapshot for Bytes {
            fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
                out.write_all(&self.0)
            }
        }
        Ok(Box::new(Bytes(self.disk.committed().encode())))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.taken = Arc::default();
        let taken = self.taken.clone();
        Ok(Box::new(move |from| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes)?;
            *taken.lock().unwrap() = Some(Image::decode(&bytes)?);
            Ok(())
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let image = self.taken.lock().unwrap().take();
        let image = image.ok_or(Error("nothing was read".into()))?;
        self.tally = image.tally.clone();
        self.disk.with(|d| {
            d.durable = image.clone();
            d.committed = image;
        });
        Ok(())
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.tally.total.to_be_bytes());
        Ok(digest)
    }
}

/// The storage of a checkpoint of a program in memory, and if its disk is full.
#[derive(Clone, Default)]
pub struct MemoryDisk(pub Arc<Mutex<(Option<Vec<u8>>, bool)>>);

impl Storage for MemoryDisk {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if disk.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.0 = Some(checkpoint.to_vec());
        Ok(())
    }
}
