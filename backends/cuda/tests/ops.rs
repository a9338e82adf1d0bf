//! Compute on the simulator: which kernels are launched with which grids, what is compiled and kept, and products by the library. Kernels are
//! written down there, not executed; products of f32 are computed.

use crate::common;
use common::{Simulated, simulator, span};
use crossweave_backend_cuda::{ABOUT, Cuda, CudaOps, Device, Mem, Prepared, Settings};
use crossweave_plugin::abi::Layout;
use crossweave_plugin::abi::op::{self, AdamwDyn, AdamwParams, KindParams, MatmulParams, NoParams};
use crossweave_plugin::{Backend, Code, DType, Dyn, Host, OpRequest, Ops, Plan, Result, Span, abi};
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn dense(dtype: DType, shape: &[i64]) -> Layout {
    let mut stride = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        stride[i - 1] = stride[i] * shape[i];
    }
    strided(dtype, shape, &stride)
}

fn strided(dtype: DType, shape: &[i64], stride: &[i64]) -> Layout {
    let mut l = Layout {
        size: size_of::<Layout>() as u32,
        dtype: dtype.id(),
        rank: shape.len() as u32,
        flags: 0,
        shape: [0; 8],
        stride: [0; 8],
    };
    l.shape[..shape.len()].copy_from_slice(shape);
    l.stride[..stride.len()].copy_from_slice(stride);
    l
}

fn prepare(
    b: &Cuda,
    d: &Device,
    id: u32,
    layouts: &[Layout],
    params: &[u8],
) -> Result<(Prepared, Plan)> {
    CudaOps::prepare(
        b,
        d,
        &OpRequest::new(id, layouts, params, abi::MATH_DETERMINISTIC),
    )
}

#[test]
fn compute_on_the_simulator() {
    let t = Simulated::new("ops", &["cuda.libnvrtc", "cuda.libcublaslt"]);
    kernels_are_compiled_once_and_launched(&t);
    launch_time_parameters_are_checked(&t);
    what_is_given_is_checked_before_the_device_sees_it(&t);
    products(&t, 2, true);
    products(&t, 3, false);
    a_stray_kernel_ends_the_device(&t);
    assert_eq!(t.depth(), 0);
    assert_eq!(
        (t.live('m'), t.ask("sim_lt_live", 0) as i32),
        (0, 0),
        "modules and descriptors are left"
    );
    images_are_kept_on_disk_and_shared();
}

fn kernels_are_compiled_once_and_launched(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let l = [dense(DType::F32, &[1000]); 3];
    let before = t.ask("sim_compiled", 0) as i32;
    let (add, plan) = prepare(&t.b, &d, op::ADD, &l, NoParams::default().as_bytes()).unwrap();
    let (again, _) = prepare(&t.b, &d, op::ADD, &l, NoParams::default().as_bytes()).unwrap();
    assert_eq!(
        t.ask("sim_compiled", 0) as i32,
        before + 1,
        "the same kernel is compiled once"
    );
    let m = t.device_memory(&d, 4000);
    let x = Some(span(&m, 0, 4000));
    t.launches();
    CudaOps::launch(&t.b, &add, &s, &[x, x, x], None, Dyn(&[])).unwrap();
    CudaOps::launch(&t.b, &again, &s, &[x, x, x], None, Dyn(&[])).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    let lines = t.launches();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0] == lines[1] && plan.workspace_bytes == 0);
    // Nothing to do is nothing launched, and no kernel needed.
    let none = [dense(DType::F32, &[0]); 3];
    let (nothing, _) = prepare(&t.b, &d, op::ADD, &none, NoParams::default().as_bytes()).unwrap();
    CudaOps::launch(&t.b, &nothing, &s, &[None, None, None], None, Dyn(&[])).unwrap();
    assert_eq!(t.launches().len(), 0);
    // What no kernel does is refused, and an op of another device is not launched.
    let odd = prepare(&t.b, &d, 0x7777, &l, NoParams::default().as_bytes());
    assert_eq!(odd.err().unwrap().code, Code::Unsupported);
    let kind = KindParams {
        kind: 99,
        ..KindParams::default()
    };
    assert_eq!(
        prepare(&t.b, &d, op::UNARY, &l[..2], kind.as_bytes())
            .err()
            .unwrap()
            .code,
        Code::Unsupported
    );
    let other = t.b.open(1).unwrap();
    let foreign = t.b.stream(&other, 0).unwrap();
    let e = CudaOps::launch(&t.b, &add, &foreign, &[x, x, x], None, Dyn(&[])).unwrap_err();
    assert_eq!(e.code, Code::Invalid);
}

