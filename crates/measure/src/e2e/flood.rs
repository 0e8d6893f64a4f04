// SPDX-License-Identifier: Apache-2.0
//! A sender without a key that floods the leader with wrongly signed requests, while a load is
//! measured.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keys::KeyFile;
use node::ClusterFile;
use node::auth::{Signer, keyring};
use node::host::local_address;
use node::plane::{PlaneOptions, SendBatch, UdpPlane};
use paxos::auth::Algorithm;
use paxos::{Header, MsgType};

use local_cluster::Error;

/// The rate of the flood, and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flood {
    /// Packets a second.
    pub per_s: u32,
    /// True if the packets go to a socket that nobody reads, which shows the cost of the sender
    /// itself.
    pub to_nobody: bool,
}

/// Packets of a batch.
const BATCH: u32 = 64;
/// The bytes of the packets' values.
const VALUE_LEN: usize = 64;

/// A flood that continues until this is dropped.
pub struct Running {
    over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
}

impl Running {
    /// Sends from where the calling thread is.
    pub fn start(flood: Flood, cluster: &ClusterFile, leader: &str) -> Result<Running, Error> {
        let leader = cluster.named(leader)?.address;
        let own = local_address(leader)?;
        let plane = UdpPlane::bind(own, PlaneOptions::default())?;
        let nobody = UdpSocket::bind(own)?;
        let to = match flood.to_nobody {
            true => nobody.local_addr()?,
            false => leader,
        };
        let header = Header {
            cluster: cluster.cluster,
            group: cluster.groups[0].id,
            client: 1,
            request: 1,
            ..Header::new(MsgType::Request)
        };
        let strangers = keyring(&KeyFile::new(cluster.cluster)?, Algorithm::SipHash);
        let signer = Signer::new(Some(Arc::new(strangers)));
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let sender = std::thread::spawn(move || {
            send(plane, signer, &header, to, flood.per_s, &seen);
            drop(nobody);
        });
        Ok(Running {
            over,
            sender: Some(sender),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
    }
}

/// Sends a batch whenever one is due.
fn send(
    mut plane: UdpPlane,
    mut signer: Signer,
    header: &Header,
    to: SocketAddr,
    per_s: u32,
    over: &AtomicBool,
) {
    let mut batch = SendBatch::new();
    let pause = Duration::from_secs(1) * BATCH / per_s.max(1);
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            signer.push_all(&mut batch, &[to], header, &[0; VALUE_LEN], keys::NODES);
        }
        plane.send(&mut batch);
        due += pause;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // Packets that couldn't be sent in time aren't sent later.
        due = due.max(Instant::now());
    }
}
