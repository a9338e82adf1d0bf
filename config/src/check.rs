//! Holds a parsed file against the tables: every key known, every value of its type and range,
//! every default filled in; all problems collected.

mod typed;

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use crate::asks::asks_nothing;
use crate::deepspeed::is_remark;
use crate::error::{At, Problem, SHOWN};
use crate::json::{Json, Member, Node};
use crate::known_words::known_word;
use crate::schema::{Auto, Default, Field, Form, Forms, Kind, Range, Source, Table};
use crate::suggest::{distance, nearest};
use crate::table_run::ROOT;
use crate::unused::Unused;

/// One resolved key, for `config explain`.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Dotted path.
    pub path: String,
    /// The value as JSON; "—" when absent.
    pub value: String,
    /// The origin of the value: `line 3`, `--set`, `default`, `preset tiny`.
    pub origin: String,
    /// One line from the table.
    pub doc: &'static str,
    /// The program whose name the key is.
    pub source: &'static str,
}

/// The outcome of a walk.
pub struct Checked {
    /// The file with all defaults filled in and numbers normalised.
    pub value: Value,
    /// One row per known key.
    pub rows: Vec<Row>,
    /// Keys that were given but have no effect, and why.
    pub warnings: Vec<Problem>,
    /// The faults; empty when all is well.
    pub errors: Vec<Problem>,
    /// The place of each given key, by dotted path.
    pub places: BTreeMap<String, At>,
    /// DeepSpeed's own file says nothing of clipping.
    pub unclipped: Option<Problem>,
    /// Path and value of each `"auto"` that only the Trainer's arguments could fill in.
    pub taken: Vec<(String, String)>,
}

/// Origin of what nobody gave.
const DEFAULT: &str = "default";

/// Checks `root` against the whole schema.
pub fn check(file: &str, root: &Node) -> Checked {
    let mut walk = Walk {
        file,
        out: Checked {
            value: Value::Null,
            rows: Vec::new(),
            warnings: Vec::new(),
            errors: Vec::new(),
            places: BTreeMap::new(),
            unclipped: None,
            taken: Vec::new(),
        },
        listed: false,
        deepspeed: is_deepspeeds(root),
        trainers: leaves_to_the_trainer(root),
        unused: Unused::of(root),
    };
    if let Some(map) = walk.section(&ROOT, Some(root), "") {
        walk.out.value = Value::Object(map);
    }
    walk.out.unclipped = walk.unclipped();
    walk.out
}

/// Returns true if `key` is a section of this project's own, which no file of another program has.
fn is_own(key: &str) -> bool {
    let section = |f: &Field| matches!(f.kind, Kind::Section(_) | Kind::List(_) | Kind::Forms(_));
    let mut own = ROOT.fields.iter();
    own.any(|f| f.key == key && f.source == Source::Own && section(f))
}

/// Returns true if no key of the file itself is this project's.
fn is_deepspeeds(root: &Node) -> bool {
    let Json::Object(members) = &root.value else {
        return false;
    };
    let mut ours = members.iter().filter(|m| is_own(&m.key));
    !ours.any(|m| matches!(m.at, At::File { .. }))
}

struct Walk<'a> {
    file: &'a str,
    out: Checked,
    /// True if a list of valid keys was printed; one is enough for a file.
    listed: bool,
    /// True if the file is DeepSpeed's own: it holds neither model nor data nor run, which `--set`
    /// or a caller lays over it.
    deepspeed: bool,
    /// True if the Trainer was to fill in the file.
    trainers: bool,
    /// Numbers that nothing reads.
    unused: Unused,
}

/// Returns true if the file leaves a value of DeepSpeed's to the Hugging Face Trainer.
fn leaves_to_the_trainer(root: &Node) -> bool {
    fn any(value: &Json) -> bool {
        match value {
            Json::Text(text) => text == "auto",
            Json::Object(members) => members.iter().any(|m| any(&m.node.value)),
            _ => false,
        }
    }
    let Json::Object(members) = &root.value else {
        return false;
    };
    let mut theirs = members.iter().filter(|m| !is_own(&m.key));
    theirs.any(|m| any(&m.node.value))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_string()
    } else {
        format!("{path}.{key}")
    }
}

