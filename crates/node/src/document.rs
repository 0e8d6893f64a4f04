// SPDX-License-Identifier: Apache-2.0
//! JSON documents that show whether they are whole. Nodes keep small things so, in files of their
//! own.

use std::fmt;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Result;

/// The reason why a document can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unusable {
    /// It has another format than the program reads.
    OtherFormat { found: u64, read: Vec<u32> },
    /// It isn't as it was written, or says something that this program doesn't know.
    Damaged(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::OtherFormat { found, read } => {
                let read: Vec<String> = read.iter().map(u32::to_string).collect();
                let (plural, read) = (if read.len() > 1 { "s" } else { "" }, read.join(" and "));
                write!(
                    f,
                    "it has format {found}, and this program reads format{plural} {read}: use the \
                     version of wirepaxos that wrote it"
                )
            }
            Unusable::Damaged(why) => write!(f, "it is damaged: {why}"),
        }
    }
}

impl From<Unusable> for io::Error {
    fn from(why: Unusable) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, why.to_string())
    }
}

/// Returns that a file of bytes has another format than `magic`, whose last byte is the format, if
/// the file is of that kind.
pub(crate) fn other_format(bytes: &[u8], magic: &[u8; 8]) -> Option<Unusable> {
    let [kind @ .., format] = magic;
    let found = *bytes.strip_prefix(kind)?.first()?;
    (found != *format).then(|| Unusable::OtherFormat {
        found: found.into(),
        read: vec![(*format).into()],
    })
}

/// What all formats share.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

/// A document with its format and a checksum.
#[derive(Serialize, Deserialize)]
pub(crate) struct Document<B> {
    pub format: u32,
    /// The CRC-32 of `body`, written without spaces.
    crc32: u32,
    pub body: B,
}

impl<B: Serialize> Document<B> {
    pub fn new(format: u32, body: B) -> Result<Document<B>> {
        let crc32 = checksum(&body)?;
        Ok(Document {
            format,
            crc32,
            body,
        })
    }
}

impl<B: Serialize + DeserializeOwned> Document<B> {
    /// Reads a document of one of these formats. Nothing of a document of another format is read.
    pub fn read(bytes: &[u8], formats: &[u32]) -> std::result::Result<Document<B>, Unusable> {
        let document = Document::<B>::read_unchecked(bytes, formats)?;
        match document.is_whole() {
            Ok(true) => Ok(document),
            Ok(false) => Err(Unusable::Damaged("its checksum is wrong".to_owned())),
            Err(why) => Err(Unusable::Damaged(why.to_string())),
        }
    }

    /// Reads a document, which may have lost parts that this program doesn't know.
    pub fn read_unchecked(
        bytes: &[u8],
        formats: &[u32],
    ) -> std::result::Result<Document<B>, Unusable> {
        let damaged = |why: serde_json::Error| Unusable::Damaged(why.to_string());
        let Head { format: found } = serde_json::from_slice(bytes).map_err(damaged)?;
        if !formats.iter().any(|format| u64::from(*format) == found) {
            let read = formats.to_vec();
            return Err(Unusable::OtherFormat { found, read });
        }
        serde_json::from_slice(bytes).map_err(damaged)
    }
}

impl<B: Serialize> Document<B> {
    /// Returns whether the body is as it was written.
    pub fn is_whole(&self) -> Result<bool> {
        Ok(checksum(&self.body)? == self.crc32)
    }
}

fn checksum(body: &impl Serialize) -> Result<u32> {
    Ok(crc32fast::hash(&serde_json::to_vec(body)?))
}
