//! Line charts and bars. Curves are SVG that stretches with the page while its strokes do not; text is HTML beside them, so that it has
//! the reader's size at any width. Colours are CSS classes: one drawing serves the light and the dark page.

use std::fmt::Write as _;

use super::html::{escape, short};

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
    pub name: String,
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
    /// Height of the drawing in pixels.
    pub height: u32,
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
        let known = || slice.iter().filter_map(|p| Some((p, p.1?)));
        let low = known().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = known().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends: Vec<_> = low.into_iter().chain(high).map(|(p, _)| *p).collect();
        if ends.is_empty() {
            // Nothing is known of the slice: the line breaks here.
            ends.extend(slice.first());
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup_by(|a, b| a.0 == b.0);
        out.extend(ends);
    }
    out
}

/// Values to either side that a smoothed one takes in: together about a thirtieth of the run. A centred mean does not lag behind a
/// falling loss as an exponential one does; the window shrinks towards both ends.
fn reach(points: usize, i: usize) -> usize {
    (points / 60).max(2).min(i).min(points - 1 - i)
}

/// Sums of what comes before each place, so that a long run costs no more a point.
fn sums(pairs: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0)];
    for (a, b) in pairs {
        let (x, y) = sums.last().copied().unwrap_or_default();
        sums.push((x + a, y + b));
    }
    sums
}

/// The mean of the values around each.
pub fn smooth(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    let sums = sums(
        points
            .iter()
            .map(|(_, y)| y.map_or((0.0, 0.0), |y| (y, 1.0))),
    );
    let one = |(i, (x, y)): (usize, &(f64, Option<f64>))| {
        let reach = reach(points.len(), i);
        let (from, to) = (sums[i - reach], sums[i + reach + 1]);
        (*x, y.map(|_| (to.0 - from.0) / (to.1 - from.1)))
    };
    points.iter().enumerate().map(one).collect()
}

