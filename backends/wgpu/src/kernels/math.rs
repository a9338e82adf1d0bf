//! Functions in WGSL text that the hot loops of the kernels share; the library's ([`crate::math`]) answer for every argument and branch more.

/// `exp_neg(x)`: e^x for x up to 88, within two ulp, 0 below -87; no branch. `gate(x)`: the logistic function and its derivative, accurate in
/// both tails.
pub const MATH: &str = "
fn exp_neg(x: f32) -> f32 {
  let n = floor(clamp(x, -88.0, 88.0) * 1.44269504 + 0.5);
  let r = (x - n * 0.693359375) + n * 2.12194440e-4;
  var p = 1.9875691500e-4;
  p = p * r + 1.3981999507e-3;
  p = p * r + 8.3334519073e-3;
  p = p * r + 4.1665795894e-2;
  p = p * r + 1.6666665459e-1;
  p = p * r + 5.0000001201e-1;
  let y = (p * (r * r) + r + 1.0) * bitcast<f32>(u32(i32(n) + 127) << 23u);
  return select(y, 0.0, x < -87.0);
}
fn gate(x: f32) -> vec2<f32> {
  let e = exp_neg(-abs(x));
  let q = 1.0 / (1.0 + e);
  return vec2<f32>(select(q, e * q, x < 0.0), e * q * q);
}
";
