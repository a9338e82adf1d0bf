//! The section of pipeline stages: a step as it ran beside the same step as it was planned, with the times that the run's units took.

use super::fold;
use super::html::{escape, millis};
use super::read::Run;
use crate::Watched;
use crossweave_timeline::{Span, Stage, Timeline, Unit};

/// What the stages were seen to do in one step, beside their peaks.
fn timeline(stages: &[(&Watched, Option<u64>)], schedule: &str) -> Option<Timeline> {
    let (first, _) = stages.first()?;
    let step = first.step;
    // Each counts from a moment of its own.
    let at = |w: &Watched, t: u64| w.began + t;
    let all = stages.iter();
    let begins = all.flat_map(|(w, _)| w.spans.iter().map(|s| at(w, s.time.0)));
    let begin = begins.min()?;
    if stages.iter().any(|(w, _)| w.step != step) {
        return None;
    }
    let one = |(w, peak): &(&Watched, Option<u64>)| Stage {
        name: format!("stage {}", w.stage),
        spans: {
            let moved = |s: &Span| Span {
                time: (at(w, s.time.0) - begin, at(w, s.time.1) - begin),
                ..*s
            };
            w.spans.iter().map(moved).collect()
        },
        memory: vec![],
        peak: *peak,
    };
    let mut t = Timeline {
        title: format!("{schedule}: step {step} as it ran"),
        unit: Unit::Nanoseconds,
        stages: stages.iter().map(one).collect(),
        ..Timeline::default()
    };
    t.note = format!(
        "by the devices' events; idle {:.1} % of it",
        100.0 * t.idle()
    );
    Some(t)
}

/// A picture that keeps its colours to itself, within the page.
fn image(t: &Timeline) -> String {
    let mut data = String::new();
    for c in t.svg().chars() {
        match c {
            '%' | '#' | '"' | '<' | '>' | '&' => data += &format!("%{:02X}", c as u32),
            '\n' => data += "%0A",
            c => data.push(c),
        }
    }
    format!(
        "<div class=\"wide\"><img alt=\"{}\" src=\"data:image/svg+xml;charset=utf-8,{data}\"></div>",
        escape(&t.title)
    )
}

impl Run {
    /// A step of the pipeline stages as it ran, and as it was planned with the times of its units. None of a run without stages, or whose stages
    /// were not watched.
    pub fn stages(&self) -> Option<(Timeline, Option<&Timeline>)> {
        let (schedule, planned) = self.schedule.as_ref()?;
        let of = |(rank, w)| {
            let mut own = self.memory.iter().filter(|m| m.rank == rank);
            (w, own.find(|m| m.home == "device").map(fold::peak))
        };
        let each = self.watched.iter().map(|(rank, w)| (*rank, w));
        let mut stages: Vec<(&Watched, Option<u64>)> = each.map(of).collect();
        stages.sort_by_key(|(w, _)| w.stage);
        Some((timeline(&stages, schedule)?, planned.as_ref()))
    }
}

/// The section; nothing of a run without stages, or whose stages were not watched.
pub fn section(run: &Run) -> String {
    let Some((ran, planned)) = run.stages() else {
        return String::new();
    };
    let ms = |t: &Timeline| millis(t.computed() as f64 / 1e6);
    let mut out = format!(
        "<section><figure><figcaption><b>Pipeline stages</b> <small>{}</small></figcaption><p>From its first forward to its last backward the step took {}",
        escape(&ran.title),
        ms(&ran)
    );
    if let Some(p) = planned {
        let off = 100.0 * (ran.computed() as f64 / p.computed().max(1) as f64 - 1.0);
        out += &format!(
            "; the plan with the times of its units takes {} ({off:+.1} %)",
            ms(p)
        );
    }
    out += &format!(".</p>{}", image(&ran));
    if let Some(p) = planned {
        out += &image(p);
    }
    out + "</figure></section>"
}
