// SPDX-License-Identifier: Apache-2.0
//! Checks of a node by itself.

use crate::cluster_file::validate::find_group;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;

use super::super::planes::NO_PORT;
use super::super::read::{RawGroup, RawNode, RawPeerTls};
use super::super::{
    ApplicationKind, Auth, DpdkSettings, Network, Node, Plane, RedisOrder, RedisReads, Role,
    Storage, planes,
};
use super::{Check, DEFAULT_P4_CONTROL, MAX_CLIENTS, PUBLISHED_PASSWORD, at};

impl Check {
    pub(super) fn node(
        &mut self,
        spanned: &Spanned<RawNode>,
        groups: &[Spanned<RawGroup>],
        dir: &Path,
    ) -> Node {
        let raw = spanned.get_ref();
        let role = self.choice("role", &raw.role, &Role::ALL, Role::name);
        self.name("name", &raw.name);
        self.keys_fit_role(raw, role);
        Node {
            name: raw.name.get_ref().clone(),
            id: self.required("id", &raw.id, 1..=i64::from(u16::MAX)) as u16,
            role,
            address: self.node_address("address", &raw.address),
            control: self.node_address("control", &raw.control),
            peer: raw
                .peer
                .as_ref()
                .map(|peer| self.node_address("peer", peer)),
            group: self.group_of(spanned, role, groups),
            plane: self.plane(raw),
            dpdk: self.dpdk(raw),
            switch: self.switch(raw, role),
            p4_control: self.p4_control(raw),
            p4_port: self.p4_port(raw),
            storage: self.storage(raw),
            leaving: self.leaving(raw, role),
            redis: self.redis(raw, groups),
            redis_order: self.redis_order(raw),
            redis_reads: self.redis_reads(raw),
            redis_password: raw.redis_password.as_ref().map(|p| p.get_ref().clone()),
            redis_password_file: raw
                .redis_password_file
                .as_ref()
                .map(|path| dir.join(path.get_ref())),
            redis_tls: self.redis_tls(raw, dir),
            metrics: self.metrics(raw),
            cpu: raw
                .cpu
                .as_ref()
                .map(|c| self.required("cpu", c, 0..=1_023) as usize),
            spin: self.spin(raw, role),
            workers: raw
                .workers
                .as_ref()
                .map(|w| self.required("workers", w, 1..=64) as u16),
            worker_cpus: self.worker_cpus(raw),
            directories: self.directories(raw, dir),
            copies: self.copies(raw, dir),
        }
    }

    fn spin(&mut self, raw: &RawNode, role: Role) -> Duration {
        let Some(spanned) = &raw.spin_us else {
            return Duration::ZERO;
        };
        if role == Role::Controller {
            self.error(
                at(spanned),
                "`spin_us` means nothing on a node with role = \"controller\"",
                "remove it; the controller isn't on the path of packets",
            );
        }
        Duration::from_micros(self.required("spin_us", spanned, 0..=10_000) as u64)
    }

    pub(super) fn worker_cpus(&mut self, raw: &RawNode) -> Vec<usize> {
        let cpus = raw.worker_cpus.iter().flat_map(Spanned::get_ref);
        cpus.map(|cpu| self.required("worker_cpus", cpu, 0..=1_023) as usize)
            .collect()
    }

    fn directories(&mut self, raw: &RawNode, dir: &Path) -> Vec<PathBuf> {
        let directories = raw.directories.iter().flat_map(Spanned::get_ref);
        directories
            .map(|directory| {
                self.directory("directories", directory);
                dir.join(directory.get_ref())
            })
            .collect()
    }

    /// Reports a key that has no effect without another key, which is missing.
    pub(in crate::cluster_file) fn only_with<T>(
        &mut self,
        (needed, example): (&str, &str),
        key: &str,
        raw: &Option<Spanned<T>>,
    ) {
        if let Some(raw) = raw {
            self.error(
                at(raw),
                format!("`{key}` without `{needed}`"),
                format!("add `{needed} = \"{example}\"`, or remove `{key}`"),
            );
        }
    }

    pub(super) fn auth(&mut self, raw: &Option<Spanned<String>>) -> Auth {
        let choose = |auth| self.choice("auth", auth, &Auth::ALL, Auth::name);
        raw.as_ref().map_or(Auth::Off, choose)
    }

