//! What the rules of shape need to know of one Rust source, read with a parser: its modules, imports and paths, its types with their
//! fields, its functions with their lengths, and which of its lines are tests.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The facts of one source.
#[derive(Clone, Debug, Default)]
pub struct Syntax {
    /// Why the parser refused the source, with the line.
    pub error: Option<(usize, String)>,
    /// The lines (from 1, both included) of each item that is compiled for tests only.
    pub tests: Vec<(usize, usize)>,
    /// The lines (from 1, both included) of each `use` item.
    pub uses: Vec<(usize, usize)>,
    /// The module of the file itself, then its inline modules.
    pub scopes: Vec<Scope>,
    /// Structs, unions and enums.
    pub types: Vec<Type>,
    /// Inherent `impl` blocks.
    pub impls: Vec<Impl>,
    /// Functions and methods with a body.
    pub functions: Vec<Function>,
}

/// The file's own module, or a `mod name { … }` in it.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Empty for the file's own module.
    pub name: String,
    /// The scope around it.
    pub parent: Option<usize>,
    /// Compiled for tests only.
    pub test: bool,
    /// Names of the items that it defines, macros included.
    pub items: Vec<String>,
    /// Its `use` items, one entry for each name.
    pub imports: Vec<Import>,
    /// Its `mod name;` declarations.
    pub children: Vec<Child>,
    /// Paths that its code names.
    pub mentions: Vec<Mention>,
}

/// One name that a `use` item brings in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The name in this scope; `*` for everything of the path.
    pub name: String,
    /// What it stands for.
    pub path: Vec<String>,
    /// From 1.
    pub line: usize,
    /// Whether others see the name here: `pub use`, in any visibility.
    pub exported: bool,
}

/// A module in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Name of the module.
    pub name: String,
    /// From `#[path = "…"]`.
    pub path: Option<String>,
    /// Declared for tests only.
    pub test: bool,
}

/// A path that code names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// `crate`, `a`, `B`, …
    pub path: Vec<String>,
    /// From 1.
    pub line: usize,
}

/// A struct, a union, or an enum, which has no fields here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// From 1.
    pub line: usize,
    /// How many fields it has.
    pub fields: usize,
    /// How many of them are visible in a part of the crate: `pub(crate)`, `pub(super)`, `pub(in …)`.
    pub open: usize,
    /// The scope that defines it.
    pub scope: usize,
}

/// An inherent `impl` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impl {
    /// The path of its type.
    pub of: Vec<String>,
    /// How many functions it holds, outside tests.
    pub methods: usize,
    /// The scope in which it stands.
    pub scope: usize,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// `name`, or `Type::name`.
    pub name: String,
    /// The line of its `fn`.
    pub line: usize,
    /// The line of its closing brace.
    pub end: usize,
}

/// Reads one source.
pub fn read(text: &str) -> Syntax {
    let mut reader = Reader::default();
    reader.out.scopes.push(Scope::default());
    match syn::parse_file(text) {
        Ok(file) => {
            reader.out.scopes[0].test = is_test(&file.attrs);
            visit::visit_file(&mut reader, &file);
        }
        Err(e) => reader.out.error = Some((e.span().start().line, e.to_string())),
    }
    reader.out
}

#[derive(Default)]
struct Reader {
    out: Syntax,
    /// The scope being read.
    scope: usize,
    /// How many functions are open: what they define is theirs alone.
    inside: usize,
    /// `Type::` of the open `impl` or trait.
    prefix: String,
}

/// Whether the attributes say that an item is compiled for tests only: `#[test]`, `#[cfg(test)]`, `#[cfg(all(test, …))]`.
fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| match &a.meta {
        syn::Meta::Path(p) => p.is_ident("test"),
        syn::Meta::List(l) if l.path.is_ident("cfg") => demands_test(l.tokens.clone()),
        _ => false,
    })
}

fn demands_test(tokens: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(i)] => i == "test",
        [TokenTree::Ident(i), TokenTree::Group(g)] if i == "all" => {
            let parts: Vec<TokenTree> = g.stream().into_iter().collect();
            parts
                .split(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == ','))
                .any(|part| demands_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

fn line(span: Span) -> usize {
    span.start().line
}

fn names(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|s| name(&s.ident)).collect()
}

