// SPDX-License-Identifier: Apache-2.0
//! Writes the screen of `wirepaxos top`. What colours say stands there in words or signs, too.

use node::utc;
use serde_json::Value;

use super::ScreenContents;
use super::rates::{list, text};

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HEAD: &str = "node           up      per second     lag   ring  disk 99%  state";

/// How a line is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    Plain,
    Strong,
    Quiet,
    Good,
    Warned,
    Bad,
}

impl Look {
    /// Returns the escape sequence that begins it.
    fn begin(self) -> &'static str {
        match self {
            Look::Plain => "",
            Look::Strong => "\x1b[1m",
            Look::Quiet => "\x1b[2m",
            Look::Good => "\x1b[1;32m",
            Look::Warned => "\x1b[1;33m",
            Look::Bad => "\x1b[1;31m",
        }
    }
}

type Line = (Look, String);

/// Returns what draws the screen, cut to a size in lines and columns.
pub(super) fn screen(shown: &ScreenContents, (rows, columns): (usize, usize)) -> String {
    let lines = lines(shown, columns);
    let room = rows.saturating_sub(1);
    let mut drawn = String::from("\x1b[H");
    for (look, line) in lines.iter().take(room) {
        let line = line.chars().filter(|c| !c.is_control());
        let line: String = line.take(columns).collect();
        drawn += &format!("{}{line}\x1b[0m\x1b[K\r\n", look.begin());
    }
    let left_out = lines.len().saturating_sub(room);
    let foot = match left_out {
        0 => "q ends".to_owned(),
        n => format!("q ends; {n} more lines: make the screen larger"),
    };
    let foot: String = foot.chars().take(columns.saturating_sub(1)).collect();
    drawn + &format!("\x1b[2m{foot}\x1b[0m\x1b[K\x1b[J")
}

fn lines(shown: &ScreenContents, columns: usize) -> Vec<Line> {
    let mut lines = vec![head(&shown.document), (Look::Plain, String::new())];
    lines.push(rate_line(shown, columns));
    lines.extend(groups(&shown.document));
    lines.push((Look::Plain, String::new()));
    lines.push((Look::Quiet, HEAD.to_owned()));
    lines.extend(list(&shown.document["nodes"]).map(|node| row(shown, node)));
    let warnings = warnings(&shown.document);
    if !warnings.is_empty() {
        lines.push((Look::Plain, String::new()));
        lines.extend(warnings.into_iter().map(|w| (Look::Warned, w)));
    }
    lines
}

fn head(document: &Value) -> Line {
    let silent = list(&document["nodes"])
        .filter(|n| n["up"] == false)
        .count();
    let (look, verdict) = match (document["is_well"] == true, silent) {
        (true, _) => (Look::Good, "all is well".to_owned()),
        (false, 0) => (
            Look::Warned,
            format!("{} warnings", warnings(document).len()),
        ),
        (false, n) => (Look::Bad, format!("{n} of the nodes SILENT")),
    };
    let at = utc::shown(document["at_ms"].as_u64().unwrap_or_default());
    let cluster = text(&document["cluster"]);
    (look, format!("WirePaxos {cluster}   {verdict}   {at} UTC"))
}

fn rate_line(shown: &ScreenContents, columns: usize) -> Line {
    let rate = shown.rates.executed;
    let rate = rate.map_or_else(|| "?".to_owned(), |rate| grouped(rate as u64));
    let words = format!("{rate:>11} commands/s  ");
    let room = columns.saturating_sub(words.len() + 1).min(60);
    let past = &shown.past[shown.past.len().saturating_sub(room)..];
    let most = past.iter().copied().fold(1.0, f64::max);
    let bar = |rate: &f64| BARS[((rate / most * 7.0).round() as usize).min(7)];
    (
        Look::Strong,
        words + &past.iter().map(bar).collect::<String>(),
    )
}

/// Returns a line about each group, from the controller that acts.
fn groups(document: &Value) -> Vec<Line> {
    let controllers = list(&document["nodes"]).filter(|n| n["role"] == "controller");
    let acting = controllers.max_by_key(|n| (n["up"] == true, n["status"]["acts"] != false));
    let Some(status) = acting.map(|n| &n["status"]) else {
        return Vec::new();
    };
    let name = |id: &Value| {
        let mut nodes = list(&document["nodes"]);
        let node = nodes.find(|n| n["id"] == *id && id.is_u64());
        node.map_or("nobody".to_owned(), |n| text(&n["name"]))
    };
    let line = |group: &Value| {
        let leads = name(&group["leader"]);
        let last = &group["last_failover"];
        let took = last["duration_us"].as_f64().map(|us| us / 1_000.0);
        let took = took.map(|ms| format!("; began within {ms:.1} ms: {}", text(&last["reason"])));
        match group["active"].as_u64() {
            Some(epoch) => (
                Look::Plain,
                format!(
                    "group {}: {leads} leads, epoch {epoch}{}",
                    group["group"],
                    took.unwrap_or_default()
                ),
            ),
            None => (Look::Bad, format!("group {}: NOBODY LEADS", group["group"])),
        }
    };
    list(&status["groups"]).map(line).collect()
}

