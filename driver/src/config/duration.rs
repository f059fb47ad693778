//! Durations in Go's notation, which Nomad and its users write.

use std::time::Duration;

/// Reads numbers with units from `ns` to `h`, such as `1h30m` or `1.5s`. `0` needs no unit.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds(unit)?).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    Some(total)
}

/// A unit's length in seconds.
fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" | "μs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse;

    #[test]
    fn durations_are_read_as_in_go() {
        for (text, expected) in [
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1500)),
            ("+250ms", Some(250)),
            ("1000000ns", Some(1)),
            ("1000us", Some(1)),
            ("0", Some(0)),
            ("5", None),
            ("", None),
            ("+", None),
            ("-5m", None),
            ("m", None),
            ("5 m", None),
            ("5d", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(parse(text), expected.map(Duration::from_millis), "{text:?}");
        }
    }
}
