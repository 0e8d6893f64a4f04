// SPDX-License-Identifier: Apache-2.0
//! Answers INFO: what an operator can see of the front end and of the process in which it runs.

use std::fmt::Write;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::call::{Call, Outcome};
use crate::commands::config::max_memory;
use crate::metrics::Metrics;
use crate::native::Native;
use crate::state::subscriptions::NameKind;

/// The version of Redis whose behaviour the front end follows; clients adapt to it.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// The kernel counts CPU time in these ticks (`USER_HZ`), whatever its own clock does.
const TICKS_PER_SECOND: f64 = 100.0;

/// The steps that it takes to read what the kernel knows of the processes, roughly.
const STEPS: usize = 1_000;

/// Writes the lines of one section.
type Section = fn(&Call<'_>, &mut String);

const SECTIONS: [(&str, Section); 9] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

pub(crate) fn info(call: &mut Call<'_>) -> Outcome {
    let wanted = |name: &str| {
        let asked = &call.args[1..];
        let everything = ["all", "default", "everything"];
        asked.is_empty()
            || asked.iter().any(|section| {
                let section = section.to_ascii_lowercase();
                section == name.to_ascii_lowercase().as_bytes()
                    || everything.iter().any(|all| all.as_bytes() == section)
            })
    };
    call.shared.turn.spend(STEPS);
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if wanted(name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {name}\r\n");
            write(call, &mut text);
        }
    }
    call.writer().verbatim(&text);
    Outcome::Answered
}

/// Writes a line for each name.
fn lines(text: &mut String, lines: &[(&str, u64)]) {
    for (name, value) in lines {
        let _ = write!(text, "{name}:{value}\r\n");
    }
}

fn server(call: &Call<'_>, text: &mut String) {
    let uptime = call.shared.started.elapsed().as_secs();
    let _ = write!(
        text,
        "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nos:{}\r\nprocess_id:{}\r\n\
         tcp_port:{}\r\nuptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\n\
         wirepaxos_version:{}\r\n",
        std::env::consts::OS,
        std::process::id(),
        call.shared.this.address.port(),
        uptime / 86_400,
        env!("CARGO_PKG_VERSION"),
    );
}

fn clients(call: &Call<'_>, text: &mut String) {
    let metrics = &call.shared.metrics;
    let blocked = call.shared.waits.borrow().count() + call.shared.pause.borrow().count();
    let all = [
        ("connected_clients", Metrics::get(&metrics.connected)),
        ("blocked_clients", blocked as u64),
        ("maxclients", call.shared.max_clients as u64),
    ];
    lines(text, &all);
}

