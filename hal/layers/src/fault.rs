//! Calls that fail on purpose: the n-th of a kind with a status, as if the plugin had answered so. What a device that is lost answers, it
//! answers from then on. A failure never lies about what still runs: a wait that fails has waited, and a device that is lost
//! has finished or given up its work first, because the host frees memory on the word of a failed stream.

use crate::call::Call;
use crate::object::Object;
use crate::words::Calls;
use crate::wrap::Layer;
use crossweave_abi::{Handle, Status};
use crossweave_plugin::{Code, Error, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// Codes by name.
const CODES: [(&str, Code); 9] = [
    ("oom", Code::Oom),
    ("device_lost", Code::DeviceLost),
    ("timeout", Code::Timeout),
    ("comm", Code::Comm),
    ("aborted", Code::Aborted),
    ("internal", Code::Internal),
    ("unsupported", Code::Unsupported),
    ("invalid", Code::Invalid),
    ("panic", Code::Panic),
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    calls: Calls,
    /// The how many-th, from 1; 0: every one.
    from: u64,
    /// And those after it.
    on: bool,
    code: Code,
    /// Only on the device of this index.
    index: Option<u32>,
    text: String,
}

#[derive(Default)]
struct State {
    /// Calls each rule has met, by device.
    met: HashMap<(usize, u64), u64>,
    /// Index by which a device was opened.
    index: HashMap<u64, u32>,
    lost: HashSet<u64>,
    /// Streams and communicators that have work, by device and number: the plugin's own handles.
    streams: HashMap<(u64, u64), usize>,
    comms: HashMap<(u64, u64), usize>,
}

impl State {
    /// Remembers who has work.
    fn note(&mut self, call: &Call<'_>) {
        let at = |o: &Object| (o.device(), o.id());
        match call {
            Call::StreamDestroy { stream } => drop(self.streams.remove(&at(stream))),
            Call::CommDestroy { comm } => drop(self.comms.remove(&at(comm))),
            Call::Collective { comm, stream, .. } => {
                self.comms.insert(at(comm), comm.inner as usize);
                self.streams.insert(at(stream), stream.inner as usize);
            }
            _ => {
                if let Some(s) = call.stream() {
                    self.streams.insert(at(s), s.inner as usize);
                }
            }
        }
    }
}

/// Lets a device end its work: collectives are given up, everything else runs to its end.
fn drain(o: &Object, streams: &[Handle], comms: &[Handle]) {
    let inner = &o.context.inner;
    let (abort, sync) = (
        inner.coll.as_ref().and_then(|c| c.comm_abort),
        inner.device.as_ref().and_then(|d| d.stream_sync),
    );
    for c in comms {
        if let Some(f) = abort {
            // SAFETY: forgotten when it is destroyed; abort may race with anything (R7).
            unsafe { f(*c, std::ptr::null_mut()) };
        }
    }
    for s in streams {
        if let Some(f) = sync {
            // SAFETY: forgotten when it is destroyed. What it ends with is no news.
            unsafe { f(*s, -1, std::ptr::null_mut()) };
        }
    }
}

/// The layer.
pub struct Fault {
    rules: Vec<Rule>,
    state: Mutex<State>,
}

impl Fault {
    /// Reads `alloc:3:oom+launch:matmul:10:device_lost@1`: `CALL[:OP]:N[+]:CODE`, `N+` from the N-th on, `*` every one, and after `@` the index
    /// of the device it shall strike; without it every device counts for itself.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn parse(text: &str) -> std::result::Result<Fault, String> {
        let mut rules = vec![];
        // `+` also ends a number: `3+:oom`.
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest
                .match_indices('+')
                .map(|m| m.0)
                .find(|at| !rest[at + 1..].starts_with(':'));
            let (one, more) = match end {
                Some(at) => (&rest[..at], &rest[at + 1..]),
                None => (rest, ""),
            };
            rules.push(rule(one).map_err(|e| format!("{one}: {e}"))?);
            rest = more;
        }
        match rules.is_empty() {
            true => Err("no call is named; write e.g. alloc:3:oom".into()),
            false => Ok(Fault {
                rules,
                state: Mutex::default(),
            }),
        }
    }
}

