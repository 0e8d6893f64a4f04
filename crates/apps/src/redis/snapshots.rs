// SPDX-License-Identifier: Apache-2.0
//! A replica's records and scripts beside its keys, and snapshots of all of it.

use replica::application::RecordVisitor;
use replica::{Error, Record};

use super::saves::{Purpose, Save};
use super::state::{ABOUT, RECORDS, Replicated, SCRIPTS};
use super::{LOOK_AGAIN, about};

impl Replicated {
    pub fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        debug_assert!(!self.pipeline.changes());
        self.is_changed |= !records.is_empty();
        for Record { key, value } in records {
            self.changed_records.insert(key.clone());
            match value {
                Some(value) => self.records.insert(key.clone(), value.clone()),
                None => self.records.remove(key),
            };
        }
        self.is_committed = true;
        if self.saving.is_wanted && !self.is_saving()? {
            self.begin_save(Purpose::Checkpoint)?;
        }
        Ok(())
    }

    pub fn records(&self, visit: &mut RecordVisitor<'_>) {
        let mut records: Vec<_> = self.records.iter().collect();
        records.sort_unstable();
        records
            .into_iter()
            .for_each(|(key, value)| visit(key, value));
    }

    /// Begins a checkpoint and returns its number, or `None` if the last one has everything.
    pub fn begin_checkpoint(&mut self) -> Result<Option<u64>, Error> {
        if !self.is_changed {
            return Ok(None);
        }
        let number = self.saving.next_number();
        self.want_checkpoint()?;
        Ok(Some(number))
    }

    /// Begins a checkpoint now, or as soon as another snapshot is written and everything is
    /// committed.
    fn want_checkpoint(&mut self) -> Result<(), Error> {
        self.saving.is_wanted = true;
        if self.is_committed && !self.is_saving()? {
            self.begin_save(Purpose::Checkpoint)?;
        }
        Ok(())
    }

    /// Begins a snapshot. Everything must be committed and nothing under way or in flight, so that
    /// the server has executed exactly the commands that are kept.
    pub fn begin_save(&mut self, purpose: Purpose) -> Result<Save, Error> {
        debug_assert!(!self.pipeline.changes());
        let save = self.saving.next(purpose, self.replay_log.cut());
        self.surviving(|state| {
            state.write_records();
            state
                .server
                .order(&[b"CONFIG", b"SET", b"dbfilename", save.file.as_bytes()])?;
            state.server.order(&[b"BGSAVE"])
        })?;
        self.changed_records.clear();
        self.new_scripts.clear();
        self.writes_all = false;
        if purpose == Purpose::Checkpoint {
            self.saving.is_wanted = false;
            self.is_changed = false;
        }
        self.saving.running = Some(save.clone());
        Ok(save)
    }

    /// Brings the replica's own database up to date.
    fn write_records(&mut self) {
        let server = &mut self.server;
        let agreed = (&self.agreed, self.notifications);
        let about = about::emit(&self.clock, self.drawn, agreed, &self.watches);
        // The watched keys are stored all together.
        self.watches.take_changes();
        server.queue(&[b"SET", ABOUT, &about]);
        if self.writes_all {
            server.queue(&[b"DEL", RECORDS, SCRIPTS]);
            for (key, value) in &self.records {
                server.queue(&[b"HSET", RECORDS, key, value]);
            }
            for script in &self.scripts {
                server.queue(&[b"SADD", SCRIPTS, script]);
            }
            return;
        }
        for key in &self.changed_records {
            match self.records.get(key) {
                Some(value) => server.queue(&[b"HSET", RECORDS, key, value]),
                None => server.queue(&[b"HDEL", RECORDS, key]),
            }
        }
        for script in &self.new_scripts {
            server.queue(&[b"SADD", SCRIPTS, script]);
        }
    }

    /// Returns whether a snapshot is being written.
    pub fn is_saving(&mut self) -> Result<bool, Error> {
        if self.saving.running.is_none() {
            return Ok(false);
        }
        let saves = self.surviving(|state| state.server.saves())?;
        if saves.is_running {
            return Ok(true);
        }
        // A server that was started anew writes no snapshot, and knows nothing of the last
        // server's.
        if self.saving.running.is_some() && !saves.was_good {
            return Err(Error(format!(
                "the Redis server in {} couldn't write a snapshot: look at its log {}, and whether \
                 the disk is full",
                self.dir.display(),
                self.dir.join("server.log").display()
            )));
        }
        if let Some(base) = self.saving.ended() {
            self.begin_with(base.file, base.given);
        }
        Ok(false)
    }

    /// Waits until no snapshot is being written.
    pub(super) fn await_saved(&mut self) -> Result<(), Error> {
        while self.is_saving()? {
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Makes a snapshot for the server's next start if it was given much since the last one.
    pub(super) fn bound_kept(&mut self) -> Result<(), Error> {
        if self.replay_log.looks() && !self.is_saving()? && self.replay_log.is_much() {
            self.begin_save(Purpose::Base)?;
        }
        while self.replay_log.is_most() && self.is_saving()? {
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Makes the server's next start begin with this file; it is then given what was given behind
    /// this place.
    fn begin_with(&mut self, file: String, given: u64) {
        if let Some(base) = self.base.take() {
            // If that fails, the file is removed at the next start of the process.
            let _ = std::fs::remove_file(self.dir.join(base));
        }
        if file != super::STATE {
            self.base = Some(file.clone());
        }
        self.contents = Some(file);
        self.replay_log.forget_to(given);
    }

    /// Returns whether a checkpoint of at least this number is in place.
    pub fn has_checkpoint(&self, number: u64) -> bool {
        self.saving.durable >= number
    }

    /// Returns a checkpoint that is whole and must be put in place. If none is on its way, because
    /// a server has died, another one is begun.
    pub fn written(&mut self) -> Result<Option<Save>, Error> {
        let saving = self.is_saving()?;
        if self.saving.written.is_none() && !saving {
            self.want_checkpoint()?;
        }
        Ok(self.saving.written.clone())
    }

    /// Puts a checkpoint in place, and makes the server's next start begin with it.
    pub fn adopt(
        &mut self,
        save: &Save,
        put_in_place: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        put_in_place()?;
        // There may be a later base, which is kept then.
        if self.replay_log.before <= save.given {
            self.begin_with(super::STATE.to_owned(), save.given);
        }
        self.saving.durable = save.number;
        self.saving.written = None;
        Ok(())
    }

    /// Notes that the file with which the server began was put in place.
    pub fn is_in_place(&mut self) {
        self.contents = Some(super::STATE.to_owned());
    }

    /// Returns whether a copy is whole, or an error if it was lost.
    pub fn has_copy(&mut self, number: u64) -> Result<bool, Error> {
        let runs = self.is_saving()?
            && self
                .saving
                .running
                .as_ref()
                .is_some_and(|s| s.number == number);
        match (runs, self.saving.copied >= number) {
            (_, true) => Ok(true),
            (true, false) => Ok(false),
            (false, false) => Err(Error(
                "the Redis server has died while it wrote a copy".into(),
            )),
        }
    }
}
