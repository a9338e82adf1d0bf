//! Holds every call to the contract of the header: spans inside their memory, operands that do not overlap, handles of one device, lengths
//! of collectives, memory freed under queued work, calls that R7 wants one after another. A violation is an error of that call, which the
//! plugin never sees; in a call that cannot fail it is the error of the next one that can.
//!
//! Handles that are NULL, ended or of another kind are reported by every layer (`Object`); this one adds what needs memory of earlier calls.

mod collective;
mod order;
mod spans;

use crate::call::{Call, Operand};
use crate::object::{Facts, Kind, Object};
use crate::wrap::Layer;
use collective::Groups;
use crossweave_abi as abi;
use crossweave_abi::Status;
use crossweave_plugin::{Code, Error, Result};
use order::Order;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
struct State {
    order: Order,
    groups: Groups,
    /// Handles that live, by device: number and kind.
    live: HashMap<u64, HashMap<u64, Kind>>,
    /// What a thread is in: streams, ops, communicators (R7).
    busy: HashSet<u64>,
    /// Violations of calls that cannot fail, by device.
    pending: Vec<(u64, String)>,
}

/// The layer.
#[derive(Default)]
pub struct Validate(Mutex<State>);

/// A violation, or nothing.
pub(crate) type Verdict = std::result::Result<(), String>;

/// Objects of other devices in one call.
fn one_device(call: &Call<'_>) -> Verdict {
    let home = call.device();
    let foreign = |o: &Object| o.device() != home;
    let told = |o: &Object| {
        Err(format!(
            "{} belongs to device #{}, the call is on device #{home}",
            o.describe(),
            o.device()
        ))
    };
    let span = |s: &Operand<'_>| match s.mem {
        Some(m) if foreign(m) => told(m),
        _ => Ok(()),
    };
    match call {
        // Between devices by what they are.
        Call::CopyPeer { .. }
        | Call::PeerAccess { .. }
        | Call::WaitEvent { .. }
        | Call::EventElapsed { .. } => Ok(()),
        Call::EventRecord { event, stream } if event.device() != stream.device() => told(event),
        Call::Copy { dst, src, .. } | Call::Copy2d { dst, src, .. } => {
            span(dst).and_then(|()| span(src))
        }
        Call::Fill { dst, .. } => span(dst),
        Call::WaitValue { word, .. } | Call::WriteValue { word, .. } => span(word),
        Call::Launch {
            op,
            operands,
            workspace,
            ..
        } => {
            if foreign(op) {
                return told(op);
            }
            operands
                .iter()
                .try_for_each(span)
                .and_then(|()| span(workspace))
        }
        Call::Collective { comm, members, .. } => {
            if foreign(comm) {
                return told(comm);
            }
            members
                .iter()
                .try_for_each(|m| span(&m.send).and_then(|()| span(&m.recv)))
        }
        Call::Register { span: s, .. } => span(s),
        _ => Ok(()),
    }
}

/// Numbers that R7 allows one thread at a time in.
fn serialised(call: &Call<'_>) -> [Option<u64>; 2] {
    let stream = call.stream().map(Object::id);
    match call {
        Call::Launch { op, .. } => [stream, Some(op.id())],
        Call::Collective { comm, .. } => [stream, Some(comm.id())],
        Call::CommSplit { comm, .. } => [Some(comm.id()), None],
        _ => [stream, None],
    }
}

/// What a call makes: number and kind.
fn made(call: &Call<'_>) -> Option<(u64, Kind)> {
    Some(match call {
        Call::DeviceOpen { new, .. } => (*new, Kind::Device),
        Call::Alloc { new, .. } | Call::Import { new, .. } => (*new, Kind::Mem),
        Call::StreamCreate { new, .. } => (*new, Kind::Stream),
        Call::EventCreate { new, .. } => (*new, Kind::Event),
        Call::Prepare { new, .. } => (*new, Kind::Op),
        Call::CommInit { new, .. } => (*new, Kind::Comm),
        _ => return None,
    })
}