/// A name without the `r#` of a raw identifier.
fn name(ident: &syn::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_string).unwrap_or(text)
}

fn limited(vis: &syn::Visibility) -> bool {
    match vis {
        // `pub(self)` is private.
        syn::Visibility::Restricted(r) => !r.path.is_ident("self"),
        _ => false,
    }
}

impl Reader {
    fn here(&mut self) -> &mut Scope {
        &mut self.out.scopes[self.scope]
    }

    /// Whether an item is a test; its lines are noted then, and nothing else of it.
    fn skip(&mut self, attrs: &[syn::Attribute], item: &impl Spanned) -> bool {
        if !is_test(attrs) {
            return false;
        }
        let span = item.span();
        let first = attrs.iter().map(|a| line(a.span())).min();
        let start = first.unwrap_or(usize::MAX).min(line(span));
        self.out.tests.push((start, span.end().line));
        true
    }

    fn define(&mut self, ident: &syn::Ident) {
        if self.inside == 0 {
            let n = name(ident);
            self.here().items.push(n);
        }
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.here().mentions.push(Mention { path, line });
    }

    fn function(&mut self, sig: &syn::Signature, block: &syn::Block) {
        self.out.functions.push(Function {
            name: format!("{}{}", self.prefix, name(&sig.ident)),
            line: line(sig.fn_token.span),
            end: block.brace_token.span.close().end().line,
        });
    }

    fn fields<'f>(&mut self, ident: &syn::Ident, fields: impl Iterator<Item = &'f syn::Field>) {
        let open: Vec<bool> = fields.map(|f| limited(&f.vis)).collect();
        let scope = self.scope;
        self.out.types.push(Type {
            name: name(ident),
            line: line(ident.span()),
            fields: open.len(),
            open: open.iter().filter(|o| **o).count(),
            scope,
        });
    }

    fn import(&mut self, tree: &syn::UseTree, before: &mut Vec<String>, exported: bool) {
        let (name_here, path, at) = match tree {
            syn::UseTree::Path(p) => {
                before.push(name(&p.ident));
                self.import(&p.tree, before, exported);
                before.pop();
                return;
            }
            syn::UseTree::Group(g) => {
                for t in &g.items {
                    self.import(t, before, exported);
                }
                return;
            }
            syn::UseTree::Glob(g) => ("*".to_string(), before.clone(), g.span()),
            syn::UseTree::Name(n) if n.ident == "self" => {
                let last = before.last().cloned().unwrap_or_default();
                (last, before.clone(), n.ident.span())
            }
            syn::UseTree::Name(n) => {
                let path = [before.as_slice(), &[name(&n.ident)]].concat();
                (name(&n.ident), path, n.ident.span())
            }
            syn::UseTree::Rename(r) if r.ident == "self" => {
                (name(&r.rename), before.clone(), r.ident.span())
            }
            syn::UseTree::Rename(r) => {
                let path = [before.as_slice(), &[name(&r.ident)]].concat();
                (name(&r.rename), path, r.ident.span())
            }
        };
        let line = line(at);
        self.here().imports.push(Import {
            name: name_here,
            path,
            line,
            exported,
        });
    }

    /// The paths in the tokens of a macro, which no parser reads as code.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut at = 0;
        let mut colons = 0;
        let end = |path: &mut Vec<String>, at: usize, me: &mut Reader| {
            if path.len() > 1 || path.first().is_some_and(|p| capital(p)) {
                me.mention(std::mem::take(path), at);
            }
            path.clear();
        };
        for t in tokens {
            match t {
                TokenTree::Ident(i) => {
                    if colons != 2 || path.is_empty() {
                        end(&mut path, at, self);
                        at = line(i.span());
                    }
                    path.push(name(&i));
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && !path.is_empty() => colons += 1,
                TokenTree::Group(g) => {
                    end(&mut path, at, self);
                    colons = 0;
                    self.tokens(g.stream());
                }
                _ => {
                    end(&mut path, at, self);
                    colons = 0;
                }
            }
        }
        end(&mut path, at, self);
    }
}

/// A name of a type, a variant or a constant, and not of a variable.
fn capital(name: &str) -> bool {
    name.starts_with(|c: char| c.is_uppercase())
}

