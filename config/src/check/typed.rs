//! Sections of the form `{"type": NAME, "params": {…}}`, and what `--set` lays over the optimizer that is taken by default.

use super::{Row, Walk, join, without_places};
use crate::deepspeed::is_remark;
use crate::error::At;
use crate::json::{Json, Member, Node};
use crate::known_words::known_word;
use crate::schema::{Source, Typed};
use crate::suggest::nearest;
use serde_json::{Map, Value};

/// The Trainer's own optimizer, which a config without one is given.
pub(super) const TRAINERS_OPTIMIZER: &str = "{\"type\": \"AdamW\", \"params\": {\"lr\": 5e-5}}";

impl Walk<'_> {
    pub(super) fn typed(
        &mut self,
        typed: &'static Typed,
        members: &[Member],
        at: &At,
        path: &str,
        from: &str,
    ) -> Option<Value> {
        self.beside(typed, members, path);
        let names = || typed.cases.iter().map(|(name, _)| *name);
        let list = names().collect::<Vec<_>>().join(", ");
        let type_path = join(path, "type");
        let merged = self.over_default(members, at, path);
        let members = &merged[..];
        let Some(name) = members.iter().find(|m| m.key == "type") else {
            let fix = format!("add \"type\": one of {list}");
            self.error(at, &type_path, "missing; it must be given", fix);
            return None;
        };
        let Json::Text(word) = &name.node.value else {
            let what = format!("wanted one of {list}, got {}", name.node.value.describe());
            self.error(&name.node.at, &type_path, what, "write a name in quotes");
            return None;
        };
        let Some((name, table)) = typed
            .cases
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(word))
        else {
            let missing = typed.missing.iter().find(|n| n.eq_ignore_ascii_case(word));
            let what = match missing {
                Some(known) => format!("{known} is not yet available; available: {list}"),
                None => format!("wanted one of {list}, got {word:?}"),
            };
            let fix = match nearest(word, names()).filter(|_| missing.is_none()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("use one of {list}"),
            };
            self.error(&name.node.at, &type_path, what, fix);
            return None;
        };
        self.out.rows.push(Row {
            path: type_path,
            value: Value::from(*name).to_string(),
            origin: from.to_string(),
            doc: typed.doc,
            source: Source::DeepSpeed.name(),
        });
        let params = members.iter().find(|m| m.key == "params").map(|m| &m.node);
        let params = self.section(table, params, &join(path, "params"))?;
        let mut map = Map::new();
        map.insert("type".into(), Value::from(*name));
        map.insert("params".into(), Value::Object(params));
        for field in typed.extra {
            let given = members.iter().find(|m| m.key == field.key);
            let path = join(path, field.key);
            if let Some(value) = self.field(field, given, &path, None, at) {
                map.insert(field.key.to_string(), value);
            }
        }
        Some(Value::Object(map))
    }

    /// The keys beside `type` and `params`.
    fn beside(&mut self, typed: &'static Typed, members: &[Member], path: &str) {
        for member in members {
            self.out
                .places
                .insert(join(path, &member.key), member.node.at.clone());
            let extra = typed.extra.iter().map(|f| f.key);
            let known: Vec<&str> = ["type", "params"].into_iter().chain(extra).collect();
            if !is_remark(&member.key) && !known.contains(&member.key.as_str()) {
                let fix = match nearest(&member.key, known.iter().copied()) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None if typed
                        .cases
                        .iter()
                        .any(|(_, t)| t.fields.iter().any(|f| f.key == member.key)) =>
                    {
                        format!("it belongs at {path}.params.{}", member.key)
                    }
                    None => match known_word(&member.key, path, &known) {
                        Some(place) => format!("write it as {place}"),
                        None => format!("valid keys here: {}", known.join(", ")),
                    },
                };
                let path = join(path, &member.key);
                if self.deepspeed && fix.starts_with("it belongs") {
                    let what = format!(
                        "unknown key {:?}, without effect here as in DeepSpeed",
                        member.key
                    );
                    let warning = self.problem(&member.at, &path, what, fix);
                    self.out.warnings.push(warning);
                    continue;
                }
                self.error(
                    &member.at,
                    &path,
                    format!("unknown key {:?}", member.key),
                    fix,
                );
            }
        }
    }

    /// The members of the section; of the optimizer, where `--set` alone says something of it, laid over the one that is taken by default.
    fn over_default(&self, members: &[Member], at: &At, path: &str) -> Vec<Member> {
        let laid = path == "optimizer" && matches!(at, At::Set(_));
        let own = match self.trainers {
            true => TRAINERS_OPTIMIZER,
            false => "{\"type\": \"AdamW\"}",
        };
        let under = crate::json::parse(own).ok().map(without_places);
        match under {
            Some(Node {
                value: Json::Object(under),
                ..
            }) if laid => over(under, members),
            _ => members.to_vec(),
        }
    }
}

/// The members of `over` laid over those of `under`, object by object. What belongs to another type is left out where `over` names its own.
fn over(mut under: Vec<Member>, over: &[Member]) -> Vec<Member> {
    if over.iter().any(|m| m.key == "type") {
        return over.to_vec();
    }
    for m in over {
        match under.iter_mut().find(|u| u.key == m.key) {
            Some(u) => match (&mut u.node.value, &m.node.value) {
                (Json::Object(a), Json::Object(b)) => {
                    a.retain(|a| b.iter().all(|b| a.key != b.key));
                    a.extend(b.iter().cloned());
                }
                _ => u.node = m.node.clone(),
            },
            None => under.push(m.clone()),
        }
    }
    under
}
