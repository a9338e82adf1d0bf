//! Functions in WGSL text that every kernel may call by name: 16-bit conversions, elementary functions within 4 ulp, Philox.
//!
//! WGSL's own functions are only as good as the driver (`exp` may be wrong in the third digit, `erf` does not exist), so these are the CPU
//! back end's: Cephes polynomials without fused multiply-adds. Infinities and NaN are tested by their bits, because WGSL lets a compiler
//! assume that there are none.

/// What an adapter that rounds to nearest does itself.
pub const ROUNDING: &[(&str, &str)] = &[
    ("sqrt_f", "fn sqrt_f(x: f32) -> f32 { return sqrt(x); }"),
    ("div_f", "fn div_f(a: f32, b: f32) -> f32 { return a / b; }"),
];

/// The same from the adapter's guess, mended by the exact rest in integers: the true result in one rounding, subnormal numbers too.
pub const MENDED: &[(&str, &str)] = &[
    // A mantissa of 24 bits and the exponent of its last, plus 150, of what is neither 0 nor without bounds.
    (
        "parts_f",
        "fn parts_f(u: u32) -> vec2<u32> { let e = (u >> 23u) & 255u; let m = u & 0x7fffffu; \
         if e == 0u { let z = countLeadingZeros(m) - 8u; return vec2<u32>(m << z, 1u - z); } \
         return vec2<u32>(m | 0x800000u, e); }",
    ),
    // m 2^s is between 2^46 and 2^48, and its root has 24 bits.
    (
        "sqrt_f",
        "fn sqrt_f(x: f32) -> f32 { let u = bitcast<u32>(x); \
         if (u & 0x7fffffffu) == 0u || is_nan(x) || u == 0x7f800000u { return x; } if u > 0x80000000u { return nan_f(); } \
         let p = parts_f(u); let e = bitcast<i32>(p.y) - 150; let s = 23 + ((e + 151) & 1); \
         var y = u32(sqrt(f32(p.x) * select(8388608.0, 16777216.0, s == 24))); \
         var r = bitcast<i32>((p.x << u32(s)) - y * y); \
         for (var k = 0; k < 16 && r < 0; k++) { y = y - 1u; r = r + bitcast<i32>(2u * y + 1u); } \
         for (var k = 0; k < 16 && r > bitcast<i32>(2u * y); k++) { r = r - bitcast<i32>(2u * y + 1u); y = y + 1u; } \
         if r > bitcast<i32>(y) { y = y + 1u; } \
         let f = bitcast<u32>((e - s) / 2 + 150); return bitcast<f32>((f << 23u) + (y - 0x800000u)); }",
    ),
    // The quotient in 25 bits, of which the last decides with the rest how it is rounded.
    (
        "div_f",
        "fn div_f(a: f32, b: f32) -> f32 { let ua = bitcast<u32>(a); let ub = bitcast<u32>(b); let sign = (ua ^ ub) & 0x80000000u; \
         let xa = ua & 0x7fffffffu; let xb = ub & 0x7fffffffu; let inf = 0x7f800000u; \
         if xa > inf || xb > inf || (xa == inf && xb == inf) || (xa == 0u && xb == 0u) { return nan_f(); } \
         if xa == inf || xb == 0u { return bitcast<f32>(sign | inf); } if xb == inf || xa == 0u { return bitcast<f32>(sign); } \
         let pa = parts_f(xa); let pb = parts_f(xb); var m = pa.x; var f = bitcast<i32>(pa.y - pb.y) + 127; \
         if m < pb.x { m = m << 1u; f = f - 1; } let d = bitcast<i32>(pb.x); \
         var q = u32(f32(m) / f32(pb.x) * 16777216.0); var r = bitcast<i32>((m << 24u) - q * pb.x); \
         for (var k = 0; k < 16 && r < 0; k++) { q = q - 1u; r = r + d; } \
         for (var k = 0; k < 16 && r >= d; k++) { q = q + 1u; r = r - d; } \
         if f >= 255 { return bitcast<f32>(sign | inf); } if f < -24 { return bitcast<f32>(sign); } \
         let drop = u32(1 + max(1 - f, 0)); let half = 1u << (drop - 1u); let rest = q & (2u * half - 1u); var t = q >> drop; \
         if rest > half || (rest == half && (r != 0 || (t & 1u) != 0u)) { t = t + 1u; } \
         if f >= 1 { return bitcast<f32>(sign | ((bitcast<u32>(f) << 23u) + (t - 0x800000u))); } return bitcast<f32>(sign | t); }",
    ),
];

