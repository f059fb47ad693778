//! HCL's type expressions, and a value's way through them into msgpack.

use rmpv::Value as Pack;
use serde_json::Value as Json;

/// A type that a schema can name.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Type {
    Any,
    String,
    Number,
    Bool,
    List(Box<Type>),
    Set(Box<Type>),
    Map(Box<Type>),
}

/// Reads a type expression.
pub(super) fn parse(text: &str) -> Result<Type, String> {
    let text = text.trim();
    let inner = |name: &str| text.strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')');
    match text {
        "any" => Ok(Type::Any),
        "string" => Ok(Type::String),
        "number" => Ok(Type::Number),
        "bool" => Ok(Type::Bool),
        _ => {
            if let Some(of) = inner("list") {
                Ok(Type::List(Box::new(parse(of)?)))
            } else if let Some(of) = inner("set") {
                Ok(Type::Set(Box::new(parse(of)?)))
            } else if let Some(of) = inner("map") {
                Ok(Type::Map(Box::new(parse(of)?)))
            } else {
                Err(format!("unknown type expression {text:?}"))
            }
        }
    }
}

/// A written value as the attribute's type makes it.
pub(super) fn convert(kind: &str, value: &Json) -> Result<Pack, String> {
    match parse(kind)? {
        // Because of that wrapping an attribute of this type can never be written in a job.
        Type::Map(_) => Err("map of string required".into()),
        kind => typed(&kind, value),
    }
}

fn typed(kind: &Type, value: &Json) -> Result<Pack, String> {
    match (kind, value) {
        (_, Json::Null) => Ok(Pack::Nil),
        (Type::Any, value) => Ok(natural(value)),
        (Type::String, Json::String(text)) => Ok(text.as_str().into()),
        (Type::String, Json::Number(number)) => Ok(number.to_string().into()),
        (Type::String, Json::Bool(flag)) => Ok(flag.to_string().into()),
        (Type::Number, Json::Number(number)) => Ok(packed_number(number)),
        (Type::Number, Json::String(text)) => {
            let number = text.parse().map_err(|_| "a number is required".to_owned())?;
            Ok(packed_number(&number))
        }
        (Type::Bool, Json::Bool(flag)) => Ok((*flag).into()),
        (Type::Bool, Json::String(text)) if text == "true" || text == "false" => Ok((text == "true").into()),
        (Type::List(of) | Type::Set(of), Json::Array(values)) => {
            let mut out = Vec::new();
            for value in values {
                let value = typed(of, value)?;
                if matches!(kind, Type::List(_)) || !out.contains(&value) {
                    out.push(value);
                }
            }
            Ok(Pack::Array(out))
        }
        // Nomad wraps every object of a job into a list of one before its decoder sees it.
        (Type::List(of) | Type::Set(of), Json::Object(_)) if matches!(**of, Type::Map(_)) => {
            Ok(Pack::Array(vec![typed(of, value)?]))
        }
        (Type::Map(of), Json::Object(members)) => {
            let pairs = members.iter().map(|(key, value)| Ok((Pack::from(key.as_str()), typed(of, value)?)));
            pairs.collect::<Result<_, String>>().map(Pack::Map)
        }
        _ => Err(format!("{kind:?} required")),
    }
}

fn packed_number(number: &serde_json::Number) -> Pack {
    if let Some(whole) = number.as_i64() {
        return whole.into();
    }
    if let Some(whole) = number.as_u64() {
        return whole.into();
    }
    let text = number.to_string();
    match number.as_f64() {
        Some(value) if value.fract() == 0.0 && value.abs() < 9.0e15 => (value as i64).into(),
        // Exactly representable: few binary digits after the point.
        Some(value) if (value * 1_048_576.0).fract() == 0.0 => value.into(),
        _ => text.into(),
    }
}

/// A value without a type: as it stands.
pub(super) fn natural(value: &Json) -> Pack {
    match value {
        Json::Null => Pack::Nil,
        Json::Bool(flag) => (*flag).into(),
        Json::Number(number) => packed_number(number),
        Json::String(text) => text.as_str().into(),
        Json::Array(values) => Pack::Array(values.iter().map(natural).collect()),
        Json::Object(members) => {
            Pack::Map(members.iter().map(|(key, value)| (key.as_str().into(), natural(value))).collect())
        }
    }
}
