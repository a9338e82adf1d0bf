//! Reads our own C headers: defines, handles, structs and function types, with the offsets a 64-bit compiler gives them.
//!
//! Not a C parser: it knows the regular subset the headers are written in, and anything else is refused (R3).

use super::facts;
use super::scan::scan;
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
    /// Attributes, by what they are about.
    attributes: Vec<(String, String)>,
    /// What lies beside declarations: contracts in comments, signatures of ops, the manifest.
    said: Vec<String>,
    /// What is about a whole header, and what a compiler is given.
    whole: Vec<String>,
}

/// Words of C, of which attributes were taken out.
struct Tokens<'a> {
    all: Vec<&'a str>,
    at: usize,
    /// Attributes that are still to be asked for, and before which word they stand.
    attributes: Vec<(usize, String)>,
}

/// What may stand before anything that is declared, and changes where or how it lies.
const ATTRIBUTES: [&str; 7] = [
    "__attribute__",
    "__declspec",
    "_Alignas",
    "alignas",
    "_Atomic",
    "volatile",
    "CW_EXPORT",
];

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
        let mut t = Tokens {
            all: vec![],
            at: 0,
            attributes: vec![],
        };
        let mut words = all.into_iter().peekable();
        while let Some(w) = words.next() {
            if !ATTRIBUTES.contains(&w) {
                t.all.push(w);
                continue;
            }
            let (mut text, mut depth) = (w.to_string(), 0);
            while words.peek() == Some(&"(") || depth > 0 {
                let Some(w) = words.next() else { break };
                depth += i32::from(w == "(") - i32::from(w == ")");
                text += &format!(" {w}");
            }
            t.attributes.push((t.all.len(), text));
        }
        t
    }

    /// The attributes of what was read last, which is `place`.
    fn attributes(&mut self, place: &str, out: &mut Vec<(String, String)>) {
        let at = self.at;
        let (mine, rest) = std::mem::take(&mut self.attributes)
            .into_iter()
            .partition(|a| a.0 < at);
        self.attributes = rest;
        let mine: Vec<(usize, String)> = mine;
        out.extend(mine.into_iter().map(|a| (place.to_string(), a.1)));
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
    fn want(&mut self, t: &str) -> Result<(), String> {
        let got = self.next();
        if got == t {
            return Ok(());
        }
        let near = self.all[..self.at.min(self.all.len())]
            .iter()
            .rev()
            .take(8)
            .rev();
        let near: Vec<&str> = near.copied().collect();
        Err(format!(
            "not understood near {:?}: {t:?} stands there",
            near.join(" ")
        ))
    }

    fn name(&mut self) -> Result<String, String> {
        let name = self.next();
        let word = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        match word && !name.is_empty() {
            true => Ok(name.to_owned()),
            false => Err(format!("not understood: {name:?} is no name")),
        }
    }

    /// A declaration: type and name (empty for an unnamed parameter).
    fn declaration(&mut self) -> Result<(Ty, String), String> {
        let mut konst = self.take("const");
        let mut ty = Ty::Named(self.name()?);
        while self.take("*") {
            ty = Ty::Ptr {
                to: Box::new(ty),
                konst,
            };
            konst = false;
        }
        let mut name = String::new();
        if self.take("(") {
            self.want("*")?;
            name = self.name()?;
            self.want(")")?;
            self.want("(")?;
            let (mut params, mut names) = (Vec::new(), Vec::new());
            while !self.take(")") {
                if !params.is_empty() {
                    self.want(",")?;
                }
                let (ty, name) = self.declaration()?;
                params.push(ty);
                names.push(name);
            }
            ty = Ty::Fn {
                ret: Box::new(ty),
                params,
                names,
            };
        } else if !matches!(self.peek(), ")" | "," | ";") {
            name = self.name()?;
            while self.take("[") {
                let n = self.next();
                let n = n.parse().map_err(|e| format!("{n} elements: {e}"))?;
                ty = Ty::Array(Box::new(ty), n);
                self.want("]")?;
            }
        }
        Ok((ty, name))
    }
}

/// Kinds of lines that a lock has had all of since it names them: one that is new is a change of what was there.
const KINDS: &str = "assert attribute directive include linkage macro pragma profile";

/// The names of parameters of functions that are no slots: of a typedef, and of a parameter.
fn callbacks(place: &str, ty: &Ty, out: &mut Vec<String>) {
    if let Ty::Fn { params, names, .. } = ty {
        out.push(format!("params {place} ({})", names.join(", ")));
        for (t, n) in params.iter().zip(names) {
            callbacks(&format!("{place}.{n}"), t, out);
        }
    }
}