fn launch_time_parameters_are_checked(t: &Simulated) {
    let d = t.b.open(0).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let l = [
        Layout::ABSENT,
        Layout::ABSENT,
        dense(DType::F32, &[64]),
        dense(DType::F32, &[64]),
        dense(DType::F32, &[64]),
        dense(DType::F32, &[64]),
    ];
    let params = AdamwParams {
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        ..AdamwParams::default()
    };
    let (adamw, plan) = prepare(&t.b, &d, op::ADAMW, &l, params.as_bytes()).unwrap();
    let m = t.device_memory(&d, 256 + plan.workspace_bytes);
    let x = Some(span(&m, 0, 256));
    let scratch = (plan.workspace_bytes > 0).then(|| span(&m, 256, plan.workspace_bytes));
    let go = |step: u64| {
        let dynamic = AdamwDyn {
            lr: 1e-3,
            grad_scale: 1.0,
            step,
            ..AdamwDyn::default()
        };
        CudaOps::launch(
            &t.b,
            &adamw,
            &s,
            &[None, None, x, x, x, x],
            scratch,
            Dyn(dynamic.as_bytes()),
        )
    };
    t.launches();
    assert_eq!(go(0).unwrap_err().code, Code::Invalid);
    assert_eq!(t.launches().len(), 0, "what is refused launches nothing");
    go(1).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(!t.launches().is_empty());
}

fn what_is_given_is_checked_before_the_device_sees_it(t: &Simulated) {
    let d = t.b.open(5).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let f = DType::F32;
    let l = [dense(f, &[8]), strided(f, &[8], &[2]), dense(f, &[8])];
    let kind = KindParams {
        kind: op::binary::ADD,
        ..KindParams::default()
    };
    let (add, _) = prepare(&t.b, &d, op::BINARY, &l, kind.as_bytes()).unwrap();
    let product = [
        dense(f, &[3, 5]),
        dense(f, &[3, 4]),
        dense(f, &[4, 5]),
        Layout::ABSENT,
    ];
    let params = MatmulParams::default();
    let (product, plan) = prepare(&t.b, &d, op::MATMUL, &product, params.as_bytes()).unwrap();
    assert_eq!((plan.tier, plan.workspace_bytes), (2, 4096));
    let (m, p) = (t.device_memory(&d, 16384), t.pinned(&d, 64));
    let other = t.b.open(6).unwrap();
    let foreign = t.device_memory(&other, 64);
    let on = |offset, bytes| Some(span(&m, offset, bytes));
    // Fifteen floats for the eight that lie two apart.
    let (x, y) = (on(0, 32), on(256, 60));
    let ws = on(8192, 4096);
    let good = [x, y, x];
    let (c, a, b) = (on(0, 60), on(256, 48), on(512, 80));
    type Given<'a> = (
        &'a Prepared,
        &'a [Option<Span<'a, Mem>>],
        Option<Span<'a, Mem>>,
    );
    let cases: [(&str, Given<'_>); 14] = [
        ("launched with 2", (&add, &[x, y], None)),
        ("launched with 4", (&add, &[x, y, x, x], None)),
        (
            "operand 2 was there at prepare but is missing",
            (&add, &[x, y, None], None),
        ),
        (
            "operand 1 needs 60 bytes, its span has 59",
            (&add, &[x, on(256, 59), x], None),
        ),
        ("operand 0 starts at", (&add, &[on(2, 32), y, x], None)),
        (
            "operand 0: the span: 32 bytes from 16380",
            (&add, &[on(16380, 32), y, x], None),
        ),
        (
            "operand 0: the span: 32 bytes from 18446744073709551615",
            (&add, &[on(u64::MAX, 32), y, x], None),
        ),
        (
            "operand 2: memory of device 6, which device 5",
            (&add, &[x, y, Some(span(&foreign, 0, 32))], None),
        ),
        (
            "operand 3 was absent at prepare but is given",
            (&product, &[c, a, b, x], ws),
        ),
        (
            "operand 0 needs 60 bytes",
            (&product, &[on(0, 56), a, b, None], ws),
        ),
        (
            "operand 1 starts at",
            (&product, &[c, on(257, 48), b, None], ws),
        ),
        (
            "needs 4096 bytes of workspace, got 0",
            (&product, &[c, a, b, None], None),
        ),
        (
            "the workspace must be 256-byte aligned",
            (&product, &[c, a, b, None], on(8200, 4096)),
        ),
        (
            "the workspace: the span",
            (&product, &[c, a, b, None], on(16000, 4096)),
        ),
    ];
    t.launches();
    for (what, (prepared, operands, ws)) in cases {
        let e = CudaOps::launch(&t.b, prepared, &s, operands, ws, Dyn(&[])).unwrap_err();
        assert!(
            e.code == Code::Invalid && e.message.contains(what),
            "{e}, wanted {what:?}"
        );
    }
    assert_eq!(t.launches().len(), 0, "what is refused launches nothing");
    // Pinned memory is any device's; another device's memory once access has been given.
    let shared = [Some(span(&p, 0, 32)), y, x];
    CudaOps::launch(&t.b, &add, &s, &good, None, Dyn(&[])).unwrap();
    CudaOps::launch(&t.b, &add, &s, &shared, None, Dyn(&[])).unwrap();
    assert_eq!(t.b.peer_access(&d, &other).unwrap(), (3, 0));
    let far = [x, y, Some(span(&foreign, 0, 32))];
    CudaOps::launch(&t.b, &add, &s, &far, None, Dyn(&[])).unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert_eq!(t.launches().len(), 3);
}