impl Walk<'_> {
    fn problem(&self, at: &At, path: &str, what: String, fix: String) -> Problem {
        Problem {
            file: self.file.to_string(),
            at: at.clone(),
            path: path.to_string(),
            what,
            fix,
        }
    }

    fn error(&mut self, at: &At, path: &str, what: impl Into<String>, fix: impl Into<String>) {
        let problem = self.problem(at, path, what.into(), fix.into());
        self.out.errors.push(problem);
    }

    /// DeepSpeed's own file leaves the clipping to a default that differs between versions of DeepSpeed.
    fn unclipped(&self) -> Option<Problem> {
        let key = "gradient_clipping";
        let silent = self.deepspeed && !self.out.places.contains_key(key);
        silent.then(|| {
            let what = "not given: gradients are not clipped; DeepSpeed 0.19.8 clips their norm at 1 then, older versions did not";
            let fix = "add \"gradient_clipping\": 1.0, or 0 for none";
            self.problem(&At::Whole, key, what.into(), fix.into())
        })
    }

    /// Checks an object; `None` node means "nothing given": defaults only.
    fn section(
        &mut self,
        table: &'static Table,
        node: Option<&Node>,
        path: &str,
    ) -> Option<Map<String, Value>> {
        let (members, at): (&[Member], At) = match node {
            None => (&[], At::Whole),
            Some(Node {
                value: Json::Object(members),
                at,
            }) => (members, at.clone()),
            Some(Node { value, at }) => {
                let what = format!("wanted an object, got {}", value.describe());
                // A switch of other programs is a section here.
                let switch = matches!(value, Json::Bool(_));
                let fix = match table.fields.iter().any(|f| switch && f.key == "enabled") {
                    true => format!("write {{\"enabled\": {}}}", *value == Json::Bool(true)),
                    false => {
                        let keys = table.fields.iter().map(|f| f.key).take(4);
                        let keys: Vec<_> = keys.collect();
                        format!("write {{...}} with keys such as {}", keys.join(", "))
                    }
                };
                self.error(at, path, what, fix);
                return None;
            }
        };
        for member in members {
            if !is_remark(&member.key) && !table.fields.iter().any(|f| f.key == member.key) {
                self.unknown(table, member, path);
            }
        }
        let overlay = table.overlay.and_then(|overlay| overlay(members));
        let mut map = Map::new();
        for field in table.fields {
            let given = members.iter().find(|m| m.key == field.key);
            let path = join(path, field.key);
            if let Some(member) = given {
                self.out.places.insert(path.clone(), member.node.at.clone());
            }
            let value = self.field(field, given, &path, overlay.as_ref(), &at);
            if let Some(value) = value.filter(|_| !foreign_only(&field.kind)) {
                map.insert(field.key.to_string(), value);
            }
        }
        Some(map)
    }

    fn unknown(&mut self, table: &'static Table, member: &Member, path: &str) {
        let key = &member.key;
        // To look for the key that was meant takes long, and nobody is shown it.
        let open = self.deepspeed && ["", "checkpoint"].contains(&path);
        if self.out.errors.len() + self.out.warnings.len() >= SHOWN {
            let path = join(path, key);
            // What is let past is let past however much there is of it.
            if open {
                let what = format!("unknown key {key:?}, without effect here as in DeepSpeed");
                let warning = self.problem(&member.at, &path, what, "remove it".into());
                return self.out.warnings.push(warning);
            }
            return self.error(
                &member.at,
                &path,
                format!("unknown key {key:?}"),
                "remove it",
            );
        }
        let here = || table.fields.iter().map(|f| f.key);
        let near = nearest(key, here());
        let close = near.filter(|near| distance(key, near) <= 2);
        let keys: Vec<_> = here().collect();
        // A word of another program, or the very name in another section, is likelier than a distant name here.
        let word = known_word(key, path, &keys).filter(|place| *place != join(path, key));
        let fix = if let Some(near) = close {
            format!("did you mean {near:?}?")
        } else if let Some(place) = word {
            match place.rsplit_once('.') {
                Some((_, last)) if last == key => format!("it belongs at {place}"),
                _ => format!("write it as {place}"),
            }
        } else if let Some(place) = elsewhere(key, path) {
            format!("it belongs at {place}")
        } else if let Some(near) = near {
            format!("did you mean {near:?}?")
        } else if self.listed {
            "remove it; `crossweave config explain` lists every key".into()
        } else {
            let mut keys: Vec<_> = table
                .fields
                .iter()
                .filter(|f| !matches!(f.kind, Kind::Ignored(_) | Kind::Refused(_)))
                .map(|f| f.key)
                .collect();
            keys.sort_unstable();
            match keys.is_empty() {
                // Keys here are other names of some elsewhere.
                true => "remove it; `crossweave config explain` lists every key".into(),
                false => {
                    self.listed = true;
                    format!("remove it; valid keys here: {}", keys.join(", "))
                }
            }
        };
        // DeepSpeed reads past keys it does not know at the top and in `checkpoint`. What is no misspelling is reported, not refused.
        let past = open && close.is_none();
        let path = join(path, key);
        if past {
            let what = format!("unknown key {key:?}, without effect here as in DeepSpeed");
            let warning = self.problem(&member.at, &path, what, fix);
            self.out.warnings.push(warning);
            return;
        }
        self.error(&member.at, &path, format!("unknown key {key:?}"), fix);
    }

    fn field(
        &mut self,
        field: &'static Field,
        given: Option<&Member>,
        path: &str,
        overlay: Option<&(String, Vec<(&'static str, String)>)>,
        parent: &At,
    ) -> Option<Value> {
        if let Kind::Ignored(reason) | Kind::Refused(reason) = field.kind {
            if let Some(member) = given {
                self.foreign(field, member, path, reason);
            }
            return None;
        }
        let auto = given.is_some_and(|m| matches!(&m.node.value, Json::Text(t) if t == "auto"))
            && !matches!(field.kind, Kind::Text { .. } | Kind::Texts | Kind::Forms(_));
        let null = given.is_some_and(|m| m.node.value == Json::Null);
        // A number that nothing reads may be any number.
        let unread = |m: &&Member| {
            matches!(m.node.value, Json::Number(_))
                && self.unused.holds(path)
                && !fits(&field.kind, &m.node.value)
        };
        let given = given.filter(|m| !unread(m));
        if let Some(member) = given.filter(|_| !auto && !null) {
            let from = match &member.node.at {
                At::File { line, .. } => format!("line {line}"),
                At::Set(_) => "--set".into(),
                At::Whole => DEFAULT.into(),
            };
            let value = self.value(&field.kind, &member.node, path, &from)?;
            self.row(field, path, Some(&value), &from);
            return Some(value);
        }
        if null && !field.null_default && !matches!(field.default, Default::Absent) {
            let at = given.map_or(At::Whole, |m| m.node.at.clone());
            let fix = "remove the key to get the default";
            self.error(
                &at,
                path,
                format!("wanted {}, got null", want(&field.kind)),
                fix,
            );
            return None;
        }
        let solved = matches!(field.auto, Auto::Solved);
        let trainers = matches!(field.auto, Auto::Trainer(_));
        if auto
            && !solved
            && (overlay.is_none() || trainers)
            && let Default::Json(text) = field.default
        {
            return self.trainer(field, path, text);
        }
        let laid = overlay
            .filter(|_| !(auto && solved))
            .and_then(|(label, values)| {
                let value = values.iter().find(|(key, _)| *key == field.key)?;
                Some((label.clone(), value.1.clone()))
            });
        let (from, text) = match (laid, &field.default) {
            (Some((label, text)), _) => (label, text),
            _ if auto && solved => {
                self.row(field, path, None, "auto");
                return None;
            }
            (None, Default::Json(_)) if self.trainers && path == "optimizer" => {
                ("auto".into(), typed::TRAINERS_OPTIMIZER.to_string())
            }
            (None, Default::Json(text)) => (DEFAULT.into(), (*text).to_string()),
            (None, Default::Absent) => {
                self.row(field, path, None, DEFAULT);
                return None;
            }
            (None, Default::Required) => {
                let what = format!("missing; it must be given ({})", field.doc);
                let fix = format!("add {:?}: {}", field.key, example(&field.kind));
                self.error(parent, path, what, fix);
                return None;
            }
        };
        // A default goes through the same checks as what a user writes.
        let node = crate::json::parse(&text).ok()?;
        let node = without_places(node);
        let value = self.value(&field.kind, &node, path, &from)?;
        self.row(field, path, Some(&value), &from);
        Some(value)
    }

    /// `"auto"` where only the Trainer's arguments would know: its default, else the table's.
    fn trainer(
        &mut self,
        field: &'static Field,
        path: &str,
        default: &'static str,
    ) -> Option<Value> {
        let text = match field.auto {
            Auto::Trainer(text) => text,
            _ => default,
        };
        let node = without_places(crate::json::parse(text).ok()?);
        let value = self.value(&field.kind, &node, path, "auto")?;
        self.row(field, path, Some(&value), "auto");
        if !matches!(field.auto, Auto::Width(_)) {
            self.out.taken.push((path.to_string(), text.to_string()));
        }
        Some(value)
    }

    fn row(&mut self, field: &'static Field, path: &str, value: Option<&Value>, origin: &str) {
        // A section that is there has no value of its own; its keys follow as rows.
        if matches!(value, Some(Value::Object(_))) {
            return;
        }
        self.out.rows.push(Row {
            path: path.to_string(),
            value: value.map_or_else(|| "—".to_string(), Value::to_string),
            origin: origin.to_string(),
            doc: field.doc,
            source: field.source.name(),
        });
    }

    fn foreign(&mut self, field: &'static Field, member: &Member, path: &str, reason: &str) {
        let default = match field.default {
            Default::Json(text) => text,
            _ => "null",
        };
        if asks_nothing(&member.node.value, default) {
            return;
        }
        let refused = matches!(field.kind, Kind::Refused(_));
        if refused {
            let known = match field.source {
                Source::Own => "not available".to_string(),
                Source::HuggingFace => "known to PEFT but not available".to_string(),
                other => format!("known to {} but not available", other.name()),
            };
            let what = format!("{known}: {reason}");
            let fix = match default {
                "true" => "remove the key, or set it to true",
                _ => "remove the key or switch it off",
            };
            self.error(&member.at, path, what, fix);
        } else {
            let what = format!("has no effect here: {reason}");
            let fix = "it is safe to remove the key".into();
            let warning = self.problem(&member.at, path, what, fix);
            self.out.warnings.push(warning);
        }
    }

    fn value(&mut self, kind: &'static Kind, node: &Node, path: &str, from: &str) -> Option<Value> {
        let at = &node.at;
        match (kind, &node.value) {
            (Kind::Bool, Json::Bool(b)) => Some(Value::Bool(*b)),
            (Kind::Int { min, max }, Json::Number(text)) => match whole(text) {
                Some(n) if n >= *min && n <= *max => Some(Value::from(n)),
                Some(n) => {
                    let bound = if n < *min {
                        format!("at least {min}")
                    } else {
                        format!("at most {max}")
                    };
                    self.error(
                        at,
                        path,
                        format!("wanted {}, got {text}", want(kind)),
                        format!("write a number that is {bound}"),
                    );
                    None
                }
                None => {
                    self.error(
                        at,
                        path,
                        format!("wanted {}, got {text}", want(kind)),
                        no_whole(text, *max),
                    );
                    None
                }
            },
            (Kind::Float(range), Json::Number(text)) => self.float(range, text, at, path),
            (Kind::Pair(range), Json::List(items)) if items.len() == 2 => {
                let mut out = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    let Json::Number(text) = &item.value else {
                        let what = format!("wanted a number, got {}", item.value.describe());
                        let fix = format!("write e.g. {}", example(kind));
                        self.error(&item.at, &path, what, fix);
                        return None;
                    };
                    out.push(self.float(range, text, &item.at, &path)?);
                }
                Some(Value::Array(out))
            }
            (Kind::Text { empty }, Json::Text(text)) if *empty || !text.is_empty() => {
                Some(Value::String(text.clone()))
            }
            (Kind::Text { .. }, Json::Text(_)) => {
                self.error(
                    at,
                    path,
                    "wanted a string, got an empty one",
                    "write a value",
                );
                None
            }
            (Kind::Word(words), Json::Text(text)) => {
                match words.iter().find(|w| w.eq_ignore_ascii_case(text)) {
                    Some(word) => Some(Value::String((*word).to_string())),
                    None => {
                        let list = words.join(", ");
                        let fix = match nearest(text, words.iter().copied()) {
                            Some(near) => format!("did you mean {near:?}?"),
                            None => format!("use one of {list}"),
                        };
                        self.error(at, path, format!("wanted one of {list}, got {text:?}"), fix);
                        None
                    }
                }
            }
            (Kind::Texts, Json::Text(text)) if !text.is_empty() => {
                Some(Value::Array(vec![Value::String(text.clone())]))
            }
            (Kind::Texts, Json::List(items)) if !items.is_empty() => {
                let mut out = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    match &item.value {
                        Json::Text(text) if !text.is_empty() => {
                            out.push(Value::String(text.clone()))
                        }
                        other => {
                            let what =
                                format!("wanted a non-empty string, got {}", other.describe());
                            self.error(&item.at, &format!("{path}[{i}]"), what, "write a string");
                            return None;
                        }
                    }
                }
                Some(Value::Array(out))
            }
            (Kind::Section(table), _) => self.section(table, Some(node), path).map(Value::Object),
            (Kind::List(table), Json::List(items)) => {
                let mut out = Vec::new();
                for (i, item) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    out.push(self.section(table, Some(item), &path).map(Value::Object));
                }
                out.into_iter()
                    .collect::<Option<Vec<_>>>()
                    .map(Value::Array)
            }
            (Kind::Typed(typed), Json::Object(members)) => {
                self.typed(typed, members, at, path, from)
            }
            (Kind::Forms(forms), value) => match (forms.pick)(value) {
                Ok(i) => {
                    let form: &'static Form = forms.forms.get(i)?;
                    self.value(&form.kind, node, path, from)
                }
                Err((what, fix)) => {
                    self.error(at, path, what, fix);
                    None
                }
            },
            (kind, got) => {
                let what = format!("wanted {}, got {}", want(kind), got.describe());
                let fix = match got {
                    Json::Text(t)
                        if !matches!(kind, Kind::Typed(_))
                            && (t.parse::<f64>().is_ok() || t == "true" || t == "false") =>
                    {
                        format!("drop the quotes: {t}")
                    }
                    _ => format!("write e.g. {}", example(kind)),
                };
                self.error(at, path, what, fix);
                None
            }
        }
    }

    fn float(&mut self, range: &Range, text: &str, at: &At, path: &str) -> Option<Value> {
        let x: f64 = text.parse().ok()?;
        if !range.holds(x) {
            let want = range.describe();
            let what = format!("wanted a number {want}, got {text}");
            self.error(at, path, what, format!("write a number {want}"));
            return None;
        }
        Some(Value::Number(Number::from_f64(x)?))
    }
}

