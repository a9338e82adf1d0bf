//! Capacities of experts beside ranks that cut layers, hidden states, rows and experts: who stays is decided by whole rows, so that a model drops and trains as on ranks that
//! have all of it; what ranks say to each other has the sizes of the formulas, and the host reads nothing.

use crate::common::*;
use crate::experts_beside::{Mesh, TOKENS, hold_gradients, hold_layouts, laid, lines};
use crate::experts_over_ranks::{gradients_apart, with_experts};
use crossweave_engine::{RankSpec, Recompute};
use crossweave_hal::DType;
use crossweave_nn::ModelSpec;
use serde_json::{Value, json};

/// Experts with a capacity in layers of another family.
fn within(model: &ModelSpec, experts: &str, keys: Value) -> ModelSpec {
    let mut moe = json!({"experts": experts, "top_k": 2, "width": 6, "normalize": true, "aux_loss_coef": 0.1,
        "aux_loss_scope": "sequence", "z_loss_coef": 0.01});
    let all = moe.as_object_mut().unwrap();
    all.extend(keys.as_object().unwrap().clone());
    with_experts(model, moe)
}

/// Rooms of sequences, those of micro-batches whose first tokens stay, and more room than pieces of rows have tokens. Eight tokens of a row that choose two of eight experts
/// leave each of these room for 2; for 5 of the 24 or more tokens of a micro-batch at least; and for 3, of which pieces of two tokens need 2.
fn models() -> [ModelSpec; 3] {
    let micro_batch = json!({"capacity_factor": 0.7, "capacity_scope": "micro_batch", "priority": "position", "renormalize": true});
    let residual = json!({"capacity_factor": 1.5, "residual": true, "renormalize": true, "aux_loss_scope": "micro_batch"});
    [
        within(&llama(2), "8,8", json!({"capacity_factor": 0.9})),
        within(&llama(2), "8,8", micro_batch),
        within(&gpt2(2, 0.1), "8,0", residual),
    ]
}

/// The parts of choices that steps dropped.
fn drops(o: &Outcome) -> Vec<f64> {
    let each = o.metrics.iter().map(|m| m.experts.unwrap().drops);
    each.collect()
}

/// Holds that as many choices were dropped: the part of all is a sum of shares, which is rounded.
fn drops_near(a: &Outcome, b: &Outcome, what: &str) {
    for (a, b) in drops(a).into_iter().zip(drops(b)) {
        assert!(b > 0.005 && b < 0.6, "{what}: {b}");
        assert!((a - b).abs() < 1e-6, "{what}: {a} {b}");
    }
}

#[test]
fn gradients_within_capacities_are_those_of_whole_layers_and_rows() {
    let some = |i: usize, k: usize| taken(5 * k + i) && (k + i).is_multiple_of(2) || every();
    hold_gradients(&models(), some, drops_near);
}

#[test]
fn capacities_train_in_every_layout_as_whole_ones() {
    hold_layouts(&models(), 6, drops_near);
}

/// 16-bit rows: probabilities are those of f32 and are gathered as they are, so that the first step, whose weights are the same, drops the same.
#[test]
fn sixteen_bits_within_capacities_beside_other_axes() {
    let w = world();
    let model = &models()[0];
    let s = RankSpec {
        compute: DType::Bf16,
        ..of_length(spec(2, 1), TOKENS)
    };
    let whole = train(&w, model, &s, 2);
    for mesh in [([2, 1, 2, 2, 2], 1), ([2, 2, 1, 2, 1], 1)] {
        let (laid, s) = laid(model, &s, mesh, 0);
        let got = train(&w, &laid, &s, 2);
        let far = distance(&got, &whole);
        assert!(far < 4e-2, "{mesh:?}: {far:e}");
    }
}

