//! An interface whose frames another node's program takes.

mod common;

use common::{objects_or_skip, random::deployment};
use paxos::Deployment;
use xdp::layout::Device;
use xdp::network::{Namespace, veth};
use xdp::object::{Object, Role, Sizes};
use xdp::occupant::Occupant;
use xdp::place::{self, Place};

fn loaded(dir: &std::path::Path, cluster: u32) -> Object {
    let deployment = Deployment {
        cluster,
        ..deployment(21)
    };
    let sizes = Sizes::of(1, deployment.partitions, 16);
    let mut object = Object::load(dir, Role::Acceptor, &sizes).expect("it loads");
    let device = Device {
        cluster,
        node: 21,
        port: 7000,
        ports: 1,
        ip4: [10, 9, 0, 1],
        ..Device::default()
    };
    place::open(&mut object, &Place::only(deployment, 16), 0, &device).expect("it fits");
    object
}

#[test]
fn whose_program_takes_the_frames_is_said() {
    let Some(dir) = objects_or_skip() else { return };
    let (here, there) = (
        Namespace::new().expect("root"),
        Namespace::new().expect("root"),
    );
    let (interface, _peer) = veth((&here, "near"), (&there, "far")).expect("a link");
    let occupant = || here.inside(|| Occupant::of(&interface)).expect("`ip` says");
    assert!(occupant().is_none());

    let mut first = loaded(&dir, 0xc1);
    let attached = here
        .inside(|| first.attach(&interface))
        .expect("nobody is there");
    let found = occupant().expect("the first");
    assert!(
        found.described().contains("`acceptor`"),
        "{}",
        found.described()
    );
    assert!(
        found
            .described()
            .contains("of node 21 of cluster 000000c1 for port 7000")
    );
    for (address, taken) in [
        ("10.9.0.1:7000", true),
        ("10.9.0.1:7001", false),
        ("10.9.0.2:7000", false),
    ] {
        assert_eq!(
            found.takes(address.parse().expect("an address"), 1),
            Some(taken),
            "{address}"
        );
    }

    let refused = here
        .inside(|| loaded(&dir, 0xc2).attach(&interface))
        .expect_err("there is one");
    assert!(
        refused.contains("of node 21 of cluster 000000c1"),
        "{refused}"
    );
    drop(attached);
    assert!(occupant().is_none());
}
