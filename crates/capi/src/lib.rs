// SPDX-License-Identifier: Apache-2.0
//! C binding: `submit`, `deliver` and `recover` of the papers (P4xos, Figures 3 and 4).
//!
//! A context is a replica of the cluster, a client of it, or both. The header
//! `include/wirepaxos.h` is generated from this file and `nodes.rs`.
#![allow(unsafe_code)]

mod context;
mod deliver;
mod nodes;
mod tally;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::{ptr, slice};

use context::Context;
use deliver::Callbacks;
pub use nodes::{
    paxos_nodes, paxos_nodes_error, paxos_nodes_free, paxos_nodes_new, paxos_nodes_start,
    paxos_nodes_write_file,
};

/// A connection to the replicated service. Fill in the callbacks between `paxos_ctx_new` and
/// `paxos_ctx_start`.
#[repr(C)]
pub struct paxos_ctx {
    /// Called for each value, in the order that all replicas agree on; never from two threads at
    /// once. `instance` counts from 0 (64 bits: an int would be used up within the hour). After a
    /// crash, values since the last checkpoint are delivered again: keep `instance` with your data,
    /// atomically, and skip what you have. `value` is valid during the call only.
    pub deliver: Option<
        unsafe extern "C" fn(ctx: *mut paxos_ctx, instance: u64, value: *mut c_char, size: c_int),
    >,
    /// Called before the acceptors may forget what was delivered in this partition: make your data
    /// of it durable and return 0. Any other answer stops the node. What was delivered before the
    /// previous such call for this partition never comes again. May be NULL.
    pub checkpoint: Option<unsafe extern "C" fn(ctx: *mut paxos_ctx, pid: u16) -> c_int>,
    /// The same as `deliver` for a group of several partitions, each of which counts instances by
    /// itself. If it is there, `deliver` isn't called. Values of different partitions have no
    /// order.
    pub deliver_in: Option<
        unsafe extern "C" fn(
            ctx: *mut paxos_ctx,
            pid: u16,
            instance: u64,
            value: *const c_char,
            size: c_int,
        ),
    >,
    /// The first step of a value that was submitted to several partitions, in each of them: append
    /// to `prepared` what the value needs to know of this one. It sees all that was delivered
    /// before, and changes nothing. After a crash it may come again for an `instance` that your
    /// data is beyond. Then append what you appended the first time: so keep that with your data.
    /// Without these three such values are refused.
    pub prepare: Option<
        unsafe extern "C" fn(
            ctx: *mut paxos_ctx,
            pid: u16,
            instance: u64,
            value: *const c_char,
            size: c_int,
            prepared: *mut paxos_bytes,
        ),
    >,
    /// The second step, in one place: append to each part's `effect` what is to change there. It
    /// depends on nothing but its arguments.
    pub combine: Option<
        unsafe extern "C" fn(
            ctx: *mut paxos_ctx,
            value: *const c_char,
            size: c_int,
            parts: *mut paxos_part,
            count: c_int,
        ),
    >,
    /// The third step, in each partition that something was appended for: change it. `instance` is
    /// the value's there: keep it with your data as in `deliver`.
    pub apply: Option<
        unsafe extern "C" fn(
            ctx: *mut paxos_ctx,
            pid: u16,
            instance: u64,
            effect: *const c_char,
            size: c_int,
        ),
    >,
    /// Answers a query without a place in the log: append what your data of this partition has to
    /// say to it, and change nothing. It sees all that was delivered before. May be NULL: then
    /// queries are refused.
    pub read: Option<
        unsafe extern "C" fn(
            ctx: *mut paxos_ctx,
            pid: u16,
            query: *const c_char,
            size: c_int,
            answer: *mut paxos_bytes,
        ),
    >,
    /// Called once if the replica ends after `paxos_ctx_start` has returned 0 and before
    /// `paxos_ctx_free`, from a thread of its own. `why` is what went wrong, or NULL if it was told
    /// to stop (`wirepaxos stop`). It must not call `paxos_ctx_free`. May be NULL.
    pub ended: Option<unsafe extern "C" fn(ctx: *mut paxos_ctx, why: *const c_char)>,
    /// Yours.
    pub arg: *mut c_void,
    /// Not yours.
    pub private_: *mut c_void,
}

/// Bytes that callbacks append to, by `paxos_append`.
#[allow(non_camel_case_types)] // C's names
pub struct paxos_bytes(Vec<u8>);

