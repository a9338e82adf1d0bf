//! `config explain KEY`: one key, found by its path, by the end of it, by DeepSpeed's other spellings or by the word of another program.

use crate::Config;
use crate::check::{example, want};
use crate::conflicts;
use crate::deepspeed::{current_name, other_names};
use crate::known_words::known_word;
use crate::rows::{self, may_change_on_resume, may_differ_by_process};
use crate::schema::{Auto, Default, Field, Kind, Source, Table};
use crate::suggest::nearest;
use crate::wrap::{hanging, wrap};

/// A key of the tables, at its place.
pub(crate) struct Entry {
    /// As it is written with dots, the elements of lists and the names of cases left out.
    pub path: String,
    /// The names beside `type` for which it is there; empty = always.
    pub cases: Vec<&'static str>,
    /// The key.
    pub field: &'static Field,
}

/// Every key, in the order of the tables; one of several cases is one.
pub(crate) fn entries() -> Vec<Entry> {
    let mut out: Vec<Entry> = vec![];
    rows::each(&mut |path, case, field| {
        let same = |e: &&mut Entry| e.path == path && std::ptr::eq(e.field.doc, field.doc);
        match out.iter_mut().find(same) {
            Some(e) => e.cases.extend(case),
            None => out.push(Entry {
                path: path.to_string(),
                cases: case.into_iter().collect(),
                field,
            }),
        }
    });
    out
}

/// The path without what stands for an element or a case: `faults[0].kind`, `optimizer(AdamW).params.lr`.
fn plain(query: &str) -> String {
    let mut out = String::new();
    let mut depth = 0;
    for c in query.trim().trim_matches('"').chars() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            _ if depth <= 0 => out.push(c),
            _ => {}
        }
    }
    out.to_lowercase().replace('-', "_")
}

/// Keys that are listed where several are meant.
const MOST: usize = 15;

/// Explains `query` in lines of `width` characters; with its value where a config is given. A word
/// that is no key comes back as the fault and its remedy.
pub(crate) fn explain(
    query: &str,
    config: Option<&Config>,
    width: usize,
) -> Result<String, (String, String)> {
    let all = entries();
    let asked = plain(query);
    let exact = |path: &str| -> Vec<&Entry> {
        let same = |e: &&Entry| e.path.eq_ignore_ascii_case(path);
        all.iter().filter(same).collect()
    };
    let told = |hits: &[&Entry], note: Option<String>| {
        let mut out = note.map_or(String::new(), |n| wrap(&n, width).join("\n") + "\n\n");
        let parts: Vec<String> = hits.iter().map(|e| page(e, config, width)).collect();
        out += &parts.join("\n");
        Ok(out)
    };
    let hits = exact(&asked);
    if !hits.is_empty() {
        return told(&hits, None);
    }
    // `type` beside `params`.
    if let Some(parent) = asked.strip_suffix(".type")
        && let Some(e) = exact(parent).first()
    {
        return told(&[e], None);
    }
    if let Some(path) = current_name(&asked) {
        let note = format!("{asked} is another spelling of {path}");
        return told(&exact(&path), Some(note));
    }
    let ending = format!(".{asked}");
    let ends: Vec<&Entry> = all.iter().filter(|e| e.path.ends_with(&ending)).collect();
    // A key that is only refused explains less than the one that does what the word means.
    let refused = !ends.is_empty()
        && ends
            .iter()
            .all(|e| matches!(e.field.kind, Kind::Refused(_)));
    if refused && let Some(path) = known_word(&asked, "", &[]) {
        let meant = exact(&path);
        let note = format!("{asked} is written {path} here");
        if !meant.is_empty() {
            return told(&[meant, ends].concat(), Some(note));
        }
    }
    let mut paths: Vec<&str> = ends.iter().map(|e| e.path.as_str()).collect();
    paths.dedup();
    match paths.len() {
        0 => {}
        1 => return told(&ends, None),
        n => {
            let mut out = format!("{n} keys end in {asked}:\n");
            for e in ends.iter().take(MOST) {
                out += &hanging(&format!("  {}", e.path), 4, "", width);
                out += &hanging("", 6, e.field.doc, width);
            }
            return Ok(out + "name one of them with its section\n");
        }
    }
    let last = asked.rsplit('.').next().unwrap_or(&asked);
    if let Some(path) = known_word(last, "", &[]) {
        let hits = exact(&path);
        let note = format!("{last} is written {path} here");
        if !hits.is_empty() {
            return told(&hits, Some(note));
        }
        return Err((
            format!("unknown key {query:?}"),
            format!("{note}; explain that"),
        ));
    }
    let whole = nearest(&asked, all.iter().map(|e| e.path.as_str()));
    let tail = || {
        let end = |e: &Entry| e.path.rsplit('.').next().unwrap_or_default().to_string();
        let ends: Vec<String> = all.iter().map(end).collect();
        let near = nearest(last, ends.iter().map(String::as_str))?;
        let e = all.iter().zip(&ends).find(|(_, end)| *end == near)?;
        Some(e.0.path.clone())
    };
    let fix = match whole.map(str::to_string).or_else(tail) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "`crossweave config explain` lists every key".into(),
    };
    Err((format!("unknown key {query:?}"), fix))
}

