//! A program as text: its memory, then its calls under the steps of the plan that they come from. A fragment is written out where it is
//! first called, with `%0`, `%1` … for its parameters and `t0` … for its temporaries; micro-batches that do the same are written once.

use crate::instr::{Call, CollectiveKind, Fragment, Instr, Member, Program, Span};
use crate::memory::{Life, MemorySpace, Place};
use crate::params::ParamBlock;
use crossweave_abi::{DType, Layout, op};
use crossweave_plan::{Lane, StepId};
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

/// A step of the plan in words, without its micro-batch and with it; what the calls of no step are for.
pub type Named<'a> = &'a dyn Fn(Option<StepId>) -> (String, String);

fn list<T>(each: impl IntoIterator<Item = T>, one: impl Fn(T) -> String) -> String {
    let all: Vec<String> = each.into_iter().map(one).collect();
    all.join(", ")
}

fn layout(l: &Layout) -> String {
    let n = l.rank as usize;
    let (shape, stride) = (&l.shape[..n], &l.stride[..n]);
    let mut dense = 1;
    let mut is_dense = true;
    for (d, s) in shape.iter().zip(stride).rev() {
        is_dense &= *d == 1 || *s == dense;
        dense *= d;
    }
    let dtype = DType::from_id(l.dtype).map_or("?", DType::name);
    let strides = match is_dense {
        true => String::new(),
        false => format!(" by {}", list(stride, i64::to_string)),
    };
    format!("{dtype}[{}{strides}]", list(shape, i64::to_string))
}

/// Writes instructions of one fragment.
struct Lines<'p> {
    program: &'p Program,
    fragment: &'p Fragment,
}

impl Lines<'_> {
    fn slot(&self, slot: u16) -> String {
        match slot.checked_sub(self.fragment.params) {
            None => format!("%{slot}"),
            Some(local) => format!("t{local}"),
        }
    }

    fn span(&self, s: &Span) -> String {
        format!("{}[{}..{}]", self.slot(s.slot), s.at, s.at + s.bytes)
    }

    fn scalars(&self, block: &ParamBlock) -> String {
        match block.patches.is_empty() {
            true => String::new(),
            false => format!(
                " with {}",
                list(&block.patches, |p| format!("s{}", p.scalar.0))
            ),
        }
    }

    fn member(&self, m: &Member) -> String {
        let kind = match m.kind {
            CollectiveKind::AllReduce => "all-reduce",
            CollectiveKind::AllReduceMax => "all-reduce of the largest",
            CollectiveKind::ReduceScatter => "reduce-scatter",
            CollectiveKind::AllGather => "all-gather",
            CollectiveKind::AllToAll => "all-to-all",
        };
        let recv = self.span(&m.recv);
        let dtype = m.dtype.name();
        match &m.send {
            Some(s) => format!("{kind} {dtype} {} to {recv}", self.span(s)),
            None => format!("{kind} {dtype} {recv}"),
        }
    }

    /// One instruction, and its lane where it has one.
    fn instr(&self, i: &Instr) -> (String, Option<Lane>) {
        match i {
            Instr::Alloc { slot, lane } => (format!("alloc {}", self.slot(*slot)), Some(*lane)),
            Instr::Free { slot } => (format!("free {}", self.slot(*slot)), None),
            Instr::Copy { lane, to, from } => {
                let text = format!("copy {} to {}", self.span(from), self.span(to));
                (text, Some(*lane))
            }
            Instr::Fill {
                lane,
                to,
                pattern,
                width,
            } => {
                let digits = 2 * *width as usize;
                let text = format!(
                    "fill {} with {pattern:#0w$x}",
                    self.span(to),
                    w = digits + 2
                );
                (text, Some(*lane))
            }
            Instr::FillScalar { lane, to, scalar } => {
                let text = format!("fill {} with s{}", self.span(to), scalar.0);
                (text, Some(*lane))
            }
            Instr::Kernel {
                lane,
                kernel,
                operands,
                dynamic,
            } => {
                let decl = &self.program.kernels[kernel.0 as usize];
                let name = op::spec(decl.op).map_or("?", |s| s.name);
                let each = operands.iter().zip(&decl.operands);
                let one = |(s, l): (&Option<Span>, &Layout)| match s {
                    Some(s) => format!("{} {}+{}", layout(l), self.slot(s.slot), s.at),
                    None => "-".into(),
                };
                let dynamic = dynamic.map(|d| &self.program.dynamics[d.0 as usize]);
                let given = dynamic.map_or(String::new(), |d| self.scalars(d));
                let fixed = self.scalars(&decl.params);
                let text = format!("{name} {}{fixed}{given}", list(each, one));
                (text, Some(*lane))
            }
            Instr::Collective {
                lane,
                group,
                traffic,
                members,
                ..
            } => {
                let group = &self.program.groups[group.0 as usize].key;
                let each = list(members, |m| self.member(m));
                (
                    format!("on {group}, {}: {each}", traffic.name()),
                    Some(*lane),
                )
            }
            Instr::Decide => ("decide".into(), None),
            Instr::Publish {
                lane,
                figure,
                from,
                to,
            } => {
                let (from, to) = (self.span(from), self.slot(*to));
                (format!("publish {figure:?} {from} to {to}"), Some(*lane))
            }
            Instr::Block { part, adds } if adds.is_empty() => (format!("block {part:?}"), None),
            Instr::Block { part, adds } => {
                let added = adds.iter().enumerate().filter(|(_, a)| **a);
                let added = list(added, |(k, _)| k.to_string());
                (format!("block {part:?}, adds to gradients [{added}]"), None)
            }
            Instr::Bring { room, what, to } => {
                let text = format!("bring {} {room} to {}", what.name(), self.span(to));
                (text, None)
            }
            Instr::Await { room } => (format!("await room {room}"), None),
            Instr::Move { lane, what } => (what.name().into(), Some(*lane)),
            Instr::Take { what, slot } => {
                let text = format!("take {} for {}", self.slot(*slot), what.name());
                (text, Some(Lane::Host))
            }
            Instr::Give { what, slot } => {
                let text = format!("give {} as {}", self.slot(*slot), what.name());
                (text, Some(Lane::Host))
            }
            Instr::Host { job, room } => {
                (format!("{} of room {room}", job.name()), Some(Lane::Host))
            }
            Instr::Mark { lane } => ("mark".into(), Some(*lane)),
        }
    }
}

