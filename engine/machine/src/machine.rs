//! A program's memory and its instructions, executed.

use crate::pinned::Pinned;
use crossweave_hal::{
    Buffer, Collective, CommTag, DType, Device, HostBuffer, Kernel, OpRequest, Reduce, Region,
    Stream,
};
use crossweave_mesh::{GroupRef, Mesh};
use crossweave_program::{
    Builder, Call, Code, CollectiveKind, Fragment, Given, HostMemory, Instr, KernelId, Life, MemId,
    Member, MemoryDecl, MemorySpace, ParamBlock, ParamId, Place, Program, Span, Tag, Traffic,
};
use crossweave_tensor::{
    Decompositions, KernelCache, Probe, Result as Tensors, Run, Tensor, shape_error,
};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// A piece of memory as it is now.
enum Held {
    /// Transient, and not there.
    None,
    /// On the device; of several copies one is this step's.
    Device(Vec<Arc<Buffer>>, usize),
    /// Pinned.
    Pinned(Vec<HostBuffer>, usize),
    /// One of the machine's slots, with its number.
    Slot(Arc<Buffer>, u32),
    /// Somebody else's, from this byte on.
    Lent(Arc<Buffer>, u64),
    /// On its way to the host's thread: what for, and from which byte on.
    Host(HostMemory, Pinned, u64),
}

/// Slots that hold nothing now, handed out as the plan foresees (`plan::slots`): of the right size the one that was made first. What the
/// plan has not ordered then never waits for a slot.
#[derive(Default)]
struct Slots {
    free: Vec<(u32, Arc<Buffer>)>,
    made: u32,
}

impl Slots {
    fn take(
        &mut self,
        bytes: u64,
        make: impl FnOnce() -> crossweave_hal::Result<Buffer>,
    ) -> Tensors<Held> {
        let fits = self.free.iter().enumerate();
        let fits = fits.filter(|(_, (_, b))| b.bytes() == bytes);
        if let Some((k, _)) = fits.min_by_key(|(_, (number, _))| *number) {
            let (number, slot) = self.free.swap_remove(k);
            return Ok(Held::Slot(slot, number));
        }
        let slot = Arc::new(make()?);
        self.made += 1;
        Ok(Held::Slot(slot, self.made - 1))
    }
}

/// A program and all it works on.
pub struct Machine {
    program: Arc<Program>,
    memory: Vec<Held>,
    slots: Slots,
    /// Memory of the fragment that is running.
    locals: Vec<Option<Arc<Buffer>>>,
    kernels: Vec<Option<Kernel>>,
    /// Parameters of kernels, with this step's scalars.
    params: Vec<Vec<u8>>,
    dynamics: Vec<Vec<u8>>,
    scalars: Vec<f64>,
    groups: Vec<GroupRef>,
    /// What collectives are for, where the caller has said it.
    about: String,
}

/// What a slot of a fragment is bound to: a parameter's place in the program's memory, or an index among the fragment's own.
fn place(program: &Program, f: &Fragment, call: &Call, slot: u16) -> Result<Place, usize> {
    match slot.checked_sub(f.params) {
        None => Ok(program.args[(call.args.start + u32::from(slot)) as usize]),
        Some(local) => Err(usize::from(local)),
    }
}

fn comm_tag(t: Traffic) -> CommTag {
    t.name()
}

