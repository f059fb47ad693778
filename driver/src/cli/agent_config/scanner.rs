//! The words of HCL 1: names, texts, numbers and signs, each with its line.

use std::{iter::Peekable, str::CharIndices};

use serde_json::Value as Json;

/// A syntax error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Counted from one.
    pub line: usize,
    /// Never contains a value of the file, which may be a secret.
    pub problem: String,
}

/// One word of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// A name without quotes.
    Name(String),
    /// A text: in quotes, or a heredoc.
    Text(String),
    /// A number, `true` or `false`.
    Literal(Json),
    /// One of `[ ] { } , =`.
    Sign(char),
    /// The end of the file.
    End,
}

impl Token {
    /// The word for an error text, without the value.
    pub fn describe(&self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Text(_) => "a text".to_owned(),
            Self::Literal(Json::Bool(_)) => "true or false".to_owned(),
            Self::Literal(_) => "a number".to_owned(),
            Self::Sign(sign) => format!("`{sign}`"),
            Self::End => "the end of the file".to_owned(),
        }
    }
}

/// Reads words from a text.
pub struct Scanner<'a> {
    text: &'a str,
    chars: Peekable<CharIndices<'a>>,
    /// The line of the next character.
    line: usize,
}

impl<'a> Scanner<'a> {
    /// Starts at the first line. Line breaks are `\n`.
    pub fn new(text: &'a str) -> Self {
        Self { text, chars: text.char_indices().peekable(), line: 1 }
    }

    /// The next word and its line.
    pub fn token(&mut self) -> Result<(Token, usize), SyntaxError> {
        self.skip_blanks()?;
        let line = self.line;
        let start = self.position();
        let token = match self.next() {
            None => Token::End,
            Some(sign @ ('[' | ']' | '{' | '}' | ',' | '=')) => Token::Sign(sign),
            Some('"') => Token::Text(self.quoted()?),
            Some('<') => Token::Text(self.heredoc()?),
            Some(c) if c.is_alphabetic() || c == '_' => {
                self.skip(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
                match &self.text[start..self.position()] {
                    "true" => Token::Literal(Json::Bool(true)),
                    "false" => Token::Literal(Json::Bool(false)),
                    name => Token::Name(name.to_owned()),
                }
            }
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '.') => self.number(start)?,
            Some(c) => return Err(self.error(format!("unexpected character {c:?}"))),
        };
        Ok((token, line))
    }

    fn error(&self, problem: impl Into<String>) -> SyntaxError {
        SyntaxError { line: self.line, problem: problem.into() }
    }

    fn next(&mut self) -> Option<char> {
        let (_, c) = self.chars.next()?;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    /// The offset of the next character.
    fn position(&mut self) -> usize {
        self.chars.peek().map_or(self.text.len(), |(offset, _)| *offset)
    }

    fn skip(&mut self, wanted: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&wanted) {
            self.next();
        }
    }

