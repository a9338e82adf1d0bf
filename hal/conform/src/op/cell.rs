//! Cells: one op over one combination of dtypes (and kind), with the trials that a claim of it must stand. A combination is claimed by
//! `op_prepare`; what is claimed must hold, what is not must be refused as `UNSUPPORTED`.

use super::rig::{Answer, Place, Rig, row};
use super::tensor::T;
use super::trial::{Trial, class_name};
use crate::case::{Check, Demanded, Verdict, pass_with, refused, skip};
use crate::ctx::Rng;
use crossweave_abi as abi;
use crossweave_abi::DType;

/// The floats of the op table.
pub const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
/// Index types.
pub const INDEX: [DType; 2] = [DType::I32, DType::I64];

/// Numbers for trials.
pub struct Gen {
    rng: Rng,
    /// Sizes that take long, too.
    pub big: bool,
}

impl Gen {
    /// From a case's seed.
    pub fn new(rng: Rng, big: bool) -> Gen {
        Gen { rng, big }
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

    /// With the profiles that need it.
    pub fn needed(mut self, by: Demanded) -> Cell {
        self.demanded = by;
        self
    }

    /// Cells over the floats `t`: f32 is demanded from `minimal` up; of the 16-bit ones `train` demands either, if `half`.
    pub fn floats(
        op: u32,
        what: &str,
        half: bool,
        build: impl Fn(&mut Gen, DType) -> Vec<Trial> + Send + Sync + Copy + 'static,
    ) -> Vec<Cell> {
        let name = |t: DType| match what {
            "" => t.name().to_string(),
            w => format!("{w}.{}", t.name()),
        };
        FLOATS
            .into_iter()
            .map(|t| {
                let mut c = Cell::new(op, name(t), move |g: &mut Gen| build(g, t));
                if row(op).class != abi::op::Class::Primitive {
                    return c;
                }
                if t == DType::F32 {
                    c.demanded = Demanded::MINIMAL;
                } else if half && t == DType::Bf16 {
                    c.demanded = Demanded::TRAIN;
                    c.instead = Some(Box::new(move |g: &mut Gen| build(g, DType::F16)));
                }
                c
            })
            .collect()
    }

    /// The trials.
    pub fn trials(&self, g: &mut Gen) -> Vec<Trial> {
        (self.build)(g)
    }

    /// Runs the trials.
    pub fn judge(&self, rig: &mut Rig, g: &mut Gen) -> Check {
        let spec = row(self.op);
        let mut trials = self.trials(g);
        let asked = trials.len();
        trials.retain(|t| !(t.subnormal && rig.flushes()));
        let left_out = asked - trials.len();
        let largest = trials
            .iter()
            .enumerate()
            .max_by_key(|(_, t)| {
                t.args
                    .iter()
                    .filter_map(|a| a.tensor())
                    .map(T::bytes)
                    .sum::<usize>()
            })
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

    /// Runs the trials again and again under the deterministic flag, prepared anew and launched anew, and compares bits.
    pub fn twice(&self, rig: &mut Rig, g: &mut Gen) -> Check {
        let spec = row(self.op);
        let mut compared = 0;
        for mut t in self.trials(g) {
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
