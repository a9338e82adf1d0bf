//! Forward and backward of every op of the tape against central finite differences, alone and in the combinations blocks use.

mod capacity;
mod experts;
mod lab;
mod parts;

use crossweave_hal::DType;
use crossweave_hal::abi::op;
use crossweave_mesh::Axis;
use crossweave_tensor::*;
use lab::{Case, Lab, Rng};

fn p(i: u16) -> Param {
    Param(i)
}

#[test]
fn linear_with_and_without_bias_both_ways_round() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[5, 3], &[5]],
        inputs: &[&[2, 2, 3]],
        ..Case::default()
    };
    lab.check("linear", &c, &|cx, x| cx.linear(x[0], p(0), Some(p(1))));
    lab.check("linear without bias", &c, &|cx, x| {
        cx.linear(x[0], p(0), None)
    });
    let c = Case {
        params: &[&[3, 5], &[5]],
        inputs: &[&[2, 2, 3]],
        ..Case::default()
    };
    lab.check("conv1d", &c, &|cx, x| cx.conv1d(x[0], p(0), Some(p(1))));
}

#[test]
fn one_product_over_several_parameters() {
    let c = Case {
        params: &[&[2, 3], &[4, 3], &[1, 3], &[2], &[4], &[1]],
        inputs: &[&[1, 4, 3]],
        ..Case::default()
    };
    Lab::new().check("linear_fused", &c, &|cx, x| {
        let y = cx.linear_fused(x[0], &[p(0), p(1), p(2)], &[p(3), p(4), p(5)])?;
        // A piece in the middle stays unused: its gradient is zero, not what memory held.
        let parts = cx.split(y, &[2, 4, 1])?;
        let a = cx.silu(parts[0])?;
        let z = cx.split(a, &[1, 1])?;
        let s = cx.add(z[0], z[1])?;
        cx.add(s, parts[2])
    });
}

#[test]
fn norms_with_a_residual_branch() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[6], &[6]],
        inputs: &[&[2, 3, 6]],
        ..Case::default()
    };
    lab.check("layer_norm", &c, &|cx, x| {
        cx.layer_norm(x[0], p(0), Some(p(1)), 1e-5)
    });
    lab.check("layer_norm without bias", &c, &|cx, x| {
        cx.layer_norm(x[0], p(0), None, 1e-5)
    });
    lab.check("rms_norm", &c, &|cx, x| cx.rms_norm(x[0], p(0), 1e-5));
    lab.check("x + norm(x) + silu(norm(x))", &c, &|cx, x| {
        let n = cx.layer_norm(x[0], p(0), Some(p(1)), 1e-5)?;
        let s = cx.silu(n)?;
        let y = cx.add(x[0], n)?;
        cx.add(y, s)
    });
    lab.check("two norms of one value", &c, &|cx, x| {
        let h = cx.silu(x[0])?;
        let (a, b) = (cx.rms_norm(h, p(0), 1e-5)?, cx.rms_norm(h, p(1), 1e-5)?);
        let y = cx.add(a, b)?;
        cx.add(y, h)
    });
}

#[test]
fn activations_and_swiglu() {
    let lab = Lab::new();
    let c = Case {
        inputs: &[&[2, 7]],
        ..Case::default()
    };
    for kind in [
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Relu,
    ] {
        lab.check(&format!("{kind:?}"), &c, &|cx, x| cx.activation(x[0], kind));
    }
    let c = Case {
        inputs: &[&[2, 3], &[2, 3], &[2, 6]],
        ..Case::default()
    };
    lab.check("swiglu", &c, &|cx, x| cx.swiglu(x[0], x[1]));
    lab.check("swiglu of one value", &c, &|cx, x| cx.swiglu(x[0], x[0]));
    lab.check("swiglu of slices", &c, &|cx, x| {
        let h = cx.split(x[2], &[3, 3])?;
        cx.swiglu(h[0], h[1])
    });
    lab.check("swiglu of one slice", &c, &|cx, x| {
        let h = cx.split(x[2], &[3, 3])?;
        cx.swiglu(h[0], h[0])
    });
}

