// SPDX-License-Identifier: Apache-2.0
//! Lays the changes of members that commands have made over a cluster file. [E-CHANGES]

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use control::{Level, MemberChange};
use toml::{Table, Value};

use crate::level;

use super::{ClusterFile, Errors, Node, NodeDraft, Protocol, Role, parse};

/// The text from which a cluster was read, and the changes that were laid over it.
#[derive(Clone, Default)]
pub struct Origin {
    file: String,
    text: String,
    changes: Vec<MemberChange>,
}

impl Origin {
    pub(super) fn of(text: &str, file: &str) -> Origin {
        Origin {
            file: file.to_owned(),
            text: text.to_owned(),
            changes: Vec::new(),
        }
    }
}

/// The text may have passwords, which nobody prints.
impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("file", &self.file)
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}

/// Clusters are equal if their files mean the same, wherever those are.
impl PartialEq for Origin {
    fn eq(&self, _other: &Origin) -> bool {
        true
    }
}

impl Eq for Origin {}

impl ClusterFile {
    /// Returns the changes by command that were laid over the file.
    pub fn changes(&self) -> &[MemberChange] {
        &self.origin.changes
    }

    /// Returns the cluster of the same file with these changes laid over it.
    ///
    /// # Errors
    /// If the file disagrees with a change, or if the result isn't a valid cluster.
    pub fn with_changes(&self, changes: &[MemberChange]) -> Result<ClusterFile, Errors> {
        let Origin { file, text, .. } = &self.origin;
        if let Some(why) = level::against(changes) {
            return Err(Errors::one("", why, ""));
        }
        let text = changed(text, changes).map_err(|why| {
            let remedy = "take a copy of the cluster file of another node's machine";
            Errors::one(file, why, remedy)
        })?;
        let mut cluster = parse(&text, file).map_err(without_lines)?;
        cluster.origin = Origin {
            changes: changes.to_vec(),
            ..self.origin.clone()
        };
        Ok(cluster)
    }

    /// Returns the changes that add nodes, each with further lines in its record, and have others
    /// leave. In groups that name f, it follows the number of acceptors.
    ///
    /// # Errors
    /// If a path isn't UTF-8.
    pub fn order(
        &self,
        added: &[NodeDraft],
        lines: &[String],
        leave: &[&Node],
    ) -> Result<Vec<MemberChange>, Errors> {
        let staying = self.acceptors().into_iter().filter(|node| !node.leaving);
        let come = added.iter().filter(|node| node.role == Role::Acceptor);
        let go = leave.iter().filter(|node| node.role == Role::Acceptor);
        let acceptors = (staying.count() + come.count()).saturating_sub(go.count());
        let set: Table = toml::from_str(&lines.join("\n")).map_err(|e| {
            let remedy = "write them as in the cluster file, such as storage = \"durable\"";
            Errors::one(
                "",
                format!("the given lines aren't TOML: {}", e.message()),
                remedy,
            )
        })?;
        let added = added.iter().map(|node| {
            let unwritten = |e: toml::ser::Error| Errors::one("", e.to_string(), "");
            let mut record = Table::try_from(node).map_err(unwritten)?;
            record.extend(set.clone());
            Ok(MemberChange::Add {
                name: node.name.clone(),
                node: node.id,
                record: toml::to_string(&record).map_err(unwritten)?,
            })
        });
        let leave = leave.iter().map(|node| MemberChange::Leave {
            name: node.name.clone(),
            node: node.id,
        });
        let f = (acceptors.saturating_sub(1) / 2) as u8;
        let names_f = self.groups.iter().filter(|group| {
            group.protocol == Protocol::Paxos && group.f != f && self.names_f(group.id)
        });
        let f = names_f.map(|group| MemberChange::SetF { group: group.id, f });
        added.chain(leave.map(Ok)).chain(f.map(Ok)).collect()
    }

