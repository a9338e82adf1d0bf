//! Runs trials on a device: operands at odd places inside larger memories full of sentinels, poisoned outputs and workspace, launches queued
//! without waiting, host structs overwritten as soon as a call has returned; afterwards every byte is looked at.

use super::num;
use super::tensor::{POISON, T, guard, guarded, unguarded};
use super::trial::{Arg, Launch, Trial, admissible, check, class_name};
use crate::ctx::Stall;
use crate::raw::{Dev, Mem, OpHandle, Raw, Stream};
use crossweave_abi as abi;
use crossweave_abi::op::{self, OpSpec};
use crossweave_abi::{Layout, Span};
use std::ffi::c_void;
use std::time::Duration;

/// A device that compiles at the first launch may take long; what hangs is ended by the limit of its case.
const PATIENCE: Duration = Duration::from_secs(600);
/// From so many launches of a trial on its stream is held back until all are enqueued.
const HELD: usize = 100;
/// Bytes of sentinels before and behind each operand.
const FENCE: usize = 256;
/// Blocks of one memory start at multiples of this.
const STEP: usize = 256;
/// Name of the device attribute by which a device declares that its arithmetic takes subnormal numbers for zero.
pub const FLUSH: &str = "flush_subnormals";

/// Where operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A memory each, at aligned offsets.
    Aligned,
    /// A memory each, at offsets that are multiples of the element only.
    Odd,
    /// All in one memory, at offsets that are multiples of the element only.
    Shared,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Aligned => "aligned operands",
            Place::Odd => "operands at offsets of whole elements",
            Place::Shared => "operands in one memory",
        }
    }
}

/// What a device made of a trial.
pub enum Answer {
    /// `op_prepare` said `UNSUPPORTED`.
    Refused(String),
    /// All that must hold holds.
    Held {
        /// The worst error as a part of its bound.
        worst: f64,
        /// The class the plan states.
        class: u64,
        /// Bits of every output of every launch.
        bits: Vec<Vec<u64>>,
    },
}

/// A piece of device memory: fence, span, fence.
struct Block {
    slot: usize,
    start: usize,
    offset: usize,
    bytes: usize,
    end: usize,
    /// Where what it holds around its elements is taken from: no two of a launch hold the same at the same place.
    salt: usize,
    image: Vec<u8>,
}

impl Block {
    fn span(&self, slots: &[Mem]) -> Span {
        slots[self.slot].span(self.offset as u64, self.bytes as u64)
    }
}

/// The address of the staging memory.
#[derive(Clone, Copy)]
struct Host(*mut u8);
// SAFETY: an address only; the memory it names goes with it, and one thread at a time has the rig.
unsafe impl Send for Host {}

/// A device with a stream, staging and memories that trials reuse.
pub struct Rig {
    dev: Dev,
    stream: Stream,
    staging: Option<(Mem, Host)>,
    slots: Vec<Mem>,
    /// A second stream, once one was needed.
    side: Option<Stream>,
    flush: bool,
    info: abi::DeviceInfo,
}

/// The struct of an op without operands, params or flags set.
pub fn descriptor(id: u32, layouts: &[Layout], params: &[u8]) -> abi::OpDesc {
    abi::OpDesc {
        size: size_of::<abi::OpDesc>() as u32,
        op: id,
        op_revision: op::revision_of(id, layouts, params),
        n_operands: layouts.len() as u32,
        operands: layouts.as_ptr(),
        params: params.as_ptr().cast::<c_void>(),
        params_bytes: params.len() as u64,
        math_flags: 0,
        reserved: 0,
    }
}

/// Layouts of a trial's operands, with the flag of those that share memory.
pub fn layouts(t: &Trial) -> Vec<Layout> {
    let shared = |i: usize| {
        t.args
            .iter()
            .enumerate()
            .any(|(k, a)| matches!(a, Arg::Alias(_, of) if *of == i || k == i))
    };
    let written = |i: usize| {
        t.launches
            .iter()
            .any(|l| l.want.iter().any(|(k, _)| *k == i))
    };
    t.args
        .iter()
        .enumerate()
        .map(|(i, a)| {
            let mut l = a.tensor().map_or(Layout::ABSENT, T::layout);
            if l.present() && shared(i) && written(i) {
                l.flags |= abi::LAYOUT_MAY_ALIAS;
            }
            l
        })
        .collect()
}

