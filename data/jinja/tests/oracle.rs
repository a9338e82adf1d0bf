//! Every filter, test, method and operator with every kind of value, and the language itself, against what Jinja2 writes as transformers sets it
//! up. `oracle.py` beside this file writes the table.

use crossweave_jinja::{Template, Value, read_json};
use serde_json::Value as Json;

/// What this crate refuses by name where Jinja2 has a result: words of the refusal.
const REFUSED: [&str; 4] = [
    "not supported",
    "marked as safe HTML",
    "place in memory",
    "a namespace holds data only",
];

fn table() -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn render(template: &str, vars: &[(&str, Value)]) -> Result<String, String> {
    let template = Template::new(template).map_err(|e| e.to_string())?;
    let now = |_: &str| Err("no time".to_string());
    let rendered = template.render(vars, &now);
    rendered.map(|r| r.text).map_err(|e| e.to_string())
}

/// What is wrong with a result, if anything.
fn differs(template: &str, got: &Result<String, String>, want: &Json) -> Option<String> {
    let fits = match (got, want) {
        (Ok(got), Json::String(want)) => got == want,
        (Err(why), Json::String(_)) => REFUSED.iter().any(|r| why.contains(r)),
        (Err(_), _) => true,
        (Ok(_), _) => false,
    };
    (!fits).then(|| format!("{template}\n   got  {got:?}\n   want {want}"))
}

#[test]
fn every_operation_on_every_kind_of_value_is_jinjas() {
    let table = table();
    let values = table["values"].as_array().unwrap();
    let (mut wrong, mut all) = (vec![], 0);
    for (template, results) in table["each"].as_object().unwrap() {
        for (value, want) in values.iter().zip(results.as_array().unwrap()) {
            let text = value.as_str();
            let got = match text.map(|t| (t, t.strip_prefix('='))) {
                None => render(template, &[]),
                Some((_, Some(made))) => render(&format!("{{% set v = {made} %}}{template}"), &[]),
                Some((json, None)) => render(template, &[("v", read_json(json).unwrap())]),
            };
            all += 1;
            let of = text.unwrap_or("(undefined)");
            wrong.extend(differs(template, &got, want).map(|w| format!("v = {of}: {w}")));
        }
    }
    assert!(all > 9000, "{all}");
    assert!(
        wrong.is_empty(),
        "{} of {all}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_language_is_jinjas() {
    let table = table();
    let context = read_json(table["context"].as_str().unwrap()).unwrap();
    let vars = ["messages", "d"].map(|k| (k, context.get_attr(k).unwrap()));
    let cases = table["alone"].as_array().unwrap();
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let template = case[0].as_str().unwrap();
            differs(template, &render(template, &vars), &case[1])
        })
        .collect();
    assert!(cases.len() > 200);
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn numbers_are_printed_as_python_prints_them() {
    let table = table();
    for case in table["numbers"].as_array().unwrap() {
        let (text, want) = (case[0].as_str().unwrap(), case[1].as_str().unwrap());
        let all = "{{ v }} {{ v ~ '' }} {{ v | string }} {{ v | tojson }} {{ [v] }} {{ {'a': v} | tojson }}";
        let got = render(all, &[("v", read_json(text).unwrap())]).unwrap();
        assert_eq!(
            got,
            format!("{want} {want} {want} {want} [{want}] {{\"a\": {want}}}"),
            "{text}"
        );
    }
}

