// SPDX-License-Identifier: Apache-2.0
//! Examples for the help of each command. `up` and `init` have text of their own, and `sim` has its own help.

use clap::Command;

const EXAMPLES: &[&str] = &[
    "wirepaxos demo --seconds 2",
    "wirepaxos node -c cluster.toml --name acceptor-1",
    "wirepaxos status -c cluster.toml --watch 2",
    "wirepaxos events -c cluster.toml --follow",
    "wirepaxos members -c cluster.toml --wait 60",
    "wirepaxos copy make -c cluster.toml --name replica-2 /backup/2026-11-27",
    "wirepaxos copy put -c cluster.toml --name replica-2 /backup/2026-11-27",
    "wirepaxos failover -c cluster.toml --to leader-2",
    "wirepaxos controller rebuild -c cluster.toml",
    "wirepaxos forget-log -c cluster.toml --name acceptor-1",
    "wirepaxos recover -c cluster.toml --instance 4711",
    "wirepaxos skip -c cluster.toml --group 0 --instance 4711",
    "wirepaxos accept-server -c cluster.toml --name replica-2",
    "wirepaxos keys new -c cluster.toml",
    "wirepaxos keys rotate -c cluster.toml",
    "wirepaxos keys client -c cluster.toml backup --out /etc/wirepaxos/backup.key",
    "wirepaxos kv -c cluster.toml SET fruit apple",
    "wirepaxos stop -c cluster.toml --name replica-2",
    "wirepaxos switch up -c cluster.toml --name switch-1 --port eth1 --port eth2 --address 10.0.0.254/24",
    "wirepaxos switch status -c cluster.toml --name switch-1",
    "wirepaxos switch down -c cluster.toml --name switch-1",
    "wirepaxos lab up --replicas 3 --plane xdp",
    "wirepaxos lab status",
    "wirepaxos lab start replica-2",
    "wirepaxos lab exec client-1 -- ping -c 1 10.0.0.1",
    "wirepaxos lab faults all --loss 1% --reorder 1%",
    "wirepaxos lab down",
    "wirepaxos bench e2e --outstanding 256 --seconds 5",
    "wirepaxos bench catch-up --mib 256",
    "wirepaxos bench loss --rates 0,1 --replicas 3",
    "wirepaxos bench scale --replicas 3,5",
    "wirepaxos bench failover --event leader-killed --runs 3",
    "wirepaxos bench memory --replicas 5",
    "wirepaxos bench roles --plane xdp",
    "wirepaxos bench chain --replicas 3",
    "wirepaxos torture --minutes 2 --seed 7",
    "wirepaxos check-trace /tmp/trace",
];

/// Adds the examples to the help of all commands that this build has.
pub fn add_to(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, example| {
        add_one(command, &mut example.split(' ').skip(1), example)
    })
}

/// Adds one example to the command that the first words name, or to none if this build has no such command.
fn add_one<'a>(
    command: Command,
    words: &mut impl Iterator<Item = &'a str>,
    example: &str,
) -> Command {
    if !command.has_subcommands() {
        let shown = format!("Example: {example}");
        let shown = match command.get_after_help() {
            Some(text) => format!("{text}\n\n{shown}"),
            None => shown,
        };
        return command.after_help(shown);
    }
    let Some(name) = words.next() else {
        return command;
    };
    match command.find_subcommand(name) {
        Some(_) => command.mut_subcommand(name, |inner| add_one(inner, words, example)),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandLine;
    use clap::CommandFactory;

    /// Collects the help of each visible command that has no subcommands.
    fn helps(command: &mut Command, found: &mut Vec<(String, String)>) {
        let name = command.get_name().to_owned();
        if !command.has_subcommands() {
            let help = command.render_help().to_string();
            found.push((name, help));
            return;
        }
        let shown = command.get_subcommands_mut();
        for inner in shown.filter(|inner| !inner.is_hide_set()) {
            helps(inner, found);
        }
    }

    #[test]
    fn every_command_has_an_example() {
        let mut found = Vec::new();
        helps(&mut add_to(CommandLine::command()), &mut found);
        for (name, help) in found {
            let has_own = name == "sim";
            assert!(has_own || help.contains("Example: wirepaxos "), "{name}");
        }
    }

    #[test]
    fn every_example_is_understood() {
        for example in EXAMPLES {
            let parsed = CommandLine::command().try_get_matches_from(example.split(' '));
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
}
