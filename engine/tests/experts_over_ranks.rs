//! Experts over ranks: whatever factors of a stage's ranks they lie on, a model trains as with all of them on each rank; what ranks say to each
//! other is what the formula counts; norms count each expert once; and ranks to whose experts no token goes take part in everything.

use crate::common::*;
use crossweave_engine::optimizers::{Muon, MuonScale, Optimizer, ParamGroups};
use crossweave_engine::{
    Engine, OffloadDevice, PipelineOrder, PipelineSpec, RankSpec, Recompute, ReduceGradients,
    StateKind,
};
use crossweave_hal::{CollectiveLine, DType};
use crossweave_mesh::{Axis, Place};
use crossweave_nn::{Lora, ModelSpec, Targets};
use crossweave_tensor::UnitDecl;
use serde_json::{Value, json};

/// A model whose experts lie over so many ranks.
pub struct Spread(pub ModelSpec, pub u32);

impl Declares for Spread {
    fn declare(&self) -> Vec<UnitDecl> {
        let Spread(model, ep) = self;
        crossweave_nn::split::experts(model.model(), (*ep).into()).unwrap();
        let place = Place::on(&[(Axis::Dp, *ep), (Axis::Ep, *ep)], 0).unwrap();
        crossweave_nn::units_over(model.model(), &place)
    }
}

/// Adapters of such a model.
struct Adapted(ModelSpec, Lora, u32);

impl Declares for Adapted {
    fn declare(&self) -> Vec<UnitDecl> {
        let Adapted(model, lora, ep) = self;
        let place = Place::on(&[(Axis::Dp, *ep), (Axis::Ep, *ep)], 0).unwrap();
        lora.units(model, &place).unwrap()
    }
}

/// On attention, under which experts stay as they are; and on these too.
pub fn adapters() -> [Lora; 2] {
    let of = |dropout, parameters: &[&str]| Lora {
        r: 2,
        alpha: 4.0,
        dropout,
        rslora: false,
        targets: Targets::AllLinear,
        parameters: parameters.iter().map(|p| p.to_string()).collect(),
    };
    [of(0.1, &[]), of(0.0, &["gate_up_proj", "down_proj"])]
}

/// The same ranks with experts over `ep` of them.
pub fn over(s: &RankSpec, ep: u32) -> RankSpec {
    let mesh = [(Axis::Dp, s.place.length(Axis::Dp)), (Axis::Ep, ep)];
    RankSpec {
        place: Place::on(&mesh, 0).unwrap(),
        ..s.clone()
    }
}

/// Experts in the layers of another family.
pub fn with_experts(model: &ModelSpec, moe: Value) -> ModelSpec {
    let mut config = model.hf_config();
    config["crossweave_moe"] = moe;
    ModelSpec::from_hf(&config).unwrap()
}

/// Mixtral of two layers of so many experts.
pub fn mixtral(experts: u64, chosen: u64) -> ModelSpec {
    let config = json!({"model_type": "mixtral", "vocab_size": 37, "hidden_size": 20, "intermediate_size": 6,
        "num_local_experts": experts, "num_experts_per_tok": chosen, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 10, "max_position_embeddings": 16, "initializer_range": 0.1,
        "router_aux_loss_coef": 0.1});
    ModelSpec::from_hf(&config).unwrap()
}