impl Header {
    /// Reads the given headers as one.
    ///
    /// # Errors
    /// What is not understood, in words.
    pub fn parse(texts: &[&str]) -> Result<Header, String> {
        let mut h = Header::default();
        let mut code = String::new();
        for text in texts {
            let text = scan(text)?;
            let contracts = facts::contracts(&text);
            h.said.extend(facts::contract_lines(&text, &contracts));
            h.whole.extend(facts::whole(&text, &contracts));
            for p in &text.pieces {
                if let Some((name, value)) = facts::constant(p) {
                    h.defines.push((name.into(), value.into()));
                } else if facts::given(p).is_none() {
                    if !p.when.is_empty() {
                        return Err(format!("{} is declared only where {}", p.code, p.when));
                    }
                    code.push_str(&p.code);
                    code.push('\n');
                }
            }
        }
        let mut t = Tokens::new(&code);
        while !t.peek().is_empty() {
            let name = if t.take("CW_HANDLE") {
                t.want("(")?;
                h.handles.push(t.name()?);
                t.want(")")?;
                h.handles.last().cloned().unwrap_or_default()
            } else {
                t.want("typedef")?;
                if t.take("struct") {
                    let s = h.structure(&mut t)?;
                    h.structs.push(s);
                    h.structs[h.structs.len() - 1].name.clone()
                } else {
                    let (ty, name) = t.declaration()?;
                    h.aliases.push((name.clone(), ty));
                    name
                }
            };
            t.want(";")?;
            t.attributes(&name, &mut h.attributes);
        }
        let fields = h.structs.iter().flat_map(|s| &s.fields).map(|f| &f.ty);
        fields
            .chain(h.aliases.iter().map(|a| &a.1))
            .try_for_each(|t| h.check_size(t))?;
        Ok(h)
    }

    /// Checks that every type in this one has a size that all compilers agree on.
    fn check_size(&self, ty: &Ty) -> Result<(), String> {
        match ty {
            Ty::Named(n) if n == "void" => Ok(()),
            Ty::Named(_) => self.size_align(ty).map(drop),
            Ty::Ptr { to, .. } | Ty::Array(to, _) => self.check_size(to),
            Ty::Fn { ret, params, .. } => {
                self.check_size(ret)?;
                params.iter().try_for_each(|p| self.check_size(p))
            }
        }
    }

    fn structure(&mut self, t: &mut Tokens<'_>) -> Result<Struct, String> {
        let name = t.name()?;
        let (mut fields, mut at, mut align) = (Vec::new(), 0usize, 1usize);
        t.want("{")?;
        while !t.take("}") {
            t.attributes(&name, &mut self.attributes);
            let (ty, field) = t.declaration()?;
            t.want(";")?;
            t.attributes(&format!("{name}.{field}"), &mut self.attributes);
            let (size, a) = self.size_align(&ty)?;
            at = at.next_multiple_of(a);
            fields.push(Field {
                name: field,
                ty,
                offset: at,
            });
            at += size;
            align = align.max(a);
        }
        t.want(&name)?;
        Ok(Struct {
            name,
            fields,
            size: at.next_multiple_of(align),
            align,
        })
    }

    fn size_align(&self, ty: &Ty) -> Result<(usize, usize), String> {
        Ok(match ty {
            Ty::Ptr { .. } | Ty::Fn { .. } => (8, 8),
            Ty::Array(t, n) => {
                let (s, a) = self.size_align(t)?;
                (s * n, a)
            }
            Ty::Named(n) => match n.as_str() {
                "char" | "uint8_t" => (1, 1),
                "int32_t" | "uint32_t" | "float" => (4, 4),
                "int64_t" | "uint64_t" | "double" => (8, 8),
                n if self.handles.iter().any(|h| h == n) => (8, 8),
                n => match self.aliases.iter().find(|a| a.0 == n) {
                    Some(a) => self.size_align(&a.1)?,
                    None => {
                        let s = self.structs.iter().find(|s| s.name == n);
                        let s = s.ok_or_else(|| format!("not understood: there is no type {n}"))?;
                        (s.size, s.align)
                    }
                },
            },
        })
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
        out.extend(self.said.iter().cloned());
        out.push(format!("kinds {KINDS}"));
        for (name, ty) in &self.aliases {
            callbacks(name, ty, &mut out);
        }
        for s in &self.structs {
            for f in &s.fields {
                if let Ty::Fn { params, names, .. } = &f.ty {
                    let each = params.iter().zip(names);
                    each.for_each(|(t, n)| {
                        callbacks(&format!("{}.{}.{n}", s.name, f.name), t, &mut out)
                    });
                }
            }
        }
        out.extend(self.whole.iter().cloned());
        let line = |(place, text): &(String, String)| format!("attribute {place} {text}");
        out.extend(self.attributes.iter().map(line));
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
