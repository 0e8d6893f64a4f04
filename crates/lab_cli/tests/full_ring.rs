// SPDX-License-Identifier: Apache-2.0
//! Tests that a learner with a full ring counts no vote, and that its replica repairs what it has
//! missed: at links as in test-run (`crates/loader/tests/frames.rs`).

mod testlab;

use testlab::{REPLICAS, TestLab, all, digests, eventually, ready, serving, status};

/// The number of values. Each takes more than a thousand bytes in a ring of 4 MiB; all are fewer
/// than two replicas need for a checkpoint each, so acceptors still have them when the third
/// replica comes back.
const VALUES: usize = 5_000;

/// Returns the 900 bytes of key `i`.
fn value(i: usize) -> String {
    format!("{i:0900}")
}

/// Sends commands one after the other, each when the one before it is answered; returns the
/// answers.
fn pipe(lab: &TestLab, replica: &str, commands: &str) -> Vec<String> {
    let script = format!(
        "for i in $(seq {VALUES}); do {commands}; done | \
         timeout 100 redis-cli -h {replica} -a lab --no-auth-warning"
    );
    let output = lab.exec("client-1", &["sh", "-c", &script]);
    assert!(output.status.success(), "{}", all(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn a_replica_that_stood_still_while_its_ring_filled_has_missed_nothing() {
    let Some(lab) = serving('o', &["--start"]) else {
        return;
    };
    ready(&lab);
    let learner = |field: &str| status(&lab, "replica-3")["plane"]["counters"][field].clone();
    assert!(learner("dropped")["full"].is_null());

    lab.signal("replica-3", "STOP");
    let said = pipe(&lab, REPLICAS[1], "printf 'SET key%d %0900d\\n' $i $i");
    assert_eq!(said, vec!["OK"; VALUES]);
    lab.signal("replica-3", "CONT");

    eventually("what it has missed", || {
        let partition = &status(&lab, "replica-3")["partitions"][0];
        (partition["next"].as_u64()? > VALUES as u64).then_some(())
    });
    let missed = learner("dropped")["full"].as_u64();
    assert!(missed.is_some_and(|n| n > 0), "its ring never was full");
    println!("{missed:?} votes found a full ring");

    let found = pipe(&lab, REPLICAS[2], "echo GET key$i");
    assert_eq!(found, (1..=VALUES).map(value).collect::<Vec<_>>());
    let digests = digests(&lab);
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
    lab.down();
}
