// SPDX-License-Identifier: Apache-2.0
//! Key files: creating, replacing and reading them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::derive::{Purpose, holder, key};
use crate::secret::{SecretKind, read_secret};
use crate::{Error, KEY_LEN, MAX_CLIENTS, NODES, text};

const KEY_FILE: SecretKind<'static> = SecretKind {
    name: "key file",
    missing: "copy it here from another node, or make one by `wirepaxos keys new`",
    leaked: "replace the secret by `wirepaxos keys rotate`",
};

/// The holder of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The nodes of the cluster.
    Nodes,
    /// A client, or several programs that share a client's name.
    Client {
        /// Its name among the cluster's clients.
        name: String,
        /// Its number.
        number: u8,
    },
}

/// The result of a step of [rotation](KeyFile::rotate). There are three steps, and each may be
/// taken once all holders have the file of the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    /// A new secret is accepted besides the one that signs.
    Added,
    /// The new secret signs, and the old one is still accepted.
    Switched,
    /// The old secret is removed.
    Removed,
}

/// The secret of a generation.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Generation {
    pub number: u32,
    pub secret: [u8; KEY_LEN],
}

/// The contents of a key file.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile {
    pub(crate) cluster: u32,
    pub(crate) holder: Holder,
    pub(crate) signs: u32,
    /// The secrets, the older one first. A client's file has the client's secrets, not the
    /// cluster's.
    pub(crate) secrets: Vec<Generation>,
    pub(crate) clients: Vec<(String, u8)>,
}

/// Leaves out the secrets, so that they stay out of logs.
impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile")
            .field("cluster", &format_args!("{:08x}", self.cluster))
            .field("holder", &self.holder)
            .field("signs", &self.signs)
            .finish_non_exhaustive()
    }
}

