//! `attention_ext_fwd`, `attention_ext_bwd`: soft cap, bias by distance, sinks and dropped weights, each alone and all together, over whole
//! rows and over segments whose queries and keys may be of different numbers.

use super::attention::{chosen, segments, unread};
use super::attention_parts;
use super::attention_reference::{Inputs, KEY, Shape, Wide, backward, forward};
use super::bound::{Num, num as exact};
use super::cell::{About, Cell, FLOATS, Gen};
use super::tensor::T;
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op;

const F: DType = DType::F32;

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in FLOATS {
        for (id, back) in [
            (op::ATTENTION_EXT_FWD, false),
            (op::ATTENTION_EXT_BWD, true),
        ] {
            all.push(Cell::new(id, t.name(), move |g| match g.about {
                About::Parts => parts(g, t, back),
                About::Pairs => pairs(g, t, back),
                _ => trials(g, t, back),
            }));
        }
    }
    all
}

fn parts(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let all = attention_parts::shapes();
    all.iter().map(|s| trial(g, t, s, false, back)).collect()
}

/// Everything that may come on top of scores and weights, with sizes, masks, segments and parts of rows, by design.
fn pairs(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let docs: [&[i32]; 3] = [&[0, 7, 7, 19], &[1, 4, 4, 9], &[0, 9, 13, 26]];
    // Queries, keys, and where their segments end.
    let sizes = [
        (17, 17, [None, None]),
        (9, 26, [None, None]),
        (26, 9, [None, None]),
        (19, 19, [Some(docs[0]), None]),
        (9, 26, [Some(docs[1]), Some(docs[2])]),
        (26, 19, [Some(docs[2]), Some(docs[0])]),
    ];
    let rows = g.covering([2, 6, 4, 4, 2, 4, 2, 2, 2, 2, 2, 2, 3, 2, 3, 2]);
    let each = rows.into_iter().map(|row| {
        let [
            b,
            n,
            h,
            d,
            causal,
            w,
            scale,
            cap,
            drop,
            part,
            bias,
            sinks,
            shift,
            in_row,
            wide,
            lie,
        ] = row;
        let (tq, tk, cu) = sizes[n];
        let s = Shape {
            cap: [0.0, 1.7][cap],
            dropout: [0.0, 0.3][drop],
            whole: [[0; 3], [7, 95, 50]][part],
            first_key: [0, 7][part],
            bias: bias == 1,
            sinks: sinks == 1,
            shift: [0, 5, -4][shift],
            in_row: in_row == 1,
            wide: [Wide::None, Wide::Written, Wide::All][wide],
            cu: cu.map(|ends| ends.map(|ends| ends.repeat(1 + b).into())),
            ..chosen([b, h, d, causal, w, scale], [tq, tk])
        };
        trial(g, t, &s, lie == 1, back)
    });
    each.collect()
}