    /// Gives a new node the keys that those of its role share with another one of them. No
    /// password is told through the network, only the name of a file that has one.
    pub fn share_record(&self, of: &Node, with: &mut NodeDraft) {
        let known = NodeDraft::from(of);
        if of.role == Role::Acceptor {
            with.storage = known.storage;
        }
        with.group = known.group;
        let Some(redis) = known.redis else { return };
        with.redis = Some(self.redis_like(of, redis, with));
        (with.redis_order, with.redis_reads) = (known.redis_order, known.redis_reads);
        (with.workers, with.redis_tls) = (known.workers, known.redis_tls);
        let record = self.record(&of.name).unwrap_or_default();
        let file = record.get("redis_password_file").and_then(Value::as_str);
        with.redis_password_file = file.map(Into::into);
    }

    /// Returns a new replica's address for clients: with the port of another one if it is free.
    fn redis_like(&self, of: &Node, redis: SocketAddr, new: &NodeDraft) -> SocketAddr {
        let host = match redis.ip() == of.address.ip() {
            true => new.address.ip(),
            false => redis.ip(),
        };
        let same = SocketAddr::new(host, redis.port());
        let here = |node: &&Node| node.address.ip() == new.address.ip();
        let mut on_machine = self.nodes.iter().filter(here);
        match on_machine.any(|node| node.redis.is_some_and(|at| at.port() == same.port())) {
            false => same,
            true => SocketAddr::new(host, new.control.port().saturating_add(1)),
        }
    }

    fn record(&self, name: &str) -> Option<Table> {
        let Origin { text, changes, .. } = &self.origin;
        let contents = changed_contents(text, changes).ok()?;
        let mut nodes = contents.get("node")?.as_array()?.iter();
        let is_meant = |node: &&Value| node.get("name").and_then(Value::as_str) == Some(name);
        nodes.find(is_meant)?.as_table().cloned()
    }

    fn names_f(&self, group: u16) -> bool {
        let contents: Table = toml::from_str(&self.origin.text).unwrap_or_default();
        let groups = contents.get("group").and_then(Value::as_array);
        let mut groups = groups.into_iter().flatten();
        groups.any(|g| number(g, "id") == Some(i64::from(group)) && g.get("f").is_some())
    }
}

fn without_lines(mut errors: Errors) -> Errors {
    errors.errors.iter_mut().for_each(|error| error.line = 0);
    errors
}

/// Returns the cluster that an operator's order would lead to.
///
/// # Errors
/// All reasons against it, by name.
pub fn check_order(cluster: &ClusterFile, order: &[MemberChange]) -> Result<ClusterFile, Errors> {
    if order.is_empty() {
        return Err(Errors::one("", "nothing is ordered", "name a node"));
    }
    for change in order {
        if let Err((problem, remedy)) = check_change(cluster, change) {
            return Err(Errors::one("", problem, remedy));
        }
    }
    let all: Vec<_> = cluster.changes().iter().chain(order).cloned().collect();
    if !control::members::fit(&all) {
        let problem = "the list of the members' changes is full";
        let remedy = "change members by the cluster file from now on";
        return Err(Errors::one("", problem, remedy));
    }
    let mut after = cluster.with_changes(&all)?;
    after.origin.file.clear();
    Ok(after)
}

