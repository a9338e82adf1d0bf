//! Reads our own C headers: defines, handles, structs and function types, with the offsets a 64-bit compiler gives them.
//!
//! Not a C parser: it knows the regular subset the headers are written in and panics on anything else, which fails the test.

use super::facts;
use std::fmt::{self, Display};

/// A C type.
#[derive(Clone, Debug, PartialEq)]
pub enum Ty {
    Named(String),
    Ptr {
        to: Box<Ty>,
        konst: bool,
    },
    Fn {
        ret: Box<Ty>,
        params: Vec<Ty>,
        names: Vec<String>,
    },
    Array(Box<Ty>, usize),
}

impl Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Named(n) => f.write_str(n),
            Ty::Ptr { to, konst } => write!(f, "{}{to}*", if *konst { "const " } else { "" }),
            Ty::Fn { ret, params, .. } => {
                let p: Vec<String> = params.iter().map(Ty::to_string).collect();
                write!(f, "{ret}(*)({})", p.join(", "))
            }
            Ty::Array(t, n) => write!(f, "{t}[{n}]"),
        }
    }
}

/// A field with its place.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub ty: Ty,
    pub offset: usize,
}

/// A struct with its size.
#[derive(Clone, Debug)]
pub struct Struct {
    pub name: String,
    pub fields: Vec<Field>,
    pub size: usize,
    align: usize,
}

/// Everything a header declares, in order.
#[derive(Default)]
pub struct Header {
    pub defines: Vec<(String, String)>,
    pub handles: Vec<String>,
    pub aliases: Vec<(String, Ty)>,
    pub structs: Vec<Struct>,
    /// What lies beside declarations: contracts in comments, signatures of ops, the manifest.
    facts: Vec<String>,
}

struct Tokens<'a> {
    all: Vec<&'a str>,
    at: usize,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Tokens<'a> {
        let mut all = Vec::new();
        let mut rest = text.trim_start();
        while let Some(c) = rest.chars().next() {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let n = match word(c) {
                true => rest.find(|c| !word(c)).unwrap_or(rest.len()),
                false => c.len_utf8(),
            };
            all.push(&rest[..n]);
            rest = rest[n..].trim_start();
        }
        Tokens { all, at: 0 }
    }
    fn peek(&self) -> &'a str {
        self.all.get(self.at).copied().unwrap_or("")
    }
    fn next(&mut self) -> &'a str {
        let t = self.peek();
        self.at += 1;
        t
    }
    fn take(&mut self, t: &str) -> bool {
        let hit = self.peek() == t;
        self.at += hit as usize;
        hit
    }
    fn want(&mut self, t: &str) {
        let got = self.next();
        assert_eq!(
            got,
            t,
            "near {:?}",
            &self.all[self.at.saturating_sub(8)..self.at]
        );
    }

    /// A declaration: type and name (empty for an unnamed parameter).
    fn declaration(&mut self) -> (Ty, String) {
        let mut konst = self.take("const");
        let mut ty = Ty::Named(self.next().to_owned());
        while self.take("*") {
            ty = Ty::Ptr {
                to: Box::new(ty),
                konst,
            };
            konst = false;
        }
        let mut name = String::new();
        if self.take("(") {
            self.want("*");
            name = self.next().to_owned();
            self.want(")");
            self.want("(");
            let (mut params, mut names) = (Vec::new(), Vec::new());
            while !self.take(")") {
                let (ty, name) = self.declaration();
                params.push(ty);
                names.push(name);
                self.take(",");
            }
            ty = Ty::Fn {
                ret: Box::new(ty),
                params,
                names,
            };
        } else if !matches!(self.peek(), ")" | "," | ";") {
            name = self.next().to_owned();
            while self.take("[") {
                ty = Ty::Array(Box::new(ty), self.next().parse().expect("array length"));
                self.want("]");
            }
        }
        (ty, name)
    }
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(i) = rest.find("/*") {
        out.push_str(&rest[..i]);
        let end = rest[i..].find("*/").expect("comment ends");
        rest = &rest[i + end + 2..];
        out.push(' ');
    }
    out + rest
}

impl Header {
    /// Reads the given headers as one.
    pub fn parse(texts: &[&str]) -> Header {
        let mut h = Header {
            facts: texts.iter().flat_map(|t| facts::of(t)).collect(),
            ..Header::default()
        };
        let mut code = String::new();
        for line in texts.iter().flat_map(|t| {
            without_comments(t)
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        }) {
            let line = line.trim();
            if let Some(d) = line.strip_prefix("#define ") {
                let (name, value) = d.split_once(' ').unwrap_or((d, ""));
                // Function-like macros and attribute spellings differ by platform and are not part of the ABI.
                let attribute = value.contains("__attribute__") || value.contains("__declspec");
                if !name.contains('(') && !value.is_empty() && !attribute {
                    h.defines.push((name.into(), value.trim().into()));
                }
            } else if !line.starts_with('#')
                && !line.starts_with("extern \"C\"")
                && !line.starts_with("CW_ASSERT_")
                && line != "}"
            {
                code.push_str(line);
                code.push('\n');
            }
        }
        let mut t = Tokens::new(&code);
        while !t.peek().is_empty() {
            if t.take("CW_HANDLE") {
                t.want("(");
                h.handles.push(t.next().into());
                t.want(")");
            } else {
                t.want("typedef");
                if t.take("struct") {
                    let s = h.structure(&mut t);
                    h.structs.push(s);
                } else {
                    let (ty, name) = t.declaration();
                    h.aliases.push((name, ty));
                }
            }
            t.want(";");
        }
        h
    }