/// One partition's part in a value that was submitted to several. All of it is valid during the
/// call only.
#[repr(C)]
#[allow(non_camel_case_types)] // C's names
pub struct paxos_part {
    /// Which partition.
    pub pid: u16,
    /// What it has prepared.
    pub prepared: *const c_char,
    /// Bytes of that.
    pub prepared_size: c_int,
    /// Takes what is to change there; nothing appended: nothing changes.
    pub effect: *mut paxos_bytes,
}

/// How new what a query shows has to be.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)] // C's names
pub enum paxos_freshness {
    /// It has everything that anybody was told before the query.
    PAXOS_LATEST = 0,
    /// Whatever the replica that is asked was delivered, which may be old.
    PAXOS_STALE = 1,
}

/// What became of values. None is ever delivered twice, whatever this says.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(non_camel_case_types)] // C's names
pub enum paxos_outcome {
    /// Delivered on all replicas, or about to be.
    PAXOS_EXECUTED = 0,
    /// Delivered nowhere, now and later: they may be submitted again.
    PAXOS_REFUSED = 1,
    /// Each may have been delivered, or may yet be. Look for them before submitting them again.
    PAXOS_UNKNOWN = 2,
}

/// Prepares a context. `cluster_file` is the path of the cluster file; `node_name` names the
/// replica that this process is, or is NULL for a client that only submits and recovers.
/// Returns NULL if memory is short or an argument is no text.
///
/// # Safety
/// `cluster_file` and, unless it is NULL, `node_name` must be NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_new(
    cluster_file: *const c_char,
    node_name: *const c_char,
) -> *mut paxos_ctx {
    // SAFETY: the caller vouches for both strings.
    let (file, name) = unsafe { (text(cluster_file), text(node_name)) };
    let Some(file) = file else {
        return ptr::null_mut();
    };
    let context = Context::new(Path::new(file), name);
    Box::into_raw(Box::new(paxos_ctx {
        deliver: None,
        checkpoint: None,
        deliver_in: None,
        prepare: None,
        combine: None,
        apply: None,
        read: None,
        ended: None,
        arg: ptr::null_mut(),
        private_: Box::into_raw(Box::new(context)).cast(),
    }))
}

/// Starts the replica, if the context is one, waits until it runs, and connects the client. Returns
/// 0, or -1 if either can't start: see `paxos_ctx_error`.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`, and its callbacks stay valid until `paxos_ctx_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_start(ctx: *mut paxos_ctx) -> c_int {
    // SAFETY: the caller vouches for ctx and its callbacks.
    unsafe {
        let callbacks = Callbacks::new(ctx);
        answer(context(ctx).start(callbacks))
    }
}

/// Proposes a value: it will be delivered on all replicas, once. Returns 0 when it has been handed
/// to the proposer, which retries until it is acknowledged; waits while too many are in flight.
/// Returns -1 if it has not been handed over (`PAXOS_REFUSED`): it is too large, too many are in
/// flight and none is acknowledged, or the context is not started. What becomes of values handed
/// over, `paxos_ctx_flush` tells.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`; `value` points to `size` bytes. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submit(ctx: *mut paxos_ctx, value: *mut c_char, size: c_int) -> c_int {
    // SAFETY: the caller vouches for both.
    unsafe { answer(context(ctx).submit(&[0], bytes(value, size))) }
}

/// Proposes a value for each of these partitions: all of them execute it, by `prepare`, `combine`
/// and `apply`, or none does. One partition alone delivers it. The rest is as in `submit`, which is
/// for partition 0.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`; `pids` points to `count` numbers, and `value` to `size` bytes. Not from
/// two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submit_to(
    ctx: *mut paxos_ctx,
    pids: *const u16,
    count: c_int,
    value: *const c_char,
    size: c_int,
) -> c_int {
    let pids = match usize::try_from(count) {
        // SAFETY: the caller vouches for it.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(pids, count) },
        _ => &[],
    };
    // SAFETY: the caller vouches for both.
    unsafe { answer(context(ctx).submit(pids, bytes(value, size))) }
}

/// Proposes a value for the partition that a key belongs to: the range of its hash slot, as in
/// Redis Cluster. The rest is as in `submit`.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`; `key` points to `key_size` bytes, and `value` to `size` bytes. Not from two
/// threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn submit_by_key(
    ctx: *mut paxos_ctx,
    key: *const c_char,
    key_size: c_int,
    value: *const c_char,
    size: c_int,
) -> c_int {
    // SAFETY: the caller vouches for all of them.
    unsafe {
        let (key, value) = (bytes(key, key_size), bytes(value, size));
        answer(context(ctx).submit_by_key(key, value))
    }
}

