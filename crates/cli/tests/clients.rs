// SPDX-License-Identifier: Apache-2.0
//! Tests of clients in other languages that name their commands ([S-NAMED]), as
//! `examples/recipes/README.md` says, while replicas die.
//!
//! Nothing is downloaded here. Tests whose client is missing are skipped; it is installed and found
//! like this:
//!
//! | client | to be got by | found by |
//! |---|---|---|
//! | ioredis | `npm install ioredis` in some directory | `NODE_PATH`, its `node_modules` |
//! | go-redis | `go get github.com/redis/go-redis/v9` in some module | Go's module cache |
//! | Jedis | its jar, and those that it needs, by Maven | `CLASSPATH` |
//! | redis-rs | `cargo add redis --no-default-features`, `cargo fetch` | Cargo's cache |

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{TestCluster, eventually, shape};
use local_cluster::resp::Reply;

/// How often each program increments `n`, beginning with 1, and checks the answer.
const TIMES: usize = 6_000;

/// A directory for a client's program.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the text in backquotes of a cell of the client's line in the table of
/// examples/recipes/README.md.
fn documented(client: &str, cell: usize) -> &'static str {
    let text = include_str!("../../../examples/recipes/README.md");
    let begins = format!("| {client} | ");
    let line = text.lines().find(|line| line.starts_with(&begins));
    let cell = line.unwrap().split(" | ").nth(cell).unwrap();
    cell.split('`').nth(1).unwrap()
}

/// Returns whether a program succeeds, and otherwise prints `missing` as the reason to skip.
fn succeeds(command: &mut Command, missing: &str) -> bool {
    let output = command.stdin(Stdio::null()).output();
    let succeeds = output.is_ok_and(|output| output.status.success());
    if !succeeds {
        println!("SKIPPED: {missing}");
    }
    succeeds
}

/// Starts a client with the addresses of all replicas as its last arguments. While it increments,
/// kills one replica after the other, and a server.
fn increments(mut start: impl FnMut(&[String]) -> Child) {
    let application = match apps::redis::is_installed() {
        true => "redis",
        false => "leveldb",
    };
    let mut cluster = TestCluster::start(&shape(application));
    (0..3).for_each(|replica| drop(cluster.call(replica, &["SET", "ready", "1"])));
    let replicas = cluster.local.redis.iter();
    let replicas: Vec<String> = replicas.map(|of| of.address.to_string()).collect();
    let mut child = start(&replicas);
    for replica in ["replica-1", "replica-2", "replica-3"] {
        let before = count(&cluster);
        eventually("more increments", || {
            (count(&cluster) >= before + 20 || child.try_wait().unwrap().is_some()).then_some(())
        });
        cluster.processes.kill(replica);
        let before = count_at(&cluster, replica == "replica-1");
        eventually("increments at another replica", || {
            let now = count_at(&cluster, replica == "replica-1");
            (now >= before + 20 || child.try_wait().unwrap().is_some()).then_some(())
        });
        cluster.start_node(replica);
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(count(&cluster), TIMES);
    cluster.assert_replicas_agree(3);
}

/// Returns the present value of the number.
fn count(cluster: &TestCluster) -> usize {
    count_at(cluster, false)
}

/// Returns the present value of the number, at the first replica or at another one.
fn count_at(cluster: &TestCluster, another: bool) -> usize {
    match cluster.call(usize::from(another), &["GET", "n"]) {
        Reply::Bulk(Some(n)) => String::from_utf8(n).unwrap().parse().unwrap(),
        _ => 0,
    }
}

// ---- ioredis

#[test]
fn ioredis() {
    let mut node = Command::new("node");
    if !succeeds(
        node.args(["-e", "require('ioredis')"]),
        "Node.js with ioredis isn't found",
    ) {
        return;
    }
    let program = NODE
        .replace("PIPELINE", documented("ioredis", 1))
        .replace("OPTIONS", documented("ioredis", 2))
        .replace("TIMES", &TIMES.to_string());
    let dir = Dir::new("wirepaxos-ioredis");
    let file = dir.write("once.js", &program);
    increments(|replicas| {
        let mut node = Command::new("node");
        node.arg(&file).args(replicas).spawn().unwrap()
    });
}

const NODE: &str = r#"
const Redis = require("ioredis");
const token = require("crypto").randomBytes(16).toString("hex");
const replicas = process.argv.slice(2).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port), connectTimeout: 500, commandTimeout: 2000, OPTIONS };
});
let at = 0;
let redis = null;

