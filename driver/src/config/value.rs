//! Reading blocks out of msgpack, whoever wrote it.
//!
//! Nomad sends every option of the schema, nil when unset; its test harness leaves unset ones out. Numbers arrive as
//! integers, floats or text, maps as lists of maps to be merged, and a block as a map or as a list of one. All of that
//! is read here; anything else is noted as a mistake and reads as unset, so that reading goes on and finds the next
//! mistake.

use std::{collections::BTreeMap, time::Duration};

use rmpv::Value;

use super::{
    error::ErrorCollector,
    option::{self, DefaultValue, OptionSpec, OptionType, Support},
};

/// Nomad's config blocks nest four levels; whatever nests deeper is no config block.
const MAX_DEPTH: usize = 32;

/// One block, read option by option.
pub struct Reader<'a> {
    path: String,
    options: &'static [OptionSpec],
    entries: BTreeMap<String, &'a Value>,
    /// Where mistakes go.
    pub errors: &'a ErrorCollector,
}

/// Decodes the bytes of a block; nil and no bytes at all are a block without options.
pub fn decode(msgpack: &[u8], errors: &ErrorCollector) -> Value {
    if msgpack.is_empty() {
        return Value::Nil;
    }
    let mut rest = msgpack;
    match rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH) {
        Ok(value) if rest.is_empty() => value,
        Ok(_) => {
            errors.add(
                "config",
                "has bytes after its end",
                "report this: Nomad and the driver disagree about the format",
            );
            Value::Nil
        }
        Err(error) => {
            errors.add(
                "config",
                format!("is not msgpack: {error}"),
                "report this: Nomad and the driver disagree about the format",
            );
            Value::Nil
        }
    }
}

impl<'a> Reader<'a> {
    /// Starts to read a block that was decoded before.
    pub fn new(value: &'a Value, options: &'static [OptionSpec], errors: &'a ErrorCollector) -> Self {
        Self::at(String::new(), value, options, errors)
    }

    fn at(path: String, value: &'a Value, options: &'static [OptionSpec], errors: &'a ErrorCollector) -> Self {
        let mut reader = Self { path, options, entries: BTreeMap::new(), errors };
        for (key, value) in reader.pairs(value) {
            let Some(name) = text_of(key) else {
                reader.errors.add(reader.name("config"), "has a key that is not text", "");
                continue;
            };
            if option::find(options, &name).is_none() {
                reader.errors.add(reader.name(&name), "is no option of this driver", "remove it");
            }
            reader.entries.insert(name, value);
        }
        reader.refuse();
        reader
    }

    /// The pairs of a map, or of a list that holds one map.
    fn pairs(&self, value: &'a Value) -> &'a [(Value, Value)] {
        let path = if self.path.is_empty() { "config" } else { &self.path };
        match value {
            Value::Nil => &[],
            Value::Map(pairs) => pairs,
            Value::Array(items) => match items.as_slice() {
                [] => &[],
                [Value::Map(pairs)] => pairs,
                [Value::Nil] => &[],
                [_] => self.wrong(path, "a block", value),
                _ => {
                    self.errors.add(path, "occurs more than once", "merge the blocks into one");
                    &[]
                }
            },
            _ => self.wrong(path, "a block", value),
        }
    }

    /// Notes a value of the wrong kind. Says nothing of the value itself, which may be a secret.
    fn wrong<T: Default>(&self, option: &str, expected: &str, value: &Value) -> T {
        self.errors.add(option, format!("expects {expected}, not {}", kind_of(value)), self.default_of(option));
        T::default()
    }

    /// What happens without an option, in words.
    fn default_of(&self, path: &str) -> String {
        let name = path.rsplit('.').next().unwrap_or(path);
        match option::find(self.options, name).map(|option| option.default) {
            Some(DefaultValue::Words(words)) if !words.is_empty() => format!("without it: {words}"),
            _ => String::new(),
        }
    }

    /// Notes every option that is set although it cannot be honoured.
    fn refuse(&self) {
        for option in self.options {
            if let Support::Refused(remedy) = option.support
                && self.entries.get(option.name).is_some_and(|value| is_set(value))
            {
                self.errors.add(self.name(option.name), format!("is not supported: {}", option.help), remedy);
            }
        }
    }

    /// An option's name with its block, as its author would look for it.
    pub fn name(&self, option: &str) -> String {
        if self.path.is_empty() { option.to_owned() } else { format!("{}.{option}", self.path) }
    }

    /// Notes a mistake in one of this block's options.
    pub fn error(&self, option: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        self.errors.add(self.name(option), problem, remedy);
    }

    /// The value of an option that is set at all.
    fn get(&self, option: &str) -> Option<&'a Value> {
        debug_assert!(option::find(self.options, option).is_some(), "{option} is not in the table of options");
        self.entries.get(option).copied().filter(|value| !value.is_nil())
    }

