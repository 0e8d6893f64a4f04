// SPDX-License-Identifier: Apache-2.0
//! Parses how long something is measured, in seconds with or without a fraction.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses seconds of a command line, within the usual bounds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    seconds_within(0.1..=3600.0, text)
}

/// Parses seconds of a command line, within these bounds.
pub fn seconds_within(bounds: RangeInclusive<f64>, text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| bounds.contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        let (least, most) = bounds.into_inner();
        format!("take {least} to {most} seconds, such as 2 or 1.5")
    })?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction() {
        let shown = |text| seconds(text).map(|time| time.as_millis());
        for (text, ms) in [
            ("0.3", 300),
            ("2", 2_000),
            ("0.1", 100),
            ("3600", 3_600_000),
        ] {
            assert_eq!(shown(text), Ok(ms));
        }
        for wrong in ["0", "0.09", "3601", "-1", "NaN", "inf", "", "1s", "two"] {
            let why = shown(wrong).unwrap_err();
            assert_eq!(why, "take 0.1 to 3600 seconds, such as 2 or 1.5", "{wrong}");
        }
    }
}
