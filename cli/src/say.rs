//! Printing that outlives its reader: `crossweave … | head` must neither panic nor end a training run, and a reader that stands still must
//! not hold up a step.
//!
//! Until [`begin`] lines are written as they come. From then on, while a run trains, a thread of each stream writes them: who prints
//! leaves a line and goes on. Lines of progress that nobody reads are dropped and counted, the others wait.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// As `println!`; a closed standard output is no error.
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}
pub(crate) use say;

/// Lines that wait before those of progress are dropped.
const MOST: usize = 1000;

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

impl Stream {
    fn write(self, text: &str) {
        // Nobody is left who could read it.
        let _ = match self {
            Stream::Out => writeln!(std::io::stdout(), "{text}"),
            Stream::Err => writeln!(std::io::stderr(), "{text}"),
        };
    }
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    dropped: u64,
    /// The thread is writing one.
    busy: bool,
}

/// A stream with a thread that writes to it.
#[derive(Default)]
struct Outlet {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Outlet {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(stream: Stream) -> Option<Arc<Outlet>> {
        let outlet = Arc::new(Outlet::default());
        let mine = outlet.clone();
        let thread = std::thread::Builder::new().name("printer".into());
        // Without a thread lines are written as they come.
        thread
            .spawn(move || mine.run(&|text| stream.write(text)))
            .ok()?;
        Some(outlet)
    }

    fn run(&self, write: &dyn Fn(&str)) {
        let mut q = self.lock();
        loop {
            let Some(line) = q.lines.pop_front() else {
                q = self.changed.wait(q).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let dropped = std::mem::take(&mut q.dropped);
            q.busy = true;
            drop(q);
            if dropped > 0 {
                write(&format!(
                    "({dropped} lines of progress are left out: nobody read them)"
                ));
            }
            write(&line);
            q = self.lock();
            q.busy = false;
            self.changed.notify_all();
        }
    }

    fn put(&self, line: String, may_drop: bool) {
        let mut q = self.lock();
        match may_drop && q.lines.len() >= MOST {
            true => q.dropped += 1,
            false => q.lines.push_back(line),
        }
        self.changed.notify_all();
    }

    /// Waits until all is written, or for `limit`.
    fn flush(&self, limit: Option<Duration>) {
        let until = limit.and_then(|l| Instant::now().checked_add(l));
        let mut q = self.lock();
        while q.busy || !q.lines.is_empty() {
            let left = until.map(|u| u.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return;
            }
            let pause = left.unwrap_or(Duration::from_secs(60));
            let woken = self.changed.wait_timeout(q, pause);
            q = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

static OUT: OnceLock<Option<Arc<Outlet>>> = OnceLock::new();
static ERR: OnceLock<Option<Arc<Outlet>>> = OnceLock::new();

fn put(outlet: &OnceLock<Option<Arc<Outlet>>>, stream: Stream, text: String, may_drop: bool) {
    match outlet.get() {
        Some(Some(o)) => o.put(text, may_drop),
        _ => stream.write(&text),
    }
}

/// From now on no line waits for its reader.
pub fn begin() {
    OUT.get_or_init(|| Outlet::begin(Stream::Out));
    ERR.get_or_init(|| Outlet::begin(Stream::Err));
}

/// Waits until what was said is written; at most for `limit`, where there is one.
pub fn flush(limit: Option<Duration>) {
    for outlet in [&OUT, &ERR] {
        if let Some(Some(o)) = outlet.get() {
            o.flush(limit);
        }
    }
}

/// Writes a line to standard output.
pub fn line(text: std::fmt::Arguments<'_>) {
    put(&OUT, Stream::Out, text.to_string(), false);
}

/// A line of progress, which is dropped where nobody reads.
pub fn progress(text: std::fmt::Arguments<'_>) {
    put(&OUT, Stream::Out, text.to_string(), true);
}

/// Writes a line to standard error.
pub fn tell(text: std::fmt::Arguments<'_>) {
    put(&ERR, Stream::Err, text.to_string(), false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reader_that_stands_still_holds_up_nobody() {
        let outlet = Arc::new(Outlet::default());
        let (go, wait) = channel::<()>();
        let (wrote, read) = channel::<String>();
        let mine = outlet.clone();
        // The thread ends with the test's process, as a printer does with its own.
        std::thread::spawn(move || {
            mine.run(&|text| {
                let _ = wait.recv();
                let _ = wrote.send(text.into());
            })
        });
        for i in 0..5000 {
            outlet.put(format!("step {i}"), true);
        }
        outlet.put("the end".into(), false);
        outlet.flush(Some(Duration::from_millis(20)));
        drop(go);
        outlet.flush(None);
        let all: Vec<String> = read.try_iter().collect();
        assert!(all.len() <= MOST + 4, "{}", all.len());
        assert!(all.iter().any(|l| l.contains("are left out")));
        // The thread may begin when all lines have come, and then prints first what it lacks.
        assert!(all[..2].iter().any(|l| l == "step 0"), "{:?}", &all[..2]);
        assert_eq!(all[all.len() - 1], "the end");
    }
}
