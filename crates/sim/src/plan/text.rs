// SPDX-License-Identifier: Apache-2.0
//! Prints plans as text, and reads them back.

use std::fmt;

use paxos::{MsgType, Time};

use super::{Action, Catch, Direction, Name, Plan, Scenario};
use crate::application::Span;
use crate::linearizability::Op;
use crate::network::Rates;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Controller => f.write_str("controller"),
            Name::Leader(n) => write!(f, "leader-{n}"),
            Name::Acceptor(n) => write!(f, "acceptor-{n}"),
            Name::Replica(n) => write!(f, "replica-{n}"),
            Name::Learner(n) => write!(f, "learner-{n}"),
            Name::Sequencer(n) => write!(f, "sequencer-{n}"),
            Name::Client(n) => write!(f, "client-{n}"),
        }
    }
}

impl Name {
    /// Parses a name as it is printed.
    pub fn parse(text: &str) -> Option<Name> {
        if text == "controller" {
            return Some(Name::Controller);
        }
        let (kind, number) = text.rsplit_once('-')?;
        let number = number.parse().ok().filter(|n| *n > 0)?;
        match kind {
            "leader" => Some(Name::Leader(number)),
            "acceptor" => Some(Name::Acceptor(number)),
            "replica" => Some(Name::Replica(number)),
            "learner" => Some(Name::Learner(number)),
            "sequencer" => Some(Name::Sequencer(number)),
            "client" => Some(Name::Client(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scenario")?;
        let default = Scenario::default();
        for (name, get, _) in FIELDS {
            if get(self) != get(&default) {
                write!(f, " {name}={}", get(self))?;
            }
        }
        for (name, get, _) in RATES {
            if get(&self.rates) != get(&default.rates) {
                write!(f, " {name}={}", get(&self.rates))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in [self.from, self.to] {
            match end {
                Some(name) => write!(f, "{name} ")?,
                None => f.write_str("any ")?,
            }
        }
        f.write_str(self.msgtype.name())?;
        self.pid.map_or(Ok(()), |pid| write!(f, " {pid}"))
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
            Direction::Both => "both",
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Get => write!(f, "get"),
            Op::Set(to) => write!(f, "set {to}"),
            Op::Incr => write!(f, "incr"),
            Op::Append(item) => write!(f, "append {item}"),
            Op::CompareAndSet(from, to) => write!(f, "cas {from} {to}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Submit {
                client,
                pid,
                key,
                op,
                padding,
            } => {
                write!(f, "submit client-{client} {pid} {key} {op}")?;
                match padding {
                    0 => Ok(()),
                    _ => write!(f, " padding={padding}"),
                }
            }
            Action::Span { client, keys, span } => {
                write!(f, "span client-{client}")?;
                for (pid, key) in keys {
                    write!(f, " {pid}/{key}")?;
                }
                match span {
                    Span::Read => f.write_str(" read"),
                    Span::Fold(item) => write!(f, " fold {item}"),
                }
            }
            Action::Walk { client, replica } => {
                write!(f, "walk client-{client} replica-{replica}")
            }
            Action::Read {
                client,
                replica,
                pid,
                key,
            } => write!(f, "read client-{client} replica-{replica} {pid} {key}"),
            Action::Crash(name) => write!(f, "crash {name}"),
            Action::PowerOff(name) => write!(f, "power-off {name}"),
            Action::Wipe(name) => write!(f, "wipe {name}"),
            Action::Restart(name) => write!(f, "restart {name}"),
            Action::Pause(name) => write!(f, "pause {name}"),
            Action::Resume(name) => write!(f, "resume {name}"),
            Action::Isolate(name, direction) => write!(f, "isolate {name} {direction}"),
            Action::Cut(from, to) => write!(f, "cut {from} {to}"),
            Action::Hold(what) => write!(f, "hold {what}"),
            Action::Copy(what) => write!(f, "copy {what}"),
            Action::Release => f.write_str("release"),
            Action::Heal => f.write_str("heal"),
            Action::Network(rates) => {
                f.write_str("network")?;
                for (name, get, _) in RATES {
                    write!(f, " {name}={}", get(rates))?;
                }
                Ok(())
            }
            Action::DiskFull(name) => write!(f, "disk-full {name}"),
            Action::DiskFree(name) => write!(f, "disk-free {name}"),
            Action::KillIn(name, calls) => write!(f, "kill-in {name} {calls}"),
            Action::Poison(name, pid, key) => write!(f, "poison {name} {pid} {key}"),
            Action::Hour => f.write_str("hour"),
            Action::Stop => f.write_str("stop"),
            Action::Start => f.write_str("start"),
            Action::Rival => f.write_str("rival"),
            Action::Failover => f.write_str("failover"),
            Action::HandOver(name) => write!(f, "hand-over {name}"),
            Action::Members(add, leave) => print_members(f, add, leave),
            Action::Lead(name) => write!(f, "lead {name}"),
            Action::CopyDisk(name) => write!(f, "copy-disk {name}"),
            Action::PutBack(name) => write!(f, "put-back {name}"),
            Action::Lie(name) => write!(f, "lie {name}"),
            Action::Rot(name) => write!(f, "rot {name}"),
            Action::ForgetLog(name) => write!(f, "forget-log {name}"),
            Action::Exaggerate(name) => write!(f, "exaggerate {name}"),
            Action::Refuse(name) => write!(f, "refuse {name}"),
            Action::Forget(name) => write!(f, "forget {name}"),
            Action::Claim(name, trim, end) => write!(f, "claim {name} {trim} {end}"),
            Action::AcceptLoss => f.write_str("accept-loss"),
            Action::OldCluster => f.write_str("old-cluster"),
            Action::BackUp => f.write_str("back-up"),
            Action::Restore => f.write_str("restore"),
            Action::Rebuild => f.write_str("rebuild"),
        }
    }
}

fn print_members(f: &mut fmt::Formatter<'_>, add: &[Name], leave: &[Name]) -> fmt::Result {
    f.write_str("members")?;
    add.iter().try_for_each(|name| write!(f, " +{name}"))?;
    leave.iter().try_for_each(|name| write!(f, " -{name}"))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.scenario)?;
        for (at, action) in &self.actions {
            writeln!(f, "{} {action}", seconds(*at))?;
        }
        Ok(())
    }
}

/// Prints a time in seconds with six decimal places.
pub fn seconds(at: Time) -> String {
    format!("{}.{:06}", at / 1_000_000_000, at % 1_000_000_000 / 1_000)
}

/// Parses a time.
pub fn parse_seconds(text: &str) -> Option<Time> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 9 {
        return None;
    }
    let nanoseconds: Time = format!("{part:0<9}").parse().ok()?;
    Some(whole.parse::<Time>().ok()? * 1_000_000_000 + nanoseconds)
}

type Field = (&'static str, fn(&Scenario) -> u64, fn(&mut Scenario, u64));

/// The fields of a scenario besides the rates.
const FIELDS: [Field; 22] = [
    ("seed", |s| s.seed, |s, v| s.seed = v),
    ("leaders", |s| s.leaders.into(), |s, v| s.leaders = v as u8),
    (
        "acceptors",
        |s| s.acceptors.into(),
        |s, v| s.acceptors = v as u8,
    ),
    (
        "replicas",
        |s| s.replicas.into(),
        |s, v| s.replicas = v as u8,
    ),
    (
        "learners",
        |s| s.learners.into(),
        |s, v| s.learners = v as u8,
    ),
    (
        "sequencers",
        |s| s.sequencers.into(),
        |s, v| s.sequencers = v as u8,
    ),
    ("clients", |s| s.clients.into(), |s, v| s.clients = v as u8),
    (
        "partitions",
        |s| s.partitions.into(),
        |s, v| s.partitions = v as u8,
    ),
    ("slots", |s| s.slots.into(), |s, v| s.slots = v as u16),
    ("window", |s| s.window.into(), |s, v| s.window = v as u16),
    ("durable", |s| s.durable.into(), |s, v| s.durable = v != 0),
    (
        "checkpoint",
        |s| s.checkpoint_every.into(),
        |s, v| s.checkpoint_every = v as u16,
    ),
    (
        "session-window",
        |s| s.session_window.into(),
        |s, v| s.session_window = v as u16,
    ),
    (
        "ordered-values",
        |s| s.ordered_values.into(),
        |s, v| s.ordered_values = v as u8,
    ),
    ("drift", |s| s.drift.into(), |s, v| s.drift = v as u32),
    ("batch", |s| s.batch.into(), |s, v| s.batch = v as u8),
    (
        "answers-wait",
        |s| s.answers_wait.into(),
        |s, v| s.answers_wait = v != 0,
    ),
    (
        "few",
        |s| s.ordered.few.into(),
        |s, v| s.ordered.few = v as u8,
    ),
    (
        "ahead",
        |s| s.ordered.ahead.into(),
        |s, v| s.ordered.ahead = v as u8,
    ),
    (
        "spare-leaders",
        |s| s.spares.leaders.into(),
        |s, v| s.spares.leaders = v as u8,
    ),
    (
        "spare-acceptors",
        |s| s.spares.acceptors.into(),
        |s, v| s.spares.acceptors = v as u8,
    ),
    (
        "spare-replicas",
        |s| s.spares.replicas.into(),
        |s, v| s.spares.replicas = v as u8,
    ),
];

type Rate = (&'static str, fn(&Rates) -> u32, fn(&mut Rates, u32));

const RATES: [Rate; 6] = [
    ("loss", |r| r.loss, |r, v| r.loss = v),
    ("duplicate", |r| r.duplicate, |r, v| r.duplicate = v),
    ("slow", |r| r.slow, |r, v| r.slow = v),
    ("late", |r| r.late, |r, v| r.late = v),
    ("hour", |r| r.hour, |r, v| r.hour = v),
    ("corrupt", |r| r.corrupt, |r, v| r.corrupt = v),
];

impl Scenario {
    /// Parses the text after the word `scenario`.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let mut scenario = Scenario::default();
        for setting in text.split_whitespace() {
            let (name, value) = setting
                .split_once('=')
                .ok_or_else(|| format!("'{setting}' is no NAME=NUMBER"))?;
            let value: u64 = value
                .parse()
                .map_err(|_| format!("'{value}' is no number"))?;
            let field = FIELDS.iter().find(|(known, ..)| *known == name);
            let rate = RATES.iter().find(|(known, ..)| *known == name);
            match (field, rate) {
                (Some((.., set)), _) => set(&mut scenario, value),
                (_, Some((.., set))) => set(&mut scenario.rates, value as u32),
                _ => return Err(format!("a scenario has no '{name}'")),
            }
        }
        scenario
            .invalid()
            .map_or(Ok(scenario), |why| Err(why.into()))
    }

    /// Returns why the scenario is invalid, if it is.
    pub fn invalid(&self) -> Option<&'static str> {
        let ordered = self.sequencers > 0;
        if ordered && self.leaders + self.acceptors + self.learners > 0 {
            Some("where there are sequencers there are no leaders, acceptors and learners")
        } else if self.acceptors % 2 == u8::from(ordered) || self.acceptors > 9 {
            Some("acceptors come in odd numbers, up to 9")
        } else if self.replicas % 2 == 0 || self.replicas > 9 {
            Some("replicas come in odd numbers, up to 9")
        } else if (self.leaders == 0) != ordered || self.leaders > 9 || self.sequencers > 9 {
            Some("there are 1 to 9 leaders or sequencers")
        } else if ordered && self.has_spares() {
            Some("where there are sequencers members don't change")
        } else if self.leaders + self.spares.leaders > 9
            || self.acceptors + self.spares.acceptors > 9
            || self.replicas + self.spares.replicas > 9
        {
            Some("there are up to 9 leaders, acceptors and replicas with those that may be added")
        } else if self.learners > 9 {
            Some("there are up to 9 learners")
        } else if self.partitions == 0 || self.partitions > 8 || self.clients > 100 {
            Some("there are 1 to 8 partitions and up to 100 clients")
        } else if self.window == 0 || self.window > self.slots {
            Some("the window is at most the slots")
        } else {
            None
        }
    }
}

impl Action {
    /// Parses an action as it is printed.
    pub fn parse(text: &str) -> Result<Action, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let name = |at: usize| {
            let word = words.get(at).copied().unwrap_or_default();
            Name::parse(word).ok_or_else(|| format!("'{word}' is no node"))
        };
        let number = |at: usize| number(&words, at);
        Ok(match words.first().copied().unwrap_or_default() {
            "submit" => submission(&words)?,
            "span" => spanning(&words)?,
            "walk" => match (name(1)?, name(2)?) {
                (Name::Client(client), Name::Replica(replica)) => Action::Walk { client, replica },
                _ => return Err("a client has a replica walk".into()),
            },
            "read" => match (name(1)?, name(2)?) {
                (Name::Client(client), Name::Replica(replica)) => Action::Read {
                    client,
                    replica,
                    pid: number(3)? as u8,
                    key: number(4)? as u8,
                },
                _ => return Err("a client reads at a replica".into()),
            },
            "crash" => Action::Crash(name(1)?),
            "power-off" => Action::PowerOff(name(1)?),
            "wipe" => Action::Wipe(name(1)?),
            "restart" => Action::Restart(name(1)?),
            "pause" => Action::Pause(name(1)?),
            "resume" => Action::Resume(name(1)?),
            "isolate" => {
                let direction = direction(words.get(2).copied().unwrap_or_default())?;
                Action::Isolate(name(1)?, direction)
            }
            "cut" => Action::Cut(name(1)?, name(2)?),
            "hold" => Action::Hold(caught(&words)?),
            "copy" => Action::Copy(caught(&words)?),
            "release" => Action::Release,
            "heal" => Action::Heal,
            "network" => {
                let mut rates = Rates::PERFECT;
                for word in &words[1..] {
                    let (name, value) = word.split_once('=').unwrap_or((word, ""));
                    let rate = RATES.iter().find(|(known, ..)| *known == name);
                    let (.., set) = rate.ok_or_else(|| format!("'{name}' is no rate"))?;
                    set(&mut rates, value.parse().map_err(|e| format!("{e}"))?);
                }
                Action::Network(rates)
            }
            "disk-full" => Action::DiskFull(name(1)?),
            "disk-free" => Action::DiskFree(name(1)?),
            "kill-in" => Action::KillIn(name(1)?, number(2)? as u8),
            "poison" => Action::Poison(name(1)?, number(2)? as u8, number(3)? as u8),
            "hour" => Action::Hour,
            "stop" => Action::Stop,
            "start" => Action::Start,
            "rival" => Action::Rival,
            "failover" => Action::Failover,
            "hand-over" => Action::HandOver(name(1)?),
            "members" => members(&words[1..])?,
            "lead" => Action::Lead(name(1)?),
            "copy-disk" => Action::CopyDisk(name(1)?),
            "put-back" => Action::PutBack(name(1)?),
            "lie" => Action::Lie(name(1)?),
            "rot" => Action::Rot(name(1)?),
            "forget-log" => Action::ForgetLog(name(1)?),
            "exaggerate" => Action::Exaggerate(name(1)?),
            "refuse" => Action::Refuse(name(1)?),
            "forget" => Action::Forget(name(1)?),
            "claim" => Action::Claim(name(1)?, number(2)?, number(3)?),
            "accept-loss" => Action::AcceptLoss,
            "old-cluster" => Action::OldCluster,
            "back-up" => Action::BackUp,
            "restore" => Action::Restore,
            "rebuild" => Action::Rebuild,
            other => return Err(format!("'{other}' is nothing that can be done")),
        })
    }
}

