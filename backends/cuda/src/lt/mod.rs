//! Matrix products by cuBLASLt.

mod product;
mod shape;

use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{Handle, Settings, text};
use crossweave_plugin::{Code, Error, Result};
#[cfg(test)]
use cudarc::cublaslt::sys as bindings;
pub(crate) use product::{Choice, Product};
pub(crate) use shape::Problem;
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

/// An algorithm, as the library describes it.
pub(crate) type Algo = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub algo: Algo,
    pub workspace: usize,
    pub state: i32,
    pub waves: f32,
    pub reserved: [i32; 4],
}

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
        fn cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, i32, *mut Found, *mut i32) -> i32;
        fn cublasLtMatmul(Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void, Handle, *const Algo, *mut c_void, usize, Handle) -> i32;
    } optional {
        fn cublasLtGetStatusName(i32) -> *const c_char;
    }
}

/// `CUBLASLT_*` and `CUDA_R_*` numbers.
pub(crate) mod id {
    pub(crate) const R_32F: u32 = 0;
    pub(crate) const R_16F: u32 = 2;
    pub(crate) const R_16BF: u32 = 14;
    pub(crate) const COMPUTE_32F: u32 = 68;
    pub(crate) const COMPUTE_32F_FAST_TF32: u32 = 77;
    pub(crate) const DESC_TRANSA: u32 = 3;
    pub(crate) const DESC_TRANSB: u32 = 4;
    pub(crate) const DESC_EPILOGUE: u32 = 7;
    pub(crate) const DESC_BIAS_POINTER: u32 = 8;
    pub(crate) const DESC_BIAS_TYPE: u32 = 26;
    pub(crate) const EPILOGUE_BIAS: u32 = 4;
    pub(crate) const OP_T: u32 = 1;
    pub(crate) const LAYOUT_BATCH_COUNT: u32 = 5;
    pub(crate) const LAYOUT_BATCH_STRIDE: u32 = 6;
    pub(crate) const PREF_WORKSPACE: u32 = 1;
    pub(crate) const PREF_REDUCTIONS: u32 = 3;
    pub(crate) const PREF_ALIGN_A: u32 = 5;
    /// Partial sums are added in the type of the accumulation: never in that of the output, never in the order of arrival.
    pub(crate) const REDUCE_IN_COMPUTE_TYPE: u32 = 2;
}

/// The library, opened once for the process; handles are of devices.
pub(crate) struct Lt {
    pub t: Table,
    pub file: String,
}

impl Lt {
    pub(crate) fn open(settings: &Settings) -> Result<Lt> {
        let opened = library::open(settings, &WANTED)?;
        Ok(Lt {
            t: Table::of(&opened)?,
            file: opened.name,
        })
    }

    /// As `12.8.4`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: a plain query.
        let v = unsafe { (self.t.cublasLtGetVersion)() };
        match v {
            // Since 12.0.0 with four digits below the major version, before with three.
            v if v >= 100_000 => format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100),
            v => format!("{}.{}.{}", v / 1000, v / 100 % 10, v % 100),
        }
    }

    pub(crate) fn check(&self, f: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a static text.
        let name = self
            .t
            .cublasLtGetStatusName
            .map_or(String::new(), |n| unsafe { text(n(status)) });
        let code = match status {
            3 => Code::Oom,
            8 | 15 => Code::Unsupported,
            7 => Code::Invalid,
            _ => Code::Internal,
        };
        Err(Error {
            vendor_code: i64::from(status),
            retryable: code == Code::Oom,
            ..Error::new(code, format!("{f}: {name} ({status})"))
        })
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

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert_eq!(Table::check(), 15);
        assert_eq!(
            size_of::<Found>(),
            size_of::<bindings::cublasLtMatmulHeuristicResult_t>()
        );
        assert_eq!(
            size_of::<Algo>(),
            size_of::<bindings::cublasLtMatmulAlgo_t>()
        );
    }

    #[test]
    fn constants_are_those_of_the_public_bindings() {
        for (ours, theirs) in [
            (id::R_32F, T::CUDA_R_32F as u32),
            (id::R_16F, T::CUDA_R_16F as u32),
            (id::R_16BF, T::CUDA_R_16BF as u32),
            (id::COMPUTE_32F, C::CUBLAS_COMPUTE_32F as u32),
            (
                id::COMPUTE_32F_FAST_TF32,
                C::CUBLAS_COMPUTE_32F_FAST_TF32 as u32,
            ),
            (id::DESC_TRANSA, D::CUBLASLT_MATMUL_DESC_TRANSA as u32),
            (id::DESC_TRANSB, D::CUBLASLT_MATMUL_DESC_TRANSB as u32),
            (id::DESC_EPILOGUE, D::CUBLASLT_MATMUL_DESC_EPILOGUE as u32),
            (
                id::DESC_BIAS_POINTER,
                D::CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32,
            ),
            (
                id::DESC_BIAS_TYPE,
                D::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE as u32,
            ),
            (id::EPILOGUE_BIAS, E::CUBLASLT_EPILOGUE_BIAS as u32),
            (
                id::LAYOUT_BATCH_COUNT,
                L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32,
            ),
            (
                id::LAYOUT_BATCH_STRIDE,
                L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32,
            ),
            (
                id::PREF_WORKSPACE,
                P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32,
            ),
            (
                id::PREF_REDUCTIONS,
                P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32,
            ),
            (
                id::PREF_ALIGN_A,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as u32,
            ),
            (
                id::PREF_ALIGN_A + 3,
                P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as u32,
            ),
            (
                id::REDUCE_IN_COMPUTE_TYPE,
                R::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32,
            ),
        ] {
            assert_eq!(ours, theirs);
        }
    }
}
