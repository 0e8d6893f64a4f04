// SPDX-License-Identifier: Apache-2.0
//! Shows times to people, and reads theirs.

/// Returns a time since 1970 as date and time of day in UTC, with milliseconds.
pub fn shown(ms: u64) -> String {
    let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
    let (year, month, day) = date(days);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{ms:03}")
}

/// Returns a time since 1970 as date and time of day in UTC, for names of files that sort by age.
pub fn in_a_name(ms: u64) -> String {
    let shown = shown(ms);
    let seconds = shown.split('.').next().unwrap_or_default();
    seconds.replace(' ', "T").replace(':', "-") + "Z"
}

/// Returns how long something has lasted, in the unit that suits.
pub fn lasted(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns year, month and day of a day since 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is a year's last one. 400 years have 146,097
    // days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day)
}

/// Reads a date and a time of day in UTC, like `2026-11-28T19:00:05.250Z`; there may be a space in
/// the middle, and neither `Z` nor a fraction at the end. Returns ms since 1970.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' '])?;
    let (seconds, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(seconds, ':')?;
    let is_sound = (1970..10_000).contains(&year) && hour < 24 && minute < 60 && second < 60;
    let is_sound = is_sound && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    if !is_sound {
        return None;
    }
    let ms: u64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let days = days(year, month, day)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000 + ms)
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let numbers: Option<Vec<u64>> = text.split(between).map(number).collect();
    numbers?.try_into().ok()
}

/// Returns the days from 1970 to a date, if there is such a date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let first = (year - 1970) * 365;
    // No date is later than this, with all leap days.
    let mut days = first..=first + (year - 1970) / 4 + 367;
    days.find(|days| date(*days) == (year, month, day))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        for (ms, expected) in [
            (0, "1970-01-01 00:00:00.000"),
            (951_782_399_999, "2000-02-28 23:59:59.999"),
            (951_782_400_000, "2000-02-29 00:00:00.000"),
            (1_764_285_604_005, "2025-11-27 23:20:04.005"),
            (4_107_542_400_000, "2100-03-01 00:00:00.000"),
        ] {
            assert_eq!(shown(ms), expected);
        }
        for (text, ms) in [
            ("1970-01-01 00:00:00", 0),
            ("2000-02-29T00:00:00Z", 951_782_400_000),
            ("2025-11-27 23:20:04.005", 1_764_285_604_005),
            ("2100-03-01T00:00:00.5Z", 4_107_542_400_500),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        for wrong in [
            "",
            "2026-11-28",
            "2026-02-29T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-11-28T24:00:00Z",
            "2026-11-28T10:00:00+01:00",
            "2026-11-28T10:00",
            "2026-11-28T10:00:00.é",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(in_a_name(1_764_285_604_005), "2025-11-27T23-20-04Z");
        let lasted = [5, 119, 120, 7_200, 172_800].map(lasted);
        assert_eq!(lasted, ["5 s", "119 s", "2 min", "2 h", "2 d"]);
    }
}
