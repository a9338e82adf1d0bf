//! Mixtures of experts against finite differences: routers, gates, experts and the losses of both; experts without a token; ties.

use super::lab::{self, Case, Lab};
use super::p;
use crossweave_tensor::*;

/// A mixture over `x [B, T, 4]`: parameters are the router `[E, 4]`, the stacks `[E, 6, 4]` and `[E, 4, 3]`.
fn mixture(cx: &mut Cx<'_>, x: Var, k: u64, whole: bool) -> Result<[Var; 3]> {
    let scores = cx.router_scores(x, p(0))?;
    let probabilities = cx.softmax(scores)?;
    let (gates, routing) = cx.choose_experts(probabilities, k, whole)?;
    let rows = cx.dispatch(x, &routing)?;
    let up = cx.expert_linear(rows, p(1), &routing.grouped())?;
    let parts = cx.split(up, &[3, 3])?;
    let h = cx.swiglu(parts[0], parts[1])?;
    let down = cx.expert_linear(h, p(2), &routing.grouped())?;
    let y = cx.combine(down, gates, &routing, x)?;
    let tally = cx.tally(probabilities, &routing, (Scope::Sequence, false))?;
    Ok([y, tally, scores])
}

const FIVE: [&[u64]; 3] = [&[5, 4], &[5, 6, 4], &[5, 4, 3]];

#[test]
fn mixtures_and_their_routers_learn() {
    let lab = Lab::new();
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 3, 4]],
        ..Case::default()
    };
    for (k, whole) in [(1, false), (2, true), (2, false), (4, true), (5, true)] {
        lab.check(&format!("mixture of {k}, {whole}"), &c, &|cx, x| {
            Ok(mixture(cx, x[0], k, whole)?[0])
        });
    }
    // Behind a product, whose output the scores and the rows both read.
    let c = Case {
        params: &[FIVE[0], FIVE[1], FIVE[2], &[4, 4]],
        ..c
    };
    lab.check("a stream with a mixture", &c, &|cx, x| {
        let h = cx.linear(x[0], p(3), None)?;
        let [y, ..] = mixture(cx, h, 2, true)?;
        cx.add(h, y)
    });
    // Beside a product of its input, against which a softmax of another weighs it.
    let c = Case {
        params: &[FIVE[0], FIVE[1], FIVE[2], &[4, 4], &[2, 4], &[2]],
        ..c
    };
    lab.check("a mixture beside a product", &c, &|cx, x| {
        let [y, ..] = mixture(cx, x[0], 2, true)?;
        let m = cx.linear(x[0], p(3), None)?;
        let parts = cx.linear(x[0], p(4), Some(p(5)))?;
        let parts = cx.softmax(parts)?;
        cx.weigh(y, m, parts)
    });
}

#[test]
fn losses_of_routers_learn() {
    let lab = Lab::new();
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 4, 4]],
        ..Case::default()
    };
    for scope in [Scope::Sequence, Scope::MicroBatch] {
        lab.check(&format!("balance over {scope:?}"), &c, &|cx, x| {
            let scores = cx.router_scores(x[0], p(0))?;
            let probabilities = cx.softmax(scores)?;
            let (_, routing) = cx.choose_experts(probabilities, 2, true)?;
            let tally = cx.tally(probabilities, &routing, (scope, false))?;
            cx.balance_loss(tally, 3.0)
        });
    }
    lab.check("z-loss", &c, &|cx, x| {
        let scores = cx.router_scores(x[0], p(0))?;
        cx.z_loss(scores)
    });
    lab.check("both losses of a mixture", &c, &|cx, x| {
        let [_, tally, scores] = mixture(cx, x[0], 2, true)?;
        let (a, b) = (cx.balance_loss(tally, 1.0)?, cx.z_loss(scores)?);
        cx.add(a, b)
    });
}

fn outcome(
    lab: &Lab,
    params: &[Vec<f32>],
    x: Vec<f32>,
    f: &dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>,
) -> lab::Outcome {
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 3, 4]],
        ..Case::default()
    };
    let n = lab
        .run(&c, params, std::slice::from_ref(&x), None, f)
        .unwrap()
        .out
        .len();
    lab.run(&c, params, &[x], Some(&vec![1.0; n]), f).unwrap()
}

/// A loss of 1 where experts have equally many; an expert that no token chose has a gradient of zero, and not what memory held.
#[test]
fn experts_without_tokens_have_zero_gradients_and_ties_go_to_the_lower_number() {
    let lab = Lab::new();
    let mut r = lab::Rng(5);
    let stacks = [r.away(5 * 6 * 4), r.away(5 * 4 * 3)];
    // Every score is equal: experts 0 and 1 take all tokens.
    let params = [vec![0.0; 20], stacks[0].clone(), stacks[1].clone()];
    let x = r.away(24);
    let got = outcome(&lab, &params, x.clone(), &|cx, x| {
        Ok(mixture(cx, x[0], 2, true)?[0])
    });
    for (stack, each) in [(1, 24), (2, 12)] {
        for (e, g) in got.params[stack].chunks(each).enumerate() {
            let some = g.iter().any(|v| *v != 0.0);
            assert_eq!(some, e < 2, "stack {stack}, expert {e}: {g:?}");
            assert!(g.iter().all(|v| v.is_finite()), "{g:?}");
        }
    }
    let loss = outcome(&lab, &params, x.clone(), &|cx, x| {
        let [_, tally, _] = mixture(cx, x[0], 2, true)?;
        cx.balance_loss(tally, 1.0)
    });
    // Equal probabilities: E sum f / E is 1 whatever was chosen.
    assert!((loss.out[0] - 1.0).abs() < 1e-6, "{:?}", loss.out);
    let load = outcome(&lab, &params, x, &|cx, x| {
        let scores = cx.router_scores(x[0], p(0))?;
        let probabilities = cx.softmax(scores)?;
        let (_, routing) = cx.choose_experts(probabilities, 2, true)?;
        let tally = cx.tally(probabilities, &routing, (Scope::Sequence, false))?;
        cx.expert_load(tally, &routing)
    });
    let entropy = (2f32).ln() / (5f32).ln();
    for (found, want) in load.out.iter().zip([0.0, 2.5, entropy, 0.0]) {
        assert!((found - want).abs() < 1e-6, "{:?}", load.out);
    }
}

