// SPDX-License-Identifier: Apache-2.0
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use replica::Snapshot;
use test_world::certificates::Certificates;

use super::askers::Askers;
use super::channel::Channel;
use super::client::{Failed, Peer, Search};
use super::incoming::{Head, Incoming};
use super::served_state::{Copies, Keeper};
use super::server::{Server, Settings, WorkerPosition, Workers};
use super::wire::Trust;
use super::*;
use crate::cluster_file::{self, Auth};
use crate::test_dir::TestDir;
use crate::watched_keys::{SharedKeys, WatchedKeys};

mod limits;

fn deployment() -> Deployment {
    Deployment {
        cluster: 9,
        group: 1,
        partitions: 2,
        max_value: 512,
        node: 1,
    }
}

fn question(needs: [Option<Instance>; 2]) -> Question {
    Question::new(&deployment(), needs.into())
}

/// Never times out while a test waits.
const ENDLESS: Patience = Patience {
    answer: Duration::from_secs(86_400),
    stream: Duration::from_secs(86_400),
};

/// This is far less than an asker may be idle, and more than a connection may take until it asks.
const IDLE_AT_MOST: Duration = Duration::from_secs(30);

struct Bytes(Vec<u8>);

impl Snapshot for Bytes {
    fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        for piece in self.0.chunks(60_000) {
            out.write_all(piece)?;
        }
        Ok(())
    }
}

/// Two partitions, of which the second one's state has several parts.
#[derive(Default)]
struct Fake {
    stands: Mutex<Vec<WorkerPosition>>,
    keepers: Mutex<Vec<Keeper>>,
}

fn state(pid: usize) -> Vec<u8> {
    let length = [5, 2 * PART_LEN + 700][pid];
    (0..length as u32)
        .map(|i| (i >> 8) as u8 ^ i as u8)
        .collect()
}

impl Workers for Fake {
    fn stands(&self) -> Vec<WorkerPosition> {
        self.stands.lock().unwrap().clone()
    }

    fn open(&self, keepers: Vec<Keeper>) -> Result<Copies, String> {
        *self.keepers.lock().unwrap() = keepers;
        let open = |(pid, stand): (usize, WorkerPosition)| {
            let copy: Box<dyn Snapshot> = Box::new(Bytes(state(pid)));
            (stand.next, copy)
        };
        Ok(self.stands().into_iter().enumerate().map(open).collect())
    }
}

fn stand(next: Instance) -> WorkerPosition {
    WorkerPosition {
        next,
        ..WorkerPosition::default()
    }
}

fn behind(next: Instance) -> WorkerPosition {
    WorkerPosition {
        needs: Some(next + 1),
        is_behind: true,
        ..stand(next)
    }
}

struct Source {
    address: SocketAddr,
    fake: Arc<Fake>,
    server: Server,
    _directory: TestDir,
}

fn serve(host: Ipv4Addr, stands: [WorkerPosition; 2]) -> Source {
    serve_keeping(host, stands, 1 << 30)
}

fn serve_keeping(host: Ipv4Addr, stands: [WorkerPosition; 2], kept: u64) -> Source {
    serve_with(host, stands, kept, &Trust::default())
}

fn serve_with(host: Ipv4Addr, stands: [WorkerPosition; 2], kept: u64, trust: &Trust) -> Source {
    let directory = TestDir::new();
    let fake = Arc::new(Fake {
        stands: Mutex::new(stands.into()),
        ..Fake::default()
    });
    let address = (host, 7100).into();
    let settings = Settings {
        deployment: deployment(),
        directory: directory.path().to_owned(),
        rate: u64::MAX,
        kept,
        trust: trust.clone(),
        askers: Askers::default(),
    };
    let server = Server::start(address, settings, fake.clone()).unwrap();
    Source {
        address,
        fake,
        server,
        _directory: directory,
    }
}

fn draw() -> Ipv4Addr {
    crate::loopback::draw().unwrap()
}

fn peer(address: SocketAddr) -> Peer {
    Peer::new(address, ENDLESS, Arc::default(), Trust::default())
}

/// Returns the replicas that can help, in the order in which they are returned.
fn search(peers: &[SocketAddr], question: &Question) -> Result<Vec<SocketAddr>, String> {
    let trust = Trust::default();
    let mut search = Search::begin(peers, question, ENDLESS, &Arc::default(), &trust).unwrap();
    let found: Vec<_> = search.by_ref().map(|peer| peer.address).collect();
    if found.is_empty() {
        return Err(search.why());
    }
    Ok(found)
}

