//! The description of one option.
//!
//! Three things follow from the same description and therefore always agree: the schema that Nomad gets, the checks of
//! the decoder, and the tables of `docs/configuration.md`.

/// One option of a block.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// The name in HCL.
    pub name: &'static str,
    /// The type in HCL.
    pub kind: OptionType,
    /// The value of an option that is not set.
    pub default: DefaultValue,
    /// How far the driver supports the option.
    pub support: Support,
    /// Help text for the reference: one line, without `|`.
    pub help: &'static str,
}

/// The types that options have.
#[derive(Debug, Clone, Copy)]
pub enum OptionType {
    /// `string`
    String,
    /// `bool`
    Bool,
    /// `number`
    Number,
    /// `list(string)`
    Strings,
    /// `list(map(string))`: the only form of a map that jobs can write both as a block and as an attribute.
    StringMaps,
    /// `list(map(number))`
    NumberMaps,
    /// A block of arbitrary `name = "string"` pairs.
    StringAttrs,
    /// A block that occurs at most once.
    Block(&'static [OptionSpec]),
    /// A block that may be repeated.
    Blocks(&'static [OptionSpec]),
    /// A repeated block with a label: the label's name and the block's options.
    Labelled(&'static str, &'static [OptionSpec]),
}

/// The value of an option that is not set.
#[derive(Debug, Clone, Copy)]
pub enum DefaultValue {
    /// There is none: the option must be set.
    Required,
    /// An HCL expression. Nomad fills it in.
    Literal(&'static str),
    /// A default that the driver applies, described in words.
    Words(&'static str),
}

/// How far the driver supports an option.
#[derive(Debug, Clone, Copy)]
pub enum Support {
    /// Every value of the right form is honoured.
    Honoured,
    /// Some values are honoured. The others are errors.
    Partial,
    /// Accepted and ignored: the requested behaviour is the driver's behaviour anyway, or it is meaningless here.
    Ignored,
    /// An error if it is set. The text is the remedy.
    Refused(&'static str),
}

impl OptionSpec {
    /// An option whose values are all honoured.
    pub const fn honoured(name: &'static str, kind: OptionType, default: DefaultValue, help: &'static str) -> Self {
        Self { name, kind, default, support: Support::Honoured, help }
    }

    /// An option of which some values are errors.
    pub const fn partial(name: &'static str, kind: OptionType, default: DefaultValue, help: &'static str) -> Self {
        Self { name, kind, default, support: Support::Partial, help }
    }

    /// An option that is accepted and ignored. `default` is text for the reference.
    pub const fn ignored(name: &'static str, kind: OptionType, default: &'static str, help: &'static str) -> Self {
        Self { name, kind, default: DefaultValue::Words(default), support: Support::Ignored, help }
    }

    /// An option that is an error if it is set.
    pub const fn refused(name: &'static str, kind: OptionType, help: &'static str, remedy: &'static str) -> Self {
        Self { name, kind, default: DefaultValue::Words(""), support: Support::Refused(remedy), help }
    }
}

/// The option with this name.
pub fn find(options: &'static [OptionSpec], name: &str) -> Option<&'static OptionSpec> {
    options.iter().find(|option| option.name == name)
}

/// Joins option lists into one table. `N` must be the sum of their lengths.
pub const fn concat<const N: usize>(lists: &[&[OptionSpec]]) -> [OptionSpec; N] {
    let mut table = [OptionSpec::ignored("", OptionType::Bool, "", ""); N];
    let (mut list, mut filled) = (0, 0);
    while list < lists.len() {
        let mut index = 0;
        while index < lists[list].len() {
            table[filled] = lists[list][index];
            (filled, index) = (filled + 1, index + 1);
        }
        list += 1;
    }
    assert!(filled == N, "N is not the number of options");
    table
}

/// The number of options in several lists, for [`concat()`].
pub const fn total(lists: &[&[OptionSpec]]) -> usize {
    let (mut list, mut sum) = (0, 0);
    while list < lists.len() {
        sum += lists[list].len();
        list += 1;
    }
    sum
}
