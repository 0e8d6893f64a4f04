// SPDX-License-Identifier: Apache-2.0
//! Does the jobs that other threads leave, and keeps the promises to the partition's siblings.

use std::time::Instant;

use replica::protocol::CommandPlace;
use tracing::warn;

use super::super::control_thread::Ask;
use super::super::node_protocol::NodeProtocol;
use super::super::promises;
use super::handle::Job;
use super::{ASK_EPOCH_INTERVAL, ASK_VIEW_INTERVAL, REPORT_INTERVAL, WorkerThread, fatal, stand};
use crate::Error;
use crate::host::is_due;

impl<G: NodeProtocol> WorkerThread<G> {
    pub(super) fn take_jobs(&mut self) -> Result<(), Error> {
        let mut heard = false;
        while let Ok(job) = self.jobs.try_recv() {
            let now = self.now();
            // Some jobs take long, and other answers must not wait for one.
            if self.shares && !matches!(job, Job::Sibling { .. } | Job::Read(_)) {
                self.store()?;
                self.outbox.flush(&mut self.plane)?;
            }
            match job {
                Job::Sibling { from, message } => {
                    self.worker.sibling(now, from, message);
                    heard = true;
                }
                Job::Read(reads) => {
                    self.worker.read(now, reads);
                    heard = true;
                }
                Job::View { view, leader } => {
                    self.outbox.links.set_leader(leader);
                    if let Some(given_up) = &view.given_up {
                        self.worker.give_up(now, &given_up.ranges());
                    }
                    if let Some((epoch, at)) = view.begins(self.pid) {
                        self.worker.begins(epoch, at);
                    }
                    self.worker.configure(now, &G::epochs(&view, self.pid));
                    if let Some(epoch) = self.worker.agreement_status().contradiction {
                        self.link.ask(Ask::Contradiction(epoch));
                    }
                    // If the epoch begins below what was executed, the worker stops here.
                    self.finish(now)?;
                }
                Job::Lane { epoch, lane } => self.worker.set_lane(now, epoch, lane),
                Job::Incarnation(number) => self
                    .worker
                    .set_incarnation(number)
                    .map_err(|e| fatal(self.pid, e))?,
                Job::LetGoOn { nonce, start } => {
                    self.worker.agreement_mut().let_go_on(now, nonce, start);
                    self.finish(now)?;
                }
                Job::StopExecution(until) => {
                    let stopped = self.worker.stop_execution(until);
                    stopped.map_err(|e| fatal(self.pid, e))?;
                    self.finish(now)?;
                }
                Job::Skip(inst) => match promises::ordered(&self.worker, inst) {
                    Ok(place) => {
                        warn!(
                            instance = inst,
                            "an operator orders that this command takes no effect"
                        );
                        self.promise(place, true)?;
                    }
                    Err(why) => warn!(instance = inst, "the order to skip is refused: {why}"),
                },
                Job::Order(order) => self.obey(order)?,
                Job::Digest(answer) => {
                    let (next, digest) = self.worker.digest().map_err(|e| fatal(self.pid, e))?;
                    answer(next, digest.iter().map(|b| format!("{b:02x}")).collect());
                }
                Job::Status(answer) => {
                    let _ = answer.send(self.status());
                }
            }
        }
        if heard {
            let now = self.now();
            self.finish(now)?;
        }
        Ok(())
    }

    pub(super) fn grant_wishes(&mut self) {
        let wanted = self.worker.wanted();
        if let Some(epoch) = wanted
            .lane_for
            .filter(|&epoch| self.asked_lane != Some(epoch))
        {
            self.asked_lane = Some(epoch);
            self.link.ask(Ask::Lane(epoch));
        }
        if wanted.incarnation && !self.asked_incarnation {
            self.asked_incarnation = true;
            self.link.ask(Ask::Incarnation);
        }
        if wanted.view_with.is_some() && is_due(self.asked_view, ASK_VIEW_INTERVAL) {
            self.asked_view = Some(Instant::now());
            self.link.ask(Ask::View);
        }
        if wanted.new_epoch && is_due(self.asked_epoch, ASK_EPOCH_INTERVAL) {
            self.asked_epoch = Some(Instant::now());
            self.link.ask(Ask::NewEpoch);
        }
        let report = || {
            let agreement = self.worker.agreement();
            agreement.report(self.group, self.pid, self.member)
        };
        if let Some(message) = report().filter(|_| is_due(self.reported, REPORT_INTERVAL)) {
            self.reported = Some(Instant::now());
            self.link.ask(Ask::Report(message));
        }
        self.position.show(stand(&self.worker));
        let needs = wanted.checkpoint_at_least.is_some();
        if needs && !self.asked_state {
            // The catch-up thread checks all positions from then on, until no worker needs a state.
            let _ = self.link.is_behind.send(());
        }
        self.asked_state = needs;
    }

    /// Notes durably that a command is never executed here, before anything continues. [X-DIED]
    pub(super) fn promise(&mut self, place: CommandPlace, is_ordered: bool) -> Result<(), Error> {
        let noted = self.promises.note(place, is_ordered);
        noted.map_err(|e| self.fatal(e))?;
        let now = self.now();
        self.worker.promise(now, place, is_ordered);
        self.finish(now)
    }
}
