//! Parameters as an author declares them: name, shape, init, split, optimizer group. Declaring allocates nothing.

use crate::Shape;
use crate::block::Block;
use crate::error::{Result, shape_error};
use crate::rows::RowCut;
use crate::spmd::{self, Ty, TypedParam};
use crossweave_mesh::{Axis, AxisSet, Cut, Held, Place};
use std::sync::Arc;

/// Index into the parameters of the unit being run (own ones first, then borrowed ones).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Param(pub u16);

/// Starting values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this deviation, from philox keyed by seed and name: the same on any mesh.
    Normal(f32),
    /// Uniform between minus this bound and the bound, drawn likewise.
    Uniform(f32),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// How pieces of a fused matrix divide along the split dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pieces {
    /// One matrix.
    One,
    /// Several laid end to end, each split on its own (fused q, k, v; gate and up): their sizes.
    Fused(Vec<u64>),
    /// One expert each.
    Each,
}

/// The shard spec an author states: one cut, along a tensor dim over a mesh axis. A parameter has a list of them, of other dims over other axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Mesh axis.
    pub axis: Axis,
    /// Tensor dim.
    pub dim: u8,
    /// Fused parts.
    pub pieces: Pieces,
}

impl Split {
    /// The same for the mesh.
    fn cut(&self) -> Cut<'_> {
        Cut {
            axis: self.axis,
            dim: usize::from(self.dim),
            parts: match &self.pieces {
                Pieces::Fused(sizes) => sizes,
                Pieces::One | Pieces::Each => &[],
            },
        }
    }
}

/// Optimizer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Weight decay applies (matrices).
    Decay,
    /// No weight decay (norms, biases).
    NoDecay,
    /// An expert's parameter.
    Expert,
    /// Never updated.
    Frozen,
    /// Never updated, and the same in every checkpoint of a run: what adapters sit on. It is kept in the compute type only, in a flat
    /// buffer apart from the unit's trained parameters, and no checkpoint holds it.
    Base,
}

impl Group {
    /// Is there a gradient, and an update?
    pub fn trains(self) -> bool {
        !matches!(self, Group::Frozen | Group::Base)
    }
}

/// One declared parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamDecl {
    /// Full name, as in the checkpoint.
    pub name: String,
    /// Full (unsplit) shape.
    pub shape: Shape,
    /// Starting values.
    pub init: Init,
    /// Shard spec: nothing where every rank holds all of it.
    pub split: Vec<Split>,
    /// Optimizer group.
    pub group: Group,
    /// What this rank holds of it: all, where [`place_on`] has not said otherwise.
    pub held: Held,
    /// It meets the tokens of hidden states one by one, and all ranks have it whole: where these tokens are cut over ranks
    /// ([`UnitDecl::hidden_over`]) each rank has a summand of its gradient.
    pub along_tokens: bool,
    /// It meets parts of an expert's inner width, and all ranks that have these (`etp`) have it whole: each has a summand of its gradient.
    pub along_parts: bool,
}

impl ParamDecl {
    /// The shape of what this rank holds.
    pub fn local(&self) -> Shape {
        Shape::new(&self.held.part.dims())
    }

    /// As the dry run sees it, where the plan sums its gradient over these axes.
    pub fn typed(&self, sums: AxisSet) -> TypedParam {
        let mut along: [(Ty, u8); 4] = Default::default();
        for s in &self.split {
            if let Some(i) = spmd::at(s.axis) {
                along[i] = (Ty::V, s.dim);
            }
        }
        TypedParam {
            name: self.name.clone(),
            along,
            sums,
            frozen: !self.group.trains(),
        }
    }

    /// What the rank at `place` holds of it.
    ///
    /// # Errors
    /// A split that the parameter or the mesh does not have.
    pub fn held_at(&self, place: &Place) -> Result<Held> {
        let cuts: Vec<Cut<'_>> = self.split.iter().map(Split::cut).collect();
        let held = place.holds(self.shape.dims(), &cuts);
        held.or_else(|e| shape_error(format!("{}: {e}", self.name)))
    }
}

/// Says of every unit where the rank is, and of every parameter what it holds of it there. Call it on units before the dry run sees
/// them, where an axis on which blocks communicate is longer than one.
///
/// # Errors
/// As [`ParamDecl::held_at`].
pub fn place_on(units: &mut [UnitDecl], place: &Place) -> Result<()> {
    units.iter_mut().try_for_each(|u| {
        u.place = *place;
        let mut params = u.params.iter_mut();
        params.try_for_each(|p| p.held_at(place).map(|held| p.held = held))
    })
}

/// What a unit reads of a sample beside its tokens: images, and how they stand among these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images {
    /// The token that stands for a feature.
    pub token: i32,
    /// Images of a row.
    pub row: u64,
    /// Patches of an image.
    pub patches: u64,
    /// Values of a patch.
    pub patch: u64,
    /// Features of an image: places that it takes among the tokens.
    pub features: u64,
}

