//! Plans as text, both ways: the compact line (`+0 F0.0' -0`), which also parses, and the table with a column per lane.
//!
//! | text | operation |
//! |---|---|
//! | `+u` `-u` | gather, release |
//! | `Fu.m` `Fu.m'` `Fu.m~` `Fu.m_` | forward that keeps all, its input, selectively, nothing |
//! | `Ru.m` `Bu.m` `Iu.m` `Wu.m` | recompute, backward, input gradient, weight gradient |
//! | `aru,v` `rsu,v` | one all-reduce, one reduce-scatter of the gradients of `u` and `v` |
//! | `rsu,v+` | the same of some micro-batches: later ones are added |
//! | `tieu` | sum of the reduced gradient over the stages that share `u` |
//! | `norm` `finite` `optu` `zgu` | norm and clipping, finite check, update, zero gradient |
//! | `foldu` `foldu+n` | the gradient of a logical shard is set aside, and `n` sums of two are made of those that are |
//! | `au.m>r` `au.m<r` `gu.m>r` `gu.m<r` | send to, receive from rank `r`: activation, gradient |
//! | `au.m>r|av.n<s#k` | these sends and receives as one group, number `k` on all stages; of gradients likewise |
//! | `outu.m` `inu.m` `soutu` `sinu` | spill, fetch; optimizer state out, in |
//! | `goutu` `pinu` `shinu` | gradient to the host, updated parameters and parameter slice from it |
//! | `goutu+` | the gradient of some micro-batches to the host, which adds those of later ones |
//!
//! `@lane` behind an operation puts it on another lane than its own (`opt2@host`).

