//! LoRA (Hu et al. 2021, arXiv 2106.09685) as PEFT builds it: beside a linear layer `y = W x` that stays as it is, a product of two
//! small matrices that is trained, `y + scale B A dropout(x)`.
//!
//! Names are PEFT's without the `base_model.model.` that its files put before them: `MODULE.lora_A.weight [r, in]` and
//! `MODULE.lora_B.weight [out, r]`, for GPT-2's `Conv1D` (whose own weight is `[in, out]`) as well. Those of stacks of experts are in
//! the private module `lora_stacks`.

use crate::lora_stacks::StackAdapter;
use crate::split::{Cut, LinearSplit};
use crate::{ModelSpec, declare};
use crossweave_tensor::{
    Axis, Cx, Group, Init, Lies, Param, Place, Result, Unit, UnitDecl, Var, dropout_of,
    linear_scaled,
};
use fancy_regex::Regex;

/// Adapters that are trained instead of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// Rank of the update.
    pub r: u64,
    /// The update counts `alpha / r`, or `alpha / sqrt(r)` with [`Lora::rslora`].
    pub alpha: f64,
    /// Dropout of what goes into `A`; those of stacks have none.
    pub dropout: f64,
    /// Rank-stabilised scale (Kalajdzievski 2023, arXiv 2312.03732).
    pub rslora: bool,
    /// The layers that get one.
    pub targets: Targets,
    /// The stacks of experts that get one: parameters of these names, or whose names end in `.NAME` (PEFT's `target_parameters`).
    pub parameters: Vec<String>,
}

/// The linear layers that are adapted, by PEFT's rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// PEFT's own choice for the family.
    Family,
    /// Every linear layer but the output head.
    AllLinear,
    /// Modules of these names, or whose names end in `.NAME`.
    Names(Vec<String>),
    /// Modules whose whole name the regular expression matches.
    Pattern(String),
}

/// The reason for which targets cannot be adapted, in one sentence, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraError {
    /// PEFT's key that names them.
    pub key: &'static str,
    /// The fault.
    pub what: String,
    /// The remedy.
    pub fix: String,
}
impl std::fmt::Display for LoraError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what, self.fix)
    }
}
impl std::error::Error for LoraError {}

/// An adapter of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Adapter {
    a: Param,
    b: Param,
    scale: f64,
    dropout: f64,
    /// The part of its input that a rank has.
    input: Lies,
    /// The cut of the layer beside it.
    cut: Cut,
}

impl Adapter {
    /// `y + scale B A dropout(x)`; `y` must not be used afterwards. Beside a layer that is cut by outputs B is, by inputs A.
    pub fn add(&self, cx: &mut Cx<'_>, x: Var, y: Var) -> Result<Var> {
        let h = dropout_of(cx, x, self.dropout, self.input)?;
        let h = cx.linear(h, self.a, None)?;
        let h = self.cut.reduce(cx, h)?;
        let h = self.cut.enter(cx, h)?;
        let update = linear_scaled(cx, h, self.b, self.scale)?;
        cx.add_into(y, update)
    }

    /// The same where a layer has one.
    pub fn add_some(some: Option<Adapter>, cx: &mut Cx<'_>, x: Var, y: Var) -> Result<Var> {
        match some {
            Some(a) => a.add(cx, x, y),
            None => Ok(y),
        }
    }
}

/// Hands out adapters while a model is declared, and remembers which layers there were.
#[derive(Default)]
pub struct Adapters {
    lora: Option<(Lora, Rule)>,
    layers: Vec<(String, bool)>,
    stacks: Vec<String>,
}

/// Targets made ready to be asked.
enum Rule {
    All,
    Names(Vec<String>),
    Pattern(Box<Regex>),
}

impl Rule {
    fn takes(&self, module: &str, head: bool) -> bool {
        match self {
            Rule::All => !head,
            Rule::Names(all) => all.iter().any(|n| names(n, module)),
            Rule::Pattern(p) => p.is_match(module).unwrap_or(false),
        }
    }
}

/// Starting values of `A` as PEFT draws them: kaiming_uniform_(a = sqrt(5)) over `input` columns is uniform within 1 / sqrt(input).
fn begins(input: u64) -> Init {
    Init::Uniform((1.0 / (input as f64).sqrt()) as f32)
}

