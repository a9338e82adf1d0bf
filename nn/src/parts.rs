//! What layers are made of: linear layers with their adapters, norms, and the declarations of both.

use crate::desc::{Act, Linear, Norm, NormKind, Over};
use crate::lora::{Adapter, Adapters};
use crate::split::{Cut, LinearSplit};
use crossweave_tensor::{
    Activation, Axis, Cx, Group, Init, NormForm, Param, Place, Pointwise, Result, RmsNormOver,
    Unit, Var, head_norm_over, linear_summand,
};

/// A linear layer.
#[derive(Clone, Copy)]
pub struct Lin {
    pub w: Param,
    pub b: Option<Param>,
    /// Its place among the adapters of the block.
    pub adapter: usize,
    conv1d: bool,
    cut: Cut,
}

/// The input of linear layers: as those that are cut by outputs take it, and as it is.
#[derive(Clone, Copy)]
pub struct Input {
    entered: Var,
    x: Var,
}

impl Lin {
    /// `W x + b`, with what its adapter adds.
    pub fn run(&self, cx: &mut Cx<'_>, adapters: &[Option<Adapter>], x: Var) -> Result<Var> {
        let entered = self.cut.enter(cx, x)?;
        self.over(cx, adapters, Input { entered, x })
    }

    /// The same of an input that was made ready, for several layers over one.
    fn over(&self, cx: &mut Cx<'_>, adapters: &[Option<Adapter>], of: Input) -> Result<Var> {
        let x = match self.cut {
            Cut::Columns => of.entered,
            Cut::Not | Cut::Rows => of.x,
        };
        let y = match (self.cut, self.conv1d) {
            (Cut::Rows, _) => {
                let y = self.summand(cx, x)?;
                self.cut.reduce(cx, y)?
            }
            (_, true) => cx.conv1d(x, self.w, self.b)?,
            (_, false) => cx.linear(x, self.w, self.b)?,
        };
        Adapter::add_some(adapters[self.adapter], cx, of.x, y)
    }

    /// Does each rank make a summand of the result, to which nothing is added before the sum?
    pub fn is_summed(&self, adapters: &[Option<Adapter>]) -> bool {
        self.cut == Cut::Rows && adapters[self.adapter].is_none()
    }

    /// This rank's summand of a layer that is cut by inputs.
    pub fn summand(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        linear_summand(cx, x, (self.w, self.b), self.conv1d, Axis::Tp)
    }
}

/// Several linear layers over one input.
pub enum Several {
    /// As one product: the weights lie end to end.
    Together {
        parts: Vec<Lin>,
        ws: Vec<Param>,
        bs: Vec<Param>,
        widths: Vec<u64>,
    },
    /// One by one.
    Apart(Vec<Lin>),
    /// One layer whose output is cut.
    Cut(Lin, Vec<u64>),
    /// One layer whose output is cut in every head.
    CutHeads(Lin, u64, Vec<u64>),
}

impl Several {
    /// Makes their input ready.
    pub fn enter(&self, cx: &mut Cx<'_>, x: Var) -> Result<Input> {
        let first = match self {
            Several::Together { parts, .. } | Several::Apart(parts) => &parts[0],
            Several::Cut(lin, _) | Several::CutHeads(lin, ..) => lin,
        };
        let entered = first.cut.enter(cx, x)?;
        Ok(Input { entered, x })
    }

    /// The outputs.
    pub fn run(
        &self,
        cx: &mut Cx<'_>,
        adapters: &[Option<Adapter>],
        of: Input,
    ) -> Result<Vec<Var>> {
        match self {
            Several::Together {
                parts,
                ws,
                bs,
                widths,
            } => {
                let y = cx.linear_fused(of.entered, ws, bs)?;
                let mut out = cx.split(y, widths)?;
                for (y, lin) in out.iter_mut().zip(parts) {
                    *y = Adapter::add_some(adapters[lin.adapter], cx, of.x, *y)?;
                }
                Ok(out)
            }
            Several::Apart(parts) => {
                let each = parts.iter();
                each.map(|l| l.over(cx, adapters, of)).collect()
            }
            Several::Cut(lin, widths) => {
                let y = lin.over(cx, adapters, of)?;
                cx.split(y, widths)
            }
            Several::CutHeads(lin, heads, widths) => {
                let y = lin.over(cx, adapters, of)?;
                let mut out = cx.split_heads(y, *heads, widths)?;
                if widths.iter().any(|w| *w != widths[0]) {
                    // The queries of a group, one head after the other.
                    out[0] = cx.pack(out[0])?;
                }
                Ok(out)
            }
        }
    }
}

