// SPDX-License-Identifier: Apache-2.0
//! Turns the records into a consistent cluster. Every check reports its place and a remedy.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paxos::configuration::{MAX_ACCEPTORS, MAX_REPLICAS};
use paxos::wire::MAX_VALUE_LEN;
use toml::Spanned;

use super::planes::{self, NO_PORT};
use super::read::{RawController, RawFile, RawGroup, RawNode, RawPeerTls};
use super::{
    Answer, ApplicationKind, Auth, ClusterFile, ControllerSettings, DpdkSettings, ErrorAt,
    Fingerprint, Group, Network, Node, Origin, Plane, Protocol, Published, RedisOrder, RedisReads,
    Role, Storage,
};

const DEFAULT_SLOTS: i64 = 65_536;
const DEFAULT_MAX_VALUE: i64 = 1_024;
const DEFAULT_KEYS: &str = "nodes.key";
/// The number of networks in `clients`, limited by the map of the XDP programs that holds them.
const MAX_CLIENTS: usize = 1000;
/// The default address of simple_switch, on the machine of the node's process.
const DEFAULT_P4_CONTROL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

pub(super) fn validate(raw: RawFile, file: &Path) -> Result<ClusterFile, Vec<ErrorAt>> {
    let mut check = Check::default();
    let cluster = check.cluster(&raw.cluster);
    check.directory("data", &raw.data);
    if let Some(keys) = raw.keys.as_ref().filter(|keys| keys.get_ref().is_empty()) {
        check.error(at(keys), "`keys` is empty", "name a file, or leave it out");
    }
    if let Some(trace) = &raw.trace {
        check.directory("trace", trace);
    }
    let auth = check.auth(&raw.auth);
    let clients = check.clients(&raw.clients, auth);
    let dir = file.parent().unwrap_or(Path::new(""));
    let state_tls = raw.state_tls.as_ref().map(|tls| check.state_tls(tls, dir));
    let mut nodes: Vec<_> = raw
        .node
        .iter()
        .map(|n| check.node(n, &raw.group, dir))
        .collect();
    let groups: Vec<_> = raw.group.iter().map(|g| check.group(g, &raw)).collect();
    let backup = check.backup(raw.backup.as_ref(), dir, &groups);
    let controller = check.controller(&raw.controller.unwrap_or_default());
    check.unique_groups(&raw.group);
    check.unique_nodes(&raw.node);
    check.controllers(&nodes, &raw.node);
    check.roles(&nodes, &raw.node, &groups);
    check.logs(&nodes, &raw.node, &groups);
    check.sequencers(&nodes, &raw.node, &groups, &raw.group);
    check.addresses(&nodes, &raw.node, &raw.group);
    let around = planes::Cluster {
        groups: &groups,
        nodes: &nodes,
        records: raw.trace.is_some(),
        auth,
    };
    check.planes(&around, &raw.node);
    if !check.errors.is_empty() {
        check.errors.sort_by_key(|e| e.at);
        return Err(check.errors);
    }
    share_machines(&mut nodes);
    Ok(ClusterFile {
        cluster,
        data: dir.join(raw.data.into_inner()),
        trace: raw.trace.map(|trace| dir.join(trace.into_inner())),
        keys: path(raw.keys, dir, DEFAULT_KEYS),
        auth,
        clients,
        state_tls,
        bpffs: path(raw.bpffs, dir, loader::pins::DEFAULT_MOUNT),
        groups,
        nodes,
        controller,
        backup,
        fingerprint: Fingerprint::default(),
        published: Published::default(),
        origin: Origin::default(),
    })
}

fn path(raw: Option<Spanned<String>>, dir: &Path, default: &str) -> PathBuf {
    dir.join(raw.map_or(default.into(), Spanned::into_inner))
}

/// Sets `workers` to 1 for replicas of a group that share an address, where a thread a partition costs
/// more than it gains. Every node chooses ports by this number, so it doesn't depend on CPUs.
fn share_machines(nodes: &mut [Node]) {
    let place = |node: &Node| {
        let group = node.group.filter(|_| node.role == Role::Replica);
        group.map(|group| (group, node.address.ip()))
    };
    let places: Vec<_> = nodes.iter().filter_map(place).collect();
    for node in nodes {
        let replicas = places.iter().filter(|of| Some(**of) == place(node)).count();
        if replicas > 1 && node.workers.is_none() && node.worker_cpus.is_empty() {
            node.workers = Some(1);
        }
    }
}

