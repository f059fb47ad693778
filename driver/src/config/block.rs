//! A decoded config block, read option by option.
//!
//! Nomad sends every option of the schema, nil when unset; its test harness omits unset options. Numbers arrive as
//! integers, floats or text, maps as lists of maps to be merged, and a block as a map or as a list of one map. All
//! these forms are accepted. Any other form is an error: it is collected, and the option counts as unset, so that all
//! errors of a block are found in one pass.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rmpv::Value;

use super::{
    duration,
    error::{ErrorCollector, Permission},
    msgpack,
    option::{self, DefaultValue, OptionSpec, OptionType, Support},
};

/// One config block, with the options that it may have.
pub struct ConfigBlock<'a> {
    path: String,
    options: &'static [OptionSpec],
    entries: BTreeMap<String, &'a Value>,
    /// Collects the errors of the block and of all blocks in it.
    pub errors: &'a ErrorCollector,
}

impl<'a> ConfigBlock<'a> {
    /// The outermost block, decoded by [`msgpack::decode`].
    pub fn new(value: &'a Value, options: &'static [OptionSpec], errors: &'a ErrorCollector) -> Self {
        Self::at(String::new(), value, options, errors)
    }

    fn at(path: String, value: &'a Value, options: &'static [OptionSpec], errors: &'a ErrorCollector) -> Self {
        let mut block = Self { path, options, entries: BTreeMap::new(), errors };
        for (key, value) in block.pairs(value) {
            let Some(name) = msgpack::text(key) else {
                block.error("config", "has a key that is not text", "write the name of an option");
                continue;
            };
            if option::find(options, &name).is_none() {
                block.error(&name, "is no option of this driver", "remove it");
            }
            block.entries.insert(name, value);
        }
        block.check_support();
        block
    }

    /// The entries of a map, or of a list that holds one map.
    fn pairs(&self, value: &'a Value) -> &'a [(Value, Value)] {
        let path = if self.path.is_empty() { "config" } else { &self.path };
        match value {
            Value::Nil => &[],
            Value::Map(pairs) => pairs,
            Value::Array(items) => match items.as_slice() {
                [] | [Value::Nil] => &[],
                [Value::Map(pairs)] => pairs,
                [_] => self.type_error(path, "a block", value),
                _ => {
                    self.errors.add(path, "occurs more than once", "merge the blocks into one");
                    &[]
                }
            },
            _ => self.type_error(path, "a block", value),
        }
    }

    /// Adds an error about a value of the wrong type. Says nothing of the value, which may be a secret.
    fn type_error<T: Default>(&self, path: &str, expected: &str, value: &Value) -> T {
        let problem = format!("expects {expected}, not {}", msgpack::type_name(value));
        self.errors.add(path, problem, self.default_hint(path));
        T::default()
    }

    /// The default of an option, as a remedy.
    fn default_hint(&self, path: &str) -> String {
        let name = path.rsplit('.').next().unwrap_or(path);
        match option::find(self.options, name).map(|option| option.default) {
            Some(DefaultValue::Words(words)) if !words.is_empty() => format!("without it: {words}"),
            _ => String::new(),
        }
    }

    /// Adds an error for every option that is set although the driver does not support it.
    fn check_support(&self) {
        for option in self.options {
            if let Support::Refused(remedy) = option.support
                && self.entries.get(option.name).is_some_and(|value| msgpack::is_set(value))
            {
                self.error(option.name, format!("is not supported: {}", option.help), remedy);
            }
        }
    }

    /// The path of one of this block's options, as in `mount[1].target`.
    pub fn path_of(&self, option: &str) -> String {
        if self.path.is_empty() { option.to_owned() } else { format!("{}.{option}", self.path) }
    }

    /// The path of this block. Empty for the outermost block.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Adds an error about one of this block's options.
    pub fn error(&self, option: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        self.errors.add(self.path_of(option), problem, remedy);
    }

    /// Adds an error about one of this block's options, whose value the operator can allow.
    pub fn forbid(&self, option: &str, problem: impl Into<String>, remedy: impl Into<String>, permission: Permission) {
        self.errors.forbid(self.path_of(option), problem, remedy, permission);
    }

    /// The value of an option that is not nil.
    fn get(&self, option: &str) -> Option<&'a Value> {
        debug_assert!(option::find(self.options, option).is_some(), "{option} is not in the table of options");
        self.entries.get(option).copied().filter(|value| !value.is_nil())
    }

    /// Whether an option is set, to a valid or invalid value.
    pub fn has(&self, option: &str) -> bool {
        self.get(option).is_some_and(msgpack::is_set)
    }

    /// Text. An empty text counts as unset.
    pub fn string(&self, option: &str) -> Option<String> {
        self.text(option, self.get(option)?).filter(|text| !text.is_empty())
    }

    fn text(&self, option: &str, value: &Value) -> Option<String> {
        match msgpack::text(value) {
            Some(text) if text.contains('\0') => {
                self.error(option, "holds a NUL byte", "remove it");
                None
            }
            Some(text) => Some(text),
            None => self.type_error(&self.path_of(option), "text", value),
        }
    }

