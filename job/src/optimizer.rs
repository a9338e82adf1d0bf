//! From the config's optimizer to what the engine runs: rates to shares of the schedule's, groups to rules.

use crate::error::{JobError, Result};
use crossweave_config::{
    DecayOn, Model, Optimizer as Section, OptimizerParams, ParamGroup, Part, Settings,
};
use crossweave_zero::optim::{Adam, GroupRule, Optimizer, ParamGroups, Recipe};

/// Which optimizer updates which parameter.
///
/// # Errors
/// An optimizer whose numbers are not all there: the tables fill them in, so that the settings are those of another version.
pub fn groups(s: &Settings) -> Result<ParamGroups> {
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
    let key = "optimizer.params";
    let optimizer = self::optimizer(kind, params, key)?;
    let own = |(i, g): (usize, &ParamGroup)| {
        let key = format!("optimizer.param_groups[{i}].optimizer.params");
        let o = g.optimizer.as_ref();
        o.map(|o| self::optimizer(&o.kind, &o.params, &key))
            .transpose()
    };
    let own = param_groups.iter().enumerate().map(own);
    let own: Vec<Option<Optimizer>> = own.collect::<Result<_>>()?;
    // What Muon cannot update falls to AdamW: with Muon's own keys for it, or as the rest of the run when a group asks for Muon.
    let fallback = match &optimizer {
        Optimizer::Muon(_) => Some(self::optimizer("Adam", params, key)?),
        other => {
            let mut all = own.iter().flatten();
            all.any(|o| matches!(o, Optimizer::Muon(_)))
                .then_some(*other)
        }
    };
    let parts = s.model.iter().flat_map(parts);
    let rules = param_groups
        .iter()
        .zip(own)
        .map(|(g, optimizer)| GroupRule {
            patterns: g.patterns.clone(),
            lr_scale: Some(g.lr_scale),
            weight_decay: g.weight_decay,
            optimizer,
            frozen: g.frozen,
        });
    Ok(ParamGroups {
        base: Recipe {
            optimizer,
            lr_scale: share(params.muon_lr),
            weight_decay,
            ema: s.run.ema_decay,
        },
        decay_all: params.decay_on != Some(DecayOn::Matrices),
        fallback: fallback.map(|optimizer| Recipe {
            optimizer,
            lr_scale: share(params.adam_lr),
            weight_decay,
            ema: s.run.ema_decay,
        }),
        rules: parts.chain(rules).collect(),
    })
}

/// The same of settings that have been resolved, whose numbers are all there; were one not, the units of the same settings would
/// say so, without which no rank begins.
pub fn of_resolved(s: &Settings) -> ParamGroups {
    let none = |_| ParamGroups::all(Optimizer::Adam(Adam::default()), 0.0);
    groups(s).unwrap_or_else(none)
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

/// The optimizer of that name with the numbers of `params`; `key` is where they stand.
fn optimizer(kind: &str, params: &OptimizerParams, key: &str) -> Result<Optimizer> {
    Optimizer::named(kind, &params.own).map_err(|e| {
        JobError::refused(
            format!("{key}: {kind}: {e}"),
            "give the key; `crossweave config explain optimizer` lists those of each type",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_config::Config;

    fn of(optimizer: &str) -> ParamGroups {
        let text = format!("{{\"optimizer\": {optimizer}}}");
        groups(&Config::load("t.json", &text, &[]).unwrap().settings).unwrap()
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

    /// Every key of every type is in its table with a default, or the optimizer does without it.
    #[test]
    fn tables_give_each_optimizer_all_of_its_numbers() {
        use crossweave_config::schema::Kind;
        let optimizer = crossweave_config::ROOT.fields.iter();
        let mut optimizer = optimizer.filter(|f| f.key == "optimizer");
        let Some(Kind::Typed(typed)) = optimizer.next().map(|f| &f.kind) else {
            panic!("optimizer is a section with types");
        };
        let mut names = std::collections::BTreeSet::new();
        for (kind, _) in typed.cases {
            let run = of(&format!("{{\"type\": {kind:?}}}"));
            names.insert(run.base.optimizer.name());
            let group = format!("{{\"match\": \"*\", \"optimizer\": {{\"type\": {kind:?}}}}}");
            let text =
                format!("{{\"optimizer\": {{\"type\": \"SGD\", \"param_groups\": [{group}]}}}}");
            // Groups have the names of one of each kind.
            if let Ok(config) = Config::load("t.json", &text, &[]) {
                let rule = groups(&config.settings).unwrap().rules.remove(0);
                assert_eq!(rule.optimizer.unwrap().name(), run.base.optimizer.name());
            }
        }
        assert_eq!(names.len(), 7, "{names:?}");
    }

    /// A number that a key cannot hold is named with it; nothing is cut off or taken for it.
    #[test]
    fn settings_of_another_version_are_refused_by_key() {
        let config = Config::load("t.json", r#"{"optimizer": {"type": "Muon"}}"#, &[]).unwrap();
        for (key, value) in [
            ("ns_steps", Some(serde_json::json!(1u64 << 40))),
            ("scale_mode", Some(serde_json::json!("other"))),
            ("momentum", None),
        ] {
            let mut settings = config.settings.clone();
            match value {
                Some(value) => settings.optimizer.params.own.insert(key.into(), value),
                None => settings.optimizer.params.own.remove(key),
            };
            let said = groups(&settings).unwrap_err().to_string();
            assert!(said.starts_with("optimizer.params: Muon: "), "{said}");
            assert!(said.contains("fix: "), "{said}");
        }
    }
}