#[test]
fn values_used_more_than_once() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[4, 4], &[4, 4]],
        inputs: &[&[3, 4], &[3, 4]],
        ..Case::default()
    };
    lab.check("x + f(x) + g(x)", &c, &|cx, x| {
        let h = cx.silu(x[0])?;
        let (f, g) = (cx.linear(h, p(0), None)?, cx.linear(h, p(1), None)?);
        let y = cx.add(h, f)?;
        cx.add(y, g)
    });
    lab.check("one parameter twice", &c, &|cx, x| {
        let h = cx.linear(x[0], p(0), None)?;
        let h = cx.activation(h, Activation::GeluErf)?;
        cx.linear(h, p(0), None)
    });
    lab.check("x + x", &c, &|cx, x| cx.add(x[0], x[0]));
    lab.check("both sides of a sum read on", &c, &|cx, x| {
        let (a, b) = (cx.silu(x[0])?, cx.silu(x[1])?);
        let s = cx.add(a, b)?;
        let t = cx.add(s, a)?;
        let u = cx.linear(b, p(0), None)?;
        cx.add(t, u)
    });
    lab.check("whole and split", &c, &|cx, x| {
        let h = cx.silu(x[0])?;
        let parts = cx.split(h, &[2, 2])?;
        let s = cx.swiglu(parts[0], parts[1])?;
        let w = cx.linear(h, p(0), None)?;
        let w = cx.split(w, &[2, 2])?;
        cx.add(s, w[1])
    });
    lab.check("split, then whole again", &c, &|cx, x| {
        let h = cx.silu(x[0])?;
        let parts = cx.split(h, &[1, 3])?;
        let again = cx.split(h, &[3, 1])?;
        let both = cx.add(parts[1], again[0])?;
        let twice = cx.add(both, parts[1])?;
        let inner = cx.split(twice, &[2, 1])?;
        cx.silu(inner[0])
    });
}

fn tables(lab_t: u64, half: u64) -> (Vec<f32>, Vec<f32>) {
    (0..lab_t * half)
        .map(|i| {
            let a = (i / half) as f32 * 0.7 / (1 + i % half) as f32;
            (a.cos(), a.sin())
        })
        .unzip()
}

fn attend(
    cx: &mut Cx<'_>,
    x: Var,
    heads: u64,
    kv: u64,
    d: u64,
    spec: AttentionSpec,
    inter: bool,
) -> Result<Var> {
    let run = cx.env.run;
    let (c, s) = tables(5, d / 2);
    let (cos, sin) = (run.from_f32([5, d / 2], &c)?, run.from_f32([5, d / 2], &s)?);
    let qkv = cx.linear_fused(x, &[p(0), p(1), p(2)], &[])?;
    let parts = cx.split(qkv, &[heads * d, kv * d, kv * d])?;
    let q = cx.rope(parts[0], heads, &cos, &sin, inter)?;
    let k = cx.rope(parts[1], kv, &cos, &sin, inter)?;
    cx.attention(q, k, parts[2], spec)
}

#[test]
fn attention_over_slices_of_one_product_with_rope() {
    let lab = Lab::new();
    let spec = |heads, kv_heads, causal, window| AttentionSpec {
        heads,
        kv_heads,
        causal,
        window,
        scale: 0.0,
        ..Default::default()
    };
    let c = Case {
        params: &[&[8, 6], &[8, 6], &[8, 6]],
        inputs: &[&[2, 4, 6]],
        ..Case::default()
    };
    lab.check("mha", &c, &|cx, x| {
        attend(cx, x[0], 2, 2, 4, spec(2, 2, true, 0), false)
    });
    let c = Case {
        params: &[&[16, 6], &[4, 6], &[4, 6]],
        inputs: &[&[1, 5, 6]],
        ..Case::default()
    };
    lab.check("mqa, window, interleaved", &c, &|cx, x| {
        attend(cx, x[0], 4, 1, 4, spec(4, 1, true, 2), true)
    });
    let c = Case {
        inputs: &[&[1, 3, 4], &[1, 5, 4], &[1, 5, 4]],
        ..Case::default()
    };
    lab.check("cross attention", &c, &|cx, x| {
        cx.attention(x[0], x[1], x[2], spec(2, 2, false, 0))
    });
    lab.check("keys are values", &c, &|cx, x| {
        cx.attention(x[0], x[1], x[1], spec(2, 2, false, 0))
    });
    let c = Case {
        inputs: &[&[1, 3, 8]],
        ..Case::default()
    };
    lab.check("one slice for all three", &c, &|cx, x| {
        let h = cx.split(x[0], &[4, 4])?;
        cx.attention(h[0], h[0], h[0], spec(1, 1, true, 0))
    });
}

