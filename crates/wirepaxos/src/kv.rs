//! `wirepaxos kv`: one Redis command to the replicated store, without a Redis client.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use node::ClusterFile;
use serde_json::{Value, json};

use crate::demo::resp::{Connection, Reply};
use crate::error::Error;

const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of `wirepaxos kv`.
#[derive(Args)]
pub struct Options {
    /// The cluster file
    #[arg(short, long, default_value = "cluster.toml")]
    cluster: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The command, for instance: SET fruit apple
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

/// Sends the command through the first replica that answers.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = ClusterFile::load(&options.cluster)?;
    let reply = call(&cluster, &options.command)?;
    if options.json {
        println!("{}", json!({ "reply": to_json(&reply) }));
    } else {
        print(&reply, "");
    }
    match reply {
        Reply::Error(_) => Err(Error::new("the store refused the command")),
        _ => Ok(()),
    }
}

fn call(cluster: &ClusterFile, command: &[String]) -> Result<Reply, Error> {
    let arguments: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
    let mut last = Error::new("no node of the cluster file has a redis address");
    for node in &cluster.nodes {
        let Some(address) = node.redis else { continue };
        // A connection that breaks after the command was sent leaves its outcome unknown, so only
        // a replica that could not be reached at all is passed over.
        match Connection::open(address, REPLY_TIMEOUT) {
            Ok(mut connection) => {
                if let Some(password) = &node.redis_password {
                    connection.call(&[b"AUTH", password.as_bytes()])?;
                }
                return Ok(connection.call(&arguments)?);
            }
            Err(e) => last = Error::new(format!("{}: {address}: {e}", node.name)),
        }
    }
    Err(last)
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