    fn structure(&self, t: &mut Tokens<'_>) -> Struct {
        let name = t.next().to_owned();
        let (mut fields, mut at, mut align) = (Vec::new(), 0usize, 1usize);
        t.want("{");
        while !t.take("}") {
            let (ty, name) = t.declaration();
            t.want(";");
            let (size, a) = self.size_align(&ty);
            at = at.next_multiple_of(a);
            fields.push(Field {
                name,
                ty,
                offset: at,
            });
            at += size;
            align = align.max(a);
        }
        t.want(&name);
        Struct {
            name,
            fields,
            size: at.next_multiple_of(align),
            align,
        }
    }

    fn size_align(&self, ty: &Ty) -> (usize, usize) {
        match ty {
            Ty::Ptr { .. } | Ty::Fn { .. } => (8, 8),
            Ty::Array(t, n) => {
                let (s, a) = self.size_align(t);
                (s * n, a)
            }
            Ty::Named(n) => match n.as_str() {
                "char" | "uint8_t" => (1, 1),
                "int32_t" | "uint32_t" | "float" => (4, 4),
                "int64_t" | "uint64_t" | "double" => (8, 8),
                n if self.handles.iter().any(|h| h == n) => (8, 8),
                n => match self.aliases.iter().find(|a| a.0 == n) {
                    Some(a) => self.size_align(&a.1),
                    None => {
                        let s = self.structs.iter().find(|s| s.name == n);
                        let s = s.unwrap_or_else(|| panic!("unknown type {n}"));
                        (s.size, s.align)
                    }
                },
            },
        }
    }

    /// One line per fact of the ABI, in the header's order.
    pub fn lock_lines(&self) -> Vec<String> {
        let mut out = Vec::new();
        out.extend(self.defines.iter().map(|(n, v)| format!("define {n} {v}")));
        out.extend(self.handles.iter().map(|h| format!("handle {h}")));
        out.extend(
            self.aliases
                .iter()
                .map(|(n, t)| format!("typedef {n} : {t}")),
        );
        for s in &self.structs {
            let growing = s.fields.first().is_some_and(|f| f.name == "size");
            let kind = if growing { "struct" } else { "leaf" };
            out.push(format!("{kind} {} size {}", s.name, s.size));
            for f in &s.fields {
                out.push(format!("{} @{} {} : {}", s.name, f.offset, f.name, f.ty));
            }
        }
        for s in &self.structs {
            for f in &s.fields {
                self.relations(s, f, &mut out);
            }
        }
        // A struct inside structs is named once, however many hold it.
        let mut seen = std::collections::BTreeSet::new();
        out.retain(|l| !l.starts_with("embedded ") || seen.insert(l.clone()));
        out.extend(self.facts.iter().cloned());
        out
    }

    /// What a field says of other structs: those that lie in it, arrays and how far apart their elements are, and the
    /// names of a function's parameters, which distinguish two of one type.
    fn relations(&self, s: &Struct, f: &Field, out: &mut Vec<String>) {
        let sized = |n: &str| {
            let found = self.structs.iter().find(|s| s.name == n);
            found.map(|s| (s.size, s.fields.iter().any(|f| f.name == "size")))
        };
        let mut array = |of: String, name: &str, ty: &Ty| {
            let Ty::Ptr { to, konst: true } = ty else {
                return;
            };
            let Ty::Named(n) = &**to else { return };
            if let (Some((size, grows)), true) = (sized(n), name.ends_with('s')) {
                let apart = match grows {
                    true => "the `size` of the first".to_string(),
                    false => size.to_string(),
                };
                out.push(format!("array {of} : {n} every {apart}"));
            }
        };
        let place = format!("{}.{}", s.name, f.name);
        array(place.clone(), &f.name, &f.ty);
        match &f.ty {
            Ty::Fn { params, names, .. } => {
                for (t, n) in params.iter().zip(names) {
                    array(format!("{place}.{n}"), n, t);
                }
                out.push(format!("params {place} ({})", names.join(", ")));
            }
            Ty::Array(t, _) => {
                if let Ty::Named(n) = &**t
                    && let Some((size, _)) = sized(n)
                {
                    out.push(format!("embedded {n} size {size}"));
                }
            }
            Ty::Named(n) => {
                if let Some((size, _)) = sized(n) {
                    out.push(format!("embedded {n} size {size}"));
                }
            }
            Ty::Ptr { .. } => {}
        }
    }

    /// The offsets as assertions of the header.
    pub fn assertions(&self) -> String {
        let mut out = String::new();
        for s in &self.structs {
            out.push_str(&format!("CW_ASSERT_SIZE({}, {});\n", s.name, s.size));
            for f in &s.fields {
                out.push_str(&format!(
                    "CW_ASSERT_AT({}, {}, {});\n",
                    s.name, f.name, f.offset
                ));
            }
        }
        out
    }
}
