//! Docker's templates of the option `tag`: the part of Go's text/template without `if`, `range`, `with` and variables.
//!
//! A template is parsed and tried out when the option is read, so that a wrong one is an error of the job.

use std::collections::BTreeMap;

use crate::delivery::ContainerFacts;

/// The most bytes of a template.
const MOST_TEMPLATE: usize = 4 << 10;
/// The most bytes of a value and of the whole text.
const MOST_VALUE: usize = 64 << 10;
/// The most parentheses in each other.
const MOST_DEPTH: usize = 16;

/// A parsed template.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Action(Pipeline),
}

/// Commands; each gets the value of the one before as its last argument.
type Pipeline = Vec<Command>;

/// A function, a field or a value, and arguments.
type Command = Vec<Operand>;

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    /// `.Name`, or a name after parentheses.
    Field(Option<Pipeline>, Vec<String>),
    Text(String),
    Number(i64),
    Nil,
    Function(String),
}

/// A value in a template.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
    Nil,
}

impl Template {
    /// Parses a template. The error is a problem in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MOST_TEMPLATE {
            return Err(format!("has {} bytes; {MOST_TEMPLATE} are allowed", text.len()));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, action)) = rest.split_once("{{") {
            let trimmed = action.strip_prefix("- ");
            let before = if trimmed.is_some() { before.trim_end() } else { before };
            parts.push(Part::Text(before.to_owned()));
            let mut tokens = Tokens { rest: trimmed.unwrap_or(action), depth: 0 };
            parts.push(Part::Action(tokens.pipeline()?));
            tokens.skip_space();
            rest = if let Some(after) = tokens.rest.strip_prefix("}}") {
                after
            } else if let Some(after) = tokens.rest.strip_prefix("-}}") {
                after.trim_start()
            } else if tokens.rest.is_empty() {
                return Err("has a {{ without }}".to_owned());
            } else {
                return Err(format!("cannot be read from {:?} on", tokens.rest));
            };
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The text for a container. The error is a problem in words.
    pub fn render(&self, container: &ContainerFacts, extra: &BTreeMap<String, String>) -> Result<String, String> {
        let scope = Scope { container, extra };
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Action(pipeline) => text.push_str(&scope.pipeline(pipeline)?.show()),
            }
            limit(text.len())?;
        }
        Ok(text)
    }
}

/// The rest of an action.
struct Tokens<'a> {
    rest: &'a str,
    /// The number of open parentheses.
    depth: usize,
}

impl Tokens<'_> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn pipeline(&mut self) -> Result<Pipeline, String> {
        let mut commands = Vec::new();
        loop {
            let mut command = Vec::new();
            while let Some(operand) = self.operand()? {
                command.push(operand);
            }
            if command.is_empty() {
                return Err("has an action without a value".to_owned());
            }
            commands.push(command);
            match self.rest.strip_prefix('|') {
                Some(rest) => self.rest = rest,
                None => return Ok(commands),
            }
        }
    }

    /// The next operand; `None` at the end of a command.
    fn operand(&mut self) -> Result<Option<Operand>, String> {
        self.skip_space();
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        Ok(Some(match first {
            '.' => Operand::Field(None, self.fields()?),
            '"' => Operand::Text(self.quoted()?),
            '`' => {
                let (text, rest) = self.rest[1..].split_once('`').ok_or("has a ` without its end")?;
                self.rest = rest;
                Operand::Text(text.to_owned())
            }
            '(' => {
                self.rest = &self.rest[1..];
                self.depth += 1;
                if self.depth > MOST_DEPTH {
                    return Err(format!("has more than {MOST_DEPTH} parentheses in each other"));
                }
                let inner = self.pipeline()?;
                self.depth -= 1;
                self.rest = self.rest.strip_prefix(')').ok_or("has a ( without )")?;
                Operand::Field(Some(inner), if self.rest.starts_with('.') { self.fields()? } else { Vec::new() })
            }
            '0'..='9' => {
                let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
                let number = self.rest[..end].parse().map_err(|_| "has a number that is too large")?;
                self.rest = &self.rest[end..];
                Operand::Number(number)
            }
            _ => match self.word() {
                "" => return Ok(None),
                "nil" => Operand::Nil,
                word => Operand::Function(word.to_owned()),
            },
        }))
    }

    fn word(&mut self) -> &str {
        let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// `.A.B`
    fn fields(&mut self) -> Result<Vec<String>, String> {
        let mut fields = Vec::new();
        while let Some(rest) = self.rest.strip_prefix('.') {
            self.rest = rest;
            match self.word() {
                "" => return Err("has a . without the name of a field".to_owned()),
                field => fields.push(field.to_owned()),
            }
        }
        Ok(fields)
    }

    /// A text in double quotes, with the escapes that JSON has too.
    fn quoted(&mut self) -> Result<String, String> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, c)| {
            let ends = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        let (end, _) = end.ok_or("has a \" without its end")?;
        let (text, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        serde_json::from_str(text).map_err(|_| format!("has a text that cannot be read: {text}"))
    }
}

