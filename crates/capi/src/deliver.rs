// SPDX-License-Identifier: Apache-2.0
//! The C program as a replicated application.

use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use wirepaxos::application::{
    Checkpoint, CheckpointFile, Error, InMemory, Record, RecordVisitor, Restore, Snapshot,
};
use wirepaxos::{Application, StateMachine};

use crate::paxos_ctx;

/// The callbacks of a context, one call at a time.
#[derive(Clone)]
pub struct Callbacks(Arc<Mutex<Context>>);

struct Context(*mut paxos_ctx);

// SAFETY: the pointer is only used under the mutex and, by the contract of paxos_ctx_start, stays
// valid until paxos_ctx_free has ended all threads that hold it.
unsafe impl Send for Context {}

impl Callbacks {
    /// # Safety
    /// `ctx` and its callbacks stay valid as long as this value and its copies.
    pub unsafe fn new(ctx: *mut paxos_ctx) -> Callbacks {
        Callbacks(Arc::new(Mutex::new(Context(ctx))))
    }

    /// Calls `deliver`.
    pub fn deliver(&self, instance: u64, value: &[u8]) {
        let context = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: valid by the contract of `new`.
        let Some(deliver) = (unsafe { (*context.0).deliver }) else {
            return;
        };
        // A copy, since the papers' signature lets the callee write to it.
        let mut value = value.to_vec();
        // SAFETY: the program's own function, called as its contract says.
        unsafe {
            deliver(
                context.0,
                instance,
                value.as_mut_ptr().cast(),
                value.len() as c_int,
            )
        }
    }

    /// Calls `checkpoint`; true if there is none or it succeeds.
    fn checkpoint(&self) -> bool {
        let context = self.0.lock().unwrap_or_else(|e| e.into_inner());
        // SAFETY: as above.
        unsafe {
            match (*context.0).checkpoint {
                None => true,
                Some(checkpoint) => checkpoint(context.0) == 0,
            }
        }
    }
}

/// Nothing: the C program keeps its state itself. What remains are the replica's own records.
struct Stateless;

impl StateMachine for Stateless {
    fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}

    fn save(&self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn load(_: &mut dyn io::Read) -> io::Result<Self> {
        Ok(Stateless)
    }
}

/// Delivers to the callbacks; keeps the replica's records in a file of its own.
pub struct CallbackApplication {
    callbacks: Callbacks,
    records: InMemory<Stateless, CheckpointFile>,
    instance: u64,
}

impl CallbackApplication {
    /// Goes on from the last checkpoint in `directory`.
    pub fn open(callbacks: Callbacks, directory: &Path) -> Result<CallbackApplication, Error> {
        let file = CheckpointFile::new(directory.join("records"));
        Ok(CallbackApplication {
            callbacks,
            records: InMemory::open(file, Stateless)?,
            instance: 0,
        })
    }
}

impl Application for CallbackApplication {
    fn at_instance(&mut self, instance: u64) {
        self.instance = instance;
    }

    fn execute(&mut self, command: &[u8], _: &mut Vec<u8>) -> Result<(), Error> {
        self.callbacks.deliver(self.instance, command);
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        self.records.commit(records)
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        self.records.records(visit)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        // In this thread, like all callbacks: a program need not expect two at once.
        if !self.callbacks.checkpoint() {
            return Err(Error("the program's checkpoint callback failed".into()));
        }
        self.records.checkpoint()
    }

    /// The state is the C program's, so there is none to give away.
    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        Err(Error(
            "a program behind the C binding can't hand out its state".into(),
        ))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        Err(no_restore())
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        Err(no_restore())
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        self.records.digest()
    }
}

fn no_restore() -> Error {
    Error(
        "a program behind the C binding can't take another replica's state: copy its data by hand from \
         a replica that is up to date"
            .into(),
    )
}