/// A norm.
#[derive(Clone, Copy)]
pub struct Normed {
    w: Param,
    b: Option<Param>,
    eps: f64,
    rms: bool,
    form: NormForm,
}

impl Normed {
    /// Over the last dim.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        match self.rms {
            true => cx.rms_norm_as(x, self.w, self.eps, self.form),
            false => cx.layer_norm_as(x, self.w, self.b, self.eps, self.form),
        }
    }
    /// The same where there is one.
    pub fn maybe(some: Option<Normed>, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        match some {
            Some(n) => n.run(cx, x),
            None => Ok(x),
        }
    }
}

/// A norm of queries or keys.
pub enum HeadNormed {
    /// One scale for all heads, or of all heads together.
    Shared(Normed),
    /// All heads together, of which ranks have parts.
    Parts(RmsNormOver, Param),
    /// A scale of each head's own.
    Own {
        ws: Vec<Param>,
        heads: u64,
        eps: f64,
        /// Other ranks have the other heads, and all the parameters of every head.
        over: Option<Axis>,
    },
}

impl HeadNormed {
    /// Over the last dim or each head of it.
    pub fn run(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        match self {
            HeadNormed::Shared(n) => n.run(cx, x),
            HeadNormed::Parts(norm, w) => norm.run(cx, x, *w),
            HeadNormed::Own {
                ws,
                heads,
                eps,
                over: None,
            } => cx.head_norm(x, ws, *eps, *heads),
            HeadNormed::Own {
                ws,
                heads,
                eps,
                over: Some(axis),
            } => head_norm_over(cx, x, ws, *eps, (*heads, *axis)),
        }
    }
}

/// Declares a unit's parameters; its adapters come last, in the order of its linear layers.
pub struct Declare<'a, 'u> {
    pub u: &'a mut Unit<'u>,
    /// Deviation of matrices.
    pub std: f32,
    pub conv1d: bool,
    /// Ranks over which linear layers and heads are cut.
    pub tp: u64,
    linears: Vec<Registered>,
}

/// A linear layer that may get an adapter.
struct Registered {
    name: &'static str,
    sizes: [u64; 2],
    cut: Cut,
    /// The sizes of fused parts of what it gives.
    parts: Vec<u64>,
}

impl<'a, 'u> Declare<'a, 'u> {
    pub fn new(u: &'a mut Unit<'u>, std: f64, conv1d: bool) -> Self {
        Declare {
            u,
            std: std as f32,
            conv1d,
            tp: 1,
            linears: vec![],
        }
    }
    /// The same with linear layers and heads cut over the tensor-parallel ranks of the mesh.
    pub fn over(self, place: &Place) -> Self {
        let tp = place.length(Axis::Tp).into();
        Declare { tp, ..self }
    }

    fn weight(
        &mut self,
        l: Linear,
        [input, output]: [u64; 2],
        std: f32,
        how: &LinearSplit,
    ) -> Param {
        let shape = match self.conv1d {
            true => [input, output],
            false => [output, input],
        };
        let name = format!("{}.weight", l.name);
        let w = self.u.param(&name, &shape, Init::Normal(std));
        // Inputs are the dim before outputs, or behind.
        how.split(
            self.u,
            w,
            [usize::from(!self.conv1d), usize::from(self.conv1d)],
        )
    }
    fn bias(&mut self, l: Linear, output: u64, how: &LinearSplit) -> Option<Param> {
        let name = format!("{}.bias", l.name);
        let b = l
            .bias
            .then(|| self.u.param(&name, &[output], Init::Zeros))?;
        Some(match how.cut {
            Cut::Columns => how.split(self.u, b, [0, 0]),
            Cut::Not | Cut::Rows => b,
        })
    }
    fn registered(&mut self, l: Linear, sizes: [u64; 2], how: &LinearSplit) -> usize {
        self.linears.push(Registered {
            name: l.name,
            sizes,
            cut: how.cut,
            parts: how.parts.to_vec(),
        });
        self.linears.len() - 1
    }

