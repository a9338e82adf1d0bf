//! The same for what blocks of described models are made of: biases by distance, heads of one product, norms of heads, pointwise programs.

use super::lab::{Case, Lab};
use super::{p, tables};
use crossweave_tensor::*;

#[test]
fn biases_by_distance_from_a_table_and_fixed() {
    let lab = Lab::new();
    let spec = AttentionSpec {
        heads: 2,
        kv_heads: 2,
        ..Default::default()
    };
    let c = Case {
        params: &[&[3, 2]],
        inputs: &[&[2, 3, 8]],
        ..Case::default()
    };
    lab.check("buckets of distances", &c, &|cx, x| {
        let buckets = cx.env.run.from_f32([5], &[2.0, 1.0, 0.0, 1.0, 1.0])?;
        let extras = AttentionExtras {
            bias: Some(cx.distance_bias(p(0), &buckets)?),
            ..Default::default()
        };
        cx.attention_with(x[0], x[0], x[0], spec, extras)
    });
    let c = Case { params: &[], ..c };
    lab.check("slopes of distances", &c, &|cx, x| {
        let line: Vec<f32> = (0..14).map(|i| 0.3 * i as f32).collect();
        // The middle of a longer line.
        let line = cx.env.run.from_f32([2, 7], &line)?.narrow(1, 1, 5);
        let extras = AttentionExtras {
            fixed_bias: Some(line),
            ..Default::default()
        };
        cx.attention_with(x[0], x[0], x[0], spec, extras)
    });
}

#[test]
fn heads_of_one_product_in_turn() {
    let lab = Lab::new();
    let spec = AttentionSpec {
        heads: 2,
        kv_heads: 2,
        causal: true,
        ..Default::default()
    };
    let c = Case {
        params: &[&[24, 6], &[24]],
        inputs: &[&[2, 4, 6]],
        ..Case::default()
    };
    let block = |packed: bool| {
        move |cx: &mut Cx<'_>, x: &[Var]| {
            let (c, s) = tables(4, 1);
            let run = cx.env.run;
            let (cos, sin) = (run.from_f32([4, 1], &c)?, run.from_f32([4, 1], &s)?);
            let qkv = cx.linear(x[0], p(0), Some(p(1)))?;
            let h = cx.split_heads(qkv, 2, &[4, 4, 4])?;
            let q = cx.rope(h[0], 2, &cos, &sin, false)?;
            let k = cx.rope(h[1], 2, &cos, &sin, packed)?;
            cx.attention(q, k, h[2], spec)
        }
    };
    lab.check("q, k, v of each head", &c, &block(false));
    let packed = Case {
        segments: Some((&[2, 3], &[0, 1, 4, 0, 3, 4])),
        positions: Some((&[2, 4], &[0, 0, 1, 2, 0, 1, 2, 0])),
        ..c
    };
    lab.check("q, k, v of each head, packed", &packed, &block(true));
    let c = Case {
        params: &[&[4]],
        inputs: &[&[2, 3, 8]],
        ..Case::default()
    };
    for unit_offset in [false, true] {
        lab.check("norms of heads", &c, &|cx, x| {
            let form = NormForm {
                unit_offset,
                ..by_two()
            };
            let y = cx.rms_norm_as(x[0], p(0), 1e-5, form)?;
            cx.add(y, x[0])
        });
    }
    let c = Case {
        params: &[&[8], &[16, 8]],
        ..c
    };
    lab.check("norm by 1 + w", &c, &|cx, x| {
        let form = NormForm {
            unit_offset: true,
            ..NormForm::default()
        };
        let y = cx.rms_norm_as(x[0], p(0), 1e-5, form)?;
        let y = cx.linear(y, p(1), None)?;
        let h = cx.split(y, &[8, 8])?;
        cx.add(h[1], x[0])
    });
}

fn by_two() -> NormForm {
    NormForm {
        heads: 2,
        ..NormForm::default()
    }
}

#[test]
fn layer_norms_of_heads() {
    let lab = Lab::new();
    let shared = Case {
        params: &[&[4], &[4]],
        inputs: &[&[2, 3, 8]],
        ..Case::default()
    };
    lab.check("one scale and shift", &shared, &|cx, x| {
        let y = cx.layer_norm_as(x[0], p(0), Some(p(1)), 1e-5, by_two())?;
        cx.add(y, x[0])
    });
    let rows = Case {
        params: &[&[2, 4], &[16, 8]],
        inputs: &[&[2, 3, 8]],
        ..Case::default()
    };
    lab.check("rows of a scale", &rows, &|cx, x| {
        let y = cx.head_norm(x[0], &[p(0)], 1e-5, 2)?;
        cx.add(y, x[0])
    });
    // A column of a product, as q and k are.
    lab.check("rows of a scale over a slice", &rows, &|cx, x| {
        let both = cx.linear(x[0], p(1), None)?;
        let h = cx.split(both, &[8, 8])?;
        let y = cx.head_norm(h[1], &[p(0)], 1e-5, 2)?;
        cx.add(h[0], y)
    });
    let apart = Case {
        params: &[&[4], &[4]],
        inputs: &[&[2, 3, 8]],
        ..Case::default()
    };
    lab.check("a scale for each head", &apart, &|cx, x| {
        cx.head_norm(x[0], &[p(0), p(1)], 1e-5, 2)
    });
}

