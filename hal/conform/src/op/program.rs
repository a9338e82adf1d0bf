//! `elementwise_program`: programs that use every instruction, overwrite operands, read scalars, mix storages and broadcast.

use super::bound::{Num, num as exact};
use super::cell::{About, Cell, FLOATS, Gen};
use super::moves::nans;
use super::num;
use super::sizes;
use super::tensor::T;
use super::trial::{Trial, Want};
use crossweave_abi::DType;
use crossweave_abi::op::{self, PROGRAM_MAX_INSTS, ProgramDyn, ProgramInst, ProgramParams, inst};

/// Every cell of this op.
pub fn cells() -> Vec<Cell> {
    let mut all: Vec<Cell> = FLOATS
        .into_iter()
        .map(|t| {
            Cell::new(op::ELEMENTWISE_PROGRAM, t.name(), move |g| {
                programs(g, t, t)
            })
        })
        .collect();
    for t in [DType::Bf16, DType::F16] {
        let what = format!("f32.with_{}", t.name());
        all.push(Cell::new(op::ELEMENTWISE_PROGRAM, what, move |g| {
            programs(g, DType::F32, t)
        }));
    }
    all
}

/// `dst = op(a, b, c)`.
fn i(op: u32, dst: u32, a: u32, b: u32, c: u32) -> ProgramInst {
    ProgramInst {
        op,
        dst,
        a,
        b,
        c,
        ..Default::default()
    }
}

/// `dst = imm`, or the scalar of that number.
fn k(op: u32, dst: u32, imm: f32) -> ProgramInst {
    ProgramInst {
        imm,
        ..i(op, dst, 0, 0, 0)
    }
}

fn params(code: &[ProgramInst], writes: u32) -> ProgramParams {
    let mut p = ProgramParams {
        n_insts: code.len() as u32,
        writes,
        ..Default::default()
    };
    p.insts[..code.len()].copy_from_slice(code);
    p
}

/// Runs one element: operands in, registers out.
fn interpret(code: &[ProgramInst], x: &[f64], scalars: &[f32; 8]) -> Vec<Num> {
    let mut r = vec![exact(0.0); 64];
    x.iter().enumerate().for_each(|(i, v)| r[i] = exact(*v));
    for c in code {
        let (a, b, z) = (r[c.a as usize], r[c.b as usize], r[c.c as usize]);
        r[c.dst as usize] = match c.op {
            inst::CONST => exact(f64::from(c.imm)),
            inst::SCALAR => exact(f64::from(scalars[c.imm as usize])),
            inst::MOV => a,
            inst::ADD => a + b,
            inst::SUB => a - b,
            inst::MUL => a * b,
            inst::DIV => a / b,
            inst::MAX => a.max(b),
            inst::MIN => -((-a).max(-b)),
            inst::FMA => {
                // One rounding, not two.
                let v = a.v * b.v + z.v;
                Num {
                    v,
                    e: a.v.abs() * b.e + b.v.abs() * a.e + z.e + num::U * v.abs(),
                }
            }
            inst::NEG => -a,
            inst::ABS => Num {
                v: a.v.abs(),
                e: a.e,
            },
            inst::SQRT => a.sqrt(),
            inst::RSQRT => exact(1.0) / a.sqrt(),
            inst::EXP => a.exp(),
            inst::LOG => a.ln(),
            inst::TANH => a.tanh(),
            inst::ERF => a.erf(),
            inst::SIGMOID => a.sigmoid(),
            inst::FLOOR => exact(a.v.floor()),
            inst::LT => exact(f64::from(u8::from(a.v < b.v))),
            _ => {
                if a.v != 0.0 {
                    b
                } else {
                    z
                }
            }
        };
    }
    r
}

