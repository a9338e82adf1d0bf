//! What the host computes for the device, to the bit: random numbers, of which the operators have other ones, and counted numbers, which are
//! computed in f64, which the device has not.

use crate::plan::Make;
use crossweave_abi::op;
use crossweave_plugin::DType;

/// `start + step * i`, rounded once.
pub(crate) fn iota(dtype: Option<DType>, start: f64, step: f64) -> Option<Make> {
    let put: fn(f64) -> [u8; 4] = match dtype? {
        DType::F32 => |v| (v as f32).to_ne_bytes(),
        DType::I32 => |v| (v as i32).to_ne_bytes(),
        _ => return None,
    };
    Some(Box::new(move |out, _| {
        for (i, w) in out.chunks_exact_mut(4).enumerate() {
            w.copy_from_slice(&put(start + step * i as f64));
        }
        Ok(())
    }))
}

/// The four words of a counter under a key: Philox4x32-10 by the op table's text.
fn words(mut counter: [u32; 4], seed: u64) -> [u32; 4] {
    const FACTORS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let [a, b] = [0, 1].map(|i| u64::from(counter[2 * i]) * FACTORS[i]);
        let high = [(b >> 32) as u32, (a >> 32) as u32];
        counter = [
            high[0] ^ counter[1] ^ key[0],
            b as u32,
            high[1] ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [0, 1].map(|i| key[i].wrapping_add(STEPS[i]));
    }
    counter
}

/// Two numbers of a normal distribution from two words, in f64 and rounded once.
fn normal(a: u32, b: u32) -> [f32; 2] {
    let unit = |w: u32| f64::from(w) * 2f64.powi(-24);
    let r = (-2.0 * unit((a >> 8) + 1).ln()).sqrt();
    let (sin, cos) = (2.0 * std::f64::consts::PI * unit(b >> 8)).sin_cos();
    [(r * cos) as f32, (r * sin) as f32]
}

/// `philox`.
pub(crate) fn philox(dtype: Option<DType>, p: &op::PhiloxParams) -> Option<Make> {
    let (kind, lo, hi) = (p.kind, p.lo as f32, p.hi as f32);
    let wanted = match kind {
        op::philox::BITS => DType::U32,
        _ => DType::F32,
    };
    if dtype != Some(wanted) {
        return None;
    }
    Some(Box::new(move |out, dynamic| {
        let d = dynamic.read::<op::PhiloxDyn>()?;
        for (i, four) in out.chunks_mut(16).enumerate() {
            let c = d.offset.wrapping_add(i as u64);
            let counter = [c, c >> 32, d.stream, d.stream >> 32].map(|w| w as u32);
            let w = words(counter, d.seed);
            let bits = match kind {
                op::philox::BITS => w,
                op::philox::UNIFORM => {
                    w.map(|w| (lo + (hi - lo) * ((w >> 8) as f32 * 2f32.powi(-24))).to_bits())
                }
                _ => {
                    let ([a, b], [c, d]) = (normal(w[0], w[1]), normal(w[2], w[3]));
                    [a, b, c, d].map(|z| (lo + hi * z).to_bits())
                }
            };
            for (word, b) in four.chunks_exact_mut(4).zip(bits) {
                word.copy_from_slice(&b.to_ne_bytes());
            }
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Random123's `kat_vectors`.
    #[test]
    fn words_are_those_of_the_published_vectors() {
        assert_eq!(
            words([0; 4], 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            words([u32::MAX; 4], u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }
}
