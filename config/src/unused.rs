//! Which numbers nothing reads in a run: a value that is out of range there is no mistake, as it is none in DeepSpeed.

use crate::json::{Json, Node};
use crate::rows;
use crate::schema::Read;

/// The facts by which the numbers of a section are read or not.
pub(crate) struct Unused {
    /// Nothing computes in float16.
    no_scale: bool,
    /// The loss scale never moves.
    fixed_scale: bool,
    /// Neither states nor parameters rest on a disk.
    no_disk: bool,
}

impl Unused {
    /// Finds the numbers that nothing reads in a run of this file.
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

    /// Returns true if the number at `path` is read by nothing.
    pub fn holds(&self, path: &str) -> bool {
        rows::of(path).read.iter().any(|when| match when {
            Read::Always => false,
            Read::Float16 => self.no_scale,
            Read::MovingScale => self.fixed_scale,
            Read::Disk => self.no_disk,
        })
    }
}

fn at<'a>(root: &'a Node, path: &str) -> Option<&'a Json> {
    let step = |node: &'a Json, key: &str| match node {
        Json::Object(members) => Some(&members.iter().find(|m| m.key == key)?.node.value),
        _ => None,
    };
    path.split('.').try_fold(&root.value, step)
}
