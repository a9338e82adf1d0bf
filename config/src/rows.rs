//! The tables row by row: every key with its path, and what the rows on the way to a path say of it together.

use crate::schema::{Field, Kind, Read, Resume, Table, Typed};
use crate::table_run::ROOT;

/// A function that is called with each row: its path, the name beside `type` for which it is there
/// (none = always), and the row.
pub(crate) type Visit<'a> = dyn FnMut(&str, Option<&'static str>, &'static Field) + 'a;

/// Calls `visit` with each row of the tables, in their order. Elements of lists are left out of paths; a key of several cases comes once
/// for each.
pub(crate) fn each(visit: &mut Visit<'_>) {
    of_fields(ROOT.fields, "", None, visit);
}

fn of_fields(
    fields: &'static [Field],
    path: &str,
    case: Option<&'static str>,
    visit: &mut Visit<'_>,
) {
    for field in fields {
        let path = match path {
            "" => field.key.to_string(),
            _ => format!("{path}.{}", field.key),
        };
        visit(&path, case, field);
        of_kind(&field.kind, &path, case, visit);
    }
}

fn of_kind(kind: &'static Kind, path: &str, case: Option<&'static str>, visit: &mut Visit<'_>) {
    match kind {
        Kind::Section(t) | Kind::List(t) => of_fields(t.fields, path, case, visit),
        Kind::Typed(typed) => {
            of_fields(typed.extra, path, case, visit);
            for (name, t) in typed.cases {
                of_fields(t.fields, &format!("{path}.params"), Some(name), visit);
            }
        }
        Kind::Forms(forms) => {
            for form in forms.forms {
                of_kind(&form.kind, path, case, visit);
            }
        }
        _ => {}
    }
}

/// The facts that the rows on the way to a key give together.
pub(crate) struct Said {
    /// The class on resume.
    pub resume: Resume,
    /// True if each process may have a value of its own.
    pub per_process: bool,
    /// All of them must hold for its numbers to be read.
    pub read: Vec<Read>,
}

/// The keys that may follow at one place of a path.
#[derive(Default)]
struct Level {
    fields: Vec<&'static [Field]>,
    typed: Vec<&'static Typed>,
}

impl Level {
    fn of_table(table: &'static Table) -> Level {
        Level {
            fields: vec![table.fields],
            typed: vec![],
        }
    }

    fn add(&mut self, kind: &'static Kind) {
        match kind {
            Kind::Section(t) | Kind::List(t) => self.fields.push(t.fields),
            Kind::Typed(t) => {
                self.fields.push(t.extra);
                self.typed.push(t);
            }
            Kind::Forms(forms) => forms.forms.iter().for_each(|f| self.add(&f.kind)),
            _ => {}
        }
    }
}

/// Returns the facts of the key at `path`, as in messages: `faults[0].rank`. A key that no table
/// knows is as its section.
pub(crate) fn of(path: &str) -> Said {
    let mut said = Said {
        resume: Resume::Same,
        per_process: false,
        read: vec![],
    };
    let mut level = Level::of_table(&ROOT);
    for key in path.split('.') {
        let key = key.split('[').next().unwrap_or(key);
        let mut below = Level::default();
        let mut rows = level.fields.iter().flat_map(|f| f.iter());
        if key == "params" && !level.typed.is_empty() {
            for typed in &level.typed {
                said.resume = typed.resume_params.unwrap_or(said.resume);
                below.fields.extend(typed.cases.iter().map(|c| c.1.fields));
            }
        } else if let Some(row) = rows.find(|f| f.key == key) {
            said.resume = row.resume.unwrap_or(said.resume);
            said.per_process |= row.per_process;
            said.read.push(row.read);
            // Forms may each have the key, and one may go on where another ends.
            let all = level.fields.iter().flat_map(|f| f.iter());
            all.filter(|f| f.key == key)
                .for_each(|f| below.add(&f.kind));
        } else {
            break;
        }
        level = below;
    }
    said
}

/// Returns true if a continuation of a run may have another value of the key at `path` than the run
/// was begun with.
pub fn may_change_on_resume(path: &str) -> bool {
    of(path).resume == Resume::Free
}

/// Returns true if each process of a job may have its own value of the key at `path`.
pub fn may_differ_by_process(path: &str) -> bool {
    of(path).per_process
}

/// Returns true if `word` is written as the path of a key in a section: `run.steps`,
/// `faults[0].rank`.
pub fn is_path(word: &str) -> bool {
    let Some((section, key)) = word.split_once('.') else {
        return false;
    };
    let section = section.split('[').next().unwrap_or(section);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    let open = |k: &Kind| {
        matches!(
            k,
            Kind::Section(_) | Kind::List(_) | Kind::Typed(_) | Kind::Forms(_)
        )
    };
    let known = ROOT
        .fields
        .iter()
        .any(|f| f.key == section && open(&f.kind));
    known && !key.is_empty() && key.chars().all(plain)
}
