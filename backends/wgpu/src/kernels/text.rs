//! Kernel text with holes: `$name` is a word of the parameter block or text known at prepare.
//!
//! What changes from shape to shape goes through [`Text::param`], so that equal kernels of different shapes are one pipeline; what changes
//! the code (a storage, a flag, a head size) goes through [`Text::set`].

use std::fmt::Display;

/// The values of the holes.
#[derive(Default)]
pub struct Text {
    holes: Vec<(String, String)>,
    /// Words of the parameter block, in order.
    pub params: Vec<u32>,
}

impl Text {
    /// Text for `$name`.
    pub fn set(&mut self, name: &str, text: impl Display) -> &mut Self {
        self.holes.push((name.into(), text.to_string()));
        self
    }

    /// A word for `$name`, given at launch.
    pub fn param(&mut self, name: &str, word: u32) -> &mut Self {
        let k = self.params.len();
        self.params.push(word);
        self.set(name, format!("param({k}u)"))
    }

    /// A number for `$name`, given at launch.
    pub fn paramf(&mut self, name: &str, number: f32) -> &mut Self {
        let k = self.params.len();
        self.params.push(number.to_bits());
        self.set(name, format!("paramf({k}u)"))
    }

    /// Fills the holes; text put in may have holes itself.
    pub fn fill(&self, source: &str) -> String {
        let mut out = String::with_capacity(source.len() * 2);
        let mut rest = source;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            let (name, tail) = rest.split_at(end);
            // The newest wins. A hole without a value stays, and the shader compiler names it.
            match self.holes.iter().rev().find(|(n, _)| n == name) {
                Some((_, text)) => out.push_str(&self.fill(text)),
                None => {
                    out.push('$');
                    out.push_str(name);
                }
            }
            rest = tail;
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_filled_by_whole_names() {
        let mut t = Text::default();
        t.set("a", "1u")
            .set("ab", "$a + 2u")
            .param("n", 7)
            .paramf("x", 0.5);
        assert_eq!(
            t.fill("$ab*$a-$n/$x;$none"),
            "1u + 2u*1u-param(0u)/paramf(1u);$none"
        );
        assert_eq!(t.params, [7, 0.5f32.to_bits()]);
    }
}