impl Rig {
    /// On an open device.
    pub fn new(dev: &Dev) -> Result<Rig, String> {
        let declared = matches!(dev.attr(FLUSH), Ok(Some(v)) if matches!(&v[..], b"1" | b"true" | b"yes" | b"on"));
        Ok(Rig {
            stream: dev.stream()?,
            info: dev.info()?,
            dev: dev.clone(),
            staging: None,
            slots: Vec::new(),
            side: None,
            flush: declared,
        })
    }

    /// Does the device declare that it flushes subnormal numbers?
    pub fn flushes(&self) -> bool {
        self.flush
    }

    /// Where operands may begin, as far as the device restricts it.
    fn unit(&self) -> usize {
        match self.info.caps & abi::CAP_ALIGNED_OPERANDS {
            0 => 1,
            _ => (self.info.align as usize).max(1),
        }
    }

    /// Does it claim determinism of every op?
    pub fn deterministic(&self) -> bool {
        self.info.caps & abi::CAP_DETERMINISTIC != 0
    }

    /// Asks for a trial's op, with further flags of the descriptor.
    pub fn prepare(&self, id: u32, t: &Trial, math: u32) -> Raw<(OpHandle, abi::OpPlan)> {
        let l = layouts(t);
        let mut d = descriptor(id, &l, &t.params);
        d.math_flags = math;
        // SAFETY: layouts and params live to the end of this function.
        unsafe { self.dev.prepare(&d) }
    }

    /// Asks with a descriptor of the caller's.
    ///
    /// # Safety
    /// Its pointers are live and hold what it states.
    pub unsafe fn ask(&self, d: &abi::OpDesc) -> Raw<(OpHandle, abi::OpPlan)> {
        // SAFETY: forwarded.
        unsafe { self.dev.prepare(d) }
    }

    /// Prepares, launches and looks at every byte.
    pub fn run(
        &mut self,
        spec: &OpSpec,
        t: &Trial,
        place: Place,
        math: u32,
    ) -> Result<Answer, String> {
        // What a device may do that says so.
        let claim = match t.subnormal {
            true => {
                "; a device that takes subnormal numbers for 0 says so by the attribute `flush_subnormals`"
            }
            false => "",
        };
        let say = |e: String| format!("{}: {e} ({}){claim}", t.what, place.name());
        let (prepared, plan) = match self.prepare(spec.id, t, math) {
            Ok(p) => p,
            Err(r) if r.unsupported() => return Ok(Answer::Refused(r.message)),
            Err(r) => return Err(say(r.to_string())),
        };
        if !admissible(spec.error, plan.error_class) {
            return Err(say(format!(
                "the plan states error class {} ({}), the op table says {}",
                plan.error_class,
                class_name(plan.error_class),
                class_name(spec.error)
            )));
        }
        if plan.tier > 2 || plan.workspace_bytes > 1 << 32 {
            return Err(say(format!(
                "the plan states tier {} and {} bytes of workspace",
                plan.tier, plan.workspace_bytes
            )));
        }
        self.launch(&prepared, t, place, plan.workspace_bytes as usize)
            .and_then(|blocks| Rig::judge(t, &blocks, plan.error_class))
            .map_err(say)
    }

    /// Uploads, launches each of the trial's launches on memories of its own, downloads. Blocks per launch: operands, then workspace.
    fn launch(
        &mut self,
        prepared: &OpHandle,
        t: &Trial,
        place: Place,
        workspace: usize,
    ) -> Result<Vec<Vec<Block>>, String> {
        let mut sets = lay_out(t, place, workspace, self.unit());
        self.make_room(&sets)?;
        self.upload(&sets)?;
        // Many are in flight at once.
        let held = (t.launches.len() >= HELD).then(|| Stall::new(&self.stream));
        let held = held.transpose()?;
        for (l, blocks) in t.launches.iter().zip(&sets) {
            self.enqueue(&self.stream, prepared, t, l, blocks)?;
        }
        held.iter().for_each(Stall::release);
        self.download(&mut sets)?;
        Ok(sets)
    }