fn refused<T>(result: Result<T, Failed>) -> String {
    match result {
        Err(Failed::Refused(why)) => why,
        Err(Failed::Broken(e)) => panic!("broken: {e}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Fetches the missing parts of a partition, but at most `parts`.
fn fetch(peer: &mut Peer, incoming: &mut Incoming, pid: u16, parts: usize) {
    for _ in 0..parts {
        if incoming.is_whole(pid) {
            return;
        }
        let wants = incoming.wants(pid);
        let (bytes, last) = peer.part(incoming.head.state, pid, wants).unwrap();
        incoming.add(pid, &bytes, last).unwrap();
    }
}

fn come(incoming: &Incoming, pid: u16) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    incoming.read(pid)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn begin(peer: &mut Peer, directory: &Path) -> Incoming {
    let (state, positions) = peer.hold(&question([Some(70), None])).unwrap();
    let head = Head {
        from: peer.address,
        state,
        positions,
    };
    Incoming::begin(directory, head).unwrap()
}

/// A state of all partitions comes in parts, even to a process that begins where another one ended,
/// and then the values that were decided meanwhile. [X-CATCHUP] [X-LOG]
#[test]
fn a_replica_fetches_from_another_one() {
    let source = serve(draw(), [stand(77), stand(9)]);
    let directory = TestDir::new();
    let path = directory.path().join("incoming");
    let mut peer = self::peer(source.address);
    let mut incoming = begin(&mut peer, &path);
    assert_eq!(incoming.head.positions, [77, 9]);
    fetch(&mut peer, &mut incoming, 1, 2);
    drop((peer, incoming));

    let mut incoming = Incoming::open(&path).unwrap().unwrap();
    let mut peer = self::peer(incoming.head.from);
    assert_eq!([0, 1].map(|pid| incoming.wants(pid)), [0, 2]);
    assert_eq!(
        come(&incoming, 1).unwrap_err().kind(),
        io::ErrorKind::UnexpectedEof
    );
    for pid in [0, 1] {
        fetch(&mut peer, &mut incoming, pid, 10);
        assert!(incoming.is_whole(pid));
        assert_eq!(come(&incoming, pid).unwrap(), state(pid.into()));
    }
    // A part that was fetched already can be fetched again.
    let number = incoming.head.state;
    assert_eq!(peer.part(number, 1, 0).unwrap().0, state(1)[..PART_LEN]);
    assert!(refused(peer.part(number + 1, 1, 0)).contains("isn't held open"));

    let keepers = std::mem::take(&mut *source.fake.keepers.lock().unwrap());
    assert!(keepers[1].keep(b"decided") && keepers[1].keep(b" meanwhile"));
    *source.fake.stands.lock().unwrap() = vec![stand(90), stand(12)];
    let mut log = Vec::new();
    while log.len() < 17 {
        let (bytes, next) = peer.log(number, 1, log.len() as u64).unwrap();
        assert_eq!(next, 12);
        log.extend_from_slice(&bytes);
    }
    assert_eq!(log, b"decided meanwhile");
    assert_eq!(peer.log(number, 1, 8).unwrap().0, b"meanwhile");
    assert_eq!(peer.log(number, 0, 0).unwrap(), (vec![], 90));
    peer.release(number);
    assert!(!keepers[1].keep(b"more"), "nobody wants it");
    assert!(refused(peer.stay(number)).contains("isn't held open"));
}

/// The log of a state is bounded: when it is full it ends, and no worker waits for it. [X-LOG]
#[test]
fn a_log_that_grows_too_long_is_given_up() {
    let source = serve_keeping(draw(), [stand(77), stand(9)], 100);
    let directory = TestDir::new();
    let mut peer = self::peer(source.address);
    let incoming = begin(&mut peer, &directory.path().join("incoming"));
    let state = incoming.head.state;
    let keepers = std::mem::take(&mut *source.fake.keepers.lock().unwrap());
    while keepers[0].keep(&[7; 60]) {
        std::thread::yield_now();
    }
    let (bytes, _) = peer.log(state, 0, 0).unwrap();
    assert_eq!(bytes.len(), 60, "up to there it is good");
    let why = refused(peer.log(state, 0, 60));
    assert!(why.contains("more than 0 MiB"), "{why}");
    assert!(!keepers[0].keep(&vec![7; 64 << 20]));
}

#[test]
fn what_is_asked_falsely_is_refused_by_name() {
    let source = serve(draw(), [stand(77), stand(9)]);
    let refused = |change: fn(&mut Question)| {
        let mut question = question([Some(70), None]);
        change(&mut question);
        search(&[source.address], &question).unwrap_err()
    };
    assert!(refused(|q| q.needs[0] = Some(78)).contains("only at instance 77, 9"));
    assert!(refused(|q| q.needs = vec![None, Some(10)]).contains("only at instance"));
    assert!(refused(|q| q.needs.push(None)).contains("a need for each"));
    assert!(refused(|q| q.cluster = 8).contains("another cluster"));
    assert!(refused(|q| q.group = 2).contains("another cluster or group"));
    assert!(refused(|q| q.partitions = 3).contains("2 partitions here"));
    let mut peer = self::peer(source.address);
    let (state, _) = peer.hold(&question([Some(70), None])).unwrap();
    for pid in [2, 9] {
        assert!(peer.part(state, pid, 0).is_err());
        let (state, _) = peer.hold(&question([Some(70), None])).unwrap();
        assert!(peer.log(state, pid, 0).is_err());
    }
}

/// Returns the keys of a new secret, in the test's directory.
fn keys(directory: &TestDir, name: &str) -> SharedKeys {
    let sample = include_str!("../../../../testdata/cluster.toml");
    let mut cluster = cluster_file::parse(sample, "test").unwrap();
    cluster.auth = Auth::Control;
    cluster.keys = directory.path().join(name);
    let file = keys::KeyFile::new(cluster.cluster).unwrap();
    file.create(&cluster.keys).unwrap();
    WatchedKeys::of_outside(&cluster)
}

fn peer_with(address: SocketAddr, trust: &Trust) -> Peer {
    let patience = Patience {
        answer: Duration::from_secs(5),
        stream: Duration::from_secs(5),
    };
    Peer::new(address, patience, Arc::default(), trust.clone())
}

/// Without the cluster's key a replica neither gets nor gives a state. [X-SIGNED]
#[test]
fn a_state_is_for_who_has_the_key() {
    let directory = TestDir::new();
    let [own, other] = ["own", "other"].map(|name| Trust {
        keys: keys(&directory, name),
        tls: None,
    });
    let host = draw();
    let source = serve_with(host, [stand(77), stand(9)], 1 << 30, &own);
    let question = question([Some(70), None]);
    for without in [&Trust::default(), &other] {
        let refused = peer_with(source.address, without).hold(&question);
        assert!(matches!(refused, Err(Failed::Broken(_))), "{refused:?}");
    }
    let mut peer = peer_with(source.address, &own);
    let (held, _) = peer.hold(&question).unwrap();
    assert_eq!(peer.part(held, 0, 0).unwrap(), (state(0), true));
    assert_eq!(
        peer.part(held, 1, 1).unwrap().0,
        state(1)[PART_LEN..2 * PART_LEN]
    );
    peer.release(held);
    let stranger = serve_with(draw(), [stand(77), stand(9)], 1 << 30, &other);
    let refused = peer_with(stranger.address, &own).hold(&question);
    assert!(matches!(refused, Err(Failed::Broken(_))), "{refused:?}");
}

/// With `state_tls` both sides are identified by their certificates, and the connecting side checks
/// the address. [X-SIGNED]
#[test]
fn a_state_goes_over_tls_between_nodes_alone() {
    let Some(all) = Certificates::new("state") else {
        return;
    };
    let [host, elsewhere] = [draw(), draw()];
    all.authority("strangers");
    all.sign_for("source", "ca", host);
    all.sign_for("asker", "ca", elsewhere);
    all.sign_for("stranger", "strangers", elsewhere);
    let trust = |name: &str| Trust {
        keys: None,
        tls: Some(Arc::new(
            tls::Peers::open(tls::PeerFiles {
                certificate: all.path(&format!("{name}.pem")),
                key: all.path(&format!("{name}.key")),
                ca: all.path("ca.pem"),
            })
            .unwrap(),
        )),
    };
    let stands = || [stand(77), stand(9)];
    let question = question([Some(70), None]);
    let source = serve_with(host, stands(), 1 << 30, &trust("source"));
    let refused = |address, trust: &Trust| match peer_with(address, trust).hold(&question) {
        Err(Failed::Broken(why)) => why.to_string(),
        other => panic!("{other:?}"),
    };
    let why = refused(source.address, &trust("stranger"));
    assert!(why.contains("look at `state_tls`"), "{why}");
    refused(source.address, &Trust::default());
    let misplaced = serve_with(elsewhere, stands(), 1 << 30, &trust("source"));
    let why = refused(misplaced.address, &trust("asker"));
    assert!(why.contains("isn't for its `control` address"), "{why}");
    let plain = serve(draw(), stands());
    let why = refused(plain.address, &trust("asker"));
    assert!(!why.is_empty());

    let mut peer = peer_with(source.address, &trust("asker"));
    let (held, _) = peer.hold(&question).unwrap();
    assert_eq!(peer.part(held, 0, 0).unwrap(), (state(0), true));
    assert_eq!(peer.part(held, 1, 2).unwrap().0, state(1)[2 * PART_LEN..]);
    peer.release(held);
}

/// A connection of which one side is a recording.
struct Recorded<'a> {
    input: &'a [u8],
    out: &'a mut Vec<u8>,
}

impl Read for Recorded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.input.read(into)
    }
}