    /// An absolute path.
    pub fn absolute_path(&self, option: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.string(option)?);
        if !path.is_absolute() {
            self.error(option, format!("{path:?} is not an absolute path"), "begin it with /");
            return None;
        }
        Some(path)
    }

    /// A list of absolute paths, distinguished from an unset one.
    pub fn absolute_paths(&self, option: &str) -> Option<Vec<PathBuf>> {
        let paths = self.strings_if_set(option)?;
        if let Some(relative) = paths.iter().find(|path| !path.starts_with('/')) {
            self.error(option, format!("{relative:?} is not an absolute path"), "begin it with /");
        }
        Some(paths.into_iter().map(PathBuf::from).collect())
    }

    /// A boolean. Unset is false.
    pub fn bool(&self, option: &str) -> bool {
        match self.get(option) {
            None => false,
            Some(Value::Boolean(value)) => *value,
            Some(value) => match msgpack::text(value).as_deref() {
                Some("true" | "1") => true,
                Some("false" | "0" | "") => false,
                _ => self.type_error(&self.path_of(option), "true or false", value),
            },
        }
    }

    /// A boolean with a default.
    pub fn bool_or(&self, option: &str, default: bool) -> bool {
        if self.get(option).is_none() { default } else { self.bool(option) }
    }

    /// A whole number.
    pub fn integer(&self, option: &str) -> Option<i64> {
        let value = self.get(option)?;
        let number = msgpack::integer(value);
        if number.is_none() && !matches!(value, Value::String(text) if text.as_str() == Some("")) {
            self.type_error::<()>(&self.path_of(option), "a whole number", value);
        }
        number
    }

    /// A whole number that cannot be negative. Zero counts as unset.
    pub fn positive(&self, option: &str) -> Option<u64> {
        self.non_negative(option).filter(|number| *number > 0)
    }

    /// A whole number that cannot be negative.
    pub fn non_negative(&self, option: &str) -> Option<u64> {
        let number = self.integer(option)?;
        match u64::try_from(number) {
            Ok(number) => Some(number),
            Err(_) => {
                self.error(option, format!("cannot be negative, but is {number}"), "write 0 or more");
                None
            }
        }
    }

    /// A duration in Go's notation, longer than zero.
    pub fn duration(&self, option: &str) -> Option<Duration> {
        let text = self.string(option)?;
        let duration = duration::parse(&text).filter(|duration| !duration.is_zero());
        if duration.is_none() {
            let remedy = "write it as in \"90s\", \"5m\" or \"1h30m\"";
            self.error(option, format!("{text:?} is not a duration"), remedy);
        }
        duration
    }

    /// A list of texts. Unset is empty.
    pub fn strings(&self, option: &str) -> Vec<String> {
        self.strings_if_set(option).unwrap_or_default()
    }

    /// A list of texts, distinguished from an unset one.
    pub fn strings_if_set(&self, option: &str) -> Option<Vec<String>> {
        match self.get(option)? {
            Value::Array(items) => {
                Some(items.iter().filter(|item| !item.is_nil()).filter_map(|item| self.text(option, item)).collect())
            }
            value => self.type_error(&self.path_of(option), "a list of texts", value),
        }
    }

    /// A list of maps, merged into one map. Later entries override earlier ones.
    pub fn string_map(&self, option: &str) -> BTreeMap<String, String> {
        let mut merged = BTreeMap::new();
        for map in self.items(option).iter().filter(|map| !map.is_nil()) {
            let Value::Map(pairs) = map else {
                self.type_error::<()>(&self.path_of(option), "a map", map);
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

    /// A list of maps of ports, merged into one map. Later entries override earlier ones.
    pub fn port_map(&self, option: &str) -> BTreeMap<String, u16> {
        let read = |(label, text): (String, String)| {
            let port = msgpack::integer(&Value::from(text.as_str())).and_then(|port| u16::try_from(port).ok());
            let port = port.filter(|port| *port != 0);
            if port.is_none() {
                self.error(option, format!("{text:?} of {label:?} is not a port"), "write a number from 1 to 65535");
            }
            Some((label, port?))
        };
        self.string_map(option).into_iter().filter_map(read).collect()
    }

    /// The items of a list. A value that is not a list counts as a list of one.
    fn items(&self, option: &str) -> &'a [Value] {
        match self.get(option) {
            None => &[],
            Some(Value::Array(items)) => items,
            Some(single) => std::slice::from_ref(single),
        }
    }

    fn type_of(&self, option: &str) -> Option<OptionType> {
        option::find(self.options, option).map(|option| option.kind)
    }

    /// A block that occurs at most once. An unset one has no options set.
    pub fn block(&self, option: &str) -> ConfigBlock<'a> {
        let options = match self.type_of(option) {
            Some(OptionType::Block(options)) => options,
            _ => &[],
        };
        Self::at(self.path_of(option), self.get(option).unwrap_or(&Value::Nil), options, self.errors)
    }

    /// Repeated blocks, in order.
    pub fn blocks(&self, option: &str) -> Vec<ConfigBlock<'a>> {
        let options = match self.type_of(option) {
            Some(OptionType::Blocks(options)) => options,
            _ => &[],
        };
        let read = |(index, item)| Self::at(format!("{}[{index}]", self.path_of(option)), item, options, self.errors);
        self.items(option).iter().enumerate().filter(|(_, item)| !item.is_nil()).map(read).collect()
    }

    /// Repeated blocks, each with its label.
    pub fn labelled(&self, option: &str) -> Vec<(String, ConfigBlock<'a>)> {
        let options = match self.type_of(option) {
            Some(OptionType::Labelled(_, options)) => options,
            _ => &[],
        };
        let Some(value) = self.get(option) else { return Vec::new() };
        let Value::Map(pairs) = value else {
            return self.type_error(&self.path_of(option), "blocks with a label", value);
        };
        let read = |(label, block): &'a (Value, Value)| {
            let label = self.text(option, label)?;
            let block = Self::at(format!("{}[{label:?}]", self.path_of(option)), block, options, self.errors);
            Some((label, block))
        };
        pairs.iter().filter_map(read).collect()
    }
}