    /// Whether an option says anything, right or wrong.
    pub fn has(&self, option: &str) -> bool {
        self.get(option).is_some_and(is_set)
    }

    /// Text; empty text is unset.
    pub fn string(&self, option: &str) -> Option<String> {
        self.text(option, self.get(option)?).filter(|text| !text.is_empty())
    }

    fn text(&self, option: &str, value: &Value) -> Option<String> {
        match text_of(value) {
            Some(text) if text.contains('\0') => {
                self.error(option, "holds a NUL byte", "remove it");
                None
            }
            Some(text) => Some(text),
            None => self.wrong(&self.name(option), "text", value),
        }
    }

    /// A switch; unset is off.
    pub fn bool(&self, option: &str) -> bool {
        match self.get(option) {
            None => false,
            Some(Value::Boolean(value)) => *value,
            Some(value) => match text_of(value).as_deref() {
                Some("true" | "1") => true,
                Some("false" | "0" | "") => false,
                _ => self.wrong(&self.name(option), "true or false", value),
            },
        }
    }

    /// A switch that may be on unless somebody turns it off.
    pub fn bool_or(&self, option: &str, default: bool) -> bool {
        if self.get(option).is_none() { default } else { self.bool(option) }
    }

    /// A whole number.
    pub fn integer(&self, option: &str) -> Option<i64> {
        let value = self.get(option)?;
        let number = integer_of(value);
        if number.is_none() && !matches!(value, Value::String(text) if text.as_str() == Some("")) {
            self.wrong::<()>(&self.name(option), "a whole number", value);
        }
        number
    }

    /// A whole number that cannot be negative; zero is unset.
    pub fn positive(&self, option: &str) -> Option<u64> {
        let number = self.integer(option)?;
        match u64::try_from(number) {
            Ok(0) => None,
            Ok(number) => Some(number),
            Err(_) => {
                self.error(option, format!("cannot be negative, but is {number}"), "");
                None
            }
        }
    }

    /// A span of time as Go writes it, longer than nothing.
    pub fn duration(&self, option: &str) -> Option<Duration> {
        let text = self.string(option)?;
        let duration = parse_duration(&text).filter(|duration| !duration.is_zero());
        if duration.is_none() {
            self.error(
                option,
                format!("{text:?} is not a span of time"),
                "write it as in \"90s\", \"5m\" or \"1h30m\"",
            );
        }
        duration
    }

    /// A list of texts; unset is empty.
    pub fn strings(&self, option: &str) -> Vec<String> {
        self.strings_if_set(option).unwrap_or_default()
    }

    /// A list of texts, told apart from an unset one.
    pub fn strings_if_set(&self, option: &str) -> Option<Vec<String>> {
        match self.get(option)? {
            Value::Array(items) => {
                Some(items.iter().filter(|item| !item.is_nil()).filter_map(|item| self.text(option, item)).collect())
            }
            value => self.wrong(&self.name(option), "a list of texts", value),
        }
    }

    /// A list of maps as one map; later entries win.
    pub fn string_map(&self, option: &str) -> BTreeMap<String, String> {
        let maps: &[Value] = match self.get(option) {
            None => &[],
            Some(Value::Array(items)) => items,
            Some(map) => std::slice::from_ref(map),
        };
        let mut merged = BTreeMap::new();
        for map in maps.iter().filter(|map| !map.is_nil()) {
            let Value::Map(pairs) = map else {
                self.wrong::<()>(&self.name(option), "a map", map);
                continue;
            };
            for (key, value) in pairs {
                if let (Some(key), Some(value)) = (self.text(option, key), self.text(option, value)) {
                    merged.insert(key, value);
                }
            }
        }
        merged
    }

