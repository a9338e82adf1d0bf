//! The tables and a config as text: JSON Schema, `explain`, `check`.

use serde_json::{Map, Value, json};

use crate::Config;
use crate::check::want;
use crate::lookup::entries;
use crate::resolve::Resolved;
use crate::schema::{Default, Field, Kind, Table};
use crate::settings::{Data, MixtureSource, Model, TextSource};
use crate::table_run::ROOT;
use crate::wrap::hanging;

/// The JSON Schema (2020-12) of a config, pretty-printed; editors complete and check by it.
pub fn schema() -> String {
    let mut root = table(&ROOT);
    if let Value::Object(map) = &mut root {
        map.insert(
            "$schema".into(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        map.insert("title".into(), json!("Crossweave training run"));
    }
    let mut text = serde_json::to_string_pretty(&root).unwrap_or_default();
    text.push('\n');
    text
}

fn table(t: &'static Table) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in t.fields {
        properties.insert(field.key.to_string(), property(field));
        // A preset may supply what is otherwise required.
        if matches!(field.default, Default::Required) && t.overlay.is_none() {
            required.push(Value::from(field.key));
        }
    }
    let mut map = Map::new();
    map.insert("type".into(), json!("object"));
    map.insert("description".into(), json!(t.doc));
    map.insert("properties".into(), Value::Object(properties));
    map.insert("additionalProperties".into(), json!(false));
    if !required.is_empty() {
        map.insert("required".into(), Value::Array(required));
    }
    Value::Object(map)
}

fn property(field: &'static Field) -> Value {
    let mut value = kind(&field.kind);
    if let (Kind::Refused(_), Default::Json(text)) = (&field.kind, &field.default) {
        value["enum"] = off(text);
    }
    let auto = matches!(
        field.kind,
        Kind::Bool | Kind::Int { .. } | Kind::Float(_) | Kind::Pair(_) | Kind::Word(_)
    ) && !matches!(field.default, Default::Required);
    if auto {
        value = json!({ "anyOf": [value, { "const": "auto" }] });
    }
    if let Value::Object(map) = &mut value {
        map.insert(
            "description".into(),
            json!(format!("{} [{}]", field.doc, field.source.name())),
        );
        if let Default::Json(text) = field.default
            && let Ok(default) = serde_json::from_str::<Value>(text)
            && default != json!({})
        {
            map.insert("default".into(), default);
        }
    }
    value
}

/// The values of a refused key that ask for nothing.
fn off(default: &str) -> Value {
    let default = serde_json::from_str(default).unwrap_or_default();
    let section = matches!(default, Value::Object(_));
    let more = [json!({}), json!(false), json!({ "enabled": false })];
    let mut all = vec![Value::Null, default];
    all.extend(more.into_iter().filter(|_| section));
    all.dedup();
    Value::Array(all)
}

fn number(range: &crate::schema::Range) -> Value {
    let mut map = Map::new();
    map.insert("type".into(), json!("number"));
    let low = if range.min_in {
        "minimum"
    } else {
        "exclusiveMinimum"
    };
    let high = if range.max_in {
        "maximum"
    } else {
        "exclusiveMaximum"
    };
    if range.min.is_finite() {
        map.insert(low.into(), json!(range.min));
    }
    if range.max.is_finite() {
        map.insert(high.into(), json!(range.max));
    }
    Value::Object(map)
}

fn kind(k: &'static Kind) -> Value {
    match k {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int { min, max } if *max < 1 << 53 => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        Kind::Int { min, .. } => json!({ "type": "integer", "minimum": min }),
        Kind::Float(range) => number(range),
        Kind::Pair(range) => {
            json!({ "type": "array", "items": number(range), "minItems": 2, "maxItems": 2 })
        }
        Kind::Text { empty } => json!({ "type": "string", "minLength": u8::from(!empty) }),
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Texts => json!({ "anyOf": [
            { "type": "string", "minLength": 1 },
            { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1 },
        ]}),
        Kind::Section(t) => table(t),
        Kind::List(t) => json!({ "type": "array", "items": table(t) }),
        Kind::Typed(typed) => {
            let cases: Vec<Value> = typed
                .cases
                .iter()
                .map(|(name, t)| {
                    let mut properties = json!({ "type": { "const": name }, "params": table(t) });
                    for f in typed.extra {
                        properties[f.key] = kind(&f.kind);
                        properties[f.key]["description"] = json!(f.doc);
                    }
                    json!({
                        "type": "object",
                        "properties": properties,
                        "required": ["type"],
                        "additionalProperties": false,
                    })
                })
                .collect();
            json!({ "oneOf": cases })
        }
        Kind::Forms(forms) => {
            let forms: Vec<Value> = forms.forms.iter().map(|f| kind(&f.kind)).collect();
            json!({ "anyOf": forms })
        }
        Kind::Ignored(_) | Kind::Refused(_) => json!({ "deprecated": true }),
    }
}

/// `config explain CONFIG`: every key with its value, origin and meaning, in lines of `width` characters.
pub fn explain(config: &Config, width: usize) -> String {
    let cells: Vec<[String; 4]> = config
        .rows()
        .iter()
        .map(|row| {
            let mut value = row.value.clone();
            if value.chars().count() > 40 {
                value = value.chars().take(37).collect::<String>() + "...";
            }
            let doc = format!("{} [{}]", row.doc, row.source);
            [row.path.clone(), value, row.origin.clone(), doc]
        })
        .collect();
    let column = |i: usize, head: &str| {
        let cell = |c: &[String; 4]| c[i].chars().count();
        cells.iter().map(cell).max().unwrap_or(0).max(head.len())
    };
    let (a, b, c) = (column(0, "key"), column(1, "value"), column(2, "from"));
    let mut out = String::new();
    // Columns where they leave room for words, else the meaning below its key.
    let at = a + b + c + 6;
    if at + 40 <= width {
        out += &format!(
            "{:a$}  {:b$}  {:c$}  {}\n",
            "key", "value", "from", "meaning"
        );
        for [key, value, from, doc] in &cells {
            out += &hanging(&format!("{key:a$}  {value:b$}  {from:c$}"), at, doc, width);
        }
        return out;
    }
    for [key, value, from, doc] in &cells {
        // A value may have spaces, at which it must not be broken where it fits a line.
        let all = format!("{key}  {value}  ({from})");
        match all.chars().count() <= width {
            true => out += &format!("{all}\n"),
            false => out += &format!("{key}\n    {value}  ({from})\n"),
        }
        out += &hanging("", 4, doc, width);
    }
    out
}

/// `config explain`: every key with its kind, default and meaning, in lines of `width` characters.
pub fn keys(width: usize) -> String {
    let mut out = String::new();
    for e in entries() {
        let default = match e.field.default {
            Default::Required => "must be given".to_string(),
            Default::Absent => String::new(),
            Default::Json(text) => format!("default {text}"),
        };
        let kind = match e.field.kind {
            Kind::Ignored(_) => "no effect".to_string(),
            Kind::Refused(_) => "refused".to_string(),
            ref k => want(k),
        };
        let head = [kind, default].join("; ");
        out += &hanging("", 0, &e.path, width);
        out += &hanging("", 4, head.trim_end_matches("; "), width);
        out += &hanging("", 4, e.field.doc, width);
    }
    out
}

/// `config check`.
pub fn summary(config: &Config, run: &Resolved) -> String {
    let b = &run.batch;
    let model = match &run.model {
        Model::Hf(m) => {
            let adapters = m.lora.as_ref();
            let adapters = adapters.map(|l| format!(", LoRA of rank {}", l.r));
            format!(
                "Hugging Face folder {}{}",
                m.hf,
                adapters.unwrap_or_default()
            )
        }
        // It has been resolved, so that its numbers fit.
        Model::New(m) => match m.spec(None) {
            Ok(spec) => format!("{}, {} positions", spec.summary(), spec.model().positions),
            Err(e) => e.to_string(),
        },
    };
    let data = match &run.data {
        Data::Tokens(d) => format!("given batches, {:?} of {}", d.key, d.tokens),
        Data::Text(d) => match &d.train {
            TextSource::Globs(globs) => format!("text, {}", globs.join(", ")),
            TextSource::Indexed(i) => format!("tokenised, {}.bin", i.indexed),
            TextSource::Cargo(c) => {
                format!(
                    "sources of {} locked packages",
                    c.cargo_sources.packages.len()
                )
            }
            TextSource::Mixture(parts) => {
                // Weights may be too large to be added.
                let most = parts
                    .iter()
                    .map(|p| p.weight)
                    .fold(f64::MIN_POSITIVE, f64::max);
                let sum: f64 = parts.iter().map(|p| p.weight / most).sum();
                let line = |p: &MixtureSource| {
                    let name = p.files.as_ref().map(|f| f.join(", "));
                    let name = name.or_else(|| p.indexed.as_ref().map(|i| format!("{i}.bin")));
                    format!(
                        "\n             {:5.1} % {}",
                        100.0 * (p.weight / most) / sum,
                        name.unwrap_or_default()
                    )
                };
                let lines: String = parts.iter().map(line).collect();
                format!("a mixture of {} sources{lines}", parts.len())
            }
        },
    };
    let steps = match (run.settings.run.steps, run.settings.run.epochs) {
        (Some(n), _) => n.to_string(),
        (None, Some(e)) => format!("{e} epochs"),
        (None, None) => "all in the file".to_string(),
    };
    let scheduler = match &run.settings.scheduler {
        Some(s) => s.kind.clone(),
        None => "constant rate".into(),
    };
    let mut out = format!(
        "{}: ok\n  model      {model}\n  data       {data}\n  \
         batch      {} sequences = {} x {} accumulated x {} {}\n  \
         optimizer  {}{}, {scheduler}\n  steps      {steps}, {:?}, seed {}\n",
        config.file(),
        b.global,
        b.micro,
        b.accumulation,
        b.ranks,
        match run.settings.run.canonical_shards {
            Some(_) => "logical shards",
            None => "ranks",
        },
        run.settings.optimizer.kind,
        rate(run),
        run.dtype,
        run.seed,
    );
    for warning in &run.warnings {
        out += &format!("warning: {warning}\n");
    }
    out
}

/// The highest rate of the run, where the schedule has one; an optimizer that makes its own has none.
fn rate(run: &Resolved) -> String {
    let own = run.settings.optimizer.params.lr.is_none() && run.settings.scheduler.is_none();
    let highest = run.schedule.highest().filter(|_| !own);
    highest.map_or(String::new(), |lr| format!(", lr {lr}"))
}

/// Every key of the tables with its kind, default and doc as Markdown, for the docs.
pub fn reference() -> String {
    let mut out =
        String::from("| key | value | default | meaning | name from |\n|---|---|---|---|---|\n");
    rows(&ROOT, "", &mut out);
    out
}

fn rows(t: &'static Table, path: &str, out: &mut String) {
    for field in t.fields {
        let path = if path.is_empty() {
            field.key.to_string()
        } else {
            format!("{path}.{}", field.key)
        };
        let default = match field.default {
            Default::Required => "**required**".to_string(),
            Default::Absent => "—".to_string(),
            Default::Json(text) => format!("`{text}`"),
        };
        let name = field.source.name();
        *out += &format!(
            "| `{path}` | {} | {default} | {} | {name} |\n",
            want(&field.kind),
            field.doc
        );
        descend(&field.kind, &path, out);
    }
}

fn descend(k: &'static Kind, path: &str, out: &mut String) {
    match k {
        Kind::Section(t) => rows(t, path, out),
        Kind::List(t) => rows(t, &format!("{path}[]"), out),
        Kind::Typed(typed) => {
            for f in typed.extra {
                let path = format!("{path}.{}", f.key);
                *out += &format!(
                    "| `{path}` | {} | — | {} | {} |\n",
                    want(&f.kind),
                    f.doc,
                    f.source.name()
                );
                descend(&f.kind, &path, out);
            }
            for (name, t) in typed.cases {
                rows(t, &format!("{path}({name}).params"), out);
            }
        }
        Kind::Forms(forms) => {
            for form in forms.forms {
                descend(&form.kind, path, out);
            }
        }
        _ => {}
    }
}
