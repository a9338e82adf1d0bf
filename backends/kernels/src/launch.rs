//! What a back end gets: kernels with their grids and argument bytes, filled in at launch without allocating.

use crate::source::Kernel;
use crate::view;
use crossweave_abi::op;
use crossweave_plugin::{Code, Dyn, OpRequest, Plan, Result, fail};

/// Most bytes of an argument struct (the parameter space of every CUDA and HIP version is at least 4 KiB).
pub const ARGS_MAX: usize = 4032;

/// Room for one argument struct, aligned as the device wants it. Lives on the launching thread's stack.
#[repr(C, align(16))]
pub struct ArgBuffer(pub [u8; ARGS_MAX]);

impl Default for ArgBuffer {
    fn default() -> Self {
        ArgBuffer([0; ARGS_MAX])
    }
}

/// An address that goes into the argument struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Operand of this number, at its first byte.
    Operand(u32),
    /// So many bytes into the workspace.
    Workspace(u64),
}

/// Where in the argument struct an address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Byte offset of the eight-byte address.
    pub at: u32,
    /// What it points at.
    pub place: Place,
}

/// One kernel launch, everything known but addresses and launch-time parameters.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What runs.
    pub kernel: Kernel,
    /// Blocks; every number is at least 1.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The argument struct, addresses zero.
    pub args: Vec<u8>,
    /// Its addresses.
    pub slots: Vec<Slot>,
    /// Byte offset of its eight launch-time words, if it has them.
    pub dynamic: Option<u32>,
}

impl Launch {
    /// Writes the argument struct and gives it back. `operands[i]` is the address of operand `i`, 0 when absent.
    pub fn fill<'a>(
        &self,
        operands: &[u64],
        workspace: u64,
        values: &Values,
        buffer: &'a mut ArgBuffer,
    ) -> &'a mut [u8] {
        let out = &mut buffer.0[..self.args.len()];
        out.copy_from_slice(&self.args);
        for s in &self.slots {
            let address = match s.place {
                Place::Operand(i) => operands.get(i as usize).copied().unwrap_or(0),
                Place::Workspace(bytes) => workspace + bytes,
            };
            let at = s.at as usize;
            out[at..at + 8].copy_from_slice(&address.to_ne_bytes());
        }
        if let Some(at) = self.dynamic {
            for (i, w) in values.0.iter().enumerate() {
                let at = at as usize + 4 * i;
                out[at..at + 4].copy_from_slice(&w.to_ne_bytes());
            }
        }
        out
    }
}

/// Alignment that kernels count on of the workspace's first byte.
const WORKSPACE_ALIGN: u64 = 256;

/// What a launch must be given, by the layouts at prepare: a kernel that reaches beyond what is there ends the device, or another's data.
#[derive(Clone, Debug)]
pub struct Operands {
    name: &'static str,
    /// Per operand: bytes its layout touches and the alignment of its elements; `None` = absent.
    wanted: Vec<Option<(u64, u64)>>,
}

impl Operands {
    pub(crate) fn of(o: &OpRequest<'_>) -> Result<Operands> {
        Ok(Operands {
            name: view::name(o),
            wanted: (0..o.operands.len())
                .map(|i| view::extent(o, i))
                .collect::<Result<_>>()?,
        })
    }

    /// The op's name, for messages.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many there are, absent ones included.
    pub fn count(&self) -> usize {
        self.wanted.len()
    }

    /// Checks what a launch gives, address and bytes or `None`, and writes the addresses, 0 for what is absent. `out` has room for all.
    pub fn addresses(
        &self,
        given: impl ExactSizeIterator<Item = Option<(u64, u64)>>,
        out: &mut [u64],
    ) -> Result<()> {
        let name = self.name;
        if given.len() != self.wanted.len() || out.len() < self.wanted.len() {
            return fail(
                Code::Invalid,
                format!(
                    "{name}: prepared with {} operands, launched with {}",
                    self.wanted.len(),
                    given.len()
                ),
            );
        }
        for (i, (span, want)) in given.zip(&self.wanted).enumerate() {
            out[i] = match (span, want) {
                (Some((at, bytes)), Some((needs, align))) => {
                    if bytes < *needs {
                        return fail(
                            Code::Invalid,
                            format!(
                                "{name}: operand {i} needs {needs} bytes, its span has {bytes}"
                            ),
                        );
                    }
                    if !at.is_multiple_of(*align) {
                        return fail(
                            Code::Invalid,
                            format!(
                                "{name}: operand {i} starts at {at:#x}, elements need multiples of {align}"
                            ),
                        );
                    }
                    at
                }
                // An absent optional operand may still be passed as an empty span, and an empty tensor as none.
                (None, None | Some((0, _))) | (Some((_, 0)), None) => 0,
                (given, _) => {
                    let (was, is) = match given.is_some() {
                        true => ("absent", "is given"),
                        false => ("there", "is missing"),
                    };
                    return fail(
                        Code::Invalid,
                        format!("{name}: operand {i} was {was} at prepare but {is} at launch"),
                    );
                }
            };
        }
        Ok(())
    }

