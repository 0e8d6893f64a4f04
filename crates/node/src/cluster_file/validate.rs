// SPDX-License-Identifier: Apache-2.0
//! Turns the records into a consistent cluster. Every check reports its place and a remedy.

mod cluster;
mod groups;
mod nodes;

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use paxos::wire::MAX_VALUE_LEN;
use toml::Spanned;

use super::planes;
use super::read::{RawFile, RawGroup, RawNode};
use super::{ClusterFile, ErrorAt, Fingerprint, Node, Origin, Plane, Published, Role};

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
    let controller = check.controller(&raw.controller.unwrap_or_default(), cluster, dir);
    check.unique_groups(&raw.group);
    check.unique_nodes(&raw.node);
    check.controllers(&nodes, &raw.node, &controller);
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

/// Sets `workers` to 1 for replicas of a group that share an address, where a thread a partition
/// costs more than it gains. Every node chooses ports by this number, so it doesn't depend on CPUs.
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

/// An old example for several machines had this cluster number. It is refused, since clusters that
/// kept it would take each other's packets.
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
                    "`wirepaxos init` draws one; or draw 8 hexadecimal digits at random (not all \
                     0, and none from an example): head -c4 /dev/urandom | xxd -p",
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

/// Returns the largest value that fits an MTU of 1,500 bytes; the IPv6 header is 20 bytes longer
/// than that of IPv4.
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