/// Values by hand: of one token, two experts and gates that are not made whole, `y = sum p_e W_e x`.
#[test]
fn a_mixture_by_hand() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[2, 1], &[2, 1, 1]],
        inputs: &[&[1, 1, 1]],
        ..Case::default()
    };
    let params = [vec![1.0, 2.0], vec![3.0, -5.0]];
    let run = |whole: bool, k: u64| {
        let f = move |cx: &mut Cx<'_>, x: &[Var]| {
            let scores = cx.router_scores(x[0], p(0))?;
            let probabilities = cx.softmax(scores)?;
            let (gates, routing) = cx.choose_experts(probabilities, k, whole)?;
            let rows = cx.dispatch(x[0], &routing)?;
            let y = cx.expert_linear(rows, p(1), &routing.grouped())?;
            cx.combine(y, gates, &routing, x[0])
        };
        lab.run(&c, &params, &[vec![0.5]], None, &f).unwrap().out[0]
    };
    let second = 1.0 / (1.0 + (-0.5f32).exp());
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-6, "{a} {b}");
    near(run(false, 2), 0.5 * (3.0 * (1.0 - second) - 5.0 * second));
    near(run(true, 2), 0.5 * (3.0 * (1.0 - second) - 5.0 * second));
    near(run(false, 1), 0.5 * -5.0 * second);
    near(run(true, 1), 0.5 * -5.0);
}

/// A fifth choice of four experts, and rows that are not those of the routing, are refused.
#[test]
fn what_does_not_fit_is_an_error() {
    let lab = Lab::new();
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 3, 4], &[1, 3, 4]],
        ..Case::default()
    };
    let zeros = |shapes: &[&[u64]]| -> Vec<Vec<f32>> {
        let n = |s: &&[u64]| vec![0.0; s.iter().product::<u64>() as usize];
        shapes.iter().map(n).collect()
    };
    let (params, inputs) = (zeros(c.params), zeros(c.inputs));
    let refused = |what: &str, f: &dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>| {
        let e = lab.run(&c, &params, &inputs, None, f).unwrap_err();
        assert!(e.to_string().contains(what), "{e}");
    };
    for k in [0, 6] {
        refused("choose_experts", &|cx, x| {
            let scores = cx.router_scores(x[0], p(0))?;
            Ok(cx.choose_experts(scores, k, false)?.0)
        });
    }
    refused("dispatch", &|cx, x| {
        let scores = cx.router_scores(x[0], p(0))?;
        let (_, routing) = cx.choose_experts(scores, 2, false)?;
        cx.dispatch(x[1], &routing)
    });
    refused("router_scores", &|cx, x| cx.router_scores(x[0], p(1)));
    refused("expert_linear", &|cx, x| {
        let scores = cx.router_scores(x[0], p(0))?;
        let (_, routing) = cx.choose_experts(scores, 2, false)?;
        let rows = cx.dispatch(x[0], &routing)?;
        cx.expert_linear(rows, p(2), &routing.grouped())
    });
}

/// The balance of tokens whose labels count (NVIDIA/Megatron-LM#1984): that of a batch that has no others, and learned by finite differences; a row in which
/// none counts adds nothing.
#[test]
fn the_balance_may_be_of_tokens_whose_labels_count() {
    let lab = Lab::new();
    let balance = |cx: &mut Cx<'_>, x: Var, scope: Scope| {
        let scores = cx.router_scores(x, p(0))?;
        let probabilities = cx.softmax(scores)?;
        let (_, routing) = cx.choose_experts(probabilities, 2, true)?;
        let tally = cx.tally(probabilities, &routing, (scope, true))?;
        cx.balance_loss(tally, 3.0)
    };
    let labels = [3, -100, 1, -100, 2, -100, -100, -100, -100, -100];
    let c = Case {
        params: &FIVE[..1],
        inputs: &[&[2, 5, 4]],
        targets: Some((&[2, 5], &labels)),
        ..Case::default()
    };
    for scope in [Scope::Sequence, Scope::MicroBatch] {
        let what = format!("balance of what counts over {scope:?}");
        lab.check(&what, &c, &|cx, x| balance(cx, x[0], scope));
    }
    let mut r = lab::Rng(9);
    let (router, x) = (vec![r.away(20)], r.away(40));
    let few: Vec<f32> = [0, 2, 4]
        .iter()
        .flat_map(|t| x[4 * t..4 * t + 4].to_vec())
        .collect();
    let of = |c: &Case<'_>, x: &[f32], scope: Scope| {
        let f = |cx: &mut Cx<'_>, x: &[Var]| balance(cx, x[0], scope);
        lab.run(c, &router, &[x.to_vec()], None, &f).unwrap().out[0]
    };
    let alone = Case {
        inputs: &[&[1, 3, 4]],
        targets: Some((&[1, 3], &[3, 1, 2])),
        ..c
    };
    let want = of(&alone, &few, Scope::Sequence);
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
    near(of(&c, &x, Scope::MicroBatch), want);
    // A mean over both rows, one of which has nothing.
    near(of(&c, &x, Scope::Sequence), want / 2.0);
}