#[test]
fn queries_in_groups_of_a_fused_product() {
    let lab = Lab::new();
    // 2 groups of 2 queries, a key and a value, of width 2.
    let spec = AttentionSpec {
        heads: 4,
        kv_heads: 2,
        causal: true,
        ..AttentionSpec::default()
    };
    let c = Case {
        params: &[&[16, 6], &[16]],
        inputs: &[&[2, 4, 6]],
        ..Case::default()
    };
    lab.check("groups of queries", &c, &|cx, x| {
        let qkv = cx.linear(x[0], p(0), Some(p(1)))?;
        let h = cx.split_heads(qkv, 2, &[4, 2, 2])?;
        let q = cx.pack(h[0])?;
        cx.attention(q, h[1], h[2], spec)
    });
}

#[test]
fn positions_behind_a_projection() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[7, 6]],
        inputs: &[&[2, 4, 6]],
        ..Case::default()
    };
    let form = Lookup {
        first_position: 2,
        ..Lookup::default()
    };
    let block = |cx: &mut Cx<'_>, x: &[Var]| {
        let y = cx.add_positions(x[0], p(0), form)?;
        cx.add(y, x[0])
    };
    lab.check("positions", &c, &block);
    let packed = Case {
        positions: Some((&[2, 4], &[0, 0, 1, 2, 0, 1, 2, 0])),
        ..c
    };
    lab.check("positions within documents", &packed, &block);
}

#[test]
fn pointwise_programs() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[8, 4]],
        inputs: &[&[2, 3, 4]],
        ..Case::default()
    };
    for kind in [
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Relu,
        Activation::QuickGelu,
        Activation::Tanh,
        Activation::Relu2,
        Activation::Sigmoid,
        Activation::Mish,
        Activation::Gelu10,
    ] {
        let (f, glu) = (Pointwise::curve(kind), Pointwise::glu(kind));
        let what = format!("{kind:?}");
        lab.check(&what, &c, &|cx, x| cx.pointwise(&f, x));
        // A product may lie at the kink of the function.
        let smooth = kind != Activation::Relu;
        let gated = |cx: &mut Cx<'_>, x: &[Var]| {
            let h = cx.linear(x[0], p(0), None)?;
            let h = cx.split(h, &[4, 4])?;
            cx.pointwise(&glu, &h)
        };
        if smooth {
            lab.check(&format!("{what}, gated"), &c, &gated);
        }
        lab.check(&format!("{what} of itself"), &c, &|cx, x| {
            cx.pointwise(&glu, &[x[0], x[0]])
        });
    }
    let (scale, cap) = (Pointwise::scale(-1.5), Pointwise::soft_cap(0.8));
    for (name, f) in [("scale", scale), ("soft cap", cap)] {
        lab.check(name, &c, &|cx, x| cx.pointwise(&f, x));
        lab.check(&format!("{name} of a product, in place"), &c, &|cx, x| {
            let y = cx.linear(x[0], p(0), None)?;
            cx.pointwise(&f, &[y])
        });
        lab.check(&format!("{name} of what others read"), &c, &|cx, x| {
            let y = cx.linear(x[0], p(0), None)?;
            let a = cx.activation(y, Activation::Silu)?;
            let b = cx.pointwise(&f, &[y])?;
            cx.add(a, b)
        });
    }
}

#[test]
fn rope_leaves_alone_what_others_read() {
    let lab = Lab::new();
    let c = Case {
        params: &[&[4, 4]],
        inputs: &[&[1, 3, 4], &[1, 3, 4]],
        ..Case::default()
    };
    let turn = |cx: &mut Cx<'_>, x: Var| {
        let run = cx.env.run;
        let (c, s) = tables(3, 1);
        let (cos, sin) = (run.from_f32([3, 1], &c)?, run.from_f32([3, 1], &s)?);
        cx.rope(x, 2, &cos, &sin, false)
    };
    // An input of the block: the caller keeps it for recompute.
    lab.check("rope of an input", &c, &|cx, x| turn(cx, x[0]));
    // Read by an earlier backward.
    lab.check("rope of a saved value", &c, &|cx, x| {
        let h = cx.linear(x[0], p(0), None)?;
        let a = cx.silu(h)?;
        let r = turn(cx, h)?;
        cx.add(a, r)
    });
    // Its gradient is also another's.
    lab.check("rope beside a sum", &c, &|cx, x| {
        let h = cx.linear(x[0], p(0), None)?;
        let r = turn(cx, h)?;
        let z = cx.silu(x[1])?;
        cx.add(r, z)
    });
    let e = lab
        .run(
            &c,
            &[vec![0.5; 16]],
            &[vec![1.0; 12], vec![1.0; 12]],
            None,
            &|cx, x| {
                let h = cx.linear(x[0], p(0), None)?;
                turn(cx, h)?;
                cx.silu(h)
            },
        )
        .unwrap_err();
    assert!(
        e.to_string().contains("overwritten in place by rope"),
        "{e}"
    );
}
