//! Words that people bring from other programs, and the keys that they mean: those of the rows, and names of a model's dimensions.

use crate::rows;
use crate::schema::Kind;
use crossweave_family::{FAMILIES, Roles};

/// Words for a dimension of a model, and which key of a family it is.
type Dimension = (&'static [&'static str], fn(&Roles) -> &'static str);

/// The names that people give to the dimensions of a model.
const DIMENSIONS: &[Dimension] = &[
    (
        &[
            "num_layers",
            "layers",
            "depth",
            "n_layers",
            "num_hidden_layers",
            "n_layer",
        ],
        |r| r.layers,
    ),
    (
        &[
            "hidden_size",
            "hidden",
            "width",
            "dim",
            "d_model",
            "hidden_dim",
            "n_embd",
        ],
        |r| r.width,
    ),
    (
        &[
            "num_heads",
            "heads",
            "num_attention_heads",
            "n_heads",
            "n_head",
        ],
        |r| r.heads,
    ),
    (&["ffn_hidden_size", "intermediate_size", "n_inner"], |r| {
        r.mlp
    }),
    (&["max_position_embeddings", "n_positions"], |r| r.positions),
    (&["vocab", "padded_vocab_size"], |_| "vocab_size"),
];

/// Rates of dropout, which families have by names of their own.
const DROPOUT: &[&str] = &[
    "dropout",
    "hidden_dropout",
    "attention_dropout",
    "embed_dropout",
];

/// The keys that a word means in the families, each with the names of those that have it.
fn dimension(word: &str) -> Option<Vec<(&'static str, Vec<&'static str>)>> {
    let (_, role) = DIMENSIONS.iter().find(|(words, _)| words.contains(&word))?;
    let mut out: Vec<(&str, Vec<&str>)> = vec![];
    for f in FAMILIES {
        let key = role(&f.roles);
        match out.iter_mut().find(|(k, _)| *k == key) {
            _ if key.is_empty() => {}
            Some((_, names)) => names.push(f.name),
            None => out.push((key, vec![f.name])),
        }
    }
    Some(out)
}

/// The keys of dropout among `keys`, or of the first family.
fn dropouts(here: &str, keys: &[&str]) -> Option<String> {
    let first = &FAMILIES[0];
    let mut found: Vec<&str> = vec![];
    for key in FAMILIES.iter().flat_map(|f| f.roles.dropout) {
        let wanted = match here {
            "" => first.roles.dropout.contains(&key),
            _ => keys.contains(&key),
        };
        if wanted && !key.is_empty() && !found.contains(&key) {
            found.push(key);
        }
    }
    let paths: Vec<String> = found.iter().map(|k| format!("model.{k}")).collect();
    let (last, rest) = paths.split_last()?;
    let all = match rest {
        [] => last.clone(),
        _ => format!("{} and {last}", rest.join(", ")),
    };
    Some(match here {
        "" => format!("{all} (family {})", first.name),
        _ => all,
    })
}

/// The key that a word of another program means, as a dotted path, seen from the section `here` whose keys are `keys`.
pub fn known_word(word: &str, here: &str, keys: &[&str]) -> Option<String> {
    let word = word.to_lowercase().replace('-', "_");
    if let Some(path) = of_rows(&format!("{here}.{word}")) {
        return Some(path);
    }
    if DROPOUT.contains(&&*word) && ["", "model"].contains(&here) {
        return dropouts(here, keys);
    }
    if let Some(found) = dimension(&word) {
        if here == "model" {
            let key = found.iter().find(|(key, _)| keys.contains(key))?.0;
            return Some(format!("model.{key}"));
        }
        let one = |(key, names): &(&str, Vec<&str>)| match names.len() {
            0..=2 => format!("model.{key} (family {})", names.join(" or ")),
            n => format!("model.{key} (family {} and {} others)", names[0], n - 1),
        };
        return Some(found.iter().map(one).collect::<Vec<_>>().join(" or "));
    }
    of_rows(&word)
}

/// Each word of the tables with the path of the key that it means: one of PyTorch, Hugging Face or Megatron for what has another name here.
fn words() -> Vec<(&'static str, String)> {
    let mut out = vec![];
    rows::each(&mut |path, _, row| {
        out.extend(row.words.iter().map(|w| (*w, path.to_string())));
        if let Kind::Typed(typed) = &row.kind {
            out.extend(typed.words.iter().map(|w| (*w, format!("{path}.type"))));
        }
    });
    out
}

/// The key whose row has the word: the outermost, where a row stands in several places.
fn of_rows(word: &str) -> Option<String> {
    let hits = words().into_iter().filter(|(w, _)| *w == word);
    let outermost = hits.min_by_key(|(_, path)| path.matches('.').count());
    outermost.map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_may_mean_something_in_one_section_alone() {
        let path = |word, here| known_word(word, here, &["resid_pdrop", "attn_pdrop"]);
        assert_eq!(path("name", "optimizer").as_deref(), Some("optimizer.type"));
        assert_eq!(path("name", "run"), None);
        assert_eq!(path("tensor", "mesh").as_deref(), Some("mesh.tp"));
        assert!(
            path("dropout", "model")
                .unwrap()
                .contains("model.attn_pdrop")
        );
        assert_eq!(known_word("dropout", "model", &["hidden_size"]), None);
    }

    #[test]
    fn words_of_other_programs_lead_to_keys() {
        let path = |word, here, keys: &[&str]| known_word(word, here, keys);
        assert_eq!(
            path("learning-rate", "", &[]).as_deref(),
            Some("optimizer.params.lr")
        );
        assert_eq!(
            path("num_layers", "model", &["n_layer"]).as_deref(),
            Some("model.n_layer")
        );
        assert!(
            path("num_layers", "", &[])
                .unwrap()
                .contains("model.num_hidden_layers")
        );
    }

    #[test]
    fn each_word_leads_to_one_key_and_its_error_names_it() {
        let mut seen = std::collections::BTreeMap::new();
        for (word, path) in words() {
            // Rows that stand in several places are one key.
            let last = path.rsplit('.').next().unwrap().to_string();
            assert_eq!(*seen.entry(word).or_insert(last.clone()), last, "{word}");
        }
        assert!(seen.len() > 120, "{}", seen.len());
        for word in seen.keys().filter(|w| !w.contains('.')) {
            let path = of_rows(word).unwrap();
            let text = format!("{{\"{word}\": 7}}").into_bytes();
            let said = match crate::Config::load("c.json", text, &[]) {
                Ok(c) => format!("{:?}", c.warnings()),
                Err(e) => e.to_string(),
            };
            assert!(said.contains(&path), "{word} means {path}: {said}");
        }
    }
}
