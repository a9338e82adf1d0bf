//! Hostile templates: whatever they do, rendering ends within a second and some megabytes, with a text or an error, and never by a signal.
//!
//! The templates are rendered in a child process. `CROSSWEAVE_HOSTILE=N` draws N of them instead of the sample of the gate;
//! `CROSSWEAVE_HOSTILE_RANGE=7-8 CROSSWEAVE_HOSTILE_SHOW=1 … hostile::child --nocapture` renders and prints one.

use crossweave_jinja::{Template, Value, read_json};
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

/// The processor's time for one template (a busy machine takes longer for the same), and the memory of all of them above the idle process.
const LIMIT: Duration = Duration::from_secs(1);
const BYTES: usize = 64 << 20;

/// A stream of numbers that depends on its seed alone.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % n as u64) as usize
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

const FILTERS: &str = "abs attr batch capitalize center count default dictsort e escape filesizeformat first float forceescape format groupby indent int join last length list lower items map min max reject rejectattr replace reverse round safe select selectattr slice sort string sum title trim truncate unique upper urlencode wordcount xmlattr tojson";
const METHODS: &str = "capitalize casefold center count endswith expandtabs find format format_map index isalpha islower join ljust lower lstrip partition removeprefix replace rfind rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill items keys values get copy fromkeys next cycle changed";
const TESTS: &str = "odd even defined none string mapping iterable sequence lower upper callable sameas in eq lt divisibleby";
const NUMBERS: [&str; 11] = [
    "0",
    "1",
    "2",
    "-1",
    "7",
    "1000",
    "99999",
    "1000000",
    "1000000000000",
    "1e300",
    "2 ** 5000",
];
const WORDS: [&str; 14] = [
    "'a'",
    "''",
    "'{:>1000000000000}'",
    "'%1000000000d'",
    "'%.999999999f'",
    "'a b c'",
    "'upper'",
    "'map'",
    "'{0[0]}{0}{0}'",
    "'ß\\n<&>' * 1000",
    "'9' * 4000",
    "'x' * 1000000",
    "'%s%s%s'",
    "'1,2' * 50000",
];

fn expr(d: &mut Draw, depth: usize) -> String {
    if depth == 0 {
        return match d.below(6) {
            0 => d.of(&NUMBERS).into(),
            1 => d.of(&WORDS).into(),
            2 => d
                .of(&[
                    "ns",
                    "ns.a",
                    "x",
                    "messages",
                    "loop",
                    "range(99999)",
                    "m",
                    "none",
                    "nothing",
                ])
                .into(),
            3 => "[x, ns.a]".into(),
            _ => d.of(&["x", "ns.a", "y", "range(1000)"]).into(),
        };
    }
    let a = expr(d, depth - 1);
    let sub = |d: &mut Draw| {
        let depth = d.below(depth);
        expr(d, depth)
    };
    match d.below(12) {
        0 => format!(
            "({a} {} {})",
            d.of(&["+", "-", "*", "/", "//", "%", "**", "~"]),
            sub(d)
        ),
        1 => format!(
            "({a} {} {})",
            d.of(&["==", "<", ">=", "in", "not in", "and", "or"]),
            sub(d)
        ),
        2 => format!("[{a}, {}]", sub(d)),
        3 => format!("{{'k': {a}, {}: 1}}", sub(d)),
        4 => format!("({a})[{}:{}:{}]", sub(d), sub(d), d.of(&NUMBERS)),
        5 => format!("({a})[{}]", sub(d)),
        6 | 7 => {
            let filter = d.of(&FILTERS.split(' ').collect::<Vec<_>>());
            let args: Vec<String> = (0..d.below(4)).map(|_| sub(d)).collect();
            format!("({a} | {filter}({}))", args.join(", "))
        }
        8 | 9 => {
            let method = d.of(&METHODS.split(' ').collect::<Vec<_>>());
            let args: Vec<String> = (0..d.below(3)).map(|_| sub(d)).collect();
            format!("({a}).{method}({})", args.join(", "))
        }
        10 => format!(
            "({a} is {}({}))",
            d.of(&TESTS.split(' ').collect::<Vec<_>>()),
            sub(d)
        ),
        _ => format!("(m({a}) if {} else {a})", sub(d)),
    }
}

