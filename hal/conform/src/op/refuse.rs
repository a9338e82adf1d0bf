//! What must be refused, and leave everything as it was: ids, revisions, flags, kinds, dtypes and struct tails nobody knows, layouts that are
//! none, operands that do not fit, launches that are not those prepared. Each rule is asked of every op that the plugin claims.

use super::cell::{Cell, Gen};
use super::rig::{Rig, descriptor, layouts};
use super::tensor::T;
use super::trial::{Arg, Trial};
use crate::case::{Check, pass_with, refused};
use crate::raw::{OpHandle, Raw};
use crossweave_abi as abi;
use crossweave_abi::op::{self, OpSpec};
use crossweave_abi::{DType, Layout, Span};

/// A rule and the question it asks.
pub struct Rule {
    /// The end of its id.
    pub name: &'static str,
    ask: fn(&mut Rig, &OpSpec, &Trial) -> Result<(), String>,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "revision",
        ask: revision,
    },
    Rule {
        name: "flags",
        ask: flags,
    },
    Rule {
        name: "kind",
        ask: kind,
    },
    Rule {
        name: "params_tail",
        ask: params_tail,
    },
    Rule {
        name: "desc_tail",
        ask: desc_tail,
    },
    Rule {
        name: "dtype",
        ask: dtype,
    },
    Rule {
        name: "rank",
        ask: rank,
    },
    Rule {
        name: "negative",
        ask: negative,
    },
    Rule {
        name: "overlapping_output",
        ask: overlapping,
    },
    Rule {
        name: "shape",
        ask: shape,
    },
    Rule {
        name: "operands",
        ask: operands,
    },
    Rule {
        name: "launch_operands",
        ask: launch_operands,
    },
    Rule {
        name: "launch_short_span",
        ask: launch_short_span,
    },
    Rule {
        name: "launch_workspace",
        ask: launch_workspace,
    },
    Rule {
        name: "launch_dyn_tail",
        ask: launch_dyn_tail,
    },
];

/// Ids that are no op of the table.
pub fn unknown_id(rig: &Rig) -> Check {
    let l = [T::poison(DType::F32, &[4]).layout(); 2];
    let mut id = 0u32;
    let known = |id: u32| op::spec(id).is_some();
    let mut ids = vec![0, 0x7FFF, 0x8000_0000, u32::MAX];
    for s in op::OPS {
        // The neighbours of known ids.
        ids.extend([s.id + 1, s.id | 0x1000]);
    }
    for ask in ids {
        if known(ask) {
            continue;
        }
        id = ask;
        let d = descriptor(ask, &l, &[]);
        // SAFETY: layouts live for the call; there are no params.
        must_refuse(unsafe { rig.ask(&d) }, true).map_err(|e| format!("op id {ask:#x}: {e}"))?;
    }
    pass_with(format!("up to {id:#x}"))
}

