//! Cuts of a conversation's text where the template's outermost loops begin an iteration or end: what
//! one iteration writes is what one message writes. The template is given marks at these places; a
//! text that differs by more than the marks is not used.

/// Stands where an iteration of an outermost loop begins; no character, so that no text has it.
const BEGIN: char = '\u{8fffe}';
/// Stands behind an outermost loop.
const END: char = '\u{8ffff}';

/// A part of a text, from one cut to the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// True if one iteration of a loop wrote it; else it stands before, between or behind loops.
    pub(super) iteration: bool,
    /// The byte at which it begins in the text without marks.
    pub(super) at: usize,
    pub(super) text: String,
}

/// The parts of a text with marks.
pub(super) fn parts(marked: &str) -> Vec<Part> {
    let new = |iteration, at| Part {
        iteration,
        at,
        text: String::new(),
    };
    let mut parts = vec![new(false, 0)];
    let mut last = new(false, 0);
    for c in marked.chars() {
        match c {
            BEGIN | END => {
                let at = last.at + last.text.len();
                parts.push(std::mem::replace(&mut last, new(c == BEGIN, at)));
            }
            c => last.text.push(c),
        }
    }
    parts.push(last);
    parts.remove(0);
    parts
}

/// The source of a template with marks in its outermost loops; `None` where it has none, or its
/// blocks do not pair. What is captured (macros, `set` blocks, filters) gets no marks: a template may
/// trim or compare it.
pub(super) fn with_cuts(source: &str) -> Option<String> {
    let (mut out, mut rest) = (String::with_capacity(source.len() + 64), source);
    // The open blocks that matter, and how many of them hide a loop from the outside.
    let mut open: Vec<&str> = vec![];
    let mut any = false;
    while let Some(at) = rest.find('{') {
        let (before, tail) = rest.split_at(at);
        out.push_str(before);
        let length = match tail.get(..2) {
            Some("{#") => tail.find("#}")? + 2,
            Some("{{") => closes(tail, "}}")?,
            Some("{%") => closes(tail, "%}")?,
            _ => 1,
        };
        let (tag, after) = tail.split_at(length);
        rest = after;
        out.push_str(tag);
        if !tag.starts_with("{%") {
            continue;
        }
        let inside = tag[2..length - 2].trim_matches(['-', '+']).trim();
        let word = inside.split(|c: char| !c.is_alphanumeric()).next()?;
        let mark = match word {
            "for" => {
                open.push(word);
                (open.len() == 1).then_some(BEGIN)
            }
            "endfor" => {
                open.pop().filter(|w| *w == "for")?;
                open.is_empty().then_some(END)
            }
            "macro" | "call" | "filter" => {
                open.push(word);
                None
            }
            "set" if !assigns(inside) => {
                open.push(word);
                None
            }
            "endmacro" | "endcall" | "endfilter" | "endset" => {
                open.pop().filter(|w| word.ends_with(w))?;
                None
            }
            "raw" => {
                let end = rest.match_indices("{%").find(|(at, _)| {
                    rest[at + 2..]
                        .trim_start_matches(['-', '+'])
                        .trim_start()
                        .starts_with("endraw")
                });
                let (raw, after) = rest.split_at(end?.0);
                out.push_str(raw);
                rest = after;
                None
            }
            _ => None,
        };
        if let Some(mark) = mark {
            any = true;
            // The sign of the tag (`-%}`, `+%}`) says what becomes of the white space behind it.
            let sign = tag[..length - 2].chars().next_back();
            let sign = sign.filter(|c| matches!(c, '-' | '+'));
            let sign = sign.map(String::from).unwrap_or_default();
            out.push_str(&format!("{{% if true %}}{mark}{{% endif {sign}%}}"));
        }
    }
    out.push_str(rest);
    (any && open.is_empty()).then_some(out)
}

/// The length of a tag through its closing `end`, which within a string is none.
fn closes(tag: &str, end: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in tag.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if matches!(c, '\'' | '"') => quote = Some(c),
            None if tag[at..].starts_with(end) => return Some(at + end.len()),
            None => {}
        }
    }
    None
}

/// Returns true if a `set` tag is a statement; without `=` it begins a block that is captured.
fn assigns(inside: &str) -> bool {
    let target = inside.split(['=', '|', '(']).next().unwrap_or_default();
    inside[target.len()..].starts_with('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_in_outermost_loops_alone() {
        let source = "{# {% for %} #}{% set a = '%}{% for' %}{%- for m in x -%} {{ '}}' }}{% for c in m %}{% endfor %}{%- endfor +%}\n{% macro f() %}{% for a in b %}{% endfor %}{% endmacro %}{% set t %}{% for a in b %}{% endfor %}{% endset %}{% raw %}{% for %}{% endraw %}{";
        let marked = with_cuts(source).unwrap();
        let shown = marked.replace(BEGIN, "B").replace(END, "E");
        let wanted = source
            .replacen("x -%}", "x -%}{% if true %}B{% endif -%}", 1)
            .replacen(
                "{%- endfor +%}",
                "{%- endfor +%}{% if true %}E{% endif +%}",
                1,
            );
        assert_eq!(shown, wanted);
        for none in [
            "{{ messages }}",
            "{% for a in b %}",
            "{% endfor %}",
            "{{ 'a }}",
        ] {
            assert_eq!(with_cuts(none), None, "{none}");
        }
    }

    #[test]
    fn a_text_is_cut_at_its_marks() {
        let marked = format!("é{BEGIN}ab{BEGIN}{END}z");
        let cut: Vec<(bool, usize, String)> = parts(&marked)
            .into_iter()
            .map(|p| (p.iteration, p.at, p.text))
            .collect();
        let part = |iteration, at, text: &str| (iteration, at, text.to_string());
        let wanted = [
            part(false, 0, "é"),
            part(true, 2, "ab"),
            part(true, 4, ""),
            part(false, 4, "z"),
        ];
        assert_eq!(cut, wanted);
    }
}