impl<'a> Visit<'a> for Reader {
    fn visit_item_mod(&mut self, m: &'a syn::ItemMod) {
        let test = is_test(&m.attrs);
        let Some((_, items)) = &m.content else {
            let path = m.attrs.iter().find_map(|a| match &a.meta {
                syn::Meta::NameValue(v) if v.path.is_ident("path") => match &v.value {
                    syn::Expr::Lit(syn::ExprLit {
                        lit: syn::Lit::Str(s),
                        ..
                    }) => Some(s.value()),
                    _ => None,
                },
                _ => None,
            });
            let name = name(&m.ident);
            self.here().children.push(Child { name, path, test });
            return;
        };
        if self.skip(&m.attrs, m) {
            return;
        }
        let scope = Scope {
            name: name(&m.ident),
            parent: Some(self.scope),
            ..Scope::default()
        };
        self.out.scopes.push(scope);
        let before = std::mem::replace(&mut self.scope, self.out.scopes.len() - 1);
        for i in items {
            self.visit_item(i);
        }
        self.scope = before;
    }

    fn visit_item_use(&mut self, u: &'a syn::ItemUse) {
        if self.skip(&u.attrs, u) {
            return;
        }
        let span = u.span();
        self.out.uses.push((line(span), span.end().line));
        if u.leading_colon.is_none() {
            let exported = !matches!(u.vis, syn::Visibility::Inherited);
            self.import(&u.tree, &mut Vec::new(), exported);
        }
    }

    fn visit_item_struct(&mut self, s: &'a syn::ItemStruct) {
        if !self.skip(&s.attrs, s) {
            self.define(&s.ident);
            self.fields(&s.ident, s.fields.iter());
            visit::visit_item_struct(self, s);
        }
    }

    fn visit_item_union(&mut self, u: &'a syn::ItemUnion) {
        if !self.skip(&u.attrs, u) {
            self.define(&u.ident);
            self.fields(&u.ident, u.fields.named.iter());
            visit::visit_item_union(self, u);
        }
    }

    fn visit_item_enum(&mut self, e: &'a syn::ItemEnum) {
        if !self.skip(&e.attrs, e) {
            self.define(&e.ident);
            self.fields(&e.ident, std::iter::empty());
            visit::visit_item_enum(self, e);
        }
    }

    fn visit_item_type(&mut self, t: &'a syn::ItemType) {
        if !self.skip(&t.attrs, t) {
            self.define(&t.ident);
            visit::visit_item_type(self, t);
        }
    }

    fn visit_item_const(&mut self, c: &'a syn::ItemConst) {
        if !self.skip(&c.attrs, c) {
            self.define(&c.ident);
            visit::visit_item_const(self, c);
        }
    }

    fn visit_item_static(&mut self, s: &'a syn::ItemStatic) {
        if !self.skip(&s.attrs, s) {
            self.define(&s.ident);
            visit::visit_item_static(self, s);
        }
    }

    fn visit_item_macro(&mut self, m: &'a syn::ItemMacro) {
        if !self.skip(&m.attrs, m) {
            if let Some(ident) = &m.ident {
                self.define(ident);
            }
            visit::visit_item_macro(self, m);
        }
    }

    fn visit_item_trait(&mut self, t: &'a syn::ItemTrait) {
        if !self.skip(&t.attrs, t) {
            self.define(&t.ident);
            let before = std::mem::replace(&mut self.prefix, format!("{}::", name(&t.ident)));
            visit::visit_item_trait(self, t);
            self.prefix = before;
        }
    }

    fn visit_trait_item_fn(&mut self, f: &'a syn::TraitItemFn) {
        if self.skip(&f.attrs, f) {
            return;
        }
        if let Some(block) = &f.default {
            self.function(&f.sig, block);
        }
        self.inside += 1;
        visit::visit_trait_item_fn(self, f);
        self.inside -= 1;
    }

