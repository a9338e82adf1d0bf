//! Elements as numbers, for every type a sum can have a meaning in.

use crossweave_abi::DType;
use half::{bf16, f16};

/// Does a reduction over this type have a meaning the kit knows?
pub fn reducible(t: DType) -> bool {
    !matches!(t, DType::F4E2M1 | DType::F8E8M0)
}

/// The unit roundoff of a float type; 0 for integers.
pub fn unit(t: DType) -> f64 {
    match t {
        DType::F64 => 2f64.powi(-53),
        DType::F32 => 2f64.powi(-24),
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
        DType::F8E4M3 | DType::F8E4M3Fnuz => 2f64.powi(-4),
        DType::F8E5M2 | DType::F8E5M2Fnuz => 2f64.powi(-3),
        _ => 0.0,
    }
}

/// Are negative numbers there?
pub fn signed(t: DType) -> bool {
    !matches!(t, DType::U8 | DType::U32 | DType::U64)
}

/// Exponent bits, mantissa bits, bias, and whether there is no negative zero (its code is the only NaN).
fn small_float(t: DType) -> Option<(u32, u32, i32, bool)> {
    match t {
        DType::F8E4M3 => Some((4, 3, 7, false)),
        DType::F8E5M2 => Some((5, 2, 15, false)),
        DType::F8E4M3Fnuz => Some((4, 3, 8, true)),
        DType::F8E5M2Fnuz => Some((5, 2, 16, true)),
        _ => None,
    }
}

fn small_value(code: u8, (e, m, bias, unsigned_zero): (u32, u32, i32, bool)) -> f64 {
    if unsigned_zero && code == 0x80 {
        return f64::NAN;
    }
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let exp = i32::from(code >> m) & ((1 << e) - 1);
    let mant = f64::from(code & ((1 << m) - 1)) / f64::from(1u32 << m);
    if !unsigned_zero && e == 5 && exp == 31 {
        return if mant == 0.0 {
            sign * f64::INFINITY
        } else {
            f64::NAN
        };
    }
    if !unsigned_zero && e == 4 && code & 0x7F == 0x7F {
        return f64::NAN;
    }
    match exp {
        0 => sign * mant * 2f64.powi(1 - bias),
        _ => sign * (1.0 + mant) * 2f64.powi(exp - bias),
    }
}

/// Appends one element: the nearest there is (numbers the kit uses are exact).
pub fn put(out: &mut Vec<u8>, t: DType, x: f64) {
    match t {
        DType::F64 => out.extend(x.to_le_bytes()),
        DType::F32 => out.extend((x as f32).to_le_bytes()),
        DType::F16 => out.extend(f16::from_f64(x).to_le_bytes()),
        DType::Bf16 => out.extend(bf16::from_f64(x).to_le_bytes()),
        DType::I8 => out.extend((x as i8).to_le_bytes()),
        DType::U8 => out.extend((x as u8).to_le_bytes()),
        DType::I32 => out.extend((x as i32).to_le_bytes()),
        DType::U32 => out.extend((x as u32).to_le_bytes()),
        DType::I64 => out.extend((x as i64).to_le_bytes()),
        DType::U64 => out.extend((x as u64).to_le_bytes()),
        t => {
            let code = small_float(t).and_then(|f| {
                let near = |c: &u8| (small_value(*c, f) - x).abs();
                let codes = (0..=255u8).filter(|c| small_value(*c, f).is_finite());
                codes.min_by(|a, b| near(a).total_cmp(&near(b)))
            });
            out.push(code.unwrap_or(0));
        }
    }
}

/// Reads element `i`.
pub fn get(bytes: &[u8], t: DType, i: usize) -> f64 {
    let n = t.bytes(1) as usize;
    let mut w = [0u8; 8];
    w[..n].copy_from_slice(&bytes[i * n..(i + 1) * n]);
    let word = u64::from_le_bytes(w);
    match t {
        DType::F64 => f64::from_bits(word),
        DType::F32 => f64::from(f32::from_bits(word as u32)),
        DType::F16 => f16::from_bits(word as u16).to_f64(),
        DType::Bf16 => bf16::from_bits(word as u16).to_f64(),
        DType::I8 => f64::from(word as u8 as i8),
        DType::U8 => f64::from(word as u8),
        DType::I32 => f64::from(word as u32 as i32),
        DType::U32 => f64::from(word as u32),
        DType::I64 => word as i64 as f64,
        DType::U64 => word as f64,
        t => small_float(t).map_or(f64::NAN, |f| small_value(word as u8, f)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_integers_survive_in_every_type() {
        for t in DType::ALL.into_iter().filter(|t| reducible(*t)) {
            for x in [0.0, 1.0, 2.0, 3.0, 4.0, 8.0] {
                for x in [x, -x] {
                    if x < 0.0 && !signed(t) {
                        continue;
                    }
                    let mut b = vec![];
                    put(&mut b, t, x);
                    assert_eq!(get(&b, t, 0), x, "{}", t.name());
                }
            }
        }
        // One is another code where the bias differs.
        let mut b = vec![];
        put(&mut b, DType::F8E4M3, 1.0);
        put(&mut b, DType::F8E4M3Fnuz, 1.0);
        assert_eq!(b, [0x38, 0x40]);
    }
}
