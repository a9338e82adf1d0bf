//! attention_*: an invocation owns a row (a query, in the gradients of keys and values a key) with its accumulators in registers and walks
//! over the rows of the other side, which all invocations of a workgroup read together. Memory is O(T); every sum has one owner and one order.
//!
//! The rows walked over come by one of two ways ([`Share`]): lane by lane and round by `subgroupBroadcast` where a workgroup is one small
//! subgroup, else in blocks through workgroup memory.
//!
//! With P = exp(scale q.k - lse), dP = do.v, delta = sum(do * o) and dS = P * (dP - delta): dv = P^T do, dk = scale dS^T q, dq = scale dS k.

use super::math::MATH;
use super::text::Text;
use super::view::*;
use crate::kernel::{Access, Binds, Facts, Pass, Prepared, fold};
use crossweave_abi::op::{AttentionParams, FLAG_CAUSAL};
use crossweave_plugin::{DType, OpRequest, Result};
use std::fmt::Write;

/// Head sizes up to here live in registers.
const MOST: u32 = 256;

/// How a workgroup reads the rows it walks over.
#[derive(Clone, Copy)]
enum Share {
    /// One subgroup of this size.
    Broadcast(u32),
    /// Blocks of so many rows in workgroup memory.
    Block(u32),
}

impl Share {
    fn of(o: &OpRequest<'_>, facts: &Facts, d: u32) -> Result<Share> {
        if let Some(size) = super::one_small_subgroup(facts) {
            return Ok(Share::Broadcast(size));
        }
        // Two operands, and two numbers a row; a quarter of what a large workgroup memory has leaves room for others.
        let bytes = |rows: u32| rows * (2 * d.next_multiple_of(4) * 4 + 8);
        let most = facts.workgroup_bytes.min(24 << 10);
        match [32, 16, 8, 4].into_iter().find(|r| bytes(*r) <= most) {
            Some(r) => Ok(Share::Block(r)),
            None => refuse(
                o,
                format!("heads of {d} do not fit the adapter's workgroup memory"),
            ),
        }
    }

    /// Invocations of a workgroup.
    fn size(self, facts: &Facts) -> u32 {
        match self {
            Share::Broadcast(size) => size,
            Share::Block(_) => 64.min(facts.max_invocations),
        }
    }
}

/// What both directions read from the op.
struct Shape {
    tq: u32,
    tk: u32,
    h: u32,
    hkv: u32,
    b: u32,
    d: u32,
    scale: f32,
    causal: bool,
    window: u32,
    share: Share,
    size: u32,
}

fn heads(o: &OpRequest<'_>, i: usize, who: &str, want: Option<[u32; 4]>) -> Result<View> {
    checked(o, input(o, i, FLOATS)?, who, want)
}

fn written(o: &OpRequest<'_>, i: usize, who: &str, want: [u32; 4]) -> Result<View> {
    checked(o, output_strided(o, i, FLOATS)?, who, Some(want))
}

fn checked(o: &OpRequest<'_>, v: View, who: &str, want: Option<[u32; 4]>) -> Result<View> {
    if v.shape.len() != 4 || want.is_some_and(|w| v.shape != w) {
        let want = want.map_or("[B, T, H, D]".to_string(), |w| format!("{w:?}"));
        return invalid(o, format!("{who} has shape {:?}, {want} wanted", v.shape));
    }
    if v.shape[3] > 1 && v.step() != 1 {
        return refuse(o, format!("{who} needs unit stride in D"));
    }
    Ok(v)
}

fn shape_of(o: &OpRequest<'_>, facts: &Facts, q: &View, k: &View) -> Result<Shape> {
    let p = o.params::<AttentionParams>()?;
    flags(o, p.flags, FLAG_CAUSAL)?;
    if p.window < 0 {
        return invalid(o, format!("window {} is negative", p.window));
    }
    let (&[b, tq, h, d], &[_, tk, hkv, _]) = (&q.shape[..], &k.shape[..]) else {
        return invalid(o, "q and k must be [B, T, H, D]");
    };
    if d == 0 || hkv == 0 || h % hkv != 0 {
        return invalid(o, format!("{h} heads over {hkv} key heads of size {d}"));
    }
    if d > MOST {
        return refuse(o, format!("heads of {d}, at most {MOST}"));
    }
    let share = Share::of(o, facts, d)?;
    Ok(Shape {
        tq,
        tk,
        h,
        hkv,
        b,
        d,
        scale: if p.scale == 0.0 {
            1.0 / f64::from(d).sqrt()
        } else {
            p.scale
        } as f32,
        causal: p.flags & FLAG_CAUSAL != 0,
        // A window past all keys is none.
        window: p.window.min(1 << 30) as u32,
        share,
        size: share.size(facts),
    })
}

