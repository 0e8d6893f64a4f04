// SPDX-License-Identifier: Apache-2.0
//! Tests of the front end with TLS: the usual clients, strangers, and files that are replaced.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::Settings;
use harness::{Client, Cluster, Faults, eventually, request};
use test_world::Rng;
use test_world::certificates::Certificates;

const TOLD: &str = "-ERR this port takes TLS connections only (redis-cli --tls)\r\n";

/// Creates an authority that has signed `server` and `some`.
fn certificates(name: &str) -> Option<Certificates> {
    let all = Certificates::new(&format!("front-end-{name}"))?;
    all.sign("server", "ca");
    all.sign("some", "ca");
    Some(all)
}

fn files(all: &Certificates, client_ca: Option<&str>) -> tls::Files {
    tls::Files {
        certificate: all.path("server.pem"),
        key: all.path("server.key"),
        client_ca: client_ca.map(|name| all.path(name)),
    }
}

fn start(all: &Certificates, name: &str, client_ca: Option<&str>) -> Cluster {
    start_with(all, name, client_ca, |_| {})
}

fn start_with(
    all: &Certificates,
    name: &str,
    client_ca: Option<&str>,
    adjust: impl FnOnce(&mut Settings),
) -> Cluster {
    let server = tls::Server::open(files(all, client_ca)).unwrap();
    Cluster::start_with(&format!("tls-{name}"), Faults::default(), |settings| {
        settings.tls = Some(server);
        adjust(settings);
    })
}

/// A client that sends the lines it is given, by `openssl s_client`.
struct Openssl(Child);

impl Openssl {
    fn start(cluster: &Cluster, all: &Certificates, more: &[&str]) -> Openssl {
        let mut command = Command::new("openssl");
        command
            .args(["s_client", "-quiet", "-verify_return_error", "-connect"])
            .arg(cluster.address.to_string())
            .args(more)
            .current_dir(all.path("."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Openssl(command.spawn().unwrap())
    }

    /// Sends one line and returns one line, which is empty if the connection is gone.
    fn ask(&mut self, line: &str) -> String {
        // A client that isn't let in may have ended already, so this error doesn't count.
        let _ = writeln!(self.0.stdin.as_mut().unwrap(), "{line}\r");
        let mut answer = String::new();
        let mut said = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        said.read_line(&mut answer).unwrap();
        answer
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const KNOWS: &[&str] = &["-CAfile", "ca.pem"];

fn redis(program: &str, cluster: &Cluster, all: &Certificates, more: &[&str]) -> Option<String> {
    let port = cluster.address.port().to_string();
    let ran = Command::new(program)
        .args(["-p", &port, "--tls"])
        .args(more)
        .current_dir(all.path("."))
        .stdin(Stdio::null())
        .output()
        .inspect_err(|_| println!("SKIPPED: {program} is not installed (./dev setup installs it)"))
        .ok()?;
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    Some(String::from_utf8_lossy(&ran.stdout).into_owned() + &error)
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

#[test]
fn the_usual_clients_speak_tls() {
    let Some(all) = certificates("usual") else {
        return;
    };
    let cluster = start(&all, "usual", Some("ca.pem"));
    let shows = [
        "--cacert", "ca.pem", "--cert", "some.pem", "--key", "some.key",
    ];
    let cli = |more: &[&str]| redis("redis-cli", &cluster, &all, &[&shows[..], more].concat());
    let Some(said) = cli(&["SET", "k", "v"]) else {
        return;
    };
    assert_eq!(said, "OK\n");
    assert_eq!(cli(&["-3", "GET", "k"]).unwrap(), "v\n");
    assert_eq!(get(&cluster.metrics().tls_handshakes), 2);
    let load = [
        "-t", "set,get", "-P", "16", "-n", "2000", "-c", "10", "-r", "100", "--csv",
    ];
    let table = redis(
        "redis-benchmark",
        &cluster,
        &all,
        &[&shows[..], &load].concat(),
    )
    .unwrap();
    assert!(
        table.contains("\"SET\"") && table.contains("\"GET\""),
        "{table}"
    );
    let metrics = cluster.metrics();
    assert_eq!((get(&metrics.errors), get(&metrics.tls_refused)), (0, 0));
    eventually("all are gone", || get(&metrics.connected) == 0);
    eventually("their sessions are closed", || get(&cluster.sessions) == 0);
}

/// Answers of several TLS records reach a client that is in no hurry to read them.
#[test]
fn large_answers_wait_for_their_client() {
    let python = "import ssl, socket, sys, time
context = ssl.create_default_context(cafile='ca.pem')
s = context.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))), \
                  server_hostname='localhost')
value = b'x' * 300_000
s.sendall(b'*3\\r\\n$3\\r\\nSET\\r\\n$1\\r\\nk\\r\\n$%d\\r\\n%s\\r\\n' % (len(value), value))
reads = b'GET k\\r\\n' * 30
s.sendall(reads)
time.sleep(0.3)
expected = len(b'+OK\\r\\n') + 30 * len(b'$300000\\r\\n' + value + b'\\r\\n')
got = b''
while len(got) < expected:
    got += s.recv(1 << 20)
assert got == b'+OK\\r\\n' + 30 * (b'$300000\\r\\n' + value + b'\\r\\n')
s.sendall(b'QUIT\\r\\n')
assert s.recv(100) == b'+OK\\r\\n' and s.recv(100) == b''
print('done')";
    let Some(all) = certificates("large") else {
        return;
    };
    let cluster = start(&all, "large", None);
    let port = cluster.address.port().to_string();
    let ran = Command::new("python3")
        .args(["-c", python, &port])
        .current_dir(all.path("."))
        .output();
    let Ok(ran) = ran else {
        println!("SKIPPED: python3 is not installed (./dev setup installs it)");
        return;
    };
    let error = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "done\n", "{error}");
    let mut next = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(next.ask("PING"), "+PONG\r\n");
    let kept = get(&cluster.metrics().memory_bytes);
    assert!(kept < 1_000, "{kept} bytes of what was sent");
}

