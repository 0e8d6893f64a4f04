// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos kv`: sends one Redis command to the replicated store, without a Redis client.

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use node::ClusterFile;
use node::cluster_file::Node;
use serde_json::{Value, json};

use command_line::arguments::Cluster;
use local_cluster::Error;
use local_cluster::resp::{Connection, Reply};

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of `wirepaxos kv`.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Send this command, for instance: SET fruit apple
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Sends the command through the first replica that answers. The exit code says whether it took
/// effect.
pub fn run(options: &Options) -> ExitCode {
    let outcome = options
        .cluster
        .load()
        .map_or_else(refused, |cluster| call(&cluster, &options.command));
    if options.json {
        println!("{}", outcome.json());
    } else {
        outcome.print();
    }
    ExitCode::from(outcome.exit_code())
}

/// The outcome of the command.
#[derive(Debug)]
enum Outcome {
    /// The command took effect; this is the answer, unless that was lost.
    Executed(Option<Reply>),
    /// The command took no effect.
    Refused(String),
    /// The command may have taken effect, once at most.
    Unknown(String),
}

impl Outcome {
    /// Returns the outcome, by the code with which the front end's errors begin.
    fn of(reply: Reply) -> Outcome {
        match reply {
            Reply::Error(text) if text.starts_with("EXECUTED ") => Outcome::Executed(None),
            Reply::Error(text) if text.starts_with("UNKNOWN ") => Outcome::Unknown(text),
            Reply::Error(text) => Outcome::Refused(text),
            reply => Outcome::Executed(Some(reply)),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Outcome::Executed(_) => 0,
            Outcome::Refused(_) => 1,
            Outcome::Unknown(_) => 3,
        }
    }

    fn json(&self) -> Value {
        match self {
            Outcome::Executed(reply) => {
                json!({ "outcome": "executed", "reply": reply.as_ref().map(to_json) })
            }
            Outcome::Refused(why) => json!({ "outcome": "refused", "reply": { "error": why } }),
            Outcome::Unknown(why) => json!({ "outcome": "unknown", "reply": { "error": why } }),
        }
    }

    fn print(&self) {
        match self {
            Outcome::Executed(Some(reply)) => print(reply, ""),
            Outcome::Executed(None) => println!("(executed; the answer is lost)"),
            Outcome::Refused(why) => eprintln!("wirepaxos: refused: {why}"),
            Outcome::Unknown(why) => eprintln!(
                "wirepaxos: outcome unknown: {why}; the command may have taken effect, once"
            ),
        }
    }
}

fn refused(why: Error) -> Outcome {
    Outcome::Refused(why.to_string())
}

fn call(cluster: &ClusterFile, command: &[String]) -> Outcome {
    let arguments: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
    let mut last = Error::new("no node of the cluster file has a redis address");
    for node in &cluster.nodes {
        let Some(address) = node.redis else { continue };
        // A connection that breaks after the command was sent leaves its outcome unknown, so only a
        // replica that couldn't be reached at all is skipped.
        match connect(node, address) {
            Ok(mut connection) => {
                let reply = connection.call(&arguments);
                return reply.map_or_else(|e| Outcome::Unknown(e.to_string()), Outcome::of);
            }
            Err(e) => last = Error::new(format!("{}: {address}: {e}", node.name)),
        }
    }
    refused(last)
}

fn connect(node: &Node, address: SocketAddr) -> io::Result<Connection> {
    if node.redis_tls.is_some() {
        return Err(io::Error::other(
            "its clients speak TLS (`redis_tls`), which this command doesn't; take redis-cli --tls \
             --cacert FILE",
        ));
    }
    let mut connection = Connection::open(address, REPLY_TIMEOUT)?;
    if let Some(password) = node.password().map_err(io::Error::other)? {
        connection.call(&[b"AUTH", password.as_bytes()])?;
    }
    Ok(connection)
}

fn print(reply: &Reply, indent: &str) {
    match reply {
        Reply::Simple(text) => println!("{indent}{text}"),
        Reply::Error(text) => println!("{indent}(error) {text}"),
        Reply::Int(n) => println!("{indent}{n}"),
        Reply::Bulk(None) => println!("{indent}(nil)"),
        Reply::Bulk(Some(bytes)) => println!("{indent}{}", String::from_utf8_lossy(bytes)),
        Reply::Array(items) => items
            .iter()
            .for_each(|item| print(item, &format!("{indent}  "))),
    }
}

fn to_json(reply: &Reply) -> Value {
    match reply {
        Reply::Simple(text) => json!(text),
        Reply::Error(text) => json!({ "error": text }),
        Reply::Int(n) => json!(n),
        Reply::Bulk(None) => Value::Null,
        Reply::Bulk(Some(bytes)) => json!(String::from_utf8_lossy(bytes)),
        Reply::Array(items) => items.iter().map(to_json).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_refusal_only_if_nothing_was_done() {
        let error = |text: &str| Outcome::of(Reply::Error(text.into()));
        assert_eq!(error("ERR syntax error").exit_code(), 1);
        assert_eq!(error("NOAUTH Authentication required.").exit_code(), 1);
        assert_eq!(error("UNKNOWN the session is lost").exit_code(), 3);
        let lost = error("EXECUTED the command took effect, but its answer is lost");
        assert_eq!(lost.exit_code(), 0);
        assert_eq!(lost.json(), json!({ "outcome": "executed", "reply": null }));
        assert_eq!(Outcome::of(Reply::Int(1)).json()["reply"], 1);
    }
}