#[test]
fn attention_with_a_cap_a_bias_sinks_and_dropout() {
    let lab = Lab::new();
    let spec = AttentionSpec {
        heads: 4,
        kv_heads: 2,
        causal: true,
        ..Default::default()
    };
    let with = |spec: AttentionSpec, bias: bool, sinks: bool| {
        move |cx: &mut Cx<'_>, x: &[Var]| {
            let extras = AttentionExtras {
                bias: bias.then_some(x[3]),
                sinks: sinks.then_some(p(0)),
                fixed_bias: None,
            };
            cx.attention_with(x[0], x[1], x[2], spec, extras)
        }
    };
    let c = Case {
        params: &[&[4]],
        inputs: &[&[2, 5, 16], &[2, 5, 8], &[2, 5, 8], &[4, 9]],
        ..Case::default()
    };
    let cap = AttentionSpec { cap: 0.7, ..spec };
    let dropout = AttentionSpec {
        dropout: 0.3,
        ..spec
    };
    let all = AttentionSpec {
        cap: 0.7,
        dropout: 0.3,
        window: 3,
        ..spec
    };
    lab.check("soft cap", &c, &with(cap, false, false));
    lab.check("bias by distance", &c, &with(spec, true, false));
    lab.check("sinks", &c, &with(spec, false, true));
    lab.check("dropout of weights", &c, &with(dropout, false, false));
    lab.check("all of it", &c, &with(all, true, true));
    let packed = Case {
        segments: Some((&[2, 4], &[0, 2, 5, 5, 0, 1, 4, 5])),
        ..c
    };
    lab.check("all of it, packed", &packed, &with(all, true, true));
    // More keys than queries.
    let cross = Case {
        inputs: &[&[2, 3, 16], &[2, 5, 8], &[2, 5, 8], &[4, 7]],
        ..c
    };
    lab.check("all of it, cross", &cross, &with(all, true, true));
}

#[test]
fn dropped_weights_are_those_of_their_place_in_the_global_batch() {
    let lab = Lab::new();
    let mut r = Rng(3);
    let (b, t, d) = (4, 7, 8);
    let qkv: Vec<Vec<f32>> = (0..3).map(|_| r.many(b * t * d)).collect();
    let spec = AttentionSpec {
        heads: 2,
        kv_heads: 2,
        causal: true,
        dropout: 0.4,
        ..Default::default()
    };
    let run = |first: u64, rows: u64, step: u64| {
        let shape: &[u64] = &[rows, t, d];
        let c = Case {
            inputs: &[shape; 3],
            key: RngKey {
                seed: 9,
                step,
                unit: 2,
                first_sequence: first,
            },
            ..Case::default()
        };
        let at = (first * t * d) as usize..((first + rows) * t * d) as usize;
        let own: Vec<Vec<f32>> = qkv.iter().map(|x| x[at.clone()].to_vec()).collect();
        let f = |cx: &mut Cx<'_>, x: &[Var]| cx.attention(x[0], x[1], x[2], spec);
        lab.run(&c, &[], &own, None, &f).unwrap().out
    };
    let whole = run(0, 4, 1);
    let parts: Vec<f32> = [(0, 1), (1, 2), (3, 1)]
        .iter()
        .flat_map(|(first, rows)| run(*first, *rows, 1))
        .collect();
    assert_eq!(whole, parts, "in other micro-batches other weights drop");
    assert_ne!(whole, run(0, 4, 2), "every step drops the same weights");
}

