// SPDX-License-Identifier: Apache-2.0
//! A server with the replicated state that is kept beside it: the clock, the watched keys, the
//! scripts that EVALSHA knows, and the replica's records. The server is given the records when a
//! [snapshot](super::snapshots) is made.
//!
//! | in database 1 | |
//! |---|---|
//! | `about` | format u8, the clock, how often dice were seeded u64, what follows |
//! | | the [agreed](super::agreed_server) server, the [notifications](super::notifications) u16 |
//! | | the last version given u64, then each watched key: length u32, key, version u64 |
//! | `records` | a hash: the replica's records |
//! | `scripts` | a set: the scripts' texts. A snapshot has the functions, and no scripts |

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use replica::{Error, MOVE_AWAY};
use sha2::{Digest, Sha256};

use super::agreed_server::AgreedServer;
use super::catalogue::{Catalogue, Spec};
use super::clock::Clock;
use super::command::{Command, Stamp};
use super::comparison::Comparison;
use super::news::Voice;
use super::notifications::Notifications;
use super::pipeline::Pipeline;
use super::replay_log::{Batch, ReplayLog};
use super::resp::{Malformed, Value, put_error, put_request};
use super::saves::Saving;
use super::server::{ClientState, Dead, Server, User};
use super::sets::KnownSets;
use super::usage::Usage;
use super::{about, digest, rules};
use crate::watches::Watches;

pub(super) const ABOUT: &[u8] = b"about";
pub(super) const RECORDS: &[u8] = b"records";
pub(super) const SCRIPTS: &[u8] = b"scripts";

/// The script that is run before each script, since the generator behind `math.random` goes on from
/// one script to the next, and no snapshot has it. With further arguments, which no client can give
/// it, it controls [memory](super::script_memory).
pub(super) const SEED_SCRIPT: &[u8] =
    b"math.randomseed(ARGV[1]) if ARGV[2] then collectgarbage(ARGV[2],ARGV[3]) end";
const SEEDS: u64 = 1 << 31;

/// The answer to scripts that take too long. The preloaded library counts their steps.
pub(super) const TOO_LONG: &str = "LIMIT not executed: its scripts take more than 200 million \
                                   steps (of which a command takes 200), and what they changed is \
                                   undone; do less at once";

pub(super) const MALFORMED: &str = "ERR malformed command";

/// One partition's server with the replicated state beside it.
pub(super) struct Replicated {
    pub(super) dir: PathBuf,
    pub(super) voice: Voice,
    pub(super) server: Server,
    pub(super) catalogue: Arc<Catalogue>,
    /// The file that the server began with; none means empty.
    pub(super) contents: Option<String>,
    /// That file, if it isn't a checkpoint.
    pub(super) base: Option<String>,
    pub(super) clock: Clock,
    pub(super) agreed: AgreedServer,
    pub(super) notifications: Notifications,
    /// How this server differs from the agreed one, until that was shown.
    pub(super) remarks: Option<Vec<String>>,
    pub(super) comparison: Comparison,
    pub(super) watches: Watches,
    pub(super) scripts: HashSet<Vec<u8>>,
    /// How often the random numbers were seeded: once for each script that was run, and for each
    /// SPOP.
    pub(super) drawn: u64,
    pub(super) sets: KnownSets,
    pub(super) records: HashMap<Vec<u8>, Vec<u8>>,
    /// The records that differ in the server, and, below, the scripts that it lacks.
    pub(super) changed_records: HashSet<Vec<u8>>,
    pub(super) new_scripts: Vec<Vec<u8>>,
    /// The server may also have records and scripts that were removed here.
    pub(super) writes_all: bool,
    pub(super) replay_log: ReplayLog,
    pub(super) pipeline: Pipeline,
    /// Set if the server has died of a command for good: the number of commands before it whose
    /// answers nobody has taken.
    pub(super) died_of: Option<usize>,
    pub(super) saving: Saving,
    pub(super) usage: Usage,
    /// The bytes that Lua had in memory when the server was started.
    pub(super) held_at_start: u64,
    /// Everything executed is committed, so the records describe what the server holds.
    pub(super) is_committed: bool,
    /// Something has changed since the last snapshot that is to be a checkpoint.
    pub(super) is_changed: bool,
}

