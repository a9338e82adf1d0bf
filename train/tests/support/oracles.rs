//! The committed figures of PyTorch, and how far ours are from them.

use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of a case, or another path in the folder of all of them.
pub fn oracle(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    root.join(name)
}

/// Every case that has a model.
pub fn cases() -> Vec<PathBuf> {
    let all = std::fs::read_dir(oracle("")).unwrap().flatten();
    let all = all.map(|e| e.path());
    let mut cases: Vec<PathBuf> = all.filter(|p| p.join("model").is_dir()).collect();
    cases.sort();
    assert!(cases.len() >= 17, "{cases:?}");
    cases
}

/// Type, shape and values of tensors by name; values of floats alone.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<f64>)>;

/// The tensors of a file.
pub fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |t: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        match t.dtype() {
            Dtype::F32 => t
                .data()
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f64::from(f32::from_le_bytes(*b)))
                .collect(),
            Dtype::F64 => t
                .data()
                .as_chunks::<8>()
                .0
                .iter()
                .map(|b| f64::from_le_bytes(*b))
                .collect(),
            _ => vec![],
        }
    };
    file.iter()
        .map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), floats(&t))))
        .collect()
}

/// Type, shape and bytes of tensors by name.
pub type Raw = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The tensors of a file as bytes, to be changed and written again.
pub fn raw(path: &Path) -> Raw {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let one = |(n, t): (&str, safetensors::tensor::TensorView<'_>)| {
        let parts = (t.dtype(), t.shape().to_vec(), t.data().to_vec());
        (n.to_string(), parts)
    };
    file.iter().map(one).collect()
}

/// Writes them.
pub fn written(path: &Path, all: &Raw) {
    let views = all.iter().map(|(n, (d, shape, b))| {
        let view = safetensors::tensor::TensorView::new(*d, shape.clone(), b).unwrap();
        (n.clone(), view)
    });
    safetensors::serialize_to_file(views.collect::<Vec<_>>(), None, path).unwrap();
}

/// The largest of some values, whatever their signs.
pub fn top(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |m, x| m.max(x.abs()))
}

/// The largest difference, relative to the largest value.
pub fn error(ours: &[f64], theirs: &[f64]) -> f64 {
    error_beside(ours, theirs, 0.0)
}

/// The same where values below `nothing` are rounding noise.
pub fn error_beside(ours: &[f64], theirs: &[f64], nothing: f64) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let top = top(theirs).max(nothing);
    let diff = ours
        .iter()
        .zip(theirs)
        .fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
    diff / top.max(1e-30)
}