fn check_change(cluster: &ClusterFile, change: &MemberChange) -> Result<(), (String, String)> {
    let refused = |problem: String, remedy: &str| Err((problem, remedy.to_owned()));
    match change {
        MemberChange::Add { name, node, record } => {
            let mut used = cluster.changes().iter().filter_map(MemberChange::node);
            let was = used.find(|(n, id)| n == name || id == node);
            if let Some((name, id)) = was {
                let problem = format!("{name}, node {id}, is or was a member of this cluster");
                return refused(problem, "choose a new name, and a number that nobody had");
            }
            if cluster.node(name).is_some() || cluster.node_by_id(*node).is_some() {
                let problem = format!("the cluster has a node {name} or a node {node} already");
                return refused(problem, "choose a new name, and a number that nobody had");
            }
            match read_record(record) {
                Ok(of) if identity(&of) == Some((name, i64::from(*node))) => {
                    let role = of.get("role").and_then(Value::as_str).unwrap_or("node");
                    let group = number(&of, "group").and_then(|id| u16::try_from(id).ok());
                    let only = cluster.groups.first().map(|group| group.id);
                    changes_by_command(cluster, name, role, group.or(only))
                }
                Ok(_) => refused(format!("{name}: its record names another node"), "name one"),
                Err(why) => refused(format!("{name}: {why}"), "correct it"),
            }
        }
        MemberChange::Leave { name, node } => match cluster.node(name) {
            Some(n) if n.id != *node => refused(
                format!("{name} is node {}, and not node {node}", n.id),
                "take the newest cluster file",
            ),
            Some(n) if n.leaving => refused(
                format!("{name} is leaving already"),
                "see `wirepaxos members`",
            ),
            Some(n) => changes_by_command(cluster, name, n.role.name(), n.group),
            None => refused(
                format!("the cluster has no node {name}"),
                "see `wirepaxos members`",
            ),
        },
        MemberChange::SetF { .. } => Ok(()),
        MemberChange::SetLevel { level } => {
            check_level(control::level::of(cluster.changes()), *level)
        }
        MemberChange::Unknown => refused(
            "this program doesn't know the change".to_owned(),
            "give the order with the controllers' version",
        ),
        MemberChange::Remove { name, .. } => refused(
            format!("{name} is removed by the controller once no epoch needs it"),
            "have it leave",
        ),
    }
}

/// The level moves by one, and back only where the program before can read what is stored.
fn check_level(from: Level, to: Level) -> Result<(), (String, String)> {
    let refused = |problem, remedy: &str| Err((problem, remedy.to_owned()));
    let at = format!("the cluster is at format level {from}");
    if to == from + 1 || to + 1 == from && level::has_way_back(from) {
        return Ok(());
    }
    if to + 1 == from {
        return refused(
            format!("{at}, and what is stored since can't be read at level {to}"),
            "restore a backup that was made before, by the program of that time",
        );
    }
    refused(
        format!("{at}, and can't go to level {to} at once"),
        "see `wirepaxos upgrade check`",
    )
}

fn changes_by_command(
    cluster: &ClusterFile,
    name: &str,
    role: &str,
    group: Option<u16>,
) -> Result<(), (String, String)> {
    let group = group.and_then(|id| cluster.group(id));
    let in_paxos = group.is_some_and(|group| group.protocol == Protocol::Paxos);
    let what = match Role::named(role) {
        Some(Role::Acceptor | Role::Leader) => return Ok(()),
        Some(Role::Replica) if in_paxos => return Ok(()),
        Some(Role::Replica) => "replica of a NOPaxos group",
        _ => role,
    };
    Err((
        format!("{name} is a {what}, and commands change leaders, acceptors and Paxos replicas"),
        "follow \"Members\" in docs/operations/change.md".to_owned(),
    ))
}

/// Returns whether a node may go on with `old` although `new` has more changes. A node needs no
/// news of who leaves, and an acceptor none of other acceptors; but the controller decides by all
/// of them.
pub fn is_unaffected(of: &Node, old: &ClusterFile, new: &ClusterFile) -> bool {
    if of.role == Role::Controller {
        return without_leaving(old) == without_leaving(new);
    }
    let counts_votes = match of.role {
        Role::Acceptor | Role::Sequencer => false,
        Role::Replica => {
            let group = of.group.and_then(|id| new.group(id));
            group.is_some_and(|group| group.protocol == Protocol::Paxos)
        }
        _ => true,
    };
    let matters = |node: &&Node| counts_votes || node.role != Role::Acceptor;
    let is_known = |node: &Node| {
        old.nodes.iter().any(|known| {
            let leaving = known.leaving;
            *known
                == Node {
                    leaving,
                    ..node.clone()
                }
        })
    };
    let mut needed = new.nodes.iter().filter(matters);
    needed.all(is_known) && without_nodes(old) == without_nodes(new)
}