/// Appends `size` bytes to what a callback was given to append to.
///
/// # Safety
/// `to` was given to the callback that is running; `from` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_append(to: *mut paxos_bytes, from: *const c_char, size: c_int) {
    // SAFETY: the caller vouches for both.
    unsafe { (*to).0.extend_from_slice(bytes(from, size)) }
}

/// Waits until everything submitted has been acknowledged: delivered on a replica. Returns 0, or
/// -1 if any value since the last flush isn't: after `timeout_ms`, or because the replicas answered
/// otherwise. `paxos_ctx_outcome` then says whether all of those are refused, or the outcome of
/// some is unknown.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_flush(ctx: *mut paxos_ctx, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { answer(context(ctx).flush(timeout_ms)) }
}

/// Asks a replica's `read` about its partition `pid`, without a place in the log, and waits for the
/// answer. Returns the length of the answer, which `*answer` points to until the next call; or -1:
/// nobody answers within `timeout_ms`, or the program has no `read`. A query fits a value; an
/// answer may be longer. In a group with NOPaxos there are no queries.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`; `query` points to `size` bytes, and `answer` to a pointer. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_read(
    ctx: *mut paxos_ctx,
    pid: u16,
    query: *const c_char,
    size: c_int,
    freshness: paxos_freshness,
    timeout_ms: c_int,
    answer: *mut *const c_char,
) -> c_int {
    // SAFETY: the caller vouches for all of them.
    unsafe {
        match context(ctx).read(pid, bytes(query, size), freshness, timeout_ms) {
            Some(found) => {
                *answer = found.as_ptr().cast();
                c_int::try_from(found.len()).unwrap_or(-1)
            }
            None => -1,
        }
    }
}

/// Finds out what an instance decided and delivers it, through `deliver`, to this context alone.
/// If nothing was decided, `value`, the application's no-op, is put there first; it is delivered
/// here and executed nowhere. Returns 0, or -1: see `paxos_ctx_error`.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`; `value` points to `size` bytes. Not from two threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recover(
    ctx: *mut paxos_ctx,
    instance: u64,
    value: *mut c_char,
    size: c_int,
) -> c_int {
    // SAFETY: the caller vouches for both.
    unsafe {
        let callbacks = Callbacks::new(ctx);
        answer(context(ctx).recover(instance, bytes(value, size), callbacks))
    }
}

/// What the last call that returned -1 had to say; valid until the next call.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_error(ctx: *mut paxos_ctx) -> *const c_char {
    // SAFETY: the caller vouches for it.
    unsafe { context(ctx).error().as_ptr() }
}

/// What became of the values that the last call was about: `PAXOS_EXECUTED` if it returned 0, else
/// why they are not acknowledged. Of a context that was not started, `PAXOS_REFUSED`.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_outcome(ctx: *mut paxos_ctx) -> paxos_outcome {
    // SAFETY: the caller vouches for it.
    unsafe { context(ctx).outcome() }
}

/// Stops the replica in good order, after a checkpoint, and frees the context. Returns 0, or -1 if
/// the replica had failed; why is on standard error.
///
/// # Safety
/// `ctx` comes from `paxos_ctx_new` and is not used again; or it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn paxos_ctx_free(ctx: *mut paxos_ctx) -> c_int {
    if ctx.is_null() {
        return 0;
    }
    // SAFETY: both boxes come from `paxos_ctx_new`. The replica's threads, which hold a copy of
    // the pointer, end in `close`, before the memory goes.
    unsafe {
        let mut context = Box::from_raw((*ctx).private_.cast::<Context>());
        let result = context.close();
        drop(Box::from_raw(ctx));
        if result.is_ok() { 0 } else { -1 }
    }
}

/// # Safety
/// `ctx` comes from `paxos_ctx_new`.
unsafe fn context<'a>(ctx: *mut paxos_ctx) -> &'a mut Context {
    // SAFETY: private_ was set by paxos_ctx_new and is not the caller's to change.
    unsafe { &mut *(*ctx).private_.cast::<Context>() }
}

/// # Safety
/// NULL, or a NUL-terminated string that outlives the call.
unsafe fn text<'a>(string: *const c_char) -> Option<&'a str> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(string) }.to_str().ok()
}

/// # Safety
/// `value` points to `size` bytes, or `size` is not positive.
unsafe fn bytes<'a>(value: *const c_char, size: c_int) -> &'a [u8] {
    match usize::try_from(size) {
        // SAFETY: the caller vouches for it.
        Ok(size) if size > 0 => unsafe { slice::from_raw_parts(value.cast(), size) },
        _ => &[],
    }
}

fn answer(ok: bool) -> c_int {
    if ok { 0 } else { -1 }
}
