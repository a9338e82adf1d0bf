//! The groups of ranks with which a block communicates: those of a rank alone, and those of a dry run.

use crate::error::{Error, Result, shape_error};
use crate::exchange::{Exchange, Lane, Link, Said, check_exchange};
use crate::{Run, Tensor};
use crossweave_hal::Code;
use crossweave_hal::abi::op;
use crossweave_mesh::{Axis, Place};
use std::cell::RefCell;
use std::sync::Arc;

/// Numbers by which ranks exchange something, as the host has them.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// All of them, in order.
    pub all: Arc<[i32]>,
    /// They are those of a plan: nothing was read, and there is to be room for more.
    pub planned: bool,
}

/// Reads i32 numbers from the device; the host waits for them, and other streams go on.
///
/// # Errors
/// The device.
pub fn read_numbers(run: &Run<'_>, t: &Tensor) -> Result<Arc<[i32]>> {
    let mut bytes = vec![0u8; t.extent() as usize];
    run.stream().read(t.region(), &mut bytes)?;
    let words = bytes.as_chunks::<4>().0.iter();
    Ok(words.map(|w| i32::from_le_bytes(*w)).collect())
}

/// The error of a block of a unit to whose experts so many rows have come, where as many would if all ranks had as many: of a device without memory these are said.
pub fn without_room(e: Error, unit: &str, [came, even]: [u64; 2]) -> Error {
    match e {
        Error::Hal(mut e) if e.code == Code::Oom => {
            e.message = format!(
                "{unit}: {came} rows have come to the experts of this rank, where {even} would if all had as many: {}; fix: smaller micro-batches, or a larger coefficient of the balance",
                e.message
            );
            Error::Hal(e)
        }
        e => e,
    }
}

/// The groups of ranks with which a block communicates, by mesh axis. A group of one is a real group.
pub trait Groups {
    /// Ranks along `axis`.
    fn size(&self, axis: Axis) -> u32;
    /// The place of this rank among them.
    fn at(&self, axis: Axis) -> u32;
    /// Exchanges all of these in one call, in stream order; messages of one call have no order among them. Every rank of the axis
    /// makes the same call.
    ///
    /// # Errors
    /// What [`check_exchange`] refuses; the device.
    fn exchange(&self, run: &Run<'_>, on: &Link, all: &[Exchange<'_>]) -> Result<()>;
    /// Returns true if something can be exchanged on [`crate::Lane::Beside`].
    fn beside(&self) -> bool {
        false
    }
    /// Makes the block's stream wait for what was begun on [`crate::Lane::Beside`].
    ///
    /// # Errors
    /// The device.
    fn settle(&self, _run: &Run<'_>) -> Result<()> {
        Ok(())
    }
    /// Returns numbers of exchanges that follow from data: `make` has them made on the device, and the host reads them; where a forward runs again they
    /// are those of its first run, and none are made. A dry run takes those that are `planned`.
    ///
    /// # Errors
    /// What `make` fails with; the device.
    fn numbers(
        &self,
        run: &Run<'_>,
        make: &dyn Fn() -> Result<Tensor>,
        _planned: &dyn Fn() -> Vec<i32>,
    ) -> Result<Numbers> {
        Ok(Numbers {
            all: read_numbers(run, &make()?)?,
            planned: false,
        })
    }
    /// Is given, before rows of experts are moved, how many come to this rank and how many would if all ranks had as many: what is said where a device has no
    /// memory for them.
    fn came(&self, _rows: [u64; 2]) {}
    /// Sums `t` over an axis in place.
    ///
    /// # Errors
    /// As [`Groups::exchange`].
    fn all_reduce(&self, run: &Run<'_>, op: &'static str, axis: Axis, t: &Tensor) -> Result<()> {
        self.exchange(run, &Link::new(op, axis), &[Exchange::AllReduce(t)])
    }
}

