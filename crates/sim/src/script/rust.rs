// SPDX-License-Identifier: Apache-2.0
//! Drives the roles of the `paxos` crate.

use paxos::auth::{Keyring, NODES, Replays, signer_of};
use paxos::nopaxos::{Delivery, Receiver, ReceiverSettings, Sequencer};
use paxos::{
    Acceptor, Deployment, HostLearner, Instance, Leader, Learned, Learner, Outbox, Packet,
    PartitionId, Reason, Time, To, Verdict,
};

use super::device::{Device, Role, Setup, SlotState, State, handed_over};
use super::order::Order;

/// A role of the `paxos` crate.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum RustDevice {
    Acceptor(Acceptor),
    Leader(Leader),
    Sequencer(Sequencer),
    Learner(Learner),
    HostLearner(HostLearner),
    /// One receiver for each partition.
    Receiver(Deployment, Vec<Receiver>),
}

impl RustDevice {
    /// Sets up a device; fits [`super::run`].
    pub fn build(setup: &Setup) -> Result<Box<dyn Device>, String> {
        let &Setup {
            deployment,
            slots,
            nonce,
            ref trusted,
            ..
        } = setup;
        let role = match setup.role {
            Role::Acceptor => RustDevice::Acceptor(Acceptor::new(deployment, slots, nonce)),
            Role::Leader => RustDevice::Leader(Leader::new(deployment, nonce)),
            Role::Sequencer => RustDevice::Sequencer(Sequencer::new(deployment, nonce)),
            Role::Learner => RustDevice::Learner(Learner::new(deployment, slots)),
            Role::HostLearner => {
                RustDevice::HostLearner(HostLearner::new(deployment, slots, trusted))
            }
            Role::Receiver => {
                let receiver = |pid| {
                    Receiver::new(ReceiverSettings {
                        deployment,
                        pid,
                        slots,
                        reorder_wait: 0,
                    })
                };
                let receivers = (0..deployment.partitions).map(receiver);
                RustDevice::Receiver(deployment, receivers.collect())
            }
        };
        Ok(Box::new(Guarded {
            role,
            cluster: deployment.cluster,
            keyring: None,
            replays: Replays::new(matches!(setup.role, Role::Leader | Role::Sequencer)),
        }))
    }
}

/// A role together with the checks before it in a node where packets are signed. [M-SIGNED]
/// [M-REPLAYED]
struct Guarded {
    role: RustDevice,
    cluster: u32,
    keyring: Option<Keyring>,
    replays: Replays,
}

impl Guarded {
    /// Returns who has signed a packet that counts.
    fn admit(&mut self, keyring: &Keyring, datagram: &[u8]) -> Result<u8, Reason> {
        let packet = Packet::parse(datagram)?;
        if packet.header.cluster != self.cluster {
            return Err(Reason::WrongCluster);
        }
        keyring.check(&packet, datagram)?;
        self.replays.admit(packet)?;
        Ok(signer_of(&packet))
    }
}

impl Device for Guarded {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let Some(keyring) = self.keyring.clone() else {
            return self.role.packet(datagram);
        };
        let asker = match self.admit(&keyring, datagram) {
            Ok(asker) => asker,
            Err(reason) => return (Vec::new(), Verdict::Dropped(reason)),
        };
        let (mut sent, verdict) = self.role.packet(datagram);
        for (to, datagram) in &mut sent {
            let reader = match to {
                // Messages to a host's worker don't go over the network.
                To::Node(_) => continue,
                To::Sender => asker,
                _ => NODES,
            };
            let packet = Packet::parse(datagram).expect("roles send well-formed packets");
            let signed = keyring.datagram(&packet.header, packet.value, reader, 0);
            *datagram = signed.expect("nodes have all keys");
        }
        (sent, verdict)
    }

    fn order(&mut self, order: &Order) -> Result<bool, String> {
        if let Order::Keys(keyring) = order {
            self.keyring = Some(keyring.clone());
            return Ok(true);
        }
        self.role.order(order)
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        self.role.state(pid)
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        self.role.slot(pid, inst)
    }

    fn fingerprint(&self) -> String {
        self.role.fingerprint()
    }
}

