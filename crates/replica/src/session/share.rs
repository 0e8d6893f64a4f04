// SPDX-License-Identifier: Apache-2.0
//! How much of the table is used at each address. [S-SHARE]

use super::window::SessionWindow;
use crate::protocol::ReplyAddress;
use crate::record::Head;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// The number of sessions, and of slots in their windows, that share an address.
#[derive(Clone, Copy, Default)]
pub(super) struct Share {
    pub(super) sessions: usize,
    pub(super) slots: usize,
}

impl Share {
    pub(super) fn has_room(self, window: u16, sessions: usize, slots: usize) -> bool {
        self.sessions < sessions && self.slots + usize::from(window) <= slots
    }
}

/// Returns the address to whose share a session counts: the one where it is answered. Sessions of
/// names, which are answered at all replicas, have one share together. [S-SHARE] [S-NAMED]
pub(super) fn share_of(to: &ReplyAddress) -> Option<IpAddr> {
    let of_names = (to.home == 0).then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    to.address.map(|address| address.ip()).or(of_names)
}

pub(super) fn add(of_address: &mut BTreeMap<IpAddr, Share>, head: &Head) {
    let Some(ip) = share_of(&head.reply_to) else {
        return;
    };
    let share = of_address.entry(ip).or_default();
    share.sessions += 1;
    share.slots += usize::from(head.window);
}

pub(super) fn subtract(of_address: &mut BTreeMap<IpAddr, Share>, head: &Head) {
    let Some(ip) = share_of(&head.reply_to) else {
        return;
    };
    if let Some(share) = of_address.get_mut(&ip) {
        share.sessions -= 1;
        share.slots -= usize::from(head.window);
        if share.sessions == 0 {
            of_address.remove(&ip);
        }
    }
}

pub(super) fn move_to(
    of_address: &mut BTreeMap<IpAddr, Share>,
    session: &mut SessionWindow,
    to: ReplyAddress,
) {
    subtract(of_address, &session.head);
    session.head.reply_to = to;
    add(of_address, &session.head);
}
