// SPDX-License-Identifier: Apache-2.0
//! Random runs.

use super::*;

struct Seen {
    rewinds: u64,
    noops: u64,
    repaired: u64,
    restored: u64,
    speculative: u64,
    crowds: u64,
    sessions: u64,
}

fn random_run<K: Persistent>(seed: u64) -> Seen {
    let mut c = Cluster::<K>::new(seed, false);
    c.world.network.rates = Rates {
        loss: 20_000,
        duplicate: 20_000,
        slow: 10_000,
        late: 2_000,
        hour: 1_000,
        corrupt: 2_000,
    };
    (0..4).for_each(|_| c.add_client());
    let mut heals_at = None;
    while c.finals.len() < 400 {
        assert!(c.now() < 600 * SECOND, "seed {seed}: {}", c.standing());
        c.turn();
        c.clients_send();
        for at in 0..c.clients.len() {
            let client = &c.clients[at];
            let first = client.open.first().copied().unwrap_or(client.last);
            if client.id.is_some() && client.open.len() < 6 && client.last - first + 1 < WINDOW {
                c.command(at);
            }
        }
        match heals_at {
            Some(at) if c.now() >= at => {
                c.world.network.heal();
                heals_at = None;
            }
            None if c.world.rng.once_in(150) => {
                let cut = *c.world.rng.pick(&REPLICAS);
                // In half of the cases this replica alone gets the stamped packets.
                let alone = c.world.rng.percent(50);
                for other in REPLICAS.into_iter().filter(|n| *n != cut) {
                    c.cut(cut, &[other], true);
                    c.cut(other, &[cut], true);
                    c.cut(SEQUENCER, &[other], alone);
                }
                heals_at = Some(c.now() + 20 * MS + c.world.rng.below(100 * MS));
            }
            None if c.world.rng.once_in(150) => {
                let session = c.store.last().unwrap();
                let is_active = matches!(session.stage, Stage::Active { .. });
                let is_normal = |h: &Host<K>| {
                    h.worker.is_some()
                        && h.role().status() == Doing::Normal
                        && session.place(h.role().member()).is_some()
                };
                if is_active && c.hosts.iter().all(is_normal) {
                    let index = c.world.rng.below(3) as usize;
                    c.kill(index);
                }
            }
            _ => {}
        }
    }
    c.world.network.heal();
    c.world.network.rates = Rates::PERFECT;
    c.check();
    (0..3).for_each(|index| c.check_stored(index));
    let repaired = |h: &Host<K>| h.worker.as_ref().unwrap().statistics().repaired;
    Seen {
        rewinds: c.rewinds,
        noops: c.history.iter().filter(|v| v.0.has(Flags::NOOP)).count() as u64,
        repaired: c.hosts.iter().map(repaired).sum(),
        restored: c.restored,
        speculative: c.speculative,
        crowds: c.crowds,
        sessions: c.store.len() as u64,
    }
}

fn random_runs<K: Persistent>(seeds: std::ops::Range<u64>) {
    let mut all = [0; 7];
    for seed in seeds {
        let seen = random_run::<K>(seed);
        let counts = [
            seen.rewinds,
            seen.noops,
            seen.repaired,
            seen.restored,
            seen.speculative,
            seen.crowds,
            seen.sessions - 1,
        ];
        all.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    // Without these events the test would show less than it seems to.
    assert!(all.iter().all(|n| *n > 0), "{all:?}");
}

/// In random runs every command takes effect once, and nothing unstable is stored. [N-ANSWER]
/// [N-REWIND] [N-COMMIT] [S-ONCE]
#[test]
fn every_command_takes_effect_once_and_nothing_unstable_is_stored() {
    random_runs::<Disk>(0..10);
}

/// The same holds for an application in memory only. [N-ANSWER] [N-REWIND] [N-COMMIT] [S-ONCE]
#[test]
fn so_it_is_with_a_program_in_memory() {
    random_runs::<MemoryDisk>(100..110);
}
