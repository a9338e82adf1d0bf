//! Pictures of small steps that are known by heart.

use crate::{Span, Stage, Timeline, Unit, What, spans};
use crossweave_plan::{Run, Runs, StepKind};

fn span(what: What, run: u32, mb: u32, time: (u64, u64)) -> Span {
    Span {
        what,
        run,
        mb: Some(mb),
        time,
    }
}

/// Two stages, two micro-batches, one forward and one backward each.
fn small() -> Timeline {
    let stage = |name: &str, at: [u64; 4], sent: u64| Stage {
        name: name.into(),
        spans: vec![
            span(What::Forward, 0, 0, (at[0], at[0] + 1)),
            span(What::States, 0, 0, (sent, sent)),
            span(What::Forward, 0, 1, (at[1], at[1] + 1)),
            span(What::Backward, 0, 0, (at[2], at[2] + 2)),
            span(What::Backward, 0, 1, (at[3], at[3] + 2)),
        ],
        memory: vec![(0, 100), (at[1], 200)],
        peak: Some(2_000_000),
    };
    Timeline {
        title: "1f1b: 2 stages".into(),
        note: "a < b".into(),
        unit: Unit::Part,
        stages: vec![
            stage("stage 0", [0, 1, 4, 7], 1),
            stage("stage 1", [1, 4, 2, 5], 1),
        ],
    }
}

#[test]
fn text_has_a_column_for_each_moment() {
    let text = small().text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1f1b: 2 stages");
    assert_eq!(lines[3], "stage 0  FF..BB.BB  2.00 MB");
    assert_eq!(lines[4], "         01  00 11");
    assert_eq!(lines[6], "stage 1  .FBBFBB..  2.00 MB");
    assert_eq!(lines[7], "          000111");
    assert!(text.contains("9 units, idle 33.3 % of the time"), "{text}");
}

/// What is drawn is well-formed, has a number on every bar, both settings of colours, and no other class than these name.
#[test]
fn a_drawing_is_well_formed_and_numbered() {
    let svg = small().svg();
    let numbers = svg.split("<g class=\"n\">").nth(1).unwrap();
    assert_eq!(numbers.matches("<text").count(), 8, "{svg}");
    assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
    assert!(svg.contains("prefers-color-scheme:dark"));
    let mut open: Vec<&str> = vec![];
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("an end of a tag");
        let name = tag
            .trim_start_matches('/')
            .split([' ', '\n'])
            .next()
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{svg}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let style = svg.split("</style>").next().unwrap();
    for class in svg.split("class=\"").skip(1) {
        for one in class.split('"').next().unwrap().split(' ') {
            assert!(style.contains(&format!(".{one}")), "no colour of {one}");
        }
    }
}

/// 4 stages of 16 micro-batches: every bar is wide enough for its number, and the drawing for a page.
#[test]
fn four_stages_of_sixteen_micro_batches_are_legible() {
    let work = |s: u64| {
        let one = move |mb: u64| {
            let kinds = [What::Forward, What::InputGrad, What::WeightGrad];
            (0..6u64).map(move |k| {
                let at = s + 6 * mb + k;
                span(
                    kinds[k as usize % 3],
                    (k / 3) as u32,
                    mb as u32,
                    (at, at + 1),
                )
            })
        };
        (0..16u64).flat_map(one).collect()
    };
    let stage = |s: u64| Stage {
        name: format!("stage {s}"),
        spans: work(s),
        ..Stage::default()
    };
    let t = Timeline {
        stages: (0..4).map(stage).collect(),
        ..small()
    };
    let svg = t.svg();
    let numbers = svg.split("<g class=\"n\">").nth(1).unwrap();
    assert_eq!(numbers.matches("<text").count(), 4 * 96);
    let width = svg
        .split("width=\"")
        .nth(1)
        .and_then(|w| w.split('"').next());
    let width: f64 = width.unwrap().parse().unwrap();
    assert!((900.0..1600.0).contains(&width), "{width}");
    assert!(svg.len() < 40_000, "{} bytes", svg.len());
}

/// Units of a run that follow one another are one span, and what waits between them parts it.
#[test]
fn units_of_a_run_are_one_span() {
    let runs = Runs::from(vec![
        Run {
            stage: 0,
            units: 0..2,
        },
        Run {
            stage: 1,
            units: 2..4,
        },
        Run {
            stage: 1,
            units: 4..6,
        },
    ]);
    let op = |text: &str| text.parse::<StepKind>().unwrap();
    let steps = [
        "F2.0", "F3.0", "a3.0>0", "F4.0", "F5.0", "B5.0", "B4.0", "norm",
    ]
    .map(op);
    let times = [
        (0, 4),
        (4, 8),
        (8, 8),
        (9, 13),
        (30, 34),
        (34, 35),
        (35, 36),
        (40, 41),
    ];
    let found = spans(&runs, 1, steps.iter().zip(times));
    let short: Vec<_> = found.iter().map(|s| (s.what, s.run, s.time)).collect();
    use What::*;
    assert_eq!(
        short,
        [
            (Forward, 0, (0, 8)),
            (States, 0, (8, 8)),
            (Forward, 1, (9, 13)),
            (Forward, 1, (30, 34)),
            (Backward, 1, (34, 36)),
            (Optimizer, 0, (40, 41)),
        ]
    );
}

#[test]
fn a_trace_has_stages_as_processes() {
    let trace = small().trace();
    assert!(trace.to_string().starts_with("{\"displayTimeUnit\":"));
    let events = trace["traceEvents"].as_array().unwrap();
    let spans = events.iter().filter(|e| e["ph"] == "X");
    assert_eq!(spans.count(), 10);
    let backward = events
        .iter()
        .find(|e| e["name"] == "backward 1" && e["pid"] == 0);
    let (ts, dur) = (&backward.unwrap()["ts"], &backward.unwrap()["dur"]);
    assert_eq!((ts.as_f64(), dur.as_f64()), (Some(7e3), Some(2e3)));
}