pub(super) fn at<T>(spanned: &Spanned<T>) -> usize {
    spanned.span().start
}

/// Collects errors. Every check returns a usable value, so that the next checks can continue.
#[derive(Default)]
pub(super) struct Check {
    errors: Vec<ErrorAt>,
}

/// An old example for several machines had this cluster number. It is refused, since clusters that kept it would take
/// each other's packets.
const PUBLISHED_NUMBER: u32 = 0x5eed_0003;
/// The password of that example.
const PUBLISHED_PASSWORD: &str = "change me";

impl Check {
    pub(super) fn error(&mut self, at: usize, problem: impl Display, remedy: impl Display) {
        self.errors.push(ErrorAt {
            at,
            problem: problem.to_string(),
            remedy: remedy.to_string(),
        });
    }

    pub(super) fn directory(&mut self, name: &str, raw: &Spanned<String>) {
        if raw.get_ref().is_empty() {
            self.error(at(raw), format!("`{name}` is empty"), "name a directory");
        }
    }

    fn cluster(&mut self, raw: &Spanned<String>) -> u32 {
        let text = raw.get_ref();
        let hex = text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
        match u32::from_str_radix(text, 16) {
            Ok(cluster) if hex && ![0, PUBLISHED_NUMBER].contains(&cluster) => cluster,
            _ => {
                self.error(
                    at(raw),
                    format!("`cluster = {text:?}` is no cluster number"),
                    "`wirepaxos init` draws one; or draw 8 hexadecimal digits at random (not all 0, and none from an \
                     example): head -c4 /dev/urandom | xxd -p",
                );
                0
            }
        }
    }

    /// Returns a number within `range`, or the default if there is none.
    pub(super) fn number(
        &mut self,
        name: &str,
        raw: &Option<Spanned<i64>>,
        range: RangeInclusive<i64>,
        default: i64,
    ) -> i64 {
        match raw {
            Some(raw) => self.required(name, raw, range),
            None => default.clamp(*range.start(), *range.end()),
        }
    }

