//! Launches of our own kernels: what a launch is given is checked before anything reaches the device, which a stray access would end.

use crate::device::Dev;
use crate::lock;
use crate::memory::{Mem, at, inside};
use crate::modules::Function;
use crate::stream::{Lane, Line, Stream};
use crossweave_kernels::{self as kernels, ArgBuffer, Kernel, Operands};
use crossweave_plugin::{Code, Dyn, Error, Result, Span, fail};
use std::sync::{Arc, Mutex};

/// Operands of one launch whose addresses lie on the launching thread's stack; multi-tensor ops may have more, and keep room for them.
const INLINE: usize = 64;

/// What a prepared op's launches are held against.
pub struct Frame {
    dev: Arc<Dev>,
    operands: Operands,
    workspace: u64,
    /// Room for the addresses of more operands than [`INLINE`].
    many: Mutex<Box<[u64]>>,
}

impl Frame {
    /// An op has these operands and so many bytes of workspace.
    pub fn new(dev: &Arc<Dev>, operands: Operands, workspace: u64) -> Frame {
        let many = match operands.count() {
            n if n > INLINE => n,
            _ => 0,
        };
        Frame {
            dev: dev.clone(),
            operands,
            workspace,
            many: Mutex::new(vec![0; many].into()),
        }
    }

    /// Checks what a launch is given, and calls `f` with the addresses of operands (0: absent) and workspace. Nothing is allocated.
    fn launch(
        &self,
        s: &Line,
        operands: &[Option<Span<'_, Mem>>],
        workspace: Option<Span<'_, Mem>>,
        f: impl FnOnce(&[u64], u64) -> Result<()>,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.dev, &s.dev) {
            return fail(
                Code::Invalid,
                format!(
                    "an op prepared for device {} on a stream of device {}",
                    self.dev.index, s.dev.index
                ),
            );
        }
        let wanted = &self.operands;
        for (i, o) in operands.iter().chain([&workspace]).enumerate() {
            let Some(o) = o else { continue };
            inside("the span", o)
                .and_then(|()| o.mem.reached_by(&s.dev))
                .map_err(|e| {
                    let which = match i < operands.len() {
                        true => format!("operand {i}"),
                        false => "the workspace".into(),
                    };
                    let message = format!("{}: {which}: {}", wanted.name(), e.message);
                    Error { message, ..e }
                })?;
        }
        let place = |o: &Span<'_, Mem>| (at(o), o.bytes);
        let scratch = wanted.workspace(self.workspace, workspace.as_ref().map(place))?;
        let mut inline = [0u64; INLINE];
        let mut many;
        let addresses: &mut [u64] = match wanted.count() <= INLINE {
            true => &mut inline[..wanted.count()],
            false => {
                many = lock(&self.many);
                &mut many
            }
        };
        let spans = operands.iter().map(|o| o.as_ref().map(place));
        wanted.addresses(spans, addresses)?;
        f(addresses, scratch)
    }
}

/// A prepared op's work.
pub trait Work: Send + Sync + 'static {
    /// What a launch is held against.
    fn frame(&self) -> &Frame;
    /// Gives the driver a launch: addresses of operands (0: absent) and workspace, and the launch-time parameters.
    ///
    /// # Errors
    /// What the driver says.
    fn enqueue(
        &self,
        s: &Lane<'_>,
        addresses: &[u64],
        scratch: u64,
        dynamic: Dyn<'_>,
    ) -> Result<()>;
}

/// A launch of a prepared op. Nothing is allocated, unless the stream is held.
///
/// # Errors
/// `Invalid`, with the operand and what is wrong with it. What the driver says.
pub fn launch<W: Work>(
    work: &Arc<W>,
    s: &Stream,
    operands: &[Option<Span<'_, Mem>>],
    workspace: Option<Span<'_, Mem>>,
    dynamic: Dyn<'_>,
) -> Result<()> {
    let now = |addresses: &[u64], scratch| {
        if !s.held() || s.captures() {
            return work.enqueue(&s.lane(), addresses, scratch, dynamic);
        }
        // The op may be released before its launch has its turn.
        let (work, own) = (work.clone(), Box::<[u64]>::from(addresses));
        let params = Box::<[u8]>::from(dynamic.0);
        s.put(move |s| work.enqueue(s, &own, scratch, Dyn(&params)))
    };
    work.frame().launch(s, operands, workspace, now)
}

/// Our own kernels for an op, loaded.
pub struct Own {
    op: kernels::Prepared,
    functions: Vec<Function>,
}

impl Own {
    /// Loads the op's kernels; `function` gives one, ready for so much dynamic shared memory.
    ///
    /// # Errors
    /// What `function` says.
    pub fn load(
        op: kernels::Prepared,
        mut function: impl FnMut(&Kernel, u32) -> Result<Function>,
    ) -> Result<Own> {
        let all = op.launches.iter();
        let functions = all
            .map(|l| function(&l.kernel, l.shared))
            .collect::<Result<_>>()?;
        Ok(Own { op, functions })
    }

    /// Enqueues the op's kernels.
    ///
    /// # Errors
    /// `Invalid`: launch-time parameters that are none. What the driver says.
    pub fn enqueue(
        &self,
        s: &Lane<'_>,
        addresses: &[u64],
        scratch: u64,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        let values = self.op.values(dynamic)?;
        if self.op.launches.is_empty() {
            return Ok(());
        }
        let dev = &s.dev;
        let _in = dev.enter()?;
        let mut buffer = ArgBuffer::default();
        for (l, f) in self.op.launches.iter().zip(&self.functions) {
            let args = l.fill(addresses, scratch, &values, &mut buffer);
            // The kernel's one parameter is the struct, by value: the driver copies it before it returns.
            let mut params = [args.as_mut_ptr().cast()];
            // SAFETY: the struct is the one the kernel declares (checked where the kernels are compiled); operands live until the stream
            // has passed the launch.
            let o = unsafe {
                dev.rt()
                    .launch(f.0, l.grid, l.block, l.shared, s.raw, params.as_mut_ptr())
            };
            dev.check(o).map_err(|mut e| {
                e.message = format!("kernel {}: {}", l.kernel.entry, e.message);
                e
            })?;
        }
        Ok(())
    }
}
