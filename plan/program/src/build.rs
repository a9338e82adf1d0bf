//! Writing a program: fragments are code over views, and what is written twice is there once.
//!
//! A temporary lives as Rust's values do: [`On::empty`] writes its `Alloc`, and the last of its views writes its `Free`.

use crate::formula::{Ex, Prog};
use crate::instr::{
    Brought, Call, Figure, Fragment, FragmentId, GroupId, HostJob, HostMemory, Instr, KernelDecl,
    KernelId, Local, Member, Move, ParamId, Part, Program, Span, Traffic, Values,
};
use crate::memory::{MemId, MemoryDecl, Place, Tag};
use crate::params::ParamBlock;
use crate::scalar::{Scalar, ScalarId};
use crate::shape::Shape;
use crate::strided::Strided;
use crossweave_abi::{DType, Layout, op};
use crossweave_axes::Group;
use crossweave_plan::{Lane, StepId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

type KernelKey = (u32, Vec<(u32, Vec<i64>, Vec<i64>)>, ParamBlock);

/// The tables of interned kernels, launch-time parameters and step scalars.
#[derive(Default)]
struct Interned {
    program: Program,
    kernels: HashMap<KernelKey, KernelId>,
    dynamics: HashMap<ParamBlock, ParamId>,
}

/// A program that is being written.
#[derive(Default)]
pub struct Builder {
    interned: RefCell<Interned>,
    fragments: HashMap<Fragment, FragmentId>,
}

impl Builder {
    /// Declares memory.
    pub fn memory(&mut self, decl: MemoryDecl) -> MemId {
        let all = &mut self.interned.get_mut().program.memory;
        all.push(decl);
        MemId(all.len() as u32 - 1)
    }

    /// Declares a group.
    pub fn group(&mut self, decl: Group) -> GroupId {
        let all = &mut self.interned.get_mut().program.groups;
        all.push(decl);
        GroupId(all.len() as u32 - 1)
    }

    /// Calls a fragment with these arguments for a step of the plan. `write` gives its instructions.
    pub fn call(
        &mut self,
        step: Option<StepId>,
        name: &str,
        args: &[Place],
        write: impl FnOnce(&Code<'_>),
    ) {
        self.call_of(step, None, name, args, write);
    }

    /// The same of values of micro-batches.
    pub fn call_of(
        &mut self,
        step: Option<StepId>,
        values: Option<Values>,
        name: &str,
        args: &[Place],
        write: impl FnOnce(&Code<'_>),
    ) {
        let code = Code {
            interned: &self.interned,
            draft: RefCell::new(Fragment {
                name: name.to_string(),
                params: args.len() as u16,
                locals: vec![],
                code: vec![],
            }),
        };
        write(&code);
        let fragment = code.draft.into_inner();
        let program = &mut self.interned.get_mut().program;
        let id = match self.fragments.get(&fragment) {
            Some(id) => *id,
            None => {
                let id = FragmentId(program.fragments.len() as u32);
                program.fragments.push(fragment.clone());
                self.fragments.insert(fragment, id);
                id
            }
        };
        let first = program.args.len() as u32;
        program.args.extend_from_slice(args);
        program.calls.push(Call {
            step,
            fragment: id,
            args: first..program.args.len() as u32,
            values,
        });
    }

    /// Calls written so far.
    pub fn calls(&mut self) -> usize {
        self.interned.get_mut().program.calls.len()
    }

    /// The program.
    pub fn finish(self) -> Program {
        self.interned.into_inner().program
    }
}

/// A fragment that is being written.
pub struct Code<'b> {
    interned: &'b RefCell<Interned>,
    draft: RefCell<Fragment>,
}

/// The end of a temporary, when the last of its views goes.
struct Temporary<'c> {
    draft: &'c RefCell<Fragment>,
    slot: u16,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        let end = Instr::Free { slot: self.slot };
        self.draft.borrow_mut().code.push(end);
    }
}

/// Elements of one of a fragment's slots.
#[derive(Clone)]
pub struct View<'c> {
    slot: u16,
    strided: Strided,
    _life: Option<Rc<Temporary<'c>>>,
}

impl<'c> View<'c> {
    fn with(&self, strided: Strided) -> View<'c> {
        View {
            strided,
            ..self.clone()
        }
    }
    /// Dims.
    pub fn shape(&self) -> &Shape {
        self.strided.shape()
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.strided.dtype()
    }
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.strided.numel()
    }
    /// See [`Strided::view`].
    pub fn view(&self, shape: impl Into<Shape>) -> View<'c> {
        self.with(self.strided.view(shape))
    }
    /// See [`Strided::strided`].
    pub fn strided(&self, shape: impl Into<Shape>, stride: &[i64], from: u64) -> View<'c> {
        self.with(self.strided.strided(shape, stride, from))
    }
    /// See [`Strided::narrow`].
    pub fn narrow(&self, dim: usize, start: u64, len: u64) -> View<'c> {
        self.with(self.strided.narrow(dim, start, len))
    }
    /// See [`Strided::t`].
    pub fn t(&self) -> View<'c> {
        self.with(self.strided.t())
    }
    /// See [`Strided::everywhere`].
    pub fn everywhere(&self, dims: &[u64]) -> View<'c> {
        self.with(self.strided.everywhere(dims))
    }
    /// Its bytes.
    pub fn span(&self) -> Span {
        Span {
            slot: self.slot,
            at: self.strided.at,
            bytes: self.strided.extent(),
        }
    }
    fn same(&self, other: &View<'_>) -> bool {
        self.slot == other.slot && self.strided == other.strided
    }
}