    fn required(&mut self, name: &str, raw: &Spanned<i64>, range: RangeInclusive<i64>) -> i64 {
        let value = *raw.get_ref();
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            self.error(
                at(raw),
                format!("`{name} = {value}` is out of range"),
                format!("choose {low} to {high}"),
            );
        }
        value.clamp(*range.start(), *range.end())
    }

    fn choice<T: Copy>(
        &mut self,
        name: &str,
        raw: &Spanned<String>,
        all: &[T],
        name_of: impl Fn(T) -> &'static str,
    ) -> T {
        let text = raw.get_ref();
        if let Some(choice) = all.iter().find(|c| name_of(**c) == text) {
            return *choice;
        }
        let names: Vec<_> = all.iter().map(|c| format!("{:?}", name_of(*c))).collect();
        self.error(
            at(raw),
            format!("`{name} = {text:?}` is unknown"),
            format!("choose one of {}", names.join(", ")),
        );
        all[0]
    }

    fn address(&mut self, name: &str, raw: &Spanned<String>) -> Option<SocketAddr> {
        let text = raw.get_ref();
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() != 0 => Some(address),
            Ok(_) => {
                self.error(
                    at(raw),
                    format!("`{name} = {text:?}` has no port"),
                    "choose a port from 1 to 65535; the other nodes must know it",
                );
                None
            }
            Err(_) => {
                self.error(
                    at(raw),
                    format!("`{name} = {text:?}` is no address"),
                    "write an IP address and a port, as in \"127.0.0.1:7000\" or \"[::1]:7000\"",
                );
                None
            }
        }
    }

    /// Checks an address to which other nodes send.
    fn node_address(&mut self, name: &str, raw: &Spanned<String>) -> SocketAddr {
        let Some(address) = self.address(name, raw) else {
            return unusable();
        };
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            self.error(
                at(raw),
                format!("`{name} = \"{address}\"` is no address that others can send to"),
                "write the node's own address, as the other nodes reach it",
            );
        }
        address
    }

    fn group(&mut self, spanned: &Spanned<RawGroup>, file: &RawFile) -> Group {
        let raw = spanned.get_ref();
        let slots = self.number("slots", &raw.slots, 16..=1 << 22, DEFAULT_SLOTS);
        let window = self.number("window", &raw.window, 4..=slots / 16 * 15, slots / 4 * 3);
        let checkpoint = self.number(
            "checkpoint_every",
            &raw.checkpoint_every,
            1..=window / 2,
            slots / 8,
        );
        let id = self.required("id", &raw.id, 0..=i64::from(u16::MAX));
        let is_mine = |n: &RawNode, role: Role| {
            let group = n.group.as_ref().filter(|_| role == Role::Replica);
            n.role.get_ref() == role.name() && group.is_none_or(|g| *g.get_ref() == id)
        };
        let members = |role| count(file, |n| is_mine(n, role) && !is_leaving(n));
        for (role, most) in [
            (Role::Acceptor, MAX_ACCEPTORS),
            (Role::Replica, MAX_REPLICAS),
        ] {
            self.fit_in(spanned, role, count(file, |n| is_mine(n, role)), most);
        }
        let (acceptors, replicas) = (members(Role::Acceptor), members(Role::Replica));
        let protocol = self.protocol(raw);
        let (f, g) = match protocol {
            Protocol::Paxos => (
                self.odd_number(spanned, Role::Acceptor, acceptors),
                self.replicas(spanned, id, replicas),
            ),
            Protocol::NoPaxos => {
                let f = self.odd_number(spanned, Role::Replica, replicas);
                (f, f)
            }
        };
        Group {
            id: id as u16,
            protocol,
            partitions: self.number("partitions", &raw.partitions, 1..=64, 1) as u16,
            slots: slots as usize,
            window: window as u64,
            max_value: self.number(
                "max_value",
                &raw.max_value,
                64..=largest_value(file),
                default_max_value(file),
            ) as u16,
            application: self.choice(
                "application",
                &raw.application,
                &ApplicationKind::ALL,
                ApplicationKind::name,
            ),
            f,
            g,
            checkpoint_every: checkpoint as u64,
            gap_timeout_ms: self.number("gap_timeout_ms", &raw.gap_timeout_ms, 1..=60_000, 10)
                as u64,
            session_timeout_s: self.number(
                "session_timeout_s",
                &raw.session_timeout_s,
                1..=31_536_000,
                3_600,
            ) as u64,
            max_answer_mib: self.number("max_answer_mib", &raw.max_answer_mib, 1..=128, 64) as u64,
            max_memory_mib: self.max_memory(raw),
            answer: match &raw.answer {
                None => Answer::Executed,
                Some(answer) => self.choice("answer", answer, &Answer::ALL, Answer::name),
            },
            catch_up_mib_per_s: self.number(
                "catch_up_mib_per_s",
                &raw.catch_up_mib_per_s,
                1..=65_536,
                64,
            ) as u64,
            catch_up_kept_mib: self.number(
                "catch_up_kept_mib",
                &raw.catch_up_kept_mib,
                1..=1 << 20,
                4_096,
            ) as u64,
        }
    }

    fn max_memory(&mut self, raw: &RawGroup) -> Option<u64> {
        let given = raw.max_memory_mib.as_ref()?;
        if raw.application.get_ref() != ApplicationKind::Redis.name() {
            self.error(
                at(given),
                "`max_memory_mib` limits Redis servers, and this group has none".to_owned(),
                "leave it out, or choose `application = \"redis\"`".to_owned(),
            );
        }
        Some(self.required("max_memory_mib", given, 0..=1 << 24) as u64)
    }

    fn protocol(&mut self, raw: &RawGroup) -> Protocol {
        raw.protocol.as_ref().map_or(Protocol::Paxos, |p| {
            self.choice("protocol", p, &Protocol::ALL, Protocol::name)
        })
    }

    /// Checks that there are not too many nodes of a role. Leaving nodes count, since packets are still sent to them.
    fn fit_in(&mut self, group: &Spanned<RawGroup>, role: Role, n: i64, most: usize) {
        if n > most as i64 {
            self.error(
                at(group),
                format!("{n} {}s are too many", role.name()),
                format!("{most} is the most, those that leave included"),
            );
        }
    }

    /// Checks that the number of nodes is odd and returns f. Any two quorums of f+1 nodes must overlap, so there must
    /// be exactly 2f+1.
    fn odd_number(&mut self, group: &Spanned<RawGroup>, role: Role, n: i64) -> u8 {
        let what = role.name();
        if n == 0 {
            self.error(
                at(group),
                format!("there is no {what}"),
                format!("add nodes with role = {what:?}: 3 to survive the loss of one"),
            );
        } else if n % 2 == 0 {
            self.error(
                at(group),
                format!("{n} {what}s are not 2f+1"),
                format!(
                    "add one or remove one: {} survive no more than {} do",
                    n,
                    n - 1
                ),
            );
        }
        let f = (n.max(1) - 1) / 2;
        let raw = group.get_ref();
        // With NOPaxos the same nodes limit TRIM, so `g` must be equal to `f`.
        let g = raw.g.as_ref().filter(|_| role == Role::Replica);
        let differs = |raw: &&Spanned<i64>| n % 2 == 1 && *raw.get_ref() != f;
        for (key, raw) in [("f", raw.f.as_ref()), ("g", g)] {
            if let Some(raw) = raw.filter(differs) {
                self.error(
                    at(raw),
                    format!(
                        "`{key} = {}` needs 2{key}+1 {what}s, and there are {n}",
                        raw.get_ref()
                    ),
                    format!("leave `{key}` out (it is {f} here), or change the number of {what}s"),
                );
            }
        }
        f as u8
    }

    fn replicas(&mut self, group: &Spanned<RawGroup>, id: i64, n: i64) -> u8 {
        if n == 0 {
            self.error(
                at(group),
                format!("group {id} has no replica"),
                "add nodes with role = \"replica\": 3 to survive the loss of one",
            );
        }
        let most = (n.max(1) - 1) / 2;
        match &group.get_ref().g {
            Some(raw) if !(0..=most).contains(raw.get_ref()) => {
                self.error(
                    at(raw),
                    format!(
                        "`g = {}` needs 2g+1 replicas, and there are {n}",
                        raw.get_ref()
                    ),
                    format!("choose 0 to {most}, or add replicas"),
                );
                most as u8
            }
            Some(raw) => *raw.get_ref() as u8,
            None => most as u8,
        }
    }

    fn node(
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

    fn worker_cpus(&mut self, raw: &RawNode) -> Vec<usize> {
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
    pub(super) fn only_with<T>(
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

    fn auth(&mut self, raw: &Option<Spanned<String>>) -> Auth {
        let choose = |auth| self.choice("auth", auth, &Auth::ALL, Auth::name);
        raw.as_ref().map_or(Auth::Off, choose)
    }

    /// Returns the networks where clients may be.
    fn clients(&mut self, raw: &Option<Spanned<Vec<Spanned<String>>>>, auth: Auth) -> Vec<Network> {
        let Some(raw) = raw else {
            return Vec::new();
        };
        if auth.of_packets().is_some() {
            self.error(
                at(raw),
                format!(
                    "`clients` with `auth = {:?}`: who may send commands shows by its key, wherever it is",
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
                    "write an IP address, or the first one of a network and how many bits all of its addresses begin \
                     with, such as \"10.0.1.0/24\"",
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

    fn storage(&mut self, raw: &RawNode) -> Storage {
        raw.storage.as_ref().map_or(Storage::Volatile, |s| {
            self.choice("storage", s, &Storage::ALL, Storage::name)
        })
    }

    fn leaving(&mut self, raw: &RawNode, role: Role) -> bool {
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

    fn plane(&mut self, raw: &RawNode) -> Plane {
        let Some(spanned) = &raw.plane else {
            return Plane::Udp;
        };
        let plane = self.choice("plane", spanned, &Plane::ALL, Plane::name);
        if let Some(switch) = raw.switch.as_ref().filter(|_| plane == Plane::P4) {
            self.error(
                at(switch),
                "`switch` names one whose forwarder calls XDP programs, and this node has `plane = \"p4\"`",
                "remove it; `p4_control` says where the switch of a node on the P4 plane is",
            );
        }
        plane
    }

    /// Checks each node's plane. A node without `plane` uses sockets, which all roles can use.
    fn planes(&mut self, cluster: &planes::Cluster<'_>, raw: &[Spanned<RawNode>]) {
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
    fn name(&mut self, key: &str, raw: &Spanned<String>) {
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
        // A spare sequencer has no group.
        let group = raw.group.as_ref().filter(|_| role != Role::Sequencer);
        let keys = [
            ("group", group.map(at), Role::Replica),
            ("redis", raw.redis.as_ref().map(at), Role::Replica),
            ("workers", raw.workers.as_ref().map(at), Role::Replica),
            (
                "worker_cpus",
                raw.worker_cpus.as_ref().map(at),
                Role::Replica,
            ),
            (
                "directories",
                raw.directories.as_ref().map(at),
                Role::Replica,
            ),
            ("copies", raw.copies.as_ref().map(at), Role::Replica),
            (
                "redis_order",
                raw.redis_order.as_ref().map(at),
                Role::Replica,
            ),
            (
                "redis_reads",
                raw.redis_reads.as_ref().map(at),
                Role::Replica,
            ),
            (
                "redis_password",
                raw.redis_password.as_ref().map(at),
                Role::Replica,
            ),
            (
                "redis_password_file",
                raw.redis_password_file.as_ref().map(at),
                Role::Replica,
            ),
            ("redis_tls", raw.redis_tls.as_ref().map(at), Role::Replica),
        ];
        for (key, place, owner) in keys {
            if let Some(place) = place.filter(|_| role != owner) {
                self.error(
                    place,
                    format!(
                        "`{key}` means nothing on a node with role = {:?}",
                        role.name()
                    ),
                    format!(
                        "remove it; only nodes with role = {:?} have it",
                        owner.name()
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

    fn redis(&mut self, raw: &RawNode, groups: &[Spanned<RawGroup>]) -> Option<SocketAddr> {
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
                "set a `redis_password` of your own that is not empty, name a `redis_password_file`, ask for clients' certificates \
                 (`client_ca` in `redis_tls`), or use a loopback address such as 127.0.0.1",
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

    fn state_tls(&mut self, raw: &RawPeerTls, dir: &Path) -> tls::PeerFiles {
        let mut file = |key, name| self.file(key, name, dir);
        tls::PeerFiles {
            certificate: file("certificate", &raw.certificate),
            key: file("key", &raw.key),
            ca: file("ca", &raw.ca),
        }
    }

    fn file(&mut self, key: &str, name: &Spanned<String>, dir: &Path) -> PathBuf {
        if name.get_ref().is_empty() {
            self.error(at(name), format!("`{key}` is empty"), "name a file");
        }
        dir.join(name.get_ref())
    }

    fn metrics(&mut self, raw: &RawNode) -> Option<SocketAddr> {
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

    fn controller(&mut self, raw: &RawController) -> ControllerSettings {
        ControllerSettings {
            probe_ms: self.number("probe_ms", &raw.probe_ms, 2..=60_000, 40) as u64,
            suspect_after: self.number("suspect_after", &raw.suspect_after, 2..=1_000, 4) as u32,
        }
    }

    fn unique_groups(&mut self, groups: &[Spanned<RawGroup>]) {
        if groups.is_empty() {
            self.error(
                0,
                "there is no group",
                "add a [[group]] with `id` and `application`",
            );
        }
        self.unique("group `id`", groups.iter().map(|g| &g.get_ref().id));
    }

    fn unique_nodes(&mut self, nodes: &[Spanned<RawNode>]) {
        self.unique("node `id`", nodes.iter().map(|n| &n.get_ref().id));
        self.unique("`name`", nodes.iter().map(|n| &n.get_ref().name));
    }

    fn unique<'a, T: Ord + std::fmt::Debug + 'a>(
        &mut self,
        what: &str,
        all: impl Iterator<Item = &'a Spanned<T>>,
    ) {
        let mut seen = BTreeMap::new();
        for one in all {
            if seen.insert(one.get_ref(), ()).is_some() {
                self.error(
                    at(one),
                    format!("{what} {:?} is taken twice", one.get_ref()),
                    "give each its own",
                );
            }
        }
    }

    /// Checks that the roles fit the protocols, since each protocol has roles of its own.
    fn roles(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>], groups: &[Group]) {
        let speaks = |protocol| groups.iter().any(|g| g.protocol == protocol);
        let leads = |n: &Node| n.role == Role::Leader && !n.leaving;
        if speaks(Protocol::Paxos) && !nodes.iter().any(leads) {
            self.error(
                0,
                "there is no leader",
                "add a node with role = \"leader\", and a second one as its backup",
            );
        }
        for (node, raw) in nodes.iter().zip(raw) {
            let (protocol, why) = match node.role {
                Role::Leader => (Protocol::Paxos, "NOPaxos has sequencers in their place"),
                Role::Acceptor => (
                    Protocol::Paxos,
                    "in NOPaxos replicas remember what was stamped",
                ),
                Role::Learner => (Protocol::Paxos, "in NOPaxos there is nothing to learn"),
                Role::Sequencer => (Protocol::NoPaxos, "Paxos has leaders in their place"),
                Role::Controller | Role::Replica => continue,
            };
            if !groups.is_empty() && !speaks(protocol) {
                let (role, protocol) = (node.role.name(), protocol.name());
                self.error(
                    at(raw),
                    format!("role = {role:?}, and no group has protocol = {protocol:?}: {why}"),
                    format!("remove this node, or give a group protocol = {protocol:?}"),
                );
            }
        }
    }

    /// Refuses `storage` for replicas of a Paxos group, whose acceptors remember the decided values.
    fn logs(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>], groups: &[Group]) {
        for (node, raw) in nodes.iter().zip(raw) {
            let own = groups.iter().find(|g| Some(g.id) == node.group);
            let storage = raw.get_ref().storage.as_ref();
            let in_paxos = own.is_some_and(|g| g.protocol == Protocol::Paxos);
            let has_none = in_paxos && node.role == Role::Replica;
            if let Some(storage) = storage.filter(|_| has_none) {
                self.error(
                    at(storage),
                    "`storage` means nothing on a replica of a group with `protocol = \"paxos\"`: acceptors remember \
                     what is decided",
                    "remove it; acceptors have it, and replicas with NOPaxos",
                );
            }
        }
    }

    /// Checks the sequencers' groups: only one may be a group's first choice, since one stamps at a time.
    fn sequencers(
        &mut self,
        nodes: &[Node],
        raw_nodes: &[Spanned<RawNode>],
        groups: &[Group],
        raw_groups: &[Spanned<RawGroup>],
    ) {
        let sequencers = || {
            let all = nodes.iter().zip(raw_nodes);
            all.filter(|(n, _)| n.role == Role::Sequencer)
        };
        for (group, raw) in groups.iter().zip(raw_groups) {
            let id = group.id;
            let mut own = sequencers().filter(|(n, _)| n.group == Some(id));
            let first = own.next();
            if group.protocol == Protocol::Paxos {
                if let Some((_, raw)) = first {
                    self.error(
                        at(raw),
                        format!("a sequencer of group {id}, whose protocol is \"paxos\""),
                        "name a group with protocol = \"nopaxos\", or leave `group` out",
                    );
                }
                continue;
            }
            if first.is_none() && !sequencers().any(|(n, _)| n.group.is_none()) {
                self.error(
                    at(raw),
                    format!("group {id} has no sequencer"),
                    "add a node with role = \"sequencer\", and a second one as its spare",
                );
            }
            for (_, raw) in own {
                self.error(
                    at(raw),
                    format!("a second sequencer of group {id}, and one stamps at a time"),
                    "leave `group` out: then this one is a spare, which any group can go over to",
                );
            }
        }
    }

    /// Checks that no two sockets of one host need the same port, and that all nodes use one IP version.
    fn addresses(
        &mut self,
        nodes: &[Node],
        raw: &[Spanned<RawNode>],
        groups: &[Spanned<RawGroup>],
    ) {
        let mut taken: Vec<Taken> = Vec::new();
        for (node, raw) in nodes.iter().zip(raw) {
            for new in ports(node, raw.get_ref(), groups) {
                self.fits(&new, &taken);
                taken.push(new);
            }
        }
    }

    fn fits(&mut self, new: &Taken, taken: &[Taken]) {
        let Taken { address, ports, .. } = new;
        if address.port().checked_add(ports - 1).is_none() {
            self.error(
                new.at,
                format!("{} needs {ports} ports from {address} on", new.what),
                format!("choose a port of at most {}", 65_536 - u32::from(*ports)),
            );
        }
        if let Some(other) = taken.iter().find(|t| t.collides(new)) {
            self.error(
                new.at,
                format!(
                    "{} of {:?} takes {address} as {} of {:?} does",
                    new.what, new.node, other.what, other.node
                ),
                "choose another port; a replica takes one for each partition",
            );
        }
        let family = |t: &Taken| t.between_nodes && t.address.is_ipv4() != address.is_ipv4();
        if new.between_nodes && taken.first().is_some_and(family) {
            self.error(
                new.at,
                format!("{address} is of another IP version than the first node's"),
                "give all nodes IPv4 addresses, or all IPv6",
            );
        }
    }
}

/// The ports that one socket of a node takes.
struct Taken {
    at: usize,
    what: &'static str,
    node: String,
    address: SocketAddr,
    ports: u16,
    udp: bool,
    tcp: bool,
    between_nodes: bool,
}

impl Taken {
    fn collides(&self, other: &Taken) -> bool {
        let (a, b) = (self.address, other.address);
        let any = |ip: std::net::IpAddr| ip.is_unspecified();
        let same_host = a.ip() == b.ip()
            || a.is_ipv4() == b.is_ipv4() && (any(a.ip()) || any(b.ip()))
            // An IPv6 socket on any address also takes the IPv4 port.
            || a.is_ipv6() && any(a.ip())
            || b.is_ipv6() && any(b.ip());
        let last = |t: &Taken| t.address.port().saturating_add(t.ports - 1);
        let overlap = a.port() <= last(other) && b.port() <= last(self);
        let protocol = self.udp && other.udp || self.tcp && other.tcp;
        same_host && overlap && protocol
    }
}

fn ports(node: &Node, raw: &RawNode, groups: &[Spanned<RawGroup>]) -> Vec<Taken> {
    let replica = node.role == Role::Replica;
    let partitions = node
        .group
        .filter(|_| replica)
        .and_then(|id| find_group(groups, i64::from(id)))
        .and_then(|g| g.partitions.as_ref())
        .map_or(1, |p| (*p.get_ref()).clamp(1, 64) as u16);
    let taken = |what, at, address, udp, tcp| Taken {
        at,
        what,
        node: node.name.clone(),
        address,
        ports: 1,
        udp,
        tcp,
        between_nodes: udp,
    };
    let mut all = vec![
        Taken {
            ports: partitions,
            ..taken("`address`", at(&raw.address), node.address, true, false)
        },
        taken("`control`", at(&raw.control), node.control, true, replica),
    ];
    if let (Some(address), Some(raw)) = (node.peer, &raw.peer) {
        all.push(taken("`peer`", at(raw), address, true, false));
    }
    if let (Some(address), Some(raw)) = (node.redis, &raw.redis) {
        all.push(taken("`redis`", at(raw), address, false, true));
    }
    if let (Some(address), Some(raw)) = (node.metrics, &raw.metrics) {
        all.push(taken("`metrics`", at(raw), address, false, true));
    }
    // An unreadable address has already been reported.
    all.retain(|t| t.address.port() != 0);
    all
}

/// Returns the default of `max_value`, which the programs of all nodes can carry.
fn default_max_value(file: &RawFile) -> i64 {
    let planes = file.node.iter().filter_map(|n| n.get_ref().plane.as_ref());
    let mut switches = planes.filter(|plane| *plane.get_ref() == Plane::P4.name());
    match switches.next() {
        Some(_) => p4::programs::MAX_VALUE.into(),
        None => DEFAULT_MAX_VALUE,
    }
}

/// Returns the largest value that fits an MTU of 1,500 bytes; the IPv6 header is 20 bytes longer than that of IPv4.
fn largest_value(file: &RawFile) -> i64 {
    let over_ipv6 = |n: &Spanned<RawNode>| n.get_ref().address.get_ref().starts_with('[');
    let longer_header = if file.node.iter().any(over_ipv6) {
        20
    } else {
        0
    };
    MAX_VALUE_LEN as i64 - longer_header
}

/// Returns a placeholder for an address that was refused, so that the other checks can continue.
fn unusable() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn find_group(groups: &[Spanned<RawGroup>], id: i64) -> Option<&RawGroup> {
    groups
        .iter()
        .map(Spanned::get_ref)
        .find(|g| *g.id.get_ref() == id)
}

fn is_leaving(node: &RawNode) -> bool {
    node.leaving
        .as_ref()
        .is_some_and(|leaving| *leaving.get_ref())
}

fn count(file: &RawFile, wanted: impl Fn(&RawNode) -> bool) -> i64 {
    file.node.iter().filter(|n| wanted(n.get_ref())).count() as i64
}
