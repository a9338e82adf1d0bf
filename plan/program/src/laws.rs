//! The laws of a program: what holds of its instructions whatever they compute. A lowering that breaks one is refused before any memory
//! is taken; tests break each of them and expect its name.

use crate::instr::{
    Brought, Call, CollectiveKind, Fragment, HostJob, HostMemory, Instr, Member, Program, Span,
};
use crate::memory::{Life, MemId};
use crate::params::ParamBlock;
use crate::scalar::{Scalar, ScalarId};
use crossweave_abi::op::{self, ProgramInst, ProgramParams, inst};
use crossweave_axes::Group;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::offset_of;
use std::ops::Range;

/// The law that a program breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Law {
    /// Memory is allocated when it is not there, and freed when it is.
    AllocOnce,
    /// Memory is there when it is used.
    Alive,
    /// Every part used of a piece of memory lies in it.
    Bounds,
    /// Memory is read behind what writes it. A block is taken to write all of the memory it is given.
    Written,
    /// Step scalars are read behind `Decide`.
    Decided,
    /// By the end transient memory is freed, and the host's thread has used what it was given and written to its file what it has
    /// read from it and updated.
    Consumed,
    /// The host's thread updates a state behind its gradient and the words of the step, and writes to a file what it has read and
    /// updated.
    HostOrder,
    /// A collective receives as much as the ranks of its group send.
    Sizes,
    /// Every rank of a group makes the same collectives on it in the same order.
    SameCollectives,
}

/// A broken law. `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramError {
    /// The law that is broken.
    pub law: Law,
    /// The place, and the fault.
    pub message: String,
}

impl fmt::Display for ProgramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (law {:?})", self.message, self.law)
    }
}

impl std::error::Error for ProgramError {}

type Checked<T> = Result<T, ProgramError>;

/// Bytes that have been written: ranges in order that do not touch.
#[derive(Clone, Debug, Default)]
struct Written(Vec<Range<u64>>);

impl Written {
    fn add(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end < new.start);
        let last = first + self.0[first..].partition_point(|r| r.start <= new.end);
        let met = &self.0[first..last];
        let start = met.first().map_or(new.start, |r| r.start.min(new.start));
        let end = met.last().map_or(new.end, |r| r.end.max(new.end));
        self.0.splice(first..last, std::iter::once(start..end));
    }
    fn has(&self, wanted: &Range<u64>) -> bool {
        let k = self.0.partition_point(|r| r.end < wanted.end);
        wanted.is_empty() || self.0.get(k).is_some_and(|r| r.start <= wanted.start)
    }
}

/// The operands of a kernel that are read and those that are written, by bits.
#[derive(Clone, Copy, Default)]
struct Uses {
    reads: u32,
    writes: u32,
}

impl Uses {
    /// Operand `k`'s bit; behind the last bit are those of a long list, which may be read and written.
    fn of(mask: u32, k: usize) -> bool {
        k >= 32 || mask >> k & 1 == 1
    }
}

/// The operands of an elementwise program: those it names as written, and those that it reads before it has written them.
fn of_elementwise(params: &ParamBlock) -> Uses {
    let word = |at: usize| {
        let bytes = params.bytes.get(at..at + 4);
        bytes.map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    };
    let mut uses = Uses {
        reads: 0,
        writes: word(offset_of!(ProgramParams, writes)),
    };
    let mut made = 0u32;
    for k in 0..word(offset_of!(ProgramParams, n_insts)) as usize {
        let at = offset_of!(ProgramParams, insts) + k * size_of::<ProgramInst>();
        let field = |f: usize| word(at + f);
        let sources = match field(offset_of!(ProgramInst, op)) {
            inst::CONST | inst::SCALAR => 0,
            inst::ADD | inst::SUB | inst::MUL | inst::DIV | inst::MAX | inst::MIN | inst::LT => 2,
            inst::FMA | inst::SELECT => 3,
            _ => 1,
        };
        let fields = [
            offset_of!(ProgramInst, a),
            offset_of!(ProgramInst, b),
            offset_of!(ProgramInst, c),
        ];
        for f in &fields[..sources] {
            uses.reads |= 1u32.checked_shl(field(*f)).unwrap_or(0) & !made;
        }
        made |= 1u32
            .checked_shl(field(offset_of!(ProgramInst, dst)))
            .unwrap_or(0);
    }
    uses
}

