// SPDX-License-Identifier: Apache-2.0
//! Tests that `wirepaxos-lab bench e2e --protocol`, `bench loss`, `bench scale` and `bench
//! failover` can measure each protocol, and of the fields of each line. No figure is asserted.

mod testlab;

use std::process::Command;

use serde_json::Value;
use testlab::{LAB, TestLab, all};

/// The numbers in every line.
const NUMBERS: [&str; 9] = [
    "replicas",
    "ops_per_s",
    "forged_per_s",
    "gaps",
    "noops",
    "view_changes",
    "rollbacks",
    "commit_holds",
    "leader_cpu_us",
];

fn bench(words: &str) -> Command {
    let mut command = Command::new(LAB);
    command.arg("bench").args(words.split_whitespace());
    command
}

fn lines(command: &mut Command) -> Vec<Value> {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[track_caller]
fn is_whole(line: &Value) {
    for field in NUMBERS {
        assert!(line[field].is_number(), "{field}: {line}");
    }
    assert!(line["ops_per_s"].as_f64() > Some(0.0), "{line}");
    assert!(line["leader_cpu_us"].as_f64() > Some(0.0), "{line}");
    for percentile in ["p50", "p99", "p999"] {
        assert!(line["latency_us"][percentile].is_number(), "{line}");
    }
    assert!(line["packed"].is_boolean(), "{line}");
    assert!(line["cpu_s"]["client"].is_number(), "{line}");
    let of_nopaxos = line["protocol"] == "nopaxos";
    assert_eq!(line["sequencer"].is_string(), of_nopaxos, "{line}");
}

fn names(lines: &[Value], field: &str) -> Vec<String> {
    let names = lines.iter().map(|line| line[field].as_str().unwrap_or("-"));
    names.map(str::to_owned).collect()
}

/// A sender without a key sends as fast as it can meanwhile.
#[test]
fn forged_requests_are_counted_beside_the_load() {
    let of = |words: &str| {
        let line =
            format!("e2e --outstanding 8 --independent 0 --seconds 1 --replicas 1 --auth {words}");
        let mut found = lines(&mut bench(&line));
        let line = found.pop().unwrap();
        is_whole(&line);
        line
    };
    let leader = of("--flood 1000000");
    assert!(leader["forged_per_s"].as_f64() > Some(0.0), "{leader}");
    assert_eq!(leader["flood"]["to"], "leader");
    let nobody = of("--flood 1000000 --flood-nobody");
    assert_eq!(nobody["forged_per_s"], 0.0, "{nobody}");
    assert_eq!(of("")["flood"], Value::Null);
}

#[test]
fn forged_requests_are_counted_in_the_kernel() {
    let Some(lab) = TestLab::with_programs('f') else {
        return;
    };
    let words =
        "e2e --plane xdp --outstanding 8 --independent 0 --seconds 1 --auth --flood 1000000";
    let lines = lines(bench(words).env("WIREPAXOS_BPF_DIR", &lab.bpf));
    is_whole(&lines[0]);
    assert!(
        lines[0]["forged_per_s"].as_f64() > Some(0.0),
        "{}",
        lines[0]
    );
}

#[test]
fn every_protocol_has_a_line_a_load_beside_the_bare_server() {
    let words = "e2e --protocol all --outstanding 1,4 --independent 2 --seconds 1";
    let lines = lines(&mut bench(words));
    let protocols = "paxos nopaxos unreplicated vr vr-batch fast spec";
    let twice = format!("{protocols} {protocols}");
    assert_eq!(names(&lines, "protocol").join(" "), twice);
    for (at, line) in lines.iter().enumerate() {
        is_whole(line);
        let outstanding = if at < 7 { 1 } else { 4 };
        assert_eq!(line["outstanding"], outstanding);
        let bare = line["protocol"] == "unreplicated";
        assert_eq!(line.get("baseline").is_none(), bare, "{line}");
        if outstanding == 4 {
            is_whole(&line["independent"]);
            assert_eq!(line["independent"].get("baseline").is_none(), bare);
        }
        if !bare {
            is_whole(&line["baseline"]);
            assert_eq!(line["baseline"]["outstanding"], outstanding);
        }
    }
}

#[test]
fn followers_can_be_stubs() {
    let words = "scale --replicas 3,5 --whole 3 --outstanding 8 --seconds 1";
    let lines = lines(&mut bench(words));
    lines.iter().for_each(is_whole);
    assert_eq!(names(&lines, "followers").join(" "), "replicas stub");
    let [whole, stub] = [&lines[0], &lines[1]];
    assert_eq!(
        (&whole["replicas"], &stub["replicas"]),
        (&3.into(), &5.into())
    );
    assert!(whole["cpu_s"]["replica-2"].is_number(), "{whole}");
    assert!(stub["cpu_s"]["replica-2"].is_null(), "{stub}");
    assert!(stub["cpu_s"]["stubs-1"].is_number(), "{stub}");
}

#[test]
fn what_fails_leaves_a_gap() {
    let of_paxos = "leader-killed,leader-slow,acceptor-rejoins,hand-over";
    let of_nopaxos = "sequencer-killed,replica-leader-killed,replica-rejoins,hand-over";
    for (protocol, events) in [("paxos", of_paxos), ("nopaxos", of_nopaxos)] {
        let words = format!(
            "failover --protocol {protocol} --event {events} --runs 1 --outstanding 4 --seconds 2 \
             --probe-ms 20"
        );
        let lines = lines(&mut bench(&words));
        assert_eq!(names(&lines, "event").join(","), events);
        assert_gaps(&lines);
    }
}

fn assert_gaps(lines: &[Value]) {
    for line in lines {
        assert_eq!(line["detection_ms"], 100, "{line}");
        assert!(line["gap_ms"]["median"].as_f64() > Some(0.0), "{line}");
        assert_eq!(line["gap_ms"]["median"], line["gap_ms"]["max"]);
        assert!(line["peak_ms"].is_number(), "{line}");
        let at = line["event_at"].as_u64().unwrap() as usize;
        let answered = line["answered_by_10_ms"].as_array().unwrap();
        assert!(at >= 99 && answered.len() > at + 100, "{line}");
        let afterwards: u64 = answered[at + 100..].iter().filter_map(Value::as_u64).sum();
        assert!(afterwards > 0, "it serves again: {line}");
    }
}

#[test]
fn links_that_lose_packets_are_measured() {
    let Some(lab) = TestLab::with_faults('l') else {
        return;
    };
    let words =
        "loss --protocol nopaxos,unreplicated,vr,spec --rates 1 --outstanding 4 --seconds 1";
    let lines = lines(bench(words).env("WIREPAXOS_BPF_DIR", &lab.bpf));
    let twice = "nopaxos nopaxos unreplicated unreplicated vr vr spec spec";
    assert_eq!(names(&lines, "protocol").join(" "), twice);
    for of_one in lines.chunks(2) {
        of_one.iter().for_each(is_whole);
        assert_eq!(
            (&of_one[0]["loss"], &of_one[1]["loss"]),
            (&0.0.into(), &1.0.into())
        );
        assert_eq!(of_one[0]["of_lossless"], 1.0);
        assert!(of_one[1]["of_lossless"].is_number());
    }
}

#[test]
fn a_sequencer_is_measured_in_each_place() {
    let Some(lab) = TestLab::with_programs('s') else {
        return;
    };
    let words = "e2e --protocol nopaxos,paxos --sequencer host,xdp,switch --outstanding 4 \
                 --independent 0 --seconds 1";
    let lines = lines(bench(words).env("WIREPAXOS_BPF_DIR", &lab.bpf));
    lines.iter().for_each(is_whole);
    assert_eq!(names(&lines, "sequencer").join(" "), "host xdp switch -");
    assert_eq!(names(&lines, "plane").join(" "), "udp xdp xdp udp");
    assert!(lines.iter().all(|line| line["network"] == "namespaces"));
}

#[test]
fn gets_are_measured_with_and_without_the_log() {
    for reads in ["log", "quorum", "stale"] {
        let words = format!(
            "e2e --app leveldb --gets 50 --reads {reads} --partitions 2 --outstanding 8 \
             --independent 0 --seconds 1 --short"
        );
        let lines = lines(&mut bench(&words));
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(names(&lines, "reads"), [reads]);
        assert_eq!(line["gets"], 50);
        assert!(line["ops_per_s"].as_f64() > Some(0.0), "{line}");
    }
}

/// Transactions end on shards of every kind, and a load within the time is found.
#[test]
fn retwis_is_measured_on_every_kind_of_shard() {
    let words = "retwis --protocol nopaxos,spec,unreplicated,redis --keys 200 --most 2 \
                 --seconds 0.1 --slo-ms 10000";
    let lines = lines(&mut bench(words));
    let expected = ["nopaxos", "spec", "unreplicated", "redis"];
    assert_eq!(names(&lines, "protocol"), expected);
    for line in &lines {
        let best = &line["best"];
        assert!(best["transactions_per_s"].as_f64() > Some(0.0), "{line}");
        assert!(best["latency_us"]["p99"].is_number(), "{line}");
        assert!(best["aborted"].as_f64() < Some(1.0), "{line}");
        assert!(best["cpu_us"]["client"].as_f64() > Some(0.0), "{line}");
        let tried: Vec<_> = line["tried"].as_array().unwrap().iter().collect();
        let outstanding = tried.iter().map(|each| each["outstanding"].as_u64());
        assert_eq!(outstanding.collect::<Vec<_>>(), [Some(1), Some(2)]);
    }
}