fn page(e: &Entry, config: Option<&Config>, width: usize) -> String {
    const AT: usize = 14;
    let f = e.field;
    let mut out = format!("{}\n", e.path);
    let mut say = |label: &str, text: &str| out += &hanging(&format!("  {label}"), AT, text, width);
    say("meaning", &sentence(f));
    say("type", &kind(&f.kind));
    say("default", &default(f));
    if !e.cases.is_empty() {
        let mut cases = e.cases.clone();
        cases.dedup();
        say("with type", &cases.join(", "));
    }
    let others = other_names(&e.path);
    let known = match f.source {
        Source::DeepSpeed => "the same key".to_string(),
        s => format!("not DeepSpeed's: the name is {}'s", s.name()),
    };
    let more = match others.is_empty() {
        true => String::new(),
        false => format!("; also read as {}", others.join(", ")),
    };
    say("DeepSpeed", &format!("{known}{more}"));
    if !matches!(f.kind, Kind::Ignored(_) | Kind::Refused(_)) {
        say("on resume", on_resume(&e.path));
    }
    let value = shown(f);
    let set = match f.kind {
        Kind::Section(_) | Kind::Typed(_) | Kind::List(_) | Kind::Forms(_) => None,
        _ => Some(format!("--set {}={}", e.path, value.trim_matches('"'))),
    };
    if !matches!(f.kind, Kind::Ignored(_) | Kind::Refused(_)) {
        say("example", &nested(&e.path, &value));
        if let Some(set) = set.filter(|_| !e.path.starts_with("faults.")) {
            say("", &set);
        }
    }
    let rules: Vec<&str> = conflicts::of(&e.path).collect();
    match rules.is_empty() {
        true => say("conflicts", "with no other key by itself"),
        false => rules
            .iter()
            .enumerate()
            .for_each(|(i, r)| say(if i == 0 { "conflicts" } else { "" }, r)),
    }
    if let Some(config) = config {
        let rows = config.rows().iter();
        let here: Vec<_> = rows
            .filter(|r| plain(&r.path) == e.path.to_lowercase())
            .collect();
        match here.first() {
            Some(r) => say("here", &format!("{} ({})", r.value, r.origin)),
            None => say("here", "not given"),
        }
    }
    let children = children(&f.kind);
    if !children.is_empty() {
        say("keys", &children.join(", "));
    }
    out
}

