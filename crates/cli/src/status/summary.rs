// SPDX-License-Identifier: Apache-2.0
//! Shows a status document in a few lines for people; `--json` has all of it.

use node::ClusterFile;
use node::cluster_status;
use serde_json::Value;

/// Returns the lines of one node.
pub fn lines(document: &Value, cluster: &ClusterFile) -> Vec<String> {
    let mut lines: Vec<String> = match document["role"].as_str() {
        Some("controller") => stands_by(document)
            .into_iter()
            .chain(groups(document).flat_map(|g| controller(g, cluster)))
            .chain(archive(document))
            .collect(),
        Some("leader") => groups(document)
            .map(|g| stamper(g, "leads epoch", "backup"))
            .collect(),
        Some("sequencer") => groups(document)
            .map(|g| stamper(g, "stamps in session", "spare"))
            .collect(),
        Some("acceptor") => groups(document).map(acceptor).collect(),
        Some("replica") => replica(document),
        Some("learner") => learner(document),
        _ => Vec::new(),
    };
    lines.extend(dropped(document));
    let warnings = cluster_status::warnings(document);
    lines.extend(warnings.iter().map(|w| format!("WARNING: {w}")));
    lines
}

/// Returns a line about one of several controllers.
fn stands_by(document: &Value) -> Option<String> {
    match (document["acts"].as_bool()?, document["acting"].as_str()) {
        (true, _) => Some("acts".to_owned()),
        (false, Some(acting)) => Some(format!("stands by; {acting} acts")),
        (false, None) => Some("stands by; no controller acts".to_owned()),
    }
}

/// Returns a line about the archive of what is decided.
fn archive(document: &Value) -> Option<String> {
    let lag_s = document["backup"]["archive"]["lag_s"].as_u64()?;
    Some(format!("archive: all but the last {lag_s} s"))
}

fn groups(document: &Value) -> impl Iterator<Item = &Value> {
    document["groups"].as_array().into_iter().flatten()
}

fn partitions(group: &Value) -> impl Iterator<Item = &Value> {
    group["partitions"].as_array().into_iter().flatten()
}

fn controller(group: &Value, cluster: &ClusterFile) -> Vec<String> {
    let name = |id: &Value| {
        let id = id.as_u64().and_then(|id| u16::try_from(id).ok());
        let node = id.and_then(|id| cluster.node_by_id(id));
        node.map_or_else(|| "nobody".to_string(), |n| n.name.clone())
    };
    let epochs = || group["epochs"].as_array().into_iter().flatten();
    // Epochs of NOPaxos are sessions of a sequencer.
    let (epoch, stamps) = match epochs().any(|e| e["lead"].is_u64()) {
        true => ("session", "stamps"),
        false => ("epoch", "leads"),
    };
    let active = match group["active"].as_u64() {
        Some(n) => format!("{epoch} {n} is active, {} {stamps}", name(&group["leader"])),
        None => format!("no {epoch} is active"),
    };
    let mut lines = vec![format!("group {}: {active}", group["group"])];
    let attempt = &group["attempt"];
    if let (Some(n), Some(reason)) = (attempt["epoch"].as_u64(), attempt["reason"].as_str()) {
        let stage = attempt["stage"].as_str().unwrap_or("?");
        lines.push(format!("{epoch} {n} is on its way ({stage}): {reason}"));
    }
    let failover = &group["last_failover"];
    if let (Some(reason), Some(us)) = (
        failover["reason"].as_str(),
        failover["duration_us"].as_u64(),
    ) {
        lines.push(format!(
            "{epoch} {} took {:.1} ms: {reason}",
            failover["epoch"],
            us as f64 / 1000.0
        ));
    }
    lines
}

fn stamper(group: &Value, stamps: &str, idle: &str) -> String {
    if group["leading"] != true {
        return format!("group {}: {idle}", group["group"]);
    }
    let open: Vec<String> = partitions(group)
        .map(|p| format!("next {}, {} open", p["next"], p["open"]))
        .collect();
    format!(
        "group {}: {stamps} {}; {} of window {}",
        group["group"],
        group["epoch"],
        open.join("; "),
        group["window"]
    )
}

fn acceptor(group: &Value) -> String {
    if group["member"] != true {
        return format!(
            "group {}: STRANGER, waits to be named by an epoch",
            group["group"]
        );
    }
    let slots: Vec<String> = partitions(group)
        .map(|p| format!("end {}, trim {}, {} used", p["end"], p["trim"], p["used"]))
        .collect();
    format!(
        "group {}: member since epoch {} ({}); {} of {} slots",
        group["group"],
        group["epoch"],
        group["storage"].as_str().unwrap_or("?"),
        slots.join("; "),
        group["slots"]
    )
}