/// What an action can refer to.
struct Scope<'a> {
    container: &'a ContainerFacts,
    extra: &'a BTreeMap<String, String>,
}

impl Scope<'_> {
    fn pipeline(&self, pipeline: &Pipeline) -> Result<Value, String> {
        let mut value = None;
        for command in pipeline {
            value = Some(self.command(command, value.take())?);
        }
        value.ok_or_else(|| "has an action without a value".to_owned())
    }

    fn command(&self, command: &Command, before: Option<Value>) -> Result<Value, String> {
        let (first, rest) = command.split_first().ok_or("has an action without a value")?;
        let mut args = rest.iter().map(|operand| self.operand(operand)).collect::<Result<Vec<_>, _>>()?;
        args.extend(before);
        match first {
            Operand::Function(name) => call(name, &args),
            // A method whose only argument changes names, which no template can give.
            Operand::Field(None, fields) if *fields == ["ExtraAttributes"] && args == [Value::Nil] => {
                Ok(Value::Map(self.extra.clone()))
            }
            _ if args.is_empty() => self.operand(first),
            _ => Err("gives arguments to something that is no function".to_owned()),
        }
    }

    fn operand(&self, operand: &Operand) -> Result<Value, String> {
        let value = self.value(operand)?;
        limit(value.size())?;
        Ok(value)
    }

    fn value(&self, operand: &Operand) -> Result<Value, String> {
        match operand {
            Operand::Text(text) => Ok(Value::Text(text.clone())),
            Operand::Number(number) => Ok(Value::Number(*number)),
            Operand::Nil => Ok(Value::Nil),
            Operand::Function(name) => call(name, &[]),
            Operand::Field(inner, fields) => {
                let (mut value, fields) = match (inner, fields.split_first()) {
                    (Some(inner), _) => (self.pipeline(inner)?, fields.as_slice()),
                    (None, Some((first, rest))) => (self.field(first)?, rest),
                    (None, None) => return Err("has a . without the name of a field".to_owned()),
                };
                for field in fields {
                    let Value::Map(map) = value else {
                        return Err(format!("takes .{field} of something without fields"));
                    };
                    value = map
                        .get(field)
                        .map_or_else(|| Value::Text("<no value>".to_owned()), |text| Value::Text(text.clone()));
                }
                Ok(value)
            }
        }
    }

    /// A field or a method of docker's description of a container.
    fn field(&self, name: &str) -> Result<Value, String> {
        let container = self.container;
        let short = |id: &str| id.chars().take(12).collect::<String>();
        let text = |text: &str| Ok(Value::Text(text.to_owned()));
        let (program, args) =
            container.command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        match name {
            "ID" => text(&short(&container.id)),
            "FullID" | "ContainerID" => text(&container.id),
            "Name" => text(&container.name),
            "ContainerName" => text(&format!("/{}", container.name)),
            "ImageID" => text(&short(&container.image_id)),
            "ImageFullID" | "ContainerImageID" => text(&container.image_id),
            "ImageName" | "ContainerImageName" => text(&container.image_name),
            "Command" => text(&container.command.join(" ")),
            "ContainerEntrypoint" => text(program),
            "ContainerArgs" => Ok(Value::List(args.to_vec())),
            "ContainerEnv" => {
                Ok(Value::List(container.env.iter().map(|(name, value)| format!("{name}={value}")).collect()))
            }
            "ContainerLabels" => Ok(Value::Map(container.labels.clone())),
            "DaemonName" => text("docker"),
            "Hostname" => text(&container.hostname),
            _ => Err(format!("names .{name}, which no container has")),
        }
    }
}

/// Refuses a value that is too large.
fn limit(bytes: usize) -> Result<(), String> {
    if bytes > MOST_VALUE { Err(format!("makes a text of more than {MOST_VALUE} bytes")) } else { Ok(()) }
}

