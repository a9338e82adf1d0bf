//! Cells: one op over one combination of dtypes (and kind), with the trials that a claim of it must stand. A combination is claimed by
//! `op_prepare`; what is claimed must hold, what is not must be refused as `UNSUPPORTED`.

use super::rig::{Answer, Place, Rig, layouts, row};
use super::tensor::T;
use super::trial::{Trial, class_name};
use crate::case::{Check, Demanded, Effort, Verdict, pass_with, refused, skip};
use crate::ctx::Rng;
use crossweave_abi as abi;
use crossweave_abi::op::{self, KindParams};
use crossweave_abi::{DType, profile};
use std::cmp::Reverse;

/// The floats of the op table.
pub const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Lengths of lists of tensors: around those that kernels take at once.
pub const LISTS: [usize; 7] = [1, 31, 32, 33, 65, 111, 300];
/// Sizes around the widths of vectors.
pub const SIZES: [usize; 5] = [0, 1, 7, 33, 257];
/// The ops of attention.
const ATTENTION: [u32; 6] = [
    op::ATTENTION_FWD,
    op::ATTENTION_BWD,
    op::ATTENTION_VARLEN_FWD,
    op::ATTENTION_VARLEN_BWD,
    op::ATTENTION_EXT_FWD,
    op::ATTENTION_EXT_BWD,
];
/// Index types.
pub const INDEX: [DType; 2] = [DType::I32, DType::I64];

/// The params of a function by its number.
pub fn kind(kind: u32) -> KindParams {
    KindParams {
        kind,
        ..Default::default()
    }
}

/// What the trials of a cell are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum About {
    /// Shapes, layouts, parameters and inputs.
    #[default]
    Usual,
    /// Sizes beyond those of tiles ([`super::sizes`]).
    Sizes,
    /// Sizes that end in the middle of tiles ([`super::sizes`]).
    Residues,
    /// Parameters and ratios that models and optimizers have, and numbers at the ends of a type.
    Models,
    /// Numbers that are not read, which are none.
    Unread,
    /// Parts of a row, and results in f32 over 16-bit operands.
    Parts,
    /// Every choice of a parameter, a layout or a kind of input beside every one of each other ([`super::cover`]).
    Pairs,
    /// Lists of many tensors.
    Lists,
    /// Launches of one prepared op behind a stream that is held back, each given other numbers.
    Launches,
}

impl About {
    /// What a case of such trials is called behind the cell's id.
    pub fn suffix(self) -> &'static str {
        match self {
            About::Usual => "",
            About::Sizes => ".sizes",
            About::Residues => ".residues",
            About::Models => ".models",
            About::Unread => ".unread",
            About::Parts => ".parts",
            About::Pairs => ".pairs_1",
            About::Lists => ".lists",
            About::Launches => ".launches",
        }
    }
}

/// Numbers for trials.
pub struct Gen {
    rng: Rng,
    /// How much is tried.
    pub effort: Effort,
    /// What the trials are to be about.
    pub about: About,
}

impl Gen {
    /// From a case's seed.
    pub fn new(rng: Rng, effort: Effort) -> Gen {
        Gen {
            rng,
            effort,
            about: About::Usual,
        }
    }
    /// For trials about something else than the usual.
    pub fn about(mut self, about: About) -> Gen {
        self.about = about;
        self
    }
    /// How many launches or ops there are at once where that is what is tried.
    pub fn at_once(&self) -> usize {
        match self.effort {
            Effort::Quick => 300,
            _ => 1000,
        }
    }
    /// Are trials of sizes wanted, large ones or ends of tiles?
    pub fn sizes(&self) -> bool {
        matches!(self.about, About::Sizes | About::Residues)
    }
    /// Are those the ends of tiles?
    pub fn residues(&self) -> bool {
        self.about == About::Residues
    }
    /// Sizes that take long, too?
    pub fn big(&self) -> bool {
        self.effort == Effort::Big
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.rng.below(n.max(1) as u64) as usize
    }
    /// In [-1, 1).
    pub fn unit(&mut self) -> f64 {
        2.0 * self.rng.unit() - 1.0
    }
    /// So many in [-scale, scale).
    pub fn reals(&mut self, n: usize, scale: f64) -> Vec<f64> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
    /// Dense random operand.
    pub fn real(&mut self, t: DType, shape: &[usize], scale: f64) -> T {
        let v = self.reals(shape.iter().product(), scale);
        T::new(t, shape, &v)
    }
    /// Small whole numbers in [-most, most]: sums of them are exact in any order.
    pub fn whole(&mut self, t: DType, shape: &[usize], most: i64) -> T {
        let n = shape.iter().product();
        let v: Vec<f64> = (0..n)
            .map(|_| (self.below(2 * most as usize + 1) as i64 - most) as f64)
            .collect();
        T::new(t, shape, &v)
    }
    /// Raw bits.
    pub fn bits(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.rng.word()).collect()
    }
}