/// Speed around each step `(x, amount, seconds)`: all that was done in the window over the time it took, which no mean of speeds is.
pub fn smooth_speed(steps: &[(f64, f64, f64)]) -> Vec<(f64, Option<f64>)> {
    let sums = sums(steps.iter().map(|(_, amount, seconds)| (*amount, *seconds)));
    let one = |(i, (x, ..)): (usize, &(f64, f64, f64))| {
        let reach = reach(steps.len(), i);
        let (from, to) = (sums[i - reach], sums[i + reach + 1]);
        let seconds = to.1 - from.1;
        (*x, (seconds > 0.0).then(|| (to.0 - from.0) / seconds))
    };
    steps.iter().enumerate().map(one).collect()
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
        // Shares of the drawing, from its left and its top.
        let px = |x: f64| (x - x0) / (x1 - x0) * 100.0;
        let py = |y: f64| 100.0 - (y - y0) / (y1 - y0) * 100.0;
        let id = self.id;
        let mut svg = format!(
            "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\" tabindex=\"0\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            escape(self.title),
            escape(&self.describe())
        );
        let (mut ys, mut xs) = (String::new(), String::new());
        for y in ticks(y0, y1, self.height as usize / 48) {
            let at = py(y);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"0\" x2=\"1000\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
                at * 10.0
            );
            let _ = write!(ys, "<span style=\"top:{at:.2}%\">{}</span>", short(y));
        }
        let steps: Vec<f64> = ticks(x0, x1, 8)
            .into_iter()
            .filter(|x| x.fract() == 0.0)
            .collect();
        for (i, x) in steps.iter().enumerate() {
            // Every second one goes where there is little room.
            let odd = if i % 2 == 1 { " class=\"odd\"" } else { "" };
            let _ = write!(
                xs,
                "<span{odd} style=\"left:{:.2}%\">{}</span>",
                px(*x),
                short(*x)
            );
        }
        for (s, points) in &series {
            let mut path = String::new();
            let mut pen_down = false;
            for (x, y) in points {
                let Some(y) = y else {
                    pen_down = false;
                    continue;
                };
                let verb = if pen_down { 'L' } else { 'M' };
                let _ = write!(path, "{verb}{:.1} {:.1}", px(*x) * 10.0, py(*y) * 10.0);
                pen_down = true;
            }
            let raw = if s.style == Style::Raw { " raw" } else { "" };
            let _ = write!(
                svg,
                "<path class=\"line c{}{raw}\" d=\"{path}\"/>",
                s.colour
            );
            if s.style == Style::Marked || points.len() == 1 {
                // A stroke of no length with round ends is a dot, whatever the drawing is stretched to.
                let mut dots = String::new();
                for (x, y) in points {
                    if let Some(y) = y {
                        let _ = write!(dots, "M{:.1} {:.1}h0", px(*x) * 10.0, py(*y) * 10.0);
                    }
                }
                let _ = write!(svg, "<path class=\"mark c{}\" d=\"{dots}\"/>", s.colour);
            }
        }
        svg += "</svg>";

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
        let data = serde_json::json!({ "a": x0, "b": x1, "s": data });
        let legend = if series.len() > 1 {
            let entries: String = series
                .iter()
                .map(|(s, _)| {
                    let raw = if s.style == Style::Raw { " raw" } else { "" };
                    format!(
                        "<span><i class=\"key c{}{raw}\"></i>{}</span>",
                        s.colour,
                        escape(&s.name)
                    )
                })
                .collect();
            format!("<div class=\"legend\">{entries}</div>")
        } else {
            String::new()
        };
        format!(
            "<figure class=\"lines\" data-chart=\"{}\"><figcaption><b>{}</b> <small>{}</small></figcaption>{legend}\
             <div class=\"plot\" style=\"--h:{}px\"><div class=\"ys\">{ys}</div><div class=\"area\">{svg}<i class=\"cross\" hidden></i></div>\
             <div class=\"xs\">{xs}<em>step</em></div></div><div class=\"tip\" role=\"status\" hidden></div></figure>",
            escape(&data.to_string()),
            escape(self.title),
            escape(self.unit),
            self.height
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
    /// Label before the bar.
    pub label: String,
    /// `(name, colour, length, length in words)` of the parts.
    pub parts: Vec<(String, usize, f64, String)>,
    /// Text behind the bar.
    pub note: String,
}

/// Horizontal stacked bars, the longest as wide as the page allows. `describe` says in a sentence what they show.
pub fn bars(describe: &str, rows: &[Bar]) -> String {
    let known = |x: f64| if x.is_finite() { x.max(0.0) } else { 0.0 };
    let sum = |bar: &Bar| bar.parts.iter().map(|p| known(p.2)).sum::<f64>();
    let longest = rows.iter().map(sum).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = format!(
        "<div class=\"bars\" role=\"img\" aria-label=\"{}\">",
        escape(describe)
    );
    for bar in rows {
        let _ = write!(
            out,
            "<span class=\"label\">{}</span><span class=\"track\">",
            escape(&bar.label)
        );
        for (name, colour, length, words) in &bar.parts {
            let share = known(*length) / longest * 100.0;
            if share > 0.0 {
                let _ = write!(
                    out,
                    "<i class=\"c{colour}\" style=\"width:{share:.2}%\" title=\"{}: {}\"></i>",
                    escape(name),
                    escape(words)
                );
            }
        }
        let _ = write!(
            out,
            "</span><span class=\"note\">{}</span>",
            escape(&bar.note)
        );
    }
    out + "</div>"
}

/// Names of the colours.
pub fn legend(entries: &[(String, usize)]) -> String {
    let one = |(name, colour): &(String, usize)| {
        format!(
            "<span><i class=\"key box c{colour}\"></i>{}</span>",
            escape(name)
        )
    };
    let all: String = entries.iter().map(one).collect();
    format!("<div class=\"legend\">{all}</div>")
}
