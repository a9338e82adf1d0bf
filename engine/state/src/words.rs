//! Bytes as numbers.

pub(crate) type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|b| f32::from_le_bytes(*b)).collect()
}