type Build = Box<dyn Fn(&mut Gen) -> Vec<Trial> + Send + Sync>;

/// One op over one combination of dtypes.
pub struct Cell {
    /// `op.<name>.<what>`.
    pub id: String,
    /// Its id in the op table.
    pub op: u32,
    /// Profiles that need it.
    pub demanded: Demanded,
    build: Build,
    /// The same in a dtype that serves the profile as well.
    instead: Option<Build>,
}

impl Cell {
    /// A cell that no profile demands.
    pub fn new(
        op: u32,
        what: impl std::fmt::Display,
        build: impl Fn(&mut Gen) -> Vec<Trial> + Send + Sync + 'static,
    ) -> Cell {
        Cell {
            id: format!("op.{}.{what}", row(op).name),
            op,
            demanded: Demanded::NOWHERE,
            build: Box::new(build),
            instead: None,
        }
    }

    /// With the types of its operands, by which a profile may ask for it. Profiles ask for one 16-bit float and
    /// are content with either: the cells of bf16 are those demanded, and say with [`Cell::or`] what else serves.
    pub fn of(mut self, types: &[DType]) -> Cell {
        if let Some(least) = profile::op_need(self.op, types, DType::Bf16) {
            self.demanded = Demanded::From(least);
        }
        self
    }

    /// What serves a profile as well: the same in f16.
    pub fn or(mut self, build: impl Fn(&mut Gen) -> Vec<Trial> + Send + Sync + 'static) -> Cell {
        self.instead = Some(Box::new(build));
        self
    }

    /// Cells over the floats `t`, with the types of the operands of each.
    pub fn floats(
        op: u32,
        what: &str,
        types: impl Fn(DType) -> Vec<DType>,
        build: impl Fn(&mut Gen, DType) -> Vec<Trial> + Send + Sync + Copy + 'static,
    ) -> Vec<Cell> {
        let name = |t: DType| match what {
            "" => t.name().to_string(),
            w => format!("{w}.{}", t.name()),
        };
        FLOATS
            .into_iter()
            .map(|t| {
                let c = Cell::new(op, name(t), move |g: &mut Gen| build(g, t)).of(&types(t));
                match t {
                    DType::Bf16 => c.or(move |g: &mut Gen| build(g, DType::F16)),
                    _ => c,
                }
            })
            .collect()
    }

    /// Are there trials about this?
    pub fn is_about(&self, about: About) -> bool {
        let lists = [
            op::NONFINITE_COUNT,
            op::ADAMW,
            op::MULTI_SUMSQ,
            op::MULTI_SCALE,
        ];
        let models = [
            op::ADAMW,
            op::AXPBY,
            op::CLAMP,
            op::CROSS_ENTROPY_FWD,
            op::CROSS_ENTROPY_BWD,
            op::DROPOUT,
            op::ELEMENTWISE_PROGRAM,
            op::FILL_STRIDED,
            op::IOTA,
            op::LAYER_NORM_FWD,
            op::MATMUL,
            op::MULTI_SCALE,
            op::PHILOX,
            op::REDUCE,
            op::RMS_NORM_FWD,
            op::SOFTMAX_FWD,
        ];
        let unread = [
            op::CROSS_ENTROPY_BWD,
            op::EMBEDDING_FWD,
            op::EMBEDDING_BWD,
            op::GATHER_ROWS,
            op::SCATTER_ADD_ROWS,
        ];
        // Of these one choice is combined with the others: that inputs of more than one dim have gaps.
        let gaps = [
            op::ACTIVATION_BWD,
            op::ARG_REDUCE,
            op::COPY_STRIDED,
            op::CUMSUM,
            op::EMBEDDING_FWD,
            op::EMBEDDING_BWD,
            op::GATHER_ROWS,
            op::REDUCE,
            op::SCATTER_ADD_ROWS,
            op::SELECT,
            op::SOFTMAX_FWD,
            op::SOFTMAX_BWD,
            op::SORT_PAIRS,
            op::TOPK,
        ];
        let launched = [
            op::ADAMW,
            op::DROPOUT,
            op::ELEMENTWISE_PROGRAM,
            op::MULTI_SCALE,
            op::PHILOX,
        ];
        match about {
            About::Launches => launched.contains(&self.op),
            About::Parts => [op::ATTENTION_EXT_FWD, op::ATTENTION_EXT_BWD].contains(&self.op),
            About::Lists => lists.contains(&self.op),
            About::Models => models.contains(&self.op) || ATTENTION.contains(&self.op),
            About::Pairs => self.has_pairs() || gaps.contains(&self.op),
            About::Unread => unread.contains(&self.op) || ATTENTION.contains(&self.op),
            _ => true,
        }
    }

