// SPDX-License-Identifier: Apache-2.0
//! The measurement itself: every message of every role is accepted. No figure is asserted.

use std::path::Path;

use loader::object::{self, Object, Role, Sizes};

#[test]
fn every_role_can_be_measured() {
    let loaded = object::directory()
        .and_then(|dir| Object::load(&dir, Role::Forwarder, &Sizes::of(1, 1, 1)).map(|_| dir));
    let dir = match loaded {
        Ok(dir) => dir,
        Err(why) => {
            println!("SKIPPED: {}", why.lines().next().unwrap_or_default());
            return;
        }
    };
    for signs in [false, true] {
        measure(&dir, signs);
    }
}

fn measure(dir: &Path, signs: bool) {
    let measured = measure::xdp::roles_from(dir, 0.0, signs).expect("every repetition is accepted");
    for m in &measured {
        println!(
            "{:>10} (signed: {signs}): {:6.1} ns a message, {:5.1} M/s (wrapper {:.1} ns, \
             forwarding {:.1} ns, {} messages)",
            m.role,
            m.ns_per_msg,
            m.msgs_per_s / 1e6,
            m.wrapper_ns,
            m.forwarding_ns_per_msg,
            m.messages
        );
    }
    let names: Vec<_> = measured.iter().map(|m| m.role).collect();
    assert_eq!(
        names,
        [
            "forwarder",
            "leader",
            "egress",
            "acceptor",
            "learner",
            "sequencer",
            "receiver"
        ]
    );
}