/// Keeps a role's packets as the datagrams that would leave.
#[derive(Default)]
struct Datagrams(Vec<(To, Vec<u8>)>);

impl Outbox for Datagrams {
    fn send(&mut self, to: To, header: &paxos::Header, value: &[u8]) {
        assert_eq!(header.value_len as usize, value.len());
        self.0.push((to, header.datagram(value)));
    }
}

impl Device for RustDevice {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(reason) => return (Vec::new(), Verdict::Dropped(reason)),
        };
        let mut out = Datagrams::default();
        let verdict = match self {
            RustDevice::Acceptor(acceptor) => acceptor.step(&packet, &mut out),
            RustDevice::Leader(leader) => leader.step(&packet, &mut out),
            RustDevice::Sequencer(sequencer) => sequencer.step(&packet, &mut out),
            RustDevice::Learner(learner) => learner.step(&packet, &mut out),
            RustDevice::HostLearner(learner) => match learner.step(&packet) {
                Learned::Decided => {
                    out.0.push(handed_over(
                        learner.deployment(),
                        &packet.header,
                        packet.value,
                    ));
                    Verdict::Changed
                }
                Learned::Counted => Verdict::Changed,
                Learned::Dropped(reason) => Verdict::Dropped(reason),
            },
            RustDevice::Receiver(deployment, receivers) => {
                // Every receiver refuses a packet of a partition that doesn't exist.
                let at = usize::from(packet.header.pid).min(receivers.len() - 1);
                let verdict = receivers[at].take(0, &packet);
                if verdict == Verdict::Changed {
                    out.0
                        .push(handed_over(deployment, &packet.header, packet.value));
                }
                verdict
            }
        };
        (out.0, verdict)
    }

    fn order(&mut self, order: &Order) -> Result<bool, String> {
        match self {
            RustDevice::Acceptor(acceptor) => order_acceptor(acceptor, order),
            RustDevice::Leader(leader) => match order {
                Order::Program(program) => Ok(leader.program(program).is_ok()),
                Order::Retire { epoch } => {
                    leader.retire(*epoch);
                    Ok(true)
                }
                _ => unreachable!("no order for a leader"),
            },
            RustDevice::Sequencer(sequencer) => match order {
                Order::Program(program) => Ok(sequencer.program(program).is_ok()),
                Order::Retire { epoch } => {
                    sequencer.retire(*epoch);
                    Ok(true)
                }
                _ => unreachable!("no order for a sequencer"),
            },
            RustDevice::Learner(learner) => match order {
                Order::Configuration(configuration) => Ok(learner.learn(configuration)),
                Order::Floor { pid, inst } => {
                    learner.set_floor(*pid, *inst);
                    Ok(true)
                }
                _ => unreachable!("no order for a learner"),
            },
            RustDevice::HostLearner(learner) => match order {
                Order::Configuration(configuration) => Ok(learner.learn(configuration)),
                Order::Floor { pid, inst } => {
                    learner.set_floor(*pid, *inst);
                    Ok(true)
                }
                _ => unreachable!("no order for a learner"),
            },
            RustDevice::Receiver(_, receivers) => match order {
                &Order::Listen {
                    pid,
                    session,
                    sequencer,
                    slot,
                } => {
                    receivers[usize::from(pid)].listen(session, sequencer, slot);
                    Ok(true)
                }
                Order::Floor { pid, inst } => Ok(pass_on(&mut receivers[usize::from(*pid)], *inst)),
                _ => unreachable!("no order for a receiver"),
            },
        }
    }

    fn state(&self, pid: PartitionId) -> Option<State> {
        match self {
            RustDevice::Acceptor(acceptor) => Some(State::Acceptor {
                epoch: acceptor.epoch(),
                floor: acceptor.floor(pid),
                trim: acceptor.trim(pid),
                end: acceptor.end(pid),
            }),
            RustDevice::Leader(leader) => Some(State::Leader {
                rnd: leader.round(),
                next: leader.next(pid),
                trimmed: leader.trimmed(pid),
            }),
            RustDevice::Sequencer(sequencer) => Some(State::Leader {
                rnd: sequencer.round(),
                next: sequencer.next(pid),
                trimmed: sequencer.trimmed(pid),
            }),
            RustDevice::Learner(_) | RustDevice::HostLearner(_) | RustDevice::Receiver(..) => None,
        }
    }

    fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotState> {
        match self {
            RustDevice::Acceptor(acceptor) => {
                let slot = acceptor.slot(pid, inst)?;
                Some(SlotState::Acceptor {
                    rnd: slot.rnd,
                    vrnd: slot.vrnd,
                    flags: slot.flags,
                    client: slot.client,
                    request: slot.request,
                    value: slot.value.to_vec(),
                })
            }
            RustDevice::Leader(_) | RustDevice::Sequencer(_) | RustDevice::Receiver(..) => None,
            RustDevice::Learner(learner) => learner.slot(pid, inst).map(SlotState::Learner),
            RustDevice::HostLearner(learner) => learner.slot(pid, inst).map(SlotState::Learner),
        }
    }

    fn fingerprint(&self) -> String {
        match self {
            RustDevice::Acceptor(acceptor) => acceptor.state_hash().to_string(),
            // The sessions that it has heard of are only a hint, and change with packets that it
            // refuses.
            RustDevice::Receiver(_, receivers) => {
                let all = receivers.iter().map(|receiver| format!("{receiver:?}"));
                let lines = all.flat_map(|text| without(&text, "later: "));
                lines.collect()
            }
            other => format!("{other:?}"),
        }
    }
}

