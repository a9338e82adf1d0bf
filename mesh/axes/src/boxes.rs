//! What a rank holds of a declared tensor: along each dim a range of it, or of a dim of fused parts a range of each part.
//!
//! Elements of a box are counted row-major in the box, as a block reads them. Where they lie in the declared tensor is said
//! here alone: starting values, checkpoints, reads and figures of whole parameters ask a box, and know nothing of splits.

use crate::axis::{Axis, AxisSet};
use crate::place::Place;
use crate::topology::TopologyError;
use std::ops::Range;

/// What of a declared tensor one rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorBox {
    shape: Vec<u64>,
    /// Along each dim what is held, in rising order.
    held: Vec<Vec<Range<u64>>>,
}

/// Elements that are neighbours both in the box and in the declared tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxRun {
    /// First element of the declared tensor.
    pub declared: u64,
    /// First element of the box.
    pub held: u64,
    /// Elements.
    pub len: u64,
}

/// Elements that are neighbours in a box, said as a checkpoint does: by a rectangular slice of the declared tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxPiece {
    /// `[first, count]` of each dim; empty: the whole tensor.
    pub slice: Vec<[u64; 2]>,
    /// Elements, counted in the slice.
    pub of_slice: Range<u64>,
    /// The first of them in the box.
    pub at: u64,
}

/// One cut of a parameter: along a dim, whose fused parts (their sizes; one part where none are given) are cut each by itself,
/// over an axis.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The axis whose coordinates hold the pieces, in their order.
    pub axis: Axis,
    /// The dim.
    pub dim: usize,
    /// Sizes of the parts that lie end to end in the dim.
    pub parts: &'a [u64],
}

/// What a rank holds of a parameter, and who else holds the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its elements.
    pub part: TensorBox,
    /// The axes whose ranks hold the same elements and see other tokens: what ZeRO shards it over.
    pub owners: AxisSet,
    /// Whether this rank is the first of those that hold the same elements and see the same tokens: it counts them in norms, and
    /// writes them to checkpoints.
    pub first: bool,
}

impl TensorBox {
    /// All of a tensor of this shape.
    pub fn whole(shape: &[u64]) -> TensorBox {
        let all = |n: &u64| (*n > 0).then_some(0..*n).into_iter().collect();
        TensorBox {
            shape: shape.to_vec(),
            held: shape.iter().map(all).collect(),
        }
    }

    /// The same with run `at` of `of` equal ones along `dim`, the last of which may be shorter; of fused `parts` (their sizes) of
    /// each that run. The dim was whole.
    pub fn cut(mut self, dim: usize, parts: &[u64], (at, of): (u32, u32)) -> TensorBox {
        let one = [self.shape[dim]];
        let parts = if parts.is_empty() { &one } else { parts };
        let mut first = 0;
        let mut run = |n: &u64| {
            let each = n.div_ceil(u64::from(of.max(1)));
            let [from, to] = [at, at + 1].map(|k| first + (u64::from(k) * each).min(*n));
            first += n;
            from..to
        };
        let runs = parts.iter().map(&mut run);
        self.held[dim] = runs.filter(|r| !r.is_empty()).collect();
        self
    }

    /// The declared shape.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
    /// The shape of what is held.
    pub fn dims(&self) -> Vec<u64> {
        let sum = |all: &Vec<Range<u64>>| all.iter().map(|r| r.end - r.start).sum();
        self.held.iter().map(sum).collect()
    }
    /// Elements held.
    pub fn numel(&self) -> u64 {
        self.dims().iter().product()
    }
    /// Whether that is all of the tensor.
    pub fn is_whole(&self) -> bool {
        self.numel() == self.shape.iter().product()
    }

    /// Place `i` of a dim of the box in the declared dim, and how many places of the box follow there without a gap, it included.
    pub fn along(&self, dim: usize, i: u64) -> (u64, u64) {
        let mut rest = i;
        for r in &self.held[dim] {
            let n = r.end - r.start;
            if rest < n {
                return (r.start + rest, n - rest);
            }
            rest -= n;
        }
        (self.shape[dim], 0)
    }

    /// Element `i` of the box's first `dims` dims, counted row-major, among those of the declared tensor.
    pub fn outer(&self, dims: usize, i: u64) -> u64 {
        let (mut rest, mut stride, mut declared) = (i, 1, 0);
        let held = self.dims();
        for d in (0..dims).rev() {
            declared += self.along(d, rest % held[d]).0 * stride;
            rest /= held[d];
            stride *= self.shape[d];
        }
        declared
    }

