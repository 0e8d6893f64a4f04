// SPDX-License-Identifier: Apache-2.0
//! What nodes say: events of the crate `tracing`, with a level and fields, within the span of the node.
//!
//! A library's user who wants them installs a subscriber. Programs use the one here.

use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::Error;

/// The environment's variable that says what is worth a line: a level, or levels by module, as in
/// `warn,node::plane=debug`.
const VARIABLE: &str = "WIREPAXOS_LOG";

/// Without the variable.
const DEFAULT: &str = "info";

/// From now on events of this process are lines on its standard error, if anybody reads that. A program
/// that has a subscriber keeps it.
pub fn to_stderr() -> Result<(), Error> {
    let wanted = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let wanted = targets(wanted.as_deref().unwrap_or(DEFAULT))?;
    let lines = fmt::layer()
        .with_writer(io::stderr)
        // It would say so on standard error, and panic.
        .log_internal_errors(false);
    let _ = registry().with(lines).with(wanted).try_init();
    Ok(())
}

fn targets(text: &str) -> Result<Targets, Error> {
    let wrong = |what: &str| {
        Error::new(format!(
            "{VARIABLE}={text:?}: {what}; write off, error, warn, info, debug or trace, or levels by module \
             as in warn,node::plane=debug"
        ))
    };
    // A word that is no level would be taken for a module, and everything else would be off.
    let mut words = text.split(',').filter(|part| !part.contains('='));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        return Err(wrong(&format!("{word:?} is no level")));
    }
    text.parse::<Targets>().map_err(|e| wrong(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

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
}