    /// Launches one of a trial's launches on blocks that are there.
    fn enqueue(
        &self,
        stream: &Stream,
        prepared: &OpHandle,
        t: &Trial,
        l: &Launch,
        blocks: &[Block],
    ) -> Result<(), String> {
        let mut spans: Vec<Span> = (0..t.args.len())
            .map(|i| match home(&t.args, i) {
                None => Span::NULL,
                Some(h) => {
                    let mut s = blocks[h].span(&self.slots);
                    s.bytes = t.args[i].tensor().map_or(0, T::bytes) as u64;
                    s
                }
            })
            .collect();
        let scratch = blocks.get(t.args.len());
        let scratch = scratch.map_or(Span::NULL, |b| b.span(&self.slots));
        let mut dynamic = l.dynamic.clone();
        stream
            .launch(prepared, &spans, scratch, &dynamic)
            .map_err(|r| r.to_string())?;
        // R8: what was passed is the plugin's no longer.
        dynamic.fill(0xEE);
        spans.fill(Span::NULL);
        std::hint::black_box((&dynamic, &spans));
        Ok(())
    }

    /// Runs two trials on two streams at once, `rounds` times each, every launch on memories of its own: each must
    /// come to what it comes to alone. One and the same trial is prepared once. `false`: one is not claimed.
    pub fn together(
        &mut self,
        [a, b]: [(&OpSpec, &Trial); 2],
        rounds: usize,
    ) -> Result<bool, String> {
        let again = |t: &Trial| Trial {
            launches: [&t.launches[..1]].repeat(rounds).concat(),
            ..t.clone()
        };
        let trials = [again(a.1), again(b.1)];
        let mut ready = Vec::new();
        let same = std::ptr::eq(a.1, b.1);
        for (spec, t) in
            [(a.0, &trials[0]), (b.0, &trials[1])]
                .iter()
                .take(if same { 1 } else { 2 })
        {
            match self.prepare(spec.id, t, 0) {
                Ok(p) => ready.push(p),
                Err(r) if r.unsupported() => return Ok(false),
                Err(r) => return Err(format!("{}: {r}", t.what)),
            }
        }
        let op = |i: usize| if same { &ready[0] } else { &ready[i] };
        let mut sets: Vec<Vec<Block>> = Vec::new();
        for (i, t) in trials.iter().enumerate() {
            let first = sets.iter().flatten().map(|b| b.slot + 1).max().unwrap_or(0);
            let mut own = lay_out(
                t,
                Place::Aligned,
                op(i).1.workspace_bytes as usize,
                self.unit(),
            );
            own.iter_mut().flatten().for_each(|b| b.slot += first);
            sets.extend(own);
        }
        self.make_room(&sets)?;
        self.upload(&sets)?;
        self.stream.sync(Some(PATIENCE))?;
        let side = match self.side.take() {
            Some(s) => s,
            None => self.dev.stream()?,
        };
        let streams = [&self.stream, &side];
        let stalls = [Stall::new(streams[0])?, Stall::new(streams[1])?];
        for round in 0..rounds {
            for (i, t) in trials.iter().enumerate() {
                let blocks = &sets[i * rounds + round];
                self.enqueue(streams[i], &op(i).0, t, &t.launches[round], blocks)
                    .map_err(|e| format!("{}: {e}", t.what))?;
            }
        }
        stalls.iter().for_each(Stall::release);
        side.sync(Some(PATIENCE))?;
        drop(stalls);
        self.download(&mut sets)?;
        self.side = Some(side);
        for (i, t) in trials.iter().enumerate() {
            let own = &sets[i * rounds..(i + 1) * rounds];
            Rig::judge(t, own, op(i).1.error_class).map_err(|e| {
                let other = trials[1 - i].what.as_str();
                format!("{}, while {other} runs on another stream: {e}", t.what)
            })?;
        }
        Ok(true)
    }

