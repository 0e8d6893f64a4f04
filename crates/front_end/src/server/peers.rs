// SPDX-License-Identifier: Apache-2.0
//! All connections, by index. An index is used again once its connection is gone.

use crate::server::peer::Peer;
use crate::state::waiter::Waiter;

/// The connections, by index.
#[derive(Default)]
pub(super) struct Peers {
    all: Vec<Option<Box<Peer>>>,
    /// The indexes without a connection.
    free: Vec<usize>,
}

impl Peers {
    /// Returns how many connections there are.
    pub fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many indexes there are, with and without a connection.
    pub fn places(&self) -> usize {
        self.all.len()
    }

    /// Takes a free index for one more connection, which must be [put](Self::put) there or the
    /// index [given back](Self::give_back).
    pub fn place(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        })
    }

    pub fn put(&mut self, index: usize, peer: Box<Peer>) {
        self.all[index] = Some(peer);
    }

    pub fn give_back(&mut self, index: usize) {
        self.free.push(index);
    }

    /// Removes the connection, if it is still there, and frees its index.
    pub fn remove(&mut self, index: usize) -> Option<Box<Peer>> {
        let peer = self.all[index].take()?;
        self.free.push(index);
        Some(peer)
    }

    /// Takes a connection that is [put](Self::put) back to its index.
    pub fn lift(&mut self, index: usize) -> Box<Peer> {
        self.all[index].take().expect("a connection")
    }

    /// Returns a connection that is known to be there.
    pub fn at(&mut self, index: usize) -> &mut Peer {
        self.all[index].as_mut().expect("a connection")
    }

    /// Returns the connection with this index, if there is one.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Peer> {
        self.all.get_mut(index)?.as_deref_mut()
    }

    /// Returns the connection of a waiter, unless it is gone and another one is in its place.
    pub fn of(&mut self, waiter: Waiter) -> Option<&mut Peer> {
        let peer = self.get_mut(waiter.index);
        peer.filter(|peer| peer.connection.client.id == waiter.client)
    }

    /// Returns the same connection to look at.
    pub fn find(&self, waiter: Waiter) -> Option<&Peer> {
        let peer = self.all.get(waiter.index)?.as_deref();
        peer.filter(|peer| peer.connection.client.id == waiter.client)
    }

    /// Returns all connections with their indexes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(index, peer)| Some((index, peer.as_deref()?)))
    }

    /// Returns all connections with their indexes, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Peer)> {
        let all = self.all.iter_mut().enumerate();
        all.filter_map(|(index, peer)| Some((index, peer.as_deref_mut()?)))
    }
}
