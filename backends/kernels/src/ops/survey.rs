//! Every kernel template in the storages that training mixes, asked of the planners themselves: what CI compiles ahead.

use crate::launch::Launch;
use crate::source::{Facts, Kernel};
use crossweave_abi::op::{self, *};
use crossweave_abi::{DType, Layout};
use crossweave_plugin::{Error, OpRequest, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Kernels of all ops for devices of these facts: every template, function and path, in bf16 where storage matters little beside it, in f32
/// too where code differs, in f16 where instructions differ. Eight strides and sixteen types an operand have no exhaustive list.
pub fn every_kernel(f: &Facts) -> Result<BTreeSet<Kernel>> {
    Ok(every_launch(f)?.into_iter().map(|l| l.kernel).collect())
}

/// One launch of each of them.
pub fn every_launch(f: &Facts) -> Result<Vec<Launch>> {
    let (launches, mut refused) = survey(f);
    match refused.pop() {
        Some(e) => Err(e),
        None => Ok(launches),
    }
}

/// One launch of each of them, and why there is none of what a device of these facts cannot do (too little shared memory for an op, say).
pub fn survey(f: &Facts) -> (Vec<Launch>, Vec<Error>) {
    let mut s = Survey {
        facts: *f,
        found: BTreeMap::new(),
        refused: Vec::new(),
    };
    s.moves();
    s.pointwise();
    s.reductions();
    s.rows();
    s.training();
    (s.found.into_values().collect(), s.refused)
}

struct Survey {
    facts: Facts,
    found: BTreeMap<Kernel, Launch>,
    refused: Vec<Error>,
}

const FLOATS: [DType; 2] = [DType::F32, DType::Bf16];
const INDEX: [DType; 1] = [DType::I64];

fn dense(t: DType, shape: &[u64]) -> Layout {
    Layout::contiguous(t, shape)
}

impl Survey {
    fn ask(&mut self, id: u32, operands: &[Layout], params: &[u8]) {
        let o = OpRequest::new(id, operands, params, 0);
        match super::prepare(&o, &self.facts) {
            Ok(p) => self
                .found
                .extend(p.launches.into_iter().map(|l| (l.kernel.clone(), l))),
            Err(e) => self.refused.push(e),
        }
    }

    fn moves(&mut self) {
        let none = NoParams::default();
        const CASTS: [DType; 10] = [
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
        ];
        let n = [64];
        for t in CASTS {
            for (to, from) in [(t, DType::F32), (DType::Bf16, t), (DType::I64, t)] {
                self.ask(op::CAST, &[dense(to, &n), dense(from, &n)], none.as_bytes());
            }
            self.ask(op::IOTA, &[dense(t, &n)], IotaParams::default().as_bytes());
        }
        for t in FLOATS {
            let e = DType::F8E4M3;
            self.ask(op::CAST, &[dense(e, &n), dense(t, &n)], none.as_bytes());
            self.ask(op::CAST, &[dense(t, &n), dense(e, &n)], none.as_bytes());
        }
        for t in [DType::U8, DType::Bf16, DType::I64] {
            let m = [64, 64];
            let turned = Layout::strided(t, &m, &[1, 64]);
            self.ask(
                op::COPY_STRIDED,
                &[dense(t, &m), dense(t, &m)],
                none.as_bytes(),
            );
            self.ask(op::COPY_STRIDED, &[dense(t, &m), turned], none.as_bytes());
            self.ask(
                op::FILL_STRIDED,
                &[dense(t, &m)],
                FillParams::default().as_bytes(),
            );
            let c = dense(DType::U8, &n);
            let d = dense(t, &n);
            self.ask(op::SELECT, &[d, c, d, d], none.as_bytes());
        }
    }

    fn pointwise(&mut self) {
        let n = [64];
        let kind = |kind| KindParams {
            kind,
            ..Default::default()
        };
        for t in FLOATS {
            let d = dense(t, &n);
            let f = dense(DType::F32, &n);
            if t == DType::Bf16 {
                for k in unary::NEG..=unary::FLOOR {
                    self.ask(op::UNARY, &[d, d], kind(k).as_bytes());
                }
                for k in activation::GELU_TANH..=activation::RELU {
                    self.ask(op::ACTIVATION_FWD, &[d, d], kind(k).as_bytes());
                    self.ask(op::ACTIVATION_BWD, &[d, d, d], kind(k).as_bytes());
                }
            }
            for x in [d, f] {
                let p = AxpbyParams {
                    alpha: 1.0,
                    beta: 1.0,
                    ..Default::default()
                };
                self.ask(op::AXPBY, &[d, x], p.as_bytes());
                self.ask(op::AXPBY, &[x, d], p.as_bytes());
                self.ask(op::AXPBY, &[d, x], AxpbyParams::default().as_bytes());
                self.ask(op::DROPOUT, &[d, d, x], DropoutParams::default().as_bytes());
            }
            self.ask(op::CLAMP, &[d, d], ClampParams::default().as_bytes());
            let none = NoParams::default();
            self.ask(op::SWIGLU_FWD, &[d; 3], none.as_bytes());
            self.ask(op::SWIGLU_BWD, &[d; 5], none.as_bytes());
            self.ask(op::ADD, &[d; 3], none.as_bytes());
            self.ask(op::ADD, &[f, f, d], none.as_bytes());
            for k in [philox::UNIFORM, philox::NORMAL] {
                let p = PhiloxParams {
                    kind: k,
                    ..Default::default()
                };
                self.ask(op::PHILOX, &[d], p.as_bytes());
            }
        }
        let p = PhiloxParams {
            kind: philox::BITS,
            ..Default::default()
        };
        self.ask(op::PHILOX, &[dense(DType::U32, &n)], p.as_bytes());
        for t in [DType::Bf16, DType::I32] {
            let d = dense(t, &n);
            for k in binary::ADD..=binary::POW {
                self.ask(op::BINARY, &[d; 3], kind(k).as_bytes());
            }
            let y = dense(DType::U8, &n);
            for k in compare::EQ..=compare::GE {
                self.ask(op::COMPARE, &[y, d, d], kind(k).as_bytes());
            }
        }
        self.program();
    }

    /// One program with every instruction.
    fn program(&mut self) {
        let mut p = ProgramParams {
            n_insts: inst::SELECT,
            writes: 1,
            ..Default::default()
        };
        for k in inst::CONST..=inst::SELECT {
            let i = &mut p.insts[k as usize - 1];
            (i.op, i.a, i.b, i.c) = (k, 0, 1, 2);
            i.dst = if k == inst::SELECT { 0 } else { 2 + k };
        }
        for t in FLOATS {
            let d = dense(t, &[64]);
            self.ask(op::ELEMENTWISE_PROGRAM, &[d; 3], p.as_bytes());
        }
    }

    fn reductions(&mut self) {
        for t in FLOATS {
            let x = dense(t, &[4096, 512]);
            let narrow = dense(t, &[4096, 64]);
            for kind in reduce::SUM..=reduce::PROD {
                if t == DType::F32 && kind != reduce::SUM {
                    continue;
                }
                for (axes, shape) in [(1, [1, 512]), (2, [4096, 1]), (3, [1, 1])] {
                    let p = ReduceParams {
                        kind,
                        axes,
                        ..Default::default()
                    };
                    self.ask(op::REDUCE, &[dense(DType::F32, &shape), x], p.as_bytes());
                }
                let p = ReduceParams {
                    kind,
                    axes: 2,
                    ..Default::default()
                };
                let sums = dense(DType::F32, &[4096, 1]);
                self.ask(op::REDUCE, &[sums, narrow], p.as_bytes());
            }
            for ti in INDEX {
                for kind in [0, 1] {
                    let p = DimParams {
                        kind,
                        dim: 1,
                        ..Default::default()
                    };
                    let best = dense(ti, &[4096, 1]);
                    self.ask(op::ARG_REDUCE, &[best, x], p.as_bytes());
                    self.ask(op::ARG_REDUCE, &[best, narrow], p.as_bytes());
                }
            }
            let none = NoParams::default();
            let (one, count) = (dense(DType::F32, &[1]), dense(DType::U32, &[1]));
            let loose = Layout::strided(t, &[8, 8], &[16, 1]);
            for list in [vec![x, loose], vec![x; 5]] {
                let with = |first: Layout| [&[first][..], &list[..]].concat();
                self.ask(op::MULTI_SUMSQ, &with(one), none.as_bytes());
                self.ask(op::MULTI_SCALE, &with(one), none.as_bytes());
                self.ask(op::NONFINITE_COUNT, &with(count), none.as_bytes());
            }
        }
        for t in [DType::Bf16, DType::I32, DType::I64] {
            let p = DimParams {
                dim: 1,
                ..Default::default()
            };
            for [rows, n] in [[4, 3000], [3000, 8]] {
                let d = dense(t, &[rows, n]);
                self.ask(op::CUMSUM, &[d, d], p.as_bytes());
                for ti in INDEX {
                    let v = dense(ti, &[rows, n]);
                    let none = DimParams::default();
                    self.ask(op::SORT_PAIRS, &[d, v, d, v], none.as_bytes());
                    if t.is_float() {
                        let (k, i) = (dense(t, &[rows, 8]), dense(ti, &[rows, 8]));
                        self.ask(op::TOPK, &[k, i, d], none.as_bytes());
                    }
                }
            }
        }
    }

    fn rows(&mut self) {
        let p = IndexParams::default();
        for ti in INDEX {
            let i = dense(ti, &[4, 1024]);
            self.ask(
                op::HISTOGRAM,
                &[dense(DType::I32, &[50]), i],
                NoParams::default().as_bytes(),
            );
            for t in [DType::Bf16, DType::I64] {
                let (y, table) = (dense(t, &[4, 1024, 64]), dense(t, &[50, 64]));
                self.ask(op::GATHER_ROWS, &[y, table, i], p.as_bytes());
            }
            for t in FLOATS {
                let (y, table) = (dense(t, &[4, 1024, 64]), dense(t, &[50, 64]));
                let wide = dense(DType::F32, &[50, 64]);
                for table in [table, wide] {
                    self.ask(op::SCATTER_ADD_ROWS, &[table, y, i], p.as_bytes());
                    let pos = dense(DType::from_id(table.dtype).unwrap_or(t), &[1024, 64]);
                    self.ask(op::EMBEDDING_FWD, &[y, table, i, pos], p.as_bytes());
                    self.ask(op::EMBEDDING_FWD, &[y, table, i], p.as_bytes());
                }
                let dpos = dense(DType::F32, &[1024, 64]);
                self.ask(op::EMBEDDING_BWD, &[wide, dpos, y, i], p.as_bytes());
            }
        }
    }

    fn training(&mut self) {
        let f = |shape: &[u64]| dense(DType::F32, shape);
        for t in FLOATS {
            for d in [64, 512, 8192, 16384, 65536] {
                // Rows that take more registers, or pass memory again, in one storage.
                if t == DType::F32 && d > 512 {
                    continue;
                }
                let (x, stat, dw) = (dense(t, &[8, d]), f(&[8]), f(&[d]));
                let (w, p) = (dense(t, &[d]), NormParams::default());
                self.ask(op::LAYER_NORM_FWD, &[x, stat, stat, x, w, w], p.as_bytes());
                self.ask(op::RMS_NORM_FWD, &[x, stat, x, w], p.as_bytes());
                let layer = [x, dw, dw, x, x, w, stat, stat, x];
                self.ask(op::LAYER_NORM_BWD, &layer, p.as_bytes());
                self.ask(op::RMS_NORM_BWD, &[x, dw, x, x, w, stat, x], p.as_bytes());
                let none = NoParams::default();
                self.ask(op::SOFTMAX_FWD, &[x, x], none.as_bytes());
                self.ask(op::SOFTMAX_BWD, &[x; 3], none.as_bytes());
            }
            let stat = f(&[8]);
            for (d, ti) in [64, 512].into_iter().flat_map(|d| INDEX.map(|ti| (d, ti))) {
                let x = dense(t, &[8, d]);
                let target = dense(ti, &[8]);
                let p = XentParams::default();
                self.ask(
                    op::CROSS_ENTROPY_FWD,
                    &[stat, stat, x, target],
                    p.as_bytes(),
                );
                let bwd = [x, x, stat, target, stat];
                self.ask(op::CROSS_ENTROPY_BWD, &bwd, p.as_bytes());
            }
            let head = dense(t, &[2, 8, 4, 64]);
            let angle = f(&[8, 32]);
            self.ask(
                op::ROPE,
                &[head, head, angle, angle],
                RopeParams::default().as_bytes(),
            );
            let m = dense(t, &[64, 64]);
            for c in [m, f(&[64, 64])] {
                for bias in [Layout::ABSENT, dense(t, &[64])] {
                    let p = MatmulParams::default();
                    self.ask(op::MATMUL, &[c, m, m, bias], p.as_bytes());
                }
            }
            for (t, sizes) in [(t, &[64, 128, 256][..]), (DType::F16, &[32, 64, 96, 128])] {
                for d in sizes {
                    let p = AttentionParams::default();
                    // Few queries and more.
                    for n in [64, 128] {
                        let (q, lse) = (dense(t, &[1, n, 2, *d]), f(&[1, 2, n]));
                        self.ask(op::ATTENTION_FWD, &[q, lse, q, q, q], p.as_bytes());
                        let bwd = [q, q, q, q, q, q, q, q, lse];
                        self.ask(op::ATTENTION_BWD, &bwd, p.as_bytes());
                        let cu = dense(DType::I32, &[1, 3]);
                        let packed = [q, lse, q, q, q, cu];
                        self.ask(op::ATTENTION_VARLEN_FWD, &packed, p.as_bytes());
                        let packed = [q, q, q, q, q, q, q, q, lse, cu];
                        self.ask(op::ATTENTION_VARLEN_BWD, &packed, p.as_bytes());
                    }
                    // Results of the storage and of f32; by mma, and with sinks.
                    let (q, lse) = (dense(t, &[1, 64, 2, *d]), f(&[1, 2, 64]));
                    let (p, none) = (AttentionExtParams::default(), Layout::ABSENT);
                    for (out, line) in [(q, none), (q, f(&[2])), (f(&[1, 64, 2, *d]), f(&[2]))] {
                        let fwd = [out, lse, q, q, q, none, line];
                        self.ask(op::ATTENTION_EXT_FWD, &fwd, p.as_bytes());
                        let bwd = [out, out, out, none, line, q, q, q, q, q, lse, none, line];
                        self.ask(op::ATTENTION_EXT_BWD, &bwd, p.as_bytes());
                    }
                }
            }
            // Parameters of the storage with gradients of it or f32, and a master copy beside 16 bits.
            for g in [t, DType::F32] {
                for many in [1, 5] {
                    let (p, g, s) = (dense(t, &[64]), dense(g, &[64]), f(&[64]));
                    let (one, skip) = (f(&[1]), dense(DType::U32, &[1]));
                    for master in [false, true] {
                        let params = AdamwParams {
                            flags: if master { FLAG_MASTER } else { 0 },
                            ..Default::default()
                        };
                        let mut o = vec![one, skip];
                        for _ in 0..many {
                            o.extend([p, g, s, s]);
                            if master {
                                o.push(s);
                            }
                        }
                        self.ask(op::ADAMW, &o, params.as_bytes());
                    }
                }
            }
        }
    }
}