/// PEFT's rule for an element of a list.
fn names(target: &str, module: &str) -> bool {
    let end = module.strip_suffix(target);
    end.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

impl Adapters {
    /// The adapter of the linear layer `local` of the unit, `[input] -> [output]`, where one is asked for. Call it behind the declarations of
    /// the unit's own parameters.
    pub fn layer(
        &mut self,
        u: &mut Unit<'_>,
        local: &str,
        sizes: [u64; 2],
        how: &LinearSplit,
    ) -> Option<Adapter> {
        self.declare(u, local, sizes, (how, false))
    }

    /// The same for the output head, which `all-linear` leaves out.
    pub fn head(
        &mut self,
        u: &mut Unit<'_>,
        local: &str,
        sizes: [u64; 2],
        cut: Cut,
    ) -> Option<Adapter> {
        let how = LinearSplit { cut, parts: &[] };
        self.declare(u, local, sizes, (&how, true))
    }

    /// The adapter of the stack of experts `local` of the unit, `[experts, output, input]`, where one is asked for. Call it behind the
    /// declarations of the unit's own parameters.
    pub fn stack(
        &mut self,
        u: &mut Unit<'_>,
        local: &str,
        shape: [u64; 3],
    ) -> Option<StackAdapter> {
        let name = u.full_name(local);
        let (lora, _) = self.lora.as_ref()?;
        let taken = lora.parameters.iter().any(|n| names(n, &name));
        self.stacks.push(name);
        let by = (lora.r, lora.scale());
        taken.then(|| StackAdapter::declare(u, local, shape, by, begins(shape[2])))
    }

    fn declare(
        &mut self,
        u: &mut Unit<'_>,
        local: &str,
        [input, output]: [u64; 2],
        (how, head): (&LinearSplit, bool),
    ) -> Option<Adapter> {
        let module = u.full_name(local);
        let (lora, rule) = self.lora.as_ref()?;
        let taken = rule.takes(&module, head);
        self.layers.push((module, taken));
        if !taken {
            return None;
        }
        let r = lora.r;
        let matrix = |part: &str| format!("{local}.{part}.weight");
        let a = u.param(&matrix("lora_A"), &[r, input], begins(input));
        let b = u.param(&matrix("lora_B"), &[output, r], Init::Zeros);
        // The half that is whole meets the tokens of the hidden state; a head that is whole is given all of them.
        match how.cut {
            Cut::Not if head => {}
            Cut::Not => [a, b].into_iter().for_each(|p| _ = u.along_tokens(p)),
            Cut::Columns => _ = (how.split(u, b, [1, 0]), u.along_tokens(a)),
            Cut::Rows => _ = (how.split(u, a, [1, 0]), u.along_tokens(b)),
        }
        Some(Adapter {
            a,
            b,
            scale: lora.scale(),
            dropout: lora.dropout,
            input: match how.cut {
                Cut::Rows => Lies::Columns(Axis::Tp),
                Cut::Not if head => Lies::Tokens,
                Cut::Not | Cut::Columns => Lies::Hidden,
            },
            cut: how.cut,
        })
    }
}

impl Lora {
    /// Returns the factor of the update.
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }

    /// The units of a model with adapters, everything else of it frozen, its layers cut over the tensor-parallel ranks of the mesh.
    ///
    /// # Errors
    /// Targets that match nothing, or something other than a linear layer or a stack of experts; a pattern that is no regular expression.
    pub fn units(
        &self,
        spec: &ModelSpec,
        place: &Place,
    ) -> std::result::Result<Vec<UnitDecl>, LoraError> {
        let rule = match &self.targets {
            Targets::Family => {
                Rule::Names(spec.family().lora.iter().map(|n| n.to_string()).collect())
            }
            Targets::AllLinear => Rule::All,
            Targets::Names(all) => Rule::Names(all.clone()),
            Targets::Pattern(p) => Rule::Pattern(Box::new(pattern(p)?)),
        };
        if !self.parameters.is_empty() && self.dropout != 0.0 {
            return Err(LoraError {
                key: "lora_dropout",
                what: format!("{} beside {PARAMETERS}", self.dropout),
                fix: "set it to 0: what goes into adapters of stacks of experts is not dropped out, in PEFT neither".into(),
            });
        }
        let mut adapters = Adapters {
            lora: Some((self.clone(), rule)),
            ..Adapters::default()
        };
        let mut units = declare(spec.model(), &mut adapters, place);
        adapters.check(&units, &self.targets)?;
        adapters.check_stacks(&units, &self.parameters)?;
        for p in units.iter_mut().flat_map(|u| &mut u.params) {
            if !is_adapter(&p.name) {
                p.group = Group::Base;
            }
        }
        Ok(units)
    }
}

