//! What a person sees while text becomes tokens: a bar on a terminal, a line every few seconds anywhere else.

use crossweave_data::{Phase, Progress};
use crossweave_words::Size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Between two lines where no terminal shows a bar.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// A bar per phase; where there is no terminal, a line every few seconds.
#[derive(Default)]
pub struct Bar(Mutex<Option<(ProgressBar, Instant)>>);

impl Bar {
    fn with(&self, f: impl FnOnce(&mut Option<(ProgressBar, Instant)>)) {
        // The bar is only drawn, so one that a panicking thread held is as good as any.
        f(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()));
    }
}

impl Progress for Bar {
    fn begin(&self, phase: Phase, total: u64) {
        let what = match phase {
            Phase::Hash => "reading the corpus",
            Phase::Tokenize => "tokenising",
        };
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what);
        if let Ok(style) = ProgressStyle::with_template(
            "{msg:<20} {wide_bar:.cyan/blue} {read} of {all}, {speed} eta {eta}",
        ) {
            type Out<'a> = &'a mut dyn std::fmt::Write;
            // What cannot be drawn is not drawn.
            let style = style
                .with_key("read", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}", Size(s.pos()));
                })
                .with_key("all", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}", Size(s.len().unwrap_or(0)));
                })
                .with_key("speed", |s: &ProgressState, w: Out<'_>| {
                    let _ = write!(w, "{}/s", Size(s.per_sec() as u64));
                });
            bar.set_style(style);
        }
        self.with(|slot| *slot = Some((bar, Instant::now())));
    }
    fn advance(&self, bytes: u64) {
        self.with(|slot| {
            let Some((bar, since)) = slot else { return };
            bar.inc(bytes);
            if bar.is_hidden() && since.elapsed() > BETWEEN_LINES {
                *since = Instant::now();
                let (done, all) = (bar.position(), bar.length().unwrap_or(0));
                eprintln!("{}: {} of {}", bar.message(), Size(done), Size(all));
            }
        });
    }
    fn warn(&self, words: &str) {
        eprintln!("warning: {words}");
    }
    fn end(&self) {
        self.with(|slot| {
            if let Some((bar, _)) = slot.take() {
                bar.finish_and_clear();
            }
        });
    }
}
