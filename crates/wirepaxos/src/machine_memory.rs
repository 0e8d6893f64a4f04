// SPDX-License-Identifier: Apache-2.0
//! The memory that this process may use.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes of the machine's memory, or of the limit of this process's control group if
/// that is less.
pub fn bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let of_machine = in_meminfo(&text)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(of_machine.min(limit(&groups, Path::new("/sys/fs/cgroup"))))
}

fn in_meminfo(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Returns the least limit of a control group (version 2) and those above it.
fn limit(groups: &str, root: &Path) -> u64 {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let directory: Option<PathBuf> = group.map(|group| root.join(group));
    let above = directory
        .as_deref()
        .map(Path::ancestors)
        .into_iter()
        .flatten();
    let inside = above.take_while(|directory| directory.starts_with(root));
    let limits = inside.filter_map(|directory| {
        let text = fs::read_to_string(directory.join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limits.min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_a_group_and_those_above_it_counts() {
        let root = std::env::temp_dir().join(format!("wirepaxos-groups-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(root.join("a/memory.max"), "4096\n").unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit("1:name=systemd:/x\n0::/a/b\n", &root), 4_096);
        assert_eq!(limit("0::/\n", &root), u64::MAX);
        assert_eq!(limit("", &root), u64::MAX);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            in_meminfo("MemFree: 1 kB\nMemTotal:   2048 kB\n"),
            Some(2 << 20)
        );
    }
}