impl Images {
    /// f32 words of a row's images.
    pub fn words(&self) -> u64 {
        self.row * self.patches * self.patch
    }
    /// Which feature of all rows stands at each token of rows of `t`; -1 where none does.
    pub fn places<'a>(&self, tokens: &'a [i32], t: usize) -> impl Iterator<Item = i32> + use<'a> {
        let (token, each) = (self.token, (self.row * self.features) as i32);
        let rows = tokens.chunks(t.max(1)).enumerate();
        rows.flat_map(move |(row, ids)| {
            ids.iter().scan(row as i32 * each, move |next, id| {
                let here = if *id == token { *next } else { -1 };
                *next += i32::from(*id == token);
                Some(here)
            })
        })
    }
    /// The same tokens with -1 where a feature stands.
    pub fn words_only<'a>(&self, tokens: &'a [i32]) -> impl Iterator<Item = i32> + use<'a> {
        let token = self.token;
        let each = tokens.iter();
        each.map(move |id| if *id == token { -1 } else { *id })
    }
}

/// One declared unit with its block, which clones share.
#[derive(Clone)]
pub struct UnitDecl {
    /// Prefix of its names.
    pub name: String,
    /// Own parameters, in the order of its flat buffer.
    pub params: Vec<ParamDecl>,
    /// Parameters of other units it also uses (tied weights): (unit index, parameter index).
    pub borrowed: Vec<(usize, usize)>,
    /// Constant tables: shape and values. Units that share a table share the `Arc`, and the engine uploads it once.
    pub consts: Vec<(Shape, Arc<[f32]>)>,
    /// Images that it reads of a sample.
    pub images: Option<Images>,
    /// The rank's place on the mesh, by which its blocks communicate: alone, where [`place_on`] has not said otherwise.
    pub place: Place,
    /// The axes over whose ranks the tokens of hidden states between units are cut ([`crate::Batch::hidden_over`]).
    pub hidden_over: AxisSet,
    /// How rows are cut over the ranks that have other tokens of them ([`crate::Batch::rows`]).
    pub rows: RowCut,
    /// It holds parameters for the next unit and hands on what flows: it is counted with that unit ([`Unit::lends`]).
    pub lends: bool,
    /// The code.
    pub block: Arc<dyn Block>,
}

impl UnitDecl {
    /// The axes over whose ranks the gradient of one of its parameters is summed beside the sum of ZeRO, once a step: those that cut the
    /// tokens that the parameter meets ([`ParamDecl::along_tokens`]), or the experts ([`ParamDecl::along_parts`]).
    pub fn summed_over(&self, p: &ParamDecl) -> AxisSet {
        let cut = match (p.along_tokens, p.along_parts) {
            (true, _) => self.hidden_over,
            (false, true) => Axis::Etp.into(),
            (false, false) => AxisSet::NONE,
        };
        let cut = self.place.among(cut).filter(|_| p.group.trains());
        cut.map_or(AxisSet::NONE, |g| g.axes)
    }

    /// Returns true if ranks hold parts of different sizes of one of its parameters (rows of a vocabulary that they do not divide).
    pub fn has_uneven_parts(&self) -> bool {
        let uneven = |p: &ParamDecl| {
            p.split.iter().any(|s| {
                let ranks = self.place.length(s.axis).into();
                let size = p.shape.dims().get(usize::from(s.dim));
                size.is_some_and(|n| !n.is_multiple_of(ranks))
            })
        };
        self.params.iter().any(uneven)
    }
}

/// Collects the units of a model in run order.
#[derive(Default)]
pub struct Builder {
    units: Vec<UnitDecl>,
}

impl Builder {
    /// Declares the next unit, named by the prefix of its parameters: `make` declares them and returns the block.
    pub fn unit<B: Block + 'static>(
        &mut self,
        prefix: &str,
        make: impl FnOnce(&mut Unit<'_>) -> B,
    ) {
        self.unit_named(prefix, prefix, make);
    }

    /// The same for units whose parameters share no prefix.
    pub fn unit_named<B: Block + 'static>(
        &mut self,
        name: &str,
        prefix: &str,
        make: impl FnOnce(&mut Unit<'_>) -> B,
    ) {
        let mut u = Unit {
            prefix: prefix.to_string(),
            params: vec![],
            borrowed: vec![],
            consts: vec![],
            images: None,
            lends: false,
            earlier: &self.units,
        };
        let block = make(&mut u);
        let (params, borrowed, consts, images) = (u.params, u.borrowed, u.consts, u.images);
        let lends = u.lends;
        self.units.push(UnitDecl {
            name: name.to_string(),
            params,
            borrowed,
            consts,
            images,
            place: Place::alone(),
            hidden_over: AxisSet::NONE,
            rows: RowCut::default(),
            lends,
            block: Arc::new(block),
        });
    }

