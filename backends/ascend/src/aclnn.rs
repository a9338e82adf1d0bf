//! The operators of CANN: what describes their operands (`libnnopbase`), and the two-phase functions (`libopapi_*`), found one by one, as an
//! installation has them in several libraries.
//!
//! A function is declared once, in [`aclnn!`]: `f = "Name"(…)` stands for `aclnnNameGetWorkspaceSize(…, uint64_t *, aclOpExecutor **)` and
//! `aclnnName(void *, uint64_t, aclOpExecutor *, aclrtStream)`. There is no header of them to be had: the declarations are from the documents
//! and sources of `hicann/ops-math`, `hicann/ops-nn` and `hicann/ops-transformer`, and are *not checked against a header*.

use crate::plan::{Arg, Call, Dtype, Number, Plan, Tensor};
use crossweave_gpu::library::{self, Opened, Wanted};
use crossweave_gpu::{Handle, Settings, lock};
use crossweave_plugin::{Code, Error, Result, fail};
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::Mutex;

const BASE: Wanted = Wanted {
    what: "library of operators' descriptors",
    key: "ascend.libnnopbase",
    names: &["libnnopbase.so"],
    fix: "install CANN's toolkit, of which it is a part",
};

/// Libraries of operators, by CANN's folders. The old one that holds all must not be mixed with the others.
const SPLIT: &[&str] = &[
    "libopapi_math.so",
    "libopapi_nn.so",
    "libopapi_transformer.so",
    "libopapi_cv.so",
];
const WHOLE: &str = "libopapi.so";

crossweave_gpu::functions! {
    /// What describes operands (`hicann/opbase`, `acl_meta.h`; not checked against a header).
    Meta {
        fn aclCreateTensor(*const i64, u64, i32, *const i64, i64, i32, *const i64, u64, *mut c_void) -> Handle;
        fn aclCreateScalar(*mut c_void, i32) -> Handle;
        fn aclCreateIntArray(*const i64, u64) -> Handle;
        fn aclCreateBoolArray(*const u8, u64) -> Handle;
        fn aclDestroyTensor(Handle) -> i32;
        fn aclDestroyScalar(Handle) -> i32;
        fn aclDestroyIntArray(Handle) -> i32;
        fn aclDestroyBoolArray(Handle) -> i32;
        fn aclDestroyAclOpExecutor(Handle) -> i32;
    } optional {
        fn aclnnInit(*const std::ffi::c_char) -> i32;
        fn aclSetAclOpExecutorRepeatable(Handle) -> i32;
    }
}

/// The second phase: workspace, its bytes, executor, stream.
pub(crate) type Second = unsafe extern "C" fn(*mut c_void, u64, Handle, Handle) -> i32;

/// Both phases of an operator; the first has a type of its own.
#[derive(Clone, Copy)]
pub(crate) struct Phases {
    pub(crate) first: *const c_void,
    pub(crate) second: Second,
}
// SAFETY: functions of a library that stays open.
unsafe impl Send for Phases {}

/// The operators, opened.
pub(crate) struct Aclnn {
    pub(crate) meta: Meta,
    /// The files they come from.
    pub(crate) files: String,
    libraries: Vec<Opened>,
    found: Mutex<HashMap<&'static str, Phases>>,
}

impl Aclnn {
    /// Opens what there is.
    pub(crate) fn open(settings: &Settings) -> Result<Aclnn> {
        let base = library::open(settings, &BASE)?;
        let meta = Meta::of(&base)?;
        if let Some(f) = meta.aclnnInit {
            // SAFETY: no configuration; a second start is an error that changes nothing.
            unsafe { f(std::ptr::null()) };
        }
        let mut libraries = vec![];
        let mut names: Vec<&'static [&'static str]> = vec![&["libcust_opapi.so"]];
        names.extend(SPLIT.chunks(1));
        names.push(&[WHOLE]);
        let mut why = None;
        for names in names {
            // The whole one, where there is no part of it.
            if names[0] == WHOLE && libraries.iter().any(|l: &Opened| !l.name.contains("cust")) {
                continue;
            }
            let wanted = Wanted {
                what: "library of operators",
                key: "ascend.libopapi",
                names,
                fix: "install CANN's package of operators for the device (Ascend-cann-kernels, or -ops)",
            };
            match library::open(settings, &wanted) {
                Ok(l) if libraries.iter().any(|k: &Opened| k.name == l.name) => {}
                Ok(l) => libraries.push(l),
                Err(e) => why = Some(e),
            }
        }
        if let (true, Some(e)) = (libraries.is_empty(), why) {
            return Err(e);
        }
        let files: Vec<&str> = libraries.iter().map(|l| l.name.as_str()).collect();
        Ok(Aclnn {
            meta,
            files: files.join(", "),
            libraries,
            found: Mutex::default(),
        })
    }

    /// Both phases of an operator.
    pub(crate) fn phases(&self, name: &'static str) -> Result<Phases> {
        let mut found = lock(&self.found);
        if let Some(p) = found.get(name) {
            return Ok(*p);
        }
        let (first, second) = (
            format!("aclnn{name}GetWorkspaceSize"),
            format!("aclnn{name}"),
        );
        for l in &self.libraries {
            let both = (
                library::symbol::<*const c_void>(l, &first),
                library::symbol::<Second>(l, &second),
            );
            if let (Ok(first), Ok(second)) = both {
                let p = Phases { first, second };
                found.insert(name, p);
                return Ok(p);
            }
        }
        fail(
            Code::Unsupported,
            format!("no {second} in {}; install a newer CANN", self.files),
        )
    }

    /// The error of a failed phase.
    pub(crate) fn error(&self, function: &str, status: i32) -> Error {
        let (code, words) = match status {
            161001 => (Code::Internal, "ACLNN_ERR_PARAM_NULLPTR"),
            161002 => (
                Code::Unsupported,
                "ACLNN_ERR_PARAM_INVALID: types, shapes or values that it does not take",
            ),
            361001 => (
                Code::Internal,
                "ACLNN_ERR_RUNTIME_ERROR: the run time refused it",
            ),
            561003 => (
                Code::Unsupported,
                "ACLNN_ERR_INNER_FIND_KERNEL_ERROR: no kernel for this device and these types",
            ),
            561101 => (
                Code::Internal,
                "ACLNN_ERR_INNER_CREATE_EXECUTOR: no executor, or one that has run",
            ),
            561107 => (
                Code::Unsupported,
                "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND: ASCEND_OPP_PATH is not set; source set_env.sh",
            ),
            561112 => (
                Code::Unsupported,
                "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND: install CANN's package of operators for the device",
            ),
            _ => (Code::Internal, "unknown error"),
        };
        Error {
            vendor_code: i64::from(status),
            ..Error::new(code, format!("aclnn{function}: {words} ({status})"))
        }
    }
}