fn trial(what: &str, code: &[ProgramInst], writes: u32, x: &[T], scalars: &[&[f32]]) -> Trial {
    let p = params(code, writes);
    let cols: Vec<Vec<f64>> = x.iter().map(T::values).collect();
    let want = |s: &ProgramDyn| -> Vec<(usize, Want)> {
        let rows: Vec<Vec<Num>> = (0..cols[0].len())
            .map(|e| {
                interpret(
                    code,
                    &cols.iter().map(|c| c[e]).collect::<Vec<_>>(),
                    &s.scalars,
                )
            })
            .collect();
        (0..x.len())
            .filter(|o| writes >> o & 1 == 1)
            .map(|o| (o, Want::Fused(rows.iter().map(|r| r[o]).collect())))
            .collect()
    };
    let first = ProgramDyn::new(scalars[0]);
    let args = x.iter().cloned().map(Into::into).collect();
    let mut t = Trial::new(what, p.as_bytes(), args, want(&first)).given(first.as_bytes());
    for s in &scalars[1..] {
        let d = ProgramDyn::new(s);
        t = t.then(d.as_bytes(), want(&d));
    }
    t
}

fn programs(g: &mut Gen, t: DType, u: DType) -> Vec<Trial> {
    use inst::*;
    let mut all = Vec::new();
    // y = a * b + 2 (rounded twice), a written too.
    let simple = [i(MUL, 3, 1, 2, 0), k(CONST, 4, 2.0), i(ADD, 0, 3, 4, 0)];
    if g.sizes() {
        for (what, b) in sizes::inputs(g, |g, s| g.real(t, s, 2.0)) {
            let s = b.shape.clone();
            let x = [T::full(t, &s, 0.0), g.real(u, &s, 2.0), b];
            all.push(trial(&format!("{what}, a * b + 2"), &simple, 1, &x, &[&[]]));
        }
        return all;
    }
    if g.about == About::Launches {
        let code = [k(SCALAR, 2, 0.0), k(SCALAR, 3, 7.0), i(FMA, 0, 1, 2, 3)];
        let of = |i: usize| {
            [
                1.0 + i as f32 / 256.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                0.0,
                i as f32,
            ]
        };
        let given: Vec<[f32; 8]> = (0..g.at_once()).map(of).collect();
        let scalars: Vec<&[f32]> = given.iter().map(|s| &s[..]).collect();
        let x = [T::full(t, &[5], 0.0), g.real(u, &[5], 2.0)];
        let what = format!("{} launches in flight", scalars.len());
        return vec![trial(&what, &code, 1, &x, &scalars)];
    }
    if g.about == About::Models {
        // Constants and scalars that need all of their bits.
        let code = [
            k(CONST, 2, 0.333_333_34),
            k(SCALAR, 3, 1.0),
            k(SCALAR, 4, 6.0),
            i(MUL, 5, 1, 2, 0),
            i(FMA, 6, 5, 3, 4),
            i(MOV, 0, 6, 0, 0),
        ];
        let x = [T::full(t, &[65], 0.0), g.real(u, &[65], 2.0)];
        let one = [0.0, 0.123_456_79, 0.0, 0.0, 0.0, 0.0, -0.7, 0.0];
        let two = [1.0, 1.234_567_9, 2.0, 3.0, 4.0, 5.0, 1e-3, 6.0];
        return vec![trial(
            "constants and scalars of all bits",
            &code,
            1,
            &x,
            &[&one, &two],
        )];
    }
    for n in [0, 1, 7, 33, 257, 1000] {
        let x = [
            T::full(t, &[n], 0.0),
            g.real(u, &[n], 2.0),
            g.real(t, &[n], 2.0),
        ];
        all.push(trial(&format!("[{n}] a * b + 2"), &simple, 1, &x, &[&[]]));
    }
    let s = [9, 33];
    let x = [
        T::full(t, &s, 0.0),
        g.real(u, &s, 2.0).broadcast(&[0]),
        g.real(t, &s, 2.0).transposed(),
    ];
    all.push(trial(
        "[9,33] a row and a transpose",
        &simple,
        1,
        &x,
        &[&[]],
    ));
    let x = [
        T::full(t, &s, 0.0),
        g.real(u, &s, 2.0).broadcast(&[0, 1]),
        g.real(t, &s, 2.0).broadcast(&[1]),
    ];
    all.push(trial(
        "[9,33] one element and a column",
        &simple,
        1,
        &x,
        &[&[]],
    ));
    // Two operands written, one read after it was overwritten: registers, not memory, are read.
    let swap = [
        i(MOV, 5, 0, 0, 0),
        i(MOV, 0, 1, 0, 0),
        i(MOV, 1, 5, 0, 0),
        i(ADD, 2, 0, 1, 0),
    ];
    let x = [
        g.real(t, &[100], 2.0),
        g.real(t, &[100], 2.0),
        T::full(t, &[100], 0.0),
    ];
    all.push(trial("swap, and the sum", &swap, 0b111, &x, &[&[]]));
    // Every function of one argument.
    let unary = [
        k(CONST, 9, 0.5),
        i(ABS, 2, 1, 0, 0),
        i(ADD, 3, 2, 9, 0),
        i(SQRT, 4, 3, 0, 0),
        i(RSQRT, 5, 3, 0, 0),
        i(LOG, 6, 3, 0, 0),
        i(EXP, 7, 1, 0, 0),
        i(TANH, 8, 1, 0, 0),
        i(ERF, 10, 1, 0, 0),
        i(SIGMOID, 11, 1, 0, 0),
        i(FLOOR, 12, 1, 0, 0),
        i(NEG, 13, 12, 0, 0),
        i(ADD, 14, 4, 5, 0),
        i(MUL, 15, 6, 7, 0),
        i(SUB, 16, 8, 10, 0),
        i(FMA, 17, 11, 13, 14),
        i(DIV, 18, 15, 3, 0),
        i(ADD, 19, 16, 17, 0),
        i(ADD, 0, 18, 19, 0),
    ];
    let x = [T::full(t, &[300], 0.0), g.real(u, &[300], 2.5)];
    all.push(trial("every function", &unary, 1, &x, &[&[]]));
    // Each function at numbers where a formula for it overflows, cancels or loses a sign; results are numbers, 0 or NaN.
    let far = [
        -200.0, -95.0, -50.0, -20.0, -9.0, -2.5, -1e-3, 0.0, 1e-3, 0.5, 3.0, 9.0, 20.0, 50.0, 87.0,
        95.0, 200.0,
    ];
    let far: Vec<f64> = far.into_iter().chain([f64::NAN]).collect();
    for (f, name) in [
        (ABS, "abs"),
        (EXP, "exp"),
        (TANH, "tanh"),
        (ERF, "erf"),
        (SIGMOID, "sigmoid"),
        (FLOOR, "floor"),
        (NEG, "neg"),
        (LOG, "log"),
        (SQRT, "sqrt"),
        (RSQRT, "rsqrt"),
    ] {
        // Of what is no number below 0, the positive ones; e^95 is more than f32 and f16 hold.
        let positive = matches!(f, LOG | SQRT | RSQRT);
        let fits = |v: &&f64| v.is_nan() || (!positive || **v > 0.0) && (f != EXP || **v < 10.0);
        let v: Vec<f64> = far.iter().filter(fits).copied().collect();
        let x = [T::full(t, &[v.len()], 0.0), T::new(u, &[v.len()], &v)];
        let what = format!("{name} far out");
        all.push(trial(
            &what,
            &[i(f, 63, 1, 0, 0), i(MOV, 0, 63, 0, 0)],
            1,
            &x,
            &[&[]],
        ));
    }
    // Choices; a NaN is not chosen, and not less than anything.
    let choose = [
        k(CONST, 3, 0.25),
        i(LT, 4, 1, 3, 0),
        i(SELECT, 5, 4, 1, 2),
        i(MAX, 6, 5, 2, 0),
        i(MIN, 7, 6, 1, 0),
        i(MOV, 0, 7, 0, 0),
    ];
    let mut a = g.real(u, &[65], 1.0);
    let b = g.real(t, &[65], 1.0);
    all.push(trial(
        "choices",
        &choose,
        1,
        &[T::full(t, &[65], 0.0), a.clone(), b.clone()],
        &[&[]],
    ));
    a.bits[7] = num::encode(u, f64::NAN);
    let pick = [k(CONST, 3, 0.0), i(LT, 4, 1, 3, 0), i(SELECT, 0, 4, 3, 2)];
    all.push(trial(
        "a NaN is less than nothing",
        &pick,
        1,
        &[T::full(t, &[65], 0.0), a.clone(), b.clone()],
        &[&[]],
    ));
    for (f, name) in [(MAX, "maximum"), (MIN, "minimum")] {
        for (first, second) in [(1, 2), (2, 1)] {
            all.push(trial(
                &format!("a NaN is the {name}"),
                &[i(f, 0, first, second, 0)],
                1,
                &[T::full(t, &[65], 0.0), a.clone(), b.clone()],
                &[&[]],
            ));
        }
    }
    // Whatever is not 0 chooses: numbers below it, small ones and NaN.
    let condition = [-1.0, 0.0, -0.0, 1e-6, -1e-6, 0.5, 3.0, f64::NAN];
    let x = [
        T::full(t, &[8], 0.0),
        T::new(u, &[8], &condition),
        g.real(t, &[8], 2.0),
        g.real(t, &[8], 2.0),
    ];
    all.push(trial(
        "conditions of every sign",
        &[i(SELECT, 0, 1, 2, 3)],
        1,
        &x,
        &[&[]],
    ));
    // a < a is false, and so is what NaN is less than.
    let same = [i(LT, 0, 1, 1, 0)];
    let x = [T::full(t, &[65], 2.0), a];
    all.push(trial("nothing is less than itself", &same, 1, &x, &[&[]]));
    // A product that cancels what is added: rounded before that, nothing of it is left.
    let third = num::through(u, 1.0 / 3.0);
    let minus = -(third as f32 * third as f32);
    let once = [k(SCALAR, 9, 3.0), i(FMA, 0, 1, 1, 9)];
    if u == DType::F32 && t == DType::F32 {
        let x = [T::full(t, &[9], 0.0), T::full(u, &[9], third)];
        let scalars = [0.0, 0.0, 0.0, minus, 0.0, 0.0, 0.0, 0.0];
        all.push(trial(
            "a product that is cancelled",
            &once,
            1,
            &x,
            &[&scalars],
        ));
    }
    let bits = nans(u);
    let n = bits.len();
    let x = [
        T::full(t, &[n], 0.0),
        T::of_bits(u, &[n], bits),
        T::full(t, &[n], 1.0),
    ];
    all.push(trial("NaN of every kind", &simple, 1, &x, &[&[]]));
    // Scalars come with the launch.
    let scaled = [
        k(SCALAR, 2, 0.0),
        k(SCALAR, 3, 7.0),
        k(SCALAR, 4, 5.0),
        k(SCALAR, 5, 2.0),
        i(FMA, 6, 1, 2, 3),
        i(FMA, 0, 4, 5, 6),
    ];
    let x = [T::full(t, &[100], 0.0), g.real(u, &[100], 2.0)];
    let one = [1.5, 0.5, 2.0, 8.0, 4.0, 1.0, 16.0, -3.0];
    let two = [-0.25, 9.0, 3.0, 9.0, 9.0, -2.0, 9.0, 7.0];
    all.push(trial(
        "scalars of two launches",
        &scaled,
        1,
        &x,
        &[&one, &two],
    ));
    // An operand in its own place, and u32 words as conditions.
    let keep = [k(CONST, 2, 2.0), i(MUL, 2, 0, 2, 0), i(SELECT, 0, 1, 0, 2)];
    let words = T::of_bits(DType::U32, &[40], (0..40).map(|i| i % 3).collect());
    all.push(trial(
        "words choose",
        &keep,
        1,
        &[g.real(t, &[40], 2.0), words],
        &[&[]],
    ));
    // As long as a program may be, with as many operands.
    let mut long: Vec<ProgramInst> = vec![i(MOV, 24, 1, 0, 0)];
    for n in 0..PROGRAM_MAX_INSTS as u32 - 2 {
        long.push(i(
            if n % 2 == 0 { ADD } else { SUB },
            24 + (n + 1) % 40,
            24 + n % 40,
            2 + n % 14,
            0,
        ));
    }
    let last = 24 + (PROGRAM_MAX_INSTS as u32 - 2) % 40;
    long.push(i(MOV, 0, last, 0, 0));
    let mut x = vec![T::full(t, &[70], 0.0)];
    x.extend((1..16).map(|_| g.real(u, &[70], 1.0)));
    all.push(trial("64 instructions, 16 operands", &long, 1, &x, &[&[]]));
    all
}
