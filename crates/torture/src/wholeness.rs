// SPDX-License-Identifier: Apache-2.0
//! Whether the cluster could stand another loss now, by the nodes' own status documents. Faults
//! that take a node's memory or disk wait for it: beyond f and g a loss would be legitimate.

use std::collections::BTreeMap;

use serde_json::Value;

/// Status documents by node.
pub type Documents = BTreeMap<String, Value>;

/// Returns an error that names an acceptor which isn't a member of the epoch in force, with the
/// memory that this epoch counts on.
pub fn of_acceptors(documents: &Documents, acceptors: &[String]) -> Result<(), String> {
    in_force(documents)?;
    are_members(documents, acceptors)
}

/// Returns the epoch in force, if none is on its way.
fn in_force(documents: &Documents) -> Result<u64, String> {
    let controller = &documents.get("controller").ok_or("no controller")?["groups"][0];
    if !controller["attempt"].is_null() {
        return Err("an epoch is on its way".to_string());
    }
    let active = controller["active"].as_u64();
    active.ok_or("no epoch in force".to_string())
}

/// Returns whether the controller tells of a later epoch in force than it did before, so that it
/// has issued epochs since.
pub fn has_issued_since(before: &Documents, documents: &Documents) -> bool {
    let active =
        |documents: &Documents| documents.get("controller")?["groups"][0]["active"].as_u64();
    let both = active(documents).zip(active(before));
    both.is_some_and(|(now, then)| now > then)
}

/// Returns an error that names a replica with NOPaxos which isn't in a view of the session in
/// force, so that it has no log of it. A replica that lost its log doesn't get there before a
/// session names its new memory, and it has what the others have.
pub fn of_members(documents: &Documents, replicas: &[String]) -> Result<(), String> {
    let session = in_force(documents)?;
    for name in replicas {
        let document = documents.get(name).ok_or(format!("no {name}"))?;
        let partitions = document["partitions"].as_array();
        let mut partitions = partitions.into_iter().flatten().peekable();
        if partitions.peek().is_none() {
            return Err(format!("{name} shows no partition"));
        }
        for partition in partitions {
            let view = &partition["nopaxos"];
            if view["status"] != "normal" || view["session"] != session {
                return Err(format!("{name} isn't normal in session {session}"));
            }
            if !partition["catching_up"].is_null() {
                return Err(format!("{name} is catching up"));
            }
        }
    }
    Ok(())
}

/// Returns an error that names one of these acceptors which isn't a member of the epoch in force.
pub fn are_members(documents: &Documents, acceptors: &[String]) -> Result<(), String> {
    let controller = &documents.get("controller").ok_or("no controller")?["groups"][0];
    let active = controller["active"].as_u64().ok_or("no epoch in force")?;
    let epochs = controller["epochs"].as_array().into_iter().flatten();
    let mut in_force = epochs.filter(|epoch| epoch["epoch"] == active);
    let epoch = in_force.next().ok_or("an epoch of no members")?;
    let members: Vec<(u64, u64)> = epoch["acceptors"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|member| Some((member[0].as_u64()?, member[1].as_u64()?)))
        .collect();
    for name in acceptors {
        let document = documents.get(name).ok_or(format!("no {name}"))?;
        let group = &document["groups"][0];
        let nonce = group["nonce"].as_str().unwrap_or_default();
        let memory = u64::from_str_radix(nonce, 16).unwrap_or(0);
        let node = document["node"].as_u64().unwrap_or(0);
        let counted_on = members.contains(&(node, memory));
        if group["member"] != true || group["epoch"] != active || !counted_on {
            return Err(format!("{name} isn't a member of epoch {active}"));
        }
    }
    Ok(())
}

/// The number g + 1 of three replicas, which must have on their disks what acceptors have
/// forgotten.
const HOLDERS: usize = 2;

