// SPDX-License-Identifier: Apache-2.0
//! The values of messages between peers, big-endian.

use paxos::{Instance, Reason};

/// How commands are put in order in a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The leader orders the requests.
    Ordered,
    /// The network orders the requests, as each replica sees them.
    Free,
}

/// VIEW_CHANGE: how the sender's log came about. Its last view and its end are in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Report {
    pub commit: Instance,
    /// The last view began with the log below.
    pub base: Instance,
    pub order: Order,
}

/// START_VIEW.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Start {
    pub commit: Instance,
    /// The leader's log begins here.
    pub first: Instance,
    /// The digest of everything below the view's first slot.
    pub digest: u64,
    pub order: Order,
}

/// SYNC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sync {
    pub commit: Instance,
    /// The digest of everything below the committed slot.
    pub digest: u64,
}

impl Order {
    fn emit(self) -> u64 {
        match self {
            Order::Ordered => 0,
            Order::Free => 1,
        }
    }

    fn parse(number: u64) -> Result<Order, Reason> {
        match number {
            0 => Ok(Order::Ordered),
            1 => Ok(Order::Free),
            _ => Err(Reason::BadValue),
        }
    }
}

impl Report {
    pub fn emit(&self) -> Vec<u8> {
        emit(&[self.commit, self.base, self.order.emit()])
    }

    pub fn parse(value: &[u8]) -> Result<Report, Reason> {
        let [commit, base, order] = parse(value)?;
        let order = Order::parse(order)?;
        Ok(Report {
            commit,
            base,
            order,
        })
    }
}

impl Start {
    pub fn emit(&self) -> Vec<u8> {
        emit(&[self.commit, self.first, self.digest, self.order.emit()])
    }

    pub fn parse(value: &[u8]) -> Result<Start, Reason> {
        let [commit, first, digest, order] = parse(value)?;
        let order = Order::parse(order)?;
        Ok(Start {
            commit,
            first,
            digest,
            order,
        })
    }
}

impl Sync {
    pub fn emit(&self) -> Vec<u8> {
        emit(&[self.commit, self.digest])
    }

    pub fn parse(value: &[u8]) -> Result<Sync, Reason> {
        let [commit, digest] = parse(value)?;
        Ok(Sync { commit, digest })
    }
}

/// Writes the value of FETCH: how many entries are asked for.
pub(crate) fn emit_count(count: u64) -> Vec<u8> {
    emit(&[count])
}

/// Reads it.
pub(crate) fn parse_count(value: &[u8]) -> Result<u64, Reason> {
    let [count] = parse(value)?;
    Ok(count)
}

fn emit(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn parse<const N: usize>(value: &[u8]) -> Result<[u64; N], Reason> {
    let mut numbers = [0; N];
    if value.len() != 8 * N {
        return Err(Reason::BadValue);
    }
    for (number, bytes) in numbers.iter_mut().zip(value.chunks_exact(8)) {
        *number = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
    }
    Ok(numbers)
}