    /// The units, in run order.
    pub fn finish(self) -> Vec<UnitDecl> {
        self.units
    }
}

/// The unit being declared.
pub struct Unit<'a> {
    prefix: String,
    params: Vec<ParamDecl>,
    borrowed: Vec<(usize, usize)>,
    consts: Vec<(Shape, Arc<[f32]>)>,
    images: Option<Images>,
    lends: bool,
    earlier: &'a [UnitDecl],
}

impl Unit<'_> {
    /// The full name of what the unit calls `local`.
    pub fn full_name(&self, local: &str) -> String {
        match self.prefix.is_empty() {
            true => local.to_string(),
            false => format!("{}.{local}", self.prefix),
        }
    }
    /// Declares a parameter; its full name is `prefix.local`. Matrices decay, vectors do not; see [`Unit::group`].
    pub fn param(&mut self, local: &str, shape: &[u64], init: Init) -> Param {
        let name = self.full_name(local);
        let group = if shape.len() >= 2 {
            Group::Decay
        } else {
            Group::NoDecay
        };
        assert!(
            self.borrowed.is_empty(),
            "declare own parameters of {name} before borrowing others"
        );
        self.params.push(ParamDecl {
            name,
            shape: Shape::new(shape),
            init,
            split: vec![],
            group,
            held: Held::whole(shape),
            along_tokens: false,
            along_parts: false,
        });
        Param(self.params.len() as u16 - 1)
    }
    /// Sets the optimizer group.
    pub fn group(&mut self, p: Param, group: Group) -> Param {
        self.params[p.0 as usize].group = group;
        p
    }
    /// States that `p` is split along `dim` over `axis`, beside what was stated before.
    pub fn split(&mut self, p: Param, axis: Axis, dim: u8, pieces: Pieces) -> Param {
        let split = &mut self.params[p.0 as usize].split;
        split.push(Split { axis, dim, pieces });
        p
    }
    /// States that `p` is whole on ranks that have parts of its expert's inner width ([`ParamDecl::along_parts`]).
    pub fn along_parts(&mut self, p: Param) -> Param {
        self.params[p.0 as usize].along_parts = true;
        p
    }
    /// States that `p` meets the tokens of hidden states one by one ([`ParamDecl::along_tokens`]).
    pub fn along_tokens(&mut self, p: Param) -> Param {
        self.params[p.0 as usize].along_tokens = true;
        p
    }
    /// Brings a constant table; read it as `cx.env.consts[i]`, `i` being what this returns.
    pub fn constant(&mut self, shape: &[u64], values: Arc<[f32]>) -> usize {
        self.consts.push((Shape::new(shape), values));
        self.consts.len() - 1
    }
    /// The unit does nothing but hold parameters for the next one, whose ranks share them otherwise than its own: pipelines keep the two together,
    /// and numbers that count units, such as those of randomness, pass over it.
    pub fn lends(&mut self) {
        self.lends = true;
    }
    /// The unit reads images of a sample.
    pub fn reads(&mut self, images: Images) {
        self.images = Some(images);
    }
    /// Uses a parameter of an earlier unit too (tied weights). `None` when no unit declared that name.
    pub fn borrow(&mut self, full_name: &str) -> Option<Param> {
        let at = self.earlier.iter().enumerate().find_map(|(u, d)| {
            d.params
                .iter()
                .position(|p| p.name == full_name)
                .map(|p| (u, p))
        })?;
        // One borrowed twice is one parameter: what is written of its gradient second is added.
        let known = self.borrowed.iter().position(|b| *b == at);
        let place = known.unwrap_or_else(|| {
            self.borrowed.push(at);
            self.borrowed.len() - 1
        });
        Some(Param((self.params.len() + place) as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Flow;
    use crate::cx::Cx;

    struct Nothing;
    impl Block for Nothing {
        fn forward(&self, _: &mut Cx<'_>, flow: Flow) -> crate::Result<Flow> {
            Ok(flow)
        }
    }

    #[test]
    fn a_parameter_borrowed_twice_is_one() {
        let mut b = Builder::default();
        b.unit("a", |u| {
            u.param("w", &[2], Init::Ones);
            u.param("v", &[2], Init::Ones);
            Nothing
        });
        b.unit("b", |u| {
            u.param("own", &[2], Init::Ones);
            let all = ["a.w", "a.v", "a.w"].map(|n| u.borrow(n).expect("it is there").0);
            assert_eq!(all, [1, 2, 1]);
            Nothing
        });
        assert_eq!(b.finish()[1].borrowed, [(0, 0), (0, 1)]);
    }
}