impl Value {
    /// The bytes of its texts, and one for each of them.
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(items) => items.iter().map(|item| item.len() + 1).sum(),
            Self::Map(map) => map.iter().map(|(name, value)| name.len() + value.len() + 2).sum(),
            Self::Number(_) | Self::Nil => 0,
        }
    }

    /// As Go prints it.
    fn show(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::List(items) => format!("[{}]", items.join(" ")),
            Self::Map(map) => {
                let pairs: Vec<String> = map.iter().map(|(name, value)| format!("{name}:{value}")).collect();
                format!("map[{}]", pairs.join(" "))
            }
            Self::Nil => "<nil>".to_owned(),
        }
    }

    fn json(&self) -> String {
        let text = match self {
            Self::Text(text) => serde_json::to_string(text),
            Self::Number(number) => serde_json::to_string(number),
            Self::List(items) => serde_json::to_string(items),
            Self::Map(map) => serde_json::to_string(map),
            Self::Nil => Ok("null".to_owned()),
        };
        text.unwrap_or_default()
    }
}

/// Docker's functions.
fn call(name: &str, args: &[Value]) -> Result<Value, String> {
    limit(args.iter().map(Value::size).sum())?;
    if let ("join", [Value::List(items), Value::Text(separator)]) = (name, args) {
        // Before the text is made: it can be the square of the limit.
        limit(items.len().saturating_mul(separator.len()))?;
    }
    let value = call_within_limit(name, args)?;
    limit(value.size())?;
    Ok(value)
}

/// Its result is larger than its arguments by a small factor at most, except that of `join`.
fn call_within_limit(name: &str, args: &[Value]) -> Result<Value, String> {
    let text = |text: String| Ok(Value::Text(text));
    let length = |number: &i64| usize::try_from(*number).map_err(|_| format!("gives {name} a negative number"));
    match (name, args) {
        ("json", [value]) => text(value.json()),
        ("lower", [Value::Text(value)]) => text(value.to_lowercase()),
        ("upper", [Value::Text(value)]) => text(value.to_uppercase()),
        ("title", [Value::Text(value)]) => text(title(value)),
        ("split", [Value::Text(value), Value::Text(separator)]) => {
            Ok(Value::List(value.split(separator.as_str()).map(str::to_owned).collect()))
        }
        ("join", [Value::List(items), Value::Text(separator)]) => text(items.join(separator)),
        ("pad", [Value::Text(value), Value::Number(before), Value::Number(after)]) => match value.as_str() {
            "" => text(String::new()),
            _ => text(format!(
                "{}{value}{}",
                " ".repeat(length(before)?.min(1024)),
                " ".repeat(length(after)?.min(1024))
            )),
        },
        ("truncate", [Value::Text(value), Value::Number(most)]) => {
            let end = (0..=length(most)?.min(value.len())).rev().find(|end| value.is_char_boundary(*end)).unwrap_or(0);
            text(value[..end].to_owned())
        }
        ("index", [Value::Map(map), Value::Text(key)]) => text(map.get(key).cloned().unwrap_or_default()),
        ("index", [Value::List(items), Value::Number(index)]) => {
            text(items.get(length(index)?).cloned().ok_or("takes an item that a list does not have")?)
        }
        ("len", [Value::Text(value)]) => Ok(Value::Number(value.len() as i64)),
        ("print", args) => text(args.iter().map(Value::show).collect()),
        ("json" | "lower" | "upper" | "title" | "split" | "join" | "pad" | "truncate" | "index" | "len", _) => {
            Err(format!("calls {name} with wrong arguments"))
        }
        _ => Err(format!("calls {name}, which is not supported")),
    }
}

