//! The fixed small attention an instruction set must get right, forward and backward, before it is used.

use super::bwd::Bwd;
use super::{Backward, Forward, Isa, Shape, View, bwd, fwd, up};
use crate::gemm::elem::Elem;
use crate::kernel::{Kernel, Launch};
use crate::team::Team;

/// Queries, head size.
const TQ: usize = 5;
const D: usize = 5;

/// Positive and negative values of full mantissa in one row after the other.
fn fill(elem: Elem, seed: u32, n: usize) -> Vec<u32> {
    let mut s = seed;
    let values: Vec<f32> = (0..n)
        .map(|_| {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (s >> 8) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect();
    let mut words = vec![0u32; n];
    // SAFETY: a word per value holds any storage.
    unsafe { elem.narrow(values.as_ptr(), n, words.as_mut_ptr().cast()) };
    words
}

fn run(kernel: &dyn Kernel, floats: usize, operands: &mut [Vec<u32>]) {
    let pointers: Vec<*mut u8> = operands.iter_mut().map(|x| x.as_mut_ptr().cast()).collect();
    // NaN: what is read before it is written shows.
    let mut work = vec![f32::NAN; floats];
    let launch = Launch {
        operands: &pointers,
        workspace: work.as_mut_ptr().cast(),
        dynamic: &[],
        team: &Team::solo(),
    };
    // SAFETY: dense operands of the shape; the caller that tests an instruction set knows that it is there.
    unsafe { kernel.run(&launch) }
}

fn shape(elem: Elem, tk: usize, nr: usize) -> Shape {
    let view = |t: usize| View {
        elem,
        stride: [(t * D) as isize, D as isize, D as isize],
    };
    Shape {
        b: 1,
        tq: TQ,
        tk,
        h: 1,
        hkv: 1,
        d: D,
        dp: up(D, nr),
        scale: 0.5,
        causal: true,
        window: 0,
        ahead: tk as i64 - TQ as i64,
        q: view(TQ),
        k: view(tk),
        v: view(tk),
        o: view(TQ),
        lse: [TQ as isize, TQ as isize, 1],
        ext: None,
    }
}

/// o and lse.
fn forward(isa: Isa, elem: Elem, tk: usize) -> [Vec<u32>; 2] {
    let s = shape(elem, tk, isa.nr);
    let floats = fwd::floats(&s);
    let mut x = [
        vec![0; TQ * D],
        vec![0; TQ],
        fill(elem, 1, TQ * D),
        fill(elem, 2, tk * D),
        fill(elem, 3, tk * D),
    ];
    run(&Forward { s, isa, slots: 1 }, floats, &mut x);
    let [o, lse, ..] = x;
    [o, lse]
}

/// dq, dk and dv, given what the forward stored.
fn backward(isa: Isa, elem: Elem, tk: usize, [o, lse]: &[Vec<u32>; 2]) -> [Vec<u32>; 3] {
    let s = shape(elem, tk, isa.nr);
    let s = Bwd {
        dq: s.q,
        dk: s.k,
        dv: s.v,
        dout: s.o,
        s,
        split: false,
    };
    let floats = bwd::Bwd::floats(&s);
    let mut x = [
        vec![0; TQ * D],
        vec![0; tk * D],
        vec![0; tk * D],
        fill(elem, 4, TQ * D),
        o.clone(),
        fill(elem, 1, TQ * D),
        fill(elem, 2, tk * D),
        fill(elem, 3, tk * D),
        lse.clone(),
    ];
    run(&Backward { s, isa, slots: 1 }, floats, &mut x);
    let [dq, dk, dv, ..] = x;
    [dq, dk, dv]
}

fn near(name: &str, elem: Elem, got: &[u32], want: &[u32], bound: f32) -> Result<(), String> {
    let values = |words: &[u32]| {
        let mut out = vec![0.0f32; words.len()];
        // SAFETY: the words hold as many elements.
        unsafe { elem.widen(words.as_ptr().cast(), words.len(), out.as_mut_ptr()) };
        out
    };
    for (i, (g, w)) in values(got).iter().zip(&values(want)).enumerate() {
        let off = (g - w).abs();
        // A NaN is not within any bound.
        if off > bound * w.abs().max(1.0) || off.is_nan() {
            return Err(format!(
                "attention {elem:?}: {name}[{i}] is {g:e}, must be {w:e}"
            ));
        }
    }
    Ok(())
}

/// Compares an instruction set with a trusted one, over one and two blocks of keys and every storage.
pub fn check(isa: Isa, trusted: Isa) -> Result<(), String> {
    // Two units in the last place of a 16-bit result; f32 results differ by what is fused, over some hundred roundings. The backward
    // is longer than all else and reads and writes rows as the forward does: one storage will do.
    let cases = [
        (Elem::F32, super::BK + 3, 1e-5, false),
        (Elem::F32, 9, 1e-5, true),
        (Elem::Bf16, 9, 1.0 / 64.0, false),
        (Elem::F16, 9, 1.0 / 512.0, false),
    ];
    for (elem, tk, bound, both) in cases {
        let want = forward(trusted, elem, tk);
        let got = forward(isa, elem, tk);
        near("o", elem, &got[0], &want[0], bound)?;
        near("lse", Elem::F32, &got[1], &want[1], 1e-5)?;
        if !both {
            continue;
        }
        let grads = backward(trusted, elem, tk, &want);
        let mine = backward(isa, elem, tk, &want);
        for ((name, g), w) in ["dq", "dk", "dv"].iter().zip(&mine).zip(&grads) {
            near(name, elem, g, w, bound)?;
        }
    }
    Ok(())
}
