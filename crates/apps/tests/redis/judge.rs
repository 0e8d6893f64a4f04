// SPDX-License-Identifier: Apache-2.0
//! Random commands on several servers, which must all answer the same.

use super::*;

/// Patterns of random commands. `{k}` is a key, `{l}` a key of a list, and so on; `{n}` is a
/// number, `{ms}` a time to live.
const TEMPLATES: &[&str] = &[
    "SET {k} {v}",
    "SET {k} {v} PX {ms}",
    "SET {k} {v} EX 3 NX GET",
    "SET {k} {v} KEEPTTL",
    "GET {k}",
    "GETEX {k} PX {ms}",
    "GETDEL {k}",
    "APPEND {k} {v}",
    "INCRBY {c} {n}",
    "INCRBYFLOAT {c} 0.1",
    "DECR {c}",
    "SETRANGE {k} {n} {v}",
    "GETRANGE {k} 0 {n}",
    "STRLEN {k}",
    "MSET {k} {v} {k} {v}",
    "MSETNX {k} {v} {k} {v}",
    "MGET {k} {k} {c}",
    "LCS {k} {k}",
    "SETBIT {b} {n} 1",
    "BITCOUNT {b}",
    "BITOP XOR {b} {b} {k}",
    "BITFIELD {b} INCRBY u5 {n} 1",
    "DEL {k} {a}",
    "UNLINK {a}",
    "EXISTS {a} {a}",
    "TYPE {a}",
    "TTL {a}",
    "PTTL {a}",
    "EXPIRE {a} 2",
    "PEXPIRE {a} {ms}",
    "PEXPIRE {a} {ms} GT",
    "PERSIST {a}",
    "RENAME {a} {a}",
    "RENAMENX {a} {a}",
    "COPY {a} {a} REPLACE",
    "TOUCH {a}",
    "OBJECT ENCODING {a}",
    "RANDOMKEY",
    "KEYS *1*",
    "SCAN 0 COUNT 5",
    "DBSIZE",
    "LPUSH {l} {v} {v}",
    "RPUSH {l} {v} {n}",
    "LPOP {l} 2",
    "RPOP {l}",
    "LINSERT {l} BEFORE {v} {v}",
    "LREM {l} 1 {v}",
    "LSET {l} 0 {v}",
    "LTRIM {l} 0 {n}",
    "LRANGE {l} 0 -1",
    "LMOVE {l} {l} LEFT RIGHT",
    "LMPOP 2 {l} {l} LEFT",
    "LPOS {l} {v}",
    "SORT {l} ALPHA",
    "SORT {s} ALPHA LIMIT 0 3 STORE {l}",
    "SORT {s} BY c* LIMIT 2 7 STORE {l}",
    "SORT {s} BY nosort DESC STORE {l}",
    "SORT {z} BY nosort LIMIT 1 3 STORE {l}",
    "HSET {h} {f} {v} {f} {n}",
    "HSETNX {h} {f} {v}",
    "HGET {h} {f}",
    "HGETALL {h}",
    "HKEYS {h}",
    "HDEL {h} {f}",
    "HINCRBY {h} {f} {n}",
    "HINCRBYFLOAT {h} {f} 1.5",
    "HRANDFIELD {h} 2",
    "HLEN {h}",
    "SADD {s} {v} {n} {f}",
    "SADD {s} {n} {n} {n} {n} {n}",
    "SREM {s} {v} {n}",
    "SMOVE {s} {s} {v}",
    "SPOP {s}",
    "SPOP {s} 3",
    "SPOP {s}",
    "SMEMBERS {s}",
    "SRANDMEMBER {s} 2",
    "SINTERSTORE {s} {s} {s}",
    "SUNIONSTORE {s} {s} {s}",
    "SDIFFSTORE {s} {s} {s}",
    "SUNION {s} {s}",
    "SINTERCARD 2 {s} {s}",
    "ZADD {z} {n} {v} {n} {f}",
    "ZADD {z} GT CH {n} {v}",
    "ZINCRBY {z} 0.3 {v}",
    "ZRANGE {z} 0 -1 WITHSCORES",
    "ZRANGESTORE {z} {z} 0 3",
    "ZPOPMIN {z}",
    "ZMPOP 1 {z} MAX COUNT 2",
    "ZREM {z} {v}",
    "ZUNIONSTORE {z} 2 {z} {s} WEIGHTS 1 0.5",
    "ZINTER 2 {z} {z} WITHSCORES",
    "ZREMRANGEBYRANK {z} 5 -1",
    "ZRANDMEMBER {z} 2",
    "GEOADD {g} {lon} {lat} {v}",
    "GEOSEARCHSTORE {z} {g} FROMLONLAT 1 1 BYRADIUS 4000 km ASC",
    "GEODIST {g} {v} {v}",
    "PFADD {p} {v} {n} {f}",
    "PFCOUNT {p} {p}",
    "PFMERGE {p} {p}",
    "XADD {x} * {f} {v}",
    "XADD {x} MAXLEN ~ 20 * {f} {v}",
    "XLEN {x}",
    "XRANGE {x} - +",
    "XDEL {x} 1-1",
    "XTRIM {x} MAXLEN 10",
    "XGROUP CREATE {x} group 0 MKSTREAM",
    "XREADGROUP GROUP group {f} COUNT 2 STREAMS {x} >",
    "XPENDING {x} group",
    "XAUTOCLAIM {x} group {f} {ms} 0 COUNT 2",
    "XINFO STREAM {x} FULL",
    "EVAL @incr 1 {c}",
    "EVAL @time 1 {k}",
    "EVAL @dice 1 {k}",
    "EVAL @list 2 {l} {z}",
    "EVAL @add 1 {s}",
    "EVALSHA 61636018f4e6b5817b89791bbed242f93fa089e3 1 {c}",
    "SCRIPT EXISTS 61636018f4e6b5817b89791bbed242f93fa089e3",
    "FUNCTION LOAD REPLACE @library",
    "FCALL put 1 {k} {v}",
    "DUMP {a}",
    "FLUSHALL",
    "SCRIPT FLUSH",
];

