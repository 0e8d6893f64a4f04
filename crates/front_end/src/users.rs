// SPDX-License-Identifier: Apache-2.0
//! The users that clients can be, and what each may do, in the words of Redis's ACL.
//!
//! ```text
//!  AUTH alice secret ──> the user "alice" ──> her commands, keys, channels ──> does this run?
//! ```

pub(crate) mod permission;
mod rules;
mod user;

use std::sync::Arc;

use sha2::{Digest, Sha256};

pub(crate) use user::User;

const DEFAULT: &[u8] = b"default";
/// A file may name this many users, since an unknown name is compared with all of them.
const MAX_USERS: usize = 1_000;

/// A password's hash.
type Hash = [u8; 32];

/// The users that clients can be, or the password that all of them have.
pub enum Access {
    /// The one user `default`, who may do everything, and this password of his, if there is one.
    Password(Option<String>),
    /// Users, in the format of Redis's `aclfile`. A user `default` who isn't there is off.
    Users(String),
}

/// Returns what is in force now, or why it can't be read.
pub type ReadAccess = Box<dyn Fn() -> Result<Access, String> + Send>;

/// All users.
pub(crate) struct Users {
    access: ReadAccess,
    users: Vec<Arc<User>>,
    /// Counts how often the users were read, so that clients notice new ones.
    generation: u64,
}

impl Users {
    /// Reads the users. `is_known` tells whether there is such a command, or a category `@name`.
    ///
    /// # Errors
    /// If they can't be read, or a line isn't understood.
    pub fn new(access: ReadAccess, is_known: &dyn Fn(&str) -> bool) -> Result<Users, String> {
        let mut users = Users {
            access,
            users: Vec::new(),
            generation: 0,
        };
        users.read(is_known)?;
        Ok(users)
    }

    /// Reads the users again; after an error they are as before.
    pub fn read(&mut self, is_known: &dyn Fn(&str) -> bool) -> Result<(), String> {
        let new = match (self.access)()? {
            Access::Password(password) => vec![User::all(DEFAULT, password.map(hash))],
            Access::Users(text) => {
                rules::parse(&text, is_known).map_err(|why| format!("the file of users: {why}"))?
            }
        };
        self.users = new.into_iter().map(Arc::new).collect();
        self.generation += 1;
        Ok(())
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.iter()
    }

    /// Returns the user of this name who may be one.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        let mut users = self.users.iter();
        users.find(|user| user.name() == name && user.is_on())
    }

    /// Returns who a client is that has shown nothing: the user `default`, if he needs no password.
    pub fn of_a_stranger(&self) -> Option<&Arc<User>> {
        self.find(DEFAULT).filter(|user| user.is_open())
    }

    /// Returns the user of this name, if the password is right.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        self.find(name).filter(|user| user.accepts(&hash(password)))
    }
}

fn hash(password: impl AsRef<[u8]>) -> Hash {
    Sha256::digest(password.as_ref()).into()
}
