//! The ops a training step spends its time in, on any back end: time of one, and GFLOP/s or GB/s.
//!
//! `cargo run --release -p crossweave-benches --bin ops -- --backend NAME [--ops matmul,attention] [--size small] [--dtypes f32,bf16] [--config KEY=VALUE,…]`
//!
//! `--backend` is a plugin's name beside the program, a path, or `cpu` (linked). `--size` is `small` (a software GPU), `medium` or `large`.
//! A configuration that compares (a naive product, no subgroups) is given by `--config`, and is said in the output. Times are medians of
//! rounds of launches with one wait at the end of each, so they hold the host's share of a launch where that is longer than the kernel.

use crossweave_backend_cpu::CpuBackend;
use crossweave_benches::median;
use crossweave_benches::options::{Options, Usage, program};
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{
    Buffer, DType, Device, HostServices, OpRequest, Operand, Plugin, RawPlugin, Stream, Tag, loader,
};
use crossweave_tensor::Decompositions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const HELP: &str = "\
Time of the ops in which a training step spends its time, on any back end: microseconds, GFLOP/s and GB/s.

  --backend cpu            cpu, a plugin's name beside the program, or a path
  --ops all                names of ops, or how they begin: matmul,attention
  --size small             small (a software GPU), medium or large
  --dtypes f32             of f32, bf16, f16
  --config KEY=VALUE,...   options of the back end
  --threads 2              threads of the host
  --rounds 5               rounds, of which the median counts

Example: ops --backend cpu --ops matmul,attention --size small --dtypes f32,bf16";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

/// Sizes of a run: tokens, width, heads, vocabulary.
#[derive(Clone, Copy)]
struct Size {
    batch: u64,
    tokens: u64,
    width: u64,
    heads: u64,
    vocab: u64,
}

/// One op with its operands: `(dtype, shape, strides)`, and what it costs.
struct Case {
    what: String,
    id: u32,
    params: Vec<u8>,
    operands: Vec<(DType, Vec<u64>, Vec<i64>)>,
    flops: f64,
    bytes: f64,
}

fn dense(shape: &[u64]) -> Vec<i64> {
    let mut s = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        s[i - 1] = s[i] * shape[i] as i64;
    }
    s
}

fn case(what: &str, id: u32, params: &[u8], operands: &[(DType, &[u64])], flops: f64) -> Case {
    let size = |(t, s): &(DType, &[u64])| (s.iter().product::<u64>() * t.bits()) as f64 / 8.0;
    Case {
        what: what.into(),
        id,
        params: params.to_vec(),
        operands: operands
            .iter()
            .map(|(t, s)| (*t, s.to_vec(), dense(s)))
            .collect(),
        flops,
        bytes: operands.iter().map(size).sum(),
    }
}

