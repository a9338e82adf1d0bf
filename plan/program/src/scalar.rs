//! Step scalars: the numbers that change from step to step, as expressions over what the host decides before the first
//! backward. Nothing else in a program changes.

/// A scalar of a step that the host decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Given {
    /// The schedule's learning rate.
    Rate,
    /// Number of the update, from 1: skipped steps are no updates.
    Update,
    /// A decay rate of the moments where a schedule moves them, else this number.
    Beta {
        /// 0: of the first moment; 1: of the second.
        moment: u8,
        /// The value while nothing moves it.
        fixed: f64,
    },
    /// The factor that undoes the loss scale and the division before the sum over ranks.
    Unscale,
    /// The gradient of the loss that the backward begins with.
    Seed,
    /// That of a loss beside it, which is a mean over micro-batches whatever number of predictions counts.
    Beside,
}

/// The scalars that the host has decided for one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decided {
    /// The schedule's learning rate.
    pub rate: f64,
    /// Decay rates of the moments, where a schedule moves them.
    pub betas: Option<[f64; 2]>,
    /// Number of the update, from 1.
    pub update: u64,
    /// The factor that undoes the loss scale.
    pub unscale: f64,
    /// The gradient of the loss.
    pub seed: f64,
    /// The gradient of a loss beside it.
    pub beside: f64,
}

impl Decided {
    /// Returns the value of the scalar that a step scalar is made of.
    pub fn get(&self, g: &Given) -> f64 {
        match g {
            Given::Rate => self.rate,
            Given::Update => self.update as f64,
            Given::Beta { moment, fixed } => self.betas.map_or(*fixed, |b| b[usize::from(*moment)]),
            Given::Unscale => self.unscale,
            Given::Seed => self.seed,
            Given::Beside => self.beside,
        }
    }
}

/// Number of a step scalar in the program's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScalarId(pub u32);

/// A step scalar, in f64; what it is made of comes before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// Decided by the host.
    Given(Given),
    /// A constant.
    Const(f64),
    /// `a + b`.
    Add(ScalarId, ScalarId),
    /// `a - b`.
    Sub(ScalarId, ScalarId),
    /// `a * b`.
    Mul(ScalarId, ScalarId),
    /// `a / b`.
    Div(ScalarId, ScalarId),
    /// `a` to the power of `b`.
    Pow(ScalarId, ScalarId),
    /// The smaller.
    Min(ScalarId, ScalarId),
    /// The larger.
    Max(ScalarId, ScalarId),
    /// Square root.
    Sqrt(ScalarId),
}

impl Given {
    fn text(&self) -> String {
        match self {
            Given::Rate => "learning rate".into(),
            Given::Update => "number of the update".into(),
            Given::Beta { moment, fixed } => format!("beta{} (else {fixed})", moment + 1),
            Given::Unscale => "what undoes the loss scale".into(),
            Given::Seed => "gradient of the loss".into(),
            Given::Beside => "gradient of the loss beside it".into(),
        }
    }
}

impl Scalar {
    /// In words.
    pub fn text(&self) -> String {
        let two = |sign: &str, a: &ScalarId, b: &ScalarId| format!("s{} {sign} s{}", a.0, b.0);
        match self {
            Scalar::Given(g) => g.text(),
            Scalar::Const(c) => c.to_string(),
            Scalar::Add(a, b) => two("+", a, b),
            Scalar::Sub(a, b) => two("-", a, b),
            Scalar::Mul(a, b) => two("*", a, b),
            Scalar::Div(a, b) => two("/", a, b),
            Scalar::Pow(a, b) => two("to the power of", a, b),
            Scalar::Min(a, b) => two("or, if smaller,", a, b),
            Scalar::Max(a, b) => two("or, if larger,", a, b),
            Scalar::Sqrt(a) => format!("square root of s{}", a.0),
        }
    }

    /// The scalars it is made of.
    pub fn parts(&self) -> impl Iterator<Item = ScalarId> {
        let (a, b) = match *self {
            Scalar::Given(_) | Scalar::Const(_) => (None, None),
            Scalar::Sqrt(a) => (Some(a), None),
            Scalar::Add(a, b)
            | Scalar::Sub(a, b)
            | Scalar::Mul(a, b)
            | Scalar::Div(a, b)
            | Scalar::Pow(a, b)
            | Scalar::Min(a, b)
            | Scalar::Max(a, b) => (Some(a), Some(b)),
        };
        a.into_iter().chain(b)
    }
}

/// The step scalars of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scalars(pub Vec<Scalar>);

impl Scalars {
    /// The number of a scalar, which is added unless it is there.
    pub fn add(&mut self, s: Scalar) -> ScalarId {
        let bits = |s: &Scalar| match *s {
            Scalar::Const(c) => Some(c.to_bits()),
            _ => None,
        };
        let same = |old: &Scalar| *old == s && bits(old) == bits(&s);
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(s);
            self.0.len() - 1
        });
        ScalarId(at as u32)
    }

    /// The values of a step, into `out`; `given` answers what the host has decided.
    pub fn evaluate(&self, given: impl Fn(&Given) -> f64, out: &mut Vec<f64>) {
        out.clear();
        for s in &self.0 {
            let v = |id: &ScalarId| out[id.0 as usize];
            let value = match s {
                Scalar::Given(g) => given(g),
                Scalar::Const(c) => *c,
                Scalar::Add(a, b) => v(a) + v(b),
                Scalar::Sub(a, b) => v(a) - v(b),
                Scalar::Mul(a, b) => v(a) * v(b),
                Scalar::Div(a, b) => v(a) / v(b),
                Scalar::Pow(a, b) => v(a).powf(v(b)),
                Scalar::Min(a, b) => v(a).min(v(b)),
                Scalar::Max(a, b) => v(a).max(v(b)),
                Scalar::Sqrt(a) => v(a).sqrt(),
            };
            out.push(value);
        }
    }
}
