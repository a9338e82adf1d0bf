//! What a run has come to, as the rows of a table.

use crate::events::{Closing, GraphCounts, RankLedger};
use crate::reductions;
use crate::train::Computes;
use crossweave_report::listed;
use crossweave_report::moment::clock;
use crossweave_words::Size;
use indicatif::HumanCount;

/// The rows: what is stated, and its value in words.
pub fn rows(run: &Closing<'_>) -> Vec<(&'static str, String)> {
    let (s, ledgers) = (run.summary, run.ledgers);
    let mut rows: Vec<(&'static str, String)> = vec![];
    let trained = s.steps.saturating_sub(s.begun);
    let mut steps = format!(
        "{} of {}, {} tokens in {}",
        s.steps,
        run.steps,
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
    if let Some(shares) = &run.division.rows {
        let shares: Vec<String> = shares.iter().map(u64::to_string).collect();
        rows.push((
            "shares",
            format!("{} sequences of a micro-batch, by rank", shares.join(", ")),
        ));
    }
    if let Some(s) = &run.division.stages {
        let data = run.job.data_ranks() * run.job.tensor_ranks();
        rows.push((
            "pipeline",
            format!(
                "{} stages of {data} rank{}, units {}",
                s.runs.stages(),
                if data == 1 { "" } else { "s" },
                crate::stages::in_words(s)
            ),
        ));
    }
    if run.job.tensor_ranks() > 1 {
        let tp = run.job.tensor_ranks();
        let (and, but) = match run.job.source.cuts_vocabulary(&run.job.place(0)) {
            true => (" and the vocabulary", ""),
            false => ("", "; the vocabulary is whole on each"),
        };
        let groups = run.job.data_ranks();
        let line = format!("each layer{and} over {tp} ranks, {groups} of these groups{but}");
        rows.push(("tensor", line));
    }
    let reductions = run.reductions.as_ref();
    rows.extend(reductions.map(|r| ("gradients", reductions::of_run(r))));
    rows.extend(bridge(ledgers).map(|line| ("bridge", line)));
    rows.extend(graphs(ledgers).map(|line| ("graphs", line)));
    rows.push(("parameters", HumanCount(run.params).to_string()));
    rows.push(("files", files(run)));
    rows
}

/// The back ends of the ranks, with their ranks where there are several.
fn backends(run: &Closing<'_>) -> String {
    let all = run.computes;
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

fn files(run: &Closing<'_>) -> String {
    let model = match run.has_model {
        true => "model/ ",
        false => "",
    };
    format!(
        "{}: {model}metrics.jsonl ledger.json config.json run.json checkpoints/",
        run.out.display()
    )
}
