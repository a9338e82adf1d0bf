//! Element types as files spell them, their twins in the plugin ABI, and widening to f32.

use crossweave_abi::DType;
use half::{bf16, f16};
pub use safetensors::Dtype;

/// The file's spelling of an ABI element type (`None`: safetensors has no such type).
pub fn file_dtype(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::I64 => Dtype::I64,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        DType::F8E4M3Fnuz => Dtype::F8_E4M3FNUZ,
        DType::F8E5M2Fnuz => Dtype::F8_E5M2FNUZ,
        DType::F4E2M1 => Dtype::F4,
        DType::F8E8M0 => Dtype::F8_E8M0,
        _ => return None,
    })
}

/// The ABI's element type of a file's spelling (`None`: the ABI has no such type, as for `BOOL`).
pub fn abi_dtype(dtype: Dtype) -> Option<DType> {
    DType::ALL
        .into_iter()
        .find(|&d| file_dtype(d) == Some(dtype))
}

/// Reads `F32`, `BF16`, … as safetensors headers spell them.
pub fn parse_dtype(text: &str) -> Option<Dtype> {
    serde_json::from_value(serde_json::Value::String(text.to_string())).ok()
}

/// Can [`widen_to_f32`] read this type?
pub fn is_readable_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::BF16)
}

/// Elements of a shape, `None` where the product overflows.
pub fn num_elements(shape: &[usize]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
}

/// Bytes of `n` elements, `None` on overflow or where they do not fill whole bytes.
pub fn num_bytes(dtype: Dtype, n: u64) -> Option<u64> {
    let bits = n.checked_mul(dtype.bitsize() as u64)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Appends little-endian elements of `dtype` to `out` as f32 (F64 is rounded to nearest). `false` when the type is not
/// a float this function reads; a trailing fragment of an element is ignored.
pub fn widen_to_f32(dtype: Dtype, bytes: &[u8], out: &mut Vec<f32>) -> bool {
    match dtype {
        Dtype::F32 => out.extend(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
        Dtype::F64 => out.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f64::from_le_bytes(b) as f32),
        ),
        Dtype::F16 => out.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f16::from_le_bytes(b).to_f32()),
        ),
        Dtype::BF16 => out.extend(
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| bf16::from_le_bytes(b).to_f32()),
        ),
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_abi_type_has_a_file_spelling_and_comes_back() {
        for d in DType::ALL {
            let f = file_dtype(d).unwrap_or_else(|| panic!("{} has no file type", d.name()));
            assert_eq!(abi_dtype(f), Some(d));
            assert_eq!(f.bitsize() as u64, d.bits());
        }
        assert_eq!(abi_dtype(Dtype::BOOL), None);
        assert_eq!(parse_dtype("BF16"), Some(Dtype::BF16));
        assert_eq!(parse_dtype("F31"), None);
    }

    #[test]
    fn widening_keeps_values() {
        let mut out = Vec::new();
        assert!(widen_to_f32(Dtype::F64, &1.5f64.to_le_bytes(), &mut out));
        assert!(widen_to_f32(
            Dtype::F16,
            &f16::from_f32(-2.25).to_le_bytes(),
            &mut out
        ));
        assert!(widen_to_f32(
            Dtype::BF16,
            &bf16::from_f32(0.5).to_le_bytes(),
            &mut out
        ));
        assert!(widen_to_f32(
            Dtype::F32,
            &f32::MIN_POSITIVE.to_le_bytes(),
            &mut out
        ));
        assert_eq!(out, [1.5, -2.25, 0.5, f32::MIN_POSITIVE]);
        assert!(!widen_to_f32(Dtype::I64, &[0; 8], &mut out));
    }
}