const SCRIPTS: &[(&str, &str)] = &[
    ("@incr", "return redis.call('INCR', KEYS[1])"),
    (
        "@time",
        "local t = redis.call('TIME'); return redis.call('SET', KEYS[1], t[1] .. '.' .. t[2])",
    ),
    (
        "@dice",
        "return redis.call('SET', KEYS[1], math.random(1000000))",
    ),
    (
        "@list",
        "local a = redis.call('LRANGE', KEYS[1], 0, -1); \
         for i, v in ipairs(a) do redis.call('ZADD', KEYS[2], i, v) end; return #a",
    ),
    ("@add", "return redis.call('SADD', KEYS[1], 'x', 'y')"),
    (
        "@library",
        "#!lua name=mine\nredis.register_function('put', function(k, a) return redis.call('SET', \
         k[1], a[1]) end)",
    ),
];

fn random_words(rng: &mut Rng) -> Vec<Vec<u8>> {
    let template = loop {
        let template = TEMPLATES[rng.below(TEMPLATES.len() as u64) as usize];
        // If these weren't rare, there would never be many keys.
        let rare = ["FLUSHALL", "SCRIPT FLUSH"].contains(&template);
        if !rare || rng.below(10) == 0 {
            break template;
        }
    };
    let words = template.split(' ').map(|word| fill(rng, word).into_bytes());
    words.collect()
}

pub(super) fn fill(rng: &mut Rng, word: &str) -> String {
    if let Some((_, script)) = SCRIPTS.iter().find(|(name, _)| *name == word) {
        return (*script).into();
    }
    let Some(kind) = word.strip_prefix('{').and_then(|w| w.strip_suffix('}')) else {
        return word.into();
    };
    let mut of = |prefix: &str, many: u64| format!("{prefix}{}", rng.below(many));
    match kind {
        "v" => of("v", 60),
        "f" => of("field", 200),
        "n" => of("", 300),
        "ms" => of("", 4_000),
        "lon" => of("", 170),
        "lat" => of("", 80),
        "a" => {
            let prefix = ["k", "c", "b", "l", "h", "s", "z", "g", "p", "x"][rng.below(10) as usize];
            format!("{prefix}{}", rng.below(6))
        }
        prefix => of(prefix, 6),
    }
}

/// Returns whether a command's answers are equal on all replicas. Others depend on the layout of
/// tables, or on expired keys that are still there.
fn is_comparable(name: &[u8]) -> bool {
    let differing: [&[u8]; 9] = [
        b"SRANDMEMBER",
        b"HRANDFIELD",
        b"ZRANDMEMBER",
        b"RANDOMKEY",
        b"SCAN",
        b"DBSIZE",
        b"DUMP",
        b"OBJECT",
        b"KEYS",
    ];
    !differing.contains(&name)
}