/// Says in words if the key may change with `--resume`, and differ between the processes of a job.
fn on_resume(path: &str) -> &'static str {
    match (may_change_on_resume(path), may_differ_by_process(path)) {
        (true, true) => "may change; each process may have its own",
        (true, false) => "may change",
        (false, true) => "stays as it was; each process may have its own",
        (false, false) => "stays as it was",
    }
}

fn sentence(f: &Field) -> String {
    match f.kind {
        Kind::Ignored(why) => format!("has no effect here, and a warning says so: {why}"),
        Kind::Refused(why) if matches!(f.default, Default::Json("true")) => {
            format!("refused unless it is true: {why}")
        }
        Kind::Refused(why) => format!("refused unless it is switched off: {why}"),
        _ => f.doc.to_string(),
    }
}

fn kind(k: &Kind) -> String {
    match k {
        Kind::Typed(t) => {
            let names: Vec<&str> = t.cases.iter().map(|c| c.0).collect();
            format!(
                "{{\"type\": NAME, \"params\": {{…}}}}, NAME one of {}",
                names.join(", ")
            )
        }
        Kind::Ignored(_) | Kind::Refused(_) => "anything".into(),
        other => want(other),
    }
}

fn default(f: &Field) -> String {
    let auto = match f.auto {
        Auto::Solved => "; \"auto\" is the same",
        _ => "",
    };
    match f.default {
        Default::Required => "none: it must be given".into(),
        Default::Absent => format!("absent{auto}"),
        Default::Json(text) => format!("{text}{auto}"),
    }
}

/// A value as JSON: of another kind than the default, where there is a choice.
fn shown(f: &Field) -> String {
    if matches!(f.kind, Kind::Forms(_)) && !f.example.is_empty() {
        return f.example.into();
    }
    let default = match f.default {
        Default::Json(text) => text,
        _ => "",
    };
    match &f.kind {
        Kind::Bool => (default != "true").to_string(),
        Kind::Word(words) => {
            let other = words.iter().find(|w| format!("{w:?}") != default);
            format!("{:?}", other.or(words.first()).unwrap_or(&""))
        }
        Kind::Int { .. } | Kind::Float(_) | Kind::Pair(_) if !default.is_empty() => default.into(),
        Kind::Float(range) => {
            let tries = [3e-4, 0.1, 1.0, 2.0, -1.0];
            let fits = tries.into_iter().find(|x| range.holds(*x));
            fits.map_or(default.to_string(), |x| x.to_string())
        }
        Kind::Text { .. } | Kind::Texts if default.len() > 2 => default.into(),
        Kind::Text { .. } | Kind::Texts if f.example.is_empty() => "\"text\"".into(),
        Kind::Text { .. } | Kind::Texts => f.example.into(),
        other => example(other),
    }
}

/// `{"run": {"steps": 8}}` from `run.steps` and `8`.
fn nested(path: &str, value: &str) -> String {
    let keys: Vec<&str> = path.split('.').collect();
    let mut text = value.to_string();
    for (i, key) in keys.iter().enumerate().rev() {
        text = match (keys[..i].last(), *key) {
            // The elements of a list.
            (_, "param_groups" | "faults") if i + 1 < keys.len() => {
                format!("{{{key:?}: [{text}]}}")
            }
            _ => format!("{{{key:?}: {text}}}"),
        };
    }
    text
}

fn children(k: &Kind) -> Vec<&'static str> {
    let of = |t: &'static Table| t.fields.iter().map(|f| f.key).collect::<Vec<_>>();
    match k {
        Kind::Section(t) | Kind::List(t) => of(t),
        Kind::Typed(t) => ["type", "params"]
            .into_iter()
            .chain(t.extra.iter().map(|f| f.key))
            .collect(),
        Kind::Forms(forms) => {
            let mut all: Vec<&str> = forms.forms.iter().flat_map(|f| children(&f.kind)).collect();
            let mut seen = std::collections::BTreeSet::new();
            all.retain(|k| seen.insert(*k));
            all
        }
        _ => vec![],
    }
}