/// The operands of a kernel by the op table.
fn uses(op_id: u32, params: &ParamBlock, operands: usize) -> Uses {
    if op_id == op::ELEMENTWISE_PROGRAM {
        return of_elementwise(params);
    }
    let Some(spec) = op::spec(op_id) else {
        return Uses::default();
    };
    let mut uses = Uses::default();
    for k in 0..operands.min(32) {
        // Where the table does not say, it may be either.
        let o = spec.operand(k);
        uses.reads |= u32::from(o.is_none_or(op::Operand::is_read)) << k;
        uses.writes |= u32::from(o.is_none_or(op::Operand::is_written)) << k;
    }
    // Whether the first operand is added to or overwritten is a parameter of these.
    if let Some(adds) = adds(op_id, &params.bytes) {
        uses.reads = uses.reads & !1 | u32::from(adds);
    }
    uses
}

/// Returns true if an op that may add to its result does so; none where the table says it all.
fn adds(op_id: u32, params: &[u8]) -> Option<bool> {
    let flag = |at: usize| {
        let flags = params.get(at..at + 4)?;
        let flags = u32::from_ne_bytes([flags[0], flags[1], flags[2], flags[3]]);
        Some(flags & op::FLAG_ACCUM != 0)
    };
    match op_id {
        op::MATMUL => flag(offset_of!(op::MatmulParams, flags)),
        op::REDUCE => flag(offset_of!(op::ReduceParams, flags)),
        op::AXPBY => {
            let at = offset_of!(op::AxpbyParams, beta);
            let beta = params.get(at..at + 8)?.try_into().ok()?;
            Some(f64::from_ne_bytes(beta) != 0.0)
        }
        _ => None,
    }
}

/// Returns the memory that the host has complete when it has been given this: gradients of micro-batches are a gradient when the last is
/// there.
fn complete(what: HostMemory) -> HostMemory {
    match what {
        HostMemory::Part(room) | HostMemory::Last(room) => HostMemory::Grad(room),
        other => other,
    }
}

/// A walk over the calls of a program.
struct Walk<'p> {
    program: &'p Program,
    /// The parts written of each piece of memory, while it is there.
    memory: Vec<Option<Written>>,
    /// The same of the running fragment's own.
    locals: Vec<Option<Written>>,
    decided: bool,
    /// The memory that the host's thread was given, and the jobs that it has done on the state of each gradient.
    given: BTreeMap<HostMemory, Vec<HostJob>>,
    at: (&'p Call, &'p Fragment, usize),
}

impl<'p> Walk<'p> {
    fn broken<T>(&self, law: Law, what: impl fmt::Display) -> Checked<T> {
        let (call, f, i) = self.at;
        let step = match call.step {
            Some(s) => format!("plan step {}", s.0),
            None => "outside the plan".into(),
        };
        Err(ProgramError {
            law,
            message: format!("{step}, {}, instruction {i}: {what}", f.name),
        })
    }

    /// A slot's memory and the byte where the slot begins; an index of the fragment's own.
    fn place(&self, slot: u16) -> Result<(MemId, u64), usize> {
        let (call, f, _) = self.at;
        match slot.checked_sub(f.params) {
            None => {
                let place = self.program.args[(call.args.start + u32::from(slot)) as usize];
                Ok((place.mem, place.at))
            }
            Some(local) => Err(usize::from(local)),
        }
    }

    fn name(&self, slot: u16) -> String {
        match self.place(slot) {
            Ok((mem, _)) => self.program.memory[mem.index()].name.clone(),
            Err(local) => format!("temporary {local}"),
        }
    }

    fn held(&mut self, slot: u16) -> &mut Option<Written> {
        match self.place(slot) {
            Ok((mem, _)) => &mut self.memory[mem.index()],
            Err(local) => &mut self.locals[local],
        }
    }