use crate::check::trace;
use crate::error::PlanError;
use crate::facts::Facts;
use crate::op::{Keep, Lane, Reduction, StepKind, UnitId};
use crate::plan::{Plan, Step, StepId, Storage};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepKind::Gather { unit, node: false } => write!(f, "+{unit}"),
            StepKind::Gather { unit, node: true } => write!(f, "+{unit}*"),
            StepKind::Release { unit } => write!(f, "-{unit}"),
            StepKind::Forward { unit, mb, keep } => {
                let mark = match keep {
                    Keep::All => "",
                    Keep::Input => "'",
                    Keep::Selective => "~",
                    Keep::Nothing => "_",
                };
                write!(f, "F{unit}.{mb}{mark}")
            }
            StepKind::Recompute { unit, mb } => write!(f, "R{unit}.{mb}"),
            StepKind::Backward { unit, mb } => write!(f, "B{unit}.{mb}"),
            StepKind::InputGrad { unit, mb } => write!(f, "I{unit}.{mb}"),
            StepKind::WeightGrad { unit, mb } => write!(f, "W{unit}.{mb}"),
            StepKind::ReduceGrad { units, how, more } => {
                f.write_str(match how {
                    Reduction::All => "ar",
                    Reduction::Scatter => "rs",
                })?;
                for (k, unit) in units.iter().enumerate() {
                    write!(f, "{}{unit}", if k == 0 { "" } else { "," })?;
                }
                f.write_str(if *more { "+" } else { "" })
            }
            StepKind::Tie { unit } => write!(f, "tie{unit}"),
            StepKind::GradNorm => f.write_str("norm"),
            StepKind::Finite => f.write_str("finite"),
            StepKind::Update { unit } => write!(f, "opt{unit}"),
            StepKind::ZeroGrad { unit } => write!(f, "zg{unit}"),
            StepKind::Fold { unit, joins: 0 } => write!(f, "fold{unit}"),
            StepKind::Fold { unit, joins } => write!(f, "fold{unit}+{joins}"),
            StepKind::SendAct { unit, mb, to } => write!(f, "a{unit}.{mb}>{to}"),
            StepKind::RecvAct { unit, mb, from } => write!(f, "a{unit}.{mb}<{from}"),
            StepKind::SendGrad { unit, mb, to } => write!(f, "g{unit}.{mb}>{to}"),
            StepKind::RecvGrad { unit, mb, from } => write!(f, "g{unit}.{mb}<{from}"),
            StepKind::Exchange {
                grad,
                round,
                messages,
            } => {
                let kind = if *grad { 'g' } else { 'a' };
                for (k, m) in messages.iter().enumerate() {
                    let way = if m.sends { '>' } else { '<' };
                    let bar = if k == 0 { "" } else { "|" };
                    write!(f, "{bar}{kind}{}.{}{way}{}", m.unit, m.mb, m.stage)?;
                }
                write!(f, "#{round}")
            }
            StepKind::Spill { unit, mb } => write!(f, "out{unit}.{mb}"),
            StepKind::Fetch { unit, mb } => write!(f, "in{unit}.{mb}"),
            StepKind::StateIn { unit } => write!(f, "sin{unit}"),
            StepKind::StateOut { unit } => write!(f, "sout{unit}"),
            StepKind::GradOut { unit, more } => {
                write!(f, "gout{unit}{}", if *more { "+" } else { "" })
            }
            StepKind::ParamIn { unit } => write!(f, "pin{unit}"),
            StepKind::ShardIn { unit } => write!(f, "shin{unit}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        if self.lane != self.op.lane() {
            write!(f, "@{}", self.lane.name())?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, step) in self.steps.iter().enumerate() {
            write!(f, "{}{step}", if k == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

impl FromStr for StepKind {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<StepKind, PlanError> {
        parse_op(text).ok_or_else(|| PlanError::text(text))
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    /// Reads the compact line. Parameters are taken to live in slots if the text gathers any, gradients if it scatters any.
    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let mut steps = Vec::new();
        for token in text.split_whitespace() {
            let (op, lane) = match token.split_once('@') {
                Some((op, lane)) => (op, Some(lane)),
                None => (token, None),
            };
            let mut step = Step::new(op.parse()?);
            if let Some(name) = lane {
                step.lane = Lane::ALL
                    .into_iter()
                    .find(|l| l.name() == name)
                    .ok_or_else(|| PlanError::text(token))?;
            }
            steps.push(step);
        }
        let mut plan = Plan::from_ops(steps.iter().map(|s| s.op.clone()));
        let words = std::mem::take(&mut plan.provides);
        let mut plan = plan.rebuild(steps);
        plan.provides = words;
        let any = |pick: fn(&StepKind) -> bool| plan.steps.iter().any(|s| pick(&s.op));
        let gathers = any(|op| matches!(op, StepKind::Gather { .. }));
        let scatters =
            any(|op| matches!(op, StepKind::ReduceGrad { how, .. } if *how == Reduction::Scatter));
        if gathers {
            plan.params = Storage::Slots;
        }
        if scatters {
            plan.grads = Storage::Slots;
        }
        Ok(plan)
    }
}

/// Messages of one kind as one group, or nothing.
fn parse_exchange(text: &str, round: &str) -> Option<StepKind> {
    let round = round.parse().ok()?;
    let each: Option<Vec<StepKind>> = text.split('|').map(parse_op).collect();
    let (mut kinds, mut messages) = (vec![], vec![]);
    for op in each? {
        let (grad, of) = op.messages();
        let [one] = of[..] else {
            return None;
        };
        kinds.push(grad);
        messages.push(one);
    }
    let grad = *kinds.first()?;
    let alike = kinds.iter().all(|k| *k == grad);
    alike.then_some(StepKind::Exchange {
        grad,
        round,
        messages,
    })
}

/// One operation from its compact form, or nothing.
fn parse_op(text: &str) -> Option<StepKind> {
    if text == "norm" {
        return Some(StepKind::GradNorm);
    }
    if text == "finite" {
        return Some(StepKind::Finite);
    }
    if let Some((text, round)) = text.split_once('#') {
        return parse_exchange(text, round);
    }
    let digits = text.find(|c: char| c.is_ascii_digit())?;
    let (head, rest) = text.split_at(digits);
    let unit = || rest.parse::<UnitId>().ok();
    let pair = |s: &str| -> Option<(u32, u32)> {
        let (unit, mb) = s.split_once('.')?;
        Some((unit.parse().ok()?, mb.parse().ok()?))
    };
    Some(match head {
        "+" => {
            let unit = rest.strip_suffix('*').unwrap_or(rest).parse().ok()?;
            let node = rest.ends_with('*');
            StepKind::Gather { unit, node }
        }
        "-" => StepKind::Release { unit: unit()? },
        "opt" => StepKind::Update { unit: unit()? },
        "tie" => StepKind::Tie { unit: unit()? },
        "zg" => StepKind::ZeroGrad { unit: unit()? },
        "fold" => {
            let (unit, joins) = rest.split_once('+').unwrap_or((rest, "0"));
            StepKind::Fold {
                unit: unit.parse().ok()?,
                joins: joins.parse().ok()?,
            }
        }
        "sin" => StepKind::StateIn { unit: unit()? },
        "sout" => StepKind::StateOut { unit: unit()? },
        "gout" => StepKind::GradOut {
            unit: rest.strip_suffix('+').unwrap_or(rest).parse().ok()?,
            more: rest.ends_with('+'),
        },
        "pin" => StepKind::ParamIn { unit: unit()? },
        "shin" => StepKind::ShardIn { unit: unit()? },
        "ar" | "rs" => {
            let how = if head == "ar" {
                Reduction::All
            } else {
                Reduction::Scatter
            };
            let (more, rest) = (rest.ends_with('+'), rest.strip_suffix('+').unwrap_or(rest));
            let units: Option<Vec<UnitId>> = rest.split(',').map(|u| u.parse().ok()).collect();
            StepKind::ReduceGrad {
                units: units?,
                how,
                more,
            }
        }
        "F" => {
            let (body, keep) = match rest.as_bytes().last()? {
                b'\'' => (&rest[..rest.len() - 1], Keep::Input),
                b'~' => (&rest[..rest.len() - 1], Keep::Selective),
                b'_' => (&rest[..rest.len() - 1], Keep::Nothing),
                _ => (rest, Keep::All),
            };
            let (unit, mb) = pair(body)?;
            StepKind::Forward { unit, mb, keep }
        }
        "a" | "g" => {
            let sends = rest.contains('>');
            let (body, rank) = rest.split_once(if sends { '>' } else { '<' })?;
            let (unit, mb) = pair(body)?;
            let rank = rank.parse().ok()?;
            match (head, sends) {
                ("a", true) => StepKind::SendAct { unit, mb, to: rank },
                ("a", false) => StepKind::RecvAct {
                    unit,
                    mb,
                    from: rank,
                },
                (_, true) => StepKind::SendGrad { unit, mb, to: rank },
                (_, false) => StepKind::RecvGrad {
                    unit,
                    mb,
                    from: rank,
                },
            }
        }
        _ => {
            let (unit, mb) = pair(rest)?;
            match head {
                "R" => StepKind::Recompute { unit, mb },
                "B" => StepKind::Backward { unit, mb },
                "I" => StepKind::InputGrad { unit, mb },
                "W" => StepKind::WeightGrad { unit, mb },
                "out" => StepKind::Spill { unit, mb },
                "in" => StepKind::Fetch { unit, mb },
                _ => return None,
            }
        }
    })
}

impl Plan {
    /// The plan as a table: a row per step, a column per lane in use, then the steps waited for, and the bytes live at
    /// each step if `facts` are given and the plan is lawful. The fullest step is marked with `<- peak`.
    pub fn table(&self, facts: Option<&Facts>) -> String {
        let bytes = facts.and_then(|facts| trace(self, facts).ok());
        let peak = bytes
            .as_ref()
            .and_then(|b| b.iter().copied().max())
            .unwrap_or(0);
        let mut header = vec!["step".to_string()];
        let lanes = self.lanes();
        header.extend(lanes.iter().map(|l| l.name().to_string()));
        header.push("after".to_string());
        if bytes.is_some() {
            header.push("bytes".to_string());
        }
        let mut rows = vec![header];
        let mut marked = false;
        for step in &self.steps {
            let mut row = vec![step.id.0.to_string()];
            for &lane in &lanes {
                let here = step.lane == lane;
                row.push(if here {
                    step.op.to_string()
                } else {
                    String::new()
                });
            }
            let after: Vec<String> = step.after.iter().map(|StepId(k)| k.to_string()).collect();
            row.push(after.join(","));
            if let Some(bytes) = &bytes {
                let here = bytes[step.id.index()];
                let mark = if here == peak && !marked {
                    " <- peak"
                } else {
                    ""
                };
                marked |= here == peak;
                row.push(format!("{}{mark}", grouped(here)));
            }
            rows.push(row);
        }
        let columns = rows[0].len();
        let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let line: Vec<String> = cells.map(|(cell, &w)| format!("{cell:<w$}")).collect();
            out.push_str(line.join("  ").trim_end());
            out.push('\n');
        }
        out
    }
}

/// A number with its thousands apart: `12_345_678`.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (k, c) in digits.chars().enumerate() {
        if k > 0 && (digits.len() - k).is_multiple_of(3) {
            out.push('_');
        }
        out.push(c);
    }
    out
}