/// The first letter of each word as a capital letter.
fn title(text: &str) -> String {
    let mut inside = false;
    text.chars()
        .flat_map(|letter| {
            let begins = !inside && letter.is_alphanumeric();
            inside = letter.is_alphanumeric() || letter == '_' || letter == '\'';
            let changed: Vec<char> = if begins { letter.to_uppercase().collect() } else { vec![letter] };
            changed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn container() -> ContainerFacts {
        ContainerFacts {
            id: "0123456789abcdef".into(),
            name: "web-1234".into(),
            image_id: "sha256:63926".into(),
            image_name: "nginx:1".into(),
            command: vec!["/bin/sh".into(), "-c".into(), "echo a".into()],
            env: vec![("COLOR".into(), "red".into())],
            labels: BTreeMap::from([("a.b".to_owned(), "x".to_owned()), ("team".to_owned(), "blue".to_owned())]),
            hostname: "node".into(),
        }
    }

    fn render(template: &str) -> Result<String, String> {
        let extra = BTreeMap::from([("COLOR".to_owned(), "red".to_owned()), ("a.b".to_owned(), "x".to_owned())]);
        Template::parse(template)?.render(&container(), &extra)
    }

    #[test]
    fn templates_give_what_docker_gives() {
        for (template, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("{{.ID}}", "0123456789ab"),
            ("{{.Name}}/{{.FullID}}", "web-1234/0123456789abcdef"),
            ("{{.ImageName}} {{.ImageID}} {{.ImageFullID}}", "nginx:1 sha256:63926 sha256:63926"),
            ("{{.Command}}|{{.DaemonName}}|{{.Hostname}}", "/bin/sh -c echo a|docker|node"),
            ("{{.ExtraAttributes nil}}", "map[COLOR:red a.b:x]"),
            ("{{(.ExtraAttributes nil).COLOR}}", "red"),
            ("{{index .ContainerLabels \"a.b\"}}", "x"),
            ("{{.ContainerLabels.team}} {{.ContainerLabels.none}}", "blue <no value>"),
            ("{{.ContainerEntrypoint}}/{{.ContainerArgs}}", "/bin/sh/[-c echo a]"),
            ("{{json .ContainerName}}/{{upper .Name}}", "\"/web-1234\"/WEB-1234"),
            ("{{ .Name | upper }}", "WEB-1234"),
            ("a {{- .Name -}} b", "aweb-1234b"),
            ("{{title `some text`}} {{lower \"A\\tB\"}}", "Some Text a\tb"),
            ("{{join (split .Name \"-\") \"+\"}}", "web+1234"),
            ("{{index (split .Name \"-\") 1}}", "1234"),
            ("{{truncate .Name 3}}{{pad .ID 1 2}}.", "web 0123456789ab  ."),
            ("{{json .ContainerEnv}}", "[\"COLOR=red\"]"),
        ] {
            assert_eq!(render(template).as_deref().map_err(String::as_str), Ok(expected), "{template}");
        }
    }

    #[test]
    fn a_wrong_template_is_an_error_that_says_what_is_wrong() {
        for (template, expected) in [
            ("{{.Nope}}", "names .Nope, which no container has"),
            ("{{", "has an action without a value"),
            ("{{.Name", "has a {{ without }}"),
            ("{{if .Name}}x{{end}}", "calls if, which is not supported"),
            ("{{$x}}", "has an action without a value"),
            ("{{.Name}", "cannot be read from"),
            ("{{.Name | printf}}", "calls printf, which is not supported"),
            ("{{upper 3}}", "calls upper with wrong arguments"),
            ("{{(.Name}}", "has a ( without )"),
            ("{{\"x}}", "has a \" without its end"),
            ("{{.Name 3}}", "gives arguments"),
        ] {
            let error = render(template).expect_err(template);
            assert!(error.starts_with(expected), "{template}: {error}");
        }
    }

    /// A template comes from a job, and is read in the plugin's process.
    #[test]
    fn no_template_takes_stack_or_memory_without_limit() {
        let nested = |depth: usize| format!("{{{{{}.Name{}}}}}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(render(&nested(MOST_DEPTH)).as_deref(), Ok("web-1234"));
        let pair = "(.Name)".repeat(MOST_DEPTH + 1);
        assert!(render(&format!("{{{{print {pair}}}}}")).is_ok(), "beside each other");
        for (template, expected) in [
            (nested(MOST_DEPTH + 1), "has more than 16 parentheses"),
            (format!("{{{{{}", "(".repeat(4000)), "has more than 16 parentheses"),
            (" ".repeat(MOST_TEMPLATE + 1), "has 4097 bytes; 4096 are allowed"),
        ] {
            let error = render(&template).expect_err(&template);
            assert!(error.starts_with(expected), "{template}: {error}");
        }
        let square = "(join (split `{x}` ``) (join (split `{x}` ``) (join (split `{x}` ``) `{x}`)))";
        let square = square.replace("{x}", &"x".repeat(90));
        let error = render(&format!("{{{{{square}}}}}")).expect_err("too large");
        assert!(error.starts_with("makes a text of more than 65536 bytes"), "{error}");
        let long = format!("{}{{{{.Name}}}}", "x".repeat(4000));
        assert!(render(&long).is_ok());
    }

    proptest! {
        #[test]
        fn no_template_makes_the_parser_fail_otherwise(text in "[{}.|()\"`a-z0-9 \\\\-]{0,24}") {
            drop(render(&text));
        }

        #[test]
        fn text_without_braces_stays(text in "[^{]{0,40}") {
            prop_assert_eq!(render(&text), Ok(text));
        }
    }
}
