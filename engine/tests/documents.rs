//! Documents that share rows train as if each were alone: their loss and gradients are those of the documents, one by one.

use crate::common;
use common::{alone, distance, gpt2, llama, small_buckets, spec, train, units, world};
use crossweave_engine::{
    Documents, MicroBatch, PipelineOrder, PipelineSpec, RankSpec, Recompute, Rows, ZeroSpec,
    ZeroStage,
};
use crossweave_nn::ModelSpec;

const END: i32 = 9;
const T: usize = 13;

fn both() -> Documents {
    Documents {
        end: END,
        attention: true,
        positions: true,
    }
}

/// Two rows of several documents each; the last of a row is cut off by its end. And `first, end` of each.
fn rows() -> (Vec<i32>, Vec<(usize, usize)>) {
    let mut ids: Vec<i32> = (0..2 * T as i32).map(|i| 10 + i * 7 % 25).collect();
    let mut documents = vec![];
    // One of a single token, and one that fills a row but for one.
    for (row, ends) in [(0, &[2, 3, 7][..]), (T, &[11][..])] {
        let mut first = row;
        for end in ends {
            ids[row + end] = END;
            documents.push((first, row + end + 1));
            first = row + end + 1;
        }
        documents.push((first, row + T));
    }
    (ids, documents)
}

fn job(documents: Option<Documents>, batch: u64, seq_len: u64) -> RankSpec {
    RankSpec {
        rows: Rows {
            documents,
            ..Rows::new(batch, seq_len)
        },
        ..spec(1, 1)
    }
}

fn targets(ids: &[i32]) -> Vec<i32> {
    ids.iter().map(|i| (i * 3 + 1) % 37).collect()
}

type Grads = Vec<(String, Vec<f32>)>;

fn run(model: &ModelSpec, s: &RankSpec, ids: &[i32]) -> (f64, Grads) {
    let batch = MicroBatch {
        tokens: ids,
        targets: &targets(ids),
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    alone(&world(), model, s).loss_and_grads(&batch).unwrap()
}

#[test]
fn documents_train_as_if_alone() {
    let (ids, documents) = rows();
    for model in [gpt2(2, 0.0), llama(2)] {
        let (loss, grads) = run(&model, &job(Some(both()), 2, T as u64), &ids);
        let all = ids.len() as f64;
        let (mut want, mut sums) = (0.0, vec![]);
        for (first, end) in &documents {
            let one = &ids[*first..*end];
            let share = one.len() as f64 / all;
            let (l, g) = run(&model, &job(None, 1, one.len() as u64), one);
            want += share * l;
            if sums.is_empty() {
                sums = g
                    .iter()
                    .map(|(_, g)| vec![0.0; g.len()])
                    .collect::<Vec<_>>();
            }
            for (sum, (_, g)) in sums.iter_mut().zip(&g) {
                for (sum, g) in sum.iter_mut().zip(g) {
                    *sum += share * f64::from(*g);
                }
            }
        }
        assert!(
            (loss - want).abs() < 1e-5 * want,
            "loss {loss}, alone {want}"
        );
        for ((name, got), want) in grads.iter().zip(&sums) {
            let top = want.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                let off = (f64::from(*g) - w).abs();
                assert!(off < 1e-4 * top, "{name}[{i}] is {g}, alone {w}");
            }
        }
    }
}

/// Each key by itself does something, and the two do different things.
#[test]
fn the_mask_and_the_positions_are_keys_of_their_own() {
    let (ids, _) = rows();
    for model in [gpt2(1, 0.0), llama(1)] {
        let of = |attention, positions| {
            let documents = Documents {
                attention,
                positions,
                ..both()
            };
            run(&model, &job(Some(documents), 2, T as u64), &ids).0
        };
        let plain = run(&model, &job(None, 2, T as u64), &ids).0;
        let losses = [of(false, true), of(true, false), of(true, true), plain];
        // Angles tell only how far apart two tokens are: within a document that is the same from wherever one counts.
        let rotary = model.family().name == "llama";
        for (i, a) in losses.iter().enumerate() {
            for (j, b) in losses.iter().enumerate().skip(i + 1) {
                let same = rotary && (i, j) == (1, 2);
                let apart = (a - b).abs();
                assert_eq!(apart < 5e-6, same, "{losses:?}: {i} and {j}");
            }
        }
        // A token that nobody has ends nothing.
        let none = Documents { end: -1, ..both() };
        let none = run(&model, &job(Some(none), 2, T as u64), &ids).0;
        assert!((none - plain).abs() < 1e-6, "{none}, without {plain}");
    }
}

/// The steps of training take the same way as the gradients above.
#[test]
fn steps_see_documents_too() {
    let (ids, _) = rows();
    let model = llama(1);
    let s = job(Some(both()), 2, T as u64);
    let (loss, _) = run(&model, &s, &ids);
    let mut t = alone(&world(), &model, &s);
    let targets = targets(&ids);
    let batch = MicroBatch {
        tokens: &ids,
        targets: &targets,
        lengths: &[],
        images: &[],
        first_sequence: 0,
    };
    let mut seen = vec![];
    for _ in 0..3 {
        t.step(&[batch], 1e-2).unwrap();
        seen.push(t.metrics().unwrap().expect("a step has figures").loss);
    }
    let first = t.evaluate(&batch).unwrap();
    assert!((seen[0] - loss).abs() < 1e-5 * loss, "{seen:?}, {loss}");
    assert!(
        seen[2] < seen[0] && first < seen[2],
        "{seen:?}, then {first}"
    );
}

/// Ranks that hold parts, recompute, accumulation, graphs and pipeline stages change nothing of it.
#[test]
fn every_way_of_training_sees_documents() {
    let w = world();
    for model in [gpt2(2, 0.0), llama(2)] {
        let of = |ranks, micro_batches, stage, recompute| {
            let mut s = RankSpec {
                recompute,
                zero: ZeroSpec {
                    stage: ZeroStage::from_number(stage).unwrap(),
                    ..small_buckets()
                },
                ..spec(ranks, micro_batches)
            };
            s.rows.documents = Some(both());
            s
        };
        let one = train(&w, &model, &of(1, 1, 0, Recompute::None), 6);
        let without = train(&w, &model, &spec(1, 1), 6);
        assert!(distance(&one, &without) > 1e-3, "documents change nothing");
        for (ranks, micro, stage, recompute) in [
            (1, 3, 0, Recompute::Full),
            (2, 1, 3, Recompute::Selective),
            (2, 2, 3, Recompute::Full),
            (3, 2, 1, Recompute::None),
        ] {
            let s = of(ranks, micro, stage, recompute);
            let got = train(&w, &model, &s, 6);
            let off = distance(&one, &got);
            assert!(
                off < 1e-4,
                "{ranks} ranks, {micro} micro-batches, stage {stage}: {off}"
            );
            let graphs = crate::common::World {
                graphs: true,
                ..world()
            };
            let again = train(&graphs, &model, &s, 6);
            assert!(
                again.bits() == got.bits(),
                "replayed: {ranks} ranks, stage {stage}"
            );
        }
        let n = units(&model).len() as u32;
        let pipeline = PipelineSpec::even(n, 2, PipelineOrder::OneFOneB);
        let stages = RankSpec {
            pipeline: Some(pipeline),
            ..of(1, 3, 0, Recompute::None)
        };
        let off = distance(&one, &train(&w, &model, &stages, 6));
        assert!(off < 1e-4, "over stages: {off}");
    }
}
