//! Plots as SVG text: lines over steps, and bars. Colours are CSS classes, so that one drawing
//! serves the light and the dark page.

use std::fmt::Write as _;

/// Escapes text for HTML content and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A number for an axis or a label: four digits, then k, M, G.
pub fn short(x: f64) -> String {
    let a = x.abs();
    let trim = |s: String| {
        if s.contains('.') {
            s.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            s
        }
    };
    match a {
        _ if a == 0.0 => "0".into(),
        _ if a < 1e-3 => {
            let s = format!("{x:.2e}");
            let (digits, power) = s.split_once('e').unwrap_or((&s, "0"));
            format!("{}e{power}", trim(digits.to_string()))
        }
        _ if a < 1.0 => trim(format!("{x:.4}")),
        _ if a < 10.0 => trim(format!("{x:.3}")),
        _ if a < 1e3 => trim(format!("{x:.1}")),
        _ if a < 1e6 => trim(format!("{:.2}", x / 1e3)) + "k",
        _ if a < 1e9 => trim(format!("{:.2}", x / 1e6)) + "M",
        _ => trim(format!("{:.2}", x / 1e9)) + "G",
    }
}

/// Bytes in binary units.
pub fn bytes(n: u64) -> String {
    let x = n as f64;
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", x / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", x / 1_048_576.0),
        _ => format!("{:.2} GiB", x / 1_073_741_824.0),
    }
}

/// Round positions between `lo` and `hi`, about `count` of them.
pub fn ticks(lo: f64, hi: f64, count: usize) -> Vec<f64> {
    let rough = (hi - lo) / count.max(1) as f64;
    if rough.is_nan() || rough <= 0.0 || !rough.is_finite() {
        return vec![lo];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let first = (lo / step - 1e-9).ceil() as i64;
    let last = (hi / step + 1e-9).floor() as i64;
    (first..=last.min(first + 50))
        .map(|i| i as f64 * step)
        .collect()
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq)]
pub enum Style {
    /// Faint: the raw values under a smoothed line.
    Raw,
    /// A line.
    Line,
    /// A line with a mark at every value: few values.
    Marked,
}

/// One series: `(step, value)`; a missing value breaks the line.
pub struct Series {
    /// Name in the legend and the tooltip.
    pub name: &'static str,
    /// Index of its colour.
    pub colour: usize,
    /// How it is drawn.
    pub style: Style,
    /// Values in order of step.
    pub points: Vec<(f64, Option<f64>)>,
}

