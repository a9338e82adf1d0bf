//! Ops that move, make or convert elements: `copy_strided`, `cast`, `fill_strided`, `iota`, `gather_rows`.

use super::cell::{About, Cell, Gen, INDEX};
use super::num;
use super::sizes;
use super::tensor::{T, count};
use super::trial::{Arg, Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, FillParams, IndexParams, IotaParams, NoParams};

/// Dtypes of whole bytes.
const WHOLE: [DType; 15] = [
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
    DType::F8E8M0,
];

/// A cell over one type or more; f16 serves where bf16 is asked for.
fn cell(
    op: u32,
    what: String,
    types: &[DType],
    build: impl Fn(&mut Gen, &[DType]) -> Vec<Trial> + Send + Sync + Copy + 'static,
) -> Cell {
    let (own, f16) = (types.to_vec(), |t: &DType| match t {
        DType::Bf16 => DType::F16,
        t => *t,
    });
    let other: Vec<DType> = types.iter().map(f16).collect();
    let same = other == own;
    let c = Cell::new(op, what, move |g| build(g, &own)).of(types);
    match same {
        true => c,
        false => c.or(move |g| build(g, &other)),
    }
}

/// Every cell of these ops.
pub fn cells() -> Vec<Cell> {
    let mut all = Vec::new();
    for t in WHOLE {
        let name = t.name().to_string();
        all.push(cell(op::COPY_STRIDED, name, &[t, t], |g, t| copy(g, t[0])));
    }
    for to in WHOLE {
        for from in WHOLE {
            if to == DType::F8E8M0 || from == DType::F8E8M0 {
                continue;
            }
            let what = format!("{}.from_{}", to.name(), from.name());
            all.push(cell(op::CAST, what, &[to, from], |g, t| {
                cast(g, t[0], t[1])
            }));
        }
    }
    for t in WHOLE {
        let name = || t.name().to_string();
        all.push(cell(op::FILL_STRIDED, name(), &[t], |g, t| fill(g, t[0])));
        all.push(cell(op::IOTA, name(), &[t], |g, t| iota(g, t[0])));
    }
    for t in WHOLE {
        for i in INDEX {
            let what = format!("{}.by_{}", t.name(), i.name());
            let types = [t, t, i];
            all.push(cell(op::GATHER_ROWS, what, &types, |g, t| {
                gather(g, t[0], t[2])
            }));
        }
    }
    all
}

/// Random bits of a dtype: NaNs, infinities, zeros of both signs among them.
fn any(g: &mut Gen, t: DType, shape: &[usize]) -> T {
    let mask = u64::MAX >> (64 - 8 * num::size(t));
    let bits = g.bits(count(shape)).iter().map(|b| b & mask).collect();
    T::of_bits(t, shape, bits)
}

fn none() -> NoParams {
    NoParams::default()
}

fn copied(what: &str, dst: T, src: T) -> Trial {
    // A NaN may arrive as another NaN: a device may move floats as floats.
    let want = Want::Exact(src.bits.clone());
    Trial::new(
        what,
        none().as_bytes(),
        vec![dst.into(), src.into()],
        vec![(0, want)],
    )
}

