// SPDX-License-Identifier: Apache-2.0
//! Writes a status document as Prometheus text: for each family HELP, TYPE and then its series.

use std::fmt::Write as _;

use serde_json::Value;

use super::families::{FAMILIES, Family, MetricType};

/// The beginning of each name.
const PREFIX: &str = "wirepaxos_";
/// The strings of a plane that its metric `plane_info` has as labels, with the labels' names.
const PLANE_LABELS: [(&str, &str); 5] = [
    ("name", "plane"),
    ("interface", "interface"),
    ("mode", "mode"),
    ("driver", "driver"),
    ("switch", "switch"),
];

type Labels = Vec<(&'static str, String)>;

/// Returns the text of a node's metrics. `name_of` returns the name of the node with a number.
pub(crate) fn text(document: &Value, name_of: &dyn Fn(u64) -> String) -> String {
    let own = own_labels(document);
    let mut out = Text::default();
    let word = |field: &str| shown(&document[field]);
    let build = [("version", word("version")), ("commit", word("commit"))];
    out.one(
        &info("build_info", "The build of this node's program."),
        [own.clone(), build.to_vec()].concat(),
    );
    let plane = PLANE_LABELS.iter().filter_map(|(field, label)| {
        let value = document["plane"][field].as_str()?;
        Some((*label, value.to_owned()))
    });
    let plane: Labels = plane.collect();
    if !plane.is_empty() {
        out.one(
            &info("plane_info", "Where this node handles its packets."),
            [own.clone(), plane].concat(),
        );
    }
    let warnings = Family {
        name: "warnings",
        help: "Warnings in the node's status; `wirepaxos status` has their words.",
        ..info("", "")
    };
    out.begin(&warnings);
    out.line(&warnings, "", &own, &warnings_of(document).to_string());
    for family in FAMILIES {
        let mut found = Vec::new();
        for path in family.paths {
            let steps: Vec<&'static str> = path.split('.').collect();
            find(document, &steps, &own, name_of, &mut found);
        }
        out.family(family, &found);
    }
    out.0
}

fn info(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: MetricType::Gauge,
        help,
        paths: &[],
        scale: 1.0,
    }
}