fn trials(g: &mut Gen, t: DType, back: bool) -> Vec<Trial> {
    let s = |b, tq, tk, h, hkv, d, causal| Shape {
        b,
        tq,
        tk,
        h,
        hkv,
        d,
        causal,
        ..Shape::default()
    };
    let cap = |cap, s: Shape| Shape { cap, ..s };
    let drop = |dropout, s: Shape| Shape { dropout, ..s };
    let bias = |s: Shape| Shape { bias: true, ..s };
    let sinks = |s: Shape| Shape { sinks: true, ..s };
    let window = |window, s: Shape| Shape { window, ..s };
    let cu = |q: &'static [i32], k: Option<&'static [i32]>, s: Shape| Shape {
        cu: [Some(q.into()), k.map(Into::into)],
        ..s
    };
    let everything = |p, s: Shape| drop(p, bias(sinks(cap(1.5, s))));
    if g.sizes() {
        let all = large(g, &|s| everything(0.2, s));
        return all.iter().map(|s| trial(g, t, s, false, back)).collect();
    }
    if g.about == About::Models {
        let mut all = Vec::new();
        for (i, on_one) in [1, 2, 3, 4, 5, 7, 8, 12].into_iter().enumerate() {
            let hkv = 1 + i % 2;
            let plain = s(1, 9, 9, on_one * hkv, hkv, 8, true);
            all.push(everything(
                0.1,
                Shape {
                    scale: 0.123_456_789,
                    ..plain
                },
            ));
        }
        // Caps and rates that models have, and such as need all of their bits.
        for (limit, rate) in [
            (50.0, 0.1),
            (30.0, 0.05),
            (2.2, 0.15),
            (0.987_654_321, 0.314_159_265),
        ] {
            all.push(cap(limit, drop(rate, s(1, 20, 23, 2, 1, 8, true))));
        }
        for (tq, tk) in [(64, 64), (64, 128)] {
            for (size, causal) in [(0, true), (33, false), (64, true)] {
                all.push(window(size, bias(cap(3.3, s(1, tq, tk, 2, 1, 8, causal)))));
            }
        }
        return all.iter().map(|s| trial(g, t, s, false, back)).collect();
    }
    if g.about == About::Unread {
        let shapes = [
            window(4, cap(3.0, s(1, 5, 37, 6, 2, 8, true))),
            bias(s(2, 37, 5, 2, 2, 8, true)),
            cu(
                &[1, 4, 4, 6, 6, 9],
                Some(&[0, 4, 7, 7, 7, 8]),
                s(1, 11, 10, 2, 2, 8, false),
            ),
            bias(cu(&[2, 9, 9, 31], None, s(1, 40, 40, 2, 1, 8, true))),
        ];
        return shapes.iter().map(|s| trial(g, t, s, false, back)).collect();
    }
    let shapes = [
        // Nothing on top: attention_*.
        s(2, 9, 9, 2, 1, 8, true),
        cap(0.7, s(1, 11, 11, 2, 2, 8, true)),
        window(4, cap(50.0, s(2, 33, 33, 2, 1, 16, true))),
        bias(s(2, 7, 7, 2, 2, 8, true)),
        bias(Shape {
            scale: 1.0,
            ..s(2, 19, 19, 3, 3, 8, false)
        }),
        bias(s(1, 5, 12, 2, 1, 8, true)),
        bias(s(1, 12, 5, 2, 1, 8, false)),
        sinks(s(1, 10, 10, 4, 2, 8, true)),
        // Queries that see no key, and yet the sink.
        sinks(window(3, s(1, 9, 4, 2, 2, 8, true))),
        drop(0.1, s(2, 8, 8, 2, 2, 8, true)),
        // No whole philox blocks in a row.
        drop(0.5, s(2, 7, 13, 2, 1, 8, false)),
        drop(0.9, s(1, 90, 101, 1, 1, 8, true)),
        // A part of a larger whole.
        Shape {
            whole: [5, 20, 30],
            ..drop(0.4, s(2, 9, 9, 2, 1, 8, true))
        },
        // Cross-attention over packed rows.
        cu(&[0, 3, 7], Some(&[0, 5, 9]), s(1, 7, 9, 2, 2, 8, false)),
        cu(&[0, 3, 7], Some(&[0, 5, 9]), s(1, 7, 9, 2, 1, 8, true)),
        // Segments without queries, without keys, without both; positions of none.
        cu(
            &[1, 4, 4, 6, 6, 9],
            Some(&[0, 4, 7, 7, 7, 8]),
            s(1, 11, 10, 2, 2, 8, false),
        ),
        cu(&[0, 13, 40], None, window(7, s(1, 40, 40, 1, 1, 8, true))),
        cu(
            &[0, 64, 100],
            Some(&[0, 20, 130]),
            s(1, 100, 130, 1, 1, 16, false),
        ),
        everything(0.2, s(2, 17, 17, 4, 2, 8, true)),
        everything(0.3, window(5, s(1, 21, 30, 2, 2, 8, true))),
        everything(
            0.25,
            cu(
                &[0, 6, 17, 0, 1, 12],
                Some(&[0, 2, 19, 3, 9, 19]),
                s(2, 17, 19, 4, 2, 8, true),
            ),
        ),
        everything(0.25, cu(&[2, 9, 9, 31], None, s(1, 40, 40, 2, 1, 8, true))),
        everything(0.1, s(1, 0, 5, 2, 2, 8, true)),
        everything(0.1, s(0, 4, 4, 2, 2, 8, true)),
    ];
    let mut all: Vec<Trial> = shapes.iter().map(|s| trial(g, t, s, false, back)).collect();
    for x in [
        everything(0.2, s(2, 13, 13, 4, 4, 8, true)),
        everything(0.2, cu(&[0, 4, 13], None, s(1, 13, 13, 4, 4, 8, true))),
        cu(
            &[0, 4, 13, 0, 9, 9],
            Some(&[0, 5, 13, 0, 2, 11]),
            s(2, 13, 13, 2, 2, 8, false),
        ),
    ] {
        all.push(trial(g, t, &x, true, back));
    }
    if g.big() {
        for s in [
            everything(0.1, s(1, 300, 300, 2, 1, 64, true)),
            bias(s(2, 200, 260, 2, 2, 64, false)),
        ] {
            all.push(trial(g, t, &s, false, back));
        }
    }
    all
}

