//! Ops a device lacks, by each of the other ways: what a wider type and the host give is what the device itself would have given.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{
    Code, DType, Device, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, RouteKind, Tag,
};
use crossweave_layers::{Lacks, wrap};

fn cpu(lacks: Option<&str>) -> Device {
    let host = HostServices::builder().threads(1).build();
    let mut raw = RawPlugin::from_static::<CpuBackend>(&host).expect("linked");
    if let Some(text) = lacks {
        raw = wrap(raw, &host, Box::new(Lacks::parse(text).expect("cells")));
    }
    Plugin::new(raw).open(0).expect("a device")
}

/// Values a 16-bit float holds, of every size and sign, as bytes of `dtype`.
fn values(l: &Layout, seed: u32) -> Vec<u8> {
    let Some(dtype) = DType::from_id(l.dtype) else {
        return vec![];
    };
    let n = l.extent_bytes() / dtype.bytes(1);
    let mut state = seed | 1;
    let mut out = vec![];
    for _ in 0..n {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        let x = ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 2.0;
        match dtype {
            DType::Bf16 => out.extend_from_slice(&x.to_bits().to_le_bytes()[2..]),
            DType::F32 => out.extend_from_slice(&x.to_le_bytes()),
            DType::I32 => out.extend_from_slice(&(state % 4).to_le_bytes()),
            d => panic!("no values of {}", d.name()),
        }
    }
    out
}

/// Runs an op on fresh operands, and answers all of them as they are afterwards.
fn run(device: &Device, o: &OpRequest, dynamic: &[u8]) -> (RouteKind, Vec<Vec<u8>>) {
    let stream = device.stream("test", 0).expect("a stream");
    let kernel = device
        .prepare(o, &NoDecompose)
        .unwrap_or_else(|e| panic!("{e}"));
    let buffers: Vec<_> = o
        .operands
        .iter()
        .enumerate()
        .map(|(i, l)| {
            let b = device
                .alloc(&stream, l.extent_bytes().max(1), Tag::Activation)
                .expect("memory");
            stream
                .write(b.region(0, l.extent_bytes()), &values(l, 7 + i as u32))
                .expect("values");
            b
        })
        .collect();
    let operands: Vec<_> = o
        .operands
        .iter()
        .zip(&buffers)
        .map(|(l, b)| l.present().then(|| b.region(0, l.extent_bytes())))
        .collect();
    // Twice: what the first left behind must not matter to the second.
    for _ in 0..2 {
        stream
            .launch(&kernel, &operands, dynamic)
            .unwrap_or_else(|e| panic!("{e}"));
    }
    let read = |(b, l): (&crossweave_hal::Buffer, &Layout)| {
        let mut bytes = vec![0; l.extent_bytes() as usize];
        stream
            .read(b.region(0, l.extent_bytes()), &mut bytes)
            .expect("bytes");
        bytes
    };
    (
        kernel.explain().route,
        buffers.iter().zip(&o.operands).map(read).collect(),
    )
}