#[test]
fn documents_that_share_rows() {
    let lab = Lab::new();
    let spec = AttentionSpec {
        heads: 4,
        kv_heads: 2,
        causal: true,
        window: 0,
        scale: 0.0,
        ..Default::default()
    };
    let block = |cx: &mut Cx<'_>, x: &[Var]| attend(cx, x[0], 4, 2, 4, spec, false);
    let c = Case {
        params: &[&[16, 6], &[8, 6], &[8, 6]],
        inputs: &[&[2, 5, 6]],
        segments: Some((&[2, 4], &[0, 2, 5, 5, 0, 1, 4, 5])),
        positions: Some((&[2, 5], &[0, 1, 0, 1, 2, 0, 0, 1, 2, 0])),
        ..Case::default()
    };
    lab.check("packed attention with rope", &c, &block);
    let tokens = Case {
        params: &[&[5, 4], &[7, 4]],
        inputs: &[],
        tokens: Some((&[2, 5], &[1, 4, 1, 0, 2, 3, 3, 1, 0, 4])),
        ..c
    };
    lab.check("embedding by positions", &tokens, &|cx, _| {
        cx.embedding(p(0), Some(p(1)))
    });
    let zeros = |shapes: &[&[u64]]| -> Vec<Vec<f32>> {
        let each = shapes.iter().map(|s| s.iter().product::<u64>());
        each.map(|n| vec![0.0; n as usize]).collect()
    };
    let wrong = |c: &Case<'_>, parts: &[&str]| {
        let said = lab.run(
            c,
            &zeros(c.params),
            &zeros(c.inputs),
            None,
            &|cx, x| match x.is_empty() {
                true => cx.embedding(p(0), Some(p(1))),
                false => block(cx, x),
            },
        );
        let said = said.expect_err("an error").to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    let lengths = Case {
        segments: Some((&[1, 3], &[0, 2, 5])),
        ..c
    };
    wrong(&lengths, &["attention", "i32[1, 3]", "[2, documents + 1]"]);
    let places: Option<(&[u64], &[i32])> = Some((&[2, 4], &[0; 8]));
    let (c, tokens) = (
        Case {
            positions: places,
            ..c
        },
        Case {
            positions: places,
            ..tokens
        },
    );
    wrong(&c, &["rope", "i32[2, 4]", "[2, 5]"]);
    wrong(&tokens, &["embedding", "i32[2, 4]", "[2, 5]"]);
}

#[test]
fn embedding_and_cross_entropy() {
    let lab = Lab::new();
    let ids: &[i64] = &[1, 4, 1, 0, 2, 1];
    let c = Case {
        params: &[&[5, 4], &[7, 4], &[5, 4]],
        tokens: Some((&[2, 3], ids)),
        targets: Some((&[2, 3], &[4, 1, 0, 2, 1, 3])),
        ..Case::default()
    };
    lab.check("embedding", &c, &|cx, _| cx.embedding(p(0), None));
    lab.check("embedding with positions", &c, &|cx, _| {
        cx.embedding(p(0), Some(p(1)))
    });
    lab.check("tied head", &c, &|cx, _| {
        let h = cx.embedding(p(0), Some(p(1)))?;
        let logits = cx.linear(h, p(0), None)?;
        cx.cross_entropy(logits)
    });
    // Logits that others read too must survive the backward of the loss.
    lab.check("two losses of one product", &c, &|cx, _| {
        let h = cx.embedding(p(0), None)?;
        let logits = cx.linear(h, p(2), None)?;
        let soft = cx.silu(logits)?;
        let (a, b) = (cx.cross_entropy(soft)?, cx.cross_entropy(logits)?);
        let c = cx.cross_entropy(logits)?;
        let y = cx.add(a, b)?;
        cx.add(y, c)
    });
    let c = Case {
        inputs: &[&[2, 3, 5]],
        ..c
    };
    lab.check("logits from outside", &c, &|cx, x| cx.cross_entropy(x[0]));
}