fn cases(z: Size, t: DType) -> Vec<Case> {
    let Size {
        batch,
        tokens,
        width,
        heads,
        vocab,
    } = z;
    let (n, d) = (batch * tokens, width / heads);
    let none = op::NoParams::default();
    let f = DType::F32;
    let product = |what: &str, m: u64, k: u64, c: u64, ta: bool, tb: bool| {
        let p = op::MatmulParams::default();
        let flops = 2.0 * (m * k * c) as f64;
        let mut x = case(
            what,
            op::MATMUL,
            p.as_bytes(),
            &[(t, &[m, c]), (t, &[m, k]), (t, &[k, c])],
            flops,
        );
        if ta {
            x.operands[1].2 = vec![1, m as i64];
        }
        if tb {
            x.operands[2].2 = vec![1, k as i64];
        }
        x.operands.push((f, vec![], vec![]));
        x
    };
    let attention = op::AttentionParams {
        flags: op::FLAG_CAUSAL,
        ..Default::default()
    };
    let (q, l) = ([batch, tokens, heads, d], [batch, heads, tokens]);
    // Causal: half of the pairs.
    let pairs = (batch * heads * tokens * tokens) as f64 * d as f64;
    let eps = op::NormParams {
        eps: 1e-5,
        ..Default::default()
    };
    let x: &[u64] = &[n, width];
    let wide: &[u64] = &[n, 4 * width];
    let act = op::KindParams {
        kind: op::activation::GELU_TANH,
        ..Default::default()
    };
    let xent = op::XentParams::default();
    let index = op::IndexParams::default();
    let rope = op::RopeParams::default();
    vec![
        product("matmul n n", n, width, 4 * width, false, false),
        product("matmul n t", n, width, 4 * width, false, true),
        product("matmul t n", width, n, 4 * width, true, false),
        case(
            "attention_fwd",
            op::ATTENTION_FWD,
            attention.as_bytes(),
            &[(t, &q), (f, &l), (t, &q), (t, &q), (t, &q)],
            2.0 * pairs,
        ),
        case(
            "attention_bwd",
            op::ATTENTION_BWD,
            attention.as_bytes(),
            &[
                (t, &q),
                (t, &q),
                (t, &q),
                (t, &q),
                (t, &q),
                (t, &q),
                (t, &q),
                (t, &q),
                (f, &l),
            ],
            5.0 * pairs,
        ),
        case(
            "layer_norm_fwd",
            op::LAYER_NORM_FWD,
            eps.as_bytes(),
            &[
                (t, x),
                (f, &[n]),
                (f, &[n]),
                (t, x),
                (t, &[width]),
                (t, &[width]),
            ],
            0.0,
        ),
        case(
            "layer_norm_bwd",
            op::LAYER_NORM_BWD,
            eps.as_bytes(),
            &[
                (t, x),
                (f, &[width]),
                (f, &[width]),
                (t, x),
                (t, x),
                (t, &[width]),
                (f, &[n]),
                (f, &[n]),
                (t, x),
            ],
            0.0,
        ),
        case(
            "softmax_fwd",
            op::SOFTMAX_FWD,
            none.as_bytes(),
            &[(t, wide), (t, wide)],
            0.0,
        ),
        case(
            "cross_entropy_fwd",
            op::CROSS_ENTROPY_FWD,
            xent.as_bytes(),
            &[(f, &[n]), (f, &[n]), (t, &[n, vocab]), (DType::I32, &[n])],
            0.0,
        ),
        case(
            "cross_entropy_bwd",
            op::CROSS_ENTROPY_BWD,
            xent.as_bytes(),
            &[
                (t, &[n, vocab]),
                (t, &[n, vocab]),
                (f, &[n]),
                (DType::I32, &[n]),
                (f, &[n]),
            ],
            0.0,
        ),
        case(
            "activation_fwd",
            op::ACTIVATION_FWD,
            act.as_bytes(),
            &[(t, wide), (t, wide)],
            0.0,
        ),
        case(
            "activation_bwd",
            op::ACTIVATION_BWD,
            act.as_bytes(),
            &[(t, wide), (t, wide), (t, wide)],
            0.0,
        ),
        case(
            "swiglu_fwd",
            op::SWIGLU_FWD,
            none.as_bytes(),
            &[(t, wide), (t, wide), (t, wide)],
            0.0,
        ),
        case(
            "rope",
            op::ROPE,
            rope.as_bytes(),
            &[
                (t, &q),
                (t, &q),
                (f, &[tokens, d / 2]),
                (f, &[tokens, d / 2]),
            ],
            0.0,
        ),
        case(
            "embedding_fwd",
            op::EMBEDDING_FWD,
            index.as_bytes(),
            &[
                (t, &[batch, tokens, width]),
                (t, &[vocab, width]),
                (DType::I32, &[batch, tokens]),
                (t, &[tokens, width]),
            ],
            0.0,
        ),
        case(
            "embedding_bwd",
            op::EMBEDDING_BWD,
            index.as_bytes(),
            &[
                (f, &[vocab, width]),
                (f, &[tokens, width]),
                (t, &[batch, tokens, width]),
                (DType::I32, &[batch, tokens]),
            ],
            0.0,
        ),
        case(
            "add",
            op::ADD,
            none.as_bytes(),
            &[(t, wide), (t, wide), (t, wide)],
            0.0,
        ),
    ]
}

/// Whether a word of `--ops` means that op.
fn asks(word: &str, name: &str) -> bool {
    word == "all" || (!word.is_empty() && name.starts_with(word))
}

