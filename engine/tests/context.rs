//! Context parallelism: rows cut over ranks, whose queries meet the keys of all. Models train as on one rank whatever else divides the job, and
//! what is said to other ranks is what the formulas count.

use crate::common::*;
use crossweave_engine::{
    Documents, OffloadDevice, OffloadSpec, PipelineOrder, PipelineSpec, RankSpec, Recompute,
    ReduceGradients, dry_run,
};
use crossweave_hal::{CollectiveLine, DType};
use crossweave_mesh::{Axis, AxisSet};
use crossweave_nn::split::{context, is_causal, meeting};
use crossweave_nn::{Lora, ModelSpec, Targets};
use crossweave_tensor::{Layout, Meeting, RowCut, UnitDecl};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const STEPS: u64 = 3;

/// A model with its rows cut over ranks, and where `hidden` says so the tokens of its hidden states over those that share its layers.
pub struct Rowwise {
    cut: Cut,
    rows: RowCut,
    hidden: bool,
}

impl Rowwise {
    /// From now on the tokens of hidden states are cut over ranks that share layers, or not.
    pub fn hides(&mut self, hidden: bool) {
        self.hidden = hidden;
    }
}

impl Declares for Rowwise {
    fn declare(&self) -> Vec<UnitDecl> {
        let mut units = self.cut.declare();
        units.iter_mut().for_each(|u| {
            u.rows = self.rows;
            if self.hidden {
                u.hidden_over = Axis::Tp.into();
            }
        });
        units
    }
}

pub fn rowwise(model: &ModelSpec, lora: Option<&Lora>, tp: u32, rows: RowCut) -> Rowwise {
    Rowwise {
        cut: Cut(model.clone(), lora.cloned(), tp),
        rows,
        hidden: false,
    }
}

/// Every way in which rows are cut over so many ranks and queries meet keys, for a causal model.
pub fn ways(cp: u32) -> Vec<RowCut> {
    let rings = (1..cp).filter(|n| cp.is_multiple_of(*n));
    let rings = rings.map(|inner| Meeting::Ring { inner });
    let meetings = [Meeting::Gather, Meeting::Heads].into_iter().chain(rings);
    let way = |meeting| {
        [Layout::Contiguous, Layout::ZigZag].map(|layout| RowCut {
            layout,
            meeting,
            causal: true,
        })
    };
    meetings.flat_map(way).collect()
}

/// Can a model's queries meet keys so, over so many ranks of cp and tp?
pub fn meets(model: &ModelSpec, rows: RowCut, [cp, tp]: [u32; 2]) -> bool {
    let exchange = rows.meeting.exchange(cp.into());
    let gathered = rows.meeting == Meeting::Gather;
    meeting(model.model(), [exchange, tp.into()], gathered).is_ok()
}

/// The name of a way to meet keys, for sets.
fn kind(meeting: Meeting) -> &'static str {
    match meeting {
        Meeting::Gather => "gather",
        Meeting::Heads => "heads",
        Meeting::Ring { .. } => "ring",
    }
}

/// The models of the committed checkpoints whose rows can be cut, by their folders, with whether they are causal.
fn checkpoints() -> BTreeMap<String, (ModelSpec, bool)> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracles");
    let folders = std::fs::read_dir(all).unwrap().map(|f| f.unwrap());
    let found = folders.filter_map(|f| {
        let name = f.file_name().into_string().unwrap();
        let text = std::fs::read_to_string(f.path().join("model/config.json")).ok()?;
        let config: Value = serde_json::from_str(&text).unwrap();
        let spec = ModelSpec::from_hf(&config).unwrap();
        let model = spec.model();
        let causal = is_causal(model);
        (model.vocab >= 37 && context(model).is_ok()).then_some((name, (spec, causal)))
    });
    found.collect()
}

