// SPDX-License-Identifier: Apache-2.0
//! Replaces `client.rs` if the feature `client` is off: there are no clients.

use std::time::Duration;

use keys::Error;

use crate::{Failure, Lease, Settings, Swap};

/// A type without values, since this build has no client.
pub enum Client {}

#[allow(missing_docs)] // those of `client.rs`
impl Client {
    pub fn open(_: &Settings) -> Result<Client, Error> {
        Err(Error::new(
            "this program was built without a client of etcd, and the cluster file has \
             [controller.etcd]",
            "build it by ./dev setup, or with the cargo feature `etcd`; or remove that table",
        ))
    }

    pub fn get(&mut self, _: &str, _: Duration) -> Result<Option<Vec<u8>>, Failure> {
        match *self {}
    }

    pub fn swap(
        &mut self,
        _: &str,
        _: Option<&[u8]>,
        _: &[u8],
        _: Option<i64>,
        _: Duration,
    ) -> Result<Swap, Failure> {
        match *self {}
    }

    pub fn grant(&mut self, _: u64, _: Duration) -> Result<Lease, Failure> {
        match *self {}
    }

    pub fn renew(&mut self, _: i64, _: Duration) -> Result<bool, Failure> {
        match *self {}
    }

    pub fn revoke(&mut self, _: i64, _: Duration) -> Result<(), Failure> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_etcd_where_it_is_left_out_is_told_so() {
        let said = Client::open(&Settings::default())
            .err()
            .unwrap()
            .to_string();
        assert!(said.contains("without a client of etcd"), "{said}");
    }
}