/// Returns the labels of all series: the node's name and role, and a replica's group.
fn own_labels(document: &Value) -> Labels {
    let mut labels = vec![
        ("node", shown(&document["name"])),
        ("role", shown(&document["role"])),
    ];
    if !document["group"].is_null() {
        labels.push(("group", shown(&document["group"])));
    }
    labels
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

/// Returns the number of warnings of the node, its groups and its partitions, as `status` counts
/// them.
fn warnings_of(document: &Value) -> usize {
    let list = |value: &Value| value["warnings"].as_array().map_or(0, Vec::len);
    let entries = |field: &str| document[field].as_array().into_iter().flatten();
    let partitions = entries("partitions").filter(|p| p["warning"].is_string());
    // The controller repeats its groups' warnings among its own.
    let of_groups: usize = match document["role"] == "controller" {
        true => 0,
        false => entries("groups").map(list).sum(),
    };
    list(document) + of_groups + partitions.count()
}

/// Finds the numbers at the end of a path.
fn find(
    value: &Value,
    steps: &[&'static str],
    labels: &Labels,
    name_of: &dyn Fn(u64) -> String,
    found: &mut Vec<(Labels, Value)>,
) {
    let Some((step, rest)) = steps.split_first() else {
        match value {
            Value::Bool(truth) => found.push((labels.clone(), u8::from(*truth).into())),
            Value::Number(_) | Value::Object(_) => found.push((labels.clone(), value.clone())),
            _ => {}
        }
        return;
    };
    let with = |label, value| [labels.clone(), vec![(label, value)]].concat();
    if let Some((list, id)) = step.strip_suffix(']').and_then(|s| s.split_once('[')) {
        for entry in value[list].as_array().into_iter().flatten() {
            let label = with(label_of(id), label_value(id, &entry[id], name_of));
            find(entry, rest, &label, name_of, found);
        }
    } else if let Some((object, label)) = step.strip_suffix('}').and_then(|s| s.split_once('{')) {
        let split = |at| label.split_once(at);
        let (label, only, always) = match (split(':'), split('+')) {
            (Some((label, only)), _) => (label, Some(only), None),
            (None, Some((label, always))) => (label, None, Some(always)),
            (None, None) => (label, None, None),
        };
        let is_meant = |key: &str| only.is_none_or(|only| only.split(',').any(|one| one == key));
        let Some(members) = value[object].as_object() else {
            return;
        };
        for (key, member) in members.iter().filter(|(key, _)| is_meant(key)) {
            find(member, rest, &with(label, key.clone()), name_of, found);
        }
        if let Some(key) = always.filter(|key| !members.contains_key(*key)) {
            found.push((with(label, key.to_owned()), 0.into()));
        }
    } else if let Some(list) = step.strip_suffix('#') {
        if let Some(list) = value[list].as_array() {
            found.push((labels.clone(), list.len().into()));
        }
    } else if let Some(member) = step.strip_suffix('!') {
        if let Some(member) = value.get(member) {
            found.push((labels.clone(), u8::from(!member.is_null()).into()));
        }
    } else if let Some(member) = step.strip_suffix('?') {
        match value.get(member) {
            Some(Value::Null) => found.push((labels.clone(), 0.into())),
            Some(member) => find(member, rest, labels, name_of, found),
            None => {}
        }
    } else {
        find(&value[step], rest, labels, name_of, found);
    }
}

/// Returns the label for the member that tells a list's entries apart.
fn label_of(id: &str) -> &'static str {
    match id {
        "pid" => "partition",
        "node" => "member",
        "replica" => "replica",
        _ => "group",
    }
}

fn label_value(id: &str, value: &Value, name_of: &dyn Fn(u64) -> String) -> String {
    match value.as_u64() {
        Some(number) if matches!(id, "node" | "replica") => name_of(number),
        _ => shown(value),
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// Writes a family of one series with the value 1.
    fn one(&mut self, family: &Family, labels: Labels) {
        self.begin(family);
        self.line(family, "", &labels, "1");
    }

    /// Writes a family, or nothing if there is no number of it.
    fn family(&mut self, family: &Family, found: &[(Labels, Value)]) {
        let numbers = found.iter().filter(|(_, value)| match family.kind {
            MetricType::Histogram => value.is_object(),
            MetricType::Gauge | MetricType::Counter => value.is_number(),
        });
        for (at, (labels, value)) in numbers.enumerate() {
            if at == 0 {
                self.begin(family);
            }
            match family.kind {
                MetricType::Histogram => self.histogram(family, labels, value),
                MetricType::Gauge | MetricType::Counter => {
                    self.line(family, "", labels, &number(value, family.scale));
                }
            }
        }
    }

    fn begin(&mut self, family: &Family) {
        let kind = match family.kind {
            MetricType::Gauge => "gauge",
            MetricType::Counter => "counter",
            MetricType::Histogram => "histogram",
        };
        let (name, help) = (family.name, family.help);
        let _ = write!(
            self.0,
            "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n"
        );
    }

    fn histogram(&mut self, family: &Family, labels: &Labels, value: &Value) {
        let count = value["count"].to_string();
        let buckets = value["buckets"].as_array().into_iter().flatten();
        let buckets = buckets.map(|b| (b[0].to_string(), b[1].to_string()));
        for (bound, n) in buckets.chain([("+Inf".to_owned(), count.clone())]) {
            let labels = [labels.clone(), vec![("le", bound)]].concat();
            self.line(family, "_bucket", &labels, &n);
        }
        self.line(family, "_sum", labels, &value["sum_s"].to_string());
        self.line(family, "_count", labels, &count);
    }

    fn line(&mut self, family: &Family, suffix: &str, labels: &Labels, value: &str) {
        let label = |(key, value): &(&str, String)| {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            format!("{key}=\"{value}\"")
        };
        let labels: Vec<_> = labels.iter().map(label).collect();
        let (name, labels) = (family.name, labels.join(","));
        let _ = writeln!(self.0, "{PREFIX}{name}{suffix}{{{labels}}} {value}");
    }
}

fn number(value: &Value, scale: f64) -> String {
    match value.as_f64() {
        Some(number) if scale != 1.0 => (number * scale).to_string(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(document: &Value, of: &str) -> Vec<String> {
        let name_of = |id| format!("node-{id}");
        let text = text(document, &name_of);
        let of = |line: &&str| line.split([' ', '{']).any(|word| word.ends_with(of));
        text.lines().filter(of).map(str::to_owned).collect()
    }

    #[test]
    fn each_family_has_help_and_type_and_its_series_together() {
        let document = json!({
            "node": 7, "name": "a\"b\\c\nd", "role": "acceptor",
            "groups": [
                { "group": 0, "partitions": [{ "pid": 0, "used": 5 }, { "pid": 1, "used": 6 }] },
                { "group": 1, "partitions": [{ "pid": 0, "used": 7 }] },
            ],
        });
        let own = r#"node="a\"b\\c\nd",role="acceptor""#;
        assert_eq!(
            lines(&document, "ring_used_slots"),
            [
                "# HELP wirepaxos_ring_used_slots Slots in use; a full ring stops the partition."
                    .to_owned(),
                "# TYPE wirepaxos_ring_used_slots gauge".to_owned(),
                format!("wirepaxos_ring_used_slots{{{own},group=\"0\",partition=\"0\"}} 5"),
                format!("wirepaxos_ring_used_slots{{{own},group=\"0\",partition=\"1\"}} 6"),
                format!("wirepaxos_ring_used_slots{{{own},group=\"1\",partition=\"0\"}} 7"),
            ]
        );
    }

    #[test]
    fn members_are_named_and_do_not_take_the_nodes_own_labels() {
        let document = json!({
            "node": 1, "name": "controller", "role": "controller", "plane": { "name": "udp" },
            "groups": [{
                "group": 0, "active": null, "attempt": null, "suspects": [2],
                "epochs": [{ "epoch": 1 }, { "epoch": 2 }],
                "members": [
                    { "node": 2, "role": "leader", "alive": false },
                    { "node": 3, "role": "leader", "alive": true },
                ],
                "last_failover": { "duration_us": 2500 },
            }],
        });
        let own = "node=\"controller\",role=\"controller\"";
        let series = |of| lines(&document, of).split_off(2);
        assert_eq!(
            series("member_alive"),
            [
                format!("wirepaxos_member_alive{{{own},group=\"0\",member=\"node-2\"}} 0"),
                format!("wirepaxos_member_alive{{{own},group=\"0\",member=\"node-3\"}} 1"),
            ]
        );
        let plane = format!("wirepaxos_plane_info{{{own},plane=\"udp\"}} 1");
        assert_eq!(series("plane_info"), [plane]);
        let number = |of| series(of)[0].rsplit(' ').next().unwrap().to_owned();
        assert_eq!(number("active_epoch"), "0");
        assert_eq!(number("suspected_members"), "1");
        assert_eq!(number("last_failover_seconds"), "0.0025");
        assert_eq!(number("epoch_change_seconds"), "0");
    }

    #[test]
    fn an_alarm_is_there_before_it_is_raised() {
        let of = |dropped: Value| {
            let document =
                json!({ "name": "a", "role": "leader", "counters": { "dropped": dropped } });
            lines(&document, "packets_dropped_total").split_off(2)
        };
        let name = "wirepaxos_packets_dropped_total{node=\"a\",role=\"leader\",reason=";
        let none = format!("{name}\"conflict\"}} 0");
        let stale = format!("{name}\"stale\"}} 3");
        assert_eq!(of(json!({ "stale": 3 })), [stale, none.clone()]);
        assert_eq!(of(json!({})), [none]);
        assert_eq!(
            of(json!({ "conflict": 2 })),
            [format!("{name}\"conflict\"}} 2")]
        );
    }

    #[test]
    fn a_histogram_has_buckets_sum_and_count() {
        let syncs = json!({ "buckets": [[0.1, 3], [1.0, 4]], "count": 5, "sum_s": 7.5 });
        let document = json!({ "name": "a", "role": "acceptor", "log": { "syncs": syncs } });
        let name = "wirepaxos_log_sync_seconds";
        let own = "node=\"a\",role=\"acceptor\"";
        let text = text(&document, &|id| id.to_string());
        let expected = format!(
            "# TYPE {name} histogram\n\
             {name}_bucket{{{own},le=\"0.1\"}} 3\n{name}_bucket{{{own},le=\"1.0\"}} 4\n\
             {name}_bucket{{{own},le=\"+Inf\"}} 5\n{name}_sum{{{own}}} 7.5\n{name}_count{{{own}}} \
             5\n"
        );
        assert!(text.contains(&expected), "{text}");
    }

    #[test]
    fn warnings_are_counted_as_status_counts_them() {
        let documents = [
            (
                json!({ "role": "acceptor", "warnings": ["the ring is full"] }),
                "1",
            ),
            (
                json!({ "role": "replica",
                        "partitions": [{ "warning": "it waits" }, { "warning": null }] }),
                "1",
            ),
            (
                json!({ "role": "controller", "warnings": ["group 0: a"],
                        "groups": [{ "warnings": ["a"] }] }),
                "1",
            ),
            (json!({ "role": "leader", "warnings": [] }), "0"),
        ];
        for (document, count) in documents {
            let shown = lines(&document, "warnings").split_off(2);
            assert!(shown[0].ends_with(&format!(" {count}")), "{shown:?}");
        }
    }
}
