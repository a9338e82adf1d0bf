//! Ops by index that add: `scatter_add_rows`, `embedding_fwd`, `embedding_bwd`, `histogram`.

use super::cell::{About, Cell, FLOATS, Gen, INDEX};
use super::moves::{indices, row_of};
use super::num;
use super::tensor::{T, count};
use super::trial::{Arg, Sum, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, IndexParams, NoParams};

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for it in INDEX {
        for t in FLOATS {
            let what = format!("{}.by_{}", t.name(), it.name());
            let cell = Cell::new(op::SCATTER_ADD_ROWS, &what, move |g| scatter(g, t, t, it));
            all.push(cell.of(&[t, t, it]));
            if t != DType::F32 {
                let wide = format!("f32.of_{what}");
                all.push(Cell::new(op::SCATTER_ADD_ROWS, wide, move |g| {
                    scatter(g, DType::F32, t, it)
                }));
            }
            all.push(Cell::new(op::EMBEDDING_FWD, &what, move |g| {
                embedding(g, t, it)
            }));
            all.push(Cell::new(op::EMBEDDING_BWD, &what, move |g| {
                embedding_bwd(g, t, it)
            }));
        }
        for t in [DType::I32, DType::U32] {
            let what = format!("{}.of_{}", t.name(), it.name());
            all.push(Cell::new(op::HISTOGRAM, what, move |g| histogram(g, t, it)).of(&[t, it]));
        }
    }
    all
}

fn params(ignore: Option<i64>) -> IndexParams {
    IndexParams {
        flags: if ignore.is_some() {
            op::FLAG_HAS_IGNORE
        } else {
            0
        },
        // Without the flag the number means nothing.
        ignore: ignore.unwrap_or(1),
        ..Default::default()
    }
}

/// The sums of rows of `src` that land in each row of `table`.
fn added(table: &T, src: &T, to: &[Option<usize>], width: usize) -> Vec<Sum> {
    let mut s: Vec<Sum> = table
        .values()
        .into_iter()
        .map(|v| Sum {
            v,
            n: 1.0,
            mag: v.abs(),
        })
        .collect();
    let x = src.values();
    for (i, r) in to.iter().enumerate() {
        let Some(r) = r else { continue };
        for c in 0..width {
            let (a, v) = (&mut s[r * width + c], x[i * width + c]);
            *a = Sum {
                v: a.v + v,
                n: a.n + 1.0,
                mag: a.mag + v.abs(),
            };
        }
    }
    s
}

/// What a number that is not read may be: 0 times it shows.
const NO_NUMBERS: [(f64, &str); 2] = [(f64::NAN, "NaN"), (f64::INFINITY, "infinite")];

/// Bits where all is whole and small, else the bound of a sum.
fn sums(t: DType, s: Vec<Sum>) -> Want {
    if s.iter()
        .all(|s| s.v.fract() == 0.0 && s.mag.fract() == 0.0 && s.mag < 16_777_216.0)
    {
        return Want::Value(s.iter().map(|s| num::encode(t, s.v)).collect());
    }
    Want::Sum(s)
}

