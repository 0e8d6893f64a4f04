// SPDX-License-Identifier: Apache-2.0
//! KEYS: a walk over all keys of all partitions, in its own thread.
//!
//! Before the walk, the front end sends a command through the log of each partition, from the first
//! one to the last. When the last one is answered, the replica beside this front end has executed
//! everything that any client was told before KEYS was called. So this replica's state is new
//! enough, and no other replica's state is needed. [X-READ]

use std::io;
use std::sync::{Weak, mpsc};
use std::thread::JoinHandle;

use apps::kv::{Command, Reply};
use paxos::PartitionId;
use replica::application::{OpenReader, Reader};

use crate::found_keys::{Asker, Found, Keys};
use crate::mailbox::Mailbox;

/// The number of keys that are looked at before the walk checks again if anybody still waits.
const AT_ONCE: u32 = 1_000;

/// A walk that is asked for.
pub(crate) struct Walk {
    pub asker: Asker,
    pub pattern: Option<Vec<u8>>,
    /// This token dies once nobody waits any more.
    pub awaited: Weak<()>,
}

/// The thread that walks. It ends when this handle is dropped.
pub(crate) struct Walker {
    ask: Option<mpsc::Sender<Walk>>,
    thread: Option<JoinHandle<()>>,
}

impl Walker {
    /// Starts the thread, which puts the keys found into the mailbox. An answer has at most `most`
    /// bytes.
    pub fn start(mailbox: Mailbox, partitions: u16, most: usize) -> io::Result<Walker> {
        let (ask, asked) = mpsc::channel::<Walk>();
        let walk = move || {
            // The walks are done one after the other, so that only one answer at a time takes
            // memory.
            for walk in asked {
                if let Some(found) = find(&mailbox, &walk, partitions, most) {
                    mailbox.walked(walk.asker, found);
                }
            }
        };
        let thread = std::thread::Builder::new().name("redis-keys".to_owned());
        Ok(Walker {
            ask: Some(ask),
            thread: Some(thread.spawn(walk)?),
        })
    }

    /// Queues a walk.
    pub fn walk(&self, walk: Walk) {
        let ask = self.ask.as_ref().expect("it lasts until it is dropped");
        ask.send(walk).expect("the thread lasts as long");
    }
}

impl Drop for Walker {
    /// Ends the thread. The connections must be gone already, so that no walk is awaited and this
    /// doesn't take long.
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed why.
            let _ = thread.join();
        }
    }
}

/// Returns the keys of all partitions, or `None` if nobody waits for them any more.
fn find(mailbox: &Mailbox, walk: &Walk, partitions: u16, most: usize) -> Option<Found> {
    let is_awaited = || walk.awaited.strong_count() > 0;
    if !is_awaited() {
        return None;
    }
    let Some(open) = mailbox.open_reader() else {
        return Some(Err("this replica isn't ready for KEYS".into()));
    };
    // All partitions' states are opened at about the same time.
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
            if keys.len() > most {
                let text = format!(
                    "more than {most} bytes of keys match, which max_answer_mib in the cluster \
                     file sets: use SCAN, or another pattern"
                );
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

/// Adds the keys of the next places; returns where to continue if there are more.
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
