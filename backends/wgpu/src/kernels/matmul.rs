//! `matmul` in three forms, all with f32 accumulators filled in one fixed order over k:
//!
//! - **lanes**: a workgroup is one subgroup of known size; a lane owns four columns and all the rows, elements of A go round by
//!   `subgroupBroadcast`. No workgroup memory and no barrier, which is what a CPU driver wants.
//! - **tile**: blocks of A and B in workgroup memory, a rectangle of outputs in each invocation's registers; sized by the adapter's limits.
//! - **naive**: one output an invocation, straight from memory. For comparison.

use super::text::Text;
use super::view::{FLOATS, View, flags, input, invalid, refuse};
use crate::kernel::{Access, Binds, Facts, Pass, Prepared, fold};
use crossweave_abi::op::{FLAG_ACCUM, MatmulParams};
use crossweave_plugin::{DType, OpRequest, Result};
use std::fmt::Write;

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Subgroups of this size, so many rows (a multiple of 4).
    Lanes {
        /// Invocations of a subgroup.
        subgroup: u32,
        /// Rows of a workgroup.
        rows: u32,
    },
    /// Blocks of `block` x `block` outputs, `each` x `each` of them an invocation.
    Tile {
        /// Outputs of a workgroup, in rows and in columns.
        block: u32,
        /// Outputs of an invocation, in rows and in columns: 4 or 8.
        each: u32,
    },
    /// One output an invocation.
    Naive,
}

/// Steps along k between two barriers.
const DEPTH: u32 = 16;

/// The form for a product of this size on this adapter.
pub fn choose(facts: &Facts, [m, n, k]: [u32; 3]) -> Form {
    if facts.naive_matmul {
        return Form::Naive;
    }
    if let Some(subgroup) = super::one_small_subgroup(facts) {
        // More rows are faster, and take longer to compile.
        let work = u64::from(m) * u64::from(n) * u64::from(k);
        let rows = match m {
            0..=4 => 4,
            _ if work < 1 << 24 => 8,
            _ => 16,
        };
        return Form::Lanes { subgroup, rows };
    }
    let fits = |block: u32, each: u32| {
        let threads = (block / each).pow(2);
        threads <= facts.max_invocations && 2 * DEPTH * block * 4 <= facts.workgroup_bytes
    };
    // A large block only where there are enough of them to fill a device.
    let blocks = |b: u32| u64::from(m.div_ceil(b)) * u64::from(n.div_ceil(b));
    if fits(128, 8) && blocks(128) >= 64 {
        Form::Tile {
            block: 128,
            each: 8,
        }
    } else if fits(64, 4) && m > 32 && n > 32 {
        Form::Tile { block: 64, each: 4 }
    } else if fits(32, 4) {
        Form::Tile { block: 32, each: 4 }
    } else {
        Form::Naive
    }
}

struct Matrix {
    view: View,
    row: u32,
    col: u32,
    batch: u32,
    shape: [u32; 2],
}

fn matrix(o: &OpRequest<'_>, i: usize) -> Result<Matrix> {
    let view = input(o, i, FLOATS)?;
    let r = view.shape.len();
    if !(2..=3).contains(&r) {
        return refuse(
            o,
            format!("operand {i} has rank {r}, supported are 2 and 3"),
        );
    }
    let batch = if r == 3 { view.stride[0] } else { 0 };
    let (row, col) = (view.stride[r - 2], view.stride[r - 1]);
    let shape = [view.shape[r - 2], view.shape[r - 1]];
    Ok(Matrix {
        view,
        row,
        col,
        batch,
        shape,
    })
}

