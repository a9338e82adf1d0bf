//! Faults that others have had with rows cut over ranks, a test for each thread of theirs; and jobs of eight ranks over all axes, drawn by a seed.
//! Those of a ring's gradients and of sinks are in `rings.rs`.

use crate::common::*;
use crate::context::{meets, rowwise, ways};
use crate::known_faults::of_eight_ranks;
use crate::random::Dice;
use crossweave_engine::{Documents, PipelineOrder, PipelineSpec, RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use crossweave_tensor::{Layout, Meeting, RowCut};
use serde_json::json;

/// Two layers with a window of three tokens, four query heads and `kv` key-value heads.
fn windowed(window: Option<u64>, heads: u64, kv: u64) -> ModelSpec {
    let config = json!({"model_type": "mistral", "vocab_size": 37, "hidden_size": 4 * heads, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 4, "sliding_window": window,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "initializer_range": 0.3});
    ModelSpec::from_hf(&config).unwrap()
}

/// A window was lost under context parallelism, without a word (accelerate#4177): every way to meet keys has it, and a model without it is another.
#[test]
fn accelerate_4177_a_window_is_not_lost() {
    let w = world();
    let s = sgd(of_length(spec(1, 1), 16));
    let (model, other) = (windowed(Some(3), 4, 2), windowed(None, 4, 2));
    let alone = train(&w, &model, &s, 2);
    let without = distance(&train(&w, &other, &s, 2), &alone);
    assert!(without > 1e-3, "{without:e}");
    for (cp, rows) in [2, 4]
        .into_iter()
        .flat_map(|cp| ways(cp).into_iter().map(move |w| (cp, w)))
    {
        let cut = rowwise(&model, None, 1, rows);
        let far = distance(&train(&w, &cut, &over(s.clone(), [cp, 1]), 2), &alone);
        assert!(far < 2e-5, "cp {cp}, {rows:?}: {far:e}");
    }
}

/// At stage 0 exchanged heads had a gradient of another size, or none and a crash (DeepSpeed#7833): all stages train alike, in 16 bits too.
#[test]
fn deepspeed_7833_stage_0_trains_as_the_others() {
    let w = world();
    let model = windowed(None, 4, 4);
    for compute in [DType::F32, DType::Bf16] {
        let s = RankSpec {
            compute,
            ..of_length(spec(1, 2), 16)
        };
        let alone = train(&w, &model, &sgd(s.clone()), 3);
        let exact = train(&w, &model, &sgd(of_length(spec(1, 2), 16)), 3);
        let own = distance(&alone, &exact);
        for rows in ways(2) {
            let run = |stage| {
                let s = sgd(staged(s.clone(), stage));
                train(&w, &rowwise(&model, None, 1, rows), &over(s, [2, 1]), 3)
            };
            let first = run(0);
            let far = distance(&first, &exact);
            assert!(far < 2e-5 + 2.0 * own, "{compute:?}, {rows:?}: {far:e}");
            let norms = first.metrics.iter().zip(&alone.metrics);
            for (a, b) in norms.map(|(a, b)| (a.grad_norm, b.grad_norm)) {
                assert!((a - b).abs() < 2e-2 * b, "{rows:?}: norm {a} and {b}");
            }
            for stage in 1..=3 {
                let far = distance(&run(stage), &first);
                assert!(
                    far < 2e-5 + own,
                    "{compute:?}, stage {stage}, {rows:?}: {far:e}"
                );
            }
        }
    }
}

/// The number of key-value heads of another model of the process was taken for this one's (DeepSpeed#8291, #8316): of twelve heads four ranks had
/// 4, 4, 4 and none. Here models of other numbers train one after another and in between.
#[test]
fn deepspeed_8316_each_model_has_its_own_key_value_heads() {
    let w = world();
    let s = sgd(of_length(spec(1, 1), 16));
    for kv in [3, 12, 1, 4, 3] {
        let model = windowed(None, 12, kv);
        let alone = train(&w, &model, &s, 2);
        for rows in ways(4) {
            let cut = rowwise(&model, None, 1, rows);
            let far = distance(&train(&w, &cut, &over(s.clone(), [4, 1]), 2), &alone);
            assert!(far < 2e-5, "{kv} heads, {rows:?}: {far:e}");
        }
    }
}

/// One prediction that counts, of four ranks on one (Megatron-LM#7513: a quarter of its gradient), in a ring and with heads exchanged within one.
#[test]
fn megatron_lm_7513_one_valid_token_has_its_whole_gradient() {
    counts(|q, i| q == 1 && i == 5);
}

/// Rows of which a rank has no prediction that counts (Megatron-LM#1764: NaN).
#[test]
fn megatron_lm_1764_a_rank_all_of_whose_tokens_are_masked_adds_nothing() {
    counts(|_, i| i < 4);
}

fn counts(counts: fn(u64, u64) -> bool) {
    let w = world();
    let (model, s) = (windowed(None, 4, 2), sgd(of_length(spec(1, 2), 16)));
    let alone = train_with_counts(&w, &model, &s, 2, counts);
    for rows in ways(4) {
        let cut = rowwise(&model, None, 1, rows);
        let got = train_with_counts(&w, &cut, &over(s.clone(), [4, 1]), 2, counts);
        let far = distance(&got, &alone);
        assert!(far < 2e-5, "{rows:?}: {far:e}");
        let norms = got.metrics.iter().zip(&alone.metrics);
        for (a, b) in norms.map(|(a, b)| (a.grad_norm, b.grad_norm)) {
            assert!((a - b).abs() < 1e-4 * b, "{rows:?}: norm {a} and {b}");
        }
    }
}

/// All ways in which eight ranks are a product of stages or data-parallel ranks, ranks that have parts of rows, and ranks that share layers.
fn meshes() -> Vec<[u32; 4]> {
    let powers = [1, 2, 4, 8];
    let all = powers
        .into_iter()
        .flat_map(|first| powers.map(|cp| [first, cp]));
    let divides = all.filter(|[first, cp]| first * cp <= 8 && *cp > 1);
    let all = divides.flat_map(|[first, cp]| {
        let tp = 8 / (first * cp);
        [[1, first, cp, tp], [first, 1, cp, tp]]
    });
    // No more stages than units: an embedding, two layers and a head.
    let mut all: Vec<[u32; 4]> = all.filter(|[pp, ..]| *pp <= 4).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The models of eight ranks, and one whose scores have biases by distance.
fn models() -> Vec<(&'static str, ModelSpec)> {
    let mut all = of_eight_ranks();
    let bloom = json!({"model_type": "bloom", "vocab_size": 45, "hidden_size": 32, "n_layer": 2, "n_head": 8,
        "hidden_dropout": 0.0, "attention_dropout": 0.1, "initializer_range": 0.1});
    all.push(("distances", ModelSpec::from_hf(&bloom).unwrap()));
    all
}

/// Trains each model over some meshes as on one rank, each with a way to meet keys, a stage, accumulation, recomputation and documents that are
/// drawn: `each` of all meshes.
fn eight_ranks(seed: u64, each: usize) {
    let w = world();
    let mut dice = Dice(seed);
    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    for (name, model) in models() {
        let causal = name != "both ways";
        let documents = [
            None,
            Some(Documents {
                end: 7,
                attention: true,
                positions: dice.roll(2) == 0,
            }),
        ];
        let job = |micro, documents| {
            let mut s = sgd(of_length(spec(1, micro), 16));
            s.rows.documents = documents;
            s
        };
        let alone = documents.map(|d| train(&w, &model, &job(2, d), 3));
        let mut left = meshes();
        for _ in 0..each.min(left.len()) {
            let [pp, dp, cp, tp] = left.swap_remove(dice.roll(left.len() as u64) as usize);
            let fits = |r: &RowCut| {
                let zigzag = r.layout == Layout::ZigZag;
                (causal || !zigzag) && meets(&model, *r, [cp, tp])
            };
            let all: Vec<RowCut> = ways(cp).into_iter().filter(fits).collect();
            let rings = all
                .iter()
                .filter(|r| matches!(r.meeting, Meeting::Ring { .. }));
            // Rings twice as often as the others.
            let all: Vec<RowCut> = all.iter().chain(rings).copied().collect();
            let rows = RowCut {
                causal,
                ..dice.of(&all)
            };
            let packed = dice.roll(2) as usize;
            let stage = if pp > 1 { 1 } else { dice.roll(4) as u32 };
            let mut s = sgd(staged(of_length(spec(dp, dice.of(&[1, 3])), 16), stage));
            s.rows.documents = documents[packed];
            s.recompute = dice.of(&recompute);
            s.zero.overlap = dice.roll(3) > 0;
            if pp > 1 {
                let units = units(&model).len() as u32;
                s.pipeline = Some(PipelineSpec::even(units, pp, dice.of(&orders)));
            }
            let mut cut = rowwise(&model, None, tp, rows);
            cut.hides(tp > 1 && dice.roll(2) == 0);
            let what = format!(
                "{name}, pp {pp}, dp {dp}, cp {cp}, tp {tp}, stage {stage}, documents {packed}, {rows:?}"
            );
            let far = distance(&train(&w, &cut, &over(s, [cp, tp]), 3), &alone[packed]);
            assert!(far < 1e-4, "{what}: {far:e} with seed {seed}");
        }
    }
}

#[test]
fn eight_ranks_that_cut_rows_train_as_one() {
    eight_ranks(42, 2);
}

#[test]
#[ignore = "minutes: all meshes of eight ranks that cut rows"]
fn eight_ranks_that_cut_rows_over_every_mesh_train_as_one() {
    for seed in 0..4 {
        eight_ranks(seed, usize::MAX);
    }
}
