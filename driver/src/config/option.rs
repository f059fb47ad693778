//! What an option is: the one description from which the schema, the decoder's checks and the reference in
//! `docs/configuration.md` follow.

/// One option of a block.
#[derive(Debug, Clone, Copy)]
pub struct Opt {
    /// Its name in HCL.
    pub name: &'static str,
    /// Its type in HCL.
    pub kind: Kind,
    /// What it is when nobody sets it.
    pub default: Default,
    /// What becomes of it.
    pub fate: Fate,
    /// What it does, in one line.
    pub meaning: &'static str,
}

/// The types that options have.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
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
    Block(&'static [Opt]),
    /// A block that may be repeated.
    Blocks(&'static [Opt]),
    /// A repeated block with a label: the label's name and the block's options.
    Labelled(&'static str, &'static [Opt]),
}

/// What an option is without being set.
#[derive(Debug, Clone, Copy)]
pub enum Default {
    /// Must be set.
    Required,
    /// An HCL expression, filled in by Nomad.
    Literal(&'static str),
    /// Decided by the driver, in words.
    Words(&'static str),
}

/// What the driver makes of an option.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// It works.
    Honoured,
    /// Some values work, the others are errors.
    Partly,
    /// Accepted and without effect, because what it asks for happens anyway or has no meaning here.
    Ignored,
    /// An error whenever it is set, with this remedy.
    Refused(&'static str),
}

/// The option of a name.
pub fn find(options: &'static [Opt], name: &str) -> Option<&'static Opt> {
    options.iter().find(|option| option.name == name)
}