    /// Returns the networks where clients may be.
    pub(super) fn clients(
        &mut self,
        raw: &Option<Spanned<Vec<Spanned<String>>>>,
        auth: Auth,
    ) -> Vec<Network> {
        let Some(raw) = raw else {
            return Vec::new();
        };
        if auth.of_packets().is_some() {
            self.error(
                at(raw),
                format!(
                    "`clients` with `auth = {:?}`: who may send commands shows by its key, \
                     wherever it is",
                    auth.name()
                ),
                "remove it",
            );
        }
        let mut clients = Vec::new();
        for network in raw.get_ref() {
            match network.get_ref().parse() {
                Ok(network) => clients.push(network),
                Err(()) => self.error(
                    at(network),
                    format!("{:?} is no address, and no network", network.get_ref()),
                    "write an IP address, or the first one of a network and how many bits all of \
                     its addresses begin with, such as \"10.0.1.0/24\"",
                ),
            }
        }
        if clients.len() > MAX_CLIENTS {
            self.error(
                at(raw),
                format!("`clients` names {} networks", clients.len()),
                "name 1000 at most; one network may hold many addresses",
            );
        }
        clients
    }

    pub(super) fn storage(&mut self, raw: &RawNode) -> Storage {
        raw.storage.as_ref().map_or(Storage::Volatile, |s| {
            self.choice("storage", s, &Storage::ALL, Storage::name)
        })
    }

    pub(super) fn leaving(&mut self, raw: &RawNode, role: Role) -> bool {
        let Some(leaving) = raw.leaving.as_ref().filter(|l| *l.get_ref()) else {
            return false;
        };
        if !matches!(role, Role::Acceptor | Role::Replica | Role::Leader) {
            self.error(
                at(leaving),
                format!("`leaving = true` on a {role}, which no epoch names"),
                "remove it; such a node can be removed from the file at once",
            );
        }
        true
    }

    pub(super) fn plane(&mut self, raw: &RawNode) -> Plane {
        let Some(spanned) = &raw.plane else {
            return Plane::Udp;
        };
        let plane = self.choice("plane", spanned, &Plane::ALL, Plane::name);
        if let Some(switch) = raw.switch.as_ref().filter(|_| plane == Plane::P4) {
            self.error(
                at(switch),
                "`switch` names one whose forwarder calls XDP programs, and this node has `plane \
                 = \"p4\"`",
                "remove it; `p4_control` says where the switch of a node on the P4 plane is",
            );
        }
        plane
    }

    /// Checks each node's plane. A node without `plane` uses sockets, which all roles can use.
    pub(super) fn planes(&mut self, cluster: &planes::Cluster<'_>, raw: &[Spanned<RawNode>]) {
        for (node, raw) in cluster.nodes.iter().zip(raw) {
            if let Some(plane) = &raw.get_ref().plane {
                for (problem, remedy) in cluster.against(node) {
                    self.error(at(plane), problem, remedy);
                }
            }
        }
    }

    fn dpdk(&mut self, raw: &RawNode) -> Option<DpdkSettings> {
        let plane = raw.plane.as_ref().map(|p| p.get_ref().as_str());
        if plane != Some(Plane::Dpdk.name()) {
            let with = ("plane", Plane::Dpdk.name());
            self.only_with(with, "dpdk_port", &raw.dpdk_port);
            self.only_with(with, "dpdk_args", &raw.dpdk_args);
            return None;
        }
        let port = raw.dpdk_port.as_ref()?;
        if port.get_ref().is_empty() {
            self.error(at(port), "`dpdk_port` is empty", NO_PORT.1);
        }
        let args = raw.dpdk_args.iter().flat_map(Spanned::get_ref);
        let args = args.map(|arg| {
            if arg.get_ref().is_empty() || arg.get_ref().contains('\0') {
                let problem = "an argument in `dpdk_args` is empty, or has a zero byte in it";
                self.error(at(arg), problem, "remove it");
            }
            arg.get_ref().clone()
        });
        Some(DpdkSettings {
            args: args.collect(),
            port: port.get_ref().clone(),
        })
    }

    fn p4_control(&mut self, raw: &RawNode) -> SocketAddr {
        let given = raw.p4_control.as_ref();
        let given = given.and_then(|control| self.address("p4_control", control));
        given.unwrap_or(DEFAULT_P4_CONTROL)
    }

    fn p4_port(&mut self, raw: &RawNode) -> u16 {
        // Port 255 is the CPU port of the switch's own machine, and larger numbers mean "nowhere".
        self.number("p4_port", &raw.p4_port, 0..=254, 1) as u16
    }

