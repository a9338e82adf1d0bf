//! A timeline as SVG: for each stage a row of what it computes with the numbers of micro-batches, a thin one of messages, a thin one of gathers,
//! reductions and copies, and its memory below. Colours are classes that follow the reader's light or dark setting; bars of one colour are one path,
//! so that a picture of some hundred bars is small.

use crate::axis::{length, ticks};
use crate::{Span, Stage, Timeline, What};
use crossweave_words::Size;
use std::collections::BTreeMap;
use std::fmt::Write as _;

const LEFT: f64 = 74.0;
const RIGHT: f64 = 104.0;
/// Height of what is computed, of a thin row, and of the memory.
const BAR: f64 = 24.0;
const THIN: f64 = 6.0;
const MEMORY: f64 = 30.0;
const GAP: f64 = 16.0;
/// Width of a bar in which a number of two digits has room.
const LEGIBLE: f64 = 13.0;
/// Width of a character of a number.
const DIGIT: f64 = 5.6;
/// Width of a message that takes no time.
const MARK: f64 = 2.0;
/// The plot is no narrower, and no wider.
const WIDTH: (f64, f64) = (720.0, 2400.0);
/// Shades of one colour, for the runs of a stage.
const SHADES: u32 = 4;

/// Colours of classes: light and dark.
const COLOURS: &[(&str, &str, &str)] = &[
    (".page", "#ffffff", "#14191f"),
    (".f0", "#c3dcf8", "#22507f"),
    (".f1", "#8dbcf0", "#336fa8"),
    (".f2", "#a9ccf4", "#2a6094"),
    (".f3", "#74abe8", "#3f7fbc"),
    (".b0", "#fcd9ae", "#734313"),
    (".b1", "#f5b56c", "#9a611f"),
    (".b2", "#f9c78d", "#865219"),
    (".b3", "#eda24c", "#ad7230"),
    (".w0", "#c9ebcd", "#1f5730"),
    (".w1", "#93d19f", "#317a46"),
    (".w2", "#aedeb6", "#28693b"),
    (".w3", "#79c387", "#3b8c52"),
    (".r0", "#dfdad3", "#4d4840"),
    (".o0", "#e0ccee", "#563468"),
    (".a0", "#3f7cc4", "#6fa8e8"),
    (".g0", "#c5741a", "#e8a55c"),
    (".p0", "#7d53ad", "#b58fe0"),
    (".s0", "#b03a72", "#e583b2"),
    (".c0", "#6d7783", "#98a4b0"),
    (".mem", "#dde4ec", "#2a343f"),
    ("text", "#1d2733", "#e5ebf1"),
    (".dim", "#56636f", "#a3afbb"),
];

/// The class of a kind in the shade of a run.
fn class(what: What, run: u32) -> String {
    let (letter, shade) = match what {
        What::Forward => ('f', run % SHADES),
        What::Backward | What::InputGrad => ('b', run % SHADES),
        What::WeightGrad => ('w', run % SHADES),
        What::Recompute => ('r', 0),
        What::Optimizer => ('o', 0),
        What::States => ('a', 0),
        What::Grads => ('g', 0),
        What::Gather => ('p', 0),
        What::Reduce => ('s', 0),
        What::Copy => ('c', 0),
    };
    format!("{letter}{shade}")
}