    /// Returns the division of a layer where the model is cut.
    fn linear_split<'p>(&self, cut: Cut, parts: &'p [u64]) -> LinearSplit<'p> {
        match self.tp {
            1 => LinearSplit::default(),
            _ => LinearSplit { cut, parts },
        }
    }

    /// A linear layer `[input] -> [output]` that every rank has all of.
    pub fn linear(&mut self, l: Linear, sizes: [u64; 2], std: f32) -> Lin {
        self.lin(l, sizes, std, &LinearSplit::default())
    }
    /// A column-parallel one: each rank gives a part of the outputs, of fused `parts` (their sizes) a part of each.
    pub fn columns(&mut self, l: Linear, sizes: [u64; 2], std: f32, parts: &[u64]) -> Lin {
        self.lin(l, sizes, std, &self.linear_split(Cut::Columns, parts))
    }
    /// A row-parallel one: each rank takes a part of the inputs.
    pub fn rows(&mut self, l: Linear, sizes: [u64; 2], std: f32) -> Lin {
        self.lin(l, sizes, std, &self.linear_split(Cut::Rows, &[]))
    }

    fn lin(&mut self, l: Linear, sizes: [u64; 2], std: f32, how: &LinearSplit) -> Lin {
        Lin {
            w: self.weight(l, sizes, std, how),
            b: self.bias(l, sizes[1], how),
            adapter: self.registered(l, sizes, how),
            conv1d: self.conv1d,
            cut: how.cut,
        }
    }

    /// Linear layers over one input of width `input`, of whose outputs each rank gives a part; in one product where `together`.
    pub fn several(
        &mut self,
        all: &[Linear],
        input: u64,
        widths: &[u64],
        together: bool,
    ) -> Several {
        let (std, tp) = (self.std, self.tp);
        let how = &self.linear_split(Cut::Columns, &[]);
        let sized = || all.iter().zip(widths);
        // Weights end to end, then biases end to end, so that either set is one matrix.
        let ws: Vec<Param> = sized()
            .map(|(l, w)| self.weight(*l, [input, *w], std, how))
            .collect();
        let bs: Vec<Option<Param>> = sized().map(|(l, w)| self.bias(*l, *w, how)).collect();
        let parts: Vec<Lin> = sized()
            .zip(ws.iter().zip(&bs))
            .map(|((l, width), (w, b))| Lin {
                w: *w,
                b: *b,
                adapter: self.registered(*l, [input, *width], how),
                conv1d: self.conv1d,
                cut: how.cut,
            })
            .collect();
        match together {
            true => Several::Together {
                parts,
                ws,
                bs: bs.into_iter().flatten().collect(),
                widths: widths.iter().map(|w| w / tp).collect(),
            },
            false => Several::Apart(parts),
        }
    }

    /// A norm of hidden states.
    pub fn hidden_norm(&mut self, n: &Norm, width: u64) -> Normed {
        let norm = self.norm(n, width, 1);
        self.along_tokens(&norm);
        norm
    }

    /// States that a norm meets the tokens of hidden states, and no part of what they hold.
    fn along_tokens(&mut self, n: &Normed) {
        let all = [Some(n.w), n.b].into_iter().flatten();
        all.for_each(|p| _ = self.u.along_tokens(p));
    }

    /// A linear layer over hidden states `[input] -> [output]` that every rank has all of.
    pub fn hidden_linear(&mut self, l: Linear, sizes: [u64; 2], std: f32) -> Lin {
        let lin = self.linear(l, sizes, std);
        let all = [Some(lin.w), lin.b].into_iter().flatten();
        all.for_each(|p| _ = self.u.along_tokens(p));
        lin
    }

    /// A norm over `width` elements, or over each of `heads` heads of that width.
    pub fn norm(&mut self, n: &Norm, width: u64, heads: u64) -> Normed {
        let plus_one = matches!(n.kind, NormKind::RmsPlusOne | NormKind::LayerPlusOne);
        let ones = if plus_one { Init::Zeros } else { Init::Ones };
        let w = self.u.param(&format!("{}.weight", n.name), &[width], ones);
        let bias = matches!(n.kind, NormKind::Layer | NormKind::LayerPlusOne);
        let layer = bias || n.kind == NormKind::LayerNoBias;
        let b = format!("{}.bias", n.name);
        Normed {
            w,
            b: bias.then(|| self.u.param(&b, &[width], Init::Zeros)),
            eps: n.eps,
            rms: !layer,
            form: NormForm {
                unit_offset: plus_one,
                heads,
                over: None,
            },
        }
    }

    /// A norm of queries or keys of so many heads of a width, of which each of `tp` ranks has a part; or all, of which it uses a part only.
    pub fn head_norm(
        &mut self,
        n: &Norm,
        over: Over,
        [heads, width]: [u64; 2],
        tp: u64,
    ) -> HeadNormed {
        let (own, mut apart) = (heads / tp, None);
        let ws = match over {
            Over::All => {
                let norm = self.norm(n, heads * width, 1);
                return match tp {
                    1 => {
                        self.along_tokens(&norm);
                        HeadNormed::Shared(norm)
                    }
                    _ => {
                        let w = self.of_heads(norm.w, 0);
                        HeadNormed::Parts(RmsNormOver::new(Axis::Tp, n.eps), w)
                    }
                };
            }
            Over::Head => {
                let mut norm = self.norm(n, width, own);
                norm.form.over = (tp > 1).then_some(Axis::Tp);
                if tp == 1 {
                    self.along_tokens(&norm);
                }
                return HeadNormed::Shared(norm);
            }
            Over::Rows => {
                let name = format!("{}.weight", n.name);
                let w = self.u.param(&name, &[heads, width], Init::Ones);
                vec![match tp {
                    1 => self.u.along_tokens(w),
                    _ => self.of_heads(w, 0),
                }]
            }
            Over::Apart => {
                apart = (tp > 1).then_some(Axis::Tp);
                let each = (0..heads).map(|h| {
                    let name = format!("{}.norms.{h}.weight", n.name);
                    let w = self.u.param(&name, &[width], Init::Ones);
                    match tp {
                        1 => self.u.along_tokens(w),
                        _ => w,
                    }
                });
                each.collect()
            }
        };
        HeadNormed::Own {
            ws,
            heads: own,
            eps: n.eps,
            over: apart,
        }
    }

    /// A parameter of which a dim counts heads.
    pub fn of_heads(&mut self, p: Param, dim: usize) -> Param {
        let how = self.linear_split(Cut::Columns, &[]);
        how.split(self.u, p, [dim; 2])
    }

    /// A parameter that the file has and nothing here computes with: it stays as it is.
    pub fn kept(&mut self, name: &str, shape: &[u64]) {
        let init = match shape.len() {
            1 => Init::Zeros,
            _ => Init::Normal(self.std),
        };
        let p = self.u.param(name, shape, init);
        self.u.group(p, Group::Frozen);
    }

    /// The unit again, and the adapters of the linear layers in their order.
    pub fn adapters(self, all: &mut Adapters) -> (&'a mut Unit<'u>, Vec<Option<Adapter>>) {
        let (u, linears) = (self.u, self.linears);
        let mut one = |l: Registered| {
            let how = LinearSplit {
                cut: l.cut,
                parts: &l.parts,
            };
            all.layer(u, l.name, l.sizes, &how)
        };
        let adapters = linears.into_iter().map(&mut one).collect();
        (u, adapters)
    }
}

/// An activation by itself: of an op of its own, or as a program.
pub enum Curve {
    Native(Activation),
    Program(Pointwise),
}

impl Curve {
    pub fn of(act: Act) -> Curve {
        match activation(act) {
            a if a.is_native() => Curve::Native(a),
            a => Curve::Program(Pointwise::curve(a)),
        }
    }
    pub fn run(&self, cx: &mut Cx<'_>, x: Var) -> Result<Var> {
        match self {
            Curve::Native(a) => cx.activation(x, *a),
            Curve::Program(f) => cx.pointwise(f, &[x]),
        }
    }
}

/// The activation that a description names.
pub fn activation(act: Act) -> Activation {
    match act {
        Act::GeluTanh => Activation::GeluTanh,
        Act::GeluErf => Activation::GeluErf,
        Act::QuickGelu => Activation::QuickGelu,
        Act::Silu => Activation::Silu,
        Act::Relu => Activation::Relu,
        Act::Tanh => Activation::Tanh,
        Act::Relu2 => Activation::Relu2,
        Act::Sigmoid => Activation::Sigmoid,
        Act::Mish => Activation::Mish,
        Act::Gelu10 => Activation::Gelu10,
    }
}
