// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeSet;

use super::*;

fn biggest(topology: Topology) -> Shape {
    Shape {
        leaders: 9,
        acceptors: 9,
        learners: 9,
        replicas: 9,
        clients: 9,
        ..Shape::new(topology)
    }
}

#[test]
fn nothing_is_used_twice_and_names_fit() {
    for (_, topology) in Topology::ALL {
        let shape = biggest(topology);
        shape.check().unwrap();
        let hosts = shape.hosts();
        let ids: BTreeSet<u8> = hosts.iter().map(|h| h.id).collect();
        assert_eq!(ids.len(), hosts.len());
        let mut macs = BTreeSet::new();
        let mut interfaces = BTreeSet::new();
        for link in shape.links() {
            for end in [&link.near, &link.far] {
                assert!(macs.insert(end.mac.clone()), "{end:?}");
                assert!(interfaces.insert((end.host.clone(), end.interface.clone())));
                assert!(end.interface.len() < libc::IFNAMSIZ);
            }
            assert!(link.wire().iter().all(|name| name.len() < libc::IFNAMSIZ));
        }
    }
}

#[test]
fn roles_in_switches_are_no_machines() {
    let shape = Shape {
        in_switch: true,
        ..Shape::new(Topology::TwoSwitches)
    };
    let machines: Vec<_> = shape.machines().map(|h| h.name).collect();
    assert_eq!(
        machines.join(" "),
        "controller replica-1 replica-2 replica-3 client-1 client-2 switch-1 switch-2"
    );
    let hosts = shape.hosts();
    let acceptor = hosts.iter().find(|h| h.name == "acceptor-3").unwrap();
    let switch = switch(&hosts, 2);
    assert_eq!(
        (acceptor.machine(), acceptor.mac(0)),
        (switch.name.clone(), switch.mac(0))
    );
    assert!(shape.links().iter().all(|l| l.name != "acceptor-3"));
    assert!(
        acceptor
            .loopback()
            .iter()
            .all(|end| end.len() < libc::IFNAMSIZ)
    );
}

#[test]
fn sequencers_take_the_place_of_leaders_and_acceptors() {
    for in_switch in [false, true] {
        let shape = Shape {
            protocol: "nopaxos".to_string(),
            plane: "xdp".to_string(),
            in_switch,
            ..Shape::new(Topology::TwoSwitches)
        };
        shape.check().unwrap();
        let cluster = shape.cluster_file(7, Path::new("/data")).unwrap();
        let cluster = cluster.check().unwrap();
        let names: Vec<_> = cluster.nodes.iter().map(|n| n.name.as_str()).collect();
        assert_eq!(
            names.join(" "),
            "controller sequencer-1 sequencer-2 replica-1 replica-2 replica-3"
        );
        assert_eq!(cluster.groups[0].protocol, Protocol::NoPaxos);
        let of = |name| cluster.node(name).unwrap();
        assert_eq!(of("sequencer-1").plane, Plane::Xdp);
        assert_eq!(of("replica-1").plane, Plane::Udp);
        let switch = in_switch.then_some("switch-2");
        assert_eq!(of("sequencer-2").switch.as_deref(), switch);
    }
}

#[test]
fn hosts_on_the_p4_plane_are_behind_their_switches() {
    let shape = Shape {
        plane: "p4".to_string(),
        planes: [("acceptor-2".to_string(), "xdp".to_string())].into(),
        ..Shape::new(Topology::OneSwitch)
    };
    shape.check().unwrap();
    let cluster = shape.cluster_file(7, Path::new("/data")).unwrap();
    let cluster = cluster.check().unwrap();
    let plane = |name| cluster.node(name).unwrap().plane;
    assert_eq!(plane("leader-1"), Plane::P4);
    assert_eq!(plane("acceptor-2"), Plane::Xdp);
    assert_eq!(plane("replica-1"), Plane::Udp);
    let group = &cluster.groups[0];
    assert_eq!((group.max_value, group.slots), (128, P4_SLOTS));
    assert_eq!(shape.p4_build(), Build::SMALL);
    let near = |name| {
        let links = shape.links();
        let link = links.iter().find(|link| link.name == name).unwrap();
        link.near.interface.clone()
    };
    assert_eq!(near("acceptor-1"), P4_PORT);
    assert_eq!(near("acceptor-2"), "eth0");
    assert!(shape.forwards_in_kernel());

    let only_p4 = Shape {
        planes: BTreeMap::new(),
        ..shape.clone()
    };
    assert!(!only_p4.forwards_in_kernel());
    let compared = Shape {
        forwards: true,
        ..only_p4.clone()
    };
    assert!(compared.forwards_in_kernel());
    for bad in [
        Shape {
            in_switch: true,
            ..only_p4
        },
        Shape {
            planes: [("acceptor-9".to_string(), "xdp".to_string())].into(),
            ..shape
        },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

#[test]
fn everything_is_signed_that_can_be() {
    let of = |plane: &str, auth: Option<Auth>| {
        let shape = Shape {
            plane: plane.to_string(),
            auth: auth.map(|auth| auth.name().to_string()),
            ..Shape::new(Topology::OneSwitch)
        };
        shape.cluster_file(1, Path::new("data")).unwrap().auth
    };
    for plane in ["udp", "xdp", "auto"] {
        assert_eq!(of(plane, None), Some(Auth::SipHash), "{plane}");
    }
    assert_eq!(of("p4", None), Some(Auth::Control));
    for auth in [Auth::Off, Auth::Control, Auth::SipHash] {
        assert_eq!(of("xdp", Some(auth)), Some(auth));
    }
}

#[test]
fn the_papers_two_switches() {
    let hosts = Shape::new(Topology::TwoSwitches).hosts();
    let on = |n| -> Vec<String> {
        let there = hosts.iter().filter(|h| h.switch == n);
        there.map(|h| h.name.clone()).collect()
    };
    assert_eq!(
        on(1).join(" "),
        "controller leader-1 acceptor-1 replica-1 client-1 switch-1"
    );
    assert_eq!(
        on(2).join(" "),
        "leader-2 acceptor-2 acceptor-3 replica-2 replica-3 client-2 switch-2"
    );
}

#[test]
fn shapes_that_cannot_be() {
    let shape = Shape::new(Topology::OneSwitch);
    for bad in [
        Shape {
            acceptors: 2,
            ..shape.clone()
        },
        Shape {
            replicas: 0,
            ..shape.clone()
        },
        Shape {
            leaders: 10,
            ..shape.clone()
        },
        Shape {
            clients: 10,
            ..shape.clone()
        },
        Shape {
            partitions: 65,
            ..shape.clone()
        },
        Shape {
            protocol: "raft".to_string(),
            ..shape.clone()
        },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}