/// Ops of every kind in `t`: written and added to, strided, broadcast, with outputs of other types, with many tensors.
fn ops(t: DType) -> Vec<(&'static str, OpRequest, Vec<u8>)> {
    let of = |shape: &[u64]| Layout::contiguous(t, shape);
    let wide = |shape: &[u64]| Layout::contiguous(DType::F32, shape);
    let none = op::NoParams::default();
    let kind = |kind: u32| op::KindParams {
        kind,
        ..Default::default()
    };
    let add = op::MatmulParams {
        flags: op::FLAG_ACCUM,
        ..Default::default()
    };
    let norm = op::NormParams {
        eps: 1e-5,
        ..Default::default()
    };
    let transposed = Layout::strided(t, &[6, 5], &[1, 6]);
    // A slice of wider rows: what lies between must stay.
    let slice = Layout::strided(t, &[4, 3], &[8, 1]);
    let adamw = op::AdamwParams {
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        ..Default::default()
    };
    let step = op::AdamwDyn {
        lr: 0.01,
        grad_scale: 1.0,
        step: 3,
        ..Default::default()
    };
    let sum = |flags: u32| op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1 << 1,
        flags,
        ..Default::default()
    };
    let row = Layout::strided(t, &[4, 3], &[0, 1]);
    let rows = op::IndexParams::default();
    let index = Layout::contiguous(DType::I32, &[5]);
    vec![
        (
            "matmul",
            OpRequest::new(
                op::MATMUL,
                &[of(&[4, 5]), of(&[4, 6]), transposed, of(&[5])],
                op::MatmulParams::default().as_bytes(),
            ),
            vec![],
        ),
        (
            "matmul into f32",
            OpRequest::new(
                op::MATMUL,
                &[wide(&[4, 5]), of(&[4, 6]), transposed, Layout::ABSENT],
                add.as_bytes(),
            ),
            vec![],
        ),
        (
            "matmul that adds",
            OpRequest::new(
                op::MATMUL,
                &[of(&[4, 5]), of(&[4, 6]), transposed, Layout::ABSENT],
                add.as_bytes(),
            ),
            vec![],
        ),
        (
            "reduce",
            OpRequest::new(op::REDUCE, &[of(&[4, 1]), slice], sum(0).as_bytes()),
            vec![],
        ),
        (
            "reduce that adds",
            OpRequest::new(
                op::REDUCE,
                &[of(&[4, 1]), of(&[4, 6])],
                sum(op::FLAG_ACCUM).as_bytes(),
            ),
            vec![],
        ),
        (
            "binary",
            OpRequest::new(
                op::BINARY,
                &[of(&[4, 3]), slice, row],
                kind(op::binary::MUL).as_bytes(),
            ),
            vec![],
        ),
        (
            "unary",
            OpRequest::new(
                op::UNARY,
                &[of(&[3, 3]), of(&[3, 3])],
                kind(op::unary::TANH).as_bytes(),
            ),
            vec![],
        ),
        (
            "layer_norm_fwd",
            OpRequest::new(
                op::LAYER_NORM_FWD,
                &[
                    of(&[4, 8]),
                    wide(&[4]),
                    wide(&[4]),
                    of(&[4, 8]),
                    of(&[8]),
                    of(&[8]),
                ],
                norm.as_bytes(),
            ),
            vec![],
        ),
        (
            "gather_rows",
            OpRequest::new(
                op::GATHER_ROWS,
                &[of(&[5, 8]), of(&[4, 8]), index],
                rows.as_bytes(),
            ),
            vec![],
        ),
        (
            "adamw",
            OpRequest::new(
                op::ADAMW,
                &[
                    Layout::ABSENT,
                    Layout::ABSENT,
                    of(&[9]),
                    of(&[9]),
                    wide(&[9]),
                    wide(&[9]),
                ],
                adamw.as_bytes(),
            ),
            step.as_bytes().to_vec(),
        ),
        (
            "swiglu_bwd into slices",
            OpRequest::new(
                op::SWIGLU_BWD,
                &[slice, slice, of(&[4, 3]), slice, slice],
                none.as_bytes(),
            ),
            vec![],
        ),
        (
            "swiglu_fwd",
            OpRequest::new(
                op::SWIGLU_FWD,
                &[of(&[4, 3]), slice, slice],
                none.as_bytes(),
            ),
            vec![],
        ),
    ]
}

/// An op, the buffers its operands are in (type and elements), and where: buffer and first element.
struct Packed {
    name: &'static str,
    op: OpRequest,
    buffers: Vec<(DType, u64)>,
    places: Vec<(usize, u64)>,
}

/// Runs an op on operands that are parts of buffers, and answers the buffers.
fn run_packed(device: &Device, p: &Packed) -> (RouteKind, Vec<Vec<u8>>) {
    let stream = device.stream("test", 0).expect("a stream");
    let kernel = device
        .prepare(&p.op, &NoDecompose)
        .unwrap_or_else(|e| panic!("{e}"));
    let buffers: Vec<_> = p
        .buffers
        .iter()
        .enumerate()
        .map(|(i, (t, n))| {
            let l = Layout::contiguous(*t, &[*n]);
            let b = device
                .alloc(&stream, l.extent_bytes(), Tag::Activation)
                .expect("memory");
            stream
                .write(b.all(), &values(&l, 7 + i as u32))
                .expect("values");
            b
        })
        .collect();
    let operands: Vec<_> = p
        .op
        .operands
        .iter()
        .zip(&p.places)
        .map(|(l, (b, at))| Some(buffers[*b].region(p.buffers[*b].0.bytes(*at), l.extent_bytes())))
        .collect();
    for _ in 0..2 {
        stream
            .launch(&kernel, &operands, &[])
            .unwrap_or_else(|e| panic!("{e}"));
    }
    let read = |b: &crossweave_hal::Buffer| {
        let mut bytes = vec![0; b.bytes() as usize];
        stream.read(b.all(), &mut bytes).expect("bytes");
        bytes
    };
    (kernel.explain().route, buffers.iter().map(read).collect())
}

