//! Which bytes of a conversation's text each answer wrote beyond its header: its thoughts, content
//! and calls, and all that the template writes behind them and before the next message.
//!
//! What a message wrote is the iteration of the template's outermost loop that changes when the
//! message says something else, and no other changes with it (`cuts.rs`, `messages.rs`). Of a
//! template that is not such a loop, it is what the text of the messages through it has more than
//! that of the messages before it, if the whole text begins with both. The header is what the
//! template writes to ask for an answer, without an opened block of thoughts.

use super::cuts::{Part, parts};
use super::messages::{Change, changed, role, speaks};
use crate::chat::ChatTemplate;
use crossweave_jinja::Value;
use std::ops::Range;

/// The most bytes before the place where two texts part at which a prompt may begin: both can begin
/// alike.
const NEAR: usize = 128;

/// A conversation and its text.
pub(super) struct Turns<'a> {
    template: &'a ChatTemplate,
    /// The same template with marks in its loops.
    cut: Option<&'a ChatTemplate>,
    messages: &'a [Value],
    tools: &'a Value,
    text: &'a str,
    parts: Option<Vec<Part>>,
    /// Parts that change when those who are not the assistant say something else.
    others: Vec<usize>,
}

/// The place of a message in the text.
struct Place {
    /// The part of the text that it wrote, where the template is a loop over messages.
    part: Option<usize>,
    start: usize,
    /// The first byte that depends on what it says, or would depend on content that it has not.
    says: usize,
}

/// The reason for which it is not known what an answer wrote, with its index.
pub(super) enum Unclear {
    /// The text does not hold what it says.
    Absent(usize),
    /// Nothing shows where it stands.
    Hidden(usize),
}

