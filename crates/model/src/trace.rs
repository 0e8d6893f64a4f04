// SPDX-License-Identifier: Apache-2.0
//! Recorded runs (`docs/testing.md`, "Traces"): the simulator's, or those that nodes write line by
//! line in the form of [`paxos::trace`].

use std::fmt::{self, Display, Formatter};

use paxos::trace::{Event, Settings};

/// A recorded run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The settings of the cluster in which it was recorded.
    pub settings: Settings,
    /// The events in order.
    pub events: Vec<Event>,
}

impl Display for Trace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.settings)?;
        self.events.iter().try_for_each(|e| writeln!(f, "{e}"))
    }
}

impl Trace {
    /// Reads the text.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let (settings, lines) = parse(text)?;
        let events = lines.into_iter().map(|line| line.event).collect();
        Ok(Trace { settings, events })
    }
}

/// A line of a trace.
pub(crate) struct Line {
    /// The number, from 1.
    pub number: usize,
    /// Nanoseconds of the recording machine's clock; 0 where the line says none.
    pub time: u64,
    /// The event itself.
    pub event: Event,
}

/// Reads the text of a trace. Empty lines and what follows `#` don't count.
pub(crate) fn parse(text: &str) -> Result<(Settings, Vec<Line>), String> {
    let lines = text.lines().enumerate();
    let mut lines = lines
        .map(|(at, line)| (at + 1, line.split('#').next().unwrap_or("").trim()))
        .filter(|(_, line)| !line.is_empty());
    let (_, first) = lines.next().ok_or("the trace is empty")?;
    let settings = Settings::parse(first).ok_or("the first line isn't `trace ...`")?;
    let parsed = lines.map(|(number, text)| {
        parse_line(number, text).ok_or_else(|| format!("line {number}: {text}"))
    });
    Ok((settings, parsed.collect::<Result<_, _>>()?))
}

fn parse_line(number: usize, text: &str) -> Option<Line> {
    let (time, event) = match text.strip_prefix('@') {
        Some(stamped) => {
            let (time, event) = stamped.split_once(' ')?;
            (time.parse().ok()?, event)
        }
        None => (0, text),
    };
    Some(Line {
        number,
        time,
        event: Event::parse(event)?,
    })
}