/// Learned positions, rotations, biases by distance, windows, caps, norms of heads, one normed input and two, and a model that sees both ways.
#[test]
fn every_family_trains_on_cut_rows_as_on_one_rank() {
    let w = world();
    let mut cut = BTreeSet::new();
    for (model, (name, (spec, causal))) in checkpoints().into_iter().enumerate() {
        // More tokens than a rank has are needed where scales change with the length of a row (longrope of phi3-v4, behind 8).
        let tokens = if spec.model().positions < 16 { 8 } else { 16 };
        let s = sgd(of_length(crate::common::spec(1, 1), tokens));
        let alone = train(&w, &spec, &s, STEPS);
        for (cp, rows) in [2, 4]
            .into_iter()
            .flat_map(|cp| ways(cp).into_iter().map(move |r| (cp, r)))
        {
            let rows = RowCut { causal, ..rows };
            let way = kind(rows.meeting);
            // Four ranks for what goes round, which two do once.
            let other = !causal && rows.layout == Layout::ZigZag || cp == 4 && way != "ring";
            // Models take turns at the layouts.
            let turn = !causal || (model % 2 == 0) == (rows.layout == Layout::ZigZag) || every();
            if other || !turn || !meets(&spec, rows, [cp, 1]) {
                continue;
            }
            cut.insert((spec.family().name, cp, way));
            let cut = rowwise(&spec, None, 1, rows);
            let got = train(&w, &cut, &over(s.clone(), [cp, 1]), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 2e-5, "{name}, cp {cp}, {rows:?}: {far:e}");
            let held = (got.validation[0] - alone.validation[0]).abs();
            assert!(held < 1e-5, "{name}, cp {cp}, {rows:?}: {held:e}");
        }
    }
    for family in [
        "bert",
        "bloom",
        "cohere",
        "falcon",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "olmo2",
        "opt",
        "phi",
        "qwen3",
    ] {
        for (cp, way) in [(2, "gather"), (2, "heads"), (2, "ring"), (4, "ring")] {
            assert!(
                cut.contains(&(family, cp, way)),
                "{family}, {way} over {cp} is not in {cut:?}"
            );
        }
    }
}

/// Two layers of which 2, 3 and 4 ranks have equal parts, of a vocabulary that none divides.
fn models(dropout: f64) -> [ModelSpec; 2] {
    let sizes = [
        ("n_head", 12),
        ("n_embd", 48),
        ("n_inner", 48),
        ("n_positions", 24),
    ];
    let gated = [
        ("num_attention_heads", 12),
        ("num_key_value_heads", 6),
        ("head_dim", 4),
        ("intermediate_size", 36),
        ("max_position_embeddings", 24),
    ];
    [with(&gpt2(2, dropout), &sizes), with(&llama(2), &gated)]
}

/// The other ways to divide a job, dropped weights and features, beside cut rows; sequence parallelism where layers are cut too.
#[test]
fn cut_rows_train_as_whole_ones_in_every_layout() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let mut k = 0;
    for (dropout, model) in [0.0, 0.1]
        .into_iter()
        .flat_map(|p| models(p).map(|m| (p, m)))
    {
        let alone = train(&w, &model, &of_length(spec(1, 1), 24), STEPS);
        for (dp, cp, tp, pp) in [
            (1, 2, 1, 1),
            (2, 2, 1, 1),
            (1, 3, 1, 1),
            (1, 4, 1, 1),
            (1, 2, 2, 1),
            (2, 2, 2, 1),
            (1, 2, 1, 2),
            (1, 2, 2, 2),
        ] {
            for stage in 0..=3 {
                k += 1;
                if !taken(k) {
                    continue;
                }
                let mut s = RankSpec {
                    recompute: recompute[k % 3],
                    ..staged(of_length(spec(dp, [1, 2, 3][k % 3]), 24), stage)
                };
                s.zero.overlap = k % 4 != 0;
                if stage >= 2 && k % 2 == 0 {
                    s.zero.reduce = ReduceGradients::MicroBatch;
                }
                if pp > 1 {
                    let units = units(&model).len() as u32;
                    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
                    s.pipeline = Some(PipelineSpec::even(units, pp, orders[k % 2]));
                }
                if k % 5 == 0 {
                    let full = s.recompute == Recompute::Full;
                    s.offload = Some(OffloadSpec {
                        params: stage == 3,
                        activations: full,
                        ..offload(dir.path(), OffloadDevice::Host)
                    });
                }
                let ways = ways(cp);
                let rows = ways[(k / 2) % ways.len()];
                let cut = Rowwise {
                    hidden: tp > 1 && k % 3 != 0,
                    ..rowwise(&model, None, tp, rows)
                };
                let what = format!(
                    "dp {dp}, cp {cp}, tp {tp}, pp {pp}, stage {stage}, dropout {dropout}, {rows:?}, {}",
                    cut.hidden
                );
                let got = train(&w, &cut, &over(s, [cp, tp]), STEPS);
                let far = distance(&got, &alone);
                assert!(far < 1e-4, "{what}: {far:e}");
                let norms = got.metrics.iter().zip(&alone.metrics);
                for (a, b) in norms.map(|(a, b)| (a.grad_norm, b.grad_norm)) {
                    assert!((a - b).abs() < 1e-4 * b, "{what}: norm {a} against {b}");
                }
            }
        }
    }
}

