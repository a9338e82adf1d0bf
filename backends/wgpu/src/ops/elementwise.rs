//! One dispatch over the elements of a shape: loads with any strides, a few lines of WGSL, stores that respect words shared by elements.

use super::view::View;
use crate::kernel::{Access, Binds, Facts, Pass, fold};
use crossweave_plugin::{OpRequest, Result};
use std::fmt::Write;

/// Invocations of a workgroup.
pub const SIZE: u64 = 64;

/// What an element is in WGSL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `f32`, converted from and to the storage.
    Float,
    /// `vec2<u32>`: the bits, low word first.
    Bits,
}

impl Kind {
    fn load(self) -> &'static str {
        match self {
            Kind::Float => "ld",
            Kind::Bits => "ldb",
        }
    }
    fn name(self) -> &'static str {
        match self {
            Kind::Float => "f32",
            Kind::Bits => "vec2<u32>",
        }
    }
}

struct Out {
    name: String,
    view: View,
    kind: Kind,
}

/// A dispatch in the making. The body is the inside of a function of `i`, the element's row-major number: it sees each input under its
/// name and declares `o_NAME` for each output.
pub struct Elementwise<'a> {
    facts: &'a Facts,
    binds: Binds<'a>,
    outs: Vec<Out>,
    functions: String,
    loads: String,
    params: Vec<u32>,
    total: u64,
}

