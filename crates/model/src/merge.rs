// SPDX-License-Identifier: Apache-2.0
//! Merges what the nodes of one machine have recorded, in the order of the machine's clock.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use paxos::trace::{Event, Settings};

use crate::trace::{self, Trace};

/// The traces of all nodes of one group.
pub struct Recorded {
    /// The merged trace.
    pub trace: Trace,
    /// The files from which it was read.
    pub files: Vec<PathBuf>,
    /// The place of each event: the index of its file in `files`, and its line.
    places: Vec<(usize, usize)>,
}

impl Recorded {
    /// Returns which line of which file an event is from.
    pub fn place(&self, event: usize) -> (&Path, usize) {
        let (file, line) = self.places[event];
        (&self.files[file], line)
    }
}

/// A line, its time, and where it is from.
struct Stamped {
    time: u64,
    place: (usize, usize),
    event: Event,
}

/// Reads all files of a directory whose names end in `.trace`: one trace for each group that was
/// recorded there.
pub fn read(directory: &Path) -> Result<Vec<Recorded>, String> {
    let mut groups: BTreeMap<Settings, (Vec<PathBuf>, Vec<Stamped>)> = BTreeMap::new();
    for path in trace_files(directory)? {
        let in_file = |why: String| format!("{}: {why}", path.display());
        let text = read_whole_lines(&path).map_err(in_file)?;
        if text.is_empty() {
            continue;
        }
        let (settings, lines) = trace::parse(&text).map_err(in_file)?;
        let (files, stamped) = groups.entry(settings).or_default();
        let mut before = 0;
        for line in lines {
            if line.time < before {
                return Err(in_file(format!(
                    "line {}: the clock runs backwards. A trace ends with the machine's uptime; \
                     remove it and record a new cluster",
                    line.number
                )));
            }
            before = line.time;
            stamped.push(Stamped {
                time: line.time,
                place: (files.len(), line.number),
                event: line.event,
            });
        }
        files.push(path);
    }
    if groups.is_empty() {
        return Err(format!(
            "{} has no traces; a node writes them where `trace` in its cluster file says",
            directory.display()
        ));
    }
    Ok(groups.into_iter().map(merged).collect())
}

fn trace_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |e| format!("{}: {e}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "trace")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a file without a last line that a killed node left unfinished: what it says never left the
/// node.
fn read_whole_lines(path: &Path) -> Result<String, String> {
    let mut text = fs::read_to_string(path).map_err(|e| e.to_string())?;
    text.truncate(text.rfind('\n').map_or(0, |at| at + 1));
    Ok(text)
}

/// Merges the events of all files. A node sends after it has recorded that, and records what it
/// receives after that, so the clock orders cause and effect. Within a file the lines stay in
/// order.
fn merged((settings, (files, mut stamped)): (Settings, (Vec<PathBuf>, Vec<Stamped>))) -> Recorded {
    stamped.sort_by_key(|line| line.time);
    let places = stamped.iter().map(|line| line.place).collect();
    let events = stamped.into_iter().map(|line| line.event).collect();
    Recorded {
        trace: Trace { settings, events },
        files,
        places,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "trace cluster=1 group=1 partitions=1 max_value=64 slots=8\n";

    /// A directory with these files, removed when dropped.
    struct Directory(PathBuf);

    impl Directory {
        fn with(name: &str, files: &[(&str, String)]) -> Directory {
            let name = format!("wirepaxos-merge-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in files {
                fs::write(path.join(file), text).unwrap();
            }
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(directory: &Directory) -> String {
        read(&directory.0).map(|_| ()).unwrap_err()
    }

    #[test]
    fn lines_come_in_the_order_of_the_clock_and_cut_ones_not_at_all() {
        let other = FIRST.replace("group=1", "group=2");
        let directory = Directory::with(
            "order",
            &[
                (
                    "a.trace",
                    format!("{FIRST}@10 recv 1 01\n@30 send 1 02\n@40 se"),
                ),
                ("b.trace", format!("{FIRST}@20 recv 2 03\n@20 send 2 04\n")),
                ("c.trace", format!("{other}@5 recv 1 05\n")),
                // The node was killed before its first line was whole, so it left no trace.
                ("d.trace", "trace clu".into()),
                ("e.log", "nothing".into()),
            ],
        );
        let groups = read(&directory.0).unwrap();
        let events = |at: usize| -> Vec<String> {
            let events = groups[at].trace.events.iter();
            events.map(Event::to_string).collect()
        };
        assert_eq!(groups.len(), 2);
        assert_eq!(
            events(0),
            ["recv 1 01", "recv 2 03", "send 2 04", "send 1 02"]
        );
        assert_eq!(events(1), ["recv 1 05"]);
        let (file, line) = groups[0].place(3);
        assert!(file.ends_with("a.trace") && line == 3);
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        let empty = Directory::with("empty", &[]);
        assert!(refusal(&empty).contains("no traces"));
        let backwards = format!("{FIRST}@10 recv 1 01\n@9 send 1 02\n");
        let backwards = Directory::with("backwards", &[("a.trace", backwards)]);
        assert!(refusal(&backwards).contains("line 3: the clock runs backwards"));
        let damaged = Directory::with("damaged", &[("a.trace", format!("{FIRST}@10 recv\n"))]);
        assert!(refusal(&damaged).contains("a.trace: line 2"));
        assert!(read(Path::new("/nonexistent")).is_err());
    }
}