/// A coordinate with a tenth of precision.
fn n(x: f64) -> String {
    let x = (x * 10.0).round() / 10.0;
    if x == 0.0 { "0".into() } else { x.to_string() }
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

/// A drawing that grows: bars by their class, numbers on them, and the rest.
struct Drawing {
    bars: BTreeMap<String, String>,
    numbers: String,
    rest: String,
    /// Pixels of a unit of time.
    scale: f64,
}

impl Drawing {
    fn x(&self, at: u64) -> f64 {
        LEFT + at as f64 * self.scale
    }

    /// A bar of a span, not narrower than `least`.
    fn bar(&mut self, s: &Span, (top, height): (f64, f64), least: f64) -> (f64, f64) {
        let from = self.x(s.time.0);
        let width = (self.x(s.time.1) - from).max(least);
        let path = self.bars.entry(class(s.what, s.run)).or_default();
        let _ = write!(
            path,
            "M{} {}h{}v{}h-{}z",
            n(from),
            n(top),
            n(width),
            n(height),
            n(width)
        );
        (from, width)
    }

    fn text(&mut self, class: &str, (x, y): (f64, f64), words: &str) {
        let class = match class {
            "" => String::new(),
            c => format!(" class=\"{c}\""),
        };
        let (x, y, words) = (n(x), n(y), escape(words));
        let _ = writeln!(self.rest, "<text{class} x=\"{x}\" y=\"{y}\">{words}</text>");
    }

    /// Everything that a stage does, from `top` on.
    fn stage(&mut self, s: &Stage, top: f64, rows: &Rows, right: f64) {
        let _ = writeln!(
            self.rest,
            "<path class=\"base\" d=\"M{} {}H{}\"/>",
            LEFT,
            n(top + BAR),
            n(right)
        );
        self.text("e", (LEFT - 10.0, top + BAR / 2.0 + 4.0), &s.name);
        for span in &s.spans {
            if span.what.computes() {
                let (from, width) = self.bar(span, (top, BAR), 0.0);
                let words = span.mb.map_or(String::new(), |mb| mb.to_string());
                if width > DIGIT * words.len() as f64 + 1.0 && !words.is_empty() {
                    let (x, y) = (n(from + width / 2.0), n(top + BAR / 2.0 + 3.4));
                    let _ = write!(self.numbers, "<text x=\"{x}\" y=\"{y}\">{words}</text>");
                }
                continue;
            }
            let row = match span.what {
                What::States | What::Grads => rows.messages,
                _ => rows.others,
            };
            if let Some(row) = row {
                self.bar(span, (top + row, THIN), MARK);
            }
        }
        if let Some(row) = rows.memory {
            self.memory(s, top + row, rows.most, right);
        }
    }

    /// The bytes of a stage over time, against the most of all stages.
    fn memory(&mut self, s: &Stage, top: f64, most: u64, right: f64) {
        let y = |bytes: u64| top + MEMORY * (1.0 - bytes as f64 / most.max(1) as f64);
        let mut path = format!("M{} {}", n(LEFT), n(top + MEMORY));
        for (at, bytes) in &s.memory {
            let _ = write!(path, "H{}V{}", n(self.x(*at)), n(y(*bytes)));
        }
        if !s.memory.is_empty() {
            let _ = writeln!(
                self.rest,
                "<path class=\"mem\" d=\"{path}H{}V{}z\"/>",
                n(right),
                n(top + MEMORY)
            );
        }
        if let Some(peak) = s.peak {
            self.text(
                "dim s",
                (right + 8.0, y(peak).max(top + 6.0) + 4.0),
                &format!("peak {}", Size(peak)),
            );
        }
    }
}

/// Where the rows of a stage are, counted from its top; those that no stage needs are left out.
struct Rows {
    messages: Option<f64>,
    others: Option<f64>,
    memory: Option<f64>,
    height: f64,
    /// The most bytes of any stage.
    most: u64,
}

impl Rows {
    fn of(t: &Timeline) -> Rows {
        let kinds = t.kinds();
        let mut height = BAR;
        let mut row = |wanted: bool, space: f64, room: f64| {
            let at = height + space;
            wanted.then(|| {
                height = at + room;
                at
            })
        };
        let message = |w: &What| matches!(w, What::States | What::Grads);
        let messages = row(kinds.iter().any(message), 3.0, THIN);
        let others = row(
            kinds.iter().any(|w| !w.computes() && !message(w)),
            2.0,
            THIN,
        );
        let bytes = t.stages.iter().flat_map(|s| s.memory.iter().map(|m| m.1));
        let most = bytes.chain(t.stages.iter().filter_map(|s| s.peak)).max();
        let memory = row(most.is_some(), 4.0, MEMORY);
        Rows {
            messages,
            others,
            memory,
            height,
            most: most.unwrap_or(0),
        }
    }
}

/// The names and colours of what there is, in a row above the stages.
fn legend(t: &Timeline, d: &mut Drawing, y: f64) {
    let mut x = LEFT;
    let runs = t.stages.iter().flat_map(|s| &s.spans).map(|s| s.run).max();
    let runs = runs.map_or(1, |r| r + 1).min(SHADES);
    for what in t.kinds() {
        let shades = match what {
            What::Forward | What::Backward | What::InputGrad | What::WeightGrad => runs,
            _ => 1,
        };
        for run in 0..shades {
            let at = n(x + 11.0 * f64::from(run));
            let class = class(what, run);
            let (y, side) = (n(y - 9.0), "11");
            let _ = writeln!(
                d.rest,
                "<rect class=\"{class}\" x=\"{at}\" y=\"{y}\" width=\"{side}\" height=\"{side}\"/>"
            );
        }
        x += 11.0 * f64::from(shades) + 6.0;
        d.text("dim s", (x, y), what.name());
        x += 6.1 * what.name().len() as f64 + 14.0;
    }
    if runs > 1 {
        d.text("dim s", (x, y), "(shades: the runs of a stage in order)");
    }
}

impl Timeline {
    /// The width of the plot: so that the middle one of the bars has room for its number.
    fn width(&self) -> f64 {
        let computing = self.stages.iter().flat_map(|s| &s.spans);
        let computing = computing.filter(|s| s.what < What::Optimizer);
        let mut lengths: Vec<u64> = computing.map(|s| s.time.1 - s.time.0).collect();
        lengths.sort_unstable();
        let middle = lengths.get(lengths.len() / 2).copied().unwrap_or(1);
        let wanted = self.end() as f64 / middle.max(1) as f64 * LEGIBLE;
        wanted.clamp(WIDTH.0, WIDTH.1)
    }

    /// The picture as an SVG document.
    pub fn svg(&self) -> String {
        const HEAD: f64 = 66.0;
        let plot = self.width();
        let right = LEFT + plot;
        let rows = Rows::of(self);
        let mut d = Drawing {
            bars: BTreeMap::new(),
            numbers: String::new(),
            rest: String::new(),
            scale: plot / self.end().max(1) as f64,
        };
        let tall = rows.height + GAP;
        let bottom = HEAD + tall * self.stages.len() as f64 - GAP + 4.0;
        for (at, words) in ticks(self, 10) {
            let x = n(d.x(at));
            let (from, to) = (n(HEAD - 4.0), n(bottom));
            let _ = writeln!(d.rest, "<path class=\"grid\" d=\"M{x} {from}V{to}\"/>");
            d.text(
                "dim s m",
                (LEFT + at as f64 * d.scale, bottom + 15.0),
                &words,
            );
        }
        for (k, s) in self.stages.iter().enumerate() {
            d.stage(s, HEAD + tall * k as f64, &rows, right);
        }
        d.text("t", (16.0, 22.0), &self.title);
        d.text("dim s", (16.0, 38.0), &self.note);
        legend(self, &mut d, 55.0);
        let (width, height) = (n(right + RIGHT), n(bottom + 26.0));
        let mut o = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">{}</title>\n<desc id=\"d\">{}</desc>\n{}",
            escape(&self.title),
            escape(&self.described()),
            style()
        );
        let _ = writeln!(
            o,
            "<rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>"
        );
        o += &d.rest;
        for (class, path) in &d.bars {
            let bar = match class.starts_with(['f', 'b', 'w', 'r', 'o']) {
                true => "bar ",
                false => "",
            };
            let _ = writeln!(o, "<path class=\"{bar}{class}\" d=\"{path}\"/>");
        }
        let _ = writeln!(o, "<g class=\"n\">{}</g>\n</svg>", d.numbers);
        o
    }

    /// The picture in sentences, for readers who cannot see it.
    fn described(&self) -> String {
        let stages = self.stages.len();
        let mut o = format!(
            "{stages} stages; idle {:.1} % of the time",
            100.0 * self.idle()
        );
        let length = length(self);
        if !length.is_empty() {
            let _ = write!(o, "; {length}");
        }
        let peaks = self.stages.iter().filter_map(|s| Some((&s.name, s.peak?)));
        for (name, peak) in peaks {
            let _ = write!(o, "; {name}: at most {}", Size(peak));
        }
        o + "."
    }
}

fn style() -> String {
    let rules = |dark: bool| -> String {
        let one = |(class, a, b): &(&str, &str, &str)| {
            format!("{class}{{fill:{}}}", if dark { b } else { a })
        };
        COLOURS.iter().map(one).collect()
    };
    let lines = |page: &str, grid: &str, base: &str| {
        format!(".bar{{stroke:{page}}}.grid{{stroke:{grid}}}.base{{stroke:{base}}}")
    };
    format!(
        "<style>\n{}{}\ntext{{font:12px system-ui,\"Segoe UI\",Helvetica,Arial,sans-serif}}.t{{font-size:15px;font-weight:600}}.s{{font-size:11px}}.m,.n text{{text-anchor:middle}}.e{{text-anchor:end}}.n text{{font-size:10px}}\n@media (prefers-color-scheme:dark){{{}{}}}\n</style>\n",
        rules(false),
        lines("#ffffff", "#edf0f3", "#c9d0d8"),
        rules(true),
        lines("#14191f", "#222a33", "#3d4853"),
    )
}