/// Against the sum written out; `unaligned`: whether the library has an algorithm for odd addresses.
fn products(t: &Simulated, device: u32, unaligned: bool) {
    t.ask("sim_lt_unaligned", unaligned.into());
    let d = t.b.open(device).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let (m, n, k) = (3usize, 5usize, 4usize);
    let f = DType::F32;
    let cases: [(&str, [Layout; 3], bool); 3] = [
        (
            "plain",
            [dense(f, &[3, 5]), dense(f, &[3, 4]), dense(f, &[4, 5])],
            false,
        ),
        (
            "transposed",
            [
                dense(f, &[3, 5]),
                strided(f, &[3, 4], &[1, 3]),
                strided(f, &[4, 5], &[1, 4]),
            ],
            false,
        ),
        (
            "with bias",
            [dense(f, &[3, 5]), dense(f, &[3, 4]), dense(f, &[4, 5])],
            true,
        ),
    ];
    let p = t.pinned(&d, 4096);
    let scratch = t.device_memory(&d, 1 << 16);
    for (what, l, biased) in cases {
        let bias = if biased {
            dense(f, &[5])
        } else {
            Layout::ABSENT
        };
        let layouts = [l[0], l[1], l[2], bias];
        for accumulate in [false, true] {
            let flags = if accumulate { op::FLAG_ACCUM } else { 0 };
            let params = MatmulParams {
                flags,
                alpha: 0.5,
                ..MatmulParams::default()
            };
            let asked = t.ask("sim_lt_asked", 0) as i32;
            let (product, plan) =
                prepare(&t.b, &d, op::MATMUL, &layouts, params.as_bytes()).unwrap();
            assert_eq!((plan.tier, plan.workspace_bytes), (2, 4096), "{what}");
            let first = t.ask("sim_lt_asked", 0) as i32 - asked;
            drop(prepare(&t.b, &d, op::MATMUL, &layouts, params.as_bytes()).unwrap());
            assert_eq!(
                (first, t.ask("sim_lt_asked", 0) as i32 - asked),
                (2, 2),
                "a shape is asked for once"
            );
            for shift in [0u64, 4] {
                let all = t.bytes(&p, 4096);
                let words: &mut [f32] = bytemuck_f32(all);
                let at = |i: usize| i * 256 + shift as usize / 4;
                for i in 0..4 {
                    for x in 0..64 {
                        words[at(i) + x] = ((x * 7 + i * 3) % 5) as f32 - 1.0;
                    }
                }
                let mut want = vec![0f32; m * n];
                for i in 0..m {
                    for j in 0..n {
                        let (sa, sb) = (&l[1].stride, &l[2].stride);
                        let sum: f32 = (0..k)
                            .map(|x| {
                                words[at(1) + i * sa[0] as usize + x * sa[1] as usize]
                                    * words[at(2) + x * sb[0] as usize + j * sb[1] as usize]
                            })
                            .sum();
                        let old = if accumulate {
                            words[at(0) + i * n + j]
                        } else {
                            0.0
                        };
                        let b = if biased { words[at(3) + j] } else { 0.0 };
                        want[i * n + j] = 0.5 * sum + old + b;
                    }
                }
                let o = |i: usize, bytes: u64| Some(span(&p, i as u64 * 1024 + shift, bytes));
                let operands = [
                    o(0, 60),
                    o(1, 48),
                    o(2, 80),
                    if biased { o(3, 20) } else { None },
                ];
                t.launches();
                let ws = Some(span(&scratch, 0, plan.workspace_bytes));
                CudaOps::launch(&t.b, &product, &s, &operands, ws, Dyn(&[])).unwrap();
                t.b.stream_sync(&s, LONG).unwrap();
                let ours = t.launches();
                if shift > 0 && !unaligned {
                    assert!(
                        !ours.is_empty(),
                        "odd addresses go to our own kernel when the library has nothing"
                    );
                } else {
                    assert!(ours.is_empty(), "{ours:?}");
                    let got = &bytemuck_f32(t.bytes(&p, 4096))[at(0)..at(0) + m * n];
                    assert_eq!(got, want, "{what} accumulate {accumulate} shift {shift}");
                }
                let short =
                    CudaOps::launch(&t.b, &product, &s, &operands, None, Dyn(&[])).unwrap_err();
                assert_eq!(short.code, Code::Invalid);
            }
        }
    }
    // A layout that cannot be described to the library goes to our own kernel.
    let l = [
        dense(f, &[3, 5]),
        strided(f, &[3, 4], &[0, 1]),
        dense(f, &[4, 5]),
    ];
    let (own, plan) =
        prepare(&t.b, &d, op::MATMUL, &l, MatmulParams::default().as_bytes()).unwrap();
    assert!(plan.tier < 2);
    let o = |i: u64, bytes: u64| Some(span(&p, i * 1024, bytes));
    let ws = (plan.workspace_bytes > 0).then(|| span(&scratch, 0, plan.workspace_bytes));
    t.launches();
    CudaOps::launch(
        &t.b,
        &own,
        &s,
        &[o(0, 60), o(1, 16), o(2, 80)],
        ws,
        Dyn(&[]),
    )
    .unwrap();
    t.b.stream_sync(&s, LONG).unwrap();
    assert!(!t.launches().is_empty());
}

