//! Launches of a prepared op.
//!
//! The first phase of an operator makes an executor, the second runs it, once, unless it was made repeatable. A prepared op keeps the executors of
//! its last launch where all of them could be made so, and uses them again for a launch at the same addresses, which is what a training step
//! does; other addresses make new ones.

use crate::aclnn::{Aclnn, Phases};
use crate::driver::Acl;
use crate::plan::{Arg, Base, Call, FORMAT_ND, Number, PIECE, Plan, Step};
use crate::runtime;
use crossweave_gpu::{Dev, Frame, Handle, Lane, Outcome, SUCCESS, Work, lock};
use crossweave_plugin::{Code, Dyn, Result, fail, unsupported};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// A descriptor of an operand, which is given back by its own function.
enum Object {
    Tensor(Handle),
    Scalar(Handle),
    Ints(Handle),
    Bools(Handle),
}

/// An operator ready to run at some addresses.
struct Made {
    phases: Phases,
    name: &'static str,
    bytes: u64,
    executor: Handle,
    repeatable: bool,
    objects: Vec<Object>,
}

/// The executors of the last launch, and the addresses they are for.
#[derive(Default)]
struct Kept {
    addresses: Vec<u64>,
    made: Vec<Made>,
}

/// A prepared op.
pub struct Prepared(pub(crate) Arc<Op>);

pub(crate) struct Op {
    frame: Frame,
    nn: Arc<Aclnn>,
    steps: Vec<Step>,
    /// Bytes of the workspace that are the op's own; the operators' workspace lies behind them.
    own: u64,
    /// And so many bytes for the operators.
    theirs: u64,
    kept: Mutex<Kept>,
}

/// Makes an operator ready.
///
/// # Safety
/// The addresses hold what the tensors reach while the executor is used.
unsafe fn make(nn: &Aclnn, c: &Call, at: &dyn Fn(Base) -> u64) -> Result<Made> {
    let phases = nn.phases(c.name)?;
    let m = &nn.meta;
    let mut made = Made {
        phases,
        name: c.name,
        bytes: 0,
        executor: Handle::NULL,
        repeatable: false,
        objects: Vec::with_capacity(c.args.len()),
    };
    let mut words = Vec::with_capacity(c.args.len());
    for a in &c.args {
        // SAFETY: the arrays live for the calls, which copy them.
        let object = unsafe {
            match a {
                Arg::Word(w) => {
                    words.push(*w);
                    continue;
                }
                Arg::Tensor(t) => Object::Tensor((m.aclCreateTensor)(
                    t.dims.as_ptr(),
                    t.dims.len() as u64,
                    t.dtype.0,
                    t.strides.as_ptr(),
                    0,
                    FORMAT_ND,
                    &t.reach(),
                    1,
                    at(t.base) as usize as *mut c_void,
                )),
                Arg::Scalar(Number(d, v)) => {
                    let mut v = *v;
                    Object::Scalar((m.aclCreateScalar)(v.as_mut_ptr().cast(), d.0))
                }
                Arg::Ints(v) => Object::Ints((m.aclCreateIntArray)(v.as_ptr(), v.len() as u64)),
                Arg::Bools(v) => Object::Bools((m.aclCreateBoolArray)(v.as_ptr(), v.len() as u64)),
            }
        };
        let (Object::Tensor(h) | Object::Scalar(h) | Object::Ints(h) | Object::Bools(h)) = object;
        words.push(h.0 as u64);
        made.objects.push(object);
    }
    // SAFETY: a word for each argument, by the operator's own declaration.
    let s = unsafe { (c.first)(phases.first, &words, &mut made.bytes, &mut made.executor) };
    match s {
        0 => Ok(made),
        _ => {
            discard(nn, made);
            Err(nn.error(&format!("{}GetWorkspaceSize", c.name), s))
        }
    }
}

/// Gives back an executor that has not run or is repeatable, and its operands' descriptors.
fn discard(nn: &Aclnn, made: Made) {
    let m = &nn.meta;
    // SAFETY: made by `make`, given back once. An executor that has run and is not repeatable is NULL by then.
    unsafe {
        if made.executor != Handle::NULL {
            (m.aclDestroyAclOpExecutor)(made.executor);
        }
        for o in made.objects {
            match o {
                Object::Tensor(h) => (m.aclDestroyTensor)(h),
                Object::Scalar(h) => (m.aclDestroyScalar)(h),
                Object::Ints(h) => (m.aclDestroyIntArray)(h),
                Object::Bools(h) => (m.aclDestroyBoolArray)(h),
            };
        }
    }
}