fn scatter(g: &mut Gen, t: DType, ts: DType, it: DType) -> Vec<Trial> {
    let run = |what: &str, table: T, src: T, ix: &[i64], ignore: Option<i64>| {
        let (rows, width) = (table.shape[0], count(&table.shape[1..]));
        let to: Vec<_> = ix.iter().map(|i| row_of(*i, rows, ignore)).collect();
        let want = sums(t, added(&table, &src, &to, width));
        let index = T::ints(
            it,
            &src.shape[..src.shape.len() + 1 - table.shape.len()],
            ix,
        );
        Trial::new(
            what,
            params(ignore).as_bytes(),
            vec![table.into(), src.into(), index.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    if g.sizes() {
        let longs = g.longs().into_iter().flat_map(|n| {
            [
                ([n, 2, 3], vec![9]),
                ([3, n, 2], vec![4]),
                ([4, 2, 3], vec![n, 2]),
                ([4, 2, 3], vec![2, n]),
            ]
        });
        for (table, lead) in longs {
            let ix = indices(g, it, count(&lead), table[0]);
            let what = format!("rows of {table:?} at {lead:?}");
            let src = [&lead[..], &table[1..]].concat();
            let (table, src) = (g.whole(t, &table, 3), g.whole(ts, &src, 3));
            all.push(run(&what, table, src, &ix, Some(2)));
        }
        let mut put = |g: &mut Gen, rows: usize, width: usize, n: usize| {
            let ix = indices(g, it, n, rows);
            let (table, src) = (g.whole(t, &[rows, width], 3), g.whole(ts, &[n, width], 3));
            let what = format!("[{n},{width}] into [{rows},{width}]");
            all.push(run(&what, table, src, &ix, None));
        };
        for n in g.beyond() {
            put(g, n, 3, 40);
            put(g, 5, n, 9);
            put(g, 40, 3, n);
        }
        for n in g.grid() {
            put(g, n, 2, 9);
            put(g, 3, n, 2);
            put(g, 300, 2, n);
        }
        if t == DType::F32 && ts == DType::F32 {
            for n in g.beyond() {
                all.push(in_order(it, n / 3));
            }
        }
        return all;
    }
    if g.about == About::Unread {
        for (bad, name) in NO_NUMBERS {
            let ix = [0, 2, -1, 3, 6, 2, 5, 1];
            let (table, mut src) = (g.whole(t, &[6, 9], 3), g.whole(ts, &[8, 9], 3));
            for (i, row) in src.bits.chunks_mut(9).enumerate() {
                if row_of(ix[i], 6, Some(2)).is_none() {
                    row.fill(num::encode(ts, bad));
                }
            }
            if it == DType::I64 {
                // Not the row whose number its low half is.
                let far = Some((1 << 32) + 3);
                let what = "an index of 64 bits is ignored";
                let (table, src) = (g.whole(t, &[6, 9], 3), g.whole(ts, &[8, 9], 3));
                all.push(run(what, table, src, &ix, far));
            }
            let what = format!("rows that are not added are {name}");
            // What is added follows from the rows that are.
            all.push(run(&what, table, src, &ix, Some(2)));
        }
        return all;
    }
    for (rows, width, n) in [(9, 33, 40), (1, 1, 1), (5, 8, 0), (3, 257, 50)] {
        let ix = indices(g, it, n, rows);
        let (table, src) = (g.whole(t, &[rows, width], 3), g.whole(ts, &[n, width], 3));
        all.push(run(
            &format!("[{n},{width}] into [{rows},{width}], whole numbers"),
            table,
            src,
            &ix,
            None,
        ));
        let (table, src) = (g.real(t, &[rows, width], 2.0), g.real(ts, &[n, width], 2.0));
        all.push(run(
            &format!("[{n},{width}] into [{rows},{width}]"),
            table,
            src,
            &ix,
            Some(2),
        ));
    }
    // All into one row: what two writers do to one element shows.
    let (table, src) = (g.whole(t, &[3, 40], 2), g.whole(ts, &[200, 40], 1));
    all.push(run("200 rows into one", table, src, &vec![1; 200], None));
    let (table, src) = (g.whole(t, &[6, 7], 3), g.whole(ts, &[20, 7], 3).padded(2));
    let ix = indices(g, it, 20, 6);
    all.push(run("padded source", table, src, &ix, None));
    let (table, src) = (g.whole(t, &[6, 2, 5], 3), g.whole(ts, &[3, 4, 2, 5], 3));
    let ix = indices(g, it, 12, 6);
    all.push(run("rows of two dims", table, src, &ix, None));
    if t == DType::F32 && ts == DType::F32 {
        all.push(in_order(it, 1));
    }
    all
}

/// Rows for each of 2 `pairs` places: in order of position 1e8 + 1 - 1e8 is 0 in f32, in any other order of these it is 1.
fn in_order(it: DType, pairs: usize) -> Trial {
    let f = DType::F32;
    let v = [1e8, 1e8, 1.0, -1e8, -1e8, 1.0];
    let (n, rows) = (6 * pairs, 2 * pairs);
    // The six of a pair lie as far from each other as they can.
    let src: Vec<f64> = (0..n).map(|i| v[i / pairs]).collect();
    let index: Vec<i64> = (0..n)
        .map(|i| ([0, 1, 0, 0, 1, 1][i / pairs] + 2 * (i % pairs)) as i64)
        .collect();
    Trial::new(
        format!("{n} rows in order of position"),
        params(None).as_bytes(),
        vec![
            T::full(f, &[rows, 1], 0.0).into(),
            T::new(f, &[n, 1], &src).into(),
            T::ints(it, &[n], &index).into(),
        ],
        vec![(0, Want::exact(f, [0.0, 1.0].repeat(pairs)))],
    )
}

/// Batch, positions, rows of the table and their width, each beyond tiles; vocabularies beyond 16 bits.
fn large(g: &mut Gen) -> Vec<(usize, usize, usize, usize)> {
    let mut all = Vec::new();
    for n in g.beyond() {
        all.extend([(n, 2, 9, 3), (2, n, 9, 3), (2, 5, n, 3), (2, 3, 4, n)]);
    }
    for n in g.grid() {
        all.extend([(n, 1, 9, 2), (1, n, 9, 2), (2, 9, n, 2)]);
    }
    all
}

fn embedding(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let run =
        |what: &str, table: T, shape: &[usize], ix: &[i64], pos: Option<T>, ignore: Option<i64>| {
            let (rows, d) = (table.shape[0], table.shape[1]);
            let seq = *shape.last().unwrap_or(&1);
            let (v, p) = (table.values(), pos.as_ref().map(T::values));
            let n: usize = count(shape) * d;
            let at = |i: usize| row_of(ix[i / d], rows, ignore).map(|r| r * d + i % d);
            let want = match &p {
                // A copy: no arithmetic.
                None => Want::Exact((0..n).map(|i| at(i).map_or(0, |r| table.bits[r])).collect()),
                // One sum in f32.
                Some(p) => Want::Rounded(
                    (0..n)
                        .map(|i| {
                            let row = at(i).map_or(0.0, |r| v[r]) as f32;
                            f64::from(row + p[i / d % seq * d + i % d] as f32)
                        })
                        .collect(),
                ),
            };
            let out: Vec<usize> = shape.iter().copied().chain([d]).collect();
            Trial::new(
                what,
                params(ignore).as_bytes(),
                vec![
                    T::poison(t, &out).into(),
                    table.into(),
                    T::ints(it, shape, ix).into(),
                    pos.into(),
                ],
                vec![(0, want)],
            )
        };
    let mut all = Vec::new();
    if g.about == About::Unread {
        for (bad, name) in NO_NUMBERS {
            let ix = [0, 2, -1, 3, 6, 2, 5, 0];
            let (mut table, mut pos) = (g.real(t, &[6, 9], 2.0), g.real(t, &[6, 9], 2.0));
            let bad = num::encode(t, bad);
            // The ignored row, two that no index names, and positions behind the last.
            for r in [1, 2, 4] {
                table.bits[r * 9..(r + 1) * 9].fill(bad);
            }
            pos.bits[4 * 9..].fill(bad);
            for pos in [None, Some(pos)] {
                let what = format!("what no index names is {name}");
                all.push(run(&what, table.clone(), &[2, 4], &ix, pos, Some(2)));
            }
        }
        return all;
    }
    let mut shapes = vec![(3, 7, 11, 33), (1, 1, 1, 1), (0, 3, 4, 5), (2, 31, 5, 257)];
    if g.sizes() {
        shapes = large(g);
    }
    for (b, s, rows, d) in shapes {
        let ix = indices(g, it, b * s, rows);
        let table = g.real(t, &[rows, d], 2.0);
        all.push(run(
            &format!("[{b},{s}] of [{rows},{d}]"),
            table.clone(),
            &[b, s],
            &ix,
            None,
            None,
        ));
        let pos = g.real(t, &[s + 2, d], 2.0);
        all.push(run(
            &format!("[{b},{s}] of [{rows},{d}] with positions"),
            table,
            &[b, s],
            &ix,
            Some(pos),
            Some(2),
        ));
    }
    all
}

fn embedding_bwd(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let f = DType::F32;
    let run = |what: &str, dtable: T, dpos: Option<T>, dy: T, ix: &[i64], ignore: Option<i64>| {
        let (rows, d) = (dtable.shape[0], dtable.shape[1]);
        let lead = dy.shape[..dy.shape.len() - 1].to_vec();
        let seq = *lead.last().unwrap_or(&1);
        let to: Vec<_> = ix.iter().map(|i| row_of(*i, rows, ignore)).collect();
        let mut want = vec![(0, sums(f, added(&dtable, &dy, &to, d)))];
        if let Some(p) = &dpos {
            let to: Vec<_> = (0..ix.len()).map(|i| Some(i % seq)).collect();
            want.push((1, sums(f, added(p, &dy, &to, d))));
        }
        let args = vec![
            dtable.into(),
            Arg::from(dpos),
            dy.into(),
            T::ints(it, &lead, ix).into(),
        ];
        Trial::new(what, params(ignore).as_bytes(), args, want)
    };
    let mut all = Vec::new();
    if g.about == About::Unread {
        for (bad, name) in NO_NUMBERS {
            let ix = [0, 2, -1, 3, 6, 2, 5, 0];
            let (dt, mut dy) = (g.whole(f, &[6, 9], 5), g.whole(t, &[2, 4, 9], 5));
            for (i, row) in dy.bits.chunks_mut(9).enumerate() {
                if row_of(ix[i], 6, Some(2)).is_none() {
                    row.fill(num::encode(t, bad));
                }
            }
            let what = format!("rows that are not added are {name}");
            all.push(run(&what, dt, None, dy, &ix, Some(2)));
        }
        return all;
    }
    let mut shapes = vec![(3, 7, 11, 33), (1, 1, 1, 1), (0, 3, 4, 5), (2, 31, 5, 257)];
    if g.sizes() {
        shapes = large(g);
    }
    for (b, s, rows, d) in shapes {
        let ix = indices(g, it, b * s, rows);
        let (dt, dy) = (g.whole(f, &[rows, d], 5), g.whole(t, &[b, s, d], 5));
        all.push(run(
            &format!("[{b},{s},{d}] into {rows} rows, whole numbers"),
            dt,
            None,
            dy,
            &ix,
            None,
        ));
        let (dt, dy, dp) = (
            g.real(f, &[rows, d], 2.0),
            g.real(t, &[b, s, d], 2.0),
            g.real(f, &[s + 2, d], 1.0),
        );
        all.push(run(
            &format!("[{b},{s},{d}] into {rows} rows and positions"),
            dt,
            Some(dp),
            dy,
            &ix,
            Some(2),
        ));
    }
    if g.sizes() {
        return all;
    }
    let (dt, dy) = (g.whole(f, &[4, 40], 2), g.whole(t, &[4, 64, 40], 1));
    all.push(run("256 rows into one", dt, None, dy, &vec![2; 256], None));
    all
}

fn histogram(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let none = NoParams::default();
    let run = |what: &str, bins: usize, index: T| {
        let v = index.integers();
        let mut n = vec![0i64; bins];
        for i in v {
            if let Some(n) = usize::try_from(i).ok().and_then(|i| n.get_mut(i)) {
                *n += 1;
            }
        }
        let want = Want::Exact(T::ints(t, &[bins], &n).bits);
        Trial::new(
            what,
            none.as_bytes(),
            vec![T::poison(t, &[bins]).into(), index.into()],
            vec![(0, want)],
        )
    };
    let mut all = Vec::new();
    let mut shapes = vec![(9, 0), (1, 1), (9, 100), (300, 1000)];
    if g.sizes() {
        shapes.clear();
        for n in [g.beyond(), g.grid()].concat() {
            shapes.extend([(n, 500), (9, n)]);
        }
        for n in g.beyond() {
            let mut ix = || T::ints(it, &[3, n], &indices(g, it, 3 * n, 9));
            all.push(run(&format!("[3,{n}] padded"), 9, ix().padded(5)));
            all.push(run(&format!("[3,{n}] with gaps"), 9, ix().spread(2)));
        }
    }
    for (bins, n) in shapes {
        let ix = indices(g, it, n, bins);
        all.push(run(
            &format!("{n} into {bins}"),
            bins,
            T::ints(it, &[n], &ix),
        ));
    }
    if g.sizes() {
        for n in g.longs() {
            let ix = T::ints(it, &[n, 2], &indices(g, it, 2 * n, 9));
            all.push(run(&format!("[{n},2] transposed"), 9, ix.transposed()));
            let ix = T::ints(it, &[n, 2, 3], &indices(g, it, 6 * n, 9));
            let what = format!("[{n},2,3] in another order");
            all.push(run(&what, 9, ix.lying(&[2, 0, 1])));
        }
        return all;
    }
    let ix = indices(g, it, 60, 5);
    all.push(run(
        "[6,10] transposed",
        5,
        T::ints(it, &[6, 10], &ix).transposed(),
    ));
    let ix = T::ints(it, &[6, 10], &ix);
    all.push(run("[6,10] padded", 5, ix.clone().padded(3)));
    all.push(run("[6,10] with gaps", 5, ix.clone().spread(3)));
    all.push(run("[6,10], one row for all", 5, ix.broadcast(&[0])));
    let ix = T::ints(it, &[4, 3, 5], &indices(g, it, 60, 5));
    let what = "[4,3,5] in another order";
    all.push(run(what, 5, ix.lying(&[2, 0, 1])));
    all.push(run("1000 of one", 4, T::full(it, &[1000], 2.0)));
    all
}
