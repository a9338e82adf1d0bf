//! Other spellings become the keys of the tables before these are consulted: field names of DeepSpeed's sections beside their aliases, keys
//! that it deprecated, and PEFT's names. Which name is which key's is in the key's row ([`Name`]).
//!
//! Source of the names: `deepspeed/runtime/zero/config.py` and `runtime/config.py` of DeepSpeed 0.19; PEFT's `LoraConfig`.

use crate::error::{At, Problem};
use crate::json::{Json, Member, Node};
use crate::rows;
use crate::schema::{Field, Kind, Name};
use crate::table_run::ROOT;

/// The warnings about keys that were renamed, and the errors about those that cannot be.
#[derive(Default)]
pub struct Translated {
    pub warnings: Vec<Problem>,
    pub errors: Vec<Problem>,
}

/// Renames in place.
pub fn translate(file: &str, root: &mut Node) -> Translated {
    let mut out = Translator {
        file,
        said: Translated::default(),
    };
    let Json::Object(members) = &mut root.value else {
        return out.said;
    };
    // Before there were stages the section was a switch of what is stage 1 now.
    if let Some(zero) = members.iter_mut().find(|m| m.key == "zero_optimization")
        && let Json::Bool(on) = zero.node.value
    {
        let stage = Json::Number(u8::from(on).to_string());
        let what = format!(
            "a boolean is deprecated in DeepSpeed: read as {{\"stage\": {}}}",
            u8::from(on)
        );
        out.warn(&zero.node.at, "zero_optimization", what);
        let at = zero.node.at.clone();
        zero.node.value = Json::Object(vec![member("stage", stage, &at)]);
    }
    out.section(members, ROOT.fields, "");
    out.numbers_of_other_sections(members);
    out.said
}

/// Every other name of a key: the name, as a whole path, and the key's path.
fn all() -> Vec<(String, String)> {
    let mut out = vec![];
    rows::each(&mut |path, _, row| {
        let names = row.names.iter();
        out.extend(names.map(|n| (n.whole(path), path.to_string())));
    });
    out
}

/// Other spellings under which the key of that path is read, with their sections.
pub fn other_names(path: &str) -> Vec<String> {
    let of = all().into_iter().filter(|(_, key)| key == path);
    of.map(|(name, _)| name).collect()
}

/// The path of today for one of those, with or without its section; in lower case.
pub fn current_name(path: &str) -> Option<String> {
    let ending = format!(".{path}");
    let hit = |(name, _): &(String, String)| name == path || name.ends_with(&ending);
    all().into_iter().find(hit).map(|(_, key)| key)
}

/// Returns true if the key holds a remark and no setting: JSON has no comments, so people write
/// `"_comment": "…"`.
pub fn is_remark(key: &str) -> bool {
    key.starts_with('_') || key.starts_with("//") || key.starts_with('#') || key == "comment"
}

fn member(key: &str, value: Json, at: &At) -> Member {
    Member {
        key: key.into(),
        at: at.clone(),
        node: Node {
            value,
            at: at.clone(),
        },
    }
}

/// The rows of the sections that a kind of value may be.
fn fields_of(kind: &'static Kind) -> Vec<&'static [Field]> {
    match kind {
        Kind::Section(t) => vec![t.fields],
        Kind::Forms(forms) => forms
            .forms
            .iter()
            .flat_map(|f| fields_of(&f.kind))
            .collect(),
        _ => vec![],
    }
}

struct Translator<'a> {
    file: &'a str,
    said: Translated,
}