/// Prepares `matmul`.
pub fn matmul(o: &OpRequest<'_>, facts: &Facts) -> Result<Prepared> {
    super::view::arity(o, 3..=4)?;
    let p = o.params::<MatmulParams>()?;
    flags(o, p.flags, FLAG_ACCUM)?;
    if p.epilogue != 0 {
        return refuse(o, format!("epilogue {}", p.epilogue));
    }
    if p.acc_dtype != 0 && p.acc_dtype != DType::F32.id() {
        return refuse(o, "accumulation is in f32 only");
    }
    let (c, a, b) = (matrix(o, 0)?, matrix(o, 1)?, matrix(o, 2)?);
    let (tc, ta, tb) = (c.view.dtype, a.view.dtype, b.view.dtype);
    if ta != tb || (tc != ta && tc != DType::F32) {
        let (x, y, z) = (ta.name(), tb.name(), tc.name());
        return refuse(
            o,
            format!("a {x}, b {y}, c {z}: a and b must agree, c be theirs or f32"),
        );
    }
    let batches = if c.view.shape.len() == 3 {
        c.view.shape[0]
    } else {
        1
    };
    let ([m, n], [_, k]) = (c.shape, a.shape);
    let same = |x: &Matrix| {
        x.view.shape.len() == 2 || (c.view.shape.len() == 3 && x.view.shape[0] == batches)
    };
    if a.shape[0] != m || b.shape != [k, n] || !same(&a) || !same(&b) {
        let (x, y, z) = (&c.view.shape, &a.view.shape, &b.view.shape);
        return invalid(o, format!("c {x:?}, a {y:?}, b {z:?} do not fit"));
    }
    if n > 1 && c.col != 1 {
        return refuse(o, format!("c has last stride {}, must be 1", c.col));
    }
    if m > 1 && c.row < n {
        return refuse(o, format!("rows of c overlap (stride {} < {n})", c.row));
    }
    let bias = super::view::optional(o, 3, FLOATS)?;
    if let Some(v) = &bias {
        super::view::shape(o, 3, v, &[n])?;
    }
    let alpha = if p.alpha == 0.0 { 1.0 } else { p.alpha as f32 };
    if c.view.total == 0 {
        return Ok(Prepared::of(vec![]));
    }

    let form = choose(facts, [m, n, k]);
    let mut t = Text::default();
    t.param("m", m).param("n", n).param("k", k);
    for (x, v) in [("a", &a), ("b", &b), ("c", &c)] {
        // Where quads are read at once, a unit stride is part of the text.
        for (which, s) in [("row", v.row), ("col", v.col)] {
            let hole = format!("{x}_{which}");
            if s == 1 && matches!(form, Form::Tile { .. }) {
                t.set(&hole, "1u");
            } else {
                t.param(&hole, s);
            }
        }
        t.param(&format!("{x}_batch"), v.batch);
    }
    t.paramf("alpha", alpha);
    let mut one = "v * $alpha".to_string();
    if let Some(v) = &bias {
        t.param("bias_step", v.step());
        one.push_str(" + ld_bias(j * $bias_step)");
    }
    let accum = p.flags & FLAG_ACCUM != 0;
    if accum {
        one.push_str(" + ld_c(o)");
    }
    t.set("one", one);
    let (body, tiles) = match form {
        Form::Lanes { subgroup, rows } => (lanes(subgroup, rows, &mut t), [rows, 4 * subgroup]),
        Form::Tile { block, each } => (tile(block, each, &a, &b, &mut t), [block, block]),
        Form::Naive => (naive(&mut t), [8, 8]),
    };
    let down = m.div_ceil(tiles[0]);
    let groups = u64::from(down) * u64::from(n.div_ceil(tiles[1])) * u64::from(batches);
    if groups >= 1 << 31 {
        return refuse(o, format!("{groups} blocks of outputs"));
    }
    t.param("down", down)
        .param("across", n.div_ceil(tiles[1]))
        .param("groups", groups as u32);
    let mut binds = Binds::new(o, facts);
    binds
        .operand("c", 0, Access::ReadWrite)?
        .loaded("a", 1)?
        .loaded("b", 2)?;
    if bias.is_some() {
        binds.loaded("bias", 3)?;
    }
    let body = t.fill(&body);
    let pass: Pass = binds.pass("matmul", &body, t.params.clone(), fold(groups, facts)?)?;
    Ok(Prepared {
        tier: 2,
        ..Prepared::of(vec![pass])
    })
}

