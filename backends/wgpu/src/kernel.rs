//! The contract between the device (which queues and binds) and the kernels (which are WGSL): what an op's file answers to `prepare`.
//!
//! An op is a list of passes, each one dispatch of a WGSL module made by [`Binds::pass`] from a body and the operands it names. The body
//! has `@compute @workgroup_size(…) fn main(…)` and calls accessors that are generated for each name (see [`crate::wgsl`]); where an operand
//! lies, in how many bindings, and at what offset is none of its business. Numbers that change from shape to shape belong into `params`,
//! not into the text: pipelines are cached by text.

use crate::wgsl;
use crossweave_abi::op;
use crossweave_plugin::{Code, DType, OpRequest, Result, fail, unsupported};

/// What kernels may count on: the adapter's limits, lowered by the configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// Bytes of one storage binding, a multiple of `align`.
    pub max_binding: u64,
    /// Where a binding may start.
    pub align: u64,
    /// Storage bindings of one dispatch.
    pub max_storage: u32,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: u32,
    /// Invocations of a workgroup.
    pub max_invocations: u32,
    /// Workgroups in one dimension of a dispatch.
    pub max_groups: u32,
    /// Least and greatest subgroup size, where subgroup functions work.
    pub subgroup: Option<(u32, u32)>,
    /// The adapter converts halves itself (`SHADER_F16`, `wgpu.f16`); without it they are taken apart as bits.
    pub f16: bool,
    /// Quotients and roots are rounded to nearest by the adapter; else they are mended (`wgpu.rounds`).
    pub rounds: bool,
    /// Fused ops are answered at all (`wgpu.fused`).
    pub fused: bool,
    /// Products by the plain kernel, to compare with (`wgpu.naive_matmul`).
    pub naive_matmul: bool,
}

/// What a pass does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes, and may read.
    ReadWrite,
}

/// Where the bytes of a bind come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Operand `i` of the op.
    Operand(usize),
    /// From byte `at` of the workspace (a multiple of 4).
    Workspace {
        /// First byte.
        at: u64,
    },
}

/// One named operand of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Name in the accessors.
    pub name: String,
    /// Where it lies.
    pub source: Source,
    /// Bytes it touches from its start.
    pub bytes: u64,
    /// What is done with it.
    pub access: Access,
    /// Element type.
    pub dtype: DType,
    /// Bindings it is cut into.
    pub windows: u32,
    /// Bound a second time, for the atomic merges of elements that share a word.
    pub atomic: bool,
    /// Bound as pairs of `f16`: only read, by `ld_x`, `ld2_x` and `ld4_x`.
    pub halves: bool,
}

/// One dispatch.
#[derive(Clone, Debug)]
pub struct Pass {
    /// For messages and tools.
    pub label: String,
    /// The whole module, entry `main`.
    pub wgsl: String,
    /// Its operands; binding 0 is the parameter block, then windows in order, then the atomic aliases in order.
    pub binds: Vec<Bind>,
    /// `param(k)`.
    pub params: Vec<u32>,
    /// Workgroups; a zero means nothing is dispatched.
    pub groups: [u32; 3],
    /// Storage bindings in all.
    pub bindings: u32,
}

/// Most words computed at launch.
pub const DYN_WORDS: usize = 16;
/// Words computed at launch from the op's dyn struct: `dyn_word(k)`.
pub type Words = [u32; DYN_WORDS];
/// Computes them, before anything is queued.
pub type Dynamic = Box<dyn Fn(&[u8]) -> Result<Words> + Send + Sync>;
/// Computes the bytes of operand 0 on the host, from the op's dyn struct. For what no shader may be trusted with.
pub type HostFill = Box<dyn Fn(&[u8]) -> Result<Vec<u8>> + Send + Sync>;

/// An op with everything known before launch.
#[derive(Default)]
pub struct Prepared {
    /// In order.
    pub passes: Vec<Pass>,
    /// Scratch wanted at launch.
    pub workspace_bytes: u64,
    /// `op::class`; 0 = the op table's.
    pub error_class: u64,
    /// 1 native, 2 tuned; 0 counts as 1.
    pub tier: u32,
    /// Words computed at launch, the same for all passes.
    pub dynamic: Option<Dynamic>,
    /// Instead of passes.
    pub host: Option<HostFill>,
}

impl Prepared {
    /// An op of these passes, without workspace or launch-time words.
    pub fn of(passes: Vec<Pass>) -> Prepared {
        Prepared {
            passes,
            ..Default::default()
        }
    }
}

/// Collects the operands of a pass and makes it.
pub struct Binds<'a> {
    op: Option<&'a OpRequest<'a>>,
    facts: &'a Facts,
    list: Vec<Bind>,
}