/// Describes a learner. Its decisions are counted for all groups together.
fn learner(document: &Value) -> Vec<String> {
    let group = |g: &Value| match g["epoch"].as_u64() {
        Some(epoch) => format!("group {}: counts votes of epoch {epoch}", g["group"]),
        None => format!("group {}: knows NO EPOCH, counts nothing", g["group"]),
    };
    let mut lines: Vec<String> = groups(document).map(group).collect();
    if let Some(last) = lines.last_mut() {
        let decided = document["counters"]["sent"]["deliver"].as_u64();
        *last = format!("{last}; {} decided", decided.unwrap_or_default());
    }
    lines
}

fn replica(document: &Value) -> Vec<String> {
    let partitions = partitions(document).map(|p| {
        let catching_up = match p["catching_up"].as_u64() {
            Some(at) => format!(", CATCHING UP to {at}"),
            None => String::new(),
        };
        let stopped = match p["stopped"] == true {
            true => ", STOPPED until another epoch is active",
            false => "",
        };
        let view = match p["nopaxos"].as_object() {
            Some(own) => format!("view {}.{}, ", own["session"], own["leader_number"]),
            None => String::new(),
        };
        format!(
            "partition {}: {view}next {}, checkpoint {}, {} sessions, {} \
             repaired{catching_up}{stopped}",
            p["pid"], p["next"], p["checkpoint"], p["sessions"], p["repaired"]
        )
    });
    let mut lines: Vec<String> = partitions.collect();
    if let Some(first) = lines.first_mut() {
        *first = format!(
            "{}; {first}",
            document["application"].as_str().unwrap_or("?")
        );
    }
    lines
}

/// Reasons that come of healthy work: a vote beyond the quorum, a TRIM that is repeated. `--json`
/// has them, too.
const ROUTINE: [&str; 2] = ["duplicate", "stale"];

/// Returns the counts of dropped and rejected packets, by reason, if an operator should see them.
fn dropped(document: &Value) -> Option<String> {
    let mut counts = Vec::new();
    for field in ["dropped", "rejected"] {
        let of_node = &document["counters"][field];
        let all = partitions(document).map(|p| &p[field]).chain([of_node]);
        for reasons in all.filter_map(Value::as_object) {
            let unusual = reasons
                .iter()
                .filter(|(reason, _)| !ROUTINE.contains(&reason.as_str()));
            counts.extend(unusual.map(|(reason, n)| format!("{reason} {n}")));
        }
    }
    (!counts.is_empty()).then(|| format!("refused packets: {}", counts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample() -> ClusterFile {
        node::cluster_file::parse(
            include_str!("../../../../testdata/cluster.toml"),
            "examples/cluster.toml",
        )
        .unwrap()
    }

    #[test]
    fn what_needs_attention_is_shown() {
        let cluster = sample();
        let acceptor = json!({
            "role": "acceptor",
            "groups": [{ "group": 0, "member": false }],
            "counters": { "dropped": { "duplicate": 878, "stale": 2, "stranger": 5 } },
            "warnings": ["the ring is 90% full"],
        });
        assert_eq!(
            lines(&acceptor, &cluster),
            [
                "group 0: STRANGER, waits to be named by an epoch",
                "refused packets: stranger 5",
                "WARNING: the ring is 90% full",
            ]
        );
        let mut learner = json!({
            "role": "learner",
            "groups": [{ "group": 0, "epoch": 3, "epochs": [3, 2] }],
            "counters": { "sent": { "deliver": 17 } },
        });
        let counts = "group 0: counts votes of epoch 3; 17 decided";
        assert_eq!(lines(&learner, &cluster), [counts]);
        learner["groups"][0]["epoch"] = Value::Null;
        assert!(lines(&learner, &cluster)[0].contains("NO EPOCH"));
        let replica = json!({
            "role": "replica",
            "application": "echo",
            "partitions": [{ "pid": 0, "next": 9, "checkpoint": 9, "sessions": 1, "repaired": 0,
                             "stopped": true }],
        });
        assert_eq!(
            lines(&replica, &cluster),
            [
                "echo; partition 0: next 9, checkpoint 9, 1 sessions, 0 repaired, STOPPED until \
                 another epoch is active"
            ]
        );
        let controller = json!({
            "role": "controller",
            "groups": [{ "group": 0, "active": 3, "leader": 11, "last_failover": {
                "reason": "first start", "duration_us": 1500, "epoch": 3 } }],
        });
        assert_eq!(
            lines(&controller, &cluster),
            [
                "group 0: epoch 3 is active, leader-1 leads",
                "epoch 3 took 1.5 ms: first start"
            ]
        );
        let session = json!({
            "role": "controller",
            "groups": [{ "group": 0, "active": null, "epochs": [{ "epoch": 4, "lead": 0 }],
                         "attempt": { "epoch": 4, "stage": "waiting",
                                      "reason": "sequencer 1 doesn't answer" } }],
        });
        assert_eq!(
            lines(&session, &cluster),
            [
                "group 0: no session is active",
                "session 4 is on its way (waiting): sequencer 1 doesn't answer"
            ]
        );
    }
}