fn number(words: &[&str], at: usize) -> Result<u64, String> {
    let word = words.get(at).copied().unwrap_or_default();
    word.parse().map_err(|_| format!("'{word}' is no number"))
}

fn submission(words: &[&str]) -> Result<Action, String> {
    let client = match words.get(1).and_then(|word| Name::parse(word)) {
        Some(Name::Client(client)) => client,
        _ => return Err("only clients submit".into()),
    };
    let number = |at: usize| number(words, at);
    let (op, next) = match words.get(4).copied().unwrap_or_default() {
        "get" => (Op::Get, 5),
        "set" => (Op::Set(number(5)?), 6),
        "incr" => (Op::Incr, 5),
        "append" => (Op::Append(number(5)?), 6),
        "cas" => (Op::CompareAndSet(number(5)?, number(6)?), 7),
        other => return Err(format!("'{other}' is no operation")),
    };
    let padding = words.get(next).and_then(|w| w.strip_prefix("padding="));
    Ok(Action::Submit {
        client,
        pid: number(2)? as u8,
        key: number(3)? as u8,
        op,
        padding: padding
            .map_or(Ok(0), str::parse)
            .map_err(|e| format!("{e}"))?,
    })
}

fn direction(word: &str) -> Result<Direction, &'static str> {
    match word {
        "in" => Ok(Direction::In),
        "out" => Ok(Direction::Out),
        "both" => Ok(Direction::Both),
        _ => Err("isolate needs in, out or both"),
    }
}