impl BufRead for Recorded<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.input)
    }

    fn consume(&mut self, amount: usize) {
        self.input.consume(amount);
    }
}

impl Write for Recorded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Messages on a connection count once, in their direction, and unchanged. [X-SIGNED]
#[test]
fn nothing_that_is_said_can_be_changed_repeated_or_sent_back() {
    let directory = TestDir::new();
    let keys = keys(&directory, "own");
    let greeted =
        |input: &[u8], out: &mut Vec<u8>| Channel::source(&keys, &mut Recorded { input, out });
    // This is the asker's greeting, without anything after it.
    let mut greeting = Vec::new();
    let mut nothing = Recorded {
        input: b"",
        out: &mut greeting,
    };
    assert!(Channel::asker(&keys, &mut nothing).is_err());
    let mut answer = Vec::new();
    let mut source = greeted(&greeting, &mut answer).unwrap();
    let mut said = Vec::new();
    source.write_line(&mut said, &Answer::Staying).unwrap();
    source.write_bytes(&mut said, b"a part").unwrap();
    let line = said.iter().position(|byte| *byte == b'\n').unwrap() + 1 + keys::KEY_LEN;
    // Each attempt has its own greeting, so it also stands for a recorded connection.
    let mut recorded = greeted(&greeting, &mut Vec::new()).unwrap();
    assert!(
        recorded.read_line::<Answer>(&mut &said[..]).is_err(),
        "sent back"
    );
    let read = |bytes: &[u8]| {
        let mut other = source.turned();
        let mut input = bytes;
        let answer: io::Result<Answer> = other.read_line(&mut input);
        answer.and_then(|_| other.read_bytes(&mut input, 6))
    };
    assert_eq!(read(&said).unwrap(), b"a part");
    for bit in 0..said.len() * 8 {
        let mut other = said.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&other).is_err(), "bit {bit}");
    }
    let twice = [&said[..line], &said[..line]].concat();
    assert!(read(&twice).is_err(), "a line again");
}

