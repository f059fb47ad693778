//! A walk through a function: its statements, and the variables that are known at each place.

use std::{collections::HashMap, rc::Rc};

use syn::{Block, Expr, Item, Local, Pat, Stmt, visit};

use super::{
    Built, Reader, Summary,
    code::{Function, name_of},
    text::{self, Text, Texts, unknown},
};

#[derive(Clone)]
pub(super) enum Variable {
    Texts(Texts),
    Closure(Rc<Summary>),
}

/// A walk through a function, with what is known at each place.
pub(super) struct Walk<'r, 'a> {
    pub(super) reader: &'r Reader<'a>,
    pub(super) function: &'r Function<'a>,
    scopes: Vec<HashMap<String, Variable>>,
    /// The errors that it builds from parameters.
    pub(super) open: Vec<Built>,
    /// The results so far.
    pub(super) returned: Texts,
}

impl<'r, 'a> Walk<'r, 'a> {
    pub(super) fn new(reader: &'r Reader<'a>, function: &'r Function<'a>) -> Self {
        Self { reader, function, scopes: vec![HashMap::new()], open: Vec::new(), returned: Texts::new() }
    }

    pub(super) fn in_scope<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.scopes.push(HashMap::new());
        let result = work(self);
        self.scopes.pop();
        result
    }

    pub(super) fn set(&mut self, name: String, value: Variable) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, value);
        }
    }

    /// Gives a variable its texts. A capital letter begins the name of a constant.
    pub(super) fn set_texts(&mut self, name: String, texts: Texts) {
        if !name.starts_with(char::is_uppercase) {
            let texts = if texts.is_empty() { unknown() } else { texts };
            self.set(name, Variable::Texts(texts));
        }
    }

    pub(super) fn variable(&self, name: &str) -> Option<Variable> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).cloned()
    }

    /// Makes a parameter, and its number.
    pub(super) fn parameter(&mut self, name: Option<&str>) -> usize {
        let id = self.reader.parameters.get();
        self.reader.parameters.set(id + 1);
        if let Some(name) = name {
            self.set(name.to_owned(), Variable::Texts(text::parameter(id)));
        }
        id
    }

    pub(super) fn block(&mut self, block: &Block) -> Texts {
        self.in_scope(|walk| {
            let mut texts = unknown();
            for statement in &block.stmts {
                texts = match statement {
                    Stmt::Local(local) => walk.local(local),
                    Stmt::Expr(expr, None) => walk.texts(expr),
                    Stmt::Expr(expr @ (Expr::Return(_) | Expr::Break(_) | Expr::Continue(_)), _) => walk.texts(expr),
                    Stmt::Item(Item::Const(item)) => {
                        let value = walk.texts(&item.expr);
                        walk.set(item.ident.to_string(), Variable::Texts(value));
                        unknown()
                    }
                    other => {
                        visit::visit_stmt(walk, other);
                        unknown()
                    }
                };
            }
            texts
        })
    }

    pub(super) fn local(&mut self, local: &Local) -> Texts {
        let Some(init) = &local.init else { return unknown() };
        if let (Expr::Closure(closure), Some(name)) = (&*init.expr, name_of(&local.pat)) {
            let summary = self.summary_of(closure);
            self.set(name, Variable::Closure(Rc::new(summary)));
            return unknown();
        }
        let value = self.texts(&init.expr);
        if let Some((_, diverge)) = &init.diverge {
            self.texts(diverge);
        }
        self.bind(&local.pat, &value);
        unknown()
    }

    /// Gives the variables of a pattern their values.
    pub(super) fn bind(&mut self, pattern: &Pat, value: &Texts) {
        match pattern {
            Pat::Ident(name) => {
                // The code may add to the text of a variable that it can change.
                let grows = name.mutability.is_some() && value.iter().any(Text::has_words);
                let texts = if grows { text::joined([value.clone(), unknown()]) } else { value.clone() };
                self.set_texts(name.ident.to_string(), texts);
            }
            Pat::Type(typed) => self.bind(&typed.pat, value),
            Pat::Reference(reference) => self.bind(&reference.pat, value),
            Pat::Paren(paren) => self.bind(&paren.pat, value),
            Pat::Or(or) => or.cases.iter().for_each(|case| self.bind(case, value)),
            Pat::Guard(guard) => {
                self.bind(&guard.pat, value);
                self.texts(&guard.guard);
            }
            Pat::TupleStruct(wrapped) if wrapped.elems.len() == 1 => {
                let path = &wrapped.path;
                let is_known = path.is_ident("Some") || path.is_ident("Err");
                let inner = if is_known { value.clone() } else { unknown() };
                self.bind(&wrapped.elems[0], &inner);
            }
            Pat::Tuple(pattern) => {
                let positions = positions(value, pattern.elems.len());
                pattern.elems.iter().zip(&positions).for_each(|(pattern, texts)| self.bind(pattern, texts));
            }
            other => visit::visit_pat(self, other),
        }
    }
}

/// The texts of each position of tuples. They are not known if several positions have sentences, because it is lost
/// which of them belong together.
fn positions(value: &Texts, count: usize) -> Vec<Texts> {
    let tuples = value.iter().filter_map(Text::positions).filter(|positions| positions.len() == count);
    let tuples: Vec<&[Texts]> = tuples.collect();
    let all = |index: usize| -> Texts { tuples.iter().flat_map(|positions| positions[index].clone()).collect() };
    let positions: Vec<Texts> = (0..count).map(all).collect();
    let has_sentence = |texts: &&Texts| texts.iter().any(Text::is_sentence);
    if tuples.len() > 1 && positions.iter().filter(has_sentence).count() > 1 {
        return vec![unknown(); count];
    }
    positions
}
