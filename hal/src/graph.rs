//! Calls that a stream is given again and again, replayed as one: a graph of the plugin (`crossweave.graph/1`, ADR 0037).
//!
//! Between [`Stream::follow`] and [`Stream::close`] calls are held against the lists the stream was given before. While they agree with one
//! of them (the same ops, memory, lengths and launch-time parameters, in the same order) nothing is enqueued; who met a whole list launches
//! its graph, which is recorded when a list is met for the first time. Where a call differs, what agreed is enqueued as it would have been,
//! and what follows as ever. So a graph is launched only in place of exactly the calls that were asked for, and nothing has to promise that
//! addresses or parameters repeat.
//!
//! A graph holds launches, copies and fills. Any other call (a collective, an op on the host) and an event of the stream end a *segment*:
//! what was met before is launched, the call itself is enqueued, and a segment with lists of its own begins behind it (ADR 0119).
//!
//! What somebody waits for must have been enqueued: a wait by the host or by another stream for a call that is held back ends the
//! comparison of the segment. Waits of this stream for others are enqueued at
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

/// Lists a segment keeps: operands that take turns (figures, inputs and words of steps in flight) give as many.
const LISTS: usize = 6;
/// Times in a row without a replay, after which a segment is not compared any more.
const PATIENCE: u32 = 32;
/// Times in a row without a replay, after which a segment is reported: more than its lists need to be met for the first time.
const REPORTED: u32 = 8;
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

    /// A list of the first `n`.
    fn first(&self, n: usize) -> List {
        let mut list = List::default();
        (0..n)
            .filter_map(|i| self.get(i))
            .for_each(|c| list.push(&c));
        list
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

/// The lists of calls that one segment was given, and the graphs of them.
#[derive(Default)]
struct Segment {
    known: Vec<Known>,
    clock: u64,
    /// Times in a row without a replay.
    missed: u32,
    /// What was met last that no list has: number, name, and how it differs.
    strange: (usize, &'static str, &'static str),
    refused: Option<String>,
}

impl Segment {
    fn miss(&mut self) {
        self.missed += 1;
        if self.missed >= PATIENCE && self.refused.is_none() {
            self.known.clear();
            self.refused = Some(self.why());
        }
    }

    /// Why it is not replayed.
    fn why(&self) -> String {
        let (at, name, how) = self.strange;
        format!("its calls are others each time, at last by {name} with {how} (call {at})")
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

    /// A list that begins as the first `at` calls of list `like` and goes on with `c`, or ends there.
    fn other(&self, like: usize, at: usize, c: Option<&Call<'_>>) -> Option<usize> {
        let same = |k: &Known| {
            k.list.get(at).as_ref() == c
                && (0..at).all(|i| k.list.get(i) == self.known[like].list.get(i))
        };
        self.known.iter().position(same)
    }

    /// How the calls of this segment are enqueued from its first one on.
    fn mode(&self) -> Mode {
        match (&self.refused, self.oldest()) {
            (Some(_), _) => Mode::Off,
            (None, Some(list)) => Mode::Meeting { list, at: 0 },
            (None, None) => Mode::Noting,
        }
    }

    /// Enqueues the first `at` calls of a list, as a graph by `api` where these are all of it or of another, and else call by call; they
    /// are then kept as a list. Says whether a graph was launched, and whether it was recorded just before.
    fn launch(
        &mut self,
        (list, at): (usize, usize),
        core: &StreamCore,
        api: Option<abi::GraphApi>,
    ) -> Result<Option<bool>> {
        let Some(api) = api else {
            self.strange = (0, "the first call", "memory freed since");
            return self.known[list].list.run(at, core).map(|()| None);
        };
        // As a rule all of the list that was followed, which needs no second look.
        let whole = match self.known[list].list.calls.len() == at {
            true => Some(list),
            false => self.other(list, at, None),
        };
        let Some(whole) = whole else {
            self.strange = (at, "the end", "calls that did not come");
            let like = &self.known[list].list;
            let came = like.first(at);
            like.run(at, core)?;
            self.keep(came);
            return Ok(None);
        };
        let known = &mut self.known[whole];
        let recorded = known.graph.is_none();
        if recorded {
            match Graph::record(&known.list, core, &api) {
                Ok(g) => known.graph = Some(g),
                Err(e) => {
                    // Not asked again. Where the device itself is lost, the calls say so.
                    self.refused = Some(e.to_string());
                    return known.list.run(at, core).map(|()| None);
                }
            }
        }
        if let Some(g) = &known.graph {
            // SAFETY: graph and stream are live; memory is that of the calls just asked for, ops are in the list.
            check("graph_launch", |e| unsafe {
                call!(api, graph_launch)(g.handle.0, core.handle.0, e)
            })?;
        }
        self.clock += 1;
        known.used = self.clock;
        self.missed = 0;
        Ok(Some(recorded))
    }
}

/// What a stream was given at one place of a program, segment by segment, and the graphs of it.
pub struct Recordings {
    segments: Vec<Segment>,
    /// Memory freed on the device when the lists were made: an address may have been given to other memory since.
    freed: u64,
    // Last, so that it outlives graphs and kernels.
    device: Device,
}

/// What became of the calls between [`Stream::follow`] and [`Stream::close`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Segments that were enqueued as a graph.
    pub graphs: u64,
    /// Those of them whose graph was recorded just before.
    pub recorded: u64,
    /// Calls that these graphs stand for.
    pub calls: u64,
    /// Segments of two and more calls that were enqueued call by call.
    pub called: u64,
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
            segments: vec![],
            freed: device.freed(),
            device: device.clone(),
        })
    }

    /// Whether no segment is compared any more.
    pub fn given_up(&self) -> bool {
        // Segments of fewer calls than are worth a graph know no list and miss nothing.
        let over = |s: &Segment| s.refused.is_some() || (s.known.is_empty() && s.missed == 0);
        self.segments.iter().any(|s| s.refused.is_some()) && self.segments.iter().all(over)
    }

    /// Why the first segment that is not replayed is enqueued call by call, for good or for the last few times.
    pub fn unmet(&self) -> Option<String> {
        let of = |s: &Segment| match &s.refused {
            Some(why) => Some(why.clone()),
            None => (s.missed >= REPORTED).then(|| s.why()),
        };
        self.segments.iter().find_map(of)
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
    /// The segment that calls belong to.
    segment: usize,
    mode: Mode,
    noted: List,
    /// Calls of the segment so far.
    calls: usize,
    done: Followed,
    /// What went wrong when another thread made the stream give its calls up.
    failed: Option<Error>,
}

