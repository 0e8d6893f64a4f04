// SPDX-License-Identifier: Apache-2.0
//! What clients of a replica's Redis front end must show.

pub use keys::Passwords;

use super::Node;
use crate::Error;

impl Node {
    /// Reads the passwords of which clients of the Redis front end must show one. `None` stands for
    /// a front end that asks for none.
    ///
    /// # Errors
    /// If the password file can't be used.
    pub fn passwords(&self) -> Result<Option<Passwords>, Error> {
        match &self.redis_password_file {
            None => Ok(self.redis_password.clone().map(Passwords::One)),
            Some(path) => keys::passwords(path)
                .map(Some)
                .map_err(|e| Error::new(e.to_string())),
        }
    }

    /// Returns the password with which any client may AUTH, if one is wanted.
    ///
    /// # Errors
    /// If the password file can't be used, or has users.
    pub fn password(&self) -> Result<Option<String>, Error> {
        match self.passwords()? {
            None => Ok(None),
            Some(Passwords::One(password)) => Ok(Some(password)),
            Some(Passwords::OfUsers(_)) => Err(Error::configuration(
                "the password file has users, each with a password of their own",
                "be one of them: redis-cli --user NAME --askpass",
            )),
        }
    }
}