fn spanning(words: &[&str]) -> Result<Action, String> {
    let client = match words.get(1).and_then(|word| Name::parse(word)) {
        Some(Name::Client(client)) => client,
        _ => return Err("only clients submit".into()),
    };
    let place = |word: &&str| -> Option<(u8, u8)> {
        let (pid, key) = word.split_once('/')?;
        Some((pid.parse().ok()?, key.parse().ok()?))
    };
    let keys: Vec<(u8, u8)> = words[2..].iter().map_while(place).collect();
    if keys.len() < 2 || !keys.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return Err("name two partitions or more, ascending, each with a key: 0/3 2/5".into());
    }
    let span = match words[2 + keys.len()..] {
        ["read"] => Span::Read,
        ["fold", item] => Span::Fold(item.parse().map_err(|_| format!("'{item}' is no number"))?),
        _ => return Err("it is read, or fold NUMBER".into()),
    };
    Ok(Action::Span { client, keys, span })
}

fn members(words: &[&str]) -> Result<Action, String> {
    let (mut add, mut leave) = (Vec::new(), Vec::new());
    for word in words {
        let (list, name) = match (word.strip_prefix('+'), word.strip_prefix('-')) {
            (Some(name), _) => (&mut add, name),
            (_, Some(name)) => (&mut leave, name),
            _ => return Err(format!("'{word}' is neither +NODE nor -NODE")),
        };
        list.push(Name::parse(name).ok_or_else(|| format!("'{name}' is no node"))?);
    }
    Ok(Action::Members(add, leave))
}