    /// Prepares all trials, and launches each once all are prepared. `false`: one is not claimed.
    pub fn alive(&mut self, all: &[(&OpSpec, Trial)]) -> Result<bool, String> {
        let mut ready = Vec::new();
        for (spec, t) in all {
            match self.prepare(spec.id, t, 0) {
                Ok(p) => ready.push(p),
                Err(r) if r.unsupported() => return Ok(false),
                Err(r) => return Err(format!("{}, of {} alive: {r}", t.what, ready.len())),
            }
        }
        for ((_, t), (op, plan)) in all.iter().zip(&ready) {
            self.launch(op, t, Place::Aligned, plan.workspace_bytes as usize)
                .and_then(|blocks| Rig::judge(t, &blocks, plan.error_class))
                .map_err(|e| format!("{}, of {} alive: {e}", t.what, ready.len()))?;
        }
        Ok(true)
    }

    /// Prepares once and launches over the operands of one trial, then over those of the other in the same places: who
    /// keeps numbers from one launch to the next shows. `false`: not claimed.
    pub fn renewed(&mut self, spec: &OpSpec, both: [&Trial; 2]) -> Result<bool, String> {
        let (prepared, plan) = match self.prepare(spec.id, both[0], 0) {
            Ok(p) => p,
            Err(r) if r.unsupported() => return Ok(false),
            Err(r) => return Err(format!("{}: {r}", both[0].what)),
        };
        for t in both {
            let once = Trial {
                launches: t.launches[..1].to_vec(),
                ..t.clone()
            };
            self.launch(
                &prepared,
                &once,
                Place::Aligned,
                plan.workspace_bytes as usize,
            )
            .and_then(|blocks| Rig::judge(&once, &blocks, plan.error_class))
            .map_err(|e| {
                format!(
                    "{}, launched on other numbers in the same places: {e}",
                    t.what
                )
            })?;
        }
        Ok(true)
    }

    /// Launches with arguments of the caller's over a trial's operands; every byte must be as before. Answers what the launch said.
    pub fn refuses(
        &mut self,
        spec: &OpSpec,
        t: &Trial,
        change: impl FnOnce(&mut Vec<Span>, &mut Span, &mut Vec<u8>),
    ) -> Result<Raw<()>, String> {
        let (prepared, plan) = self.prepare(spec.id, t, 0).map_err(|r| r.to_string())?;
        let workspace = plan.workspace_bytes as usize;
        let mut sets = lay_out(t, Place::Aligned, workspace, self.unit());
        self.make_room(&sets)?;
        self.upload(&sets)?;
        let blocks = &sets[0];
        let mut spans: Vec<Span> = (0..t.args.len())
            .map(|i| home(&t.args, i).map_or(Span::NULL, |h| blocks[h].span(&self.slots)))
            .collect();
        let mut scratch = match workspace {
            0 => Span::NULL,
            _ => blocks[t.args.len()].span(&self.slots),
        };
        let mut dynamic = t.launches[0].dynamic.clone();
        change(&mut spans, &mut scratch, &mut dynamic);
        let said = self.stream.launch(&prepared, &spans, scratch, &dynamic);
        let before: Vec<Vec<u8>> = sets[0].iter().map(|b| b.image.clone()).collect();
        self.download(&mut sets)?;
        if said.is_err() {
            for (i, (b, was)) in sets[0].iter().zip(&before).enumerate() {
                if b.image != *was && i < t.args.len() {
                    return Err(format!(
                        "the launch was refused and operand {i} was written"
                    ));
                }
            }
        }
        Ok(said)
    }

