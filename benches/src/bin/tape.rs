//! What recording costs: nanoseconds an op of the tape, on the null device, beyond the launch and the memory that any caller would pay.
//!
//! `cargo run --release -p crossweave-benches --bin tape`
//!
//! The same chain of ops is run through the tape and by hand (allocate, launch a kernel at hand, keep the result); the difference is the tape.

use crossweave_benches::options::{Options, program};
use crossweave_benches::presets::Preset;
use crossweave_benches::{Fallible, least};
use crossweave_hal::abi::op;
use crossweave_hal::{DType, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, Tag};
use crossweave_nn::units;
use crossweave_tensor::{
    Batch, Cx, Env, Flow, GradSink, Keep, KernelCache, NoGroups, RngKey, Run, Tensor,
};
use std::cell::{Cell, RefCell};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

/// Ops of a chain; about as many as a block of a real model has, so that the caches see what they see in training.
const CHAIN: usize = 16;

const HELP: &str = "\
What recording on the tape costs: nanoseconds an op, on the null device. It takes no options.

Example: tape";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

/// Least nanoseconds of one call, over batches of calls.
fn time(mut f: impl FnMut() -> Fallible<()>) -> Fallible<f64> {
    let mut all = vec![];
    for _ in 0..30 {
        let start = Instant::now();
        for _ in 0..200 {
            f()?;
        }
        all.push(start.elapsed().as_secs_f64() * 1e9 / 200.0);
    }
    Ok(least(&all))
}

fn run(o: Options) -> Fallible<()> {
    o.done()?;
    let host = HostServices::builder().build();
    let null = Plugin::new(RawPlugin::from_static::<crossweave_backend_null::Null>(
        &host,
    )?);
    let device = null.open(0)?;
    let stream = device.stream("compute", 0)?;
    let cache = RefCell::new(KernelCache::default());
    let sink = GradSink::none();
    let data = Batch::default();
    let shape = [8u64, 256, 256];
    let x = {
        let run = Run::new(&stream, &NoDecompose, &cache);
        run.empty(shape, DType::F32)?
    };

    // By hand: what any caller pays.
    let layouts = [x.layout(); 3];
    let params = op::NoParams::default();
    let add = OpRequest::new(op::ADD, &layouts, params.as_bytes());
    let kernel = device.prepare(&add, &NoDecompose)?;
    let bare = time(|| {
        for _ in 0..CHAIN {
            stream.launch(
                &kernel,
                &[Some(x.region()), Some(x.region()), Some(x.region())],
                &[],
            )?;
        }
        Ok(())
    })? / CHAIN as f64;
    let bytes = DType::F32.bytes(x.numel());
    let by_hand = time(|| {
        let mut kept = Vec::with_capacity(CHAIN);
        for _ in 0..CHAIN {
            let y = std::sync::Arc::new(device.alloc(&stream, bytes, Tag::Activation)?);
            stream.launch(
                &kernel,
                &[Some(y.all()), Some(x.region()), Some(x.region())],
                &[],
            )?;
            kept.push(y);
        }
        Ok(())
    })? / CHAIN as f64;

    let taped = time(|| {
        let run = Run::new(&stream, &NoDecompose, &cache);
        let env = env(&run, &[], &[], &sink, &data);
        let mut cx = Cx::new(&env);
        let a = cx.input(x.clone());
        let mut b = a;
        for _ in 0..CHAIN {
            b = cx.add(a, b)?;
        }
        std::hint::black_box(cx.finish(Keep::All));
        Ok(())
    })? / CHAIN as f64;
    println!(
        "add x {CHAIN}: launch {bare:.0} ns, with memory {by_hand:.0} ns, through the tape {taped:.0} ns"
    );
    // The least of many batches, and still a difference of two clocks.
    println!(
        "tape overhead forward: {:.0} ns an op",
        (taped - by_hand).max(0.0)
    );

    for style in ["gpt2", "llama"] {
        block(&device, style)?;
    }
    Ok(())
}

fn env<'a>(
    run: &'a Run<'a>,
    params: &'a [Tensor],
    consts: &'a [Tensor],
    grads: &'a GradSink<'a>,
    batch: &'a Batch,
) -> Env<'a> {
    Env {
        run,
        groups: &NoGroups,
        params,
        consts,
        grads,
        batch,
        key: RngKey::default(),
        training: true,
    }
}

/// A whole block of a model, forward and backward.
fn block(device: &crossweave_hal::Device, style: &str) -> Fallible<()> {
    let stream = device.stream("block", 0)?;
    let (fwd, bwd) = (
        RefCell::new(KernelCache::default()),
        RefCell::new(KernelCache::default()),
    );
    let p = Preset::find("tiny", style)?;
    let units = units(p.model().model());
    let unit = &units[1];
    let n = unit.params.iter().map(|p| p.shape.numel()).sum::<u64>();
    let run = Run::new(&stream, &NoDecompose, &fwd);
    let (flat, grad) = (run.empty([n], DType::F32)?, run.empty([n], DType::F32)?);
    let views = |of: &Tensor| {
        let mut at = 0;
        let view = |d: &crossweave_tensor::ParamDecl| {
            let t = Tensor::dense(of.buffer().clone(), 4 * at, d.shape, DType::F32);
            at += d.shape.numel();
            t
        };
        unit.params.iter().map(view).collect::<Vec<_>>()
    };
    let (params, grads) = (views(&flat), views(&grad));
    let consts = unit
        .consts
        .iter()
        .map(|(s, _)| run.empty(*s, DType::F32))
        .collect::<Result<Vec<_>, _>>()?;
    let written: Vec<_> = params.iter().map(|_| Rc::new(Cell::new(false))).collect();
    let x = run.empty([p.batch, p.seq, p.d], DType::F32)?;
    let dy = run.empty([p.batch, p.seq, p.d], DType::F32)?;
    let data = Batch::default();
    let ops = Cell::new(0);
    let step = |back: bool| -> Fallible<()> {
        let run = Run::new(&stream, &NoDecompose, &fwd);
        let sink = GradSink::new(&grads, &written);
        let e = env(&run, &params, &consts, &sink, &data);
        let mut cx = Cx::new(&e);
        let v = cx.input(x.clone());
        let out = unit.block.forward(&mut cx, Flow(vec![v]))?.0;
        let tape = cx.finish(Keep::All);
        ops.set(tape.len());
        if back {
            let run = Run::new(&stream, &NoDecompose, &bwd);
            let e = env(&run, &params, &consts, &sink, &data);
            tape.backward(&e, &out, vec![Some(dy.clone())], &[v])?;
        }
        Ok(())
    };
    let (f, both) = (time(|| step(false))?, time(|| step(true))?);
    let n = ops.get() as f64;
    println!(
        "{style} block of {n} ops, launches and memory included: forward {:.0} ns an op, backward {:.0} ns an op",
        f / n,
        (both - f).max(0.0) / n
    );
    Ok(())
}
