// SPDX-License-Identifier: Apache-2.0
//! Measures what clients notice when a part of a cluster fails or changes: how long nothing is
//! answered, and how long it takes until as much is answered as before (P4xos, section VII-C,
//! Figure 8; NOPaxos, section 6.4, Figure 9).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use local_cluster::processes::Processes;
use local_cluster::{Error, LocalCluster, Shape, programs};
use node::ClusterFile;
use node::cluster_file::{Protocol, Role};
use wirepaxos::admin;

use super::load::{BUCKET, Load, Ran, Until};
use super::{Settings, WARM_UP, replicas};
use crate::stats::median;

/// The event that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// No event: its gaps are compared with the others, because clients always have to wait now and
    /// then.
    Nothing,
    /// SIGKILL of the leader.
    LeaderKilled,
    /// The leader stops for as long as is measured, so that only its silence shows that.
    LeaderSlow,
    /// SIGKILL of an acceptor.
    AcceptorKilled,
    /// An acceptor that was killed before starts again, and joins with an empty memory.
    AcceptorRejoins,
    /// SIGKILL of the sequencer.
    SequencerKilled,
    /// The sequencer stops for as long as is measured, and goes on stamping then.
    SequencerSlow,
    /// SIGKILL of the replica that leads.
    ReplicaLeaderKilled,
    /// SIGKILL of one that follows.
    ReplicaFollowerKilled,
    /// A replica that was killed before starts again, and becomes a member of the next session.
    ReplicaRejoins,
    /// The next leader or sequencer takes over by an operator's order.
    HandOver,
}

impl Event {
    /// Returns all events of a cluster with this protocol.
    pub fn of(protocol: Protocol) -> &'static [Event] {
        match protocol {
            Protocol::Paxos => &[
                Event::Nothing,
                Event::LeaderKilled,
                Event::LeaderSlow,
                Event::AcceptorKilled,
                Event::AcceptorRejoins,
                Event::HandOver,
            ],
            Protocol::NoPaxos => &[
                Event::Nothing,
                Event::SequencerKilled,
                Event::SequencerSlow,
                Event::ReplicaLeaderKilled,
                Event::ReplicaFollowerKilled,
                Event::ReplicaRejoins,
                Event::HandOver,
            ],
        }
    }

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Event::Nothing => "nothing",
            Event::LeaderKilled => "leader-killed",
            Event::LeaderSlow => "leader-slow",
            Event::AcceptorKilled => "acceptor-killed",
            Event::AcceptorRejoins => "acceptor-rejoins",
            Event::SequencerKilled => "sequencer-killed",
            Event::SequencerSlow => "sequencer-slow",
            Event::ReplicaLeaderKilled => "replica-leader-killed",
            Event::ReplicaFollowerKilled => "replica-follower-killed",
            Event::ReplicaRejoins => "replica-rejoins",
            Event::HandOver => "hand-over",
        }
    }
}

/// How it is detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probing {
    /// The controller sends a PROBE once in this many milliseconds,
    pub probe_ms: u64,
    /// and suspects a node after so many that weren't answered.
    pub suspect_after: u32,
}

/// The settings of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The event.
    pub event: Event,
    /// How it is detected.
    pub probing: Probing,
    /// Requests that the one client has in flight.
    pub outstanding: u16,
    /// How long the load goes on afterwards.
    pub after: Duration,
}

/// The measurements of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The longest time without any answer.
    pub gap: Duration,
    /// The time from the event until as much is answered as before; `None` if the run was too short
    /// for that.
    pub peak: Option<Duration>,
    /// Answers a second before the event.
    pub ops_per_s: f64,
    /// How many were answered in each 10 ms, the event at [`Run::event_at`].
    pub answered: Vec<u32>,
    /// The index of the bucket in which the event happened.
    pub event_at: usize,
}

/// How long the load runs before the event.
const BEFORE: Duration = Duration::from_secs(1);
/// Within this there is who is asked for.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// This many [`BUCKET`]s in a row must have as many answers as before.
const STEADY: usize = 5;
/// This percentage of the answers before counts as as many.
const AS_BEFORE: f64 = 95.0;

/// Lets it happen to a new cluster under load.
pub fn run(settings: &Settings, plan: &Plan) -> Result<Run, Error> {
    Cluster::start(settings, plan.probing)?.run(settings, plan)
}

struct Cluster {
    file: ClusterFile,
    // Killed before their directory is removed: fields are dropped in this order.
    processes: Processes,
    local: LocalCluster,
}

impl Cluster {
    fn start(settings: &Settings, probing: Probing) -> Result<Cluster, Error> {
        let shape = Shape {
            protocol: settings.contender.of_cluster_file(),
            leaders: 2,
            replicas: settings.replicas,
            ..Shape::of(&settings.app)
        };
        let local = LocalCluster::create(&settings.data, &shape)?;
        local.set_probing(probing.probe_ms, probing.suspect_after)?;
        let mut processes = Processes::new(programs::wirepaxos()?);
        for name in &local.nodes {
            processes.start_node(&local, name)?;
        }
        Ok(Cluster {
            file: ClusterFile::load(&local.file)?,
            processes,
            local,
        })
    }

    fn run(mut self, settings: &Settings, plan: &Plan) -> Result<Run, Error> {
        let mut load = Load::open(&self.file, settings, plan.outstanding, Duration::ZERO)?;
        let yes = AtomicBool::new(true);
        load.run(Until {
            time: WARM_UP,
            enough: &yes,
        })?;
        let victim = self.prepare(plan.event)?;
        let over = AtomicBool::new(false);
        let (ran, event_at) = std::thread::scope(|scope| {
            let until = Until {
                time: BEFORE + plan.after,
                enough: &over,
            };
            let (start, load) = (Instant::now(), &mut load);
            let running = scope.spawn(move || load.run(until).map_err(|e| e.to_string()));
            std::thread::sleep(BEFORE);
            let event_at = start.elapsed();
            let happened = self.happen(plan.event, &victim);
            over.store(true, Ordering::Relaxed);
            let ran = running.join().expect("a load doesn't panic");
            happened.and(Ok((ran.map_err(Error::new)?, event_at)))
        })?;
        Ok(judged(ran, event_at))
    }

