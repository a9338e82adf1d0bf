//! Two blocks of bytes held against each other: bit for bit, or as f32 within a tolerance.

/// How bytes that come back are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compare {
    /// Every bit.
    Bits,
    /// As f32, with this relative tolerance (to the larger of both, and to 1e-6 of the largest of the block).
    Relative(f64),
}

/// Where two blocks differ, in words.
pub(crate) fn differs(want: &[u8], got: &[u8], how: Compare) -> Option<String> {
    if want == got {
        return None;
    }
    if want.len() != got.len() {
        return Some(format!("{} bytes were recorded", want.len()));
    }
    let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let words = want.len().is_multiple_of(4);
    let tolerance = match how {
        Compare::Relative(r) if words => r,
        _ => {
            let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(0);
            let n = want.iter().zip(got).filter(|(a, b)| a != b).count();
            let as_f32 = match words {
                true => {
                    let i = at / 4 * 4;
                    format!(
                        " (as f32 {:e} then, {:e} now)",
                        word(&want[i..]),
                        word(&got[i..])
                    )
                }
                false => String::new(),
            };
            return Some(format!(
                "{n} of {} bytes differ, the first at {at}{as_f32}",
                want.len()
            ));
        }
    };
    let largest = want
        .chunks_exact(4)
        .map(word)
        .filter(|x| x.is_finite())
        .fold(0.0f32, |m, x| m.max(x.abs()));
    let mut worst: Option<(usize, f64)> = None;
    for (i, (a, b)) in want.chunks_exact(4).zip(got.chunks_exact(4)).enumerate() {
        let (x, y) = (f64::from(word(a)), f64::from(word(b)));
        if a == b || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let allowed = tolerance * x.abs().max(y.abs()).max(f64::from(largest) * 1e-6);
        let error = (x - y).abs();
        if (error.is_nan() || error > allowed)
            && worst.is_none_or(|w| error > w.1 || error.is_nan())
        {
            worst = Some((i, error));
        }
    }
    worst.map(|(i, error)| {
        let (x, y) = (word(&want[i * 4..]), word(&got[i * 4..]));
        format!("word {i} is {y:e}, was {x:e}: off by {error:e}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_compared_bitwise_or_by_tolerance() {
        let b = |v: &[f32]| -> Vec<u8> { v.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let (x, y) = (b(&[1.0, 100.0, 0.0]), b(&[1.0, 100.001, 5e-6]));
        assert!(differs(&x, &x, Compare::Bits).is_none());
        let why = differs(&x, &y, Compare::Bits).unwrap();
        assert!(
            why.contains("the first at 4") || why.contains("the first at 5"),
            "{why}"
        );
        // 5e-6 beside 100 is nothing at 1e-1 of a millionth of the largest, and something at less.
        assert!(differs(&x, &y, Compare::Relative(1e-1)).is_none());
        assert!(differs(&x, &y, Compare::Relative(1e-6)).is_some());
        let nan = b(&[f32::NAN, 100.0, 0.0]);
        assert!(
            differs(&x, &nan, Compare::Relative(1.0))
                .unwrap()
                .contains("word 0")
        );
        assert!(
            differs(&x, &x[..4], Compare::Bits)
                .unwrap()
                .contains("12 bytes")
        );
    }
}