fn copy(g: &mut Gen, t: DType) -> Vec<Trial> {
    if g.sizes() {
        let mut all = Vec::new();
        for (what, src) in sizes::inputs(g, |g, s| any(g, t, s)) {
            all.push(copied(
                &format!("{what}, read"),
                T::poison(t, &src.shape),
                src,
            ));
        }
        for (what, dst) in sizes::operands(g, |_, s| T::poison(t, s)) {
            let src = any(g, t, &dst.shape);
            all.push(copied(&format!("{what}, written"), dst, src));
        }
        return all;
    }
    // Bits of one width are one thing to a copy: only the widths differ in how they are moved.
    let mut all = Vec::new();
    for n in [0, 1, 7, 257, 1000] {
        let src = any(g, t, &[n]);
        all.push(copied(&format!("[{n}]"), T::poison(t, &[n]), src));
    }
    let s = [5, 33, 8];
    let p = || T::poison(t, &s);
    all.push(copied(
        "[5,33,8] from any order",
        p(),
        any(g, t, &s).lying(&[2, 0, 1]),
    ));
    all.push(copied(
        "[5,33,8] into any order",
        p().lying(&[1, 2, 0]),
        any(g, t, &s),
    ));
    all.push(copied(
        "[5,33,8] both in other orders",
        p().lying(&[2, 1, 0]),
        any(g, t, &s).lying(&[1, 0, 2]),
    ));
    all.push(copied(
        "[5,33,8] from a slice into a slice",
        p().padded(5),
        any(g, t, &s).padded(3),
    ));
    all.push(copied(
        "[5,33,8] every second",
        p().spread(2),
        any(g, t, &s).spread(3),
    ));
    // What lies alike on both sides is not one block: between its elements lie others.
    let (dst, src) = (p().padded(3), any(g, t, &s).padded(3));
    all.push(copied("[5,33,8] between slices alike", dst, src));
    let (dst, src) = (p().spread(2), any(g, t, &s).spread(2));
    all.push(copied("[5,33,8] every second on both sides", dst, src));
    all.push(copied(
        "[5,33,8] rows broadcast",
        p(),
        any(g, t, &s).broadcast(&[1]),
    ));
    all.push(copied(
        "[5,33,8] one element broadcast",
        p().padded(1),
        any(g, t, &s).broadcast(&[0, 1, 2]),
    ));
    let s = [2, 1, 3, 2, 1, 3, 2, 2];
    all.push(copied(
        "rank 8",
        T::poison(t, &s),
        any(g, t, &s).lying(&[7, 0, 6, 1, 5, 2, 4, 3]),
    ));
    let s = [2, 3, 1, 2, 3, 2, 2];
    all.push(copied(
        "rank 7, both in other orders",
        T::poison(t, &s).lying(&[3, 1, 5, 0, 6, 2, 4]),
        any(g, t, &s).lying(&[6, 0, 4, 5, 1, 3, 2]),
    ));
    let s = [65, 70];
    all.push(copied(
        "[65,70] transposed",
        T::poison(t, &s),
        any(g, t, &s).transposed(),
    ));
    all.push(copied("[]", T::poison(t, &[]), any(g, t, &[])));
    if g.big() {
        let s = [1025, 1027];
        all.push(copied(
            "[1025,1027] transposed",
            T::poison(t, &s),
            any(g, t, &s).transposed(),
        ));
    }
    all
}

/// What a cast must give, from the bits of the source.
fn converted(to: DType, from: DType, bits: u64) -> u64 {
    if num::is_float(from) {
        return num::encode(to, num::decode(from, bits));
    }
    let i = num::int_of(from, bits);
    if !num::is_float(to) {
        return num::int_bits(to, i);
    }
    // Beyond 2^53 an f64 would round first: halves of an ulp are kept by an odd last bit.
    let a = i.unsigned_abs();
    let odd = if a >> 53 == 0 {
        a as f64
    } else {
        ((a >> 11) | u128::from(a & 0x7ff != 0)) as f64 * 2048.0
    };
    match to {
        DType::F64 => (i as f64).to_bits(),
        to => num::encode(to, if i < 0 { -odd } else { odd }),
    }
}

/// NaN of a float of 16 bits or more: quiet and signalling, of the least and of the largest payload, of both signs.
pub fn nans(t: DType) -> Vec<u64> {
    let quiet = num::encode(t, f64::NAN) & (u64::MAX >> (65 - 8 * num::size(t)));
    let sign = 1u64 << (8 * num::size(t) - 1);
    let infinity = num::encode(t, f64::INFINITY);
    let all = [quiet, sign - 1, infinity | 1, quiet - 1, quiet | 1];
    all.into_iter().flat_map(|b| [b, b | sign]).collect()
}

