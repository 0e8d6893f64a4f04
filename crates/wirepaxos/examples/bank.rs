// SPDX-License-Identifier: Apache-2.0
//! A program of your own over several partitions: a bank whose accounts are spread over four
//! partitions. A transfer between accounts of two partitions takes effect in both, or in neither.
//!
//! ```text
//! bank        # a whole cluster in this process; transfers at random, and no money comes or goes
//! ```
//!
//! Commands are text: `open NAME AMOUNT`, `show NAME`, `transfer FROM TO AMOUNT`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::Duration;

use wirepaxos::application::Part;
use wirepaxos::cluster_file::{ApplicationKind, Draft};
use wirepaxos::{Client, ClientOptions, Embedded, Error, Program, StateMachine};

const PARTITIONS: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(10);

/// The accounts of one partition.
#[derive(Default)]
struct Accounts(BTreeMap<String, i64>);

impl Accounts {
    fn change(&mut self, name: &str, by: i64) {
        *self.0.entry(name.to_owned()).or_default() += by;
    }
}

impl StateMachine for Accounts {
    /// Executes a command in one partition.
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(command);
        let answer = match text.split(' ').collect::<Vec<_>>()[..] {
            ["open", name, amount] => {
                self.change(name, amount.parse().unwrap_or(0));
                "ok".to_owned()
            }
            ["show", name] => self.0.get(name).copied().unwrap_or(0).to_string(),
            ["transfer", from, to, amount] => {
                let amount = amount.parse().unwrap_or(0);
                let covered = self.0.get(from).is_some_and(|balance| *balance >= amount);
                if covered {
                    self.change(from, -amount);
                    self.change(to, amount);
                }
                answer_of(covered).to_owned()
            }
            _ => "no such command".to_owned(),
        };
        reply.extend_from_slice(answer.as_bytes());
    }

    fn spans_partitions() -> bool {
        true
    }

    /// Carries out the first step, in both partitions: the partition of the payer's account reads
    /// the balance.
    fn prepare(&self, command: &[u8], prepared: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(command);
        if let ["transfer", from, _, _] = text.split(' ').collect::<Vec<_>>()[..] {
            if let Some(balance) = self.0.get(from) {
                prepared.extend_from_slice(balance.to_string().as_bytes());
            }
        }
    }

    /// Carries out the second step, once: it decides, and describes the effects as text for
    /// `apply`.
    fn combine(command: &[u8], parts: &mut [Part], reply: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(command);
        let ["transfer", from, to, amount] = text.split(' ').collect::<Vec<_>>()[..] else {
            reply.extend_from_slice(b"no such command");
            return;
        };
        let amount: i64 = amount.parse().unwrap_or(0);
        let balance = |part: &Part| String::from_utf8_lossy(&part.prepared).parse::<i64>().ok();
        let covered = parts.iter().filter_map(balance).any(|b| b >= amount);
        if covered {
            for part in parts {
                let effect = match balance(part) {
                    Some(_) => format!("{from} {}", -amount),
                    None => format!("{to} {amount}"),
                };
                part.effect = effect.into_bytes();
            }
        }
        reply.extend_from_slice(answer_of(covered).as_bytes());
    }

    /// Carries out the third step, in each partition that has an effect: it changes the balance.
    fn apply(&mut self, effect: &[u8]) {
        let text = String::from_utf8_lossy(effect);
        if let Some((name, by)) = text.split_once(' ') {
            self.change(name, by.parse().unwrap_or(0));
        }
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = self.0.iter();
        lines.try_for_each(|(name, balance)| writeln!(out, "{name} {balance}"))
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut text = String::new();
        from.read_to_string(&mut text)?;
        let mut accounts = Accounts::default();
        for line in text.lines() {
            let (name, balance) = line.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
            let balance = balance.parse().map_err(io::Error::other)?;
            accounts.change(name, balance);
        }
        Ok(accounts)
    }
}

fn answer_of(covered: bool) -> &'static str {
    match covered {
        true => "ok",
        false => "not enough money",
    }
}

/// Sends a command to the partitions of the accounts, which their names determine. A transfer is in
/// one partition or in two.
fn call(client: &mut Client, names: &[&str], command: &str) -> Result<String, Error> {
    let pids: Vec<u16> = names
        .iter()
        .map(|name| client.partition_of(name.as_bytes()))
        .collect();
    let answer = client.call_over(&pids, command.as_bytes(), PATIENCE);
    Ok(String::from_utf8_lossy(&answer.answer()?).into_owned())
}

fn main() -> Result<(), Error> {
    let directory = std::env::temp_dir().join(format!("wirepaxos-bank-{}", std::process::id()));
    let mut draft = Draft::on_loopback(&directory, ApplicationKind::Own)?;
    draft.groups[0].partitions = Some(PARTITIONS);
    let host = draft.nodes[0].address.ip();
    // The nodes get addresses anew, since replicas take a port for each partition.
    let roles: Vec<_> = draft.nodes.drain(..).map(|node| node.role).collect();
    for role in roles {
        draft.add_node(role, host);
    }
    let cluster = draft.check()?;
    let nodes = Embedded::start(&cluster, &Program::in_memory(Accounts::default))?;
    let mut client = Client::open(&cluster, ClientOptions::default())?;

    let names = ["ann", "bob", "cleo", "dora", "eve", "fred"];
    for name in names {
        call(&mut client, &[name], &format!("open {name} 100"))?;
    }
    let (mut random, mut refused) = (1u64, 0);
    for _ in 0..500 {
        let mut draw = |n: usize| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 33) as usize % n
        };
        let (from, to) = (names[draw(names.len())], names[draw(names.len())]);
        let command = format!("transfer {from} {to} {}", draw(80));
        if from != to && call(&mut client, &[from, to], &command)? != "ok" {
            refused += 1;
        }
    }
    let mut sum = 0;
    for name in names {
        let balance = call(&mut client, &[name], &format!("show {name}"))?;
        println!(
            "{name} (partition {}): {balance}",
            client.partition_of(name.as_bytes())
        );
        sum += balance.parse::<i64>().unwrap_or(0);
    }
    println!("{sum} in all, {refused} transfers weren't covered");
    assert_eq!(sum, 600, "money came or went");
    drop(client);
    nodes.stop()?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
