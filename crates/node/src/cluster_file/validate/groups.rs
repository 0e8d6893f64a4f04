// SPDX-License-Identifier: Apache-2.0
//! Checks of a group by itself.

use crate::cluster_file::validate::count;
use crate::cluster_file::validate::is_leaving;
use paxos::configuration::{MAX_ACCEPTORS, MAX_REPLICAS};
use toml::Spanned;

use super::super::read::{RawFile, RawGroup, RawNode};
use super::super::{Answer, ApplicationKind, Group, Protocol, Role};
use super::{Check, DEFAULT_SLOTS, at, default_max_value, largest_value};

impl Check {
    pub(super) fn group(&mut self, spanned: &Spanned<RawGroup>, file: &RawFile) -> Group {
        let raw = spanned.get_ref();
        let slots = self.number("slots", &raw.slots, 16..=1 << 22, DEFAULT_SLOTS);
        let window = self.number("window", &raw.window, 4..=slots / 16 * 15, slots / 4 * 3);
        let checkpoint = self.number(
            "checkpoint_every",
            &raw.checkpoint_every,
            1..=window / 2,
            slots / 8,
        );
        let id = self.required("id", &raw.id, 0..=i64::from(u16::MAX));
        let (protocol, f, g) = self.protocol_and_losses(spanned, file, id);
        Group {
            id: id as u16,
            protocol,
            partitions: self.number("partitions", &raw.partitions, 1..=64, 1) as u16,
            slots: slots as usize,
            window: window as u64,
            max_value: self.number(
                "max_value",
                &raw.max_value,
                64..=largest_value(file),
                default_max_value(file),
            ) as u16,
            application: self.choice(
                "application",
                &raw.application,
                &ApplicationKind::ALL,
                ApplicationKind::name,
            ),
            f,
            g,
            checkpoint_every: checkpoint as u64,
            gap_timeout_ms: self.number("gap_timeout_ms", &raw.gap_timeout_ms, 1..=60_000, 10)
                as u64,
            session_timeout_s: self.number(
                "session_timeout_s",
                &raw.session_timeout_s,
                1..=31_536_000,
                3_600,
            ) as u64,
            max_answer_mib: self.number("max_answer_mib", &raw.max_answer_mib, 1..=128, 64) as u64,
            max_memory_mib: self.max_memory(raw),
            answer: match &raw.answer {
                None => Answer::Executed,
                Some(answer) => self.choice("answer", answer, &Answer::ALL, Answer::name),
            },
            catch_up_mib_per_s: self.number(
                "catch_up_mib_per_s",
                &raw.catch_up_mib_per_s,
                1..=65_536,
                64,
            ) as u64,
            catch_up_kept_mib: self.number(
                "catch_up_kept_mib",
                &raw.catch_up_kept_mib,
                1..=1 << 20,
                4_096,
            ) as u64,
        }
    }

    /// Returns the protocol of a group, and how many acceptors (f) and replicas (g) it may lose.
    fn protocol_and_losses(
        &mut self,
        spanned: &Spanned<RawGroup>,
        file: &RawFile,
        id: i64,
    ) -> (Protocol, u8, u8) {
        let is_mine = |n: &RawNode, role: Role| {
            let group = n.group.as_ref().filter(|_| role == Role::Replica);
            n.role.get_ref() == role.name() && group.is_none_or(|g| *g.get_ref() == id)
        };
        let members = |role| count(file, |n| is_mine(n, role) && !is_leaving(n));
        for (role, most) in [
            (Role::Acceptor, MAX_ACCEPTORS),
            (Role::Replica, MAX_REPLICAS),
        ] {
            self.fit_in(spanned, role, count(file, |n| is_mine(n, role)), most);
        }
        let (acceptors, replicas) = (members(Role::Acceptor), members(Role::Replica));
        let protocol = self.protocol(spanned.get_ref());
        match protocol {
            Protocol::Paxos => (
                protocol,
                self.odd_number(spanned, Role::Acceptor, acceptors),
                self.replicas(spanned, id, replicas),
            ),
            Protocol::NoPaxos => {
                let f = self.odd_number(spanned, Role::Replica, replicas);
                (protocol, f, f)
            }
        }
    }

    fn max_memory(&mut self, raw: &RawGroup) -> Option<u64> {
        let given = raw.max_memory_mib.as_ref()?;
        if raw.application.get_ref() != ApplicationKind::Redis.name() {
            self.error(
                at(given),
                "`max_memory_mib` limits Redis servers, and this group has none".to_owned(),
                "leave it out, or choose `application = \"redis\"`".to_owned(),
            );
        }
        Some(self.required("max_memory_mib", given, 0..=1 << 24) as u64)
    }

    pub(super) fn protocol(&mut self, raw: &RawGroup) -> Protocol {
        raw.protocol.as_ref().map_or(Protocol::Paxos, |p| {
            self.choice("protocol", p, &Protocol::ALL, Protocol::name)
        })
    }

    /// Checks that there are not too many nodes of a role. Leaving nodes count, since packets are
    /// still sent to them.
    fn fit_in(&mut self, group: &Spanned<RawGroup>, role: Role, n: i64, most: usize) {
        if n > most as i64 {
            self.error(
                at(group),
                format!("{n} {}s are too many", role.name()),
                format!("{most} is the most, those that leave included"),
            );
        }
    }

    /// Checks that the number of nodes is odd and returns f. Any two quorums of f+1 nodes must
    /// overlap, so there must be exactly 2f+1.
    fn odd_number(&mut self, group: &Spanned<RawGroup>, role: Role, n: i64) -> u8 {
        let what = role.name();
        if n == 0 {
            self.error(
                at(group),
                format!("there is no {what}"),
                format!("add nodes with role = {what:?}: 3 to survive the loss of one"),
            );
        } else if n % 2 == 0 {
            self.error(
                at(group),
                format!("{n} {what}s are not 2f+1"),
                format!(
                    "add one or remove one: {} survive no more than {} do",
                    n,
                    n - 1
                ),
            );
        }
        let f = (n.max(1) - 1) / 2;
        let raw = group.get_ref();
        // With NOPaxos the same nodes limit TRIM, so `g` must be equal to `f`.
        let g = raw.g.as_ref().filter(|_| role == Role::Replica);
        let differs = |raw: &&Spanned<i64>| n % 2 == 1 && *raw.get_ref() != f;
        for (key, raw) in [("f", raw.f.as_ref()), ("g", g)] {
            if let Some(raw) = raw.filter(differs) {
                self.error(
                    at(raw),
                    format!(
                        "`{key} = {}` needs 2{key}+1 {what}s, and there are {n}",
                        raw.get_ref()
                    ),
                    format!("leave `{key}` out (it is {f} here), or change the number of {what}s"),
                );
            }
        }
        f as u8
    }

    pub(super) fn replicas(&mut self, group: &Spanned<RawGroup>, id: i64, n: i64) -> u8 {
        if n == 0 {
            self.error(
                at(group),
                format!("group {id} has no replica"),
                "add nodes with role = \"replica\": 3 to survive the loss of one",
            );
        }
        let most = (n.max(1) - 1) / 2;
        match &group.get_ref().g {
            Some(raw) if !(0..=most).contains(raw.get_ref()) => {
                self.error(
                    at(raw),
                    format!(
                        "`g = {}` needs 2g+1 replicas, and there are {n}",
                        raw.get_ref()
                    ),
                    format!("choose 0 to {most}, or add replicas"),
                );
                most as u8
            }
            Some(raw) => *raw.get_ref() as u8,
            None => most as u8,
        }
    }
}