/// Which block: its first row and column and the operands' starts. Blocks of one row of blocks follow each other, so that they share A.
const START: &str = "
  let wid = wg.x + wg.y * nwg.x;
  if wid >= $groups { return; }
  let batch = wid / ($down * $across);
  let in_batch = wid - batch * ($down * $across);
  let i0 = (in_batch / $across) * $rows;
  let j0 = (in_batch % $across) * $cols;
  let at_a = batch * $a_batch;
  let at_b = batch * $b_batch;
  let at_c = batch * $c_batch;";

/// Stores four neighbouring columns of a row.
const STORE: &str = "
fn finish(v: f32, o: u32, j: u32) -> f32 { return $one; }
fn store4(o: u32, j: u32, v: vec4<f32>) {
  if j + 3u < $n {
    st4_c(o, vec4<f32>(finish(v.x, o, j), finish(v.y, o + 1u, j + 1u), finish(v.z, o + 2u, j + 2u), finish(v.w, o + 3u, j + 3u)));
  } else {
    if j < $n { st_c(o, finish(v.x, o, j)); }
    if j + 1u < $n { st_c(o + 1u, finish(v.y, o + 1u, j + 1u)); }
    if j + 2u < $n { st_c(o + 2u, finish(v.z, o + 2u, j + 2u)); }
  }
}
";

fn lanes(subgroup: u32, rows: u32, t: &mut Text) -> String {
    t.set("sg", format!("{subgroup}u"))
        .set("rows", format!("{rows}u"))
        .set("cols", format!("{}u", 4 * subgroup));
    let each = |f: &dyn Fn(u32) -> String| (0..rows).map(f).collect::<Vec<_>>().join("\n");
    let load_b = "vec4<f32>(ld_b(o + jb.x), ld_b(o + jb.y), ld_b(o + jb.z), ld_b(o + jb.w))";
    let mut steps = String::new();
    for s in 0..subgroup {
        let _ = writeln!(steps, "{{ let o = ob + {s}u * $b_row; let y = {load_b};");
        for r in 0..rows {
            let _ = writeln!(steps, "c{r} += subgroupBroadcast(a{r}, {s}u) * y;");
        }
        steps.push_str("}\n");
    }
    let vars = each(&|r| {
        format!("var c{r} = vec4<f32>(); let r{r} = at_a + min(i0 + {r}u, $m - 1u) * $a_row;")
    });
    let load_a = each(&|r| format!("let a{r} = ld_a(r{r} + (k + lane) * $a_col);"));
    let tail = each(&|r| format!("c{r} += ld_a(r{r} + k * $a_col) * y;"));
    let all: Vec<_> = (0..rows).map(|r| format!("c{r}")).collect();
    let all = all.join(", ");
    format!(
        "{STORE}
@compute @workgroup_size({subgroup}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin(subgroup_invocation_id) lane: u32) {{{START}
  let j = j0 + lane * 4u;
  let jb = at_b + min(vec4<u32>(j, j + 1u, j + 2u, j + 3u), vec4<u32>($n - 1u)) * $b_col;
  {vars}
  let whole = $k - $k % $sg;
  for (var k = 0u; k < whole; k += $sg) {{
    let ob = k * $b_row;
    {load_a}
    {steps}
  }}
  for (var k = whole; k < $k; k++) {{
    let o = k * $b_row;
    let y = {load_b};
    {tail}
  }}
  // Storing is long, above all of elements that share words: once in the text.
  var all = array<vec4<f32>, {rows}>({all});
  for (var r = 0u; r < min($rows, $m - i0); r++) {{ store4(at_c + (i0 + r) * $c_row + j, j, all[r]); }}
}}
"
    )
}

