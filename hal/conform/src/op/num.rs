//! Elements of every dtype as bits and as numbers: decoding is exact, encoding rounds once to nearest even, overflow by the dtype's own rule.

use crossweave_abi::DType;

/// The last bit of f32's significand, halved: the relative error of one rounding.
pub const U: f64 = 1.0 / 16_777_216.0;
/// The least normal f32.
pub const MIN_NORMAL: f64 = f32::MIN_POSITIVE as f64;

/// What lies beyond a float format's largest finite number.
#[derive(Clone, Copy, PartialEq)]
enum Top {
    /// Infinities, then NaNs (IEEE).
    Ieee,
    /// One NaN code a sign and no infinity (OCP E4M3): what overflows is NaN.
    NoInf,
    /// No infinity, one NaN where -0 would be (FNUZ): what overflows is NaN.
    Fnuz,
}

/// A binary float format of up to 16 bits.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    mantissa: u32,
    bias: i32,
    top: Top,
}

fn format(t: DType) -> Option<Format> {
    let f = |exponent, mantissa, bias, top| {
        Some(Format {
            exponent,
            mantissa,
            bias,
            top,
        })
    };
    match t {
        DType::F16 => f(5, 10, 15, Top::Ieee),
        DType::Bf16 => f(8, 7, 127, Top::Ieee),
        DType::F8E4M3 => f(4, 3, 7, Top::NoInf),
        DType::F8E5M2 => f(5, 2, 15, Top::Ieee),
        DType::F8E4M3Fnuz => f(4, 3, 8, Top::Fnuz),
        DType::F8E5M2Fnuz => f(5, 2, 16, Top::Fnuz),
        _ => None,
    }
}

/// Bytes of an element; dtypes of less than a byte have no addressable elements.
pub fn size(t: DType) -> usize {
    (t.bits() as usize).div_ceil(8)
}

/// A float dtype that numbers can be put into?
pub fn is_float(t: DType) -> bool {
    matches!(t, DType::F32 | DType::F64) || format(t).is_some()
}

/// Mantissa bits and least normal exponent of a float dtype.
fn shape(t: DType) -> (i32, i32) {
    match t {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        t => format(t).map_or((23, -126), |f| (f.mantissa as i32, 1 - f.bias)),
    }
}

/// 2 to the power `e`: the bits of it where it is a normal number, since numbers are taken apart and put together by the million.
#[inline]
fn two_to(e: i32) -> f64 {
    match e {
        -1022..=1023 => f64::from_bits(((e + 1023) as u64) << 52),
        -1074..=-1023 => f64::from_bits(1 << (e + 1074)),
        _ => 2f64.powi(e),
    }
}

/// The distance between neighbours of a float dtype at `v`.
pub fn ulp(t: DType, v: f64) -> f64 {
    let (mantissa, least) = shape(t);
    let e = if v == 0.0 || !v.is_finite() {
        least
    } else {
        exponent(v.abs()).max(least)
    };
    two_to(e - mantissa)
}

/// The largest finite number of a float dtype.
pub fn largest(t: DType) -> f64 {
    match t {
        DType::F64 => f64::MAX,
        DType::F32 => f32::MAX as f64,
        t => format(t).map_or(f64::MAX, |f| value(f, finite_codes(f) - 1)),
    }
}

/// Floor of the base-2 logarithm of a positive finite number.
fn exponent(a: f64) -> i32 {
    if a < f64::MIN_POSITIVE {
        return exponent(a * two_to(64)) - 64;
    }
    ((a.to_bits() >> 52) as i32) - 1023
}

/// Codes (without sign) of finite numbers.
fn finite_codes(f: Format) -> u64 {
    let all = 1u64 << (f.exponent + f.mantissa);
    match f.top {
        Top::Ieee => all - (1 << f.mantissa),
        Top::NoInf => all - 1,
        Top::Fnuz => all,
    }
}