impl<'b> Code<'b> {
    fn push(&self, i: Instr) {
        self.draft.borrow_mut().code.push(i);
    }

    /// Elements of parameter `i`, dense from its first byte on.
    pub fn arg(&self, i: usize, shape: impl Into<Shape>, dtype: DType) -> View<'static> {
        self.arg_at(i, 0, shape, dtype)
    }

    /// The same from byte `at` on.
    pub fn arg_at(
        &self,
        i: usize,
        at: u64,
        shape: impl Into<Shape>,
        dtype: DType,
    ) -> View<'static> {
        View {
            slot: i as u16,
            strided: Strided::dense(at, shape, dtype),
            _life: None,
        }
    }

    /// Transient memory that a parameter is bound to begins.
    pub fn alloc(&self, i: usize, lane: Lane) {
        let slot = i as u16;
        self.push(Instr::Alloc { slot, lane });
    }

    /// Transient memory that a parameter is bound to ends.
    pub fn free(&self, i: usize) {
        self.push(Instr::Free { slot: i as u16 });
    }

    /// See [`Instr::Decide`].
    pub fn decide(&self) {
        self.push(Instr::Decide);
    }

    /// See [`Instr::Block`].
    pub fn block(&self, part: Part, adds: Vec<bool>) {
        self.push(Instr::Block { part, adds });
    }

    /// See [`Instr::Bring`].
    pub fn bring(&self, room: u32, what: Brought, to: &View<'_>) {
        let to = to.span();
        self.push(Instr::Bring { room, what, to });
    }

    /// See [`Instr::Await`].
    pub fn wait_for(&self, room: u32) {
        self.push(Instr::Await { room });
    }

    /// See [`Instr::Move`].
    pub fn values(&self, lane: Lane, what: Move) {
        self.push(Instr::Move { lane, what });
    }

    /// See [`Instr::Take`].
    pub fn take(&self, what: HostMemory, i: usize) {
        let slot = i as u16;
        self.push(Instr::Take { what, slot });
    }

    /// See [`Instr::Give`].
    pub fn give(&self, what: HostMemory, i: usize) {
        let slot = i as u16;
        self.push(Instr::Give { what, slot });
    }

    /// See [`Instr::Host`].
    pub fn host(&self, job: HostJob, room: u32) {
        self.push(Instr::Host { job, room });
    }

    /// Instructions of one lane.
    pub fn on(&self, lane: Lane) -> On<'_> {
        On {
            interned: self.interned,
            draft: &self.draft,
            lane,
        }
    }

    /// The number of a step scalar.
    pub fn scalar(&self, s: Scalar) -> ScalarId {
        self.interned.borrow_mut().program.scalars.add(s)
    }
}

/// Writes instructions of one lane.
#[derive(Clone, Copy)]
pub struct On<'c> {
    interned: &'c RefCell<Interned>,
    draft: &'c RefCell<Fragment>,
    lane: Lane,
}

impl<'c> On<'c> {
    fn push(&self, i: Instr) {
        self.draft.borrow_mut().code.push(i);
    }

    /// The number of a step scalar.
    pub fn scalar(&self, s: Scalar) -> ScalarId {
        self.interned.borrow_mut().program.scalars.add(s)
    }

