//! JSON as a config block: the operator's commands read the plugin block from a file, because Nomad alone reads HCL.

use rmpv::Value;
use serde_json::Value as Json;

/// JSON in the form in which Nomad sends a block.
pub fn msgpack(block: &Json) -> Vec<u8> {
    encode(&value(block))
}

/// Any value as bytes.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    match rmpv::encode::write_value(&mut bytes, value) {
        Ok(()) => bytes,
        Err(error) => unreachable!("a Vec takes all bytes: {error}"),
    }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => number.as_f64().map_or(Value::Nil, Value::from),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        Json::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, item)| (Value::from(key.as_str()), value(item))).collect())
        }
    }
}