/// Numbers at which conversions into a dtype go wrong: ties, the ends of its range, subnormals, signs.
fn awkward(to: DType) -> Vec<f64> {
    let mut v = vec![
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.999_999, 3.7, -3.7,
    ];
    if num::is_float(to) {
        for x in [1.0, 1.1, 3.0, 100.0, 0.3] {
            let u = num::ulp(to, x);
            let x = num::through(to, x);
            // Exactly between two neighbours, above an even and above an odd one, and a hair beside.
            for k in 0..4 {
                let tie = x + (k as f64 + 0.5) * u;
                v.extend([tie, -tie, tie + u / 64.0, tie - u / 64.0]);
                // So little beside it that another rounding on the way, to f32, makes it a tie.
                let hair = u * 2f64.powi(-24);
                v.extend([tie + hair, tie - hair]);
            }
        }
        let (top, tiny) = (num::largest(to), num::ulp(to, 0.0));
        v.extend([
            top,
            -top,
            top * 1.0001,
            top * 1.02,
            top * 1.2,
            top * 2.0,
            -top * 2.0,
        ]);
        v.extend([
            tiny,
            -tiny,
            tiny * 0.5,
            tiny * 0.51,
            tiny * 1.5,
            tiny * 2.5,
            tiny * 7.3,
            -tiny * 3.5,
        ]);
    } else {
        let w = 8 * num::size(to) as i32;
        for e in [w - 2, w - 1, w, w + 1] {
            let p = 2f64.powi(e);
            v.extend([p, -p, p - 1.0, p + 1.0, 1.0 - p, -p - 1.0]);
        }
    }
    v.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    v
}

fn cast(g: &mut Gen, to: DType, from: DType) -> Vec<Trial> {
    let trial = |what: &str, dst: T, src: T| {
        let want = Want::Exact(src.bits.iter().map(|b| converted(to, from, *b)).collect());
        Trial::new(
            what,
            none().as_bytes(),
            vec![dst.into(), src.into()],
            vec![(0, want)],
        )
    };
    if g.sizes() {
        let inputs = sizes::inputs(g, |g, s| g.real(from, s, 100.0));
        let all = inputs.into_iter();
        let all = all.map(|(what, src)| trial(&what, T::poison(to, &src.shape), src));
        return all.collect();
    }
    // What cannot be distinguished from an ordinary number by a flushing device comes apart from what can.
    let tiny = |v: f64| v != 0.0 && v.abs() < num::MIN_NORMAL;
    let mut v = awkward(to);
    v.extend(awkward(from));
    let src = T::new(from, &[v.len()], &v);
    let (mut plain, mut small) = (Vec::new(), Vec::new());
    for b in src.bits {
        let f = |t: DType, b: u64| num::is_float(t) && tiny(num::decode(t, b));
        if f(from, b) || f(to, converted(to, from, b)) {
            small.push(b);
        } else {
            plain.push(b);
        }
    }
    let mut all = vec![];
    let of = |bits: Vec<u64>| T::of_bits(from, &[bits.len()], bits);
    let poison = |n: usize| T::poison(to, &[n]);
    all.push(trial(
        "ends, ties and signs",
        poison(plain.len()),
        of(plain),
    ));
    if !small.is_empty() {
        all.push(trial("subnormal numbers", poison(small.len()), of(small)).subnormal());
    }
    if num::is_float(from) && num::size(from) > 1 {
        let bits = nans(from);
        all.push(trial("NaN of every kind", poison(bits.len()), of(bits)));
    }
    if matches!(from, DType::I64 | DType::U64) {
        // Beside halves of an ulp of every float: who rounds twice comes to another neighbour.
        let mut bits = g.bits(200);
        for e in 8..63 {
            let near = |low: u64| (1u64 << e) | (1 << (e - 8)) | low;
            bits.extend([near(0), near(1), near((1 << (e - 8)) - 1)]);
            bits.push((1u64 << e).wrapping_add(1 << (e - 8).max(1)).wrapping_neg());
        }
        all.push(trial("64-bit integers", poison(bits.len()), of(bits)));
    }
    for n in [0, 1, 8, 33, 255] {
        let src = g.real(from, &[n], 100.0);
        all.push(trial(&format!("[{n}]"), poison(n), src));
    }
    let s = [9, 31];
    let p = || T::poison(to, &s);
    all.push(trial(
        "[9,31] transposed",
        p(),
        g.real(from, &s, 50.0).transposed(),
    ));
    all.push(trial(
        "[9,31] rows broadcast",
        p(),
        g.real(from, &s, 50.0).broadcast(&[0]),
    ));
    let s8 = [2, 1, 3, 2, 1, 3, 2, 2];
    let x = g.real(from, &s8, 50.0).lying(&[7, 0, 6, 1, 5, 2, 4, 3]);
    all.push(trial("rank 8", T::poison(to, &s8), x));
    all.push(trial(
        "[9,31] padded",
        p(),
        g.real(from, &s, 50.0).padded(2),
    ));
    if num::size(from) == 1 && num::is_float(from) {
        let all_codes = T::of_bits(from, &[256], (0..256).collect());
        all.push(trial("all 256 codes", poison(256), all_codes).subnormal());
    }
    if g.big() && num::size(from) == 2 {
        let codes = T::of_bits(from, &[65536], (0..65536).collect());
        all.push(trial("all 65536 codes", poison(65536), codes).subnormal());
    }
    all
}

