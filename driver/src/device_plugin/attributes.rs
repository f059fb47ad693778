//! Attributes of devices, which jobs can constrain on, from the annotations of specs.

/// The units that Nomad knows.
const UNITS: [&str; 33] = [
    "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "kB", "KB", "MB", "GB", "TB", "PB", "EB", "KiB/s", "MiB/s", "GiB/s",
    "TiB/s", "PiB/s", "EiB/s", "kB/s", "KB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s", "MHz", "GHz", "mW", "W", "kW",
    "MW", "GW",
];

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// Text.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A number with a fraction.
    Fraction(f64),
}

/// A value with its unit.
#[derive(Debug, Clone, PartialEq)]
pub struct Attribute {
    /// The value.
    pub value: AttributeValue,
    /// One of Nomad's units, or empty.
    pub unit: &'static str,
}

impl Attribute {
    /// A whole number.
    pub fn number(number: i64, unit: &'static str) -> Self {
        Self { value: AttributeValue::Number(number), unit }
    }

    /// The attribute that a text means: a boolean, a number, a number with a unit as in `80 GiB`, or else the text.
    pub fn parse(text: &str) -> Self {
        let without_unit = |value| Self { value, unit: "" };
        match text {
            "true" => return without_unit(AttributeValue::Flag(true)),
            "false" => return without_unit(AttributeValue::Flag(false)),
            _ => {}
        }
        let unit = UNITS.into_iter().filter(|unit| text.ends_with(unit)).max_by_key(|unit| unit.len()).unwrap_or("");
        let digits = text.strip_suffix(unit).unwrap_or(text).trim_end();
        if let Ok(number) = digits.parse() {
            return Self { value: AttributeValue::Number(number), unit };
        }
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() => Self { value: AttributeValue::Fraction(number), unit },
            _ => without_unit(AttributeValue::Text(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Attribute,
        AttributeValue::{Flag, Fraction, Number, Text},
    };

    #[test]
    fn a_text_is_a_boolean_or_a_number_with_a_unit_or_text() {
        for (text, value, unit) in [
            ("true", Flag(true), ""),
            ("7", Number(7), ""),
            ("-7", Number(-7), ""),
            ("80 GiB", Number(80), "GiB"),
            ("80GiB", Number(80), "GiB"),
            ("1.5 GB/s", Fraction(1.5), "GB/s"),
            ("1410 MHz", Number(1410), "MHz"),
            ("300 MW", Number(300), "MW"),
            ("300 mW", Number(300), "mW"),
            ("A100-SXM4-80GB", Text("A100-SXM4-80GB".into()), ""),
            ("80 furlongs", Text("80 furlongs".into()), ""),
            ("inf", Text("inf".into()), ""),
            ("", Text(String::new()), ""),
        ] {
            assert_eq!(Attribute::parse(text), Attribute { value, unit }, "{text:?}");
        }
    }
}
