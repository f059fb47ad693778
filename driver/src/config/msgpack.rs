//! Config blocks as msgpack, and the scalar values in them.
//!
//! Nomad sends blocks as msgpack. The operator's commands read the plugin block from a file and convert it with
//! [`from_json`].

use rmpv::Value;
use serde_json::Value as Json;

use super::error::ErrorCollector;

/// The deepest nesting that is decoded. Nomad's config blocks nest four levels.
const MAX_DEPTH: usize = 32;

/// The largest integer up to which every integer is exact as a float.
const MAX_EXACT_FLOAT: f64 = (1_u64 << 53) as f64;

/// Decodes a block. Nil, and no bytes at all, are a block without options.
pub fn decode(msgpack: &[u8], errors: &ErrorCollector) -> Value {
    if msgpack.is_empty() {
        return Value::Nil;
    }
    let mut rest = msgpack;
    let problem = match rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH) {
        Ok(value) if rest.is_empty() => return value,
        Ok(_) => "has bytes after its end".to_owned(),
        Err(error) => format!("is not msgpack: {error}"),
    };
    errors.add("config", problem, "report this: Nomad and the driver disagree about the format");
    Value::Nil
}

/// A JSON block in the form in which Nomad sends blocks.
pub fn from_json(block: &Json) -> Vec<u8> {
    encode(&value_from_json(block))
}

/// A block that Nomad sent, as JSON. [`from_json`] makes an equal block of it. `None` if it is not msgpack.
pub fn to_json(msgpack: &[u8]) -> Option<Json> {
    let mut rest = msgpack;
    if rest.is_empty() {
        return Some(Json::Null);
    }
    rmpv::decode::read_value_with_max_depth(&mut rest, MAX_DEPTH).ok().map(|value| json_from_value(&value))
}

fn json_from_value(value: &Value) -> Json {
    match value {
        Value::Boolean(value) => Json::from(*value),
        Value::Integer(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Json::from(number),
            (None, number) => Json::from(number),
        },
        Value::F32(number) => Json::from(*number),
        Value::F64(number) => Json::from(*number),
        Value::String(_) | Value::Binary(_) => text(value).map_or(Json::Null, Json::from),
        Value::Array(items) => items.iter().map(json_from_value).collect(),
        Value::Map(pairs) => {
            let key = |key: &Value| text(key).unwrap_or_default();
            Json::Object(pairs.iter().map(|(name, item)| (key(name), json_from_value(item))).collect())
        }
        Value::Nil | Value::Ext(..) => Json::Null,
    }
}

/// A value as msgpack.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    match rmpv::encode::write_value(&mut bytes, value) {
        Ok(()) => bytes,
        Err(error) => unreachable!("writing to a Vec cannot fail: {error}"),
    }
}

fn value_from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => number.as_f64().map_or(Value::Nil, Value::from),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(value_from_json).collect()),
        Json::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, item)| (Value::from(key.as_str()), value_from_json(item))).collect())
        }
    }
}

/// Whether a value counts as set. False, zero and empty texts, lists and maps are the values of unset options.
pub fn is_set(value: &Value) -> bool {
    match value {
        Value::Nil => false,
        Value::Boolean(value) => *value,
        Value::Integer(number) => number.as_i64() != Some(0),
        Value::F32(number) => *number != 0.0,
        Value::F64(number) => *number != 0.0,
        Value::String(text) => !text.as_bytes().is_empty(),
        Value::Binary(bytes) => !bytes.is_empty(),
        Value::Array(items) => items.iter().any(is_set),
        Value::Map(pairs) => !pairs.is_empty() && pairs.iter().any(|(_, value)| !value.is_nil()),
        Value::Ext(..) => true,
    }
}

/// A scalar as text. `None` for any other value.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => text.as_str().map(str::to_owned),
        Value::Binary(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::Integer(number) => Some(number.to_string()),
        Value::F32(number) => Some(number.to_string()),
        Value::F64(number) => Some(number.to_string()),
        Value::Boolean(value) => Some(value.to_string()),
        Value::Nil | Value::Array(_) | Value::Map(_) | Value::Ext(..) => None,
    }
}

/// A whole number, also if it is written as a float or as text.
pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => number.as_i64(),
        Value::F32(number) => exact_integer(f64::from(*number)),
        Value::F64(number) => exact_integer(*number),
        Value::String(text) => {
            let text = text.as_str()?.trim();
            text.parse().ok().or_else(|| text.parse().ok().and_then(exact_integer))
        }
        _ => None,
    }
}

/// A float as an integer, if the conversion is exact.
fn exact_integer(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= MAX_EXACT_FLOAT).then_some(number as i64)
}

/// The type of a value that does not have the expected type, for an error text. Says nothing of the value, which may be
/// a secret.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Boolean(_) => "true or false",
        Value::Integer(_) => "a whole number out of range",
        Value::F32(_) | Value::F64(_) => "a number with a fraction",
        Value::String(text) if text.is_err() => "text that is not UTF-8",
        Value::String(_) => "text",
        Value::Binary(_) => "bytes",
        Value::Array(_) => "a list",
        Value::Map(_) => "a map",
        Value::Ext(..) => "a value that is not known yet",
    }
}

#[cfg(test)]
mod tests {
    use rmpv::Value;

    use serde_json::json;

    use super::{from_json, integer, to_json};

    #[test]
    fn a_block_survives_its_way_through_json() {
        let block = json!({"a": [{"b": 1, "c": -2.5, "d": null}], "e": true, "f": "text", "g": {"h.i": []}});
        assert_eq!(to_json(&from_json(&block)), Some(block));
        assert_eq!((to_json(&[]), to_json(&[0x92])), (Some(json!(null)), None));
    }

    #[test]
    fn whole_numbers_are_read_in_every_form() {
        for (value, expected) in [
            (Value::from(7), Some(7)),
            (Value::from(-7), Some(-7)),
            (Value::from(7.0_f64), Some(7)),
            (Value::from(7.0_f32), Some(7)),
            (Value::from("7"), Some(7)),
            (Value::from(" 7 "), Some(7)),
            (Value::from("1e3"), Some(1000)),
            (Value::from("9223372036854775807"), Some(i64::MAX)),
            (Value::from(7.5), None),
            (Value::from("0.1"), None),
            (Value::from("9223372036854775808"), None),
            (Value::from(u64::MAX), None),
            (Value::from(f64::INFINITY), None),
            (Value::from(f64::NAN), None),
            (Value::from("x"), None),
            (Value::from(true), None),
            (Value::Nil, None),
        ] {
            assert_eq!(integer(&value), expected, "{value}");
        }
    }
}
