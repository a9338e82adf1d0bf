//! Translation units: a dialect's prelude, what all kernels share, a family's templates, one line per kernel wanted, checks of the structs.

use crate::args;

/// Which compiler reads the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// NVRTC, nvcc.
    Cuda,
    /// HIPRTC, clang.
    Hip,
    /// A C++17 compiler of the host: the emulation that tests run.
    Host,
}

/// What the choice of kernels depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The compiler.
    pub dialect: Dialect,
    /// Compute capability as `major * 10 + minor` on CUDA, 0 elsewhere. The host emulation says 80 to be given tensor-core kernels.
    pub arch: u32,
    /// Multiprocessors.
    pub sms: u32,
    /// Threads of a warp.
    pub warp: u32,
    /// Most bytes of shared memory a block may have, opt-in included.
    pub shared: u32,
    /// Products of warpgroups (wgmma): the code is compiled for sm_90a alone, and nobody wants to do without.
    pub wgmma: bool,
}

/// A file of templates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Family {
    Point,
    Copy,
    Multi,
    Reduce,
    Index,
    Sort,
    Norm,
    Softmax,
    Rope,
    Matmul,
    Attention,
    AttentionMma,
    AttentionWgmma,
    AttentionVarlen,
    AttentionExt,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 15] = [
        Family::Point,
        Family::Copy,
        Family::Multi,
        Family::Reduce,
        Family::Index,
        Family::Sort,
        Family::Norm,
        Family::Softmax,
        Family::Rope,
        Family::Matmul,
        Family::Attention,
        Family::AttentionMma,
        Family::AttentionWgmma,
        Family::AttentionVarlen,
        Family::AttentionExt,
    ];

    /// Name of the file, for messages and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Point => "point",
            Family::Copy => "copy",
            Family::Multi => "multi",
            Family::Reduce => "reduce",
            Family::Index => "index",
            Family::Sort => "sort",
            Family::Norm => "norm",
            Family::Softmax => "softmax",
            Family::Rope => "rope",
            Family::Matmul => "matmul",
            Family::Attention => "attention",
            Family::AttentionMma => "attention_mma",
            Family::AttentionWgmma => "attention_wgmma",
            Family::AttentionVarlen => "attention_varlen",
            Family::AttentionExt => "attention_ext",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Family::Point => include_str!("../cu/point.cu"),
            Family::Copy => include_str!("../cu/copy.cu"),
            Family::Multi => include_str!("../cu/multi.cu"),
            Family::Reduce => include_str!("../cu/reduce.cu"),
            Family::Index => include_str!("../cu/index.cu"),
            Family::Sort => include_str!("../cu/sort.cu"),
            Family::Norm => include_str!("../cu/norm.cu"),
            Family::Softmax => include_str!("../cu/softmax.cu"),
            Family::Rope => include_str!("../cu/rope.cu"),
            Family::Matmul => include_str!("../cu/matmul.cu"),
            Family::Attention => include_str!("../cu/attention.cu"),
            Family::AttentionMma => include_str!("../cu/attention_mma.cu"),
            Family::AttentionWgmma => include_str!("../cu/attention_wgmma.cu"),
            Family::AttentionVarlen => include_str!("../cu/attention_varlen.cu"),
            Family::AttentionExt => include_str!("../cu/attention_ext.cu"),
        }
    }
}

/// One kernel: a family's template with its parameters chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// Where its template is.
    pub family: Family,
    /// Its name in the module, unique within the family.
    pub entry: String,
    /// The line (or, for programs, lines) that instantiate it.
    pub text: String,
}

impl Kernel {
    /// `CW_KERNEL(threads, entry, args, body)` with a body like `cw_point<float, …>`.
    pub(crate) fn new(
        family: Family,
        entry: String,
        threads: u32,
        args: &str,
        body: &str,
    ) -> Kernel {
        let text = format!("CW_KERNEL({threads}, {entry}, CW_T({args}), CW_T({body}))\n");
        Kernel {
            family,
            entry,
            text,
        }
    }

    /// The translation unit of this kernel alone.
    pub fn source(&self, dialect: Dialect) -> String {
        source(dialect, self.family, [self])
    }
}

impl Family {
    /// Why a family is CUDA's alone, where it is: its planner never asks for it in another dialect, and no other compiler reads it.
    pub const fn cuda_only(self) -> Option<&'static str> {
        match self {
            Family::AttentionMma => {
                Some("mma.sync and ldmatrix, by fragments as PTX lays them out")
            }
            Family::AttentionWgmma => Some("wgmma and its descriptors, which sm_90a alone has"),
            _ => None,
        }
    }
}

/// The translation unit of several kernels of one family.
pub fn source<'a>(
    dialect: Dialect,
    family: Family,
    kernels: impl IntoIterator<Item = &'a Kernel>,
) -> String {
    let mut s = String::new();
    s.push_str(match dialect {
        Dialect::Cuda => include_str!("../cu/prelude_cuda.h"),
        Dialect::Hip => include_str!("../cu/prelude_hip.h"),
        Dialect::Host => include_str!("../cu/prelude_host.h"),
    });
    s.push_str(include_str!("../cu/common.h"));
    if family == Family::AttentionWgmma {
        s.push_str(match dialect {
            Dialect::Host => include_str!("../cu/wgmma_host.h"),
            _ => include_str!("../cu/wgmma_cuda.h"),
        });
    }
    if matches!(family, Family::AttentionMma | Family::AttentionVarlen) {
        s.push_str(include_str!("../cu/segments.h"));
    }
    if matches!(family, Family::AttentionMma | Family::AttentionExt) {
        s.push_str(include_str!("../cu/parts.h"));
    }
    let by_rows = [
        Family::Attention,
        Family::AttentionVarlen,
        Family::AttentionExt,
    ];
    if by_rows.contains(&family) {
        s.push_str(include_str!("../cu/attention_rows.h"));
    }
    s.push_str(family.text());
    s.push_str(&args::checks(family));
    for k in kernels {
        s.push_str(&k.text);
    }
    s
}

/// What NVRTC calls a compute capability given as `major * 10 + minor`. Kernels for Hopper may use what only its `a` target has.
pub fn arch_name(arch: u32) -> String {
    match arch {
        90 => "sm_90a".into(),
        n => format!("sm_{n}"),
    }
}

/// The options every compilation uses, at run time and in the checks; `arch` is a name of [`arch_name`], or `compute_…` for PTX.
///
/// Denormals stay, division and square root are rounded correctly, and products may contract with sums except where kernels say otherwise.
pub fn options(arch: &str) -> Vec<String> {
    [
        &format!("--gpu-architecture={arch}"),
        "--std=c++17",
        "-default-device",
        "--ftz=false",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--fmad=true",
    ]
    .iter()
    .map(|s| s.to_string())
    .collect()
}

/// The options every compilation for HIP uses, at run time and in the checks, beside the target's; `warp` is the threads of a wave there.
///
/// They mean what [`options`] mean. Contraction is HIP's own default (also across statements, except where the source says otherwise):
/// that name of it is not an option of every version.
pub fn hip_options(warp: u32) -> Vec<String> {
    [
        "-std=c++17",
        "-O2",
        "-nogpuinc",
        "-fno-gpu-flush-denormals-to-zero",
        "-fhip-fp32-correctly-rounded-divide-sqrt",
        &format!("-DCW_WARP={warp}"),
    ]
    .iter()
    .map(|s| s.to_string())
    .collect()
}
