//! Mixtures: shares that are kept at every step, sources that each go through their own epochs, and what is refused.

use crossweave_data::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SEQ: usize = 8;

/// Documents that each hold one letter only, so that a row shows its source.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(sources: &[(&str, usize)]) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for (name, tokens) in sources {
            let letter = &name[..1];
            std::fs::write(dir.path().join(name), letter.repeat(*tokens)).unwrap();
        }
        Fixture { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn cache(&self) -> PathBuf {
        self.path().join("cache")
    }

    fn part(&self, glob: &str, weight: f64) -> Weighted {
        let source = Source::Files(FilesSource::new(self.path(), [glob]));
        Weighted { source, weight }
    }

    fn spec(&self, parts: &[(&str, f64)]) -> DataSpec {
        let parts = parts.iter().map(|(glob, w)| self.part(glob, *w));
        DataSpec {
            objective: Objective::Causal,
            train: Source::Mixture(parts.collect()),
            examples: None,
            validation: Validation::None,
            tokenizer: Some(TokenizerSpec {
                append_eod: Some(false),
                ..TokenizerSpec::new(TokenizerKind::Bytes)
            }),
            model_vocab: None,
        }
    }

    fn open(&self, spec: &DataSpec) -> Result<Corpus> {
        open(spec, &self.cache(), &NoProgress)
    }

    fn refused(&self, spec: &DataSpec) -> String {
        let looked = check(spec).err().map(|e| e.to_string());
        let opened = self.open(spec).err().unwrap().to_string();
        assert_eq!(
            looked.as_deref(),
            Some(&*opened),
            "config check and train differ"
        );
        opened
    }
}

fn shape(global_batch: u64, ranks: u64, accumulation: u64) -> BatchShape {
    BatchShape {
        global_batch,
        ranks,
        accumulation,
    }
}

fn row(source: &Arc<dyn SequenceSource>, i: u64) -> Vec<u32> {
    let mut out = vec![0; source.row_len()];
    source.read(i, &mut out).unwrap();
    out
}

#[test]
fn shares_are_exact_at_every_sample_and_sources_pass_by_themselves() {
    let f = Fixture::new(&[("a.txt", 4000), ("b.txt", 100), ("c.txt", 900)]);
    let weights = [("a.txt", 7.0), ("b.txt", 2.0), ("c.txt", 1.0)];
    let corpus = f.open(&f.spec(&weights)).unwrap();
    assert_eq!(corpus.train_tokens(), 5000);
    assert_eq!(corpus.pass(SEQ).unwrap(), Pass::Tokens(5000));
    let n = 1000;
    let rows = corpus.train(SEQ, n, 5).unwrap();
    let mut counts = [0u64; 3];
    for i in 0..n {
        let got = row(&rows, i);
        let letter = got[0];
        assert!(got.iter().all(|t| *t == letter), "a row of two sources");
        let s = (letter - u32::from(b'a')) as usize;
        counts[s] += 1;
        for (count, (_, w)) in counts.iter().zip(weights) {
            let off = *count as f64 - w / 10.0 * (i + 1) as f64;
            assert!(off.abs() < 1.0, "{counts:?} after {} samples", i + 1);
        }
    }
    assert_eq!(counts, [700, 200, 100]);
    // The small source was gone through many times, the large one not once.
    let said: Vec<String> = rows
        .remarks()
        .into_iter()
        .map(|r| match r {
            Remark::Note(text) | Remark::Warning(text) => text,
        })
        .collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[1].contains("data.train[1]") && said[1].contains("20.00 %"),
        "{said:?}"
    );
    assert!(
        said[1].contains("200 of 1000") && said[1].contains("16.67 epochs"),
        "{said:?}"
    );
    // A mixture of one is that source.
    let alone = f.open(&f.spec(&[("c.txt", 3.0)])).unwrap();
    let spec = DataSpec {
        train: Source::Files(FilesSource::new(f.path(), ["c.txt"])),
        examples: None,
        ..f.spec(&[])
    };
    let plain = f.open(&spec).unwrap();
    let (alone, plain) = (
        alone.train(SEQ, 99, 1).unwrap(),
        plain.train(SEQ, 99, 1).unwrap(),
    );
    assert!((0..99).all(|i| row(&alone, i) == row(&plain, i)));
}

