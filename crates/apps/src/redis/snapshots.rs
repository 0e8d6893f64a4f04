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

    /// Begins a checkpoint; its number. `None` if the last one has everything.
    pub fn begin_checkpoint(&mut self) -> Result<Option<u64>, Error> {
        if !self.is_changed {
            return Ok(None);
        }
        let number = self.saving.next_number();
        self.want_checkpoint()?;
        Ok(Some(number))
    }

    /// One begins now, or as soon as another snapshot is written and everything is committed.
    fn want_checkpoint(&mut self) -> Result<(), Error> {
        self.saving.is_wanted = true;
        if self.is_committed && !self.is_saving()? {
            self.begin_save(Purpose::Checkpoint)?;
        }
        Ok(())
    }

    /// Everything is committed, no snapshot is under way, and nothing in flight: so the server has executed exactly what is
    /// kept.
    pub fn begin_save(&mut self, purpose: Purpose) -> Result<Save, Error> {
        debug_assert!(!self.pipeline.changes());
        let save = self.saving.next(purpose, self.kept.cut());
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

    /// Brings database 1 up to date.
    fn write_records(&mut self) {
        let server = &mut self.server;
        let about = about::emit(&self.clock, self.drawn, &self.watches);
        // They are stored all together.
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

    /// Whether a snapshot is being written.
    pub fn is_saving(&mut self) -> Result<bool, Error> {
        if self.saving.running.is_none() {
            return Ok(false);
        }
        let saves = self.surviving(|state| state.server.saves())?;
        if saves.is_running {
            return Ok(true);
        }
        // A server that was started anew writes none, and knows nothing of the one before.
        if self.saving.running.is_some() && !saves.was_good {
            return Err(Error(format!(
                "the Redis server in {} couldn't write a snapshot: look at its log {}, and whether the disk is full",
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

    /// Makes a snapshot for the next start of the server, if it was given so much since the last one.
    pub(super) fn bound_kept(&mut self) -> Result<(), Error> {
        if self.kept.looks() && !self.is_saving()? && self.kept.is_much() {
            self.begin_save(Purpose::Base)?;
        }
        while self.kept.is_most() && self.is_saving()? {
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// A server that has to be started anew begins with this file from now on, and gets what was given behind this place.
    fn begin_with(&mut self, file: String, given: u64) {
        if let Some(base) = self.base.take() {
            // Otherwise it is removed at the next start.
            let _ = std::fs::remove_file(self.dir.join(base));
        }
        if file != super::STATE {
            self.base = Some(file.clone());
        }
        self.contents = Some(file);
        self.kept.forget_to(given);
    }

    /// Whether a checkpoint of at least this number is in place.
    pub fn has_checkpoint(&self, number: u64) -> bool {
        self.saving.durable >= number
    }

    /// A snapshot that is whole and to be put in place. If none is on its way, because a server has died, another one is
    /// begun.
    pub fn written(&mut self) -> Result<Option<Save>, Error> {
        let saving = self.is_saving()?;
        if self.saving.written.is_none() && !saving {
            self.want_checkpoint()?;
        }
        Ok(self.saving.written.clone())
    }

    /// From now on a server that has to be started anew begins with this one.
    pub fn adopt(
        &mut self,
        save: &Save,
        put_in_place: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        put_in_place()?;
        // There may be a later base.
        if self.kept.before <= save.given {
            self.begin_with(super::STATE.to_owned(), save.given);
        }
        self.saving.durable = save.number;
        self.saving.written = None;
        Ok(())
    }

    /// The file that it began with has come into place.
    pub fn is_in_place(&mut self) {
        self.contents = Some(super::STATE.to_owned());
    }

    /// Whether a copy is whole; an error if nothing comes of it.
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
