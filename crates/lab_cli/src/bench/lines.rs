// SPDX-License-Identifier: Apache-2.0
//! The lines that measurements of whole clusters print, for people or as JSON.

use std::collections::BTreeMap;

use client::Home;
use measure::e2e::local::Local;
use measure::e2e::{ByProcess, Contender, FileSystem, Measured, Pair, Settings};
use serde_json::{Value, json};

/// Prints the head above the rows.
pub fn print_head() {
    println!(
        "{:>12} {:>7} {:>11} {:>12} {:>9} {:>9} {:>9}   CPU seconds",
        "", "clients", "outstanding", "ops/s", "p50 µs", "p99 µs", "p99.9 µs"
    );
}

/// Prints the rows of a load and of its baselines.
pub fn print(what: &str, pair: &Pair) {
    print_row(what, &pair.measured);
    if let Some(baseline) = &pair.unreplicated {
        print_row(Contender::Unreplicated.name(), baseline);
    }
    if let Some((single, batched)) = &pair.local {
        print_local("local", single);
        print_local("batched", batched);
    }
}

fn print_row(what: &str, row: &Measured) {
    let latency = row.latencies.percentiles_us();
    let cpu = row.cpu_s.iter().map(|(name, s)| format!("{name} {s:.2}"));
    println!(
        "{what:>12} {:>7} {:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
        row.clients,
        row.outstanding,
        row.ops_per_s(),
        latency.p50,
        latency.p99,
        latency.p999,
        cpu.collect::<Vec<_>>().join(", ")
    );
}

fn print_local(what: &str, local: &Local) {
    let slowest = local.slowest();
    let cpu = local.cpu_s();
    let cpu = cpu.iter().map(|(name, s)| format!("{name} {s:.2}"));
    println!(
        "{what:>12} {:>7} {:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
        "",
        format!("a write {}", local.batch),
        slowest.ops_per_s(),
        slowest.latency.p50,
        slowest.latency.p99,
        slowest.latency.p999,
        cpu.collect::<Vec<_>>().join(", ")
    );
}

/// Returns the JSON line of a load, with its baselines.
pub fn pair_json(pair: &Pair, settings: &Settings, file_system: &FileSystem) -> Value {
    let mut line = json_of(&pair.measured, settings, file_system);
    if let Some(baseline) = &pair.unreplicated {
        let settings = Settings {
            contender: Contender::Unreplicated,
            ..settings.clone()
        };
        line["baseline"] = json_of(baseline, &settings, file_system);
    }
    if let Some((single, batched)) = &pair.local {
        line["baseline"] = local_json(single, &line);
        line["baseline_batched"] = local_json(batched, &line);
    }
    line
}

/// Returns the fields of a cluster's line for the stores alone.
fn local_json(local: &Local, line: &Value) -> Value {
    let slowest = local.slowest();
    json!({
        "protocol": line["protocol"],
        "plane": line["plane"],
        "app": line["app"],
        "outstanding": line["outstanding"],
        "packed": line["packed"],
        "partitions": line["partitions"],
        "pinned": line["pinned"],
        "commands_in_a_commit": local.batch,
        "ops_per_s": slowest.ops_per_s().round(),
        "latency_us": slowest.latency.json(),
        "cpu_s": rounded(&local.cpu_s()),
        "store_cpu_s": rounded(&local.store_cpu_s()),
        "cpu_s_per_million": rounded(&local.cpu_s_per_million()),
    })
}

/// Returns the JSON object of one load: its settings and its figures.
fn json_of(row: &Measured, settings: &Settings, file_system: &FileSystem) -> Value {
    let mut line = settings_json(row, settings, file_system);
    if let (Some(line), Value::Object(figures)) = (line.as_object_mut(), figures_json(row)) {
        line.extend(figures);
    }
    line
}

