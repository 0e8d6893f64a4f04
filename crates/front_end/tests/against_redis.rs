// SPDX-License-Identifier: Apache-2.0
//! Compares the front end's answers byte for byte with those of a real Redis server, if one is
//! installed.

mod harness;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use front_end::{Access, Order};
use harness::{Client, Cluster, Faults, eventually, request};

/// The server as package redis-tools has it: one program that does what the name says under which
/// it is called. Package redis-server would also start a service, on the very port that a front end
/// likes to use.
const REDIS: &str = "/usr/bin/redis-check-rdb";

/// A real server, which ends with the test.
struct Redis {
    process: Child,
    address: SocketAddr,
}

impl Redis {
    fn start(more: &[&str]) -> Option<Redis> {
        if !Path::new(REDIS).exists() {
            println!("SKIPPED: {REDIS} is not installed (./dev setup installs it)");
            return None;
        }
        // The server has its own address: a port that is free on 127.0.0.1 may be another test's by
        // the time that the server binds it.
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from(([127, n, high, low], 6379));
        let process = Command::new(REDIS)
            .arg0("redis-server")
            .args(["--port", "6379", "--bind", &address.ip().to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("Redis answers", || TcpStream::connect(address).is_ok());
        Some(Redis { process, address })
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that every client may send, and whose answer no other command has.
const MARK: [&str; 2] = ["HELLO", "the-end-of-this-answer"];
const MARK_ANSWER: &[u8] = b"-ERR Protocol version is not an integer or out of range\r\n";

/// Returns everything that is answered before the mark's answer, or before the end of the
/// connection.
fn answer(client: &mut Client, bytes: &[u8]) -> String {
    client.send(bytes);
    client.send(&request(&MARK));
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    while !got.ends_with(MARK_ANSWER) {
        match client.0.read(&mut buffer) {
            Ok(0) => {
                got.extend_from_slice(b"(closed)");
                break;
            }
            Ok(len) => got.extend_from_slice(&buffer[..len]),
            // Redis resets the connection if it has unread input.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                got.extend_from_slice(b"(closed)");
                break;
            }
            Err(e) => panic!("{e} after {:?}", String::from_utf8_lossy(&got)),
        }
    }
    String::from_utf8_lossy(&got).into_owned()
}

fn compare(ours: SocketAddr, theirs: SocketAddr, script: &[Vec<u8>]) {
    let (mut a, mut b) = (Client::connect(ours), Client::connect(theirs));
    let mut differences = String::new();
    for bytes in script {
        let (got, expected) = (answer(&mut a, bytes), answer(&mut b, bytes));
        if got != expected {
            let asked = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
            differences += &format!("{asked:?}: {got:?} instead of {expected:?}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

fn words(line: &str) -> Vec<u8> {
    request(&line.split(' ').collect::<Vec<_>>())
}

/// Commands that both answer equally, errors as well, in this order.
const COMMANDS: &str = "\
    PING|PING hello|PING a b|ECHO x|ECHO|GET k|SET k v|GET k|SET k w NX|SET k w XX|SET k x GET|\
    SET new y GET|SET new2 y NX GET|SET new2 z XX GET|SET k v NX XX|SET k v BOGUS|SET k|SET|GET|\
    GET a b|get k|GeT k|GETSET k 1|GETDEL k|GETDEL k|SETNX k 1|SETNX k 2|INCR k|DECR k|\
    INCRBY k 10|DECRBY k 3|INCRBY k x|INCRBY k 1.5|INCRBY k 9223372036854775808|INCRBY k +1|\
    INCRBY k -0|INCRBY k 01|DECRBY k -9223372036854775808|DECRBY k x|SET n 9223372036854775807|\
    INCR n|GET n|INCRBY n -1|SET n -9223372036854775808|DECR n|DECRBY n 1|DECRBY n -1|SET t text|\
    INCR t|APPEND t er|APPEND fresh x|APPEND t|STRLEN t|STRLEN none|STRLEN|SET e 12x|INCR e|\
    SET e 0012|INCR e|SET e 1e3|INCR e|SET e -0|INCR e|MSET a 1 b 2|MSET a 1 b|MSET a|MSET|\
    MGET a none b|MGET|EXISTS a a none|EXISTS|DEL a a none|DEL|UNLINK b|DBSIZE|DBSIZE x|TYPE t|\
    TYPE none|TYPE|SELECT 0|SELECT 16|SELECT x|SELECT -1|SELECT 99999999999|SELECT|NOSUCH|\
    NOSUCH a b c|nosuch 'quoted'|SCAN x|SCAN 0 COUNT 0|SCAN 0 COUNT x|SCAN 0 BOGUS 1|SCAN 0 COUNT|\
    SCAN|SCAN 0 MATCH nothing* COUNT 1000|SCAN 0 COUNT 1000 MATCH t|SCAN 0 COUNT 1000 TYPE list|\
    KEYS t|KEYS no*|KEYS|CLIENT GETNAME|CLIENT SETNAME me|CLIENT GETNAME|CLIENT SETNAME|CLIENT|\
    CLIENT NOSUCH|CLIENT NO-EVICT on|CLIENT NO-EVICT maybe|CLIENT NO-EVICT|CLIENT ID x|\
    CLIENT REPLY ON|CLIENT REPLY|CLIENT REPLY x|CLIENT REPLY ON x|CLIENT KILL|CLIENT KILL x|\
    CLIENT KILL ID x|CLIENT KILL ID 0|CLIENT KILL ID 99999|CLIENT KILL TYPE x|\
    CLIENT KILL TYPE pubsub|CLIENT KILL TYPE replica|CLIENT KILL USER nobody|\
    CLIENT KILL USER default ID 99999|CLIENT KILL SKIPME x|CLIENT KILL ADDR|CLIENT KILL ID 1 X|\
    CLIENT KILL X y|CLIENT KILL ADDR 1.2.3.4:5 LADDR 1.2.3.4:5|CLIENT LIST TYPE x|\
    CLIENT LIST TYPE master|CLIENT LIST ID x|CLIENT LIST ID 99999|CLIENT LIST x|CLIENT LIST TYPE|\
    CLIENT LIST ID|CLIENT INFO x|CLIENT PAUSE|CLIENT PAUSE x|CLIENT PAUSE -1|CLIENT PAUSE 10 x|\
    CLIENT PAUSE 10 WRITE x|CLIENT UNPAUSE|CLIENT UNPAUSE x|CLIENT PAUSE 99999999999999999999|\
    CLIENT PAUSE 0|CLIENT PAUSE 0 all|CLIENT TRACKING|CLIENT TRACKING off|CLIENT TRACKING x|\
    CLIENT TRACKINGINFO|CLIENT TRACKINGINFO x|CLIENT GETREDIR|CLIENT CACHING yes|CLIENT CACHING|\
    CONFIG GET save|CONFIG GET nosuch|CONFIG GET|CONFIG NOSUCH|CONFIG|COMMAND NOSUCH|\
    COMMAND INFO nosuch|COMMAND COUNT x|AUTH x|AUTH a b|AUTH a b c|AUTH|AUTH default any|HELLO 1|\
    HELLO 2 BOGUS|HELLO 2 AUTH x|HELLO 2 AUTH a b|HELLO 2 SETNAME|RESET|GET none|INFO nosuch|\
    TIME x|EXEC|DISCARD|DISCARD x";

/// Scripts in which clients turn replies off. The last command of each is answered, so that the
/// mark behind it is, too.
const SILENT: &[&str] = &[
    "CLIENT REPLY OFF|PING|SET k v|NOSUCH|GET|CLIENT REPLY ON|GET k",
    "CLIENT REPLY SKIP|PING|ECHO a",
    "CLIENT REPLY SKIP|SET k w|GET k",
    "INCR r|CLIENT REPLY SKIP|INCR r|INCR r",
    "CLIENT REPLY SKIP|CLIENT REPLY SKIP|ECHO b|ECHO c",
    "CLIENT REPLY SKIP|CLIENT REPLY ON|ECHO d",
    "CLIENT REPLY OFF|CLIENT REPLY SKIP|CLIENT REPLY ON|ECHO e",
    "CLIENT REPLY SKIP|NOSUCH|ECHO f",
    "CLIENT REPLY SKIP|CLIENT LIST|ECHO g",
    "CLIENT REPLY OFF|MULTI|INCR r|EXEC|CLIENT REPLY ON|GET r",
    "CLIENT REPLY OFF|RESET|ECHO h",
    "CLIENT REPLY SKIP|RESET|ECHO i",
];

/// Transactions, each of which is sent in one piece, because a mark within it would be queued, too.
const TRANSACTIONS: &[&str] = &[
    "MULTI|EXEC",
    "MULTI|SET tx 1|INCR tx|GET none|PING|ECHO x|MGET tx none|INCR t|DEL tx none|EXEC",
    "MULTI|SET tx 1|NOSUCH|EXEC|GET tx",
    "MULTI|SET tx|SET tx 2|EXEC|GET tx",
    "MULTI|MULTI|WATCH tx|SET tx 3 BOGUS|TYPE tx|EXEC|EXEC",
    "MULTI|SET tx 4|DISCARD|GET tx|DISCARD",
    "WATCH tx other|SET tx 5|MULTI|GET tx|EXEC|MULTI|GET tx|EXEC",
    "WATCH tx|GET tx|SET other 5|MULTI|INCR tx|UNWATCH|EXEC",
    "WATCH tx|SETNX tx 9|MULTI|GET tx|EXEC",
    "WATCH tx|INCR t|MULTI|GET tx|EXEC",
    "WATCH none|DEL none|MULTI|GET tx|EXEC",
    "WATCH none|SET none 1|DEL none|MULTI|GET tx|EXEC",
    "WATCH tx|SET tx 6|UNWATCH|MULTI|GET tx|EXEC",
    "WATCH tx|SET tx 7|MULTI|DISCARD|MULTI|GET tx|EXEC",
    "WATCH|WATCH tx|SET tx 8|RESET|MULTI|GET tx|EXEC",
    "MULTI|APPEND tx|RESET|EXEC",
    "UNWATCH x|UNWATCH|EXEC x|MULTI x",
];

#[test]
fn commands_and_their_errors() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let mut script: Vec<Vec<u8>> = COMMANDS.split('|').map(words).collect();
    script.push(request(&["SET", "", ""]));
    script.push(request(&["GET", ""]));
    script.push(request(&["SET", "bin\r\n\0", "a\r\n\0b"]));
    script.push(request(&["GET", "bin\r\n\0"]));
    script.push(request(&["NO\r\nSUCH", "a\r\nb", "c\0d"]));
    script.push(request(&[
        &"n".repeat(200),
        &"a".repeat(100),
        &"b".repeat(100),
        "c",
    ]));
    script.push(request(&["CLIENT", "SETNAME", "two words"]));
    script.push(request(&["SELECT", ""]));
    script.push(request(&["INCRBY", "n", ""]));
    script.push(b"\r\n\n  \r\n*0\r\n*-1\r\nPING\r\nSET inline 'a b'\r\nGET inline\r\n".to_vec());
    script.push(b"set q \"a\\x41\\n\\\"\"\nget q\n".to_vec());
    // This pipeline mixes answers of the front end itself with answers from the log.
    script.push(
        [
            words("INCR p"),
            words("PING"),
            words("INCR p"),
            words("NOSUCH"),
            words("GET p"),
        ]
        .concat(),
    );
    for silent in SILENT {
        script.push(silent.split('|').flat_map(words).collect());
    }
    for transaction in TRANSACTIONS {
        script.push(transaction.split('|').flat_map(words).collect());
    }
    script.push(words("QUIT"));
    let cluster = Cluster::start("compare", Faults::default());
    compare(cluster.address, redis.address, &script);
    // A scan over several partitions takes several calls even if it finds nothing, so SCAN isn't
    // compared there.
    script.retain(|bytes| !bytes.starts_with(b"*") || !bytes.windows(4).any(|w| w == b"SCAN"));
    let cluster = Cluster::start_over("compare-4", Faults::default(), 4, Order::Connection);
    Client::connect(redis.address).ask(&["FLUSHALL"], "+OK\r\n");
    compare(cluster.address, redis.address, &script);
}

/// Commands whose answers look different in RESP3, and back in RESP2.
const THIRD_VERSION: &str = "\
    HELLO 3 SETNAME me|CLIENT GETNAME|GET none|SET k v NX|SET k v NX|MGET k none|CONFIG GET save|\
    CONFIG GET nosuch|COMMAND INFO nosuch|NOSUCH|CLIENT GETNAME|HELLO 2|GET none|RESET|GET none";

#[test]
fn resp3() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cluster = Cluster::start("compare-resp3", Faults::default());
    let script: Vec<Vec<u8>> = THIRD_VERSION.split('|').map(words).collect();
    let (mut a, mut b) = (
        Client::connect(cluster.address),
        Client::connect(redis.address),
    );
    for bytes in &script {
        let (ours, theirs) = (answer(&mut a, bytes), answer(&mut b, bytes));
        assert_eq!(
            without_id(&ours),
            without_id(&theirs),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
}

/// Removes the client's number from HELLO's answer, as it differs in each run.
fn without_id(answer: &str) -> String {
    match answer.split_once("$2\r\nid\r\n:") {
        Some((before, after)) => {
            let (_, after) = after.split_once("\r\n").unwrap();
            format!("{before}$2\r\nid\r\n{after}")
        }
        None => answer.to_owned(),
    }
}

#[test]
fn passwords() {
    let Some(redis) = Redis::start(&["--requirepass", "secret"]) else {
        return;
    };
    let cluster = Cluster::start_with("compare-auth", Faults::default(), |settings| {
        settings.access = Box::new(|| Ok(Access::Password(Some("secret".into()))));
    });
    let lines = "GET k|PING|NOSUCH|GET|HELLO|HELLO 3|HELLO 2 AUTH default wrong|AUTH wrong|\
        AUTH default wrong|AUTH other secret|AUTH a b c|CLIENT ID|COMMAND|AUTH secret|GET k|RESET|\
        GET k|AUTH default secret|GET k|QUIT";
    let script: Vec<Vec<u8>> = lines.split('|').map(words).collect();
    compare(cluster.address, redis.address, &script);
    for bytes in [&b"*11\r\n$1\r\n"[..], b"*1\r\n$16385\r\n"] {
        compare(cluster.address, redis.address, &[bytes.to_vec()]);
    }
}

#[test]
fn protocol_errors() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cluster = Cluster::start("compare-protocol", Faults::default());
    for bytes in [
        &b"*x\r\n"[..],
        b"*99999999999999999999\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$9999999999\r\n",
        b"set k \"open\r\n",
        b"set k \"closed\"early\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$x\r\n",
        b"POST / HTTP/1.1\r\n",
        b"Host: example\r\n",
    ] {
        compare(cluster.address, redis.address, &[bytes.to_vec()]);
    }
}

#[test]
fn a_slow_sender_is_understood() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cluster = Cluster::start("compare-slow", Faults::default());
    let mut answers = Vec::new();
    for address in [cluster.address, redis.address] {
        let mut client = Client::connect(address);
        for byte in request(&["SET", "slow", "value\r\n"]) {
            client.send(&[byte]);
            std::thread::sleep(Duration::from_millis(1));
        }
        answers.push(answer(&mut client, &words("GET slow")));
    }
    assert_eq!(answers[0], answers[1]);
}

/// Returns the value of one field of CLIENT INFO.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let found = line.split(' ').find_map(|word| word.strip_prefix(name));
    found.unwrap_or_else(|| panic!("{name} in {line}"))
}

fn is_over(client: &mut Client) -> bool {
    matches!(client.0.read(&mut [0]), Ok(0) | Err(_))
}

/// Lists, kills and pauses clients; returns what was answered and seen, without the parts that
/// differ in each run.
fn deal_with_clients(address: SocketAddr) -> Vec<String> {
    let mut seen = Vec::new();
    let mut one = Client::connect(address);
    let info = |client: &mut Client| {
        let info = answer(client, &words("CLIENT INFO"));
        info.lines()
            .find(|line| line.starts_with("id="))
            .unwrap()
            .to_owned()
    };
    let id = |client: &mut Client| field(&info(client), "id=").to_owned();
    let mut other = Client::connect(address);
    let line = info(&mut other);
    let shown: Vec<&str> = line
        .split(' ')
        .filter_map(|word| word.split('=').next())
        .collect();
    // Redis 7.2 has further fields behind these.
    seen.push(shown[..28].join(" "));
    for name in [
        "db=", "sub=", "multi=", "flags=", "cmd=", "user=", "redir=", "resp=",
    ] {
        seen.push(field(&line, name).trim().to_owned());
    }
    other.ask(&["CLIENT", "SETNAME", "other"], "+OK\r\n");
    other.ask(&["SET", "k", "v"], "+OK\r\n");
    other.ask(&["MULTI"], "+OK\r\n");
    other.ask(&["GET", "k"], "+QUEUED\r\n");
    let its = id(&mut one);
    let listed = answer(&mut one, &words("CLIENT LIST"));
    for line in listed.lines().filter(|line| line.starts_with("id=")) {
        for name in ["name=", "flags=", "multi=", "cmd="] {
            seen.push(field(line, name).to_owned());
        }
    }
    let listed = answer(
        &mut one,
        &words(&format!("CLIENT LIST ID 99999 {its} {its}")),
    );
    seen.push(listed.matches(&format!("id={its} ")).count().to_string());

    for how in ["ID", "ADDR", "LADDR", "old", "TYPE"] {
        let mut victim = Client::connect(address);
        let line = info(&mut victim);
        let kill = match how {
            "ID" => format!("CLIENT KILL ID {}", field(&line, "id=")),
            // Both clients have the same local address.
            "LADDR" => format!(
                "CLIENT KILL LADDR {} ADDR {}",
                field(&line, "laddr="),
                field(&line, "addr=")
            ),
            "old" => format!("CLIENT KILL {}", field(&line, "addr=")),
            "TYPE" => "CLIENT KILL TYPE normal SKIPME yes".to_owned(),
            _ => format!("CLIENT KILL ADDR {}", field(&line, "addr=")),
        };
        seen.push(format!("{how} {}", answer(&mut one, &words(&kill))));
        seen.push(is_over(&mut victim).to_string());
    }
    // The last command killed all clients but the one that sent it.
    seen.push(is_over(&mut other).to_string());
    let itself = format!("CLIENT KILL ID {its} SKIPME no");
    one.send(&[words(&itself), words("PING")].concat());
    seen.push(String::from_utf8_lossy(&one.rest()).into_owned());

    // A pause of writes ends when a client says so.
    let (mut one, mut writer) = (Client::connect(address), Client::connect(address));
    let blocked = |client: &mut Client| {
        let info = answer(client, &words("INFO clients"));
        let mut lines = info
            .lines()
            .filter_map(|line| line.strip_prefix("blocked_clients:"));
        lines.next().unwrap().to_owned()
    };
    one.ask(&["CLIENT", "PAUSE", "100000", "WRITE"], "+OK\r\n");
    writer.ask(
        &["SET", "k"],
        "-ERR wrong number of arguments for 'set' command\r\n",
    );
    writer.send(&[words("GET k"), words("SET k w"), words("GET k")].concat());
    writer.expect("$1\r\nv\r\n");
    eventually("it is postponed", || blocked(&mut one) == "1");
    one.ask(&["GET", "k"], "$1\r\nv\r\n");
    let line = answer(&mut one, &words("CLIENT LIST"));
    seen.push(
        line.lines()
            .filter(|line| line.contains("flags=b"))
            .count()
            .to_string(),
    );
    one.ask(&["CLIENT", "UNPAUSE"], "+OK\r\n");
    writer.expect("+OK\r\n$1\r\nw\r\n");
    // A pause of all commands ends by itself, and the commands sent meanwhile are executed after
    // it.
    one.ask(&["CLIENT", "PAUSE", "50"], "+OK\r\n");
    one.ask(&["PING"], "+PONG\r\n");
    one.ask(&["CLIENT", "PAUSE", "100000", "WRITE"], "+OK\r\n");
    one.ask(&["MULTI"], "+OK\r\n");
    one.ask(&["GET", "k"], "+QUEUED\r\n");
    one.ask(&["EXEC"], "*1\r\n$1\r\nw\r\n");
    // A client that goes away while its command is postponed has changed nothing.
    writer.send(&words("SET k x"));
    eventually("it is postponed", || blocked(&mut one) == "1");
    let its = answer(&mut one, &words("CLIENT LIST"));
    let its = its.lines().find(|line| line.contains("flags=b")).unwrap();
    let kill = format!("CLIENT KILL ID {}", field(its, "id="));
    seen.push(answer(&mut one, &words(&kill)));
    seen.push(is_over(&mut writer).to_string());
    one.ask(&["CLIENT", "UNPAUSE"], "+OK\r\n");
    one.ask(&["GET", "k"], "$1\r\nw\r\n");
    seen
}

#[test]
fn clients_are_shown_ended_and_paused() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cluster = Cluster::start("compare-clients", Faults::default());
    assert_eq!(
        deal_with_clients(cluster.address),
        deal_with_clients(redis.address)
    );
}
