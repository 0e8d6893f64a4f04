// SPDX-License-Identifier: Apache-2.0
//! A learner in a replica's host: as [`paxos::HostLearner`], and besides it fills rings and wakes its worker.

use loader::frame;
use loader::run::action;
use paxos::{HostLearner, Learned, Packet, Reason, Verdict};

use crate::common::Loaded;
use crate::common::host::Host;

/// One packet into both; what it led to in the kernel is compared.
pub fn step(
    rust: &mut HostLearner,
    host: &mut Host,
    xdp: &mut Loaded,
    datagram: &[u8],
) -> Result<Verdict, String> {
    let packet = Packet::parse(datagram);
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
    host.hold(good.filter(|_| decided)).map_err(differs)?;
    Ok(verdict)
}
