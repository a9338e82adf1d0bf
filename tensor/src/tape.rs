//! The inside of a block: a flat tape of nodes and values, alive for one block and one micro-batch.
//!
//! Forward pushes nodes; `seal` drops every value no backward reads (and, under [`Keep::Cheap`], those cheap to rebuild); backward pops nodes and
//! drops each value as soon as its last reader is past. A value may be a *slice* of another: its gradient is then written straight
//! into the slice of the parent's gradient.

use crate::Tensor;
use crate::block::Keep;
use crate::env::Env;
use crate::error::{Result, shape_error};
use crate::ops::{OpNode, add, comm, linear};
use crossweave_hal::abi::op;

/// A value of the block being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Var(pub(crate) u32);

/// Where a value comes from, as far as gradients care.
#[derive(Clone, Copy)]
pub(crate) enum Origin {
    /// Made by a node (or an input of the block).
    Own,
    /// Columns `[start, start + len)` of another value's last dim.
    Slice { parent: Var, start: u64, len: u64 },
    /// The same of every head: `[B, T, heads, len]`.
    Heads {
        parent: Var,
        heads: u64,
        start: u64,
        len: u64,
    },
    /// The same memory as another value, overwritten in place by a linear op that needs no input for its backward.
    Alias { of: Var },
}

pub(crate) struct Val {
    pub tensor: Option<Tensor>,
    pub shape: crate::Shape,
    pub dtype: crossweave_hal::DType,
    pub origin: Origin,
    /// Node that made it; `u32::MAX` for inputs.
    pub producer: u32,
    /// Some backward reads it.
    pub saved: bool,
    /// Cheap to rebuild from its node's inputs.
    pub cheap: bool,
    /// Gathered from other ranks, and once more where the backward reads it.
    pub gathered: bool,
    /// Overwritten in place by the op of this name: nobody may read it any more.
    pub spoiled: Option<&'static str>,
}

/// Nodes and values of one block and one micro-batch.
#[derive(Default)]
pub struct Tape {
    pub(crate) nodes: Vec<OpNode>,
    pub(crate) vals: Vec<Val>,
}

impl Tape {
    /// An empty tape with room for an ordinary block, so that recording one does not grow it.
    pub(crate) fn for_block() -> Tape {
        Tape {
            nodes: Vec::with_capacity(16),
            vals: Vec::with_capacity(24),
        }
    }
    /// Ops recorded.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    /// No op recorded?
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// The tensor of a value, if it is held.
    pub fn tensor(&self, v: Var) -> Option<&Tensor> {
        self.vals.get(v.0 as usize).and_then(|v| v.tensor.as_ref())
    }
    /// Bytes of the values still held; memory that several values share (slices of one product) counts once.
    pub fn held_bytes(&self) -> u64 {
        bytes_of(self.vals.iter().filter_map(|v| v.tensor.as_ref()))
    }

    /// Ends the forward: what no backward reads is dropped, and of the rest what `keep` says is made again. `outputs` stay with the caller.
    pub(crate) fn seal(&mut self, keep: Keep) {
        let again = |v: &Val| match keep {
            Keep::Everything => false,
            Keep::All => v.gathered,
            Keep::Cheap => v.gathered || v.cheap,
        };
        let mut needed: Vec<bool> = self.vals.iter().map(|v| v.saved && !again(v)).collect();
        // What a dropped value is rebuilt from must stay.
        for i in (0..self.vals.len()).rev() {
            if self.vals[i].saved && again(&self.vals[i]) && !needed[i] {
                let producer = self.vals[i].producer as usize;
                if let Some(n) = self.nodes.get(producer) {
                    for v in n.inputs() {
                        let input = &mut self.vals[v.0 as usize];
                        needed[v.0 as usize] |= !again(input) || input.producer == u32::MAX;
                        // An input that is dropped is rebuilt in turn: mark it so that the walk reaches its inputs.
                        input.saved = true;
                    }
                }
            }
        }
        for (v, n) in self.vals.iter_mut().zip(needed) {
            if !n {
                v.tensor = None;
            }
        }
    }