#[test]
fn dropout_is_a_function_of_its_key() {
    let lab = Lab::new();
    let key = |first_sequence, step, unit| RngKey {
        seed: 7,
        step,
        unit,
        first_sequence,
    };
    for width in [4u64, 3] {
        let shape: &[u64] = &[2, 5, width];
        let one = |k, n: u64| {
            let s: &[u64] = &[n, 5, width];
            let c = Case {
                inputs: &[s],
                key: k,
                ..Case::default()
            };
            let x = vec![1.0; (n * 5 * width) as usize];
            lab.run(&c, &[], &[x], None, &|cx, x| cx.dropout(x[0], 0.4))
                .unwrap()
                .out
        };
        let whole = one(key(6, 3, 2), 2);
        assert_eq!(whole, one(key(6, 3, 2), 2), "recompute gives the same mask");
        // One sequence a micro-batch gives what two give: the key is the place in the global batch.
        assert_eq!(whole, [one(key(6, 3, 2), 1), one(key(7, 3, 2), 1)].concat());
        for other in [key(8, 3, 2), key(6, 4, 2), key(6, 3, 1)] {
            assert_ne!(whole, one(other, 2), "{other:?}");
        }
        assert!(
            whole
                .iter()
                .all(|v| *v == 0.0 || (*v - 1.0 / 0.6).abs() < 1e-6)
        );
        let c = Case {
            inputs: &[shape],
            key: key(1, 1, 1),
            ..Case::default()
        };
        lab.check("dropout", &c, &|cx, x| {
            let y = cx.dropout(x[0], 0.3)?;
            let z = cx.dropout(y, 0.3)?;
            let s = cx.silu(z)?;
            cx.add(s, y)
        });
    }
}

/// `x²`, written outside.
struct Square;
impl Function for Square {
    fn forward(&mut self, env: &Env<'_>, ins: &[&Tensor]) -> Result<Tensor> {
        product(env, ins[0], ins[0])
    }
    fn backward(
        &self,
        env: &Env<'_>,
        ins: &[&Tensor],
        dout: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let half = product(env, ins[0], dout)?;
        let y = env.run.empty(*half.shape(), half.dtype())?;
        let k = op::KindParams {
            kind: op::binary::ADD,
            ..Default::default()
        };
        env.run.launch(
            op::BINARY,
            &[Some(&y), Some(&half), Some(&half)],
            k.as_bytes(),
            &[],
        )?;
        Ok(vec![Some(y)])
    }
    fn spmd(&self, ins: &[Spmd]) -> std::result::Result<Spmd, String> {
        if ins[0].contains(&Ty::P) {
            return Err("square of a pending sum".into());
        }
        Ok(ins[0])
    }
}

fn product(env: &Env<'_>, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = env.run.empty(*a.shape(), a.dtype())?;
    let k = op::KindParams {
        kind: op::binary::MUL,
        ..Default::default()
    };
    env.run
        .launch(op::BINARY, &[Some(&y), Some(a), Some(b)], k.as_bytes(), &[])?;
    Ok(y)
}

#[test]
fn a_function_from_outside() {
    let c = Case {
        params: &[&[4], &[4, 4]],
        inputs: &[&[3, 4]],
        ..Case::default()
    };
    Lab::new().check("square", &c, &|cx, x| {
        let n = cx.rms_norm(x[0], p(0), 1e-5)?;
        let s = cx.apply(Square, &[n])?;
        let l = cx.linear(s, p(1), None)?;
        cx.add(l, n)
    });
}