fn without_leaving(cluster: &ClusterFile) -> ClusterFile {
    let mut cluster = cluster.clone();
    cluster.nodes.retain(|node| !node.leaving);
    cluster
}

/// Returns all but the nodes, and numbers that only the controller counts by.
fn without_nodes(cluster: &ClusterFile) -> ClusterFile {
    let mut cluster = cluster.clone();
    cluster.nodes.clear();
    cluster
        .groups
        .iter_mut()
        .for_each(|group| (group.f, group.g) = (0, 0));
    cluster
}

/// Returns the text of a cluster file after these changes, without comments.
fn changed(text: &str, changes: &[MemberChange]) -> Result<String, String> {
    if changes
        .iter()
        .all(|c| matches!(c, MemberChange::SetLevel { .. }))
    {
        return Ok(text.to_owned());
    }
    Ok(changed_contents(text, changes)?.to_string())
}

fn changed_contents(text: &str, changes: &[MemberChange]) -> Result<Table, String> {
    let mut contents: Table = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    for change in changes {
        apply(&mut contents, change)?;
    }
    Ok(contents)
}

fn apply(contents: &mut Table, change: &MemberChange) -> Result<(), String> {
    let list = |contents: &'_ mut Table, key: &str| {
        let list = contents.get_mut(key).and_then(Value::as_array_mut);
        list.map(std::mem::take).unwrap_or_default()
    };
    if let MemberChange::SetF { group, f } = change {
        let mut groups = list(contents, "group");
        let of_group = |g: &&mut Value| number(g, "id") == Some(i64::from(*group));
        if let Some(Value::Table(group)) = groups.iter_mut().find(of_group) {
            group.insert("f".to_owned(), i64::from(*f).into());
        }
        contents.insert("group".to_owned(), groups.into());
        return Ok(());
    }
    let Some((name, id)) = change.node() else {
        return Ok(());
    };
    let mut nodes = list(contents, "node");
    let is_meant = |node: &Value| identity(node) == Some((name, i64::from(id)));
    match change {
        MemberChange::Add { record, .. } => {
            let added = read_record(record)?;
            match nodes.iter().find(|node| collides(node, &added)) {
                None => nodes.push(added),
                Some(there) if is_same_node(there, &added) => {}
                Some(there) => return Err(disagreement(there, &added)),
            }
        }
        MemberChange::Leave { .. } => {
            if let Some(Value::Table(node)) = nodes.iter_mut().find(|node| is_meant(node)) {
                node.insert("leaving".to_owned(), true.into());
            }
        }
        _ => nodes.retain(|node| !is_meant(node)),
    }
    contents.insert("node".to_owned(), nodes.into());
    Ok(())
}

fn read_record(record: &str) -> Result<Value, String> {
    toml::from_str(record)
        .map(Value::Table)
        .map_err(|e| format!("its record isn't TOML: {}", e.message()))
}

fn number(of: &Value, key: &str) -> Option<i64> {
    of.get(key).and_then(Value::as_integer)
}

fn identity(node: &Value) -> Option<(&str, i64)> {
    Some((node.get("name")?.as_str()?, number(node, "id")?))
}

fn collides(node: &Value, added: &Value) -> bool {
    ["name", "id"]
        .iter()
        .any(|key| node.get(key) == added.get(key))
}

/// Each machine may have keys of its own in a record, such as a CPU or a password.
fn is_same_node(node: &Value, added: &Value) -> bool {
    let keys = ["name", "id", "role", "address", "control"];
    keys.iter().all(|key| node.get(key) == added.get(key))
}

fn disagreement(there: &Value, added: &Value) -> String {
    let of = |node: &Value| {
        let (name, id) = identity(node).unwrap_or(("?", 0));
        let at = node.get("address").and_then(Value::as_str).unwrap_or("?");
        format!("{name}, node {id} at {at}")
    };
    format!(
        "it has {}, where `wirepaxos members` has added {}",
        of(there),
        of(added)
    )
}

