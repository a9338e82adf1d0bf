//! Bandwidth of the memory-bound ops beside memcpy: `cargo run --release -p crossweave-backend-cpu --example ops_bench`.

use crossweave_abi::{Layout, op};
use crossweave_backend_cpu::isa::Isas;
use crossweave_backend_cpu::kernel::Launch;
use crossweave_backend_cpu::{ops, team::Team};
use crossweave_plugin::{DType, Host, OpRequest};
use std::time::Instant;

/// Bytes a second over the operands, each touched `passes[i]` times; best of several runs.
fn bench(
    name: &str,
    id: u32,
    params: &[u8],
    dynamic: &[u8],
    operands: &[(Layout, u64)],
    team: &Team,
) {
    let layouts: Vec<Layout> = operands.iter().map(|o| o.0).collect();
    let o = OpRequest::new(id, &layouts, params, 0);
    let (k, plan) = ops::prepare(&o, team.threads(), Isas::detect()).expect(name);
    let mut data: Vec<Vec<u64>> = layouts
        .iter()
        .map(|l| vec![0; (l.extent_bytes() as usize).div_ceil(8)])
        .collect();
    for (l, d) in layouts.iter().zip(&mut data) {
        let bytes = d.len() * 8;
        let p = d.as_mut_ptr();
        for i in 0..bytes / 4 {
            let x = (i as f32 * 0.37).sin().abs() + 0.1;
            // SAFETY: inside the buffer; integers are left zero.
            unsafe {
                match DType::from_id(l.dtype) {
                    Some(DType::F32) => *p.cast::<f32>().add(i) = x,
                    Some(DType::Bf16) => {
                        *p.cast::<u16>().add(2 * i) = (x.to_bits() >> 16) as u16;
                        *p.cast::<u16>().add(2 * i + 1) = (x.to_bits() >> 16) as u16;
                    }
                    _ => {}
                }
            }
        }
    }
    let ptrs: Vec<*mut u8> = layouts
        .iter()
        .zip(&mut data)
        .map(|(l, d)| {
            if l.present() {
                d.as_mut_ptr().cast()
            } else {
                std::ptr::null_mut()
            }
        })
        .collect();
    let mut scratch = vec![0u64; plan.workspace_bytes as usize / 8 + 1];
    let mut best = f64::MAX;
    for _ in 0..7 {
        let l = Launch {
            operands: &ptrs,
            workspace: scratch.as_mut_ptr().cast(),
            dynamic,
            team,
        };
        let t = Instant::now();
        // SAFETY: every address is a live buffer of its layout.
        unsafe { k.run(&l) };
        best = best.min(t.elapsed().as_secs_f64());
    }
    let bytes: u64 = operands
        .iter()
        .map(|(l, passes)| l.extent_bytes() * passes)
        .sum();
    println!(
        "{name:28} {:7.2} GB/s  {:8.3} ms",
        bytes as f64 / best / 1e9,
        best * 1e3
    );
}

fn main() {
    for threads in [1, 2] {
        println!("threads {threads}");
        all(&Team::new(threads, &Host::none()));
    }
}