fn run(mut o: Options) -> Fallible<()> {
    let backend = o.text("backend").unwrap_or("cpu".into());
    let wanted = o.list("ops", "all");
    let dtypes = o.choices("dtypes", "f32", &["f32", "bf16", "f16"])?;
    let size_name = o.choice("size", &["small", "medium", "large"])?;
    let size = match size_name.as_str() {
        "small" => Size {
            batch: 2,
            tokens: 128,
            width: 128,
            heads: 2,
            vocab: 1024,
        },
        "medium" => Size {
            batch: 4,
            tokens: 512,
            width: 512,
            heads: 8,
            vocab: 8192,
        },
        "large" => Size {
            batch: 8,
            tokens: 2048,
            width: 2048,
            heads: 16,
            vocab: 50304,
        },
        s => return Err(format!("--size {s:?}: small, medium or large").into()),
    };
    let config = o.text("config").unwrap_or_default();
    let threads = o.number("threads", 2, 1)?;
    let rounds = o.number("rounds", 5, 1)?;
    o.done()?;
    let names = || {
        cases(size, DType::F32)
            .into_iter()
            .map(|c| op::spec(c.id).map_or("", |s| s.name))
    };
    if let Some(w) = wanted.iter().find(|w| !names().any(|n| asks(w, n))) {
        let mut all: Vec<&str> = names().collect();
        all.dedup();
        return Err(Usage(format!(
            "--ops {w:?}: wanted all, or some of {}",
            all.join(", ")
        ))
        .into());
    }
    let mut host = HostServices::builder().threads(threads as usize);
    for pair in config.split(',').filter(|p| !p.is_empty()) {
        let (k, v) = pair
            .split_once('=')
            .ok_or_else(|| Usage(format!("--config {pair:?}: wanted KEY=VALUE")))?;
        host = host.config(k, v);
    }
    let host = host.build();
    let raw = match backend.as_str() {
        "cpu" => RawPlugin::from_static::<CpuBackend>(&host)?,
        name => {
            let path = if name.contains('/') {
                PathBuf::from(name)
            } else {
                let me = std::env::current_exe()?;
                loader::find(name, &loader::search_dirs(None, Some(Path::new(&me))))?
            };
            loader::load(&path, &host)?
        }
    };
    let device = Plugin::new(raw).open(0)?;
    let stream = device.stream("ops", 0)?;
    println!(
        "{}, size {size_name}{}",
        device.info()?.name,
        if config.is_empty() {
            String::new()
        } else {
            format!(", {config}")
        }
    );
    println!(
        "{:<20} {:>5} {:>7} {:>10} {:>10} {:>8}",
        "op", "dtype", "route", "us", "GFLOP/s", "GB/s"
    );
    for t in &dtypes {
        let dtype = match t.as_str() {
            "bf16" => DType::Bf16,
            "f16" => DType::F16,
            _ => DType::F32,
        };
        for c in cases(size, dtype) {
            let name = op::spec(c.id).map_or("", |s| s.name);
            if !wanted.iter().any(|w| asks(w, name)) {
                continue;
            }
            measure(&device, &stream, &c, t, rounds)?;
        }
    }
    Ok(())
}

fn measure(device: &Device, stream: &Stream, c: &Case, dtype: &str, rounds: u64) -> Fallible<()> {
    let layouts: Vec<Layout> = c
        .operands
        .iter()
        .map(|(t, shape, stride)| match shape.is_empty() {
            true => Layout::ABSENT,
            false => Layout::strided(*t, shape, stride),
        })
        .collect();
    let request = OpRequest::new(c.id, &layouts, &c.params);
    let kernel = device.prepare(&request, &Decompositions)?;
    let buffers: Vec<Buffer> = layouts
        .iter()
        .map(|l| {
            let n = l.extent_bytes();
            let b = device.alloc(stream, n.max(4), Tag::Activation)?;
            // Numbers of order one in every float storage; small indices as integers.
            let word = |i: u32| match DType::from_id(l.dtype) {
                Some(DType::F32) => 0.25f32.to_bits(),
                Some(DType::Bf16) => 0x3e80_3e80,
                Some(DType::F16) => 0x3400_3400,
                _ => i % 997,
            };
            let words = (0..(n as u32).div_ceil(4)).flat_map(|i| word(i).to_ne_bytes());
            let bytes: Vec<u8> = words.take(n as usize).collect();
            stream.write(b.region(0, n), &bytes)?;
            Ok(b)
        })
        .collect::<Fallible<_>>()?;
    let operands: Vec<Operand<'_>> = layouts
        .iter()
        .zip(&buffers)
        .map(|(l, b)| l.present().then(|| b.region(0, l.extent_bytes())))
        .collect();
    let once = |n: u64| -> Fallible<f64> {
        let start = Instant::now();
        for _ in 0..n {
            stream.launch(&kernel, &operands, &[])?;
        }
        stream.sync(None)?;
        Ok(start.elapsed().as_secs_f64() / n as f64)
    };
    once(1)?;
    // Launches of about a tenth of a second a round.
    let n = (0.1 / once(1)?.max(1e-6)).clamp(1.0, 1000.0) as u64;
    let times = (0..rounds).map(|_| once(n)).collect::<Fallible<Vec<_>>>()?;
    let s = median(&times);
    let route = if kernel.is_native() {
        "native"
    } else {
        "composed"
    };
    let rate = if c.flops > 0.0 {
        format!("{:.2}", c.flops / s / 1e9)
    } else {
        "-".into()
    };
    println!(
        "{:<20} {dtype:>5} {route:>8} {:>9.1} {rate:>10} {:>8.2}",
        c.what,
        s * 1e6,
        c.bytes / s / 1e9
    );
    Ok(())
}