/// How an argument is given.
macro_rules! given {
    (T) => { &Tensor };
    (O) => { Option<&Tensor> };
    (S) => { Number };
    (I) => { &[i64] };
    (B) => { &[bool] };
    (i64) => { i64 };
    (i8) => { i8 };
    (f64) => { f64 };
    (b) => { bool };
    (dt) => { Dtype };
    (cs) => { &'static CStr };
}
/// How it is passed in C.
macro_rules! in_c {
    (i64) => { i64 };
    (i8) => { i8 };
    (f64) => { f64 };
    (b) => { u8 };
    (dt) => { i32 };
    ($handle:tt) => { *const c_void };
}
/// It, from its word.
macro_rules! taken {
    (f64, $w:expr) => {
        f64::from_bits($w)
    };
    ($k:tt, $w:expr) => {
        $w as in_c!($k)
    };
}
/// It, as it is kept.
macro_rules! kept {
    (T, $a:ident) => {
        Arg::Tensor($a.clone())
    };
    (O, $a:ident) => {
        $a.map_or(Arg::Word(0), |t| Arg::Tensor(t.clone()))
    };
    (S, $a:ident) => {
        Arg::Scalar($a)
    };
    (I, $a:ident) => {
        Arg::Ints($a.to_vec())
    };
    (B, $a:ident) => {
        Arg::Bools($a.iter().map(|b| u8::from(*b)).collect())
    };
    (f64, $a:ident) => {
        Arg::Word($a.to_bits())
    };
    (b, $a:ident) => {
        Arg::Word(u64::from($a))
    };
    (dt, $a:ident) => {
        Arg::Word($a.0 as u64)
    };
    (cs, $a:ident) => {
        Arg::Word($a.as_ptr() as u64)
    };
    ($k:tt, $a:ident) => {
        Arg::Word($a as u64)
    };
}

/// Declares operators as methods of [`Plan`]. `T` a tensor, `O` one that may be absent, `S` a scalar, `I` an array of integers, `B` of truths, `dt` a
/// type, `b` a `bool`, `cs` a text.
macro_rules! aclnn {
    ($( $f:ident = $name:literal ( $($a:ident: $k:tt),* ); )*) => {
        impl Plan {
            $(
                pub(crate) fn $f(&mut self, $($a: given!($k)),*) {
                    /// # Safety
                    /// The first phase of this operator, with a word for each argument, and room for both answers.
                    unsafe fn first(f: *const c_void, words: &[u64], bytes: *mut u64, executor: *mut Handle) -> i32 {
                        type First = unsafe extern "C" fn($(in_c!($k),)* *mut u64, *mut Handle) -> i32;
                        let mut words = words.iter().copied();
                        // SAFETY: promised by the caller.
                        unsafe {
                            let f: First = transmute(f);
                            f($(taken!($k, words.next().unwrap_or_default()),)* bytes, executor)
                        }
                    }
                    let args = vec![$( kept!($k, $a) ),*];
                    self.push(Call { name: $name, args, first });
                }
            )*
        }

        /// How many operators there are.
        #[cfg(test)]
        pub(crate) const NAMES: &[&str] = &[$($name),*];
    };
}

aclnn! {
    // hicann/ops-math: docs of each operator, `aclnn_<name>.h` by its name.
    add = "Add"(a: T, b: T, alpha: S, out: T);
    sub = "Sub"(a: T, b: T, alpha: S, out: T);
    mul = "Mul"(a: T, b: T, out: T);
    div = "Div"(a: T, b: T, out: T);
    muls = "Muls"(a: T, b: S, out: T);
    maximum = "Maximum"(a: T, b: T, out: T);
    minimum = "Minimum"(a: T, b: T, out: T);
    pow = "PowTensorTensor"(a: T, b: T, out: T);
    cast = "Cast"(a: T, dtype: dt, out: T);
    neg = "Neg"(a: T, out: T);
    abs = "Abs"(a: T, out: T);
    exp = "Exp"(a: T, out: T);
    log = "Log"(a: T, out: T);
    sqrt = "Sqrt"(a: T, out: T);
    rsqrt = "Rsqrt"(a: T, out: T);
    tanh = "Tanh"(a: T, out: T);
    erf = "Erf"(a: T, out: T);
    sin = "Sin"(a: T, out: T);
    cos = "Cos"(a: T, out: T);
    floor = "Floor"(a: T, out: T);
    clamp = "Clamp"(a: T, lo: S, hi: S, out: T);
    is_finite = "IsFinite"(a: T, out: T);
    logical_and = "LogicalAnd"(a: T, b: T, out: T);
    eq = "EqTensor"(a: T, b: T, out: T);
    ne = "NeTensor"(a: T, b: T, out: T);
    lt = "LtTensor"(a: T, b: T, out: T);
    le = "LeTensor"(a: T, b: T, out: T);
    gt = "GtTensor"(a: T, b: T, out: T);
    ge = "GeTensor"(a: T, b: T, out: T);
    ne_scalar = "NeScalar"(a: T, b: S, out: T);
    lt_scalar = "LtScalar"(a: T, b: S, out: T);
    ge_scalar = "GeScalar"(a: T, b: S, out: T);
    select = "SWhere"(condition: T, a: T, b: T, out: T);
    fill = "InplaceFillScalar"(out: T, value: S);
    copy = "InplaceCopy"(out: T, a: T);
    sum = "ReduceSum"(a: T, dims: I, keep: b, dtype: dt, out: T);
    amax = "Amax"(a: T, dims: I, keep: b, out: T);
    amin = "Amin"(a: T, dims: I, keep: b, out: T);
    prod = "ProdDim"(a: T, dim: i64, keep: b, dtype: dt, out: T);
    cumsum = "Cumsum"(a: T, dim: i64, dtype: dt, out: T);
    sort = "Sort"(a: T, stable: b, dim: i64, descending: b, values: T, indices: T);
    // hicann/ops-nn.
    sigmoid = "Sigmoid"(a: T, out: T);
    matmul = "Matmul"(a: T, b: T, out: T, cube: i8);
    batch_matmul = "BatchMatMul"(a: T, b: T, out: T, cube: i8);
    index_select = "IndexSelect"(a: T, dim: i64, index: T, out: T);
    index_add = "IndexAdd"(a: T, dim: i64, index: T, source: T, alpha: S, out: T);
    gather = "Gather"(a: T, dim: i64, index: T, out: T);
    // The fused ones (`fused.rs`): norm/*/docs, activation/*/docs.
    rms_norm = "RmsNorm"(x: T, gamma: T, eps: f64, out: T, rstd: T);
    rms_norm_grad = "RmsNormGrad"(dy: T, x: T, rstd: T, gamma: T, dx: T, dgamma: T);
    layer_norm = "LayerNorm"(x: T, normalized: I, weight: T, bias: O, eps: f64, out: T, mean: T, rstd: T);
    layer_norm_backward = "LayerNormBackward"(dy: T, x: T, normalized: I, mean: T, rstd: T, weight: T, bias: O, mask: B, dx: T, dweight: T, dbias: O);
    softmax = "Softmax"(x: T, dim: i64, out: T);
    softmax_backward = "SoftmaxBackward"(dy: T, y: T, dim: i64, out: T);
    gelu = "GeluV2"(x: T, approximate: i64, out: T);
    gelu_backward = "GeluBackwardV2"(dy: T, x: T, approximate: cs, out: T);
    silu = "Silu"(x: T, out: T);
    silu_backward = "SiluBackward"(dy: T, x: T, out: T);
    // hicann/ops-transformer: posembedding/rotary_position_embedding/docs, attention/flash_attention_score*/docs.
    rotary = "RotaryPositionEmbedding"(x: T, cos: T, sin: T, mode: i64, out: T);
    flash = "FlashAttentionScore"(q: T, k: T, v: T, shift: O, drop: O, padding: O, mask: O, prefix: O, scale: f64, keep: f64, before: i64, behind: i64, heads: i64, layout: cs, precise: i64, sparse: i64, max: T, sum: T, softmax: O, out: T);
    flash_grad = "FlashAttentionScoreGrad"(q: T, k: T, v: T, dy: T, shift: O, drop: O, padding: O, mask: O, max: O, sum: O, softmax: O, out: O, prefix: O, scale: f64, keep: f64, before: i64, behind: i64, heads: i64, layout: cs, precise: i64, sparse: i64, dq: T, dk: T, dv: T, dshift: O);
}