impl Following {
    fn new(book: Recordings) -> Following {
        let mut following = Following {
            book,
            segment: 0,
            mode: Mode::Off,
            noted: List::default(),
            calls: 0,
            done: Followed::default(),
            failed: None,
        };
        following.begin(0);
        following
    }

    fn begin(&mut self, segment: usize) {
        let all = &mut self.book.segments;
        all.resize_with(all.len().max(segment + 1), Segment::default);
        (self.segment, self.mode) = (segment, all[segment].mode());
    }

    /// Calls held back.
    pub fn held(&self) -> u64 {
        match self.mode {
            Mode::Meeting { at, .. } => at as u64,
            _ => 0,
        }
    }

    /// A call is to come: whether it is held back. `None`: one that no graph holds, which ends the segment.
    pub fn meet(&mut self, call: Option<&Call<'_>>, core: &StreamCore) -> Result<bool> {
        let Some(c) = call else {
            return self.cut(core).map(|()| false);
        };
        self.calls += 1;
        let (list, at) = match &self.mode {
            Mode::Off => return Ok(false),
            Mode::Noting => {
                self.noted.push(c);
                return Ok(false);
            }
            Mode::Meeting { list, at } => (*list, *at),
        };
        let segment = &mut self.book.segments[self.segment];
        let known = &segment.known[list];
        let next = match known.list.get(at).as_ref() == call {
            true => Some(list),
            false => segment.other(list, at, call),
        };
        if let Some(list) = next {
            self.mode = Mode::Meeting { list, at: at + 1 };
            return Ok(true);
        }
        self.mode = Mode::Off;
        segment.strange = (at, c.name(), c.unlike(known.list.get(at).as_ref()));
        known.list.run(at, core)?;
        self.noted = known.list.first(at);
        self.noted.push(c);
        self.mode = Mode::Noting;
        Ok(false)
    }

    /// Ends the segment, unless it has no call, at a place that comes back: a call that no graph holds, or an event of the stream.
    pub fn cut(&mut self, core: &StreamCore) -> Result<()> {
        if self.calls > 0 {
            self.end(core, true)?;
            self.begin(self.segment + 1);
        }
        Ok(())
    }

    /// Enqueues what was held back, for somebody who waits for it; the rest of the segment is no longer compared.
    #[cold]
    pub fn give_up(&mut self, core: &StreamCore) -> Result<()> {
        let Mode::Meeting { list, at } = std::mem::replace(&mut self.mode, Mode::Off) else {
            return Ok(());
        };
        let segment = &mut self.book.segments[self.segment];
        segment.strange = (at, "a wait", "what it waits for held back");
        let done = segment.known[list].list.run(at, core);
        if let Err(e) = &done {
            self.failed = Some(e.clone());
        }
        done
    }

    /// Enqueues what is held back of the segment, as a graph where all of a list was met. `ok`: the calls came to their end.
    fn end(&mut self, core: &StreamCore, ok: bool) -> Result<()> {
        let mode = std::mem::replace(&mut self.mode, Mode::Off);
        let (noted, calls) = (std::mem::take(&mut self.noted), self.calls);
        self.calls = 0;
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let device = &self.book.device;
        let fresh = self.book.freed == device.freed();
        let api = device.0.plugin.0.graph.filter(|_| ok && fresh);
        let segment = &mut self.book.segments[self.segment];
        let launched = match mode {
            Mode::Meeting { list, at } => segment.launch((list, at), core, api)?,
            Mode::Noting if ok => {
                segment.keep(noted);
                None
            }
            _ => None,
        };
        match launched {
            Some(recorded) => {
                self.done.graphs += 1;
                self.done.recorded += u64::from(recorded);
                self.done.calls += calls as u64;
            }
            None if calls >= WORTH => {
                self.done.called += 1;
                segment.miss();
            }
            None => {}
        }
        Ok(())
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
            for segment in &mut book.segments {
                segment.known.clear();
                segment.strange = (0, "the first call", "memory freed since");
            }
            book.freed = freed;
        }
        st.following = Some(Following::new(book));
        Ok(())
    }

    /// Enqueues what is held back, as a graph where all of a list was met. `ok`: the program got to its end; what a failed one was given is
    /// not kept. The recordings come back in every case; `None` where nothing was followed.
    pub fn close(&self, ok: bool) -> (Option<Recordings>, Result<Followed>) {
        let mut st = self.core.lock();
        let Some(mut following) = st.following.take() else {
            return (None, Ok(Followed::default()));
        };
        let ended = following.end(&self.core, ok);
        drop(st);
        let done = ended.map_err(|e| self.core.explained(e));
        (Some(following.book), done.map(|()| following.done))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Recordings hold the device, which holds the stream's core.
        let left = self.core.lock().following.take();
        drop(left);
    }
}
