//! Capacities of experts against the formula in double precision, finite differences, and numbers that DeepSpeed and Megatron-LM give; ties;
//! tokens that lose all their experts.

use super::lab::{Case, Lab, Rng};
use super::p;
use crossweave_tensor::*;

/// Parameters are the router `[5, 4]`, and the stacks `[5, 6, 4]` and `[5, 4, 3]`.
const FIVE: [&[u64]; 3] = [&[5, 4], &[5, 6, 4], &[5, 4, 3]];
/// Rows, tokens and width of the input.
const SIZES: [usize; 3] = [2, 6, 4];

/// A mixture over `x [B, T, 4]` within a capacity.
fn mixture(cx: &mut Cx<'_>, x: Var, (k, whole): (u64, bool), room: &Capacity) -> Result<Var> {
    let scores = cx.router_scores(x, p(0))?;
    let probabilities = cx.softmax(scores)?;
    let (gates, routing) = cx.choose_within(probabilities, (k, whole), room)?;
    let rows = cx.dispatch(x, &routing)?;
    let up = cx.expert_linear(rows, p(1), &routing.grouped())?;
    let parts = cx.split(up, &[3, 3])?;
    let h = cx.swiglu(parts[0], parts[1])?;
    let down = cx.expert_linear(h, p(2), &routing.grouped())?;
    cx.combine(down, gates, &routing, x)
}

/// Figures of the load of experts: the last is the part of choices that were dropped.
fn load(cx: &mut Cx<'_>, x: Var, k: u64, room: &Capacity) -> Result<Var> {
    let scores = cx.router_scores(x, p(0))?;
    let probabilities = cx.softmax(scores)?;
    let (_, routing) = cx.choose_within(probabilities, (k, true), room)?;
    let tally = cx.tally(probabilities, &routing, (Scope::MicroBatch, false))?;
    cx.expert_load(tally, &routing)
}

fn room(factor: f64, least: u64) -> Capacity {
    Capacity {
        over: Scope::Sequence,
        factor,
        least,
        first: Priority::Probability,
        renormalizes: false,
    }
}

/// Every kind of room that there is, some of which drop much and some nothing.
fn rooms() -> Vec<Capacity> {
    let mut all = vec![];
    for (i, (factor, least)) in [(0.5, 0), (0.7, 2), (1.0, 0), (1.25, 1), (9.0, 0)]
        .into_iter()
        .enumerate()
    {
        for over in [Scope::Sequence, Scope::MicroBatch] {
            for first in [Priority::Probability, Priority::Position] {
                all.push(Capacity {
                    over,
                    factor,
                    least,
                    first,
                    renormalizes: i % 2 == 1,
                });
            }
        }
    }
    all
}

/// A choice of a token: its expert and probability, and whether it stays.
type Choice = (usize, f64, bool);

/// Slots by the formula.
fn slots(room: &Capacity, tokens: usize, k: usize, experts: usize) -> usize {
    let even = room.factor * (k * tokens) as f64 / experts as f64;
    (even.ceil() as usize).max(room.least as usize)
}

/// The choices of each token of `groups` groups of as many, by their scores.
fn chosen(scores: &[Vec<f64>], k: usize, groups: usize, room: &Capacity) -> Vec<Vec<Choice>> {
    let experts = scores[0].len();
    let mut all: Vec<Vec<Choice>> = vec![];
    for s in scores {
        let top = s.iter().fold(f64::MIN, |m, v| m.max(*v));
        let sum: f64 = s.iter().map(|v| (v - top).exp()).sum();
        let probability = |e: usize| (s[e] - top).exp() / sum;
        let mut by: Vec<usize> = (0..experts).collect();
        by.sort_by(|a, b| s[*b].total_cmp(&s[*a]).then(a.cmp(b)));
        all.push(
            by[..k]
                .iter()
                .map(|e| (*e, probability(*e), false))
                .collect(),
        );
    }
    let each = scores.len() / groups;
    let most = slots(room, each, k, experts);
    for g in 0..groups {
        for e in 0..experts {
            let mut takers: Vec<(f64, usize, usize)> = vec![];
            for t in g * each..(g + 1) * each {
                let own = all[t].iter().position(|c| c.0 == e);
                takers.extend(own.map(|j| (all[t][j].1, t, j)));
            }
            if room.first == Priority::Probability {
                takers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            }
            for (_, t, j) in takers.into_iter().take(most) {
                all[t][j].2 = true;
            }
        }
    }
    all
}

fn rows(flat: &[f32], width: usize) -> Vec<Vec<f64>> {
    let row = |r: &[f32]| r.iter().map(|v| f64::from(*v)).collect();
    flat.chunks(width).map(row).collect()
}

fn product(w: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    let row = |w: &Vec<f64>| w.iter().zip(x).map(|(a, b)| a * b).sum();
    w.iter().map(row).collect()
}

