//! The HCL specifications that Nomad validates both blocks with, made from the tables of options.

use std::collections::HashMap;

use proto::hclspec::{
    Attr, Block, BlockAttrs, BlockList, BlockMap, Default as DefaultSpec, Literal, Object, Spec, spec::Block as Form,
};

use super::{
    option::{Default, Kind, Opt},
    plugin_options::PLUGIN,
    task_options::TASK,
};

/// The schema of the `config` block in `plugin "oci-rs"`.
pub fn plugin_schema() -> Spec {
    object(PLUGIN)
}

/// The schema of a task's `config` block.
pub fn task_schema() -> Spec {
    object(TASK)
}

fn object(options: &[Opt]) -> Spec {
    let attributes: HashMap<_, _> = options.iter().map(|option| (option.name.to_owned(), of(option))).collect();
    spec(Form::Object(Object { attributes }))
}

/// Names are always written out: inside a default there is no name that Nomad could imply.
fn of(option: &Opt) -> Spec {
    let primary = spec(form(option));
    match option.default {
        Default::Required | Default::Words(_) => primary,
        Default::Literal(value) => spec(Form::Default(Box::new(DefaultSpec {
            primary: Some(Box::new(primary)),
            default: Some(Box::new(spec(Form::Literal(Literal { value: value.to_owned() })))),
        }))),
    }
}

fn form(option: &Opt) -> Form {
    let name = option.name.to_owned();
    let required = matches!(option.default, Default::Required);
    let nested = |options| Some(Box::new(object(options)));
    match option.kind {
        Kind::Block(options) => Form::BlockValue(Box::new(Block { name, required, nested: nested(options) })),
        Kind::Blocks(options) => Form::BlockList(Box::new(BlockList {
            name,
            min_items: u64::from(required),
            max_items: 0,
            nested: nested(options),
        })),
        Kind::Labelled(label, options) => {
            Form::BlockMap(Box::new(BlockMap { name, labels: vec![label.to_owned()], nested: nested(options) }))
        }
        Kind::StringAttrs => Form::BlockAttrs(BlockAttrs { name, r#type: "string".to_owned(), required }),
        Kind::String => attribute(name, "string", required),
        Kind::Bool => attribute(name, "bool", required),
        Kind::Number => attribute(name, "number", required),
        Kind::Strings => attribute(name, "list(string)", required),
        Kind::StringMaps => attribute(name, "list(map(string))", required),
        Kind::NumberMaps => attribute(name, "list(map(number))", required),
    }
}

fn attribute(name: String, kind: &str, required: bool) -> Form {
    Form::Attr(Attr { name, r#type: kind.to_owned(), required })
}

fn spec(form: Form) -> Spec {
    Spec { block: Some(form) }
}
