//! One row for each op, types and shapes: which way it goes on the device, and what that costs.

use super::collectives::CollectiveRow;
use crate::train_error::Result;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::{Code, DType, Device, Explained, OpRequest, Part, RouteKind};
use crossweave_layers::{Counts, MoveKind};
use crossweave_tensor::Decompositions;
use serde::Serialize;
use std::collections::BTreeMap;

/// What the device can do at most, where that is known.
pub struct Rates {
    flops: f64,
    bytes: f64,
}

impl Rates {
    /// As given, or as the device says by the attributes `flops_per_s` and `bytes_per_s` (decimal text).
    pub fn of(device: &Device, tflops: Option<f64>, gbps: Option<f64>) -> Option<Rates> {
        if let (Some(t), Some(g)) = (tflops, gbps) {
            return Some(Rates {
                flops: t * 1e12,
                bytes: g * 1e9,
            });
        }
        let attr = |key: &str| -> Option<f64> {
            let text = String::from_utf8(device.attr(key).ok()?).ok()?;
            text.trim()
                .parse()
                .ok()
                .filter(|x: &f64| *x > 0.0 && x.is_finite())
        };
        Some(Rates {
            flops: attr("flops_per_s")?,
            bytes: attr("bytes_per_s")?,
        })
    }
}

/// One op of the step.
pub struct Row {
    /// Name in the op table.
    pub op: &'static str,
    /// Types of its operands.
    pub types: String,
    /// Shapes, as far as they tell it from others.
    pub shape: String,
    /// Calls a step.
    pub calls: u64,
    /// Its way, or why there is none.
    pub how: std::result::Result<Explained, String>,
    /// Nanoseconds of a call, and whether the back end said so.
    pub est: Option<(u64, bool)>,
}

/// The rows of a step on `device`, the worst ways first, then by calls.
///
/// # Errors
/// A device that fails while it prepares an op.
pub fn ops(device: &Device, counts: &Counts, rates: &Option<Rates>) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = vec![];
    for (facts, calls) in &counts.ops {
        let request = facts.request();
        let how = match device.prepare(&request, &Decompositions) {
            Ok(k) => Ok(k.explain()),
            Err(e) if e.code == Code::Unsupported => Err(e.message),
            Err(e) => return Err(e.into()),
        };
        let est = match (&how, rates) {
            (Ok(h), _) if h.est_ns.is_some() => h.est_ns.map(|n| (n, true)),
            (Ok(h), Some(r)) => Some((r.of_call(&request, h), false)),
            _ => None,
        };
        let (types, shape) = (types(&request), shape(&request));
        let row = Row {
            op: facts.name(),
            types,
            shape,
            calls: *calls,
            how,
            est,
        };
        // Requests that differ in parameters or strides only are one row, unless they go different ways.
        let same = |r: &&mut Row| {
            (r.op, &r.types, &r.shape) == (row.op, &row.types, &row.shape)
                && way(&r.how) == way(&row.how)
        };
        match rows.iter_mut().find(same) {
            Some(r) => r.calls += row.calls,
            None => rows.push(row),
        }
    }
    let order = |r: &Row| (way(&r.how).0, r.calls * r.launches());
    rows.sort_by(|a, b| {
        order(b)
            .cmp(&order(a))
            .then_with(|| (a.op, &a.shape).cmp(&(b.op, &b.shape)))
    });
    Ok(rows)
}

/// Rank of a way, best first (the last: none), and its launches.
fn way(how: &std::result::Result<Explained, String>) -> (usize, u64) {
    match how {
        Ok(h) => (h.route as usize, h.launches),
        Err(_) => (RouteKind::ALL.len(), 0),
    }
}

impl Rates {
    /// The roofline of the op itself, and of the bytes that its parts move beside: each temporary is written and read.
    fn of_call(&self, r: &OpRequest, h: &Explained) -> u64 {
        let own: u64 = r.operands.iter().map(Layout::extent_bytes).sum();
        let beside = if h.route == RouteKind::Native {
            0
        } else {
            2 * h.workspace
        };
        let time = (flops(r) / self.flops).max((own + beside) as f64 / self.bytes);
        (time * 1e9).ceil() as u64
    }
}