/// Asks a rule of every claimed op, each by one trial.
pub fn judge(rule: &Rule, claimed: &[(&'static OpSpec, Trial)], rig: &mut Rig) -> Check {
    let mut wrong = Vec::new();
    for (spec, t) in claimed {
        if let Err(e) = (rule.ask)(rig, spec, t) {
            wrong.push(format!("{}: {e}", spec.name));
        }
    }
    match (claimed.len(), wrong.is_empty()) {
        (0, _) => refused("no op is claimed"),
        (n, true) => pass_with(format!("{n} ops")),
        (n, _) => Err(format!("{} of {n} ops: {}", wrong.len(), wrong.join("; "))),
    }
}

/// Every op of the table that is claimed, with a trial that is.
pub fn claimed(cells: &[Cell], rig: &Rig, g: &mut Gen) -> Vec<(&'static OpSpec, Trial)> {
    op::OPS
        .iter()
        .filter_map(|s| Some((s, representative(s, cells, rig, g)?)))
        .collect()
}

/// A claimed trial of the op whose operands are all there and have elements.
fn representative(spec: &OpSpec, cells: &[Cell], rig: &Rig, g: &mut Gen) -> Option<Trial> {
    let fits = |t: &Trial| {
        !t.subnormal
            && t.args.iter().all(|a| match a {
                Arg::Absent => true,
                Arg::Own(t) => t.bits.len() > 1 || t.shape.len() <= 1 && !t.bits.is_empty(),
                Arg::Alias(..) => false,
            })
            && t.args
                .iter()
                .filter_map(Arg::tensor)
                .any(|t| t.bits.len() > 1)
    };
    for c in cells.iter().filter(|c| c.op == spec.id) {
        for t in c.trials(g).into_iter().filter(fits) {
            if rig.prepare(spec.id, &t, 0).is_ok() {
                return Some(t);
            }
        }
    }
    None
}

/// A refusal; `UNSUPPORTED` where the contract says so.
fn must_refuse(said: Raw<(OpHandle, abi::OpPlan)>, unsupported: bool) -> Result<(), String> {
    match said {
        Ok(_) => Err("claimed".into()),
        Err(r) if r.unsupported() || !unsupported && r.status == abi::E_INVALID => Ok(()),
        Err(r) => Err(format!(
            "refused by {r}, not as UNSUPPORTED{}",
            if unsupported { "" } else { " or INVALID" }
        )),
    }
}

/// Asks for the trial with its descriptor, layouts or params changed.
fn changed(
    rig: &Rig,
    spec: &OpSpec,
    t: &Trial,
    unsupported: bool,
    change: impl FnOnce(&mut abi::OpDesc, &mut Vec<Layout>, &mut Vec<u8>),
) -> Result<(), String> {
    must_refuse(asked(rig, spec, t, change), unsupported)
}

fn asked(
    rig: &Rig,
    spec: &OpSpec,
    t: &Trial,
    change: impl FnOnce(&mut abi::OpDesc, &mut Vec<Layout>, &mut Vec<u8>),
) -> Raw<(OpHandle, abi::OpPlan)> {
    let (mut l, mut p) = (layouts(t), t.params.clone());
    let mut d = descriptor(spec.id, &l, &p);
    change(&mut d, &mut l, &mut p);
    d.operands = l.as_ptr();
    d.n_operands = l.len() as u32;
    d.params = p.as_ptr().cast();
    d.params_bytes = p.len() as u64;
    // SAFETY: layouts and params live to the end of this function.
    unsafe { rig.ask(&d) }
}

fn revision(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    for r in [spec.revision + 1, u32::MAX] {
        changed(rig, spec, t, true, |d, _, _| d.op_revision = r)
            .map_err(|e| format!("revision {r} {e}"))?;
    }
    Ok(())
}

/// Offset of a field of the op's params struct.
fn field(spec: &OpSpec, name: &str) -> Option<usize> {
    let fields = match spec.params {
        "NoParams" => op::NoParams::FIELDS,
        "FillParams" => op::FillParams::FIELDS,
        "IotaParams" => op::IotaParams::FIELDS,
        "KindParams" => op::KindParams::FIELDS,
        "AxpbyParams" => op::AxpbyParams::FIELDS,
        "ClampParams" => op::ClampParams::FIELDS,
        "ReduceParams" => op::ReduceParams::FIELDS,
        "DimParams" => op::DimParams::FIELDS,
        "MatmulParams" => op::MatmulParams::FIELDS,
        "GroupedParams" => op::GroupedParams::FIELDS,
        "IndexParams" => op::IndexParams::FIELDS,
        "PhiloxParams" => op::PhiloxParams::FIELDS,
        "NormParams" => op::NormParams::FIELDS,
        "XentParams" => op::XentParams::FIELDS,
        "AttentionParams" => op::AttentionParams::FIELDS,
        "RopeParams" => op::RopeParams::FIELDS,
        "AdamwParams" => op::AdamwParams::FIELDS,
        "DropoutParams" => op::DropoutParams::FIELDS,
        "ProgramParams" => return (name == "flags").then_some(12),
        _ => return None,
    };
    fields.iter().find(|f| f.0 == name).map(|f| f.2)
}

fn put(p: &mut [u8], at: usize, v: u32) {
    p[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

fn flags(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    let Some(at) = field(spec, "flags") else {
        return Ok(());
    };
    let old = u32::from_le_bytes([
        t.params[at],
        t.params[at + 1],
        t.params[at + 2],
        t.params[at + 3],
    ]);
    for bit in [12, 31] {
        changed(rig, spec, t, true, |_, _, p| put(p, at, old | 1 << bit))
            .map_err(|e| format!("with flag bit {bit} {e}"))?;
    }
    Ok(())
}

fn kind(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    // The kind of `sort_pairs`, `topk` and `cumsum` has no meaning to be unknown in.
    if matches!(spec.id, op::SORT_PAIRS | op::TOPK | op::CUMSUM) {
        return Ok(());
    }
    let Some(at) = field(spec, "kind") else {
        return Ok(());
    };
    for k in [77, u32::MAX] {
        changed(rig, spec, t, true, |_, _, p| put(p, at, k))
            .map_err(|e| format!("kind {k} {e}"))?;
    }
    Ok(())
}

/// R1: zeros behind what is known are nothing, anything else is refused.
fn params_tail(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    let longer = |tail: u8| {
        move |_: &mut abi::OpDesc, _: &mut Vec<Layout>, p: &mut Vec<u8>| {
            p.extend([0; 12]);
            p.extend([tail, 0, 0, 0]);
            let n = p.len() as u32;
            put(p, 0, n);
        }
    };
    changed(rig, spec, t, true, longer(1))
        .map_err(|e| format!("params with an unknown field set {e}"))?;
    asked(rig, spec, t, longer(0))
        .map(|_| ())
        .map_err(|r| format!("params with zeros behind were refused: {r}"))
}

fn desc_tail(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    #[repr(C)]
    struct Longer {
        known: abi::OpDesc,
        tail: [u64; 2],
    }
    for (tail, fine) in [(1, false), (0, true)] {
        let l = layouts(t);
        let mut d = Longer {
            known: descriptor(spec.id, &l, &t.params),
            tail: [0, tail],
        };
        d.known.size = size_of::<Longer>() as u32;
        // SAFETY: layouts and params live for the call, and the descriptor is as long as it says.
        let said = unsafe { rig.ask(&*std::ptr::from_ref(&d).cast::<abi::OpDesc>()) };
        std::hint::black_box(&d.tail);
        match fine {
            false => must_refuse(said, true)
                .map_err(|e| format!("a descriptor with an unknown field set {e}"))?,
            true => said
                .map(|_| ())
                .map_err(|r| format!("a descriptor with zeros behind was refused: {r}"))?,
        }
    }
    Ok(())
}

fn there(l: &[Layout]) -> impl Iterator<Item = usize> + '_ {
    (0..l.len()).filter(|i| l[*i].present())
}

fn dtype(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    for i in there(&layouts(t)) {
        changed(rig, spec, t, true, |_, l, _| l[i].dtype = 0x7F20)
            .map_err(|e| format!("operand {i} of an unknown dtype {e}"))?;
    }
    Ok(())
}

fn rank(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    for i in there(&layouts(t)) {
        for r in [9, u32::MAX] {
            changed(rig, spec, t, false, |_, l, _| l[i].rank = r)
                .map_err(|e| format!("operand {i} of rank {r} {e}"))?;
        }
    }
    Ok(())
}

fn negative(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    let ls = layouts(t);
    for i in there(&ls) {
        // A dim of one element never moves, so only longer ones say anything.
        let Some(d) = (0..ls[i].rank as usize).find(|d| ls[i].shape[*d] > 1) else {
            continue;
        };
        changed(rig, spec, t, false, |_, l, _| l[i].shape[d] = -1)
            .map_err(|e| format!("operand {i} of size -1 {e}"))?;
        let backwards = |_: &mut abi::OpDesc, l: &mut Vec<Layout>, _: &mut Vec<u8>| {
            l[i].stride[d] = -l[i].stride[d].max(1);
            l[i].flags = 0;
        };
        changed(rig, spec, t, false, backwards)
            .map_err(|e| format!("operand {i} with a negative stride {e}"))?;
    }
    Ok(())
}

/// Operands some launch writes.
fn written(t: &Trial) -> Vec<usize> {
    t.launches[0].want.iter().map(|(i, _)| *i).collect()
}

fn overlapping(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    let ls = layouts(t);
    for i in written(t) {
        for d in (0..ls[i].rank as usize).filter(|d| ls[i].shape[*d] > 1) {
            let zero = |_: &mut abi::OpDesc, l: &mut Vec<Layout>, _: &mut Vec<u8>| {
                l[i].stride[d] = 0;
                l[i].flags = 0;
            };
            changed(rig, spec, t, false, zero)
                .map_err(|e| format!("output {i} with stride 0 in dim {d} {e}"))?;
        }
    }
    Ok(())
}

fn shape(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    // Where sizes are free there is nothing that does not fit.
    if matches!(
        spec.id,
        op::FILL_STRIDED
            | op::IOTA
            | op::PHILOX
            | op::HISTOGRAM
            | op::NONFINITE_COUNT
            | op::MULTI_SUMSQ
            | op::MULTI_SCALE
    ) {
        return Ok(());
    }
    let ls = layouts(t);
    for i in written(t) {
        let Some(d) = ls[i].rank.checked_sub(1).map(|d| d as usize) else {
            continue;
        };
        let longer = |_: &mut abi::OpDesc, l: &mut Vec<Layout>, _: &mut Vec<u8>| {
            let shape: Vec<u64> = (0..=d)
                .map(|k| l[i].shape[k] as u64 + u64::from(k == d))
                .collect();
            if let Some(t) = DType::from_id(l[i].dtype) {
                l[i] = Layout::contiguous(t, &shape);
            }
        };
        changed(rig, spec, t, false, longer)
            .map_err(|e| format!("output {i} one element longer than the rest {e}"))?;
    }
    Ok(())
}

fn operands(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    changed(rig, spec, t, false, |_, l, _| l.clear()).map_err(|e| format!("no operands {e}"))?;
    let open = spec.operands.iter().any(|o| o.contains('*'));
    if !open {
        changed(rig, spec, t, false, |_, l, _| {
            l.extend([Layout::contiguous(DType::F32, &[1]); 9])
        })
        .map_err(|e| format!("nine operands too many {e}"))?;
    }
    for (i, o) in spec.operands.iter().enumerate().take(t.args.len()) {
        let optional = o
            .split(' ')
            .next()
            .is_some_and(|m| m.ends_with('?') || m.ends_with("?*"));
        if optional || o.contains('*') || matches!(t.args[i], Arg::Absent) {
            continue;
        }
        changed(rig, spec, t, false, |_, l, _| l[i] = Layout::ABSENT)
            .map_err(|e| format!("operand {i} absent {e}"))?;
    }
    Ok(())
}

/// A launch that must be refused and write nothing.
fn no_launch(
    rig: &mut Rig,
    spec: &OpSpec,
    t: &Trial,
    what: &str,
    unsupported: bool,
    change: impl FnOnce(&mut Vec<Span>, &mut Span, &mut Vec<u8>),
) -> Result<(), String> {
    match rig.refuses(spec, t, change)? {
        Ok(()) => Err(format!("{what}: the launch was accepted")),
        Err(r) if r.unsupported() || !unsupported && r.status == abi::E_INVALID => Ok(()),
        Err(r) => Err(format!("{what}: {r}")),
    }
}

fn launch_operands(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    no_launch(
        rig,
        spec,
        t,
        "one operand less than prepared",
        false,
        |s, _, _| {
            s.pop();
        },
    )?;
    no_launch(
        rig,
        spec,
        t,
        "one operand more than prepared",
        false,
        |s, _, _| s.push(Span::NULL),
    )?;
    let first = written(t)[0];
    no_launch(rig, spec, t, "an output missing", false, |s, _, _| {
        s[first] = Span::NULL
    })
}

fn launch_short_span(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    for (i, a) in t.args.iter().enumerate() {
        let bytes = a.tensor().map_or(0, T::bytes) as u64;
        if bytes > 1 {
            let what = format!("operand {i} of {} bytes instead of {bytes}", bytes - 1);
            no_launch(rig, spec, t, &what, false, |s, _, _| s[i].bytes -= 1)?;
        }
    }
    Ok(())
}

fn launch_workspace(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    let (_, plan) = rig.prepare(spec.id, t, 0).map_err(|r| r.to_string())?;
    if plan.workspace_bytes == 0 {
        return Ok(());
    }
    no_launch(rig, spec, t, "no workspace", false, |_, w, _| {
        *w = Span::NULL
    })?;
    no_launch(
        rig,
        spec,
        t,
        "a workspace one byte short",
        false,
        |_, w, _| w.bytes -= 1,
    )
}

fn launch_dyn_tail(rig: &mut Rig, spec: &OpSpec, t: &Trial) -> Result<(), String> {
    if spec.dynamic.is_empty() || t.launches[0].dynamic.is_empty() {
        return Ok(());
    }
    no_launch(
        rig,
        spec,
        t,
        "a dyn struct with an unknown field set",
        true,
        |_, _, d| {
            d.extend([0; 7]);
            d.push(1);
            let n = d.len() as u32;
            put(d, 0, n);
        },
    )
}