/// Returns an answer, with its items in order if the server promises none.
fn in_order(name: &[u8], answer: &[u8]) -> Vec<Vec<u8>> {
    let unordered: [&[u8]; 4] = [b"SMEMBERS", b"HGETALL", b"HKEYS", b"SUNION"];
    let value = Value::parse(answer).unwrap();
    if !unordered.contains(&name) || value.items().is_empty() {
        return vec![answer.to_vec()];
    }
    let texts = value
        .items()
        .iter()
        .map(|item| item.text().unwrap_or_default());
    let texts: Vec<&[u8]> = texts.collect();
    let width = if name == b"HGETALL" { 2 } else { 1 };
    let mut items: Vec<_> = texts.chunks(width).map(<[_]>::concat).collect();
    items.sort();
    items
}

struct Node {
    dir: TempDir,
    app: Option<Redis>,
    /// How many commands were answered here, and the last of these answers.
    answered: u64,
    answers: VecDeque<Vec<u8>>,
}

impl Node {
    pub(super) fn app(&mut self) -> &mut Redis {
        self.app.as_mut().unwrap()
    }

    /// Ends a batch, and collects its answers.
    fn gather(&mut self) {
        let (answered, answers) = (&mut self.answered, &mut self.answers);
        let app = self.app.as_mut().unwrap();
        app.answers(&mut |answer| {
            *answered += 1;
            answers.push_back(answer.to_vec());
        })
        .unwrap();
        commit(app, *answered);
    }
}

struct Judge {
    rng: Rng,
    nodes: Vec<Node>,
    log: Vec<Vec<u8>>,
    /// The commands whose answers haven't been compared yet, each with whether they can be.
    words: VecDeque<(Vec<Vec<u8>>, bool)>,
    ms: u64,
}

impl Judge {
    pub(super) fn end(&self) -> u64 {
        self.log.len() as u64
    }

    fn next_command(&mut self) -> (Vec<u8>, Vec<Vec<u8>>) {
        // Most commands come at the same time; clocks differ, and go back.
        self.ms += [0, 0, 1, 3, 20, 500][self.rng.below(6) as usize];
        let stamp = Stamp {
            node: 1 + self.rng.below(3) as u16,
            ms: self.ms - self.rng.below(40),
        };
        if self.rng.below(400) == 0 {
            return (self.endless(stamp), vec![b"ENDLESS".to_vec()]);
        }
        let resp3 = self.rng.percent(20);
        let words = random_words(&mut self.rng);
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let command = if self.rng.percent(5) {
            let more = random_words(&mut self.rng);
            Command::Exec {
                stamp,
                resp3: false,
                watched: Vec::new(),
                commands: vec![
                    args.clone(),
                    vec![b"INCR", b"c1"],
                    vec![b"SPOP", b"s2"],
                    more.iter().map(Vec::as_slice).collect(),
                ],
            }
            .encoded()
        } else {
            Command::Call { stamp, resp3, args }.encoded()
        };
        (command, words)
    }

    /// Returns a transaction with scripts one of which never ends, or nearly so. The scripts share
    /// their limit, which makes that short.
    fn endless(&mut self, stamp: Stamp) -> Vec<u8> {
        let rounds = (self.rng.below(4) * 2_000_000).to_string();
        let script = b"redis.call('INCR', KEYS[1]) for i = 1, ARGV[1] do end return \
                       redis.call('SADD', KEYS[2], ARGV[1])";
        let mut commands: Vec<Vec<&[u8]>> = vec![
            vec![b"INCR", b"c2"],
            vec![b"EVAL", script, b"2", b"c1", b"s1", rounds.as_bytes()],
        ];
        commands.extend(vec![vec![&b"EVAL"[..], b"return 1", b"0"]; 48]);
        let watched = Vec::new();
        Command::Exec {
            stamp,
            resp3: false,
            watched,
            commands,
        }
        .encoded()
    }

    fn step(&mut self) {
        let (command, words) = self.next_command();
        let is_call =
            matches!(Command::parse(&command), Ok(Command::Call { .. })) || words[0] == b"ENDLESS";
        let is_compared = is_call && is_comparable(&words[0]);
        self.log.push(command.clone());
        self.words.push_back((words, is_compared));
        // Batches end at other places on each replica.
        for node in &mut self.nodes {
            node.app().begin(&command).unwrap();
            if self.rng.percent(20) {
                node.gather();
            }
        }
        self.compare_answers();
        self.disturb();
    }