#[test]
fn any_ranks_and_any_restart_go_on_sample_for_sample() {
    let f = Fixture::new(&[("a1.txt", 0), ("b.txt", 0)]);
    let count =
        |from: u8| -> Vec<u8> { (0..600usize).map(|i| from + (i * 7 % 100) as u8).collect() };
    std::fs::write(f.path().join("a1.txt"), count(20)).unwrap();
    std::fs::write(f.path().join("b.txt"), count(25)).unwrap();
    let spec = f.spec(&[("a*.txt", 0.75), ("b.txt", 0.25)]);
    let batches = |samples, ranks, accumulation| {
        let rows = f.open(&spec).unwrap().train(SEQ, samples, 9).unwrap();
        Batches::training(rows, shape(12, ranks, accumulation), "data.train").unwrap()
    };
    let step = |b: &Batches, s: u64| -> Vec<u32> {
        let of = b.shape();
        let each = (0..of.ranks).flat_map(|r| (0..of.accumulation).map(move |m| (r, m)));
        each.flat_map(|(r, m)| b.at_step(s, r, m).unwrap().tokens)
            .collect()
    };
    let whole = batches(12 * 50, 1, 1);
    for (ranks, accumulation) in [(2, 1), (3, 2), (4, 3), (1, 12)] {
        // Asked for fewer or more steps than before, as a run that is extended.
        for steps in [30, 80] {
            let other = batches(12 * steps, ranks, accumulation);
            assert!((17..30).all(|s| step(&other, s) == step(&whole, s)));
        }
    }
    // Sources of the same length are not shuffled alike.
    let rows = f.open(&spec).unwrap().train(SEQ, 400, 9).unwrap();
    let all: Vec<Vec<u32>> = (0..400).map(|i| row(&rows, i)).collect();
    let firsts = |low: bool| -> Vec<u32> {
        let of = all.iter().enumerate().filter(|(i, _)| (i % 4 == 0) == low);
        of.map(|(_, r)| r[0]).take(20).collect()
    };
    assert_ne!(firsts(true), firsts(false));
}

#[test]
fn validation_reads_each_row_once_and_mixes_them_while_it_can() {
    let f = Fixture::new(&[("a.txt", 2000), ("b.txt", 400)]);
    let parts = [("a.txt", 1.0), ("b.txt", 1.0)];
    let held = DataSpec {
        validation: Validation::Fraction(0.25),
        ..f.spec(&parts)
    };
    let corpus = f.open(&held).unwrap();
    assert_eq!(
        (corpus.train_tokens(), corpus.validation_tokens()),
        (1800, 600)
    );
    let own = DataSpec {
        validation: Validation::Source(f.spec(&parts).train),
        ..f.spec(&[("a.txt", 1.0)])
    };
    for (corpus, [a, b]) in [(corpus, [500, 100]), (f.open(&own).unwrap(), [2000, 400])] {
        let rows = corpus.validation(SEQ).unwrap().unwrap();
        let letters: Vec<u32> = (0..rows.sequences()).map(|i| row(&rows, i)[0]).collect();
        let of_b = |some: &[u32]| some.iter().filter(|l| **l == u32::from(b'b')).count();
        let [a, b] = [a, b].map(|tokens| (tokens - 1) / SEQ);
        assert_eq!((letters.len(), of_b(&letters)), (a + b, b), "{letters:?}");
        assert_eq!(of_b(&letters[..2 * b]), b, "{letters:?}");
        assert!(rows.remarks().is_empty());
    }
}

#[test]
fn what_cannot_be_mixed_is_named_with_its_place() {
    let f = Fixture::new(&[("a.txt", 100), ("b.txt", 100), ("s.txt", 5)]);
    let refused = |parts: &[(&str, f64)], words: &[&str]| {
        let e = f.refused(&f.spec(parts));
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
    };
    refused(
        &[("a.txt", 1.0), ("none/*.txt", 1.0)],
        &["data.train[1].files", "none/*.txt", "matches no file"],
    );
    refused(
        &[("a.txt", 1.0), ("b.txt", 0.0)],
        &["data.train[1].weight", "above 0"],
    );
    refused(&[("a.txt", f64::NAN)], &["data.train[0].weight"]);
    refused(
        &[("a.txt", 1.0), ("*.txt", 1.0)],
        &[
            "data.train[1]",
            "a.txt is a file of source 0",
            "both weights",
        ],
    );
    refused(&[], &["data.train", "0 sources"]);
    let nested = Source::Mixture(vec![f.part("a.txt", 1.0)]);
    let nested = DataSpec {
        train: Source::Mixture(vec![Weighted {
            source: nested,
            weight: 1.0,
        }]),
        ..f.spec(&[])
    };
    assert!(f.refused(&nested).contains("data.train[0]"));
    // Too short for one sample: known when the length of a sample is.
    let corpus = f.open(&f.spec(&[("a.txt", 1.0), ("s.txt", 1.0)])).unwrap();
    let e = corpus.train(SEQ, 10, 1).err().unwrap().to_string();
    assert!(e.contains("data.train[1]") && e.contains("5 tokens"), "{e}");
}

#[test]
fn each_source_has_its_own_cache_and_weights_make_another_corpus() {
    let f = Fixture::new(&[("a.txt", 100), ("b.txt", 100)]);
    let built = |spec: &DataSpec| -> Vec<bool> {
        let corpus = f.open(spec).unwrap();
        corpus.reports().iter().map(|r| r.built).collect()
    };
    let spec = f.spec(&[("a.txt", 1.0), ("b.txt", 2.0)]);
    assert_eq!(built(&spec), [true, true]);
    let print = |spec: &DataSpec| f.open(spec).unwrap().fingerprint();
    let other = f.spec(&[("a.txt", 1.0), ("b.txt", 3.0)]);
    assert_eq!(built(&other), [false, false]);
    assert_ne!(print(&spec), print(&other));
    assert_eq!(print(&spec), print(&spec));
    std::fs::write(f.path().join("b.txt"), "changed ".repeat(20)).unwrap();
    assert_eq!(built(&spec), [false, true]);
}