/// Every size beyond tiles and grids, with everything on top.
fn large(g: &mut Gen, everything: &dyn Fn(Shape) -> Shape) -> Vec<Shape> {
    let s = |b, tq, tk, h, hkv, d, causal| {
        everything(Shape {
            b,
            tq,
            tk,
            h,
            hkv,
            d,
            causal,
            ..Shape::default()
        })
    };
    if g.residues() {
        let twice = [g.ending(1 << 14), g.ending(1 << 13)].concat();
        let mut all = Vec::new();
        for (i, [b, tq, tk, hkv, d]) in twice.into_iter().enumerate() {
            let h = hkv * g.heads_on_one(hkv, b * tq * tk * d);
            let window = if i % 3 == 2 { 1 + tk as i64 / 2 } else { 0 };
            let ends = |g: &mut Gen, n: usize| -> Vec<i32> {
                (0..b).flat_map(|_| segments(g, n)).collect()
            };
            // Every other one of packed rows.
            let cu = match i % 2 {
                0 => [None, None],
                _ => [Some(ends(g, tq).into()), Some(ends(g, tk).into())],
            };
            let s = s(b, tq, tk, h, hkv, d, i % 4 < 2);
            all.push(Shape { window, cu, ..s });
        }
        return all;
    }
    let mut all: Vec<Shape> = [64, 80, 96, 128, 256]
        .into_iter()
        .map(|d| s(1, 67, 67, 2, 1, d, true))
        .collect();
    for n in g.beyond_squared() {
        let ends: Vec<i32> = (0..=n as i32).collect();
        let window = 100;
        all.extend([
            s(1, 3, n, 2, 1, 8, false),
            // A part of a larger whole.
            Shape {
                b: 1,
                tq: 3,
                tk: n,
                h: 2,
                hkv: 1,
                d: 8,
                dropout: 0.3,
                whole: [3, 9, n as i64 + 11],
                ..Shape::default()
            },
            s(1, n, 5, 2, 2, 8, false),
            s(1, 5, 9, 2, 2, n, true),
            s(n, 2, 3, 1, 1, 4, true),
            s(1, 2, 3, n, 1, 4, true),
            s(1, 2, 3, n, n, 4, false),
            Shape {
                window,
                scale: 0.3,
                ..s(1, n, n, 1, 1, 8, true)
            },
            Shape {
                cu: [Some(ends.clone().into()), None],
                ..s(1, n, n, 1, 1, 4, true)
            },
            Shape {
                cu: [Some(ends.clone().into()), Some(ends.into())],
                ..s(1, n, n, 1, 1, 4, false)
            },
            Shape {
                cu: [Some([0, 1].repeat(n).into()), Some([0, 2].repeat(n).into())],
                ..s(n, 1, 2, 1, 1, 4, false)
            },
            Shape {
                cu: [
                    Some([0, n as i32 / 3, n as i32].into()),
                    Some([0, 2, 9].into()),
                ],
                ..s(1, n, 9, 1, 1, 4, false)
            },
        ]);
        if n < 4096 {
            all.push(s(1, n, n, 1, 1, 8, true));
        }
    }
    for n in g.grid() {
        all.extend([
            s(n, 1, 2, 1, 1, 2, false),
            s(1, 1, 2, n, n, 2, false),
            s(1, n, 3, 1, 1, 2, false),
            s(1, 3, n, 1, 1, 2, false),
        ]);
    }
    all
}