/// Runs instructions that are no part of a program, once: their parameter `i` is `args[i]`, from its first byte on.
///
/// # Errors
/// The device.
pub fn once(stream: &Stream, args: &[&Tensor], write: impl FnOnce(&Code<'_>)) -> Tensors<()> {
    let mut b = Builder::default();
    let declare = |(i, t): (usize, &&Tensor)| {
        let mem = b.memory(MemoryDecl {
            name: format!("argument {i}"),
            bytes: t.extent(),
            dtype: t.dtype(),
            tag: Tag::Staging,
            home: MemorySpace::Device,
            life: Life::Transient,
        });
        mem.into()
    };
    let places: Vec<Place> = args.iter().enumerate().map(declare).collect();
    b.call(None, "once", &places, write);
    let mut machine = Machine::new(stream.device(), b.finish())?;
    for (place, t) in places.iter().zip(args) {
        machine.lend(place.mem, t.buffer().clone(), t.offset());
    }
    machine.run_alone(stream, None)
}

impl Machine {
    /// Makes the memory that lives as long as the program.
    ///
    /// # Errors
    /// The device.
    pub fn new(device: &Device, program: Program) -> Tensors<Machine> {
        let mut memory = vec![];
        for m in &program.memory {
            let Life::Always { turns } = m.life else {
                memory.push(Held::None);
                continue;
            };
            memory.push(match m.home {
                MemorySpace::Device => {
                    let one = |_| Ok(Arc::new(device.alloc_state(m.bytes, m.tag)?));
                    Held::Device((0..turns).map(one).collect::<Tensors<_>>()?, 0)
                }
                MemorySpace::Pinned => {
                    let one = |_| Ok(device.alloc_host(m.bytes, m.tag)?);
                    Held::Pinned((0..turns).map(one).collect::<Tensors<_>>()?, 0)
                }
            });
        }
        let mut machine = Machine {
            memory,
            slots: Slots::default(),
            locals: vec![],
            kernels: vec![None; program.kernels.len()],
            params: program
                .kernels
                .iter()
                .map(|k| k.params.bytes.clone())
                .collect(),
            dynamics: program.dynamics.iter().map(|d| d.bytes.clone()).collect(),
            scalars: vec![],
            groups: vec![],
            about: String::new(),
            program: Arc::new(program),
        };
        // Until the host decides, numbers that no schedule moves have their values.
        machine.decide(|g| match g {
            Given::Beta { fixed, .. } => *fixed,
            _ => 0.0,
        });
        Ok(machine)
    }

    /// Binds transient memory to somebody else's, from byte `at` on.
    pub fn lend(&mut self, mem: MemId, buffer: Arc<Buffer>, at: u64) {
        self.memory[mem.index()] = Held::Lent(buffer, at);
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// What collectives are for from here on; nothing where the step of the plan says it.
    pub fn about(&mut self, what: String) {
        self.about = what;
    }

    /// Binds transient memory to what the host's thread has given for `what`, from byte `at` on.
    pub fn take(&mut self, mem: MemId, (what, memory, at): (HostMemory, Pinned, u64)) {
        self.memory[mem.index()] = Held::Host(what, memory, at);
    }

    /// What goes back to the host's thread.
    ///
    /// # Errors
    /// Memory that is not the host's.
    pub fn give(&mut self, mem: MemId) -> Tensors<Pinned> {
        match std::mem::replace(&mut self.memory[mem.index()], Held::None) {
            Held::Host(_, memory, _) => Ok(memory),
            _ => shape_error(format!("memory {} is not the host's", mem.0)),
        }
    }

    /// Runs all calls of a program on one stream, whatever lanes it names. What was lent is given back.
    ///
    /// # Errors
    /// The device; an instruction that needs more than a stream.
    pub fn run_alone(&mut self, stream: &Stream, mesh: Option<&RefCell<Mesh>>) -> Tensors<()> {
        self.run_some(0..self.program.calls.len(), stream, mesh)
    }

    /// The same of some calls.
    ///
    /// # Errors
    /// As [`Machine::run_alone`].
    pub fn run_some(
        &mut self,
        calls: Range<usize>,
        stream: &Stream,
        mesh: Option<&RefCell<Mesh>>,
    ) -> Tensors<()> {
        let program = self.program.clone();
        let done = program.calls[calls].iter().try_for_each(|call| {
            let f = &program.fragments[call.fragment.0 as usize];
            self.enter(f);
            f.code.iter().try_for_each(|i| match i {
                Instr::Decide => Ok(()),
                Instr::Alloc { slot, .. } => self.alloc(f, call, *slot, stream),
                Instr::Free { slot } => {
                    self.free_slot(f, call, *slot);
                    Ok(())
                }
                _ => self.enqueue((f, call), i, stream, mesh, None),
            })
        });
        self.clear();
        done
    }

    /// Finds the groups of the program in a mesh.
    ///
    /// # Errors
    /// One that was not joined.
    pub fn join(&mut self, mesh: &Mesh) -> crossweave_hal::Result<()> {
        let groups = self.program.groups.iter();
        let found: crossweave_hal::Result<Vec<_>> =
            groups.map(|g| mesh.group_ref(&g.key)).collect();
        self.groups = found?;
        Ok(())
    }

    /// The scalars of a step from here on.
    pub fn decide(&mut self, given: impl Fn(&Given) -> f64) {
        let program = self.program.clone();
        program.scalars.evaluate(given, &mut self.scalars);
        for (d, bytes) in program.dynamics.iter().zip(&mut self.dynamics) {
            ParamBlock::fill(&d.patches, &self.scalars, bytes);
        }
        for (k, decl) in program.kernels.iter().enumerate() {
            if ParamBlock::fill(&decl.params.patches, &self.scalars, &mut self.params[k]) {
                self.kernels[k] = None;
            }
        }
    }

    /// Memory on the device, while there is some.
    pub fn buffer(&self, mem: MemId) -> Option<&Arc<Buffer>> {
        match &self.memory[mem.index()] {
            Held::Device(all, turn) => all.get(*turn),
            Held::Slot(b, _) | Held::Lent(b, _) => Some(b),
            Held::Pinned(..) | Held::Host(..) | Held::None => None,
        }
    }

    /// A copy of pinned memory.
    ///
    /// # Errors
    /// Memory that is not pinned.
    pub fn pinned(&mut self, mem: MemId, turn: usize) -> Tensors<&mut HostBuffer> {
        match &mut self.memory[mem.index()] {
            Held::Pinned(all, _) if turn < all.len() => Ok(&mut all[turn]),
            _ => shape_error(format!("memory {} is not pinned", mem.0)),
        }
    }

    /// From here on the next copy is used; answers which was.
    pub fn advance(&mut self, mem: MemId) -> usize {
        let (turn, copies) = match &mut self.memory[mem.index()] {
            Held::Device(all, turn) => (turn, all.len()),
            Held::Pinned(all, turn) => (turn, all.len()),
            Held::Slot(..) | Held::Lent(..) | Held::Host(..) | Held::None => return 0,
        };
        std::mem::replace(turn, (*turn + 1) % copies)
    }

    /// Elements of a place as a tensor, while its memory is there.
    pub fn tensor(&self, place: Place, elements: u64, dtype: DType) -> Option<Tensor> {
        let b = self.buffer(place.mem)?;
        Some(Tensor::dense(b.clone(), place.at, [elements], dtype))
    }

    /// Transient memory ends.
    pub fn free(&mut self, mem: MemId) {
        let held = &mut self.memory[mem.index()];
        if let Life::Always { .. } = self.program.memory[mem.index()].life {
            return;
        }
        if let Held::Slot(b, number) = std::mem::replace(held, Held::None) {
            self.slots.free.push((number, b));
        }
    }

    /// All transient memory ends. What is the host's thread's is answered, to be given back.
    pub fn clear(&mut self) -> Vec<(HostMemory, Pinned)> {
        let mut taken = vec![];
        for m in 0..self.memory.len() {
            match std::mem::replace(&mut self.memory[m], Held::None) {
                Held::Host(what, memory, _) => taken.push((what, memory)),
                held => {
                    self.memory[m] = held;
                    self.free(MemId(m as u32));
                }
            }
        }
        self.locals.clear();
        taken
    }

    /// Room for a fragment's own memory.
    pub fn enter(&mut self, f: &Fragment) {
        self.locals.clear();
        self.locals.resize_with(f.locals.len(), || None);
    }

    /// The memory that a parameter of a fragment is bound to.
    ///
    /// # Errors
    /// A slot that is no parameter.
    pub fn memory_of(&self, f: &Fragment, call: &Call, slot: u16) -> Tensors<MemId> {
        match place(&self.program, f, call, slot) {
            Ok(place) => Ok(place.mem),
            Err(_) => shape_error(format!("{}: slot {slot} is no parameter", f.name)),
        }
    }

    /// Where a copy of another thread goes to: buffer and byte.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn target(&self, f: &Fragment, call: &Call, to: &Span) -> Tensors<(Arc<Buffer>, u64)> {
        let place = place(&self.program, f, call, to.slot).ok();
        match place.and_then(|p| Some((self.buffer(p.mem)?.clone(), p.at + to.at))) {
            Some(target) => Ok(target),
            None => shape_error(format!("{}: nowhere to copy to", f.name)),
        }
    }

    /// Bytes of a slot.
    fn region(&self, f: &Fragment, call: &Call, s: &Span) -> Tensors<Region<'_>> {
        let (buffer, at) = match place(&self.program, f, call, s.slot) {
            Ok(place) => match &self.memory[place.mem.index()] {
                Held::Device(all, turn) => (&*all[*turn], place.at),
                Held::Pinned(all, turn) => (all[*turn].buffer(), place.at),
                Held::Slot(b, _) => (&**b, place.at),
                Held::Lent(b, first) => (&**b, first + place.at),
                Held::Host(_, p, first) => match p.buffer() {
                    Some(b) => (b, first + place.at),
                    None => return shape_error("a block without memory"),
                },
                Held::None => {
                    let name = &self.program.memory[place.mem.index()].name;
                    let what = format!("{}: {name} is used while it is not there", f.name);
                    return shape_error(what);
                }
            },
            Err(local) => match &self.locals[local] {
                Some(b) => (&**b, 0),
                None => {
                    return shape_error(format!("{}: temporary {local} is not there", f.name));
                }
            },
        };
        Ok(buffer.region(at + s.at, s.bytes))
    }

    /// `Alloc`: memory of a fragment's parameter or its own.
    ///
    /// # Errors
    /// The device.
    pub fn alloc(&mut self, f: &Fragment, call: &Call, slot: u16, stream: &Stream) -> Tensors<()> {
        let device = stream.device();
        match place(&self.program, f, call, slot) {
            Ok(place) => {
                let m = &self.program.memory[place.mem.index()];
                self.memory[place.mem.index()] = match m.life {
                    Life::Slot => {
                        let make = || device.alloc_state(m.bytes, m.tag);
                        self.slots.take(m.bytes, make)?
                    }
                    _ => Held::Device(vec![Arc::new(device.alloc(stream, m.bytes, m.tag)?)], 0),
                };
            }
            Err(local) => {
                let l = &f.locals[local];
                let b = device.alloc(stream, l.bytes, l.tag)?;
                self.locals[local] = Some(Arc::new(b));
            }
        }
        Ok(())
    }

    /// `Free`.
    pub fn free_slot(&mut self, f: &Fragment, call: &Call, slot: u16) {
        match place(&self.program, f, call, slot) {
            Ok(place) => self.free(place.mem),
            Err(local) => self.locals[local] = None,
        }
    }

    /// An instruction that one stream is given. `probe` looks at the results of a kernel.
    ///
    /// # Errors
    /// The device; memory that is not there; an instruction that no stream is given.
    pub fn enqueue(
        &mut self,
        (f, call): (&Fragment, &Call),
        i: &Instr,
        stream: &Stream,
        mesh: Option<&RefCell<Mesh>>,
        probe: Option<&Arc<Probe>>,
    ) -> Tensors<()> {
        match i {
            Instr::Copy { to, from, .. } => {
                let (to, from) = (self.region(f, call, to)?, self.region(f, call, from)?);
                Ok(stream.copy(to, from)?)
            }
            Instr::Fill {
                to, pattern, width, ..
            } => Ok(stream.fill(self.region(f, call, to)?, *pattern, *width)?),
            Instr::FillScalar { to, scalar, .. } => {
                let value = self.scalars[scalar.0 as usize] as f32;
                let to = self.region(f, call, to)?;
                Ok(stream.fill(to, u64::from(value.to_bits()), 4)?)
            }
            Instr::Kernel {
                kernel,
                operands,
                dynamic,
                ..
            } => {
                let at = kernel.0 as usize;
                if self.kernels[at].is_none() {
                    let decl = &self.program.kernels[at];
                    let request = OpRequest::new(decl.op, &decl.operands, &self.params[at]);
                    self.kernels[at] = Some(stream.device().prepare(&request, &Decompositions)?);
                }
                self.launch((f, call), stream, *kernel, operands, *dynamic)?;
                match probe {
                    Some(p) => look(self, (f, call), stream, i, p),
                    None => Ok(()),
                }
            }
            Instr::Collective {
                site,
                group,
                traffic,
                members,
                ..
            } => {
                let each = members.iter().map(|m| self.member(f, call, m));
                let members = each.collect::<Tensors<Vec<_>>>()?;
                let Some(mesh) = mesh else {
                    return shape_error(format!("{}: a collective of nobody", f.name));
                };
                let mut mesh = mesh.borrow_mut();
                let group = mesh.by(self.groups[group.0 as usize]);
                if !self.about.is_empty() {
                    group.about(&self.about);
                }
                let group = group.asked_at(site);
                Ok(group.group(stream, &members, comm_tag(*traffic))?)
            }
            Instr::Mark { .. } => Ok(stream.mark()?),
            Instr::Publish { from, to, .. } => {
                let to = Span {
                    slot: *to,
                    at: 0,
                    bytes: from.bytes,
                };
                let (to, from) = (self.region(f, call, &to)?, self.region(f, call, from)?);
                Ok(stream.copy(to, from)?)
            }
            Instr::Alloc { .. }
            | Instr::Free { .. }
            | Instr::Decide
            | Instr::Bring { .. }
            | Instr::Await { .. }
            | Instr::Block { .. }
            | Instr::Move { .. }
            | Instr::Take { .. }
            | Instr::Give { .. }
            | Instr::Host { .. } => shape_error("an instruction that no stream is given"),
        }
    }

    fn member(&self, f: &Fragment, call: &Call, m: &Member) -> Tensors<Collective<'_>> {
        let dtype = m.dtype;
        let recv = self.region(f, call, &m.recv)?;
        let send = match &m.send {
            Some(s) => self.region(f, call, s)?,
            None => recv,
        };
        Ok(match m.kind {
            CollectiveKind::AllReduce => Collective::AllReduce {
                buf: recv,
                dtype,
                op: Reduce::Sum,
            },
            CollectiveKind::AllReduceMax => Collective::AllReduce {
                buf: recv,
                dtype,
                op: Reduce::Max,
            },
            CollectiveKind::ReduceScatter => Collective::ReduceScatter {
                send,
                recv,
                dtype,
                op: Reduce::Sum,
            },
            CollectiveKind::AllGather => Collective::AllGather { send, recv, dtype },
            CollectiveKind::AllToAll => Collective::AllToAll { send, recv, dtype },
        })
    }

    fn launch(
        &self,
        (f, call): (&Fragment, &Call),
        stream: &Stream,
        k: KernelId,
        operands: &[Option<Span>],
        dynamic: Option<ParamId>,
    ) -> Tensors<()> {
        let Some(kernel) = &self.kernels[k.0 as usize] else {
            return shape_error("a kernel that was not prepared");
        };
        let dynamic = dynamic.map_or(&[][..], |d| &self.dynamics[d.0 as usize]);
        const FEW: usize = 10;
        let mut few = [None; FEW];
        let mut many = vec![];
        let regions = match operands.len() {
            0..=FEW => &mut few[..operands.len()],
            n => {
                many.resize(n, None);
                &mut many[..]
            }
        };
        for (r, s) in regions.iter_mut().zip(operands) {
            if let Some(s) = s {
                *r = Some(self.region(f, call, s)?);
            }
        }
        Ok(stream.launch(kernel, regions, dynamic)?)
    }
}

