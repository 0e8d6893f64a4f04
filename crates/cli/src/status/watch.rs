// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos status --watch`: looks again and again, on one screen.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use local_cluster::Error;
use node::{ClusterFile, wall_clock_ms};

use super::{Look, Options};
use node::utc;

/// The screen that is taken if its size isn't known, in lines and columns.
const SCREEN: (usize, usize) = (24, 80);

/// Looks every so many seconds until the reader has gone.
pub fn run(options: &Options, cluster: &ClusterFile, seconds: f64) -> Result<(), Error> {
    let every = Duration::from_secs_f64(seconds);
    loop {
        let begun = Instant::now();
        let look = Look::take(options, cluster)?;
        let text = match options.json {
            true => format!("{}\n", look.to_json()?),
            false => {
                let verdict = look.verdict(options, cluster);
                let verdict = verdict.map_or_else(|e| e.to_string(), |()| "all is well".to_owned());
                let mut lines = vec![format!("{} UTC: {verdict}", utc::shown(wall_clock_ms()))];
                lines.extend(look.lines(cluster));
                match io::stdout().is_terminal() {
                    true => screen(&lines, node::terminal::size().unwrap_or(SCREEN)),
                    false => lines.join("\n") + "\n\n",
                }
            }
        };
        let mut out = io::stdout().lock();
        if out
            .write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_err()
        {
            return Ok(());
        }
        drop(out);
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

/// Returns what draws lines over those of the last look, cut to the screen.
fn screen(lines: &[String], (rows, columns): (usize, usize)) -> String {
    let room = rows.saturating_sub(1).max(1);
    let shown = if lines.len() > room {
        room - 1
    } else {
        lines.len()
    };
    let mut text = String::from("\x1b[H");
    let plain = |line: &str| {
        line.chars()
            .filter(|c| !c.is_control())
            .take(columns)
            .collect::<String>()
    };
    for line in &lines[..shown] {
        text += &format!("{}\x1b[K\n", plain(line));
    }
    if shown < lines.len() {
        let more = format!(
            "... {} more lines: make the screen larger",
            lines.len() - shown
        );
        text += &format!("{}\x1b[K\n", plain(&more));
    }
    text + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_screen() {
        let lines = ["one", "two\x1b[31m", "three"].map(str::to_owned);
        let all = "\x1b[Hone\x1b[K\ntwo[31m\x1b[K\nthree\x1b[K\n\x1b[J";
        assert_eq!(screen(&lines, (4, 80)), all);
        let cut = "\x1b[Hone\x1b[K\n... 2 m\x1b[K\n\x1b[J";
        assert_eq!(screen(&lines, (3, 7)), cut);
    }
}