impl Translator<'_> {
    fn problem(&self, at: &At, path: &str, what: String, fix: &str) -> Problem {
        let (file, at) = (self.file.to_string(), at.clone());
        Problem {
            file,
            at,
            path: path.into(),
            what,
            fix: fix.into(),
        }
    }

    fn warn(&mut self, at: &At, path: &str, what: String) {
        let problem = self.problem(at, path, what, "write the newer form");
        self.said.warnings.push(problem);
    }

    /// Renames the members of a section and of those in it.
    fn section(&mut self, members: &mut Vec<Member>, fields: &'static [Field], path: &str) {
        for field in fields {
            for name in field.names {
                match name {
                    Name::Also(old) => self.rename(members, path, (old, field.key), false),
                    Name::Deprecated(old) => self.rename(members, path, (old, field.key), true),
                    Name::Switch(_) | Name::Elsewhere(_) => {}
                }
            }
        }
        self.switches(members, fields, path);
        for field in fields {
            let Some(Json::Object(inner)) = inside(members, field.key) else {
                continue;
            };
            let path = join(path, field.key);
            for fields in fields_of(&field.kind) {
                self.section(inner, fields, &path);
            }
        }
    }

    /// The member of the name `old` becomes that of the key `new`.
    fn rename(
        &mut self,
        members: &mut Vec<Member>,
        section: &str,
        (old, new): (&str, &str),
        deprecated: bool,
    ) {
        let Some(i) = members.iter().position(|m| m.key == old) else {
            return;
        };
        let path = join(section, old);
        let at = members[i].at.clone();
        if let Some(j) = members.iter().position(|m| m.key == new) {
            // A `--set` is laid over the file, whichever name either uses.
            let (by_set, other) = (
                matches!(at, At::Set(_)),
                matches!(members[j].at, At::Set(_)),
            );
            if by_set == other {
                let what = format!("{new:?} is given too, and they are one setting");
                let problem = self.problem(&at, &path, what, "keep one of them");
                self.said.errors.push(problem);
            }
            if by_set && !other {
                members[j].node = members[i].node.clone();
            }
            members.remove(i);
            return;
        }
        if deprecated {
            self.warn(
                &at,
                &path,
                format!("deprecated in DeepSpeed: read as {new:?}"),
            );
        }
        members[i].key = new.to_string();
    }

    /// Switches of a section, `cpu_offload` and its company, as the sections that took their place.
    fn switches(&mut self, members: &mut Vec<Member>, fields: &'static [Field], path: &str) {
        let olds: Vec<(&str, &'static Field)> = fields
            .iter()
            .flat_map(|f| f.names.iter().map(move |n| (n, f)))
            .filter_map(|(n, f)| match n {
                Name::Switch(old) => Some((*old, f)),
                _ => None,
            })
            .collect();
        if olds.is_empty() {
            return;
        }
        let mut take = |key: &str| {
            let i = members
                .iter()
                .position(|m| m.key == key && matches!(m.node.value, Json::Bool(_)))?;
            let m = members.remove(i);
            Some((m.node.value == Json::Bool(true), m.at))
        };
        // Keys of the new sections that stood beside the switches.
        let mut beside: Vec<(&str, &str, bool, At)> = vec![];
        for (_, field) in &olds {
            for inner in fields_of(&field.kind).into_iter().flatten() {
                for name in inner.names {
                    if let Name::Elsewhere(whole) = name
                        && let Some((section, old)) = whole.rsplit_once('.')
                        && section == path
                        && beside.iter().all(|b| b.0 != old)
                        && let Some((on, at)) = take(old)
                    {
                        beside.push((old, inner.key, on, at));
                    }
                }
            }
        }
        let taken: Vec<_> = olds
            .into_iter()
            .map(|(old, field)| (old, field.key, take(old)))
            .collect();
        for (old, new, found) in taken {
            let Some((true, at)) = found else { continue };
            let path = join(path, old);
            if members.iter().any(|m| m.key == new) {
                self.warn(
                    &at,
                    &path,
                    format!("deprecated in DeepSpeed, and {new:?} is given: that is used"),
                );
                continue;
            }
            let mut section = vec![member("device", Json::Text("cpu".into()), &at)];
            for (_, key, on, at) in &beside {
                section.push(member(key, Json::Bool(*on), at));
            }
            self.warn(
                &at,
                &path,
                format!("deprecated in DeepSpeed: read as \"{new}\": {{\"device\": \"cpu\"}}"),
            );
            members.push(member(new, Json::Object(section), &at));
        }
    }

    /// Numbers that stand in another section than their key, as `tensor_parallel.autotp_size` of `mesh.tp`, where 0 is "not so" and means 1.
    fn numbers_of_other_sections(&mut self, root: &mut Vec<Member>) {
        experts_that_are_on(root);
        let mut moved = vec![];
        rows::each(&mut |path, _, row| {
            for name in row.names {
                if let (Name::Elsewhere(whole), Kind::Int { .. }) = (name, &row.kind) {
                    moved.push((*whole, path.to_string()));
                }
            }
        });
        for (whole, path) in moved {
            let Some(to) = path.split_once('.') else {
                continue;
            };
            let (members, old) = match whole.split_once('.') {
                None => (&mut *root, whole),
                Some((from, old)) => match inside(root, from) {
                    Some(Json::Object(members)) => (members, old),
                    _ => continue,
                },
            };
            if let Some(i) = members.iter().position(|m| m.key == old) {
                let given = members.remove(i);
                let at = given.at.clone();
                let several = matches!(&given.node.value, Json::Number(n) if n.parse::<f64>().is_ok_and(|n| n > 1.0));
                self.number(root, whole, given, to);
                if several && whole == ULYSSES {
                    // DeepSpeed's sequence parallelism exchanges tokens for heads.
                    word_beside(root, (to.0, "cp_comm"), ("a2a", &at));
                }
            }
        }
    }

    fn number(
        &mut self,
        root: &mut Vec<Member>,
        whole: &str,
        given: Member,
        (section, key): (&str, &str),
    ) {
        let at = given.at.clone();
        let value = match &given.node.value {
            Json::Number(n) if n.parse::<f64>() == Ok(0.0) => Json::Number("1".into()),
            Json::Null => return,
            Json::Text(text) if text == "auto" => return,
            other => other.clone(),
        };
        if !matches!(value, Json::Number(_)) {
            let what = format!("wanted a whole number >= 0, got {}", value.describe());
            let problem = self.problem(&at, whole, what, "write e.g. 2, or remove it");
            return self.said.errors.push(problem);
        }
        let i = match root.iter().position(|m| m.key == section) {
            Some(i) => i,
            None => {
                root.push(member(section, Json::Object(vec![]), &at));
                root.len() - 1
            }
        };
        let Json::Object(members) = &mut root[i].node.value else {
            // What is wrong with the section is said where it is read.
            return;
        };
        match members.iter_mut().find(|m| m.key == key) {
            None => members.push(member(key, value, &given.node.at)),
            Some(own) if own.node.value == value => {}
            // A `--set` is laid over the file, whichever name either uses.
            Some(own) if matches!(own.at, At::Set(_)) != matches!(at, At::Set(_)) => {
                if matches!(at, At::Set(_)) {
                    own.node.value = value;
                }
            }
            Some(_) => {
                let what = format!("\"{section}.{key}\" is given too, and they are one setting");
                let problem = self.problem(&at, whole, what, "keep one of them");
                self.said.errors.push(problem);
            }
        }
    }
}

