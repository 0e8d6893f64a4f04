// SPDX-License-Identifier: Apache-2.0
//! Limits the memory of scripts. A script that takes too much is executed nowhere, so all replicas
//! must come to the same decision.
//!
//! The preloaded library counts the memory that Lua asks for (`programs/preload/arena.h`). But each
//! server has other garbage, depending on its past, and collects it at other moments. So the
//! library's count is an estimate: a run that reaches [`USUAL_ROOM`] by it ends the server. Then
//! the run is judged: a server is started for it whose Lua has done nothing but load all scripts
//! and functions in the order of their texts. There the run asks for the same memory everywhere,
//! down to the byte, and may have [`ROOM`].
//!
//! ```text
//!  run ── less than the usual room ──────────────────────────────> its answer
//!     └── more: the server ends ──> judged ── less than the room ──> its answer
//!                                          └─ more ───────────────> LIMIT, and nothing happened
//! ```
//!
//! **Why no replica executes a run that another one refuses.** The judging server's decision is the
//! same everywhere. So each run that it would refuse must reach the usual room in every server,
//! whatever that server's past. In the judging server each step of the collector is a whole
//! collection, and the next one comes when Lua has twice the memory that the last one has left. A
//! run is refused there at twice the memory of before it, and [`ROOM`] more. So, beyond the memory
//! of before, half of [`ROOM`] was reachable when garbage was last collected, or the run takes the
//! rest within one operation. The same operations in another server make the same objects
//! reachable, and reachable objects are in its memory. Only a table may be half as large, if its
//! keys are hashed by their addresses. So every other server reaches a quarter of [`ROOM`], which
//! is twice its limit.

use replica::Error;

use super::replay_log::Batch;
use super::resp::{Value, put_error};
use super::saves::Purpose;
use super::server::{Dead, Server, nonce};
use super::state::{Replicated, SEED_SCRIPT};

/// The memory that scripts may have beyond the memory at the server's start, before they are
/// judged.
const USUAL_ROOM: u64 = ROOM / 8;
/// The memory that scripts may have in the judging server, beyond twice the memory at its start.
const ROOM: u64 = 512 << 20;
/// If this much is in use after a run, garbage is collected.
const MUCH: u64 = USUAL_ROOM / 2;
/// If this much is left after that, the server is replaced by one that begins without it.
const TOO_MUCH: u64 = USUAL_ROOM / 4 * 3;
/// Settings of the collector: one whose steps are whole collections, and Lua's own.
const WHOLE: [[&str; 2]; 2] = [["setpause", "200"], ["setstepmul", "0"]];
const USUAL: [[&str; 2]; 2] = [["setpause", "200"], ["setstepmul", "200"]];
const COLLECT: [&str; 2] = ["collect", "0"];
/// A function that passes orders to the collector of the functions' Lua.
const COLLECTOR: &[u8] = b"#!lua \
                           name=wirepaxos_collector\n\
                           redis.register_function('wirepaxos_collector', \
                           function(_, args) collectgarbage(args[1], args[2]) end)";
const COLLECTOR_NAME: &[u8] = b"wirepaxos_collector";
/// The answer to scripts that take too much memory. The preloaded library counts it.
const TOO_LARGE: &str = "LIMIT not executed: its scripts take more than 512 MiB of memory, and \
                         what they changed is undone; do less at once";

impl Replicated {
    /// Notes how much memory Lua has, in a server that was just started.
    pub(super) fn note_held(&mut self) -> Result<(), Dead> {
        self.tell_collector(COLLECT)?;
        self.held_at_start = self.server.held()?;
        Ok(())
    }

    /// Notes Lua's memory after scripts or functions were forgotten. The memory that they had isn't
    /// given to others.
    pub(super) fn note_forgotten(&mut self) -> Result<(), Error> {
        self.surviving(|state| {
            let before = state.held_at_start;
            state.note_held()?;
            state.held_at_start = state.held_at_start.min(before);
            Ok(())
        })
    }

    /// Returns how many bytes scripts may have, including the memory in use; 0 means no limit, for
    /// a server whose Lua asks for memory in another way.
    pub(super) fn usual_room(&self) -> u64 {
        self.beyond(1, USUAL_ROOM)
    }

    /// Returns `times` the memory at the server's start, and `more`; 0 means no limit.
    fn beyond(&self, times: u64, more: u64) -> u64 {
        match self.held_at_start {
            0 => 0,
            held => times * held + more,
        }
    }

    /// Collects garbage after a run if Lua has much memory, and replaces the server if that doesn't
    /// help.
    pub(super) fn bound_held(&mut self) -> Result<(), Error> {
        if self.held_at_start == 0 || self.held()? < self.beyond(1, MUCH) {
            return Ok(());
        }
        self.surviving(|state| state.tell_collector(COLLECT))?;
        if self.held()? < self.beyond(1, TOO_MUCH) {
            return Ok(());
        }
        // There are many scripts, or functions keep much for themselves.
        self.await_saved()?;
        self.begin_save(Purpose::Base)?;
        self.await_saved()?;
        self.revive()
    }

