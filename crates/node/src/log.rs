// SPDX-License-Identifier: Apache-2.0
//! The log messages of nodes. They are events of the crate `tracing`, with a level and fields,
//! within the span of the node.
//!
//! Users of the library install a subscriber to receive them; programs use the one here.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::Error;
use crate::budget::Budget;

/// The environment variable that selects the messages: a level, or levels by module, as in
/// `warn,node::plane=debug`.
const VARIABLE: &str = "WIREPAXOS_LOG";

/// The environment variable that selects the form of the lines: `text`, or a JSON object a line.
const FORM: &str = "WIREPAXOS_LOG_FORM";

/// The level if the variable isn't set.
const DEFAULT: &str = "info";

/// How many lines are printed at once, and per second, separately for errors and for all others. So
/// messages that strangers cause can neither fill a disk nor hide an error.
const LINES: (u32, u32) = (1_000, 100);

/// Prints the events of this process as lines on its standard error. A program that already has a
/// subscriber keeps it.
pub fn to_stderr() -> Result<(), Error> {
    let wanted = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let wanted = targets(wanted.as_deref().unwrap_or(DEFAULT))?;
    let is_json = is_json(std::env::var(FORM).ok().as_deref())?;
    let _ = registry()
        .with(lines(is_json, io::stderr))
        .with(wanted)
        .try_init();
    Ok(())
}

/// Returns the layer that writes a line for each event.
fn lines<S, M, W>(is_json: bool, make: M) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    M: Fn() -> W + Send + Sync + 'static,
    W: Write + 'static,
{
    let lines = fmt::layer()
        .with_writer(Bounded::new(make))
        // Otherwise an error of the layer would be printed on standard error, too, which would
        // panic.
        .log_internal_errors(false);
    match is_json {
        true => lines.json().with_span_list(false).boxed(),
        false => lines.boxed(),
    }
}

fn is_json(form: Option<&str>) -> Result<bool, Error> {
    match form {
        None | Some("" | "text") => Ok(false),
        Some("json") => Ok(true),
        Some(other) => Err(Error::new(format!("{FORM}={other:?}: write text or json"))),
    }
}

/// Returns how many lines of this process were left out because there were too many.
pub fn left_out() -> u64 {
    LEFT_OUT.load(Ordering::Relaxed)
}

static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Makes a writer for each line, as long as there aren't too many lines.
struct Bounded<M> {
    make: M,
    errors: Mutex<Lines>,
    others: Mutex<Lines>,
}

struct Lines {
    budget: Budget,
    /// Lines left out since the last one that was written.
    missing: u64,
}

impl<M> Bounded<M> {
    fn new(make: M) -> Bounded<M> {
        let lines = || {
            Mutex::new(Lines {
                budget: Budget::new(LINES.0, LINES.1),
                missing: 0,
            })
        };
        Bounded {
            make,
            errors: lines(),
            others: lines(),
        }
    }
}

impl<M: Fn() -> W, W: Write> Bounded<M> {
    /// Returns a writer for a line, or `None` if the line must be left out. It first writes how
    /// many lines were left out before.
    fn line(&self, level: Level, now: Instant) -> Option<W> {
        let lines = match level {
            Level::ERROR => &self.errors,
            _ => &self.others,
        };
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if !lines.budget.take(now) {
            lines.missing += 1;
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let mut writer = (self.make)();
        let missing = std::mem::take(&mut lines.missing);
        if missing > 0 {
            // Nobody may be reading standard error.
            let _ = writeln!(writer, "{missing} lines were left out: there were too many");
        }
        Some(writer)
    }
}

impl<'a, M: Fn() -> W, W: Write> fmt::MakeWriter<'a> for Bounded<M> {
    type Writer = fmt::writer::OptionalWriter<W>;

    fn make_writer(&'a self) -> Self::Writer {
        self.line(Level::INFO, Instant::now()).into()
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        self.line(*meta.level(), Instant::now()).into()
    }
}

fn targets(text: &str) -> Result<Targets, Error> {
    let wrong = |what: &str| {
        Error::new(format!(
            "{VARIABLE}={text:?}: {what}; write off, error, warn, info, debug or trace, or levels \
             by module as in warn,node::plane=debug"
        ))
    };
    // A word that is no level would be taken for a module, which would turn off everything else.
    let mut words = text.split(',').filter(|part| !part.contains('='));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(wrong(&format!("{word:?} is no level")));
    }
    text.parse::<Targets>().map_err(|e| wrong(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn levels_are_for_all_or_by_module() {
        let wanted = targets("warn,node::plane=debug").unwrap();
        assert!(wanted.would_enable("node::plane::xdp", &Level::DEBUG));
        assert!(wanted.would_enable("node::transfer", &Level::WARN));
        assert!(!wanted.would_enable("node::transfer", &Level::INFO));
        assert!(!targets("off").unwrap().would_enable("node", &Level::ERROR));
        for wrong in ["loud", "node=loud", "info,loud"] {
            let why = targets(wrong).unwrap_err().to_string();
            assert!(why.contains(&format!("WIREPAXOS_LOG={wrong:?}")), "{why}");
            assert!(why.contains("warn,node::plane=debug"), "{why}");
        }
    }

    #[test]
    fn a_line_is_a_json_object_that_names_the_node() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let shared = written.clone();
        let subscriber = registry().with(lines(true, move || Shared(shared.clone())));
        tracing::subscriber::with_default(subscriber, || {
            let _node = tracing::error_span!("node", node = "leader-1").entered();
            tracing::info!(epoch = 5, "leads from now on");
        });
        let line: serde_json::Value =
            serde_json::from_slice(&written.lock().unwrap()).expect("one object");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["fields"]["message"], "leads from now on");
        assert_eq!(line["fields"]["epoch"], 5);
        assert_eq!(line["span"]["node"], "leader-1");
        assert!(is_json(Some("json")).unwrap() && !is_json(None).unwrap());
        let refused = is_json(Some("xml")).unwrap_err().to_string();
        assert!(refused.contains("write text or json"), "{refused}");
    }

    #[test]
    fn so_many_lines_are_written_and_an_error_is_not_lost_among_them() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let bounded = Bounded::new(|| Shared(written.clone()));
        let begun = Instant::now();
        let say = |level, now| {
            if let Some(mut line) = bounded.line(level, now) {
                line.write_all(b"x\n").unwrap();
            }
        };
        (0..10_000).for_each(|_| say(Level::WARN, begun));
        say(Level::ERROR, begun);
        let lines = |from: usize| {
            let text = String::from_utf8(written.lock().unwrap()[from..].to_vec()).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let most = LINES.0 as usize;
        assert_eq!(lines(0).len(), most + 1);
        assert!(left_out() >= 10_000 - u64::from(LINES.0));
        let before = written.lock().unwrap().len();
        (0..10_000).for_each(|_| say(Level::INFO, begun + Duration::from_secs(1)));
        let later = lines(before);
        assert!(
            later[0].starts_with("9000 lines were left out"),
            "{later:?}"
        );
        assert_eq!(later.len(), LINES.1 as usize + 1);
    }

    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
