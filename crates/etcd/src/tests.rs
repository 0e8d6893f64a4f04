// SPDX-License-Identifier: Apache-2.0
//! Tests the client against servers that answer as a script says, also what no etcd would.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::answers::{self, encoded};
use crate::{Client, Failure, Lease, Settings, Swap};

/// More than a test ever waits for.
const LONG: Duration = Duration::from_secs(40);
/// The time of requests that nobody answers.
const SHORT: Duration = Duration::from_millis(200);

/// What a server does with one connection.
enum Act {
    /// Sends these bytes and closes the connection.
    Send(Vec<u8>),
    /// Never answers.
    Hang,
    /// Sends without end.
    Flood,
}

/// A request, as the server has read it.
struct Request {
    path: String,
    authorization: Option<String>,
    body: Value,
}

/// A server that follows a script, one act for each connection, and then closes its port.
struct Server {
    endpoint: String,
    requests: Receiver<Request>,
}

impl Server {
    fn start(script: Vec<Act>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (tell, requests) = channel();
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for act in script {
                let Ok((mut stream, _)) = listener.accept() else {
                    return;
                };
                let request = read_request(&mut stream);
                if tell.send(request).is_err() {
                    return;
                }
                match act {
                    Act::Send(bytes) => drop(stream.write_all(&bytes)),
                    Act::Hang => held.push(stream),
                    Act::Flood => flood(&mut stream),
                }
            }
            // Connections that hang stay open as long as the process lives.
            std::mem::forget(held);
        });
        Server { endpoint, requests }
    }

    fn client(&self) -> Client {
        client(&[&self.endpoint])
    }
}

fn client(endpoints: &[&str]) -> Client {
    let settings = Settings {
        endpoints: endpoints.iter().map(|e| (*e).to_owned()).collect(),
        ..Settings::default()
    };
    Client::open(&settings).unwrap()
}

fn read_request(stream: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let header = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let len = header("content-length").unwrap().parse().unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    Request {
        path: head.split(' ').nth(1).unwrap().to_owned(),
        authorization: header("authorization"),
        body: serde_json::from_slice(&body).unwrap(),
    }
}

fn flood(stream: &mut TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head);
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 1 << 16], b"\r\n".to_vec()].concat();
    while stream.write_all(&chunk).is_ok() {}
}

fn http(status: u16, body: &str) -> Act {
    let len = body.len();
    let text =
        format!("HTTP/1.1 {status} X\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}");
    Act::Send(text.into_bytes())
}

fn ok(body: &Value) -> Act {
    let mut body = body.clone();
    body["header"] = json!({ "revision": "7" });
    http(200, &body.to_string())
}

fn refused(status: u16, error: &str, code: u32) -> Act {
    http(status, &json!({ "error": error, "code": code }).to_string())
}

fn found(value: &[u8]) -> Value {
    json!({ "header": {}, "kvs": [{ "key": encoded(b"k"), "value": encoded(value) }] })
}

fn conflict(value: &[u8]) -> Act {
    ok(&json!({ "responses": [{ "response_range": found(value) }] }))
}

