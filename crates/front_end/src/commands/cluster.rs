// SPDX-License-Identifier: Apache-2.0
//! Answers CLUSTER, which clients of Redis Cluster send before anything else. Every replica serves
//! all keys, so each front end says that it has all slots and that the group's others are its
//! replicas. So a client stays here, and knows where to go if this front end dies.

use std::fmt::Write;

use replica::slot;

use crate::call::{Call, Outcome};
use crate::resp::Writer;
use crate::settings::Neighbour;

const LAST_SLOT: u16 = slot::SLOTS - 1;

pub(crate) fn cluster(call: &mut Call<'_>) -> Outcome {
    let subcommand = call.args[1].to_ascii_lowercase();
    match (subcommand.as_slice(), call.args.len()) {
        (b"slots", 2) => slots(call),
        (b"shards", 2) => shards(call),
        (b"nodes", 2) => nodes(call),
        (b"info", 2) => info(call),
        (b"myid", 2) => {
            let name = this(call).name();
            call.writer().bulk(name.as_bytes());
        }
        (b"keyslot", 3) => {
            let of_key = slot::of_key(call.args[2]);
            call.writer().integer(i64::from(of_key));
        }
        (b"slots" | b"shards" | b"nodes" | b"info" | b"myid" | b"keyslot", _) => {
            let name = String::from_utf8_lossy(&subcommand);
            call.fail(format!(
                "ERR wrong number of arguments for 'cluster|{name}' command"
            ));
        }
        _ => {
            let shown = &call.args[1][..call.args[1].len().min(128)];
            let name = String::from_utf8_lossy(shown).to_uppercase();
            call.fail(format!(
                "ERR CLUSTER {name} isn't available here: each replica has all slots, and none \
                 moves"
            ));
        }
    }
    Outcome::Answered
}

/// Returns this front end as shown to clients. If it listens at all addresses, it shows the address
/// at which the client has found it.
fn this(call: &Call<'_>) -> Neighbour {
    let mut this = call.shared.this;
    if this.address.ip().is_unspecified() {
        let ip = call.client.local_address.ip().to_canonical();
        this.address.set_ip(ip);
    }
    this
}

fn slots(call: &mut Call<'_>) {
    let (this, others) = (this(call), call.shared.others.get());
    let mut writer = Writer {
        out: call.out,
        resp3: call.client.resp3,
    };
    writer.array(1);
    writer.array(3 + others.len());
    writer.integer(0);
    writer.integer(i64::from(LAST_SLOT));
    for node in [&this].into_iter().chain(others.iter()) {
        writer.array(4);
        writer.bulk(node.host().as_bytes());
        writer.integer(i64::from(node.address.port()));
        writer.bulk(node.name().as_bytes());
        // The list of the node's other names is empty.
        writer.array(0);
    }
}

fn shards(call: &mut Call<'_>) {
    let (this, others) = (this(call), call.shared.others.get());
    let mut writer = Writer {
        out: call.out,
        resp3: call.client.resp3,
    };
    writer.array(1);
    writer.map(2);
    writer.bulk(b"slots");
    writer.array(2);
    writer.integer(0);
    writer.integer(i64::from(LAST_SLOT));
    writer.bulk(b"nodes");
    writer.array(1 + others.len());
    shard_node(&mut writer, &this, "master");
    for node in others.iter() {
        shard_node(&mut writer, node, "replica");
    }
}

fn shard_node(writer: &mut Writer<'_>, node: &Neighbour, role: &str) {
    let (name, host) = (node.name(), node.host());
    writer.map(7);
    writer.bulk(b"id");
    writer.bulk(name.as_bytes());
    writer.bulk(if node.tls { b"tls-port" } else { b"port" });
    writer.integer(i64::from(node.address.port()));
    for (field, value) in [
        ("ip", host.as_str()),
        ("endpoint", &host),
        ("role", role),
        ("health", "online"),
    ] {
        writer.bulk(field.as_bytes());
        writer.bulk(value.as_bytes());
    }
    // A replica's answers are never behind, so the offset is no reason to choose one.
    writer.bulk(b"replication-offset");
    writer.integer(0);
}

fn nodes(call: &mut Call<'_>) {
    let this = this(call);
    let mut text = format!(
        "{} {}:{}@0 myself,master - 0 0 1 connected 0-{LAST_SLOT}\n",
        this.name(),
        this.host(),
        this.address.port()
    );
    for node in call.shared.others.get().iter() {
        let _ = writeln!(
            text,
            "{} {}:{}@0 slave {} 0 0 1 connected",
            node.name(),
            node.host(),
            node.address.port(),
            this.name()
        );
    }
    call.writer().verbatim(&text);
}

fn info(call: &mut Call<'_>) {
    let known = 1 + call.shared.others.get().len();
    let slots = slot::SLOTS;
    let text = format!(
        "cluster_state:ok\r\ncluster_slots_assigned:{slots}\r\ncluster_slots_ok:{slots}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{known}\r\n\
         cluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n"
    );
    call.writer().verbatim(&text);
}