fn trial(g: &mut Gen, t: DType, s: &Shape, fused: bool, back: bool) -> Trial {
    let place = |x: T| {
        let [_, tt, h, d] = [x.shape[0], x.shape[1], x.shape[2], x.shape[3]];
        let row = (3 * h * d) as i64;
        match fused {
            true => x.at(&[tt as i64 * row, row, d as i64, 1]),
            false => x,
        }
    };
    let (qs, ks) = ([s.b, s.tq, s.h, s.d], [s.b, s.tk, s.hkv, s.d]);
    let line = [s.h, s.distances()];
    let (mut q, mut k, mut v) = (
        g.real(t, &qs, 2.0),
        g.real(t, &ks, 2.0),
        g.real(t, &ks, 2.0),
    );
    // The gradient of a sink is of queries that see no key, too.
    let unseen = g.about == About::Unread || g.about == About::Parts && !s.sinks;
    let seen = unseen.then(|| s.seen());
    if let Some([queries, keys]) = &seen {
        (q, k, v) = (unread(q, queries), unread(k, keys), unread(v, keys));
    }
    let bias = s.bias.then(|| g.real(t, &line, 1.0));
    let sinks = s.sinks.then(|| g.real(t, &[s.h], 1.5));
    let values = |x: &Option<T>| x.as_ref().map_or(vec![], T::values);
    let x = Inputs {
        q: q.values(),
        k: k.values(),
        v: v.values(),
        bias: values(&bias),
        sinks: values(&sinks),
        key: KEY,
    };
    let p = s.params();
    let written = if s.wide == Wide::None { t } else { F };
    let read = if s.wide == Wide::All { F } else { t };
    let what = format!(
        "{}{}",
        s.what(),
        if fused { ", slices of one tensor" } else { "" }
    );
    let (o, lse) = forward(t, s, &x);
    let ls = [s.b, s.h, s.tq];
    let apart = |x: T| if fused { x.spread(3) } else { x };
    // What goes with slices of one tensor lies apart too: lines of the bias, elements of the rest.
    let lines = bias.clone().map(|x| if fused { x.padded(3) } else { x });
    let rest = [sinks.clone(), s.lengths(0), s.lengths(1)].map(|x| x.map(apart));
    let tail: Vec<Arg> = [lines].into_iter().chain(rest).map(Arg::from).collect();
    if !back {
        let want = vec![(0, Want::Fused(o)), (1, Want::Fused(lse))];
        let mut args: Vec<Arg> = vec![
            place(T::poison(written, &qs)).into(),
            T::poison(F, &ls).into(),
            place(q).into(),
            place(k).into(),
            place(v).into(),
        ];
        args.extend(tail);
        return Trial::new(what, p.as_bytes(), args, want).given(x.key.as_bytes());
    }
    let of = |n: &[Num]| n.iter().map(|n| n.v).collect::<Vec<_>>();
    let (o, lse) = (T::new(read, &qs, &of(&o)), T::new(F, &ls, &of(&lse)));
    let mut d_out = g.real(read, &qs, 2.0);
    if let Some([queries, _]) = &seen {
        d_out = unread(d_out, queries);
    }
    let [dq, dk, dv, dbias, dsinks] =
        backward(t, s, &x, &d_out.values(), &o.values(), &lse.values());
    let mut want = vec![
        (0, Want::Fused(dq)),
        (1, Want::Fused(dk)),
        (2, Want::Fused(dv)),
    ];
    // Gradients that accumulate find something there.
    let (had_bias, had_sink) = (g.real(F, &line, 1.0), g.real(F, &[s.h], 1.0));
    let added = |had: &T, d: Vec<Num>| {
        let all = had.values().into_iter().zip(d);
        Want::Fused(all.map(|(a, b)| exact(a) + b).collect())
    };
    if s.bias {
        want.push((3, added(&had_bias, dbias)));
    }
    if s.sinks {
        want.push((4, added(&had_sink, dsinks)));
    }
    let mut args: Vec<Arg> = vec![
        place(T::poison(written, &qs)).into(),
        place(T::poison(written, &ks)).into(),
        place(T::poison(written, &ks)).into(),
        s.bias.then_some(had_bias).into(),
        s.sinks.then_some(had_sink).into(),
        place(d_out).into(),
        place(o).into(),
        place(q).into(),
        place(k).into(),
        place(v).into(),
        lse.into(),
    ];
    args.extend(tail);
    Trial::new(what, p.as_bytes(), args, want).given(x.key.as_bytes())
}