    /// A list of maps of ports as one map; later entries win.
    pub fn port_map(&self, option: &str) -> BTreeMap<String, u16> {
        let read = |(label, text): (String, String)| {
            let port = integer_of(&Value::from(text.as_str())).and_then(|port| u16::try_from(port).ok());
            let port = port.filter(|port| *port != 0);
            if port.is_none() {
                self.error(option, format!("{text:?} of {label:?} is not a port"), "write a number from 1 to 65535");
            }
            Some((label, port?))
        };
        self.string_map(option).into_iter().filter_map(read).collect()
    }

    /// A block that occurs at most once; unset reads as one without options.
    pub fn block(&self, option: &str) -> Reader<'a> {
        let options = match option::find(self.options, option).map(|option| option.kind) {
            Some(OptionType::Block(options)) => options,
            _ => &[],
        };
        Self::at(self.name(option), self.get(option).unwrap_or(&Value::Nil), options, self.errors)
    }

    /// Repeated blocks, in order.
    pub fn blocks(&self, option: &str) -> Vec<Reader<'a>> {
        let options = match option::find(self.options, option).map(|option| option.kind) {
            Some(OptionType::Blocks(options)) => options,
            _ => &[],
        };
        let items: &[Value] = match self.get(option) {
            None => &[],
            Some(Value::Array(items)) => items,
            Some(single) => std::slice::from_ref(single),
        };
        let one = |(index, item)| Self::at(format!("{}[{index}]", self.name(option)), item, options, self.errors);
        items.iter().enumerate().filter(|(_, item)| !item.is_nil()).map(one).collect()
    }

    /// Repeated blocks with one label.
    pub fn labelled(&self, option: &str) -> Vec<(String, Reader<'a>)> {
        let options = match option::find(self.options, option).map(|option| option.kind) {
            Some(OptionType::Labelled(_, options)) => options,
            _ => &[],
        };
        let Some(value) = self.get(option) else { return Vec::new() };
        let Value::Map(pairs) = value else { return self.wrong(&self.name(option), "blocks with a label", value) };
        let one = |(label, block): &'a (Value, Value)| {
            let label = self.text(option, label)?;
            let reader = Self::at(format!("{}[{label:?}]", self.name(option)), block, options, self.errors);
            Some((label, reader))
        };
        pairs.iter().filter_map(one).collect()
    }
}

/// Whether a value says anything: empty texts, lists and maps, false and zero are what options are when nobody sets
/// them.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Nil => false,
        Value::Boolean(value) => *value,
        Value::Integer(number) => number.as_i64() != Some(0),
        Value::F32(number) => *number != 0.0,
        Value::F64(number) => *number != 0.0,
        Value::String(text) => !text.as_bytes().is_empty(),
        Value::Binary(bytes) => !bytes.is_empty(),
        Value::Array(items) => items.iter().any(is_set),
        Value::Map(pairs) => !pairs.is_empty() && pairs.iter().any(|(_, value)| !value.is_nil()),
        Value::Ext(..) => true,
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => text.as_str().map(str::to_owned),
        Value::Binary(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::Integer(number) => Some(number.to_string()),
        Value::F32(number) => Some(number.to_string()),
        Value::F64(number) => Some(number.to_string()),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Nil | Value::Array(_) | Value::Map(_) | Value::Ext(..) => None,
    }
}

fn integer_of(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => number.as_i64(),
        Value::F32(number) => whole(f64::from(*number)),
        Value::F64(number) => whole(*number),
        Value::String(text) => {
            let text = text.as_str()?.trim();
            text.parse().ok().or_else(|| text.parse().ok().and_then(whole))
        }
        _ => None,
    }
}