/// The key by which micro-batches that do the same are found: the step without its micro-batch, and its calls.
type Part<'p> = (String, Vec<(u32, &'p [Place])>);

/// Most steps of the plan in what is written once and repeated.
const ROUND: usize = 4096;

/// Returns how often the parts from `at` on repeat: parts of one round, and rounds.
fn rounds(parts: &[usize], at: usize) -> (usize, usize) {
    let rest = &parts[at..];
    let mut best = (1, 1);
    for n in 1..=(rest.len() / 2).min(ROUND) {
        let (first, behind) = rest.split_at(n);
        if first[0] != behind[0] {
            continue;
        }
        let same = behind.chunks_exact(n).take_while(|c| *c == first);
        let count = 1 + same.count();
        if count > 1 && n * count > best.0 * best.1 {
            best = (n, count);
        }
    }
    best
}

impl Program {
    /// The header, and the calls `calls` in order. `named` gives the steps of the plan.
    pub fn text(&self, calls: Range<usize>, named: Named<'_>) -> String {
        let mut out = String::new();
        self.header(&mut out);
        let mut runs: Vec<(Option<StepId>, Range<usize>)> = vec![];
        for k in calls {
            let step = self.calls[k].step;
            match runs.last_mut() {
                Some((s, run)) if *s == step => run.end = k + 1,
                _ => runs.push((step, k..k + 1)),
            }
        }
        let args = |c: &Call| &self.args[c.args.start as usize..c.args.end as usize];
        let mut known: HashMap<Part<'_>, usize> = HashMap::new();
        let mut number = |(step, run): &(Option<StepId>, Range<usize>)| {
            let calls = self.calls[run.clone()].iter();
            let part = (
                named(*step).0,
                calls.map(|c| (c.fragment.0, args(c))).collect(),
            );
            let next = known.len();
            *known.entry(part).or_insert(next)
        };
        let parts: Vec<usize> = runs.iter().map(&mut number).collect();
        let mut written = vec![false; self.fragments.len()];
        let mut at = 0;
        while at < parts.len() {
            let (n, count) = rounds(&parts, at);
            for (step, run) in &runs[at..at + n] {
                let _ = writeln!(out, "{}", named(*step).1);
                for call in &self.calls[run.clone()] {
                    self.call(&mut out, call, args(call), &mut written);
                }
            }
            if count > 1 {
                let last = named(runs[at + n * count - 1].0).1;
                let steps = if n == 1 { "step" } else { "steps" };
                let _ = writeln!(out, "… {n} {steps} {} more times, up to {last}", count - 1);
            }
            at += n * count;
        }
        out
    }

    fn header(&self, out: &mut String) {
        for (k, m) in self.memory.iter().enumerate() {
            let home = match m.home {
                MemorySpace::Device => "device",
                MemorySpace::Pinned => "pinned",
            };
            let life = match m.life {
                Life::Always { turns: 1 } => "always".into(),
                Life::Always { turns } => format!("always, {turns} in turn"),
                Life::Transient => "transient".into(),
                Life::Slot => "in a slot".into(),
            };
            let (dtype, tag) = (m.dtype.name(), m.tag.name());
            let _ = writeln!(
                out,
                "memory {k} {}: {} bytes of {dtype}, {tag}, {home}, {life}",
                m.name, m.bytes
            );
        }
        for g in &self.groups {
            let _ = writeln!(out, "group {}: rank {} of {}", g.key, g.index, g.size());
        }
        for (k, s) in self.scalars.0.iter().enumerate() {
            let _ = writeln!(out, "scalar s{k}: {}", s.text());
        }
    }

    fn call(&self, out: &mut String, call: &Call, args: &[Place], written: &mut [bool]) {
        let f = &self.fragments[call.fragment.0 as usize];
        let arg = |p: &Place| {
            let name = &self.memory[p.mem.index()].name;
            match p.at {
                0 => name.clone(),
                at => format!("{name}+{at}"),
            }
        };
        let id = call.fragment.0;
        let _ = writeln!(out, "  {} #{id}({})", f.name, list(args, arg));
        if std::mem::replace(&mut written[id as usize], true) {
            return;
        }
        let lines = Lines {
            program: self,
            fragment: f,
        };
        for (k, local) in f.locals.iter().enumerate() {
            let tag = local.tag.name();
            let _ = writeln!(out, "    t{k}: {} bytes, {tag}", local.bytes);
        }
        for i in &f.code {
            let (text, lane) = lines.instr(i);
            let lane = lane.map_or("", Lane::name);
            let _ = writeln!(out, "    {lane:>8}  {text}");
        }
    }
}
