// SPDX-License-Identifier: Apache-2.0
//! The server's commands, as its own COMMAND describes them: their names, what they change, and
//! where their keys are.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::resp::{Malformed, Value};
use super::rules::{self, Verdict};

/// The length of the longest command name.
const LONGEST_NAME: usize = 64;

const UNAGREED: &str =
    "not every replica of the group is known to have a server with it; upgrade the others";

/// All commands of a server.
#[derive(Clone)]
pub struct Catalogue {
    /// COMMAND's answer, as clients get it.
    shown: Vec<u8>,
    specs: Vec<Spec>,
    /// The numbers of commands by name, in lower case; subcommands as `config|get`.
    numbers: HashMap<Vec<u8>, usize, BuildHasherDefault<NameHasher>>,
}

/// A hash of names (FNV-1a). The names are the server's own, so nobody can choose them to share a
/// bucket.
struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> NameHasher {
        NameHasher(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn write_usize(&mut self, _len: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// COMMAND's description of one command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spec {
    /// The command's index in the catalogue.
    pub number: usize,
    /// The name in lower case.
    pub name: String,
    /// The number of arguments with the name; a negative one is a minimum.
    pub arity: i64,
    /// The command only reads the keys that it names. (PFCOUNT is flagged so, and writes.)
    pub is_read: bool,
    /// The command runs a script, which may name any keys.
    pub is_script: bool,
    /// The command may wait, if it is executed by itself.
    pub may_wait: bool,
    /// How a group of several partitions executes the command, if it names no key.
    pub spread: Spread,
    /// The command is about all keys or all scripts of a group of several partitions, if it names
    /// no key.
    pub concerns_all: bool,
    needs: Needs,
    pub(super) flags: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) tips: Vec<String>,
    keys: Vec<KeySpec>,
    has_subcommands: bool,
    /// Not all servers of the group are known to have the command, so none of them executes it.
    pub(super) is_unagreed: bool,
    /// The decisions whether the command is executed: by itself, and within a transaction.
    verdicts: [Verdict; 2],
}

/// What a server needs to execute a command, besides the command itself and its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Needs {
    #[default]
    More,
    Nothing,
    /// The server needs nothing, and the command writes and has a short answer, unless it is a SET
    /// that asks for the old value.
    NothingBriefly,
}

/// How a command without keys is sent to partitions, and how the answers are combined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spread {
    /// The command goes to any one partition.
    #[default]
    One,
    /// The command goes to all partitions, and the answers, which are numbers, are added.
    Sum,
    /// The command goes to all partitions, and the answer is the smallest number, or the smallest
    /// at each place of an array.
    Least,
    /// The command goes to all partitions, and the answer is an error if there is one, otherwise
    /// the last answer.
    Same,
    /// The command goes to all partitions, and arrays are joined; otherwise the answer is the first
    /// one that isn't nil.
    Joined,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct KeySpec {
    writes: bool,
    begin: Begin,
    find: Find,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Begin {
    Index(i64),
    Keyword(Vec<u8>, i64),
    Unknown,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Find {
    Range { last: i64, step: i64, limit: i64 },
    Count { at: i64, first: i64, step: i64 },
    Unknown,
}

/// The keys of one command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// The indices of arguments that are keys, each with whether it may be changed.
    pub known: Vec<(usize, bool)>,
    /// The command may touch further keys.
    pub has_others: bool,
}

impl Catalogue {
    /// Parses the answer to COMMAND.
    pub fn parse(answer: &[u8]) -> Result<Catalogue, Malformed> {
        let mut catalogue = Catalogue {
            shown: answer.to_vec(),
            specs: Vec::new(),
            numbers: HashMap::default(),
        };
        for command in Value::parse(answer)?.items() {
            catalogue.add(command)?;
        }
        match catalogue.is_empty() {
            true => Err(Malformed),
            false => Ok(catalogue),
        }
    }

    /// Returns COMMAND's answer, for a client that speaks RESP2.
    pub fn shown(&self) -> &[u8] {
        &self.shown
    }

    /// Returns all commands, by their numbers.
    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.specs.iter()
    }

    /// Returns the number of commands, without subcommands.
    pub fn len(&self) -> usize {
        let whole = |spec: &&Spec| !spec.name.contains('|');
        self.specs().filter(whole).count()
    }

    /// Returns false for every catalogue that was parsed.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Returns the command of this name, in upper or lower case.
    pub fn named(&self, name: &[u8]) -> Option<&Spec> {
        let mut lower = [0; LONGEST_NAME];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.numbers.get(&*lower).map(|number| &self.specs[*number])
    }

    /// Returns the command that the arguments name, or the error that answers them.
    pub fn find(&self, args: &[&[u8]]) -> Result<&Spec, String> {
        self.find_of(self.named(args[0]), args)
    }

    /// Does the same as [`find`](Self::find), if the command's name was looked up already.
    pub fn find_of<'a>(
        &'a self,
        named: Option<&'a Spec>,
        args: &[&[u8]],
    ) -> Result<&'a Spec, String> {
        let whole = named.ok_or_else(|| unknown(args))?;
        let spec = match args.get(1).filter(|_| whole.has_subcommands) {
            None => whole,
            Some(sub) => {
                let found = self.named(&[whole.name.as_bytes(), b"|", sub].concat());
                found.ok_or_else(|| {
                    format!(
                        "ERR unknown subcommand '{}'. Try {} HELP.",
                        String::from_utf8_lossy(&sub[..sub.len().min(128)]),
                        whole.name.to_uppercase()
                    )
                })?
            }
        };
        if !spec.takes(args.len()) {
            return Err(format!(
                "ERR wrong number of arguments for '{}' command",
                spec.name
            ));
        }
        Ok(spec)
    }

    /// Returns the command if it may be executed here, by itself or within a transaction; otherwise
    /// the error that answers it.
    pub fn judge(&self, args: &[&[u8]], in_transaction: bool) -> Result<&Spec, String> {
        let spec = self.find(args)?;
        spec.judge(args, in_transaction).map(|()| spec)
    }

    /// Refuses all commands but those of which the group has agreed that its servers know them.
    pub(super) fn limit_to(&mut self, knows: impl Fn(&str) -> bool) {
        for spec in self.specs.iter_mut().filter(|spec| !knows(&spec.name)) {
            spec.is_unagreed = true;
            spec.verdicts = [Verdict::Refused(UNAGREED); 2];
        }
    }

    fn add(&mut self, command: &Value<'_>) -> Result<(), Malformed> {
        let (mut spec, subcommands) = parse(command)?;
        spec.number = self.specs.len();
        self.numbers
            .insert(spec.name.clone().into_bytes(), spec.number);
        self.specs.push(spec);
        subcommands.iter().try_for_each(|sub| self.add(sub))
    }
}