    fn visit_item_impl(&mut self, i: &'a syn::ItemImpl) {
        if self.skip(&i.attrs, i) {
            return;
        }
        let mut of = &*i.self_ty;
        while let syn::Type::Reference(r) = of {
            of = &r.elem;
        }
        let path = match of {
            syn::Type::Path(p) => names(&p.path),
            _ => Vec::new(),
        };
        let last = path.last().cloned().unwrap_or_default();
        if i.trait_.is_none() {
            let counts =
                |i: &&syn::ImplItem| matches!(i, syn::ImplItem::Fn(f) if !is_test(&f.attrs));
            self.out.impls.push(Impl {
                of: path,
                methods: i.items.iter().filter(counts).count(),
                scope: self.scope,
            });
        }
        let before = std::mem::replace(&mut self.prefix, format!("{last}::"));
        visit::visit_item_impl(self, i);
        self.prefix = before;
    }

    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        if self.skip(&f.attrs, f) {
            return;
        }
        self.function(&f.sig, &f.block);
        self.inside += 1;
        visit::visit_impl_item_fn(self, f);
        self.inside -= 1;
    }

    fn visit_item_fn(&mut self, f: &'a syn::ItemFn) {
        if self.skip(&f.attrs, f) {
            return;
        }
        self.define(&f.sig.ident);
        self.function(&f.sig, &f.block);
        self.inside += 1;
        visit::visit_item_fn(self, f);
        self.inside -= 1;
    }

    fn visit_path(&mut self, p: &'a syn::Path) {
        let path = names(p);
        // A lone small word is a variable as a rule; a function is noted where it is called.
        if p.leading_colon.is_none() && (path.len() > 1 || capital(&path[0])) {
            self.mention(path, line(p.span()));
        }
        visit::visit_path(self, p);
    }

    fn visit_expr_call(&mut self, c: &'a syn::ExprCall) {
        if let syn::Expr::Path(p) = &*c.func
            && let Some(ident) = p.path.get_ident()
        {
            self.mention(vec![name(ident)], line(ident.span()));
        }
        visit::visit_expr_call(self, c);
    }

    fn visit_macro(&mut self, m: &'a syn::Macro) {
        self.mention(names(&m.path), line(m.path.span()));
        self.tokens(m.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_functions_are_measured_without_their_tests() {
        let s = read(
            "struct A { a: u8, pub(crate) b: u8, pub c: u8, pub(super) d: u8, pub(self) e: u8 }\n\
             impl A {\n  fn f(&self) {\n    1;\n  }\n  #[cfg(test)]\n  fn g() {}\n}\n\
             impl Drop for A { fn drop(&mut self) {} }\n\
             #[cfg(all(unix, test))]\nmod tests {\n  struct B;\n}\n",
        );
        assert_eq!(s.error, None);
        let a = &s.types[0];
        assert_eq!((s.types.len(), a.fields, a.open, a.line), (1, 5, 2, 1));
        assert_eq!((s.impls.len(), s.impls[0].methods), (1, 1));
        let f: Vec<(&str, usize, usize)> = s
            .functions
            .iter()
            .map(|f| (f.name.as_str(), f.line, f.end))
            .collect();
        assert_eq!(f, [("A::f", 3, 5), ("A::drop", 9, 9)]);
        assert_eq!(s.tests, [(6, 7), (10, 13)]);
    }

    #[test]
    fn imports_and_paths_are_read_through_groups_and_macros() {
        let s = read(
            "use crate::{a::{self, B as C}, d::*};\npub(crate) use super::E;\n\
             fn f(g: H) { x::y(); vec![crate::z::W::new(), v]; k(l); }\n",
        );
        let imports: Vec<(String, String, bool)> = s.scopes[0]
            .imports
            .iter()
            .map(|i| (i.name.clone(), i.path.join("::"), i.exported))
            .collect();
        let want = [
            ("a", "crate::a", false),
            ("C", "crate::a::B", false),
            ("*", "crate::d", false),
            ("E", "super::E", true),
        ];
        assert_eq!(
            imports,
            want.map(|(n, p, e)| (n.to_string(), p.to_string(), e))
        );
        let mut paths: Vec<String> = s.scopes[0]
            .mentions
            .iter()
            .map(|m| m.path.join("::"))
            .collect();
        paths.sort();
        assert_eq!(paths, ["H", "crate::z::W::new", "k", "vec", "x::y"]);
    }

    #[test]
    fn a_source_that_does_not_parse_says_where() {
        let (line, why) = read("fn f() {}\nfn }\n").error.unwrap();
        assert_eq!(line, 2);
        assert!(!why.is_empty());
    }
}