    /// Skips white space and comments.
    fn skip_blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            self.skip(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
            match self.peek() {
                Some('#') => self.skip(|c| c != '\n'),
                Some('/') => {
                    self.next();
                    match self.next() {
                        Some('/') => self.skip(|c| c != '\n'),
                        Some('*') => self.skip_comment()?,
                        _ => return Err(self.error("expected a second `/` or a `*`, which begin a comment")),
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Skips to the end of a comment between `/*` and `*/`.
    fn skip_comment(&mut self) -> Result<(), SyntaxError> {
        let unfinished = self.error("the comment has no `*/`");
        while let Some(c) = self.next() {
            if c == '*' && self.peek() == Some('/') {
                self.next();
                return Ok(());
            }
        }
        Err(unfinished)
    }

    /// A number that begins at this offset. Its first character was read.
    fn number(&mut self, start: usize) -> Result<Token, SyntaxError> {
        let mut last = ' ';
        while let Some(c) = self.peek() {
            let is_exponents_sign = matches!(c, '+' | '-') && matches!(last, 'e' | 'E');
            if !(c.is_ascii_alphanumeric() || c == '.' || is_exponents_sign) {
                break;
            }
            last = c;
            self.next();
        }
        let text = &self.text[start..self.position()];
        number(text).map(Token::Literal).ok_or_else(|| self.error("this is no number; a text needs quotes"))
    }

    /// The rest of a text in quotes. An interpolation `${…}` stays as it is, with the quotes in it.
    fn quoted(&mut self) -> Result<String, SyntaxError> {
        let unfinished = self.error("the text has no closing quote in its line");
        let (mut value, mut braces) = (String::new(), 0_usize);
        loop {
            let Some(c) = self.next() else { return Err(unfinished) };
            match c {
                '\n' if braces == 0 => return Err(unfinished),
                '"' if braces == 0 => return Ok(value),
                '\\' if braces == 0 => {
                    value.push(self.escape()?);
                    continue;
                }
                '$' if braces == 0 && self.peek() == Some('{') => {
                    self.next();
                    value.push('$');
                    value.push('{');
                    braces = 1;
                    continue;
                }
                '{' if braces > 0 => braces += 1,
                '}' if braces > 0 => braces -= 1,
                _ => {}
            }
            value.push(c);
        }
    }

    /// The character that an escape sequence means. Its backslash was read.
    fn escape(&mut self) -> Result<char, SyntaxError> {
        Ok(match self.next() {
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some(c @ ('\\' | '"')) => c,
            Some(c @ '0'..='7') => self.digits(u32::from(c) - u32::from('0'), 8, 2)?,
            Some('x') => self.digits(0, 16, 2)?,
            Some('u') => self.digits(0, 16, 4)?,
            Some('U') => self.digits(0, 16, 8)?,
            _ => return Err(self.error("unknown escape sequence; a backslash in a text is written twice")),
        })
    }

    fn digits(&mut self, first: u32, base: u32, count: usize) -> Result<char, SyntaxError> {
        let mut code = Some(first);
        for _ in 0..count {
            let digit = self.peek().and_then(|c| c.to_digit(base));
            code = code.zip(digit).and_then(|(code, digit)| code.checked_mul(base)?.checked_add(digit));
            if digit.is_some() {
                self.next();
            }
        }
        code.and_then(char::from_u32).ok_or_else(|| self.error("an escape sequence without a valid character code"))
    }

    /// A text of several lines: `<<MARK`, its lines, and a line with the mark. `<<-MARK` removes the indentation of the
    /// last line from all lines if each has it.
    fn heredoc(&mut self) -> Result<String, SyntaxError> {
        let unfinished = self.error("the heredoc has no line with its mark and a line break");
        if self.next() != Some('<') {
            return Err(self.error("expected a second `<`, which begins a heredoc"));
        }
        let is_unindented = self.peek() == Some('-');
        if is_unindented {
            self.next();
        }
        let start = self.position();
        self.skip(|c| c.is_alphanumeric() || c == '_');
        let mark = &self.text[start..self.position()];
        if mark.is_empty() || self.peek() != Some('\n') {
            return Err(self.error("`<<` needs a mark of letters, and a line break after it"));
        }
        self.next();
        let body = self.position();
        loop {
            let start = self.position();
            self.skip(|c| c != '\n');
            let end = self.position();
            if self.next().is_none() {
                return Err(unfinished);
            }
            let line = &self.text[start..end];
            if line.trim_start() == mark {
                let indentation = &line[..line.len() - mark.len()];
                let text = &self.text[body..start];
                return Ok(if is_unindented { unindent(text, indentation) } else { format!("{text}{indentation}") });
            }
        }
    }
}

/// The lines without this indentation, or unchanged if one lacks it.
fn unindent(text: &str, indentation: &str) -> String {
    let lines = text.split_inclusive('\n').map(|line| line.strip_prefix(indentation));
    lines.collect::<Option<String>>().unwrap_or_else(|| text.to_owned())
}

/// A number: decimal, hexadecimal (`0x`), octal (`0`), or with a fraction or an exponent.
fn number(text: &str) -> Option<Json> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let signed = |digits: &str, base| i64::from_str_radix(&format!("{sign}{digits}"), base).ok().map(Json::from);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if let Some(digits) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        return signed(digits, 16);
    }
    if digits.contains(['.', 'e', 'E']) {
        return text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Json::from);
    }
    signed(digits, if digits.starts_with('0') && digits.len() > 1 { 8 } else { 10 })
}