fn lse_of(o: &OpRequest<'_>, i: usize, s: &Shape, written: bool) -> Result<View> {
    let v = if written {
        output_strided(o, i, F32)?
    } else {
        input(o, i, F32)?
    };
    shape(o, i, &v, &[s.b, s.h, s.tq])?;
    Ok(v)
}

/// The text of one pass.
struct Code<'a> {
    s: &'a Shape,
    t: Text,
}

impl Code<'_> {
    fn new(s: &Shape) -> Code<'_> {
        let mut t = Text::default();
        t.param("tq", s.tq)
            .param("tk", s.tk)
            .param("heads", s.h)
            .param("kv_heads", s.hkv)
            .param("group", s.h / s.hkv)
            .param("offset", s.tk.wrapping_sub(s.tq))
            .param("window", s.window)
            .param("quads_but_one", s.d.div_ceil(4) - 1)
            .param("whole_quads", s.d / 4)
            .paramf("scale", s.scale)
            .set("size", format!("{}u", s.size));
        Code { s, t }
    }

    /// `fn <name>_at(b, t, h)`: where a row of an operand begins.
    fn at(&mut self, name: &str, v: &View) -> String {
        for (k, i) in [("b", 0), ("t", 1), ("h", 2)] {
            self.t.param(&format!("{name}_{k}"), v.stride[i]);
        }
        format!(
            "fn {name}_at(b: u32, t: u32, h: u32) -> u32 {{ return b * ${name}_b + t * ${name}_t + h * ${name}_h; }}\n"
        )
    }

    fn quads(&self) -> u32 {
        self.s.d.div_ceil(4)
    }

    /// Text of quad `c`, the last of the row that begins at `o`, zeros past its end.
    fn last_quad(&self, name: &str) -> String {
        let at = 4 * (self.quads() - 1);
        match self.s.d - at {
            1 => format!("vec4<f32>(ld_{name}(o + {at}u), 0.0, 0.0, 0.0)"),
            2 => format!("vec4<f32>(ld2_{name}(o + {at}u), 0.0, 0.0)"),
            3 => format!(
                "vec4<f32>(ld2_{name}(o + {at}u), ld_{name}(o + {}u), 0.0)",
                at + 2
            ),
            _ => format!("ld4_{name}(o + {at}u)"),
        }
    }

    /// `fn row_<name>(o) -> array`: the quads of the row that begins at `o`. A loop, because loads of 16-bit elements are long, and
    /// one whose end compilers do not know, because they would unroll it.
    fn load(&self, name: &str) -> String {
        let (quads, last) = (self.quads(), self.last_quad(name));
        format!(
            "fn row_{name}(o: u32) -> array<vec4<f32>, {quads}> {{
  var r: array<vec4<f32>, {quads}>;
  for (var c = 0u; c < $quads_but_one; c++) {{ r[c] = ld4_{name}(o + 4u * c); }}
  r[{0}] = {last};
  return r;
}}
",
            quads - 1
        )
    }

    /// `fn store_<name>(o, array)`: writes a row.
    fn store(&self, name: &str) -> String {
        let quads = self.quads();
        let whole = self.s.d / 4;
        let rest: String = (4 * whole..self.s.d)
            .map(|e| {
                format!(
                    "st_{name}(o + {e}u, w[{whole}].{}); ",
                    ["x", "y", "z"][e as usize % 4]
                )
            })
            .collect();
        format!(
            "fn store_{name}(o: u32, v: array<vec4<f32>, {quads}>) {{
  var w = v;
  for (var c = 0u; c < $whole_quads; c++) {{ st4_{name}(o + 4u * c, w[c]); }}
  {rest}
}}
"
        )
    }

    /// The array of quads `quad(c)`.
    fn array(&self, quad: impl Fn(u32) -> String) -> String {
        let all: Vec<_> = (0..self.quads()).map(quad).collect();
        format!("array<vec4<f32>, {}>({})", self.quads(), all.join(", "))
    }

    fn each(&self, f: impl Fn(u32) -> String) -> String {
        (0..self.quads()).map(|c| f(c) + "\n").collect()
    }

    /// The dot product of the row in registers `reg<c>` with a walked row.
    fn dot(&self, reg: &str, row: &dyn Fn(u32) -> String) -> String {
        let all: Vec<_> = (0..self.quads())
            .map(|c| format!("{reg}{c} * {}", row(c)))
            .collect();
        format!("sum4({})", all.join(" + "))
    }

    /// A walk over rows `from..to` of the two operands `names`, of head `head`: `step(u, quad)` is the text for the row `j + u`, given how a
    /// quad of an operand reads; `$numbers` (if any) are two values a row that come along as `z<u>`. `last` goes after each `unroll` rows.
    #[allow(clippy::too_many_arguments)]
    fn walk(
        &self,
        names: [&str; 2],
        head: &str,
        rows: &str,
        numbers: Option<&str>,
        unroll: u32,
        step: &dyn Fn(u32, &dyn Fn(usize, u32) -> String) -> String,
        last: &str,
    ) -> String {
        let quads = self.quads();
        let mut inner = String::new();
        match self.s.share {
            Share::Broadcast(size) => {
                for u in 0..unroll {
                    let _ = writeln!(inner, "let j{u} = min(j + {u}u, {rows} - 1u);");
                    for name in names {
                        let _ = writeln!(inner, "let o{name}{u} = {name}_at(b, j{u}, {head});");
                        for c in 0..self.s.d.div_ceil(size) {
                            let at = c * size;
                            let value = if at + size <= self.s.d {
                                format!("ld_{name}(o{name}{u} + {at}u + lane)")
                            } else {
                                let d = self.s.d;
                                format!(
                                    "select(0.0, ld_{name}(o{name}{u} + min({at}u + lane, {}u)), {at}u + lane < {d}u)",
                                    d - 1
                                )
                            };
                            let _ = writeln!(inner, "let w{name}{u}_{c} = {value};");
                        }
                    }
                    if let Some(n) = numbers {
                        let _ = writeln!(inner, "let z{u} = {};", n.replace('@', &format!("j{u}")));
                    }
                    // Rows that are used twice go round once.
                    let named = unroll == 1;
                    for name in names.iter().filter(|_| named) {
                        for c in 0..quads {
                            let all = round(name, u, c, size);
                            let _ = writeln!(inner, "let x{name}{u}_{c} = {all};");
                        }
                    }
                    let quad = |which: usize, c: u32| match named {
                        true => format!("x{}{u}_{c}", names[which]),
                        false => round(names[which], u, c, size),
                    };
                    inner.push_str(&step(u, &quad));
                }
                format!("for (var j = from_j; j < to_j; j += {unroll}u) {{\n{inner}{last}}}\n")
            }
            Share::Block(block) => {
                for u in 0..unroll {
                    if numbers.is_some() {
                        let _ = writeln!(inner, "let z{u} = s_z[jj + {u}u];");
                    }
                    let quad = |which: usize, c: u32| {
                        format!("s_{}[(jj + {u}u) * {quads}u + {c}u]", names[which])
                    };
                    inner.push_str(&step(u, &quad));
                }
                let mut stage = String::new();
                for name in names {
                    let cases = (0..quads).map(|c| {
                        let full = 4 * c + 4 <= self.s.d;
                        (c, full)
                    });
                    let whole = cases.filter(|x| x.1).count() as u32;
                    let _ = write!(
                        stage,
                        "{{ var v = vec4<f32>(); if row < to_j {{ let o = {name}_at(b, row, {head}); "
                    );
                    if whole == quads {
                        let _ = write!(stage, "v = ld4_{name}(o + 4u * c); ");
                    } else {
                        let _ = write!(
                            stage,
                            "if c < {whole}u {{ v = ld4_{name}(o + 4u * c); }} else {{ v = {}; }} ",
                            self.last_quad(name)
                        );
                    }
                    let _ = writeln!(stage, "}} s_{name}[x] = v; }}");
                }
                let along = match numbers {
                    Some(n) => format!(
                        "for (var x = lane; x < {block}u; x += $size) {{ let row = min(j0 + x, {rows} - 1u); s_z[x] = {}; }}\n",
                        n.replace('@', "row")
                    ),
                    None => String::new(),
                };
                format!(
                    "for (var j0 = from_j; j0 < to_j; j0 += {block}u) {{
  workgroupBarrier();
  for (var x = lane; x < {}u; x += $size) {{ let row = j0 + x / {quads}u; let c = x % {quads}u;
{stage}  }}
{along}  workgroupBarrier();
  for (var jj = 0u; jj < {block}u; jj += {unroll}u) {{ let j = j0 + jj;
{inner}{last}  }}
}}
",
                    block * quads
                )
            }
        }
    }

    /// Declarations and the head of `main`, which knows `b`, `first` (the workgroup's first row of `rows`) and `lane`; `of` heads.
    fn head(&mut self, names: [&str; 2], numbers: bool, rows: u32, of: u32) -> String {
        let blocks = rows.div_ceil(self.s.size);
        let groups = u64::from(blocks) * u64::from(of) * u64::from(self.s.b);
        self.t
            .param("blocks", blocks)
            .param("groups", groups as u32);
        let mut s = MATH.to_string()
            + "fn sum4(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }\n";
        let lane = match self.s.share {
            Share::Broadcast(_) => "subgroup_invocation_id",
            Share::Block(block) => {
                let words = block * self.quads();
                for name in names {
                    let _ = writeln!(s, "var<workgroup> s_{name}: array<vec4<f32>, {words}>;");
                }
                if numbers {
                    let _ = writeln!(s, "var<workgroup> s_z: array<vec2<f32>, {block}>;");
                }
                "local_invocation_index"
            }
        };
        // The last blocks see most keys: they go first.
        let _ = write!(
            s,
            "@compute @workgroup_size({}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin({lane}) lane: u32) {{
  let wid = wg.x + wg.y * nwg.x;
  if wid >= $groups {{ return; }}
  let first = ($blocks - 1u - wid % $blocks) * $size;
  let head = (wid / $blocks) % {of}u;
  let b = wid / ($blocks * {of}u);
",
            self.s.size
        );
        s
    }

    /// Keys that some query of the workgroup sees, `from_j..to_j`, and those of this invocation's query `i`, `lo..hi`.
    fn keys(&self) -> String {
        let hi = |i: &str| match self.s.causal {
            true => format!("u32(clamp(i32({i}) + bitcast<i32>($offset) + 1, 0, i32($tk)))"),
            false => "$tk".into(),
        };
        let lo = |i: &str| match self.s.window > 0 {
            true => format!("u32(max(i32({i}) + bitcast<i32>($offset) + 1 - i32($window), 0))"),
            false => "0u".into(),
        };
        format!(
            "  let i = min(first + lane, $tq - 1u);
  let lo = {};
  let hi = {};
  let from_j = {};
  let to_j = {};
",
            lo("i"),
            hi("i"),
            lo("first"),
            hi("min(first + $size, $tq) - 1u")
        )
    }

    fn pass(
        &self,
        binds: Binds<'_>,
        label: &str,
        body: &str,
        rows: u32,
        of: u32,
        facts: &Facts,
    ) -> Result<Pass> {
        let blocks = u64::from(rows.div_ceil(self.s.size));
        let groups = fold(blocks * u64::from(of) * u64::from(self.s.b), facts)?;
        binds.pass(label, &self.t.fill(body), self.t.params.clone(), groups)
    }
}