/// PEFT's keys of targets.
const MODULES: &str = "target_modules";
const PARAMETERS: &str = "target_parameters";

/// Is it the name of an adapter's matrix?
pub fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight")
}

fn pattern(text: &str) -> std::result::Result<Regex, LoraError> {
    Regex::new(&format!(r"\A(?:{text})\z")).map_err(|e| LoraError {
        key: MODULES,
        what: format!("{text:?} is no regular expression: {e}"),
        fix: "write one that matches whole names of modules, or a list of names".into(),
    })
}

impl Adapters {
    /// Every target must have found a layer, and nothing but layers.
    fn check(&self, units: &[UnitDecl], targets: &Targets) -> std::result::Result<(), LoraError> {
        let Some((lora, rule)) = &self.lora else {
            return Ok(());
        };
        // Modules that are no linear layers are known by their parameters only.
        let mut others: Vec<&str> = vec![];
        for p in units.iter().flat_map(|u| &u.params) {
            let module = p.name.rsplit_once('.').map_or(&*p.name, |(m, _)| m);
            let layer = self.layers.iter().any(|(l, _)| l == module);
            if !layer && !is_adapter(&p.name) && !others.contains(&module) {
                others.push(module);
            }
        }
        let asked = match targets {
            Targets::AllLinear | Targets::Family => vec![],
            Targets::Names(all) => all.clone(),
            Targets::Pattern(p) => vec![p.clone()],
        };
        let finds = |one: &str, module: &str| match rule {
            Rule::Names(_) => names(one, module),
            other => other.takes(module, false),
        };
        for one in &asked {
            let found = self.layers.iter().any(|(l, _)| finds(one, l));
            let other = others.iter().find(|m| finds(one, m));
            if let Some(other) = other {
                return Err(LoraError {
                    key: MODULES,
                    what: format!("{one:?} matches {other}, which is no linear layer"),
                    fix: format!("adapters sit on {}", self.known()),
                });
            }
            if !found {
                let hint = match targets {
                    Targets::Pattern(p) if self.layers.iter().any(|(l, _)| names(p, l)) => format!(
                        "a string is a regular expression for whole names; write [{p:?}] for the modules whose names end in it"
                    ),
                    _ if self.stacks.iter().any(|s| finds(one, s)) => {
                        format!("stacks of experts are named in {PARAMETERS}")
                    }
                    _ => format!("the model's linear layers are {}", self.known()),
                };
                return Err(LoraError {
                    key: MODULES,
                    what: format!("{one:?} matches no module"),
                    fix: hint,
                });
            }
        }
        match self.layers.iter().any(|(_, taken)| *taken) || !lora.parameters.is_empty() {
            true => Ok(()),
            false => Err(LoraError {
                key: MODULES,
                what: "no module is adapted".into(),
                fix: format!("the model's linear layers are {}", self.known()),
            }),
        }
    }

    /// Every parameter that is asked for must be a stack of experts.
    fn check_stacks(
        &self,
        units: &[UnitDecl],
        asked: &[String],
    ) -> std::result::Result<(), LoraError> {
        for one in asked {
            let mut params = units.iter().flat_map(|u| &u.params);
            let other = params.find(|p| {
                names(one, &p.name) && !is_adapter(&p.name) && !self.stacks.contains(&p.name)
            });
            let what = match other {
                Some(p) => format!("{one:?} matches {}, which is no stack of experts", p.name),
                None if self.stacks.iter().any(|s| names(one, s)) => continue,
                None => format!("{one:?} matches no parameter"),
            };
            let known = match self.stacks.first() {
                None => "the model has no experts".into(),
                Some(first) => {
                    let ends = ends(&self.stacks);
                    format!("the model's stacks of experts are {ends} (whole names as {first})")
                }
            };
            return Err(LoraError {
                key: PARAMETERS,
                what,
                fix: format!("{known}; linear layers are named in {MODULES}"),
            });
        }
        Ok(())
    }

    /// The layers by their last names, each once, with an example of a whole one.
    fn known(&self) -> String {
        let whole = self.layers.first().map_or("", |(l, _)| l);
        let ends = ends(self.layers.iter().map(|(l, _)| l));
        format!("{ends} (whole names as {whole})")
    }
}

/// The last parts of names, each once.
fn ends<'a>(all: impl IntoIterator<Item = &'a String>) -> String {
    let mut ends: Vec<&str> = vec![];
    for name in all {
        let end = name.rsplit('.').next().unwrap_or(name);
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    ends.join(", ")
}
