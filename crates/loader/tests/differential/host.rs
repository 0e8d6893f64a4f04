// SPDX-License-Identifier: Apache-2.0
//! A learner or a receiver in a replica's host: as [`paxos::HostLearner`] or
//! [`paxos::nopaxos::Receiver`], and besides it fills rings and wakes its worker.

use loader::frame;
use loader::run::action;
use paxos::nopaxos::Receiver;
use paxos::{Epoch, HostLearner, Learned, Packet, Reason, Verdict};

use crate::NODE;
use crate::common::Loaded;
use crate::common::host::Host;
use crate::common::random::deployment;

/// Gives one datagram to both, unless the check of signatures drops it before the Rust role, and
/// compares the results.
pub fn step(
    rust: &mut HostLearner,
    host: &mut Host,
    xdp: &mut Loaded,
    datagram: &[u8],
    packet: Result<Packet<'_>, Reason>,
) -> Result<Verdict, String> {
    let (verdict, decided) = match &packet {
        Ok(packet) => match rust.step(packet) {
            Learned::Decided => (Verdict::Changed, true),
            Learned::Counted => (Verdict::Changed, false),
            Learned::Dropped(reason) => (Verdict::Dropped(reason), false),
        },
        Err(reason) => (Verdict::Dropped(*reason), false),
    };
    // Others' messages have no verdict: they are passed on.
    let others = verdict == Verdict::Dropped(Reason::NotForRole);
    let good = packet.as_ref().ok();
    let good = good.filter(|packet| rust.deployment().check(packet).is_ok());
    let sees = others || good.is_some_and(|p| host.sees(p.header.pid, verdict, decided));
    let handed_over = good.filter(|_| decided);
    compare(host, xdp, datagram, sees, (verdict, decided), handed_over)?;
    Ok(verdict)
}

/// Does the same for a receiver, which listens to these sessions in its partitions.
pub fn step_receiver(
    rust: &mut [Receiver],
    listened: &[Epoch],
    host: &mut Host,
    xdp: &mut Loaded,
    datagram: &[u8],
    packet: Result<Packet<'_>, Reason>,
) -> Result<Verdict, String> {
    let (verdict, shown) = match &packet {
        Ok(packet) => {
            // Whose partition there isn't is refused by any of them.
            let at = usize::from(packet.header.pid).min(rust.len() - 1);
            let verdict = rust[at].take(0, packet);
            let is_whole = deployment(NODE).check(packet).is_ok();
            let shown = is_whole && host.sees_ordered(&packet.header, verdict, listened[at]);
            (verdict, shown)
        }
        Err(reason) => (Verdict::Dropped(*reason), false),
    };
    let taken = verdict == Verdict::Changed;
    let handed_over = packet.as_ref().ok().filter(|_| taken);
    let sees = shown || verdict == Verdict::Dropped(Reason::NotForRole);
    compare(host, xdp, datagram, sees, (verdict, taken), handed_over)?;
    Ok(verdict)
}

/// Gives one packet to the program. Other messages have no verdict, because they are passed on.
fn compare(
    host: &mut Host,
    xdp: &mut Loaded,
    datagram: &[u8],
    sees: bool,
    (verdict, decided): (Verdict, bool),
    handed_over: Option<&Packet<'_>>,
) -> Result<(), String> {
    let others = verdict == Verdict::Dropped(Reason::NotForRole);
    let expected = (
        if sees { action::PASS } else { action::DROP },
        (!others).then_some((verdict, decided)),
    );

    let frame = frame::build(datagram, xdp.runner.v6);
    let (action, out) = xdp.runner.frame(&frame)?;
    let as_it_came = out == frame;
    let found = (action, xdp.runner.counted(&xdp.object).ok());
    let differs = |why| format!("{datagram:02x?}: {why}");
    if found != expected || !as_it_came {
        let why = format!("leads to {found:?}, expected {expected:?}");
        return Err(differs(why));
    }
    host.hold(handed_over).map_err(differs)
}