/// Returns a file of `/proc` for this process, which has the replica's store, and for its children,
/// the Redis servers.
fn of_processes(call: &Call<'_>, file: &str) -> Vec<String> {
    let servers = call.shared.native.iter().flat_map(Native::processes);
    let servers = servers.map(|number| format!("/proc/{number}/{file}"));
    let all = std::iter::once(format!("/proc/self/{file}")).chain(servers);
    all.filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

fn memory(call: &Call<'_>, text: &mut String) {
    let host = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of_all = of_processes(call, "status");
    let sum = |name: &str| of_all.iter().map(|status| kib(status, name)).sum::<u64>();
    let (used, peak) = (sum("VmRSS:"), sum("VmHWM:"));
    let metrics = &call.shared.metrics;
    // The limit is compared with the memory that the Redis servers report. The key-value store
    // reports none, so its resident memory is shown.
    let native = call.shared.native.as_ref();
    let of_servers = native.map(|native| native.seen().memory());
    let rss = used;
    let used = of_servers.filter(|bytes| *bytes > 0).unwrap_or(rss);
    let all = [
        ("used_memory", used),
        ("used_memory_rss", rss),
        ("used_memory_peak", peak),
        ("total_system_memory", kib(&host, "MemTotal:")),
        ("maxmemory", max_memory(call)),
        ("mem_clients_normal", Metrics::get(&metrics.memory_bytes)),
    ];
    lines(text, &all);
    let _ = write!(
        text,
        "used_memory_human:{}\r\nused_memory_peak_human:{}\r\nmaxmemory_policy:noeviction\r\n",
        human(used),
        human(peak),
    );
}

/// Returns the bytes of a line such as `VmRSS:  123 kB`.
fn kib(text: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let number = lines.next().and_then(|rest| rest.split_whitespace().next());
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Returns a size as Redis shows it, such as `1.50M`.
fn human(bytes: u64) -> String {
    let units = [(30, 'G'), (20, 'M'), (10, 'K')];
    match units.iter().find(|(bits, _)| bytes >> bits > 0) {
        Some((bits, unit)) => format!("{:.2}{unit}", bytes as f64 / (1_u64 << bits) as f64),
        None => format!("{bytes}B"),
    }
}

/// Writes that Redis's own persistence is idle, since the log and the replica's checkpoints take
/// its place.
fn persistence(_: &Call<'_>, text: &mut String) {
    let none = [
        "loading",
        "rdb_bgsave_in_progress",
        "aof_rewrite_in_progress",
    ];
    lines(text, &none.map(|name| (name, 0)));
    lines(text, &[("aof_enabled", 1)]);
}

fn stats(call: &Call<'_>, text: &mut String) {
    let metrics = &call.shared.metrics;
    let all = [
        ("total_connections_received", &metrics.connections),
        ("rejected_connections", &metrics.connections_refused),
        (
            "client_output_buffer_limit_disconnections",
            &metrics.output_limit_reached,
        ),
        ("evicted_clients", &metrics.evicted),
        ("total_commands_processed", &metrics.commands),
        ("instantaneous_ops_per_sec", &metrics.commands_per_second),
        ("total_commands_logged", &metrics.logged),
        ("total_commands_read", &metrics.reads),
        ("total_error_replies", &metrics.errors),
        ("refused_for_memory", &metrics.refused_for_memory),
        ("sessions_lost", &metrics.sessions_lost),
    ];
    lines(
        text,
        &all.map(|(name, counter)| (name, Metrics::get(counter))),
    );
    let channels = call.shared.channels.borrow();
    let kinds = [
        ("pubsub_channels", NameKind::Channel),
        ("pubsub_patterns", NameKind::Pattern),
        ("pubsubshard_channels", NameKind::Shard),
    ];
    lines(
        text,
        &kinds.map(|(name, kind)| (name, channels.count(kind) as u64)),
    );
}

fn replication(call: &Call<'_>, text: &mut String) {
    // Every replica takes writes, so each looks like a master to a client.
    text.push_str("role:master\r\nconnected_slaves:0\r\n");
    (call.shared.describe)(text);
}

fn cpu(call: &Call<'_>, text: &mut String) {
    let of_all = of_processes(call, "stat");
    let seconds = of_all.iter().filter_map(|stat| cpu_seconds(stat));
    let (user, system) = seconds.fold((0.0, 0.0), |(user, system), one| {
        (user + one.0, system + one.1)
    });
    let _ = write!(
        text,
        "used_cpu_sys:{system:.6}\r\nused_cpu_user:{user:.6}\r\n"
    );
}

/// Returns the user and system time in `/proc/*/stat`, where the program's name, in brackets, may
/// have any characters.
fn cpu_seconds(stat: &str) -> Option<(f64, f64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some((seconds()?, seconds()?))
}

/// Writes that the cluster is enabled; clients of Redis Cluster ask for it before they send
/// CLUSTER.
fn cluster(_: &Call<'_>, text: &mut String) {
    lines(text, &[("cluster_enabled", 1)]);
}

/// Writes the number of keys that this replica had within the last second; nothing until it is
/// known.
fn keyspace(call: &Call<'_>, text: &mut String) {
    let keys = call.shared.keys.iter().map(|keys| keys.load(Relaxed));
    let known: Option<Vec<u64>> = keys
        .map(|keys| (keys != u64::MAX).then_some(keys))
        .collect();
    let all: u64 = known.unwrap_or_default().iter().sum();
    if all > 0 {
        let _ = write!(text, "db0:keys={all},expires=0,avg_ttl=0\r\n");
    }
}

pub(crate) fn time(call: &mut Call<'_>) -> Outcome {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut writer = call.writer();
    writer.array(2);
    writer.bulk(now.as_secs().to_string().as_bytes());
    writer.bulk(now.subsec_micros().to_string().as_bytes());
    Outcome::Answered
}

/// Answers ROLE: every replica takes writes, so each looks like a master to a client, and none has
/// replicas of Redis's own kind.
pub(crate) fn role(call: &mut Call<'_>) -> Outcome {
    let mut writer = call.writer();
    writer.array(3);
    writer.bulk(b"master");
    writer.integer(0);
    writer.array(0);
    Outcome::Answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let status = "VmPeak:\t  999 kB\nVmRSS:\t    4660 kB\n";
        assert_eq!(kib(status, "VmRSS:"), 4660 << 10);
        assert_eq!(kib(status, "VmHWM:"), 0);
        let stat = "17 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu_seconds(stat), Some((2.5, 0.5)));
        assert_eq!(cpu_seconds("17 (cut) S 1 2"), None);
        let shown = [0, 1_023, 1_024, 1_572_864, 3 << 30].map(human);
        assert_eq!(shown, ["0B", "1023B", "1.00K", "1.50M", "3.00G"]);
    }
}
