// SPDX-License-Identifier: Apache-2.0
//! Byte for byte the answers of a real Redis server, where one is installed.

mod harness;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use front_end::Order;
use harness::{Client, Cluster, Faults, eventually, request};

/// The server as package redis-tools has it: one program that goes by the name it is called. Package
/// redis-server would also start a service, on the very port that a front end likes to have.
const REDIS: &str = "/usr/bin/redis-check-rdb";

/// A real server; ends with the test.
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
        // An address of its own: a port that is free on 127.0.0.1 may be another test's by the time
        // that the server binds it.
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

/// A command that all may call, and no other answers alike.
const MARK: [&str; 2] = ["HELLO", "the-end-of-this-answer"];
const MARK_ANSWER: &[u8] = b"-ERR Protocol version is not an integer or out of range\r\n";

/// What comes back up to the mark, or to the end of the connection.
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
            // With input unread Redis resets the connection.
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

#[test]
fn commands_and_their_errors() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let script = "PING|PING hello|PING a b|ECHO x|ECHO|GET k|SET k v|GET k|SET k w NX|SET k w XX|\
        SET k x GET|SET new y GET|SET new2 y NX GET|SET new2 z XX GET|SET k v NX XX|SET k v BOGUS|\
        SET k|SET|GET|GET a b|get k|GeT k|GETSET k 1|GETDEL k|GETDEL k|SETNX k 1|SETNX k 2|\
        INCR k|DECR k|INCRBY k 10|DECRBY k 3|INCRBY k x|INCRBY k 1.5|INCRBY k 9223372036854775808|\
        INCRBY k +1|INCRBY k -0|INCRBY k 01|DECRBY k -9223372036854775808|DECRBY k x|\
        SET n 9223372036854775807|INCR n|GET n|INCRBY n -1|SET n -9223372036854775808|DECR n|\
        DECRBY n 1|DECRBY n -1|SET t text|INCR t|APPEND t er|APPEND fresh x|APPEND t|STRLEN t|STRLEN none|\
        STRLEN|SET e 12x|INCR e|SET e 0012|INCR e|SET e 1e3|INCR e|SET e -0|INCR e|\
        MSET a 1 b 2|MSET a 1 b|MSET a|MSET|MGET a none b|MGET|EXISTS a a none|EXISTS|\
        DEL a a none|DEL|UNLINK b|DBSIZE|DBSIZE x|TYPE t|TYPE none|TYPE|SELECT 0|SELECT 16|SELECT x|\
        SELECT -1|SELECT 99999999999|SELECT|NOSUCH|NOSUCH a b c|nosuch 'quoted'|\
        SCAN x|SCAN 0 COUNT 0|SCAN 0 COUNT x|SCAN 0 BOGUS 1|SCAN 0 COUNT|SCAN|\
        SCAN 0 MATCH nothing* COUNT 1000|SCAN 0 COUNT 1000 MATCH t|SCAN 0 COUNT 1000 TYPE list|KEYS t|KEYS no*|KEYS|\
        CLIENT GETNAME|CLIENT SETNAME me|CLIENT GETNAME|CLIENT SETNAME|CLIENT|CLIENT NOSUCH|\
        CLIENT NO-EVICT on|CLIENT NO-EVICT maybe|CLIENT NO-EVICT|CLIENT ID x|CLIENT REPLY ON|\
        CONFIG GET save|CONFIG GET nosuch|CONFIG GET|CONFIG NOSUCH|CONFIG|COMMAND NOSUCH|\
        COMMAND INFO nosuch|COMMAND COUNT x|AUTH x|AUTH a b|AUTH a b c|AUTH|AUTH default any|HELLO 1|\
        HELLO 2 BOGUS|HELLO 2 AUTH x|HELLO 2 AUTH a b|HELLO 2 SETNAME|RESET|GET none|INFO nosuch|TIME x|\
        EXEC|DISCARD|DISCARD x";
    let mut script: Vec<Vec<u8>> = script.split('|').map(words).collect();
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
    // A pipeline of answers from here and from the log.
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
    // All of a transaction comes together: the mark between answers would be queued, too.
    for transaction in [
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
    ] {
        script.push(transaction.split('|').flat_map(words).collect());
    }
    script.push(words("QUIT"));
    let cluster = Cluster::start("compare", Faults::default());
    compare(cluster.address, redis.address, &script);
    // Over partitions a scan takes several calls also where there is nothing to find.
    script.retain(|bytes| !bytes.starts_with(b"*") || !bytes.windows(4).any(|w| w == b"SCAN"));
    let cluster = Cluster::start_over("compare-4", Faults::default(), 4, Order::Connection);
    Client::connect(redis.address).ask(&["FLUSHALL"], "+OK\r\n");
    compare(cluster.address, redis.address, &script);
}

#[test]
fn resp3() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let cluster = Cluster::start("compare-resp3", Faults::default());
    let lines = "HELLO 3 SETNAME me|CLIENT GETNAME|GET none|SET k v NX|SET k v NX|MGET k none|\
        CONFIG GET save|CONFIG GET nosuch|COMMAND INFO nosuch|NOSUCH|CLIENT GETNAME|HELLO 2|GET none|RESET|GET none";
    let script: Vec<Vec<u8>> = lines.split('|').map(words).collect();
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

/// The client's number, in HELLO's answer, is nobody's business.
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
        settings.password = Some("secret".to_owned());
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
