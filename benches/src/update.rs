//! Speed of the optimizer step beside a copy of as many bytes: both are bound by memory.

use crate::{Fallible, least};
use crossweave_hal::abi::op;
use crossweave_hal::{DType, Device, Tag};
use crossweave_tensor::{Decompositions, KernelCache, Run, Tensor};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

/// Prints GB/s of AdamW over arrays of `bytes` in all, beside a memory copy by `threads`. AdamW on f32 reads four arrays, writes three.
///
/// # Errors
/// The device.
pub fn bandwidth(device: &Device, bytes: u64, threads: u64) -> Fallible<()> {
    let n = bytes / 16;
    let stream = device.stream("bench", 0)?;
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(&stream, &Decompositions, &cache);
    let mut arrays = vec![];
    for _ in 0..4 {
        let b = Arc::new(device.alloc_state(4 * n, Tag::Moment)?);
        stream.fill(b.all(), 0x3c00_0000, 4)?;
        arrays.push(Tensor::dense(b, 0, [n], DType::F32));
    }
    let p = op::AdamwParams {
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        ..Default::default()
    };
    let (mut adam, mut copy) = (vec![], vec![]);
    let words = (7 * n / 2) as usize;
    let (from, mut to) = (vec![1f32; words], vec![0f32; words]);
    for round in 0..6u64 {
        let k = op::AdamwDyn {
            lr: 1e-3,
            grad_scale: 1.0,
            step: round + 1,
            ..Default::default()
        };
        let operands: Vec<Option<&Tensor>> = [None, None]
            .into_iter()
            .chain(arrays.iter().map(Some))
            .collect();
        let began = Instant::now();
        run.launch(op::ADAMW, &operands, p.as_bytes(), k.as_bytes())?;
        stream.sync(None)?;
        adam.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        let part = words.div_ceil(threads.max(1) as usize);
        std::thread::scope(|s| {
            for (f, t) in from.chunks(part).zip(to.chunks_mut(part)) {
                s.spawn(|| t.copy_from_slice(f));
            }
        });
        black_box(&mut to);
        copy.push(began.elapsed().as_secs_f64());
    }
    // The first round touches pages. A copy reads and writes each byte, so both moved 28 bytes per element.
    let rate = |t: &[f64]| 28.0 * n as f64 / least(&t[1..]) / 1e9;
    println!("\noptimizer step, {n} elements of f32, bytes read and written");
    println!("{:32} {:9.2} GB/s", "AdamW", rate(&adam));
    let over = rate(&adam) / rate(&copy);
    println!(
        "{:32} {:9.2} GB/s  AdamW is {over:.2} of it",
        "memcpy",
        rate(&copy)
    );
    Ok(())
}