fn row(shown: &ScreenContents, node: &Value) -> Line {
    let name = text(&node["name"]);
    if node["up"] != true {
        return (Look::Bad, format!("{name:<14} SILENT"));
    }
    let status = &node["status"];
    let up = status["uptime_s"]
        .as_u64()
        .map_or(String::new(), utc::lasted);
    let rate = shown.rates.of_nodes.get(&name);
    let rate = rate.map_or(String::new(), |rate| grouped(*rate as u64));
    let disk = shown.rates.syncs.get(&name);
    let disk = disk.map_or(String::new(), |s| format!("{:.1} ms", s * 1_000.0));
    let (lag, ring) = (lag(&shown.document, node), ring(status));
    let words = shown.words.iter().find(|(of, _)| *of == name);
    let words = words.map_or("", |(_, words)| words.as_str());
    let look = match list(&node["warnings"]).next() {
        Some(_) => Look::Warned,
        None if list(&status["groups"]).any(|g| g["leading"] == true) => Look::Good,
        None => Look::Plain,
    };
    let sign = if look == Look::Warned { "! " } else { "" };
    (
        look,
        format!("{name:<14} {up:<7} {rate:>10} {lag:>7} {ring:>6} {disk:>9}  {sign}{words}"),
    )
}

/// Returns how many instances a replica is behind the one of its group that is furthest.
fn lag(document: &Value, node: &Value) -> String {
    let at = |node: &Value| -> Option<u64> {
        let nexts = list(&node["status"]["partitions"]).map(|p| p["next"].as_u64());
        (node["role"] == "replica").then(|| nexts.flatten().sum())
    };
    let same = list(&document["nodes"]).filter(|n| n["group"] == node["group"]);
    let furthest = same.filter_map(at).max();
    let lag = furthest.zip(at(node)).map(|(most, own)| most - own);
    lag.map_or(String::new(), grouped)
}

/// Returns how much of an acceptor's fullest ring is in use.
fn ring(status: &Value) -> String {
    let use_of = |group: &Value| {
        let slots = group["slots"].as_f64()?;
        let used = list(&group["partitions"]).filter_map(|p| p["used"].as_f64());
        Some(used.fold(0.0, f64::max) / slots)
    };
    let most = list(&status["groups"]).filter_map(use_of).reduce(f64::max);
    most.map_or(String::new(), |share| format!("{:.0}%", share * 100.0))
}

fn warnings(document: &Value) -> Vec<String> {
    let of_nodes = list(&document["nodes"]).flat_map(|node| {
        let name = text(&node["name"]);
        list(&node["warnings"]).map(move |w| format!("! {name}: {}", text(w)))
    });
    let of_all = list(&document["warnings"]).map(|w| format!("! {}", text(w)));
    of_nodes.chain(of_all).collect()
}

/// Returns a number with commas between thousands.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown() -> ScreenContents {
        let leader = json!({ "groups": [{ "group": 0, "leading": true }], "uptime_s": 9 });
        let told = json!({
            "group": 0, "active": 3, "leader": 2,
            "last_failover": { "duration_us": 2_500, "reason": "leader-2 is dead" },
        });
        let document = json!({
            "at_ms": 0, "cluster": "5eed0001", "is_well": false, "warnings": ["keys: old"],
            "nodes": [
                { "name": "controller", "id": 1, "role": "controller", "up": true,
                  "status": { "groups": [told] } },
                { "name": "leader-1", "id": 2, "role": "leader", "up": true, "status": leader },
                { "name": "acceptor-1", "id": 3, "role": "acceptor", "up": false,
                  "warnings": ["start\u{1b}[31m it"], "status": null },
            ],
        });
        ScreenContents {
            document,
            words: vec![("leader-1".to_owned(), "group 0: leads epoch 3".to_owned())],
            past: vec![0.0, 50.0, 100.0],
            ..ScreenContents::default()
        }
    }

    #[test]
    fn a_screen_names_who_leads_who_is_silent_and_what_to_do() {
        let drawn = screen(&shown(), (40, 100));
        for words in [
            "1 of the nodes SILENT",
            "▁▅█",
            "group 0: leader-1 leads, epoch 3; began within 2.5 ms: leader-2 is dead",
            "group 0: leads epoch 3",
            "acceptor-1     SILENT",
            "! acceptor-1: start[31m it",
            "! keys: old",
        ] {
            assert!(drawn.contains(words), "{words:?} isn't in {drawn}");
        }
        let well = json!({ "is_well": true, "nodes": [] });
        assert_eq!(head(&well).0, Look::Good);
    }

    #[test]
    fn a_small_screen_is_never_left() {
        for (rows, columns) in [(1, 1), (2, 10), (5, 20), (8, 79)] {
            let drawn = screen(&shown(), (rows, columns));
            let lines: Vec<&str> = drawn.split("\r\n").collect();
            assert!(lines.len() <= rows, "{rows}: {drawn:?}");
            for line in lines {
                assert!(visible(line) <= columns, "{columns}: {line:?}");
            }
        }
    }

    /// Returns how many letters of a line are no part of an escape sequence.
    fn visible(line: &str) -> usize {
        let mut pieces = line.split('\x1b');
        let first = pieces.next().map_or(0, |piece| piece.chars().count());
        let behind = |piece: &str| {
            let end = piece.find(|c: char| c.is_ascii_alphabetic());
            piece[end.map_or(piece.len(), |end| end + 1)..]
                .chars()
                .count()
        };
        first + pieces.map(behind).sum::<usize>()
    }

    #[test]
    fn thousands_are_set_apart() {
        let numbers = [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ];
        for (n, shown) in numbers {
            assert_eq!(grouped(n), shown);
        }
    }
}
