//! Separates code, comments and literals: three copies of a Rust source, line for line, each with the other parts blanked.

/// A source split in three. Line numbers are those of the original.
#[derive(Clone, Debug)]
pub struct Split {
    /// Code only: comments and the insides of literals are spaces.
    pub code: String,
    /// Comments only, with their slashes.
    pub comments: String,
    /// The insides of literals only, without their quotes.
    pub literals: String,
}

/// Splits a Rust source.
pub fn split(text: &str) -> Split {
    let src: Vec<char> = text.chars().collect();
    let mut kinds = vec![Kind::Code; src.len()];
    let mut i = 0;
    while i < src.len() {
        let end = token(&src, i, &mut kinds);
        i = end.max(i + 1);
    }
    let keep = |want: Kind| {
        src.iter()
            .zip(&kinds)
            .map(|(&c, &k)| if c == '\n' || k == want { c } else { ' ' })
            .collect()
    };
    Split {
        code: keep(Kind::Code),
        comments: keep(Kind::Comment),
        literals: keep(Kind::Literal),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Marks the token at `i` where it is a comment or a literal, and returns where it ends.
fn token(src: &[char], i: usize, kinds: &mut [Kind]) -> usize {
    let at = |k: usize| src.get(k).copied().unwrap_or('\0');
    let (kind, end) = match (at(i), at(i + 1)) {
        ('/', '/') => (Kind::Comment, line_end(src, i)),
        ('/', '*') => (Kind::Comment, block_end(src, i)),
        ('"', _) => (Kind::Literal, quoted_end(src, i)),
        ('\'', _) => match char_end(src, i) {
            Some(end) => (Kind::Literal, end),
            None => return i + 1, // a lifetime
        },
        ('r', '"' | '#') if !word_before(src, i) || at(i - 1) == 'b' || at(i - 1) == 'c' => {
            match raw_end(src, i) {
                Some(end) => (Kind::Literal, end),
                None => return i + 1, // a raw identifier
            }
        }
        _ => return i + 1,
    };
    // The quotes stay code, so that a blanked literal is still an expression to the rules.
    let inside = match kind {
        Kind::Literal => i + 1..end.saturating_sub(1).max(i + 1),
        _ => i..end,
    };
    kinds[inside].fill(kind);
    end
}

fn word_before(src: &[char], i: usize) -> bool {
    i > 0 && (src[i - 1].is_alphanumeric() || src[i - 1] == '_')
}

fn line_end(src: &[char], i: usize) -> usize {
    src[i..]
        .iter()
        .position(|&c| c == '\n')
        .map_or(src.len(), |n| i + n)
}

/// Block comments nest.
fn block_end(src: &[char], mut i: usize) -> usize {
    let mut depth = 0;
    while i < src.len() {
        match (src[i], src.get(i + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                i += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                i += 2;
                if depth == 0 {
                    return i;
                }
            }
            _ => i += 1,
        }
    }
    src.len()
}

fn quoted_end(src: &[char], i: usize) -> usize {
    let mut k = i + 1;
    while k < src.len() {
        match src[k] {
            '\\' => k += 2,
            '"' => return k + 1,
            _ => k += 1,
        }
    }
    src.len()
}

/// `'x'` and `'\n'` are literals; `'a` is a lifetime.
fn char_end(src: &[char], i: usize) -> Option<usize> {
    if src.get(i + 1) == Some(&'\\') {
        let close = src.get(i + 3..)?.iter().position(|&c| c == '\'')?;
        return Some(i + 4 + close);
    }
    (src.get(i + 2) == Some(&'\'')).then_some(i + 3)
}

fn raw_end(src: &[char], i: usize) -> Option<usize> {
    let hashes = src[i + 1..].iter().take_while(|&&c| c == '#').count();
    let open = i + 1 + hashes;
    if src.get(open) != Some(&'"') {
        return None;
    }
    let mut k = open + 1;
    while k < src.len() {
        let closed = src[k] == '"' && src[k + 1..].iter().take(hashes).all(|&c| c == '#');
        if closed && src.len() - k > hashes {
            return Some(k + 1 + hashes);
        }
        k += 1;
    }
    Some(src.len())
}

/// The words of a blanked source with the offset of each: letters, digits and underscores.
pub fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + code[rest..].find(is_word)?;
        let end = code[start..]
            .find(|c| !is_word(c))
            .map_or(code.len(), |n| start + n);
        rest = end;
        Some((start, &code[start..end]))
    })
}

/// The line, from 1, on which an offset lies.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text[..offset].matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let s = split("a /* x /* y */ z */ b // c\n\"d \\\" e\" f r#\"g \" h\"# 'i' '\\'' &'j k");
        let code: Vec<&str> = words(&s.code).map(|w| w.1).collect();
        assert_eq!(code, ["a", "b", "f", "r", "j", "k"]);
        let comments: Vec<&str> = words(&s.comments).map(|w| w.1).collect();
        assert_eq!(comments, ["x", "y", "z", "c"]);
        let literals: Vec<&str> = words(&s.literals).map(|w| w.1).collect();
        assert_eq!(literals, ["d", "e", "g", "h", "i"]);
    }

    #[test]
    fn a_raw_identifier_is_code() {
        let s = split("let r#type = br\"unsafe\"; bar\"x\"");
        let code: Vec<&str> = words(&s.code).map(|w| w.1).collect();
        assert_eq!(code, ["let", "r", "type", "br", "bar"]);
    }

    #[test]
    fn lines_are_counted_from_one() {
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }
}