    /// The runs of elements `r` of the box, in their order, which is rising in both.
    pub fn runs(&self, r: Range<u64>) -> impl Iterator<Item = BoxRun> + '_ {
        let dims = self.dims();
        let cut = dims.iter().zip(&self.shape).rposition(|(h, s)| h != s);
        let inner: u64 = cut.map_or(1, |d| self.shape[d + 1..].iter().product());
        let mut at = r.start;
        std::iter::from_fn(move || {
            let left = r.end.checked_sub(at).filter(|n| *n > 0)?;
            let (declared, len) = match cut {
                None => (at, left),
                Some(d) => {
                    let (place, within) = (at / inner, at % inner);
                    let (here, follow) = self.along(d, place % dims[d]);
                    let row = self.outer(d, place / dims[d]);
                    let declared = (row * self.shape[d] + here) * inner + within;
                    (declared, (follow * inner - within).min(left))
                }
            };
            let run = BoxRun {
                declared,
                held: at,
                len,
            };
            at += len;
            Some(run)
        })
    }

    /// Elements `r` of the box as pieces of rectangular slices: one, but where fused parts are cut.
    pub fn pieces(&self, r: Range<u64>) -> Vec<BoxPiece> {
        let sides = |held: &[Range<u64>]| {
            let (first, end) = (held.first(), held.last());
            let first = first.map_or(0, |r| r.start);
            [first, end.map_or(0, |r| r.end) - first]
        };
        let fused = self.held.iter().rposition(|h| h.len() > 1);
        let Some(d) = fused else {
            let slice = match self.is_whole() {
                true => vec![],
                false => self.held.iter().map(|h| sides(h)).collect(),
            };
            let at = r.start;
            return vec![BoxPiece {
                slice,
                of_slice: r,
                at,
            }];
        };
        let dims = self.dims();
        let inner: u64 = dims[d + 1..].iter().product();
        let row = dims[d] * inner;
        let rows: u64 = dims[..d].iter().product();
        let first = r.start / row.max(1);
        let mut out = vec![];
        for i in first..rows.min(r.end.div_ceil(row.max(1))) {
            let mut slice = vec![[0; 2]; dims.len()];
            let mut rest = i;
            for k in (0..d).rev() {
                slice[k] = [self.along(k, rest % dims[k]).0, 1];
                rest /= dims[k];
            }
            for (side, held) in slice.iter_mut().zip(&self.held).skip(d + 1) {
                *side = sides(held);
            }
            let mut at = i * row;
            for part in &self.held[d] {
                let end = at + (part.end - part.start) * inner;
                let here = at.max(r.start)..end.min(r.end);
                if here.start < here.end {
                    slice[d] = [part.start, part.end - part.start];
                    out.push(BoxPiece {
                        slice: slice.clone(),
                        of_slice: here.start - at..here.end - at,
                        at: here.start,
                    });
                }
                at = end;
            }
        }
        out
    }

    /// What is held of the values of the declared tensor.
    pub fn take<T: Copy>(&self, whole: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(self.numel() as usize);
        for r in self.runs(0..self.numel()) {
            let from = r.declared as usize;
            out.extend_from_slice(&whole[from..from + r.len as usize]);
        }
        out
    }
    /// Puts what is held to its places among the values of the declared tensor.
    pub fn put<T: Copy>(&self, held: &[T], whole: &mut [T]) {
        for r in self.runs(0..self.numel()) {
            let (to, from, n) = (r.declared as usize, r.held as usize, r.len as usize);
            whole[to..to + n].copy_from_slice(&held[from..from + n]);
        }
    }
}

impl Held {
    /// All of a dense parameter, on a rank that is the only one of its stage to see its tokens.
    pub fn whole(shape: &[u64]) -> Held {
        Held {
            part: TensorBox::whole(shape),
            owners: AxisSet::DATA,
            first: true,
        }
    }
}

impl Place {
    /// What the rank here holds of a parameter of this shape that is cut so: of experts where an axis of theirs cuts it.
    ///
    /// # Errors
    /// A dim there is not, or that is cut twice; parts that are not the dim; axes of both arrangements of a stage's ranks, or
    /// those over which nothing is cut.
    pub fn holds(&self, shape: &[u64], cuts: &[Cut<'_>]) -> Result<Held, TopologyError> {
        let mut part = TensorBox::whole(shape);
        let mut over = AxisSet::NONE;
        for (i, cut) in cuts.iter().enumerate() {
            let wrong = |what: String, fix: &str| TopologyError {
                key: format!("mesh.{}", cut.axis),
                what: format!(
                    "a parameter of shape {shape:?} is cut along dim {}: {what}",
                    cut.dim
                ),
                fix: fix.into(),
            };
            let holds_other = [Axis::Tp, Axis::Ep, Axis::Etp].contains(&cut.axis);
            over = over.union(cut.axis.into());
            if !holds_other || over.is_mixed() {
                let what = format!("no ranks that differ on {over} alone hold other elements");
                return Err(wrong(
                    what,
                    "cut dense parameters over tp, and experts over ep and etp",
                ));
            }
            let Some(size) = shape.get(cut.dim) else {
                return Err(wrong("there is no such dim".into(), "name one of its dims"));
            };
            let parts: u64 = cut.parts.iter().sum();
            if !cut.parts.is_empty() && parts != *size {
                let what =
                    format!("its fused parts have {parts} places together, and the dim {size}");
                return Err(wrong(what, "declare the sizes of all parts"));
            }
            if cuts[..i].iter().any(|c| c.dim == cut.dim) {
                return Err(wrong("that dim is cut already".into(), "cut another dim"));
            }
            let of = (self.at(cut.axis), self.length(cut.axis));
            part = part.cut(cut.dim, cut.parts, of);
        }
        let owners = match over.is_expert() {
            true => AxisSet::EXPERT_DATA,
            false => AxisSet::DATA,
        };
        let mut alike = owners.holders().iter().filter(|a| !over.contains(*a));
        Ok(Held {
            part,
            owners,
            first: alike.all(|a| self.at(a) == 0),
        })
    }
}
