//! Properties of both decoders.

use proptest::prelude::*;
use rmpv::Value;

use super::{
    PLUGIN_OPTIONS, Policy, TASK_OPTIONS, decode_plugin, decode_task,
    msgpack::encode,
    option::{OptionSpec, OptionType},
};
use crate::name::DriverName;

/// Any value. Maps often have names of options as keys.
fn any_value(options: &'static [OptionSpec]) -> BoxedStrategy<Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-z./:=,-]{0,9}".prop_map(Value::from),
        any::<Vec<u8>>().prop_map(Value::from),
        (any::<i8>(), any::<Vec<u8>>()).prop_map(|(kind, data)| Value::Ext(kind, data)),
    ];
    let key = prop_oneof![
        4 => prop::sample::select(options).prop_map(|option| Value::from(option.name)),
        1 => "[a-z_]{0,9}".prop_map(Value::from),
        1 => leaf.clone(),
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((key.clone(), inner), 0..8).prop_map(Value::Map),
        ]
    })
    .boxed()
}

/// A block of options with values of any kind.
fn block(options: &'static [OptionSpec]) -> BoxedStrategy<Value> {
    let value = any_value(options);
    let nested = options.iter().filter_map(|option| match option.kind {
        OptionType::Block(options) | OptionType::Blocks(options) | OptionType::Labelled(_, options) => Some(options),
        _ => None,
    });
    let nested: Vec<BoxedStrategy<Value>> = nested.map(any_value).collect();
    let value = nested.into_iter().fold(value, |all, one| prop_oneof![3 => all, 1 => one].boxed());
    let pair = (prop::sample::select(options).prop_map(|option| Value::from(option.name)), value);
    prop::collection::vec(pair, 0..12).prop_map(Value::Map).boxed()
}

proptest! {
    #[test]
    fn decoders_never_panic_on_any_bytes(bytes in any::<Vec<u8>>()) {
        prop_assert!(decode_task(&bytes, &Policy::default()).is_err());
        decode_plugin(&bytes, DriverName::OciRs).ok();
    }

    #[test]
    fn the_task_decoder_never_panics_on_any_block(block in block(TASK_OPTIONS)) {
        if let Err(errors) = decode_task(&encode(&block), &Policy::default()) {
            prop_assert!(!errors.errors.is_empty());
        }
    }

    #[test]
    fn the_plugin_decoder_never_panics_on_any_block(block in block(PLUGIN_OPTIONS)) {
        decode_plugin(&encode(&block), DriverName::Docker).ok();
    }
}
