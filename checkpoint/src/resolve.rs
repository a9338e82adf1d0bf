//! Which tensor of a directory is which parameter of the model, under either spelling, with every difference at once.
//!
//! The canonical name of a parameter is the one transformers writes for the language model (`transformer.wte.weight`,
//! `model.embed_tokens.weight`, `lm_head.weight`). A base model's file leaves the first part out. The resolver remembers
//! the file's own spelling, which is what gradients of that checkpoint are named after.

use crate::dtype::{Dtype, is_readable_float};
use crate::error::{CheckpointError, Result};
use crate::hf::HfDir;
use crate::nearest::nearest;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// Name endings of constants that old versions stored beside the parameters of any family: causal masks and rotary tables. What files of one
/// family hold, it declares itself ([`Resolver::ignore`]).
const BUFFERS: [&str; 9] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".embeddings.position_ids",
    ".crossattention.bias",
    ".crossattention.masked_bias",
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_emb.cos_cached",
    "rotary_emb.sin_cached",
];

/// Beginnings of names of heads for other tasks, which classes of language models pass over: of classes, spans of answers, rewards and values.
const OTHER_HEADS: [&str; 6] = [
    "score.",
    "classifier.",
    "qa_outputs.",
    "multiple_choice_head.",
    "v_head.",
    "value_head.",
];

/// Endings of names, and what they were in files that were converted from TensorFlow.
const OLDER: [(&str, &str); 2] = [
    (".LayerNorm.weight", ".LayerNorm.gamma"),
    (".LayerNorm.bias", ".LayerNorm.beta"),
];

/// What names of a vision tower begin with, and what they do in files that transformers 5.x has written.
const TOWER: (&str, &str) = ("vision_tower.vision_model.", "vision_tower.");

/// The parameters a model needs, to be found in a directory.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    expected: BTreeMap<String, Vec<usize>>,
    ties: Vec<(String, String)>,
    base: String,
    ignored: Vec<String>,
    within: Vec<(String, String)>,
}

impl Resolver {
    /// Canonical names with shapes, outermost dim first.
    pub fn new(expected: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        Self {
            expected: expected.into_iter().collect(),
            ties: Vec::new(),
            base: String::new(),
            ignored: Vec::new(),
            within: Vec::new(),
        }
    }

    /// Declares what a name begins with in files that hold the model within another one: in place of what.
    pub fn within(mut self, prefixes: &[(&str, &str)]) -> Self {
        let owned = prefixes
            .iter()
            .map(|(now, there)| (now.to_string(), there.to_string()));
        self.within.extend(owned);
        self
    }

    /// Declares what a language model's names start with and a base model's file leaves out (`transformer.`, `model.`).
    pub fn base(mut self, prefix: impl Into<String>) -> Self {
        self.base = prefix.into();
        self
    }

    /// Declares that `alias` (`lm_head.weight`) is the same tensor as `source` (the embedding). The alias may then be
    /// absent, or present with equal bytes; a file that kept only the alias gives the source from it. The alias need
    /// not be among the expected names.
    pub fn tie(mut self, alias: impl Into<String>, source: impl Into<String>) -> Self {
        self.ties.push((alias.into(), source.into()));
        self
    }

    /// Declares tensors that files of this family hold and its class passes over: a whole name, an ending that begins with a dot, or a
    /// beginning that ends with one.
    pub fn ignore(mut self, names: &[&str]) -> Self {
        self.ignored.extend(names.iter().map(|n| n.to_string()));
        self
    }

