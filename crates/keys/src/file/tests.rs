// SPDX-License-Identifier: Apache-2.0
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::secret::cannot_read;

const CLUSTER: u32 = 0x5eed_0001;

/// A directory that is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path =
            std::env::temp_dir().join(format!("wirepaxos-keys-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mac(file: &KeyFile, number: u8, generation: u32) -> Option<[u8; KEY_LEN]> {
    file.key(number, generation, Purpose::PacketMac)
}

#[test]
fn files_come_back_as_they_were_written() {
    let directory = Directory::new("back");
    let mut nodes = KeyFile::new(CLUSTER).unwrap();
    let client = nodes.client("billing").unwrap();
    for (name, file) in [("nodes.key", &nodes), ("billing.key", &client)] {
        let path = directory.file(name);
        file.create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(&KeyFile::load(&path, CLUSTER).unwrap(), file);
    }
    nodes.rotate().unwrap();
    nodes.replace(&directory.file("nodes.key")).unwrap();
    assert_eq!(
        KeyFile::load(&directory.file("nodes.key"), CLUSTER).unwrap(),
        nodes
    );
    let refused = KeyFile::load_nodes(&directory.file("billing.key"), CLUSTER).unwrap_err();
    assert!(
        refused.to_string().contains("the client \"billing\""),
        "{refused}"
    );
}

#[test]
fn a_secret_is_not_overwritten_by_a_new_one() {
    let directory = Directory::new("new");
    let path = directory.file("nodes.key");
    let first = KeyFile::new(CLUSTER).unwrap();
    first.create(&path).unwrap();
    let refused = KeyFile::new(CLUSTER).unwrap().create(&path).unwrap_err();
    assert!(
        refused.to_string().contains("is there already"),
        "{refused}"
    );
    assert_eq!(KeyFile::load(&path, CLUSTER).unwrap(), first);
    let other = KeyFile::new(CLUSTER + 1).unwrap();
    let refused = other.create(&path).unwrap_err().to_string();
    assert!(refused.contains("is of cluster 5eed0001"), "{refused}");
    assert!(refused.contains("move it away"), "{refused}");
    assert!(!refused.contains("rotate"), "{refused}");
    assert_eq!(KeyFile::load(&path, CLUSTER).unwrap(), first);
}

#[test]
fn a_file_that_is_missing_or_of_another_user_has_another_remedy() {
    let path = Path::new("nodes.key");
    let said = |kind: io::ErrorKind| cannot_read(path, &KEY_FILE, &kind.into()).to_string();
    let missing = said(io::ErrorKind::NotFound);
    assert!(missing.contains("`wirepaxos keys new`"), "{missing}");
    let of_another = said(io::ErrorKind::PermissionDenied);
    assert!(of_another.contains("run this as the user"), "{of_another}");
    assert!(!of_another.contains("keys new"), "{of_another}");
}

#[test]
fn a_file_that_others_can_read_is_refused() {
    let directory = Directory::new("mode");
    let path = directory.file("nodes.key");
    KeyFile::new(CLUSTER).unwrap().create(&path).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = KeyFile::load(&path, CLUSTER).unwrap_err().to_string();
        assert!(refused.contains(&format!("mode 0{mode:o}")), "{refused}");
        assert!(refused.contains("chmod 600"), "{refused}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    KeyFile::load(&path, CLUSTER).unwrap();
}

#[test]
fn what_is_wrong_with_a_file_is_said_without_its_secret() {
    let directory = Directory::new("wrong");
    let path = directory.file("nodes.key");
    let good = KeyFile::new(CLUSTER).unwrap();
    let text = text::emit(&good);
    let secret = text.split('"').rev().nth(1).unwrap().to_owned();
    for (from, to, said) in [
        ("version = 1", "version = 2", "version 2"),
        ("5eed0001", "5eed0002", "is of cluster 5eed0002"),
        ("5eed0001", "0", "no cluster number"),
        ("signs = 1", "signs = 2", "generation that signs"),
        ("generation = 1", "generation = 0", "one secret, or two"),
        ("holder = \"nodes\"", "holder = \"client\"", "which client"),
        ("secret = \"", "secret = \"0", "64 hexadecimal digits"),
        ("secret = \"", "secret = ", "is no key file"),
        ("signs", "sings", "is no key file"),
    ] {
        let _ = fs::remove_file(&path);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        file.write_all(text.replacen(from, to, 1).as_bytes())
            .unwrap();
        let refused = KeyFile::load(&path, CLUSTER).unwrap_err().to_string();
        assert!(refused.contains(said), "{from} -> {to}: {refused}");
        assert!(!refused.contains(&secret[8..]), "{refused}");
    }
}

#[test]
fn a_rotation_never_leaves_two_holders_without_a_common_generation() {
    let mut file = KeyFile::new(CLUSTER).unwrap();
    let mut before = file.clone();
    for round in 0..3 {
        for step in [Rotation::Added, Rotation::Switched, Rotation::Removed] {
            assert_eq!(file.rotate().unwrap(), step, "round {round}");
            // One holder has the old file and the other one the new file; each accepts what the
            // other signs.
            for (one, other) in [(&before, &file), (&file, &before)] {
                let signed = mac(one, NODES, one.signs());
                assert!(signed.is_some() && signed == mac(other, NODES, one.signs()));
            }
            before = file.clone();
        }
        assert_eq!(file.generations().collect::<Vec<_>>(), [round + 2]);
        assert_eq!(file.signs(), round + 2);
    }
    assert_eq!(mac(&file, NODES, 1), None, "what is removed is gone");
}

#[test]
fn a_client_has_its_own_key_and_no_other() {
    let mut nodes = KeyFile::new(CLUSTER).unwrap();
    let billing = nodes.client("billing").unwrap();
    let shop = nodes.client("shop").unwrap();
    assert_eq!((billing.number(), shop.number()), (1, 2));
    assert_eq!(
        nodes.client("billing").unwrap(),
        billing,
        "the same once more"
    );
    for number in 0..=MAX_CLIENTS + 1 {
        let derived = mac(&nodes, number, 1);
        assert_eq!(derived.is_some(), number <= MAX_CLIENTS);
        assert_eq!(mac(&billing, number, 1), derived.filter(|_| number == 1));
    }
    assert_ne!(mac(&billing, 1, 1), mac(&shop, 2, 1));
    let digest = billing.key(1, 1, Purpose::PacketDigest);
    assert_ne!(digest, mac(&billing, 1, 1));
    nodes.rotate().unwrap();
    let again = nodes.client("billing").unwrap();
    assert_eq!(again.generations().collect::<Vec<_>>(), [1, 2]);
    assert_eq!((mac(&again, 1, 1), again.signs()), (mac(&billing, 1, 1), 1));
    let mut foreign = billing;
    assert!(foreign.rotate().is_err() && foreign.client("x").is_err());
}

#[test]
fn names_and_numbers_of_clients_are_bounded() {
    let mut nodes = KeyFile::new(CLUSTER).unwrap();
    for bad in ["", "a b", "a\"b", "../a", &"a".repeat(65)] {
        assert!(nodes.client(bad).is_err(), "{bad:?}");
    }
    for number in 1..=MAX_CLIENTS {
        assert_eq!(
            nodes.client(&format!("c{number}")).unwrap().number(),
            number
        );
    }
    let refused = nodes.client("one-more").unwrap_err().to_string();
    assert!(refused.contains("share one"), "{refused}");
}
