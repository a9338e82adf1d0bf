//! unary, binary, compare, select, axpby, clamp, add, cast, and the ops that only move: copy_strided, fill_strided, iota.

use super::elementwise::{Elementwise, Kind};
use super::view::*;
use crate::kernel::{Facts, Prepared};
use crossweave_abi::op;
use crossweave_plugin::{Code, DType, OpRequest, Result, fail};
use half::{bf16, f16};

type Answer = Result<Prepared>;

/// Dtypes `cast` knows; 64-bit floats are the host's.
const CASTS: &[DType] = &[
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
];

/// The function of a `unary` kind in [`crate::math`] (or the language), over `x`.
fn function(kind: u32) -> Option<&'static str> {
    Some(match kind {
        op::unary::NEG => "-x",
        op::unary::ABS => "abs(x)",
        op::unary::EXP => "exp_f(x)",
        op::unary::LOG => "log_f(x)",
        op::unary::SQRT => "sqrt_f(x)",
        op::unary::RSQRT => "rsqrt_f(x)",
        op::unary::TANH => "tanh_f(x)",
        op::unary::ERF => "erf_f(x)",
        op::unary::SIGMOID => "sigmoid_f(x)",
        op::unary::SIN => "sin_f(x)",
        op::unary::COS => "cos_f(x)",
        op::unary::FLOOR => "floor(x)",
        _ => return None,
    })
}

/// `unary`.
pub fn unary(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let kind = o.params::<op::KindParams>()?.kind;
    let Some(text) = function(kind) else {
        return refuse(o, format!("kind {kind} is unknown"));
    };
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Float, false)?;
    e.input("x", 1, &src, Kind::Float)?;
    Ok(Prepared::of(vec![
        e.pass("unary", &format!("  let o_y = {text};"))?,
    ]))
}

/// `binary`.
pub fn binary(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    let (dst, a, b) = (
        output(o, 0, ARITHMETIC)?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    for (i, v) in [(1, &a), (2, &b)] {
        shape(o, i, v, &dst.shape)?;
        same_dtype(o, i, v, &dst)?;
    }
    let float = dst.dtype.is_float();
    let text = match (kind, float) {
        (op::binary::ADD, true) => "a + b",
        (op::binary::SUB, true) => "a - b",
        (op::binary::MUL, true) => "a * b",
        (op::binary::DIV, true) => "div_f(a, b)",
        (op::binary::MAX, true) => "max_nan(a, b)",
        (op::binary::MIN, true) => "min_nan(a, b)",
        (op::binary::POW, true) => "pow_f(a, b)",
        (op::binary::ADD, false) => "add_64(p, q)",
        (op::binary::SUB, false) => "sub_64(p, q)",
        (op::binary::MUL, false) => "mul_64(p, q)",
        (op::binary::DIV, false) => "div_64(p, q)",
        (op::binary::MAX, false) => "select(q, p, less_64(q, p))",
        (op::binary::MIN, false) => "select(q, p, less_64(p, q))",
        (op::binary::POW, false) => "pow_64(p, q)",
        _ => return refuse(o, format!("kind {kind} is unknown")),
    };
    let k = if float { Kind::Float } else { Kind::Bits };
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, k, false)?;
    e.input("a", 1, &a, k)?;
    e.input("b", 2, &b, k)?;
    let widen = match float {
        true => String::new(),
        false => format!(
            "  let p = {}; let q = {};\n",
            wide("a", a.dtype),
            wide("b", b.dtype)
        ),
    };
    Ok(Prepared::of(vec![
        e.pass("binary", &format!("{widen}  let o_y = {text};"))?,
    ]))
}

/// The bits `x` of an integer as a 64-bit one.
fn wide(x: &str, t: DType) -> String {
    match t {
        DType::I32 => format!("vec2<u32>({x}.x, bitcast<u32>(bitcast<i32>({x}.x) >> 31u))"),
        DType::I8 => format!("sign_8({x}.x)"),
        _ => x.to_string(),
    }
}