/// Leaves the numbers of ranks of experts where their section is on, which they then say, and nowhere else. DeepSpeed cuts no expert where that is not asked
/// for, and here one is cut as the layers are.
fn experts_that_are_on(root: &mut [Member]) {
    let cut = |m: &Member| m.key == "expert_tensor_parallel_size";
    let said = match inside(root, "mesh") {
        Some(Json::Object(mesh)) => mesh.iter().any(|m| m.key == "etp"),
        _ => false,
    };
    let Some(Json::Object(members)) = inside(root, "expert_parallel") else {
        return;
    };
    let on = |m: &Member| m.key == "enabled" && m.node.value == Json::Bool(true);
    let size = |m: &Member| m.key == "autoep_size";
    let at = members.iter().find(|m| on(m)).map(|m| m.at.clone());
    match at {
        None => members.retain(|m| !size(m) && !cut(m)),
        Some(at) if members.iter().any(size) => {
            if !said && !members.iter().any(cut) {
                let one = Json::Number("1".into());
                members.push(member("expert_tensor_parallel_size", one, &at));
            }
            members.retain(|m| !on(m));
        }
        Some(_) => {}
    }
}

/// The number of DeepSpeed's that also says how its ranks exchange.
const ULYSSES: &str = "sequence_parallel_size";

/// Gives a key of a section a word, where it has none.
fn word_beside(root: &mut [Member], (section, key): (&str, &str), (word, at): (&str, &At)) {
    if let Some(Json::Object(members)) = inside(root, section)
        && members.iter().all(|m| m.key != key)
    {
        members.push(member(key, Json::Text(word.into()), at));
    }
}

fn inside<'a>(members: &'a mut [Member], key: &str) -> Option<&'a mut Json> {
    let found = members.iter_mut().find(|m| m.key == key)?;
    Some(&mut found.node.value)
}

fn join(section: &str, key: &str) -> String {
    match section {
        "" => key.to_string(),
        _ => format!("{section}.{key}"),
    }
}
