// SPDX-License-Identifier: Apache-2.0
//! Examples for the help of each command. `up` and `init` have text of their own.

/// Whole command lines.
pub const EXAMPLES: &[&str] = &[
    "wirepaxos node -c cluster.toml --name acceptor-1",
    "wirepaxos status -c cluster.toml --watch 2",
    "wirepaxos top -c cluster.toml",
    "wirepaxos events -c cluster.toml --follow",
    "wirepaxos members -c cluster.toml --wait 60",
    "wirepaxos members add -c cluster.toml acceptor-4=10.0.0.14 acceptor-5=10.0.0.15",
    "wirepaxos members remove -c cluster.toml acceptor-4 acceptor-5",
    "wirepaxos members replace -c cluster.toml acceptor-1 acceptor-4=10.0.0.14",
    "wirepaxos members drain -c cluster.toml 10.0.0.11",
    "wirepaxos upgrade check -c cluster.toml",
    "wirepaxos upgrade finish -c cluster.toml",
    "wirepaxos upgrade back -c cluster.toml",
    "wirepaxos copy make -c cluster.toml --name replica-2 /backup/2026-11-27",
    "wirepaxos copy put -c cluster.toml --name replica-2 /backup/2026-11-27",
    "wirepaxos backup create /backup -c cluster.toml",
    "wirepaxos backup list /backup",
    "wirepaxos backup verify /backup",
    "wirepaxos backup prune /backup --keep 7",
    "wirepaxos backup restore /backup --into new/cluster.toml",
    "wirepaxos backup restore /backup --to 2026-11-28T19:00:05Z --into new/cluster.toml",
    "wirepaxos failover -c cluster.toml --to leader-2",
    "wirepaxos controller rebuild -c cluster.toml",
    "wirepaxos controller move -c cluster.toml --to etcd",
    "wirepaxos forget-log -c cluster.toml --name acceptor-1",
    "wirepaxos recover -c cluster.toml --instance 4711",
    "wirepaxos skip -c cluster.toml --group 0 --instance 4711",
    "wirepaxos accept-server -c cluster.toml --name replica-2",
    "wirepaxos keys new -c cluster.toml",
    "wirepaxos keys rotate -c cluster.toml",
    "wirepaxos keys client -c cluster.toml backup --out /etc/wirepaxos/backup.key",
    "wirepaxos kv -c cluster.toml SET fruit apple",
    "wirepaxos stop -c cluster.toml --name replica-2",
    "wirepaxos switch up -c cluster.toml --name switch-1 --port eth1 --port eth2 --address \
     10.0.0.254/24",
    "wirepaxos switch status -c cluster.toml --name switch-1",
    "wirepaxos switch down -c cluster.toml --name switch-1",
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::EXAMPLES;
    use crate::CommandLine;

    #[test]
    fn every_command_has_an_example_that_is_understood() {
        command_line::examples::check(&CommandLine::command(), EXAMPLES, &[]);
    }
}
