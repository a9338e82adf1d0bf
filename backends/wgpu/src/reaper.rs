//! The thread that waits for the adapter: submissions end in order, so one thread learns of all of them, hands what was read back to the
//! host's memory and notifies the streams how far they have come.

use crate::device::{Fault, lock};
use crate::fault_point;
use crate::memory::HostBlock;
use crate::stream::Progress;
use crossweave_plugin::{Code, Error, Host, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use wgpu::{PollError, PollType, SubmissionIndex};

/// Buffers for reading back, kept from one to the next.
#[derive(Default)]
pub(crate) struct Stage(Mutex<Vec<wgpu::Buffer>>);

/// Buffers kept, and the largest worth keeping.
const KEEP: (usize, u64) = (8, 64 << 20);

impl Stage {
    /// A buffer of at least so many bytes, made when none is free.
    pub fn take(
        &self,
        bytes: u64,
        make: impl FnOnce() -> Result<wgpu::Buffer>,
    ) -> Result<wgpu::Buffer> {
        let mut free = lock(&self.0);
        let fits = |b: &wgpu::Buffer| b.size() >= bytes && b.size() <= 4 * bytes.max(4096);
        let at = free.iter().position(fits);
        at.map(|i| free.swap_remove(i)).map_or_else(make, Ok)
    }

    fn give(&self, b: wgpu::Buffer) {
        let mut free = lock(&self.0);
        if free.len() < KEEP.0 && b.size() <= KEEP.1 {
            free.push(b);
        }
    }
}

/// Rows of staging memory on their way to the host's.
pub(crate) struct ReadBack {
    pub stage: Arc<Stage>,
    pub staging: wgpu::Buffer,
    pub host: Arc<HostBlock>,
    pub offset: u64,
    /// Bytes between rows in host memory and in staging memory.
    pub pitches: [u64; 2],
    pub width: u64,
    pub height: u64,
}

/// A submission and what follows from its end.
pub(crate) struct Item {
    pub index: SubmissionIndex,
    pub reads: Vec<ReadBack>,
    /// The last field: everything is let go before anybody learns, for who waits may close the device next.
    pub told: Told,
}

/// Notifies a stream how far it has come when it is dropped, on whatever way: nobody may wait for a notice that will not come. Who gives a submission
/// up sets the device's failure first.
pub(crate) struct Told {
    pub stream: Arc<Progress>,
    /// The stream's last command in the submission.
    pub seq: u64,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.stream.pass(self.seq);
    }
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    closing: bool,
    ended: bool,
}

#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread's handle; dropping it waits for the thread's end.
pub(crate) struct Reaper(Arc<Inbox>);

impl Reaper {
    pub fn start(host: &Host, device: wgpu::Device, fault: Arc<Fault>) -> Result<Reaper> {
        let inbox = Arc::new(Inbox::default());
        let mine = inbox.clone();
        let host_here = *host;
        host.spawn(Box::new(move || {
            let whole = "the thread that waits for the adapter";
            fault.contain(whole, || serve(&mine, &device, &fault, &host_here));
            drop(device);
            let mut s = lock(&mine.state);
            s.ended = true;
            let left = std::mem::take(&mut s.items);
            mine.changed.notify_all();
            drop(s);
            drop(left);
        }))?;
        Ok(Reaper(inbox))
    }

    pub fn push(&self, item: Item) {
        let mut s = lock(&self.0.state);
        if s.ended {
            drop(s);
            return drop(item);
        }
        s.items.push_back(item);
        self.0.changed.notify_all();
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        let mut s = lock(&self.0.state);
        s.closing = true;
        self.0.changed.notify_all();
        while !s.ended {
            s = self
                .0
                .changed
                .wait(s)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn serve(inbox: &Inbox, device: &wgpu::Device, fault: &Fault, host: &Host) {
    loop {
        let mut s = lock(&inbox.state);
        let mut item = loop {
            if let Some(i) = s.items.pop_front() {
                break i;
            }
            if s.closing {
                return;
            }
            s = inbox
                .changed
                .wait(s)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(s);
        fault.contain("waiting for the adapter", || {
            if let Err(e) = fault_point(host, "wgpu.wait", Some((device, fault))) {
                fault.set(e);
            }
            wait(device, &item.index, fault);
            for r in item.reads.drain(..) {
                if fault.get().is_none()
                    && let Err(e) = land(r)
                {
                    fault.set(e);
                }
            }
        });
        drop(item.told);
    }
}

/// Until the submission has ended or the device has. Without a limit of time: when one has passed, wgpu-core reads how far the device is and
/// then whether anything is left, and panics where another thread's submission has seen the rest end in between.
fn wait(device: &wgpu::Device, index: &SubmissionIndex, fault: &Fault) {
    while fault.get().is_none() {
        let polled = device.poll(PollType::Wait {
            submission_index: Some(index.clone()),
            timeout: None,
        });
        match polled {
            Ok(_) => return,
            Err(PollError::Timeout) => {}
            Err(e) => fault.set(Error::new(
                Code::Internal,
                format!("waiting for the adapter: {e}"),
            )),
        }
    }
}

/// From mapped staging memory to the host's.
fn land(r: ReadBack) -> Result<()> {
    let lost = |e: &dyn std::fmt::Display| Error::new(Code::Internal, format!("reading back: {e}"));
    {
        let view = r
            .staging
            .slice(..)
            .get_mapped_range()
            .map_err(|e| lost(&e))?;
        for row in 0..r.height {
            let from = (row * r.pitches[1]) as usize;
            let bytes = &view[from..from + r.width as usize];
            // SAFETY: the copy's span was checked against the memory, which the block keeps alive; the host orders who touches it.
            unsafe {
                let to = r
                    .host
                    .ptr
                    .as_ptr()
                    .add((r.offset + row * r.pitches[0]) as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
    }
    r.staging.unmap();
    r.stage.give(r.staging);
    Ok(())
}