#[test]
fn who_shows_nothing_that_counts_is_not_let_in() {
    let Some(all) = certificates("strangers") else {
        return;
    };
    all.authority("other");
    all.sign("stranger", "other");
    all.sign_expired("old");
    let cluster = start(&all, "strangers", Some("ca.pem"));
    let mut good = Openssl::start(
        &cluster,
        &all,
        &[KNOWS, &["-cert", "some.pem", "-key", "some.key"]].concat(),
    );
    assert_eq!(good.ask("PING"), "+PONG\r\n");
    let strangers: [&[&str]; 5] = [
        &[],
        &["-cert", "stranger.pem", "-key", "stranger.key"],
        &["-cert", "old.pem", "-key", "old.key"],
        &["-tls1_2", "-cert", "some.pem", "-key", "some.key"],
        &[
            "-CAfile",
            "other.pem",
            "-cert",
            "some.pem",
            "-key",
            "some.key",
        ],
    ];
    for (shows, n) in strangers.iter().zip(1..) {
        let mut stranger = Openssl::start(&cluster, &all, &[KNOWS, shows].concat());
        assert_eq!(stranger.ask("PING"), "", "{shows:?}");
        eventually("it is counted", || get(&cluster.metrics().tls_refused) == n);
        assert_eq!(good.ask("PING"), "+PONG\r\n");
    }
    assert_eq!(get(&cluster.metrics().commands), 6);
}

#[test]
fn who_speaks_in_the_clear_is_told_so() {
    let Some(all) = certificates("plain") else {
        return;
    };
    let cluster = start(&all, "plain", None);
    let mut plain = cluster.connect();
    plain.send(&request(&["SET", "k", "v"]));
    assert_eq!(String::from_utf8(plain.rest()).unwrap(), TOLD);
    assert_eq!(get(&cluster.metrics().tls_missing), 1);
    let mut good = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(good.ask("GET k"), "$-1\r\n");
}

/// Returns the first message of a TLS client's handshake.
fn hello(all: &Certificates) -> Vec<u8> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &address])
        .current_dir(all.path("."))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; usize::from(head[3]) << 8 | usize::from(head[4])];
    stream.read_exact(&mut rest).unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    [&head[..], &rest].concat()
}

fn is_closed(mut client: Client) -> bool {
    let ended = client.0.read_to_end(&mut Vec::new());
    // A socket with unread input is reset, not closed.
    ended.map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |_| true)
}

