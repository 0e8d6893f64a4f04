// SPDX-License-Identifier: Apache-2.0
//! Questions about all clients, which a connection alone can't answer.

use std::net::SocketAddr;

use apps::kv::parse_integer;

use crate::state::client::Client;
use crate::users::Users;

const SYNTAX: &str = "ERR syntax error";

/// A question that the connection alone can't answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    /// The line of the client itself.
    Info,
    /// The lines of these clients.
    List(Listed),
    /// The end of these clients' connections.
    Kill(Kill),
    /// The users, read again, and the end of the connections whose users were changed or removed.
    LoadUsers,
}

/// The clients that CLIENT LIST shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Listed {
    All,
    Of(Type),
    These(Vec<u64>),
}

impl Listed {
    pub fn parse(words: &[&[u8]]) -> Result<Listed, String> {
        match words {
            [] => Ok(Listed::All),
            [option, name] if option.eq_ignore_ascii_case(b"TYPE") => {
                let shown = String::from_utf8_lossy(name);
                let of = Type::parse(name).ok_or(format!("ERR Unknown client type '{shown}'"))?;
                Ok(Listed::Of(of))
            }
            [option, ids @ ..] if option.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
                let ids = ids.iter().map(|id| parse_integer(id).map(|id| id as u64));
                let ids: Option<Vec<u64>> = ids.collect();
                Ok(Listed::These(ids.ok_or("ERR Invalid client ID")?))
            }
            _ => Err(SYNTAX.to_owned()),
        }
    }
}

/// A type of client. `Nobody` stands for Redis's replicating types, which don't exist here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Normal,
    Subscriber,
    Nobody,
}

impl Type {
    fn parse(name: &[u8]) -> Option<Type> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Some(Type::Normal),
            b"pubsub" => Some(Type::Subscriber),
            b"master" | b"replica" | b"slave" => Some(Type::Nobody),
            _ => None,
        }
    }

    pub fn is_of(self, client: &Client) -> bool {
        let subscribes = !client.subscriptions.is_empty();
        match self {
            Type::Normal => !subscribes,
            Type::Subscriber => subscribes,
            Type::Nobody => false,
        }
    }
}

/// The clients that CLIENT KILL ends: those that fit every condition given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Kill {
    id: Option<u64>,
    address: Option<Vec<u8>>,
    local_address: Option<Vec<u8>>,
    of: Option<Type>,
    user: Option<Vec<u8>>,
    /// The client that isn't ended: the one that asks.
    skips: Option<u64>,
    /// True if only an address was given, in the old form, whose answer isn't a number.
    pub is_old: bool,
}

impl Kill {
    pub fn fits(&self, client: &Client) -> bool {
        let is = |said: &Option<Vec<u8>>, address: SocketAddr| {
            let is_it = |said: &Vec<u8>| *said == address.to_string().as_bytes();
            said.as_ref().is_none_or(is_it)
        };
        self.id.is_none_or(|id| id == client.id)
            && self.skips != Some(client.id)
            && self.of.is_none_or(|of| of.is_of(client))
            && self
                .user
                .as_ref()
                .is_none_or(|user| user == client.user_name())
            && is(&self.address, client.address)
            && is(&self.local_address, client.local_address)
    }

    /// Parses pairs of words as Redis does; returns Redis's error if they are wrong.
    pub fn parse(words: &[&[u8]], itself: u64, users: &Users) -> Result<Kill, String> {
        if let [address] = words {
            return Ok(Kill {
                address: Some(address.to_vec()),
                is_old: true,
                ..Kill::default()
            });
        }
        let mut kill = Kill {
            skips: Some(itself),
            ..Kill::default()
        };
        for pair in words.chunks(2) {
            let [option, value] = pair else {
                return Err(SYNTAX.to_owned());
            };
            let shown = String::from_utf8_lossy(value);
            match option.to_ascii_lowercase().as_slice() {
                b"id" => {
                    let id = parse_integer(value).filter(|id| *id > 0);
                    let id = id.ok_or("ERR client-id should be greater than 0")?;
                    kill.id = Some(id as u64);
                }
                b"type" => {
                    let of = Type::parse(value);
                    kill.of = Some(of.ok_or(format!("ERR Unknown client type '{shown}'"))?);
                }
                b"addr" => kill.address = Some(value.to_vec()),
                b"laddr" => kill.local_address = Some(value.to_vec()),
                b"user" if users.has(value) => kill.user = Some(value.to_vec()),
                b"user" => return Err(format!("ERR No such user '{shown}'")),
                b"skipme" if value.eq_ignore_ascii_case(b"yes") => kill.skips = Some(itself),
                b"skipme" if value.eq_ignore_ascii_case(b"no") => kill.skips = None,
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(kill)
    }
}