impl<'a> Turns<'a> {
    /// The turns of `text`, which the template made of the messages.
    pub(super) fn new(
        template: &'a ChatTemplate,
        cut: Option<&'a ChatTemplate>,
        messages: &'a [Value],
        tools: &'a Value,
        text: &'a str,
    ) -> Turns<'a> {
        let mut turns = Turns {
            template,
            cut,
            messages,
            tools,
            text,
            parts: None,
            others: vec![],
        };
        let of_text = |p: &Vec<Part>| p.iter().map(|p| &*p.text).collect::<String>() == text;
        turns.parts = turns.cut_text(messages).filter(of_text);
        if let Some(parts) = &turns.parts {
            let other = |m: &Value| match role(m) == "assistant" {
                true => m.clone(),
                false => changed(m, Change::All).unwrap_or_else(|| m.clone()),
            };
            let all: Vec<Value> = messages.iter().map(other).collect();
            match turns
                .cut_text(&all)
                .and_then(|other| differing(parts, &other))
            {
                Some(others) => turns.others = others,
                None => turns.parts = None,
            }
        }
        turns
    }

    /// Returns what answer `i` wrote beyond its header, in bytes of the text.
    pub(super) fn said(&self, i: usize) -> Result<Range<usize>, Unclear> {
        let place = self.place(i)?;
        let end = self.end(i, &place)?;
        let start = self.start(i, &place, end);
        Ok(start..self.closing(i, &place, start, end))
    }

    /// Returns the byte at which answer `i` begins behind its header.
    pub(super) fn begins(&self, i: usize) -> Result<usize, Unclear> {
        let place = self.place(i)?;
        let end = self.end(i, &place).unwrap_or(self.text.len());
        Ok(self.start(i, &place, end))
    }

    /// All that message `i` wrote, its header included.
    pub(super) fn whole(&self, i: usize) -> Result<Range<usize>, Unclear> {
        let place = self.place(i)?;
        Ok(place.start..self.end(i, &place)?)
    }

    fn place(&self, i: usize) -> Result<Place, Unclear> {
        match &self.parts {
            Some(parts) => match self.part(i, parts)? {
                Some(place) => Ok(place),
                None => self.behind_prefix(i),
            },
            None => self.behind_prefix(i),
        }
    }

    /// The part that changes with what message `i` says; of the last message the first of them.
    fn part(&self, i: usize, parts: &[Part]) -> Result<Option<Place>, Unclear> {
        let other = |change| {
            let other = self.cut_text(&self.with(i, change)?)?;
            differing(parts, &other).map(|changed| (changed, other))
        };
        let last = i + 1 == self.messages.len();
        // Nothing is written behind the last message, so that all that changes is its own.
        let own = |changed: &[usize]| match changed {
            [k] => Some(*k),
            [k, ..] if last => Some(*k),
            _ => None,
        };
        let mut found = None;
        let mut variants = vec![];
        if speaks(&self.messages[i]) {
            let all = other(Change::All);
            // What it says is not in the text.
            if all.as_ref().is_some_and(|(changed, _)| changed.is_empty()) {
                return Err(Unclear::Absent(i));
            }
            found = all.as_ref().and_then(|(changed, _)| own(changed));
            variants.extend(all);
            // Others repeat what it says, as the name of a function: not all of it.
            let fields = [
                Change::OnlyArguments,
                Change::OnlyContent,
                Change::OnlyThoughts,
            ];
            for field in fields {
                if found.is_none() {
                    let one = other(field);
                    found = one.as_ref().and_then(|(changed, _)| own(changed));
                    variants.extend(one);
                }
            }
        }
        // Where content would begin bounds the header of calls without content.
        let says = |change| changed(&self.messages[i], change);
        let content = match says(Change::Content) == says(Change::All) {
            true => None,
            false => other(Change::Content),
        };
        found = found.or_else(|| own(&content.as_ref()?.0));
        variants.extend(content);
        // Messages behind it repeat all that it says, as a result names its function: it comes first.
        found = found.or_else(|| variants.first()?.0.first().copied());
        let Some(part) = found else { return Ok(None) };
        let foreign = |k: &usize| *k == part || (last && *k > part);
        if self.others.iter().any(foreign) {
            return Ok(None);
        }
        let says = variants
            .iter()
            .filter(|(changed, _)| changed.contains(&part))
            .map(|(_, other)| common(&parts[part].text, &other[part].text));
        Ok(Some(Place {
            part: Some(part),
            start: parts[part].at,
            says: parts[part].at + says.min().unwrap_or(parts[part].text.len()),
        }))
    }

    /// The place of message `i` where the whole text begins with that of the messages before it.
    fn behind_prefix(&self, i: usize) -> Result<Place, Unclear> {
        let before = [false, true].map(|prompt| self.render(&self.messages[..i], prompt));
        let begins = |text: &&String| self.text.starts_with(text.as_str());
        let start = match before.iter().flatten().find(begins) {
            Some(text) => text.len(),
            None if i == 0 => 0,
            None => return Err(Unclear::Hidden(i)),
        };
        let other = self.with(i, Change::Content);
        let other = other.and_then(|all| self.render(&all, false));
        let says = other.map_or(usize::MAX, |other| common(self.text, &other));
        Ok(Place {
            part: None,
            start,
            says: says.max(start),
        })
    }

    /// Returns the byte at which what message `i` wrote ends: before the next message.
    fn end(&self, i: usize, place: &Place) -> Result<usize, Unclear> {
        if i + 1 == self.messages.len() {
            return Ok(self.text.len());
        }
        match (place.part, &self.parts) {
            (Some(k), Some(parts)) => {
                // What stands between two loops was written after this message and before the next.
                let mut next = parts.iter().skip(k + 1).filter(|p| p.iteration);
                let unwritten = next.clone().all(|p| p.text.is_empty());
                if unwritten && !self.others.iter().any(|other| *other > k) {
                    return Ok(self.text.len());
                }
                let behind = parts.get(k + 1).map_or(self.text.len(), |p| p.at);
                Ok(next.next().map_or(behind, |p| p.at))
            }
            _ => {
                let through = self.render(&self.messages[..=i], false);
                let through = through.filter(|t| self.text.starts_with(t.as_str()));
                let end = through.map(|t| t.len()).filter(|end| *end >= place.start);
                end.ok_or(Unclear::Hidden(i))
            }
        }
    }

    /// The first byte behind the header of answer `i`, of which `place.start..end` is the whole.
    fn start(&self, i: usize, place: &Place, end: usize) -> usize {
        let all = &self.text[place.start..end];
        let own = place.says.min(end) - place.start;
        // Before the first message nobody asks: a question is put there.
        let question = [Value::from_pairs([("role", "user"), ("content", "?")])];
        let prior = if i == 0 {
            &question[..]
        } else {
            &self.messages[..i]
        };
        let stands = |asked: &str| i > 0 && asked.starts_with(&self.text[..place.start]);
        let asked = self.render(prior, true);
        let header = asked.and_then(|asked| match stands(&asked) {
            true if asked.len() == place.start => None,
            true => header(&all[..own], &asked, place.start),
            // What stands before is written otherwise where this answer is asked for.
            false => {
                let before = self.render(prior, false)?;
                let at = alike(&asked, &before);
                (at < asked.len()).then(|| header(&all[..own], &asked, at))?
            }
        });
        let header = header.unwrap_or_else(|| {
            // The template does not ask, or otherwise than it writes: the header is what stands
            // before all that an answer can say. Between words a space alone is none.
            let n = opened(&all[..self.unsaid(i, place).min(own)]).len();
            match all[..n].trim() {
                "" => 0,
                _ => n,
            }
        });
        place.start + header
    }

    /// Returns the byte at which answer `i` ends, of which `start..end` stands in its own part of
    /// the text: what closes the last message may also open the part of the next one, and behind
    /// the last one some templates ask for an answer always.
    fn closing(&self, i: usize, place: &Place, start: usize, end: usize) -> usize {
        let Some((tail, before)) = self.parts.as_ref().and_then(|p| p.split_last()) else {
            return end;
        };
        if tail.iteration || place.part.is_none_or(|k| k >= before.len()) {
            return end;
        }
        let header = &self.text[place.start..start];
        let asks = !header.trim().is_empty() && tail.text.ends_with(header);
        let asks = if asks { header.len() } else { 0 };
        if i + 1 == self.messages.len() {
            return end - asks;
        }
        let close = &tail.text[..tail.text.len() - asks];
        let opens = close.trim().is_empty() || self.template.token("bos_token") == Some(close);
        match !opens && self.text[end..].starts_with(close) {
            true => end + close.len(),
            false => end,
        }
    }

    /// Returns the number of bytes that message `i` begins with, whatever it says and thinks.
    fn unsaid(&self, i: usize, place: &Place) -> usize {
        let with = |change| {
            let other = self.with(i, change)?;
            match (place.part, &self.parts) {
                (Some(k), Some(parts)) => self
                    .cut_text(&other)
                    .filter(|other| other.len() == parts.len())
                    .map(|other| alike(&parts[k].text, &other[k].text)),
                _ => self.render(&other, false).map(|other| {
                    alike(
                        &self.text[place.start..],
                        other.get(place.start..).unwrap_or_default(),
                    )
                }),
            }
        };
        with(Change::Words)
            .or_else(|| with(Change::Thoughts))
            .unwrap_or(0)
    }

    /// The messages, of which `i` says something else.
    fn with(&self, i: usize, change: Change) -> Option<Vec<Value>> {
        let mut all = self.messages.to_vec();
        all[i] = changed(&all[i], change)?;
        Some(all)
    }

    fn render(&self, messages: &[Value], prompt: bool) -> Option<String> {
        let rendered = self.template.render(messages, self.tools, prompt).ok();
        rendered.map(|(text, _)| text)
    }

    fn cut_text(&self, messages: &[Value]) -> Option<Vec<Part>> {
        let rendered = self.cut?.render(messages, self.tools, false).ok();
        rendered.map(|(text, _)| parts(&text))
    }
}

