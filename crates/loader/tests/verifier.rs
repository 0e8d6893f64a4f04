// SPDX-License-Identifier: Apache-2.0
//! The kernel's verifier takes every program of every role, also those that hardly any test needs.

mod common;

use loader::object::{Object, Role, Sizes};

#[test]
fn every_program_of_every_role_is_taken() {
    let Some(dir) = common::objects_or_skip() else {
        return;
    };
    for role in Role::ALL {
        let mut object = Object::load(&dir, role, &Sizes::of(1, 1, 64)).expect("it loads");
        let names = object.ebpf().programs().map(|(name, _)| name.to_owned());
        let names: Vec<String> = names.collect();
        assert!(names.iter().any(|name| name == role.name()), "{names:?}");
        for name in names {
            let refused = object.loaded(&name).err();
            assert_eq!(refused, None, "{} of {}", name, role.name());
        }
    }
}
