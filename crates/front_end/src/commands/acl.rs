// SPDX-License-Identifier: Apache-2.0
//! ACL: shows the users, and reads their file again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;

use crate::call::{Call, Outcome, fail, unknown_subcommand, wrong_subcommand_arity};
use crate::native::Native;
use crate::shared::Shared;
use crate::state::client_query::Ask;
use crate::table;
use crate::users::{ReadAccess, User, Users};

pub(crate) fn acl(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"whoami", 2) => {
            let user = call.client.user_name().to_vec();
            call.writer().bulk(&user);
        }
        (b"users", 2) => write_all(call, of_users(call.shared, |user| user.name().to_vec())),
        (b"list", 2) => write_all(call, of_users(call.shared, |user| user.shown().into())),
        (b"cat", 2) => {
            let all = categories(call.shared.native.as_ref()).into_iter();
            write_all(call, all.map(Into::into).collect());
        }
        (b"cat", 3) => return commands_of(call),
        (b"load", 2) => return Outcome::Asks(Ask::LoadUsers),
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

fn of_users(shared: &Shared, show: impl Fn(&User) -> Vec<u8>) -> Vec<Vec<u8>> {
    let users = shared.users.borrow();
    users.all().map(|user| show(user)).collect()
}

fn write_all(call: &mut Call<'_>, texts: Vec<Vec<u8>>) {
    let mut writer = call.writer();
    writer.array(texts.len());
    texts.iter().for_each(|text| writer.bulk(text));
}

/// Answers with the commands of a category.
fn commands_of(call: &mut Call<'_>) -> Outcome {
    let wanted = String::from_utf8_lossy(call.args[2]).to_ascii_lowercase();
    let all = commands(call.shared.native.as_ref());
    let found = all.filter(|(_, categories)| categories.contains(&wanted.as_str()));
    let names: Vec<Vec<u8>> = found.map(|(name, _)| name.into()).collect();
    if names.is_empty() {
        return fail(call, format!("ERR Unknown category '{wanted}'"));
    }
    write_all(call, names);
    Outcome::Answered
}

/// Reads the users again; a wrong file changes nothing.
pub(crate) fn read_again(shared: &Shared) -> Result<(), String> {
    let native = shared.native.as_ref();
    let mut users = shared.users.borrow_mut();
    users.read(&|name| unknown(native, name))
}

/// Returns why there is no such command, or no such category `@name`, if that is so.
fn unknown(native: Option<&Native>, name: &str) -> Option<String> {
    let is_known = match (name.strip_prefix('@'), native) {
        (Some(category), _) => commands(native).any(|(_, of)| of.contains(&category)),
        (None, Some(native)) => native.named(name.as_bytes()).is_some(),
        (None, None) => table::find(name.as_bytes()).is_some(),
    };
    match (is_known, name.starts_with('@')) {
        (true, _) => None,
        (false, false) => Some("there is no such command here".to_owned()),
        (false, true) => {
            let all = Vec::from_iter(categories(native)).join(", ");
            Some(format!("there is no such category here; there are {all}"))
        }
    }
}

fn categories(native: Option<&Native>) -> BTreeSet<&str> {
    commands(native)
        .flat_map(|(_, categories)| categories)
        .collect()
}

/// Returns the name of each command, with its categories.
fn commands<'a>(
    native: Option<&'a Native>,
) -> Box<dyn Iterator<Item = (&'a str, Vec<&'a str>)> + 'a> {
    match native {
        Some(native) => {
            let all = native.catalogue().specs();
            Box::new(all.map(|spec| (spec.name.as_str(), spec.categories().collect())))
        }
        None => Box::new(
            table::COMMANDS
                .iter()
                .map(|spec| (spec.name, spec.categories())),
        ),
    }
}

/// Reads the users as the front end starts.
pub(crate) fn users(access: ReadAccess, native: Option<&Native>) -> io::Result<RefCell<Users>> {
    let users = Users::new(access, &|name| unknown(native, name));
    users.map(RefCell::new).map_err(io::Error::other)
}
