//! Classes of characters and changes of case as Python has them, where Rust's differ.

/// Python's `str.isspace` and `\s`.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Python's `str.isprintable`: what `repr` does not escape.
pub(crate) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Rust escapes by the same classes; a character behind another one is not escaped for joining it.
    let mut text = String::from("a");
    text.push(c);
    let mut shown = text.escape_debug().skip(1);
    shown.next() == Some(c)
}

/// Returns true if `str.splitlines` ends a line there.
pub(crate) fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// A character as it begins a title.
pub(crate) fn title_of(c: char) -> String {
    let special = match c as u32 {
        n @ 0x1c4..=0x1cc => char::from_u32(0x1c5 + (n - 0x1c4) / 3 * 3),
        0x1f1..=0x1f3 => Some('\u{1f2}'),
        n @ (0x1f80..=0x1f87 | 0x1f90..=0x1f97 | 0x1fa0..=0x1fa7) => char::from_u32(n + 8),
        n @ (0x1f88..=0x1f8f | 0x1f98..=0x1f9f | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc) => {
            char::from_u32(n)
        }
        n @ (0x1fb3 | 0x1fc3 | 0x1ff3) => char::from_u32(n + 9),
        n @ (0x10d0..=0x10fa | 0x10fd..=0x10ff) => char::from_u32(n),
        _ => None,
    };
    if let Some(c) = special {
        return c.to_string();
    }
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.len()) {
        (Some(one), 0) => one.to_string(),
        // ß and ligatures: the first letter is large. A mark behind a letter has no case.
        (Some(first), _) => {
            let rest: String = upper.collect();
            let rest = if (c as u32) < 0x1f00 || (c as u32) > 0x1fff {
                rest.to_lowercase()
            } else {
                rest.replace('\u{399}', "\u{345}")
            };
            format!("{first}{rest}")
        }
        (None, _) => String::new(),
    }
}

/// Python's `str.casefold`.
pub(crate) fn casefold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'A'..='Z' => out.push(c.to_ascii_lowercase()),
            c if c.is_ascii() => out.push(c),
            // These fold otherwise than by case.
            'ı' => out.push(c),
            '\u{13a0}'..='\u{13f5}' => out.push(c),
            '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
            c => {
                let lower = c.to_lowercase();
                let upper = lower.flat_map(char::to_uppercase);
                out.extend(upper.flat_map(char::to_lowercase));
            }
        }
    }
    out
}

/// The value of a decimal digit of any script.
pub(crate) fn decimal_of(c: char) -> Option<u8> {
    match c {
        '0'..='9' => Some(c as u8 - b'0'),
        c if c.is_ascii() => None,
        c => {
            let zeros = crate::unicode_table::ZEROS;
            let zero = zeros.iter().rev().find(|z| **z <= c as u32)?;
            let value = c as u32 - zero;
            (value < 10).then_some(value as u8)
        }
    }
}

fn within(c: char, table: &[(u32, u32)]) -> bool {
    let c = c as u32;
    let at = table.partition_point(|r| r.1 < c);
    table.get(at).is_some_and(|r| r.0 <= c)
}

/// Python's `str.isalpha` of a character.
pub(crate) fn is_alpha(c: char) -> bool {
    c.is_alphabetic() && !within(c, crate::unicode_table::ALPHABETIC_BUT_NO_LETTER)
}

/// Python's `str.isdigit` of a character: decimal digits, and such as stand above or in circles.
pub(crate) fn is_digit(c: char) -> bool {
    decimal_of(c).is_some() || within(c, crate::unicode_table::DIGITS)
}

/// Python's `str.isnumeric` of a character.
pub(crate) fn is_numeric(c: char) -> bool {
    c.is_numeric() || within(c, crate::unicode_table::NUMBERS_BY_MEANING)
}

/// Python's `\w`, and `str.isalnum` but for the underscore.
pub(crate) fn is_alnum(c: char) -> bool {
    is_alpha(c) || is_digit(c) || is_numeric(c)
}

/// The letters of two cases in one character, which are neither.
pub(crate) fn is_titlecase(c: char) -> bool {
    matches!(c as u32, 0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f | 0x1fa8..=0x1faf | 0x1fbc | 0x1fcc | 0x1ffc)
}
