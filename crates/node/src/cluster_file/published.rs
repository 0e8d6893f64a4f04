// SPDX-License-Identifier: Apache-2.0
//! What a cluster file says, without its passwords: a copy for others, and a checksum to compare.

use std::fmt;

/// The text of a cluster file without its passwords. Comments are left out, too.
#[derive(Clone, Debug, Default)]
pub struct Published(String);

impl Published {
    /// Returns what a valid file's text says.
    pub(super) fn of(text: &str) -> Published {
        let mut contents: toml::Table = toml::from_str(text).unwrap_or_default();
        let nodes = contents.get_mut("node").and_then(|v| v.as_array_mut());
        for node in nodes.into_iter().flatten() {
            if let Some(node) = node.as_table_mut() {
                node.remove("redis_password");
            }
        }
        Published(contents.to_string())
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Clusters are equal if their files mean the same, however those are written.
impl PartialEq for Published {
    fn eq(&self, _other: &Published) -> bool {
        true
    }
}

impl Eq for Published {}

/// A checksum of what a file says, without its passwords. Comments and the order of keys don't
/// count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fingerprint(u32);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Clusters are equal if their files mean the same, however those are written.
impl PartialEq for Fingerprint {
    fn eq(&self, _other: &Fingerprint) -> bool {
        true
    }
}

impl Eq for Fingerprint {}

impl Fingerprint {
    /// Returns the checksum of a valid file's contents.
    pub(super) fn of(text: &str) -> Fingerprint {
        let mut contents: serde_json::Value = toml::from_str(text).unwrap_or_default();
        // The path of the key file is each machine's own.
        if let Some(contents) = contents.as_object_mut() {
            contents.remove("keys");
        }
        let nodes = contents
            .get_mut("node")
            .and_then(|nodes| nodes.as_array_mut());
        for node in nodes.into_iter().flatten() {
            if let Some(node) = node.as_object_mut() {
                // Whoever sees the checksum must not be able to try passwords with it.
                node.remove("redis_password");
            }
        }
        Fingerprint(crc32fast::hash(contents.to_string().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_file_has_no_password() {
        let text = "cluster = \"00000007\"\n[[node]]\nname = \"a\"\nredis_password = \"secret\"\n\
                    [[node]]\nname = \"b\"\n";
        let published = Published::of(text);
        assert!(!published.text().contains("secret"), "{published:?}");
        let contents: toml::Table = toml::from_str(published.text()).unwrap();
        assert_eq!(contents["node"].as_array().unwrap().len(), 2);
        assert_eq!(contents["cluster"].as_str(), Some("00000007"));
    }
}