fn fill(g: &mut Gen, t: DType) -> Vec<Trial> {
    let values: &[f64] = match t {
        DType::I8 => &[0.0, -128.0, 127.0],
        DType::U8 => &[0.0, 1.0, 255.0],
        DType::I32 => &[0.0, -7.0, 2147483647.0, -2147483648.0],
        DType::U32 => &[0.0, 4294967295.0],
        DType::I64 => &[0.0, -1e15, 9007199254740993.0],
        DType::U64 => &[0.0, 18_446_744_073_709_549_568.0],
        DType::F8E8M0 => return vec![],
        _ => &[0.0, -0.0, 1.0, -2.5, 0.1, f64::INFINITY, f64::NAN],
    };
    let trial = |what: String, value: f64, dst: T| {
        let p = FillParams {
            value,
            ..Default::default()
        };
        let want = Want::exact(t, vec![value; dst.bits.len()]);
        Trial::new(what, p.as_bytes(), vec![dst.into()], vec![(0, want)])
    };
    if g.sizes() {
        let operands = sizes::operands(g, |_, s| T::poison(t, s));
        let all = operands.into_iter();
        return all.map(|(what, dst)| trial(what, 1.0, dst)).collect();
    }
    let mut all = Vec::new();
    if g.about == About::Models {
        let odd: &[f64] = match t {
            DType::I8 | DType::U8 => &[93.0],
            DType::I32 | DType::U32 => &[16_777_217.0, 1_234_567_891.0],
            DType::I64 | DType::U64 => &[16_777_217.0, 9_007_199_254_740_991.0],
            _ => &[1.0 / 3.0, 0.1, -1.234_567_890_123, 6.25e-2],
        };
        return odd
            .iter()
            .map(|v| trial(format!("{v}"), *v, T::poison(t, &[9])))
            .collect();
    }
    for (i, v) in values.iter().enumerate() {
        // No infinity in this dtype: what fill makes of it is cast's business.
        if v.is_infinite() && !num::decode(t, num::encode(t, *v)).is_infinite() {
            continue;
        }
        let n = [1, 33, 257, 7][i % 4];
        all.push(trial(format!("{v} into [{n}]"), *v, T::poison(t, &[n])));
    }
    let v = values[1];
    all.push(trial("[0,3]".into(), v, T::poison(t, &[0, 3])));
    all.push(trial(
        "[33,7] transposed".into(),
        v,
        T::poison(t, &[33, 7]).transposed(),
    ));
    all.push(trial(
        "[33,7] with gaps".into(),
        v,
        T::poison(t, &[33, 7]).padded(3),
    ));
    all.push(trial(
        "rank 8".into(),
        v,
        T::poison(t, &[2, 1, 3, 2, 1, 3, 2, 2]).lying(&[7, 0, 6, 1, 5, 2, 4, 3]),
    ));
    all.push(trial(
        "[5,6,7] every second".into(),
        v,
        T::poison(t, &[5, 6, 7]).spread(2),
    ));
    all
}

