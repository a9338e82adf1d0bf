//! How many operations a second the devices of a job can reach, for the report's MFU: of known accelerators by their data sheet, of the
//! CPU by a matrix product.

use crate::backend::{self, open_linked};
use crate::job::spec::compute_type;
use crate::prepared::Run;
use crate::surroundings::Plugins;
use crate::train_error::Result;
use crossweave_config::Dtype;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{OpRequest, Tag};
use crossweave_tensor::Decompositions;
use crossweave_zero::estimate::profiles;
use std::time::{Duration, Instant};

/// A run that was shorter is not worth the measurement, nor its MFU the ink.
const WORTH: Duration = Duration::from_secs(2);
/// Rows and columns of the product.
const SIDE: u64 = 768;
/// Time for measuring, and products at least.
const TIME: Duration = Duration::from_millis(60);
const LEAST: u32 = 3;

/// The peak of all ranks together, and how it is known; `None` where it is not. `busy`: time in steps.
pub fn of(run: &Run, busy: Duration) -> Option<(f64, String)> {
    if busy < WORTH {
        return None;
    }
    let cpu = run.computes.iter().all(|c| c.is_cpu());
    if cpu {
        let threads = threads(run);
        let each = measured(run.local_ranks.plugins(), threads, run.job.resolved.dtype).ok()?;
        // Ranks beyond the cores share them.
        let fit = (backend::cores() / threads).max(1);
        let here = run.local_ranks.here().len().max(1) as u64;
        let at_once = f64::from(run.job.ranks) * here.min(fit) as f64 / here as f64;
        let how = format!(
            "a product of {SIDE} x {SIDE} {} measured on {threads} thread{} of this machine, for each rank",
            compute_type(run.job.resolved.dtype).name(),
            if threads == 1 { "" } else { "s" }
        );
        return Some((each * at_once, how));
    }
    if run.job.resolved.dtype == Dtype::F32 {
        // Data sheets speak of 16 bits.
        return None;
    }
    let mut all = 0.0;
    let mut names = vec![];
    for c in &run.computes {
        let named = c.machines.first()?.name.to_lowercase();
        let accelerators = profiles().iter().filter(|p| p.name != "laptop");
        let words: Vec<&str> = named.split(|c: char| !c.is_alphanumeric()).collect();
        let hit = accelerators.into_iter().find(|p| words.contains(&p.name))?;
        all += hit.peak * c.ranks.len() as f64;
        names.push(hit.name);
    }
    names.dedup();
    Some((
        all,
        format!("data sheet of {} in 16 bits", names.join(" and ")),
    ))
}

/// Threads of a rank.
pub fn threads(run: &Run) -> u64 {
    let here = run.local_ranks.here().len().max(1) as u64;
    let own = run.job.resolved.settings.run.threads_per_rank;
    own.unwrap_or_else(|| (backend::cores() / here.max(1)).max(1))
}

/// Operations a second of one device of so many threads: the best of a few products.
fn measured(plugins: &Plugins, threads: u64, dtype: Dtype) -> Result<f64> {
    let host = backend::host(plugins, 1, Some(threads), None);
    let device = open_linked("cpu", &host)?.open(0)?;
    let stream = device.stream("peak", 0)?;
    let dtype = compute_type(dtype);
    let square = Layout::contiguous(dtype, &[SIDE, SIDE]);
    let operands = [square, square, square, Layout::ABSENT];
    let product = OpRequest::new(
        op::MATMUL,
        &operands,
        op::MatmulParams::default().as_bytes(),
    );
    let kernel = device.prepare(&product, &Decompositions)?;
    let bytes = dtype.bytes(SIDE * SIDE);
    let make = || device.alloc_state(bytes, Tag::Workspace);
    let (y, a, b) = (make()?, make()?, make()?);
    for m in [&a, &b] {
        stream.fill(m.all(), 0, 1)?;
    }
    stream.sync(None)?;
    let (began, mut best, mut n) = (Instant::now(), f64::INFINITY, 0);
    while n < LEAST || began.elapsed() < TIME {
        let from = Instant::now();
        let operands = [Some(y.all()), Some(a.all()), Some(b.all()), None];
        stream.launch(&kernel, &operands, &[])?;
        stream.sync(None)?;
        best = best.min(from.elapsed().as_secs_f64());
        n += 1;
    }
    Ok(2.0 * (SIDE as f64).powi(3) / best.max(1e-9))
}