/// The number of a code without sign that is finite.
fn value(f: Format, code: u64) -> f64 {
    let (e, m) = (
        (code >> f.mantissa) as i32,
        (code & ((1 << f.mantissa) - 1)) as f64,
    );
    let scale = two_to(e.max(1) - f.bias - f.mantissa as i32);
    let implied = if e > 0 {
        (1u64 << f.mantissa) as f64
    } else {
        0.0
    };
    (implied + m) * scale
}

/// The number an element holds (64-bit integers beyond 2^53 are rounded: see [`int_of`]).
pub fn decode(t: DType, bits: u64) -> f64 {
    match t {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f32::from_bits(bits as u32) as f64,
        DType::F8E8M0 => {
            if bits as u8 == 255 {
                f64::NAN
            } else {
                two_to(bits as i32 - 127)
            }
        }
        t => match format(t) {
            None => int_of(t, bits) as f64,
            Some(f) => {
                let sign = bits >> (f.exponent + f.mantissa) & 1 == 1;
                let code = bits & ((1 << (f.exponent + f.mantissa)) - 1);
                let a = if f.top == Top::Fnuz && sign && code == 0 {
                    return f64::NAN;
                } else if code < finite_codes(f) {
                    value(f, code)
                } else if f.top == Top::Ieee && code == finite_codes(f) {
                    f64::INFINITY
                } else {
                    f64::NAN
                };
                if sign { -a } else { a }
            }
        },
    }
}

/// The bits of a number: floats round to nearest even; integers truncate and saturate, NaN gives 0.
pub fn encode(t: DType, v: f64) -> u64 {
    match t {
        DType::F64 => v.to_bits(),
        DType::F32 => (v as f32).to_bits() as u64,
        DType::I8 => v as i8 as u8 as u64,
        DType::U8 => v as u8 as u64,
        DType::I32 => v as i32 as u32 as u64,
        DType::U32 => v as u32 as u64,
        DType::I64 => v as i64 as u64,
        DType::U64 => v as u64,
        t => format(t).map_or(0, |f| narrow(f, v)),
    }
}

fn narrow(f: Format, v: f64) -> u64 {
    let width = f.exponent + f.mantissa;
    let fnuz = f.top == Top::Fnuz;
    let nan = match f.top {
        Top::Ieee => finite_codes(f) | 1 << (f.mantissa - 1),
        Top::NoInf => finite_codes(f),
        Top::Fnuz => 1 << width,
    };
    if v.is_nan() {
        return nan;
    }
    let sign = u64::from(v.is_sign_negative()) << width;
    let least = 1 - f.bias;
    let e = if v == 0.0 || v.is_infinite() {
        least
    } else {
        exponent(v.abs()).max(least)
    };
    let q = (v.abs() / two_to(e - f.mantissa as i32)).round_ties_even();
    let code = if v.is_infinite() {
        u64::MAX >> 1
    } else {
        (((e - least) as u64) << f.mantissa) + q as u64
    };
    if code >= finite_codes(f) {
        return match f.top {
            Top::Ieee => sign | finite_codes(f),
            Top::NoInf => sign | nan,
            Top::Fnuz => nan,
        };
    }
    // There is no negative zero beside the NaN of FNUZ.
    if fnuz && code == 0 { 0 } else { sign | code }
}

/// The integer an element of an integer dtype holds.
pub fn int_of(t: DType, bits: u64) -> i128 {
    match t {
        DType::I8 => bits as i8 as i128,
        DType::U8 => bits as u8 as i128,
        DType::I32 => bits as i32 as i128,
        DType::U32 => bits as u32 as i128,
        DType::I64 => bits as i64 as i128,
        _ => bits as i128,
    }
}

/// The bits of an integer, wrapped into the dtype.
pub fn int_bits(t: DType, v: i128) -> u64 {
    let width = size(t) * 8;
    (v as u64) & (u64::MAX >> (64 - width))
}