/// Ops whose operands lie in one another's gaps, side by side, or on one another.
fn packed(t: DType) -> Vec<Packed> {
    let none = op::NoParams::default();
    let half = Layout::strided(t, &[4, 3], &[6, 1]);
    let dense = Layout::contiguous(t, &[4, 3]);
    // q, k and v of one matrix, and their gradients of another: [B, T, 3, H, D].
    let (b, s, h, d) = (2u64, 5u64, 2u64, 4u64);
    let line = (3 * h * d) as i64;
    let head = |shape: &[u64]| Layout::strided(t, shape, &[s as i64 * line, line, d as i64, 1]);
    let (qkv, o) = (head(&[b, s, h, d]), Layout::contiguous(t, &[b, s, h, d]));
    let all = b * s * 3 * h * d;
    let attention = op::AttentionParams {
        flags: op::FLAG_CAUSAL,
        ..Default::default()
    };
    let add = op::KindParams {
        kind: op::binary::ADD,
        ..Default::default()
    };
    vec![
        Packed {
            name: "swiglu_bwd",
            op: OpRequest::new(
                op::SWIGLU_BWD,
                &[half, half, dense, half, half],
                none.as_bytes(),
            ),
            buffers: vec![(t, 24), (t, 12), (t, 24)],
            places: vec![(0, 0), (0, 3), (1, 0), (2, 3), (2, 0)],
        },
        Packed {
            name: "attention_bwd",
            op: OpRequest::new(
                op::ATTENTION_BWD,
                &[
                    qkv,
                    qkv,
                    qkv,
                    o,
                    o,
                    qkv,
                    qkv,
                    qkv,
                    Layout::contiguous(DType::F32, &[b, h, s]),
                ],
                attention.as_bytes(),
            ),
            buffers: vec![
                (t, all),
                (t, o.numel()),
                (t, o.numel()),
                (t, all),
                (DType::F32, b * h * s),
            ],
            places: vec![
                (0, 0),
                (0, h * d),
                (0, 2 * h * d),
                (1, 0),
                (2, 0),
                (3, 0),
                (3, h * d),
                (3, 2 * h * d),
                (4, 0),
            ],
        },
        // Side by side without a gap, and what comes out of one half over what went in.
        Packed {
            name: "binary in place",
            op: OpRequest::new(op::BINARY, &[dense, dense, dense], add.as_bytes()),
            buffers: vec![(t, 30)],
            places: vec![(0, 3), (0, 3), (0, 15)],
        },
    ]
}

#[test]
fn operands_that_share_a_buffer_keep_what_the_others_wrote() {
    let native = cpu(None);
    for t in [DType::F32, DType::Bf16] {
        for p in packed(t) {
            let (way, want) = run_packed(&native, &p);
            assert_eq!(way, RouteKind::Native);
            let poor = cpu(Some("all"));
            poor.allow_host_ops(&cpu(None));
            let (way, got) = run_packed(&poor, &p);
            assert_eq!(way, RouteKind::Host, "{}", p.name);
            assert!(want == got, "{} {} on the host", p.name, t.name());
        }
    }
    for p in packed(DType::Bf16) {
        let (_, want) = run_packed(&native, &p);
        let poor = cpu(Some(&format!("{}:bf16", p.op.name())));
        let (way, got) = run_packed(&poor, &p);
        assert_eq!(way, RouteKind::Wider, "{}", p.name);
        for (i, (t, _)) in p.buffers.iter().enumerate() {
            let (x, y) = (to_f32(&want[i], t.id()), to_f32(&got[i], t.id()));
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= x.abs().max(1e-2) / 64.0;
            assert!(x.iter().zip(&y).all(close), "{}: {x:?} and {y:?}", p.name);
        }
    }
}