    /// Runs the tape backwards from gradients of `outs`; returns the gradients of `ins`, `None` where nothing flowed.
    pub fn backward(
        self,
        env: &Env<'_>,
        outs: &[Var],
        douts: Vec<Option<Tensor>>,
        ins: &[Var],
    ) -> Result<Vec<Option<Tensor>>> {
        Ok(self.walk_back(env, outs, douts, ins, None)?.0)
    }

    /// The same but for the gradients of the weights of products, which are left to be made: the first part of a backward in two. All that ranks
    /// say to each other belongs to it, and the gradients of norms, biases and tables.
    pub fn input_grads(
        self,
        env: &Env<'_>,
        outs: &[Var],
        douts: Vec<Option<Tensor>>,
        ins: &[Var],
    ) -> Result<(Vec<Option<Tensor>>, Owed)> {
        self.walk_back(env, outs, douts, ins, Some(Owed::default()))
    }

    fn walk_back(
        self,
        env: &Env<'_>,
        outs: &[Var],
        douts: Vec<Option<Tensor>>,
        ins: &[Var],
        owed: Option<Owed>,
    ) -> Result<(Vec<Option<Tensor>>, Owed)> {
        let n = self.vals.len();
        let mut b = Back {
            env,
            vals: self.vals,
            grads: (0..n).map(|_| None).collect(),
            parts: (0..n).map(|_| None).collect(),
            coming: None,
            put_off: None,
            later: vec![],
            owed,
        };
        for (v, d) in outs.iter().zip(douts) {
            if let Some(d) = d {
                b.give(*v, d)?;
            }
        }
        let mut nodes = self.nodes;
        while let Some(node) = nodes.pop() {
            node.backward(&mut b, &nodes)?;
            for v in node.outputs().into_iter().flatten() {
                b.vals[v.0 as usize].tensor = None;
                b.grads[v.0 as usize] = None;
            }
            if let (Some(dy), OpNode::Linear(product)) = (b.put_off.take(), node) {
                b.later.push((product, dy));
            }
        }
        let dins = ins.iter().map(|v| b.grads[v.0 as usize].take()).collect();
        Ok((dins, b.owed.unwrap_or_default()))
    }
}

/// The second part of a backward: the products that give gradients of weights, each with its input and the gradient of its output.
#[derive(Default)]
pub struct Owed(Vec<linear::Apart>);

impl Owed {
    /// Makes the gradients, in the order in which a backward in one part does. No parameters are read.
    ///
    /// # Errors
    /// The device.
    pub fn run(self, env: &Env<'_>) -> Result<()> {
        self.0.iter().try_for_each(|product| product.run(env))
    }

    /// Bytes that it holds; memory that several operands share counts once.
    pub fn held_bytes(&self) -> u64 {
        bytes_of(self.0.iter().flat_map(|p| [&p.x, &p.dy]))
    }
}

/// Bytes of the buffers of these tensors, each once.
fn bytes_of<'t>(held: impl Iterator<Item = &'t Tensor>) -> u64 {
    let mut seen: Vec<(*const crossweave_hal::Buffer, u64)> = held
        .map(|t| (std::sync::Arc::as_ptr(t.buffer()), t.buffer().bytes()))
        .collect();
    seen.sort();
    seen.dedup();
    seen.iter().map(|(_, bytes)| bytes).sum()
}

/// A backward under way.
pub(crate) struct Back<'a, 'e> {
    pub env: &'a Env<'e>,
    vals: Vec<Val>,
    grads: Vec<Option<Tensor>>,
    /// For values that were split: the memory their slices' gradients are written into. Apart from `grads`, because a value may also be
    /// used whole, and that gradient must be added to, not overwritten.
    parts: Vec<Option<Tensor>>,
    /// A value that is being gathered once more, and its pieces, which are not read before [`Back::arrive`].
    coming: Option<(Var, Tensor)>,
    /// The gradient of the output of a product whose weight's gradient is put off.
    put_off: Option<Tensor>,
    /// Products whose weights' gradients are made while the gradient of their input travels, each with that of its output.
    later: Vec<(linear::Node, Tensor)>,
    /// What is left to the second part, where the backward is in two.
    owed: Option<Owed>,
}

