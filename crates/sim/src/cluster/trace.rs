// SPDX-License-Identifier: Apache-2.0
//! Describes packets and control messages in a line of text.

use control::Message;
use paxos::{MsgType, Packet};

/// Returns a line about a packet.
pub fn describe(packet: &Packet<'_>) -> String {
    let h = &packet.header;
    let mut line = format!("{} p{}", h.msgtype.name(), h.pid);
    let named = h.flags.has(paxos::Flags::RANGE);
    if named {
        line += " range";
    } else if h.msgtype != MsgType::Request && h.msgtype != MsgType::Reply {
        line += &format!(" i{}", h.inst);
    }
    if !h.rnd.is_none() {
        line += &format!(" r{}", h.rnd);
    }
    if !h.vrnd.is_none() {
        line += &format!(" v{}", h.vrnd);
    }
    if h.flags.has(paxos::Flags::NOOP) {
        line += " noop";
    } else if h.client != 0 {
        line += &format!(" {:x}:{}", h.client & 0xffff_ffff, h.request);
    }
    match h.msgtype {
        MsgType::Reject => {
            if let Ok(r) = paxos::wire::value::Rejection::parse(packet.value) {
                line += &format!(" {} r{} trim {}", r.reason.name(), r.round, r.trim);
            }
        }
        MsgType::Phase1b if named => {
            if let Ok(r) = paxos::wire::value::RangeReport::parse(packet.value) {
                line += &format!(" end {} trim {}", r.end, r.trim);
            }
        }
        _ => {}
    }
    line
}

/// Returns a line about a control message.
pub fn brief(message: &Message) -> String {
    match message {
        Message::View(view) => {
            let epochs = view.epochs.iter();
            let epochs: Vec<String> = epochs
                .map(|e| format!("{}:{:?}", e.epoch, e.state).to_lowercase())
                .collect();
            format!("view {}", epochs.join(" "))
        }
        other => format!("{other:?}").chars().take(160).collect(),
    }
}
