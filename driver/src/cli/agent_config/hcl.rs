//! HCL 1, the language of an agent's configuration.
//!
//! Nomad reads its configuration with HCL 1, and only jobs with HCL 2. HCL 1 has no expressions, and accepts what HCL 2
//! refuses: names in quotes, several attributes in one line, commas between attributes. The libraries for Rust read
//! HCL 2.

use serde_json::{Map, Value as Json};

use super::scanner::{Scanner, SyntaxError, Token};

/// The deepest nesting of blocks and lists.
const MAX_DEPTH: usize = 64;

/// A file that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// A block is an object, a labelled one an object in an object. Repeated blocks are a list.
    pub value: Json,
    /// The lines of all names, in order. A name has its path, as in `plugin["oci-rs"].config.gc`.
    lines: Vec<(String, usize)>,
}

impl Document {
    /// The line of an option, or of the closest block around it. The last one with the name counts.
    pub fn line(&self, path: &str) -> Option<usize> {
        let around =
            |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        let longest = self.lines.iter().filter(|(name, _)| around(name)).max_by_key(|(name, _)| name.len());
        longest.map(|(_, line)| *line)
    }
}

impl From<Json> for Document {
    /// A file without known lines.
    fn from(value: Json) -> Self {
        Self { value, lines: Vec::new() }
    }
}

/// The path of a name in a block. Labels are in brackets.
pub fn path_of(block: &str, names: &[String]) -> String {
    let mut names = names.iter();
    let name = names.next().map_or("", String::as_str);
    let mut path = if block.is_empty() { name.to_owned() } else { format!("{block}.{name}") };
    names.for_each(|label| path.push_str(&format!("[{label:?}]")));
    path
}

/// Reads a file.
pub fn parse(text: &str) -> Result<Document, SyntaxError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let mut scanner = Scanner::new(&text);
    let next = scanner.token()?;
    let mut parser = Parser { scanner, next, lines: Vec::new(), depth: 0 };
    let value = parser.attributes("", None)?;
    Ok(Document { value, lines: parser.lines })
}

struct Parser<'a> {
    scanner: Scanner<'a>,
    /// The next word and its line.
    next: (Token, usize),
    lines: Vec<(String, usize)>,
    depth: usize,
}

impl Parser<'_> {
    fn advance(&mut self) -> Result<(Token, usize), SyntaxError> {
        Ok(std::mem::replace(&mut self.next, self.scanner.token()?))
    }

    fn is_next(&self, sign: char) -> bool {
        self.next.0 == Token::Sign(sign)
    }

    fn unexpected<T>(&self, path: &str, expected: &str) -> Result<T, SyntaxError> {
        let at = if path.is_empty() { String::new() } else { format!("{path}: ") };
        let problem = format!("{at}expected {expected}, found {}", self.next.0.describe());
        Err(SyntaxError { line: self.next.1, problem })
    }

    /// The attributes and blocks up to the end of the file, or of the block that was opened in this line.
    fn attributes(&mut self, block: &str, opened: Option<usize>) -> Result<Json, SyntaxError> {
        let mut attributes = Map::new();
        loop {
            match (&self.next.0, opened) {
                (Token::End, None) => return Ok(Json::Object(attributes)),
                (Token::Sign('}'), Some(_)) => {
                    self.advance()?;
                    return Ok(Json::Object(attributes));
                }
                (Token::End, Some(line)) => {
                    return self.unexpected(block, &format!("the `}}` of the block that begins in line {line}"));
                }
                _ => self.attribute(block, &mut attributes)?,
            }
            if self.is_next(',') {
                self.advance()?;
            }
        }
    }

    /// One attribute or block.
    fn attribute(&mut self, block: &str, attributes: &mut Map<String, Json>) -> Result<(), SyntaxError> {
        let mut names = Vec::new();
        let line = self.next.1;
        while let (Token::Name(name) | Token::Text(name), line) = &self.next {
            names.push(name.clone());
            self.lines.push((path_of(block, &names), *line));
            self.advance()?;
        }
        if names.is_empty() {
            return self.unexpected(block, "a name");
        }
        let path = path_of(block, &names);
        let value = match &self.next.0 {
            Token::Sign('{') => self.value(&path)?,
            Token::Sign('=') if names.len() == 1 => {
                self.advance()?;
                self.value(&path)?
            }
            Token::Sign('=') => return self.unexpected(&path, "`{`, because it has a label"),
            _ => return self.unexpected(&path, "`=` or `{`"),
        };
        insert(attributes, &names, value).map_err(|()| SyntaxError {
            line,
            problem: format!("{path}: is both an attribute and a block with a label"),
        })
    }

    fn value(&mut self, path: &str) -> Result<Json, SyntaxError> {
        if self.depth == MAX_DEPTH {
            return Err(SyntaxError { line: self.next.1, problem: format!("{path}: more than {MAX_DEPTH} levels") });
        }
        self.depth += 1;
        let value = match &self.next {
            (Token::Sign('{'), line) => {
                let line = *line;
                self.advance()?;
                self.attributes(path, Some(line))?
            }
            (Token::Sign('['), _) => {
                self.advance()?;
                self.items(path)?
            }
            (Token::Text(_) | Token::Literal(_), _) => match self.advance()?.0 {
                Token::Text(text) => Json::String(text),
                Token::Literal(literal) => literal,
                _ => Json::Null,
            },
            _ => return self.unexpected(path, "a value: a text in quotes, a number, true, false, `[` or `{`"),
        };
        self.depth -= 1;
        Ok(value)
    }

    /// The rest of a list.
    fn items(&mut self, path: &str) -> Result<Json, SyntaxError> {
        let mut items = Vec::new();
        while !self.is_next(']') {
            items.push(self.value(path)?);
            match &self.next.0 {
                Token::Sign(',') => drop(self.advance()?),
                Token::Sign(']') => {}
                _ => return self.unexpected(path, "`,` or `]`"),
            }
        }
        self.advance()?;
        Ok(Json::Array(items))
    }
}

/// Adds a value. A repeated attribute replaces the earlier one; repeated blocks become a list. Fails if the name is an
/// attribute and also a block with a label.
fn insert(attributes: &mut Map<String, Json>, names: &[String], value: Json) -> Result<(), ()> {
    let [name, labels @ ..] = names else { return Ok(()) };
    if !labels.is_empty() {
        let labelled = attributes.entry(name).or_insert_with(|| Json::Object(Map::new()));
        return insert(labelled.as_object_mut().ok_or(())?, labels, value);
    }
    match attributes.get_mut(name) {
        Some(Json::Array(blocks)) if value.is_object() => blocks.push(value),
        Some(first @ Json::Object(_)) if value.is_object() => *first = Json::Array(vec![first.take(), value]),
        _ => drop(attributes.insert(name.clone(), value)),
    }
    Ok(())
}