#[test]
fn values_are_read_and_swapped() {
    let server = Server::start(vec![
        ok(&json!({})),
        ok(&found(b"old")),
        ok(&json!({ "succeeded": true, "responses": [{}] })),
        conflict(b"other"),
        ok(&json!({ "responses": [{ "response_range": { "header": {} } }] })),
        ok(&json!({ "ID": "-5", "TTL": "3" })),
        http(200, r#"{"result":{"header":{},"ID":"-5","TTL":"3"}}"#),
        http(200, r#"{"result":{"header":{},"ID":"-5"}}"#),
    ]);
    let mut client = server.client();
    assert_eq!(client.get("k", LONG), Ok(None));
    assert_eq!(client.get("k", LONG), Ok(Some(b"old".to_vec())));
    let mut swap = |expected: Option<&[u8]>| client.swap("k", expected, b"new", Some(9), LONG);
    assert_eq!(swap(Some(b"old")), Ok(Swap::Done));
    assert_eq!(swap(None), Ok(Swap::Other(Some(b"other".to_vec()))));
    assert_eq!(swap(Some(b"old")), Ok(Swap::Other(None)));
    assert_eq!(client.grant(3, LONG), Ok(Lease { id: -5, ttl_s: 3 }));
    assert_eq!(client.renew(-5, LONG), Ok(true));
    assert_eq!(client.renew(-5, LONG), Ok(false));
    let requests: Vec<_> = server.requests.iter().collect();
    assert_eq!(requests[0].path, "/v3/kv/range");
    assert_eq!(requests[0].body, json!({ "key": "aw==" }));
    assert_eq!(requests[2].path, "/v3/kv/txn");
    let body = &requests[2].body;
    assert_eq!(body["compare"][0]["value"], encoded(b"old"));
    assert_eq!(body["success"][0]["request_put"]["lease"], "9");
    assert_eq!(requests[3].body["compare"][0]["create_revision"], "0");
}

/// A swap whose answer was lost is found done when it is asked for again.
#[test]
fn a_swap_that_was_done_already_is_done() {
    let lost = Server::start(vec![http(200, "{")]);
    let server = Server::start(vec![conflict(b"new")]);
    let mut client = client(&[&lost.endpoint, &server.endpoint]);
    let swapped = client.swap("k", Some(b"old"), b"new", None, LONG);
    assert_eq!(swapped, Ok(Swap::Done));
}

/// Nothing that isn't a whole answer of etcd counts, in particular not as a missing key.
#[test]
fn answers_that_are_not_etcds_count_as_none() {
    let whole = json!({ "header": {}, "kvs": [] }).to_string();
    let short = format!("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{whole}");
    let not_base64 = json!({ "kvs": [{ "value": "?" }] });
    let two = json!({ "kvs": [{ "value": "" }, { "value": "" }] });
    let cases = [
        ("the answer isn't etcd's", http(200, "{}")),
        ("the answer isn't etcd's", http(200, "<html>welcome</html>")),
        (
            "the answer isn't etcd's",
            http(200, &whole[..whole.len() - 1]),
        ),
        ("isn't in base64", ok(&not_base64)),
        ("more than one key", ok(&two)),
        ("HTTP status 500", http(500, "oh no")),
        ("HTTP status 302", http(302, "")),
        ("no leader", refused(503, "etcdserver: no leader", 14)),
        ("disconnect", Act::Send(short.into_bytes())),
        ("", Act::Send(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec())),
        ("", Act::Send(b"SSH-2.0-OpenSSH\r\n".to_vec())),
        ("", Act::Send(Vec::new())),
        ("more than", Act::Flood),
    ];
    for (words, act) in cases {
        let server = Server::start(vec![act]);
        let end = server.client().get("k", LONG);
        let Err(Failure::Unanswered(why)) = end else {
            panic!("{words}: {end:?}");
        };
        assert!(
            why.contains(words) && why.contains(&server.endpoint),
            "{words}: {why}"
        );
    }
}

/// A member that hangs or is down doesn't hide the next one, which is asked first from then on.
#[test]
fn endpoints_are_asked_in_turn() {
    // Nobody listens at a port that low.
    let down = "http://127.0.0.1:1";
    let hangs = Server::start(vec![Act::Hang]);
    let answers = Server::start(vec![ok(&found(b"v")), ok(&found(b"v"))]);
    let mut client = client(&[down, &hangs.endpoint, &answers.endpoint]);
    for _ in 0..2 {
        assert_eq!(
            client.get("k", Duration::from_secs(3)),
            Ok(Some(b"v".to_vec()))
        );
    }
    assert_eq!(hangs.requests.try_iter().count(), 1);
}

#[test]
fn one_that_hangs_is_not_waited_for_longer_than_the_caller_says() {
    let server = Server::start(vec![Act::Hang]);
    let end = server.client().get("k", SHORT);
    let Err(Failure::Unanswered(why)) = end else {
        panic!("{end:?}");
    };
    assert!(why.contains("no whole answer in time"), "{why}");
}

/// The user is told at first, and again when etcd has forgotten the token. A wrong password and a
/// missing user are refused.
#[test]
fn a_user_logs_in_and_again_when_the_token_is_forgotten() {
    let stale = || refused(401, "etcdserver: invalid auth token", 16);
    let token = |text: &str| ok(&json!({ "token": text }));
    let wrong = "etcdserver: authentication failed, invalid user ID or password";
    let server = Server::start(vec![
        token("one.1"),
        ok(&json!({})),
        stale(),
        token("two.2"),
        ok(&json!({})),
        stale(),
        refused(400, wrong, 3),
    ]);
    let name = format!("wirepaxos-etcd-password-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, "secret\n").unwrap();
    test_world::certificates::set_mode(&file, 0o600);
    let settings = Settings {
        endpoints: vec![server.endpoint.clone()],
        user: Some("wirepaxos".to_owned()),
        password_file: Some(file.clone()),
        ..Settings::default()
    };
    let mut client = Client::open(&settings).unwrap();
    assert_eq!(client.get("k", LONG), Ok(None));
    assert_eq!(client.get("k", LONG), Ok(None));
    let Err(Failure::Refused(why)) = client.get("k", LONG) else {
        panic!("the password is wrong");
    };
    assert!(why.contains("invalid user ID or password"), "{why}");
    let requests: Vec<_> = server.requests.iter().collect();
    assert_eq!(requests[0].path, "/v3/auth/authenticate");
    let login = json!({ "name": "wirepaxos", "password": "secret" });
    assert_eq!(requests[0].body, login);
    let shown: Vec<_> = requests
        .iter()
        .map(|r| r.authorization.as_deref())
        .collect();
    let expected = [
        None,
        Some("one.1"),
        Some("one.1"),
        None,
        Some("two.2"),
        Some("two.2"),
        None,
    ];
    assert_eq!(shown, expected);

    let server = Server::start(vec![refused(400, "etcdserver: user name is empty", 3)]);
    let Err(Failure::Refused(why)) = server.client().get("k", LONG) else {
        panic!("there is no user");
    };
    assert!(why.contains("name a `user`"), "{why}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let open = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        Client::open(&settings).err().unwrap().to_string()
    };
    let why = open(|s| s.ca = Some("/nothing/ca.pem".into()));
    assert!(why.contains("/nothing/ca.pem"), "{why}");
    let why = open(|s| s.password_file = Some("/nothing/password".into()));
    assert!(why.contains("/nothing/password"), "{why}");
    let why = open(|s| s.ca = Some("/dev/null".into()));
    assert!(why.contains("no certificate in PEM"), "{why}");
}

/// Whatever a server answers, there is a verdict.
#[test]
fn no_answer_is_too_strange_for_a_verdict() {
    let good = [
        found(b"v").to_string(),
        json!({ "header": {}, "succeeded": true, "responses": [{ "response_range": found(b"v") }] })
            .to_string(),
        json!({ "header": {}, "ID": "-5", "TTL": "3", "token": "a.1" }).to_string(),
        json!({ "result": { "header": {}, "ID": "5" } }).to_string(),
        json!({ "error": { "message": "m", "grpc_code": 16 } }).to_string(),
    ];
    let mut random = test_world::Rng::new(1);
    for _ in 0..2_000 {
        let mut bytes = good[random.below(5) as usize].clone().into_bytes();
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        bytes.truncate(random.below(bytes.len() as u64 + 20) as usize);
        let _ = (answers::value(&bytes), answers::swap(&bytes));
        let _ = (answers::granted(&bytes), answers::renewed(&bytes));
        let _ = (answers::revoked(&bytes), answers::token(&bytes));
        let _ = answers::told(&bytes);
    }
}