impl Validate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn before(&self, call: &Call<'_>) -> Verdict {
        one_device(call)?;
        spans::check(call)?;
        let mut st = self.lock();
        let home = call.device();
        if let Some(i) = st
            .pending
            .iter()
            .position(|(d, _)| *d == home || *d == 0 || home == 0)
        {
            return Err(format!(
                "{}; reported with the next call that can fail",
                st.pending.remove(i).1
            ));
        }
        match call {
            Call::Collective { comm, members, .. } => {
                collective::check(comm, members)?;
                st.groups.enter(comm, members)?;
            }
            Call::Shutdown => {
                let left: usize = st.live.values().map(HashMap::len).sum();
                if left > 0 {
                    return Err(format!("{left} handles are alive; destroy them first"));
                }
            }
            _ => {}
        }
        let ids = serialised(call).into_iter().flatten();
        if let Some(id) = ids.clone().find(|id| st.busy.contains(id)) {
            return Err(format!("two threads call on #{id} at once (R7)"));
        }
        st.busy.extend(ids);
        if let Call::StreamSync { stream, .. } | Call::StreamQuery { stream } = call {
            st.order.begins(stream.id());
        }
        Ok(())
    }

    fn after(&self, call: &Call<'_>, s: Status) -> Verdict {
        let mut st = self.lock();
        for id in serialised(call).into_iter().flatten() {
            st.busy.remove(&id);
        }
        let device = call.device();
        if s == abi::OK {
            if let Some((id, kind)) = made(call) {
                st.live.entry(device).or_default().insert(id, kind);
            }
            if let Call::CommInit {
                device,
                new,
                id,
                rank,
                ..
            } = call
            {
                st.groups.joined(*new, device.id(), id, *rank);
            }
            if let Call::Collective { comm, members, .. } = call {
                st.groups.launched(comm, members);
            }
        } else if let Call::Collective { comm, .. } = call {
            st.groups.refused(comm);
        }
        st.order.after(call, s);
        let may_wait = matches!(
            call,
            Call::StreamQuery { .. } | Call::EventQuery { .. } | Call::CommAsyncError { .. }
        );
        match s {
            abi::NOT_READY if !may_wait => {
                Err("the plugin answers NOT_READY, which is for queries only".into())
            }
            s if s > abi::NOT_READY => Err(format!("the plugin answers {s}, which is no status")),
            _ => Ok(()),
        }
    }

    /// A handle ends: was it time?
    fn ended(&self, call: &Call<'_>) {
        let mut st = self.lock();
        let Some(o) = call.object() else { return };
        let home = o.device();
        if let Some(live) = st.live.get_mut(&home) {
            live.remove(&o.id());
        }
        let mut wrong = None;
        match call {
            Call::DeviceClose { .. } => {
                let left = st.live.remove(&home).unwrap_or_default();
                if let Some((id, kind)) = left.iter().next() {
                    let rest = left.len() - 1;
                    wrong = Some(format!(
                        "{} #{id} and {rest} other handles of it are alive",
                        kind.name()
                    ));
                }
                st.order.forget_device(home);
            }
            Call::Free { mem } => {
                while let Some((stream, handle)) = st.order.in_use(mem.id()) {
                    wrong = Some(format!(
                        "{} is freed while stream #{stream} may still use it: nothing has waited for its last use",
                        mem.describe()
                    ));
                    // The mistake is reported; the process need not die of it. Not for ever: what it waits for may wait for us.
                    if let Some(f) = mem
                        .context
                        .inner
                        .device
                        .as_ref()
                        .and_then(|t| t.stream_sync)
                    {
                        // SAFETY: alive, or forgotten with its device; what it ends with is no news.
                        unsafe { f(handle as abi::Handle, 10_000_000_000, std::ptr::null_mut()) };
                    }
                    st.order.waited(stream);
                }
                st.order.forget_mem(mem.id());
            }
            Call::StreamDestroy { stream } => st.order.forget_stream(stream.id()),
            Call::EventDestroy { event } => st.order.forget_event(event.id()),
            Call::CommDestroy { comm } => st.groups.left(comm),
            _ => {}
        }
        if let Some(why) = wrong {
            // What concerns a device that is gone is reported by the next call.
            let of = if matches!(call, Call::DeviceClose { .. }) {
                0
            } else {
                home
            };
            st.pending.push((of, format!("{}: {why}", call.slot())));
        }
    }
}

impl Layer for Validate {
    fn name(&self) -> &'static str {
        "validate"
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        let wrong = |why: String| {
            let subject = call.subject().map_or(String::new(), |s| format!(" of {s}"));
            Error::new(
                Code::Invalid,
                format!("validate: {}{subject}: {why}", call.slot()),
            )
        };
        match call {
            Call::DeviceClose { .. }
            | Call::Free { .. }
            | Call::StreamDestroy { .. }
            | Call::EventDestroy { .. }
            | Call::Release { .. }
            | Call::CommDestroy { .. } => {
                self.ended(call);
                return Ok(next());
            }
            // May race with anything, and must stay fast.
            Call::CommAbort { .. } => return Ok(next()),
            _ => {}
        }
        self.before(call).map_err(wrong)?;
        let s = next();
        self.after(call, s).map_err(|why| {
            let mut e = wrong(why);
            e.code = Code::Internal;
            e
        })?;
        Ok(s)
    }

    fn misused(&self, why: &str) {
        self.lock().pending.push((0, why.to_string()));
    }
}

/// Memory of an operand, with its number and length, where it is given.
pub(crate) fn memory(o: &Operand<'_>) -> Option<(u64, u64)> {
    let m = o.mem?;
    match m.facts() {
        Facts::Mem { bytes, .. } => Some((m.id(), *bytes)),
        _ => None,
    }
}
