//! Parameter groups by name patterns: which optimizer updates a parameter, with which decay and which share of the rate.

use super::{Optimizer, State, StateName, Stored};
use strsim::osa_distance;

/// How a parameter is updated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recipe {
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Times the schedule's rate.
    pub lr_scale: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// The decay of an exponential moving average of the parameter; `None` keeps none.
    pub ema: Option<f64>,
}

impl Recipe {
    /// The states kept for a parameter of this shape: the optimizer's states, and the moving average behind them.
    pub fn states(&self, dims: &[u64]) -> Vec<State> {
        let mut states = self.optimizer.states(dims);
        states.extend(self.ema.map(|_| State {
            name: StateName::Ema,
            stored: Stored::F32,
            numel: dims.iter().product(),
        }));
        states
    }
}

/// A rule for the parameters whose names match one of its patterns.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct GroupRule {
    /// `*` stands for any run of characters, `?` for one.
    pub patterns: Vec<String>,
    /// Times the schedule's rate; `None` = as without the rule.
    pub lr_scale: Option<f64>,
    /// Weight decay; `None` = as without the rule.
    pub weight_decay: Option<f64>,
    /// Another optimizer.
    pub optimizer: Option<Optimizer>,
    /// No gradient, no state, no update.
    pub frozen: bool,
}

/// The optimizer of a run, and the exceptions from it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroups {
    /// What holds for a parameter that no rule and no default excepts.
    pub base: Recipe,
    /// Vectors (norms, biases) decay too, as torch and DeepSpeed do by default.
    pub decay_all: bool,
    /// What updates parameters the base cannot: vectors, embeddings and heads under Muon.
    pub fallback: Option<Recipe>,
    /// First match wins.
    pub rules: Vec<GroupRule>,
}

/// A parameter as the rules see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assigned<'a> {
    /// Full name.
    pub name: &'a str,
    /// Dims.
    pub dims: &'a [u64],
    /// The model says it does not decay (a vector).
    pub no_decay: bool,
    /// The model says it is never updated.
    pub frozen: bool,
}

/// A pattern that names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupError {
    /// Index of the rule.
    pub rule: usize,
    /// Index of the pattern in the rule.
    pub pattern: usize,
    /// The pattern.
    pub text: String,
    /// The names that come nearest.
    pub near: Vec<String>,
}

impl std::fmt::Display for GroupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "optimizer.param_groups[{}].match[{}]: {:?} matches no parameter; nearest names: {}",
            self.rule,
            self.pattern,
            self.text,
            self.near.join(", ")
        )
    }
}

impl std::error::Error for GroupError {}

