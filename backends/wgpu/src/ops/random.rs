//! philox and dropout: a counter's four words make four elements. Normal numbers are made on the host, where f64 is.

use super::elementwise::SIZE;
use super::view::*;
use crate::kernel::{Access, Binds, DYN_WORDS, Dynamic, Facts, Prepared, Words, fold};
use crossweave_abi::op;
use crossweave_plugin::{DType, Dyn, OpRequest, Result};
use half::{bf16, f16};

/// Seed, first counter and stream.
fn key(dynamic: &[u8]) -> Result<Words> {
    let d = Dyn(dynamic).read::<op::PhiloxDyn>()?;
    let mut w = [0; DYN_WORDS];
    for (i, v) in [d.seed, d.offset, d.stream].into_iter().enumerate() {
        (w[2 * i], w[2 * i + 1]) = (v as u32, (v >> 32) as u32);
    }
    Ok(w)
}

/// `w`: the words of counter `g`.
const COUNTER: &str = "  let g = gid.x + gid.y * nwg.x * 64u;
  let lo = dyn_word(2u) + g;
  let hi = dyn_word(3u) + select(0u, 1u, lo < g);
  let i = 4u * g; let n = param(0u);
  if i >= n { return; }
  var w = philox4(vec4<u32>(lo, hi, dyn_word(4u), dyn_word(5u)), vec2<u32>(dyn_word(0u), dyn_word(1u)));
";

const HEAD: &str = "@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) gid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>) {
";

/// Stores the four elements `v`, fewer at the end.
const STORE: &str = "  if i + 4u <= n { st2_y(i, v.x, v.y); st2_y(i + 2u, v.z, v.w); return; }
  for (var k = 0u; k < 4u && i + k < n; k++) { st_y(i + k, v[k]); }
}
";

/// One block of Philox4x32-10 by the op table's text.
fn block(c: u64, stream: u64, seed: u64) -> [u32; 4] {
    let mut x = [
        c as u32,
        (c >> 32) as u32,
        stream as u32,
        (stream >> 32) as u32,
    ];
    let mut k = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let p = u64::from(x[0]) * 0xD251_1F53;
        let q = u64::from(x[2]) * 0xCD9E_8D57;
        x = [
            (q >> 32) as u32 ^ x[1] ^ k[0],
            q as u32,
            (p >> 32) as u32 ^ x[3] ^ k[1],
            p as u32,
        ];
        k = [
            k[0].wrapping_add(0x9E37_79B9),
            k[1].wrapping_add(0xBB67_AE85),
        ];
    }
    x
}

/// Box-Muller over a word pair, in f64, rounded once.
fn normal(w: [u32; 2]) -> [f32; 2] {
    const U: f64 = 1.0 / 16_777_216.0;
    let u1 = (f64::from(w[0] >> 8) + 1.0) * U;
    let u2 = f64::from(w[1] >> 8) * U;
    let r = (-2.0 * u1.ln()).sqrt();
    let (s, c) = (2.0 * std::f64::consts::PI * u2).sin_cos();
    [(r * c) as f32, (r * s) as f32]
}

/// `philox`.
pub fn philox(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 1..=1)?;
    let p = o.params::<op::PhiloxParams>()?;
    let dtypes: &[DType] = match p.kind {
        op::philox::BITS => &[DType::U32],
        op::philox::UNIFORM | op::philox::NORMAL => FLOATS,
        k => return refuse(o, format!("kind {k} is unknown")),
    };
    let dst = output(o, 0, dtypes)?;
    let (lo, hi) = (p.lo as f32, p.hi as f32);
    let n = dst.total;
    if p.kind == op::philox::NORMAL {
        let t = dst.dtype;
        return Ok(Prepared {
            dynamic: Some(Box::new(key)),
            host: Some(Box::new(move |bytes| {
                let d = Dyn(bytes).read::<op::PhiloxDyn>()?;
                let mut out = Vec::with_capacity(n * 4);
                for c in 0..n.div_ceil(4) {
                    let w = block(d.offset.wrapping_add(c as u64), d.stream, d.seed);
                    let [a, b] = normal([w[0], w[1]]);
                    let [x, y] = normal([w[2], w[3]]);
                    for z in [a, b, x, y].into_iter().take(n - 4 * c) {
                        let v = lo + hi * z;
                        match t {
                            DType::Bf16 => out.extend(bf16::from_f32(v).to_le_bytes()),
                            DType::F16 => out.extend(f16::from_f32(v).to_le_bytes()),
                            _ => out.extend(v.to_le_bytes()),
                        }
                    }
                }
                Ok(out)
            })),
            ..Default::default()
        });
    }
    let mut b = Binds::new(o, f);
    b.operand("y", 0, Access::ReadWrite)?;
    let body = match p.kind {
        op::philox::BITS => format!(
            "{HEAD}{COUNTER}  for (var k = 0u; k < 4u && i + k < n; k++) {{ stu_y(i + k, w[k]); }}\n}}\n"
        ),
        _ => format!(
            "{HEAD}{COUNTER}  let a = paramf(1u); let s = paramf(2u);\n  \
             let v = vec4<f32>(a + keep(s * unit_f(w.x)), a + keep(s * unit_f(w.y)), a + keep(s * unit_f(w.z)), a + keep(s * unit_f(w.w)));\n{STORE}"
        ),
    };
    let params = vec![n as u32, lo.to_bits(), (hi - lo).to_bits()];
    let groups = fold((n as u64).div_ceil(4).div_ceil(SIZE), f)?;
    Ok(Prepared {
        passes: vec![b.pass("philox", &body, params, groups)?],
        dynamic: Some(Box::new(key) as Dynamic),
        ..Default::default()
    })
}

/// `dropout`.
pub fn dropout(o: &OpRequest<'_>, f: &Facts) -> Result<Prepared> {
    arity(o, 2..=3)?;
    let p = o.params::<op::DropoutParams>()?;
    flags(o, p.flags, 0)?;
    if !(0.0..=1.0).contains(&p.p) {
        return invalid(o, format!("p = {} is not a probability", p.p));
    }
    let y = output(o, 0, FLOATS)?;
    // Strided inputs are the decomposition's: here elements are taken four in a row.
    let x = output(o, 1, FLOATS)?;
    shape(o, 1, &x, &y.shape)?;
    let residual = optional(o, 2, FLOATS)?
        .map(|r| dense(o, 2, r))
        .transpose()?;
    let mut b = Binds::new(o, f);
    b.operand("y", 0, Access::ReadWrite)?;
    b.operand("x", 1, Access::Read)?;
    let mut more = "";
    if let Some(r) = &residual {
        shape(o, 2, r, &y.shape)?;
        b.operand("r", 2, Access::Read)?;
        more = " + ld_r(i + k)";
    }
    let body = format!(
        "{HEAD}{COUNTER}  var v = vec4<f32>();\n  for (var k = 0u; k < 4u && i + k < n; k++) {{\n    \
         let kept = ld_x(i + k) / paramf(2u);\n    \
         v[k] = select(0.0, kept, (w[k] >> 8u) >= param(1u)){more};\n  }}\n{STORE}"
    );
    // keep(e) = word >> 8 >= p 2^24 over the reals.
    let threshold = (p.p * 16_777_216.0).ceil() as u32;
    let params = vec![y.total as u32, threshold, ((1.0 - p.p) as f32).to_bits()];
    let groups = fold((y.total as u64).div_ceil(4).div_ceil(SIZE), f)?;
    Ok(Prepared {
        passes: vec![b.pass("dropout", &body, params, groups)?],
        dynamic: Some(Box::new(key) as Dynamic),
        ..Default::default()
    })
}
