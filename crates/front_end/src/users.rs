// SPDX-License-Identifier: Apache-2.0
//! The users that clients can be, and what each may do, in the words of Redis's ACL.
//!
//! ```text
//!  AUTH alice secret ──> the user "alice" ──> her commands, keys, channels ──> does this run?
//! ```

pub(crate) mod permission;
mod rules;
mod user;

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest, Sha256};

pub(crate) use user::User;

const DEFAULT: &[u8] = b"default";

/// A password's hash.
type Hash = [u8; 32];

/// The users that clients can be, or the password that all of them have.
pub enum Access {
    /// There is only the user `default`, who may do everything, perhaps with this password.
    Password(Option<String>),
    /// Users, in the format of Redis's `aclfile`. A user `default` who isn't there is off.
    Users(String),
}

/// Returns what is in force now, or why it can't be read.
pub type ReadAccess = Box<dyn Fn() -> Result<Access, String> + Send>;

/// Returns why there is no such command, or no such category `@name`, if that is so.
pub(crate) type Unknown<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// All users, by their names.
pub(crate) struct Users {
    access: ReadAccess,
    users: BTreeMap<Vec<u8>, Arc<User>>,
}

impl Users {
    /// Reads the users.
    ///
    /// # Errors
    /// If they can't be read, or a line isn't understood.
    pub fn new(access: ReadAccess, unknown: &Unknown<'_>) -> Result<Users, String> {
        let mut users = Users {
            access,
            users: BTreeMap::new(),
        };
        users.read(unknown)?;
        Ok(users)
    }

    /// Reads the users again; after an error they are as before.
    pub fn read(&mut self, unknown: &Unknown<'_>) -> Result<(), String> {
        let new = match (self.access)()? {
            Access::Password(password) => vec![User::all(DEFAULT, password.map(hash))],
            Access::Users(text) => {
                rules::parse(&text, unknown).map_err(|why| format!("redis_password_file, {why}"))?
            }
        };
        let by_name = |user: User| (user.name().to_vec(), Arc::new(user));
        self.users = new.into_iter().map(by_name).collect();
        Ok(())
    }

    /// Returns all users, in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Returns true if there is a user of this name, even one who is off.
    pub fn has(&self, name: &[u8]) -> bool {
        self.users.contains_key(name)
    }

    /// Returns true if a user is still as the client was told when it became that user.
    pub fn still_have(&self, user: &User) -> bool {
        self.find(user.name()).is_some_and(|now| **now == *user)
    }

    /// Returns the user of this name, unless the user is off.
    fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(name).filter(|user| user.is_on())
    }

    /// Returns who a client is that has shown nothing: the user `default`, unless a password is
    /// needed.
    pub fn of_a_stranger(&self) -> Option<&Arc<User>> {
        self.find(DEFAULT).filter(|user| user.is_open())
    }

    /// Returns the user of this name, if the password is right. It takes as long if there is no
    /// such user.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        let given = hash(password);
        self.find(name).filter(|user| user.accepts(&given))
    }
}

fn hash(password: impl AsRef<[u8]>) -> Hash {
    Sha256::digest(password.as_ref()).into()
}