/// Returns true if it is a section of which no key is read.
fn foreign_only(kind: &Kind) -> bool {
    let foreign = |f: &Field| matches!(f.kind, Kind::Ignored(_) | Kind::Refused(_));
    matches!(kind, Kind::Section(table) if table.fields.iter().all(foreign))
}

fn without_places(mut node: Node) -> Node {
    node.at = At::Whole;
    match &mut node.value {
        Json::List(items) => {
            for item in items {
                *item = without_places(item.clone());
            }
        }
        Json::Object(members) => {
            for member in members {
                member.at = At::Whole;
                member.node = without_places(member.node.clone());
            }
        }
        _ => {}
    }
    node
}

/// Returns true if the number lies in the range of the kind.
fn fits(kind: &Kind, value: &Json) -> bool {
    let Json::Number(text) = value else {
        return false;
    };
    match kind {
        Kind::Int { min, max } => whole(text).is_some_and(|n| n >= *min && n <= *max),
        Kind::Float(range) => text.parse().is_ok_and(|x| range.holds(x)),
        _ => true,
    }
}

/// A whole number, also when written as `5e8` or `4.0`.
fn whole(text: &str) -> Option<u64> {
    if let Ok(n) = text.parse::<u64>() {
        return Some(n);
    }
    let x: f64 = text.parse().ok()?;
    let exact = x >= 0.0 && x.fract() == 0.0 && x <= 9_007_199_254_740_992.0;
    exact.then_some(x as u64)
}