/// Llama with experts and losses of sequences, and GPT-2 with dropout, whose first layer has an MLP beside them and whose last has none.
fn models() -> [ModelSpec; 3] {
    let sequence = json!({"experts": "4,8", "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.01});
    let residual = json!({"experts": "8,0", "top_k": 3, "width": 6, "normalize": false, "aux_loss_coef": 0.01,
        "aux_loss_scope": "micro_batch", "z_loss_coef": 0.0, "residual": true});
    [
        mixtral(4, 2),
        with_experts(&llama(2), sequence),
        with_experts(&gpt2(2, 0.1), residual),
    ]
}

/// Units of a model, with those of experts beside the layers, divided over two stages.
pub fn stages(model: &impl Declares, order: PipelineOrder) -> PipelineSpec {
    let units = units(model);
    let counted = units.iter().filter(|u| !u.lends).count() as u32;
    PipelineSpec::even(counted, 2, order).with_lenders(&units)
}

/// The largest difference of a tensor of gradients over the largest in it, which counts as a thousandth of the norm of all at least. The first
/// step of SGD leaves the gradients as its moments.
pub fn gradients_apart(a: &Outcome, b: &Outcome) -> f64 {
    let moments = |o: &Outcome| -> Vec<(String, Vec<f32>)> {
        let of = o
            .state
            .iter()
            .filter(|((_, kind), v)| *kind != "value" && !v.is_empty());
        of.map(|((name, _), v)| (name.clone(), v.clone())).collect()
    };
    let (a, b) = (moments(a), moments(b));
    assert!(!a.is_empty() && a.len() == b.len());
    let squares = b.iter().flat_map(|(_, v)| v).map(|x| f64::from(*x).powi(2));
    let least = 1e-3 * squares.sum::<f64>().sqrt();
    let mut worst = 0f64;
    for ((name, x), (other, y)) in a.iter().zip(&b) {
        assert_eq!((name, x.len()), (other, y.len()));
        let top = y.iter().fold(least, |m, v| m.max(f64::from(v.abs())));
        let far = x.iter().zip(y).map(|(a, b)| f64::from((a - b).abs()));
        worst = worst.max(far.fold(0.0, f64::max) / top);
    }
    worst
}

/// Gradients that are a mean over the ranks with the same expert, or a sum over all, are as many times off (deepspeedai/DeepSpeed#5618).
/// Rows do not depend on each other, so a forward has the same bits wherever its experts are; in the gradients
/// of experts the same rows are summed in another order.
#[test]
fn gradients_are_those_of_experts_on_each_rank() {
    let w = world();
    for model in models() {
        for (dp, ep) in [(2, 2), (4, 2), (4, 4)] {
            let s = sgd(spec(dp, 1));
            let whole = train(&w, &model, &s, 1);
            let got = train(&w, &Spread(model.clone(), ep), &over(&s, ep), 1);
            let (a, b) = (&got.metrics[0], &whole.metrics[0]);
            assert_eq!(a.loss.to_bits(), b.loss.to_bits(), "dp {dp}, ep {ep}");
            let (x, y) = (a.experts.unwrap(), b.experts.unwrap());
            let near = |x: f64, y: f64| (x - y).abs() <= 1e-6 * y.abs().max(1e-3);
            assert!(near(x.aux_loss, y.aux_loss), "{x:?} {y:?}");
            assert!(
                near(a.grad_norm, b.grad_norm),
                "dp {dp}, ep {ep}: norm {} against {}",
                a.grad_norm,
                b.grad_norm
            );
            let far = gradients_apart(&got, &whole);
            assert!(far < 2e-6, "dp {dp}, ep {ep}: {far:e}");
            // Each element of the gradient is counted once, on one of those that have it.
            let moments = got.state.iter().filter(|((_, kind), _)| *kind != "value");
            let squares = moments.flat_map(|(_, v)| v).map(|x| f64::from(*x).powi(2));
            let norm = squares.sum::<f64>().sqrt();
            assert!(near(a.grad_norm, norm), "{} of {norm}", a.grad_norm);
        }
    }
}

/// ZeRO over the ranks that have the same experts, micro-batches, recompute, pipelines and offload.
/// Asserts that losses, weights, norms and validations are within 2e-5 of those of another layout.
pub fn trained_alike(got: &Outcome, whole: &Outcome, what: &str) {
    let far = distance(got, whole);
    assert!(far < 2e-5, "{what}: {far:e}");
    for (a, b) in got.metrics.iter().zip(&whole.metrics) {
        let apart = (a.grad_norm - b.grad_norm).abs() / b.grad_norm;
        assert!(apart < 2e-5, "{what}: norm {apart:e}");
    }
    let apart = (got.validation[0] - whole.validation[0]).abs();
    assert!(apart < 2e-5 * whole.validation[0], "{what}: {apart:e}");
}

#[test]
fn experts_over_ranks_train_as_on_each_rank_in_every_layout() {
    let (w, dir) = (world(), tempfile::tempdir().unwrap());
    let recompute = [Recompute::None, Recompute::Full, Recompute::Selective];
    let reduce = [ReduceGradients::Auto, ReduceGradients::Step];
    let (mut k, mut n) = (0, 0);
    for model in models() {
        for (dp, ep, pp) in [(2, 2, 1), (4, 2, 1), (4, 4, 1), (2, 2, 2), (4, 2, 2)] {
            let micro_batches = [1, 3, 2][k % 3];
            let base = spec(dp, micro_batches);
            let whole = train(&w, &model, &base, 3);
            // Each mesh meets two stages of each model, and all of them over the models.
            n += 1;
            for stage in 0..=3 {
                k += 1;
                if stage % 2 != n % 2 && !every() {
                    continue;
                }
                let mut s = RankSpec {
                    recompute: recompute[k % 3],
                    ..staged(over(&base, ep), stage)
                };
                s.zero.overlap = k % 4 != 0;
                s.zero.reduce = reduce[k % 2];
                let model = Spread(model.clone(), ep);
                if pp > 1 {
                    let orders = [PipelineOrder::OneFOneB, PipelineOrder::GPipe];
                    s.pipeline = Some(stages(&model, orders[k % 2]));
                }
                if k.is_multiple_of(5) {
                    s.offload = Some(offload(dir.path(), OffloadDevice::Host));
                }
                let got = train(&w, &model, &s, 3);
                let what = format!("dp {dp}, ep {ep}, pp {pp}, stage {stage}, number {k}");
                trained_alike(&got, &whole, &what);
            }
        }
    }
}

/// The lines of a rank's ledger about exchanges of experts, of one kind: rows or counts.
fn lines<'a>(o: &'a Outcome, rank: usize, kind: &str) -> &'a CollectiveLine {
    let all = o.ledgers[rank].collectives.iter();
    let mut of = all.filter(|c| (&*c.group, &*c.tag, &*c.kind) == ("ep", "experts", kind));
    let line = of.next().unwrap();
    assert!(of.next().is_none());
    line
}