/// Returns Redis's own error for an unknown command, with as much of the arguments as Redis shows.
fn unknown(args: &[&[u8]]) -> String {
    const SHOWN: usize = 128;
    let text = |bytes: &[u8], len: usize| {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(&text[..text.len().min(len)]).into_owned()
    };
    let mut shown = String::new();
    for arg in &args[1..] {
        if shown.len() >= SHOWN {
            break;
        }
        shown += &format!("'{}' ", text(arg, SHOWN - shown.len()));
    }
    let name = text(args[0], SHOWN);
    format!("ERR unknown command '{name}', with args beginning with: {shown}")
}

impl Spec {
    fn takes(&self, args: usize) -> bool {
        match self.arity {
            exact @ 0.. => args as i64 == exact,
            least => args as i64 >= -least,
        }
    }

    /// Returns the error that answers the command if it isn't executed here, by itself or within a
    /// transaction.
    pub fn judge(&self, args: &[&[u8]], in_transaction: bool) -> Result<(), String> {
        let why = match self.verdicts[usize::from(in_transaction)] {
            Verdict::Executed => None,
            Verdict::Refused(why) => Some(why),
            Verdict::ByArguments => match rules::excess(self, args) {
                None => rules::refusal(self, args),
                Some(excess) => return Err(excess),
            },
        };
        match why {
            None => Ok(()),
            Some(why) => Err(format!(
                "ERR {} isn't available here: {why}",
                self.name.replace('|', " ").to_uppercase()
            )),
        }
    }

    /// Returns a digest of what makes servers execute the command differently: its flags and where
    /// its keys are.
    pub(super) fn nature(&self) -> u32 {
        let mut hash = NameHasher::default();
        for flag in ["readonly", "write", "blocking", "noscript", "admin"] {
            hash.write(&[u8::from(self.has(flag))]);
        }
        hash.write(&[
            u8::from(self.is_script),
            u8::from(self.has_subcommands),
            u8::from(self.may_write()),
        ]);
        for key in &self.keys {
            key.hash_into(&mut hash);
        }
        let hash = hash.finish();
        (hash ^ hash >> 32) as u32
    }

    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    pub(super) fn is_of(&self, category: &str) -> bool {
        self.categories.iter().any(|known| known == category)
    }

    /// Returns the names of the command's ACL categories, such as `read`.
    pub fn categories(&self) -> impl Iterator<Item = &str> {
        let all = self.categories.iter();
        all.map(|category| category.trim_start_matches('@'))
    }

