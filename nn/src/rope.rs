//! Rotary angles, with the scalings of Llama checkpoints (huggingface/transformers `modeling_rope_utils.py`).

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How positions beyond the original length are handled.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum RopeScaling {
    /// Plain.
    #[default]
    None,
    /// Positions divided by `factor`.
    Linear { factor: f64 },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: f64,
    },
}

/// Angle per position of each pair of elements.
pub fn frequencies(dim: u64, theta: f64, scaling: RopeScaling) -> Vec<f64> {
    let plain = (0..dim / 2).map(|i| theta.powf(-(2.0 * i as f64) / dim as f64));
    match scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor).collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => plain
            .map(|f| {
                let wavelength = 2.0 * std::f64::consts::PI / f;
                let turns = original_max_position_embeddings / wavelength;
                if turns < low_freq_factor {
                    f / factor
                } else if turns > high_freq_factor {
                    f
                } else {
                    let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            })
            .collect(),
    }
}

/// `cos` and `sin` tables `[positions, dim / 2]`, row-major.
pub fn tables(
    dim: u64,
    theta: f64,
    scaling: RopeScaling,
    positions: u64,
) -> (Arc<[f32]>, Arc<[f32]>) {
    let f = frequencies(dim, theta, scaling);
    let angle = |fun: fn(f64) -> f64| {
        (0..positions)
            .flat_map(|p| f.iter().map(move |f| fun(p as f64 * f) as f32))
            .collect()
    };
    (angle(f64::cos), angle(f64::sin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_fast_pairs_and_slows_the_slowest() {
        let s = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let (a, b) = (
            frequencies(128, 5e5, RopeScaling::None),
            frequencies(128, 5e5, s),
        );
        assert_eq!(a[0], b[0]);
        assert!((b[63] - a[63] / 8.0).abs() < 1e-18);
        assert!(a.iter().zip(&b).all(|(a, b)| b <= a && *b >= a / 8.0));
    }
}
