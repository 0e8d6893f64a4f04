// SPDX-License-Identifier: Apache-2.0
//! Reads without the log, as the front end beside a replica asks for them.

use replica::AskedReads;

use super::ReplicaHost;
use crate::application::Look;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::World;

impl<G: Protocol> ReplicaHost<G> {
    /// Begins a read here. If the process dies the read has no answer.
    pub fn read_locally(&mut self, world: &mut World, number: usize) {
        if !self.is_up() || self.host.paused {
            return;
        }
        let now = self.host.now(world);
        for (pid, key) in world.reads[number].keys.clone() {
            let worker = self.shards[usize::from(pid)].worker.as_mut();
            let mut reads = AskedReads::new(false);
            reads.push(number as u64, &Look::at(key));
            worker.expect("it is up").read(now, reads);
            self.finish_batch(world, pid.into());
            if !self.is_up() {
                return;
            }
            self.after(world, pid.into());
        }
    }

    /// Notes the results of reads.
    pub(super) fn take_reads(&mut self, world: &mut World, pid: usize) {
        for (number, answer) in self.out.reads.drain(..) {
            let number = number as usize;
            let read = &mut world.reads[number];
            if let Some(look) = answer.as_deref().and_then(Look::parse) {
                read.shown.push((pid as u16, look));
            }
            if read.shown.len() == read.keys.len() {
                read.shown.sort_by_key(|(pid, _)| *pid);
                read.answer = Some(world.queue.now());
                world.answered_reads.push(number);
            }
        }
    }
}