    /// The trials. Of ops whose parameters have no choices of their own, every usual one has gaps in its inputs where pairs are asked for.
    pub fn trials(&self, g: &mut Gen) -> Vec<Trial> {
        if g.about != About::Pairs || self.has_pairs() {
            return (self.build)(g);
        }
        g.about = About::Usual;
        let mut all = (self.build)(g);
        g.about = About::Pairs;
        all.retain(|t| !t.subnormal);
        all.iter().filter_map(|t| Some(t.apart(false)?.1)).collect()
    }

    /// Has the op choices that are combined by design?
    fn has_pairs(&self) -> bool {
        use op::*;
        let of_rows = [LAYER_NORM_FWD, LAYER_NORM_BWD, RMS_NORM_FWD, RMS_NORM_BWD];
        let of_losses = [CROSS_ENTROPY_FWD, CROSS_ENTROPY_BWD];
        let of_products = [MATMUL, GROUPED_MATMUL, GROUPED_MATMUL_DW];
        let others = [ADAMW, DROPOUT, ROPE, SWIGLU_FWD, SWIGLU_BWD];
        of_rows.contains(&self.op)
            || of_losses.contains(&self.op)
            || of_products.contains(&self.op)
            || others.contains(&self.op)
            || ATTENTION.contains(&self.op)
    }

    /// One of the usual trials with gaps in every input that may have them, and in those of more than one dim: a device may
    /// want the rest dense.
    pub fn with_gaps(&self, trials: &[Trial]) -> Vec<Trial> {
        use op::*;
        // Inputs of `add` are dense, and so is the lse of attention.
        if self.op == ADD || ATTENTION.contains(&self.op) {
            return vec![];
        }
        let most = |lines: bool| {
            let plain = trials.iter().filter(|t| !t.subnormal);
            let moved = plain.filter_map(|t| t.apart(lines));
            moved.min_by_key(|(inputs, t)| (Reverse(*inputs), t.bytes()))
        };
        let lines = match self.demanded == Demanded::NOWHERE {
            true => most(true),
            false => None,
        };
        [most(false), lines]
            .into_iter()
            .flatten()
            .map(|m| m.1)
            .collect()
    }

    /// Special numbers again and again, for kernels that are chosen where there are many: of ops whose elements are
    /// alike the usual trials that words describe.
    fn repeated(&self, g: &mut Gen) -> Vec<Trial> {
        use op::*;
        let alike = [
            UNARY,
            BINARY,
            COMPARE,
            CLAMP,
            CAST,
            AXPBY,
            ACTIVATION_FWD,
            ACTIVATION_BWD,
        ];
        if g.about != About::Sizes || !alike.contains(&self.op) {
            return vec![];
        }
        g.about = About::Usual;
        let usual = self.trials(g);
        g.about = About::Sizes;
        let least: &[usize] = match g.effort {
            Effort::Quick => &[1025],
            _ => &[1025, 4097],
        };
        let special = usual.iter().filter(|t| !t.what.starts_with('['));
        let each = |t: &Trial| {
            least
                .iter()
                .filter_map(|n| t.repeated(*n))
                .collect::<Vec<_>>()
        };
        special.flat_map(each).collect()
    }

    /// Runs the trials.
    pub fn judge(&self, rig: &mut Rig, g: &mut Gen) -> Check {
        let spec = row(self.op);
        let mut trials = self.trials(g);
        trials.extend(self.repeated(g));
        if g.about == About::Usual {
            trials.extend(self.with_gaps(&trials));
        }
        let asked = trials.len();
        trials.retain(|t| !(t.subnormal && rig.flushes()));
        let left_out = asked - trials.len();
        let largest = trials
            .iter()
            .enumerate()
            .max_by_key(|(_, t)| t.bytes())
            .map(|(i, _)| i);
        let (mut worst, mut class, mut held) = (0.0f64, 0, 0usize);
        let mut no: Vec<String> = Vec::new();
        for (i, t) in trials.iter().enumerate() {
            let mut places = vec![if i % 2 == 0 {
                Place::Odd
            } else {
                Place::Aligned
            }];
            if Some(i) == largest {
                places = vec![Place::Aligned, Place::Odd, Place::Shared];
            }
            for p in places {
                match rig.run(spec, t, p, 0)? {
                    Answer::Held {
                        worst: w, class: c, ..
                    } => {
                        worst = worst.max(w);
                        class = c;
                        held += 1;
                    }
                    Answer::Refused(why) => {
                        no.push(format!("{}: {why}", t.what));
                        break;
                    }
                }
            }
        }
        if held == 0 {
            let why = no.first().cloned().unwrap_or_default();
            if let Some(instead) = &self.instead {
                let claimed = instead(g)
                    .first()
                    .is_some_and(|t| rig.prepare(self.op, t, 0).is_ok());
                if claimed {
                    return skip("not claimed, and the other 16-bit float is");
                }
            }
            return refused(why);
        }
        let mut note = format!("{held} runs");
        if left_out > 0 {
            note += &format!(", {left_out} with subnormal numbers left out (declared)");
        }
        if let Some(first) = no.first() {
            let text = format!(
                "{} of {} combinations not claimed; {first}",
                no.len(),
                trials.len()
            );
            if self.demanded != Demanded::NOWHERE {
                return refused(text);
            }
            note += &format!("; {text}");
        }
        Ok(with_error(pass_with(note)?, class, worst))
    }

