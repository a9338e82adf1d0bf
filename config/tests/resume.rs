//! Which keys a continuation of a run may change, and which each process may choose: the rows say what the lists of the program said
//! before there were rows for it.

use crossweave_config::schema::{Field, Kind, Table};
use crossweave_config::{ROOT, is_path, may_change_on_resume, may_differ_by_process};
use std::collections::BTreeSet;

/// Every key that had a class when rows were given theirs, one a line: `free` may change on resume, `same` may not. A key that is new since
/// is in its row alone.
const CLASSES: &str = include_str!("resume_classes.txt");

/// Paths of the keys that hold a setting; a model's are the families' own.
fn keys() -> BTreeSet<String> {
    fn table(t: &'static Table, path: &str, out: &mut BTreeSet<String>) {
        t.fields.iter().for_each(|f| field(f, path, out));
    }
    fn field(f: &'static Field, path: &str, out: &mut BTreeSet<String>) {
        let path = match path {
            "" => f.key.to_string(),
            _ => format!("{path}.{}", f.key),
        };
        if !matches!(f.kind, Kind::Ignored(_) | Kind::Refused(_)) {
            out.insert(path.clone());
            kind(&f.kind, &path, out);
        }
    }
    fn kind(k: &'static Kind, path: &str, out: &mut BTreeSet<String>) {
        match k {
            Kind::Section(t) | Kind::List(t) => table(t, path, out),
            Kind::Typed(typed) => {
                out.insert(format!("{path}.type"));
                out.insert(format!("{path}.params"));
                typed.extra.iter().for_each(|f| field(f, path, out));
                for (_, t) in typed.cases {
                    table(t, &format!("{path}.params"), out);
                }
            }
            Kind::Forms(forms) => forms.forms.iter().for_each(|f| kind(&f.kind, path, out)),
            _ => {}
        }
    }
    let mut out = BTreeSet::new();
    table(&ROOT, "", &mut out);
    out
}

#[test]
fn each_key_has_the_class_that_it_had() {
    let today = keys();
    let mut held = 0;
    let mut wrong = vec![];
    for line in CLASSES.lines() {
        let (class, path) = line.split_once(' ').unwrap();
        if !today.contains(path) {
            continue;
        }
        held += 1;
        if may_change_on_resume(path) != (class == "free") {
            wrong.push(line);
        }
    }
    assert!(held > 300, "{held}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    let by_process: Vec<&String> = today.iter().filter(|p| may_differ_by_process(p)).collect();
    assert_eq!(by_process, ["run.backend"]);
}

/// A row that says nothing is as its section, and so is a key that no table knows any more.
#[test]
fn a_key_without_a_class_has_that_of_its_section() {
    for (path, free) in [
        ("zero_optimization.a_key_of_yesterday", true),
        ("scheduler", false),
        ("scheduler.type", false),
        ("scheduler.params.anything", true),
        ("optimizer.params.anything", false),
        ("optimizer.param_groups[3].lr_scale", false),
        ("faults[0].rank", true),
        ("mesh", false),
        ("mesh.tp", true),
        ("mesh.cp", true),
        ("run.generate.tokens", true),
        ("run.seed", false),
        ("nothing.at.all", false),
        ("", false),
    ] {
        assert_eq!(may_change_on_resume(path), free, "{path}");
    }
    assert!(!may_differ_by_process("run.steps") && !may_differ_by_process("run"));
}

#[test]
fn paths_are_told_from_words() {
    for path in [
        "run.steps",
        "faults[0].rank",
        "data_types.param_dtype",
        "collectives.order",
    ] {
        assert!(is_path(path), "{path}");
    }
    for word in [
        "run",
        "run.",
        "e.g.",
        "train_batch_size.x",
        "run.a b",
        "model/x.json",
        "steps.run",
    ] {
        assert!(!is_path(word), "{word}");
    }
}
