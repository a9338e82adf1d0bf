//! `faults`: what is to go wrong in a run on purpose, to see that it is found and named.

use crate::schema::*;
use crate::{Config, Errors, Problem};
use serde::{Deserialize, Serialize};

/// Collectives a fault may be about, by the ledger's names.
const OPS: &[&str] = &[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "all_gather_v",
    "send",
    "recv",
    "barrier",
];

/// The kinds of faults.
const KINDS: &[&str] = &["delay", "slow", "drop", "corrupt", "error", "stall", "kill"];

/// One of `faults`.
pub const FAULT: Table = Table {
    doc: "collectives that go wrong on purpose, to see that it is found and named: one object per fault; absent = none, at no cost",
    overlay: None,
    fields: &[
        int("rank", 0, "", "rank it happens on").required(),
        word("kind", KINDS, "", "delay and slow: the rank comes late; drop: it leaves the call out; corrupt: a bit of what it receives is flipped; error: the call fails; stall: the rank stops for ever; kill: it dies without a word").required(),
        int("step", 1, "", "optimizer step it happens in; absent = any"),
        int("call", 1, "", "which of the matching calls, counted within step where that is given; absent = every one of delay and slow, the first of the others"),
        word("op", OPS, "", "only this kind of collective; absent = any"),
        text("group", "", "only on the group of this name, as in the ledger (dp); absent = any"),
        positive("ms", "", "milliseconds of a delay"),
        positive("bytes_per_s", "", "of a slow link"),
        int("bit", 0, "", "of a corrupt: the bit of what is received, from 0; absent = 30, the highest bit of a f32's exponent"),
    ],
};

/// One fault; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Rank it happens on.
    pub rank: u64,
    /// The kind of the fault.
    pub kind: String,
    /// Optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The number of the matching call, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<u64>,
    /// Kind of collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Duration of a delay, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// Bandwidth of a slow link, in bytes a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// The bit of the data that a corruption flips.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bit: Option<u64>,
}

/// Keys that belong to one kind only, ranks that are not there, ops that receive nothing to corrupt.
pub(crate) fn check(config: &Config, ranks: u64) -> Result<(), Errors> {
    let mut errors = vec![];
    for (i, f) in config.settings.faults.iter().enumerate() {
        let mut error = |key: &str, what: String, fix: String| {
            let path = format!("faults[{i}].{key}");
            errors.push(Problem {
                file: config.file().to_string(),
                at: config.place(&path).unwrap_or(crate::At::Whole),
                path,
                what,
                fix,
            });
        };
        if f.rank >= ranks {
            let what = format!("rank {} of {ranks}", f.rank);
            error("rank", what, format!("name one of 0 to {}", ranks - 1));
        }
        let own = [
            ("ms", "delay", f.ms.is_some(), true),
            ("bytes_per_s", "slow", f.bytes_per_s.is_some(), true),
            ("bit", "corrupt", f.bit.is_some(), false),
        ];
        for (key, kind, given, needed) in own {
            if given && f.kind != kind {
                let what = format!("only kind \"{kind}\" has it, and this is \"{}\"", f.kind);
                error(key, what, "remove it".into());
            } else if needed && !given && f.kind == kind {
                let what = format!("kind \"{kind}\" needs it");
                error(key, what, format!("add \"{key}\": 100"));
            }
        }
        let nothing = f.op.as_deref().filter(|o| matches!(*o, "send" | "barrier"));
        if let (Some(op), "corrupt") = (nothing, f.kind.as_str()) {
            let what = format!("a {op} receives nothing that could be corrupted");
            error(
                "op",
                what,
                "name an op that does, e.g. recv or all_reduce".into(),
            );
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Errors(errors)),
    }
}