    /// Does the class pass over a tensor of this name?
    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|i| match i.strip_prefix('.') {
            Some(whole) => name.ends_with(i) || name == whole,
            None if i.ends_with('.') => name.starts_with(i),
            None => name == i,
        })
    }

    /// The spellings a file may use for a canonical name: itself, without the language model's prefix, as the first BERTs have it, as 5.x has a
    /// tower's, and within another model.
    fn spellings(&self, name: &str) -> impl Iterator<Item = String> + use<> {
        let bare = name.strip_prefix(&self.base).filter(|b| *b != name);
        let older = |name: &str| {
            OLDER.iter().find_map(|(now, then)| {
                let module = name.strip_suffix(now)?;
                Some(format!("{module}{then}"))
            })
        };
        let newer = name.strip_prefix(TOWER.0);
        let newer = newer.map(|rest| format!("{}{rest}", TOWER.1));
        let with = [
            Some(name.to_string()),
            bare.map(str::to_string),
            older(name),
            bare.and_then(older),
            newer,
        ];
        let there =
            |(now, there): &(String, String)| Some(format!("{there}{}", name.strip_prefix(now)?));
        let there: Vec<String> = self.within.iter().filter_map(there).collect();
        with.into_iter().flatten().chain(there)
    }

    /// Matches the directory's tensors with the expected ones. All differences come in one
    /// [`CheckpointError::Names`]; a stored tied copy is compared with its source, through 1 MiB at a time.
    pub fn resolve(&self, dir: &HfDir) -> Result<Resolved> {
        let mut wanted = self.expected.clone();
        for (alias, _) in &self.ties {
            wanted.remove(alias);
        }
        let mut out = Resolved::default();
        let mut report = NameReport {
            dir: dir.path.clone(),
            ..NameReport::default()
        };
        let mut used = BTreeSet::new();
        for (name, shape) in &wanted {
            let mut found = self
                .spellings(name)
                .filter(|s| dir.tensors.contains_key(s))
                .collect::<Vec<_>>();
            if found.is_empty()
                && let Some((alias, _)) = self.ties.iter().find(|(_, source)| source == name)
            {
                found = self
                    .spellings(alias)
                    .filter(|s| dir.tensors.contains_key(s))
                    .collect();
                if !found.is_empty() {
                    out.notes.push(format!(
                        "`{name}` is read from its tied copy `{}`",
                        found[0]
                    ));
                }
            }
            used.extend(found.iter().cloned());
            let Some(file_name) = found.first() else {
                report.missing.push((name.clone(), None));
                continue;
            };
            if found.len() > 1 {
                report.ambiguous.push((name.clone(), found));
                continue;
            }
            let info = dir.info(file_name)?;
            if &info.shape != shape {
                report.wrong_shape.push(WrongShape {
                    name: file_name.clone(),
                    expected: shape.clone(),
                    found: info.shape.clone(),
                });
            } else if !is_readable_float(info.dtype) {
                report.wrong_dtype.push((file_name.clone(), info.dtype));
            }
            out.file_names.insert(name.clone(), file_name.clone());
        }
        let mut copies = Vec::new();
        for (alias, source) in &self.ties {
            for copy in self
                .spellings(alias)
                .filter(|s| dir.tensors.contains_key(s))
            {
                if used.insert(copy.clone()) {
                    copies.push((copy, source.clone()));
                }
            }
        }
        for name in dir.tensors.keys().filter(|n| !used.contains(*n)) {
            if is_buffer(name) || self.is_ignored(name) {
                out.ignored.push(name.clone());
            } else if OTHER_HEADS.iter().any(|head| name.starts_with(head)) {
                out.unused.push(name.clone());
            } else {
                report.unexpected.push((name.clone(), None));
            }
        }
        if !out.ignored.is_empty() {
            out.notes.push(format!(
                "{} stored constants are not parameters and are ignored (`{}`{})",
                out.ignored.len(),
                out.ignored[0],
                if out.ignored.len() > 1 { ", …" } else { "" }
            ));
        }
        if report.is_different() {
            report.add_nearest(dir, &wanted, &self.base);
            return Err(CheckpointError::Names(Box::new(report)));
        }
        for (copy, source) in copies {
            if let Some(stored) = out.file_names.get(&source) {
                if !same_tensor(dir, &copy, stored)? {
                    return Err(CheckpointError::TiedDiffer {
                        path: dir.path.clone(),
                        alias: copy,
                        source_name: stored.clone(),
                    });
                }
                out.notes
                    .push(format!("`{copy}` is a stored copy of the tied `{stored}`"));
                out.tied_copies.push(copy);
            }
        }
        Ok(out)
    }
}

/// The match of a model's parameters with a directory's tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Canonical name → the file's own spelling.
    pub file_names: BTreeMap<String, String>,
    /// Stored copies of tied tensors (`lm_head.weight`), which need not be read.
    pub tied_copies: Vec<String>,
    /// Stored constants that are not parameters, and what the family's class passes over.
    pub ignored: Vec<String>,
    /// Heads for other tasks.
    pub unused: Vec<String>,
    /// What a user may want to know, one sentence each.
    pub notes: Vec<String>,
}

impl Resolved {
    /// What is to be said of heads for other tasks; `None` where there are none.
    pub fn unused_note(&self) -> Option<String> {
        let first = self.unused.first()?;
        Some(format!(
            "{} tensors of heads for other tasks are not used (`{first}`{})",
            self.unused.len(),
            if self.unused.len() > 1 { ", …" } else { "" }
        ))
    }

    /// The file's own spelling of a canonical name (`None`: not a parameter of the model, or tied away).
    pub fn file_name(&self, canonical: &str) -> Option<&str> {
        self.file_names.get(canonical).map(String::as_str)
    }
}

/// A tensor with another shape than the model's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// The file's name for it.
    pub name: String,
    /// Shape by the config.
    pub expected: Vec<usize>,
    /// Shape in the file.
    pub found: Vec<usize>,
}

