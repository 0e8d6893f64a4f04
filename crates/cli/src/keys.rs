// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos keys`: makes and replaces the cluster's secret, and makes keys of clients.

use std::path::{Path, PathBuf};

use ::keys::{Holder, KeyFile, Rotation};
use clap::{Args, Subcommand};
use local_cluster::Error;
use node::ClusterFile;
use serde_json::{Value, json};

use command_line::arguments::Cluster;

/// Commands of `wirepaxos keys`.
#[derive(Subcommand)]
pub enum Command {
    /// Draw the secret of a new cluster, and write it where the cluster file says (`keys`)
    New(Options),
    /// Take the next of three steps to replace the secret: accept a new one, sign with it, forget
    /// the old one
    Rotate(Options),
    /// Write the key file of a client; again after each step of `rotate`
    Client(ClientOptions),
}

/// Options of all commands.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Options of `keys client`.
#[derive(Args)]
pub struct ClientOptions {
    #[command(flatten)]
    options: Options,
    /// Write the key of this client: letters, digits, `-` and `_`
    name: String,
    /// Write the key to this file; by default to NAME.key in this directory
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Makes, replaces or derives keys.
pub fn run(command: &Command) -> Result<(), Error> {
    match command {
        Command::New(options) => new(options),
        Command::Rotate(options) => rotate(options),
        Command::Client(options) => client(options),
    }
}

fn new(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let file = KeyFile::new(cluster.cluster)?;
    file.create(&cluster.keys)?;
    let next = "copy it to every machine of a node, readable by the node's user alone (0600)";
    say(options, &cluster.keys, &file, next);
    Ok(())
}

fn rotate(options: &Options) -> Result<(), Error> {
    let cluster = options.cluster.load()?;
    let mut file = of_nodes(&cluster)?;
    let step = file.rotate()?;
    file.replace(&cluster.keys)?;
    let next = match step {
        Rotation::Added => {
            "a new secret is accepted and doesn't sign yet. Copy the file to every node, and make \
             the clients' files anew (`wirepaxos keys client NAME`); when all nodes and clients \
             have theirs, rotate again"
        }
        Rotation::Switched => {
            "the new secret signs, and the old one is still accepted. Hand out the nodes' and the \
             clients' files, then rotate once more"
        }
        Rotation::Removed => "the old secret is gone. Hand out the nodes' and the clients' files",
    };
    say(options, &cluster.keys, &file, next);
    Ok(())
}

fn client(options: &ClientOptions) -> Result<(), Error> {
    let cluster = options.options.cluster.load()?;
    let mut nodes = of_nodes(&cluster)?;
    let client = nodes.client(&options.name)?;
    let default = || PathBuf::from(format!("{}.key", options.name));
    let path = options.out.clone().unwrap_or_else(default);
    refuse_others_file(&path, &cluster, client.holder())?;
    // The client's number is noted before anybody gets its key.
    nodes.replace(&cluster.keys)?;
    client.replace(&path)?;
    let next = "move it to the client's machine, and name it there in the cluster file (`keys`)";
    say(&options.options, &path, &client, next);
    Ok(())
}

/// Returns an error unless the file is missing or an earlier key of the same client: nothing else
/// is replaced.
fn refuse_others_file(path: &Path, cluster: &ClusterFile, holder: &Holder) -> Result<(), Error> {
    if !path.try_exists()? {
        return Ok(());
    }
    match KeyFile::load(path, cluster.cluster) {
        Ok(there) if there.holder() == holder => Ok(()),
        _ => Err(Error::new(format!(
            "{} is there already, and isn't this client's key file; name another one by --out",
            path.display()
        ))),
    }
}

fn of_nodes(cluster: &ClusterFile) -> Result<KeyFile, Error> {
    Ok(KeyFile::load_nodes(&cluster.keys, cluster.cluster)?)
}

fn say(options: &Options, path: &Path, file: &KeyFile, next: &str) {
    if options.json {
        println!("{}", shown(path, file));
        return;
    }
    println!("{}: {next}", path.display());
}

fn shown(path: &Path, file: &KeyFile) -> Value {
    json!({
        "file": path,
        "number": file.number(),
        "generations": file.generations().collect::<Vec<_>>(),
        "signs": file.signs(),
    })
}