/// Quad `c` of the walked row `u` of an operand, from the lanes that hold it.
fn round(name: &str, u: u32, c: u32, size: u32) -> String {
    let of = |e: u32| {
        let at = 4 * c + e;
        format!(
            "subgroupBroadcast(w{name}{u}_{}, {}u)",
            at / size,
            at % size
        )
    };
    format!("vec4<f32>({}, {}, {}, {})", of(0), of(1), of(2), of(3))
}

/// Rows of a step of the forward: what is rescaled when the maximum grows is rescaled once a step.
fn unroll(d: u32) -> u32 {
    if d <= 32 { 4 } else { 2 }
}

/// `attention_fwd`: operands o, lse, q, k, v.
pub fn forward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 5..=5)?;
    let (q, k) = (heads(o, 2, "q", None)?, heads(o, 3, "k", None)?);
    let s = shape_of(o, facts, &q, &k)?;
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let (out, k) = (written(o, 0, "o", qs)?, heads(o, 3, "k", Some(ks))?);
    let v = heads(o, 4, "v", Some(ks))?;
    let lse = lse_of(o, 1, &s, true)?;
    if q.total == 0 {
        return Ok(Prepared::of(vec![]));
    }
    if s.tk == 0 {
        return refuse(o, "no keys");
    }
    let mut c = Code::new(&s);
    let mut body = String::new();
    for (name, view) in [("q", &q), ("k", &k), ("v", &v), ("o", &out)] {
        body.push_str(&c.at(name, view));
    }
    body.push_str(&(c.load("q") + &c.store("o")));
    for (hole, stride) in [("lse_b", 0), ("lse_h", 1), ("lse_t", 2)] {
        c.t.param(hole, lse.stride[stride]);
    }
    body.push_str(&c.head(["k", "v"], false, s.tq, s.h));
    body.push_str(&c.keys());
    body.push_str("  let kv = head / $group;\n  let rq = row_q(q_at(b, i, head));\n");
    body.push_str(&c.each(|n| format!("  let q{n} = rq[{n}] * $scale; var o{n} = vec4<f32>();")));
    body.push_str("  var top = -3.4028234e38;\n  var total = 0.0;\n");
    let u_max = unroll(s.d);
    let step = |u: u32, quad: &dyn Fn(usize, u32) -> String| {
        format!(
            "let seen{u} = j + {u}u >= lo && j + {u}u < hi;\nlet s{u} = select(-3.4028234e38, {}, seen{u});\n",
            c.dot("q", &|n| quad(0, n))
        )
    };
    // The walked values are read after the scores of the whole step.
    let values = |quads: &dyn Fn(u32, u32) -> String| {
        let mut last = "let new_top = max(top, ".to_string();
        let tops = (1..u_max).fold("s0".to_string(), |m, u| format!("max({m}, s{u})"));
        let _ = writeln!(
            last,
            "{tops});\nlet fade = exp_neg(top - new_top);\ntop = new_top;"
        );
        for u in 0..u_max {
            let _ = writeln!(
                last,
                "let p{u} = select(0.0, exp_neg(s{u} - new_top), seen{u});"
            );
        }
        let sum: Vec<_> = (0..u_max).map(|u| format!("p{u}")).collect();
        let _ = writeln!(last, "total = total * fade + ({});", sum.join(" + "));
        for n in 0..c.quads() {
            let add: Vec<_> = (0..u_max)
                .map(|u| format!("p{u} * {}", quads(u, n)))
                .collect();
            let _ = writeln!(last, "o{n} = o{n} * fade + ({});", add.join(" + "));
        }
        last
    };
    let last = match s.share {
        Share::Broadcast(size) => values(&|u, n| round("v", u, n, size)),
        Share::Block(_) => values(&|u, n| format!("s_v[(jj + {u}u) * {}u + {n}u]", c.quads())),
    };
    let walk = c.walk(["k", "v"], "kv", "$tk", None, u_max, &step, &last);
    body.push_str(&walk);
    body.push_str(
        "  if first + lane < $tq {
    // No key seen: the output is 0 and the log of the sum minus infinity.
    let inverse = select(1.0 / total, 0.0, total == 0.0);
    var z = top + log_f(total);
    if total == 0.0 { z = -inf_f(); }
    st_lse(b * $lse_b + head * $lse_h + i * $lse_t, z);
",
    );
    let all = c.array(|n| format!("o{n} * inverse"));
    body.push_str(&format!(
        "    store_o(o_at(b, i, head), {all});\n  }}\n}}\n"
    ));
    let mut binds = Binds::new(o, facts);
    binds
        .operand("o", 0, Access::ReadWrite)?
        .operand("lse", 1, Access::ReadWrite)?
        .loaded("q", 2)?
        .loaded("k", 3)?
        .loaded("v", 4)?;
    Ok(Prepared {
        tier: 2,
        ..Prepared::of(vec![c.pass(
            binds,
            "attention forward",
            &body,
            s.tq,
            s.h,
            facts,
        )?])
    })
}