impl<'a> Elementwise<'a> {
    /// Over `total` elements.
    pub fn new(op: &'a OpRequest<'a>, facts: &'a Facts, total: usize) -> Elementwise<'a> {
        Elementwise {
            facts,
            binds: Binds::new(op, facts),
            outs: vec![],
            functions: String::new(),
            loads: String::new(),
            params: vec![total as u32],
            total: total as u64,
        }
    }

    /// Operand `i` is read: the body finds it under `name`.
    pub fn input(&mut self, name: &str, i: usize, view: &View, kind: Kind) -> Result<()> {
        self.table(name, i, view)?;
        let _ = writeln!(
            self.loads,
            "  let {name} = {}_{name}(at_{name}(i));",
            kind.load()
        );
        Ok(())
    }

    /// Operand `i` is there for the body to read: `ld_NAME(at_NAME(k))`.
    pub fn table(&mut self, name: &str, i: usize, view: &View) -> Result<()> {
        self.binds.operand(name, i, Access::Read)?;
        self.index(name, view);
        Ok(())
    }

    /// Operand `i` is written; with `read` the body finds its old value under `name`.
    pub fn output(
        &mut self,
        name: &str,
        i: usize,
        view: &View,
        kind: Kind,
        read: bool,
    ) -> Result<()> {
        self.binds.operand(name, i, Access::ReadWrite)?;
        self.index(name, view);
        if read {
            let _ = writeln!(
                self.loads,
                "  let {name} = {}_{name}(at_{name}(i));",
                kind.load()
            );
        }
        self.outs.push(Out {
            name: name.into(),
            view: view.clone(),
            kind,
        });
        Ok(())
    }

    /// A number for the body: the text that reads it.
    pub fn param(&mut self, word: u32) -> String {
        self.params.push(word);
        format!("param({}u)", self.params.len() - 1)
    }

    /// A float for the body.
    pub fn paramf(&mut self, x: f32) -> String {
        self.params.push(x.to_bits());
        format!("paramf({}u)", self.params.len() - 1)
    }

    fn index(&mut self, name: &str, view: &View) {
        let (text, params) = index(&format!("at_{name}"), view, self.params.len());
        self.functions.push_str(&text);
        self.params.extend(params);
    }

    /// The pass.
    pub fn pass(self, label: &str, body: &str) -> Result<Pass> {
        // Elements smaller than a word are made in groups that may fill one.
        let each = self
            .outs
            .iter()
            .filter(|o| o.view.dense())
            .map(|o| 32 / o.view.dtype.bits().min(32))
            .max()
            .unwrap_or(1);
        let fields: String = self
            .outs
            .iter()
            .map(|o| format!(" {}: {},", o.name, o.kind.name()))
            .collect();
        let results: Vec<String> = self.outs.iter().map(|o| format!("o_{}", o.name)).collect();
        let mut s = self.functions;
        let _ = write!(
            s,
            "struct Element {{{fields} }}\nfn element(i: u32) -> Element {{\n{}{body}\n  return Element({});\n}}\n",
            self.loads,
            results.join(", ")
        );
        let _ = write!(
            s,
            "@compute @workgroup_size({SIZE})\nfn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {{\n  \
             let n = param(0u);\n  let i = (gid.x + gid.y * nwg.x * {SIZE}u) * {each}u;\n  if i >= n {{ return; }}\n"
        );
        for k in 0..each {
            match k {
                0 => s.push_str("  let e0 = element(i);\n"),
                _ => {
                    let _ = writeln!(
                        s,
                        "  var e{k} = e0; if i + {k}u < n {{ e{k} = element(i + {k}u); }}"
                    );
                }
            }
        }
        for o in &self.outs {
            store(&mut s, o, each);
        }
        s.push_str("}\n");
        let groups = fold(self.total.div_ceil(each).div_ceil(SIZE), self.facts)?;
        self.binds.pass(label, &s, self.params, groups)
    }
}

/// The function `name(i)` that returns where element `i` lies, and its sizes and strides, to be parameters from number `first` on: so shapes
/// share a pipeline.
pub fn index(name: &str, view: &View, first: usize) -> (String, Vec<u32>) {
    let mut params = vec![];
    let mut body = String::new();
    match view.dims[..] {
        [] => body.push_str("return 0u;"),
        [(_, 1)] => body.push_str("return i;"),
        _ => {
            body.push_str("var r = i; var o = 0u; ");
            for (k, (n, s)) in view.dims.iter().enumerate().rev() {
                let (size, stride) = (first + params.len(), first + params.len() + 1);
                params.extend([*n as u32, *s as u32]);
                let _ = match k {
                    0 => write!(body, "o += r * param({stride}u); "),
                    _ => write!(
                        body,
                        "o += (r % param({size}u)) * param({stride}u); r = r / param({size}u); "
                    ),
                };
            }
            body.push_str("return o;");
        }
    }
    (format!("fn {name}(i: u32) -> u32 {{ {body} }}\n"), params)
}

/// Stores the elements `e0…` of one output.
fn store(s: &mut String, o: &Out, each: u64) {
    let x = &o.name;
    let one = |k: u64| {
        let call = match o.kind {
            Kind::Float => format!("st_{x}(at_{x}(i + {k}u), e{k}.{x});"),
            Kind::Bits => format!("stb_{x}(at_{x}(i + {k}u), e{k}.{x});"),
        };
        match k {
            0 => format!("  {call}\n"),
            _ => format!("  if i + {k}u < n {{ {call} }}\n"),
        }
    };
    let singles = |from: u64, to: u64| (from..to).map(one).collect::<String>();
    let whole = 32 / o.view.dtype.bits().min(32);
    if !o.view.dense() || whole == 1 {
        s.push_str(&singles(0, each));
        return;
    }
    for first in (0..each).step_by(whole as usize) {
        let last = first + whole;
        let values: Vec<String> = (first..last)
            .map(|k| match o.kind {
                Kind::Float => format!("e{k}.{x}"),
                Kind::Bits => format!("e{k}.{x}.x"),
            })
            .collect();
        let values = values.join(", ");
        let call = match (o.kind, whole) {
            (Kind::Float, _) => format!("st2_{x}(i + {first}u, {values});"),
            (Kind::Bits, w) => format!("stu{w}_{x}(i + {first}u, {values});"),
        };
        let _ = write!(
            s,
            "  if i + {last}u <= n {{ {call} }} else {{\n{}  }}\n",
            singles(first, last).replace("  if i + 0u < n", "  if i < n")
        );
    }
}