/// Looks at the results of a kernel just launched.
#[cold]
fn look(
    machine: &Machine,
    (f, call): (&Fragment, &Call),
    stream: &Stream,
    i: &Instr,
    probe: &Arc<Probe>,
) -> Tensors<()> {
    let Instr::Kernel {
        kernel, operands, ..
    } = i
    else {
        return Ok(());
    };
    let decl = &machine.program.kernels[kernel.0 as usize];
    let mut tensors = vec![];
    for (l, s) in decl.operands.iter().zip(operands) {
        let (Some(s), Some(dtype)) = (s, DType::from_id(l.dtype)) else {
            tensors.push(None);
            continue;
        };
        let n = l.rank as usize;
        let dims: Vec<u64> = l.shape[..n].iter().map(|d| *d as u64).collect();
        let (buffer, at) = match place(&machine.program, f, call, s.slot) {
            Ok(place) => (machine.buffer(place.mem).cloned(), place.at),
            Err(local) => (machine.locals[local].clone(), 0),
        };
        tensors.push(buffer.map(|b| {
            let first = Tensor::dense(b, at + s.at, [0], dtype);
            first.strided(&dims[..], &l.stride[..n], 0)
        }));
    }
    let before = f.code.iter().take_while(|o| !std::ptr::eq(*o, i));
    let launch = before.filter(|o| matches!(o, Instr::Kernel { .. })).count();
    let cache = RefCell::new(KernelCache::default());
    let run = Run::new(stream, &Decompositions, &cache);
    let operands: Vec<Option<&Tensor>> = tensors.iter().map(Option::as_ref).collect();
    probe.look(&run, decl.op, launch, &operands)
}