    /// Checks the name of a switch, which is also the name of the directory of its maps.
    fn switch(&mut self, raw: &RawNode, role: Role) -> Option<String> {
        let spanned = raw.switch.as_ref()?;
        self.name("switch", spanned);
        if matches!(role, Role::Controller | Role::Replica) {
            self.error(
                at(spanned),
                format!(
                    "`switch` means nothing on a node with role = {:?}",
                    role.name()
                ),
                "remove it: only roles that packets pass through can be at a switch",
            );
        }
        Some(spanned.get_ref().clone())
    }

    /// Checks a name; a node's name is also the name of its directory.
    pub(super) fn name(&mut self, key: &str, raw: &Spanned<String>) {
        let name = raw.get_ref();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
            self.error(
                at(raw),
                format!("`{key} = {name:?}` is no name"),
                "use 1 to 64 letters, digits, `-` and `_`",
            );
        }
    }

    fn keys_fit_role(&mut self, raw: &RawNode, role: Role) {
        let storage = raw.storage.as_ref();
        if let Some(storage) = storage.filter(|_| !matches!(role, Role::Acceptor | Role::Replica)) {
            self.error(
                at(storage),
                format!(
                    "`storage` means nothing on a node with role = {:?}",
                    role.name()
                ),
                "remove it; only nodes with role = \"acceptor\" have it, and replicas with NOPaxos",
            );
        }
        for (key, place) in keys_of_replicas(raw, role) {
            if let Some(place) = place.filter(|_| role != Role::Replica) {
                self.error(
                    place,
                    format!(
                        "`{key}` means nothing on a node with role = {:?}",
                        role.name()
                    ),
                    format!(
                        "remove it; only nodes with role = {:?} have it",
                        Role::Replica.name()
                    ),
                );
            }
        }
    }

    fn group_of(
        &mut self,
        node: &Spanned<RawNode>,
        role: Role,
        groups: &[Spanned<RawGroup>],
    ) -> Option<u16> {
        if !matches!(role, Role::Replica | Role::Sequencer) {
            return None;
        }
        match (&node.get_ref().group, groups) {
            (None, _) if role == Role::Sequencer => None,
            (None, [only]) => u16::try_from(*only.get_ref().id.get_ref()).ok(),
            (None, _) => {
                self.error(
                    at(node),
                    "this replica doesn't say which group it executes",
                    "add `group = ` and the id of one of the groups",
                );
                None
            }
            (Some(raw), _) => {
                if find_group(groups, *raw.get_ref()).is_none() {
                    self.error(
                        at(raw),
                        format!("there is no group {}", raw.get_ref()),
                        "name the id of one of the groups, or add a [[group]]",
                    );
                }
                u16::try_from(*raw.get_ref()).ok()
            }
        }
    }

    pub(super) fn redis(
        &mut self,
        raw: &RawNode,
        groups: &[Spanned<RawGroup>],
    ) -> Option<SocketAddr> {
        let Some(redis) = &raw.redis else {
            let with = ("redis", "127.0.0.1:6379");
            self.only_with(with, "redis_password", &raw.redis_password);
            self.only_with(with, "redis_password_file", &raw.redis_password_file);
            self.only_with(with, "redis_tls", &raw.redis_tls);
            self.only_with(with, "redis_order", &raw.redis_order);
            self.only_with(with, "redis_reads", &raw.redis_reads);
            return None;
        };
        let address = self.address("redis", redis)?;
        let password = raw.redis_password.as_ref().map(|p| p.get_ref().as_str());
        let file = raw.redis_password_file.as_ref();
        let tls = raw.redis_tls.as_ref().map(Spanned::get_ref);
        let shows_certificate = tls.is_some_and(|tls| tls.client_ca.is_some());
        let none = password.is_none() && file.is_none() && !shows_certificate;
        let is_no_secret = matches!(password, Some("" | PUBLISHED_PASSWORD));
        if is_no_secret || none && !address.ip().is_loopback() {
            self.error(
                at(redis),
                format!("`redis = \"{address}\"` would serve anybody on the network"),
                "set a `redis_password` of your own that is not empty, name a \
                 `redis_password_file`, ask for clients' certificates (`client_ca` in \
                 `redis_tls`), or use a loopback address such as 127.0.0.1",
            );
        }
        if let Some(file) = file.filter(|_| password.is_some()) {
            self.error(
                at(file),
                "`redis_password_file` beside `redis_password`",
                "keep one of the two",
            );
        }
        self.redis_group(redis, raw, groups);
        Some(address)
    }

    fn redis_tls(&mut self, raw: &RawNode, dir: &Path) -> Option<tls::Files> {
        let tls = raw.redis_tls.as_ref()?.get_ref();
        let mut file = |key, name| self.file(key, name, dir);
        Some(tls::Files {
            certificate: file("certificate", &tls.certificate),
            key: file("key", &tls.key),
            client_ca: tls.client_ca.as_ref().map(|ca| file("client_ca", ca)),
        })
    }

    pub(super) fn state_tls(&mut self, raw: &RawPeerTls, dir: &Path) -> tls::PeerFiles {
        let mut file = |key, name| self.file(key, name, dir);
        tls::PeerFiles {
            certificate: file("certificate", &raw.certificate),
            key: file("key", &raw.key),
            ca: file("ca", &raw.ca),
        }
    }

    pub(in super::super) fn file(
        &mut self,
        key: &str,
        name: &Spanned<String>,
        dir: &Path,
    ) -> PathBuf {
        if name.get_ref().is_empty() {
            self.error(at(name), format!("`{key}` is empty"), "name a file");
        }
        dir.join(name.get_ref())
    }

    pub(super) fn metrics(&mut self, raw: &RawNode) -> Option<SocketAddr> {
        let Some(metrics) = &raw.metrics else {
            self.only_with(
                ("metrics", "127.0.0.1:9101"),
                "metrics_open",
                &raw.metrics_open,
            );
            return None;
        };
        let address = self.address("metrics", metrics)?;
        let open = raw
            .metrics_open
            .as_ref()
            .is_some_and(|open| *open.get_ref());
        if !open && !address.ip().is_loopback() {
            self.error(
                at(metrics),
                format!("`metrics = \"{address}\"` would tell anybody on the network"),
                "use a loopback address such as 127.0.0.1, or say `metrics_open = true`",
            );
        }
        Some(address)
    }

    fn redis_order(&mut self, raw: &RawNode) -> RedisOrder {
        raw.redis_order
            .as_ref()
            .map_or(RedisOrder::Connection, |order| {
                self.choice("redis_order", order, &RedisOrder::ALL, RedisOrder::name)
            })
    }

    fn redis_reads(&mut self, raw: &RawNode) -> RedisReads {
        raw.redis_reads
            .as_ref()
            .map_or(RedisReads::Quorum, |reads| {
                self.choice("redis_reads", reads, &RedisReads::ALL, RedisReads::name)
            })
    }

    fn redis_group(
        &mut self,
        redis: &Spanned<String>,
        raw: &RawNode,
        groups: &[Spanned<RawGroup>],
    ) {
        let group = match &raw.group {
            Some(id) => find_group(groups, *id.get_ref()),
            None => groups.first().map(Spanned::get_ref),
        };
        let Some(group) = group else { return };
        let application = group.application.get_ref();
        // An unknown application is reported at its own place.
        if ApplicationKind::named(application).is_some_and(|kind| !kind.is_store()) {
            self.error(
                at(redis),
                format!(
                    "the Redis front end needs a store, and `application = {application:?}` is none"
                ),
                "choose \"rocksdb\", \"leveldb\" or \"redis\" in the group, or remove `redis`",
            );
        }
    }
}

/// Returns where a node has each of the keys that only replicas have. A spare sequencer has no
/// group.
fn keys_of_replicas(raw: &RawNode, role: Role) -> [(&'static str, Option<usize>); 11] {
    let group = raw.group.as_ref().filter(|_| role != Role::Sequencer);
    [
        ("group", group.map(at)),
        ("redis", raw.redis.as_ref().map(at)),
        ("workers", raw.workers.as_ref().map(at)),
        ("worker_cpus", raw.worker_cpus.as_ref().map(at)),
        ("directories", raw.directories.as_ref().map(at)),
        ("copies", raw.copies.as_ref().map(at)),
        ("redis_order", raw.redis_order.as_ref().map(at)),
        ("redis_reads", raw.redis_reads.as_ref().map(at)),
        ("redis_password", raw.redis_password.as_ref().map(at)),
        (
            "redis_password_file",
            raw.redis_password_file.as_ref().map(at),
        ),
        ("redis_tls", raw.redis_tls.as_ref().map(at)),
    ]
}
