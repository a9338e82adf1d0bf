//! Calls that a stream is given again and again, replayed as one: a graph of the plugin (`crossweave.graph/1`, ADR 0037).
//!
//! Between [`Stream::follow`] and [`Stream::close`] calls are held against the lists the stream was given before. While they agree with one
//! of them (the same ops, memory, lengths and launch-time parameters, in the same order) nothing is enqueued; who met a whole list launches
//! its graph, which is recorded when a list is met for the first time. Where a call differs, what agreed is enqueued as it would have been,
//! and what follows as ever. So a graph is launched only in place of exactly the calls that were asked for, and nothing has to promise that
//! addresses or parameters repeat.
//!
//! What somebody might wait for must have been enqueued: an event of the stream, a wait for it by the host or by another stream for a call
//! that is held back, and every call that is no launch, copy or fill end the comparison. Waits of this stream for others are enqueued at
//! once, before the graph instead of in its middle: what is waited for was enqueued, and cannot be behind a call that was not.

use crate::buffer::Buffer;
use crate::call::check;
use crate::device::{Device, Raw};
use crate::error::{Code, Error, Result};
use crate::kernel::KernelInner;
use crate::listing::ListedCall;
use crate::stream::{Stream, StreamCore};
use crossweave_abi as abi;
use std::ops::Range;
use std::sync::Arc;

/// Lists one [`Recordings`] keeps: operands that take turns (figures, inputs and words of steps in flight) give as many.
const LISTS: usize = 6;
/// Times in a row without a replay, after which a stream is not compared any more.
const PATIENCE: u32 = 32;
/// Fewer calls are not worth a graph.
const WORTH: usize = 2;

/// What a call does.
#[derive(Clone, Copy)]
pub(crate) enum Verb<K> {
    /// Operands, and the workspace last.
    Op(K),
    /// Destination and source.
    Copy,
    /// Destination.
    Fill { pattern: u64, width: u32 },
}

/// A call as the plugin is given it.
pub(crate) struct Call<'a> {
    pub verb: Verb<&'a Arc<KernelInner>>,
    pub spans: &'a [abi::Span],
    /// Launch-time parameters.
    pub dynamic: &'a [u8],
}

impl PartialEq for Call<'_> {
    fn eq(&self, o: &Self) -> bool {
        let verbs = match (self.verb, o.verb) {
            (Verb::Op(a), Verb::Op(b)) => Arc::ptr_eq(a, b),
            (Verb::Copy, Verb::Copy) => true,
            (
                Verb::Fill { pattern, width },
                Verb::Fill {
                    pattern: p,
                    width: w,
                },
            ) => (pattern, width) == (p, w),
            _ => false,
        };
        verbs && self.spans == o.spans && self.dynamic == o.dynamic
    }
}

impl Call<'_> {
    fn name(&self) -> &'static str {
        match self.verb {
            Verb::Op(k) => k.request.name(),
            Verb::Copy => "copy",
            Verb::Fill { .. } => "fill",
        }
    }

    /// Adds it to the listing of its device; `uses` are the buffers it uses, in the order of its spans.
    #[cold]
    pub fn list<'a>(&self, core: &StreamCore, mut uses: impl Iterator<Item = (&'a Buffer, bool)>) {
        let (what, spans) = match (self.verb, self.spans) {
            (Verb::Op(k), [operands @ .., _workspace]) => {
                let r = &k.request;
                let strides = r.operands.iter().map(|l| &l.stride[..l.rank as usize]);
                let said = (strides.collect::<Vec<_>>(), &r.params, self.dynamic);
                (format!("{} {said:x?}", r.describe()), operands)
            }
            (Verb::Fill { pattern, width }, all) => (format!("fill {pattern:x} of {width}"), all),
            (_, all) => (self.name().to_string(), all),
        };
        let operand = |s: &abi::Span| match s.mem.is_null() {
            true => None,
            false => uses
                .next()
                .map(|(b, writes)| b.listed(s.offset, s.bytes, writes)),
        };
        core.account.list(ListedCall {
            stream: core.name.clone(),
            what,
            operands: spans.iter().map(operand).collect(),
        });
    }

    /// How it differs from what was known at its place.
    fn unlike(&self, known: Option<&Call<'_>>) -> &'static str {
        match known {
            None => "one more call",
            Some(k) if self.dynamic != k.dynamic => "other launch-time parameters",
            Some(k) if self.spans != k.spans && self.name() == k.name() => "other memory",
            Some(_) => "another call",
        }
    }

    /// Gives it to the plugin. The stream's lock is held, and memory and order are the caller's.
    pub fn run(&self, core: &StreamCore) -> Result<()> {
        let stream = core.handle.0;
        match (self.verb, self.spans) {
            (Verb::Op(kernel), [operands @ .., workspace]) => kernel.enqueue(
                core.op_launch()?,
                stream,
                operands,
                *workspace,
                self.dynamic,
            ),
            // SAFETY: bounds were checked; the buffers outlive the queued work by their tracks.
            (Verb::Copy, [dst, src]) => check("copy", |e| unsafe {
                call!(core.api, copy)(stream, *dst, *src, e)
            }),
            // SAFETY: as above.
            (Verb::Fill { pattern, width }, [dst]) => check("fill", |e| unsafe {
                call!(core.api, fill)(stream, *dst, pattern, width, e)
            }),
            _ => Err(Error::new(
                Code::Internal,
                "graph",
                "a call without its operands",
            )),
        }
    }
}