fn iota(g: &mut Gen, t: DType) -> Vec<Trial> {
    if t == DType::F8E8M0 {
        return vec![];
    }
    let mut all = Vec::new();
    let usual = g.about != About::Models;
    let mut cases: Vec<(Vec<usize>, f64, f64)> = vec![
        (vec![0], 0.0, 1.0),
        (vec![1], 3.0, 1.0),
        (vec![33], 0.0, 1.0),
        (vec![4, 5], 2.0, 3.0),
        (vec![100], 100.0, -1.0),
        (vec![9], -1.5, 0.25),
        (vec![7], -3.0, 0.5),
    ];
    if g.sizes() {
        // A dtype that cannot count so far is filled with one number.
        cases.clear();
        for n in [g.beyond(), g.grid()].concat() {
            for step in [1.0, 0.0] {
                cases.push((vec![n], 1.0, step));
                cases.push((vec![n, 2], 1.0, step));
            }
        }
    }
    for (shape, start, step) in cases.iter().filter(|_| usual) {
        // Numbers that the dtype holds exactly, however start + step i is evaluated.
        let v: Vec<f64> = (0..count(shape)).map(|i| start + step * i as f64).collect();
        if v.iter().any(|x| num::through(t, *x) != *x) {
            continue;
        }
        let p = IotaParams {
            start: *start,
            step: *step,
            ..Default::default()
        };
        let want = Want::exact(t, v);
        all.push(Trial::new(
            format!("{shape:?} from {start} by {step}"),
            p.as_bytes(),
            vec![T::poison(t, shape).into()],
            vec![(0, want)],
        ));
    }
    if g.about == About::Models {
        // Of a float each number is rounded once.
        let odd = match num::is_float(t) && num::size(t) > 1 {
            true => vec![(0.1, 0.3), (-1.0 / 3.0, 1.234_567_890_123), (1e-3, 1e-5)],
            false => vec![(5.0, 3.0)],
        };
        for (start, step) in odd {
            let p = IotaParams {
                start,
                step,
                ..Default::default()
            };
            let want = Want::exact(t, (0..30).map(|i| start + step * f64::from(i)));
            let args = vec![T::poison(t, &[30]).into()];
            all.push(Trial::new(
                format!("from {start} by {step}"),
                p.as_bytes(),
                args,
                vec![(0, want)],
            ));
        }
        return all;
    }
    let counts = [DType::I32, DType::U32, DType::I64, DType::U64, DType::F64];
    if !g.sizes() && counts.contains(&t) {
        // Beyond what f32 counts exactly.
        let v = (0..50).map(|i| 16_777_216.0 + i as f64);
        let p = IotaParams {
            start: 16_777_216.0,
            step: 1.0,
            ..Default::default()
        };
        all.push(Trial::new(
            "beyond 2^24",
            p.as_bytes(),
            vec![T::poison(t, &[50]).into()],
            vec![(0, Want::exact(t, v))],
        ));
    }
    all
}

/// Indices with repeats, the ignored one (2), and some out of range on both sides; of 64 bits some whose low half
/// is an index.
pub fn indices(g: &mut Gen, it: DType, n: usize, rows: usize) -> Vec<i64> {
    (0..n)
        .map(|i| match (i, g.below(14)) {
            // The last of both.
            _ if i + 1 == n => rows as i64 - 1,
            (_, 12) if it == DType::I64 => (1 << 32) + g.below(rows.max(3)) as i64,
            (_, 13) if it == DType::I64 => [i64::MIN, i64::MIN + 1, -(1 << 32)][g.below(3)],
            (3, _) => -1,
            // A row that 16 bits do not name.
            (1, _) if rows > 1 << 16 => rows as i64 - 1,
            (5, _) => rows as i64,
            (_, 0) => 2,
            (_, 1) => i32::MAX as i64,
            (_, 2) => i32::MIN as i64,
            (_, 3) => rows as i64 - 1,
            _ => g.below(rows) as i64,
        })
        .collect()
}

/// The row an index means.
pub fn row_of(ix: i64, rows: usize, ignore: Option<i64>) -> Option<usize> {
    (ignore != Some(ix)).then(|| usize::try_from(ix).ok().filter(|r| *r < rows))?
}