    pub(super) fn has_tip(&self, tip: &str) -> bool {
        self.tips.iter().any(|known| known == tip)
    }

    /// Returns whether the command sends a message: PUBLISH and SPUBLISH do.
    pub fn is_message(&self) -> bool {
        ["publish", "spublish"].contains(&self.name.as_str())
    }

    /// Returns whether the command may change anything or send a message. COMMAND has no flag that
    /// says so of scripts, messages, and PFCOUNT.
    pub fn may_write(&self) -> bool {
        self.has("write") || self.is_message() || self.keys.iter().any(|key| key.writes)
    }

    /// Returns whether the command and its arguments are all that the server needs: it runs no
    /// script, isn't SPOP, and sends no message.
    pub(super) fn needs_nothing_else(&self) -> bool {
        self.needs != Needs::More
    }

    /// Returns whether the command, with these arguments, writes and is answered by few bytes, so
    /// that several of them can be [joined](super::join_call).
    pub fn may_be_joined(&self, args: &[&[u8]]) -> bool {
        let asks = |arg: &&[u8]| arg.eq_ignore_ascii_case(b"get");
        let is_brief = self.needs == Needs::NothingBriefly;
        is_brief && (self.name != "set" || !args.iter().skip(3).any(asks))
    }

    /// Returns whether the command, with these arguments, may need more memory, as Redis judges it.
    /// Of a script only its first line is known.
    pub fn may_take_memory(&self, args: &[&[u8]]) -> bool {
        match self.is_script {
            true if self.name == "eval" => !rules::needs_no_memory(args[1]),
            true => !self.has("readonly"),
            false => self.has("denyoom"),
        }
    }

    /// Returns the command's keys. A command that the server will refuse may seem to have none.
    pub fn keys(&self, args: &[&[u8]]) -> Keys {
        let mut known = Vec::new();
        let has_others = self.each_key(args, |at, writes| known.push((at, writes)));
        Keys { known, has_others }
    }

    /// Calls `show` for each key with its argument's index and whether it may be changed. Returns
    /// whether the command may touch further keys.
    pub fn each_key(&self, args: &[&[u8]], mut show: impl FnMut(usize, bool)) -> bool {
        let mut has_others = self.is_script;
        for spec in &self.keys {
            match spec.positions(args) {
                Some(found) => found.for_each(|at| show(at, spec.writes)),
                None => has_others = true,
            }
        }
        has_others || self.keys.is_empty() && !self.is_read && !self.is_message()
    }
}

impl KeySpec {
    fn hash_into(&self, hash: &mut NameHasher) {
        let mut number = |number: i64| hash.write(&number.to_be_bytes());
        number(i64::from(self.writes));
        match &self.begin {
            Begin::Index(at) => [0, *at].map(&mut number),
            Begin::Keyword(_, from) => [1, *from].map(&mut number),
            Begin::Unknown => [2, 0].map(&mut number),
        };
        match self.find {
            Find::Range { last, step, limit } => [0, last, step, limit].map(&mut number),
            Find::Count { at, first, step } => [1, at, first, step].map(&mut number),
            Find::Unknown => [2, 0, 0, 0].map(&mut number),
        };
        if let Begin::Keyword(word, _) = &self.begin {
            hash.write(word);
        }
    }

    /// Finds keys as Redis's own `getKeysUsingKeySpecs` does. Returns `None` if they can't be
    /// known.
    fn positions(&self, args: &[&[u8]]) -> Option<impl Iterator<Item = usize> + use<>> {
        let count = args.len() as i64;
        let first = match &self.begin {
            Begin::Index(index) => *index,
            Begin::Keyword(word, from) => {
                let is_it = |at: &i64| args[*at as usize].eq_ignore_ascii_case(word);
                let found = match *from {
                    from @ 0.. => (from..count).find(is_it),
                    from => (1..=count + from).rev().find(is_it),
                };
                // Without the word there is no such key.
                match found {
                    Some(at) => at + 1,
                    None => return Some(in_range(1, 0, 1)),
                }
            }
            Begin::Unknown => return None,
        };
        let (first, last, step) = match self.find {
            Find::Range { last, step, limit } => {
                let last = match last {
                    behind @ 0.. => first + behind,
                    last if limit < 2 => count + last,
                    last => first + (count - first) / limit + last,
                };
                (first, last, step)
            }
            Find::Count {
                at,
                first: behind,
                step,
            } => {
                let number = args.get((first + at) as usize);
                let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                let Some(number @ 0..=0xff_ffff) = number else {
                    return Some(in_range(1, 0, 1));
                };
                let first = first + behind;
                (first, first + (number - 1) * step, step)
            }
            Find::Unknown => return None,
        };
        let fits = first > 0 && step > 0 && last < count;
        Some(match fits {
            true => in_range(first, last, step),
            false => in_range(1, 0, 1),
        })
    }
}

