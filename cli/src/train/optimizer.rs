//! From the config's optimizer to what the engine runs: names to optimizers, groups to rules.

use crossweave_config::{
    DecayOn, Eps, Model, Optimizer as Section, OptimizerParams, Part, Settings,
};
use crossweave_zero::optim::{
    Adafactor, Adam, GroupRule, Lamb, Muon, MuonScale, Optimizer, ParamGroups, Recipe, Sgd,
};

/// Which optimizer updates which parameter.
pub fn groups(s: &Settings) -> ParamGroups {
    let Section {
        kind,
        params,
        param_groups,
    } = &s.optimizer;
    let lr = params.lr.unwrap_or(0.0);
    let share = |own: Option<f64>| match own {
        Some(own) if lr > 0.0 => own / lr,
        _ => 1.0,
    };
    let weight_decay = params.weight_decay.unwrap_or(0.0);
    let optimizer = optimizer(kind, params);
    let muon_like = |o: &Optimizer| matches!(o, Optimizer::Muon(_));
    // What Muon cannot update falls to AdamW: with Muon's own keys for it, or as the rest of the run when a group asks for Muon.
    let fallback = match &optimizer {
        Optimizer::Muon(_) => {
            let decoupled = params.adam_w_mode != Some(false);
            Some(Optimizer::Adam(adam(params, decoupled)))
        }
        other => param_groups
            .iter()
            .filter_map(|g| g.optimizer.as_ref())
            .any(|g| muon_like(&self::optimizer(&g.kind, &g.params)))
            .then_some(*other),
    };
    let parts = s.model.iter().flat_map(parts);
    let rules = param_groups.iter().map(|g| GroupRule {
        patterns: g.patterns.clone(),
        lr_scale: Some(g.lr_scale),
        weight_decay: g.weight_decay,
        optimizer: g
            .optimizer
            .as_ref()
            .map(|o| self::optimizer(&o.kind, &o.params)),
        frozen: g.frozen,
    });
    ParamGroups {
        base: Recipe {
            optimizer,
            lr_scale: share(params.muon_lr),
            weight_decay,
        },
        decay_all: params.decay_on != Some(DecayOn::Matrices),
        fallback: fallback.map(|optimizer| Recipe {
            optimizer,
            lr_scale: share(params.adam_lr),
            weight_decay,
        }),
        rules: parts.chain(rules).collect(),
    }
}

/// Rules of the parts of a model that are not trained as the rest.
fn parts(model: &Model) -> Vec<GroupRule> {
    let Model::Hf(m) = model else {
        return vec![];
    };
    let Some(parts) = &m.parts else {
        return vec![];
    };
    let named = [
        ("vision_tower.*", &parts.vision),
        ("multi_modal_projector.*", &parts.projector),
        ("language_model.*", &parts.language),
    ];
    let rule = |(pattern, part): (&str, &Option<Part>)| {
        let part = part.as_ref()?;
        Some(GroupRule {
            patterns: vec![pattern.into()],
            lr_scale: Some(part.lr_scale),
            frozen: !part.train,
            ..GroupRule::default()
        })
    };
    named.into_iter().filter_map(rule).collect()
}

fn adam(p: &OptimizerParams, decoupled: bool) -> Adam {
    let base = Adam::default();
    Adam {
        betas: p.betas.unwrap_or(base.betas),
        eps: match p.eps {
            Some(Eps::One(eps)) => eps,
            _ => base.eps,
        },
        l2: !decoupled,
        bias_correction: p.bias_correction.unwrap_or(true),
    }
}

