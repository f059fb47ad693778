//! Blocks for tests, written as JSON.

use rmpv::Value;
use serde_json::Value as Json;

/// JSON in the form in which Nomad sends a block.
pub fn msgpack(block: &Json) -> Vec<u8> {
    encode(&value(block))
}

/// Any value as bytes.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::from(integer),
            None => Value::from(number.as_f64().unwrap()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(value).collect()),
        Json::Object(pairs) => {
            Value::Map(pairs.iter().map(|(key, item)| (Value::from(key.as_str()), value(item))).collect())
        }
    }
}
