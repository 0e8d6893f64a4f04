// SPDX-License-Identifier: Apache-2.0
//! The format levels of this program, and what doesn't fit them. [E-LEVEL]

use control::level::{self, FIRST};
use control::{Level, Levels, MemberChange};

use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::status::VERSION;
use crate::store::{KeptMembers, check_kept_views};

/// The newest level that this program has. It also has the one before.
const NEWEST: Level = 1;
/// In tests the newest level comes from this variable of the environment. Nothing differs in the
/// levels that are added so.
const TEST: &str = "WIREPAXOS_TEST_LEVEL";

/// Returns the levels that this program reads and writes.
pub fn levels() -> Levels {
    let of_test = std::env::var(TEST).ok().and_then(|text| text.parse().ok());
    Levels {
        oldest: NEWEST.saturating_sub(1).max(FIRST),
        newest: of_test.unwrap_or(NEWEST).max(NEWEST),
    }
}

/// Returns whether a cluster may return from a level to the one before. What was stored in a real
/// level stays, and the program before can't read it.
pub(crate) fn has_way_back(from: Level) -> bool {
    from > NEWEST
}

/// Returns why this program can't work with these changes by command, if that is so.
pub(crate) fn against(changes: &[MemberChange]) -> Option<String> {
    let (level, own) = (level::of(changes), levels());
    if !own.have(level) {
        let (is_older, remedy) = match level > own.newest {
            true => ("older", "a newer"),
            false => ("newer", "an older"),
        };
        return Some(format!(
            "the cluster is at format level {level}, and this program ({VERSION}) has level {own}: \
             it is {is_older} than that level allows. Install {remedy} version here; nothing was \
             changed"
        ));
    }
    changes.contains(&MemberChange::Unknown).then(|| {
        format!(
            "the members were changed in a way that this program ({VERSION}) doesn't know: install \
             a newer version here; nothing was changed"
        )
    })
}

/// Reads what a node keeps in small files of its own, before it writes anything.
///
/// # Errors
/// If one of them is of another version, or the cluster is at a level that this program lacks.
pub(crate) fn check_what_is_kept(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
    KeptMembers::of(cluster, node)
        .read()
        .map_err(Error::store)?;
    check_kept_views(cluster, node).map_err(Error::store)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::MembersMessage;

    #[test]
    fn a_level_that_the_program_lacks_is_refused_by_name() {
        let set = |level| [MemberChange::SetLevel { level }];
        assert_eq!(against(&[]), None);
        assert_eq!(against(&set(NEWEST)), None);
        let newer = against(&set(NEWEST + 1)).unwrap();
        assert!(newer.contains("is at format level 2"), "{newer}");
        assert!(newer.contains("Install a newer version"), "{newer}");
        let unknown = against(&[MemberChange::Unknown]).unwrap();
        assert!(unknown.contains("doesn't know"), "{unknown}");
    }

    /// Nodes of other versions understand one another.
    #[test]
    fn a_later_versions_change_and_an_earlier_ones_answer_are_read() {
        let read: MemberChange =
            serde_json::from_str(r#"{"change":"give_away","to":"the moon"}"#).unwrap();
        assert_eq!(read, MemberChange::Unknown);
        let kept = r#"{"step":"kept","node":5,"kept":1,"uses":1}"#;
        let kept: MembersMessage = serde_json::from_str(kept).unwrap();
        let MembersMessage::Kept { levels, .. } = kept else {
            panic!("{kept:?}");
        };
        assert_eq!(levels, Levels::default());
    }
}
