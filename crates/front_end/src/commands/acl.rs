// SPDX-License-Identifier: Apache-2.0
//! ACL: shows the users, and reads their file again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;

use crate::call::{Call, Outcome, Spec, fail, ok, unknown_subcommand, wrong_subcommand_arity};
use crate::native::Native;
use crate::shared::Shared;
use crate::table;
use crate::users::{ReadAccess, Users};

pub(crate) fn acl(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"whoami", 2) => {
            let user = call.client.user().cloned();
            call.writer()
                .bulk(user.as_ref().map_or(b"", |user| user.name()));
        }
        (b"users", 2) => {
            let names = call
                .shared
                .users
                .borrow()
                .all()
                .map(|user| user.name().to_vec())
                .collect();
            write_all(call, names);
        }
        (b"list", 2) => {
            let lines = call
                .shared
                .users
                .borrow()
                .all()
                .map(|user| user.shown().into())
                .collect();
            write_all(call, lines);
        }
        (b"cat", 2) => {
            let all = categories(call.shared)
                .into_iter()
                .map(Into::into)
                .collect();
            write_all(call, all);
        }
        (b"cat", 3) => return commands_of(call),
        (b"load", 2) => return load(call),
        (b"whoami" | b"users" | b"list" | b"cat" | b"load", _) => {
            return wrong_subcommand_arity(call, "acl");
        }
        (b"setuser" | b"deluser" | b"save", _) => {
            return fail(
                call,
                "ERR users are in the file that redis_password_file names: change it at each \
                 replica, and send ACL LOAD there",
            );
        }
        _ => return unknown_subcommand(call, "ACL"),
    }
    Outcome::Answered
}

fn write_all(call: &mut Call<'_>, texts: Vec<Vec<u8>>) {
    let mut writer = call.writer();
    writer.array(texts.len());
    texts.iter().for_each(|text| writer.bulk(text));
}

/// Answers with the commands of a category.
fn commands_of(call: &mut Call<'_>) -> Outcome {
    let wanted = String::from_utf8_lossy(call.args[2]).to_ascii_lowercase();
    if !categories(call.shared).contains(wanted.as_str()) {
        return fail(call, format!("ERR Unknown category '{wanted}'"));
    }
    let names = match &call.shared.native {
        Some(native) => {
            let all = native.catalogue().specs();
            let found = all.filter(|spec| spec.categories().any(|of| of == wanted));
            found.map(|spec| spec.name.clone().into_bytes()).collect()
        }
        None => {
            let all = table::COMMANDS.iter();
            let found = all.filter(|spec| spec.categories().contains(&wanted.as_str()));
            found.map(|spec| spec.name.into()).collect()
        }
    };
    write_all(call, names);
    Outcome::Answered
}

/// Reads the file again. A wrong file changes nothing. Clients notice the new users at their next
/// command.
fn load(call: &mut Call<'_>) -> Outcome {
    let native = call.shared.native.as_ref();
    let read = call
        .shared
        .users
        .borrow_mut()
        .read(&|name| is_known(native, name));
    match read {
        Ok(()) => ok(call),
        Err(why) => fail(call, format!("ERR the users stay as they were: {why}")),
    }
}

/// Returns true if there is such a command, or a category `@name`.
pub(crate) fn is_known(native: Option<&Native>, name: &str) -> bool {
    match (name.strip_prefix('@'), native) {
        (Some(category), _) => categories_of(native).contains(category),
        (None, Some(native)) => native.named(name.as_bytes()).is_some(),
        (None, None) => table::find(name.as_bytes()).is_some(),
    }
}

fn categories(shared: &Shared) -> BTreeSet<&str> {
    categories_of(shared.native.as_ref())
}

fn categories_of(native: Option<&Native>) -> BTreeSet<&str> {
    match native {
        Some(native) => {
            let all = native.catalogue().specs();
            all.flat_map(|spec| spec.categories()).collect()
        }
        None => table::COMMANDS.iter().flat_map(Spec::categories).collect(),
    }
}

/// Reads the users as the front end starts.
pub(crate) fn users(access: ReadAccess, native: Option<&Native>) -> io::Result<RefCell<Users>> {
    let users = Users::new(access, &|name| is_known(native, name));
    users.map(RefCell::new).map_err(io::Error::other)
}
