// SPDX-License-Identifier: Apache-2.0
//! SPOP. Which member a server would take depends on how the set's table is laid out, and that on what the server has lived through.
//! So the replica chooses: of the members in their order, by dice that are seeded by what was executed so far. The server gets the
//! choice, as SREM.

use paxos::SplitMix;
use replica::Error;

use super::resp::{Value, put_error, put_number, put_request};
use super::server::User;
use super::state::Replicated;
use crate::kv::parse_integer;

/// What is asked for.
enum Wanted {
    One,
    Some(usize),
}

impl Replicated {
    /// Its arguments are as many as COMMAND says.
    pub(super) fn spop(
        &mut self,
        resp3: bool,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let wanted = match wanted(args) {
            Ok(wanted) => wanted,
            Err(why) => {
                put_error(reply, why);
                return Ok(());
            }
        };
        let answer = self.members(args[1])?;
        let Ok(Value::List(members)) = Value::parse(&answer) else {
            // The key holds something else.
            reply.extend_from_slice(&answer);
            return Ok(());
        };
        let members: Vec<&[u8]> = members.iter().filter_map(Value::text).collect();
        let taken = self.choose(members, &wanted);
        match (wanted, &taken[..]) {
            (Wanted::One, []) => reply.extend_from_slice(if resp3 { b"_\r\n" } else { b"$-1\r\n" }),
            (Wanted::One, [member, ..]) => put_text(reply, member),
            (Wanted::Some(_), _) => {
                put_number(reply, if resp3 { b'~' } else { b'*' }, taken.len());
                taken.iter().for_each(|member| put_text(reply, member));
            }
        }
        self.remove(args[1], &taken)
    }

    fn members(&mut self, key: &[u8]) -> Result<Vec<u8>, Error> {
        let mut requests = Vec::new();
        put_request(&mut requests, &[b"SMEMBERS", key]);
        let given = self.given(User::Client, false, requests, 1);
        let mut answer = Vec::new();
        self.give(&given, &mut answer)?;
        Ok(answer)
    }

    /// The same on all replicas that hold the same members, in whatever order they come.
    fn choose<'a>(&mut self, mut members: Vec<&'a [u8]>, wanted: &Wanted) -> Vec<&'a [u8]> {
        let count = match wanted {
            Wanted::One => 1,
            Wanted::Some(count) => *count,
        };
        let count = count.min(members.len());
        if count == 0 {
            return Vec::new();
        }
        self.drawn += 1;
        let mut dice = SplitMix::new(self.drawn);
        if count == 1 {
            let at = below(members.len(), &mut dice);
            return vec![*members.select_nth_unstable(at).1];
        }
        members.sort_unstable();
        for at in 0..count {
            let other = at + below(members.len() - at, &mut dice);
            members.swap(at, other);
        }
        members.truncate(count);
        members
    }

    fn remove(&mut self, key: &[u8], members: &[&[u8]]) -> Result<(), Error> {
        if members.is_empty() {
            return Ok(());
        }
        let mut requests = Vec::new();
        put_request(&mut requests, &[&[b"SREM", key], members].concat());
        let given = self.given(User::Client, false, requests, 1);
        self.give_and_keep(given, &mut Vec::new())
    }
}

fn below(many: usize, dice: &mut SplitMix) -> usize {
    (dice.draw() % many as u64) as usize
}

/// In Redis's own words if it is nothing.
fn wanted(args: &[&[u8]]) -> Result<Wanted, &'static str> {
    let count = match args {
        [_, _] => return Ok(Wanted::One),
        [_, _, count] => parse_integer(count).and_then(|count| usize::try_from(count).ok()),
        _ => return Err("ERR syntax error"),
    };
    count
        .map(Wanted::Some)
        .ok_or("ERR value is out of range, must be positive")
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}
