//! Boxes of tensors over the ranks of a stage.

use crossweave_axes::{Axis, Cut, Place, TensorBox, Topology};
use proptest::prelude::*;

/// What a slice of a tensor holds, by the nested loops of its definition.
fn elements(shape: &[u64], slice: &[[u64; 2]]) -> Vec<u64> {
    let all: u64 = shape.iter().product();
    let inside = |e: &u64| {
        let mut rest = *e;
        slice.is_empty()
            || shape.iter().zip(slice).rev().all(|(n, [first, count])| {
                let i = rest % n;
                rest /= n;
                (*first..first + count).contains(&i)
            })
    };
    (0..all).filter(inside).collect()
}

/// The elements of a box in its order, by its runs.
fn by_runs(b: &TensorBox, from: u64, to: u64) -> Vec<u64> {
    let mut at = from;
    let mut out = vec![];
    for r in b.runs(from..to) {
        assert_eq!(r.held, at);
        at += r.len;
        out.extend(r.declared..r.declared + r.len);
    }
    assert_eq!(at, to);
    out
}

/// Sizes of fused parts: `cuts` divide a dim of `n` places.
fn parts(n: u64, cuts: &[f64]) -> Vec<u64> {
    let mut ends: Vec<u64> = cuts.iter().map(|c| (c * n as f64) as u64).collect();
    ends.push(n);
    ends.sort_unstable();
    let mut from = 0;
    ends.into_iter()
        .map(|to| to - std::mem::replace(&mut from, to))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn boxes_of_a_group_hold_every_element_once(
        shape in prop::collection::vec(0u64..7, 1..4),
        experts in any::<bool>(),
        [dp, cp, tp, ep, etp] in prop::array::uniform5(1u32..4),
        dims in prop::array::uniform2(0usize..3),
        fused in prop::collection::vec(0.0f64..1.0, 0..3),
        second in any::<bool>(),
        [from, to] in prop::array::uniform2(0.0f64..1.0),
    ) {
        let lengths = [(Axis::Dp, dp * ep * etp), (Axis::Cp, cp), (Axis::Tp, tp), (Axis::Ep, ep), (Axis::Etp, etp)];
        let mesh = Topology::new(&lengths).unwrap();
        let [dim, other] = dims.map(|d| d % shape.len());
        let parts = parts(shape[dim], &fused);
        let axes = if experts { [Axis::Ep, Axis::Etp] } else { [Axis::Tp, Axis::Tp] };
        let mut cuts = vec![Cut { axis: axes[0], dim, parts: &parts }];
        if experts && second && other != dim {
            cuts.push(Cut { axis: axes[1], dim: other, parts: &[] });
        }
        let total: u64 = shape.iter().product();
        let values: Vec<u64> = (0..total).collect();
        let mut held = vec![0u32; total as usize];
        let mut whole = vec![u64::MAX; total as usize];
        for n in 0..mesh.world_size() {
            let place: Place = mesh.place(n);
            let here = place.holds(&shape, &cuts).unwrap();
            let b = &here.part;
            let all = by_runs(b, 0, b.numel());
            prop_assert!(all.is_sorted());
            prop_assert_eq!(&b.take(&values), &all);
            prop_assert_eq!(b.is_whole(), all.len() as u64 == total);
            // Any part of it, as pieces of slices and as a checkpoint's reader counts them.
            let ends = [from, to].map(|f| (f * b.numel() as f64) as u64);
            let (a, z) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            let mut by_pieces: Vec<u64> = vec![];
            for p in b.pieces(a..z) {
                prop_assert_eq!(p.at, a + by_pieces.len() as u64);
                let inside = elements(&shape, &p.slice);
                by_pieces.extend(&inside[p.of_slice.start as usize..p.of_slice.end as usize]);
            }
            prop_assert_eq!(by_pieces, by_runs(b, a, z));
            // Of those that hold the same, one counts.
            if here.first && place.index(here.owners) == 0 {
                b.put(&all, &mut whole);
                all.iter().for_each(|e| held[*e as usize] += 1);
            }
        }
        prop_assert!(held.iter().all(|h| *h == 1), "{held:?}");
        prop_assert_eq!(whole, values);
    }
}

#[test]
fn a_box_is_what_a_column_or_row_parallel_layer_holds() {
    let mesh = Topology::new(&[(Axis::Tp, 2)]).unwrap();
    let part = |shape: &[u64], dim, parts: &[u64]| {
        let axis = Axis::Tp;
        let held = mesh.place(1).holds(shape, &[Cut { axis, dim, parts }]);
        held.unwrap().part
    };
    // Column-parallel: a run of rows. Row-parallel: the second half of each row.
    let columns = part(&[4, 3], 0, &[]);
    assert_eq!(columns.dims(), [2, 3]);
    assert_eq!(by_runs(&columns, 0, 6), [6, 7, 8, 9, 10, 11]);
    assert_eq!(by_runs(&part(&[3, 4], 1, &[]), 0, 6), [2, 3, 6, 7, 10, 11]);
    // Fused q, k, v of 4, 2 and 2 rows: the second half of each.
    let fused = part(&[8, 1], 0, &[4, 2, 2]);
    assert_eq!(by_runs(&fused, 0, 4), [2, 3, 5, 7]);
    // The last of uneven pieces is shorter.
    assert_eq!(part(&[5, 2], 0, &[]).dims(), [2, 2]);
}

#[test]
fn cuts_that_no_rank_could_hold_are_refused_by_the_key_of_their_axis() {
    let mesh = Topology::new(&[(Axis::Dp, 4), (Axis::Tp, 2), (Axis::Ep, 4)]).unwrap();
    let place = mesh.place(0);
    let cut = |axis, dim, parts| Cut { axis, dim, parts };
    let cases: [(&[Cut<'_>], &str, &str); 5] = [
        (&[cut(Axis::Tp, 2, &[])], "mesh.tp", "no such dim"),
        (
            &[cut(Axis::Tp, 0, &[4, 3])],
            "mesh.tp",
            "7 places together, and the dim 8",
        ),
        (&[cut(Axis::Dp, 0, &[])], "mesh.dp", "hold other elements"),
        (
            &[cut(Axis::Tp, 0, &[]), cut(Axis::Ep, 1, &[])],
            "mesh.ep",
            "tp.ep alone",
        ),
        (
            &[cut(Axis::Ep, 0, &[]), cut(Axis::Etp, 0, &[])],
            "mesh.etp",
            "cut already",
        ),
    ];
    for (cuts, key, what) in cases {
        let e = place.holds(&[8, 4], cuts).unwrap_err();
        assert_eq!(e.key, key);
        assert!(e.to_string().contains(what), "{e}");
    }
}
