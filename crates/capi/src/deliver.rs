// SPDX-License-Identifier: Apache-2.0
//! The C program as a replicated application.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use wirepaxos::application::{
    Checkpoint, CheckpointFile, Error, InMemory, Part, Record, RecordVisitor, Restore, Snapshot,
};
use wirepaxos::{Application, StateMachine};

use crate::{paxos_bytes, paxos_ctx, paxos_part};

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

    /// Calls `deliver_in`, or `deliver`.
    pub fn deliver(&self, pid: u16, instance: u64, value: &[u8]) {
        let context = self.lock();
        // SAFETY: valid by the contract of `new`.
        let (deliver_in, deliver) = unsafe { ((*context.0).deliver_in, (*context.0).deliver) };
        if let Some(deliver_in) = deliver_in {
            let (value, size) = shown(value);
            // SAFETY: the program's own function, called as its contract says.
            return unsafe { deliver_in(context.0, pid, instance, value, size) };
        }
        let Some(deliver) = deliver else { return };
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

    /// Calls `ended`. Other callbacks may be called meanwhile: none of them can end.
    pub fn ended(&self, why: Option<&CStr>) {
        let (ctx, ended) = {
            let context = self.lock();
            // SAFETY: valid by the contract of `new`.
            (context.0, unsafe { (*context.0).ended })
        };
        let why = why.map_or(ptr::null(), CStr::as_ptr);
        if let Some(ended) = ended {
            // SAFETY: the program's own function, called as its contract says.
            unsafe { ended(ctx, why) }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Context> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the program has the steps of values over several partitions.
    fn spans_partitions(&self) -> bool {
        let context = self.lock();
        // SAFETY: valid by the contract of `new`.
        let ctx = unsafe { &*context.0 };
        ctx.prepare.is_some() && ctx.combine.is_some() && ctx.apply.is_some()
    }

    /// Whether the program answers queries.
    fn reads(&self) -> bool {
        let context = self.lock();
        // SAFETY: valid by the contract of `new`.
        unsafe { (*context.0).read.is_some() }
    }

    /// Calls `read`.
    fn read(&self, pid: u16, query: &[u8]) -> Vec<u8> {
        let context = self.lock();
        let mut answer = paxos_bytes(Vec::new());
        let (query, size) = shown(query);
        // SAFETY: as in `deliver`; what is appended to lives longer than the call.
        unsafe {
            if let Some(read) = (*context.0).read {
                read(context.0, pid, query, size, &mut answer);
            }
        }
        answer.0
    }

    /// Calls `prepare`.
    fn prepare(&self, pid: u16, instance: u64, value: &[u8]) -> Vec<u8> {
        let context = self.lock();
        let mut prepared = paxos_bytes(Vec::new());
        let (value, size) = shown(value);
        // SAFETY: as in `deliver`; what is appended to lives longer than the call.
        unsafe {
            if let Some(prepare) = (*context.0).prepare {
                prepare(context.0, pid, instance, value, size, &mut prepared);
            }
        }
        prepared.0
    }

    /// Calls `combine`.
    fn combine(&self, value: &[u8], parts: &mut [Part]) {
        let context = self.lock();
        let mut effects: Vec<_> = parts.iter().map(|_| paxos_bytes(Vec::new())).collect();
        let show = |(part, effect): (&Part, *mut paxos_bytes)| {
            let (prepared, prepared_size) = shown(&part.prepared);
            paxos_part {
                pid: part.pid,
                prepared,
                prepared_size,
                effect,
            }
        };
        let pairs = parts.iter().zip(effects.iter_mut().map(ptr::from_mut));
        let mut shown_parts: Vec<paxos_part> = pairs.map(show).collect();
        let (value, size) = shown(value);
        // SAFETY: as in `prepare`.
        unsafe {
            if let Some(combine) = (*context.0).combine {
                let count = shown_parts.len() as c_int;
                combine(context.0, value, size, shown_parts.as_mut_ptr(), count);
            }
        }
        for (part, effect) in parts.iter_mut().zip(effects) {
            part.effect = effect.0;
        }
    }

    /// Calls `apply`.
    fn apply(&self, pid: u16, instance: u64, effect: &[u8]) {
        let context = self.lock();
        let (effect, size) = shown(effect);
        // SAFETY: as in `deliver`.
        unsafe {
            if let Some(apply) = (*context.0).apply {
                apply(context.0, pid, instance, effect, size);
            }
        }
    }

    /// Calls `checkpoint`; true if there is none or it succeeds.
    fn checkpoint(&self, pid: u16) -> bool {
        let context = self.lock();
        // SAFETY: the reason is the same as above.
        unsafe {
            match (*context.0).checkpoint {
                None => true,
                Some(checkpoint) => checkpoint(context.0, pid) == 0,
            }
        }
    }
}

fn shown(bytes: &[u8]) -> (*const c_char, c_int) {
    (bytes.as_ptr().cast(), bytes.len() as c_int)
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
    pid: u16,
    records: InMemory<Stateless, CheckpointFile>,
    instance: u64,
}

impl CallbackApplication {
    /// Goes on from the last checkpoint in `directory`.
    pub fn open(
        callbacks: Callbacks,
        pid: u16,
        directory: &Path,
    ) -> Result<CallbackApplication, Error> {
        let file = CheckpointFile::new(directory.join("records"));
        Ok(CallbackApplication {
            callbacks,
            pid,
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
        self.callbacks.deliver(self.pid, self.instance, command);
        Ok(())
    }

    /// Queries are never delivered, whatever they are: a client asks them by READ alone.
    fn is_read(&self, _: &[u8]) -> bool {
        self.callbacks.reads()
    }

    fn read(&mut self, query: &[u8], answer: &mut Vec<u8>) -> Result<(), Error> {
        answer.append(&mut self.callbacks.read(self.pid, query));
        Ok(())
    }

    fn spans_partitions(&self) -> bool {
        self.callbacks.spans_partitions()
    }

    fn prepare(&mut self, command: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        prepared.append(&mut self.callbacks.prepare(self.pid, self.instance, command));
        Ok(())
    }

    fn combine(&self, command: &[u8], parts: &mut [Part], _: &mut Vec<u8>) -> Result<(), Error> {
        self.callbacks.combine(command, parts);
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        self.callbacks.apply(self.pid, self.instance, effect);
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
        if !self.callbacks.checkpoint(self.pid) {
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
        "a program behind the C binding can't take another replica's state: copy its data by hand \
         from a replica that is up to date"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    /// What the callbacks were called with.
    type Calls = Vec<(&'static str, u16, u64)>;

    unsafe fn note(ctx: *mut paxos_ctx, call: (&'static str, u16, u64)) {
        // SAFETY: `program` has set it to what outlives all calls.
        unsafe { (*(*ctx).arg.cast::<Calls>()).push(call) }
    }

    unsafe extern "C" fn prepare(
        ctx: *mut paxos_ctx,
        pid: u16,
        instance: u64,
        _: *const c_char,
        _: c_int,
        _: *mut paxos_bytes,
    ) {
        // SAFETY: see `note`.
        unsafe { note(ctx, ("prepare", pid, instance)) }
    }

    unsafe extern "C" fn combine(
        _: *mut paxos_ctx,
        _: *const c_char,
        _: c_int,
        _: *mut paxos_part,
        _: c_int,
    ) {
    }

    unsafe extern "C" fn apply(
        ctx: *mut paxos_ctx,
        pid: u16,
        instance: u64,
        _: *const c_char,
        _: c_int,
    ) {
        // SAFETY: see `note`.
        unsafe { note(ctx, ("apply", pid, instance)) }
    }

    unsafe extern "C" fn read(
        ctx: *mut paxos_ctx,
        pid: u16,
        query: *const c_char,
        size: c_int,
        answer: *mut paxos_bytes,
    ) {
        // SAFETY: see `note`; the rest is what `read` is called with.
        unsafe {
            note(ctx, ("read", pid, 0));
            crate::paxos_append(answer, query, size);
        }
    }

    unsafe extern "C" fn checkpoint(ctx: *mut paxos_ctx, pid: u16) -> c_int {
        // SAFETY: see `note`.
        unsafe { note(ctx, ("checkpoint", pid, 0)) };
        0
    }

    /// A program that is told where its values lie can tell what it has already, after each crash
    /// anew.
    #[test]
    fn each_step_is_told_its_partition_and_instance() {
        let directory = std::env::temp_dir().join(format!("wirepaxos-capi-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut calls = Calls::new();
        let mut ctx = paxos_ctx {
            ended: None,
            deliver: None,
            checkpoint: Some(checkpoint),
            deliver_in: None,
            prepare: Some(prepare),
            combine: Some(combine),
            apply: Some(apply),
            read: None,
            arg: ptr::from_mut(&mut calls).cast::<c_void>(),
            private_: ptr::null_mut(),
        };
        // SAFETY: it outlives the applications below.
        let callbacks = unsafe { Callbacks::new(&mut ctx) };
        for _crash in 0..2 {
            let opened = CallbackApplication::open(callbacks.clone(), 3, &directory);
            let mut program = opened.unwrap();
            program.at_instance(7);
            program.prepare(b"value", &mut Vec::new()).unwrap();
            program.apply(b"effect").unwrap();
            drop(program.checkpoint().unwrap());
            // SAFETY: nothing else uses it meanwhile.
            unsafe { (*callbacks.lock().0).read = None };
            assert!(!program.is_read(b"query"), "there is no callback for it");
            // SAFETY: the reason is the same as above.
            unsafe { (*callbacks.lock().0).read = Some(read) };
            let mut answer = Vec::new();
            assert!(program.is_read(b"query"));
            program.read(b"query", &mut answer).unwrap();
            assert_eq!(answer, b"query");
        }
        std::fs::remove_dir_all(&directory).unwrap();
        let once = [
            ("prepare", 3, 7),
            ("apply", 3, 7),
            ("checkpoint", 3, 0),
            ("read", 3, 0),
        ];
        assert_eq!(calls, [once, once].concat());
    }
}
