//! Matrix products by hipBLASLt: its functions and numbers, for what `crossweave_gpu::lt` asks of it. They are those of `hipblaslt.h` and
//! `hipblas-common.h` as read; no package here has the first to compile them against.
//!
//! It is opened for a device only: where there is none, making its handle ends the process.

use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::lt::{Functions, Lt, Numbers};
use crossweave_gpu::{Handle, Settings};
use crossweave_plugin::{Code, Result};
use std::ffi::c_void;

const WANTED: Wanted = Wanted {
    what: "hipBLASLt",
    key: "rocm.libhipblaslt",
    names: &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"],
    fix: "install it (ROCm's package hipblaslt)",
};

crossweave_gpu::functions! {
    /// The library.
    Table {
        fn hipblasLtCreate(*mut Handle) -> i32;
        fn hipblasLtDestroy(Handle) -> i32;
        fn hipblasLtGetVersion(Handle, *mut i32) -> i32;
        fn hipblasLtMatmulDescCreate(*mut Handle, u32, u32) -> i32;
        fn hipblasLtMatmulDescDestroy(Handle) -> i32;
        fn hipblasLtMatmulDescSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn hipblasLtMatrixLayoutCreate(*mut Handle, u32, u64, u64, i64) -> i32;
        fn hipblasLtMatrixLayoutDestroy(Handle) -> i32;
        fn hipblasLtMatrixLayoutSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn hipblasLtMatmulPreferenceCreate(*mut Handle) -> i32;
        fn hipblasLtMatmulPreferenceDestroy(Handle) -> i32;
        fn hipblasLtMatmulPreferenceSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn hipblasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut c_void, *mut i32) -> i32;
        fn hipblasLtMatmul(Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void, Handle, *const c_void, *mut c_void, usize, Handle) -> i32;
    } optional {}
}

const NUMBERS: Numbers = Numbers {
    prefix: "hipblasLt",
    // What rounds to TF32 is asked of no AMD device: products of f32 are products of f32.
    compute: [2, 2],
    op_t: 112,
    trans: [0, 1],
    epilogue: 2,
    bias: [3, 4],
    batch: [0, 1],
    pref_workspace: 1,
    pref_reductions: None,
    pref_align: None,
    // Sixteen bytes, and the most scratch.
    algo: 3,
    // INVALID_VALUE, NOT_SUPPORTED.
    nothing: [3, 7],
    code: |status| match status {
        2 => Code::Oom,
        7 | 8 => Code::Unsupported,
        3 | 10 => Code::Invalid,
        _ => Code::Internal,
    },
};

pub(crate) fn open(settings: &Settings) -> Result<Lt> {
    let opened = library::open(settings, &WANTED)?;
    let t = Table::of(&opened)?;
    let version = t.hipblasLtGetVersion;
    Ok(Lt {
        f: Functions {
            create: t.hipblasLtCreate,
            destroy: t.hipblasLtDestroy,
            desc_create: t.hipblasLtMatmulDescCreate,
            desc_destroy: t.hipblasLtMatmulDescDestroy,
            desc_set: t.hipblasLtMatmulDescSetAttribute,
            layout_create: t.hipblasLtMatrixLayoutCreate,
            layout_destroy: t.hipblasLtMatrixLayoutDestroy,
            layout_set: t.hipblasLtMatrixLayoutSetAttribute,
            pref_create: t.hipblasLtMatmulPreferenceCreate,
            pref_destroy: t.hipblasLtMatmulPreferenceDestroy,
            pref_set: t.hipblasLtMatmulPreferenceSetAttribute,
            heuristic: t.hipblasLtMatmulAlgoGetHeuristic,
            matmul: t.hipblasLtMatmul,
        },
        n: &NUMBERS,
        status: None,
        version: Box::new(move |handle| {
            let mut v = 0;
            // SAFETY: a handle of the library's; the out pointer lives for the call.
            unsafe { version(handle, &mut v) };
            format!("{}.{}.{}", v / 100_000, v / 100 % 1000, v % 100)
        }),
        file: opened.name,
        // Before it types and computations had numbers of hipBLAS's own, from 150 on.
        oldest: Some(((0, 6), "ROCm 6")),
    })
}
