//! Texts that code builds, as far as its source tells them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The most texts of a part of a text. A part with more is a name, such as that of a type.
const MOST: usize = 8;

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The same in every text.
    Fixed(String),
    /// A name or a number.
    Unknown,
    /// A parameter of the function that builds the text; `quoted` by `{:?}`.
    Parameter { id: usize, quoted: bool },
    /// No text, but a tuple of texts.
    Tuple(Vec<Texts>),
}

/// A text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(Vec<Part>);

/// The texts that an expression can have; none if it has no value, or the value `None`.
pub(crate) type Texts = BTreeSet<Text>;

/// The texts of parameters.
pub(crate) type Arguments = BTreeMap<usize, Texts>;

/// A tuple of texts.
pub(crate) fn tuple(positions: Vec<Texts>) -> Texts {
    Texts::from([Text(vec![Part::Tuple(positions)])])
}

/// Only this text.
pub(crate) fn fixed(text: &str) -> Texts {
    Texts::from([Text(vec![Part::Fixed(text.to_owned())])])
}

/// A name or a number.
pub(crate) fn unknown() -> Texts {
    Texts::from([Text(vec![Part::Unknown])])
}

/// The text of a parameter.
pub(crate) fn parameter(id: usize) -> Texts {
    Texts::from([Text(vec![Part::Parameter { id, quoted: false }])])
}

impl Text {
    /// Whether a reader of the source finds words in it.
    pub(crate) fn has_words(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Fixed(text) if text.chars().any(char::is_alphabetic)))
    }

    /// Whether it is more than a name: it has words and a space.
    pub(crate) fn is_sentence(&self) -> bool {
        self.has_words() && self.to_string().contains(' ')
    }

    /// The positions of a tuple.
    pub(crate) fn positions(&self) -> Option<&[Texts]> {
        match self.0.as_slice() {
            [Part::Tuple(positions)] => Some(positions),
            _ => None,
        }
    }

    /// Whether a caller adds a part to it.
    pub(crate) fn is_open(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Parameter { .. }))
    }

    /// The texts with the parts that a caller adds. Parameters without arguments stay.
    fn filled(&self, arguments: &Arguments) -> Texts {
        if let [Part::Parameter { id, quoted: false }] = self.0.as_slice() {
            return arguments.get(id).cloned().unwrap_or_else(|| Texts::from([self.clone()]));
        }
        let parts = self.0.iter().map(|part| match part {
            Part::Parameter { id, quoted } => match arguments.get(id) {
                Some(texts) if *quoted => texts.iter().map(Self::quoted).collect(),
                Some(texts) => texts.clone(),
                None => Texts::from([Self(vec![part.clone()])]),
            },
            Part::Tuple(positions) => tuple(positions.iter().map(|texts| filled(texts, arguments)).collect()),
            part => Texts::from([Self(vec![part.clone()])]),
        });
        joined(parts)
    }

    /// The text as `{:?}` writes it.
    fn quoted(&self) -> Self {
        match self.0.as_slice() {
            [Part::Fixed(text)] if text.parse::<i64>().is_err() => Self(vec![Part::Fixed(format!("{text:?}"))]),
            [Part::Parameter { id, .. }] => Self(vec![Part::Parameter { id: *id, quoted: true }]),
            _ => self.clone(),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Fixed(text) => f.write_str(text),
            Part::Unknown | Part::Parameter { .. } | Part::Tuple(_) => f.write_str("…"),
        })
    }
}

/// The texts with the parts that a caller adds.
pub(crate) fn filled(texts: &Texts, arguments: &Arguments) -> Texts {
    texts.iter().flat_map(|text| text.filled(arguments)).collect()
}

/// All texts that are one of each of these after another.
pub(crate) fn joined(parts: impl IntoIterator<Item = Texts>) -> Texts {
    parts.into_iter().fold(Texts::from([Text::default()]), |begins, ends| {
        let ends = part(ends);
        begins.iter().flat_map(|Text(begin)| ends.iter().map(|Text(end)| Text([&begin[..], end].concat()))).collect()
    })
}

/// The texts as a part of a text. Several names are one unknown name.
fn part(mut texts: Texts) -> Texts {
    if texts.is_empty() || texts.len() > MOST {
        return unknown();
    }
    let is_name = |text: &Text| !text.is_sentence() && !text.to_string().is_empty();
    if texts.len() > 1 && texts.iter().any(is_name) {
        texts.retain(|text| !is_name(text));
        texts.append(&mut unknown());
    }
    texts
}

/// The texts of a format string. `argument` has the texts of an argument by its name or its position.
pub(crate) fn formatted(format: &str, argument: impl Fn(&str) -> Texts) -> Texts {
    let (mut parts, mut position) = (Vec::new(), 0);
    for piece in pieces(format) {
        let Piece::Argument(name) = piece else {
            parts.extend(piece.text().map(fixed));
            continue;
        };
        let (name, style) = name.split_once(':').unwrap_or((name, ""));
        let counted = position.to_string();
        let texts = argument(if name.is_empty() { &counted } else { name });
        position += usize::from(name.is_empty());
        let quoted = style.contains('?');
        parts.push(if quoted { texts.iter().map(Text::quoted).collect() } else { texts });
    }
    joined(parts)
}

/// A piece of a format string.
enum Piece<'a> {
    Text(&'a str),
    Argument(&'a str),
}

impl<'a> Piece<'a> {
    fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Argument(_) => None,
        }
    }
}

fn pieces(format: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), format);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, brace) = rest.split_at(at);
        pieces.push(Piece::Text(before));
        let after = &brace[1..];
        rest = match after.split_once('}') {
            // Two braces stand for one.
            _ if after.starts_with(&brace[..1]) => {
                pieces.push(Piece::Text(&brace[..1]));
                &after[1..]
            }
            Some((argument, rest)) => {
                pieces.push(Piece::Argument(argument));
                rest
            }
            None => after,
        };
    }
    pieces.push(Piece::Text(rest));
    pieces
}

#[test]
fn format_strings_are_read_with_their_arguments() {
    let argument = |name: &str| match name {
        "0" => fixed("first"),
        "a" => fixed("x y").into_iter().chain(fixed("z")).collect(),
        "p" => parameter(7),
        _ => unknown(),
    };
    let shown = |format: &str| -> Vec<String> { formatted(format, argument).iter().map(Text::to_string).collect() };
    assert_eq!(shown("{{ {} }} {other:?}"), ["{ first } …"]);
    assert_eq!(shown("{a:?}-{a}"), ["\"x y\"-x y", "\"x y\"-…", "…-x y", "…-…"]);
    let open = formatted("{p:?} is wrong", argument);
    let text = open.first().expect("a text");
    assert!(text.is_open() && text.has_words());
    let closed: Vec<String> = filled(&open, &Arguments::from([(7, fixed("z"))])).iter().map(Text::to_string).collect();
    assert_eq!(closed, ["\"z\" is wrong"]);
}