fn caught(words: &[&str]) -> Result<Catch, String> {
    let (from, to, msgtype, pid) = match *words {
        [_, from, to, msgtype] => (from, to, msgtype, None),
        [_, from, to, msgtype, pid] => (from, to, msgtype, Some(pid)),
        _ => return Err("name a sender, a receiver and a type, then perhaps a partition".into()),
    };
    let end = |word: &str| match word {
        "any" => Ok(None),
        _ => Name::parse(word)
            .map(Some)
            .ok_or(format!("'{word}' is no node")),
    };
    Ok(Catch {
        from: end(from)?,
        to: end(to)?,
        msgtype: MsgType::from_name(msgtype).ok_or(format!("'{msgtype}' is no type"))?,
        pid: pid
            .map(|pid| pid.parse().map_err(|_| format!("'{pid}' is no partition")))
            .transpose()?,
    })
}

impl Plan {
    /// Parses a plan as it is printed. Empty lines and comments after `#` are ignored.
    pub fn parse(text: &str) -> Result<Plan, String> {
        let mut plan = Plan::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            plan.line(line)
                .map_err(|why| format!("line {}: {why}", number + 1))?;
        }
        plan.actions.sort_by_key(|(at, _)| *at);
        Ok(plan)
    }

    /// Takes one line.
    pub fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() {
            return Ok(());
        }
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if first == "scenario" {
            self.scenario = Scenario::parse(rest)?;
            return Ok(());
        }
        let at = parse_seconds(first).ok_or_else(|| format!("'{first}' is no time"))?;
        self.actions.push((at, Action::parse(rest)?));
        Ok(())
    }
}
