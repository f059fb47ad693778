//! The texts of expressions, and the errors that they build.

use std::collections::HashMap;

use syn::{
    Block, Expr, ExprCall, ExprClosure, ExprField, ExprMethodCall, ExprPath, ExprStruct, Lit, Local, Macro, Member,
    Token,
    parse::Parser,
    punctuated::Punctuated,
    visit::{self, Visit},
};

use super::{
    Built, Summary,
    code::name_of,
    text::{self, Arguments, Text, Texts, fixed, tuple, unknown},
    walk::{Variable, Walk},
};

impl Walk<'_, '_> {
    /// The texts that an expression can have. Errors that it builds are noted.
    pub(super) fn texts(&mut self, expr: &Expr) -> Texts {
        match expr {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => fixed(&text.value()),
                Lit::Int(number) => fixed(number.base10_digits()),
                _ => unknown(),
            },
            Expr::Macro(expr) => self.call_of_macro(&expr.mac),
            Expr::Paren(inner) => self.texts(&inner.expr),
            Expr::Group(inner) => self.texts(&inner.expr),
            Expr::Reference(inner) => self.texts(&inner.expr),
            Expr::Await(inner) => self.texts(&inner.base),
            Expr::Unary(inner) if matches!(inner.op, syn::UnOp::Deref(_)) => self.texts(&inner.expr),
            Expr::Try(inner) => {
                // What goes on is not the error.
                let failed = self.texts(&inner.expr);
                self.returned.extend(failed.into_iter().filter(Text::has_words));
                unknown()
            }
            Expr::Block(expr) => self.block(&expr.block),
            Expr::Unsafe(expr) => self.block(&expr.block),
            Expr::Closure(closure) => self.closure(closure, &unknown()),
            Expr::Tuple(expr) => tuple(expr.elems.iter().map(|expr| self.texts(expr)).collect()),
            Expr::Array(expr) => expr.elems.iter().flat_map(|expr| self.texts(expr)).collect(),
            Expr::Path(ExprPath { path, .. }) => self.value(path).unwrap_or_else(|| self.apply_path(path, &[])),
            Expr::Call(call) => self.call(call),
            Expr::MethodCall(call) => self.method(call),
            Expr::Struct(expr) => self.structure(expr),
            Expr::Field(ExprField { base, .. }) => {
                self.texts(base);
                unknown()
            }
            other => self.branches(other),
        }
    }

    /// The texts of an expression that decides.
    fn branches(&mut self, expr: &Expr) -> Texts {
        match expr {
            Expr::If(expr) => self.in_scope(|walk| {
                walk.texts(&expr.cond);
                let mut texts = walk.block(&expr.then_branch);
                if let Some((_, otherwise)) = &expr.else_branch {
                    texts.append(&mut walk.texts(otherwise));
                }
                texts
            }),
            Expr::Let(expr) => {
                let value = self.texts(&expr.expr);
                self.bind(&expr.pat, &value);
                unknown()
            }
            Expr::Match(expr) => {
                let value = self.texts(&expr.expr);
                let arms = expr.arms.iter().map(|arm| {
                    self.in_scope(|walk| {
                        walk.bind(&arm.pat, &value);
                        walk.texts(&arm.body)
                    })
                });
                arms.flatten().collect()
            }
            Expr::ForLoop(expr) => self.in_scope(|walk| {
                let items = walk.texts(&expr.expr);
                walk.bind(&expr.pat, &items);
                walk.block(&expr.body);
                unknown()
            }),
            Expr::Return(expr) => {
                let value = expr.expr.as_ref().map(|expr| self.texts(expr));
                self.returned.extend(value.into_iter().flatten());
                Texts::new()
            }
            Expr::Break(_) | Expr::Continue(_) => {
                visit::visit_expr(self, expr);
                Texts::new()
            }
            other => {
                visit::visit_expr(self, other);
                unknown()
            }
        }
    }

    /// The texts of a variable or a constant.
    pub(super) fn value(&self, path: &syn::Path) -> Option<Texts> {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let (name, before) = names.split_last()?;
        match path.get_ident().and_then(|_| self.variable(name)) {
            Some(Variable::Texts(texts)) => Some(texts),
            Some(Variable::Closure(_)) => None,
            None if path.is_ident("None") => Some(Texts::new()),
            None => self.constant(before.last().map(String::as_str), name),
        }
    }

    fn constant(&self, qualifier: Option<&str>, name: &str) -> Option<Texts> {
        let value = self.reader.code.constant(qualifier, name, self.function)?;
        // Others may be made from a constant of the same name, as in `const DEFAULT: Self = Pool::DEFAULT`.
        let is_plain = matches!(value, Expr::Lit(_) | Expr::Array(_) | Expr::Reference(_));
        is_plain.then(|| Walk::new(self.reader, self.function).texts(value))
    }

    fn call(&mut self, call: &ExprCall) -> Texts {
        let arguments: Vec<Texts> = call.args.iter().map(|argument| self.texts(argument)).collect();
        match &*call.func {
            Expr::Path(ExprPath { path, .. }) => self.apply_path(path, &arguments),
            other => {
                self.texts(other);
                unknown()
            }
        }
    }

    /// Calls what a path names. Missing arguments are unknown.
    fn apply_path(&mut self, path: &syn::Path, arguments: &[Texts]) -> Texts {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let Some((name, before)) = names.split_last() else { return unknown() };
        let qualifier = before.last().map(String::as_str);
        let first = arguments.first().cloned().unwrap_or_else(unknown);
        if let Some(Variable::Closure(summary)) = path.get_ident().and_then(|_| self.variable(name)) {
            return self.apply(&summary, arguments);
        }
        match (qualifier, name.as_str()) {
            (None, "Some" | "Err") | (Some("String" | "Box"), "from" | "new") if !arguments.is_empty() => return first,
            (None, "Ok") => return Texts::new(),
            (Some("String"), "new") => return fixed(""),
            _ => {}
        }
        let reader = self.reader;
        if let Some(kind) = reader.kind(path, self.function).filter(|kind| kind.fields == ["0"]) {
            self.build(kind.name, vec![first]);
            return unknown();
        }
        let found = self.reader.code.called(qualifier, name, self.function);
        self.apply_all(&found, arguments)
    }

    /// Calls all functions that a call can mean.
    fn apply_all(&mut self, functions: &[usize], arguments: &[Texts]) -> Texts {
        let mut texts = Texts::new();
        for index in functions {
            self.reader.called.borrow_mut().insert(*index);
            let Some(summary) = self.reader.summary(*index) else { continue };
            let mut results = self.apply(&summary, arguments);
            if self.reader.code.functions[*index].gives_text {
                texts.append(&mut results);
            }
        }
        if texts.is_empty() || functions.len() > 1 { unknown() } else { texts }
    }

    fn apply(&mut self, summary: &Summary, arguments: &[Texts]) -> Texts {
        let argument = |index: usize| arguments.get(index).filter(|texts| !texts.is_empty());
        let parameters = summary.parameters.iter().enumerate();
        let arguments: Arguments =
            parameters.map(|(index, id)| (*id, argument(index).cloned().unwrap_or_else(unknown))).collect();
        for built in &summary.open {
            let fields = built.fields.iter().map(|texts| text::filled(texts, &arguments)).collect();
            match built.has_words() {
                true => self.note(Built { fields, ..built.clone() }),
                false => self.build(built.kind, fields),
            }
        }
        text::filled(&summary.texts, &arguments)
    }

    fn method(&mut self, call: &ExprMethodCall) -> Texts {
        let receiver = self.texts(&call.receiver);
        let arguments: Vec<Texts> = call.args.iter().map(|argument| self.argument(argument, &receiver)).collect();
        let all = || arguments.iter().flatten().cloned();
        match (call.method.to_string().as_str(), arguments.len()) {
            (
                "to_owned" | "to_string" | "into" | "clone" | "as_str" | "as_ref" | "as_deref" | "as_slice" | "cloned"
                | "copied" | "iter" | "into_iter" | "collect" | "flatten" | "err" | "as_mut",
                0,
            )
            | ("filter", 1) => receiver,
            ("or" | "or_else" | "unwrap_or" | "unwrap_or_else" | "chain", 1) => {
                receiver.into_iter().chain(all()).collect()
            }
            ("map" | "and_then" | "then" | "then_some" | "map_err" | "ok_or" | "ok_or_else" | "filter_map", 1)
            | ("map_or" | "map_or_else", 2) => all().collect(),
            // The names of a list are names; a list of sentences is one of them to a reader.
            ("join", 1) if receiver.iter().any(Text::is_sentence) => receiver,
            (name, count) => {
                let found = self.reader.code.methods(name, count, self.function);
                self.apply_all(&found, &arguments)
            }
        }
    }

    /// The texts of an argument. A function or closure gets `input`, and its results are the argument's texts.
    fn argument(&mut self, argument: &Expr, input: &Texts) -> Texts {
        match argument {
            Expr::Closure(closure) => self.closure(closure, input),
            Expr::Path(ExprPath { path, .. }) => {
                self.value(path).unwrap_or_else(|| self.apply_path(path, std::slice::from_ref(input)))
            }
            other => self.texts(other),
        }
    }

    /// Calls a closure.
    fn closure(&mut self, closure: &ExprClosure, input: &Texts) -> Texts {
        let returned = std::mem::take(&mut self.returned);
        let mut texts = self.in_scope(|walk| {
            for (position, pattern) in closure.inputs.iter().enumerate() {
                let value = if position == 0 { input.clone() } else { unknown() };
                walk.bind(pattern, &value);
            }
            walk.texts(&closure.body)
        });
        texts.append(&mut std::mem::replace(&mut self.returned, returned));
        texts
    }

    pub(super) fn summary_of(&mut self, closure: &ExprClosure) -> Summary {
        let open = std::mem::take(&mut self.open);
        let returned = std::mem::take(&mut self.returned);
        let mut summary = self.in_scope(|walk| {
            let parameters = closure.inputs.iter().map(|pattern| {
                visit::visit_pat(walk, pattern);
                walk.parameter(name_of(pattern).as_deref())
            });
            let parameters = parameters.collect();
            Summary { parameters, texts: walk.texts(&closure.body), open: Vec::new() }
        });
        summary.texts.append(&mut std::mem::replace(&mut self.returned, returned));
        summary.open = std::mem::replace(&mut self.open, open);
        summary
    }

    fn structure(&mut self, expr: &ExprStruct) -> Texts {
        let mut values: HashMap<String, Texts> = HashMap::new();
        for field in &expr.fields {
            let value = self.texts(&field.expr);
            if let Member::Named(name) = &field.member {
                values.insert(name.to_string(), value);
            }
        }
        if let Some(rest) = &expr.rest {
            self.texts(rest);
        }
        let reader = self.reader;
        if let Some(kind) = reader.kind(&expr.path, self.function) {
            let fields: Option<Vec<Texts>> = kind.fields.iter().map(|name| values.remove(*name)).collect();
            // An error that adds a name to another one's text is no new error.
            let has_words = |fields: &Vec<Texts>| fields.iter().flatten().any(Text::has_words);
            if let Some(fields) = fields.filter(|fields| expr.rest.is_none() || has_words(fields)) {
                self.build(kind.name, fields);
            }
        }
        unknown()
    }

    /// Builds an error here. A value whose last field has no text is none: all is well if a finding has no remedy.
    fn build(&mut self, kind: &'static str, fields: Vec<Texts>) {
        let (file, function) = (self.function.file.to_owned(), self.function.name.clone());
        if fields.last().is_some_and(|texts| !texts.is_empty()) {
            self.note(Built { kind, file, function, fields });
        }
    }

    fn note(&mut self, built: Built) {
        let is_open = built.texts().any(Text::is_open);
        if is_open { self.open.push(built) } else { self.reader.built.borrow_mut().push(built) }
    }

    fn call_of_macro(&mut self, call: &Macro) -> Texts {
        let parser = Punctuated::<Expr, Token![,]>::parse_terminated;
        let Ok(arguments) = parser.parse2(call.tokens.clone()) else { return unknown() };
        let mut named = HashMap::new();
        for (position, argument) in arguments.iter().enumerate() {
            match argument {
                Expr::Assign(named_argument) => {
                    let value = self.texts(&named_argument.right);
                    if let Expr::Path(ExprPath { path, .. }) = &*named_argument.left {
                        named.insert(path.get_ident().map(ToString::to_string).unwrap_or_default(), value);
                    }
                }
                // The format string is before the first argument.
                other => {
                    let value = self.texts(other);
                    named.insert(position.wrapping_sub(1).to_string(), value);
                }
            }
        }
        match arguments.first() {
            Some(Expr::Lit(format)) if call.path.is_ident("format") => match &format.lit {
                Lit::Str(format) => text::formatted(&format.value(), |name| match named.get(name) {
                    Some(texts) => texts.clone(),
                    None => self.named(name),
                }),
                _ => unknown(),
            },
            _ => unknown(),
        }
    }

    /// The texts of a variable or a constant in a format string.
    fn named(&self, name: &str) -> Texts {
        match self.variable(name) {
            Some(Variable::Texts(texts)) => texts,
            Some(Variable::Closure(_)) => unknown(),
            None => self.constant(None, name).unwrap_or_else(unknown),
        }
    }
}

/// Walks through the parts of an expression that has no texts, and forgets what it knew of the variables of a pattern.
impl<'ast> Visit<'ast> for Walk<'_, '_> {
    fn visit_expr(&mut self, expr: &'ast Expr) {
        self.texts(expr);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        self.block(block);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        self.local(local);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.call_of_macro(call);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.set_texts(pattern.ident.to_string(), unknown());
    }
}