/// A line chart.
pub struct Lines {
    /// Used for element ids; unique in the page.
    pub id: &'static str,
    /// Heading.
    pub title: &'static str,
    /// What the vertical axis counts.
    pub unit: &'static str,
    /// Size of the drawing in its own units.
    pub size: (f64, f64),
    /// Whether the axis starts at zero.
    pub from_zero: bool,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// Keeps a plot of a long run small: the lowest and highest value of each of 600 slices.
fn thin(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    const SLICES: usize = 600;
    if points.len() <= 2 * SLICES {
        return points.to_vec();
    }
    let mut out = Vec::with_capacity(2 * SLICES);
    for slice in points.chunks(points.len().div_ceil(SLICES)) {
        let value = |p: &&(f64, Option<f64>)| p.1.unwrap_or(f64::NAN);
        let low = slice.iter().min_by(|a, b| value(a).total_cmp(&value(b)));
        let high = slice.iter().max_by(|a, b| value(a).total_cmp(&value(b)));
        let mut ends: Vec<_> = low.into_iter().chain(high).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup_by(|a, b| a.0 == b.0);
        out.extend(ends);
    }
    out
}

/// A centred mean over about a thirtieth of the run, which unlike an exponential one does not lag
/// behind a falling loss; the window shrinks towards both ends.
pub fn smooth(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    let half = (points.len() / 60).max(2);
    // Prefix sums of values and of their number, so that a long run costs no more a point.
    let mut sums = vec![(0.0, 0.0)];
    for (_, y) in points {
        let (sum, count) = sums.last().copied().unwrap_or_default();
        sums.push(y.map_or((sum, count), |y| (sum + y, count + 1.0)));
    }
    points
        .iter()
        .enumerate()
        .map(|(i, (x, y))| {
            let reach = half.min(i).min(points.len() - 1 - i);
            let (from, to) = (sums[i - reach], sums[i + reach + 1]);
            (*x, y.map(|_| (to.0 - from.0) / (to.1 - from.1)))
        })
        .collect()
}

impl Lines {
    /// The figure; empty when no series has a value.
    pub fn render(&self) -> String {
        let series: Vec<_> = self
            .series
            .iter()
            .map(|s| (s, thin(&s.points)))
            .filter(|(_, p)| p.iter().any(|(_, y)| y.is_some()))
            .collect();
        let all = || series.iter().flat_map(|(_, p)| p.iter());
        let values = || all().filter_map(|(_, y)| *y);
        if values().next().is_none() {
            return String::new();
        }
        let (mut x0, mut x1) = (f64::INFINITY, f64::NEG_INFINITY);
        for (x, _) in all() {
            (x0, x1) = (x0.min(*x), x1.max(*x));
        }
        let mut y0 = values().fold(f64::INFINITY, f64::min);
        let mut y1 = values().fold(f64::NEG_INFINITY, f64::max);
        if self.from_zero {
            y0 = y0.min(0.0);
        }
        if y1 <= y0 {
            y1 = y0 + y0.abs().max(1e-9);
        }
        let pad = (y1 - y0) * 0.05;
        y1 += pad;
        if !self.from_zero {
            y0 -= pad;
        }
        if x1 <= x0 {
            (x0, x1) = (x0 - 0.5, x1 + 0.5);
        }
        let (w, h) = self.size;
        let (left, right, top, bottom) = (52.0, w - 14.0, 10.0, h - 34.0);
        let px = |x: f64| left + (x - x0) / (x1 - x0) * (right - left);
        let py = |y: f64| bottom - (y - y0) / (y1 - y0) * (bottom - top);

        let id = self.id;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {w} {h}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" tabindex=\"0\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            escape(self.title),
            escape(&self.describe())
        );
        for y in ticks(y0, y1, (h / 48.0) as usize) {
            let at = py(y);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 7.0,
                at + 4.0,
                short(y)
            );
        }
        for x in ticks(x0, x1, (w / 90.0) as usize) {
            if x.fract() != 0.0 {
                continue;
            }
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                px(x),
                bottom + 17.0,
                short(x)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{left}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">step</text>",
            h - 3.0
        );
        for (s, points) in &series {
            let mut path = String::new();
            let mut pen_down = false;
            for (x, y) in points {
                let Some(y) = y else {
                    pen_down = false;
                    continue;
                };
                let verb = if pen_down { 'L' } else { 'M' };
                let _ = write!(path, "{verb}{:.1} {:.1}", px(*x), py(*y));
                pen_down = true;
            }
            let raw = if s.style == Style::Raw { " raw" } else { "" };
            let _ = write!(
                svg,
                "<path class=\"line c{}{raw}\" d=\"{path}\"/>",
                s.colour
            );
            if s.style == Style::Marked || points.len() == 1 {
                for (x, y) in points {
                    if let Some(y) = y {
                        let (x, y) = (px(*x), py(*y));
                        let _ = write!(
                            svg,
                            "<circle class=\"mark c{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>",
                            s.colour
                        );
                    }
                }
            }
        }
        let _ = write!(
            svg,
            "<line class=\"cross\" x1=\"0\" x2=\"0\" y1=\"{top}\" y2=\"{bottom}\" hidden=\"\"/></svg>"
        );

