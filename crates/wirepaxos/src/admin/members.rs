// SPDX-License-Identifier: Apache-2.0
//! Changes the members.

use std::time::Duration;

use client::ControlClient;
use control::{MemberChange, MembersMessage, Message};
use node::ClusterFile;

use crate::Error;

/// The controller answers once the order is on its disk, and on those of the others.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Orders changes of the members behind the `known` first ones, and returns how many there are
/// then. The controller carries them out, or the next one does.
///
/// # Errors
/// [`Error::TimedOut`] if no controller answers; [`Error::Denied`], with the reason, if nothing is
/// changed.
pub fn change_members(
    cluster: &ClusterFile,
    known: usize,
    changes: &[MemberChange],
) -> Result<usize, Error> {
    let controllers: Vec<_> = cluster.controllers().map(|n| n.control).collect();
    let mut socket = ControlClient::new(cluster)?;
    let known = known as u32;
    let order = Message::Members(MembersMessage::Order {
        known,
        changes: changes.to_vec(),
    });
    socket.check_order(&order)?;
    let result = socket.ask(&controllers, &order, TIMEOUT, |_, message| match message {
        Message::Members(MembersMessage::Reply { known: of, result }) if of == known => {
            Some(result)
        }
        _ => None,
    })?;
    result.map(|count| count as usize).map_err(Error::Denied)
}
