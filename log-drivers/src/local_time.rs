//! A time in the node's time zone, in the layouts of syslog.

use std::time::{Duration, SystemTime};

use crate::sys;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A time in a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalTime {
    /// Year, month from 1, day, hour, minute, second.
    pub parts: [i32; 6],
    pub micros: u32,
    /// Seconds east of UTC.
    pub offset: i64,
}

impl LocalTime {
    /// The time in the node's time zone. A time before 1970 becomes 1970.
    pub fn of(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let (parts, offset) = sys::calendar(seconds).unwrap_or(([1970, 1, 1, 0, 0, 0], 0));
        Self { parts, micros: since.subsec_micros(), offset }
    }

    /// As in `Nov  3 09:31:56`.
    pub fn stamp(&self) -> String {
        let [_, month, day, hour, minute, second] = self.parts;
        let month = usize::try_from(month - 1).ok().and_then(|month| MONTHS.get(month)).copied().unwrap_or("Jan");
        format!("{month} {day:2} {hour:02}:{minute:02}:{second:02}")
    }

    /// As in `2026-11-03T09:31:56Z` or `2026-11-03T10:31:56.123456+01:00`.
    pub fn rfc3339(&self, with_micros: bool) -> String {
        let [year, month, day, hour, minute, second] = self.parts;
        let fraction = if with_micros { format!(".{:06}", self.micros) } else { String::new() };
        let minutes = self.offset / 60;
        let zone = match minutes {
            0 => "Z".to_owned(),
            _ => {
                let sign = if minutes < 0 { '-' } else { '+' };
                format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
        };
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}{zone}")
    }
}

/// A time in UTC with the digits that it has, as in `2026-11-03T09:31:56.1Z`. A time before 1970 becomes 1970.
pub(crate) fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March, in eras of 400 years: so the leap day is the last one.
    let shifted = days + 719_468;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = shifted / 146_097 * 400 + year_of_era + next;
    let fraction = format!(".{:09}", since.subsec_nanos());
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let mut time = LocalTime { parts: [2026, 11, 3, 9, 5, 6], micros: 70, offset: 0 };
        assert_eq!(time.stamp(), "Nov  3 09:05:06");
        assert_eq!(time.rfc3339(false), "2026-11-03T09:05:06Z");
        assert_eq!(time.rfc3339(true), "2026-11-03T09:05:06.000070Z");
        time.offset = 3600;
        assert_eq!(time.rfc3339(false), "2026-11-03T09:05:06+01:00");
        time.offset = -(3 * 3600 + 1800);
        assert_eq!(time.rfc3339(true), "2026-11-03T09:05:06.000070-03:30");
        time.parts[2] = 23;
        assert_eq!(time.stamp(), "Nov 23 09:05:06");
    }

    #[test]
    fn utc_is_right_at_the_ends_of_years() {
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_399, 0, "2000-02-28T23:59:59Z"),
            (951_782_400, 500_000_000, "2000-02-29T00:00:00.5Z"),
            (951_868_800, 0, "2000-03-01T00:00:00Z"),
            (1_735_689_599, 1, "2024-12-31T23:59:59.000000001Z"),
            (1_795_427_568, 0, "2026-11-23T09:52:48Z"),
        ] {
            assert_eq!(utc(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)), expected);
        }
    }

    #[test]
    fn the_calendar_is_that_of_the_c_library() {
        let time = LocalTime::of(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5_000));
        let [year, month, day, hour, minute, second] = time.parts.map(i64::from);
        // Days since 1970 in the Gregorian calendar, by the day of the year that begins in March.
        let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
        assert_eq!(days * 86_400 + hour * 3600 + minute * 60 + second - time.offset, 1_700_000_000);
        assert_eq!(time.micros, 5);
    }
}