impl KeyFile {
    /// Returns the nodes' file of a new cluster, with a random secret.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn new(cluster: u32) -> Result<KeyFile, Error> {
        Ok(KeyFile {
            cluster,
            holder: Holder::Nodes,
            signs: 1,
            secrets: vec![Generation::draw(1)?],
            clients: Vec::new(),
        })
    }

    /// Reads the file of a cluster's node or client.
    ///
    /// # Errors
    /// If the file is missing, is of another cluster or malformed, or if others than its owner may
    /// read it.
    pub fn load(path: &Path, cluster: u32) -> Result<KeyFile, Error> {
        let text = read_secret(path, &KEY_FILE)?;
        let file = text::parse(&text).map_err(|problem| {
            Error::of(path, problem, "restore it, or make one by `wirepaxos keys`")
        })?;
        match file.cluster == cluster {
            true => Ok(file),
            false => Err(Error::of(
                path,
                format_args!("is of cluster {:08x}, not {cluster:08x}", file.cluster),
                "take this cluster's key file",
            )),
        }
    }

    /// Reads the nodes' file of a cluster.
    ///
    /// # Errors
    /// As in [`load`](Self::load), and if it is a client's file.
    pub fn load_nodes(path: &Path, cluster: u32) -> Result<KeyFile, Error> {
        let file = Self::load(path, cluster)?;
        match &file.holder {
            Holder::Nodes => Ok(file),
            Holder::Client { name, .. } => Err(Error::of(
                path,
                format_args!("is the key of the client {name:?}, and nodes need the cluster's"),
                "take the file that `wirepaxos keys new` made",
            )),
        }
    }

    /// Returns the holder of the file.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Returns the holder's number: [`NODES`], or a client's.
    pub fn number(&self) -> u8 {
        match self.holder {
            Holder::Nodes => NODES,
            Holder::Client { number, .. } => number,
        }
    }

    /// Returns the generation that signs.
    pub fn signs(&self) -> u32 {
        self.signs
    }

    /// Returns the generations that are accepted: one, or two consecutive ones.
    pub fn generations(&self) -> impl Iterator<Item = u32> + '_ {
        self.secrets.iter().map(|s| s.number)
    }

    /// Returns a holder's key of a generation, or `None` if it can't be derived from this file: a
    /// client's file gives only that client's keys.
    pub fn key(&self, number: u8, generation: u32, purpose: Purpose) -> Option<[u8; KEY_LEN]> {
        let secret = self.holder_secret(number, generation)?;
        Some(key(&secret, purpose))
    }

    fn holder_secret(&self, number: u8, generation: u32) -> Option<[u8; KEY_LEN]> {
        let secret = self.secrets.iter().find(|s| s.number == generation)?;
        match self.holder {
            Holder::Nodes if number <= MAX_CLIENTS => {
                Some(holder(&secret.secret, self.cluster, number))
            }
            Holder::Client { number: own, .. } if own == number => Some(secret.secret),
            _ => None,
        }
    }

    /// Takes the next step of replacing the secret.
    ///
    /// # Errors
    /// If there are no random numbers, or if this is a client's file.
    pub fn rotate(&mut self) -> Result<Rotation, Error> {
        self.refuse_client("rotated")?;
        let newest = self.secrets.last().map_or(0, |s| s.number);
        if let [_] = self.secrets[..] {
            let next = newest
                .checked_add(1)
                .ok_or_else(|| Error::new("there are no more generations", "make a new cluster"))?;
            self.secrets.push(Generation::draw(next)?);
            return Ok(Rotation::Added);
        }
        if self.signs != newest {
            self.signs = newest;
            return Ok(Rotation::Switched);
        }
        self.secrets.remove(0);
        Ok(Rotation::Removed)
    }

    /// Returns the file of a client, which gets a number unless it has one.
    ///
    /// # Errors
    /// If the name is invalid, if no numbers are left, or if this is itself a client's file.
    pub fn client(&mut self, name: &str) -> Result<KeyFile, Error> {
        self.refuse_client("asked for a client's key")?;
        let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_name) {
            return Err(Error::new(
                format!("{name:?} is no name of a client"),
                "take up to 64 letters, digits, `-` and `_`",
            ));
        }
        let number = self.number_of(name)?;
        let secrets = self.generations().filter_map(|generation| {
            Some(Generation {
                number: generation,
                secret: self.holder_secret(number, generation)?,
            })
        });
        Ok(KeyFile {
            cluster: self.cluster,
            holder: Holder::Client {
                name: name.to_owned(),
                number,
            },
            signs: self.signs,
            secrets: secrets.collect(),
            clients: Vec::new(),
        })
    }

    fn number_of(&mut self, name: &str) -> Result<u8, Error> {
        if let Some((_, number)) = self.clients.iter().find(|(n, _)| n == name) {
            return Ok(*number);
        }
        let is_free = |number: &u8| self.clients.iter().all(|(_, taken)| taken != number);
        let number = (1..=MAX_CLIENTS).find(is_free).ok_or_else(|| {
            Error::new(
                format!("all {MAX_CLIENTS} clients' keys are given out"),
                "have several programs share one",
            )
        })?;
        self.clients.push((name.to_owned(), number));
        Ok(number)
    }

    fn refuse_client(&self, what: &str) -> Result<(), Error> {
        match &self.holder {
            Holder::Nodes => Ok(()),
            Holder::Client { name, .. } => Err(Error::new(
                format!("the key file of the client {name:?} can't be {what}"),
                "take the nodes' key file",
            )),
        }
    }

    /// Writes a file that doesn't exist yet.
    ///
    /// # Errors
    /// If the file exists, or can't be written.
    pub fn create(&self, path: &Path) -> Result<(), Error> {
        self.write(path, path).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => self.is_there(path),
            _ => cannot_write(path, &e),
        })
    }

    /// Returns the error of a place that is taken. The remedy depends on whose file is there.
    fn is_there(&self, path: &Path) -> Error {
        match Self::load(path, self.cluster) {
            Ok(_) => Error::of(
                path,
                "is there already",
                "a cluster's secret is replaced by `wirepaxos keys rotate`",
            ),
            Err(why) => Error::of(
                path,
                format_args!(
                    "is there already, and is no key file of this cluster: {}",
                    why.problem
                ),
                "if nobody needs that file, move it away; else name another one in the cluster \
                 file (`keys`)",
            ),
        }
    }

    /// Replaces another file by this one, as a whole.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn replace(&self, path: &Path) -> Result<(), Error> {
        let beside = beside(path);
        // A replacement that was killed may have left this file.
        let _ = fs::remove_file(&beside);
        let written = self
            .write(&beside, path)
            .and_then(|()| fs::rename(&beside, path))
            .and_then(|()| sync_directory(path));
        written.map_err(|e| cannot_write(path, &e))
    }

    fn write(&self, path: &Path, meant: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text::emit(self).as_bytes())?;
        file.sync_all()?;
        sync_directory(meant)
    }
}

impl Generation {
    fn draw(number: u32) -> Result<Generation, Error> {
        let mut secret = [0; KEY_LEN];
        getrandom::fill(&mut secret)
            .map_err(|e| Error::new(format!("no random numbers: {e}"), "look at the system"))?;
        Ok(Generation { number, secret })
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

fn cannot_write(path: &Path, e: &io::Error) -> Error {
    Error::of(
        path,
        format_args!("the key file can't be written: {e}"),
        "name another place, or make room",
    )
}

#[cfg(test)]
mod tests;