fn statements(d: &mut Draw, depth: usize, out: &mut String) {
    for _ in 0..1 + d.below(4) {
        let levels = d.below(4);
        let e = expr(d, levels);
        let _ = match d.below(if depth == 0 { 5 } else { 10 }) {
            0 | 1 => write!(out, "{{{{ {e} }}}}"),
            2 => write!(out, "{{% set {} = {e} %}}", d.of(&["x", "y", "ns.a"])),
            3 => write!(
                out,
                "{{% set ns.a = {} %}}",
                d.of(&[
                    "[ns.a, ns.a]",
                    "ns.a ~ ns.a ~ 'a'",
                    "ns",
                    "[ns.a]",
                    "ns.a + ns.a",
                    "{'k': ns.a}",
                    "loop",
                    "m"
                ])
            ),
            4 => write!(
                out,
                "{{% set x = {} %}}",
                d.of(&[
                    "[x]",
                    "x ~ x",
                    "(x, x)",
                    "x * 2",
                    "x + x",
                    "x ** 2",
                    "{'a': x, 'b': x}",
                    "x | tojson",
                    "x | list"
                ])
            ),
            5 => {
                let _ = write!(out, "{{% if {e} %}}");
                statements(d, depth - 1, out);
                write!(out, "{{% endif %}}")
            }
            6 => {
                let recursive = d.of(&["", " recursive", " if ns.a"]);
                let _ = write!(
                    out,
                    "{{% for y in {}{recursive} %}}",
                    d.of(&[
                        "range(10000)",
                        "range(100000)",
                        "messages",
                        "'abc' * 1000",
                        "[1, [2]]"
                    ])
                );
                statements(d, depth - 1, out);
                let again = if recursive == " recursive" {
                    "{{ loop([y, y]) }}"
                } else {
                    ""
                };
                write!(out, "{again}{{% endfor %}}")
            }
            7 => {
                let _ = write!(out, "{{% macro m(x, y=1) %}}");
                statements(d, depth - 1, out);
                write!(
                    out,
                    "{}{{% endmacro %}}",
                    d.of(&["", "{{ m(x) }}", "{{ m([x]) ~ m(x) }}"])
                )
            }
            8 => {
                let _ = write!(out, "{{% call m({e}) %}}");
                statements(d, depth - 1, out);
                write!(out, "{{% endcall %}}")
            }
            _ => {
                let _ = write!(out, "{{% set x %}}");
                statements(d, depth - 1, out);
                write!(out, "{{% endset %}}")
            }
        };
    }
}

/// Something written within itself up to a million times.
fn deep(d: &mut Draw) -> String {
    let n = [10, 100, 1000, 100_000, 1_000_000][d.below(5)];
    let (open, middle, close) = [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{'a':", "1", "}"),
        ("not ", "1", ""),
        ("-", "1", ""),
        ("x.", "x", ""),
        ("", "x", "|upper"),
        ("", "x", "[0]"),
        ("", "x", "()"),
        ("1+", "1", ""),
        ("1**", "1", ""),
        ("1 if 1 else ", "1", ""),
        ("1 and ", "1", ""),
        ("'a'~", "'a'", ""),
        ("f(", "", ")"),
        ("x|map(", "'map'", ")"),
        ("'map',", "'map'", ""),
    ][d.below(17)];
    let inner = format!("{}{middle}{}", open.repeat(n), close.repeat(n));
    match d.below(4) {
        // The text itself takes memory too.
        0 => format!(
            "{}x{}",
            "{% if 1 %}".repeat(n.min(50_000)),
            "{% endif %}".repeat(n.min(50_000))
        ),
        1 => format!("{{% for i in [1] %}}{{{{ 'a' | map({inner}) }}}}{{% endfor %}}"),
        _ => format!("{{{{ {inner} }}}}"),
    }
}

fn drawn(seed: u64) -> String {
    let mut d = Draw(seed);
    if d.below(8) == 0 {
        return deep(&mut d);
    }
    let mut out = String::from(
        "{% set ns = namespace(a=[]) %}{% set x = 'ab' %}{% macro m(x) %}{{ x }}{{ caller is defined }}{% endmacro %}",
    );
    if d.below(2) == 0 {
        out += "{% for y in range(90000) %}";
        statements(&mut d, 2, &mut out);
        out += "{% endfor %}";
    }
    statements(&mut d, 3, &mut out);
    out
}