    /// Prepares an event, and returns the node to which it will happen. A replica that is to join
    /// again is stopped first, and the load goes on without it.
    fn prepare(&mut self, event: Event) -> Result<String, Error> {
        let group = self.file.groups[0].id;
        match event {
            Event::Nothing => Ok(String::new()),
            Event::LeaderKilled
            | Event::LeaderSlow
            | Event::SequencerKilled
            | Event::SequencerSlow
            | Event::HandOver => wait_for("who leads", || admin::leader(&self.file, group)),
            Event::AcceptorKilled | Event::AcceptorRejoins => {
                let last = self.file.with_role(Role::Acceptor).last();
                let last = last.ok_or_else(|| Error::new("there is no acceptor"))?;
                let name = last.name.clone();
                if event == Event::AcceptorRejoins {
                    self.processes.kill(&name);
                }
                Ok(name)
            }
            Event::ReplicaLeaderKilled => self.leading(),
            Event::ReplicaFollowerKilled | Event::ReplicaRejoins => {
                let leads = self.leading()?;
                let mut names = replicas(&self.file);
                names.retain(|name| *name != leads);
                let last = names.pop();
                let follower = last.ok_or_else(|| Error::new("no replica follows"))?;
                if event == Event::ReplicaRejoins {
                    self.processes.kill(&follower);
                }
                Ok(follower)
            }
        }
    }

    fn leading(&self) -> Result<String, Error> {
        let group = self.file.groups[0].id;
        wait_for("a replica that leads", || {
            admin::leading_replica(&self.file, group, 0)
        })
    }

    fn happen(&mut self, event: Event, victim: &str) -> Result<(), Error> {
        match event {
            Event::Nothing => {}
            Event::LeaderKilled
            | Event::AcceptorKilled
            | Event::SequencerKilled
            | Event::ReplicaLeaderKilled
            | Event::ReplicaFollowerKilled => {
                self.processes.kill(victim);
            }
            Event::LeaderSlow | Event::SequencerSlow => {
                self.processes.signal(victim, libc::SIGSTOP);
            }
            Event::AcceptorRejoins | Event::ReplicaRejoins => {
                self.processes.start_node(&self.local, victim)?;
            }
            Event::HandOver => {
                let stamps = [Role::Leader, Role::Sequencer];
                let stamps = stamps.iter().flat_map(|role| self.file.with_role(*role));
                let mut others = stamps.filter(|node| node.name != victim);
                let to = others.next().map(|node| node.id);
                admin::change_leader(&self.file, None, to, false)?;
            }
        }
        Ok(())
    }
}

fn wait_for(
    what: &str,
    look: impl Fn() -> Result<Option<String>, wirepaxos::Error>,
) -> Result<String, Error> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
    Err(Error::new(format!("the controller doesn't name {what}")))
}

fn judged(ran: Ran, event_at: Duration) -> Run {
    let event_at = (event_at.as_nanos() / BUCKET.as_nanos()) as usize;
    let before: Vec<f64> = ran
        .answered
        .iter()
        .take(event_at)
        .map(|n| f64::from(*n))
        .collect();
    let usual = match before.is_empty() {
        true => 0.0,
        false => median(&before),
    };
    let peak = back_to(usual, &ran.answered[event_at.min(ran.answered.len())..]);
    Run {
        gap: ran.longest_gap,
        peak: peak.map(|buckets| BUCKET * buckets as u32),
        ops_per_s: usual / BUCKET.as_secs_f64(),
        answered: ran.answered,
        event_at,
    }
}

/// Returns after how many buckets the answers are as many as usual, or 0 if they never became
/// fewer.
fn back_to(usual: f64, after: &[u32]) -> Option<usize> {
    let dips = |n: &u32| f64::from(*n) < usual / 2.0;
    let Some(dip) = after.iter().position(dips) else {
        return Some(0);
    };
    let enough = usual * AS_BEFORE / 100.0 * STEADY as f64;
    let mut windows = after[dip..].windows(STEADY);
    let first = windows.position(|w| w.iter().map(|n| f64::from(*n)).sum::<f64>() >= enough)?;
    Some(dip + first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_reached_once_as_much_is_answered_as_before() {
        let mut answered = vec![100; 30];
        answered.extend([100, 40, 0, 0, 0, 10, 90, 100, 100, 100, 100, 100, 100]);
        let ran = |answered: &[u32]| Ran {
            elapsed: Duration::ZERO,
            latencies: local_cluster::latency::Latencies::new(),
            longest_gap: Duration::from_millis(35),
            answered: answered.to_vec(),
        };
        let of = |answered: &[u32]| judged(ran(answered), Duration::from_millis(300));
        let run = of(&answered);
        assert_eq!((run.event_at, run.ops_per_s), (30, 10_000.0));
        assert_eq!(run.peak, Some(Duration::from_millis(60)));
        assert_eq!(run.gap, Duration::from_millis(35));
        assert_eq!(of(&answered[..38]).peak, None, "not yet");
        assert_eq!(of(&[100; 60]).peak, Some(Duration::ZERO), "no dip");
        assert_eq!(of(&[100; 3]).peak, Some(Duration::ZERO), "ended before");
    }
}