    fn compare_answers(&mut self) {
        while self.nodes.iter().all(|node| !node.answers.is_empty()) {
            let at = self.end() - self.words.len() as u64 + 1;
            let (words, is_compared) = self.words.pop_front().unwrap();
            let answers = self.nodes.iter_mut().map(|node| node.answers.pop_front());
            let answers: Vec<Vec<u8>> = answers.flatten().collect();
            if !is_compared {
                continue;
            }
            let first = in_order(&words[0], &answers[0]);
            for answer in &answers[1..] {
                let shown: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
                assert_eq!(in_order(&words[0], answer), first, "{at}: {shown:?}");
            }
        }
    }

    /// Makes something happen to one of the replicas.
    fn disturb(&mut self) {
        let one = self.rng.below(self.nodes.len() as u64) as usize;
        let other = (one + 1) % self.nodes.len();
        let what = self.rng.below(2_000);
        if what < 6 {
            // The log shows this if the replicas differ.
            println!("{}: {what} happens to {one}", self.end());
        }
        match what {
            0 => kill_server(self.nodes[one].app()),
            1..4 => {
                self.nodes[one].gather();
                checkpoint(self.nodes[one].app());
            }
            4 => self.restart(one),
            5 => {
                let mut bytes = Vec::new();
                self.nodes[one].gather();
                self.nodes[other].gather();
                let snapshot = self.nodes[other].app().snapshot();
                snapshot.unwrap().write_to(&mut bytes).unwrap();
                self.nodes[one].app().restore(&mut &bytes[..]).unwrap();
            }
            // A client reads something there: that removes keys that have expired, and looks at
            // tables.
            6..200 => {
                let key = fill(&mut self.rng, "{a}");
                let args = vec![&b"TYPE"[..], key.as_bytes()];
                let query = Command::Query { resp3: false, args }.encoded();
                execute(self.nodes[one].app(), &query);
            }
            _ => {}
        }
    }

    /// Restarts a replica, which goes on from its checkpoint and gets the rest from the log.
    fn restart(&mut self, one: usize) {
        let node = &mut self.nodes[one];
        node.app = None;
        let mut app = Redis::open(&node.dir.0).unwrap();
        let at = position(&mut app);
        for command in &self.log[at as usize..] {
            app.begin(command).unwrap();
        }
        let again = node.answered - at;
        let kept = node.answers.len();
        node.app = Some(app);
        node.answered = at;
        node.gather();
        node.answers.drain(kept..kept + again as usize);
    }

    fn compare(&mut self) {
        self.nodes.iter_mut().for_each(Node::gather);
        self.compare_answers();
        assert_eq!(self.words.len(), 0);
        let digests: Vec<_> = self
            .nodes
            .iter_mut()
            .map(|n| n.app().digest().unwrap())
            .collect();
        assert!(
            digests.iter().all(|d| *d == digests[0]),
            "at {}: {digests:x?}",
            self.end()
        );
    }
}

pub(super) trait Encoded {
    fn encoded(&self) -> Vec<u8>;
}

impl Encoded for Command<'_> {
    fn encoded(&self) -> Vec<u8> {
        encoded(self)
    }
}

/// `REDIS_COMMANDS=1000000 cargo test --release -p apps --test redis random` takes about an hour.
#[test]
fn random_commands_have_the_same_effect_whatever_a_replica_has_lived_through() {
    if !is_installed() {
        return;
    }
    let number = |name: &str, otherwise: u64| {
        let text = std::env::var(name).ok();
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (commands, seed) = (number("REDIS_COMMANDS", 6_000), number("REDIS_SEED", 1));
    let every = (commands / 100).clamp(500, 10_000);
    let nodes = (0..3).map(|n| {
        let dir = TempDir::new(&format!("redis-judge-{n}"));
        let app = Some(Redis::open(&dir.0).unwrap());
        Node {
            dir,
            app,
            answered: 0,
            answers: VecDeque::new(),
        }
    });
    let mut judge = Judge {
        rng: Rng::new(seed),
        nodes: nodes.collect(),
        log: Vec::new(),
        words: VecDeque::new(),
        ms: NOON,
    };
    for n in 1..=commands {
        judge.step();
        if n % every == 0 {
            judge.compare();
        }
    }
}