/// The mixture in double precision, and the part of choices that are dropped.
fn reference(
    params: &[Vec<f32>],
    x: &[f32],
    (k, whole): (usize, bool),
    room: &Capacity,
) -> (Vec<f64>, f64) {
    let (router, x) = (rows(&params[0], 4), rows(x, 4));
    let (up, down) = (rows(&params[1], 4), rows(&params[2], 3));
    let scores: Vec<Vec<f64>> = x.iter().map(|x| product(&router, x)).collect();
    let groups = if room.over == Scope::Sequence {
        SIZES[0]
    } else {
        1
    };
    let choices = chosen(&scores, k, groups, room);
    let mut out = vec![];
    for (x, choices) in x.iter().zip(&choices) {
        let kept = choices.iter().filter(|c| c.2);
        let total: f64 = match (room.renormalizes, whole) {
            (true, _) => kept.clone().map(|c| c.1).sum(),
            (false, true) => choices.iter().map(|c| c.1).sum(),
            (false, false) => 1.0,
        };
        let mut y = vec![0.0; 4];
        for (e, probability, _) in kept {
            let parts = product(&up[6 * e..6 * (e + 1)], x);
            let h: Vec<f64> = (0..3)
                .map(|i| parts[i] / (1.0 + (-parts[i]).exp()) * parts[3 + i])
                .collect();
            let made = product(&down[4 * e..4 * (e + 1)], &h);
            y.iter_mut()
                .zip(&made)
                .for_each(|(y, m)| *y += probability / total * m);
        }
        out.extend(y);
    }
    let lost = choices.iter().flatten().filter(|c| !c.2).count();
    (out, lost as f64 / (choices.len() * k) as f64)
}

#[test]
fn mixtures_within_capacities_are_those_of_the_formula() {
    let lab = Lab::new();
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 6, 4]],
        ..Case::default()
    };
    let mut r = Rng(11);
    let mut seen = [false; 3];
    for room in rooms() {
        for (k, whole) in [(1, false), (2, true), (3, false), (5, true)] {
            let params: Vec<Vec<f32>> = FIVE.iter().map(|s| r.many(s.iter().product())).collect();
            let x = r.many(SIZES.iter().product::<usize>() as u64);
            let (want, lost) = reference(&params, &x, (k, whole), &room);
            let k = k as u64;
            let run = |f: &dyn Fn(&mut Cx<'_>, Var) -> Result<Var>| {
                let f = |cx: &mut Cx<'_>, x: &[Var]| f(cx, x[0]);
                let out = lab.run(&c, &params, std::slice::from_ref(&x), None, &f);
                out.unwrap().out
            };
            let got = run(&|cx, x| mixture(cx, x, (k, whole), &room));
            for (i, (a, b)) in got.iter().zip(&want).enumerate() {
                // Three roundings of f32 of numbers of about 1 in each of at most five summands.
                assert!(
                    (f64::from(*a) - b).abs() < 5e-6,
                    "{room:?}, k {k}, {i}: {a} {b}"
                );
            }
            let part = f64::from(run(&|cx, x| load(cx, x, k, &room))[3]);
            assert!(
                (part - lost).abs() < 1e-6,
                "{room:?}, k {k}: {part} of {lost}"
            );
            seen[usize::from(lost > 0.0)] = true;
            seen[2] |= want.chunks(4).any(|y| y.iter().all(|v| *v == 0.0));
        }
    }
    assert_eq!(
        seen, [true; 3],
        "some drop nothing, some something, some all of a token"
    );
}

#[test]
fn mixtures_within_capacities_learn() {
    let lab = Lab::new();
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 6, 4]],
        ..Case::default()
    };
    // The last four drop nothing, as mixtures without capacities.
    for (i, room) in rooms().into_iter().take(16).enumerate() {
        let how = [(1, false), (2, true), (3, false)][i % 3];
        lab.check(&format!("room {i}"), &c, &|cx, x| {
            mixture(cx, x[0], how, &room)
        });
    }
}