/// The test ends by itself only if nobody waits for the silent peers.
#[test]
fn a_peer_that_never_answers_holds_up_nobody() {
    let host = draw();
    let silent: Vec<TcpListener> = (0..2)
        .map(|n| TcpListener::bind((host, 7200 + n)).unwrap())
        .collect();
    let mut peers: Vec<SocketAddr> = silent.iter().map(|s| s.local_addr().unwrap()).collect();
    let source = serve(host, [stand(77), stand(9)]);
    peers.insert(1, source.address);
    let mut search = Search::begin(
        &peers,
        &question([Some(70), None]),
        ENDLESS,
        &Arc::default(),
        &Trust::default(),
    )
    .unwrap();
    assert_eq!(search.next().unwrap().address, source.address);
}

/// Three replicas need a state and ask each other, and none waits. A replica that is behind in
/// another partition helps. [X-CATCHUP]
#[test]
fn who_needs_a_state_refuses_at_once() {
    let hosts: Vec<_> = (0..3).map(|_| draw()).collect();
    let servers: Vec<_> = hosts
        .iter()
        .map(|h| serve(*h, [behind(77), stand(9)]))
        .collect();
    let all: Vec<_> = servers.iter().map(|s| s.address).collect();
    let why = search(&all[1..], &question([Some(70), None])).unwrap_err();
    assert_eq!(why.matches("catching up myself").count(), 2, "{why}");
    assert_eq!(
        search(&all[1..], &question([None, Some(9)])).unwrap().len(),
        2
    );

    let installing = WorkerPosition {
        is_installing: true,
        ..stand(9)
    };
    *servers[0].fake.stands.lock().unwrap() = vec![stand(77), installing];
    let why = search(&all[..1], &question([Some(70), None])).unwrap_err();
    assert!(why.contains("installing a state myself"), "{why}");
}

