// SPDX-License-Identifier: Apache-2.0
//! An interface whose frames another node's program takes.

mod common;

use common::mount::Mount;
use common::objects_or_skip;
use common::random::{PARTITIONS, deployment};
use loader::attach::Mode;
use loader::forwarder::Forwarder;
use loader::interface::Interface;
use loader::layout::Device;
use loader::map_place::{self, MapPlace};
use loader::object::{Object, Role, Sizes};
use loader::occupant::Occupant;
use loader::switch::Switch;
use measure::network::{Namespace, veth};
use paxos::Deployment;

const SWITCH: &str = "switch-1";

fn loaded(dir: &std::path::Path, cluster: u32) -> Object {
    let sizes = Sizes::of(1, PARTITIONS, 16);
    let mut object = Object::load(dir, Role::Acceptor, &sizes).expect("it loads");
    open(&mut object, cluster);
    object
}

/// Says where the node stands.
fn open(object: &mut Object, cluster: u32) {
    let deployment = Deployment {
        cluster,
        ..deployment(21)
    };
    let device = Device {
        cluster,
        node: 21,
        port: 7000,
        ports: 1,
        ip4: [10, 9, 0, 1],
        ..Device::default()
    };
    map_place::open(object, &MapPlace::only(deployment, 16), 0, &device).expect("it fits");
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

#[test]
fn a_driver_that_refuses_is_quoted() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(mount) = Mount::new("quoted") else {
        return;
    };
    let [here, there] = [(); 2].map(|()| Namespace::new().expect("root"));
    let (interface, _peer) = veth((&here, "near"), (&there, "far")).expect("a link");
    // A frame is larger than a page then, which is all that programs get.
    let mtu = |name| format!("link set {name} mtu 9000");
    here.ip(&[mtu("near")]).expect("root");
    there.ip(&[mtu("far")]).expect("root");
    let pins = mount.pins(0xc1, "acceptor-1");
    let attached = here.inside(|| loaded(&dir, 0xc1).attach_kept(&interface, pins.path()));
    let attached = attached.expect("the stack takes it");
    assert_eq!(attached.mode, Mode::Generic);
    let why = attached.why_generic.expect("the driver has a reason");
    for part in ["its driver (veth) says", "Peer MTU is too large"] {
        assert!(why.contains(part), "{why}");
    }
    // The question has left nothing behind.
    let left: Vec<_> = std::fs::read_dir(pins.path())
        .expect("it is there")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Without an order the kernel takes a program off some time after its pin has gone.
#[test]
fn a_program_has_left_its_interface_once_it_was_detached() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(mount) = Mount::new("detached") else {
        return;
    };
    let (here, there) = (
        Namespace::new().expect("root"),
        Namespace::new().expect("root"),
    );
    let (interface, _peer) = veth((&here, "near"), (&there, "far")).expect("a link");
    // One waits loaded, and comes as soon as the other has been told to leave.
    let mut objects: Vec<Object> = (0..10).map(|at| loaded(&dir, 0xc0 + at)).collect();
    comes_before_the_kernel_s_workers();
    for (object, cluster) in objects.iter_mut().zip(0xc0..) {
        let pins = mount.pins(cluster, "acceptor-1");
        let attached = here.inside(|| object.attach_kept(&interface, pins.path()));
        drop(attached.expect("nobody is there"));
        pins.detach().expect("it is pinned");
    }
}

/// Binds this thread to a CPU where it keeps the kernel's own threads waiting.
fn comes_before_the_kernel_s_workers() {
    loader::sys::pin_to_cpu(0).expect("there is a CPU 0");
    let thread = std::fs::read_link("/proc/thread-self").expect("it is mounted");
    let thread = thread.file_name().expect("it ends with a number");
    let mut chrt = std::process::Command::new("chrt");
    let done = chrt.args(["--fifo", "--pid", "1"]).arg(thread).status();
    assert!(done.expect("util-linux").success());
}

/// Returns a node at the switch, pinned.
fn start(dir: &std::path::Path, mount: &Mount, cluster: u32) -> Result<bool, String> {
    let own = [10, 9, 0, 1].into();
    let switch = Switch::open(mount.path(), SWITCH).expect("it is there");
    let pins = mount.pins(cluster, "acceptor-1");
    switch.lend_roles(pins.path()).expect("there is room");
    let sizes = Sizes::of(1, PARTITIONS, 16);
    let mut object = Object::load_kept(dir, Role::Acceptor, &sizes, pins.path()).expect("it loads");
    open(&mut object, cluster);
    let attached = switch.attach(&mut object, own, pins.path());
    assert_eq!(pins.is_attached(), attached.is_ok());
    attached
}

#[test]
fn a_switch_calls_one_node_for_an_address() {
    let Some(dir) = objects_or_skip() else { return };
    let Some(mount) = Mount::new("switch") else {
        return;
    };
    let pins = mount.path().join(SWITCH);
    std::fs::create_dir(&pins).expect("it is mounted");
    let mut forwarder = Forwarder::load_kept(&dir, &pins).expect("it loads");
    let port = Interface {
        name: "lo".to_owned(),
        index: 1,
        mac: [2, 0, 0, 0, 0, 1],
    };
    let added = forwarder.add_role([10, 9, 0, 1].into(), 3, &port, port.mac);
    added.expect("there is room");

    assert_eq!(start(&dir, &mount, 0xc1), Ok(false));
    let refused = start(&dir, &mount, 0xc2).expect_err("it is taken");
    assert!(
        refused.contains("of node 21 of cluster 000000c1"),
        "{refused}"
    );
    assert_eq!(
        start(&dir, &mount, 0xc1),
        Ok(true),
        "the next version of the first"
    );
    mount
        .pins(0xc1, "acceptor-1")
        .remove()
        .expect("it was there");
    assert_eq!(start(&dir, &mount, 0xc2), Ok(false), "it is free again");
}