/// Arithmetic of the products in it; everything else is bound by memory.
fn flops(r: &OpRequest) -> f64 {
    let dim = |o: usize, d: usize| r.operands.get(o).map_or(0.0, |l| l.shape[d] as f64);
    let causal = |at: usize| {
        let flags = r
            .params
            .get(at..at + 4)
            .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        if flags & op::FLAG_CAUSAL != 0 {
            0.5
        } else {
            1.0
        }
    };
    // Of parts of a row that stand elsewhere than at the last keys: what lies before the diagonal.
    let part = |q: usize| {
        let at = std::mem::offset_of!(op::AttentionExtParams, shift);
        let shift = r.params.get(at..at + 8).map_or(0, |b| {
            i64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])
        });
        let (tq, tk, flagged) = (dim(q, 1), dim(q + 1, 1), causal(4));
        if shift == 0 || flagged == 1.0 || tq * tk == 0.0 {
            return flagged;
        }
        // Keys seen by all queries up to one that stands at x.
        let before = |x: f64| {
            let x = x.max(0.0);
            x.min(tk) * (x - x.min(tk) / 2.0)
        };
        let last = tk + shift as f64;
        (before(last) - before(last - tq)) / (tq * tk)
    };
    match r.id {
        op::MATMUL => {
            let (c, a) = (&r.operands[0], &r.operands[1]);
            let k = a.shape[(a.rank as usize).saturating_sub(1)];
            2.0 * c.numel() as f64 * k as f64
        }
        // Of each row of y or dy [n, N] a product with K numbers of x [n, K], in whatever group it is.
        op::GROUPED_MATMUL => 2.0 * dim(0, 0) * dim(0, 1) * dim(1, 1),
        op::GROUPED_MATMUL_DW => 2.0 * dim(1, 0) * dim(1, 1) * dim(2, 1),
        // q [B, Tq, H, D], k [B, Tk, ..]: two products forward, five backward. Of packed sequences the most there can be: one segment.
        op::ATTENTION_FWD | op::ATTENTION_VARLEN_FWD => {
            4.0 * dim(2, 0) * dim(2, 1) * dim(2, 2) * dim(2, 3) * dim(3, 1) * causal(4)
        }
        op::ATTENTION_EXT_FWD => {
            4.0 * dim(2, 0) * dim(2, 1) * dim(2, 2) * dim(2, 3) * dim(3, 1) * part(2)
        }
        op::ATTENTION_BWD | op::ATTENTION_VARLEN_BWD => {
            10.0 * dim(5, 0) * dim(5, 1) * dim(5, 2) * dim(5, 3) * dim(6, 1) * causal(4)
        }
        op::ATTENTION_EXT_BWD => {
            10.0 * dim(7, 0) * dim(7, 1) * dim(7, 2) * dim(7, 3) * dim(8, 1) * part(7)
        }
        _ => 0.0,
    }
}

/// Types in the order of the operands, each once: `bf16 f32`.
fn types(r: &OpRequest) -> String {
    let mut all: Vec<&str> = vec![];
    for d in r.operands.iter().filter_map(|l| DType::from_id(l.dtype)) {
        if !all.contains(&d.name()) {
            all.push(d.name());
        }
    }
    all.join(" ")
}

fn dims(l: &Layout) -> String {
    let d: Vec<String> = l.shape[..l.rank as usize]
        .iter()
        .map(i64::to_string)
        .collect();
    d.join("x")
}

/// What distinguishes an op from others of its name: `128x64x256` of a product (M, N, K), the largest operand's shape of others, and how many
/// tensors it takes where that may differ.
fn shape(r: &OpRequest) -> String {
    let there: Vec<&Layout> = r.operands.iter().filter(|l| l.present()).collect();
    if r.id == op::MATMUL && r.operands.len() >= 2 {
        let (c, a) = (&r.operands[0], &r.operands[1]);
        return format!(
            "{}x{}",
            dims(c),
            a.shape[(a.rank as usize).saturating_sub(1)]
        );
    }
    let repeats = op::spec(r.id).is_some_and(|s| s.operands.iter().any(|o| o.contains('*')));
    if repeats && r.id != op::ELEMENTWISE_PROGRAM {
        let most = there.iter().map(|l| l.numel()).max().unwrap_or(0);
        let all: u64 = there.iter().map(|l| l.numel()).sum();
        return format!("{} operands, {all} elements, largest {most}", there.len());
    }
    let largest = there.iter().max_by_key(|l| l.numel());
    largest.map_or(String::new(), |l| dims(l))
}

impl Row {
    /// Launches of a call.
    pub fn launches(&self) -> u64 {
        self.how.as_ref().map_or(0, |h| h.launches)
    }
    /// Name of the way.
    pub fn route(&self) -> &'static str {
        self.how.as_ref().map_or("none", |h| h.route.name())
    }
    /// What would make it better.
    fn better(&self) -> Option<String> {
        match &self.how {
            Ok(h) if h.route == RouteKind::Native && h.tier == Some(0) => {
                Some(format!("a {} that is more than a reference", self.op))
            }
            Ok(h) if h.route == RouteKind::Native => None,
            Ok(h) => {
                let mut names = h.lacking.iter();
                let own = format!("native {}", names.next().map_or(self.op, String::as_str));
                let parts: Vec<&str> = names.map(String::as_str).collect();
                Some(match parts.is_empty() {
                    true => own,
                    false => format!("{own}; or {}", parts.join(", ")),
                })
            }
            Err(_) => Some(format!(
                "{}, or the primitives of its decomposition",
                self.op
            )),
        }
    }
    /// All of it as plain values.
    pub fn values(&self) -> OpRow {
        let how = self.how.as_ref().ok();
        OpRow {
            op: self.op,
            types: self.types.clone(),
            shape: self.shape.clone(),
            calls: self.calls,
            route: self.route(),
            launches_per_call: self.launches(),
            launches: self.launches() * self.calls,
            tier: how
                .and_then(|h| h.tier)
                .map(|t| ["reference", "native", "tuned"][t.min(2) as usize]),
            est_ns: self.est.map(|e| e.0),
            est_from: self.est.map(|e| if e.1 { "plugin" } else { "roofline" }),
            workspace: how.map_or(0, |h| h.workspace),
            parts: how.map(|h| h.parts.clone()),
            better_if: self.better(),
            error: self.how.as_ref().err().cloned(),
        }
    }
}

