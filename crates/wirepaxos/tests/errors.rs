// SPDX-License-Identifier: Apache-2.0
//! The errors that a program can tell apart when something goes wrong.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use wirepaxos::cluster_file::{ApplicationKind, Draft, GroupDraft, Role};
use wirepaxos::recovery::Recovery;
use wirepaxos::{
    Client, ClientOptions, ClusterFile, Embedded, Error, Outcome, Program, Refusal, StateMachine,
    Stop, admin,
};

struct Nothing;

impl StateMachine for Nothing {
    fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}

    fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> {
        Ok(())
    }

    fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> {
        Ok(Nothing)
    }
}

fn program() -> Program {
    Program::in_memory(|| Nothing)
}

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let name = format!("wirepaxos-errors-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn cluster(&self) -> ClusterFile {
        let draft = Draft::on_loopback("data", ApplicationKind::Own).unwrap();
        draft.write(&self.0.join("cluster.toml")).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_bad_configuration_keeps_line_cause_and_remedy() {
    let directory = Directory::new("configuration");
    let file = directory.0.join("cluster.toml");
    let good = Draft::on_loopback("data", ApplicationKind::Own).unwrap();
    let good = good.to_toml().unwrap();
    let load = || match ClusterFile::load(&file).map_err(Error::from) {
        Err(Error::Configuration(errors)) => errors.errors[0].clone(),
        other => panic!("{other:?}"),
    };
    let missing = load();
    assert_eq!(missing.line, 0);
    assert!(missing.problem.contains("can't be read"), "{missing:?}");
    assert!(missing.remedy.contains("give the path"), "{missing:?}");
    for (from, to, problem, remedy) in [
        ("data =", "dada =", "unknown field `dada`", "spelling"),
        (
            "id = 0",
            "id = 70000",
            "`id = 70000` is out of range",
            "0 to 65535",
        ),
    ] {
        let text = good.replacen(from, to, 1);
        fs::write(&file, &text).unwrap();
        let error = load();
        let line = text.lines().position(|l| l.starts_with(to)).unwrap() + 1;
        assert_eq!(error.line, line, "{error:?}");
        assert!(error.problem.contains(problem), "{error:?}");
        assert!(error.remedy.contains(remedy), "{error:?}");
    }
}

/// A `main` that returns an error prints it by `{:?}`.
#[test]
fn a_main_that_returns_an_error_prints_its_text() {
    let load = || ClusterFile::load("no/such/file.toml".as_ref()).unwrap_err();
    let text = load().to_string();
    assert!(text.contains("can't be read"), "{text}");
    assert_eq!(format!("{:?}", load()), text);
    assert_eq!(format!("{:?}", Error::from(load())), text);
    let refused = Error::from(Refusal::WindowFull);
    assert_eq!(format!("{refused:?}"), refused.to_string());
}

#[test]
fn what_the_file_does_not_have_is_a_bad_configuration() {
    let directory = Directory::new("unknown");
    let cluster = directory.cluster();
    let stop = Stop::new().unwrap();
    let no_group = ClientOptions {
        group: Some(7),
        ..ClientOptions::default()
    };
    for (error, remedy) in [
        (
            wirepaxos::run(&cluster, "leader-3", &program(), &stop).unwrap_err(),
            "choose one of controller, leader-1, leader-2",
        ),
        (
            Client::open(&cluster, no_group).err().unwrap(),
            "choose one of 0",
        ),
        (
            Recovery::open(&cluster, 0, 1).err().unwrap(),
            "choose 0 to 0",
        ),
        (
            admin::change_leader(&cluster, Some(9), None, false).unwrap_err(),
            "choose one of 0",
        ),
    ] {
        let Error::Configuration(errors) = &error else {
            panic!("{error:?}");
        };
        assert!(errors.errors[0].remedy.contains(remedy), "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
    assert!(!cluster.data.exists(), "nothing has begun");
}

#[test]
fn nobody_there_is_a_timeout() {
    let directory = Directory::new("nobody");
    let options = ClientOptions {
        open_timeout: Duration::from_millis(100),
        ..ClientOptions::default()
    };
    let error = Client::open(&directory.cluster(), options).err().unwrap();
    assert!(matches!(error, Error::TimedOut(_)), "{error:?}");
    assert!(
        error.to_string().contains("is a controller running?"),
        "{error}"
    );
}

#[test]
fn a_store_that_cannot_be_is_a_failed_store() {
    let directory = Directory::new("store");
    let cluster = directory.cluster();
    // A file is in the place of the controller's directory.
    fs::create_dir_all(&cluster.data).unwrap();
    fs::write(cluster.data.join("controller"), "").unwrap();
    let stop = Stop::new().unwrap();
    let error = wirepaxos::run(&cluster, "controller", &program(), &stop).unwrap_err();
    assert!(matches!(error, Error::Store(_)), "{error:?}");
}

/// These commands aren't sent, and use up no request.
#[test]
fn commands_over_partitions_that_cannot_be_are_refused_by_name() {
    let directory = Directory::new("partitions");
    let group = GroupDraft {
        partitions: Some(17),
        max_value: Some(512),
        ..GroupDraft::new(0, ApplicationKind::Own)
    };
    let mut draft = Draft::new(7, "data", group);
    let host = node::loopback::draw().unwrap().into();
    for role in [
        Role::Controller,
        Role::Leader,
        Role::Acceptor,
        Role::Replica,
    ] {
        draft.add_node(role, host);
    }
    let cluster = draft.write(&directory.0.join("cluster.toml")).unwrap();
    let nodes = Embedded::start(&cluster, &program()).unwrap();
    let options = ClientOptions {
        open_timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    let mut client = Client::open(&cluster, options).unwrap();
    let all: Vec<u16> = (0..17).collect();
    let refused = |client: &mut Client, pids: &[u16], command: &[u8]| {
        client.submit_over(pids, command).unwrap_err()
    };
    assert_eq!(refused(&mut client, &[], b"x"), Refusal::Partitions(0));
    assert_eq!(refused(&mut client, &all, b"x"), Refusal::Partitions(17));
    assert_eq!(
        refused(&mut client, &[0, 17], b"x"),
        Refusal::NoPartition(17)
    );
    let large = refused(&mut client, &[0, 1], &[0; 500]);
    assert!(
        matches!(
            large,
            Refusal::TooLarge {
                len: 500,
                max: 1..500
            }
        ),
        "{large:?}"
    );
    // Partitions in any order, and named twice, are accepted.
    assert_eq!(client.submit_over(&[3, 0, 3], b"x").unwrap(), 1);
    drop(client);
    nodes.stop().unwrap();
}

#[test]
fn refused_commands_and_a_missing_majority() {
    let directory = Directory::new("refused");
    let cluster = directory.cluster();
    let patience = Duration::from_secs(60);
    let nodes = Embedded::start(&cluster, &program()).unwrap();
    let options = ClientOptions {
        open_timeout: patience,
        ..ClientOptions::default()
    };
    let mut client = Client::open(&cluster, options).unwrap();
    let command = vec![0; 2 << 20];
    let large = client.call(0, &command, patience);
    let Outcome::Refused(Refusal::TooLarge { len, max }) = large else {
        panic!("{large:?}");
    };
    assert_eq!(len, command.len());
    let error = large.answer().unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    assert!(error.to_string().contains(&max.to_string()), "{error}");
    let nowhere = client.call(1, b"x", patience).answer().unwrap_err();
    let no_partition = Refusal::NoPartition(1);
    assert!(matches!(nowhere, Error::Refused(why) if why == no_partition));
    let mut recovery = Recovery::open(&cluster, 0, 0).unwrap();
    drop(client);
    nodes.stop().unwrap();
    let error = recovery.recover_with(99, b"", Duration::from_millis(100));
    assert!(matches!(error, Err(Error::NoQuorum(_))), "{error:?}");
}