/// `compare`.
pub fn compare(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    let kind = o.params::<op::KindParams>()?.kind;
    let (dst, a, b) = (
        output(o, 0, &[DType::U8])?,
        input(o, 1, ARITHMETIC)?,
        input(o, 2, ARITHMETIC)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    same_dtype(o, 2, &b, &a)?;
    let float = a.dtype.is_float();
    let text = match (kind, float) {
        (op::compare::EQ, true) => "a == b && ordered",
        (op::compare::NE, true) => "a != b || !ordered",
        (op::compare::LT, true) => "a < b && ordered",
        (op::compare::LE, true) => "a <= b && ordered",
        (op::compare::GT, true) => "a > b && ordered",
        (op::compare::GE, true) => "a >= b && ordered",
        (op::compare::EQ, false) => "all(p == q)",
        (op::compare::NE, false) => "any(p != q)",
        (op::compare::LT, false) => "less_64(p, q)",
        (op::compare::LE, false) => "!less_64(q, p)",
        (op::compare::GT, false) => "less_64(q, p)",
        (op::compare::GE, false) => "!less_64(p, q)",
        _ => return refuse(o, format!("kind {kind} is unknown")),
    };
    let before = match float {
        true => "  let ordered = !is_nan(a) && !is_nan(b);\n".to_string(),
        false => format!(
            "  let p = {}; let q = {};\n",
            wide("a", a.dtype),
            wide("b", b.dtype)
        ),
    };
    let k = if float { Kind::Float } else { Kind::Bits };
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    e.input("a", 1, &a, k)?;
    e.input("b", 2, &b, k)?;
    let body = format!("{before}  let o_y = vec2<u32>(select(0u, 1u, {text}), 0u);");
    Ok(Prepared::of(vec![e.pass("compare", &body)?]))
}

/// `select`: moves bits, so any dtype of whole bytes.
pub fn select(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 4..=4)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, cond) = (output(o, 0, WHOLE_BYTES)?, input(o, 1, &[DType::U8])?);
    let (a, b) = (input(o, 2, WHOLE_BYTES)?, input(o, 3, WHOLE_BYTES)?);
    for (i, v) in [(1, &cond), (2, &a), (3, &b)] {
        shape(o, i, v, &dst.shape)?;
    }
    same_dtype(o, 2, &a, &dst)?;
    same_dtype(o, 3, &b, &dst)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    e.input("c", 1, &cond, Kind::Bits)?;
    e.input("a", 2, &a, Kind::Bits)?;
    e.input("b", 3, &b, Kind::Bits)?;
    let body = "  let o_y = select(b, a, c.x != 0u);";
    Ok(Prepared::of(vec![e.pass("select", body)?]))
}

/// `axpby`.
pub fn axpby(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let p = o.params::<op::AxpbyParams>()?;
    flags(o, p.flags, 0)?;
    let (y, x) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &x, &y.shape)?;
    let mut e = Elementwise::new(o, f, y.total);
    let keeps = p.beta as f32 != 0.0;
    e.output("y", 0, &y, Kind::Float, keeps)?;
    e.input("x", 1, &x, Kind::Float)?;
    let (alpha, beta) = (e.paramf(p.alpha as f32), e.paramf(p.beta as f32));
    let body = match keeps {
        true => format!("  let o_y = keep({alpha} * x) + keep({beta} * y);"),
        false => format!("  let o_y = {alpha} * x;"),
    };
    Ok(Prepared::of(vec![e.pass("axpby", &body)?]))
}

/// `clamp`.
pub fn clamp(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    let p = o.params::<op::ClampParams>()?;
    flags(o, p.flags, 0)?;
    let (dst, src) = (output(o, 0, FLOATS)?, input(o, 1, FLOATS)?);
    shape(o, 1, &src, &dst.shape)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Float, false)?;
    e.input("x", 1, &src, Kind::Float)?;
    let (lo, hi) = (e.paramf(p.lo as f32), e.paramf(p.hi as f32));
    let body = format!(
        "  let m = select(x, {lo}, x < {lo} && !is_nan(x)); let o_y = select(m, {hi}, m > {hi} && !is_nan(x));"
    );
    Ok(Prepared::of(vec![e.pass("clamp", &body)?]))
}

/// `add`.
pub fn add(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 3..=3)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, a, b) = (
        output(o, 0, FLOATS)?,
        output(o, 1, FLOATS)?,
        output(o, 2, FLOATS)?,
    );
    shape(o, 1, &a, &dst.shape)?;
    shape(o, 2, &b, &dst.shape)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Float, false)?;
    e.input("a", 1, &a, Kind::Float)?;
    e.input("b", 2, &b, Kind::Float)?;
    Ok(Prepared::of(vec![e.pass("add", "  let o_y = a + b;")?]))
}

/// `cast`.
pub fn cast(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, src) = (output(o, 0, CASTS)?, input(o, 1, CASTS)?);
    shape(o, 1, &src, &dst.shape)?;
    let (from, to) = (src.dtype, dst.dtype);
    let (text, out, load) = match (from.is_float(), to.is_float()) {
        (true, true) => ("x".to_string(), Kind::Float, Kind::Float),
        (true, false) => {
            let t = match to {
                DType::U64 => "u64_of_f32(x)".to_string(),
                DType::I64 => "i64_of_f32(x)".to_string(),
                t => {
                    // Saturated in 64 bits first, then to the type's range.
                    let (lo, hi) = match t {
                        DType::I8 => ("vec2<u32>(0xffffff80u, 0xffffffffu)", "vec2<u32>(127u, 0u)"),
                        DType::U8 => ("vec2<u32>(0u, 0u)", "vec2<u32>(255u, 0u)"),
                        DType::I32 => (
                            "vec2<u32>(0x80000000u, 0xffffffffu)",
                            "vec2<u32>(0x7fffffffu, 0u)",
                        ),
                        _ => ("vec2<u32>(0u, 0u)", "vec2<u32>(0xffffffffu, 0u)"),
                    };
                    format!("clamp_64(i64_of_f32(x), {lo}, {hi})")
                }
            };
            (t, Kind::Bits, Kind::Float)
        }
        (false, true) => {
            let v = wide("x", from);
            // 16-bit floats are rounded twice: to odd first, so that the second rounding is right.
            let odd = to != DType::F32;
            let signed = from != DType::U64;
            (
                format!("f32_of_64({v}, {signed}, {odd})"),
                Kind::Float,
                Kind::Bits,
            )
        }
        (false, false) => (wide("x", from), Kind::Bits, Kind::Bits),
    };
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, out, false)?;
    e.input("x", 1, &src, load)?;
    Ok(Prepared::of(vec![
        e.pass("cast", &format!("  let o_y = {text};"))?,
    ]))
}