    fn held(&self) -> Result<u64, Error> {
        self.server.held().map_err(|e| self.lost(&e))
    }

    /// Gives an order to both collectors, since scripts and functions have a Lua each.
    fn tell_collector(&mut self, [what, how]: [&str; 2]) -> Result<(), Dead> {
        let (what, how) = (what.as_bytes(), how.as_bytes());
        self.server
            .order(&[b"EVAL", SEED_SCRIPT, b"0", b"0", what, how])?;
        let loaded = self.server.ask(&[b"FUNCTION", b"LOAD", COLLECTOR])?;
        // If it isn't loaded, there are no functions, or a client has a function of that name.
        if loaded.starts_with(b"$") {
            self.server
                .order(&[b"FCALL", COLLECTOR_NAME, b"0", what, how])?;
            self.server
                .order(&[b"FUNCTION", b"DELETE", COLLECTOR_NAME])?;
        }
        Ok(())
    }

    /// Executes a run, by whose memory the server has ended, on a server that is the same
    /// everywhere. Returns false if that server ends, too.
    pub(super) fn judge(&mut self, given: &Batch, reply: &mut Vec<u8>) -> Result<bool, Error> {
        let start = reply.len();
        for is_last in [false, true] {
            self.start_alike()?;
            let room = self.beyond(2, ROOM);
            let judged = self.attempt(given, room, reply).and_then(|messages| {
                let mut usual = USUAL.into_iter();
                usual.try_for_each(|how| self.tell_collector(how))?;
                Ok(messages)
            });
            let e = match judged {
                Ok(messages) => {
                    messages.iter().for_each(|told| self.voice.heard(told));
                    return Ok(true);
                }
                Err(e) => e,
            };
            reply.truncate(start);
            let ended = self
                .server
                .is_full()
                .and_then(|is_full| Ok((is_full, self.why_undone()?)));
            let why = match ended.map_err(|e| self.lost(&e))? {
                (true, _) => TOO_LARGE.into(),
                (_, Some(why)) => why,
                _ if is_last => return Err(self.lost(&e)),
                _ => continue,
            };
            self.revive()?;
            put_error(reply, &why);
            return Ok(false);
        }
        unreachable!("the last one returns")
    }

    /// Starts a server with the present contents and a Lua that is the same at every replica.
    fn start_alike(&mut self) -> Result<(), Error> {
        self.revive()?;
        let file = format!("base-{:016x}.rdb", nonce());
        let functions = self
            .save_without_functions(&file)
            .map_err(|e| self.lost(&e))?;
        self.server.end();
        let started = Server::start(
            &self.dir,
            Some(&file),
            self.voice.home,
            self.agreed.server.as_ref(),
        );
        // The file isn't needed any more, whether or not the server has started: its next start
        // uses another one.
        let _ = std::fs::remove_file(self.dir.join(&file));
        (self.server, _) = started?;
        self.load_alike(&functions).map_err(|e| self.lost(&e))
    }

    /// Writes a snapshot without functions, and returns the functions.
    fn save_without_functions(&mut self, file: &str) -> Result<Vec<Vec<u8>>, Dead> {
        let listed = self.server.order(&[b"FUNCTION", b"LIST", b"WITHCODE"])?;
        let listed =
            Value::parse(&listed).map_err(|_| Dead::other("functions aren't understood"))?;
        let code = |library: &Value<'_>| Some(library.items().last()?.text()?.to_vec());
        let mut functions: Vec<Vec<u8>> = listed.items().iter().filter_map(code).collect();
        functions.sort_unstable();
        self.server.order(&[b"FUNCTION", b"FLUSH", b"SYNC"])?;
        self.server
            .order(&[b"CONFIG", b"SET", b"dbfilename", file.as_bytes()])?;
        self.server.order(&[b"SAVE"])?;
        Ok(functions)
    }

    fn load_alike(&mut self, functions: &[Vec<u8>]) -> Result<(), Dead> {
        self.server.set_clock(self.clock.ms)?;
        let mut scripts: Vec<&Vec<u8>> = self.scripts.iter().collect();
        scripts.sort_unstable();
        for script in scripts {
            // A script that can't be compiled was refused before, too.
            self.server.ask(&[b"SCRIPT", b"LOAD", script])?;
        }
        for code in functions {
            self.server.order(&[b"FUNCTION", b"LOAD", code])?;
        }
        self.note_held()?;
        let mut whole = WHOLE.into_iter();
        whole.try_for_each(|how| self.tell_collector(how))
    }
}