/// A group of two ranks that hold the same: a sum doubles.
struct Twins;
impl Groups for Twins {
    fn size(&self, axis: Axis) -> u32 {
        if axis == Axis::Tp { 2 } else { 1 }
    }
    fn at(&self, _: Axis) -> u32 {
        0
    }
    fn exchange(&self, run: &Run<'_>, _: &Link, all: &[Exchange<'_>]) -> Result<()> {
        let k = op::KindParams {
            kind: op::binary::ADD,
            ..Default::default()
        };
        for e in all {
            let Exchange::AllReduce(t) = e else {
                return shape_error(format!("twins have no {}", e.kind()));
            };
            run.launch(op::BINARY, &[Some(t), Some(t), Some(t)], k.as_bytes(), &[])?;
        }
        Ok(())
    }
}

#[test]
fn transitions_of_tensor_parallelism_are_each_others_backward() {
    let lab = Lab::new();
    let c = Case {
        inputs: &[&[2, 3]],
        groups: &Twins,
        ..Case::default()
    };
    let x = Rng(3).many(6);
    let d = Rng(4).many(6);
    let twice = |v: &[f32]| v.iter().map(|x| 2.0 * x).collect::<Vec<_>>();
    let e = lab
        .run(&c, &[], std::slice::from_ref(&x), Some(&d), &|cx, x| {
            cx.enter(x[0], Axis::Tp)
        })
        .unwrap();
    assert_eq!((e.out, e.inputs), (x.clone(), vec![Some(twice(&d))]));
    let r = lab
        .run(&c, &[], std::slice::from_ref(&x), Some(&d), &|cx, x| {
            cx.reduce(x[0], Axis::Tp)
        })
        .unwrap();
    assert_eq!((r.out, r.inputs), (twice(&x), vec![Some(d)]));
    let c = Case {
        groups: &NoGroups,
        ..c
    };
    lab.check("a group of one", &c, &|cx, x| {
        let y = cx.enter(x[0], Axis::Tp)?;
        let y = cx.silu(y)?;
        cx.reduce(y, Axis::Tp)
    });
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[5, 3], &[4]],
        inputs: &[&[1, 2, 4], &[1, 2, 3]],
        ..Case::default()
    };
    type F = fn(&mut Cx<'_>, &[Var]) -> Result<Var>;
    let cases: &[(F, &[&str])] = &[
        (
            |cx, x| cx.linear(x[0], p(0), None),
            &["linear", "[1, 2, 4]", "[5, 3]"],
        ),
        (
            |cx, x| cx.linear(x[1], p(0), Some(p(1))),
            &["linear", "bias", "[4]"],
        ),
        (|cx, x| cx.linear(x[0], p(9), None), &["parameter 9", "2"]),
        (
            |cx, x| cx.linear_fused(x[0], &[p(0), p(1)], &[]),
            &["fused", "[4]"],
        ),
        (
            |cx, x| cx.add(x[0], x[1]),
            &["add", "[1, 2, 4]", "[1, 2, 3]"],
        ),
        (|cx, x| cx.swiglu(x[0], x[1]), &["swiglu", "[1, 2, 3]"]),
        (
            |cx, x| cx.rms_norm(x[1], p(1), 1e-5),
            &["rms_norm", "[1, 2, 3]", "[4]"],
        ),
        (
            |cx, x| cx.layer_norm(x[1], p(1), None, 1e-5),
            &["layer_norm", "[1, 2, 3]"],
        ),
        (
            |cx, x| cx.split(x[0], &[1, 2]).map(|v| v[0]),
            &["split", "[1, 2]", "[1, 2, 4]"],
        ),
        (|cx, x| cx.dropout(x[0], 1.5), &["dropout", "1.5"]),
        (|cx, _| cx.embedding(p(0), None), &["embedding", "tokens"]),
        (
            |cx, x| cx.cross_entropy(x[0]),
            &["cross_entropy", "targets"],
        ),
        (
            |cx, x| {
                let spec = AttentionSpec {
                    heads: 3,
                    kv_heads: 2,
                    causal: true,
                    window: 0,
                    scale: 0.0,
                    ..Default::default()
                };
                cx.attention(x[0], x[0], x[0], spec)
            },
            &["attention", "[1, 2, 4]", "3"],
        ),
        (
            |cx, x| {
                let t = cx.env.run.from_f32([1, 1], &[1.0])?;
                cx.rope(x[0], 2, &t, &t, false)
            },
            &["rope", "[1, 2, 4]", "[1, 1]"],
        ),
        (
            |cx, x| {
                // Rotates more than a head has.
                let t = cx.env.run.from_f32([2, 4], &[1.0; 8])?;
                cx.rope(x[0], 2, &t, &t, false)
            },
            &["rope", "[2, 4]"],
        ),
    ];
    let params = [vec![0.0; 15], vec![0.0; 4]];
    let inputs = [vec![0.0; 8], vec![0.0; 6]];
    for (i, (f, words)) in cases.iter().enumerate() {
        let e = lab
            .run(&c, &params, &inputs, None, f)
            .err()
            .unwrap_or_else(|| panic!("case {i} was accepted"));
        let e = e.to_string();
        for w in *words {
            assert!(e.contains(w), "case {i}: {w:?} is not in {e:?}");
        }
    }
}