/// The tables fill every default in; those here only complete what the tables of another optimizer leave out.
fn optimizer(kind: &str, p: &OptimizerParams) -> Optimizer {
    let decoupled = kind.starts_with("AdamW") || p.adam_w_mode != Some(false);
    match kind {
        "AdamW8bit" | "Adam8bit" => Optimizer::Adam8bit(adam(p, decoupled)),
        "Lion" | "FusedLion" | "DeepSpeedCPULion" => Optimizer::Lion {
            betas: p.betas.unwrap_or([0.9, 0.999]),
        },
        "Lamb" | "FusedLamb" => Optimizer::Lamb(Lamb {
            adam: adam(p, true),
            max_coeff: p.max_coeff.unwrap_or(10.0),
            min_coeff: p.min_coeff.unwrap_or(0.01),
        }),
        "SGD" => Optimizer::Sgd(Sgd {
            momentum: p.momentum.unwrap_or(0.0),
            dampening: p.dampening.unwrap_or(0.0),
            nesterov: p.nesterov.unwrap_or(false),
        }),
        "Adafactor" => Optimizer::Adafactor(Adafactor {
            eps: match p.eps {
                Some(Eps::Two(eps)) => eps,
                _ => [1e-30, 1e-3],
            },
            clip_threshold: p.clip_threshold.unwrap_or(1.0),
            decay_rate: p.decay_rate.unwrap_or(-0.8),
            beta1: p.beta1,
            scale_parameter: p.scale_parameter.unwrap_or(true),
            relative_step: p.relative_step.unwrap_or(true),
            warmup_init: p.warmup_init.unwrap_or(false),
        }),
        "Muon" => Optimizer::Muon(Muon {
            momentum: p.momentum.unwrap_or(0.95),
            nesterov: p.nesterov.unwrap_or(true),
            ns_steps: p.ns_steps.unwrap_or(5) as u32,
            scale: match p.scale_mode.as_deref() {
                Some("spectral") => MuonScale::Spectral,
                Some("unit_rms_norm") => MuonScale::UnitRms,
                _ => MuonScale::Shape,
            },
            extra_scale: p.extra_scale_factor.unwrap_or(1.0),
        }),
        _ => Optimizer::Adam(adam(p, decoupled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_config::Config;

    fn of(optimizer: &str) -> ParamGroups {
        let text = format!("{{\"optimizer\": {optimizer}}}");
        groups(&Config::load("t.json", &text, &[]).unwrap().settings)
    }

    #[test]
    fn names_of_deepspeed_mean_what_they_mean_there() {
        let l2 = |o: &str| match of(o).base.optimizer {
            Optimizer::Adam(a) => a.l2,
            other => panic!("{other:?}"),
        };
        assert!(!l2(r#"{"type": "Adam"}"#), "Adam is AdamW");
        assert!(l2(r#"{"type": "Adam", "params": {"adam_w_mode": false}}"#));
        assert!(l2(
            r#"{"type": "FusedAdam", "params": {"adam_w_mode": false}}"#
        ));
        assert!(!l2(
            r#"{"type": "AdamW", "params": {"adam_w_mode": false}}"#
        ));
        assert_eq!(
            of(r#"{"type": "DeepSpeedCPULion"}"#).base.optimizer.name(),
            "Lion"
        );
        assert_eq!(
            of(r#"{"type": "Adam8bit"}"#).base.optimizer.name(),
            "AdamW8bit"
        );
    }

    #[test]
    fn muon_has_rates_of_its_own_and_a_fallback() {
        let g = of(
            r#"{"type": "Muon", "params": {"lr": 0.01, "muon_lr": 0.02, "adam_lr": 0.001, "betas": [0.8, 0.95],
                "scale_mode": "spectral", "extra_scale_factor": 0.2}}"#,
        );
        assert_eq!(g.base.lr_scale, 2.0);
        let fallback = g.fallback.unwrap();
        assert!((fallback.lr_scale - 0.1).abs() < 1e-12);
        assert!(matches!(fallback.optimizer, Optimizer::Adam(a) if a.betas == [0.8, 0.95]));
        assert!(matches!(g.base.optimizer, Optimizer::Muon(m) if m.factor(4, 100) == 2.0));
        let mixed = of(
            r#"{"type": "AdamW", "param_groups": [{"match": "h.*", "optimizer": {"type": "Muon", "params": {}}}]}"#,
        );
        assert_eq!(
            mixed.fallback.map(|f| f.optimizer),
            Some(mixed.base.optimizer)
        );
    }
}