/// Eight tokens and four experts with the scores `2 sin(1.7 t + 0.9 e + 0.3 t e)`: how many choices DeepSpeed 0.19.8 keeps, and the auxiliary
/// losses that it and Megatron-LM have of them.
#[test]
fn numbers_of_kept_choices_and_losses_are_those_of_the_anchors() {
    let lab = Lab::new();
    let scores = |t: usize, e: usize| {
        let (t, e) = (t as f64, e as f64);
        (2.0 * (1.7 * t + 0.9 * e + 0.3 * t * e).sin()) as f32
    };
    let router: Vec<f32> = (0..4)
        .flat_map(|e| (0..8).map(move |t| scores(t, e)))
        .collect();
    let x: Vec<f32> = (0..64)
        .map(|i| if i / 8 == i % 8 { 1.0 } else { 0.0 })
        .collect();
    let c = Case {
        params: &[&[4, 8]],
        inputs: &[&[1, 8, 8]],
        ..Case::default()
    };
    let run = |f: &dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>| {
        let given = std::slice::from_ref(&x);
        lab.run(&c, std::slice::from_ref(&router), given, None, f)
            .unwrap()
            .out
    };
    for (k, least, slots, kept) in [
        (1, 2, 2, 7.0),
        (1, 4, 4, 8.0),
        (2, 0, 4, 13.0),
        (3, 0, 6, 23.0),
    ] {
        let room = room(1.0, least);
        assert_eq!(room.slots(8, [k, 4]), slots);
        let lost = run(&|cx, x| load(cx, x[0], k, &room))[3];
        let part = 1.0 - kept / (8 * k) as f32;
        assert!(
            (lost - part).abs() < 1e-6,
            "k {k}, at least {least}: {lost} {part}"
        );
    }
    for (k, aux) in [(1, 0.9921550), (2, 1.0157770), (3, 1.0045568)] {
        let got = run(&|cx, x| {
            let scores = cx.router_scores(x[0], p(0))?;
            let probabilities = cx.softmax(scores)?;
            let (_, routing) = cx.choose_experts(probabilities, k, true)?;
            let tally = cx.tally(probabilities, &routing, (Scope::Sequence, false))?;
            cx.balance_loss(tally, 1.0)
        });
        assert!(
            (f64::from(got[0]) - aux).abs() < 1e-6,
            "k {k}: {got:?} {aux}"
        );
    }
    let z = run(&|cx, x| {
        let scores = cx.router_scores(x[0], p(0))?;
        cx.z_loss(scores)
    });
    assert!((z[0] - 4.7972937).abs() < 1e-6, "{z:?}");
}

/// Among equal experts those of lower number are chosen, and of tokens of one probability the first stay.
#[test]
fn ties_go_to_the_lower_number_and_the_earlier_token() {
    let lab = Lab::new();
    let mut r = Rng(3);
    let params = [vec![0.0; 20], r.away(120), r.away(60)];
    let x = r.away(48);
    for first in [Priority::Probability, Priority::Position] {
        // Six tokens of each row choose the first two of five experts, which have two slots each.
        let room = Capacity {
            first,
            ..room(0.8, 0)
        };
        assert_eq!(room.slots(6, [2, 5]), 2);
        let c = Case {
            params: &FIVE,
            inputs: &[&[2, 6, 4]],
            ..Case::default()
        };
        let f = |cx: &mut Cx<'_>, x: &[Var]| mixture(cx, x[0], (2, true), &room);
        let got = lab
            .run(&c, &params, std::slice::from_ref(&x), None, &f)
            .unwrap();
        for (i, y) in got.out.chunks(4).enumerate() {
            assert_eq!(y.iter().any(|v| *v != 0.0), i % 6 < 2, "token {i}: {y:?}");
        }
    }
}

/// A factor is the decimal number that was written: 1.1 of 10 is 11, though its binary form is more. No expert has more slots than there are tokens.
#[test]
fn slots_are_counted_from_decimal_factors() {
    for (factor, least, [tokens, k, e], want) in [
        (1.1, 0, [10, 2, 2], 10),
        (1.1, 0, [100, 1, 10], 11),
        (1.0, 0, [7, 2, 4], 4),
        (0.01, 0, [7, 2, 4], 1),
        (0.01, 3, [7, 2, 4], 3),
        (1.0, 9, [7, 2, 4], 7),
    ] {
        assert_eq!(
            room(factor, least).slots(tokens, [k, e]),
            want,
            "{factor} {least}"
        );
    }
}

/// A token that loses all its experts is in no row, no gate and no gradient: not of itself, and not of the router (huggingface/transformers#48687, where
/// slots that nobody was sent to gave routers gradients).
#[test]
fn tokens_that_lose_all_their_experts_have_no_gradient() {
    let lab = Lab::new();
    let mut r = Rng(21);
    let params: Vec<Vec<f32>> = FIVE.iter().map(|s| r.away(s.iter().product())).collect();
    let x = r.away(48);
    let c = Case {
        params: &FIVE,
        inputs: &[&[2, 6, 4]],
        ..Case::default()
    };
    for renormalizes in [false, true] {
        let room = Capacity {
            renormalizes,
            ..room(0.1, 0)
        };
        let run = |x: &[f32], dout: &[f32]| {
            let f = |cx: &mut Cx<'_>, x: &[Var]| mixture(cx, x[0], (2, true), &room);
            lab.run(&c, &params, &[x.to_vec()], Some(dout), &f).unwrap()
        };
        let got = run(&x, &[1.0; 48]);
        let dx = got.inputs[0].clone().unwrap();
        let mut lost = vec![0.0; 48];
        for (i, (y, dx)) in got.out.chunks(4).zip(dx.chunks(4)).enumerate() {
            let none = y.iter().all(|v| *v == 0.0);
            assert_eq!(
                none,
                dx.iter().all(|v| *v == 0.0),
                "token {i}: {y:?} {dx:?}"
            );
            if none {
                lost[4 * i..4 * i + 4].fill(1.0);
            }
        }
        let some = lost.iter().filter(|v| **v > 0.0).count();
        assert!((8..48).contains(&some), "{some}");
        // What comes back to lost tokens alone reaches nobody.
        let got = run(&x, &lost);
        assert!(got.params.iter().flatten().all(|g| *g == 0.0));
    }
}