        let data: Vec<serde_json::Value> = series
            .iter()
            .map(|(s, points)| {
                let kept: Vec<_> = points.iter().filter(|p| p.1.is_some()).collect();
                serde_json::json!({
                    "n": s.name,
                    "c": s.colour,
                    "x": kept.iter().map(|p| p.0 as u64).collect::<Vec<_>>(),
                    "y": kept.iter().map(|p| p.1.map(short)).collect::<Vec<_>>(),
                })
            })
            .collect();
        let data =
            serde_json::json!({ "l": left, "r": right, "w": w, "a": x0, "b": x1, "s": data });
        let legend = if series.len() > 1 {
            let entries: String = series
                .iter()
                .map(|(s, _)| {
                    let raw = if s.style == Style::Raw { " raw" } else { "" };
                    format!(
                        "<span><i class=\"key c{}{raw}\"></i>{}</span>",
                        s.colour, s.name
                    )
                })
                .collect();
            format!("<div class=\"legend\">{entries}</div>")
        } else {
            String::new()
        };
        format!(
            "<figure class=\"lines\" data-chart=\"{}\"><figcaption><b>{}</b> <small>{}</small></figcaption>{legend}{svg}\
             <div class=\"tip\" role=\"status\" hidden></div></figure>",
            escape(&data.to_string()),
            escape(self.title),
            escape(self.unit)
        )
    }

    /// The chart in a sentence, for readers who cannot see it.
    fn describe(&self) -> String {
        let mut out = String::new();
        for s in self.series.iter().filter(|s| s.style != Style::Raw) {
            let mut known = s.points.iter().filter_map(|(x, y)| Some((*x, (*y)?)));
            if let Some((x, y)) = known.next() {
                let (last_x, last_y) = known.next_back().unwrap_or((x, y));
                let _ = write!(
                    out,
                    "{}: {} at step {x}, {} at step {last_x}. ",
                    s.name,
                    short(y),
                    short(last_y)
                );
            }
        }
        out.trim_end().to_string()
    }
}

/// One row of stacked bars.
pub struct Bar {
    /// Label at the left.
    pub label: String,
    /// `(name, colour, length)` of the parts.
    pub parts: Vec<(String, usize, u64)>,
    /// Text at the end of the bar.
    pub note: String,
}

/// Horizontal stacked bars of byte counts.
pub fn bars(id: &str, title: &str, describe: &str, rows: &[Bar]) -> String {
    let sum = |bar: &Bar| bar.parts.iter().map(|p| p.2).sum::<u64>();
    let longest = rows.iter().map(sum).max().unwrap_or(0).max(1);
    let wide = |s: &str| s.chars().count() as f64 * 7.2;
    let label = rows.iter().map(|b| wide(&b.label)).fold(40.0, f64::max) + 12.0;
    let note = rows.iter().map(|b| wide(&b.note)).fold(40.0, f64::max) + 12.0;
    let (width, row) = (960.0, 34.0);
    let height = rows.len() as f64 * row + 6.0;
    let room = (width - label - note).max(100.0);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        escape(title),
        escape(describe)
    );
    for (i, bar) in rows.iter().enumerate() {
        let y = i as f64 * row + 5.0;
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            label - 10.0,
            y + 16.0,
            escape(&bar.label)
        );
        let mut x = label;
        for (name, colour, length) in &bar.parts {
            let w = *length as f64 / longest as f64 * room;
            if *length > 0 {
                // Two units of surface between neighbours keep them apart without an outline.
                let _ = write!(
                    svg,
                    "<rect class=\"bar c{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"24\" rx=\"2\"><title>{}: {}</title></rect>",
                    (w - 2.0).max(0.8),
                    escape(name),
                    bytes(*length)
                );
            }
            x += w;
        }
        let _ = write!(
            svg,
            "<text class=\"note\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 6.0,
            y + 16.0,
            escape(&bar.note)
        );
    }
    svg + "</svg>"
}
