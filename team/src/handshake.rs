//! What the processes of a job hold against each other before the first step: the program's version and the resolved config, key by key.
//!
//! A key whose row says so may differ from process to process, as the back end does: a job of several is a mixed one (docs/islands.md).

use crossweave_config::{Resolved, may_differ_by_process};
use crossweave_mesh::ProcessMap;
use crossweave_report::listed;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What is said of the step from which a run continues: hosts that do not share the run's folder may have different checkpoints.
const BEGINS: &str = "the step to resume from (is the run's folder the same on all hosts?)";

/// Differences that are reported for one group of ranks.
const MOST: usize = 4;

/// What this process runs, from which step on, as it is compared.
pub fn record(config: &Resolved, step: u64) -> Vec<u8> {
    let text = config.to_json();
    let settings: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    let all = json!({"crossweave": env!("CARGO_PKG_VERSION"), "config": settings, BEGINS: step});
    all.to_string().into_bytes()
}

/// In what the processes' records differ from the first's, if they do, by their ranks.
pub fn differences(all: &[Vec<u8>], process_map: &ProcessMap) -> Option<String> {
    let read = |bytes: &Vec<u8>| -> BTreeMap<String, String> {
        let mut flat = BTreeMap::new();
        let value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
        flatten("", &value, &mut flat);
        flat.retain(|key, _| !may_differ_by_process(key));
        flat
    };
    let first = read(all.first()?);
    let mut odd: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
    for (process, bytes) in (0..).zip(all).skip(1) {
        let differs = against(&first, &read(bytes));
        if !differs.is_empty() {
            odd.entry(differs)
                .or_default()
                .extend(process_map.of(process));
        }
    }
    let one = |(differs, ranks): (&Vec<String>, &Vec<u32>)| {
        let more = match differs.len().saturating_sub(MOST) {
            0 => String::new(),
            n => format!(", and {n} more"),
        };
        let (who, run) = match ranks.len() {
            1 => (format!("rank {}", ranks[0]), "runs"),
            _ => (format!("ranks {}", listed(ranks)), "run"),
        };
        let told: Vec<&str> = differs.iter().take(MOST).map(String::as_str).collect();
        format!(
            "{who} {run} another config than rank 0: {}{more}",
            told.join(", ")
        )
    };
    let groups: Vec<String> = odd.iter().map(one).collect();
    (!groups.is_empty()).then(|| groups.join("; "))
}

/// Every key that differs, with both values.
fn against(ours: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> Vec<String> {
    let keys: std::collections::BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let say = |v: Option<&String>| v.map_or("nothing", String::as_str).to_string();
    let differs = |k: &&&String| ours.get(**k) != theirs.get(**k);
    keys.iter()
        .filter(differs)
        .map(|k| {
            let (here, there) = (say(ours.get(*k)), say(theirs.get(*k)));
            format!("{k} is {there} there and {here} here")
        })
        .collect()
}

/// Every value under its path of keys; the config's own keys without a prefix.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let under = |map: &Map<String, Value>, into: &mut BTreeMap<String, String>| {
        for (key, v) in map {
            let path = match path {
                "" | "config" => key.clone(),
                _ => format!("{path}.{key}"),
            };
            flatten(&path, v, into);
        }
    };
    match value {
        Value::Object(map) if !map.is_empty() => under(map, into),
        v => drop(into.insert(path.to_string(), v.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: Value) -> Vec<u8> {
        json!({"crossweave": "1", "config": config})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn ranks_are_named_with_every_key_that_differs() {
        let base = of(json!({"run": {"steps": 5, "backend": "cpu"}, "seed": 1}));
        let other_device = of(json!({"run": {"steps": 5, "backend": "x"}, "seed": 1}));
        let single = |n| ProcessMap::single(0, n);
        let all = [base.clone(), other_device, base.clone()];
        assert_eq!(differences(&all, &single(3)), None);
        let odd = of(json!({"run": {"steps": 6, "backend": "cpu"}}));
        let all = [base.clone(), odd.clone(), base.clone(), odd];
        let how = "run another config than rank 0: run.steps is 6 there and 5 here, seed is nothing there and 1 here";
        let said = differences(&all, &single(4)).unwrap();
        assert_eq!(said, format!("ranks 1, 3 {how}"));
        // All ranks of a process run its config.
        let said = differences(&all, &ProcessMap::new(0, &[2, 3, 1, 2])).unwrap();
        assert_eq!(said, format!("ranks 2-4, 6-7 {how}"));
        let build = json!({"crossweave": "2", "config": {"run": {"steps": 5}, "seed": 1}});
        let all = [base, build.to_string().into_bytes()];
        let said = differences(&all, &single(2)).unwrap();
        assert!(
            said.contains("crossweave is \"2\" there and \"1\" here"),
            "{said}"
        );
        let at = |step: u64| json!({"config": {}, BEGINS: step}).to_string().into_bytes();
        let said = differences(&[at(8), at(0)], &single(2)).unwrap();
        assert!(
            said.ends_with("on all hosts?) is 0 there and 8 here"),
            "{said}"
        );
    }

    #[test]
    fn what_is_no_record_differs() {
        let all = [of(json!({"seed": 1})), b"\xff".to_vec()];
        assert!(differences(&all, &ProcessMap::single(0, 2)).is_some());
        assert_eq!(differences(&[], &ProcessMap::single(0, 0)), None);
    }
}
