//! Cuts the text of a header into directives and statements, each with the comments before and beside it and the conditions around it,
//! and comments that are about none of them. Every word is in one of these.

/// A directive that is no condition (`#define A 1`), or a statement (`uint32_t size;`, `typedef struct cw_str {`).
#[derive(Debug, Default)]
pub struct Piece {
    pub code: String,
    /// The words of its comments.
    pub said: String,
    /// Conditions under which a compiler sees it, beside the header's guard.
    pub when: String,
}

impl Piece {
    /// Behind `#WORD`.
    pub fn directive(&self, word: &str) -> Option<&str> {
        let rest = self.code.strip_prefix('#')?.trim_start();
        let rest = rest.strip_prefix(word)?;
        let whole = rest.is_empty() || rest.starts_with(' ');
        whole.then(|| rest.trim_start())
    }
}

/// A header, cut up.
#[derive(Debug, Default)]
pub struct Text {
    /// The lines of the first comment.
    pub head: Vec<String>,
    pub guard: String,
    pub pieces: Vec<Piece>,
    /// Comments that begin with dashes: title, and all their words.
    pub sections: Vec<(String, String)>,
    /// Comments behind the last piece.
    pub foot: Vec<String>,
}

/// The lines of a comment without what only frames them.
fn lines(comment: &str) -> Vec<String> {
    let bare = |l: &str| {
        let l = l.trim();
        let l = l.strip_prefix('*').unwrap_or(l);
        l.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    comment.lines().map(bare).collect()
}

/// The conditions that are open.
#[derive(Default)]
struct Conditions {
    /// The branches of each `#if`: the one that holds stands behind those that do not.
    open: Vec<Vec<String>>,
}

impl Conditions {
    /// Takes the directive if it is a condition.
    fn take(&mut self, directive: &str) -> Result<bool, String> {
        let d = directive.trim_start_matches('#').trim();
        let (word, rest) = d.split_once(' ').unwrap_or((d, ""));
        let none = || format!("{directive} belongs to no #if");
        match word {
            "if" => self.open.push(vec![rest.to_string()]),
            "ifdef" => self.open.push(vec![format!("defined({rest})")]),
            "ifndef" => self.open.push(vec![format!("!defined({rest})")]),
            "elif" | "else" => {
                let branch = self.open.last_mut().ok_or_else(none)?;
                if let Some(last) = branch.last_mut() {
                    *last = format!("!({last})");
                }
                if word == "elif" {
                    branch.push(rest.to_string());
                }
            }
            "endif" => drop(self.open.pop().ok_or_else(none)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Those inside the guard.
    fn text(&self) -> String {
        let all: Vec<&str> = self
            .open
            .iter()
            .skip(1)
            .flatten()
            .map(String::as_str)
            .collect();
        all.join(" && ")
    }
}

struct Scanner<'a> {
    rest: &'a str,
    out: Text,
    conditions: Conditions,
    /// Comments that wait for what they are about.
    before: Vec<String>,
    /// The statement that has begun.
    code: String,
    /// Nothing but a comment has come since a piece ended on this line.
    beside: bool,
    /// Nothing has come on this line.
    begun: bool,
}

impl Scanner<'_> {
    fn push(&mut self, code: &str) {
        self.out.pieces.push(Piece {
            code: code.split_whitespace().collect::<Vec<_>>().join(" "),
            said: std::mem::take(&mut self.before).join(" "),
            when: self.conditions.text(),
        });
        self.beside = true;
    }

    fn comment(&mut self) -> Result<(), String> {
        let (text, rest) = self.rest[2..]
            .split_once("*/")
            .ok_or("a comment does not end")?;
        self.rest = rest;
        let lines = lines(text);
        if self.out.head.is_empty() && self.out.pieces.is_empty() {
            self.out.head = lines;
            return Ok(());
        }
        let words = lines.join(" ").trim().to_string();
        if words.starts_with("---") {
            let first = lines[0].trim_start_matches('-').trim();
            let end = first.find([',', ':', ';', '(']).unwrap_or(first.len());
            let title = first[..end]
                .split_whitespace()
                .collect::<Vec<_>>()
                .join("-");
            self.out.sections.push((title, words));
        } else if let (true, Some(last)) = (self.beside, self.out.pieces.last_mut()) {
            last.said = format!("{} {words}", last.said).trim().to_string();
        } else {
            self.before.push(words);
        }
        Ok(())
    }

    fn directive(&mut self) -> Result<(), String> {
        // It goes on behind a backslash, and ends where a comment begins.
        let mut end = 0;
        for line in self.rest.split_inclusive('\n') {
            let code = line.trim_end_matches('\n');
            if let Some(at) = code.find("/*") {
                end += at;
                break;
            }
            end += code.len();
            if !code.ends_with('\\') {
                break;
            }
            end += 1;
        }
        let code = self.rest[..end].replace("\\\n", " ");
        self.rest = &self.rest[end..];
        if self.code.trim() == "}" {
            self.code.clear();
            self.push("}");
        }
        if !self.code.trim().is_empty() {
            return Err(format!("{code} stands inside {}", self.code.trim()));
        }
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
        if self.out.guard.is_empty() {
            let guard = code
                .strip_prefix("#ifndef ")
                .ok_or("a header begins with its guard")?;
            self.out.guard = guard.to_string();
        }
        if !self.conditions.take(&code)? {
            // What is said before an include or a pragma is about what follows it.
            let kept = match code.starts_with("#define") {
                true => vec![],
                false => std::mem::take(&mut self.before),
            };
            self.push(&code);
            self.before = kept;
        }
        Ok(())
    }

    fn text(mut self) -> Result<Text, String> {
        while let Some(c) = self.rest.chars().next() {
            match c {
                '/' if self.rest.starts_with("/*") => {
                    self.comment()?;
                    continue;
                }
                '/' if self.rest.starts_with("//") => return Err("a comment is /* and */".into()),
                '*' if self.rest.starts_with("*/") => return Err("a comment has no begin".into()),
                '#' if !self.begun => {
                    self.begun = true;
                    self.directive()?;
                    continue;
                }
                '"' => {
                    let n = self.rest[1..].find('"').ok_or("a string does not end")? + 2;
                    self.code.push_str(&self.rest[..n]);
                    self.rest = &self.rest[n..];
                    continue;
                }
                _ => self.rest = &self.rest[c.len_utf8()..],
            }
            match c {
                '\n' => (self.begun, self.beside) = (false, false),
                c if c.is_whitespace() => {}
                _ => (self.begun, self.beside) = (true, false),
            }
            self.code.push(c);
            if matches!(c, ';' | '{') {
                let code = std::mem::take(&mut self.code);
                self.push(&code);
            }
        }
        match (self.code.trim(), self.conditions.open.len()) {
            ("", 0) => {}
            ("", n) => return Err(format!("{n} conditions do not end")),
            (code, _) => return Err(format!("{code} does not end")),
        }
        self.out.foot = self.before;
        Ok(self.out)
    }
}

/// Cuts up a header.
pub fn scan(text: &str) -> Result<Text, String> {
    let scanner = Scanner {
        rest: text,
        out: Text::default(),
        conditions: Conditions::default(),
        before: vec![],
        code: String::new(),
        beside: false,
        begun: false,
    };
    scanner.text()
}