/// Calls in order.
#[derive(Default)]
struct List {
    calls: Vec<(Verb<Arc<KernelInner>>, Range<usize>, Range<usize>)>,
    spans: Vec<abi::Span>,
    bytes: Vec<u8>,
}

impl List {
    fn get(&self, i: usize) -> Option<Call<'_>> {
        let (verb, spans, bytes) = self.calls.get(i)?;
        Some(Call {
            verb: match verb {
                Verb::Op(k) => Verb::Op(k),
                Verb::Copy => Verb::Copy,
                Verb::Fill { pattern, width } => Verb::Fill {
                    pattern: *pattern,
                    width: *width,
                },
            },
            spans: &self.spans[spans.clone()],
            dynamic: &self.bytes[bytes.clone()],
        })
    }

    fn push(&mut self, c: &Call<'_>) {
        let (s, b) = (self.spans.len(), self.bytes.len());
        self.spans.extend_from_slice(c.spans);
        self.bytes.extend_from_slice(c.dynamic);
        let verb = match c.verb {
            Verb::Op(k) => Verb::Op(k.clone()),
            Verb::Copy => Verb::Copy,
            Verb::Fill { pattern, width } => Verb::Fill { pattern, width },
        };
        self.calls
            .push((verb, s..self.spans.len(), b..self.bytes.len()));
    }

    fn run(&self, n: usize, core: &StreamCore) -> Result<()> {
        (0..n)
            .filter_map(|i| self.get(i))
            .try_for_each(|c| c.run(core))
    }
}

/// A graph of the plugin.
struct Graph {
    handle: Raw,
    release: unsafe extern "C" fn(abi::Handle),
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, released once; its owner holds the device.
        unsafe { (self.release)(self.handle.0) };
    }
}

impl Graph {
    /// Records a list. Whatever fails, nothing of it has run and the stream keeps nothing.
    fn record(list: &List, core: &StreamCore, api: &abi::GraphApi) -> Result<Graph> {
        // SAFETY: the stream is live and its lock is held.
        check("capture_begin", |e| unsafe {
            call!(api, capture_begin)(core.handle.0, e)
        })?;
        let kept = list.run(list.calls.len(), core);
        let mut handle = std::ptr::null_mut();
        // SAFETY: as above; the out pointer lives for the call.
        check("capture_end", |e| unsafe {
            call!(api, capture_end)(core.handle.0, &mut handle, e)
        })
        .map_err(|e| kept.clone().err().unwrap_or(e))?;
        let graph = Graph {
            handle: Raw(handle),
            release: call!(api, graph_release),
        };
        kept.map(|()| graph)
    }
}

struct Known {
    // Before the list, whose kernels it names.
    graph: Option<Graph>,
    list: List,
    used: u64,
}

/// What a stream was given at one place of a program, and the graphs of it.
pub struct Recordings {
    known: Vec<Known>,
    /// Memory freed on the device when the lists were made: an address may have been given to other memory since.
    freed: u64,
    clock: u64,
    missed: u32,
    /// What was met last that no list has: number, name, and how it differs.
    strange: (usize, &'static str, &'static str),
    refused: Option<String>,
    // Last, so that it outlives graphs and kernels.
    device: Device,
}