fn to_f32(bytes: &[u8], dtype: u32) -> Vec<f32> {
    if dtype == DType::F32.id() {
        return bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
    }
    bytes
        .chunks_exact(2)
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
        .collect()
}

#[test]
fn the_host_gives_the_bits_of_the_device() {
    let native = cpu(None);
    let host = cpu(None);
    for t in [DType::F32, DType::Bf16] {
        for (name, o, dynamic) in ops(t) {
            let (way, want) = run(&native, &o, &dynamic);
            assert_eq!(way, RouteKind::Native);
            let poor = cpu(Some("all"));
            let refused = poor
                .prepare(&o, &NoDecompose)
                .err()
                .expect("nothing is left");
            assert_eq!(refused.code, Code::Unsupported);
            assert!(refused.message.contains("run.allow_host_ops"), "{refused}");
            poor.allow_host_ops(&host);
            let (way, got) = run(&poor, &o, &dynamic);
            assert_eq!(way, RouteKind::Host, "{name}");
            assert!(want == got, "{name} {}", t.name());
            assert_eq!(poor.ops_on_host().len(), 1);
            assert!(poor.ops_on_host()[0].starts_with(o.name()));
        }
    }
}

#[test]
fn f32_gives_what_16_bits_would_to_the_last_rounding() {
    let native = cpu(None);
    for (name, o, dynamic) in ops(DType::Bf16) {
        let poor = cpu(Some(&format!("{}:bf16", o.name())));
        let (_, want) = run(&native, &o, &dynamic);
        let (way, got) = run(&poor, &o, &dynamic);
        assert_eq!(way, RouteKind::Wider, "{name}");
        for (i, l) in o
            .operands
            .iter()
            .enumerate()
            .filter(|(_, l)| l.present() && l.dtype != DType::I32.id())
        {
            for (x, y) in to_f32(&want[i], l.dtype)
                .iter()
                .zip(to_f32(&got[i], l.dtype))
            {
                // Roots of negative moments, by both ways.
                if x.is_nan() && y.is_nan() {
                    continue;
                }
                // One unit in the last place of bf16, where sums go in another order.
                assert!(
                    (x - y).abs() <= x.abs().max(1e-3) / 128.0,
                    "{name} operand {i}: {x} and {y}"
                );
            }
        }
    }
}

#[test]
fn a_step_of_a_decomposition_never_goes_to_the_host_by_itself() {
    struct Twice;
    impl crossweave_hal::Decompose for Twice {
        fn recipe(&self, o: &OpRequest) -> Option<crossweave_hal::Recipe> {
            if o.id != op::ADD {
                return None;
            }
            let mut add = o.clone();
            add.id = op::BINARY;
            add.params = op::KindParams {
                kind: op::binary::ADD,
                ..Default::default()
            }
            .as_bytes()
            .to_vec();
            let slot = |i: usize| crossweave_hal::Slot::Operand {
                i,
                at: 0,
                bytes: o.operands[i].extent_bytes(),
            };
            Some(crossweave_hal::Recipe {
                temps: vec![],
                steps: vec![crossweave_hal::RecipeStep::Launch {
                    op: add,
                    operands: (0..3).map(slot).collect(),
                    dynamic: None,
                }],
            })
        }
    }
    let l = Layout::contiguous(DType::F32, &[8]);
    let sum = OpRequest::new(op::ADD, &[l, l, l], op::NoParams::default().as_bytes());
    let poor = cpu(Some("add+binary"));
    poor.allow_host_ops(&cpu(None));
    // Known as a host op first: the step must still not use it.
    let kind = op::KindParams {
        kind: op::binary::ADD,
        ..Default::default()
    };
    let step = OpRequest::new(op::BINARY, &[l, l, l], kind.as_bytes());
    assert_eq!(
        poor.prepare(&step, &NoDecompose)
            .expect("a kernel")
            .explain()
            .route,
        RouteKind::Host
    );
    let e = poor.prepare(&sum, &Twice).expect("a kernel").explain();
    // The whole op in one round trip: two operands down, one up.
    assert_eq!((e.route, e.launches), (RouteKind::Host, 3));
}
