//! `config explain KEY`: the rules between keys are those that the resolver keeps, and examples are values that are read.

use crossweave_config::*;

const BASE: &str = r#"{
  "model": {"family": "gpt2", "preset": "tiny"},
  "data": {"train": "corpus/*.txt"},
  "run": {"steps": 10},
  "train_batch_size": 8
}"#;

/// Every row of the table of conflicts is something that the reader or the resolver says, naming one of the keys.
#[test]
fn conflicts_are_those_that_are_refused_or_warned_about() {
    for c in CONFLICTS {
        let sets: Vec<(String, String)> =
            c.broken_by.iter().map(|s| split_set(s).unwrap()).collect();
        let mut said = vec![];
        match Config::load("c.json", BASE, &sets) {
            Err(e) => said.extend(e.0),
            Ok(config) => match config.resolve(2) {
                Err(e) => said.extend(e.0),
                Ok(run) => said.extend(run.warnings),
            },
        }
        let names = |p: &Problem| {
            let text = p.to_string();
            let last = |k: &&str| k.rsplit('.').next().unwrap_or(k).to_string();
            c.keys.iter().any(|k| text.contains(&last(k)))
        };
        assert!(said.iter().any(names), "{}: {said:?}", c.rule);
        // And nothing is wrong without it.
        for k in c.keys {
            let known = explain_key(k, None, 80);
            assert!(known.is_ok(), "{k}: {known:?}");
        }
    }
}

/// What is shown as an example of a key is a value that the key takes.
#[test]
fn examples_of_keys_are_read() {
    let mut tried = 0;
    for field in [
        "run",
        "zero_optimization",
        "mesh",
        "bf16",
        "fp16",
        "aio",
        "checkpoint",
        "data_types",
    ] {
        let section = explain_key(field, None, 10_000).unwrap();
        let keys = section
            .lines()
            .find_map(|l| l.trim().strip_prefix("keys"))
            .unwrap();
        for key in keys.split(',').map(str::trim) {
            let page = explain_key(&format!("{field}.{key}"), None, 10_000).unwrap();
            let Some(set) = page.lines().find_map(|l| l.trim().strip_prefix("--set ")) else {
                continue;
            };
            let set = split_set(set).unwrap();
            let read = Config::load("c.json", BASE, &[set]);
            assert!(read.is_ok(), "{page}\n{}", read.unwrap_err());
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
}

/// A word that is a key of DeepSpeed's which is refused here leads to the key that does what it means.
#[test]
fn a_word_whose_key_is_refused_is_explained_by_what_it_means() {
    let page = explain_key("max_grad_norm", None, 200).unwrap();
    let (meant, refused) = (
        page.find("\ngradient_clipping"),
        page.find("optimizer.params.max_grad_norm"),
    );
    assert!(meant.is_some() && meant < refused, "{page}");
}
