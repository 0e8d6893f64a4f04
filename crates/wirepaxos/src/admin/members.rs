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
    let (known, changes) = (known as u32, changes.to_vec());
    ask(cluster, known, MembersMessage::Order { known, changes })
}

/// Asks whether [`change_members`] would be accepted now. Nothing is changed.
///
/// # Errors
/// [`Error::TimedOut`] if no controller answers, as one of another version may do;
/// [`Error::Denied`], with the reason, if the order would be refused.
pub fn check_members(
    cluster: &ClusterFile,
    known: usize,
    changes: &[MemberChange],
) -> Result<(), Error> {
    let (known, changes) = (known as u32, changes.to_vec());
    ask(cluster, known, MembersMessage::Check { known, changes }).map(|_| ())
}

fn ask(cluster: &ClusterFile, known: u32, message: MembersMessage) -> Result<usize, Error> {
    let controllers: Vec<_> = cluster.controllers().map(|n| n.control).collect();
    let mut socket = ControlClient::new(cluster)?;
    let message = Message::Members(message);
    socket.check_order(&message)?;
    let result = socket.ask(
        &controllers,
        &message,
        TIMEOUT,
        |_, message| match message {
            Message::Members(MembersMessage::Reply { known: of, result }) if of == known => {
                Some(result)
            }
            _ => None,
        },
    )?;
    result.map(|count| count as usize).map_err(Error::Denied)
}