#[test]
fn sharding_mistakes_are_sentences() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[4, 4], &[4, 4]],
        inputs: &[&[2, 4]],
        ..Case::default()
    };
    // Parameter 0 is split on its rows (outputs) over tp, parameter 1 on its columns (inputs).
    let faults = |f: &dyn Fn(&mut Cx<'_>, Var) -> Result<Var>| {
        let found = std::cell::RefCell::new(vec![]);
        lab.run(
            &c,
            &[vec![0.0; 16], vec![0.0; 16]],
            &[vec![0.0; 8]],
            None,
            &|cx, _| {
                let split = |dim: u8| TypedParam {
                    name: format!("split on {dim}"),
                    along: [(Ty::V, dim), (Ty::I, 0), (Ty::I, 0), (Ty::I, 0)],
                    ..TypedParam::default()
                };
                let check = Check::new(vec![split(0), split(1)]);
                let mut dry = Cx::checked(cx.env, check);
                let x = dry.input(cx.env.run.zeros([2, 4], DType::F32)?);
                f(&mut dry, x)?;
                found
                    .borrow_mut()
                    .extend(dry.notes().unwrap().faults().to_vec());
                Ok(cx.input(cx.env.run.zeros([1], DType::F32)?))
            },
        )
        .unwrap();
        found.into_inner()
    };
    let right = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        let a = cx.silu(h)?;
        let y = cx.linear(a, p(1), None)?;
        let y = cx.reduce(y, Axis::Tp)?;
        cx.add(x, y)
    });
    assert_eq!(right, Vec::<String>::new());
    // What ranks have alike and use differently goes with what differs; what they use alike does not.
    let shared = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        let both = cx.add(r, h)?;
        let y = cx.linear(both, p(1), None)?;
        let y = cx.reduce(y, Axis::Tp)?;
        cx.add(x, y)
    });
    assert_eq!(shared, Vec::<String>::new());
    let alike = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        cx.add(x, h)
    });
    assert!(alike.iter().any(|f| f.contains("add")), "{alike:?}");
    let no_enter = faults(&|cx, x| cx.linear(x, p(0), None));
    assert!(
        no_enter
            .iter()
            .any(|f| f.contains("linear") && f.contains("enter")),
        "{no_enter:?}"
    );
    let no_reduce = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        let y = cx.linear(h, p(1), None)?;
        cx.add(x, y)
    });
    assert!(
        no_reduce
            .iter()
            .any(|f| f.contains("add") && f.contains("reduce")),
        "{no_reduce:?}"
    );
    let nonlinear = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        let y = cx.linear(h, p(1), None)?;
        cx.silu(y)
    });
    assert!(
        nonlinear.iter().any(|f| f.contains("pending sum")),
        "{nonlinear:?}"
    );
    let squared = faults(&|cx, x| {
        let r = cx.enter(x, Axis::Tp)?;
        let h = cx.linear(r, p(0), None)?;
        let y = cx.linear(h, p(1), None)?;
        cx.apply(Square, &[y])
    });
    assert_eq!(squared, ["function: square of a pending sum"]);
}