/// Products beside what ranks exchange. The weight's gradient of a product whose input is the same, or gathered, on the ranks of an axis needs neither
/// the sum of the input's gradient over them nor to be there before it: the input's gradient is made first, while the input itself is gathered once
/// more, and the weight's while that gradient is summed (the order of Megatron-LM's `LinearWithGradAccumulationAndAsyncCommunication`).
impl Back<'_, '_> {
    /// Puts off the gradient of a product's weight, where what its input came from exchanges the input's gradient and can do so beside it.
    pub fn puts_off(&mut self, x: Var, dy: &Tensor, nodes: &[OpNode]) -> Result<bool> {
        let Some(from) = self.exchanged(x, nodes) else {
            return Ok(false);
        };
        let held = self.vals[x.0 as usize].tensor.is_some();
        match self.coming {
            // One value travels at a time; behind its own transition nothing could make it again.
            Some((v, _)) if v != x => _ = self.val(x, nodes)?,
            None if !held => {
                let piece = self.val(from.x, nodes)?;
                self.coming = Some((x, from.begin(self.env, &piece)?));
            }
            _ => {}
        }
        self.put_off = Some(dy.clone());
        Ok(true)
    }

    /// The transition that made a value, where it exchanges the value's gradient beside products.
    fn exchanged<'n>(&self, x: Var, nodes: &'n [OpNode]) -> Option<&'n comm::Node> {
        match nodes.get(self.vals[x.0 as usize].producer as usize) {
            Some(OpNode::Transition(n)) if n.sums_back(self.env) => Some(n),
            _ => None,
        }
    }

    /// Is there a product that waits for `x` to travel?
    pub fn waits(&self, x: Var) -> bool {
        self.later.iter().any(|(product, _)| product.x == x)
    }

    /// Puts a value together whose pieces are coming.
    pub fn arrive(&mut self, from: &comm::Node) -> Result<()> {
        if let Some((v, pieces)) = self.coming.take_if(|(v, _)| *v == from.out) {
            let whole = from.finish(self.env, pieces)?;
            self.vals[v.0 as usize].tensor = Some(whole);
        }
        Ok(())
    }

    /// Makes the gradients of weights that were put off for `x`, in the order of their products.
    pub fn catch_up(&mut self, x: Var, nodes: &[OpNode]) -> Result<()> {
        let (now, rest) = std::mem::take(&mut self.later)
            .into_iter()
            .partition(|(product, _)| product.x == x);
        self.later = rest;
        let now: Vec<(linear::Node, Tensor)> = now;
        for (product, dy) in now {
            let of = self.val(x, nodes)?;
            self.weights(&product, &of, &dy)?;
        }
        Ok(())
    }

    /// The gradients of a product's weights and biases; those of weights are left, where the backward is in two parts.
    pub fn weights(&mut self, product: &linear::Node, x: &Tensor, dy: &Tensor) -> Result<()> {
        match &mut self.owed {
            Some(owed) if product.learns(self.env) => {
                owed.0.push(product.apart(self.env, x, dy));
                product.bias_grads(self.env, &dy.rows())
            }
            _ => product.weights(self.env, x, dy),
        }
    }
}

impl Back<'_, '_> {
    /// A saved value; rebuilt from its node when it was dropped as cheap.
    pub fn val(&mut self, v: Var, nodes: &[OpNode]) -> Result<Tensor> {
        if let Some(t) = &self.vals[v.0 as usize].tensor {
            return Ok(t.clone());
        }
        let producer = self.vals[v.0 as usize].producer as usize;
        if let Some(OpNode::Transition(from)) = nodes.get(producer) {
            self.arrive(from)?;
            if let Some(t) = &self.vals[v.0 as usize].tensor {
                return Ok(t.clone());
            }
        }
        let Some(node) = nodes.get(producer) else {
            return shape_error(format!(
                "backward: value {} is gone and nothing can rebuild it",
                v.0
            ));
        };
        let ins = node
            .inputs()
            .into_iter()
            .map(|i| self.val(i, nodes))
            .collect::<Result<Vec<_>>>()?;
        let t = node.rerun(self.env, &ins)?;
        self.vals[v.0 as usize].tensor = Some(t.clone());
        Ok(t)
    }

    /// The gradient of a value, taken for good; `None` when nothing flowed into it.
    pub fn take(&mut self, v: Var) -> Option<Tensor> {
        self.grads[v.0 as usize].take()
    }

    /// Shape and dtype of a value, whether or not it is held.
    pub fn meta(&self, v: Var) -> (crate::Shape, crossweave_hal::DType) {
        (self.vals[v.0 as usize].shape, self.vals[v.0 as usize].dtype)
    }