/// The fix of what is no whole number: digits alone are more than any key takes.
fn no_whole(text: &str, max: u64) -> String {
    match text.bytes().all(|b| b.is_ascii_digit()) {
        true => format!("write a number that is at most {max}"),
        false => "write a whole number that is not negative".into(),
    }
}

/// The kind in words, after "wanted".
pub fn want(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".into(),
        Kind::Int { min: 0, max } if *max >= 1 << 53 => "a whole number >= 0".into(),
        Kind::Int { min, max } if *max >= 1 << 53 => format!("a whole number >= {min}"),
        Kind::Int { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Float(range) => format!("a number {}", range.describe()),
        Kind::Pair(range) => format!("two numbers {}", range.describe()),
        Kind::Text { .. } => "a string".into(),
        Kind::Word(words) => format!("one of {}", words.join(", ")),
        Kind::Texts => "a string or a list of strings".into(),
        Kind::Section(_) => "an object".into(),
        Kind::List(_) => "a list of objects".into(),
        Kind::Typed(_) => "an object with type and params".into(),
        Kind::Forms(forms) => names(forms),
        Kind::Ignored(_) | Kind::Refused(_) => "nothing".into(),
    }
}

fn names(forms: &Forms) -> String {
    let names: Vec<_> = forms.forms.iter().map(|f| f.name).collect();
    format!("one of the forms {}", names.join(", "))
}