#[test]
fn a_handshake_that_does_not_go_on_ends() {
    let Some(all) = certificates("late") else {
        return;
    };
    let cluster = start_with(&all, "late", None, |settings| {
        settings.handshake_timeout = Duration::from_millis(200);
    });
    let hello = hello(&all);
    // The client sends nothing, half of its first message, or all of it without the next one.
    for len in [0, 1, hello.len() / 2, hello.len()] {
        let mut half = cluster.connect();
        half.send(&hello[..len]);
        assert!(is_closed(half));
    }
    let metrics = cluster.metrics();
    eventually("all are counted", || get(&metrics.tls_unfinished) == 4);
    assert_eq!(
        (get(&metrics.connected), get(&metrics.tls_handshakes)),
        (0, 0)
    );
    // A client that has finished its handshake stays.
    let mut good = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(good.ask("PING"), "+PONG\r\n");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(good.ask("PING"), "+PONG\r\n");
}

#[test]
fn who_only_connects_takes_nobodys_place() {
    let Some(all) = certificates("silent") else {
        return;
    };
    let cluster = start_with(&all, "silent", None, |settings| {
        settings.max_handshakes = 4;
        settings.max_clients = 10;
        // No handshake times out during this test.
        settings.handshake_timeout = Duration::from_secs(86_400);
    });
    let mut early = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(early.ask("SET k v"), "+OK\r\n");
    let silent: Vec<_> = (0..50).map(|_| cluster.connect()).collect();
    eventually("they make room", || {
        get(&cluster.metrics().tls_unfinished) >= 46
    });
    assert_eq!(get(&cluster.metrics().connected), 5);
    let mut late = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(late.ask("GET k"), "$1\r\n");
    assert_eq!(early.ask("PING"), "+PONG\r\n");
    assert_eq!(get(&cluster.metrics().connections_refused), 0);
    drop(silent);
    eventually("they are gone", || get(&cluster.metrics().connected) == 2);
}

#[test]
fn random_bytes_hurt_nobody() {
    let Some(all) = certificates("random") else {
        return;
    };
    let cluster = start_with(&all, "random", Some("ca.pem"), |settings| {
        settings.max_handshakes = 16;
    });
    let shows = [KNOWS, &["-cert", "some.pem", "-key", "some.key"]].concat();
    let mut good = Openssl::start(&cluster, &all, &shows);
    assert_eq!(good.ask("SET k v"), "+OK\r\n");
    let hello = hello(&all);
    let mut random = Rng::new(17);
    for n in 0..600 {
        let mut bytes = match n % 3 {
            0 => random.bytes(300),
            1 => [&[22, 3, 1][..], &random.bytes(300)].concat(),
            _ => hello.clone(),
        };
        if n % 3 == 2 {
            let at = random.next() as usize % bytes.len();
            bytes[at] ^= 1 << (random.next() % 8);
            bytes.extend(random.bytes(100));
        }
        let mut stranger = TcpStream::connect(cluster.address).unwrap();
        // The front end may have closed the connection before all bytes are written.
        let _ = stranger.write_all(&bytes);
        // Otherwise the front end would wait for the rest of a message, and strangers would push
        // each other out.
        let _ = stranger.shutdown(Shutdown::Write);
        let _ = stranger.read_to_end(&mut Vec::new());
        if n % 60 == 0 {
            assert_eq!(good.ask("GET k"), "$1\r\n");
            assert_eq!(good.ask(""), "v\r\n");
        }
    }
    let metrics = cluster.metrics();
    eventually("they are gone", || get(&metrics.connected) == 1);
    assert_eq!(get(&metrics.tls_handshakes), 1);
    assert!(get(&metrics.tls_refused) > 100 && get(&metrics.tls_missing) > 100);
    assert_eq!(
        get(&metrics.commands),
        11,
        "those of the one that was let in"
    );
}

#[test]
fn a_certificate_is_replaced_while_clients_work() {
    let Some(all) = certificates("replaced") else {
        return;
    };
    all.authority("other");
    let cluster = start(&all, "replaced", None);
    let is_known = |to: &str| {
        let mut client = Openssl::start(&cluster, &all, &["-CAfile", to]);
        client.ask("PING") == "+PONG\r\n"
    };
    let mut early = Openssl::start(&cluster, &all, KNOWS);
    assert_eq!(early.ask("PING"), "+PONG\r\n");
    fs::copy(all.path("ca.pem"), all.path("server.pem")).unwrap();
    let trouble = || get(&cluster.metrics().tls_trouble);
    eventually("it is noticed", || is_known("ca.pem") && trouble() == 1);
    all.sign("server", "other");
    eventually("the new one is shown", || {
        is_known("other.pem") && trouble() == 0
    });
    assert!(!is_known("ca.pem"));
    assert_eq!(early.ask("PING"), "+PONG\r\n");
}