/// Every axis has one rank: what it exchanges with itself is copied.
pub struct NoGroups;
impl Groups for NoGroups {
    fn size(&self, _: Axis) -> u32 {
        1
    }
    fn at(&self, _: Axis) -> u32 {
        0
    }
    fn exchange(&self, run: &Run<'_>, on: &Link, all: &[Exchange<'_>]) -> Result<()> {
        check_exchange(on, 1, all)?;
        let copy = |to: &Tensor, from: &Tensor| {
            let none = op::NoParams::default();
            run.launch(
                op::COPY_STRIDED,
                &[Some(to), Some(from)],
                none.as_bytes(),
                &[],
            )
        };
        let flat = |t: &Tensor, [at, n]: [u64; 2]| t.view([t.numel()]).narrow(0, at, n);
        let messages = |sends: bool| {
            all.iter()
                .filter(move |e| matches!(e, Exchange::Send { .. }) == sends)
        };
        let mut sent = messages(true);
        for e in messages(false) {
            match e {
                Exchange::AllReduce(_) | Exchange::Send { .. } => {}
                Exchange::AllGather { send, recv }
                | Exchange::ReduceScatter { send, recv }
                | Exchange::AllToAll { send, recv } => {
                    copy(&recv.view(*send.shape()), send)?;
                }
                Exchange::AllToAllV { send, recv, counts } => {
                    let n = counts.send[0];
                    if n != counts.recv[0] {
                        return lone(on, n, counts.recv[0]);
                    }
                    let to = flat(recv, [counts.recv_at[0], n]);
                    copy(&to, &flat(send, [counts.send_at[0], n]))?;
                }
                Exchange::Recv { what, .. } => match sent.next() {
                    Some(Exchange::Send { what: from, .. }) if from.numel() == what.numel() => {
                        copy(what, &from.view(*what.shape()))?;
                    }
                    other => {
                        let n = other.map_or(0, |e| e.elements());
                        return lone(on, n, what.numel());
                    }
                },
            }
        }
        match sent.next() {
            Some(e) => lone(on, e.elements(), 0),
            None => Ok(()),
        }
    }
}

/// Refuses a message of a rank to itself that is not what it receives.
fn lone(on: &Link, sends: u64, expects: u64) -> Result<()> {
    shape_error(format!(
        "{} over {}: a rank alone sends itself {sends} elements and expects {expects}",
        on.op, on.axis
    ))
}

/// The groups of a place on a mesh whose other ranks are not there: everything has the shapes that it has in a job, nothing is moved,
/// and what a block says is written down. For dry runs.
pub struct Rehearsed {
    place: Place,
    said: RefCell<Vec<Said>>,
    /// What travels beside the block until it waits, so that memory is held for as long as in a job.
    travels: RefCell<Vec<Tensor>>,
}

impl Rehearsed {
    /// The groups of a place.
    pub fn of(place: Place) -> Rehearsed {
        Rehearsed {
            place,
            said: RefCell::default(),
            travels: RefCell::default(),
        }
    }

    /// What was said since the last call, in order: one entry for each call over an axis that is longer than one.
    pub fn take_said(&self) -> Vec<Said> {
        self.said.take()
    }
}

impl Groups for Rehearsed {
    fn size(&self, axis: Axis) -> u32 {
        self.place.length(axis)
    }
    fn at(&self, axis: Axis) -> u32 {
        self.place.at(axis)
    }
    fn exchange(&self, _: &Run<'_>, on: &Link, all: &[Exchange<'_>]) -> Result<()> {
        let place = on.among([self.at(on.axis), self.size(on.axis)]);
        check_exchange(on, place[1], all)?;
        if place[1] > 1 {
            self.said.borrow_mut().extend(Said::of(on, place, all));
        }
        if on.lane == Lane::Beside {
            let touched = all.iter().flat_map(Exchange::touched).cloned();
            self.travels.borrow_mut().extend(touched);
        }
        Ok(())
    }

    fn numbers(
        &self,
        _: &Run<'_>,
        make: &dyn Fn() -> Result<Tensor>,
        planned: &dyn Fn() -> Vec<i32>,
    ) -> Result<Numbers> {
        make()?;
        Ok(Numbers {
            all: planned().into(),
            planned: true,
        })
    }

    fn beside(&self) -> bool {
        true
    }

    fn settle(&self, _: &Run<'_>) -> Result<()> {
        self.travels.borrow_mut().clear();
        Ok(())
    }
}