/// `(name, text)`.
pub const LIBRARY: &[(&str, &str)] = &[
    (
        "is_nan",
        "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }",
    ),
    (
        "nonfinite",
        "fn nonfinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u; }",
    ),
    // A value no compiler knows: literals of NaN and infinity are not allowed.
    (
        "nan_f",
        "fn nan_f() -> f32 { var b = 0x7fc00000u; return bitcast<f32>(b); }",
    ),
    (
        "inf_f",
        "fn inf_f() -> f32 { var b = 0x7f800000u; return bitcast<f32>(b); }",
    ),
    // NaN of either side comes through.
    (
        "max_nan",
        "fn max_nan(a: f32, b: f32) -> f32 { return select(b, a, a > b || is_nan(a)); }",
    ),
    (
        "min_nan",
        "fn min_nan(a: f32, b: f32) -> f32 { return select(b, a, a < b || is_nan(a)); }",
    ),
    (
        "f32_of_bf16",
        "fn f32_of_bf16(b: u32) -> f32 { return bitcast<f32>(b << 16u); }",
    ),
    (
        "bf16_of_f32",
        "fn bf16_of_f32(v: f32) -> u32 { let b = bitcast<u32>(v); \
         let r = (b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u; \
         return select(r, (b >> 16u) | 64u, (b & 0x7fffffffu) > 0x7f800000u); }",
    ),
    (
        "f32_of_f16",
        "fn f32_of_f16(h: u32) -> f32 { let s = (h & 0x8000u) << 16u; let m = h & 0x7fffu; \
         if m >= 0x7c00u { return bitcast<f32>(s | 0x7f800000u | ((m & 0x3ffu) << 13u)); } \
         if m < 0x400u { let t = f32(m) * 5.9604644775390625e-8; return bitcast<f32>(s | bitcast<u32>(t)); } \
         return bitcast<f32>(s | ((m << 13u) + 0x38000000u)); }",
    ),
    // Subnormal halves by adding 0.5, whose last place is theirs.
    (
        "f16_of_f32",
        "fn f16_of_f32(v: f32) -> u32 { let b = bitcast<u32>(v); let s = (b >> 16u) & 0x8000u; let m = b & 0x7fffffffu; \
         if m > 0x7f800000u { return s | 0x7e00u | ((m >> 13u) & 0x3ffu); } \
         if m >= 0x477ff000u { return s | 0x7c00u; } \
         if m < 0x38800000u { return s | (bitcast<u32>(bitcast<f32>(m) + 0.5) - 0x3f000000u); } \
         return s | ((m - 0x38000000u + 0xfffu + ((m >> 13u) & 1u)) >> 13u); }",
    ),
    (
        "pow2_i",
        "fn pow2_i(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }",
    ),
    (
        "exp_f",
        "fn exp_f(x: f32) -> f32 { if is_nan(x) { return x; } let c = clamp(x, -104.5, 89.0); \
         let n = floor(c * 1.44269504 + 0.5); let r = (c - n * 0.693359375) - n * -2.12194440e-4; \
         var p = 1.9875691500e-4; p = p * r + 1.3981999507e-3; p = p * r + 8.3334519073e-3; p = p * r + 4.1665795894e-2; \
         p = p * r + 1.6666665459e-1; p = p * r + 5.0000001201e-1; let y = p * (r * r) + r + 1.0; \
         let k = i32(n); let h = k >> 1u; return y * pow2_i(h) * pow2_i(k - h); }",
    ),
    (
        "log_f",
        "fn log_f(x: f32) -> f32 { let u = bitcast<u32>(x); \
         if (u & 0x7fffffffu) == 0u { return -inf_f(); } if u >= 0x7f800000u { \
         if u == 0x7f800000u || is_nan(x) { return x; } return nan_f(); } \
         var b = u; var e = 0.0; if u < 0x00800000u { let z = f32(u); b = bitcast<u32>(z); e = -149.0; } \
         let e0 = bitcast<i32>(b - 0x3f3504f3u) >> 23u; let m = bitcast<f32>(b - (bitcast<u32>(e0) << 23u)); e = e + f32(e0); \
         let z = m - 1.0; let z2 = z * z; var p = 7.0376836292e-2; p = p * z - 1.1514610310e-1; p = p * z + 1.1676998740e-1; \
         p = p * z - 1.2420140846e-1; p = p * z + 1.4249322787e-1; p = p * z - 1.6668057665e-1; p = p * z + 2.0000714765e-1; \
         p = p * z - 2.4999993993e-1; p = p * z + 3.3333331174e-1; let y = p * z * z2 + e * -2.12194440e-4 - 0.5 * z2; \
         return z + y + e * 0.693359375; }",
    ),
    (
        "tanh_f",
        "fn tanh_f(x: f32) -> f32 { if is_nan(x) { return x; } let a = abs(x); var y = 0.0; if a < 0.625 { let z = x * x; \
         var p = -5.70498872745e-3; p = p * z + 2.06390887954e-2; p = p * z - 5.37397155531e-2; p = p * z + 1.33314422036e-1; \
         p = p * z - 3.33332819422e-1; return p * z * x + x; } \
         let e = exp_f(-2.0 * min(a, 44.0)); y = 1.0 - 2.0 * e / (1.0 + e); \
         return select(y, -y, x < 0.0); }",
    ),
    (
        "sigmoid_f",
        "fn sigmoid_f(x: f32) -> f32 { let e = exp_f(-abs(x)); return select(1.0, e, x < 0.0) / (1.0 + e); }",
    ),
    (
        "erf_f",
        "fn erf_f(x: f32) -> f32 { if is_nan(x) { return x; } let a = abs(x); if a < 1.0 { let z = x * x; \
         var p = -9.667044e-6; p = p * z + 1.1265959e-4; p = p * z - 8.48408e-4; p = p * z + 5.221032e-3; \
         p = p * z - 2.686543e-2; p = p * z + 1.1283782e-1; p = p * z - 3.7612638e-1; p = p * z + 1.1283791670955126; return p * x; } \
         let c = min(a, 4.0); var q = 1.6371514e-6; q = q * c - 4.605804e-5; q = q * c + 5.9680563e-4; q = q * c - 4.759596e-3; \
         q = q * c + 2.6421136e-2; q = q * c - 1.10080083e-1; q = q * c - 6.3182606e-1; q = q * c - 1.1302334; \
         q = q * c + 3.2013806e-4; let y = 1.0 - exp_f(q); return select(y, -y, x < 0.0); }",
    ),
    (
        "rsqrt_f",
        "fn rsqrt_f(x: f32) -> f32 { return 1.0 / sqrt(x); }",
    ),
    (
        "mul_wide",
        "fn mul_wide(a: u32, b: u32) -> vec2<u32> { let al = a & 0xffffu; let ah = a >> 16u; let bl = b & 0xffffu; let bh = b >> 16u; \
         let ll = al * bl; let lh = al * bh; let hl = ah * bl; let mid = (ll >> 16u) + (lh & 0xffffu) + (hl & 0xffffu); \
         return vec2<u32>((ll & 0xffffu) | (mid << 16u), ah * bh + (lh >> 16u) + (hl >> 16u) + (mid >> 16u)); }",
    ),
    // 2/pi shifted right by two, word by word: what Payne and Hanek's reduction reads at the argument's exponent.
    (
        "two_over_pi",
        "fn two_over_pi(i: u32) -> u32 { switch i { case 0u: { return 0x28be60dbu; } case 1u: { return 0x9391054au; } \
         case 2u: { return 0x7f09d5f4u; } case 3u: { return 0x7d4d3770u; } case 4u: { return 0x36d8a566u; } \
         case 5u: { return 0x4f10e410u; } case 6u: { return 0x7f9458eau; } default: { return 0xf7aef158u; } } }",
    ),
    (
        "trig_f",
        "fn trig_f(x: f32, quarter: u32) -> f32 { if nonfinite(x) { return nan_f(); } var r = abs(x); var q = 0u; \
         if r > 0.7853981 { let b = bitcast<u32>(r); let m = (b << 8u) | 0x80000000u; let ex = (b >> 23u) - 126u; \
         let i = ex >> 5u; let e = ex & 31u; var hi = 0u; if i > 0u { hi = two_over_pi(i - 1u); } \
         var mid = two_over_pi(i); var lo = two_over_pi(i + 1u); let last = two_over_pi(i + 2u); \
         if e > 0u { hi = (hi << e) | (mid >> (32u - e)); mid = (mid << e) | (lo >> (32u - e)); lo = (lo << e) | (last >> (32u - e)); } \
         let a = mul_wide(m, lo); let c = mul_wide(m, mid); var l = c.x + a.y; \
         var h = c.y + m * hi + select(0u, 1u, l < c.x); q = h >> 30u; h = h & 0x3fffffffu; var less = false; \
         if (h & 0x20000000u) != 0u { q = q + 1u; less = true; h = 0x40000000u - h; if l != 0u { h = h - 1u; } l = 0u - l; } \
         let z = countLeadingZeros(h); var s = 0u; \
         if z >= 32u { h = l; l = 0u; s = 32u; } let z2 = countLeadingZeros(h); \
         if z2 > 0u && z2 < 32u { h = (h << z2) | (l >> (32u - z2)); l = l << z2; } s = s + z2; \
         let fh = f32(h >> 8u); let fl = f32(((h & 255u) << 16u) | (l >> 16u)) * 5.9604644775390625e-8; \
         r = (fh * 1.57079637 + (fh * -4.37113883e-8 + fl * 1.57079637)) * pow2_i(-22 - i32(s)); \
         if less { r = -r; } } \
         if x < 0.0 { r = -r; q = 0u - q; } q = q + quarter; \
         let w = r * r; var p = -1.9515295891e-4; p = p * w + 8.3321608736e-3; p = p * w - 1.6666654611e-1; \
         let sine = select(p * w * r + r, x, r == 0.0 && q == 0u); var c4 = 2.443315711809948e-5; c4 = c4 * w - 1.388731625493765e-3; \
         c4 = c4 * w + 4.166664568298827e-2; let cosine = c4 * (w * w) - 0.5 * w + 1.0; \
         let y = select(sine, cosine, (q & 1u) != 0u); return select(y, -y, (q & 2u) != 0u); }",
    ),
    ("sin_f", "fn sin_f(x: f32) -> f32 { return trig_f(x, 0u); }"),
    ("cos_f", "fn cos_f(x: f32) -> f32 { return trig_f(x, 1u); }"),
    // Philox4x32-10: the four words of a counter.
    (
        "philox4",
        "fn philox4(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> { var c = counter; var k = key; \
         for (var i = 0; i < 10; i++) { let p = mul_wide(c.x, 0xD2511F53u); let q = mul_wide(c.z, 0xCD9E8D57u); \
         c = vec4<u32>(q.y ^ c.y ^ k.x, q.x, p.y ^ c.w ^ k.y, p.x); k = k + vec2<u32>(0x9E3779B9u, 0xBB67AE85u); } return c; }",
    ),
    (
        "unit_f",
        "fn unit_f(word: u32) -> f32 { return f32(word >> 8u) * 5.9604644775390625e-8; }",
    ),
    // No compiler sees through it, so a product kept here is rounded before it is added to anything: the launch-time word is zero.
    (
        "keep",
        "fn keep(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ dyn_word(15u)); }",
    ),
    // The exact product's rest below `p = a * b`, by Dekker's split.
    (
        "rest_of_product",
        "fn rest_of_product(a: f32, b: f32, p: f32) -> f32 { let s = keep(a * 4097.0); let ah = s - keep(s - a); let al = a - ah; \
         let t = keep(b * 4097.0); let bh = t - keep(t - b); let bl = b - bh; \
         return ((keep(ah * bh) - p) + keep(ah * bl) + keep(al * bh)) + keep(al * bl); }",
    ),
    // a^b = e^(b ln a) with the logarithm in two floats: a single one would lose seven bits where the result is large.
    (
        "pow_f",
        "fn pow_f(a: f32, b: f32) -> f32 { if b == 0.0 || a == 1.0 { return 1.0; } if is_nan(a) || is_nan(b) { return nan_f(); } \
         let whole = abs(b) >= 16777216.0 || floor(b) == b; let odd = whole && abs(b) < 16777216.0 && (i32(b) & 1) != 0; \
         let minus = (bitcast<u32>(a) >> 31u) != 0u; let x = abs(a); \
         let big = (bitcast<u32>(b) & 0x7fffffffu) == 0x7f800000u; \
         if big { if x == 1.0 { return 1.0; } return select(0.0, inf_f(), (x > 1.0) == (b > 0.0)); } \
         if x == 0.0 { let z = select(0.0, inf_f(), b < 0.0); return select(z, -z, minus && odd); } \
         if bitcast<u32>(x) == 0x7f800000u { let z = select(inf_f(), 0.0, b < 0.0); return select(z, -z, minus && odd); } \
         if minus && !whole { return nan_f(); } \
         var u = bitcast<u32>(x); var e = 0.0; if u < 0x00800000u { u = bitcast<u32>(f32(u)); e = -149.0; } \
         let e0 = bitcast<i32>(u - 0x3f3504f3u) >> 23u; let m = bitcast<f32>(u - (bitcast<u32>(e0) << 23u)); e = e + f32(e0); \
         let d = m - 1.0; let n = m + 1.0; let nl = (m - (n - 1.0)); let q = d / n; let p = keep(q * n); \
         let ql = ((d - p) - rest_of_product(q, n, p) - keep(q * nl)) / n; \
         let z = q * q; var c = 0.2222222; c = c * z + 0.28571430; c = c * z + 0.4; c = c * z + 0.6666667; \
         let tail = 2.0 * ql + c * (z * q); let l1 = keep(e * 0.693145752); let l2 = e * 1.42860677e-6; \
         let s = l1 + 2.0 * q; let sl = select((l1 - s) + 2.0 * q, (2.0 * q - s) + l1, abs(2.0 * q) > abs(l1)); \
         let low = (sl + l2) + tail; let h = s + low; let hl = (s - h) + low; \
         let r = b * h; if r > 89.5 { let o = inf_f(); return select(o, -o, minus && odd); } if r < -105.0 { return select(0.0, -0.0, minus && odd); } \
         let y = keep(r); let yl = rest_of_product(b, h, y) + b * hl; let v = exp_f(y); \
         let w = v + keep(v * yl); let out = select(w, v, nonfinite(v)); return select(out, -out, minus && odd); }",
    ),
    (
        "sign_8",
        "fn sign_8(b: u32) -> vec2<u32> { let s = bitcast<i32>(b << 24u) >> 24u; return vec2<u32>(bitcast<u32>(s), bitcast<u32>(s >> 31u)); }",
    ),
    // 64-bit integers as (low, high).
    (
        "add_64",
        "fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { let l = a.x + b.x; return vec2<u32>(l, a.y + b.y + select(0u, 1u, l < a.x)); }",
    ),
    (
        "neg_64",
        "fn neg_64(a: vec2<u32>) -> vec2<u32> { return add_64(vec2<u32>(~a.x, ~a.y), vec2<u32>(1u, 0u)); }",
    ),
    (
        "sub_64",
        "fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x)); }",
    ),
    (
        "mul_64",
        "fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { let p = mul_wide(a.x, b.x); return vec2<u32>(p.x, p.y + a.x * b.y + a.y * b.x); }",
    ),
    (
        "less_64",
        "fn less_64(a: vec2<u32>, b: vec2<u32>) -> bool { if a.y == b.y { return a.x < b.x; } return bitcast<i32>(a.y) < bitcast<i32>(b.y); }",
    ),
    (
        "below_64",
        "fn below_64(a: vec2<u32>, b: vec2<u32>) -> bool { if a.y == b.y { return a.x < b.x; } return a.y < b.y; }",
    ),
    (
        "clamp_64",
        "fn clamp_64(a: vec2<u32>, lo: vec2<u32>, hi: vec2<u32>) -> vec2<u32> { let m = select(a, lo, less_64(a, lo)); return select(m, hi, less_64(hi, m)); }",
    ),
    (
        "div_64",
        "fn div_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if (b.x | b.y) == 0u { return vec2<u32>(); } \
         let minus = ((a.y ^ b.y) >> 31u) != 0u; var n = a; if (a.y >> 31u) != 0u { n = neg_64(a); } var d = b; if (b.y >> 31u) != 0u { d = neg_64(b); } \
         var q = vec2<u32>(); var r = vec2<u32>(); for (var i = 0; i < 64; i++) { let over = r.y >> 31u; \
         r = vec2<u32>((r.x << 1u) | (n.y >> 31u), (r.y << 1u) | (r.x >> 31u)); n = vec2<u32>(n.x << 1u, (n.y << 1u) | (n.x >> 31u)); \
         q = vec2<u32>(q.x << 1u, (q.y << 1u) | (q.x >> 31u)); if over != 0u || !below_64(r, d) { r = sub_64(r, d); q.x = q.x | 1u; } } \
         if minus { return neg_64(q); } return q; }",
    ),
    (
        "pow_64",
        "fn pow_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { if all(a == vec2<u32>(1u, 0u)) { return a; } \
         if all(a == vec2<u32>(0xffffffffu, 0xffffffffu)) { if (b.x & 1u) == 0u { return vec2<u32>(1u, 0u); } return a; } \
         if (b.y >> 31u) != 0u { return vec2<u32>(); } var r = vec2<u32>(1u, 0u); var s = a; var e = b; \
         for (var i = 0; i < 64; i++) { if (e.x | e.y) == 0u { break; } if (e.x & 1u) != 0u { r = mul_64(r, s); } s = mul_64(s, s); \
         e = vec2<u32>((e.x >> 1u) | (e.y << 31u), e.y >> 1u); } return r; }",
    ),
    (
        "shifted_64",
        "fn shifted_64(m: u32, e: i32) -> vec2<u32> { if e <= -32 { return vec2<u32>(); } if e < 0 { return vec2<u32>(m >> u32(-e), 0u); } \
         if e == 0 { return vec2<u32>(m, 0u); } if e < 32 { return vec2<u32>(m << u32(e), m >> u32(32 - e)); } \
         if e < 64 { return vec2<u32>(0u, m << u32(e - 32)); } return vec2<u32>(); }",
    ),
    (
        "i64_of_f32",
        "fn i64_of_f32(x: f32) -> vec2<u32> { if is_nan(x) { return vec2<u32>(); } let b = bitcast<u32>(x); let minus = (b >> 31u) != 0u; \
         let e = i32((b >> 23u) & 255u) - 150; if e >= 40 { if minus { return vec2<u32>(0u, 0x80000000u); } return vec2<u32>(0xffffffffu, 0x7fffffffu); } \
         let v = shifted_64((b & 0x7fffffu) | 0x800000u, e); if minus { return neg_64(v); } return v; }",
    ),
    (
        "u64_of_f32",
        "fn u64_of_f32(x: f32) -> vec2<u32> { let b = bitcast<u32>(x); if is_nan(x) || (b >> 31u) != 0u { return vec2<u32>(); } \
         let e = i32((b >> 23u) & 255u) - 150; if e >= 41 { return vec2<u32>(0xffffffffu, 0xffffffffu); } return shifted_64((b & 0x7fffffu) | 0x800000u, e); }",
    ),
    (
        "f32_of_64",
        "fn f32_of_64(v: vec2<u32>, signed: bool, odd: bool) -> f32 { if (v.x | v.y) == 0u { return 0.0; } let minus = signed && (v.y >> 31u) != 0u; \
         var a = v; if minus { a = neg_64(v); } var z = 0u; if a.y == 0u { a = vec2<u32>(0u, a.x); z = 32u; } \
         let s = countLeadingZeros(a.y); if s > 0u { a = vec2<u32>(a.x << s, (a.y << s) | (a.x >> (32u - s))); } z = z + s; \
         var m = a.y >> 8u; let rest = a.y & 255u; let sticky = a.x != 0u; \
         if odd { if rest != 0u || sticky { m = m | 1u; } } else if rest > 128u || (rest == 128u && (sticky || (m & 1u) != 0u)) { m = m + 1u; } \
         let f = f32(m) * pow2_i(40 - i32(z)); return select(f, -f, minus); }",
    ),
    // Adding to a sum of two floats what one would lose (Neumaier).
    (
        "sum_in",
        "fn sum_in(s: vec2<f32>, x: f32) -> vec2<f32> { let t = keep(s.x + x); \
         var c = 0.0; if abs(s.x) >= abs(x) { c = keep(s.x - t) + x; } else { c = keep(x - t) + s.x; } \
         if nonfinite(t) { c = 0.0; } return vec2<f32>(t, s.y + c); }",
    ),
    // One rounding, whether or not the adapter has it: the product's rest is added to the sum's.
    (
        "fma_f",
        "fn fma_f(a: f32, b: f32, c: f32) -> f32 { let p = keep(a * b); let r = rest_of_product(a, b, p); let s = keep(p + c); \
         if nonfinite(p) || nonfinite(r) || nonfinite(s) { return s; } \
         let d = keep(s - p); let t = keep(p - keep(s - d)) + keep(c - d); return s + (t + r); }",
    ),
];