    /// Memory for every block.
    fn make_room(&mut self, sets: &[Vec<Block>]) -> Result<(), String> {
        let blocks = || sets.iter().flatten();
        let n = blocks().map(|b| b.slot + 1).max().unwrap_or(0);
        let mut want = vec![0usize; n];
        blocks().for_each(|b| want[b.slot] = want[b.slot].max(b.end));
        for (i, bytes) in want.into_iter().enumerate() {
            let bytes = bytes.max(1 << 14).next_power_of_two() as u64;
            if i >= self.slots.len() {
                self.slots.push(self.dev.alloc(abi::MEM_DEVICE, bytes, 0)?);
            } else if self.slots[i].bytes < bytes {
                self.slots[i] = self.dev.alloc(abi::MEM_DEVICE, bytes, 0)?;
            }
        }
        let total: usize = blocks().map(|b| b.image.len()).sum();
        if self
            .staging
            .as_ref()
            .is_none_or(|(m, _)| (m.bytes as usize) < total)
        {
            let bytes = total.max(1 << 20).next_power_of_two() as u64;
            let m = self.dev.alloc(abi::MEM_HOST_PINNED, bytes, 0)?;
            let at = m.map()?;
            self.staging = Some((m, Host(at)));
        }
        Ok(())
    }

    fn upload(&self, sets: &[Vec<Block>]) -> Result<(), String> {
        let Some((m, host)) = &self.staging else {
            return Ok(());
        };
        let mut at = 0;
        for b in sets.iter().flatten() {
            let n = b.image.len();
            if n == 0 {
                continue;
            }
            // SAFETY: `make_room` has made the staging memory as long as all images together, and nothing is queued that uses it.
            unsafe { std::ptr::copy_nonoverlapping(b.image.as_ptr(), host.0.add(at), n) };
            let dst = self.slots[b.slot].span(b.start as u64, n as u64);
            self.stream.copy(dst, m.span(at as u64, n as u64))?;
            at += n;
        }
        Ok(())
    }

    fn download(&self, sets: &mut [Vec<Block>]) -> Result<(), String> {
        let Some((m, host)) = &self.staging else {
            return Ok(());
        };
        let mut at = 0;
        for b in sets.iter().flatten().filter(|b| !b.image.is_empty()) {
            let n = b.image.len() as u64;
            let src = self.slots[b.slot].span(b.start as u64, n);
            self.stream.copy(m.span(at, n), src)?;
            at += n;
        }
        self.stream.sync(Some(PATIENCE))?;
        let mut at = 0;
        for b in sets.iter_mut().flatten() {
            let n = b.image.len();
            // SAFETY: as in `upload`; the stream has finished.
            unsafe { std::ptr::copy_nonoverlapping(host.0.add(at), b.image.as_mut_ptr(), n) };
            at += n;
        }
        Ok(())
    }

    /// Outputs by their rules, everything else unchanged.
    fn judge(t: &Trial, sets: &[Vec<Block>], class: u64) -> Result<Answer, String> {
        let mut worst = 0.0f64;
        let mut bits = Vec::new();
        for (k, (l, blocks)) in t.launches.iter().zip(sets).enumerate() {
            let which = match t.launches.len() {
                1 => String::new(),
                _ => format!("launch {k}: "),
            };
            for (i, b) in blocks.iter().enumerate() {
                let body = b.offset - b.start;
                let fence = |r: std::ops::Range<usize>| {
                    let from = b.start + r.start + b.salt;
                    unguarded(&b.image[r], from)
                };
                let name = match i < t.args.len() {
                    true => format!("operand {i}"),
                    false => "the workspace".into(),
                };
                if let Some(at) = fence(0..body) {
                    return Err(format!(
                        "{which}{} bytes before {name} were written",
                        body - at
                    ));
                }
                if let Some(at) = fence(body + b.bytes..b.image.len()) {
                    return Err(format!(
                        "{which}bytes behind {name} were written, the first {at} bytes after its end"
                    ));
                }
                let Some(Arg::Own(own)) = t.args.get(i) else {
                    continue;
                };
                let memory = &b.image[body..body + b.bytes];
                // Elements may change where some output of this memory says so; gaps never.
                let n = num::size(own.dtype);
                let mut all = vec![(i, own)];
                all.extend(t.args.iter().enumerate().filter_map(|(k, a)| match a {
                    Arg::Alias(x, of) if *of == i => Some((k, x)),
                    _ => None,
                }));
                let whole = |x: &T| x.is_dense() && x.bytes() == memory.len();
                if !all.iter().any(|(_, x)| whole(x)) {
                    let mut gaps = vec![true; memory.len()];
                    for (_, x) in &all {
                        let m = num::size(x.dtype);
                        x.walk(|_, o| gaps[o * m..(o + 1) * m].fill(false));
                    }
                    let held = |p: &usize| memory[*p] == guard(b.offset + *p + b.salt);
                    if let Some(at) = (0..memory.len()).find(|p| gaps[*p] && !held(p)) {
                        return Err(format!(
                            "{which}{name}: the gap {} elements from its start was written",
                            at / n
                        ));
                    }
                }
                let rules: Vec<_> = l
                    .want
                    .iter()
                    .filter(|(w, _)| all.iter().any(|(k, _)| k == w))
                    .collect();
                if rules.is_empty() {
                    if !own.lies_in(memory) {
                        return Err(format!("{which}{name} is an input and was written"));
                    }
                    continue;
                }
                for (w, want) in rules {
                    let Some((_, x)) = all.iter().find(|(k, _)| k == w) else {
                        continue;
                    };
                    let got = x.take(memory);
                    let err = check(want, x, &got, class)
                        .map_err(|e| format!("{which}operand {w}: {e} [{}]", class_name(class)))?;
                    worst = worst.max(err);
                    bits.push(got);
                }
            }
        }
        Ok(Answer::Held { worst, class, bits })
    }
}