    /// Where the gradient of `v` should be written: the slice of its parent's gradient, or new memory. Only while `v` has none.
    pub fn dest(&mut self, v: Var) -> Result<Tensor> {
        let (shape, dtype) = self.meta(v);
        match self.vals[v.0 as usize].origin {
            Origin::Own => self.env.run.empty(shape, dtype),
            Origin::Alias { of } => self.dest(of),
            Origin::Slice { parent, start, len } => {
                let whole = self.whole(parent)?;
                let dim = whole.shape().rank() - 1;
                Ok(whole.narrow(dim, start, len))
            }
            Origin::Heads {
                parent,
                heads,
                start,
                len,
            } => Ok(self.whole(parent)?.heads(heads).narrow(3, start, len)),
        }
    }

    /// The memory that the gradients of the slices of `parent` are written into.
    fn whole(&mut self, parent: Var) -> Result<Tensor> {
        if let Some(t) = &self.parts[parent.0 as usize] {
            return Ok(t.clone());
        }
        let t = self.dest(parent)?;
        self.parts[parent.0 as usize] = Some(t.clone());
        Ok(t)
    }

    /// The same for several values of one op: a value that has a gradient, or stands twice in the list, gets memory of its own.
    pub fn dests<const N: usize>(&mut self, vs: [Var; N]) -> Result<[Tensor; N]> {
        let mut out = Vec::with_capacity(N);
        for (i, v) in vs.iter().enumerate() {
            let (shape, dtype) = self.meta(*v);
            out.push(if self.has(*v) || vs[..i].contains(v) {
                self.env.run.empty(shape, dtype)?
            } else {
                self.dest(*v)?
            });
        }
        out.try_into()
            .or_else(|_| shape_error("backward: destinations went missing"))
    }

    /// Is `t` the slice that was set aside for the gradient of `v`?
    pub fn is_home(&self, v: Var, t: &Tensor) -> bool {
        let (Origin::Slice { parent, .. } | Origin::Heads { parent, .. }) =
            self.vals[v.0 as usize].origin
        else {
            return false;
        };
        self.parts[parent.0 as usize]
            .as_ref()
            .is_some_and(|whole| std::ptr::eq(whole.buffer().as_ref(), t.buffer().as_ref()))
    }

    /// The memory the slices of `v` were written into, taken for good.
    pub fn take_parts(&mut self, v: Var) -> Option<Tensor> {
        self.parts[v.0 as usize].take()
    }

    /// Does nothing else look at the bytes of `v`, so that its backward may overwrite them? `nodes` are the earlier ones.
    pub fn may_spoil(&self, v: Var, nodes: &[OpNode]) -> bool {
        let val = &self.vals[v.0 as usize];
        // The producer itself may read its output (attention does); inputs of the block belong to the caller.
        let alone = val.tensor.as_ref().is_some_and(Tensor::is_unique);
        let linear = matches!(nodes.get(val.producer as usize), Some(OpNode::Linear(_)));
        alone && linear && nodes.iter().all(|n| !n.inputs().contains(&v))
    }

    /// Is there a gradient already?
    pub fn has(&self, v: Var) -> bool {
        self.grads[v.0 as usize].is_some()
    }

    /// Adds `t` to the gradient of `v`.
    pub fn give(&mut self, v: Var, t: Tensor) -> Result<()> {
        match self.grads[v.0 as usize].take() {
            None => self.grads[v.0 as usize] = Some(t),
            Some(old) => {
                // In place only where nobody else looks at the bytes.
                let y = if old.is_unique() && old.is_dense() {
                    old.clone()
                } else if t.is_unique() && t.is_dense() {
                    t.clone()
                } else {
                    self.env.run.empty(*old.shape(), old.dtype())?
                };
                add::sum(self.env, &y, &old, &t)?;
                self.grads[v.0 as usize] = Some(y);
            }
        }
        Ok(())
    }

    /// A zeroed gradient for a slice nobody used.
    pub fn clear(&self, t: &Tensor) -> Result<()> {
        let p = op::FillParams::default();
        self.env
            .run
            .launch(op::FILL_STRIDED, &[Some(t)], p.as_bytes(), &[])
    }
}