/// Does `name` match `pattern`? `*` stands for any run of characters, `?` for one.
fn matches(pattern: &str, name: &str) -> bool {
    let (p, n): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // The last star seen and where it began to match: on a mismatch it takes one character more.
    let (mut i, mut j, mut star) = (0, 0, None);
    while j < n.len() {
        match p.get(i) {
            Some('*') => {
                star = Some((i, j));
                i += 1;
            }
            Some(c) if *c == '?' || *c == n[j] => {
                i += 1;
                j += 1;
            }
            _ => match star {
                Some((s, from)) => {
                    star = Some((s, from + 1));
                    (i, j) = (s + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|c| *c == '*')
}

impl ParamGroups {
    /// Whether any update sums figures over the ranks.
    pub fn sums(&self) -> bool {
        let recipes = [Some(self.base), self.fallback].into_iter().flatten();
        let ruled = self.rules.iter().filter_map(|r| r.optimizer);
        recipes.map(|r| r.optimizer).chain(ruled).any(|o| o.sums())
    }

    /// The same for every parameter.
    pub fn all(optimizer: Optimizer, weight_decay: f64) -> ParamGroups {
        ParamGroups {
            base: Recipe {
                optimizer,
                lr_scale: 1.0,
                weight_decay,
                ema: None,
            },
            decay_all: true,
            fallback: None,
            rules: vec![],
        }
    }

    /// How each parameter is updated, `None` = frozen.
    ///
    /// # Errors
    /// The first pattern that matches no parameter.
    pub fn assign(&self, params: &[Assigned<'_>]) -> Result<Vec<Option<Recipe>>, GroupError> {
        for (r, rule) in self.rules.iter().enumerate() {
            for (k, pattern) in rule.patterns.iter().enumerate() {
                if params.iter().any(|p| matches(pattern, p.name)) {
                    continue;
                }
                let plain = pattern
                    .split(['*', '?', '.'])
                    .max_by_key(|part| part.len())
                    .unwrap_or_default();
                let mut near: Vec<(usize, &str)> = params
                    .iter()
                    .map(|p| {
                        // Names are long and patterns short: the nearest part of a name counts too.
                        let whole = osa_distance(plain, p.name);
                        let parts = p.name.split('.').map(|part| osa_distance(plain, part));
                        (parts.chain([whole]).min().unwrap_or(whole), p.name)
                    })
                    .collect();
                near.sort();
                near.truncate(3);
                return Err(GroupError {
                    rule: r,
                    pattern: k,
                    text: pattern.clone(),
                    near: near.into_iter().map(|(_, n)| n.to_string()).collect(),
                });
            }
        }
        Ok(self.recipes(params))
    }

    /// The same of a part of the model, whose patterns [`ParamGroups::assign`] has held against the whole.
    pub fn recipes(&self, params: &[Assigned<'_>]) -> Vec<Option<Recipe>> {
        params.iter().map(|p| self.recipe(p)).collect()
    }

    fn recipe(&self, p: &Assigned<'_>) -> Option<Recipe> {
        let rule = self
            .rules
            .iter()
            .find(|r| r.patterns.iter().any(|t| matches(t, p.name)));
        if p.frozen || rule.is_some_and(|r| r.frozen) {
            return None;
        }
        let mut recipe = self.base;
        let chosen = rule.and_then(|r| r.optimizer);
        if let Some(optimizer) = chosen {
            recipe.optimizer = optimizer;
        }
        if let Some(other) = self.fallback {
            // A rule may send an embedding to a matrix-wise optimizer, never a vector.
            let unfit = p.dims.len() < 2 || (chosen.is_none() && is_table(p.name));
            if recipe.optimizer.wants_whole() && unfit {
                recipe = other;
            }
        }
        if p.no_decay && !self.decay_all {
            recipe.weight_decay = 0.0;
        }
        if let Some(rule) = rule {
            recipe.lr_scale *= rule.lr_scale.unwrap_or(1.0);
            recipe.weight_decay = rule.weight_decay.unwrap_or(recipe.weight_decay);
        }
        Some(recipe)
    }
}

/// Is it an embedding or a head by its name in Hugging Face layouts? Rows of these belong to tokens, so that they are not one map.
fn is_table(name: &str) -> bool {
    ["wte", "wpe", "embed", "lm_head"]
        .iter()
        .any(|w| name.contains(w))
}

#[cfg(test)]
mod tests {
    use super::super::{Adam, Muon, MuonScale};
    use super::*;

    const NAMES: [(&str, &[u64]); 5] = [
        ("wte.weight", &[100, 8]),
        ("h.0.ln_1.weight", &[8]),
        ("h.0.attn.c_attn.weight", &[8, 24]),
        ("h.0.attn.c_attn.bias", &[24]),
        ("lm_head.weight", &[100, 8]),
    ];

    fn params() -> Vec<Assigned<'static>> {
        NAMES
            .iter()
            .map(|(name, dims)| Assigned {
                name,
                dims,
                no_decay: dims.len() < 2,
                frozen: false,
            })
            .collect()
    }

    fn adam() -> Optimizer {
        Optimizer::Adam(Adam::default())
    }

    fn rule(patterns: &[&str]) -> GroupRule {
        GroupRule {
            patterns: patterns.iter().map(|p| p.to_string()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn patterns() {
        for (p, n, want) in [
            ("*", "", true),
            ("*.bias", "h.0.bias", true),
            ("*.bias", "h.0.bias2", false),
            ("h.?.ln_*", "h.3.ln_1.weight", true),
            ("h.?.ln_*", "h.33.ln_1.weight", false),
            ("*a*b*", "xxaxxbxb", true),
            ("*a*b", "ab_", false),
            ("wte.weight", "wte.weight", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(p, n), want, "{p} {n}");
        }
    }

    #[test]
    fn first_match_wins_and_the_rest_is_the_base() {
        let mut u = ParamGroups::all(adam(), 0.1);
        u.rules = vec![
            GroupRule {
                weight_decay: Some(0.0),
                lr_scale: Some(2.0),
                ..rule(&["*.bias", "*ln_*"])
            },
            GroupRule {
                weight_decay: Some(0.5),
                ..rule(&["h.*"])
            },
            GroupRule {
                frozen: true,
                ..rule(&["wte.*"])
            },
        ];
        let got = u.assign(&params()).unwrap();
        let seen: Vec<_> = got
            .iter()
            .map(|r| r.map(|r| (r.lr_scale, r.weight_decay)))
            .collect();
        assert_eq!(
            seen,
            [
                None,
                Some((2.0, 0.0)),
                Some((1.0, 0.5)),
                Some((2.0, 0.0)),
                Some((1.0, 0.1))
            ]
        );
    }

    #[test]
    fn vectors_do_not_decay_when_only_matrices_do_unless_a_rule_says_so() {
        let mut u = ParamGroups::all(adam(), 0.1);
        u.decay_all = false;
        u.rules = vec![GroupRule {
            weight_decay: Some(0.3),
            ..rule(&["*c_attn.bias"])
        }];
        let got = u.assign(&params()).unwrap();
        let decay: Vec<_> = got.iter().map(|r| r.unwrap().weight_decay).collect();
        assert_eq!(decay, [0.1, 0.0, 0.1, 0.3, 0.1]);
    }

    #[test]
    fn muon_leaves_vectors_embeddings_and_the_head_to_another() {
        let muon = Optimizer::Muon(Muon {
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            scale: MuonScale::Shape,
            extra_scale: 1.0,
        });
        let mut u = ParamGroups::all(muon, 0.1);
        u.fallback = Some(Recipe {
            optimizer: adam(),
            lr_scale: 0.5,
            weight_decay: 0.1,
            ema: None,
        });
        let is_muon = |u: &ParamGroups| -> Vec<bool> {
            let got = u.assign(&params()).unwrap();
            got.iter().map(|r| r.unwrap().optimizer == muon).collect()
        };
        assert_eq!(is_muon(&u), [false, false, true, false, false]);
        u.rules = vec![GroupRule {
            optimizer: Some(muon),
            ..rule(&["lm_head*", "*bias"])
        }];
        assert_eq!(is_muon(&u), [false, false, true, false, true]);
    }

    #[test]
    fn a_pattern_that_names_nothing_is_told_with_the_nearest_names() {
        let mut u = ParamGroups::all(adam(), 0.0);
        u.rules = vec![rule(&["*.bias"]), rule(&["*", "h.*.c_atn.*"])];
        let e = u.assign(&params()).unwrap_err();
        assert_eq!((e.rule, e.pattern), (1, 1));
        assert!(e.near[0].contains("c_attn"), "{e}");
        assert!(
            e.to_string()
                .starts_with("optimizer.param_groups[1].match[1]: \"h.*.c_atn.*\" matches no"),
            "{e}"
        );
    }
}
