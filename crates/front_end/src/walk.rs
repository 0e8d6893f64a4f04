// SPDX-License-Identifier: Apache-2.0
//! KEYS: a walk over all keys of all partitions, in a thread of its own.
//!
//! First the log of each partition is asked for something, from the first one to the last. By the time of the last answer
//! the replica beside this front end has executed all that anybody was told before KEYS was called. So its
//! state from then on will do, and nobody else needs to look at theirs. [X-READ]

use std::io;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;

use apps::kv::{Command, Reply};
use paxos::PartitionId;
use replica::application::{OpenReader, Reader};

use crate::mailbox::Mailbox;
use crate::resp::Writer;

/// Keys that are looked at in a row. In between it is seen whether anybody still waits.
const AT_ONCE: u32 = 1_000;

/// A walk that is asked for.
pub(crate) struct Walk {
    pub whose: Whose,
    pub pattern: Option<Vec<u8>>,
    /// Gone once nobody waits any more.
    pub awaited: Weak<()>,
}

/// Who is to be told.
#[derive(Clone, Copy)]
pub(crate) struct Whose {
    /// The connection's.
    pub index: usize,
    /// Its client.
    pub client: u64,
    /// The command's.
    pub number: u64,
}

/// Keys, as they will be shown; or why there are none.
pub(crate) type Found = Result<Keys, String>;

#[derive(Default)]
pub(crate) struct Keys {
    count: usize,
    bytes: Vec<u8>,
}

impl Keys {
    pub fn write(&self, writer: &mut Writer<'_>) {
        writer.array(self.count);
        writer.out.extend_from_slice(&self.bytes);
    }

    fn add(&mut self, key: &[u8]) {
        // A string is the same in both versions of the protocol.
        let mut writer = Writer {
            out: &mut self.bytes,
            resp3: false,
        };
        writer.bulk(key);
        self.count += 1;
    }
}

/// The thread. It ends when this is dropped.
pub(crate) struct Walker {
    ask: Option<mpsc::Sender<Walk>>,
    thread: Option<JoinHandle<()>>,
}

impl Walker {
    /// It tells what it finds by the mailbox. An answer has at most `most` bytes.
    pub fn start(mailbox: Mailbox, partitions: u16, most: usize) -> io::Result<Walker> {
        let (ask, asked) = mpsc::channel::<Walk>();
        let walk = move || {
            // One after the other, so that no more than one answer is in the making.
            for walk in asked {
                if let Some(found) = find(&mailbox, &walk, partitions, most) {
                    mailbox.walked(walk.whose, found);
                }
            }
        };
        let thread = std::thread::Builder::new().name("redis-keys".to_owned());
        Ok(Walker {
            ask: Some(ask),
            thread: Some(thread.spawn(walk)?),
        })
    }

    /// Takes a walk on its list.
    pub fn walk(&self, walk: Walk) {
        let ask = self.ask.as_ref().expect("it lasts until it is dropped");
        ask.send(walk).expect("the thread lasts as long");
    }
}

impl Drop for Walker {
    /// Whoever asked is to be gone already: then this doesn't take long.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// The keys of all partitions; `None` if nobody waits for them any more.
fn find(mailbox: &Mailbox, walk: &Walk, partitions: u16, most: usize) -> Option<Found> {
    let is_awaited = || walk.awaited.strong_count() > 0;
    if !is_awaited() {
        return None;
    }
    let Some(open) = mailbox.open_reader() else {
        return Some(Err("this replica isn't ready for KEYS".into()));
    };
    // All at about the same time.
    let readers = match open_all(open, partitions) {
        Ok(readers) => readers,
        Err(why) => return Some(Err(format!("KEYS can't read this replica's state: {why}"))),
    };
    let mut keys = Keys::default();
    for mut reader in readers {
        let mut from = Some(0);
        while let Some(place) = from {
            if !is_awaited() {
                return None;
            }
            from = match some_of(&mut *reader, place, walk.pattern.as_deref(), &mut keys) {
                Ok(next) => next,
                Err(why) => return Some(Err(why)),
            };
            if keys.bytes.len() > most {
                let text =
                    format!("more than {most} bytes of keys match: use SCAN, or another pattern");
                return Some(Err(text));
            }
        }
    }
    Some(Ok(keys))
}

fn open_all(open: &OpenReader, partitions: u16) -> Result<Vec<Box<dyn Reader>>, String> {
    (0..partitions as PartitionId)
        .map(|pid| open(pid))
        .collect()
}

/// Adds the keys of the next places; where to go on, if there is more.
fn some_of(
    reader: &mut dyn Reader,
    from: u64,
    pattern: Option<&[u8]>,
    keys: &mut Keys,
) -> Result<Option<u64>, String> {
    let scan = Command::Scan {
        count: AT_ONCE,
        from,
        pattern,
    };
    let (mut command, mut reply) = (Vec::new(), Vec::new());
    scan.encode(&mut command)
        .expect("the pattern came in one value");
    reader
        .read(&command, &mut reply)
        .map_err(|e| e.to_string())?;
    let unusable = || Err("the replicated application is no key-value store".to_owned());
    let Ok(Reply::Array(parts)) = Reply::parse(&reply) else {
        return unusable();
    };
    let [next, Reply::Array(found)] = &parts[..] else {
        return unusable();
    };
    for key in found {
        if let Reply::Bulk(key) = key {
            keys.add(key);
        }
    }
    Ok(match next {
        Reply::Int(place) => Some(*place as u64),
        _ => None,
    })
}

/// Keeps a walk going as long as it lives.
#[derive(Default)]
pub(crate) struct Awaited(Arc<()>);

impl Awaited {
    pub fn token(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}