/// Returns an error if too few replicas have on their disks what acceptors have forgotten.
pub fn of_replicas(
    documents: &Documents,
    acceptors: &[String],
    replicas: &[String],
) -> Result<(), String> {
    let mut trimmed: Vec<u64> = Vec::new();
    for name in acceptors {
        let document = documents.get(name).ok_or(format!("no {name}"))?;
        let partitions = document["groups"][0]["partitions"].as_array();
        for (pid, partition) in partitions.into_iter().flatten().enumerate() {
            let trim = partition["trim"].as_u64();
            let trim = trim.ok_or(format!("{name} doesn't say its trim"))?;
            trimmed.resize(trimmed.len().max(pid + 1), 0);
            trimmed[pid] = trim.max(trimmed[pid]);
        }
    }
    if trimmed.is_empty() {
        return Err("nobody says what is trimmed".to_string());
    }
    let mut holders = 0;
    for name in replicas {
        let document = documents.get(name).ok_or(format!("no {name}"))?;
        let partitions = &document["partitions"];
        let of = |pid: usize| &partitions[pid];
        if (0..trimmed.len()).any(|pid| !of(pid)["catching_up"].is_null()) {
            return Err(format!("{name} is catching up"));
        }
        let holds = |(pid, trim): (usize, &u64)| of(pid)["checkpoint"].as_u64() >= Some(*trim);
        holders += usize::from(trimmed.iter().enumerate().all(holds));
    }
    match holders >= HOLDERS {
        true => Ok(()),
        false => Err(format!(
            "{holders} replicas have checkpoints that cover all below {trimmed:?}, which is trimmed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn documents() -> Documents {
        let epochs = json!([{ "epoch": 3, "acceptors": [[21, 10], [22, 8]] }]);
        let acceptor = |node: u64, nonce: &str, trim: u64| {
            json!({ "node": node, "groups": [{ "member": true, "epoch": 3, "nonce": nonce,
                                 "partitions": [{ "trim": 7 }, { "trim": trim }] }] })
        };
        let replica = |at: u64| {
            let none: Option<u64> = None;
            json!({ "partitions": [{ "checkpoint": 7, "catching_up": none },
                                   { "checkpoint": at, "catching_up": none }] })
        };
        let controller = json!({ "groups": [{ "active": 3, "attempt": null, "epochs": epochs }] });
        BTreeMap::from([
            ("controller".to_string(), controller),
            ("a".to_string(), acceptor(21, "000000000000000a", 100)),
            ("b".to_string(), acceptor(22, "0000000000000008", 90)),
            ("r".to_string(), replica(100)),
            ("s".to_string(), replica(120)),
            ("t".to_string(), replica(50)),
        ])
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn acceptors() {
        let both = names(&["a", "b"]);
        let judge = |documents| of_acceptors(&documents, &both);
        assert_eq!(judge(documents()), Ok(()));
        let mut on_its_way = documents();
        on_its_way.get_mut("controller").unwrap()["groups"][0]["attempt"] = json!({});
        assert!(judge(on_its_way).is_err());
        for (field, value) in [
            ("member", json!(false)),
            ("epoch", json!(2)),
            ("nonce", json!("9")),
        ] {
            let mut changed = documents();
            changed.get_mut("b").unwrap()["groups"][0][field] = value;
            assert!(judge(changed).is_err(), "{field}");
        }
        let mut silent = documents();
        silent.remove("a");
        assert!(judge(silent).is_err());
    }

    #[test]
    fn a_controller_that_goes_on() {
        let tells = |active: serde_json::Value| {
            let mut changed = documents();
            changed.get_mut("controller").unwrap()["groups"][0]["active"] = active;
            changed
        };
        assert!(has_issued_since(&documents(), &tells(json!(4))));
        assert!(!has_issued_since(&documents(), &documents()));
        assert!(!has_issued_since(&documents(), &tells(json!(2))));
        assert!(!has_issued_since(&documents(), &Documents::new()));
        assert!(!has_issued_since(&tells(json!(null)), &documents()));
    }

    #[test]
    fn members_of_a_session() {
        let three = names(&["r", "s", "t"]);
        let normal = json!({ "status": "normal", "session": 3 });
        let mut good = documents();
        for name in &three {
            let partitions = good.get_mut(name).unwrap()["partitions"].as_array_mut();
            partitions
                .unwrap()
                .iter_mut()
                .for_each(|p| p["nopaxos"] = normal.clone());
        }
        let judge = |documents| of_members(&documents, &three);
        assert_eq!(judge(good.clone()), Ok(()));
        for (field, value) in [
            ("nopaxos", json!({ "status": "stranger", "session": 3 })),
            ("nopaxos", json!({ "status": "normal", "session": 2 })),
            ("catching_up", json!(100)),
        ] {
            let mut changed = good.clone();
            changed.get_mut("t").unwrap()["partitions"][1][field] = value;
            assert!(judge(changed).is_err(), "{field}");
        }
        let mut on_its_way = good.clone();
        on_its_way.get_mut("controller").unwrap()["groups"][0]["attempt"] = json!({});
        assert!(judge(on_its_way).is_err());
        let mut silent = good;
        silent.get_mut("r").unwrap()["partitions"] = json!([]);
        assert!(judge(silent).is_err());
    }

    #[test]
    fn replicas() {
        let (both, three) = (names(&["a", "b"]), names(&["r", "s", "t"]));
        let judge = |documents| of_replicas(&documents, &both, &three);
        assert_eq!(judge(documents()), Ok(()));
        for (pid, field, value) in [
            (1, "checkpoint", json!(99)),
            (1, "catching_up", json!(100)),
            (0, "checkpoint", json!(6)),
            (0, "catching_up", json!(7)),
        ] {
            let mut changed = documents();
            changed.get_mut("r").unwrap()["partitions"][pid][field] = value;
            assert!(judge(changed).is_err(), "{field} of partition {pid}");
        }
    }
}
