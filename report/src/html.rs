//! Text and numbers as the page shows them.

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
            // Controls mean nothing on a page, and a NUL ends some parsers.
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A key: broken behind an underscore where a line is too short for it.
pub fn breakable(text: &str) -> String {
    escape(text).replace('_', "_<wbr>")
}

/// A command line: its words are broken only where a line is too short for one alone.
pub fn command(text: &str) -> String {
    let word = |w: &str| format!("<span class=\"word\">{}</span>", escape(w));
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// The first `most` characters.
pub fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
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
        _ if !(1e-3..1e15).contains(&a) => {
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

/// Bytes in decimal units with two digits.
pub fn bytes(n: u64) -> String {
    crossweave_words::Size(n).to_string()
}

/// A whole number with its thousands apart.
pub fn count(n: u64) -> String {
    indicatif::HumanCount(n).to_string()
}

/// Operations a second.
pub fn flops(x: f64) -> String {
    match x {
        _ if x < 1e12 => format!("{:.1} GFLOP/s", x / 1e9),
        _ if x < 1e15 => format!("{:.1} TFLOP/s", x / 1e12),
        _ => format!("{:.2} PFLOP/s", x / 1e15),
    }
}

/// Milliseconds, or seconds from one on.
pub fn millis(x: f64) -> String {
    match x {
        _ if x < 10.0 => format!("{x:.2} ms"),
        _ if x < 1000.0 => format!("{x:.1} ms"),
        _ => format!("{:.2} s", x / 1e3),
    }
}

/// A span of time in seconds.
pub fn time(s: f64) -> String {
    match s {
        _ if s < 120.0 => format!("{s:.1} s"),
        _ if s < 7200.0 => format!("{:.1} min", s / 60.0),
        _ => format!("{:.1} h", s / 3600.0),
    }
}
