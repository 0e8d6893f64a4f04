// SPDX-License-Identifier: Apache-2.0
//! Shows times to people.

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
        assert_eq!(in_a_name(1_764_285_604_005), "2025-11-27T23-20-04Z");
        let lasted = [5, 119, 120, 7_200, 172_800].map(lasted);
        assert_eq!(lasted, ["5 s", "119 s", "2 min", "2 h", "2 d"]);
    }
}
