// SPDX-License-Identifier: Apache-2.0
//! What scripts may have in memory. A script that takes too much is executed nowhere, so all replicas must find the same.
//!
//! The preloaded library counts what Lua asks for (`programs/preload/arena.h`). But a server that has lived through other things has
//! other garbage, and collects it at other moments. So what it counts is a guess: a run that comes to [`USUAL_ROOM`] in it ends the
//! server. Then it is judged: a server is started for it whose Lua has done nothing but to load all scripts and functions in the order
//! of their texts. There it asks for the same memory everywhere, down to the byte, and may have [`ROOM`].
//!
//! ```text
//!  run ── less than the usual room ──────────────────────────────> its answer
//!     └── more: the server ends ──> judged ── less than the room ──> its answer
//!                                          └─ more ───────────────> LIMIT, and nothing has happened
//! ```
//!
//! **Why nobody executes what another one refuses.** What the judge finds is the same everywhere. So whatever it would refuse must
//! come to the usual room in each server, whatever that has lived through. In the judge's server the collector does nothing by
//! halves: a step of it is a whole collection, and the next one comes when Lua has twice what that one has left. A run is refused
//! there with twice the memory of before it and [`ROOM`] more. So, beyond the memory of before, it could reach half of [`ROOM`] when
//! garbage was last collected, or it takes the rest within one operation. The same operations in another server make the same things
//! reachable, and whatever is reachable there is in its memory. Only a table may be half as large, if its keys are hashed by their
//! addresses. So every other server comes to a quarter of [`ROOM`]: twice its limit.

use replica::Error;

use super::kept::Given;
use super::resp::{Value, put_error};
use super::saves::Purpose;
use super::server::{Dead, Server, nonce};
use super::state::{Replicated, SEED_SCRIPT};

/// What scripts may have beyond what was there when the server was started, before they are judged.
const USUAL_ROOM: u64 = ROOM / 8;
/// The same in the judge's server, beyond twice that.
const ROOM: u64 = 512 << 20;
/// With so much of it garbage is collected behind a run.
const MUCH: u64 = USUAL_ROOM / 2;
/// If so much is left the server is replaced by one that begins without it.
const TOO_MUCH: u64 = USUAL_ROOM / 4 * 3;
/// Steps of the collector that end with the collection, and Lua's own.
const WHOLE: [[&str; 2]; 2] = [["setpause", "200"], ["setstepmul", "0"]];
const USUAL: [[&str; 2]; 2] = [["setpause", "200"], ["setstepmul", "200"]];
const COLLECT: [&str; 2] = ["collect", "0"];
/// A function that tells the collector of functions.
const COLLECTOR: &[u8] = b"#!lua name=wirepaxos_collector\nredis.register_function('wirepaxos_collector', function(_, args) \
                           collectgarbage(args[1], args[2]) end)";
const COLLECTOR_NAME: &[u8] = b"wirepaxos_collector";
/// The answer to scripts that take too much. The preloaded library counts it.
const TOO_LARGE: &str = "LIMIT not executed: its scripts take more than 512 MiB of memory, and what they changed is undone; do less \
                         at once";

impl Replicated {
    /// The server has done nothing but to start.
    pub(super) fn note_held(&mut self) -> Result<(), Dead> {
        self.tell_collector(COLLECT)?;
        self.held_at_start = self.server.held()?;
        Ok(())
    }

    /// Scripts or functions are forgotten. What they had isn't left to others.
    pub(super) fn note_forgotten(&mut self) -> Result<(), Error> {
        self.surviving(|state| {
            let before = state.held_at_start;
            state.note_held()?;
            state.held_at_start = state.held_at_start.min(before);
            Ok(())
        })
    }

    /// What scripts may have, together with what is there. A server whose Lua asks for memory in another way has no limit.
    pub(super) fn usual_room(&self) -> u64 {
        self.beyond(1, USUAL_ROOM)
    }

    /// So many times what was there at the start, and more.
    fn beyond(&self, times: u64, more: u64) -> u64 {
        match self.held_at_start {
            0 => 0,
            held => times * held + more,
        }
    }

    /// Keeps the memory of Lua small, behind a run.
    pub(super) fn bound_held(&mut self) -> Result<(), Error> {
        if self.held_at_start == 0 || self.held()? < self.beyond(1, MUCH) {
            return Ok(());
        }
        self.surviving(|state| state.tell_collector(COLLECT))?;
        if self.held()? < self.beyond(1, TOO_MUCH) {
            return Ok(());
        }
        // Many scripts, or what functions keep for themselves.
        self.await_saved()?;
        self.begin_save(Purpose::Base)?;
        self.await_saved()?;
        self.revive()
    }

    fn held(&self) -> Result<u64, Error> {
        self.server.held().map_err(|e| self.lost(&e))
    }

    /// Scripts and functions have a Lua each.
    fn tell_collector(&mut self, [what, how]: [&str; 2]) -> Result<(), Dead> {
        let (what, how) = (what.as_bytes(), how.as_bytes());
        self.server
            .order(&[b"EVAL", SEED_SCRIPT, b"0", b"0", what, how])?;
        let loaded = self.server.ask(&[b"FUNCTION", b"LOAD", COLLECTOR])?;
        // Otherwise there are no functions, or somebody has one of that name.
        if loaded.starts_with(b"$") {
            self.server
                .order(&[b"FCALL", COLLECTOR_NAME, b"0", what, how])?;
            self.server
                .order(&[b"FUNCTION", b"DELETE", COLLECTOR_NAME])?;
        }
        Ok(())
    }

    /// A run has ended the server by its memory. Gives it to one that is the same everywhere; false if that ends, too.
    pub(super) fn judge(&mut self, given: &Given, reply: &mut Vec<u8>) -> Result<bool, Error> {
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

    /// Starts a server with the contents of now, whose Lua is as everybody's would be.
    fn start_alike(&mut self) -> Result<(), Error> {
        self.revive()?;
        let file = format!("base-{:016x}.rdb", nonce());
        let functions = self
            .save_without_functions(&file)
            .map_err(|e| self.lost(&e))?;
        self.server.end();
        let started = Server::start(&self.dir, Some(&file), self.voice.home);
        // Whatever comes of it, what the next start begins with lies elsewhere.
        let _ = std::fs::remove_file(self.dir.join(&file));
        (self.server, _) = started?;
        self.load_alike(&functions).map_err(|e| self.lost(&e))
    }

    /// Returns the functions.
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
            // One that can't be compiled was refused before, too.
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
