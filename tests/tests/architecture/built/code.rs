//! Functions and constants of sources, by the names with which code calls them.

use syn::{
    Attribute, Block, Expr, File, FnArg, Ident, ImplItemConst, ImplItemFn, Item, ItemConst, ItemFn, ItemImpl,
    ItemStatic, Pat, ReturnType, Signature, TraitItemFn, Type,
    visit::{self, Visit},
};

use crate::modules::is_for_tests;

/// A function of a source.
pub(crate) struct Function<'a> {
    /// The source, as in `driver/src/main.rs`.
    pub file: &'a str,
    /// The type of its `impl` block.
    pub owner: Option<String>,
    pub name: String,
    /// The names of the parameters except `self`; `None` for patterns.
    pub parameters: Vec<Option<String>>,
    /// It has a parameter `self`.
    pub is_method: bool,
    /// Its result contains text.
    pub gives_text: bool,
    pub body: &'a Block,
}

impl Function<'_> {
    /// Whether it belongs to the crate of a file.
    pub(crate) fn is_in_crate_of(&self, file: &str) -> bool {
        let member = |path: &str| path.split('/').next().map(str::to_owned);
        member(self.file) == member(file)
    }
}

/// Whether the module of a source has this name.
fn is_module(file: &str, name: &str) -> bool {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/src/lib");
    path.rsplit('/').next() == Some(name)
}

/// The module that a path's name before the last is; `None` if it is not that of a module.
fn module(qualifier: Option<&str>) -> Option<&str> {
    qualifier.filter(|name| !["self", "super", "crate"].contains(name) && !name.starts_with(char::is_uppercase))
}

/// A constant of a source.
pub(crate) struct Constant<'a> {
    pub file: &'a str,
    pub name: String,
    pub value: &'a Expr,
}

/// The functions and constants of sources. Code for tests is left out.
#[derive(Default)]
pub(crate) struct Code<'a> {
    pub functions: Vec<Function<'a>>,
    pub constants: Vec<Constant<'a>>,
    file: &'a str,
    owner: Option<String>,
}

impl<'a> Code<'a> {
    /// Reads sources, each with its path below the workspace.
    pub(crate) fn of(sources: &'a [(String, File)]) -> Self {
        let mut code = Self::default();
        for (path, file) in sources {
            code.file = path;
            code.visit_file(file);
        }
        code
    }

    /// The functions that a path can mean in a function; the path's last two names.
    pub(crate) fn called(&self, qualifier: Option<&str>, name: &str, from: &Function) -> Vec<usize> {
        let found = |is_it: &dyn Fn(&Function) -> bool| self.indices(name, is_it);
        if let Some(module) = module(qualifier) {
            return found(&|function| function.owner.is_none() && is_module(function.file, module));
        }
        match qualifier.filter(|name| name.starts_with(char::is_uppercase)) {
            Some("Self") => found(&|function| function.owner == from.owner),
            Some(owner) => found(&|function| function.owner.as_deref() == Some(owner)),
            None => {
                let here = found(&|function| function.owner.is_none() && function.file == from.file);
                let near = found(&|function| function.owner.is_none() && function.is_in_crate_of(from.file));
                if here.is_empty() && near.len() == 1 { near } else { here }
            }
        }
    }

    /// The methods of its own crate that a call in a function can mean.
    pub(crate) fn methods(&self, name: &str, arguments: usize, from: &Function) -> Vec<usize> {
        let is_it = |function: &Function| {
            function.is_method && function.parameters.len() == arguments && function.is_in_crate_of(from.file)
        };
        self.indices(name, is_it)
    }

    /// The functions with this name that fulfil a condition.
    fn indices(&self, name: &str, is_it: impl Fn(&Function) -> bool) -> Vec<usize> {
        let all = self.functions.iter().enumerate();
        all.filter(|(_, function)| function.name == name && is_it(function)).map(|(index, _)| index).collect()
    }

    /// The value of a constant that a path can mean in a function; the path's last two names.
    pub(crate) fn constant(&self, qualifier: Option<&str>, name: &str, from: &Function) -> Option<&'a Expr> {
        let mut named = self.constants.iter().filter(|constant| constant.name == name);
        let found = match module(qualifier) {
            Some(module) => named.find(|constant| is_module(constant.file, module)),
            None => {
                let named: Vec<_> = named.collect();
                let here = named.iter().find(|constant| constant.file == from.file);
                here.or(named.first().filter(|_| named.len() == 1)).copied()
            }
        };
        found.map(|constant| constant.value)
    }

    fn add(&mut self, signature: &'a Signature, body: &'a Block) {
        let parameters = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(name_of(&typed.pat)),
            FnArg::Receiver(_) => None,
        });
        self.functions.push(Function {
            file: self.file,
            owner: self.owner.clone(),
            name: signature.ident.to_string(),
            parameters: parameters.collect(),
            is_method: signature.receiver().is_some(),
            gives_text: gives_text(&signature.output),
            body,
        });
    }

    fn add_constant(&mut self, name: &Ident, value: &'a Expr) {
        self.constants.push(Constant { file: self.file, name: name.to_string(), value });
    }
}

impl<'a> Visit<'a> for Code<'a> {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes: &[Attribute] = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            _ => &[],
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        let Type::Path(path) = &*item.self_ty else { return };
        self.owner = path.path.segments.last().map(|segment| segment.ident.to_string());
        visit::visit_item_impl(self, item);
        self.owner = None;
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        self.add(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        if !item.attrs.iter().any(is_for_tests) {
            self.add(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
    }

    fn visit_item_const(&mut self, item: &'a ItemConst) {
        self.add_constant(&item.ident, &item.expr);
    }

    fn visit_impl_item_const(&mut self, item: &'a ImplItemConst) {
        self.add_constant(&item.ident, &item.expr);
    }

    fn visit_item_static(&mut self, item: &'a ItemStatic) {
        self.add_constant(&item.ident, &item.expr);
    }
}

/// The name that a pattern gives a value, if it gives one to the whole value.
pub(crate) fn name_of(pattern: &Pat) -> Option<String> {
    match pattern {
        Pat::Ident(name) => Some(name.ident.to_string()),
        Pat::Type(typed) => name_of(&typed.pat),
        Pat::Reference(reference) => name_of(&reference.pat),
        _ => None,
    }
}

/// Whether a result contains text, as in `Option<String>`.
fn gives_text(output: &ReturnType) -> bool {
    struct Names(bool);
    impl<'ast> Visit<'ast> for Names {
        fn visit_ident(&mut self, ident: &'ast Ident) {
            self.0 |= ident == "String" || ident == "str";
        }
    }
    let mut names = Names(false);
    names.visit_return_type(output);
    names.0
}