    /// The bytes of a span in its memory, which must be there and have them.
    fn bytes(&mut self, s: &Span) -> Checked<Range<u64>> {
        let (first, room) = match self.place(s.slot) {
            Ok((mem, at)) => (at, self.program.memory[mem.index()].bytes),
            Err(local) => (0, self.at.1.locals[local].bytes),
        };
        let bytes = first + s.at..first + s.at + s.bytes;
        if self.held(s.slot).is_none() {
            let name = self.name(s.slot);
            return self.broken(Law::Alive, format!("{name} is used while it is not there"));
        }
        if bytes.end > room {
            let name = self.name(s.slot);
            return self.broken(Law::Bounds, format!("{bytes:?} of {name}, of {room} bytes"));
        }
        Ok(bytes)
    }

    fn reads(&mut self, s: &Span) -> Checked<()> {
        let bytes = self.bytes(s)?;
        if self.held(s.slot).as_ref().is_some_and(|w| w.has(&bytes)) {
            return Ok(());
        }
        let name = self.name(s.slot);
        self.broken(
            Law::Written,
            format!("bytes {bytes:?} of {name} are read and nothing has written them"),
        )
    }

    fn writes(&mut self, s: &Span) -> Checked<()> {
        let bytes = self.bytes(s)?;
        if let Some(w) = self.held(s.slot) {
            w.add(bytes);
        }
        Ok(())
    }

    /// A number that the host decides for each step is read.
    fn scalar(&self, s: ScalarId) -> Checked<()> {
        let all = &self.program.scalars.0;
        let of = &all[s.0 as usize];
        match of {
            Scalar::Given(_) if !self.decided => self.broken(
                Law::Decided,
                format!("step scalar {} is read before it is decided", s.0),
            ),
            _ => of.parts().try_for_each(|part| self.scalar(part)),
        }
    }

    fn params(&self, block: &ParamBlock) -> Checked<()> {
        block.patches.iter().try_for_each(|p| self.scalar(p.scalar))
    }

    fn member(&mut self, m: &Member, ranks: u64) -> Checked<()> {
        let send = m.send.as_ref().unwrap_or(&m.recv);
        self.reads(send)?;
        let (sent, received) = (send.bytes, m.recv.bytes);
        let fits = match m.kind {
            CollectiveKind::AllReduce | CollectiveKind::AllReduceMax => sent == received,
            CollectiveKind::AllToAll => sent == received && sent % ranks == 0,
            CollectiveKind::AllGather => sent * ranks == received,
            CollectiveKind::ReduceScatter => sent == received * ranks,
        };
        if !fits {
            let what = format!("{:?} of {ranks} ranks: {sent} bytes to {received}", m.kind);
            return self.broken(Law::Sizes, what);
        }
        self.writes(&m.recv)
    }

    /// All of the memory of a parameter.
    fn whole(&self, slot: u16) -> Span {
        let bytes = match self.place(slot) {
            Ok((mem, _)) => self.program.memory[mem.index()].bytes,
            Err(_) => 0,
        };
        Span { slot, at: 0, bytes }
    }

    /// The host's thread is given something to do: it updates a state behind its gradient and the words of the step; one that rests
    /// in a file it has read before, and writes behind.
    fn host(&mut self, job: HostJob, room: u32) -> Checked<()> {
        use HostJob::{StateIn, StateOut, Update};
        let words = self.given.contains_key(&HostMemory::Words);
        let Some(done) = self.given.get_mut(&HostMemory::Grad(room)) else {
            let what = format!("{} of room {room}, without its gradient", job.name());
            return self.broken(Law::HostOrder, what);
        };
        let why = match (job, &done[..]) {
            (StateIn, []) | (StateOut, [StateIn, Update]) => None,
            (Update, [] | [StateIn]) if words => None,
            (Update, [] | [StateIn]) => Some("without the words of the step".to_string()),
            (_, []) => Some("before its update".to_string()),
            (_, [.., last]) => Some(format!("behind: {}", last.name())),
        };
        done.push(job);
        match why {
            None => Ok(()),
            Some(why) => {
                let what = format!("{} of room {room}, {why}", job.name());
                self.broken(Law::HostOrder, what)
            }
        }
    }

