// SPDX-License-Identifier: Apache-2.0
//! A client's reads without the log: they show everything that was acknowledged before, their
//! answers have any length, and they take no place in the log. [B-CLIENT] [B-PIECES]

mod nodes;

use std::io::{self, Read, Write};
use std::time::Duration;

use nodes::TempDir;
use wirepaxos::cluster_file::{ApplicationKind, Draft};
use wirepaxos::{
    Client, ClientOptions, ClusterFile, Embedded, Freshness, Home, Outcome, Program, Refusal,
    StateMachine,
};

const PATIENCE: Duration = Duration::from_secs(30);
const GET: &[u8] = b"get";
const COUNT: &[u8] = b"count";
/// Lengths of answers: some fit a packet, others don't, and the last is that of the longest value.
const LENGTHS: [u32; 5] = [0, 1_300, 1_400, 50_000, 1 << 20];

/// A string, and the number of commands that have been executed.
#[derive(Default)]
struct Text {
    text: Vec<u8>,
    commands: u64,
}

impl StateMachine for Text {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        match command {
            GET => return reply.extend_from_slice(&self.text),
            COUNT => return reply.extend_from_slice(&self.commands.to_be_bytes()),
            // The command asks for a text of `len` equal bytes.
            [byte, len @ ..] => {
                let len = u32::from_be_bytes(len.try_into().unwrap_or_default());
                self.text = vec![*byte; len as usize];
            }
            [] => {}
        }
        self.commands += 1;
    }

    fn is_read(command: &[u8]) -> bool {
        command == GET || command == COUNT
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.commands.to_be_bytes())?;
        out.write_all(&self.text)
    }

    fn load(from: &mut dyn Read) -> io::Result<Text> {
        let mut commands = [0; 8];
        from.read_exact(&mut commands)?;
        let mut text = Vec::new();
        from.read_to_end(&mut text)?;
        Ok(Text {
            text,
            commands: u64::from_be_bytes(commands),
        })
    }
}

fn cluster(dir: &TempDir) -> (ClusterFile, Embedded) {
    let draft = Draft::on_loopback(&dir.0, ApplicationKind::Own).unwrap();
    let cluster = draft.check().unwrap();
    let nodes = Embedded::start(&cluster, &Program::in_memory(Text::default)).unwrap();
    (cluster, nodes)
}

fn open(cluster: &ClusterFile, options: ClientOptions) -> Client {
    let options = ClientOptions {
        open_timeout: PATIENCE,
        ..options
    };
    Client::open(cluster, options).unwrap()
}

fn set(client: &mut Client, byte: u8, len: u32) {
    let command = [&[byte][..], &len.to_be_bytes()].concat();
    let done = client.call(0, &command, PATIENCE);
    assert_eq!(done, Outcome::Executed(Some(Vec::new())));
}

fn get(client: &mut Client, freshness: Freshness) -> Vec<u8> {
    match client.call_read(0, GET, freshness, PATIENCE) {
        Outcome::Executed(Some(answer)) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_show_what_was_acknowledged_whoever_is_asked_and_take_no_place() {
    let dir = TempDir::new("client-reads");
    let (cluster, nodes) = cluster(&dir);
    let replicas = cluster.replicas(cluster.groups[0].id);
    let mut writer = open(&cluster, ClientOptions::default());
    let mut readers: Vec<Client> = replicas
        .iter()
        .map(|node| {
            let options = ClientOptions {
                home: Home::Of(node.id),
                ordered: node.id % 2 == 0,
                ..ClientOptions::default()
            };
            open(&cluster, options)
        })
        .collect();
    let mut writes = 0;
    for len in LENGTHS {
        for byte in [b'a', b'b'] {
            set(&mut writer, byte, len);
            writes += 1;
            for reader in &mut readers {
                let answer = get(reader, Freshness::Latest);
                assert_eq!(answer.len(), len as usize);
                assert!(answer.iter().all(|b| *b == byte));
            }
        }
    }
    let old = get(&mut writer, Freshness::Stale);
    assert!(
        LENGTHS.contains(&(old.len() as u32)),
        "no state of any time"
    );
    let executed = writer.call_read(0, COUNT, Freshness::Latest, PATIENCE);
    let commands = u64::to_be_bytes(writes);
    assert_eq!(executed, Outcome::Executed(Some(commands.to_vec())));
    drop((writer, readers));
    nodes.stop().unwrap();
}

#[test]
fn what_is_no_read_is_refused_and_changes_nothing() {
    let dir = TempDir::new("client-reads-refused");
    let (cluster, nodes) = cluster(&dir);
    let mut client = open(&cluster, ClientOptions::default());
    let written = client.call_read(0, b"a....", Freshness::Latest, PATIENCE);
    let unsupported = Refusal::Answered("unsupported");
    assert_eq!(written, Outcome::Refused(unsupported));
    assert_eq!(get(&mut client, Freshness::Latest), b"");
    let none = client.call_read(1, GET, Freshness::Latest, PATIENCE);
    assert_eq!(none, Outcome::Refused(Refusal::NoPartition(1)));
    let long = vec![b'x'; 2_000];
    match client.call_read(0, &long, Freshness::Latest, PATIENCE) {
        Outcome::Refused(Refusal::TooLarge { len: 2_000, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(client);
    // In an ordered session nothing else is under way during a read.
    let options = ClientOptions {
        ordered: true,
        ..ClientOptions::default()
    };
    let mut client = open(&cluster, options);
    let read = client.read(0, GET, Freshness::Latest).unwrap();
    assert_eq!(client.submit(0, b"a\0\0\0\x01"), Err(Refusal::WindowFull));
    let again = client.read(0, GET, Freshness::Latest);
    assert_eq!(again, Err(Refusal::WindowFull));
    assert_eq!(client.outstanding(), 1);
    let answered = client.poll(PATIENCE).unwrap().map(|done| done.request);
    assert_eq!((answered, client.outstanding()), (Some(read), 0));
    drop(client);
    nodes.stop().unwrap();
}
