// SPDX-License-Identifier: Apache-2.0
//! Tests of secrets that are replaced under load.

use super::*;

/// The cluster's secret is replaced while programs in the kernel serve. [M-SIGNED] [M-BANK]
#[test]
fn the_secret_is_replaced_under_load() {
    let Some(lab) = serving('r', &["--start"]) else {
        return;
    };
    ready(&lab);
    for node in SERVING {
        assert_eq!(status(&lab, node)["plane"]["name"], "xdp", "{node}");
    }
    replace_the_secret(&lab);
    lab.down();
}

/// Programs and sockets sign by the hash that switches can compute, also when machines die: then
/// each vote of the others is needed.
#[test]
fn kernel_and_sockets_sign_by_halfsiphash() {
    let Some(lab) = serving('h', &["--auth", "halfsiphash"]) else {
        return;
    };
    for node in ["acceptor-2", "replica-3"] {
        set_plane(&lab, node, "udp");
    }
    lab.json(&["start", "--json"]);
    ready(&lab);
    let planes = SERVING.map(|node| status(&lab, node)["plane"]["name"].clone());
    assert_eq!(
        planes,
        ["xdp", "xdp", "xdp", "udp", "xdp", "xdp", "xdp", "udp"]
    );
    replace_the_secret(&lab);

    let load = Increments::start(&lab, 800);
    let (leads, epoch) = leader(&lab);
    crash_leader(&lab, (leads, epoch));
    crash(&lab, "acceptor-1");
    assert_eq!(load.end(), "1600");
    all_agree(&lab, "1600");
    let serving = SERVING
        .into_iter()
        .filter(|node| ![leads, "acceptor-1"].contains(node));
    nothing_is_refused(&lab, &serving.collect::<Vec<_>>());
    lab.down();
}

/// The nodes whose packets carry tags.
const SERVING: [&str; 8] = [
    "leader-1",
    "leader-2",
    "acceptor-1",
    "acceptor-2",
    "acceptor-3",
    "replica-1",
    "replica-2",
    "replica-3",
];

/// Replaces the secret under a load of 800 increments: no packet is refused, and no node is
/// restarted.
fn replace_the_secret(lab: &TestLab) {
    let before = leader(lab);
    for node in SERVING {
        let shown = status(lab, node);
        let auth = everywhere(&shown, "auth");
        assert!(
            auth.iter().any(|auth| auth["signs"] == 1),
            "{node}: {shown}"
        );
    }
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let load = Increments::start(lab, 800);
    let mut more = 0;
    for (generations, signs) in [(vec![1, 2], 1), (vec![1, 2], 2), (vec![2], 2)] {
        let rotated = lab.exec("controller", &[PROGRAM, "keys", "rotate", "-c", &file]);
        assert!(rotated.status.success(), "{}", all(&rotated));
        let expected = serde_json::json!({ "generations": generations, "signs": signs });
        eventually("every node has the new file", || {
            lab.redis("client-1", REPLICAS[0], &["INCR", "more"]);
            more += 1;
            let has_it = |node: &&str| {
                let shown = status(lab, node);
                let auth = everywhere(&shown, "auth");
                auth.iter().all(|auth| auth.is_null() || **auth == expected)
            };
            SERVING.iter().all(has_it).then_some(())
        });
    }
    assert_eq!(load.end(), "800");
    all_agree(lab, "800");
    let counted = lab.redis("client-1", REPLICAS[2], &["GET", "more"]);
    assert!(
        counted.parse::<u64>().unwrap() >= more,
        "{counted} of {more}"
    );
    assert_eq!(leader(lab), before);
    nothing_is_refused(lab, &SERVING);
}

/// Checks that none of these nodes has refused a packet for its tag.
fn nothing_is_refused(lab: &TestLab, nodes: &[&str]) {
    for node in nodes {
        let shown = status(lab, node);
        let all_dropped = everywhere(&shown, "dropped");
        assert!(!all_dropped.is_empty(), "{node}: {shown}");
        for dropped in all_dropped {
            for reason in [
                "unsigned",
                "unknown_key",
                "bad_mac",
                "bad_digest",
                "foreign_key",
                "replayed",
            ] {
                assert_eq!(
                    dropped[reason].as_u64().unwrap_or(0),
                    0,
                    "{node}: {dropped}"
                );
            }
        }
    }
}