fn gather(g: &mut Gen, t: DType, it: DType) -> Vec<Trial> {
    let trial =
        |g: &mut Gen, what: &str, table: T, shape: &[usize], ignore: Option<i64>, spread: i64| {
            let (rows, width) = (table.shape[0], count(&table.shape[1..]));
            let ix = indices(g, it, count(shape), rows);
            let bits: Vec<u64> = ix
                .iter()
                .flat_map(|i| {
                    let r = row_of(*i, rows, ignore);
                    let b = &table.bits;
                    (0..width)
                        .map(move |c| r.map_or(0, |r| b[r * width + c]))
                        .collect::<Vec<_>>()
                })
                .collect();
            let p = IndexParams {
                flags: if ignore.is_some() {
                    op::FLAG_HAS_IGNORE
                } else {
                    0
                },
                ignore: ignore.unwrap_or(1),
                ..Default::default()
            };
            let out: Vec<usize> = shape.iter().chain(&table.shape[1..]).copied().collect();
            let index = T::ints(it, shape, &ix).spread(spread);
            Trial::new(
                what,
                p.as_bytes(),
                vec![Arg::Own(T::poison(t, &out)), table.into(), index.into()],
                vec![(0, Want::Exact(bits))],
            )
        };
    let mut all = Vec::new();
    if g.sizes() {
        for n in g.beyond() {
            for (rows, width, count) in [(n, 3, 9), (5, n, 7), (6, 3, n)] {
                let table = any(g, t, &[rows, width]);
                let what = format!("[{rows},{width}] by [{count}]");
                all.push(trial(g, &what, table, &[count], Some(2), 1));
            }
        }
        let longs = g.longs().into_iter().flat_map(|n| {
            [
                ([n, 2, 3], vec![9]),
                ([3, n, 2], vec![4]),
                ([4, 2, 3], vec![n, 2]),
                ([4, 2, 3], vec![2, n]),
            ]
        });
        for (table, shape) in longs {
            let what = format!("{table:?} by {shape:?}");
            let table = any(g, t, &table);
            all.push(trial(g, &what, table, &shape, Some(2), 1));
        }
        for n in g.grid() {
            for (rows, width, count) in [(n, 2, 9), (3, n, 2), (4, 2, n)] {
                let table = any(g, t, &[rows, width]).padded(1);
                let what = format!("[{rows},{width}] by [{count}]");
                all.push(trial(g, &what, table, &[count], None, 1));
            }
        }
        return all;
    }
    if g.about == About::Unread {
        // The ignored row, and those that no index names, are not numbers.
        let mut table = any(g, t, &[40, 9]);
        let low = table.bits[..9].to_vec();
        table
            .bits
            .iter_mut()
            .for_each(|b| *b = u64::MAX >> (64 - 8 * num::size(t)));
        for r in [0, 1, 3, 7, 39] {
            table.bits[r * 9..(r + 1) * 9].copy_from_slice(&low);
        }
        let ix = [0, 1, 2, 3, 7, 39, 2, -1, 40];
        // The same places with an ignored index and without: of the second the row is read.
        let one = |ignore: Option<i64>| {
            let rows = ix.map(|i| row_of(i, 40, ignore));
            let bits = rows.iter().flat_map(|r| {
                let row = r.map(|r| table.bits[r * 9..(r + 1) * 9].to_vec());
                row.unwrap_or_else(|| vec![0; 9])
            });
            let p = IndexParams {
                flags: if ignore.is_some() {
                    op::FLAG_HAS_IGNORE
                } else {
                    0
                },
                ignore: 2,
                ..Default::default()
            };
            let want = Want::Exact(bits.collect());
            let args = vec![
                T::poison(t, &[9, 9]).into(),
                table.clone().into(),
                T::ints(it, &[9], &ix).into(),
            ];
            let what = format!("what no index names is NaN, ignored {ignore:?}");
            Trial::new(what, p.as_bytes(), args, vec![(0, want)])
        };
        return vec![one(Some(2)), one(None)];
    }
    for (rows, width, n) in [(9, 33, 40), (1, 1, 1), (5, 8, 0), (50, 257, 31)] {
        let table = any(g, t, &[rows, width]);
        all.push(trial(
            g,
            &format!("[{rows},{width}] by [{n}]"),
            table,
            &[n],
            None,
            1,
        ));
    }
    let table = any(g, t, &[11, 7]);
    all.push(trial(g, "one index ignored", table, &[37], Some(2), 1));
    if it == DType::I64 {
        // Not the row whose number its low half is.
        let table = any(g, t, &[11, 7]);
        let far = Some((1 << 32) + 2);
        all.push(trial(
            g,
            "an index of 64 bits ignored",
            table,
            &[37],
            far,
            1,
        ));
    }
    let table = any(g, t, &[9, 12]).transposed();
    all.push(trial(g, "transposed table", table, &[4, 5], None, 1));
    let table = any(g, t, &[9, 12]).padded(4);
    all.push(trial(
        g,
        "padded table, every second index",
        table,
        &[20],
        None,
        2,
    ));
    let table = any(g, t, &[6, 2, 5]);
    all.push(trial(g, "rows of two dims", table, &[3, 4], None, 1));
    all
}
