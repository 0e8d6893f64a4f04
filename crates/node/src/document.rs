// SPDX-License-Identifier: Apache-2.0
//! JSON documents that show whether they are whole. Nodes keep small things so, in files of their own.

use serde::{Deserialize, Serialize};
use serde_json::Result;

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

    /// Returns whether the body is as it was written.
    pub fn is_whole(&self) -> Result<bool> {
        Ok(checksum(&self.body)? == self.crc32)
    }
}

fn checksum(body: &impl Serialize) -> Result<u32> {
    Ok(crc32fast::hash(&serde_json::to_vec(body)?))
}