/// Fewer key-value heads than ranks, and numbers of which neither divides the other.
#[test]
fn a_key_value_head_goes_to_all_its_users() {
    let w = world();
    let [_, llama] = models(0.0);
    for (heads, cp, tp) in [
        (1, 2, 1),
        (1, 4, 1),
        (2, 3, 1),
        (3, 2, 1),
        (4, 3, 1),
        (2, 2, 2),
        (1, 2, 2),
    ] {
        let model = with(&llama, &[("num_key_value_heads", heads)]);
        let s = sgd(of_length(spec(1, 2), 24));
        let alone = train(&w, &model, &s, STEPS);
        for rows in ways(cp).into_iter().filter(|r| meets(&model, *r, [cp, tp])) {
            let got = train(
                &w,
                &rowwise(&model, None, tp, rows),
                &over(s.clone(), [cp, tp]),
                STEPS,
            );
            let far = distance(&got, &alone);
            assert!(
                far < 2e-5,
                "{heads} heads on cp {cp}, tp {tp}, {rows:?}: {far:e}"
            );
        }
    }
}

/// Documents that share rows, also where a rank has none of a document's queries and where one spans all ranks.
#[test]
fn packed_rows_are_cut_as_rows() {
    let w = world();
    let mut k = 0;
    for model in models(0.1) {
        for (end, positions) in [(3, true), (5, false), (36, true)] {
            let mut s = of_length(spec(1, 2), 24);
            s.rows.documents = Some(Documents {
                end,
                attention: true,
                positions,
            });
            let alone = train(&w, &model, &s, STEPS);
            let all = [2, 3, 4]
                .into_iter()
                .flat_map(|cp| ways(cp).into_iter().map(move |w| (cp, 1, w)))
                .chain(ways(2).into_iter().map(|w| (2, 2, w)));
            for (cp, tp, rows) in all {
                k += 1;
                if !taken(k) {
                    continue;
                }
                let cut = Rowwise {
                    hidden: tp > 1,
                    ..rowwise(&model, None, tp, rows)
                };
                let got = train(&w, &cut, &over(s.clone(), [cp, tp]), STEPS);
                let far = distance(&got, &alone);
                assert!(
                    far < 1e-4,
                    "documents of {end}, cp {cp}, tp {tp}, {rows:?}: {far:e}"
                );
            }
        }
    }
}

/// One prediction that counts, on one rank alone (Megatron-LM#7513: a quarter of the gradient on four ranks), rows of which a rank has none
/// (#1764), and 16 bits.
#[test]
fn predictions_that_do_not_count_and_16_bits_are_as_on_one_rank() {
    let w = world();
    let counts: [fn(u64, u64) -> bool; 3] = [
        |q, i| q == 1 && i == 5,
        |q, i| !(q + i).is_multiple_of(3) && q != 2,
        |_, i| i < 6,
    ];
    for model in models(0.0) {
        let s = sgd(of_length(spec(1, 2), 24));
        for (k, counts) in counts.into_iter().enumerate() {
            let alone = train_with_counts(&w, &model, &s, STEPS, counts);
            for (cp, rows) in [2, 4]
                .into_iter()
                .flat_map(|cp| ways(cp).into_iter().map(move |w| (cp, w)))
            {
                let cut = rowwise(&model, None, 1, rows);
                let got = train_with_counts(&w, &cut, &over(s.clone(), [cp, 1]), STEPS, counts);
                let far = distance(&got, &alone);
                assert!(far < 2e-5, "counts {k}, cp {cp}, {rows:?}: {far:e}");
            }
        }
        let bf16 = RankSpec {
            compute: DType::Bf16,
            ..s.clone()
        };
        let (exact, alone) = (
            train(&w, &model, &s, STEPS),
            train(&w, &model, &bf16, STEPS),
        );
        let norms = |a: &Outcome| apart(a, &exact, |_| true).norm;
        for rows in ways(4) {
            let cut = rowwise(&model, None, 1, rows);
            let got = train(&w, &cut, &over(bf16.clone(), [4, 1]), STEPS);
            let (far, own) = (norms(&got), norms(&alone));
            assert!(far < 1.5 * own, "{rows:?}: {far:e}, one rank {own:e}");
        }
    }
}

