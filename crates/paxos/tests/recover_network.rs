// SPDX-License-Identifier: Apache-2.0
//! Recover against real acceptors over a bad network: two recoverers duel while a leader stamps.
//! Agreement is checked from the packets alone.

use paxos::outbox::Sent;
use paxos::recover::{Filler, Outcome};
use paxos::{
    Header, Instance, MsgType, NodeId, Reason, Recover, RecoverSettings, Round, Time, Verdict,
};
use test_world::agreement::Value;
use test_world::cluster::{
    ACCEPTORS, CLIENT, CLUSTER, GROUP, LEADERS, REPLICAS, configuration, deployment,
};
use test_world::network::Rates;
use test_world::queue::{MILLISECOND, SECOND};
use test_world::{Arrival, World};

const INSTANCES: u64 = 6;
const SLOTS: usize = 64;
/// The session whose commands the leader stamps.
const SESSION: u64 = 5;

/// The hosts of two replicas that repair, with a leader and its acceptors.
struct Duel {
    world: World,
    recoverers: [Recover; 2],
    lanes: u8,
    seed: u64,
}

fn recoverer(node: NodeId, seed: u64) -> Recover {
    Recover::new(RecoverSettings {
        deployment: deployment(node, 1),
        pid: 0,
        retry_after: 10 * MILLISECOND,
        propose_after: 0,
        max_open: 64,
        nonce: seed * 1000 + u64::from(node),
    })
}

impl Duel {
    fn new(seed: u64) -> Duel {
        let mut world = World::new(seed, 1, SLOTS);
        world.network.usual_delay = (0, 5 * MILLISECOND);
        world.network.rates = Rates {
            loss: 250_000,
            duplicate: 200_000,
            late: 50_000,
            hour: 10_000,
            corrupt: 20_000,
            ..Rates::PERFECT
        };
        world.learners = REPLICAS[..2].to_vec();
        world.activate(&configuration(1), SLOTS as u64);
        let mut duel = Duel {
            world,
            recoverers: [REPLICAS[0], REPLICAS[1]].map(|node| recoverer(node, seed)),
            lanes: 0,
            seed,
        };
        duel.start(0);
        duel.start(1);
        duel
    }

    /// Starts a recoverer's process, with a fresh lane and no memory.
    fn start(&mut self, index: usize) {
        self.lanes += 1;
        let seed = self.seed + 7919 * u64::from(self.lanes);
        self.recoverers[index] = recoverer(REPLICAS[index], seed);
        let active = configuration(1);
        let now = self.world.now();
        self.recoverers[index].set_epoch(now, Some((&active, Some(self.lanes))));
    }

    fn ask(&mut self, index: usize, inst: Instance) {
        let bytes = [index as u8, 99];
        let filler = if inst % 2 == 0 {
            Filler::Noop
        } else {
            Filler::Command {
                client: 900 + index as u64,
                request: inst + 1,
                bytes: &bytes,
            }
        };
        let now = self.world.now();
        self.recoverers[index].recover(now, inst, filler).unwrap();
    }

    fn run_until(&mut self, end: Time) {
        loop {
            let timers = self.recoverers.iter().map(|r| r.next_deadline());
            let timer = timers.flatten().min().unwrap_or(Time::MAX);
            match self.world.arrival(timer.min(end)) {
                Some(arrival) => self.deliver(&arrival),
                None if timer <= end => self.tick(),
                None => return,
            }
            self.check_outcomes();
        }
    }

    fn tick(&mut self) {
        for (recover, node) in self.recoverers.iter_mut().zip(REPLICAS) {
            let mut out = Sent::default();
            recover.tick(self.world.now(), &mut out);
            self.world.send(node, node, out);
        }
    }

    fn deliver(&mut self, arrival: &Arrival) {
        let mut out = Sent::default();
        let verdict = match self.world.deliver(arrival) {
            Some(verdict) => verdict,
            None if arrival.to == CLIENT => return,
            None => {
                let recover = &mut self.recoverers[usize::from(arrival.to - REPLICAS[0])];
                recover.step(self.world.now(), &arrival.packet(), &mut out)
            }
        };
        assert_ne!(verdict, Verdict::Dropped(Reason::Conflict));
        self.world.send(arrival.to, arrival.from, out);
    }

    fn check_outcomes(&mut self) {
        let agreement = self.world.agreement.as_ref().unwrap();
        for recover in &mut self.recoverers {
            while let Some(outcome) = recover.poll() {
                match outcome {
                    Outcome::Decided { header, value } => {
                        assert_eq!(header.msgtype, MsgType::Deliver);
                        let chosen = agreement.chosen(header.pid, header.inst);
                        assert_eq!(chosen, Some(&Value::of(&header, &value)));
                    }
                    Outcome::Trimmed { .. } => panic!("nothing is trimmed here"),
                }
            }
        }
    }

    /// Makes a disturbance in the middle of the run.
    fn disturb(&mut self) {
        let rng = &mut self.world.rng;
        let (index, inst) = (rng.below(2) as usize, rng.below(INSTANCES));
        match rng.below(8) {
            0..3 => self.command(),
            3..6 => self.ask(index, inst),
            6 => {
                self.recoverers[index].decided_elsewhere(inst);
            }
            // At most one acceptor loses its memory, and votes no more.
            _ if rng.once_in(12) => {
                let nonce = self.world.fresh_nonce();
                self.world.boot_acceptor(ACCEPTORS[1], nonce);
            }
            _ if rng.once_in(4) => self.start(index),
            _ => {}
        }
    }

    /// Stamps the next instance.
    fn command(&mut self) {
        let request = Header {
            cluster: CLUSTER,
            group: GROUP,
            client: SESSION,
            request: 1 + self.world.rng.below(1000),
            value_len: 3,
            ..Header::new(MsgType::Request)
        };
        let datagram = request.datagram(b"set");
        self.world.carry(CLIENT, LEADERS[0], &datagram);
    }
}

fn run(seed: u64) -> Duel {
    let mut duel = Duel::new(seed);
    for _ in 0..60 {
        let moment = duel.world.rng.below(20 * MILLISECOND);
        duel.run_until(duel.world.now() + moment);
        duel.disturb();
    }
    duel.world.network.rates = Rates::PERFECT;
    for index in 0..2 {
        for inst in 0..INSTANCES {
            duel.ask(index, inst);
        }
    }
    duel.run_until(duel.world.now() + 7_200 * SECOND);
    duel
}

#[test]
fn agreement_holds_and_every_gap_is_filled() {
    let mut repaired = 0;
    let mut chosen_by_leader = 0;
    for seed in 1..=3000 {
        let duel = run(seed);
        for recover in &duel.recoverers {
            assert!(recover.open() == 0 || recover.needs_epoch(), "seed {seed}");
        }
        let agreement = duel.world.agreement.as_ref().unwrap();
        for (pid, inst, value) in agreement.all_chosen() {
            chosen_by_leader += usize::from(value.client == SESSION);
            repaired += usize::from(!agreement.is_chosen_in(pid, inst, Round::base(1)));
        }
    }
    // Both ways must be taken often, or this test shows nothing.
    assert!(repaired > 3000 && chosen_by_leader > 3000);
}
