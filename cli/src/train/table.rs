//! What a run has come to, as the rows of a table.

use super::offload::with_offload;
use super::setup::{Computes, Run};
use crate::events::{Closing, StepRecord};
use crossweave_engine::{GraphCounts, RankLedger};
use crossweave_report::listed;
use crossweave_report::moment::clock;
use crossweave_words::Size;
use indicatif::HumanCount;

/// What rank 0 knows of a run at its end.
pub struct Summary {
    /// Steps done, those before a resume included.
    pub steps: u64,
    /// A signal ended it early.
    pub stopped: bool,
    /// Step and loss of the first record.
    pub first: Option<(u64, f64)>,
    /// Loss of the last record.
    pub last: Option<f64>,
    /// Last validation loss.
    pub val_loss: Option<f64>,
    /// The same of the averaged weights, where an average is kept.
    pub ema_val_loss: Option<f64>,
    /// Text drawn from the trained model.
    pub sample: Option<String>,
    tokens: f64,
    seconds: f64,
    begun: u64,
}

impl Summary {
    /// A table for a run that starts after `step` steps.
    pub fn new(step: u64) -> Summary {
        Summary {
            steps: step,
            stopped: false,
            first: None,
            last: None,
            val_loss: None,
            ema_val_loss: None,
            sample: None,
            tokens: 0.0,
            seconds: 0.0,
            begun: step,
        }
    }

    /// Time in the steps of this session.
    pub fn busy(&self) -> std::time::Duration {
        std::time::Duration::try_from_secs_f64(self.seconds).unwrap_or_default()
    }

    /// Takes a step into account.
    pub fn step(&mut self, r: &StepRecord) {
        self.first = self.first.or(Some((r.step, r.loss)));
        self.last = Some(r.loss);
        self.tokens += r.tokens_per_s * r.step_ms / 1e3;
        self.seconds += r.step_ms / 1e3;
    }
}

