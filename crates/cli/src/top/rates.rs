// SPDX-License-Identifier: Apache-2.0
//! Speeds between two looks at a cluster.

use std::collections::BTreeMap;

use serde_json::Value;

/// How fast the nodes were between two looks.
#[derive(Default, Debug)]
pub(super) struct Rates {
    /// What a node did a second, by its name: a replica executed so many commands; a leader
    /// numbered and an acceptor voted for so many instances, which may hold several commands each.
    pub of_nodes: BTreeMap<String, f64>,
    /// Commands a second that the fastest replica of each group executed, all groups together;
    /// nothing if no replica answered twice.
    pub executed: Option<f64>,
    /// The time within which 99 of 100 syncs of each durable node ended, in seconds.
    pub syncs: BTreeMap<String, f64>,
}

impl Rates {
    /// Returns the rates between two documents. A node that was silent or has begun to count anew
    /// has none.
    pub fn between(before: &Value, after: &Value) -> Rates {
        let (from, to) = (before["at_ms"].as_f64(), after["at_ms"].as_f64());
        let seconds = from.zip(to).map_or(0.0, |(from, to)| (to - from) / 1_000.0);
        let mut rates = Rates::default();
        if seconds <= 0.0 {
            return rates;
        }
        let mut executed = BTreeMap::<String, f64>::new();
        for node in list(&after["nodes"]) {
            let name = text(&node["name"]);
            let earlier = list(&before["nodes"]).find(|n| n["name"] == node["name"]);
            let Some(earlier) = earlier.filter(|earlier| goes_on(earlier, node)) else {
                continue;
            };
            if let Some(rate) = speed(earlier, node, seconds) {
                if node["role"] == "replica" {
                    let most = executed.entry(node["group"].to_string()).or_default();
                    *most = most.max(rate);
                }
                rates.of_nodes.insert(name.clone(), rate);
            }
            let syncs = |node: &Value| node["status"]["log"]["syncs"].clone();
            if let Some(time) = quantile(&syncs(earlier), &syncs(node), 0.99) {
                rates.syncs.insert(name, time);
            }
        }
        rates.executed = (!executed.is_empty()).then(|| executed.values().sum());
        rates
    }
}

pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

fn goes_on(earlier: &Value, node: &Value) -> bool {
    let up_for = |node: &Value| node["status"]["uptime_s"].as_u64();
    up_for(earlier).is_some() && up_for(node) >= up_for(earlier)
}

fn speed(earlier: &Value, node: &Value, seconds: f64) -> Option<f64> {
    let (before, after) = (counted(earlier)?, counted(node)?);
    Some((after.checked_sub(before)? as f64) / seconds)
}

/// Returns how many instances a node has numbered or voted for, or commands it has executed.
fn counted(node: &Value) -> Option<u64> {
    let field = match node["role"].as_str()? {
        "leader" | "sequencer" => "next",
        "acceptor" => "end",
        "replica" => "commands",
        _ => return None,
    };
    let status = &node["status"];
    let of_groups = list(&status["groups"]).flat_map(|group| list(&group["partitions"]));
    let all = of_groups.chain(list(&status["partitions"]));
    Some(all.filter_map(|partition| partition[field].as_u64()).sum())
}

/// Returns the time below which a share of the events stayed that a histogram has counted between
/// two looks, in seconds: the upper end of the bucket.
fn quantile(before: &Value, after: &Value, share: f64) -> Option<f64> {
    let count = |histogram: &Value| histogram["count"].as_u64();
    let all = count(after)?.checked_sub(count(before)?)?;
    let wanted = (all as f64 * share).ceil() as u64;
    let mut buckets = list(&after["buckets"]).zip(list(&before["buckets"]));
    let reached = buckets.find(|(now, then)| {
        let n = now[1].as_u64().zip(then[1].as_u64());
        n.is_some_and(|(now, then)| now.saturating_sub(then) >= wanted)
    });
    reached.filter(|_| all > 0)?.0[0].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(ms: u64, uptime_s: u64, commands: u64) -> Value {
        let replica = |name: &str, commands: u64| {
            json!({
                "name": name, "role": "replica", "group": 0,
                "status": { "uptime_s": uptime_s, "partitions": [{ "commands": commands }] },
            })
        };
        let silent = json!({ "name": "leader-1", "role": "leader", "status": null });
        json!({
            "at_ms": ms,
            "nodes": [silent, replica("replica-1", commands), replica("replica-2", commands / 2)],
        })
    }

    #[test]
    fn a_rate_is_what_was_done_between_two_looks() {
        let rates = Rates::between(&at(1_000, 5, 100), &at(3_000, 7, 300));
        assert_eq!(rates.executed, Some(100.0), "of the fastest replica");
        assert_eq!(rates.of_nodes["replica-2"], 50.0);
        assert!(!rates.of_nodes.contains_key("leader-1"));
    }

    #[test]
    fn a_process_that_began_anew_has_no_rate() {
        let first = Rates::between(&Value::Null, &at(1_000, 5, 100));
        let again = Rates::between(&at(1_000, 5, 100), &at(2_000, 0, 300));
        let backwards = Rates::between(&at(1_000, 5, 100), &at(2_000, 6, 50));
        for rates in [first, again, backwards] {
            assert_eq!(rates.executed, None, "{rates:?}");
        }
    }

    #[test]
    fn a_time_is_the_end_of_the_bucket_that_has_it() {
        let of = |[first, second]: [u64; 2], count: u64| {
            let buckets = json!([[0.001, first], [0.01, second]]);
            json!({ "buckets": buckets, "count": count })
        };
        assert_eq!(
            quantile(&of([5, 5], 5), &of([104, 105], 105), 0.99),
            Some(0.001)
        );
        assert_eq!(
            quantile(&of([5, 5], 5), &of([50, 105], 105), 0.99),
            Some(0.01)
        );
        assert_eq!(quantile(&of([5, 5], 5), &of([5, 5], 5), 0.99), None);
    }
}