/// Every token goes to all experts: forward and backward a rank sends and receives a row of each of its tokens to and from every expert
/// elsewhere twice, a third time where the forward runs again; counts go to each other rank once, and are read once.
#[test]
fn ranks_say_what_the_formula_counts() {
    let w = world();
    let (steps, layers, h, experts) = (2, 2, 20, 4);
    let model = mixtral(experts, experts);
    for ep in [2u64, 4] {
        for (recompute, times) in [(Recompute::None, 2), (Recompute::Full, 3)] {
            let micro_batches = 2;
            let s = RankSpec {
                recompute,
                ..over(&spec(4, micro_batches), ep as u32)
            };
            let tokens = s.rows.tokens();
            let read = |o: &Outcome, rank: usize| o.ledgers[rank].memory.to_host["staging"];
            let figures = read(&train(&w, &model, &spec(4, micro_batches), steps), 0);
            let got = train(&w, &Spread(model.clone(), ep as u32), &s, steps);
            let runs = steps * u64::from(micro_batches) * layers;
            // As many rows leave for each other rank as come from it.
            let rows = 2 * tokens * experts * (ep - 1) / ep;
            for rank in 0..4 {
                let moved = lines(&got, rank, "all_to_all_v");
                assert_eq!(moved.wire_elements, runs * times * h * rows, "{moved:?}");
                assert_eq!(moved.calls, runs * times * 2);
                let counts = lines(&got, rank, "all_to_all");
                assert_eq!(counts.calls, runs);
                assert_eq!(counts.elements, runs * experts);
                // Beside the figures of steps.
                assert_eq!(read(&got, rank), figures + 4 * 2 * experts * runs);
            }
        }
    }
}

/// Routers of zeros: of equal experts those of lower number are chosen, which the first rank has. The others have no row of anybody, and go through
/// forward, backward, norm and decay all the same (NVIDIA/Megatron-LM#1836, #4851, NVIDIA-NeMo/Automodel#3680, #2995).
#[test]
fn ranks_to_whose_experts_no_token_goes_take_part() {
    let w = world();
    let model = mixtral(4, 2);
    let (h, layers, tokens) = (20, 2, 6 * SEQ);
    let zeros = |t: &mut Engine| {
        for layer in 0..layers {
            let name = format!("model.layers.{layer}.mlp.gate.weight");
            t.load(&name, StateKind::Value, 0, &vec![0.0; 4 * 20])
                .unwrap();
        }
        t.publish().unwrap();
    };
    for stage in [0, 3] {
        let mut s = staged(spec(4, 1), stage);
        s.optim.decay_all = true;
        let whole = train_with(&w, &model, &s, 1, zeros);
        for recompute in [Recompute::None, Recompute::Full] {
            let s = RankSpec {
                recompute,
                ..over(&s, 2)
            };
            let got = train_with(&w, &Spread(model.clone(), 2), &s, 1, zeros);
            let far = distance(&got, &whole);
            assert!(far < 2e-6, "stage {stage}: {far:e}");
            let times = if recompute == Recompute::Full { 3 } else { 2 };
            for rank in 0..4 {
                // A rank with experts that are chosen gives back what comes; the others send all that they have.
                let moved = lines(&got, rank, "all_to_all_v");
                assert_eq!(moved.wire_elements, layers * times * h * 2 * tokens);
            }
            // Idle experts are what decay leaves of them.
            let name = ("model.layers.0.mlp.experts.down_proj".to_string(), "value");
            let (idle, start) = (&got.state[&name][2 * 20 * 6..], starts(&w, &model, &name.0));
            for (a, b) in idle.iter().zip(&start[2 * 20 * 6..]) {
                let decayed = b * (1.0 - 3e-3 * 0.1);
                assert!((a - decayed).abs() <= 1e-6 * b.abs().max(1e-3), "{a} {b}");
            }
        }
    }
}

