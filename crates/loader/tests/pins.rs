// SPDX-License-Identifier: Apache-2.0
//! Tests that a node uses only its own pins, and refuses others by name.

mod common;

use common::mount::Mount;
use loader::identity::FORMAT;
use loader::layout::Identity;
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::sys::Mapped;
use paxos::Deployment;

const NODE: &str = "acceptor-1";
const CLUSTER: u32 = 0xc1;

/// Groups by number, partitions and slots.
fn places(cluster: u32, node: u16, groups: &[(u16, u16, u64)]) -> Vec<MapPlace> {
    let place = |&(group, partitions, slots): &(u16, u16, u64)| {
        let deployment = Deployment {
            cluster,
            group,
            partitions,
            max_value: 64,
            node,
        };
        MapPlace::only(deployment, slots)
    };
    groups.iter().map(place).collect()
}

fn claim(mount: &Mount, own: &[MapPlace]) -> Result<(), String> {
    mount.pins(CLUSTER, NODE).claim(Role::Acceptor, own)
}

#[test]
fn what_is_left_is_found_by_its_owner_alone() {
    let Some(mount) = Mount::new("owner") else {
        return;
    };
    let own = places(CLUSTER, 21, &[(1, 2, 16), (2, 4, 8)]);
    claim(&mount, &own).expect("nobody's");
    claim(&mount, &own).expect("its own");
    let refused = |role, places: &[MapPlace], why: &str| {
        let refusal = mount
            .pins(CLUSTER, NODE)
            .claim(role, places)
            .expect_err(why);
        assert!(refusal.contains(why), "{refusal}");
        assert!(
            refusal.contains("acceptor 21 of cluster 000000c1 (group 1 of 2 "),
            "{refusal}"
        );
        assert!(refusal.contains("wirepaxos stop"), "{refusal}");
    };
    refused(Role::Leader, &own, "this is leader 21 of");
    refused(
        Role::Acceptor,
        &places(CLUSTER, 22, &[(1, 2, 16), (2, 4, 8)]),
        "this is acceptor 22",
    );
    refused(
        Role::Acceptor,
        &places(0xc2, 21, &[(1, 2, 16), (2, 4, 8)]),
        "of cluster 000000c2",
    );
    // The number of groups, partitions and slots is the same in total.
    refused(
        Role::Acceptor,
        &places(CLUSTER, 21, &[(1, 4, 8), (2, 2, 16)]),
        "(group 1 of 4 ",
    );
    refused(
        Role::Acceptor,
        &places(CLUSTER, 21, &[(2, 2, 16), (1, 4, 8)]),
        "(group 2 of 2 ",
    );
    refused(
        Role::Acceptor,
        &places(CLUSTER, 21, &[(1, 2, 16)]),
        "with 16 slots). Start",
    );
    claim(&mount, &own).expect("refusals change nothing");
}

#[test]
fn pins_without_an_owner_are_an_older_versions() {
    let Some(mount) = Mount::new("older") else {
        return;
    };
    let own = places(CLUSTER, 21, &[(1, 2, 16)]);
    claim(&mount, &own).expect("nobody's");
    let directory = mount.pins(CLUSTER, NODE).path().to_owned();
    std::fs::rename(directory.join("identity"), directory.join("votes")).expect("it is there");
    let refusal = claim(&mount, &own).expect_err("no owner");
    assert!(refusal.contains("noted no owner"), "{refusal}");
    assert!(
        !directory.join("identity").exists(),
        "a refusal changes nothing"
    );
}

#[test]
fn another_format_is_refused() {
    let Some(mount) = Mount::new("format") else {
        return;
    };
    let own = places(CLUSTER, 21, &[(1, 2, 16)]);
    claim(&mount, &own).expect("nobody's");
    let info = aya::maps::MapInfo::from_pin(mount.pins(CLUSTER, NODE).path().join("identity"))
        .expect("a map");
    let memory =
        Mapped::<Identity>::new(info.fd().expect("it is there"), 0, 1, true).expect("memory");
    let other = FORMAT + 1;
    memory.set(
        0,
        Identity {
            format: other,
            ..memory.get(0)
        },
    );
    let refusal = claim(&mount, &own).expect_err("another format");
    assert!(
        refusal.contains(&format!(
            "has format {other}, and this version reads {FORMAT}"
        )),
        "{refusal}"
    );
}