/// Published templates are not in this tree: `CROSSWEAVE_TEMPLATES` names a folder of them for which `oracle.py` wrote what they write.
#[test]
fn published_templates_are_rendered_as_by_jinja() {
    let Ok(folder) = std::env::var("CROSSWEAVE_TEMPLATES") else {
        return;
    };
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let table: Json = serde_json::from_str(&read("published.json")).unwrap();
    let talks = table["talks"].as_array().unwrap();
    let (mut wrong, mut all, mut refused) = (vec![], 0, 0);
    for (name, results) in table["cases"].as_object().unwrap() {
        let template = match (Template::new(&read(name)), results.as_array()) {
            (Ok(template), Some(_)) => template,
            (Err(e), Some(_)) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
            (_, None) => continue,
        };
        for (talk, want) in talks.iter().zip(results.as_array().unwrap()) {
            let talk = read_json(talk.as_str().unwrap()).unwrap();
            let names: Vec<Value> = talk.try_iter().unwrap().collect();
            let vars = names
                .iter()
                .map(|k| (k.as_str().unwrap(), talk.get_item(k).unwrap()));
            let now = |_: &str| Ok("DATE".to_string());
            let got = template.render(&vars.collect::<Vec<_>>(), &now);
            let got = got.map(|r| r.text).map_err(|e| e.to_string());
            all += 1;
            refused += usize::from(got.is_err() && want.is_string());
            wrong.extend(differs(name, &got, want));
        }
    }
    println!(
        "{} of {all} differ, {refused} are refused here alone",
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {all}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn errors_name_the_line() {
    for (template, words) in [
        (
            "a\n{{ raise_exception('roles must alternate') }}",
            "line 2: roles must alternate",
        ),
        ("\n\n{{ x.y }}", "line 3: 'x' is undefined"),
        ("{{\n1 +\n'a' }}", "line 2: unsupported operand"),
        ("\n{% if %}", "line 2: expected an expression"),
        ("{% if true %}\n\n", "line 2: Unexpected end of template"),
        ("\n{% do x %}", "line 2: unknown tag \"do\""),
        (
            "{% macro m() %}\n{{ 1 // 0 }}{% endmacro %}\n{{ m() }}",
            "line 2: integer division",
        ),
    ] {
        let said = render(template, &[]).unwrap_err();
        assert!(said.starts_with(words), "{template}: {said}");
    }
}

#[test]
fn generation_blocks_are_reported() {
    let source = "{% for m in messages %}U{% generation %}{{ m }}.{% endgeneration %}{% endfor %}";
    let template = Template::new(source).unwrap();
    assert!(template.marks());
    let now = |_: &str| Err(String::new());
    let messages: Value = ["é", "b"].into_iter().map(Value::from).collect();
    let rendered = template.render(&[("messages", messages)], &now).unwrap();
    let said: Vec<&str> = rendered
        .spans
        .iter()
        .map(|s| &rendered.text[s.clone()])
        .collect();
    assert_eq!((rendered.text.as_str(), said), ("Ué.Ub.", vec!["é.", "b."]));
    let within = "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}";
    assert!(Template::new(within).unwrap().render(&[], &now).is_err());
    let deceived = [("messages", Value::from("\u{10fffe}"))];
    let said = template.render(&deceived, &now).unwrap_err().to_string();
    assert!(said.contains("U+10FFFE"), "{said}");
}

#[test]
fn rows_are_read_as_python_reads_them() {
    let shown =
        |json: &str| render("{{ v | tojson }}", &[("v", read_json(json).unwrap())]).unwrap();
    for (json, python) in [
        (
            " {\"a\" : [1 , -0, 2.50, 1E2]} ",
            "{\"a\": [1, 0, 2.5, 100.0]}",
        ),
        ("\"\\u00e9\\ud83d\\ude00\\/\\b\\\"\"", "\"é😀/\\b\\\"\""),
        ("[{\"a\": 1, \"b\": 2, \"a\": 3}]", "[{\"a\": 3, \"b\": 2}]"),
        (
            "[NaN, -Infinity, Infinity, 1e999]",
            "[NaN, -Infinity, Infinity, Infinity]",
        ),
        (
            "123456789012345678901234567890",
            "123456789012345678901234567890",
        ),
        ("-9223372036854775808", "-9223372036854775808"),
    ] {
        assert_eq!(shown(json), python, "{json}");
    }
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(read_json(&deep(128)).is_ok());
    let (too_deep, long) = (deep(1_000_000), "9".repeat(5000));
    for (json, at, reason) in [
        ("", 0, "the text ends"),
        ("[1,]", 3, "expected value"),
        ("[1 2]", 3, "expected `,` or `]`"),
        ("{\"a\" 1}", 5, "expected `:`"),
        ("{a: 1}", 1, "a key must be a string"),
        ("{\"a\": 1, \"a\": 2}", 14, "given twice"),
        ("01", 2, "invalid number"),
        ("1.", 2, "invalid number"),
        ("-", 1, "invalid number"),
        ("\"\\ud83d\"", 7, "surrogate"),
        ("\"\\x\"", 2, "an escape that JSON does not have"),
        ("\"a\nb\"", 2, "a control character"),
        ("\"abc", 4, "the text ends"),
        ("1 2", 2, "characters behind"),
        (too_deep.as_str(), 129, "more than 128 levels"),
        (long.as_str(), 5000, "more than 4300 digits"),
    ] {
        let said = read_json(json).unwrap_err();
        assert!(
            said.at == at && said.reason.contains(reason),
            "{json:.40}: {said:?}"
        );
    }
}
