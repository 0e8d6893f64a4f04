// SPDX-License-Identifier: Apache-2.0
//! Whose programs and memory are pinned in a node's directory, and in which form: a map beside them
//! that no program uses. It is pinned before all others, whole, and never changes.

use std::fs;
use std::path::Path;

use aya::maps::MapInfo;

use crate::layout::Identity;
use crate::map_place::MapPlace;
use crate::object::{Result, Role, whole};
use crate::pins::Pins;
use crate::sys::{Mapped, create_mapped_array, pin};

/// The form of what nodes pin: counts up with each change of a map that outlives its process, in
/// type or in meaning.
pub const FORMAT: u32 = 9;

/// The map's name.
const NAME: &str = "identity";

impl Pins {
    /// Claims an empty directory for this role with these groups; refuses one that belongs to
    /// anything else.
    pub fn claim(&self, role: Role, places: &[MapPlace]) -> Result<()> {
        let wanted: Vec<Identity> = places.iter().map(|place| identity(role, place)).collect();
        let path = self.path().join(NAME);
        if !path.exists() {
            return match is_empty(self.path())? {
                true => note(&path, &wanted),
                false => Err(self.refused(
                    "was left by a version of WirePaxos that noted no owner",
                    &wanted,
                )),
            };
        }
        let found = read(&path).map_err(|why| self.refused(&why, &wanted))?;
        if found == wanted {
            return Ok(());
        }
        let what = match found.iter().find(|one| one.format != FORMAT) {
            Some(other) => format!(
                "has format {}, and this version reads {FORMAT}",
                other.format
            ),
            None => format!("is of {}", described(&found)),
        };
        Err(self.refused(&what, &wanted))
    }

    fn refused(&self, what: &str, wanted: &[Identity]) -> String {
        format!(
            "what runs in the kernel with its memory in {directory} {what}; this is {wanted}. \
             Start the node as it was, with the version and the cluster file that it was started \
             with, and stop it in order (`wirepaxos stop`): that keeps an acceptor's votes. Or \
             remove that directory: then an acceptor re-joins as a new member",
            directory = self.path().display(),
            wanted = described(wanted),
        )
    }
}

/// Claims the directory of a switch; refuses one of another cluster or version.
pub(crate) fn claim_switch(pins: &Path, name: &str, cluster: u32) -> Result<()> {
    let wanted = Identity {
        format: FORMAT,
        cluster,
        role: role_number(Role::Forwarder),
        ..Identity::default()
    };
    let path = pins.join(NAME);
    let what = match path.exists() {
        false if is_empty(pins)? => return note(&path, &[wanted]),
        false => "was made by a version of WirePaxos that noted no owner".to_owned(),
        true => match read(&path) {
            Ok(found) if found == [wanted] => return Ok(()),
            Ok(found) => match found.first().filter(|one| one.format == FORMAT) {
                Some(other) => format!(
                    "is of cluster {:08x}, and this is {cluster:08x}",
                    other.cluster
                ),
                None => "was made by another version of WirePaxos".to_owned(),
            },
            Err(why) => why,
        },
    };
    Err(format!(
        "the switch {name} that is there {what}: remove it first, with `wirepaxos switch down \
         --name {name}` and its cluster file"
    ))
}

fn role_number(role: Role) -> u16 {
    let place = Role::ALL.iter().position(|r| *r == role);
    1 + place.expect("it is one") as u16
}

fn identity(role: Role, place: &MapPlace) -> Identity {
    let deployment = &place.deployment;
    Identity {
        format: FORMAT,
        cluster: deployment.cluster,
        node: deployment.node,
        role: role_number(role),
        group: deployment.group,
        partitions: deployment.partitions,
        slots: place.slots,
    }
}

/// Describes identities in words, for error messages.
fn described(all: &[Identity]) -> String {
    let role = |one: &Identity| {
        Role::ALL
            .get(usize::from(one.role).wrapping_sub(1))
            .copied()
    };
    let owner = all.first().map_or(String::from("nobody"), |one| {
        let role = role(one).map_or("no role", Role::name);
        format!("{role} {} of cluster {:08x}", one.node, one.cluster)
    });
    let group = |one: &Identity| {
        format!(
            "group {} of {} partitions with {} slots",
            one.group, one.partitions, one.slots
        )
    };
    let groups: Vec<String> = all.iter().map(group).collect();
    format!("{owner} ({})", groups.join(", "))
}

fn is_empty(directory: &Path) -> Result<bool> {
    let mut entries =
        fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    Ok(entries.next().is_none())
}

fn note(path: &Path, all: &[Identity]) -> Result<()> {
    let failed = |e| format!("{}: {e}", path.display());
    let map = create_mapped_array(size_of::<Identity>(), all.len()).map_err(failed)?;
    let memory = Mapped::new(&map, 0, all.len(), true).map_err(failed)?;
    for (at, one) in all.iter().enumerate() {
        memory.set(at, *one);
    }
    pin(&map, path).map_err(failed)
}

fn read(path: &Path) -> std::result::Result<Vec<Identity>, String> {
    let unreadable = |why: String| format!("has an owner that can't be read ({why})");
    let info = MapInfo::from_pin(path).map_err(|e| unreadable(whole(&e)))?;
    if info.value_size() as usize != size_of::<Identity>() {
        return Err(unreadable(format!("{} bytes a group", info.value_size())));
    }
    let map = info.fd().map_err(|e| unreadable(whole(&e)))?;
    let memory = Mapped::new(map, 0, info.max_entries() as usize, false);
    Ok(memory.map_err(|e| unreadable(e.to_string()))?.copy())
}