/// A float as an integer when nothing gets lost; beyond 2^53 floats are no longer exact.
fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= (1_u64 << 53) as f64).then_some(number as i64)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Boolean(_) => "true or false",
        Value::Integer(_) => "a whole number out of range",
        Value::F32(_) | Value::F64(_) => "a number with a fraction",
        Value::String(text) if text.is_err() => "text that is not UTF-8",
        Value::String(_) => "text",
        Value::Binary(_) => "bytes",
        Value::Array(_) => "a list",
        Value::Map(_) => "a map",
        Value::Ext(..) => "a value that is not known yet",
    }
}

/// A span of time in Go's notation: numbers with units from `ns` to `h`, such as `1h30m` or `1.5s`; `0` needs no unit.
fn parse_duration(text: &str) -> Option<Duration> {
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
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        total = total.checked_add(part)?;
        rest = tail;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use rmpv::Value;

    use super::{integer_of, parse_duration};
    use crate::config::{
        decode_plugin, decode_task,
        option::{OptionSpec, OptionType},
        plugin_options::PLUGIN,
        policy::Policy,
        task_options::TASK,
        testing::encode,
    };

    #[test]
    fn numbers_are_read_in_every_form() {
        for (value, expected) in [
            (Value::from(7), Some(7)),
            (Value::from(-7), Some(-7)),
            (Value::from(7.0_f64), Some(7)),
            (Value::from(7.0_f32), Some(7)),
            (Value::from("7"), Some(7)),
            (Value::from(" 7 "), Some(7)),
            (Value::from("1e3"), Some(1000)),
            (Value::from("9223372036854775807"), Some(i64::MAX)),
            (Value::from(7.5), None),
            (Value::from("0.1"), None),
            (Value::from("9223372036854775808"), None),
            (Value::from(u64::MAX), None),
            (Value::from(f64::INFINITY), None),
            (Value::from(f64::NAN), None),
            (Value::from("x"), None),
            (Value::from(true), None),
            (Value::Nil, None),
        ] {
            assert_eq!(integer_of(&value), expected, "{value}");
        }
    }

    #[test]
    fn times_are_written_as_in_go() {
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
            assert_eq!(parse_duration(text), expected.map(Duration::from_millis), "{text:?}");
        }
    }

    /// Any value, and often enough one with the names of options in it.
    fn any_value(options: &'static [OptionSpec]) -> BoxedStrategy<Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[a-z./:=,-]{0,9}".prop_map(Value::from),
            any::<Vec<u8>>().prop_map(Value::from),
            (any::<i8>(), any::<Vec<u8>>()).prop_map(|(kind, data)| Value::Ext(kind, data)),
        ];
        let key = prop_oneof![
            4 => prop::sample::select(options).prop_map(|option| Value::from(option.name)),
            1 => "[a-z_]{0,9}".prop_map(Value::from),
            1 => leaf.clone(),
        ];
        leaf.prop_recursive(3, 24, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                prop::collection::vec((key.clone(), inner), 0..8).prop_map(Value::Map),
            ]
        })
        .boxed()
    }

    /// A block of options with values of any kind.
    fn block(options: &'static [OptionSpec]) -> BoxedStrategy<Value> {
        let value = any_value(options);
        let nested = options.iter().filter_map(|option| match option.kind {
            OptionType::Block(options) | OptionType::Blocks(options) | OptionType::Labelled(_, options) => {
                Some(options)
            }
            _ => None,
        });
        let nested: Vec<BoxedStrategy<Value>> = nested.map(any_value).collect();
        let value = nested.into_iter().fold(value, |all, one| prop_oneof![3 => all, 1 => one].boxed());
        let pair = (prop::sample::select(options).prop_map(|option| Value::from(option.name)), value);
        prop::collection::vec(pair, 0..12).prop_map(Value::Map).boxed()
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in any::<Vec<u8>>()) {
            prop_assert!(decode_task(&bytes, &Policy::default()).is_err());
            decode_plugin(&bytes).ok();
        }

        #[test]
        fn no_task_block_makes_the_decoder_panic(block in block(TASK)) {
            if let Err(errors) = decode_task(&encode(&block), &Policy::default()) {
                prop_assert!(!errors.errors.is_empty());
            }
        }

        #[test]
        fn no_plugin_block_makes_the_decoder_panic(block in block(PLUGIN)) {
            decode_plugin(&encode(&block)).ok();
        }
    }
}
