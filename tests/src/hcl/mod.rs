//! From what a job's author wrote to the msgpack that a driver receives, as Nomad's HCL decoder does it.
//!
//! Two styles exist on the wire. Nomad sends the result of `hcldec`: every key of the schema is there, absent ones as
//! nil, and numbers that are no exact binary fraction arrive as strings. Go test harnesses encode a struct or map
//! directly, so absent keys are really absent. [`decode`] makes the first from the plugin's own schema, which checks
//! that schema on the way: unknown keys, missing required ones and wrong types are refused with a text, as an agent
//! would refuse them. [`plain`] makes the second.

use std::collections::{BTreeMap, BTreeSet};

use proto::hclspec::{Spec, spec::Block as Kind};
use rmpv::Value as Pack;
use serde_json::{Map, Value as Json};

mod expression;
mod types;

/// Configuration in the form in which the plugin gets it from Nomad: every key of the schema.
pub fn decode(schema: &Spec, written: &Json) -> Result<Vec<u8>, String> {
    let body = written.as_object().ok_or("Root value must be object")?;
    Ok(bytes(&body_value(schema, body)?))
}

/// Configuration in the form of Go's test harness: only what was written.
pub fn plain(written: &Json) -> Vec<u8> {
    bytes(&types::natural(written))
}

/// The names that a block with this schema understands.
pub fn keys(schema: &Spec) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    match &schema.block {
        Some(Kind::Object(object)) => {
            for (key, child) in &object.attributes {
                child_names(child, key, &mut names);
            }
        }
        _ => child_names(schema, "", &mut names),
    }
    names
}

/// What Nomad's converter from the wire's schema to its own refuses; empty for a good schema.
pub fn schema_faults(schema: &Spec) -> Vec<String> {
    let mut faults = Vec::new();
    check(schema, "", "root", &mut faults);
    faults
}

fn bytes(value: &Pack) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to a vector cannot fail.
    if let Err(error) = rmpv::encode::write_value(&mut out, value) {
        panic!("msgpack into memory: {error}");
    }
    out
}

/// A whole block body: refuses keys that the schema does not name.
fn body_value(schema: &Spec, body: &Map<String, Json>) -> Result<Pack, String> {
    let known = keys(schema);
    if let Some(key) = body.keys().find(|key| !known.contains(*key)) {
        return Err(format!("Invalid label: No argument or block type is named {key:?}"));
    }
    child_value(schema, "", body)
}

fn named<'a>(explicit: &'a str, implied: &'a str) -> &'a str {
    if explicit.is_empty() { implied } else { explicit }
}

fn child_names(spec: &Spec, implied: &str, names: &mut BTreeSet<String>) {
    let mut one = |name: &str| {
        names.insert(named(name, implied).to_owned());
    };
    match &spec.block {
        Some(Kind::Attr(attr)) => one(&attr.name),
        Some(Kind::BlockValue(block)) => one(&block.name),
        Some(Kind::BlockAttrs(block)) => one(&block.name),
        Some(Kind::BlockList(block)) => one(&block.name),
        Some(Kind::BlockSet(block)) => one(&block.name),
        Some(Kind::BlockMap(block)) => one(&block.name),
        Some(Kind::Default(default)) => {
            for half in [&default.primary, &default.default].into_iter().flatten() {
                child_names(half, "", names);
            }
        }
        Some(Kind::Array(array)) => array.values.iter().for_each(|child| child_names(child, "", names)),
        Some(Kind::Object(object)) => {
            object.attributes.iter().for_each(|(key, child)| child_names(child, key, names));
        }
        Some(Kind::Literal(_)) | None => {}
    }
}