impl Replicated {
    /// Starts a server on a file of this directory, or on none.
    pub fn open(dir: &Path, contents: Option<&str>, voice: Voice) -> Result<Replicated, Error> {
        let (server, catalogue) = Server::start(dir, contents, voice.home, None)?;
        let mut state = Replicated {
            dir: dir.to_owned(),
            voice,
            server,
            catalogue: Arc::new(catalogue),
            contents: contents.map(str::to_owned),
            base: None,
            clock: Clock::default(),
            agreed: AgreedServer::default(),
            notifications: Notifications::default(),
            remarks: None,
            comparison: Comparison::new(),
            watches: Watches::default(),
            scripts: HashSet::new(),
            drawn: 0,
            sets: KnownSets::default(),
            records: HashMap::new(),
            changed_records: HashSet::new(),
            new_scripts: Vec::new(),
            writes_all: false,
            replay_log: ReplayLog::default(),
            pipeline: Pipeline::default(),
            died_of: None,
            saving: Saving::default(),
            usage: Usage::default(),
            held_at_start: 0,
            is_committed: true,
            is_changed: contents.is_none(),
        };
        if contents.is_some() {
            state.load().map_err(|e| match e {
                Loading::Dead(e) => state.lost(&e),
                Loading::Strange(why) => Error(format!(
                    "the contents of {} aren't those of a replica: {why}; {MOVE_AWAY}",
                    dir.display()
                )),
            })?;
        }
        state.note_held().map_err(|e| state.lost(&e))?;
        state.end_order();
        state.follow_agreed()?;
        Ok(state)
    }

    fn load(&mut self) -> Result<(), Loading> {
        let about = self.server.order(&[b"GET", ABOUT])?;
        let about = Value::parse(&about)
            .ok()
            .and_then(|v| Some(v.text()?.to_vec()));
        let about = about.ok_or(Loading::Strange("they name no format".into()))?;
        let about = about::parse(&about).map_err(Loading::Strange)?;
        (self.clock, self.drawn, self.watches) = (about.clock, about.drawn, about.watches);
        (self.agreed, self.notifications) = (about.agreed, about.notifications);
        let records = self.server.order(&[b"HGETALL", RECORDS])?;
        let records = Value::parse(&records).map_err(|_| Loading::Strange("records".into()))?;
        for pair in records.items().chunks_exact(2) {
            if let (Some(key), Some(value)) = (pair[0].text(), pair[1].text()) {
                self.records.insert(key.to_vec(), value.to_vec());
            }
        }
        self.load_scripts()?;
        self.scripts = self.stored_scripts()?.into_iter().collect();
        Ok(())
    }

    fn stored_scripts(&mut self) -> Result<Vec<Vec<u8>>, Dead> {
        let scripts = self.server.order(&[b"SMEMBERS", SCRIPTS])?;
        let texts = Value::parse(&scripts).map_err(|_| Dead::other("scripts aren't understood"))?;
        let texts = texts.items().iter();
        Ok(texts
            .filter_map(|text| Some(text.text()?.to_vec()))
            .collect())
    }

    fn load_scripts(&mut self) -> Result<(), Dead> {
        for script in self.stored_scripts()? {
            // A script that can't be compiled was refused before, too.
            self.server.ask(&[b"SCRIPT", b"LOAD", &script])?;
        }
        Ok(())
    }

    /// Returns the number of commands before the one of which servers die, among those whose
    /// answers nobody has taken.
    pub fn died_of(&self) -> Option<usize> {
        self.died_of
    }