fn settings_json(row: &Measured, settings: &Settings, file_system: &FileSystem) -> Value {
    let contender = settings.contender;
    json!({
        "protocol": contender.name(),
        "sequencer": settings.sequencer().map(|s| s.name()),
        "followers": contender.has_followers().then_some(match settings.stub_followers {
            true => "stub",
            false => "replicas",
        }),
        "plane": settings.plane.name(),
        "network": if settings.is_in_lab() { "namespaces" } else { "loopback" },
        "app": settings.app,
        "outstanding": row.outstanding,
        "clients": row.clients,
        "in_switch": settings.in_switch,
        "packed": !settings.unpacked && row.outstanding > row.clients,
        "partitions": settings.partitions,
        "workers": settings.workers,
        "multi": settings.multi,
        "gets": settings.gets,
        "reads": (settings.gets > 0).then(|| settings.reads.name()),
        "replicas": match contender {
            Contender::Unreplicated => 1,
            _ => settings.replicas,
        },
        "acceptors": match contender {
            Contender::Paxos => settings.acceptors,
            _ => 0,
        },
        "learners": settings.learners,
        "pinned": settings.pinned.name(),
        "spin_us": settings.spin.as_micros() as u64,
        "auth": settings.auth,
        "flood": settings.flood.map(|flood| json!({
            "per_s": flood.per_s,
            "to": if flood.to_nobody { "nobody" } else { "leader" },
        })),
        "homes": contender == Contender::Paxos && settings.home == Home::One,
        "value_bytes": settings.value_bytes,
        "max_value": settings.max_value,
        "open_values": settings.open_values,
        "durable": settings.durable,
        "file_system": json!({ "type": file_system.kind, "mount": file_system.mount }),
    })
}

fn figures_json(row: &Measured) -> Value {
    let counters = &row.counters;
    json!({
        "forged_per_s": row.forged_per_s().round(),
        "gaps": counters.gaps,
        "noops": counters.noops,
        "view_changes": counters.view_changes,
        "rollbacks": counters.rollbacks,
        "commit_holds": counters.commit_holds,
        "tables_written": row.tables_written,
        "ops_per_s": row.ops_per_s().round(),
        "latency_us": row.latencies.percentiles_us().json(),
        "longest_gap_ms": tenths(row.longest_gap.as_secs_f64() * 1_000.0),
        "commands_in_a_commit": tenths(row.commands_in_a_commit),
        "cpu_s": rounded(&row.cpu_s),
        "leader_cpu_us": (row.leader_cpu_us() * 1_000.0).round() / 1_000.0,
        "store_cpu_s": rounded(&row.store_cpu_s),
        "cpu_s_per_million": rounded(&row.cpu_s_per_million()),
        "memory_mib": {
            "before": rounded(&row.memory_before),
            "after": rounded(&row.memory_after),
        },
        "seconds": row.elapsed.as_secs_f64(),
    })
}

/// Adds the unreplicated server's line of the same load to the lines of the protocols, if it was
/// measured.
pub fn add_baselines(lines: &mut [Value]) {
    let is_bare = |line: &Value| line["protocol"] == Contender::Unreplicated.name();
    let Some(mut baseline) = lines.iter().find(|line| is_bare(line)).cloned() else {
        return;
    };
    let fields = baseline.as_object_mut();
    let independent = fields.and_then(|fields| fields.remove("independent"));
    for line in lines.iter_mut().filter(|line| !is_bare(line)) {
        line["baseline"] = baseline.clone();
        if let Some(line) = line.get_mut("independent") {
            line["baseline"] = independent.clone().into();
        }
    }
}

/// Rounds a number to one decimal place.
pub fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn rounded(values: &ByProcess) -> BTreeMap<&String, Value> {
    let round = |v: &f64| json!((v * 1000.0).round() / 1000.0);
    values.iter().map(|(name, v)| (name, round(v))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_is_shown_beside_the_bare_server_under_the_same_load() {
        let line = |protocol: &str, ops: u64| {
            json!({ "protocol": protocol, "ops_per_s": ops,
                    "independent": { "ops_per_s": ops / 10 } })
        };
        let mut lines = [line("vr", 300), line("unreplicated", 900)];
        add_baselines(&mut lines);
        assert_eq!(lines[0]["baseline"]["ops_per_s"], 900);
        assert!(lines[0]["baseline"].get("independent").is_none());
        assert_eq!(lines[0]["independent"]["baseline"]["ops_per_s"], 90);
        assert!(lines[1].get("baseline").is_none());
        let mut alone = [line("vr", 300)];
        add_baselines(&mut alone);
        assert!(alone[0].get("baseline").is_none());
    }
}