/// Every difference between a model's parameters and a directory's tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameReport {
    /// The model directory.
    pub dir: PathBuf,
    /// Expected and not found, with the nearest unexpected name.
    pub missing: Vec<(String, Option<String>)>,
    /// Found and not expected, with the nearest missing name.
    pub unexpected: Vec<(String, Option<String>)>,
    /// Found with another shape.
    pub wrong_shape: Vec<WrongShape>,
    /// Found with a type that is not a float.
    pub wrong_dtype: Vec<(String, Dtype)>,
    /// Stored under both spellings.
    pub ambiguous: Vec<(String, Vec<String>)>,
}

impl NameReport {
    fn is_different(&self) -> bool {
        !(self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.wrong_shape.is_empty()
            && self.wrong_dtype.is_empty()
            && self.ambiguous.is_empty())
    }

    fn add_nearest(&mut self, dir: &HfDir, wanted: &BTreeMap<String, Vec<usize>>, base: &str) {
        let strange: Vec<String> = self.unexpected.iter().map(|(n, _)| n.clone()).collect();
        for (name, near) in &mut self.missing {
            *near = nearest(name, strange.iter().map(String::as_str));
        }
        let lost: Vec<&str> = self.missing.iter().map(|(n, _)| n.as_str()).collect();
        for (name, near) in &mut self.unexpected {
            // A name that differs by the prefix only would be far by letters, so it is measured with the prefix on.
            let known = !base.is_empty() && wanted.keys().any(|w| w.starts_with(base));
            let prefix = known.then_some(base);
            let full = match prefix {
                Some(p)
                    if !name.starts_with(p) && !dir.tensors.contains_key(&format!("{p}{name}")) =>
                {
                    format!("{p}{name}")
                }
                _ => name.clone(),
            };
            *near = nearest(&full, lost.iter().copied())
                .or_else(|| nearest(name, lost.iter().copied()));
        }
    }
}

impl fmt::Display for NameReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fn list<T>(
            f: &mut fmt::Formatter,
            title: &str,
            items: &[T],
            line: impl Fn(&T) -> String,
        ) -> fmt::Result {
            const SHOWN: usize = 12;
            if items.is_empty() {
                return Ok(());
            }
            write!(f, "\n  {title} ({}):", items.len())?;
            for item in items.iter().take(SHOWN) {
                write!(f, "\n    {}", line(item))?;
            }
            if items.len() > SHOWN {
                write!(f, "\n    … and {} more", items.len() - SHOWN)?;
            }
            Ok(())
        }
        let named = |(name, near): &(String, Option<String>)| match near {
            Some(n) => format!("`{name}` (nearest: `{n}`)"),
            None => format!("`{name}`"),
        };
        write!(
            f,
            "{}: the tensors do not match the model of config.json",
            self.dir.display()
        )?;
        list(f, "missing", &self.missing, named)?;
        list(f, "unexpected", &self.unexpected, named)?;
        list(f, "wrong shape", &self.wrong_shape, |w| {
            let turned = w.expected.len() == 2 && w.expected.iter().rev().eq(&w.found);
            let hint = if turned { " (transposed)" } else { "" };
            format!(
                "`{}`: config says {:?}, the file {:?}{hint}",
                w.name, w.expected, w.found
            )
        })?;
        list(f, "not a float type", &self.wrong_dtype, |(n, d)| {
            format!("`{n}`: {d:?}")
        })?;
        list(f, "stored twice", &self.ambiguous, |(n, s)| {
            format!("`{n}` as `{}`", s.join("` and `"))
        })?;
        let untied = self.missing.iter().any(|(n, _)| n == "lm_head.weight");
        write!(
            f,
            "\n  fix: {}",
            if untied {
                "set \"tie_word_embeddings\" to true in config.json if the head is the embedding; otherwise use the \
                 weights that belong to this config.json"
            } else {
                "use the weights and the config.json that belong together"
            }
        )
    }
}

/// Is this one of the constants old versions stored beside the parameters?
pub fn is_buffer(name: &str) -> bool {
    BUFFERS
        .iter()
        .any(|b| name.ends_with(b) || name == b.trim_start_matches('.'))
}

fn same_tensor(dir: &HfDir, a: &str, b: &str) -> Result<bool> {
    let (x, y) = (dir.info(a)?, dir.info(b)?);
    if x.dtype != y.dtype || x.shape != y.shape {
        return Ok(false);
    }
    let step = 8 * (1 << 20) / x.dtype.bitsize() as u64;
    let n = x.num_elements();
    let mut at = 0;
    while at < n {
        let end = n.min(at + step);
        if dir.read_elements(a, at..end)? != dir.read_elements(b, at..end)? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}