#[test]
fn adapters_train_on_cut_rows() {
    let w = world();
    let lora = Lora {
        r: 3,
        alpha: 7.0,
        dropout: 0.1,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: vec![],
    };
    for model in models(0.1) {
        let s = sgd(of_length(spec(1, 2), 24));
        let alone = train(&w, &(model.clone(), lora.clone()), &s, STEPS);
        for (dp, cp, stage, rows) in [(1, 2, 0, 1), (2, 3, 2, 2), (2, 2, 3, 0), (1, 4, 1, 7)] {
            let s = sgd(staged(of_length(spec(dp, 1), 24), stage));
            let cut = rowwise(&model, Some(&lora), 1, ways(cp)[rows]);
            let got = train(&w, &cut, &over(s, [cp, 1]), STEPS);
            let far = distance(&got, &alone);
            assert!(far < 1e-4, "dp {dp}, cp {cp}, stage {stage}: {far:e}");
        }
    }
}

/// Elements that a rank sends for a layer and micro-batch, H being the width of its key-value heads: gathered keys and values 2bsH(c-1)/c
/// forward and twice that backward, round a ring the same and 2bsH/c home; exchanged heads each way 2bs(h/t)(c-1)/c^2 and
/// 2bsd max(1, n/tc)(c-1)/c.
#[test]
fn layers_say_what_the_formulas_count() {
    let w = world();
    let [gpt2, llama] = models(0.0);
    let few = with(&llama, &[("num_key_value_heads", 2)]);
    let micro = 2;
    for (what, model, kv_heads) in [("gpt2", &gpt2, 12), ("llama", &llama, 6), ("few", &few, 2)] {
        let (layers, width) = (2, 48);
        for (cp, tp) in [(2u64, 1u64), (4, 1), (3, 1), (2, 2)] {
            for rows in ways(cp as u32) {
                let s = of_length(spec(1, micro), 24);
                let tokens = s.rows.batch * 24;
                let head = 4;
                let mut cut = rowwise(model, None, tp as u32, rows);
                cut.hidden = tp > 1;
                let got = train(&w, &cut, &over(s, [cp as u32, tp as u32]), STEPS);
                let gathered = 3 * 2 * tokens * head * (kv_heads / tp) * (cp - 1) / cp;
                // Of as many copies of key-value heads as all ranks that exchange have a whole number of.
                let own = kv_heads / tp;
                let inner = rows.meeting.exchange(cp);
                let sent = (1..).map(|n| n * own).find(|n| n % inner == 0).unwrap();
                let exchanged = 2
                    * (2 * tokens * (width / tp) * (inner - 1) / (inner * cp)
                        + 2 * tokens * head * sent * (inner - 1) / (inner * cp));
                // Round the ring forward, round it backward beside their gradients, and these home.
                let places = cp / inner;
                let around = 2 * tokens * head * (sent / inner) / places;
                let ring = 3 * around * (places - 1) + around;
                let of_layer = match rows.meeting {
                    Meeting::Gather => gathered,
                    Meeting::Heads => exchanged,
                    Meeting::Ring { .. } => exchanged + ring,
                };
                for l in &got.ledgers {
                    let of_axis =
                        |c: &&CollectiveLine| of_blocks(c, "cp") || of_blocks(c, "cp.node");
                    // What is received others send.
                    let of = l
                        .collectives
                        .iter()
                        .filter(of_axis)
                        .filter(|c| c.kind != "recv");
                    let sent: u64 = of.map(|c| c.wire_elements).sum();
                    let all = STEPS * u64::from(micro) * layers * of_layer;
                    assert_eq!(sent, all, "{what}, cp {cp}, tp {tp}, {rows:?}");
                }
            }
        }
    }
}

/// A gradient of every parameter is a summand on each rank, and keys that are not brought together are named.
#[test]
fn a_sum_or_a_gather_that_is_missing_is_named() {
    let w = world();
    let null = w.null.open(0).unwrap();
    for (model, rows) in models(0.0)
        .into_iter()
        .flat_map(|m| ways(4).into_iter().map(move |w| (m.clone(), w)))
    {
        let s = over(of_length(spec(1, 1), 24), [4, 1]);
        let units = placed(rowwise(&model, None, 1, rows).declare(), &s);
        let found = |units: &[UnitDecl]| {
            let found = dry_run(&null, units, DType::F32, 2, 24);
            found.map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(found(&units), Ok(()));
        for u in 0..units.len() {
            for i in 0..units[u].params.len() {
                let mut wrong = units.clone();
                let p = &mut wrong[u].params[i];
                p.held.owners = AxisSet::of(&[Axis::Dp]);
                let says = format!("the gradient of {}", p.name);
                let e = found(&wrong).unwrap_err();
                assert!(e.contains("on cp") && e.contains(&says), "{e}");
            }
        }
        let short = dry_run(&null, &units, DType::F32, 2, 23)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(short.contains("23 tokens over 4 ranks"), "{short}");
    }
}
