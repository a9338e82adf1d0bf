//! The part of a prediction that rests off the device. The rehearsal holds everything on the device; what a config sends to the host or
//! to storage is moved there by formula, so that no host memory is taken and no file is made to predict them.

use crossweave_config::{Config, Errors, Settings};
use crossweave_zero::ZeroStage;
use serde_json::{Value, json};

/// Where a config keeps states, as it names them: `none`, `cpu` or `nvme`.
#[derive(Clone, Debug)]
pub struct Homes {
    optimizer: String,
    /// Part of the optimizer's states that is away.
    ratio: f64,
    param: String,
}

impl Homes {
    /// What the settings say.
    pub fn of(s: &Settings) -> Homes {
        let zero = &s.zero_optimization;
        let none = || "none".to_string();
        Homes {
            optimizer: zero
                .offload_optimizer
                .as_ref()
                .map_or_else(none, |o| o.device.clone()),
            ratio: zero.offload_optimizer.as_ref().map_or(1.0, |o| o.ratio),
            param: zero
                .offload_param
                .as_ref()
                .map_or_else(none, |o| o.device.clone()),
        }
    }

    /// The same config with everything on the device.
    ///
    /// # Errors
    /// Never, for a config that was read.
    pub fn home(&self, config: &mut Config) -> Result<(), Errors> {
        for (key, device) in [
            ("offload_optimizer", &self.optimizer),
            ("offload_param", &self.param),
        ] {
            if device != "none" {
                config.set(&format!("zero_optimization.{key}.device"), "\"none\"")?;
            }
        }
        Ok(())
    }

    fn tier(device: &str) -> &str {
        if device == "cpu" { "host" } else { device }
    }

    /// Moves bytes of `figures` to where they rest. `weight` is the bytes of a weight.
    pub fn apply(&self, figures: &mut Value, stage: ZeroStage, weight: u64) {
        let owned = match stage {
            ZeroStage::Zero => &figures["layout"]["params_padded"],
            _ => &figures["layout"]["shard"],
        };
        let owned = owned.as_u64().unwrap_or(0);
        let part = |bytes: u64| (bytes as f64 * self.ratio).round() as u64;
        let mut rows = vec![];
        // What rests on the host besides: it is taken from nothing the rehearsal holds.
        let mut beside = vec![];
        if self.optimizer != "none" {
            let tier = Homes::tier(&self.optimizer);
            let (master, moment) = (memory(figures, "master"), memory(figures, "moment"));
            rows.push((tier, "master", part(master), "ratio x 4 P/N"));
            rows.push((
                tier,
                "moment",
                part(moment),
                "ratio x the optimizer's states",
            ));
            let each = part(weight * owned);
            if weight >= 4 && self.param == "none" {
                // The weights stay where they are read, and are updated where the states are.
                beside.push((tier, "master", each, "ratio x 4 P/N, beside the device's"));
            }
            if tier == "host" {
                beside.push((tier, "grad", each, "ratio x w P/N on their way out"));
                if weight < 4 {
                    beside.push((tier, "param", each, "ratio x w P/N on their way back"));
                }
            }
            if stage == ZeroStage::Three && weight < 4 && self.param == "none" {
                // What has its master here is cast where it is gathered; what has it away keeps its weights.
                for field in ["bytes", "peak", "at_peak"] {
                    for tag in ["param", "total"] {
                        let there = figures["memory"][tag][field].as_u64().unwrap_or(0);
                        figures["memory"][tag][field] = json!(there + each);
                    }
                }
            }
            figures["transfers"]["to_host"]["grad"] = json!(each);
            figures["transfers"]["from_host"]["param"] = json!(each);
            figures["transfers"]["formula"] =
                json!("w P/N of gradients out, w P/N of updated weights back, times ratio");
        }
        if self.param != "none" && stage == ZeroStage::Three {
            let tier = Homes::tier(&self.param);
            rows.push((
                tier,
                "param",
                memory(figures, "param"),
                "what the device would keep of weights",
            ));
        }
        for (_, tag, bytes, _) in &rows {
            for field in ["bytes", "peak", "at_peak"] {
                let less = |v: &mut Value| {
                    *v = json!(v.as_u64().unwrap_or(0).saturating_sub(*bytes));
                };
                less(&mut figures["memory"][*tag][field]);
                less(&mut figures["memory"]["total"][field]);
            }
        }
        rows.append(&mut beside);
        rows.retain(|(.., bytes, _)| *bytes > 0);
        for (tier, _, bytes, _) in &rows {
            for field in ["bytes", "peak"] {
                let there = figures["memory"][*tier][field].as_u64().unwrap_or(0);
                figures["memory"][*tier][field] = json!(there + bytes);
            }
        }
        let rows: Vec<Value> = rows
            .iter()
            .map(|(tier, tag, bytes, why)| json!({"tier": tier, "what": tag, "bytes": bytes, "formula": why}))
            .collect();
        if !rows.is_empty() {
            figures["offload"] = json!({
                "optimizer": self.optimizer, "ratio": self.ratio, "param": self.param, "rows": rows,
                "note": "by formula; buffers in between (staging of a bucket, the pool of a store) are not counted",
            });
        }
    }
}

fn memory(figures: &Value, tag: &str) -> u64 {
    figures["memory"][tag]["bytes"].as_u64().unwrap_or(0)
}
