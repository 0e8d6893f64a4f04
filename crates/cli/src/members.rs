// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos members`: shows whose memories a group counts on, and which changes of the cluster
//! file aren't in force yet. Its commands change the members.

mod change;
mod drain;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use control::MemberChange;
use control::status::Status;
use node::ClusterFile;
use node::cluster_file::{Group, Protocol, Role, rewrite};
use paxos::GroupId;
use serde_json::{Value, json};

use crate::silence;
use command_line::arguments::Cluster;
use local_cluster::Error;
use wirepaxos::admin;

/// The time between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often a command that changes members asks silent controllers, a second each.
const ASK_TIMES: usize = 10;

/// Options of `wirepaxos members`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    cluster: Cluster,
    /// Show this group; by default all of them
    #[arg(long)]
    group: Option<GroupId>,
    /// Wait at most this many seconds until the members are those of the cluster file, each in the
    /// memory that answers
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Write the changes by command into this machine's cluster file, which lacks those that were
    /// ordered elsewhere
    #[arg(long)]
    write: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Commands of `wirepaxos members`.
#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Change(change::Command),
    /// Hand over what leads on a machine, before that is stopped for maintenance
    Drain(drain::Options),
}

/// Asks the controller, and prints its answer.
pub fn run(options: &Options) -> Result<(), Error> {
    match &options.command {
        Some(Command::Change(command)) => return change::run(command),
        Some(Command::Drain(options)) => return drain::run(options),
        None => {}
    }
    let cluster = options.cluster.load()?;
    if let Some(unknown) = options.group.filter(|id| cluster.group(*id).is_none()) {
        return Err(Error::new(format!(
            "there is no group {unknown} in the cluster file"
        )));
    }
    if options.write {
        let overview = Overview::ask_patiently(&cluster, &options.cluster.file)?;
        rewrite(&options.cluster.file, &overview.changes).map_err(Error::new)?;
    }
    let until = Instant::now() + Duration::from_secs(options.wait.unwrap_or(0));
    let (groups, missing) = loop {
        let seen = look(&cluster, &options.cluster.file, options.group);
        let is_settled = seen.as_ref().is_ok_and(|(_, missing)| missing.is_none());
        // A controller that begins anew is silent for a moment.
        if is_settled || Instant::now() >= until {
            break seen?;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    match options.json {
        true => println!("{}", json!({ "groups": groups })),
        false => groups
            .iter()
            .flat_map(lines)
            .for_each(|line| println!("{line}")),
    }
    match missing.filter(|_| options.wait.is_some()) {
        None => Ok(()),
        Some(why) => Err(Error::new(format!("not yet: {why}"))),
    }
}

/// What the acting controller says of the members.
struct Overview {
    document: Value,
    /// All changes by command.
    changes: Vec<MemberChange>,
}

impl Overview {
    fn ask(cluster: &ClusterFile, file: &Path) -> Result<Overview, Error> {
        let Some(document) = admin::ask_controllers(cluster)? else {
            let controllers: Vec<_> = cluster.controllers().collect();
            return Err(silence::error(cluster, file, &controllers)?);
        };
        let changes = &document["members"]["changes"];
        let changes = serde_json::from_value(changes.clone()).unwrap_or_default();
        Ok(Overview { document, changes })
    }

    /// Asks again while a controller may only be slow, as on a busy machine.
    fn ask_patiently(cluster: &ClusterFile, file: &Path) -> Result<Overview, Error> {
        let mut asked = Overview::ask(cluster, file);
        for _ in 1..ASK_TIMES {
            let is_down = |node| admin::is_down(cluster, node).unwrap_or(false);
            if asked.is_ok() || cluster.controllers().all(is_down) {
                break;
            }
            asked = Overview::ask(cluster, file);
        }
        asked
    }

    fn status(&self) -> Result<Status, Error> {
        serde_json::from_value(json!({ "groups": self.document["groups"] }))
            .map_err(|e| Error::new(format!("the controller has another version: {e}")))
    }

    fn groups(&self, cluster: &ClusterFile, only: Option<GroupId>) -> Vec<Value> {
        let groups = cluster.groups.iter();
        let wanted = groups.filter(|group| only.is_none_or(|id| id == group.id));
        let shown = wanted.map(|group| membership(cluster, group, &self.document));
        shown.collect()
    }

    /// Returns what a change by command waits for, or why a group isn't as the cluster file has it.
    fn missing(&self, cluster: &ClusterFile) -> Option<String> {
        let of_change = self.document["members"]["waits_for"].as_str();
        let groups = self.groups(cluster, None);
        let unsettled = groups.iter().find(|group| group["settled"] != true);
        let unsettled = unsettled.map(why);
        of_change.map(str::to_owned).or(unsettled)
    }
}

fn why(unsettled: &Value) -> String {
    let why = unsettled["waits_for"][0].as_str();
    why.unwrap_or("another epoch").to_owned()
}

/// Returns the groups, and a reason if one of them isn't as the cluster file has it, with all
/// changes by command.
fn look(
    cluster: &ClusterFile,
    file: &Path,
    only: Option<GroupId>,
) -> Result<(Vec<Value>, Option<String>), Error> {
    let overview = Overview::ask(cluster, file)?;
    let cluster = &cluster.with_changes(&overview.changes)?;
    let mut shown = overview.groups(cluster, only);
    let missing = shown.iter().find(|group| group["settled"] != true);
    let missing = missing.map(why);
    let Some(of_change) = overview.document["members"]["waits_for"].as_str() else {
        return Ok((shown, missing));
    };
    for group in &mut shown {
        if let Some(waits) = group["waits_for"].as_array_mut() {
            waits.push(of_change.into());
        }
    }
    Ok((shown, missing.or(Some(of_change.to_owned()))))
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns what the controller's status document says of a group's members.
fn membership(cluster: &ClusterFile, group: &Group, document: &Value) -> Value {
    let role = match group.protocol {
        Protocol::Paxos => Role::Acceptor,
        Protocol::NoPaxos => Role::Replica,
    };
    let own = entries(&document["groups"]).find(|g| g["group"].as_u64() == Some(group.id.into()));
    let own = own.unwrap_or(&Value::Null);
    let epochs: Vec<&Value> = entries(&own["epochs"]).collect();
    let last = epochs.last().copied().unwrap_or(&Value::Null);
    let in_force = last["state"] == "active";
    let (leaving, configured): (Vec<_>, Vec<_>) = cluster
        .memories(group)
        .into_iter()
        .partition(|node| node.leaving);
    let name = |id: &Value| {
        let node = id.as_u64().and_then(|id| cluster.node_by_id(id as u16));
        node.map_or_else(|| format!("node {id}"), |node| node.name.clone())
    };
    // Returns the memory of a node that answers now.
    let answers = |id: &Value| {
        let is_it = |m: &&Value| m["node"] == *id && m["role"] == role.name();
        let found = entries(&own["members"]).find(is_it);
        found.filter(|m| m["alive"] == true).map(|m| &m["nonce"])
    };
    let leaves = |id: &Value| leaving.iter().any(|n| Some(n.id.into()) == id.as_u64());
    let is_configured = |id: &Value| configured.iter().any(|n| Some(n.id.into()) == id.as_u64());
    let mut waits_for = Vec::new();
    let member = |member: &Value| {
        let (id, nonce) = (&member[0], &member[1]);
        let named = |epoch: &&&Value| entries(&epoch["acceptors"]).any(|m| m == member);
        let since = epochs.iter().rev().take_while(named).last();
        let memory = answers(id);
        if !is_configured(id) {
            waits_for.push(format!("{} leaves by another epoch", name(id)));
        } else if memory.is_some_and(|memory| memory != nonce) {
            waits_for.push(format!(
                "{} has another memory, which joins by another epoch",
                name(id)
            ));
        }
        json!({
            "name": name(id),
            "node": id,
            "nonce": nonce.as_u64().map(|nonce| format!("{nonce:016x}")),
            "since": since.map(|epoch| &epoch["epoch"]),
            "in_cluster_file": is_configured(id) || leaves(id),
            "leaving": leaves(id),
            "answers": memory.map(|memory| memory == nonce),
        })
    };
    let members: Vec<Value> = entries(&last["acceptors"]).map(member).collect();
    let is_member = |id: u16| entries(&last["acceptors"]).any(|m| m[0].as_u64() == Some(id.into()));
    let joining = configured.iter().filter(|node| !is_member(node.id));
    waits_for.extend(joining.map(|node| match answers(&node.id.into()) {
        Some(_) => format!("{} joins by another epoch", node.name),
        None => format!(
            "{} has never answered the controller's PROBEs: start it; if it runs, let UDP packets \
             pass between {} and the controller, and give both the same cluster file and key file",
            node.name, node.address
        ),
    }));
    if last["f"].as_u64().is_some_and(|f| f != u64::from(group.f)) {
        waits_for.push(format!(
            "f is {}, and {} in the cluster file",
            last["f"], group.f
        ));
    }
    if !in_force {
        waits_for.push("no epoch is in force".to_owned());
    }
    let left = leaving.iter().filter(|node| !is_member(node.id));
    let left = left.map(|node| node.name.as_str());
    // The controller's own warnings say why it isn't.
    let warnings = entries(&own["warnings"]).filter_map(Value::as_str);
    let settled = waits_for.is_empty();
    if !settled {
        waits_for.extend(warnings.map(str::to_owned));
    }
    json!({
        "group": group.id,
        "protocol": group.protocol.name(),
        "role": role.name(),
        "epoch": last["epoch"],
        "state": last["state"],
        "f": last["f"],
        "members": members,
        "left": left.collect::<Value>(),
        "settled": settled,
        "waits_for": waits_for,
    })
}

fn lines(group: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let what = match group["protocol"] == "nopaxos" {
        true => "session",
        false => "epoch",
    };
    let of = format!("group {} ({})", group["group"], text(&group["protocol"]));
    let mut lines = vec![match group["epoch"].as_u64() {
        Some(number) => format!(
            "{of}: {what} {number} is {}, f = {}",
            text(&group["state"]),
            group["f"]
        ),
        None => format!("{of}: no {what} has begun yet"),
    }];
    lines.extend(entries(&group["members"]).map(|m| {
        let state = match (m["in_cluster_file"].as_bool(), m["answers"].as_bool()) {
            (Some(false), _) => ", not in the cluster file",
            _ if m["leaving"] == true => ", leaving",
            (_, Some(true)) => "",
            (_, Some(false)) => ", LOST ITS MEMORY",
            (_, None) => ", doesn't answer",
        };
        format!(
            "  {:<14} node {}, memory {} since {what} {}{state}",
            text(&m["name"]),
            m["node"],
            text(&m["nonce"]),
            m["since"]
        )
    }));
    lines.extend(entries(&group["left"]).map(|name| {
        format!(
            "  {:<14} has left: stop it, and remove it from the cluster file",
            text(name)
        )
    }));
    let waits = entries(&group["waits_for"]).map(|why| format!("  waits: {}", text(why)));
    lines.extend(waits);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::cluster_file::{ApplicationKind, Draft, GroupDraft};

    fn cluster(replicas: usize) -> ClusterFile {
        let group = GroupDraft {
            protocol: Some(Protocol::NoPaxos),
            ..GroupDraft::new(0, ApplicationKind::Echo)
        };
        let mut draft = Draft::new(7, "data", group);
        let host = std::net::Ipv4Addr::LOCALHOST.into();
        let roles = [
            (Role::Controller, 1),
            (Role::Sequencer, 2),
            (Role::Replica, replicas),
        ];
        draft.add_nodes(&roles, host);
        draft.check().unwrap()
    }

    /// Replica n has id 3 + n. `named` has the nonces of the last session's members, and `answer`
    /// those that answer now.
    fn document(state: &str, named: &[(u16, u64)], answer: &[(u16, u64)]) -> Value {
        let watched = answer.iter().map(|(node, nonce)| {
            json!({ "node": node, "role": "replica", "alive": true, "nonce": nonce })
        });
        json!({ "groups": [{
            "group": 0,
            "epochs": [
                { "epoch": 4, "state": "active", "f": 1, "acceptors": [[4, 40], [5, 50], [6, 60]] },
                { "epoch": 5, "state": state, "f": 1, "acceptors": named },
            ],
            "members": watched.collect::<Value>(),
            "warnings": ["the controller's words"],
        }]})
    }

    #[test]
    fn members_are_shown_with_their_memories_and_since_when() {
        let cluster = cluster(3);
        let named = [(4, 40), (5, 50), (6, 61)];
        let shown = membership(
            &cluster,
            &cluster.groups[0],
            &document("active", &named, &named),
        );
        assert_eq!(
            (&shown["settled"], &shown["waits_for"]),
            (&json!(true), &json!([]))
        );
        assert_eq!(
            lines(&shown),
            [
                "group 0 (nopaxos): session 5 is active, f = 1",
                "  replica-1      node 4, memory 0000000000000028 since session 4",
                "  replica-2      node 5, memory 0000000000000032 since session 4",
                "  replica-3      node 6, memory 000000000000003d since session 5",
            ]
        );
    }

    #[test]
    fn who_leaves_is_shown_until_it_is_no_member_any_more() {
        let mut cluster = cluster(5);
        for node in cluster.nodes.iter_mut().filter(|n| [4, 8].contains(&n.id)) {
            node.leaving = true;
        }
        let named = [(4, 40), (5, 50), (6, 60)];
        let shown = membership(
            &cluster,
            &cluster.groups[0],
            &document("active", &named, &named),
        );
        let lines = lines(&shown);
        assert!(lines[1].ends_with("since session 4, leaving"), "{lines:?}");
        assert!(
            lines[4].contains("replica-5      has left: stop it"),
            "{lines:?}"
        );
        assert!(
            lines[5].contains("replica-1 leaves by another epoch"),
            "{lines:?}"
        );
    }

    #[test]
    fn what_is_not_in_force_yet_is_said() {
        let named = [(4, 40), (5, 50), (6, 60)];
        let waits = |cluster: &ClusterFile, state, answer: &[(u16, u64)]| {
            let document = document(state, &named, answer);
            let shown = membership(cluster, &cluster.groups[0], &document);
            assert_eq!(shown["settled"], false);
            let waits: Vec<String> = lines(&shown).split_off(4);
            waits.join("\n")
        };
        let lost = waits(&cluster(3), "active", &[(4, 40), (5, 51)]);
        assert!(lost.contains("replica-2 has another memory"), "{lost}");
        assert!(lost.contains("the controller's words"), "{lost}");
        let larger = waits(&cluster(5), "active", &[(4, 40), (5, 50), (6, 60), (7, 70)]);
        for why in [
            "replica-4 joins",
            "replica-5 has never answered",
            "f is 1, and 2",
        ] {
            assert!(larger.contains(why), "{larger}");
        }
        let smaller = waits(&cluster(1), "active", &named);
        assert!(smaller.contains("node 5 leaves"), "{smaller}");
        let writing = waits(&cluster(3), "writing", &named);
        assert!(writing.contains("no epoch is in force"), "{writing}");
    }

    #[test]
    fn a_group_whose_first_session_is_on_its_way_has_no_number() {
        let cluster = cluster(3);
        let empty = json!({ "groups": [{ "group": 0, "epochs": [] }] });
        let shown = membership(&cluster, &cluster.groups[0], &empty);
        let lines = lines(&shown);
        assert_eq!(lines[0], "group 0 (nopaxos): no session has begun yet");
        assert!(
            lines[1].contains("replica-1 has never answered"),
            "{lines:?}"
        );
        assert!(!lines.concat().contains("null"), "{lines:?}");
    }
}