/// The starting values of a parameter.
fn starts(w: &World, model: &ModelSpec, name: &str) -> Vec<f32> {
    let s = spec(1, 1);
    let all = units(model);
    let null = w.null.open(0).unwrap();
    let dry = crossweave_engine::dry_run(&null, &all, DType::F32, s.rows.batch, SEQ).unwrap();
    let cpu = w.cpu.open(0).unwrap();
    let mut t = w.rank(&cpu, all, &s, &dry, &Nobody).unwrap();
    t.init().unwrap();
    t.read(name, StateKind::Value).unwrap()
}

/// Parts of a block between its exchanges are replayed where their sizes and rows repeat, and what the host waits for is enqueued.
#[test]
fn blocks_that_read_sizes_are_replayed_to_the_same_bits() {
    let s = RankSpec {
        recompute: Recompute::Full,
        ..over(&spec(4, 2), 2)
    };
    let model = Spread(mixtral(4, 2), 2);
    let called = train(&world(), &model, &s, 4);
    let graphed = World {
        graphs: true,
        ..world()
    };
    let replayed = train(&graphed, &model, &s, 4);
    assert!(called.bits() == replayed.bits());
}

/// Stacks under adapters are in flats of weights alone, which stage 3 shards over the ranks that have them. Adapters of stacks are rows of stacks
/// themselves, and go with their experts.
#[test]
fn adapters_train_over_experts_that_stay() {
    let w = world();
    let model = mixtral(4, 2);
    for (k, lora) in adapters().into_iter().enumerate() {
        for stage in 0..=3 {
            if stage == 1 && !every() {
                continue;
            }
            let s = staged(spec(4, 1), stage);
            let whole = train(&w, &(model.clone(), lora.clone()), &s, 3);
            for ep in [2, 4]
                .into_iter()
                .skip(usize::from(!turn(k + stage as usize)))
            {
                let got = train(
                    &w,
                    &Adapted(model.clone(), lora.clone(), ep),
                    &over(&s, ep),
                    3,
                );
                let far = distance(&got, &whole);
                assert!(far < 2e-5, "case {k}, stage {stage}, ep {ep}: {far:e}");
            }
        }
    }
}

/// 16-bit rows, and an optimizer that takes each expert of a stack as a matrix.
#[test]
fn sixteen_bits_and_matrices_of_experts() {
    let w = world();
    let s = RankSpec {
        compute: DType::Bf16,
        ..spec(4, 2)
    };
    let model = mixtral(4, 2);
    let whole = train(&w, &model, &s, 2);
    let got = train(&w, &Spread(model.clone(), 2), &over(&s, 2), 2);
    let first = |o: &Outcome| o.metrics[0].loss.to_bits();
    assert_eq!(first(&got), first(&whole));
    let far = distance(&got, &whole);
    assert!(far < 2e-2, "{far:e}");
    let muon = Optimizer::Muon(Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 5,
        scale: MuonScale::Spectral,
        extra_scale: 0.2,
    });
    let s = RankSpec {
        optim: ParamGroups::all(muon, 0.1),
        ..spec(2, 1)
    };
    let whole = train(&w, &model, &s, 2);
    let got = train(&w, &Spread(model, 2), &over(&s, 2), 2);
    // Five steps of Newton and Schulz magnify what rounding leaves of small singular values.
    let far = distance(&got, &whole);
    assert!(far < 1e-3, "{far:e}");
}
