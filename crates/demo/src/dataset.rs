// SPDX-License-Identifier: Apache-2.0
//! The data that the demo imports: this machine's package index turned into keys, filled up with
//! the names of its files where the index is small.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use local_cluster::resp::append_command;

/// How many records the demo imports at least.
pub const RECORDS: usize = 100_000;
const MAX_VALUE_LEN: usize = 200;

/// One record.
pub type Record = (String, String);

/// Returns at least [`RECORDS`] records with distinct keys.
pub fn collect() -> Vec<Record> {
    let mut records = packages();
    if records.len() < RECORDS {
        files(&mut records);
    }
    // A bare container has neither: what is missing then is made up, and says so in its key.
    for n in records.len()..RECORDS {
        let value = format!(
            "generated record {n}; checksum {:08x}",
            n.wrapping_mul(0x9e37_79b9)
        );
        records.push((format!("generated:{n:06}"), value));
    }
    records.sort();
    records.dedup_by(|a, b| a.0 == b.0);
    records
}

/// Writes the records as the Redis commands that `redis-cli --pipe` takes.
pub fn write_commands(records: &[Record], path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(fs::File::create(path)?);
    let mut command = Vec::new();
    for (key, value) in records {
        command.clear();
        append_command(&mut command, &[b"SET", key.as_bytes(), value.as_bytes()]);
        out.write_all(&command)?;
    }
    out.flush()
}

fn packages() -> Vec<Record> {
    let mut records = Vec::new();
    let lists = fs::read_dir("/var/lib/apt/lists").into_iter().flatten();
    for entry in lists.flatten() {
        if entry.file_name().to_string_lossy().ends_with("_Packages") {
            if let Ok(text) = fs::read(entry.path()) {
                parse_packages(&String::from_utf8_lossy(&text), &mut records);
            }
        }
    }
    records
}

fn parse_packages(text: &str, records: &mut Vec<Record>) {
    let mut name = "";
    for line in text.lines() {
        let Some((field, value)) = line.split_once(": ") else {
            continue;
        };
        match field {
            "Package" => name = value,
            "Version" | "Description" | "Section" | "Installed-Size" => {
                let key = format!("package:{name}:{}", field.to_lowercase());
                records.push((key, clip(value)));
            }
            _ => {}
        }
    }
}

fn files(records: &mut Vec<Record>) {
    let lists = fs::read_dir("/var/lib/dpkg/info").into_iter().flatten();
    for entry in lists.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "list") {
            let owner = path.file_stem().unwrap_or_default().to_string_lossy();
            for file in fs::read_to_string(&path).unwrap_or_default().lines() {
                records.push((format!("file:{}", clip(file)), format!("owned by {owner}")));
            }
        }
    }
}

fn clip(text: &str) -> String {
    let mut end = text.len().min(MAX_VALUE_LEN);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_records_with_distinct_keys() {
        let records = collect();
        assert!(records.len() > RECORDS / 2);
        assert!(records.windows(2).all(|w| w[0].0 < w[1].0));
    }

    #[test]
    fn a_package_stanza_becomes_keys() {
        let mut records = Vec::new();
        parse_packages("Package: spin\nVersion: 6.5\nTag: x\n", &mut records);
        assert_eq!(records, [("package:spin:version".into(), "6.5".into())]);
    }
}
