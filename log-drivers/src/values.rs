//! Values of options as docker reads them: sizes, durations and booleans.

use std::{collections::BTreeMap, time::Duration};

use crate::error::OptionError;

/// The bytes of a size with a binary unit, as in `64k`, `1m`, `1.5 GiB`; `None` if it is no size.
pub fn size(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let power = match unit {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    // The conversion saturates.
    Some((number * 1024_f64.powi(power)) as u64)
}

/// The most bytes of a buffer. It is memory of the node, outside of the task's limit.
const MOST_BUFFER: u64 = 64 << 20;

/// The size of a buffer that an option sets to this text.
pub(crate) fn buffer(option: &str, text: &str, default: u64, errors: &mut Vec<OptionError>) -> u64 {
    let remedy = "write at most 64m, as in \"4m\" or \"512k\"";
    match size(text) {
        Some(bytes) if bytes <= MOST_BUFFER => return bytes,
        Some(_) => errors.push(OptionError::new(option, format!("{text:?} is more than 64 MiB"), remedy)),
        None => errors.push(OptionError::new(option, format!("{text:?} is no size"), remedy)),
    }
    default
}

/// A duration in Go's notation, as in `100ms` or `1m30s`; `None` if it is no duration.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() || total.is_zero() && rest.len() == text.len() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest.get(..end)?.parse().ok()?;
        rest = rest.get(end..)?;
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match rest.get(..end)? {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        rest = rest.get(end..)?;
        total = total.checked_add(Duration::try_from_secs_f64(number * unit).ok()?)?;
    }
    Some(total)
}

/// The duration that an option sets.
pub(crate) fn duration(
    options: &BTreeMap<String, String>,
    option: &str,
    errors: &mut Vec<OptionError>,
) -> Option<Duration> {
    let text = options.get(option).filter(|text| !text.is_empty())?;
    let duration = parse_duration(text);
    if duration.is_none() {
        let problem = format!("{text:?} is no duration");
        errors.push(OptionError::new(option, problem, "write it as in \"500ms\" or \"1m30s\""));
    }
    duration
}

/// The boolean that an option sets. Unset is false.
pub(crate) fn boolean(options: &BTreeMap<String, String>, option: &str, errors: &mut Vec<OptionError>) -> bool {
    match options.get(option).map_or("", String::as_str) {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
        other => {
            errors.push(OptionError::new(option, format!("{other:?} is no boolean"), "write true or false"));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (text, expected) in [
            ("0", Some(0)),
            ("42", Some(42)),
            ("4k", Some(4096)),
            ("4KB", Some(4096)),
            ("1m", Some(1 << 20)),
            ("1.5 MiB", Some(3 << 19)),
            ("2g", Some(2 << 30)),
            ("", None),
            ("m", None),
            ("-1m", None),
            ("1 x", None),
            ("1mm", None),
        ] {
            assert_eq!(size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn durations_are_gos() {
        for (text, expected) in [
            ("1s", Some(1000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("1.5s", Some(1500)),
            ("1m30s", Some(90_000)),
            ("100ms", Some(100)),
            ("x", None),
            ("1", None),
            ("1s2", None),
            ("-1s", None),
            (".s", None),
        ] {
            assert_eq!(parse_duration(text), expected.map(Duration::from_millis), "{text:?}");
        }
    }
}
