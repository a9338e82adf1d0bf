//! Which numbers nothing reads in a run: a value that is out of range there is no mistake, as it is none in DeepSpeed.

use crate::json::{Json, Node};

/// What decides whether the numbers of a section are read.
pub(crate) struct Unused {
    /// Nothing computes in float16.
    no_scale: bool,
    /// The loss scale never moves.
    fixed_scale: bool,
    /// Neither states nor parameters rest on a disk.
    no_disk: bool,
}

impl Unused {
    /// What nothing reads in a run of this file.
    pub fn of(root: &Node) -> Unused {
        let is = |path: &str, wanted: &Json| at(root, path) == Some(wanted);
        let text = |path: &str, wanted: &str| matches!(at(root, path), Some(Json::Text(t)) if t.eq_ignore_ascii_case(wanted));
        let zero = |path: &str| match at(root, path) {
            Some(Json::Number(n)) => n.parse::<f64>() == Ok(0.0),
            _ => true,
        };
        let disk = |section: &str| text(&format!("zero_optimization.{section}.device"), "nvme");
        Unused {
            no_scale: !is("fp16.enabled", &Json::Bool(true)) && !text("run.dtype", "f16"),
            fixed_scale: !zero("fp16.loss_scale"),
            no_disk: !disk("offload_optimizer") && !disk("offload_param"),
        }
    }

    /// Whether the number at `path` is read by nothing.
    pub fn holds(&self, path: &str) -> bool {
        const OF_A_MOVING_SCALE: [&str; 4] = [
            "fp16.initial_scale_power",
            "fp16.loss_scale_window",
            "fp16.hysteresis",
            "fp16.min_loss_scale",
        ];
        const OF_A_DISK: [&str; 1] = ["zero_optimization.offload_optimizer.buffer_count"];
        path.starts_with("fp16.") && self.no_scale
            || OF_A_MOVING_SCALE.contains(&path) && self.fixed_scale
            || (path.starts_with("aio.") || OF_A_DISK.contains(&path)) && self.no_disk
    }
}

fn at<'a>(root: &'a Node, path: &str) -> Option<&'a Json> {
    let step = |node: &'a Json, key: &str| match node {
        Json::Object(members) => Some(&members.iter().find(|m| m.key == key)?.node.value),
        _ => None,
    };
    path.split('.').try_fold(&root.value, step)
}
