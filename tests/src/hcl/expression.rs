//! The part of HCL's expressions that literals of a schema are made of: constants, lists and objects.

use serde_json::{Map, Value};

/// The value of a literal expression.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut reader = Reader { rest: text };
    let value = reader.value()?;
    reader.space();
    if reader.rest.is_empty() { Ok(value) } else { Err(format!("{:?} follows the value", reader.rest)) }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: char) -> bool {
        self.space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        self.space();
        match self.rest.chars().next().ok_or("a value is missing")? {
            '"' => self.string().map(Value::String),
            '[' => self.list(),
            '{' => self.object(),
            _ => self.constant(),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let mut stream = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = stream.next().ok_or("a string is missing")?.map_err(|error| error.to_string())?;
        self.rest = &self.rest[stream.byte_offset()..];
        Ok(text)
    }

    fn word(&mut self) -> &str {
        self.space();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "_-.+".contains(c))).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn constant(&mut self) -> Result<Value, String> {
        let word = self.word().to_owned();
        serde_json::from_str(&word).map_err(|_| format!("{word:?} is no constant"))
    }

    fn list(&mut self) -> Result<Value, String> {
        self.eat('[');
        let mut values = Vec::new();
        while !self.eat(']') {
            values.push(self.value()?);
            if !self.eat(',') && !self.rest.trim_start().starts_with(']') {
                return Err("a list lacks a comma or its end".into());
            }
        }
        Ok(Value::Array(values))
    }

    fn object(&mut self) -> Result<Value, String> {
        self.eat('{');
        let mut members = Map::new();
        while !self.eat('}') {
            self.space();
            let key = if self.rest.starts_with('"') { self.string()? } else { self.word().to_owned() };
            if key.is_empty() || !(self.eat('=') || self.eat(':')) {
                return Err("an object's member lacks its key or its =".into());
            }
            let value = self.value()?;
            members.insert(key, value);
            self.eat(',');
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse;

    #[test]
    fn constants_lists_and_objects() {
        assert_eq!(parse("\"3m\""), Ok(json!("3m")));
        assert_eq!(parse(" true "), Ok(json!(true)));
        assert_eq!(parse("100000"), Ok(json!(100_000)));
        assert_eq!(parse("[\"a\", 1]"), Ok(json!(["a", 1])));
        assert_eq!(
            parse("{ enabled = false, \"x\" = { y = [] }\n z: 1 }"),
            Ok(json!({"enabled": false, "x": {"y": []}, "z": 1}))
        );
        for wrong in ["", "maybe", "{ a = }", "[1", "\"open", "1 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
