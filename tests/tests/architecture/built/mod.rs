//! The errors that code builds from texts, such as `ConfigError { option, problem, remedy }`.
//!
//! A reader of the source follows a text from its literal to the place that builds the error: through variables,
//! constants, branches, closures and functions. If a function builds an error from its parameters, each of its calls is
//! such a place. What the reader cannot follow is a name or a number to it.

mod code;
mod expression;
mod text;
mod walk;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use syn::File;

use self::{
    code::{Code, Function},
    text::{Text, Texts},
    walk::Walk,
};

/// A type of errors: its name, or that of its variant, and its fields with texts. The error's text is the last fields
/// or the only one; a field before them tells what the error is about.
#[derive(Debug)]
pub(crate) struct Kind {
    pub name: &'static str,
    pub fields: &'static [&'static str],
}

/// An error that code builds.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    /// The type.
    pub kind: &'static str,
    /// The source that has the first words of its text.
    pub file: String,
    /// The function there.
    pub function: String,
    /// The texts of the fields.
    fields: Vec<Texts>,
}

impl Built {
    /// The texts of the fields, with `…` for names and numbers.
    pub(crate) fn shown(&self) -> Vec<BTreeSet<String>> {
        self.fields.iter().map(|texts| texts.iter().map(Text::to_string).collect()).collect()
    }

    /// The parts of its text. What it is about is none of them.
    fn texts(&self) -> impl Iterator<Item = &Text> {
        self.fields.iter().skip(usize::from(self.fields.len() > 1)).flatten()
    }

    fn has_words(&self) -> bool {
        self.texts().any(Text::has_words)
    }
}

/// A format string as a reader knows it, with `…` for names and numbers.
pub(crate) fn of_format(format: &str) -> String {
    text::formatted(format, |_| text::unknown()).iter().map(Text::to_string).collect()
}

/// All errors of these kinds in sources, each with its path below the workspace.
pub(crate) fn built(sources: &[(String, File)], kinds: &[Kind]) -> Vec<Built> {
    let reader = Reader {
        code: Code::of(sources),
        kinds,
        summaries: RefCell::default(),
        called: RefCell::default(),
        built: RefCell::default(),
        parameters: Cell::default(),
    };
    let summaries: Vec<_> = (0..reader.code.functions.len()).map(|index| reader.summary(index)).collect();
    let called = reader.called.take();
    let uncalled = summaries.into_iter().enumerate().filter(|(index, _)| !called.contains(index));
    let mut built = reader.built.take();
    built.extend(uncalled.filter_map(|(_, summary)| summary).flat_map(|summary| summary.open.clone()));
    built
}

/// What the callers of a function must know.
#[derive(Default)]
struct Summary {
    /// The numbers of its parameters.
    parameters: Vec<usize>,
    /// Its results.
    texts: Texts,
    /// The errors that it builds from its parameters.
    open: Vec<Built>,
}

struct Reader<'a> {
    code: Code<'a>,
    kinds: &'a [Kind],
    /// `None`: it is being made.
    summaries: RefCell<BTreeMap<usize, Option<Rc<Summary>>>>,
    called: RefCell<BTreeSet<usize>>,
    built: RefCell<Vec<Built>>,
    parameters: Cell<usize>,
}

impl Reader<'_> {
    /// The summary of a function. `None` for a function that calls itself.
    fn summary(&self, index: usize) -> Option<Rc<Summary>> {
        if let Some(known) = self.summaries.borrow().get(&index) {
            return known.clone();
        }
        self.summaries.borrow_mut().insert(index, None);
        let function = &self.code.functions[index];
        let mut walk = Walk::new(self, function);
        let parameters = function.parameters.iter().map(|name| walk.parameter(name.as_deref())).collect();
        let mut texts = walk.block(function.body);
        texts.append(&mut walk.returned);
        let summary = Some(Rc::new(Summary { parameters, texts, open: walk.open }));
        self.summaries.borrow_mut().insert(index, summary.clone());
        summary
    }

    /// The kind of error that a path builds.
    fn kind(&self, path: &syn::Path, from: &Function) -> Option<&Kind> {
        let names = path.segments.iter().map(|segment| match segment.ident.to_string() {
            own if own == "Self" => from.owner.clone().unwrap_or_default(),
            name => name,
        });
        let names = names.collect::<Vec<_>>().join("::");
        self.kinds.iter().find(|kind| names == kind.name || names.ends_with(&format!("::{}", kind.name)))
    }
}

#[test]
fn texts_are_followed_to_the_errors_that_they_build() {
    let source = r#"
        const KNOWN: &str = "write it";
        impl Wrong {
            fn new(option: &str, problem: impl Into<String>, remedy: &str) -> Self {
                Self { option: option.to_owned(), problem: problem.into(), remedy: remedy.to_owned() }
            }
            fn add(&self, problem: String) { self.0.push(Wrong::new("b", problem, KNOWN)) }
        }
        fn find(text: &str) -> Result<u8, String> {
            match text { "" => Err("is empty".into()), other => Err(format!("{other:?} is no number")) }
        }
        fn check(errors: &Wrong, text: &str, value: Option<u8>) -> Option<Wrong> {
            if let Err(problem) = find(text) { errors.add(problem); }
            let refuse = |name: &str, remedy: &str| Wrong::new("c", format!("{name} is {{wrong}}"), remedy);
            let [first] = [1].map(|_| refuse("this", if value.is_some() { "go on" } else { "stop there" }));
            let Some(value) = value else { return Some(Wrong::new("d", text, "")) };
            value.checked_add(1).map(|value| Wrong::new("e", format!("{value} is too much"), ""))
        }
        #[cfg(test)]
        mod tests { fn left_out() { Wrong::new("f", "no", "no"); } }
    "#;
    let file = syn::parse_file(source).expect("a source");
    let kinds = [Kind { name: "Wrong", fields: &["option", "problem", "remedy"] }];
    let found = built(&[("a/src/lib.rs".to_owned(), file)], &kinds);
    let mut shown: Vec<String> = found
        .iter()
        .map(|error| {
            let fields = error.shown().into_iter().map(|texts| texts.into_iter().collect::<Vec<_>>().join("|"));
            format!("{}: {}", error.function, fields.collect::<Vec<_>>().join(", "))
        })
        .collect();
    shown.sort();
    let expected = [
        "add: b, is empty|… is no number, write it",
        "check: c, this is {wrong}, go on|stop there",
        "check: d, …, ",
        "check: e, … is too much, ",
    ];
    assert_eq!(shown, expected);
}
