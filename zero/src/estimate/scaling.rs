//! How throughput grows with ranks, and when sharding more does not pay: computation against communication.

use super::{
    Accounting, Accumulation, ActivationCase, Profile, Shape, activation_bytes, states,
    time::sixpt, traffic,
};
use crate::ZeroStage;

/// One number of ranks in a scaling curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Ranks.
    pub ranks: u64,
    /// Sequences a rank can hold beside its shard of the states.
    pub batch: u64,
    /// Seconds of computation in a step.
    pub compute: f64,
    /// Seconds of communication in a step.
    pub comm: f64,
    /// Tokens a second over all ranks, when nothing of the communication hides behind computation.
    pub throughput: f64,
}

/// Stage-3 throughput over numbers of ranks: the shards shrink, so a rank holds more sequences, so the gathers and the reduction of a
/// micro-batch (the same elements whatever the batch) are spread over more tokens, and twice the ranks give more than twice the
/// throughput. Once shards are small against the device, the batch stays and growth is linear. Layers are recomputed, so a sequence costs
/// its inputs. Where whole gradients are kept to the end of a step of several micro-batches, they take room of the batch.
pub fn scaling(
    params: u64,
    shape: &Shape,
    (a, how): (Accounting, Accumulation),
    device: &Profile,
    ranks: &[u64],
) -> Vec<Point> {
    let micro_batches = how.micro_batches.max(1) as f64;
    let kept = activation_bytes(shape, 1, 1, false, ActivationCase::Recompute);
    let working = activation_bytes(shape, 1, 1, false, ActivationCase::Full);
    let sequence = kept * shape.layers as f64 + working;
    let unit = (a.param + a.grad) * shape.largest_unit();
    ranks
        .iter()
        .map(|&n| {
            let states = states(params, n, ZeroStage::Three, a);
            let whole = match how.keeps_whole(ZeroStage::Three) {
                true => a.grad * params - states.grad,
                false => 0,
            };
            let held = states.total() + unit + whole;
            let free = device.memory.saturating_sub(held) as f64;
            let batch = (free / sequence).floor().max(0.0) as u64;
            let tokens = micro_batches * (batch * shape.seq) as f64;
            // Forward, backward and the forward again: 8 P T.
            let compute = sixpt(params as f64, tokens) * 8.0 / 6.0 / (device.sustained);
            let wire = traffic(ZeroStage::Three, params, n, how).wire(n);
            let rate = if n > device.ranks_per_node {
                device.network
            } else {
                device.link
            };
            let comm = wire * a.param as f64 / rate;
            let step = (compute + comm).max(f64::MIN_POSITIVE);
            Point {
                ranks: n,
                batch,
                compute,
                comm,
                throughput: n as f64 * tokens / step,
            }
        })
        .collect()
}

const NOTHING_FITS: &str = "no stage fits the device: offload, more ranks or recompute";

/// Which stage to take, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The stage.
    pub stage: ZeroStage,
    /// In a sentence.
    pub why: String,
}

/// Seconds of a step on a device whose rates are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Communication at stages 0 to 3.
    pub comm: [f64; 4],
    /// Computation.
    pub compute: f64,
}

impl Speeds {
    /// Seconds of communication over those of computation at a stage.
    pub fn ratio(&self, stage: usize) -> f64 {
        match self.compute > 0.0 {
            true => self.comm[stage] / self.compute,
            false => 0.0,
        }
    }
}

/// Advice for a job at `asked`: `bytes` on a rank and elements that data-parallel ranks send for stages 0 to 3, what the device holds,
/// and the seconds of a step where the device's rates are known.
pub fn advise(
    asked: ZeroStage,
    bytes: [u64; 4],
    device: Option<u64>,
    sent: [f64; 4],
    speeds: Option<Speeds>,
) -> Advice {
    let stage = asked as usize;
    let ratio = |s: usize| speeds.map(|r| r.ratio(s));
    let of_compute = |s: usize| ratio(s).map(|r| format!("{r:.2} of the computation"));
    let of = |s: usize| ZeroStage::from_number(s as u32).unwrap_or(ZeroStage::Three);
    let fits = |s: usize| device.is_none_or(|d| bytes[s] <= d);
    // Against plain data parallelism, whatever the micro-batches do to it.
    let volume = |s: usize| match sent[0] > 0.0 {
        true => sent[s] / sent[0],
        false => 1.0,
    };
    // Stage 1 moves what stage 0 moves, and so does stage 2 where a step has one reduction.
    let cheaper = (1..=2).find(|&s| fits(s));
    let (best, why) = match (stage, cheaper) {
        (3, Some(s)) => (
            s,
            format!(
                "stage 3 does not pay: stage {s} fits and sends {:.1}x the elements of plain data parallelism instead of {:.1}x{}",
                volume(s),
                volume(3),
                match (of_compute(3), ratio(s)) {
                    (Some(all), Some(r)) =>
                        format!(" (communication is {all} at stage 3, {r:.2} at stage {s})"),
                    _ => String::new(),
                }
            ),
        ),
        (3, None) if !fits(3) => (3, NOTHING_FITS.to_string()),
        (3, None) => (
            3,
            match (of_compute(3), ratio(3) > Some(1.0)) {
                (Some(r), true) => format!(
                    "only stage 3 fits, and it is bound by communication ({r}): more tokens a micro-batch make it pay"
                ),
                (Some(r), false) => format!(
                    "only stage 3 fits; its communication ({r}) can hide behind the computation"
                ),
                (None, _) => "only stage 3 fits".to_string(),
            },
        ),
        (s, _) if !fits(s) => {
            let next = (s + 1..=3).find(|&n| fits(n));
            match next {
                Some(n) => (
                    n,
                    format!("stage {s} does not fit the device; stage {n} does"),
                ),
                None => (3, NOTHING_FITS.to_string()),
            }
        }
        (0, _) if fits(0) => (
            0,
            "everything fits without sharding; stage 1 would save memory at the same traffic"
                .to_string(),
        ),
        (2, Some(1)) if sent[1] < sent[2] => (
            1,
            format!(
                "stage 2 reduces each micro-batch: stage 1 fits and sends {:.1}x the elements of plain data parallelism instead of {:.1}x",
                volume(1),
                volume(2)
            ),
        ),
        (s, _) => (
            s,
            format!(
                "stage {s} fits and sends {:.1}x the elements of plain data parallelism",
                volume(s)
            ),
        ),
    };
    Advice {
        stage: of(best),
        why,
    }
}
