//! Text in lines of a given width.

/// Lines of at most `width` characters, broken between words; a word that is longer has a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let n = word.chars().count();
        if length > 0 && length + 1 + n > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        line += word;
        length += n;
    }
    if length > 0 || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// A label, and beside it text that hangs at column `at`.
pub(crate) fn hanging(label: &str, at: usize, text: &str, width: usize) -> String {
    let room = width.saturating_sub(at).max(20);
    let mut out = String::new();
    for (i, line) in wrap(text, room).iter().enumerate() {
        let head = if i == 0 { label } else { "" };
        out += format!("{head:at$}{line}").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(
            wrap("averyveryverylongword b", 5),
            ["averyveryverylongword", "b"]
        );
        assert_eq!(wrap("", 5), [""]);
        let text = hanging("  key", 8, &"word ".repeat(30), 40);
        assert!(text.lines().all(|l| l.chars().count() <= 40), "{text}");
        assert!(text.starts_with("  key   word"), "{text}");
    }
}