/// Rounds to a storage dtype and back.
pub fn through(t: DType, v: f64) -> f64 {
    decode(t, encode(t, v))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [DType; 6] = [
        DType::F16,
        DType::Bf16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E4M3Fnuz,
        DType::F8E5M2Fnuz,
    ];

    #[test]
    fn every_code_of_every_small_float_comes_back() {
        for t in SMALL {
            for bits in 0..1u64 << t.bits() {
                let v = decode(t, bits);
                let back = encode(t, v);
                assert!(
                    v.is_nan() && decode(t, back).is_nan() || back == bits,
                    "{t:?} {bits:#x} = {v} came back as {back:#x}"
                );
            }
        }
    }

    #[test]
    fn rounding_is_to_the_nearest_and_ties_go_to_even() {
        for t in SMALL {
            // Neighbouring finite codes of one sign are neighbouring numbers.
            for bits in 0..(1u64 << (t.bits() - 1)) - 1 {
                let (a, b) = (decode(t, bits), decode(t, bits + 1));
                if !a.is_finite() || !b.is_finite() {
                    continue;
                }
                let mid = (a + b) / 2.0;
                let even = if bits % 2 == 0 { bits } else { bits + 1 };
                assert_eq!(encode(t, mid), even, "{t:?}: tie at {mid}");
                assert_eq!(encode(t, mid - (b - a) / 64.0), bits, "{t:?} below {mid}");
                assert_eq!(
                    encode(t, mid + (b - a) / 64.0),
                    bits + 1,
                    "{t:?} above {mid}"
                );
                assert_eq!(ulp(t, a), b - a, "{t:?}: the step at {a}");
            }
        }
    }

    #[test]
    fn powers_of_two_are_put_together_by_their_bits() {
        // By itself `powi` divides by infinity below the normal numbers.
        for e in -1074..=1023 {
            let half = e / 2;
            assert_eq!(two_to(e), 2f64.powi(half) * 2f64.powi(e - half), "2^{e}");
        }
        assert_eq!(ulp(DType::F64, 0.0), f64::from_bits(1));
    }

    #[test]
    fn known_numbers_and_what_overflows() {
        for (t, bits, v) in [
            (DType::F16, 0x3c00, 1.0),
            (DType::F16, 0x0001, 2f64.powi(-24)),
            (DType::F16, 0x7bff, 65504.0),
            (DType::Bf16, 0x3f80, 1.0),
            (DType::F8E4M3, 0x7e, 448.0),
            (DType::F8E4M3, 0x38, 1.0),
            (DType::F8E4M3Fnuz, 0x38, 0.5),
            (DType::F8E4M3Fnuz, 0x7f, 240.0),
            (DType::F8E5M2, 0x7b, 57344.0),
            (DType::F8E5M2Fnuz, 0x7f, 57344.0),
        ] {
            assert_eq!(decode(t, bits), v, "{t:?} {bits:#x}");
            assert_eq!(encode(t, v), bits, "{t:?} {v}");
        }
        assert_eq!(encode(DType::F16, 65520.0), 0x7c00);
        assert_eq!(encode(DType::F16, 65519.0), 0x7bff);
        assert!(decode(DType::F8E4M3, encode(DType::F8E4M3, 1e9)).is_nan());
        assert_eq!(decode(DType::F8E4M3, encode(DType::F8E4M3, 464.0)), 448.0);
        assert_eq!(encode(DType::F8E4M3Fnuz, -1e9), 0x80);
        assert_eq!(encode(DType::F8E4M3Fnuz, -0.0), 0);
        assert_eq!(largest(DType::F8E4M3), 448.0);
        assert_eq!(largest(DType::F16), 65504.0);
        assert_eq!(int_of(DType::I8, 0xff), -1);
        assert_eq!(int_bits(DType::I32, -1), 0xffff_ffff);
        assert_eq!(int_bits(DType::I64, -1), u64::MAX);
    }
}