async function once(number) {
  const name = `once:${token}:${number}`;
  for (;;) {
    if (!redis) {
      redis = new Redis(replicas[at]);
      redis.on("error", () => {});
    }
    try {
      const answers = await PIPELINE;
      for (const [error] of answers) {
        if (error) throw error;
      }
      return answers[1][1];
    } catch (error) {
      redis.disconnect();
      redis = null;
      at = (at + 1) % replicas.length;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

async function main() {
  for (let n = 1; n <= TIMES; n++) {
    const answer = await once(n);
    if (answer !== n) throw new Error(`${n}: ${answer}`);
  }
  redis.disconnect();
}

setTimeout(() => { console.error("it takes too long"); process.exit(1); }, 100000).unref();
main().catch((error) => { console.error(error); process.exit(1); });
"#;

// ---- go-redis

#[test]
fn go_redis() {
    let dir = Dir::new("wirepaxos-go-redis");
    let Some(version) = newest_in_module_cache("github.com/redis/go-redis/v9") else {
        println!("SKIPPED: Go with go-redis in its module cache isn't found");
        return;
    };
    dir.write(
        "go.mod",
        &format!("module once\n\ngo 1.21\n\nrequire github.com/redis/go-redis/v9 {version}\n"),
    );
    let program = GO
        .replace("PIPELINE", documented("go-redis", 1))
        .replace("TIMES", &TIMES.to_string());
    dir.write("main.go", &program);
    let is_there = succeeds(
        go(&dir.0).args(["list", "-deps", "github.com/redis/go-redis/v9"]),
        "Go's module cache lacks what go-redis needs",
    );
    if !is_there {
        return;
    }
    let built = go(&dir.0).args(["build", "-o", "once"]).status().unwrap();
    assert!(built.success());
    increments(|replicas| {
        let mut once = Command::new(dir.0.join("once"));
        once.args(replicas).spawn().unwrap()
    });
}

/// Returns the Go command, which takes modules from its cache only.
fn go(dir: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(dir)
        .env("GOPROXY", "off")
        .env("GOSUMDB", "off")
        .env("GOFLAGS", "-mod=mod");
    go
}

fn newest_in_module_cache(module: &str) -> Option<String> {
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output();
    let cache = String::from_utf8(output.ok()?.stdout).ok()?;
    let versions = Path::new(cache.trim())
        .join("cache/download")
        .join(module)
        .join("@v");
    let names = fs::read_dir(versions).ok()?.flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let versions = names.filter_map(|name| Some(name.strip_suffix(".zip")?.to_owned()));
    versions.max_by_key(|version| {
        let numbers = version.trim_start_matches('v').split(['.', '-']);
        numbers
            .map(|number| number.parse().unwrap_or(0))
            .collect::<Vec<u64>>()
    })
}

const GO: &str = r#"
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	random := make([]byte, 16)
	rand.Read(random)
	var clients []*redis.Client
	for _, address := range os.Args[1:] {
		options := &redis.Options{Addr: address, ReadTimeout: 2 * time.Second}
		clients = append(clients, redis.NewClient(options))
	}
	for number, at := int64(1), 0; number <= TIMES; {
		name := fmt.Sprintf("once:%x:%d", random, number)
		client := clients[at]
		p := client.Pipeline()
		PIPELINE
		if err == nil && n.Val() != number {
			panic(fmt.Sprint(number, ": ", n.Val()))
		}
		if err == nil {
			number++
			continue
		}
		if ctx.Err() != nil {
			panic(err)
		}
		at = (at + 1) % len(clients)
		time.Sleep(50 * time.Millisecond)
	}
}
"#;

// ---- Jedis

#[test]
fn jedis() {
    if !succeeds(
        Command::new("javap").arg("redis.clients.jedis.Jedis"),
        "Java with Jedis in its CLASSPATH isn't found",
    ) {
        return;
    }
    let program = JAVA
        .replace("PIPELINE", documented("Jedis", 1))
        .replace("TIMES", &TIMES.to_string());
    let dir = Dir::new("wirepaxos-jedis");
    let file = dir.write("Once.java", &program);
    increments(|replicas| {
        let mut java = Command::new("java");
        java.arg(&file).args(replicas).spawn().unwrap()
    });
}

const JAVA: &str = r#"
import java.util.UUID;
import redis.clients.jedis.*;
import redis.clients.jedis.exceptions.JedisException;

public class Once {
    static final String TOKEN = UUID.randomUUID().toString();
    static final long END = System.nanoTime() + 100_000_000_000L;

    public static void main(String[] replicas) throws Exception {
        int at = 0;
        for (long number = 1; number <= TIMES; number++) {
            for (;;) {
                String[] address = replicas[at].split(":");
                try (Jedis jedis = new Jedis(address[0], Integer.parseInt(address[1]), 2_000)) {
                    long answer = increment(jedis, "once:" + TOKEN + ":" + number);
                    if (answer != number) throw new AssertionError(number + ": " + answer);
                    break;
                } catch (JedisException e) {
                    if (System.nanoTime() > END) throw e;
                    at = (at + 1) % replicas.length;
                    Thread.sleep(50);
                }
            }
        }
    }

    static long increment(Jedis jedis, String name) {
        Pipeline p = jedis.pipelined();
        PIPELINE;
        return n.get();
    }
}
"#;

// ---- redis-rs

#[test]
fn redis_rs() {
    let dir = Dir::new("wirepaxos-redis-rs");
    let cargo = |words: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo
            .args(words)
            .current_dir(&dir.0)
            .env("CARGO_TARGET_DIR", dir.0.join("target"));
        cargo
    };
    dir.write("Cargo.toml", RUST_PACKAGE);
    let program = RUST
        .replace("PIPELINE", documented("redis-rs", 1))
        .replace("TIMES", &TIMES.to_string());
    fs::create_dir_all(dir.0.join("src")).unwrap();
    dir.write("src/main.rs", &program);
    if !succeeds(
        &mut cargo(&["fetch", "--offline"]),
        "Cargo's cache lacks redis-rs, or what it needs",
    ) {
        return;
    }
    assert!(cargo(&["build", "--offline"]).status().unwrap().success());
    increments(|replicas| {
        let mut once = Command::new(dir.0.join("target/debug/once"));
        once.args(replicas).spawn().unwrap()
    });
}

const RUST_PACKAGE: &str = r#"
[package]
name = "once"
version = "0.0.0"
edition = "2021"

[dependencies]
redis = { version = "*", default-features = false }

[workspace]
"#;

const RUST: &str = r#"
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

fn main() {
    let end = Instant::now() + Duration::from_secs(100);
    let random = || RandomState::new().build_hasher().finish();
    let token = format!("{:016x}{:016x}", random(), random());
    let replicas: Vec<String> = std::env::args().skip(1).collect();
    let (mut at, mut connection) = (0, None);
    for number in 1..=TIMES {
        let name = format!("once:{token}:{number}");
        loop {
            match once(&replicas[at], &mut connection, &name) {
                Ok(answer) => {
                    assert_eq!(answer, number);
                    break;
                }
                Err(e) => assert!(Instant::now() < end, "{e}"),
            }
            connection = None;
            at = (at + 1) % replicas.len();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn once(
    address: &str,
    connection: &mut Option<redis::Connection>,
    name: &str,
) -> redis::RedisResult<i64> {
    if connection.is_none() {
        let client = redis::Client::open(format!("redis://{address}/"))?;
        let opened = client.get_connection_with_timeout(Duration::from_secs(2))?;
        opened.set_read_timeout(Some(Duration::from_secs(2)))?;
        *connection = Some(opened);
    }
    let mut connection = connection.as_mut().expect("it is open");
    let (answer,): (i64,) = PIPELINE?;
    Ok(answer)
}
"#;
