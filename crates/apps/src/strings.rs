// SPDX-License-Identifier: Apache-2.0
//! Strings by key, as commands see them: those of a store, and those that a transaction over
//! several partitions has collected.

use std::collections::{BTreeMap, BTreeSet};

use replica::Error;

use crate::contents::{Contents, Form};
use crate::kv::{MAX_SPANNING_LEN, parse_integer};

/// The strings on which commands are executed.
pub(crate) trait Strings {
    /// Shows a value part by part, and returns false if there is none.
    fn read(&mut self, key: &[u8], show: impl FnMut(&[u8])) -> Result<bool, Error>;

    /// Returns the value's length; 0 if there is none.
    fn len(&mut self, key: &[u8]) -> Result<usize, Error>;

    fn exists(&mut self, key: &[u8]) -> Result<bool, Error>;

    /// Returns the number that the value shows; 0 if there is no value, `None` if it isn't a
    /// number.
    fn number(&mut self, key: &[u8]) -> Result<Option<i64>, Error>;

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error>;

    /// Removes a value, and returns false if there is none.
    fn remove(&mut self, key: &[u8]) -> Result<bool, Error>;

    /// Appends to a value and returns the new length; or `None`, with nothing changed, if that
    /// would be too long.
    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<Option<usize>, Error>;
}

impl Strings for Contents {
    fn read(&mut self, key: &[u8], show: impl FnMut(&[u8])) -> Result<bool, Error> {
        Contents::read(self, key, show)
    }

    fn len(&mut self, key: &[u8]) -> Result<usize, Error> {
        self.look(key, |held| held.map_or(0, |held| held.len()))
    }

    fn exists(&mut self, key: &[u8]) -> Result<bool, Error> {
        Contents::exists(self, key)
    }

    fn number(&mut self, key: &[u8]) -> Result<Option<i64>, Error> {
        self.look(key, |held| match held {
            None => Some(0),
            Some(Form::Whole(text)) => parse_integer(text),
            Some(Form::Long { .. }) => None,
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        Contents::put(self, key, value)
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        Contents::remove(self, key)
    }

    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<Option<usize>, Error> {
        Contents::append(self, key, tail)
    }
}

/// The keys of a transaction with their values, and its changes of them. Commands that name only
/// these keys find everything that they need.
#[derive(Default)]
pub(crate) struct InHand<'a> {
    values: BTreeMap<&'a [u8], Vec<u8>>,
    keys: BTreeSet<&'a [u8]>,
    changed: BTreeSet<&'a [u8]>,
    /// A value became longer than such a transaction may make it.
    pub is_too_large: bool,
}

impl<'a> InHand<'a> {
    /// Adds a key, with its value if it has one.
    pub fn add(&mut self, key: &'a [u8], value: Option<&[u8]>) {
        self.keys.insert(key);
        if let Some(value) = value {
            self.values.insert(key, value.to_vec());
        }
    }

    /// Returns the changed keys, each with its new value if it has one.
    pub fn changes(&self) -> impl Iterator<Item = (&'a [u8], Option<&[u8]>)> {
        let value = |key: &&'a [u8]| self.values.get(key).map(Vec::as_slice);
        self.changed.iter().map(move |key| (*key, value(key)))
    }

    fn own(&self, key: &[u8]) -> Result<&'a [u8], Error> {
        let own = self.keys.get(key).copied();
        own.ok_or_else(|| Error("a transaction names a key that nobody has prepared".into()))
    }

    fn set(&mut self, key: &[u8], value: Vec<u8>) -> Result<(), Error> {
        let key = self.own(key)?;
        self.is_too_large |= value.len() > MAX_SPANNING_LEN;
        self.values.insert(key, value);
        self.changed.insert(key);
        Ok(())
    }
}

impl Strings for InHand<'_> {
    fn read(&mut self, key: &[u8], mut show: impl FnMut(&[u8])) -> Result<bool, Error> {
        let value = self.values.get(key);
        value.into_iter().for_each(|value| show(value));
        Ok(value.is_some())
    }

    fn len(&mut self, key: &[u8]) -> Result<usize, Error> {
        Ok(self.values.get(key).map_or(0, Vec::len))
    }

    fn exists(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.values.contains_key(key))
    }

    fn number(&mut self, key: &[u8]) -> Result<Option<i64>, Error> {
        Ok(self
            .values
            .get(key)
            .map_or(Some(0), |text| parse_integer(text)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.set(key, value.to_vec())
    }

    fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        let key = self.own(key)?;
        let existed = self.values.remove(key).is_some();
        if existed {
            self.changed.insert(key);
        }
        Ok(existed)
    }

    fn append(&mut self, key: &[u8], tail: &[u8]) -> Result<Option<usize>, Error> {
        let value = self.values.get(key);
        let value = [value.map_or(&[][..], Vec::as_slice), tail].concat();
        let len = value.len();
        self.set(key, value)?;
        Ok(Some(len))
    }
}