/// Each of two replicas helps in one partition only; one that helps in both comes first.
/// [X-CATCHUP]
#[test]
fn who_helps_in_all_partitions_comes_first_and_others_help_too() {
    let partly = [
        serve(draw(), [stand(77), behind(3)]),
        serve(draw(), [stand(5), stand(9)]),
    ];
    let needs = question([Some(70), Some(8)]);
    let mut peers: Vec<_> = partly.iter().map(|s| s.address).collect();
    assert_eq!(search(&peers, &needs).unwrap().len(), 2);
    let whole = serve(draw(), [stand(77), stand(9)]);
    peers.push(whole.address);
    let found = search(&peers, &needs).unwrap();
    assert_eq!((found[0], found.len()), (whole.address, 3));
}

/// A part is asked for again if it was damaged on its way, or if the connection broke in the middle
/// of it. [X-CATCHUP]
#[test]
fn a_damaged_part_is_fetched_again() {
    let listener = TcpListener::bind((draw(), 7300)).unwrap();
    let address = listener.local_addr().unwrap();
    let source = std::thread::spawn(move || {
        let bytes = b"a part";
        let crc = crc32fast::hash(bytes);
        for (crc, sent) in [(crc ^ 1, 6), (crc, 3), (crc, 6)] {
            let (stream, _) = listener.accept().unwrap();
            let mut input = BufReader::new(&stream);
            let mut channel = Channel::plain();
            let _: Ask = channel.read_line(&mut input).unwrap();
            let answer = Answer::Part {
                length: 6,
                crc,
                last: true,
            };
            channel.write_line(&mut &stream, &answer).unwrap();
            (&stream).write_all(&bytes[..sent]).unwrap();
        }
    });
    let mut peer = self::peer(address);
    assert_eq!(peer.part(1, 0, 0).unwrap(), (b"a part".to_vec(), true));
    source.join().unwrap();
}

/// The fetched parts of a state count as far as their checksums are right. [X-CATCHUP]
#[test]
fn what_is_damaged_of_what_has_come_is_fetched_again() {
    let directory = TestDir::new();
    let path = directory.path().join("incoming");
    let head = Head {
        from: "127.0.0.1:1".parse().unwrap(),
        state: 5,
        positions: vec![9],
    };
    let mut incoming = Incoming::begin(&path, head.clone()).unwrap();
    for (part, last) in [("one", false), ("two", false), ("", true)] {
        incoming.add(0, part.as_bytes(), last).unwrap();
    }
    incoming.sync().unwrap();
    assert_eq!(come(&incoming, 0).unwrap(), b"onetwo");
    let file = path.join("state-0");
    let whole = std::fs::read(&file).unwrap();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&file, bytes).unwrap();
        assert!(come(&incoming, 0).is_err(), "bit {bit}");
        let left = Incoming::open(&path).unwrap().unwrap();
        assert_eq!(
            (left.wants(0), left.is_whole(0)),
            ([0, 1, 2][bit / 8 / 11], false)
        );
        std::fs::write(&file, &whole).unwrap();
    }
    for len in 0..whole.len() {
        std::fs::write(&file, &whole[..len]).unwrap();
        let left = Incoming::open(&path).unwrap().unwrap();
        assert!(!left.is_whole(0) && left.wants(0) <= (len / 11) as u64);
        std::fs::write(&file, &whole).unwrap();
    }
    assert_eq!(Incoming::open(&path).unwrap().unwrap().head, head);
    std::fs::write(path.join("head"), "{").unwrap();
    assert!(Incoming::open(&path).unwrap().is_none());
    incoming::remove(&path).unwrap();
    assert!(Incoming::open(&path).unwrap().is_none());
}
