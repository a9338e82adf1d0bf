//! What a launch costs the host: small ops on one stream of any back end, the time to enqueue them and the time until they have ended; where
//! the back end has graphs, also of the same ops asked for in lists that repeat, which are compared and replayed (ADR 0037).
//!
//! `cargo run --release -p crossweave-benches --bin launches -- [cpu|null|PLUGIN.so] [LAUNCHES]`; of a plugin that counts what its own threads
//! do (`NAME.dispatches`, `NAME.encode_ns`, …) also that.

#![forbid(unsafe_code)]

use crossweave_benches::Fallible;
use crossweave_benches::options::{Options, Usage, program};
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{
    Buffer, DType, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, Recordings, Tag, loader,
};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Launches of a list, about those of a layer of GPT-2.
const LIST: u32 = 32;

const HELP: &str = "\
What a launch costs the host: small ops on one stream of a back end.

  launches [cpu|null|PLUGIN.so] [LAUNCHES]      default: cpu 10000

Example: launches cpu 20000";

fn main() -> ExitCode {
    program(HELP, 2, run)
}

fn run(mut o: Options) -> Fallible<()> {
    let (name, n) = (o.word(), o.word());
    o.done()?;
    let name = name.as_deref().unwrap_or("cpu");
    let n = match n.as_deref().unwrap_or("10000").parse::<u32>() {
        Ok(n) if n > 0 => n,
        _ => {
            let what = format!("{:?}: wanted a number of launches", n.unwrap_or_default());
            return Err(Usage(what).into());
        }
    };
    let host = HostServices::builder().build();
    let raw = match name {
        "cpu" => RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host)?,
        "null" => RawPlugin::from_static::<crossweave_backend_null::Null>(&host)?,
        file => loader::load(Path::new(file), &host)?,
    };
    let plugin = Plugin::new(raw);
    let device = plugin.open(0)?;
    let stream = device.stream("bench", 0)?;
    let x = device.alloc(&stream, 4096, Tag::Activation)?;
    let y = device.alloc(&stream, 4096, Tag::Activation)?;
    let l = Layout::contiguous(DType::F32, &[1024]);
    let params = op::NoParams::default();
    let k = device.prepare(
        &OpRequest::new(op::ADD, &[l, l, l], params.as_bytes()),
        &NoDecompose,
    )?;
    let whole = |b| Some(Buffer::region(b, 0, 4096));
    stream.fill(x.region(0, 4096), 0, 4)?;
    stream.fill(y.region(0, 4096), 0, 4)?;
    let counters = ["dispatches", "submits", "encode_ns", "bind_groups"];
    let read = || {
        counters.map(|c| {
            let key = format!("{}.{c}", plugin.name());
            let text = device
                .attr(&key)
                .ok()
                .and_then(|b| String::from_utf8(b).ok());
            text.and_then(|t| t.parse::<u64>().ok())
        })
    };
    // The first round warms caches up.
    for round in ["cold", "warm", "warm"] {
        stream.sync(None)?;
        let before = read();
        let began = Instant::now();
        for _ in 0..n {
            stream.launch(&k, &[whole(&y), whole(&y), whole(&x)], &[])?;
        }
        let enqueued = began.elapsed();
        stream.sync(None)?;
        let ended = began.elapsed();
        let each = |d: std::time::Duration| d.as_nanos() as f64 / 1e3 / f64::from(n);
        println!(
            "{name} {round}: {n} launches, {:.2} us each to enqueue, {:.2} us each until the end",
            each(enqueued),
            each(ended)
        );
        for ((c, a), b) in counters.iter().zip(before).zip(read()) {
            if let (Some(a), Some(b)) = (a, b) {
                println!(
                    "  {c}: {} ({:.3} a launch)",
                    b - a,
                    (b - a) as f64 / f64::from(n)
                );
            }
        }
    }
    let Ok(mut book) = Recordings::new(&device) else {
        println!("{name}: no graphs");
        return Ok(());
    };
    for round in ["cold", "warm", "warm"] {
        stream.sync(None)?;
        let (lists, mut replayed) = (n.div_ceil(LIST), 0);
        let began = Instant::now();
        for _ in 0..lists {
            stream.follow(book)?;
            for _ in 0..LIST {
                stream.launch(&k, &[whole(&y), whole(&y), whole(&x)], &[])?;
            }
            let (kept, followed) = stream.close(true);
            replayed += followed?.graphs;
            book = kept.ok_or("the recordings are gone")?;
        }
        let enqueued = began.elapsed();
        stream.sync(None)?;
        let ended = began.elapsed();
        let each = |d: std::time::Duration| d.as_nanos() as f64 / 1e3 / f64::from(lists * LIST);
        println!(
            "{name} {round}: {lists} lists of {LIST} launches, {replayed} replayed, {:.2} us a launch to enqueue, {:.2} us until the end",
            each(enqueued),
            each(ended)
        );
    }
    Ok(())
}