/// What a run has come to, from rank 0's account and the ledgers of all ranks.
pub fn close(run: &Run, s: &Summary, ledgers: &[RankLedger]) -> Closing {
    let mut rows: Vec<(&'static str, String)> = vec![];
    let trained = s.steps.saturating_sub(s.begun);
    let mut steps = format!(
        "{} of {}, {} tokens in {}",
        s.steps,
        run.reads.steps,
        HumanCount(s.tokens.round() as u64),
        clock(s.seconds)
    );
    if s.begun > 0 {
        steps += &format!(" ({trained} since the resume)");
    }
    rows.push(("steps", steps));
    if let (Some((at, first)), Some(last)) = (s.first, s.last) {
        rows.push(("loss", format!("{first:.4} (step {at}) -> {last:.4}")));
    }
    if let Some(v) = s.val_loss {
        let ema = s.ema_val_loss.map_or(String::new(), |ema| {
            format!(", of the averaged weights {ema:.4}")
        });
        rows.push(("validation loss", format!("{v:.4}{ema}")));
    }
    if s.seconds > 0.0 {
        let speed = s.tokens / s.seconds;
        let flops = run
            .job
            .source
            .spec
            .model()
            .flops_per_token(run.job.tokens_per_row())
            * speed;
        rows.push((
            "speed",
            format!(
                "{} tokens/s, {:.1} GFLOP/s",
                HumanCount(speed as u64),
                flops / 1e9
            ),
        ));
    }
    let peak = |l: &RankLedger| l.memory.total.peak;
    if let Some(most) = ledgers.iter().map(peak).max() {
        let (ranks, threads) = match run.job.ranks {
            1 => ("1 rank".to_string(), ""),
            n => (format!("{n} ranks"), " each at most"),
        };
        let line = format!(
            "{}{threads} at the peak, {ranks} on {}",
            Size(most),
            backends(run)
        );
        rows.push(("device memory", line));
    }
    if let Some(shares) = &run.layout.division.rows {
        let shares: Vec<String> = shares.iter().map(u64::to_string).collect();
        rows.push((
            "shares",
            format!("{} sequences of a micro-batch, by rank", shares.join(", ")),
        ));
    }
    if let Some(s) = &run.layout.division.stages {
        let data = run.job.data_ranks() * run.job.tensor_ranks();
        rows.push((
            "pipeline",
            format!(
                "{} stages of {data} rank{}, units {}",
                s.stages.len(),
                if data == 1 { "" } else { "s" },
                crate::stages::in_words(s)
            ),
        ));
    }
    if run.job.tensor_ranks() > 1 {
        let tp = run.job.tensor_ranks();
        let (and, but) = match run.job.source.cuts_vocabulary(tp.into()) {
            true => (" and the vocabulary", ""),
            false => ("", "; the vocabulary is whole on each"),
        };
        let groups = run.job.data_ranks();
        let line = format!("each layer{and} over {tp} ranks, {groups} of these groups{but}");
        rows.push(("tensor", line));
    }
    let reductions = reductions(run);
    rows.extend(reductions.map(|line| ("gradients", line)));
    rows.extend(bridge(ledgers).map(|line| ("bridge", line)));
    rows.extend(graphs(ledgers).map(|line| ("graphs", line)));
    let params: u64 = run.layout.dry(0).params;
    rows.push(("parameters", HumanCount(params).to_string()));
    rows.push(("files", files(run, s)));
    Closing {
        rows,
        sample: s.sample.clone(),
    }
}

/// When the gradients of micro-batches are reduced, in bytes.
fn reductions(run: &Run) -> Option<String> {
    let spec = with_offload(run.rank_spec(0), &run.job.resolved);
    crate::reductions::of_run(&spec, &run.layout.dry(0).units)
}

/// The back ends of the ranks, with their ranks where there are several.
fn backends(run: &Run) -> String {
    let all = &run.computes;
    let one = |c: &Computes| match all.len() {
        1 => c.named.clone(),
        _ => format!("{} ({})", c.named, listed(&c.ranks)),
    };
    all.iter().map(one).collect::<Vec<_>>().join(" and ")
}

/// What crossed the bridge between islands.
fn bridge(ledgers: &[RankLedger]) -> Option<String> {
    let of = |l: &RankLedger| l.bridge.iter().map(|b| b.sent_bytes).sum::<u64>();
    let (all, most) = (ledgers.iter().map(of).sum(), ledgers.iter().map(of).max()?);
    let lines = ledgers.iter().flat_map(|l| &l.bridge);
    let mut kinds: Vec<&str> = lines.map(|b| b.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    (!kinds.is_empty()).then(|| {
        format!(
            "{} crossed, at most {} from one rank ({})",
            Size(all),
            Size(most),
            kinds.join(", ")
        )
    })
}

/// What replaying steps as graphs has come to, and why it came to less than it could.
fn graphs(ledgers: &[RankLedger]) -> Option<String> {
    let all: Vec<_> = ledgers.iter().filter_map(|l| l.graphs.as_ref()).collect();
    let sum = |of: fn(&GraphCounts) -> u64| all.iter().map(|c| of(c)).sum::<u64>();
    let (replayed, partly, called) = (sum(|c| c.replayed), sum(|c| c.partly), sum(|c| c.called));
    let mut line = format!(
        "{} recorded; {replayed} of {} forward and backward steps replayed, {partly} in part, {} launches saved",
        sum(|c| c.recorded),
        replayed + partly + called,
        sum(|c| c.launches_saved)
    );
    let unmet = sum(|c| c.refused.iter().map(|(_, n)| n).sum());
    if let Some((why, _)) = all.iter().flat_map(|c| &c.refused).next() {
        line += &format!("; {unmet} steps of the plan are not replayed whole ({why})");
    }
    (!all.is_empty()).then_some(line)
}

fn files(run: &Run, s: &Summary) -> String {
    let model = match s.stopped || run.local_ranks.has_null() {
        true => "",
        false => "model/ ",
    };
    format!(
        "{}: {model}metrics.jsonl ledger.json config.json run.json checkpoints/",
        run.out.display()
    )
}