fn bytemuck_f32(b: &mut [u8]) -> &mut [f32] {
    // SAFETY: page-aligned pinned memory, and every pattern is an f32.
    unsafe { std::slice::from_raw_parts_mut(b.as_mut_ptr().cast(), b.len() / 4) }
}

fn a_stray_kernel_ends_the_device(t: &Simulated) {
    let d = t.b.open(4).unwrap();
    let s = t.b.stream(&d, 0).unwrap();
    let l = [dense(DType::F32, &[8]); 3];
    let (add, _) = prepare(&t.b, &d, op::ADD, &l, NoParams::default().as_bytes()).unwrap();
    let m: Mem = t.device_memory(&d, 32);
    let x = Some(span(&m, 0, 32));
    t.kill(4, 700);
    let e = CudaOps::launch(&t.b, &add, &s, &[x, x, x], None, Dyn(&[])).unwrap_err();
    assert_eq!((e.code, e.sticky), (Code::DeviceLost, true));
    let e = prepare(&t.b, &d, op::ADD, &l, NoParams::default().as_bytes())
        .err()
        .unwrap();
    assert_eq!(e.code, Code::DeviceLost);
}

fn images_are_kept_on_disk_and_shared() {
    let file = simulator("ops").display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("kernels").display().to_string();
    let settings = Settings::new(&ABOUT)
        .with("cuda.libcuda", &file)
        .with("cuda.libnvrtc", &file)
        .with("cuda.cache_dir", &folder);
    let l = [dense(DType::F32, &[1000]); 3];
    let mut sizes = vec![];
    for _ in 0..2 {
        let b = Cuda::with(Host::none(), settings.clone());
        let d = b.open(0).unwrap();
        prepare(&b, &d, op::ADD, &l, NoParams::default().as_bytes()).unwrap();
        let names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        sizes.push(names);
        // Without a compiler what is kept would serve, but the compiler's version is part of what is kept: it must be there.
    }
    assert_eq!(sizes[0].len(), 1);
    assert_eq!(sizes[0], sizes[1]);
    // No NVRTC: one sentence that names it.
    let b = Cuda::with(
        Host::none(),
        Settings::new(&ABOUT)
            .with("cuda.libcuda", &file)
            .with("cuda.libnvrtc", "/nowhere/libnvrtc.so.12"),
    );
    let d = b.open(0).unwrap();
    let e = prepare(&b, &d, op::ADD, &l, NoParams::default().as_bytes())
        .err()
        .unwrap();
    assert_eq!(e.code, Code::Unsupported);
    assert!(
        e.message.contains("NVRTC") && e.message.contains("cuda.libnvrtc"),
        "{e}"
    );
}