/// The templates of the report that this crate answers.
fn reported() -> Vec<String> {
    let ns = "{% set ns = namespace(x='ab') %}";
    let times = |n: usize, what: &str| what.repeat(n);
    let each = |n: usize, what: &str| format!("{{% for i in range({n}) %}}{what}{{% endfor %}}");
    let nested = "{% set ns.x = [ns.x] %}";
    let all = [
        "{% set ns.a = ns %}{{ ns }}".to_string(),
        "{% set ns.a = ns %}{{ ns | tojson }}".to_string(),
        "{% set ns.a = ns %}{{ [ns] }}".to_string(),
        "{% set ns.a = [ns] %}{{ ns == ns }}".to_string(),
        format!("{}done", each(90000, nested)),
        format!("{}{{{{ ns.x }}}}", each(90000, nested)),
        format!("{}{{{{ ns.x | tojson }}}}", each(150, nested)),
        each(10000, &each(10000, &each(10000, ""))),
        each(10000, &each(10000, "")),
        times(60, "{% set ns.x = ns.x ~ ns.x %}"),
        format!("{{% set ns.x = [1] %}}{}", times(60, "{% set ns.x = ns.x + ns.x %}")),
        format!("{{% set ns.x = [1] %}}{}{{{{ ns.x }}}}", times(90, "{% set ns.x = [ns.x, ns.x] %}")),
        "{{ '{:>1000000000}'.format(1) }}".to_string(),
        "{{ [1] | tojson(indent=100000000) }}".to_string(),
        "{{ 'a\nb' | indent(1000000000) }}".to_string(),
        "{{ '%1000000000d' | format(1) }}".to_string(),
        "{{ '%s' | format('a' * 1000000000) }}".to_string(),
        format!("{{% set ns.x = [1] %}}{}{{{{ ns.x == ns.x | list }}}}", times(60, "{% set ns.x = [ns.x, ns.x] %}")),
        format!("{{% set a = [1] %}}{{% set b = [1] %}}{}{{{{ a == b }}}}", times(60, "{% set a = [a, a] %}{% set b = [b, b] %}")),
        "{{ 9 ** 9 ** 9 ** 9 }}{{ 10 ** 1000000000 }}".to_string(),
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_string(),
        "{% macro f(x) %}{{ f(x ~ x) }}{{ f([x]) }}{% endmacro %}{{ f('a') }}".to_string(),
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}".to_string(),
        each(90000, "{% set ns.x = (1)[[ns.x]] %}"),
        "{{ range(100000) | map('string') | map('list') | map('batch', 1000000) | list }}".to_string(),
        "{% for i in range(100000) %}{% macro m() %}{% endmacro %}{% for j in range(100) %}{% macro n() %}{% endmacro %}{% endfor %}{% endfor %}".to_string(),
    ];
    all.iter().map(|t| format!("{ns}{t}")).collect()
}

fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kb.unwrap_or(0) << 10
}

/// The time that this thread was on a processor, where the system says it.
fn on_processor() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = stat.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Renders a template, and says how long it took.
fn run(source: &str) -> (Duration, Result<usize, String>) {
    let messages = r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "n": [1, 2.5, null]}]"#;
    let vars: [(&str, Value); 2] = [
        ("messages", read_json(messages).unwrap()),
        ("bos_token", Value::from("<s>")),
    ];
    let (start, before) = (Instant::now(), on_processor());
    let now = |_: &str| Err("no time".to_string());
    let rendered = Template::new(source).and_then(|t| t.render(&vars, &now));
    let rendered = rendered.map(|r| r.text.len()).map_err(|e| e.to_string());
    let took = match (before, on_processor()) {
        (Some(before), Some(after)) => after - before,
        _ => start.elapsed(),
    };
    (took, rendered)
}

/// The child: what the environment names.
#[test]
fn child() {
    let Ok(range) = std::env::var("CROSSWEAVE_HOSTILE_RANGE") else {
        return;
    };
    let (from, to) = range.split_once('-').unwrap();
    let idle = peak();
    let (mut slowest, mut ended) = (Duration::ZERO, 0);
    let reported = reported();
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        let source = reported
            .get(seed as usize)
            .cloned()
            .unwrap_or_else(|| drawn(seed));
        println!("seed {seed}");
        if std::env::var_os("CROSSWEAVE_HOSTILE_SHOW").is_some() {
            println!("{source:.5000}");
        }
        // Half of what threads have.
        let small = std::thread::Builder::new().stack_size(1 << 20);
        let rendering = small.spawn(move || (run(&source), source)).unwrap();
        let ((took, rendered), source) = rendering.join().unwrap();
        ended += usize::from(rendered.is_ok());
        if let (true, Ok(_)) = (seed < reported.len() as u64, &rendered) {
            let harmless = ["ns.x == ns.x", "(1)[[ns.x]]"]
                .iter()
                .any(|h| source.contains(h));
            assert!(harmless, "seed {seed} is rendered: {source:.300}");
        }
        slowest = slowest.max(took);
        assert!(took < LIMIT, "seed {seed} took {took:?}");
        let bytes = peak().saturating_sub(idle);
        assert!(bytes < BYTES, "seed {seed}: {bytes} bytes");
    }
    println!(
        "done: {ended} rendered, slowest {slowest:?}, {} bytes",
        peak().saturating_sub(idle)
    );
}

#[test]
fn hostile_templates_end_in_time_and_memory_and_by_no_signal() {
    let all: u64 = match std::env::var("CROSSWEAVE_HOSTILE") {
        Ok(n) => n.parse().unwrap(),
        Err(_) => 250,
    };
    for from in (0..all).step_by(250) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hostile::child", "--nocapture"])
            .env("RUST_BACKTRACE", "0")
            .env(
                "CROSSWEAVE_HOSTILE_RANGE",
                format!("{from}-{}", all.min(from + 250)),
            )
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned()
            + &String::from_utf8_lossy(&child.stderr);
        let tail: Vec<&str> = said.lines().rev().take(12).collect();
        assert!(
            child.status.success() && said.contains("done: "),
            "{}: {tail:#?}",
            child.status
        );
        if all > 250 {
            println!(
                "{from}: {}",
                said.lines().find(|l| l.starts_with("done")).unwrap_or("")
            );
        }
    }
}