    /// The claimed trial of tile sizes that moves most, and a small one of the usual trials.
    pub fn large_and_small(&self, rig: &Rig, g: &mut Gen) -> Option<(Trial, Trial)> {
        let claimed =
            |t: &Trial| !(t.subnormal && rig.flushes()) && rig.prepare(self.op, t, 0).is_ok();
        g.effort = Effort::Quick;
        g.about = About::Usual;
        let mut usual = self.trials(g);
        usual.sort_by_key(Trial::bytes);
        g.about = About::Sizes;
        let mut sizes = self.trials(g);
        sizes.sort_by_key(Trial::bytes);
        let middle = usual.len() / 2;
        let small = usual.into_iter().skip(middle).find(claimed)?;
        let large = sizes.into_iter().rev().find(claimed);
        Some((large.unwrap_or_else(|| small.clone()), small))
    }

    /// Two streams run the op at once: one prepared op on both, and a large and a small one.
    pub fn two_streams(&self, rig: &mut Rig, g: &mut Gen) -> Result<bool, String> {
        let spec = row(self.op);
        let Some((large, small)) = self.large_and_small(rig, g) else {
            return Ok(false);
        };
        let both = rig.together([(spec, &large), (spec, &large)], 3)?;
        let mixed = rig.together([(spec, &large), (spec, &small)], 6)?;
        Ok(both || mixed)
    }

    /// Runs the trials again and again under the deterministic flag, prepared anew and launched anew, and compares bits.
    pub fn twice(&self, rig: &mut Rig, g: &mut Gen) -> Check {
        let spec = row(self.op);
        let mut compared = 0;
        let mut trials = self.trials(g);
        for (i, (t, other)) in trials.iter().zip(self.trials(g)).enumerate() {
            if g.effort == Effort::Quick && i % 3 != 0 {
                continue;
            }
            let alike = t.params == other.params && layouts(t) == layouts(&other);
            let plain = t.bytes() > 0 && !(t.subnormal && rig.flushes());
            if alike && plain && other.launches[0].dynamic.len() == t.launches[0].dynamic.len() {
                rig.renewed(spec, [t, &other])?;
            }
        }
        if g.effort == Effort::Quick {
            let mut number = 0;
            trials.retain(|_| {
                number += 1;
                number % 3 == 1
            });
        }
        // What is shared among many blocks shows only where there are many.
        (g.effort, g.about) = (Effort::Quick, About::Sizes);
        trials.extend(self.trials(g));
        for mut t in trials {
            if t.subnormal && rig.flushes() {
                continue;
            }
            let launches = t.launches.len();
            t.launches = [&t.launches[..]; 3].concat();
            let mut first: Option<Vec<Vec<u64>>> = None;
            for prepared in 0..2 {
                let bits = match rig.run(spec, &t, Place::Aligned, abi::MATH_DETERMINISTIC)? {
                    Answer::Held { bits, .. } => bits,
                    Answer::Refused(why) if prepared == 0 => {
                        if rig.deterministic() && rig.prepare(self.op, &t, 0).is_ok() {
                            return Err(format!(
                                "{}: the device claims determinism of every claimed op, and refuses the flag here: {why}",
                                t.what
                            ));
                        }
                        break;
                    }
                    Answer::Refused(why) => {
                        return Err(format!("{}: claimed once, refused again: {why}", t.what));
                    }
                };
                // Outputs of one launch after the other, over and over.
                let outputs = (bits.len() / t.launches.len()).max(1) * launches;
                let first = first.get_or_insert_with(|| bits[..outputs].to_vec());
                for (n, again) in bits.chunks(outputs).enumerate() {
                    if again != &first[..] {
                        return Err(format!(
                            "{}: launch {n} of preparation {prepared} gives other bits than the first",
                            t.what
                        ));
                    }
                    compared += 1;
                }
            }
        }
        match compared {
            0 => refused("not claimed with the deterministic flag"),
            n => pass_with(format!("{n} launches with the same bits")),
        }
    }
}

fn with_error(v: Verdict, class: u64, worst: f64) -> Verdict {
    v.within(class_name(class), worst)
}