fn naive(t: &mut Text) -> String {
    t.set("rows", "8u").set("cols", "8u");
    format!(
        "
fn finish(v: f32, o: u32, j: u32) -> f32 {{ return $one; }}
@compute @workgroup_size(8, 8) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin(local_invocation_id) at: vec3<u32>) {{{START}
  let i = i0 + at.y;
  let j = j0 + at.x;
  if i >= $m || j >= $n {{ return; }}
  var s = 0.0;
  for (var k = 0u; k < $k; k++) {{
    s += ld_a(at_a + i * $a_row + k * $a_col) * ld_b(at_b + k * $b_row + j * $b_col);
  }}
  let o = at_c + i * $c_row + j;
  st_c(o, finish(s, o, j));
}}
"
    )
}

/// A block's part of an operand goes to `s_x[k][u]` in workgroup memory, zeros outside; `u` is the row of A or the column of B.
///
/// `along_k`: neighbours in memory are neighbours in k, else in u.
fn stage(x: &str, block: u32, along_k: bool, unit: bool) -> String {
    let (u_count, u_first) = if x == "a" { ("$m", "i0") } else { ("$n", "j0") };
    let (u_step, k_step) = if x == "a" {
        ("$a_row", "$a_col")
    } else {
        ("$b_col", "$b_row")
    };
    let quads = block / 4;
    if along_k {
        let four = if unit {
            format!("ld4_{x}(o)")
        } else {
            format!(
                "vec4<f32>(ld_{x}(o), ld_{x}(o + {k_step}), ld_{x}(o + 2u * {k_step}), ld_{x}(o + 3u * {k_step}))"
            )
        };
        let deep = DEPTH / 4;
        format!(
            "for (var q = lane; q < {}u; q += $threads) {{
      let u = q / {deep}u; let d = (q % {deep}u) * 4u; let k = k0 + d;
      var v = vec4<f32>();
      if {u_first} + u < {u_count} {{
        let o = at_{x} + ({u_first} + u) * {u_step} + k * {k_step};
        if k + 3u < $k {{ v = {four}; }} else {{
          if k < $k {{ v.x = ld_{x}(o); }}
          if k + 1u < $k {{ v.y = ld_{x}(o + {k_step}); }}
          if k + 2u < $k {{ v.z = ld_{x}(o + 2u * {k_step}); }}
        }}
      }}
      let w = d * {quads}u + u / 4u; let e = u % 4u;
      s_{x}[w][e] = v.x; s_{x}[w + {quads}u][e] = v.y; s_{x}[w + {}u][e] = v.z; s_{x}[w + {}u][e] = v.w;
    }}
",
            block * deep,
            2 * quads,
            3 * quads
        )
    } else {
        let four = if unit {
            format!("ld4_{x}(o)")
        } else {
            format!(
                "vec4<f32>(ld_{x}(o), ld_{x}(o + {u_step}), ld_{x}(o + 2u * {u_step}), ld_{x}(o + 3u * {u_step}))"
            )
        };
        format!(
            "for (var q = lane; q < {}u; q += $threads) {{
      let d = q / {quads}u; let u = {u_first} + (q % {quads}u) * 4u; let k = k0 + d;
      var v = vec4<f32>();
      if k < $k {{
        let o = at_{x} + u * {u_step} + k * {k_step};
        if u + 3u < {u_count} {{ v = {four}; }} else {{
          if u < {u_count} {{ v.x = ld_{x}(o); }}
          if u + 1u < {u_count} {{ v.y = ld_{x}(o + {u_step}); }}
          if u + 2u < {u_count} {{ v.z = ld_{x}(o + 2u * {u_step}); }}
        }}
      }}
      s_{x}[q] = v;
    }}
",
            DEPTH * quads
        )
    }
}