    /// A temporary with unset contents.
    pub fn empty_for(&self, shape: impl Into<Shape>, dtype: DType, tag: Tag) -> View<'c> {
        let strided = Strided::dense(0, shape, dtype);
        let slot = {
            let mut draft = self.draft.borrow_mut();
            draft.locals.push(Local {
                bytes: dtype.bytes(strided.numel()),
                tag,
            });
            draft.params + draft.locals.len() as u16 - 1
        };
        self.push(Instr::Alloc {
            slot,
            lane: self.lane,
        });
        View {
            slot,
            strided,
            _life: Some(Rc::new(Temporary {
                draft: self.draft,
                slot,
            })),
        }
    }

    /// The same among activations.
    pub fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> View<'c> {
        self.empty_for(shape, dtype, Tag::Activation)
    }

    /// A temporary of zeros.
    pub fn zeros(&self, shape: impl Into<Shape>, dtype: DType) -> View<'c> {
        let t = self.empty(shape, dtype);
        self.fill(&t, 0, 1);
        t
    }

    /// Fills with the low `width` bytes of a pattern.
    pub fn fill(&self, to: &View<'_>, pattern: u64, width: u32) {
        self.push(Instr::Fill {
            lane: self.lane,
            to: to.span(),
            pattern,
            width,
        });
    }

    /// Fills one f32 with a step scalar.
    pub fn fill_scalar(&self, to: &View<'_>, scalar: ScalarId) {
        self.push(Instr::FillScalar {
            lane: self.lane,
            to: to.span(),
            scalar,
        });
    }

    /// Copies as many bytes as `to` has.
    pub fn copy(&self, to: &View<'_>, from: &View<'_>) {
        self.push(Instr::Copy {
            lane: self.lane,
            to: to.span(),
            from: from.span(),
        });
    }

    /// Launches an op of the table.
    pub fn launch(
        &self,
        op: u32,
        operands: &[Option<&View<'_>>],
        params: ParamBlock,
        dynamic: Option<ParamBlock>,
    ) {
        let layout = |v: &Option<&View<'_>>| v.map_or(Layout::ABSENT, |v| v.strided.layout());
        let kernel = {
            let mut i = self.interned.borrow_mut();
            i.kernel(op, operands.iter().map(layout).collect(), params)
        };
        let dynamic = dynamic.map(|d| self.interned.borrow_mut().dynamic(d));
        self.push(Instr::Kernel {
            lane: self.lane,
            kernel,
            operands: operands.iter().map(|v| v.map(View::span)).collect(),
            dynamic,
        });
    }

    /// Launches an op whose parameters are fixed and that is given none at launch.
    pub fn plain(&self, op: u32, operands: &[&View<'_>], params: &[u8]) {
        let operands: Vec<_> = operands.iter().map(|v| Some(*v)).collect();
        self.launch(op, &operands, ParamBlock::fixed(params), None);
    }

    /// Converts `from` to the type of `to`.
    pub fn cast(&self, to: &View<'_>, from: &View<'_>) {
        let none = op::NoParams::default();
        self.plain(op::CAST, &[to, from], none.as_bytes());
    }

    /// `outs = f(ins)` element by element, every view of the first output's shape (inputs by strides of 0 too). An input
    /// that is also an output is read before it is written. `scalars` are launch-time numbers.
    pub fn map<F>(&self, outs: &[&View<'_>], ins: &[&View<'_>], scalars: &[ScalarId], f: F)
    where
        F: for<'p> FnOnce(&[Ex<'p>]) -> Vec<Ex<'p>>,
    {
        let mut operands: Vec<&View<'_>> = outs.to_vec();
        let mut regs = vec![];
        for t in ins {
            let at = operands.iter().position(|o| o.same(t));
            regs.push(at.unwrap_or(operands.len()) as u32);
            if at.is_none() {
                operands.push(t);
            }
        }
        let prog = Prog::new(operands.len() as u32);
        let given: Vec<Ex<'_>> = regs.iter().map(|r| prog.operand(*r)).collect();
        let params = prog.finish_block(&f(&given));
        let operands: Vec<Option<&View<'_>>> = operands.into_iter().map(Some).collect();
        let dynamic = Some(ParamBlock::scalars(scalars));
        self.launch(op::ELEMENTWISE_PROGRAM, &operands, params, dynamic);
    }

    /// A collective of several members.
    #[track_caller]
    pub fn collective(&self, group: GroupId, traffic: Traffic, members: Vec<Member>) {
        self.push(Instr::Collective {
            site: Location::caller(),
            lane: self.lane,
            group,
            traffic,
            members,
        });
    }

    /// Gives bytes to the host, by the pinned memory that parameter `to` is bound to.
    pub fn publish(&self, from: &View<'_>, to: usize, figure: Figure) {
        self.push(Instr::Publish {
            lane: self.lane,
            figure,
            from: from.span(),
            to: to as u16,
        });
    }

    /// See [`Instr::Mark`].
    pub fn mark(&self) {
        self.push(Instr::Mark { lane: self.lane });
    }
}

impl Interned {
    fn kernel(&mut self, op: u32, operands: Vec<Layout>, params: ParamBlock) -> KernelId {
        let layout = |l: &Layout| {
            let n = l.rank as usize;
            (l.dtype, l.shape[..n].to_vec(), l.stride[..n].to_vec())
        };
        let key = (op, operands.iter().map(layout).collect(), params.clone());
        let all = &mut self.program.kernels;
        *self.kernels.entry(key).or_insert_with(|| {
            all.push(KernelDecl {
                op,
                operands,
                params,
            });
            KernelId(all.len() as u32 - 1)
        })
    }

    fn dynamic(&mut self, block: ParamBlock) -> ParamId {
        let all = &mut self.program.dynamics;
        *self.dynamics.entry(block.clone()).or_insert_with(|| {
            all.push(block);
            ParamId(all.len() as u32 - 1)
        })
    }
}