/// A value of the kind, for "write e.g.".
pub fn example(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true".into(),
        Kind::Int { min, .. } => (*min).max(8).to_string(),
        Kind::Float(_) => "0.1".into(),
        Kind::Pair(_) => "[0.9, 0.999]".into(),
        Kind::Text { .. } => "\"text\"".into(),
        Kind::Word(words) => format!("{:?}", words.first().unwrap_or(&"")),
        Kind::Texts => "[\"a\", \"b\"]".into(),
        Kind::Section(table) => match table.fields.first() {
            Some(f) => format!("{{{:?}: {}}}", f.key, example(&f.kind)),
            None => "{}".into(),
        },
        Kind::List(table) => format!("[{}]", example(&Kind::Section(table))),
        Kind::Typed(typed) => match typed.cases.first() {
            Some((name, _)) => format!("{{\"type\": {name:?}, \"params\": {{}}}}"),
            None => "{}".into(),
        },
        Kind::Forms(forms) => forms
            .forms
            .first()
            .map_or_else(String::new, |f| example(&f.kind)),
        Kind::Ignored(_) | Kind::Refused(_) => "null".into(),
    }
}

/// Dotted path of a key that exists somewhere else in the schema than under `here`.
fn elsewhere(key: &str, here: &str) -> Option<String> {
    fn search(table: &'static Table, key: &str, path: &str, found: &mut Vec<String>) {
        for field in table.fields {
            let path = join(path, field.key);
            if field.key == key {
                found.push(path.clone());
            }
            into(&field.kind, key, &path, found);
        }
    }
    fn into(kind: &'static Kind, key: &str, path: &str, found: &mut Vec<String>) {
        match kind {
            Kind::Section(table) => search(table, key, path, found),
            Kind::List(table) => search(table, key, &format!("{path}[]"), found),
            Kind::Typed(typed) => {
                for field in typed.extra {
                    into(&field.kind, key, &join(path, field.key), found);
                }
                for (_, table) in typed.cases {
                    search(table, key, &join(path, "params"), found);
                }
            }
            Kind::Forms(forms) => {
                for form in forms.forms {
                    into(&form.kind, key, path, found);
                }
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    search(&ROOT, key, "", &mut found);
    found.retain(|path| *path != join(here, key));
    found
        .into_iter()
        .min_by_key(|path| path.matches('.').count())
}