fn all(team: &Team) {
    let none = op::NoParams::default();
    for t in [DType::F32, DType::Bf16] {
        let big = Layout::contiguous(t, &[16 << 20]);
        let wide = Layout::contiguous(DType::F32, &[16 << 20]);
        let a = |s: &str| format!("{s} {}", t.name());
        bench(
            &a("copy (memcpy)"),
            op::COPY_STRIDED,
            none.as_bytes(),
            &[],
            &[(big, 1), (big, 1)],
            team,
        );
        let tr = Layout::strided(t, &[4096, 4096], &[1, 4096]);
        let sq = Layout::contiguous(t, &[4096, 4096]);
        bench(
            &a("transpose 4096^2"),
            op::COPY_STRIDED,
            none.as_bytes(),
            &[],
            &[(sq, 1), (tr, 1)],
            team,
        );
        bench(
            &a("add"),
            op::ADD,
            none.as_bytes(),
            &[],
            &[(big, 1), (big, 1), (big, 1)],
            team,
        );
        let p = op::AdamwParams {
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            ..Default::default()
        };
        let d = op::AdamwDyn {
            lr: 1e-6,
            grad_scale: 1.0,
            step: 10,
            ..Default::default()
        };
        let mut group = vec![
            (Layout::ABSENT, 0),
            (Layout::ABSENT, 0),
            (big, 2),
            (big, 1),
            (wide, 2),
            (wide, 2),
        ];
        let mut p = p;
        if t != DType::F32 {
            p.flags = op::FLAG_MASTER;
            group[2].1 = 1;
            group.push((wide, 2));
        }
        bench(
            &a("adamw"),
            op::ADAMW,
            p.as_bytes(),
            d.as_bytes(),
            &group,
            team,
        );
        // Lion as the optimizer writes it: a dozen instructions over p, m and g.
        let i = |op, dst, a, b, imm| op::ProgramInst {
            op,
            dst,
            a,
            b,
            imm,
            ..Default::default()
        };
        use op::inst::*;
        let lion = [
            i(CONST, 3, 0, 0, 0.9),
            i(MUL, 4, 1, 3, 0.0),
            i(CONST, 5, 0, 0, 0.1),
            i(MUL, 6, 2, 5, 0.0),
            i(ADD, 7, 4, 6, 0.0),
            i(CONST, 8, 0, 0, 0.0),
            i(LT, 9, 8, 7, 0.0),
            i(LT, 10, 7, 8, 0.0),
            i(SUB, 11, 9, 10, 0.0),
            i(SCALAR, 12, 0, 0, 0.0),
            i(MUL, 13, 12, 0, 0.0),
            i(SUB, 14, 0, 13, 0.0),
            i(SCALAR, 15, 0, 0, 1.0),
            i(MUL, 16, 15, 11, 0.0),
            i(SUB, 17, 14, 16, 0.0),
            i(CONST, 18, 0, 0, 0.99),
            i(MUL, 19, 1, 18, 0.0),
            i(CONST, 20, 0, 0, 0.01),
            i(MUL, 21, 2, 20, 0.0),
            i(ADD, 22, 19, 21, 0.0),
            i(MOV, 0, 17, 0, 0.0),
            i(MOV, 1, 22, 0, 0.0),
        ];
        let mut p = op::ProgramParams {
            n_insts: lion.len() as u32,
            writes: 0b11,
            ..Default::default()
        };
        p.insts[..lion.len()].copy_from_slice(&lion);
        bench(
            &a("program (Lion)"),
            op::ELEMENTWISE_PROGRAM,
            p.as_bytes(),
            op::ProgramDyn::new(&[1e-7, 1e-6]).as_bytes(),
            &[(wide, 2), (wide, 2), (big, 1)],
            team,
        );
        let x = Layout::contiguous(t, &[8192, 768]);
        let (w, r) = (
            Layout::contiguous(t, &[768]),
            Layout::contiguous(DType::F32, &[8192]),
        );
        let dw = Layout::contiguous(DType::F32, &[768]);
        let p = op::NormParams {
            eps: 1e-5,
            ..Default::default()
        };
        bench(
            &a("layer_norm_fwd"),
            op::LAYER_NORM_FWD,
            p.as_bytes(),
            &[],
            &[(x, 1), (r, 1), (r, 1), (x, 1), (w, 0), (w, 0)],
            team,
        );
        bench(
            &a("layer_norm_bwd + dres"),
            op::LAYER_NORM_BWD,
            p.as_bytes(),
            &[],
            &[
                (x, 1),
                (dw, 0),
                (dw, 0),
                (x, 1),
                (x, 1),
                (w, 0),
                (r, 1),
                (r, 1),
                (x, 1),
            ],
            team,
        );
        bench(
            &a("rms_norm_fwd"),
            op::RMS_NORM_FWD,
            p.as_bytes(),
            &[],
            &[(x, 1), (r, 1), (x, 1), (w, 0)],
            team,
        );
        for (n, kind) in [
            ("gelu_tanh", op::activation::GELU_TANH),
            ("gelu_erf", op::activation::GELU_ERF),
            ("silu", op::activation::SILU),
        ] {
            let p = op::KindParams {
                kind,
                ..Default::default()
            };
            bench(
                &a(&format!("{n} fwd")),
                op::ACTIVATION_FWD,
                p.as_bytes(),
                &[],
                &[(big, 1), (big, 1)],
                team,
            );
            bench(
                &a(&format!("{n} bwd")),
                op::ACTIVATION_BWD,
                p.as_bytes(),
                &[],
                &[(big, 1), (big, 1), (big, 1)],
                team,
            );
        }
        let logits = Layout::contiguous(t, &[256, 50257]);
        let (row, tg) = (
            Layout::contiguous(DType::F32, &[256]),
            Layout::contiguous(DType::I32, &[256]),
        );
        let p = op::XentParams::default();
        bench(
            &a("cross_entropy_fwd"),
            op::CROSS_ENTROPY_FWD,
            p.as_bytes(),
            &[],
            &[(row, 1), (row, 1), (logits, 1), (tg, 1)],
            team,
        );
        bench(
            &a("cross_entropy_bwd"),
            op::CROSS_ENTROPY_BWD,
            p.as_bytes(),
            &[],
            &[(logits, 1), (logits, 1), (row, 1), (tg, 1), (row, 1)],
            team,
        );
        let one = Layout::contiguous(DType::F32, &[1]);
        bench(
            &a("multi_sumsq"),
            op::MULTI_SUMSQ,
            none.as_bytes(),
            &[],
            &[(one, 0), (big, 1)],
            team,
        );
        let cols = Layout::contiguous(DType::F32, &[1, 768]);
        let p = op::ReduceParams {
            kind: op::reduce::SUM,
            axes: 1,
            ..Default::default()
        };
        bench(
            &a("reduce rows"),
            op::REDUCE,
            p.as_bytes(),
            &[],
            &[(cols, 0), (x, 1)],
            team,
        );
        let p = op::DropoutParams {
            p: 0.1,
            ..Default::default()
        };
        bench(
            &a("dropout"),
            op::DROPOUT,
            p.as_bytes(),
            &[],
            &[(big, 1), (big, 1)],
            team,
        );
    }
}