/// `copy_strided`.
pub fn copy_strided(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 2..=2)?;
    flags(o, o.params::<op::NoParams>()?.flags, 0)?;
    let (dst, src) = (
        output_strided(o, 0, WHOLE_BYTES)?,
        input(o, 1, WHOLE_BYTES)?,
    );
    shape(o, 1, &src, &dst.shape)?;
    same_dtype(o, 1, &src, &dst)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    e.input("x", 1, &src, Kind::Bits)?;
    Ok(Prepared::of(vec![
        e.pass("copy_strided", "  let o_y = x;")?,
    ]))
}

/// The bits of a value in a dtype, rounded once; an integer must be exact.
fn bits_of(o: &OpRequest<'_>, t: DType, x: f64) -> Result<u64> {
    let int = |lo: f64, hi: f64| {
        if x.fract() != 0.0 || !(lo..=hi).contains(&x) {
            return invalid(o, format!("{x} is not a value of {}", t.name()));
        }
        Ok(())
    };
    Ok(match t {
        DType::F32 => u64::from((x as f32).to_bits()),
        DType::F64 => x.to_bits(),
        DType::Bf16 => u64::from(bf16::from_f64(x).to_bits()),
        DType::F16 => u64::from(f16::from_f64(x).to_bits()),
        DType::I8 => {
            int(-128.0, 127.0)?;
            u64::from(x as i8 as u8)
        }
        DType::U8 => {
            int(0.0, 255.0)?;
            x as u64
        }
        DType::I32 => {
            int(f64::from(i32::MIN), f64::from(i32::MAX))?;
            u64::from(x as i32 as u32)
        }
        DType::U32 => {
            int(0.0, f64::from(u32::MAX))?;
            x as u64
        }
        DType::I64 => {
            int(-9.223_372_036_854_776e18, 9.223_372_036_854_775e18)?;
            x as i64 as u64
        }
        DType::U64 => {
            int(0.0, 1.844_674_407_370_955e19)?;
            x as u64
        }
        _ => return refuse(o, format!("dtype {} is not supported", t.name())),
    })
}

/// `fill_strided`.
pub fn fill_strided(o: &OpRequest<'_>, f: &Facts) -> Answer {
    arity(o, 1..=1)?;
    let p = o.params::<op::FillParams>()?;
    flags(o, p.flags, 0)?;
    let dst = output_strided(o, 0, WHOLE_BYTES)?;
    let bits = bits_of(o, dst.dtype, p.value)?;
    let mut e = Elementwise::new(o, f, dst.total);
    e.output("y", 0, &dst, Kind::Bits, false)?;
    let (lo, hi) = (e.param(bits as u32), e.param((bits >> 32) as u32));
    let body = format!("  let o_y = vec2<u32>({lo}, {hi});");
    Ok(Prepared::of(vec![e.pass("fill_strided", &body)?]))
}

/// `iota`: on the host, because the sum is in f64.
pub fn iota(o: &OpRequest<'_>, _: &Facts) -> Answer {
    arity(o, 1..=1)?;
    let p = o.params::<op::IotaParams>()?;
    flags(o, p.flags, 0)?;
    let dst = output(o, 0, CASTS)?;
    let (t, n) = (dst.dtype, dst.total);
    Ok(Prepared {
        host: Some(Box::new(move |_| {
            let mut out = vec![];
            for i in 0..n {
                let v = p.start + p.step * i as f64;
                match t {
                    DType::I8 => out.push(v as i8 as u8),
                    DType::U8 => out.push(v as u8),
                    DType::I32 => out.extend((v as i32).to_le_bytes()),
                    DType::U32 => out.extend((v as u32).to_le_bytes()),
                    DType::I64 => out.extend((v as i64).to_le_bytes()),
                    DType::U64 => out.extend((v as u64).to_le_bytes()),
                    DType::F32 => out.extend((v as f32).to_le_bytes()),
                    DType::Bf16 => out.extend(bf16::from_f64(v).to_le_bytes()),
                    DType::F16 => out.extend(f16::from_f64(v).to_le_bytes()),
                    _ => return fail(Code::Internal, "iota: a dtype that prepare refuses"),
                }
            }
            Ok(out)
        })),
        ..Default::default()
    })
}