/// Returns the text of a cluster file with these changes. Comments stay where they are, unless the
/// file is written in a way that this can't change line by line.
///
/// # Errors
/// If the file disagrees with a change.
fn edited(text: &str, changes: &[MemberChange]) -> Result<String, String> {
    let wanted = changed_contents(text, changes)?;
    if toml::from_str::<Table>(text).is_ok_and(|contents| contents == wanted) {
        return Ok(text.to_owned());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for change in changes {
        edit(&mut lines, change);
    }
    let edited = lines.join("\n") + "\n";
    let is_right = toml::from_str::<Table>(&edited).is_ok_and(|contents| contents == wanted);
    Ok(if is_right { edited } else { wanted.to_string() })
}

/// Writes a cluster file anew with these changes, unless it has them already.
///
/// # Errors
/// What is in the way; then nothing has changed.
pub fn rewrite(path: &Path, changes: &[MemberChange]) -> Result<(), String> {
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|e| format!("{file} can't be read: {e}"))?;
    let edited = edited(&text, changes).map_err(|why| format!("{file}: {why}"))?;
    if edited == text {
        return Ok(());
    }
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let written = fs::metadata(path).and_then(|old| {
        fs::write(&new, edited)?;
        fs::set_permissions(&new, old.permissions())?;
        fs::rename(&new, path)
    });
    written.map_err(|e| {
        let _ = fs::remove_file(&new);
        format!("{file} can't be written: {e}")
    })
}

fn edit(lines: &mut Vec<String>, change: &MemberChange) {
    if let MemberChange::SetF { group, f } = change {
        return edit_f(lines, *group, *f);
    }
    let found = change.node().and_then(|(name, _)| block(lines, name));
    match (change, found) {
        (MemberChange::Add { record, .. }, None) => {
            lines.extend([String::new(), "[[node]]".to_owned()]);
            lines.extend(record.lines().map(str::to_owned));
        }
        (MemberChange::Leave { .. }, Some((begin, end))) => {
            let says_so = |line: &String| line.trim_start().starts_with("leaving");
            if !lines[begin..end].iter().any(says_so) {
                let body = lines[..end].iter();
                let blank = body.rev().take_while(|line| line.trim().is_empty());
                lines.insert(end - blank.count(), "leaving = true".to_owned());
            }
        }
        (MemberChange::Remove { .. }, Some((begin, end))) => drop(lines.drain(begin..end)),
        _ => {}
    }
}

fn edit_f(lines: &mut [String], group: u16, f: u8) {
    let mut is_meant = false;
    for line in lines {
        let read: Table = toml::from_str(line).unwrap_or_default();
        if line.trim_start().starts_with('[') {
            is_meant = false;
        } else if let Some(id) = read.get("id").and_then(Value::as_integer) {
            is_meant = id == i64::from(group);
        } else if is_meant && read.contains_key("f") {
            *line = format!("f = {f}");
        }
    }
}

/// Returns where the record of a node begins and ends. A comment before the next header belongs to
/// that.
fn block(lines: &[String], name: &str) -> Option<(usize, usize)> {
    let is_header = |line: &String| line.trim_start().starts_with('[');
    let is_name = |line: &String| {
        let read: Result<Table, _> = toml::from_str(line);
        read.is_ok_and(|table| table.get("name").and_then(Value::as_str) == Some(name))
    };
    let at = lines.iter().position(is_name)?;
    let begin = lines[..at].iter().rposition(is_header)?;
    let next = lines[at..].iter().position(is_header);
    let mut end = next.map_or(lines.len(), |next| at + next);
    while next.is_some() && lines[end - 1].trim_start().starts_with('#') {
        end -= 1;
    }
    Some((begin, end))
}

#[cfg(test)]
mod tests;
