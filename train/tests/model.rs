//! Trained models, opened without a config.

use crate::common::{losses, trainer};
use crossweave::Model;

#[test]
fn a_trained_model_gives_logits_and_says_what_it_cannot_do() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let mut t = trainer(&out, 60, 2);
    losses(&mut t);
    t.finish().unwrap();
    let mut model = Model::open(&out).unwrap();
    let logits = model
        .probe(&[vec![3, 4, 5, 6], vec![9, 10, 11, 12]])
        .unwrap();
    assert_eq!(logits.shape, [2, 4, 16]);
    let last = |row: usize| {
        let at = (row * 4 + 3) * 16;
        let of = &logits.values[at..at + 16];
        (0..16).max_by(|a, b| of[*a].total_cmp(&of[*b])).unwrap()
    };
    assert_eq!((last(0), last(1)), (7, 13), "it has learnt to count");
    for (rows, words) in [
        (vec![], "no row"),
        (vec![vec![1, 2], vec![1]], "row 1 has 1"),
        (vec![vec![1; 9]], "8 positions"),
        (vec![vec![16]], "id 16"),
    ] {
        let e = model.probe(&rows).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    }
    let draw = crossweave::Draw {
        tokens: 4,
        temperature: 0.0,
        top_k: 0,
        seed: 1,
    };
    let e = model.generate("1 2 3", draw).unwrap_err();
    assert!(e.to_string().contains("tokenizer"), "{e}");
    assert!(Model::open(dir.path().join("none")).is_err());
}
