// SPDX-License-Identifier: Apache-2.0
//! Examples for the help of each command. `sim` has its own help.

/// Whole command lines.
pub const EXAMPLES: &[&str] = &[
    "wirepaxos-lab demo --seconds 2",
    "wirepaxos-lab lab up --replicas 3 --plane xdp",
    "wirepaxos-lab lab status",
    "wirepaxos-lab lab start replica-2",
    "wirepaxos-lab lab exec client-1 -- ping -c 1 10.0.0.1",
    "wirepaxos-lab lab faults all --loss 1% --reorder 1%",
    "wirepaxos-lab lab down",
    "wirepaxos-lab bench e2e --outstanding 256 --seconds 5",
    "wirepaxos-lab bench catch-up --mib 256",
    "wirepaxos-lab bench loss --rates 0,1 --replicas 3",
    "wirepaxos-lab bench scale --replicas 3,5",
    "wirepaxos-lab bench failover --event leader-killed --runs 3",
    "wirepaxos-lab bench memory --replicas 5",
    "wirepaxos-lab bench roles --plane xdp",
    "wirepaxos-lab bench chain --replicas 3",
    "wirepaxos-lab bench retwis --protocol nopaxos --shards 3 --slo-ms 10",
    "wirepaxos-lab torture --minutes 2 --seed 7",
    "wirepaxos-lab check-trace /tmp/trace",
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::EXAMPLES;
    use crate::CommandLine;

    #[test]
    fn every_command_has_an_example_that_is_understood() {
        command_line::examples::check(&CommandLine::command(), EXAMPLES, &["sim"]);
    }
}