    pub fn process(&self) -> u32 {
        self.server.process()
    }

    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.clone()
    }

    /// Returns the group's time.
    pub fn ms(&self) -> u64 {
        self.clock.ms
    }

    // ---- Commands

    /// Executes a command of the log, or one that only reads.
    pub fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        self.follow_listeners()?;
        self.settle()?;
        self.run(Command::parse(command), reply)?;
        self.tell_of_keys()
    }

    /// Executes a parsed command, while nothing is in flight.
    pub(super) fn run(
        &mut self,
        command: Result<Command<'_>, Malformed>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match command {
            Ok(Command::Call { stamp, resp3, args }) => {
                self.begins(stamp);
                self.call(resp3, &args, reply)
            }
            Ok(Command::Exec {
                stamp,
                resp3,
                watched,
                commands,
            }) => {
                self.begins(stamp);
                self.exec(resp3, &watched, &commands, reply)
            }
            Ok(Command::Watch { stamp, keys }) => {
                self.begins(stamp);
                self.watch(&keys, reply)
            }
            Ok(Command::Query { resp3, args }) => self.query(resp3, &args, reply),
            Ok(Command::Report {
                stamp,
                voices,
                check,
            }) => self.hear_report(stamp, voices, check),
            Ok(Command::Server {
                node,
                members,
                fingerprint,
            }) => self.hear_of_server(node, &members, fingerprint, reply),
            Err(_) => {
                put_error(reply, MALFORMED);
                Ok(())
            }
        }
    }

    /// Begins a command of the log, which moves the clock.
    pub(super) fn begins(&mut self, stamp: Stamp) {
        self.note_command();
        self.clock.take(stamp);
    }

    /// Notes that a command of the log changes the state, if only the clock.
    pub(super) fn note_command(&mut self) {
        self.is_committed = false;
        self.is_changed = true;
    }

    pub(super) fn query(
        &mut self,
        resp3: bool,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let catalogue = self.catalogue.clone();
        match catalogue.judge(args, false) {
            Ok(spec) if spec.is_read => {
                let mut requests = Vec::new();
                put_request(&mut requests, args);
                let given = self.given(User::Client, resp3, requests, 1);
                self.give(&given, reply).map(|_| ())
            }
            Ok(spec) => {
                put_error(reply, &format!("ERR {} isn't a read", spec.name));
                Ok(())
            }
            Err(why) => {
                put_error(reply, &why);
                Ok(())
            }
        }
    }

    fn call(&mut self, resp3: bool, args: &[&[u8]], reply: &mut Vec<u8>) -> Result<(), Error> {
        if let Some(asked) = Notifications::asked(args) {
            return self.configure(asked, reply);
        }
        let catalogue = self.catalogue.clone();
        let spec = match catalogue.judge(args, false) {
            Ok(spec) => spec,
            Err(why) => {
                put_error(reply, &why);
                return Ok(());
            }
        };
        if spec.name == "spop" {
            self.touch(spec, args);
            return self.spop(resp3, args, reply);
        }
        if spec.is_message() {
            self.publish(spec, args, reply);
            return Ok(());
        }
        self.note_script(spec, args)?;
        let (mut requests, mut count) = (Vec::new(), 1);
        let user = user_of(spec);
        if user == User::Script {
            count += self.put_seed(&mut requests);
        }
        rules::put_given(&mut requests, spec, args);
        match self.asks_what_changes(spec) {
            true => self.touch_what_changes(spec, args)?,
            false => self.touch(spec, args),
        }
        let given = self.given(user, resp3, requests, count);
        match spec.is_read {
            true => self.give(&given, reply).map(|_| ())?,
            false => self.give_and_keep(given.with_scripts(scripts_of(spec)), reply)?,
        }
        match rules::forgets_code(spec) {
            true => self.note_forgotten(),
            false => Ok(()),
        }
    }

    /// Notes which keys may change, for those who watch them or wait for them.
    pub(super) fn touch(&mut self, spec: &Spec, args: &[&[u8]]) {
        if spec.is_read || self.watches.is_empty() && !self.voice.is_awaited() {
            return;
        }
        let keys = spec.keys(args);
        if keys.has_others {
            self.watches.touched_all();
            self.voice.any_changed();
        }
        for (at, writes) in keys.known {
            if writes {
                self.watches.touched(args[at]);
                self.voice.changed(args[at]);
            }
        }
    }

    /// Returns whether the server's contents decide which watched keys the command changes, rather
    /// than its arguments.
    pub(super) fn asks_what_changes(&self, spec: &Spec) -> bool {
        let by_contents = ["smove", "flushall", "flushdb"];
        !self.watches.is_empty() && by_contents.contains(&spec.name.as_str())
    }

    /// Notes the changed keys as [`touch`](Self::touch) does, for a command whose changes depend on
    /// the contents, as Redis has it. Nothing may be in flight.
    fn touch_what_changes(&mut self, spec: &Spec, args: &[&[u8]]) -> Result<(), Error> {
        match args {
            [_, from, to, member] if spec.name == "smove" => {
                if from != to && self.is_one(&[b"SISMEMBER", from, member])? {
                    self.watches.touched(from);
                    self.voice.changed(from);
                    if !self.is_one(&[b"SISMEMBER", to, member])? {
                        self.watches.touched(to);
                        self.voice.changed(to);
                    }
                }
            }
            _ => {
                let watched: Vec<Vec<u8>> = self.watches.all().map(|(key, _)| key.into()).collect();
                let keys: Vec<&[u8]> = watched.iter().map(Vec::as_slice).collect();
                for (key, exists) in keys.iter().zip(self.exist(&keys)?) {
                    if exists {
                        self.watches.touched(key);
                    }
                }
                self.voice.any_changed();
            }
        }
        Ok(())
    }

    /// Keeps the text of a script, which EVALSHA may name later. A new text is loaded first, so
    /// that what the server knows doesn't depend on how EVAL ends.
    pub(super) fn note_script(&mut self, spec: &Spec, args: &[&[u8]]) -> Result<(), Error> {
        let text = match spec.name.as_str() {
            "eval" | "eval_ro" => args[1],
            "script|load" => args[2],
            "script|flush" if rules::flushes(args) => {
                self.scripts.clear();
                self.writes_all = true;
                return Ok(());
            }
            _ => return Ok(()),
        };
        if !self.scripts.insert(text.to_vec()) {
            return Ok(());
        }
        self.new_scripts.push(text.to_vec());
        let mut load = Vec::new();
        put_request(&mut load, &[b"SCRIPT", b"LOAD", text]);
        let given = self.given(User::Client, false, load, 1);
        self.give_and_keep(given, &mut Vec::new())
    }

    /// Puts a request that seeds the scripts' random numbers, by the number of seedings so far.
    /// Returns how many requests it puts.
    pub(super) fn put_seed(&mut self, requests: &mut Vec<u8>) -> usize {
        self.drawn += 1;
        // The seed has a fixed length, so that scripts need the same memory whatever it is.
        let seed = format!("{:010}", self.drawn % SEEDS);
        put_request(requests, &[b"EVAL", SEED_SCRIPT, b"0", seed.as_bytes()]);
        1
    }

    // ---- The server

    pub(super) fn given(&self, user: User, resp3: bool, requests: Vec<u8>, count: usize) -> Batch {
        Batch {
            ms: self.clock.ms,
            client: ClientState { user, resp3 },
            requests,
            count,
            scripts: 0,
            speaks: false,
        }
    }

    /// Executes something that may change anything, and keeps it unless it was undone.
    pub(super) fn give_and_keep(&mut self, given: Batch, reply: &mut Vec<u8>) -> Result<(), Error> {
        self.sets.clear();
        if self.give(&given, reply)? {
            let is_run = given.scripts > 0;
            self.replay_log.push(given);
            self.bound_kept()?;
            if is_run {
                self.bound_held()?;
            }
        }
        Ok(())
    }

    /// Gives requests to the server while nothing is in flight; if the server dies of them, once
    /// more to the next one. Returns false if its scripts take too long or too much memory; then
    /// the next server isn't given them.
    ///
    /// A server may die of the events that it tells, which differ between replicas. So a command is
    /// what servers die of only if the last one told none.
    pub(super) fn give(&mut self, given: &Batch, reply: &mut Vec<u8>) -> Result<bool, Error> {
        let start = reply.len();
        for deaths in 1.. {
            let is_last = deaths > 1 && !self.server.notifies();
            let e = match self.attempt(given, self.usual_room(), reply) {
                Ok(messages) => {
                    messages.iter().for_each(|told| self.voice.heard(told));
                    return Ok(true);
                }
                Err(e) => e,
            };
            reply.truncate(start);
            if self.server.is_full().map_err(|e| self.lost(&e))? {
                return self.judge(given, reply);
            }
            let why = self.why_undone().map_err(|e| self.lost(&e))?;
            if is_last && why.is_none() {
                // Nothing else was in flight.
                self.died_of = Some(self.pipeline.answered());
                return Err(self.lost(&e));
            }
            self.pipeline.is_alone = deaths > 1;
            let revived = self.revive();
            self.pipeline.is_alone = false;
            revived?;
            if let Some(why) = why {
                put_error(reply, &why);
                return Ok(false);
            }
        }
        unreachable!("the last one returns")
    }

    /// Returns why the server has ended, if scripts took too many steps or did something that is
    /// refused.
    pub(super) fn why_undone(&self) -> Result<Option<String>, Dead> {
        if self.server.is_over()? {
            return Ok(Some(TOO_LONG.into()));
        }
        let refusal = self.server.refusal()?;
        Ok(
            refusal
                .map(|why| format!("{why}; nothing was executed, what came before it is undone")),
        )
    }

    /// Does something with the server; if the server dies of it, once more with the next one.
    pub(super) fn surviving<T>(
        &mut self,
        mut act: impl FnMut(&mut Replicated) -> Result<T, Dead>,
    ) -> Result<T, Error> {
        match act(self) {
            Ok(done) => Ok(done),
            Err(_) => {
                self.revive()?;
                act(self).map_err(|e| self.lost(&e))
            }
        }
    }

    /// Starts another server in place of one that has died, and gives it everything that the other
    /// one was given. Only snapshots are left of the dead one, taken when nothing was in flight, so
    /// it doesn't matter how much it had executed.
    ///
    /// A server that dies before it has all of it is replaced once more.
    pub(super) fn revive(&mut self) -> Result<(), Error> {
        match self.start_again()? {
            Ok(()) => Ok(()),
            Err(_) => self.start_again()?.map_err(|e| self.lost(&e)),
        }
    }

    fn start_again(&mut self) -> Result<Result<(), Dead>, Error> {
        self.server.end();
        let (server, catalogue) = Server::start(
            &self.dir,
            self.contents.as_deref(),
            self.voice.home,
            self.agreed.server.as_ref(),
        )?;
        self.server = server;
        self.catalogue = Arc::new(catalogue);
        self.saving.running = None;
        self.writes_all = true;
        let again = self.load_scripts().and_then(|()| {
            self.note_held()?;
            self.server.replay(self.replay_log.requests())?;
            self.server.set_clock(self.clock.ms)?;
            if !self.pipeline.is_alone {
                self.server.notify(self.voice.wanted())?;
            }
            self.fly_again()
        });
        Ok(again)
    }

    pub(super) fn lost(&self, why: &Dead) -> Error {
        Error(format!(
            "the Redis server in {} is lost: {why}",
            self.dir.display()
        ))
    }

    // ----

    pub fn digest(&mut self) -> Result<[u8; 32], Error> {
        self.settle()?;
        self.surviving(|state| {
            let mut hash = Sha256::new();
            state.server.set_clock(state.clock.ms)?;
            let mut clock = Vec::new();
            state.clock.emit(&mut clock);
            hash.update(&clock);
            digest::of(&mut state.server, &mut hash)?;
            Ok(hash.finalize().into())
        })
    }
}

pub(super) fn user_of(spec: &Spec) -> User {
    match spec.is_script {
        true => User::Script,
        false => User::Client,
    }
}

/// Returns the number of scripts that a command runs and that may take long. Loading a library of
/// functions runs the code outside of them.
pub(super) fn scripts_of(spec: &Spec) -> u32 {
    let loads = ["function|load", "function|restore"].contains(&spec.name.as_str());
    u32::from(spec.is_script || loads)
}

/// The reason why contents can't be loaded.
enum Loading {
    Dead(Dead),
    Strange(String),
}

impl From<Dead> for Loading {
    fn from(e: Dead) -> Self {
        Loading::Dead(e)
    }
}