/// The operand whose memory operand `i` lies in.
fn home(args: &[Arg], i: usize) -> Option<usize> {
    match &args[i] {
        Arg::Absent => None,
        Arg::Own(_) => Some(i),
        Arg::Alias(_, of) => Some(*of),
    }
}

/// Where everything of a trial lies, and what it holds before the launch. Operands begin at multiples of `unit`.
fn lay_out(t: &Trial, place: Place, workspace: usize, unit: usize) -> Vec<Vec<Block>> {
    let mut next_slot = 0;
    let mut ends: Vec<usize> = Vec::new();
    let mut put = |bytes: usize, elem: usize, shift: usize| {
        let slot = match place {
            Place::Shared => 0,
            _ => next_slot,
        };
        next_slot += 1;
        if ends.len() <= slot {
            ends.resize(slot + 1, STEP);
        }
        let start = ends[slot].next_multiple_of(STEP);
        let shift = match place {
            Place::Aligned => 0,
            _ => elem * shift,
        };
        // Odd places are for devices that take operands as they are.
        let offset = match unit {
            1 => start + FENCE + shift,
            _ => (start + FENCE).next_multiple_of(unit),
        };
        let end = offset + bytes + FENCE;
        ends[slot] = end;
        // Copies of whole words, whatever the operand.
        let end = end.next_multiple_of(16);
        let salt = 2 * next_slot;
        Block {
            slot,
            start,
            offset,
            bytes,
            end,
            salt,
            image: guarded(start + salt, end - start),
        }
    };
    let mut sets = Vec::new();
    for _ in &t.launches {
        let mut blocks: Vec<Block> = Vec::new();
        for (i, a) in t.args.iter().enumerate() {
            let Arg::Own(x) = a else {
                blocks.push(Block {
                    slot: 0,
                    start: 0,
                    offset: 0,
                    bytes: 0,
                    end: 0,
                    salt: 0,
                    image: vec![],
                });
                continue;
            };
            let extra = t.args.iter().filter_map(|a| match a {
                Arg::Alias(x, of) if *of == i => Some(x.bytes()),
                _ => None,
            });
            let bytes = extra.fold(x.bytes(), usize::max);
            let mut b = put(bytes, num::size(x.dtype), 1 + 2 * (i % 3));
            let body = b.offset - b.start;
            x.put(&mut b.image[body..body + x.bytes()]);
            blocks.push(b);
        }
        if workspace > 0 {
            let mut b = put(workspace, 1, 0);
            let body = b.offset - b.start;
            b.image[body..body + workspace].fill(POISON);
            blocks.push(b);
        }
        sets.push(blocks);
    }
    sets
}

/// The row of an op of the table.
pub fn row(id: u32) -> &'static OpSpec {
    op::spec(id).unwrap_or(&op::OPS[0])
}