    /// The host's thread is given memory that is filled. Behind the last micro-batch it has the gradient.
    fn give(&mut self, what: HostMemory, slot: u16) -> Checked<()> {
        self.reads(&self.whole(slot))?;
        *self.held(slot) = None;
        let now = match what {
            HostMemory::Last(room) => {
                self.given.remove(&HostMemory::Part(room));
                complete(what)
            }
            other => other,
        };
        self.given.insert(now, vec![]);
        Ok(())
    }

    fn instr(&mut self, i: &'p Instr) -> Checked<()> {
        match i {
            Instr::Alloc { slot, .. } => {
                if self.held(*slot).replace(Written::default()).is_some() {
                    let name = self.name(*slot);
                    return self.broken(Law::AllocOnce, format!("{name} is there already"));
                }
            }
            Instr::Free { slot } => {
                let life = self
                    .place(*slot)
                    .map(|(m, _)| self.program.memory[m.index()].life);
                let stays = matches!(life, Ok(Life::Always { .. }));
                if stays || self.held(*slot).take().is_none() {
                    let name = self.name(*slot);
                    let why = if stays { "stays" } else { "is not there" };
                    return self.broken(Law::AllocOnce, format!("{name} is freed and {why}"));
                }
            }
            Instr::Copy { to, from, .. } => {
                self.reads(from)?;
                self.writes(to)?;
            }
            Instr::Fill { to, .. } => self.writes(to)?,
            Instr::Bring { room, what, to } => {
                let figures = *what != Brought::Params;
                if figures && !self.given.contains_key(&HostMemory::Grad(*room)) {
                    let what = format!("{} {room}, whose gradient is not complete", what.name());
                    return self.broken(Law::HostOrder, what);
                }
                self.writes(to)?;
            }
            Instr::FillScalar { to, scalar, .. } => {
                self.scalar(*scalar)?;
                self.writes(to)?;
            }
            Instr::Kernel {
                kernel,
                operands,
                dynamic,
                ..
            } => {
                let decl = &self.program.kernels[kernel.0 as usize];
                self.params(&decl.params)?;
                if let Some(d) = dynamic {
                    self.params(&self.program.dynamics[d.0 as usize])?;
                }
                let uses = uses(decl.op, &decl.params, operands.len());
                let each = || operands.iter().enumerate();
                for (k, s) in each() {
                    if let (Some(s), true) = (s, Uses::of(uses.reads, k)) {
                        self.reads(s)?;
                    }
                }
                for (k, s) in each() {
                    if let (Some(s), true) = (s, Uses::of(uses.writes, k)) {
                        self.writes(s)?;
                    }
                }
            }
            Instr::Collective { group, members, .. } => {
                let ranks = self.program.groups[group.0 as usize].ranks.len() as u64;
                members.iter().try_for_each(|m| self.member(m, ranks))?;
            }
            Instr::Publish { from, to, .. } => {
                self.reads(from)?;
                let to = Span {
                    slot: *to,
                    at: 0,
                    bytes: from.bytes,
                };
                self.writes(&to)?;
            }
            Instr::Decide => self.decided = true,
            Instr::Block { .. } => {
                for slot in 0..self.at.1.params {
                    self.writes(&self.whole(slot))?;
                }
            }
            Instr::Take { what, slot } => {
                if self.held(*slot).replace(Written::default()).is_some() {
                    let name = self.name(*slot);
                    return self.broken(Law::AllocOnce, format!("{name} is there already"));
                }
                if self.given.contains_key(&complete(*what)) {
                    let what = format!("{} is with the host already", complete(*what).name());
                    return self.broken(Law::HostOrder, what);
                }
            }
            Instr::Give { what, slot } => self.give(*what, *slot)?,
            Instr::Host { job, room } => self.host(*job, *room)?,
            Instr::Await { .. } | Instr::Move { .. } | Instr::Mark { .. } => {}
        }
        Ok(())
    }
}

