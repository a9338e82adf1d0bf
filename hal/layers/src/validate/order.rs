//! What the host knows of streams: how many calls each has, how far it is known to have come, and what uses which memory last. Enough to say
//! that memory is freed while a queued call may still touch it.

use super::memory;
use crate::call::{Call, Operand};
use crossweave_abi as abi;
use crossweave_abi::Status;
use std::collections::HashMap;

#[derive(Default)]
struct Stream {
    device: u64,
    /// The plugin's own handle, once a call was made on it.
    handle: usize,
    /// Calls enqueued.
    calls: u64,
    /// Calls known to have been passed.
    passed: u64,
    /// Waits: at which call, for which stream's how many calls.
    waits: Vec<(u64, u64, u64)>,
}

#[derive(Default)]
pub(super) struct Order {
    streams: HashMap<u64, Stream>,
    /// Latest record of an event: stream and calls.
    events: HashMap<u64, (u64, u64)>,
    /// Last use of memory by each stream.
    uses: HashMap<u64, HashMap<u64, u64>>,
    /// Calls a wait that is going on began with, by stream or event.
    waiting: HashMap<u64, u64>,
}

fn operands<'a>(call: &Call<'a>) -> Vec<Operand<'a>> {
    match call {
        Call::Copy { dst, src, .. }
        | Call::Copy2d { dst, src, .. }
        | Call::CopyPeer { dst, src, .. } => vec![*dst, *src],
        Call::Fill { dst, .. } => vec![*dst],
        Call::WaitValue { word, .. } | Call::WriteValue { word, .. } => vec![*word],
        Call::Launch {
            operands,
            workspace,
            ..
        } => operands.iter().copied().chain([*workspace]).collect(),
        Call::Collective { members, .. } => members.iter().flat_map(|m| [m.send, m.recv]).collect(),
        _ => vec![],
    }
}

impl Order {
    /// A call has returned.
    pub fn after(&mut self, call: &Call<'_>, s: Status) {
        if s != abi::OK {
            // A stream that failed runs nothing more, and what it held may go.
            if let (Call::StreamSync { stream, .. } | Call::StreamQuery { stream }, true) =
                (call, s < abi::OK && s != abi::E_TIMEOUT)
            {
                self.pass(stream.id(), u64::MAX);
            }
            return;
        }
        match call {
            Call::StreamCreate { device, new, .. } => {
                let fresh = Stream {
                    device: device.id(),
                    ..Stream::default()
                };
                self.streams.insert(*new, fresh);
            }
            // Only what was enqueued when the wait began has been waited for.
            Call::StreamSync { stream, .. } | Call::StreamQuery { stream } => {
                let upto = self
                    .waiting
                    .remove(&stream.id())
                    .or(self.streams.get(&stream.id()).map(|s| s.calls));
                self.pass(stream.id(), upto.unwrap_or(0));
            }
            Call::EventRecord { event, stream } => {
                let calls = self.streams.get(&stream.id()).map_or(0, |s| s.calls);
                self.events.insert(event.id(), (stream.id(), calls));
            }
            Call::EventSync { event, .. } | Call::EventQuery { event } => {
                if let Some((stream, calls)) = self.events.get(&event.id()).copied() {
                    self.pass(stream, calls);
                }
            }
            Call::WaitEvent { stream, event } => {
                if let (Some((of, calls)), Some(s)) = (
                    self.events.get(&event.id()).copied(),
                    self.streams.get_mut(&stream.id()),
                ) {
                    s.calls += 1;
                    let at = s.calls;
                    s.waits.push((at, of, calls));
                }
            }
            _ => {
                let Some(stream) = call.stream() else { return };
                let Some(s) = self.streams.get_mut(&stream.id()) else {
                    return;
                };
                s.calls += 1;
                s.handle = stream.inner as usize;
                let at = s.calls;
                for o in operands(call) {
                    if let Some((id, _)) = memory(&o) {
                        self.uses.entry(id).or_default().insert(stream.id(), at);
                    }
                }
            }
        }
    }

    /// A stream is known to have come so far, and with it what it had waited for.
    fn pass(&mut self, stream: u64, calls: u64) {
        let mut todo = vec![(stream, calls)];
        while let Some((stream, calls)) = todo.pop() {
            let Some(s) = self.streams.get_mut(&stream) else {
                continue;
            };
            if calls <= s.passed {
                continue;
            }
            s.passed = calls;
            todo.extend(s.waits.iter().filter(|w| w.0 <= calls).map(|w| (w.1, w.2)));
            s.waits.retain(|w| w.0 > calls);
        }
    }

    /// A stream whose use of the memory nothing has waited for, and the plugin's own handle of it.
    pub fn in_use(&self, mem: u64) -> Option<(u64, usize)> {
        let uses = self.uses.get(&mem)?;
        let open = uses.iter().filter_map(|(id, at)| {
            let s = self.streams.get(id)?;
            (s.passed < *at).then_some((*id, s.handle))
        });
        open.min()
    }

    /// A stream has been waited for, whatever it ended with. What is enqueued from now on has not.
    pub fn waited(&mut self, stream: u64) {
        let calls = self.streams.get(&stream).map_or(0, |s| s.calls);
        self.pass(stream, calls);
    }

    /// A stream is gone with what was queued on it.
    pub fn forget_stream(&mut self, stream: u64) {
        self.waited(stream);
        self.streams.remove(&stream);
        self.waiting.remove(&stream);
        self.uses.values_mut().for_each(|by| {
            by.remove(&stream);
        });
        self.events.retain(|_, (of, _)| *of != stream);
    }

    pub fn forget_event(&mut self, event: u64) {
        self.events.remove(&event);
    }

    pub fn forget_mem(&mut self, mem: u64) {
        self.uses.remove(&mem);
    }

    pub fn forget_device(&mut self, device: u64) {
        let of = |(id, s): (&u64, &Stream)| (s.device == device).then_some(*id);
        let gone: Vec<u64> = self.streams.iter().filter_map(of).collect();
        gone.into_iter().for_each(|s| self.forget_stream(s));
    }

    /// A wait for a stream begins: what is enqueued by then will have been passed.
    pub fn begins(&mut self, stream: u64) {
        if let Some(s) = self.streams.get(&stream) {
            self.waiting.insert(stream, s.calls);
        }
    }
}