/// `attention_bwd`: operands dq, dk, dv, do, o, q, k, v, lse.
pub fn backward(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    arity(o, 9..=9)?;
    let (q, k) = (heads(o, 5, "q", None)?, heads(o, 6, "k", None)?);
    let s = shape_of(o, facts, &q, &k)?;
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let dq = written(o, 0, "dq", qs)?;
    let (dk, dv) = (written(o, 1, "dk", ks)?, written(o, 2, "dv", ks)?);
    let (g, out) = (heads(o, 3, "do", Some(qs))?, heads(o, 4, "o", Some(qs))?);
    let (k, v) = (heads(o, 6, "k", Some(ks))?, heads(o, 7, "v", Some(ks))?);
    let lse = lse_of(o, 8, &s, false)?;
    if s.b == 0 || s.h == 0 {
        return Ok(Prepared::of(vec![]));
    }
    if s.tq == 0 || s.tk == 0 {
        return refuse(o, "no queries or no keys");
    }
    let delta_bytes = u64::from(s.b) * u64::from(s.h) * u64::from(s.tq) * 4;

    // dq, and delta for the other pass.
    let mut c = Code::new(&s);
    let mut body = String::new();
    for (name, view) in [
        ("q", &q),
        ("k", &k),
        ("v", &v),
        ("o", &out),
        ("g", &g),
        ("dq", &dq),
    ] {
        body.push_str(&c.at(name, view));
    }
    body.push_str(&(c.load("q") + &c.load("g") + &c.load("o") + &c.store("dq")));
    for (hole, stride) in [("lse_b", 0), ("lse_h", 1), ("lse_t", 2)] {
        c.t.param(hole, lse.stride[stride]);
    }
    body.push_str(&c.head(["k", "v"], false, s.tq, s.h));
    body.push_str(&c.keys());
    body.push_str(
        "  let kv = head / $group;
  let rq = row_q(q_at(b, i, head)); let rg = row_g(g_at(b, i, head)); let ro = row_o(o_at(b, i, head));
",
    );
    body.push_str(&c.each(|n| {
        format!("  let q{n} = rq[{n}] * $scale; let g{n} = rg[{n}]; var dq{n} = vec4<f32>();")
    }));
    body.push_str(&format!(
        "  let delta = {};
  let z_raw = ld_lse(b * $lse_b + head * $lse_h + i * $lse_t);
  // A row that saw no key has minus infinity; exp(s - huge) is 0.
  let z = select(z_raw, 3.4028234e38, z_raw < -3.4e38);
  if first + lane < $tq {{ st_delta((b * $heads + head) * $tq + i, delta); }}
",
        c.dot("g", &|n| format!("ro[{n}]"))
    ));
    let step = |u: u32, quad: &dyn Fn(usize, u32) -> String| {
        format!(
            "{{ let s = {}; let seen = j + {u}u >= lo && j + {u}u < hi;
let p = select(0.0, exp_neg(s - z), seen);
let ds = select(p * ({} - delta), 0.0, p == 0.0);
{}}}\n",
            c.dot("q", &|n| quad(0, n)),
            c.dot("g", &|n| quad(1, n)),
            c.each(|n| format!("dq{n} += ds * {};", quad(0, n)))
        )
    };
    body.push_str(&c.walk(["k", "v"], "kv", "$tk", None, 1, &step, ""));
    let all = c.array(|n| format!("dq{n} * $scale"));
    body.push_str(&format!(
        "  if first + lane < $tq {{ store_dq(dq_at(b, i, head), {all}); }}\n}}\n"
    ));
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dq", 0, Access::ReadWrite)?
        .loaded("g", 3)?
        .loaded("o", 4)?
        .loaded("q", 5)?
        .loaded("k", 6)?
        .loaded("v", 7)?
        .operand("lse", 8, Access::Read)?
        .workspace("delta", 0, delta_bytes, DType::F32, Access::ReadWrite)?;
    let first = c.pass(binds, "attention backward q", &body, s.tq, s.h, facts)?;

    let mut c = Code::new(&s);
    let mut body = String::new();
    for (name, view) in [
        ("q", &q),
        ("k", &k),
        ("v", &v),
        ("g", &g),
        ("dk", &dk),
        ("dv", &dv),
    ] {
        body.push_str(&c.at(name, view));
    }
    body.push_str(&(c.load("k") + &c.load("v") + &c.store("dk") + &c.store("dv")));
    for (hole, stride) in [("lse_b", 0), ("lse_h", 1), ("lse_t", 2)] {
        c.t.param(hole, lse.stride[stride]);
    }
    body.push_str(
        "fn numbers(b: u32, h: u32, i: u32) -> vec2<f32> {
  let z = ld_lse(b * $lse_b + h * $lse_h + i * $lse_t);
  return vec2<f32>(select(z, 3.4028234e38, z < -3.4e38), ld_delta((b * $heads + h) * $tq + i));
}
",
    );
    body.push_str(&c.head(["q", "g"], true, s.tk, s.hkv));
    // Key y is seen by queries from y - offset (causal) to y - offset + window - 1.
    let from = |y: &str| match s.causal {
        true => format!("u32(max(i32({y}) - bitcast<i32>($offset), 0))"),
        false => "0u".into(),
    };
    let to = |y: &str| match s.window > 0 {
        true => format!("u32(clamp(i32({y}) - bitcast<i32>($offset) + i32($window), 0, i32($tq)))"),
        false => "$tq".into(),
    };
    body.push_str(&format!(
        "  let y = min(first + lane, $tk - 1u);
  let lo = {};
  let hi = {};
  let from_j = {};
  let to_j = {};
  let rk = row_k(k_at(b, y, head)); let rv = row_v(v_at(b, y, head));
",
        from("y"),
        to("y"),
        from("first"),
        to("min(first + $size, $tk) - 1u")
    ));
    body.push_str(&c.each(|n| {
        format!(
            "  let k{n} = rk[{n}] * $scale; let v{n} = rv[{n}]; var dk{n} = vec4<f32>(); var dv{n} = vec4<f32>();"
        )
    }));
    let step = |u: u32, quad: &dyn Fn(usize, u32) -> String| {
        format!(
            "{{ let s = {}; let seen = j + {u}u >= lo && j + {u}u < hi;
let p = select(0.0, exp_neg(s - z{u}.x), seen);
let ds = select(p * ({} - z{u}.y), 0.0, p == 0.0);
{}}}\n",
            c.dot("k", &|n| quad(0, n)),
            c.dot("v", &|n| quad(1, n)),
            c.each(|n| format!("dk{n} += ds * {}; dv{n} += p * {};", quad(0, n), quad(1, n)))
        )
    };
    body.push_str("  for (var x = 0u; x < $group; x++) { let h = head * $group + x;\n");
    body.push_str(&c.walk(
        ["q", "g"],
        "h",
        "$tq",
        Some("numbers(b, h, @)"),
        1,
        &step,
        "",
    ));
    let (all_k, all_v) = (
        c.array(|n| format!("dk{n} * $scale")),
        c.array(|n| format!("dv{n}")),
    );
    body.push_str(&format!(
        "  }}
  if first + lane < $tk {{
    store_dk(dk_at(b, y, head), {all_k});
    store_dv(dv_at(b, y, head), {all_v});
  }}
}}
"
    ));
    let mut binds = Binds::new(o, facts);
    binds
        .operand("dk", 1, Access::ReadWrite)?
        .operand("dv", 2, Access::ReadWrite)?
        .loaded("g", 3)?
        .loaded("q", 5)?
        .loaded("k", 6)?
        .loaded("v", 7)?
        .operand("lse", 8, Access::Read)?
        .workspace("delta", 0, delta_bytes, DType::F32, Access::Read)?;
    let second = c.pass(binds, "attention backward k v", &body, s.tk, s.hkv, facts)?;
    Ok(Prepared {
        tier: 2,
        workspace_bytes: delta_bytes,
        ..Prepared::of(vec![first, second])
    })
}