fn in_range(first: i64, last: i64, step: i64) -> impl Iterator<Item = usize> {
    (first..=last).step_by(step as usize).map(|at| at as usize)
}

/// Parses a command, and returns its subcommands with it.
fn parse<'v, 'a>(command: &'v Value<'a>) -> Result<(Spec, &'v [Value<'a>]), Malformed> {
    let [
        name,
        arity,
        flags,
        _,
        _,
        _,
        categories,
        tips,
        keys,
        subcommands,
    ] = command.items()
    else {
        return Err(Malformed);
    };
    let words = |list: &Value<'_>| -> Vec<String> {
        let texts = list.items().iter().filter_map(Value::text);
        texts
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect()
    };
    let name = name.text().ok_or(Malformed)?.to_ascii_lowercase();
    let keys = keys.items().iter().map(key_spec);
    let mut spec = Spec {
        name: String::from_utf8_lossy(&name).into_owned(),
        arity: arity.int().ok_or(Malformed)?,
        flags: words(flags),
        categories: words(categories),
        tips: words(tips),
        keys: keys.collect(),
        has_subcommands: !subcommands.items().is_empty(),
        ..Spec::default()
    };
    // SCRIPT and FUNCTION themselves run no script.
    spec.is_script = spec.is_of("@scripting") && spec.has("movablekeys");
    let writes = spec.keys.iter().any(|key| key.writes);
    spec.is_read = spec.has("readonly") && !writes && !spec.is_script;
    spec.may_wait = spec.has("blocking") && spec.name != "wait";
    spec.spread = spread(&spec);
    spec.concerns_all = rules::concerns_all(&spec);
    spec.needs = rules::needs(&spec);
    spec.verdicts = [false, true].map(|in_transaction| rules::verdict(&spec, in_transaction));
    Ok((spec, subcommands.items()))
}

fn spread(spec: &Spec) -> Spread {
    let asks_all = ["all_shards", "all_nodes"];
    let asks_all = asks_all.map(|of| spec.has_tip(&format!("request_policy:{of}")));
    if !asks_all.contains(&true) {
        return Spread::One;
    }
    let response = spec
        .tips
        .iter()
        .find_map(|tip| tip.strip_prefix("response_policy:"));
    match response {
        Some("agg_sum") => Spread::Sum,
        Some("agg_min" | "agg_logical_and") => Spread::Least,
        Some("all_succeeded" | "one_succeeded") => Spread::Same,
        None => Spread::Joined,
        Some(_) => Spread::One,
    }
}

/// Returns the value behind a name in a flat list of names and values.
fn field<'v, 'a>(list: &'v Value<'a>, name: &str) -> Option<&'v Value<'a>> {
    let pairs = list.items().chunks_exact(2);
    let mut found = pairs.filter(|pair| pair[0].text() == Some(name.as_bytes()));
    found.next().map(|pair| &pair[1])
}

fn key_spec(spec: &Value<'_>) -> KeySpec {
    let flags = field(spec, "flags").map_or(&[][..], Value::items);
    let has = |flag: &str| flags.iter().any(|f| f.text() == Some(flag.as_bytes()));
    KeySpec {
        writes: !has("RO"),
        begin: begin(spec).unwrap_or(Begin::Unknown),
        find: find(spec).unwrap_or(Find::Unknown),
    }
}

fn begin(spec: &Value<'_>) -> Option<Begin> {
    let search = field(spec, "begin_search")?;
    let inner = field(search, "spec")?;
    match field(search, "type")?.text()? {
        b"index" => Some(Begin::Index(field(inner, "index")?.int()?)),
        b"keyword" => {
            let word = field(inner, "keyword")?.text()?.to_vec();
            Some(Begin::Keyword(word, field(inner, "startfrom")?.int()?))
        }
        _ => None,
    }
}

fn find(spec: &Value<'_>) -> Option<Find> {
    let search = field(spec, "find_keys")?;
    let inner = field(search, "spec")?;
    let number = |name: &str| field(inner, name)?.int();
    match field(search, "type")?.text()? {
        b"range" => Some(Find::Range {
            last: number("lastkey")?,
            step: number("keystep")?,
            limit: number("limit")?,
        }),
        b"keynum" => Some(Find::Count {
            at: number("keynumidx")?,
            first: number("firstkey")?,
            step: number("keystep")?,
        }),
        _ => None,
    }
}