/// What became of the calls between [`Stream::follow`] and [`Stream::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// They were enqueued one by one.
    Called,
    /// They were enqueued as a graph.
    Replayed {
        /// Calls the graph stands for.
        calls: u64,
        /// The graph was recorded just before.
        recorded: bool,
    },
}

impl Recordings {
    /// Empty.
    ///
    /// # Errors
    /// `Unsupported` where the device's plugin has no graphs.
    pub fn new(device: &Device) -> Result<Recordings> {
        if device.0.plugin.0.graph.is_none() {
            let why = format!(
                "plugin {} offers no {} (a layer around a plugin hides it)",
                device.plugin().name(),
                abi::IFACE_GRAPH
            );
            return Err(Error::new(Code::Unsupported, "graphs", why));
        }
        Ok(Recordings {
            known: vec![],
            freed: device.freed(),
            clock: 0,
            missed: 0,
            strange: (0, "no call", "nothing was known"),
            refused: None,
            device: device.clone(),
        })
    }

    /// Why nothing more is recorded here, if so.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    fn refuse(&mut self, why: String) {
        self.known.clear();
        self.refused = Some(why);
    }

    fn miss(&mut self) {
        self.missed += 1;
        if self.missed >= PATIENCE {
            let (at, name, how) = self.strange;
            self.refuse(format!(
                "{PATIENCE} times in a row the calls were none known before, at last by {name} with {how} (call {at})"
            ));
        }
    }

    /// Keeps a list, in the place of the one not met for longest where there are enough.
    fn keep(&mut self, list: List) {
        if list.calls.len() < WORTH {
            return;
        }
        if self.known.len() >= LISTS
            && let Some(i) = self.oldest()
        {
            self.known.swap_remove(i);
        }
        self.clock += 1;
        self.known.push(Known {
            graph: None,
            list,
            used: self.clock,
        });
    }

    /// The list not met for longest: where operands take turns it is the next.
    fn oldest(&self) -> Option<usize> {
        (0..self.known.len()).min_by_key(|i| self.known[*i].used)
    }

    /// A list that begins as the first `at` calls of list `like` and goes on with `c`.
    fn other(&self, like: usize, at: usize, c: &Call<'_>) -> Option<usize> {
        let same = |k: &Known| {
            k.list.get(at).as_ref() == Some(c)
                && (0..at).all(|i| k.list.get(i) == self.known[like].list.get(i))
        };
        self.known.iter().position(same)
    }
}

enum Mode {
    /// The first `at` calls were those of list `list`, and are held back.
    Meeting { list: usize, at: usize },
    /// Calls are enqueued and noted.
    Noting,
    /// Calls are enqueued.
    Off,
}

/// A comparison under way, part of the stream's state.
pub(crate) struct Following {
    book: Recordings,
    mode: Mode,
    noted: List,
    /// What went wrong when another thread made the stream give its calls up.
    failed: Option<Error>,
}

impl Following {
    /// Calls held back.
    pub fn held(&self) -> u64 {
        match self.mode {
            Mode::Meeting { at, .. } => at as u64,
            _ => 0,
        }
    }

    /// A call is to come: whether it is held back. `None`: one that no graph holds.
    pub fn meet(&mut self, call: Option<&Call<'_>>, core: &StreamCore) -> Result<bool> {
        let (list, at) = match (&self.mode, call) {
            (Mode::Off, _) => return Ok(false),
            (_, None) => {
                let at = self.held() as usize;
                self.book.strange = (at, "a call", "no place in a graph");
                return self.give_up(core).map(|()| false);
            }
            (Mode::Noting, Some(c)) => {
                self.noted.push(c);
                return Ok(false);
            }
            (Mode::Meeting { list, at }, Some(_)) => (*list, *at),
        };
        let (Some(c), Some(known)) = (call, self.book.known.get(list)) else {
            return self.give_up(core).map(|()| false);
        };
        if known.list.get(at).as_ref() == Some(c) {
            self.mode = Mode::Meeting { list, at: at + 1 };
            return Ok(true);
        }
        if let Some(list) = self.book.other(list, at, c) {
            self.mode = Mode::Meeting { list, at: at + 1 };
            return Ok(true);
        }
        self.mode = Mode::Off;
        self.book.strange = (at, c.name(), c.unlike(known.list.get(at).as_ref()));
        known.list.run(at, core)?;
        (0..at)
            .filter_map(|i| known.list.get(i))
            .for_each(|c| self.noted.push(&c));
        self.noted.push(c);
        self.mode = Mode::Noting;
        Ok(false)
    }

