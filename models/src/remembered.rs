//! What a checkpoint's manifest remembers beside the tensors and its model's `config.json`: the `adapter_config.json` that an export writes,
//! and the learning rate.

use crossweave_config::{Config, Resolved};
use crossweave_nn::{Lora, ModelSpec, written};
use serde_json::{Value, json};

/// `adapter_config.json` of adapters of a model in the folder `base`, as PEFT reads it.
pub fn peft_config(lora: &Lora, spec: &ModelSpec, base: &str, targets: Value) -> Value {
    let alpha = match lora.alpha.fract() == 0.0 && lora.alpha < 1e15 {
        true => json!(lora.alpha as u64),
        false => json!(lora.alpha),
    };
    let mut config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "revision": null,
        "r": lora.r, "lora_alpha": alpha, "lora_dropout": lora.dropout, "use_rslora": lora.rslora,
        "target_modules": targets, "bias": "none", "modules_to_save": null, "use_dora": false,
        "fan_in_fan_out": spec.family().fan_in_fan_out, "inference_mode": true, "init_lora_weights": true,
        "layers_to_transform": null, "layers_pattern": null, "rank_pattern": {}, "alpha_pattern": {},
    });
    if !lora.parameters.is_empty() {
        config["target_parameters"] = json!(lora.parameters);
    }
    config
}

/// Holds `state.adapter_config` against what this program writes of such adapters; `base` is the folder of the model under them.
///
/// # Errors
/// The first key that says something else, in words.
pub fn check_adapters(
    given: &Value,
    lora: &Lora,
    spec: &ModelSpec,
    base: &Value,
) -> Result<(), String> {
    let base = base.as_str().unwrap_or_default();
    let own = peft_config(lora, spec, base, given["target_modules"].clone());
    match (given.as_object(), own.as_object()) {
        (Some(given), Some(own)) => {
            let same = written::check_same("state.adapter_config", given, own);
            same.map_err(|e| format!("{}: {}", e.key, e.what))
        }
        _ => Err("state.adapter_config is no object".into()),
    }
}

/// The config that a run has recorded, on the ranks that it was for; none where this build does not resolve it.
pub fn resolved(settings: &Value) -> Option<Resolved> {
    let config = Config::load("config.json", settings.to_string(), &[]).ok()?;
    config.resolve(config.ranks(None)).ok()
}

/// Holds `state.scheduler.lr` against the schedule of `state.config`. A config that this build does not resolve has none.
///
/// # Errors
/// Another rate.
pub fn check_rate(state: &Value) -> Result<(), String> {
    let (updates, lr) = (&state["scheduler"]["step"], &state["scheduler"]["lr"]);
    let (Some(updates), Some(lr)) = (updates.as_u64(), lr.as_f64()) else {
        return Ok(());
    };
    let Some(run) = resolved(&state["config"]) else {
        return Ok(());
    };
    let own = run.schedule.lr(updates);
    // Both were written as text.
    match (own - lr).abs() <= 1e-9 * own.abs().max(lr.abs()) {
        true => Ok(()),
        false => Err(format!(
            "state.scheduler.lr is {lr:e}, and the schedule of its config gives {own:e} after {updates} updates"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_adapters_that_says_something_else_is_named() {
        let config = json!({"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 259});
        let spec = ModelSpec::from_hf(&config).unwrap();
        let lora = Lora {
            r: 2,
            alpha: 3.0,
            dropout: 0.1,
            rslora: false,
            targets: crossweave_nn::Targets::Family,
            parameters: vec![],
        };
        let own = peft_config(&lora, &spec, "/models/a", json!(["c_attn"]));
        let base = json!("/models/a");
        let check = |told: &Value| check_adapters(told, &lora, &spec, &base);
        check(&own).unwrap();
        let keys: Vec<String> = own.as_object().unwrap().keys().cloned().collect();
        for key in keys.iter().filter(|k| *k != "target_modules") {
            for other in [json!("evil"), json!(1u64 << 40), json!({"evil": 1})] {
                let mut forged = own.clone();
                forged[key] = other;
                let said = check(&forged).unwrap_err();
                assert!(
                    said.contains(&format!("state.adapter_config.{key}")),
                    "{said}"
                );
            }
        }
        let mut forged = own.clone();
        forged["auto_mapping"] = json!({"parent_library": "evil"});
        assert!(check(&forged).is_err());
    }
}