    /// The address of a workspace of `needs` bytes, 0 where none is needed.
    pub fn workspace(&self, needs: u64, given: Option<(u64, u64)>) -> Result<u64> {
        let name = self.name;
        match (needs, given) {
            (0, _) => Ok(0),
            (_, Some((at, bytes))) if bytes >= needs => match at.is_multiple_of(WORKSPACE_ALIGN) {
                true => Ok(at),
                false => fail(
                    Code::Invalid,
                    format!("{name}: the workspace must be {WORKSPACE_ALIGN}-byte aligned"),
                ),
            },
            (_, given) => fail(
                Code::Invalid,
                format!(
                    "{name}: needs {needs} bytes of workspace, got {}",
                    given.map_or(0, |w| w.1)
                ),
            ),
        }
    }
}

/// Launch-time parameters as the kernels read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Values(pub [u32; 8]);

impl Values {
    fn f32(mut self, i: usize, v: f64) -> Values {
        self.0[i] = (v as f32).to_bits();
        self
    }
    fn u64(mut self, i: usize, v: u64) -> Values {
        self.0[i] = v as u32;
        self.0[i + 1] = (v >> 32) as u32;
        self
    }
}

/// Which launch-time struct an op has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dynamic {
    None,
    Philox,
    Scale,
    Program,
    Adamw(op::AdamwParams),
}

/// An op with everything known before launch.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What `op_prepare` answers.
    pub plan: Plan,
    /// What a launch must be given.
    pub operands: Operands,
    /// In stream order; empty when there is nothing to do.
    pub launches: Vec<Launch>,
    pub(crate) dynamic: Dynamic,
}

impl Prepared {
    /// Checks the launch-time parameters and turns them into the kernels' words.
    pub fn values(&self, dynamic: Dyn<'_>) -> Result<Values> {
        let v = Values::default();
        Ok(match self.dynamic {
            Dynamic::None => v,
            Dynamic::Philox => {
                let d = dynamic.read::<op::PhiloxDyn>()?;
                v.u64(0, d.seed).u64(2, d.offset).u64(4, d.stream)
            }
            Dynamic::Scale => v.f32(0, dynamic.read::<op::ScaleDyn>()?.scale),
            Dynamic::Program => Values(
                dynamic
                    .read::<ProgramScalars>()?
                    .0
                    .scalars
                    .map(f32::to_bits),
            ),
            Dynamic::Adamw(p) => {
                let d = dynamic.read::<op::AdamwDyn>()?;
                if d.step == 0 {
                    return fail(
                        Code::Invalid,
                        "adamw: step counts from 1, 0 was given".to_string(),
                    );
                }
                let bc = |beta: f64| 1.0 - beta.powf(d.step as f64);
                let decay = if p.mode == 1 {
                    0.0
                } else {
                    d.lr * p.weight_decay
                };
                v.u64(0, d.grad_scale.to_bits())
                    .f32(2, decay)
                    .f32(3, d.lr / bc(p.beta1))
                    .f32(4, bc(p.beta2).sqrt())
            }
        })
    }
}

/// [`op::ProgramDyn`] with a default, which reading wants.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct ProgramScalars(op::ProgramDyn);
impl Default for ProgramScalars {
    fn default() -> Self {
        ProgramScalars(op::ProgramDyn::new(&[]))
    }
}
// SAFETY: transparent over a struct that is `Sized32`.
unsafe impl crossweave_abi::read::Sized32 for ProgramScalars {}