/// Slots of a piece are `c = min(C, its tokens)`, and `r = b E c` rows are made of them. Over `ep` each of four exchanges moves `h r (e - 1) / e` elements, over `etp`
/// as many `h r (etp - 1)`; two more where the forward runs again. Of each token `2 k` numbers go to all ranks that have others of its row, once for each forward:
/// first over `tp`, then over `cp`. Nothing else is said of experts but the sums of the balance, and the host reads the figures of steps alone.
#[test]
fn ranks_say_what_the_formulas_of_capacities_count() {
    let w = world();
    let (steps, layers, h, experts, k) = (2, 2, 20, 8, 2);
    let all: [(Mesh, f64); 6] = [
        (([2, 2, 1, 4, 1], 1), 0.9),
        (([2, 1, 2, 2, 1], 1), 0.9),
        (([2, 1, 2, 2, 2], 1), 0.9),
        (([2, 1, 2, 1, 2], 1), 0.9),
        (([1, 2, 2, 2, 2], 1), 1.5),
        (([1, 2, 2, 4, 1], 1), 1.5),
    ];
    for (turn, (mesh, factor)) in all.into_iter().enumerate() {
        let model = within(&llama(2), "8,8", json!({"capacity_factor": factor}));
        for (recompute, times) in [(Recompute::None, 4), (Recompute::Full, 6)] {
            if times == 6 && turn % 2 == 0 && !every() {
                continue;
            }
            let ([dp, cp, tp, ep, etp], _) = mesh;
            let base = of_length(spec(dp, 2), TOKENS);
            let figures = train(&w, &model, &base, steps).ledgers[0].memory.to_host["staging"];
            let (laid, s) = laid(&model, &base, mesh, turn);
            let s = RankSpec { recompute, ..s };
            let got = train(&w, &laid, &s, steps);
            let [cp, tp, ep, etp] = [cp, tp, ep, etp].map(u64::from);
            let runs = steps * u64::from(s.micro_batches) * layers;
            let here = TOKENS / (cp * tp);
            let capacity = (factor * (k * TOKENS) as f64 / experts as f64).ceil() as u64;
            let slots = capacity.min(here);
            assert_eq!(slots < capacity, factor > 1.0, "{mesh:?}");
            let rows = s.rows.batch * experts * slots;
            let forwards = runs * if times == 6 { 2 } else { 1 };
            for rank in 0..4 {
                let what = format!("{mesh:?}, rank {rank}");
                // Calls, elements that leave a rank, and elements of the whole.
                let said = |group, kind| lines(&got, rank, (group, kind));
                let some = |with: u64, n: u64| if with > 1 { n } else { 0 };
                let moved = runs * times * h * rows * (ep - 1) / ep;
                let [calls, sent, _] = said("ep", "all_to_all");
                assert_eq!([calls, sent], [some(ep, runs * times), moved], "{what}");
                let [gathers, given, _] = said("etp", "all_gather");
                let [sums, added, _] = said("etp", "all_to_all");
                let half = runs * times / 2;
                assert_eq!([gathers, sums], [some(etp, half); 2], "{what}");
                assert_eq!([given, added], [half * h * rows * (etp - 1); 2], "{what}");
                let numbers = |tokens: u64| s.rows.batch * tokens * 2 * k;
                for (axis, ranks, tokens) in [("tp", tp, here * tp), ("cp", cp, TOKENS)] {
                    let [calls, _, all] = said(axis, "all_gather");
                    let want = [
                        some(ranks, forwards),
                        some(ranks, forwards * numbers(tokens)),
                    ];
                    assert_eq!([calls, all], want, "{what}, {axis}");
                }
                assert_eq!(said("ep", "all_to_all_v"), [0; 3], "{what}");
                assert_eq!(said("etp", "all_to_all_v"), [0; 3], "{what}");
                let read = got.ledgers[rank].memory.to_host["staging"];
                assert_eq!(read, figures, "{what}");
            }
        }
    }
}

/// Tokens of a row that choose the same experts with the same probability keep their slots from the first on, whichever ranks have them.
#[test]
fn ties_go_to_the_earlier_token_of_a_row_on_whichever_rank() {
    use crossweave_engine::{Engine, StateKind};
    let w = world();
    let zeros = |t: &mut Engine| {
        for layer in 0..2 {
            let name = format!("model.layers.{layer}.moe.router.weight");
            t.load(&name, StateKind::Value, 0, &[0.0; 8 * 20]).unwrap();
        }
        t.publish().unwrap();
    };
    let s = sgd(of_length(spec(1, 2), TOKENS));
    for priority in ["probs", "position"] {
        let keys = json!({"capacity_factor": 1.0, "priority": priority});
        let model = within(&llama(2), "8,8", keys);
        let whole = train_with(&w, &model, &s, 1, zeros);
        // Two of eight tokens stay.
        assert!((drops(&whole)[0] - 0.75).abs() < 1e-6);
        let all = [([1, 2, 1, 2, 1], 1), ([1, 2, 2, 2, 2], 1)];
        for (turn, mesh) in all.into_iter().enumerate() {
            let (laid, s) = laid(&model, &s, mesh, turn);
            let got = train_with(&w, &laid, &s, 1, zeros);
            assert!((drops(&got)[0] - 0.75).abs() < 1e-6);
            let far = gradients_apart(&got, &whole);
            assert!(far < 5e-6, "{priority}, {mesh:?}: {far:e}");
        }
    }
}
