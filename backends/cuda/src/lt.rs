//! Matrix products by cuBLASLt: its functions and numbers, for what `crossweave_gpu::lt` asks of it.

use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::lt::{Functions, Lt, Numbers};
use crossweave_gpu::{Handle, Settings};
use crossweave_plugin::{Code, Result};
#[cfg(test)]
use cudarc::cublaslt::sys as bindings;
use std::ffi::{c_char, c_void};

pub(crate) const WANTED: Wanted = Wanted {
    what: "cuBLASLt",
    key: "cuda.libcublaslt",
    names: &[
        "libcublasLt.so.12",
        "libcublasLt.so.13",
        "libcublasLt.so.11",
        "libcublasLt.so",
        "cublasLt64_12.dll",
        "cublasLt64_13.dll",
    ],
    fix: "install cuBLAS (Debian and Ubuntu: libcublas; Python: nvidia-cublas-cu12)",
};

crossweave_gpu::table! {
    /// The library.
    Table {
        fn cublasLtCreate(*mut Handle) -> i32;
        fn cublasLtDestroy(Handle) -> i32;
        fn cublasLtGetVersion() -> usize;
        fn cublasLtMatmulDescCreate(*mut Handle, u32, u32) -> i32;
        fn cublasLtMatmulDescDestroy(Handle) -> i32;
        fn cublasLtMatmulDescSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn cublasLtMatrixLayoutCreate(*mut Handle, u32, u64, u64, i64) -> i32;
        fn cublasLtMatrixLayoutDestroy(Handle) -> i32;
        fn cublasLtMatrixLayoutSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn cublasLtMatmulPreferenceCreate(*mut Handle) -> i32;
        fn cublasLtMatmulPreferenceDestroy(Handle) -> i32;
        fn cublasLtMatmulPreferenceSetAttribute(Handle, u32, *const c_void, usize) -> i32;
        fn cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut c_void, *mut i32) -> i32;
        fn cublasLtMatmul(Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void, Handle, *const c_void, *mut c_void, usize, Handle) -> i32;
    } optional {
        fn cublasLtGetStatusName(i32) -> *const c_char;
    }
}

const NUMBERS: Numbers = Numbers {
    prefix: "cublasLt",
    compute: [68, 77],
    op_t: 1,
    trans: [3, 4],
    epilogue: 7,
    bias: [8, 26],
    batch: [5, 6],
    pref_workspace: 1,
    pref_reductions: Some((3, 2)),
    pref_align: Some(5),
    algo: 8,
    // INVALID_VALUE, NOT_SUPPORTED.
    nothing: [7, 15],
    code: |status| match status {
        3 => Code::Oom,
        8 | 15 => Code::Unsupported,
        7 => Code::Invalid,
        _ => Code::Internal,
    },
};

pub(crate) fn open(settings: &Settings) -> Result<Lt> {
    let opened = library::open(settings, &WANTED)?;
    let t = Table::of(&opened)?;
    let version = t.cublasLtGetVersion;
    Ok(Lt {
        f: Functions {
            create: t.cublasLtCreate,
            destroy: t.cublasLtDestroy,
            desc_create: t.cublasLtMatmulDescCreate,
            desc_destroy: t.cublasLtMatmulDescDestroy,
            desc_set: t.cublasLtMatmulDescSetAttribute,
            layout_create: t.cublasLtMatrixLayoutCreate,
            layout_destroy: t.cublasLtMatrixLayoutDestroy,
            layout_set: t.cublasLtMatrixLayoutSetAttribute,
            pref_create: t.cublasLtMatmulPreferenceCreate,
            pref_destroy: t.cublasLtMatmulPreferenceDestroy,
            pref_set: t.cublasLtMatmulPreferenceSetAttribute,
            heuristic: t.cublasLtMatmulAlgoGetHeuristic,
            matmul: t.cublasLtMatmul,
        },
        n: &NUMBERS,
        status: t.cublasLtGetStatusName,
        // SAFETY: a plain query.
        version: Box::new(move |_| spelled(unsafe { version() })),
        file: opened.name,
        oldest: None,
    })
}

/// As `12.8.4`.
fn spelled(v: usize) -> String {
    match v {
        // Since 12.0.0 with four digits below the major version, before with three.
        v if v >= 100_000 => format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100),
        v => format!("{}.{}.{}", v / 1000, v / 100 % 10, v % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindings::{
        cublasComputeType_t as C, cublasLtEpilogue_t as E, cublasLtMatmulDescAttributes_t as D,
        cublasLtMatmulPreferenceAttributes_t as P, cublasLtMatrixLayoutAttribute_t as L,
        cublasLtReductionScheme_t as R, cudaDataType_t as T,
    };
    use crossweave_gpu::lt::{EPILOGUE_BIAS, R_16BF, R_16F, R_32F};
    use std::mem::offset_of;

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert_eq!(Table::check(), 15);
        // The words of what a heuristic says.
        type Said = bindings::cublasLtMatmulHeuristicResult_t;
        let algo = size_of::<bindings::cublasLtMatmulAlgo_t>();
        assert_eq!(algo, 8 * NUMBERS.algo);
        assert_eq!(offset_of!(Said, workspaceSize), algo);
        assert_eq!(offset_of!(Said, state), algo + 8);
        assert!(size_of::<Said>() <= 128);
    }

    #[test]
    fn constants_are_those_of_the_public_bindings() {
        let reductions = NUMBERS.pref_reductions.expect("it has schemes");
        let align = NUMBERS.pref_align.expect("it asks for alignment");
        for (ours, theirs) in [
            (R_32F, T::CUDA_R_32F as u32),
            (R_16F, T::CUDA_R_16F as u32),
            (R_16BF, T::CUDA_R_16BF as u32),
            (NUMBERS.compute[0], C::CUBLAS_COMPUTE_32F as u32),
            (NUMBERS.compute[1], C::CUBLAS_COMPUTE_32F_FAST_TF32 as u32),
            (NUMBERS.trans[0], D::CUBLASLT_MATMUL_DESC_TRANSA as u32),
            (NUMBERS.trans[1], D::CUBLASLT_MATMUL_DESC_TRANSB as u32),
            (NUMBERS.epilogue, D::CUBLASLT_MATMUL_DESC_EPILOGUE as u32),
            (NUMBERS.bias[0], D::CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32),
            (
                NUMBERS.bias[1],
                D::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE as u32,
            ),
            (EPILOGUE_BIAS, E::CUBLASLT_EPILOGUE_BIAS as u32),
            (
                NUMBERS.batch[0],
                L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32,
            ),
            (
                NUMBERS.batch[1],
                L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32,
            ),
            (
                NUMBERS.pref_workspace,
                P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32,
            ),
            (
                reductions.0,
                P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32,
            ),
            (align, P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as u32),
            (
                align + 3,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as u32,
            ),
            (
                reductions.1,
                R::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32,
            ),
        ] {
            assert_eq!(ours, theirs);
        }
    }
}