impl Op {
    /// The plan for launches on a device, and its bytes of workspace.
    pub(crate) fn new(
        nn: Arc<Aclnn>,
        dev: &Arc<Dev>,
        operands: crossweave_kernels::Operands,
        p: Plan,
    ) -> Result<(Op, u64)> {
        let mut theirs = 0;
        let _in = dev.enter()?;
        for s in &p.steps {
            if let Step::Call(c) = s {
                // SAFETY: the executor is never run: any address will do that is not NULL.
                let made = unsafe { make(&nn, c, &|_| PIECE) }?;
                theirs = theirs.max(made.bytes);
                discard(&nn, made);
            }
        }
        let all = p.most + theirs;
        let op = Op {
            frame: Frame::new(dev, operands, all),
            nn,
            steps: p.steps,
            own: p.most,
            theirs,
            kept: Mutex::default(),
        };
        Ok((op, all))
    }

    fn run(
        &self,
        acl: &Acl,
        s: &Lane<'_>,
        kept: &mut Kept,
        at: &dyn Fn(Base) -> u64,
        scratch: u64,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        let fresh = kept.addresses.is_empty();
        let stream = s.raw();
        let mut made = kept.made.iter_mut();
        for step in &self.steps {
            match step {
                Step::Host(t, f) => {
                    let (to, bytes) = (at(t.base), (t.count() as u64 * t.dtype.bytes()) as usize);
                    let answer = RefCell::new(Ok(()));
                    // SAFETY: a dense tensor of so many bytes; the context is current.
                    let o = unsafe {
                        acl.staging.with(
                            &acl.t,
                            bytes,
                            stream,
                            |b| *answer.borrow_mut() = f(b, dynamic),
                            |from| match *answer.borrow() {
                                Ok(()) => acl.to_device(to, bytes, from, bytes, stream),
                                // Refused: nothing is written.
                                Err(_) => Outcome {
                                    name: "aclrtMemcpyAsync",
                                    status: SUCCESS,
                                },
                            },
                        )
                    };
                    answer.into_inner()?;
                    s.dev.check(o)?;
                }
                Step::Call(_) => {
                    let Some(m) = made.next() else { continue };
                    if m.bytes > self.theirs {
                        return fail(
                            Code::Internal,
                            format!(
                                "aclnn{}: {} bytes of workspace, {} at prepare",
                                m.name, m.bytes, self.theirs
                            ),
                        );
                    }
                    if fresh && let Some(f) = self.nn.meta.aclSetAclOpExecutorRepeatable {
                        // SAFETY: an executor that has not run.
                        m.repeatable = unsafe { f(m.executor) } == 0;
                    }
                    let space = match m.bytes {
                        0 => std::ptr::null_mut(),
                        _ => (scratch + self.own) as usize as *mut c_void,
                    };
                    let executor = match m.repeatable {
                        true => m.executor,
                        // Running it ends it.
                        false => std::mem::replace(&mut m.executor, Handle::NULL),
                    };
                    // SAFETY: the executor is for these addresses; operands and workspace live until the stream has passed the launch.
                    let r = unsafe { (m.phases.second)(space, m.bytes, executor, stream) };
                    if r != 0 {
                        return Err(self.nn.error(m.name, r));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Work for Op {
    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn enqueue(
        &self,
        s: &Lane<'_>,
        operands: &[u64],
        scratch: u64,
        dynamic: Dyn<'_>,
    ) -> Result<()> {
        let Some(acl) = runtime::running() else {
            return fail(
                Code::Internal,
                "a launch before the run time has been started",
            );
        };
        if operands.iter().any(|a| acl.is_host(*a)) {
            return unsupported(
                "an operand in page-locked memory: the operators reach memory of the device only",
            );
        }
        let _in = s.dev.enter()?;
        let at = |b: Base| match b {
            Base::Operand(i) => operands[i],
            Base::Workspace(n) => scratch + n,
        };
        let mut kept = lock(&self.kept);
        let same = kept.addresses.split_last() == Some((&scratch, operands));
        if !same {
            kept.addresses.clear();
            kept.made.drain(..).for_each(|m| discard(&self.nn, m));
            for step in &self.steps {
                if let Step::Call(c) = step {
                    // SAFETY: what is at these addresses lives until the stream has passed the launch; executors are kept for launches
                    // that name the same addresses.
                    kept.made.push(unsafe { make(&self.nn, c, &at) }?);
                }
            }
        }
        let done = self.run(&acl, s, &mut kept, &at, scratch, dynamic);
        match done.is_ok() && kept.made.iter().all(|m| m.repeatable) {
            true if !same => {
                kept.addresses.extend_from_slice(operands);
                kept.addresses.push(scratch);
            }
            true => {}
            false => {
                kept.addresses.clear();
                kept.made.drain(..).for_each(|m| discard(&self.nn, m));
            }
        }
        done
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let mut kept = lock(&self.kept);
        kept.made.drain(..).for_each(|m| discard(&self.nn, m));
    }
}
// SAFETY: handles of the operators' library, which are used by one launch at a time (`kept`).
unsafe impl Send for Made {}