fn child_value(spec: &Spec, implied: &str, body: &Map<String, Json>) -> Result<Pack, String> {
    match spec.block.as_ref().ok_or("nil spec given")? {
        Kind::Object(object) => {
            let sorted: BTreeMap<_, _> = object.attributes.iter().collect();
            let pairs =
                sorted.into_iter().map(|(key, child)| Ok((Pack::from(key.as_str()), child_value(child, key, body)?)));
            pairs.collect::<Result<_, String>>().map(Pack::Map)
        }
        Kind::Array(array) => {
            let values = array.values.iter().map(|child| child_value(child, "", body));
            values.collect::<Result<_, _>>().map(Pack::Array)
        }
        Kind::Attr(attr) => attribute(named(&attr.name, implied), &attr.r#type, attr.required, body),
        Kind::BlockValue(block) => {
            let name = named(&block.name, implied);
            let nested = block.nested.as_deref().ok_or("nil nested spec")?;
            match blocks(name, body)?.as_slice() {
                [] if block.required => Err(format!("Missing {name} block")),
                [] => Ok(Pack::Nil),
                [one] => body_value(nested, one).map_err(|error| format!("{name}: {error}")),
                _ => Err(format!("Duplicate {name} block")),
            }
        }
        Kind::BlockAttrs(block) => {
            let name = named(&block.name, implied);
            match blocks(name, body)?.as_slice() {
                [] if block.required => Err(format!("Missing {name} block")),
                [] => Ok(Pack::Nil),
                [one] => {
                    let pairs = one
                        .iter()
                        .map(|(key, value)| Ok((Pack::from(key.as_str()), types::convert(&block.r#type, value)?)));
                    pairs.collect::<Result<_, String>>().map(Pack::Map)
                }
                _ => Err(format!("Duplicate {name} block")),
            }
        }
        Kind::BlockList(block) => {
            list(named(&block.name, implied), block.nested.as_deref(), block.min_items, block.max_items, body)
        }
        Kind::BlockSet(block) => {
            let all =
                list(named(&block.name, implied), block.nested.as_deref(), block.min_items, block.max_items, body)?;
            let Pack::Array(all) = all else {
                return Ok(all);
            };
            let mut distinct: Vec<Pack> = Vec::new();
            for value in all {
                if !distinct.contains(&value) {
                    distinct.push(value);
                }
            }
            Ok(Pack::Array(distinct))
        }
        Kind::BlockMap(block) => {
            let nested = block.nested.as_deref().ok_or("nil nested spec")?;
            let mut pairs = Vec::new();
            for one in blocks(named(&block.name, implied), body)? {
                for (label, inner) in one {
                    pairs.push((Pack::from(label.as_str()), labelled(nested, block.labels.len(), inner)?));
                }
            }
            Ok(Pack::Map(pairs))
        }
        Kind::Default(default) => {
            let primary = child_value(default.primary.as_deref().ok_or("nil primary spec")?, "", body)?;
            match primary {
                Pack::Nil => child_value(default.default.as_deref().ok_or("nil default spec")?, "", body),
                given => Ok(given),
            }
        }
        Kind::Literal(literal) => expression::parse(&literal.value).map(|value| types::natural(&value)),
    }
}

fn attribute(name: &str, kind: &str, required: bool, body: &Map<String, Json>) -> Result<Pack, String> {
    match body.get(name) {
        None | Some(Json::Null) if required => {
            Err(format!("Missing required argument: The argument {name:?} is required"))
        }
        None | Some(Json::Null) => Ok(Pack::Nil),
        Some(value) => {
            types::convert(kind, value).map_err(|error| format!("Incorrect attribute value type: {name}: {error}"))
        }
    }
}

/// The bodies of all blocks of one name: an object is one block, an array of objects several.
fn blocks<'a>(name: &str, body: &'a Map<String, Json>) -> Result<Vec<&'a Map<String, Json>>, String> {
    match body.get(name) {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::Object(one)) => Ok(vec![one]),
        Some(Json::Array(many)) => {
            let bodies = many.iter().map(|one| one.as_object().ok_or(format!("{name}: a block is required")));
            bodies.collect()
        }
        Some(_) => Err(format!("{name}: a block is required")),
    }
}

fn list(name: &str, nested: Option<&Spec>, min: u64, max: u64, body: &Map<String, Json>) -> Result<Pack, String> {
    let nested = nested.ok_or("nil nested spec")?;
    let bodies = blocks(name, body)?;
    let count = bodies.len() as u64;
    if count < min || (max > 0 && count > max) {
        return Err(format!("{name}: {count} blocks where {min} to {max} are allowed"));
    }
    let values = bodies.into_iter().map(|one| body_value(nested, one));
    values.collect::<Result<_, _>>().map(Pack::Array)
}

fn labelled(nested: &Spec, labels: usize, inner: &Json) -> Result<Pack, String> {
    let inner = match inner {
        Json::Array(one) if one.len() == 1 => &one[0],
        other => other,
    };
    let object = inner.as_object().ok_or("a labelled block is required")?;
    if labels <= 1 {
        return body_value(nested, object);
    }
    let pairs =
        object.iter().map(|(label, deeper)| Ok((Pack::from(label.as_str()), labelled(nested, labels - 1, deeper)?)));
    pairs.collect::<Result<_, String>>().map(Pack::Map)
}

fn check(spec: &Spec, implied: &str, path: &str, faults: &mut Vec<String>) {
    let mut name_of = |name: &str| {
        if named(name, implied).is_empty() {
            faults.push(format!("{path}: a member of a default or array needs a name of its own"));
        }
    };
    let nested = |name: &str, nested: Option<&Spec>, faults: &mut Vec<String>| match nested {
        Some(inner) => check(inner, "", &format!("{path}.{}", named(name, implied)), faults),
        None => faults.push(format!("{path}.{}: no nested spec", named(name, implied))),
    };
    match &spec.block {
        None => faults.push(format!("{path}: empty spec")),
        Some(Kind::Object(object)) => {
            for (key, child) in &object.attributes {
                check(child, key, &format!("{path}.{key}"), faults);
            }
        }
        Some(Kind::Array(array)) => array.values.iter().for_each(|child| check(child, "", path, faults)),
        Some(Kind::Attr(attr)) => {
            name_of(&attr.name);
            type_fault(&attr.r#type, path, faults);
        }
        Some(Kind::BlockAttrs(block)) => {
            name_of(&block.name);
            type_fault(&block.r#type, path, faults);
        }
        Some(Kind::BlockValue(block)) => {
            name_of(&block.name);
            nested(&block.name, block.nested.as_deref(), faults);
        }
        Some(Kind::BlockList(block)) => {
            name_of(&block.name);
            nested(&block.name, block.nested.as_deref(), faults);
        }
        Some(Kind::BlockSet(block)) => {
            name_of(&block.name);
            nested(&block.name, block.nested.as_deref(), faults);
        }
        Some(Kind::BlockMap(block)) => {
            name_of(&block.name);
            nested(&block.name, block.nested.as_deref(), faults);
        }
        Some(Kind::Default(default)) => {
            for half in [&default.primary, &default.default] {
                match half {
                    Some(half) => check(half, "", path, faults),
                    None => faults.push(format!("{path}: a default lacks one of its halves")),
                }
            }
        }
        Some(Kind::Literal(literal)) => {
            if let Err(error) = expression::parse(&literal.value) {
                faults.push(format!("{path}: literal {:?}: {error}", literal.value));
            }
        }
    }
}

fn type_fault(kind: &str, path: &str, faults: &mut Vec<String>) {
    if let Err(error) = types::parse(kind) {
        faults.push(format!("{path}: type {kind:?}: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use proto::hclspec;
    use serde_json::json;

    use super::*;

    fn spec(kind: Kind) -> Spec {
        Spec { block: Some(kind) }
    }

    fn attr(name: &str, kind: &str) -> Spec {
        spec(Kind::Attr(hclspec::Attr { name: name.into(), r#type: kind.into(), required: false }))
    }

    fn object<const N: usize>(members: [(&str, Spec); N]) -> Spec {
        spec(Kind::Object(hclspec::Object { attributes: members.map(|(key, spec)| (key.to_owned(), spec)).into() }))
    }

    fn default(primary: Spec, literal: &str) -> Spec {
        let literal = spec(Kind::Literal(hclspec::Literal { value: literal.into() }));
        spec(Kind::Default(Box::new(hclspec::Default {
            primary: Some(Box::new(primary)),
            default: Some(Box::new(literal)),
        })))
    }

    fn value(schema: &Spec, written: Json) -> String {
        match decode(schema, &written) {
            Ok(bytes) => {
                rmpv::decode::read_value(&mut bytes.as_slice()).map_or_else(|e| e.to_string(), |v| v.to_string())
            }
            Err(error) => error,
        }
    }

    #[test]
    fn every_key_is_present() {
        let mount = object([
            ("source", attr("", "string")),
            ("type", default(attr("type", "string"), "\"bind\"")),
            ("ro", attr("", "bool")),
        ]);
        let schema = object([
            ("image", attr("", "string")),
            (
                "mount",
                spec(Kind::BlockList(Box::new(hclspec::BlockList {
                    name: "mount".into(),
                    min_items: 0,
                    max_items: 0,
                    nested: Some(Box::new(mount)),
                }))),
            ),
            ("labels", attr("", "list(map(string))")),
            ("delay", default(attr("delay", "string"), "\"3m\"")),
        ]);
        assert_eq!(value(&schema, json!({})), r#"{"delay": "3m", "image": nil, "labels": nil, "mount": []}"#);
        let written =
            json!({"image": "a", "labels": {"k": 1}, "mount": [{"source": "s"}, {"type": "tmpfs", "ro": "true"}]});
        let expected = concat!(
            r#"{"delay": "3m", "image": "a", "labels": [{"k": "1"}], "#,
            r#""mount": [{"ro": nil, "source": "s", "type": "bind"}, "#,
            r#"{"ro": true, "source": nil, "type": "tmpfs"}]}"#
        );
        assert_eq!(value(&schema, written), expected);
        assert_eq!(value(&schema, json!({"bad": 1})), "Invalid label: No argument or block type is named \"bad\"");
    }

    #[test]
    fn numbers_travel_as_cty_sends_them() {
        let schema = object([("n", attr("", "number"))]);
        assert_eq!(decode(&schema, &json!({"n": 100_000})), Ok(vec![0x81, 0xa1, b'n', 0xce, 0, 1, 0x86, 0xa0]));
        assert_eq!(decode(&schema, &json!({"n": -1})), Ok(vec![0x81, 0xa1, b'n', 0xff]));
        assert_eq!(value(&schema, json!({"n": 1.5})), "{\"n\": 1.5}");
        assert_eq!(value(&schema, json!({"n": 0.1})), "{\"n\": \"0.1\"}");
        assert_eq!(value(&schema, json!({"n": "42"})), "{\"n\": 42}");
    }

    #[test]
    fn a_schema_that_nomad_refuses_is_found() {
        let nameless = object([("a", default(attr("", "string"), "\"x\""))]);
        assert_eq!(schema_faults(&nameless).len(), 1);
        let wrong = object([("a", attr("", "strings")), ("b", default(attr("b", "bool"), "{ enabled = "))]);
        assert_eq!(schema_faults(&wrong).len(), 2);
        assert_eq!(schema_faults(&object([("a", attr("", "list(map(string))"))])), Vec::<String>::new());
    }
}