/// Makes a receiver pass on, or pass over, all messages below `inst`. Returns false if some haven't
/// come.
pub fn pass_on(receiver: &mut Receiver, inst: Instance) -> bool {
    while receiver.position() < inst {
        match receiver.next(Time::MAX) {
            Some(Delivery::Message(_)) => {}
            Some(Delivery::Dropped(_)) => receiver.skip(),
            Some(Delivery::Terminated(_)) | None => return false,
        }
    }
    true
}

/// Returns the fields that `Debug` prints, except for one.
fn without(text: &str, field: &str) -> Vec<String> {
    let fields = text.split(", ").filter(|text| !text.starts_with(field));
    fields.map(str::to_owned).collect()
}

fn order_acceptor(acceptor: &mut Acceptor, order: &Order) -> Result<bool, String> {
    let (deployment, slots) = (*acceptor.deployment(), acceptor.slots() as usize);
    let mut saved = Vec::new();
    acceptor.save(&mut saved);
    match order {
        Order::Enable(enable) => return Ok(acceptor.enable(enable).is_ok()),
        Order::Reload if acceptor.is_mute() => {
            return Err("a memory is saved as one that isn't mute".into());
        }
        Order::Reload => *acceptor = Acceptor::load(deployment, slots, &saved)?,
        Order::Restart { salt } => {
            *acceptor = Acceptor::load(deployment, slots, &saved)?;
            acceptor.restarted(*salt);
        }
        Order::Resume { nonce, start } => return Ok(acceptor.resume(*nonce, *start).is_ok()),
        Order::Asked {
            nonce,
            start,
            earlier,
        } => return Ok(acceptor.asked(*nonce, *start).is_ok() && acceptor.was_at(*earlier)),
        Order::Discard { .. } if !acceptor.is_mute() => return Ok(false),
        Order::Discard { nonce } => *acceptor = Acceptor::new(deployment, slots, *nonce),
        _ => unreachable!("no order for an acceptor"),
    }
    Ok(true)
}