fn tile(block: u32, each: u32, a: &Matrix, b: &Matrix, t: &mut Text) -> String {
    let side = block / each;
    let (quads, parts) = (block / 4, each / 4);
    t.set("rows", format!("{block}u"))
        .set("cols", format!("{block}u"))
        .set("threads", format!("{}u", side * side));
    let (mut vars, mut steps) = (String::new(), String::new());
    for p in 0..parts {
        let _ = writeln!(
            steps,
            "let x{p} = s_a[d * {quads}u + ty + {0}u]; let y{p} = s_b[d * {quads}u + tx + {0}u];",
            p * side
        );
    }
    // The quads of an invocation lie `side` apart: neighbours read neighbouring words.
    let mut all = vec![];
    for p in 0..parts {
        for (r, e) in ["x", "y", "z", "w"].iter().enumerate() {
            for q in 0..parts {
                let _ = writeln!(vars, "var c{p}_{r}_{q} = vec4<f32>();");
                let _ = writeln!(steps, "c{p}_{r}_{q} += x{p}.{e} * y{q};");
                all.push(format!("c{p}_{r}_{q}"));
            }
        }
    }
    let stores = format!(
        "var all = array<vec4<f32>, {0}>({1});
  for (var x = 0u; x < {0}u; x++) {{
    let r = x / {parts}u;
    let i = i0 + (ty + (r / 4u) * {side}u) * 4u + r % 4u;
    let j = j0 + (tx + (x % {parts}u) * {side}u) * 4u;
    if i < $m && j < $n {{ store4(at_c + i * $c_row + j, j, all[x]); }}
  }}",
        all.len(),
        all.join(", ")
    );
    let stage_a = stage(
        "a",
        block,
        a.row != 1 || a.col == 1,
        a.row == 1 || a.col == 1,
    );
    let stage_b = stage(
        "b",
        block,
        b.col != 1 && b.row == 1,
        b.row == 1 || b.col == 1,
    );
    format!(
        "{STORE}
var<workgroup> s_a: array<vec4<f32>, {words}>;
var<workgroup> s_b: array<vec4<f32>, {words}>;
@compute @workgroup_size({threads}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
  @builtin(local_invocation_index) lane: u32) {{{START}
  let tx = lane % {side}u;
  let ty = lane / {side}u;
  {vars}
  for (var k0 = 0u; k0 < $k; k0 += {DEPTH}u) {{
    {stage_a}
    {stage_b}
    workgroupBarrier();
    for (var d = 0u; d < {DEPTH}u; d++) {{
      {steps}
    }}
    workgroupBarrier();
  }}
  {stores}
}}
",
        words = DEPTH * quads,
        threads = side * side,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_abi::{Layout, op};

    const FACTS: Facts = Facts {
        max_binding: 1 << 27,
        align: 32,
        max_storage: 8,
        workgroup_bytes: 16384,
        max_invocations: 256,
        max_groups: 65535,
        subgroup: None,
        f16: false,
        fused: true,
        rounds: true,
        naive_matmul: false,
    };

    #[test]
    fn halves_are_the_adapters_own_where_it_has_them() {
        for (dtype, f16) in [
            (DType::F16, true),
            (DType::F16, false),
            (DType::Bf16, true),
            (DType::F32, true),
        ] {
            let l = Layout::contiguous(dtype, &[64, 64]);
            let layouts = [l, l, l, Layout::contiguous(dtype, &[64])];
            let params = MatmulParams::default();
            let o = OpRequest::new(op::MATMUL, &layouts, params.as_bytes(), 0);
            let facts = Facts { f16, ..FACTS };
            let made = matmul(&o, &facts).expect("a product");
            let text = &made.passes[0].wgsl;
            let native = f16 && dtype == DType::F16;
            assert_eq!(text.contains("enable f16;"), native, "{text}");
            for x in ["a", "b", "bias"] {
                let halves = format!("cw_{x}_0: array<vec2<f16>>");
                assert_eq!(text.contains(&halves), native, "{text}");
            }
            assert!(text.contains("cw_c_0: array<u32>"), "{text}");
        }
    }
}