    /// Enqueues what was held back; what follows is no longer compared.
    #[cold]
    pub fn give_up(&mut self, core: &StreamCore) -> Result<()> {
        let Mode::Meeting { list, at } = std::mem::replace(&mut self.mode, Mode::Off) else {
            return Ok(());
        };
        let done = self
            .book
            .known
            .get(list)
            .map_or(Ok(()), |k| k.list.run(at, core));
        if let Err(e) = &done {
            self.failed = Some(e.clone());
        }
        done
    }

    fn finish(&mut self, core: &StreamCore, ok: bool) -> Result<Followed> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let (list, at) = match self.mode {
            Mode::Meeting { list, at } => (list, at),
            Mode::Noting => {
                let noted = std::mem::take(&mut self.noted);
                if ok {
                    self.book.keep(noted);
                }
                self.book.miss();
                return Ok(Followed::Called);
            }
            Mode::Off => {
                self.book.miss();
                return Ok(Followed::Called);
            }
        };
        let book = &mut self.book;
        let stale = book.freed != book.device.freed();
        let api = book.device.0.plugin.0.graph;
        let Some(known) = book.known.get_mut(list) else {
            return Ok(Followed::Called);
        };
        let calls = known.list.calls.len();
        let (true, false, Some(api)) = (ok && at == calls, stale, api) else {
            let done = known.list.run(at, core);
            book.miss();
            return done.map(|()| Followed::Called);
        };
        let mut recorded = false;
        if known.graph.is_none() {
            match Graph::record(&known.list, core, &api) {
                Ok(g) => known.graph = Some(g),
                Err(e) => {
                    // Not asked again. Where the device itself is lost, the calls say so.
                    let done = known.list.run(at, core);
                    book.refuse(e.to_string());
                    return done.map(|()| Followed::Called);
                }
            }
            recorded = true;
        }
        if let Some(g) = &known.graph {
            // SAFETY: graph and stream are live; memory is that of the calls just asked for, ops are in the list.
            check("graph_launch", |e| unsafe {
                call!(api, graph_launch)(g.handle.0, core.handle.0, e)
            })?;
        }
        book.clock += 1;
        known.used = book.clock;
        book.missed = 0;
        Ok(Followed::Replayed {
            calls: calls as u64,
            recorded,
        })
    }
}

impl Stream {
    /// From here on calls are held against what `book` knows, until [`Stream::close`].
    ///
    /// # Errors
    /// Recordings of another device; a comparison that is under way.
    pub fn follow(&self, mut book: Recordings) -> Result<()> {
        let mut st = self.core.lock();
        if st.following.is_some() || !Arc::ptr_eq(&book.device.0, &self.device.0) {
            return Err(Error::new(
                Code::Invalid,
                "follow",
                "recordings of another device, or of a stream that follows others",
            ));
        }
        let freed = self.device.freed();
        if book.freed != freed {
            book.known.clear();
            book.freed = freed;
            book.strange = (0, "the first call", "memory freed since");
        }
        let mode = match (&book.refused, book.oldest()) {
            (Some(_), _) => Mode::Off,
            (None, Some(list)) => Mode::Meeting { list, at: 0 },
            (None, None) => Mode::Noting,
        };
        st.following = Some(Following {
            book,
            mode,
            noted: List::default(),
            failed: None,
        });
        Ok(())
    }

    /// Enqueues what is held back, as a graph where all of a list was met. `ok`: the program got to its end; what a failed one was given is
    /// not kept. The recordings come back in every case; `None` where nothing was followed.
    pub fn close(&self, ok: bool) -> (Option<Recordings>, Result<Followed>) {
        let mut st = self.core.lock();
        let Some(mut following) = st.following.take() else {
            return (None, Ok(Followed::Called));
        };
        let done = following.finish(&self.core, ok);
        drop(st);
        (
            Some(following.book),
            done.map_err(|e| self.core.explained(e)),
        )
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Recordings hold the device, which holds the stream's core.
        let left = self.core.lock().following.take();
        drop(left);
    }
}