/// Holds some calls of a program, run in order from where no transient memory is, against every law of one rank.
///
/// # Errors
/// The first that is broken.
pub fn check(program: &Program, calls: Range<usize>) -> Checked<()> {
    let Some(first) = program.calls.get(calls.start).filter(|_| !calls.is_empty()) else {
        return Ok(());
    };
    let whole = |m: &crate::memory::MemoryDecl| match m.life {
        Life::Always { .. } => Some(Written(std::iter::once(0..m.bytes).collect())),
        Life::Transient | Life::Slot => None,
    };
    let fragment = |c: &Call| &program.fragments[c.fragment.0 as usize];
    let mut walk = Walk {
        program,
        memory: program.memory.iter().map(whole).collect(),
        locals: vec![],
        decided: false,
        given: BTreeMap::new(),
        at: (first, fragment(first), 0),
    };
    for call in &program.calls[calls] {
        let f = fragment(call);
        walk.locals.clear();
        walk.locals.resize(f.locals.len(), None);
        for (k, i) in f.code.iter().enumerate() {
            walk.at = (call, f, k);
            walk.instr(i)?;
        }
        if let Some(local) = walk.locals.iter().position(Option::is_some) {
            return walk.broken(Law::Consumed, format!("temporary {local} is never freed"));
        }
    }
    let left = program.memory.iter().zip(&walk.memory);
    let left = left.filter(|(m, held)| held.is_some() && !matches!(m.life, Life::Always { .. }));
    let open = |(what, done): (&HostMemory, &Vec<HostJob>)| match (what, &done[..]) {
        (HostMemory::Part(_), _) => Some(format!(
            "{} is added up and the last one never comes",
            what.name()
        )),
        (HostMemory::Grad(_), [] | [HostJob::StateIn]) => {
            Some(format!("{} is given and never used", what.name()))
        }
        (HostMemory::Grad(room), [HostJob::StateIn, HostJob::Update]) => Some(format!(
            "the state of room {room} is read from its file and updated, and never written"
        )),
        _ => None,
    };
    if let Some(what) = walk.given.iter().find_map(open) {
        return walk.broken(Law::Consumed, what);
    }
    match left.map(|(m, _)| &m.name).next() {
        Some(name) => walk.broken(Law::Consumed, format!("{name} is never freed")),
        None => Ok(()),
    }
}

/// Holds the programs of several ranks against each other: the members of each group make the same collectives in the same
/// order.
///
/// # Errors
/// The first collective that another rank does not make.
pub fn check_ranks(programs: &[&Program]) -> Checked<()> {
    type Event<'a> = (&'a Group, Vec<(CollectiveKind, u32, u64)>);
    fn events(p: &Program) -> Vec<Event<'_>> {
        let codes = p.calls.iter().map(|c| &p.fragments[c.fragment.0 as usize]);
        let all = codes.flat_map(|f| &f.code).filter_map(|i| match i {
            Instr::Collective { group, members, .. } => {
                let each = members.iter().map(|m| (m.kind, m.dtype.id(), m.recv.bytes));
                Some((&p.groups[group.0 as usize], each.collect()))
            }
            _ => None,
        });
        all.collect()
    }
    let all: Vec<Vec<Event<'_>>> = programs.iter().map(|p| events(p)).collect();
    // One group is several values, one for each of its members: what they share is key and members.
    let same = |a: &Group, b: &Group| a.key == b.key && a.ranks == b.ranks;
    for group in programs.iter().flat_map(|p| &p.groups) {
        let of = |rank: usize| {
            let on_it = all[rank].iter().filter(|(g, _)| same(g, group));
            on_it.map(|(_, members)| members)
        };
        let in_it = |rank: &usize| programs[*rank].groups.iter().any(|g| same(g, group));
        let mut ranks = (0..programs.len()).filter(in_it);
        let Some(first) = ranks.next() else { continue };
        for rank in ranks {
            let (mut a, mut b) = (of(first), of(rank));
            for k in 0.. {
                match (a.next(), b.next()) {
                    (None, None) => break,
                    (x, y) if x == y => {}
                    (x, y) => {
                        return Err(ProgramError {
                            law: Law::SameCollectives,
                            message: format!(
                                "collective {k} on {}: rank {first} makes {x:?} and rank {rank} {y:?}",
                                group.key
                            ),
                        });
                    }
                }
            }
        }
    }
    Ok(())
}