/// An op of a step, with its types and shapes.
#[derive(Clone, Debug, Serialize)]
pub struct OpRow {
    /// Name in the op table.
    pub op: &'static str,
    /// Types of its operands.
    pub types: String,
    /// Shapes, as far as they tell it from others.
    pub shape: String,
    /// Calls a step.
    pub calls: u64,
    /// Its way; `none` where there is none.
    pub route: &'static str,
    /// Launches of a call.
    pub launches_per_call: u64,
    /// Launches a step.
    pub launches: u64,
    /// The least tier of its native launches.
    pub tier: Option<&'static str>,
    /// Nanoseconds of a call, where they can be estimated.
    pub est_ns: Option<u64>,
    /// Who has estimated them: the `plugin`, or the `roofline` of the device.
    pub est_from: Option<&'static str>,
    /// Bytes of temporaries and of the largest workspace.
    pub workspace: u64,
    /// What a call launches, by op.
    pub parts: Option<Vec<Part>>,
    /// What would make it better.
    pub better_if: Option<String>,
    /// Why there is no way.
    pub error: Option<String>,
}

/// Copies or fills that are no part of an op.
#[derive(Clone, Debug, Serialize)]
pub struct Moves {
    /// What they are between.
    pub kind: &'static str,
    /// Calls a step.
    pub calls: u64,
    /// Bytes a step.
    pub bytes: u64,
}

/// Copies and fills of a step.
pub fn moves(counts: &Counts) -> Vec<Moves> {
    let all: BTreeMap<MoveKind, (u64, u64)> = counts.moves.iter().map(|(k, v)| (*k, *v)).collect();
    let one = |(k, (calls, bytes)): (MoveKind, (u64, u64))| Moves {
        kind: k.name(),
        calls,
        bytes,
    };
    all.into_iter().map(one).collect()
}

/// Sums of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Totals {
    /// Calls of ops.
    pub op_calls: u64,
    /// The same by their ways.
    pub op_calls_by_route: BTreeMap<&'static str, u64>,
    /// Launches of ops.
    pub op_launches: u64,
    /// Copies and fills.
    pub copies_and_fills: u64,
    /// Launches of collectives, of those that are known.
    pub collective_launches: u64,
    /// Launches of all.
    pub launches: u64,
    /// Nanoseconds of the ops, where all are estimated.
    pub est_ns: Option<u64>,
    /// Ops that leave for the host.
    pub host_round_trips: u64,
}

/// The sums of a step's rows.
pub fn totals(ops: &[Row], colls: &[CollectiveRow], counts: &Counts) -> Totals {
    let mut by_route: BTreeMap<&str, u64> = BTreeMap::new();
    for r in ops {
        *by_route.entry(r.route()).or_default() += r.calls;
    }
    let launches: u64 = ops.iter().map(|r| r.launches() * r.calls).sum();
    let moves: u64 = counts.moves.values().map(|m| m.0).sum();
    let known = colls
        .iter()
        .filter_map(|c| Some(c.launches_per_call? * c.calls));
    let collectives: u64 = known.sum();
    let on_host = ops.iter().filter(|r| r.route() == RouteKind::Host.name());
    Totals {
        op_calls: ops.iter().map(|r| r.calls).sum(),
        op_calls_by_route: by_route,
        op_launches: launches,
        copies_and_fills: moves,
        collective_launches: collectives,
        launches: launches + moves + collectives,
        est_ns: ops.iter().map(|r| Some(r.est?.0 * r.calls)).sum(),
        host_round_trips: on_host.map(|r| r.calls).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_row_has_the_products_before_its_diagonal() {
        let l = |t: u64| Layout::contiguous(DType::F32, &[1, t, 2, 8]);
        let of = |tq: u64, tk: u64, shift: i64| {
            let p = op::AttentionExtParams {
                flags: op::FLAG_CAUSAL,
                shift,
                ..Default::default()
            };
            let lse = Layout::contiguous(DType::F32, &[1, 2, tq]);
            let operands = [l(tq), lse, l(tq), l(tk), l(tk)];
            flops(&OpRequest::new(
                op::ATTENTION_EXT_FWD,
                &operands,
                p.as_bytes(),
            ))
        };
        let all = 4.0 * 16.0 * 2.0 * 8.0 * 16.0;
        for (shift, part) in [(0, 0.5), (16, 1.0), (1 << 40, 1.0), (-16, 0.0), (-8, 0.125)] {
            assert_eq!(of(16, 16, shift), part * all, "{shift}");
        }
        // Parts of a row that is cut in four are the row.
        let cut = (0..4).flat_map(|q| (0..4).map(move |k| of(16, 16, (q - k) * 16)));
        assert_eq!(cut.sum::<f64>(), of(64, 64, 0));
    }
}