impl<'a> Binds<'a> {
    /// For one pass of `op`.
    pub fn new(op: &'a OpRequest<'a>, facts: &'a Facts) -> Binds<'a> {
        Binds {
            op: Some(op),
            facts,
            list: vec![],
        }
    }

    /// For a pass of the device's own.
    pub(crate) fn internal(facts: &'a Facts) -> Binds<'a> {
        Binds {
            op: None,
            facts,
            list: vec![],
        }
    }

    /// Binds region `i` of a pass of the device's own as whole words; it never needs more than one window.
    pub(crate) fn words(&mut self, name: &str, i: usize, access: Access) -> Result<&mut Self> {
        let bytes = self.facts.max_binding - self.facts.align;
        self.add(name, Source::Operand(i), bytes, DType::U32, access)
    }

    fn name(&self) -> &'static str {
        self.op.map_or("transfer", op_name)
    }

    /// Binds operand `i`, which must be present, under a name.
    pub fn operand(&mut self, name: &str, i: usize, access: Access) -> Result<&mut Self> {
        let layout = self.op.and_then(|o| o.layout(i));
        let dtype = layout.and_then(|l| DType::from_id(l.dtype));
        let (Some(l), Some(dtype)) = (layout, dtype) else {
            return fail(
                Code::Invalid,
                format!("{}: operand {i} ({name}) is absent", self.name()),
            );
        };
        self.add(name, Source::Operand(i), l.extent_bytes(), dtype, access)
    }

    /// Binds operand `i` to be read by `ld_x`, `ld2_x` and `ld4_x` alone, halves as the adapter converts them where it does. For arithmetic:
    /// WGSL lets an adapter take subnormal halves for zeros.
    pub fn loaded(&mut self, name: &str, i: usize) -> Result<&mut Self> {
        let f16 = self.facts.f16;
        self.operand(name, i, Access::Read)?;
        if let Some(b) = self.list.last_mut() {
            b.halves = f16 && b.dtype == DType::F16;
        }
        Ok(self)
    }

    /// Binds part of the workspace under a name.
    pub fn workspace(
        &mut self,
        name: &str,
        at: u64,
        bytes: u64,
        dtype: DType,
        access: Access,
    ) -> Result<&mut Self> {
        self.add(name, Source::Workspace { at }, bytes, dtype, access)
    }

    fn add(
        &mut self,
        name: &str,
        source: Source,
        bytes: u64,
        dtype: DType,
        access: Access,
    ) -> Result<&mut Self> {
        // The start is aligned down, and a window holds whole words.
        let reach = bytes + self.facts.align;
        self.list.push(Bind {
            name: name.into(),
            source,
            bytes,
            access,
            dtype,
            windows: reach.div_ceil(self.facts.max_binding).max(1) as u32,
            atomic: false,
            halves: false,
        });
        Ok(self)
    }

    /// Makes the pass from a body with `fn main` (see the module's text). `dynamic` words may be used by every body.
    pub fn pass(self, label: &str, body: &str, params: Vec<u32>, groups: [u32; 3]) -> Result<Pass> {
        let name = self.name();
        let mut binds = self.list;
        let wgsl = wgsl::module(&mut binds, params.len(), body, self.facts);
        let bindings: u32 = binds
            .iter()
            .map(|b| b.windows * (1 + b.atomic as u32))
            .sum();
        if bindings > self.facts.max_storage {
            return unsupported(format!(
                "{}: {bindings} storage bindings, the adapter has {}",
                name, self.facts.max_storage
            ));
        }
        if groups.iter().any(|g| *g > self.facts.max_groups) {
            return unsupported(format!(
                "{}: {groups:?} workgroups, the adapter takes {} in a dimension",
                name, self.facts.max_groups
            ));
        }
        Ok(Pass {
            label: label.into(),
            wgsl,
            binds,
            params,
            groups,
            bindings,
        })
    }
}

/// Name in the op table, for messages.
pub fn op_name(o: &OpRequest<'_>) -> &'static str {
    op::spec(o.id).map_or("op", |s| s.name)
}

/// `n` workgroups folded into x and y. In the body: `let i = gid.x + gid.y * nwg.x * SIZE;` with `nwg` = `num_workgroups`, and a bounds check.
pub fn fold(n: u64, facts: &Facts) -> Result<[u32; 3]> {
    let most = u64::from(facts.max_groups);
    if n <= most {
        return Ok([n as u32, 1, 1]);
    }
    // Near-square, so that few groups are idle.
    let y = n.div_ceil(most);
    let x = n.div_ceil(y);
    if y > most {
        return unsupported(format!("{n} workgroups in one dispatch"));
    }
    Ok([x as u32, y as u32, 1])
}
