// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos events`: what happened to a cluster, when, why and by whose order.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use serde_json::Value;
use wirepaxos::admin;

use crate::silence;
use command_line::arguments::Cluster;
use node::utc;

/// How often the controller is asked for news.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// The number of events that one question may bring while following.
const MANY: u32 = 1_000;

/// Options of `wirepaxos events`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Show at most this many of the last events
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Go on with events as they happen
    #[arg(long)]
    follow: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Prints the last events, oldest first.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let Some(first) = admin::events(&cluster, 0, options.limit)? else {
        let controllers: Vec<_> = cluster.controllers().collect();
        let file = &options.cluster.file;
        return Err(silence::error(&cluster, file, &controllers)?);
    };
    let mut newest = newest_of(&first);
    let mut reads = print(&first, options.json);
    let mut is_silent = false;
    while options.follow && reads {
        std::thread::sleep(ASK_INTERVAL);
        let Some(next) = admin::events(&cluster, newest, MANY)? else {
            if !std::mem::replace(&mut is_silent, true) {
                eprintln!("the controller doesn't answer; it is asked again and again");
            }
            continue;
        };
        is_silent = false;
        // A controller whose files were set aside begins to count again.
        if newest_of(&next) < newest {
            newest = 0;
            continue;
        }
        newest = newest_of(&next);
        reads = print(&next, options.json);
    }
    Ok(())
}

fn newest_of(answer: &Value) -> u64 {
    answer["newest"].as_u64().unwrap_or(0)
}

/// Prints events. Returns false if the reader has gone.
fn print(answer: &Value, json: bool) -> bool {
    let events = answer["events"].as_array().into_iter().flatten();
    let lines = events.map(|event| match json {
        true => format!("{event}\n"),
        false => line(event),
    });
    let text: String = lines.collect();
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

fn line(event: &Value) -> String {
    let at = utc::shown(event["at_ms"].as_u64().unwrap_or(0));
    let group = event["group"]
        .as_u64()
        .map(|group| format!("group {group}: "));
    let warning = if event["is_warning"] == true {
        "WARNING: "
    } else {
        ""
    };
    let text = event["text"].as_str().unwrap_or("?");
    format!("{at}  {}{warning}{text}\n", group.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line() {
        let mut event = json!({ "at_ms": 1, "text": "the controller starts", "is_warning": false });
        assert_eq!(
            line(&event),
            "1970-01-01 00:00:00.001  the controller starts\n"
        );
        event["group"] = 3.into();
        event["is_warning"] = true.into();
        let expected = "1970-01-01 00:00:00.001  group 3: WARNING: the controller starts\n";
        assert_eq!(line(&event), expected);
    }
}
