// SPDX-License-Identifier: Apache-2.0
//! What a connection's client has told of itself.

use std::net::SocketAddr;
use std::time::Instant;

use crate::transaction::Transaction;

/// State that commands such as HELLO and CLIENT change.
pub(crate) struct Client {
    pub id: u64,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since: Instant,
    pub authenticated: bool,
    pub resp3: bool,
    /// After READONLY: reads are content with what this replica has executed.
    pub reads_stale: bool,
    /// After MULTI, until EXEC, DISCARD or RESET.
    pub transaction: Option<Transaction>,
    /// Keys that are watched, each with its version.
    pub watched: Vec<(Vec<u8>, u64)>,
    pub name: Vec<u8>,
    pub library_name: Vec<u8>,
    pub library_version: Vec<u8>,
    pub last_command: &'static str,
}

impl Client {
    /// The line of CLIENT INFO.
    pub fn describe(&self) -> String {
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 \
             multi=-1 cmd={} user=default lib-name={} lib-ver={} resp={}",
            self.id,
            self.address,
            self.local_address,
            String::from_utf8_lossy(&self.name),
            self.since.elapsed().as_secs(),
            self.last_command,
            String::from_utf8_lossy(&self.library_name),
            String::from_utf8_lossy(&self.library_version),
            if self.resp3 { 3 } else { 2 },
        )
    }
}