fn rule(text: &str) -> std::result::Result<Rule, String> {
    let (body, index) = match text.split_once('@') {
        Some((b, i)) => (
            b,
            Some(
                i.parse()
                    .map_err(|_| format!("{i:?} is no index of a device"))?,
            ),
        ),
        None => (text, None),
    };
    let parts: Vec<&str> = body.split(':').map(str::trim).collect();
    let mut left = &parts[..];
    let calls = Calls::parse(&mut left)?;
    let [n, code] = left else {
        return Err("wanted CALL[:OP]:N:CODE, e.g. launch:matmul:10:device_lost".into());
    };
    let (number, on) = match n.strip_suffix('+') {
        Some(n) => (n, true),
        None => (*n, false),
    };
    let from = match number {
        "*" => 0,
        n => n
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("{n:?} is no number of a call, from 1"))?,
    };
    let hit = CODES.iter().find(|c| c.0 == *code);
    let names: Vec<&str> = CODES.iter().map(|c| c.0).collect();
    let code = hit
        .ok_or_else(|| {
            format!(
                "no status is called {code:?}; there are {}",
                names.join(", ")
            )
        })?
        .1;
    Ok(Rule {
        calls,
        from,
        on,
        code,
        index,
        text: text.to_string(),
    })
}

/// Calls that have no status to fail with.
fn cannot_fail(call: &Call<'_>) -> bool {
    matches!(
        call,
        Call::DeviceClose { .. }
            | Call::Free { .. }
            | Call::StreamDestroy { .. }
            | Call::EventDestroy { .. }
            | Call::Release { .. }
            | Call::CommDestroy { .. }
            | Call::CommAbort { .. }
            | Call::Shutdown
    )
}

impl Layer for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let struck = self.strike(call);
        let Some((e, lost)) = struck else {
            return Ok(next());
        };
        if matches!(call, Call::StreamSync { .. } | Call::EventSync { .. }) && lost.is_none() {
            next();
        }
        if let (Some((streams, comms)), Some(o)) = (lost, call.object()) {
            drain(o, &streams, &comms);
        }
        Err(e)
    }
}

/// Handles of a device that is lost by this very call.
type Lost = Option<(Vec<Handle>, Vec<Handle>)>;

impl Fault {
    /// The failure of a call, if it has one.
    fn strike(&self, call: &Call<'_>) -> Option<(Error, Lost)> {
        let mut st = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        st.note(call);
        if cannot_fail(call) {
            return None;
        }
        let device = call.device();
        if let Call::DeviceOpen { index, new } = call {
            st.index.insert(*new, *index);
        }
        if st.lost.contains(&device) {
            let why = format!("device #{device} was lost on purpose (layer fault)");
            return Some((Error::new(Code::DeviceLost, why).sticky(), None));
        }
        let index = st.index.get(&device).copied();
        for (i, r) in self.rules.iter().enumerate() {
            if !r.calls.meant(call) || r.index.is_some_and(|x| index != Some(x)) {
                continue;
            }
            let n = st.met.entry((i, device)).or_default();
            *n += 1;
            let n = *n;
            if !(r.from == 0 || n == r.from || (r.on && n > r.from)) {
                continue;
            }
            let what = r.calls.describe();
            let why = format!(
                "call {n} of {what} fails on purpose (layer fault={})",
                r.text
            );
            let e = Error::new(r.code, why);
            return Some(match r.code {
                Code::DeviceLost => {
                    st.lost.insert(device);
                    let of = |all: &HashMap<(u64, u64), usize>| -> Vec<Handle> {
                        let mine = all.iter().filter(|((d, _), _)| *d == device);
                        mine.map(|(_, h)| *h as Handle).collect()
                    };
                    (e.sticky(), Some((of(&st.streams), of(&st.comms))))
                }
                Code::Comm | Code::Aborted => (e.sticky(), None),
                Code::Oom | Code::Timeout => (e.retryable(), None),
                _ => (e, None),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_one_by_one() {
        let f = Fault::parse(
            "alloc:3+:oom+launch:matmul:10:device_lost@1+collective:all_reduce:*:comm",
        )
        .unwrap();
        let all: Vec<_> = f
            .rules
            .iter()
            .map(|r| (r.calls.describe(), r.from, r.on, r.code, r.index))
            .collect();
        assert_eq!(
            all,
            [
                ("mem_alloc".into(), 3, true, Code::Oom, None),
                (
                    "op_launch of matmul".into(),
                    10,
                    false,
                    Code::DeviceLost,
                    Some(1)
                ),
                ("launch of all_reduce".into(), 0, false, Code::Comm, None),
            ]
        );
    }

    #[test]
    fn wrong_words_are_told() {
        for (text, part) in [
            ("", "no call is named"),
            ("malloc:3:oom", "malloc"),
            ("alloc:0:oom", "from 1"),
            ("alloc:3:bad", "no status is called"),
            ("alloc:3", "wanted CALL"),
            ("launch:matmull:3:oom", "no op"),
            ("alloc:1:oom@x", "index of a device"),
        ] {
            let e = Fault::parse(text).err().unwrap_or_default();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