/// Returns the parts that differ, of two texts that are cut alike.
fn differing(a: &[Part], b: &[Part]) -> Option<Vec<usize>> {
    let alike = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.iteration == b.iteration);
    let differ = |k: &usize| a[*k].text != b[*k].text;
    alike.then(|| (0..a.len()).filter(differ).collect())
}

/// Returns the number of bytes that two texts have in common at their beginning.
fn common(a: &str, b: &str) -> usize {
    let alike = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    alike.map(|(c, _)| c.len_utf8()).sum()
}

/// Returns the number of bytes of a turn by which a text asks for it from byte `at` on; `None`
/// where the turn begins otherwise.
fn header(turn: &str, asks: &str, at: usize) -> Option<usize> {
    let end = at + opened(&asks[at..]).len();
    let prompt = &asks[at..end];
    // Texts that ask and that do not may go on alike for a while: the prompt begins before.
    let near = asks[..at].char_indices().map(|(near, _)| near);
    let mut near = near.filter(|near| at - near <= NEAR).chain([at]);
    if let Some(near) = near.find(|near| turn.starts_with(&asks[*near..end])) {
        return Some(end - near);
    }
    // The first message may begin with what begins the text, as a system message that it lacks.
    if let Some(at) = turn.find(prompt) {
        return Some(at + prompt.len());
    }
    let n = alike(turn, prompt);
    (!turn[..n].trim().is_empty()).then_some(n)
}

/// Returns the number of bytes that two texts have in common at their beginning, where tags that
/// begin alike, as `<think>` and `<tool_call>`, are not.
fn alike(a: &str, b: &str) -> usize {
    let n = common(a, b);
    let tag = a[..n].rfind(['<', '[', '◁']);
    let whole = |at: usize| n == b.len() || a[at..n].contains(['>', ']', '▷', ' ', '\n']);
    tag.filter(|at| !whole(*at)).unwrap_or(n)
}

/// A prompt without a block of thoughts that it opens: `<think>`, `[THINK]`, `<|START_THINKING|>`.
fn opened(prompt: &str) -> &str {
    let tags = [('<', '>'), ('[', ']'), ('◁', '▷')];
    let thinks = |(at, c): (usize, char)| {
        let (_, close) = tags.iter().find(|(open, _)| *open == c)?;
        let end = at + prompt[at..].find(*close)?;
        let name = prompt[at..end].to_lowercase();
        let about = ["think", "thought", "reason"]
            .iter()
            .any(|w| name.contains(w));
        (about && !name[c.len_utf8()..].contains(['<', '[', ' ', '\n'])).then_some(at)
    };
    let at = prompt.char_indices().find_map(thinks);
    &prompt[..at.unwrap_or(prompt.len())]
}
