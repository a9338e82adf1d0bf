//! The texts of a rank's record, by value: call sites, names of plan steps, words of callers, the verdict.

use super::purpose::{Purpose, digest};
use super::rank_record::{
    NOW_PLAN, NOW_STEP, RankRecord, SITE, SITES, SITES_AT, STEP, STEPS, STEPS_AT, VERDICT_AT,
    VERDICT_LEN, VERDICT_META, VERDICT_WORDS,
};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A call site with its tag.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Site {
    /// Its place in the records.
    pub number: u16,
    /// File, line, column and tag, for comparing.
    pub line: u32,
    /// The tag alone.
    pub tag: u32,
}

pub(super) fn text_to(words: &[AtomicU64], text: &[u8]) {
    for (word, chunk) in words.iter().zip(text.chunks(8)) {
        let mut b = [0u8; 8];
        b[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(b), Relaxed);
    }
}

pub(super) fn text_from(words: &[AtomicU64], len: usize) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|w| w.load(Relaxed).to_le_bytes())
        .take(len)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last `room` bytes of a text.
fn tail(text: &str, room: usize) -> &[u8] {
    let b = text.as_bytes();
    &b[b.len().saturating_sub(room)..]
}

impl RankRecord {
    /// A call site with its tag. Once per site; the caller remembers it.
    pub fn site(&self, site: &Location<'_>, tag: &str) -> Site {
        let key = (
            site.file().as_ptr() as usize,
            site.line(),
            site.column(),
            tag.as_ptr() as usize,
        );
        let mut book = self.book();
        if let Some(known) = book.sites.get(&key) {
            return *known;
        }
        let place = [site.line().to_le_bytes(), site.column().to_le_bytes()].concat();
        let whole = digest(&[site.file().as_bytes(), &place, tag.as_bytes()]);
        let alone = digest(&[tag.as_bytes()]);
        let n = (book.sites.len() + 1).min(SITES - 1);
        let at = SITES_AT + n * SITE;
        let (file, tag) = (tail(site.file(), 80), &tag.as_bytes()[..tag.len().min(40)]);
        let last = n == SITES - 1;
        let (file, tag): (&[u8], &[u8]) = match last {
            true => (b"(more call sites than are kept)", b""),
            false => (file, tag),
        };
        text_to(&self.words[at + 1..at + 11], file);
        text_to(&self.words[at + 11..at + SITE], tag);
        let column = u64::from(site.column().min(0xfff));
        let line = u64::from(site.line().min(0xf_ffff));
        let lens = (file.len() as u64) << 32 | (tag.len() as u64) << 48;
        self.words[at].store(line | column << 20 | lens, Release);
        let known = Site {
            number: n as u16,
            line: whole,
            tag: alone,
        };
        book.sites.insert(key, known);
        known
    }
    pub(super) fn site_text(&self, n: u16) -> (String, String) {
        let at = SITES_AT + usize::from(n) % SITES * SITE;
        let head = self.words[at].load(Acquire);
        let (line, column) = (head & 0xf_ffff, head >> 20 & 0xfff);
        let (file, tag) = ((head >> 32) as u16, (head >> 48) as u16);
        let file = text_from(&self.words[at + 1..at + 11], usize::from(file));
        let tag = text_from(&self.words[at + 11..at + SITE], usize::from(tag));
        (format!("{file}:{line}:{column}"), tag)
    }

    /// Step `at` of the plan, by what it does and by what the ranks that meet in it all call it. Steps that do the same (the gathers of a
    /// unit for each micro-batch) share a name; their numbers tell them apart, so that a long plan needs no more names than a short one.
    pub fn step(&self, at: u32, name: &str, meets: &str) -> Purpose {
        Purpose::of_step(self.name(name), at, meets)
    }
    /// What a caller says that its next call is for.
    pub fn words(&self, words: &str) -> Purpose {
        Purpose::of_words(self.name(words), words)
    }
    /// The number of a name; 0 when there are too many.
    fn name(&self, name: &str) -> u16 {
        let mut book = self.book();
        if let Some(n) = book.steps.get(name) {
            return *n;
        }
        let n = book.steps.len() + 1;
        if n >= STEPS {
            return 0;
        }
        let text = &name.as_bytes()[..name.len().min(56)];
        let at = STEPS_AT + n * STEP;
        text_to(&self.words[at + 1..at + STEP], text);
        self.words[at].store(text.len() as u64, Release);
        book.steps.insert(name.into(), n as u16);
        n as u16
    }
    /// What is asked for from now on belongs to this step.
    #[inline]
    pub fn set_step(&self, step: Purpose) {
        let [name, plan] = step.pack();
        self.words[NOW_STEP].store(name, Relaxed);
        self.words[NOW_PLAN].store(plan, Relaxed);
    }
    #[inline]
    pub fn now_step(&self) -> Purpose {
        Purpose::unpack([NOW_STEP, NOW_PLAN].map(|at| self.words[at].load(Relaxed)))
    }
    pub(super) fn name_text(&self, n: u16) -> String {
        let at = STEPS_AT + usize::from(n) % STEPS * STEP;
        let len = self.words[at].load(Acquire) as usize;
        text_from(&self.words[at + 1..at + STEP], len)
    }

    // --- the verdict, for other processes ---

    pub fn publish(&self, text: &str, meta: u64) {
        let mut end = text.len().min(VERDICT_WORDS * 8);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &text.as_bytes()[..end];
        text_to(&self.words[VERDICT_AT..STEPS_AT], text);
        self.words[VERDICT_META].store(meta, Relaxed);
        self.words[VERDICT_LEN].store(text.len() as u64, Release);
    }
    pub fn published(&self) -> Option<(String, u64)> {
        let len = self.words[VERDICT_LEN].load(Acquire) as usize;
        let text = || text_from(&self.words[VERDICT_AT..STEPS_AT], len);
        (len > 0).then(|| (text(), self.words[VERDICT_META].load(Relaxed)))
    }
}
