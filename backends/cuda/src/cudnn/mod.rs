//! Attention by cuDNN, where it is installed and takes the shape: its graph interface, where an op is a graph of descriptors, an engine is
//! chosen by the library's heuristics, and a finished plan is executed with addresses (ADR 0039).

mod desc;
#[cfg(test)]
mod deviceless;
mod graph;
mod plan;
mod sdpa;
mod shape;

use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{Handle, Settings, text};
use crossweave_plugin::{Code, Error, Result, fail};
#[cfg(test)]
use cudarc::cudnn::sys as bindings;
pub(crate) use desc::Desc;
pub(crate) use plan::{Attention, OnDevice};
pub(crate) use shape::Problem;
use std::ffi::{c_char, c_void};

pub(crate) const WANTED: Wanted = Wanted {
    what: "cuDNN",
    key: "cuda.libcudnn",
    names: &["libcudnn.so.9", "cudnn64_9.dll"],
    fix: "install it (Debian and Ubuntu: libcudnn9-cuda-12; Python: nvidia-cudnn-cu12)",
};
/// The oldest version used: its authors name wrong results of attention in 9.10.0 and 9.10.1, and limits before.
const OLDEST: usize = 91002;

crossweave_gpu::table! {
    /// The library.
    Table {
        fn cudnnGetVersion() -> usize;
        fn cudnnGetErrorString(i32) -> *const c_char;
        fn cudnnGetLastErrorString(*mut c_char, usize) -> ();
        fn cudnnCreate(*mut Handle) -> i32;
        fn cudnnDestroy(Handle) -> i32;
        fn cudnnSetStream(Handle, Handle) -> i32;
        fn cudnnBackendCreateDescriptor(i32, *mut Handle) -> i32;
        fn cudnnBackendDestroyDescriptor(Handle) -> i32;
        fn cudnnBackendSetAttribute(Handle, i32, i32, i64, *const c_void) -> i32;
        fn cudnnBackendGetAttribute(Handle, i32, i32, i64, *mut i64, *mut c_void) -> i32;
        fn cudnnBackendFinalize(Handle) -> i32;
        fn cudnnBackendExecute(Handle, Handle, Handle) -> i32;
    } optional {}
}

/// The library's numbers.
pub(crate) mod id {
    // CUDNN_DATA_*
    pub(crate) const FLOAT: i32 = 0;
    pub(crate) const HALF: i32 = 2;
    pub(crate) const INT32: i32 = 4;
    pub(crate) const BFLOAT16: i32 = 9;
    pub(crate) const BOOLEAN: i32 = 11;
    // CUDNN_BACKEND_*_DESCRIPTOR
    pub(crate) const POINTWISE: i32 = 0;
    pub(crate) const ENGINE: i32 = 2;
    pub(crate) const ENGINECFG: i32 = 3;
    pub(crate) const ENGINEHEUR: i32 = 4;
    pub(crate) const EXECUTION_PLAN: i32 = 5;
    pub(crate) const OPERATION_POINTWISE: i32 = 13;
    pub(crate) const OPERATIONGRAPH: i32 = 15;
    pub(crate) const VARIANT_PACK: i32 = 16;
    pub(crate) const TENSOR: i32 = 17;
    pub(crate) const MATMUL: i32 = 18;
    pub(crate) const OPERATION_MATMUL: i32 = 19;
    pub(crate) const REDUCTION: i32 = 21;
    pub(crate) const OPERATION_REDUCTION: i32 = 22;
    pub(crate) const OPERATION_RESHAPE: i32 = 31;
    // CUDNN_ATTR_*
    pub(crate) const POINTWISE_MODE: i32 = 0;
    pub(crate) const POINTWISE_MATH_PREC: i32 = 1;
    pub(crate) const POINTWISE_AXIS: i32 = 9;
    pub(crate) const ENGINEHEUR_MODE: i32 = 200;
    pub(crate) const ENGINEHEUR_OPERATION_GRAPH: i32 = 201;
    pub(crate) const ENGINEHEUR_RESULTS: i32 = 202;
    pub(crate) const ENGINECFG_ENGINE: i32 = 300;
    pub(crate) const EXECUTION_PLAN_HANDLE: i32 = 400;
    pub(crate) const EXECUTION_PLAN_ENGINE_CONFIG: i32 = 401;
    pub(crate) const EXECUTION_PLAN_WORKSPACE_SIZE: i32 = 402;
    pub(crate) const OPERATION_POINTWISE_PW_DESCRIPTOR: i32 = 750;
    pub(crate) const OPERATION_POINTWISE_XDESC: i32 = 751;
    pub(crate) const OPERATION_POINTWISE_BDESC: i32 = 752;
    pub(crate) const OPERATION_POINTWISE_YDESC: i32 = 753;
    pub(crate) const OPERATION_POINTWISE_TDESC: i32 = 758;
    pub(crate) const OPERATIONGRAPH_HANDLE: i32 = 800;
    pub(crate) const OPERATIONGRAPH_OPS: i32 = 801;
    pub(crate) const TENSOR_BYTE_ALIGNMENT: i32 = 900;
    pub(crate) const TENSOR_DATA_TYPE: i32 = 901;
    pub(crate) const TENSOR_DIMENSIONS: i32 = 902;
    pub(crate) const TENSOR_STRIDES: i32 = 903;
    pub(crate) const TENSOR_UNIQUE_ID: i32 = 906;
    pub(crate) const TENSOR_IS_VIRTUAL: i32 = 907;
    pub(crate) const TENSOR_IS_BY_VALUE: i32 = 908;
    pub(crate) const VARIANT_PACK_UNIQUE_IDS: i32 = 1000;
    pub(crate) const VARIANT_PACK_DATA_POINTERS: i32 = 1001;
    pub(crate) const VARIANT_PACK_WORKSPACE: i32 = 1003;
    pub(crate) const ENGINE_NUMERICAL_NOTE: i32 = 1303;
    pub(crate) const MATMUL_COMP_TYPE: i32 = 1500;
    pub(crate) const OPERATION_MATMUL_ADESC: i32 = 1520;
    pub(crate) const OPERATION_MATMUL_BDESC: i32 = 1521;
    pub(crate) const OPERATION_MATMUL_CDESC: i32 = 1522;
    pub(crate) const OPERATION_MATMUL_DESC: i32 = 1523;
    pub(crate) const REDUCTION_OPERATOR: i32 = 1600;
    pub(crate) const REDUCTION_COMP_TYPE: i32 = 1601;
    pub(crate) const OPERATION_REDUCTION_XDESC: i32 = 1610;
    pub(crate) const OPERATION_REDUCTION_YDESC: i32 = 1611;
    pub(crate) const OPERATION_REDUCTION_DESC: i32 = 1612;
    pub(crate) const OPERATION_RESHAPE_XDESC: i32 = 2200;
    pub(crate) const OPERATION_RESHAPE_YDESC: i32 = 2201;
    // CUDNN_TYPE_*
    pub(crate) const TYPE_HANDLE: i32 = 0;
    pub(crate) const TYPE_DATA_TYPE: i32 = 1;
    pub(crate) const TYPE_BOOLEAN: i32 = 2;
    pub(crate) const TYPE_INT64: i32 = 3;
    pub(crate) const TYPE_VOID_PTR: i32 = 6;
    pub(crate) const TYPE_HEUR_MODE: i32 = 8;
    pub(crate) const TYPE_NUMERICAL_NOTE: i32 = 11;
    pub(crate) const TYPE_POINTWISE_MODE: i32 = 14;
    pub(crate) const TYPE_BACKEND_DESCRIPTOR: i32 = 15;
    pub(crate) const TYPE_REDUCTION_OPERATOR_TYPE: i32 = 18;
    // CUDNN_POINTWISE_*
    pub(crate) const ADD: i32 = 0;
    pub(crate) const MUL: i32 = 1;
    pub(crate) const DIV: i32 = 6;
    pub(crate) const SUB: i32 = 9;
    pub(crate) const EXP: i32 = 13;
    pub(crate) const LOG: i32 = 15;
    pub(crate) const IDENTITY: i32 = 21;
    pub(crate) const CMP_GT: i32 = 302;
    pub(crate) const CMP_GE: i32 = 303;
    pub(crate) const GEN_INDEX: i32 = 501;
    pub(crate) const BINARY_SELECT: i32 = 601;
    // CUDNN_REDUCE_TENSOR_*
    pub(crate) const REDUCE_ADD: i32 = 0;
    pub(crate) const REDUCE_MAX: i32 = 3;
    // CUDNN_HEUR_MODE_*, CUDNN_NUMERICAL_NOTE_*
    pub(crate) const HEUR_FALLBACK: i32 = 2;
    pub(crate) const HEUR_A: i32 = 3;
    pub(crate) const NOTE_NONDETERMINISTIC: i32 = 4;
}

/// The library, opened once for the process; handles are of devices.
pub(crate) struct Cudnn {
    pub t: Table,
    pub file: String,
    /// As `91002`.
    pub version: usize,
}

impl Cudnn {
    pub(crate) fn open(settings: &Settings) -> Result<Cudnn> {
        let opened = library::open(settings, &WANTED)?;
        let t = Table::of(&opened)?;
        // SAFETY: a plain query.
        let version = unsafe { (t.cudnnGetVersion)() };
        let lib = Cudnn {
            t,
            file: opened.name,
            version,
        };
        match version {
            v if v < OLDEST => fail(
                Code::Unsupported,
                format!(
                    "cuDNN {} ({}) is older than 9.10.2: {}",
                    lib.version(),
                    lib.file,
                    WANTED.fix
                ),
            ),
            _ => Ok(lib),
        }
    }

    /// As `9.10.2`.
    pub(crate) fn version(&self) -> String {
        let v = self.version;
        match v {
            // Since 9.0.0 with four digits below the major version, before with three.
            v if v >= 90_000 => format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100),
            v => format!("{}.{}.{}", v / 1000, v / 100 % 10, v % 100),
        }
    }

    pub(crate) fn check(&self, f: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let mut words = [0u8; 1024];
        // SAFETY: a static text; the library writes at most the stated length.
        let name = unsafe {
            (self.t.cudnnGetLastErrorString)(words.as_mut_ptr().cast(), words.len() - 1);
            text((self.t.cudnnGetErrorString)(status))
        };
        let words = words.split(|b| *b == 0).next().unwrap_or_default();
        let words = String::from_utf8_lossy(words);
        let code = match status {
            4003 | 4004 => Code::Oom,
            2000..3000 => Code::Invalid,
            3000..4000 | 1001..1009 => Code::Unsupported,
            _ => Code::Internal,
        };
        let colon = if words.trim().is_empty() { "" } else { ": " };
        Err(Error {
            vendor_code: i64::from(status),
            retryable: code == Code::Oom,
            ..Error::new(
                code,
                format!("{f}: {name} ({status}){colon}{}", words.trim()),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bindings::{
        cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as Y,
        cudnnBackendDescriptorType_t as B, cudnnBackendHeurMode_t as H,
        cudnnBackendNumericalNote_t as N, cudnnDataType_t as T, cudnnPointwiseMode_t as P,
        cudnnReduceTensorOp_t as R,
    };

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert_eq!(Table::check(), 12);
    }

    #[test]
    fn constants_are_those_of_the_public_bindings() {
        macro_rules! same {
            ($($ours:ident = $theirs:expr;)*) => {
                $( assert_eq!(id::$ours, $theirs as i32, stringify!($ours)); )*
            };
        }
        same! {
            FLOAT = T::CUDNN_DATA_FLOAT;
            HALF = T::CUDNN_DATA_HALF;
            INT32 = T::CUDNN_DATA_INT32;
            BFLOAT16 = T::CUDNN_DATA_BFLOAT16;
            BOOLEAN = T::CUDNN_DATA_BOOLEAN;
            POINTWISE = B::CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
            ENGINE = B::CUDNN_BACKEND_ENGINE_DESCRIPTOR;
            ENGINECFG = B::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
            ENGINEHEUR = B::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
            EXECUTION_PLAN = B::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
            OPERATION_POINTWISE = B::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
            OPERATIONGRAPH = B::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
            VARIANT_PACK = B::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
            TENSOR = B::CUDNN_BACKEND_TENSOR_DESCRIPTOR;
            MATMUL = B::CUDNN_BACKEND_MATMUL_DESCRIPTOR;
            OPERATION_MATMUL = B::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
            REDUCTION = B::CUDNN_BACKEND_REDUCTION_DESCRIPTOR;
            OPERATION_REDUCTION = B::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR;
            OPERATION_RESHAPE = B::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
            POINTWISE_MODE = A::CUDNN_ATTR_POINTWISE_MODE;
            POINTWISE_MATH_PREC = A::CUDNN_ATTR_POINTWISE_MATH_PREC;
            POINTWISE_AXIS = A::CUDNN_ATTR_POINTWISE_AXIS;
            ENGINEHEUR_MODE = A::CUDNN_ATTR_ENGINEHEUR_MODE;
            ENGINEHEUR_OPERATION_GRAPH = A::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH;
            ENGINEHEUR_RESULTS = A::CUDNN_ATTR_ENGINEHEUR_RESULTS;
            ENGINECFG_ENGINE = A::CUDNN_ATTR_ENGINECFG_ENGINE;
            EXECUTION_PLAN_HANDLE = A::CUDNN_ATTR_EXECUTION_PLAN_HANDLE;
            EXECUTION_PLAN_ENGINE_CONFIG = A::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG;
            EXECUTION_PLAN_WORKSPACE_SIZE = A::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE;
            OPERATION_POINTWISE_PW_DESCRIPTOR = A::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR;
            OPERATION_POINTWISE_XDESC = A::CUDNN_ATTR_OPERATION_POINTWISE_XDESC;
            OPERATION_POINTWISE_BDESC = A::CUDNN_ATTR_OPERATION_POINTWISE_BDESC;
            OPERATION_POINTWISE_YDESC = A::CUDNN_ATTR_OPERATION_POINTWISE_YDESC;
            OPERATION_POINTWISE_TDESC = A::CUDNN_ATTR_OPERATION_POINTWISE_TDESC;
            OPERATIONGRAPH_HANDLE = A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE;
            OPERATIONGRAPH_OPS = A::CUDNN_ATTR_OPERATIONGRAPH_OPS;
            TENSOR_BYTE_ALIGNMENT = A::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT;
            TENSOR_DATA_TYPE = A::CUDNN_ATTR_TENSOR_DATA_TYPE;
            TENSOR_DIMENSIONS = A::CUDNN_ATTR_TENSOR_DIMENSIONS;
            TENSOR_STRIDES = A::CUDNN_ATTR_TENSOR_STRIDES;
            TENSOR_UNIQUE_ID = A::CUDNN_ATTR_TENSOR_UNIQUE_ID;
            TENSOR_IS_VIRTUAL = A::CUDNN_ATTR_TENSOR_IS_VIRTUAL;
            TENSOR_IS_BY_VALUE = A::CUDNN_ATTR_TENSOR_IS_BY_VALUE;
            VARIANT_PACK_UNIQUE_IDS = A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS;
            VARIANT_PACK_DATA_POINTERS = A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS;
            VARIANT_PACK_WORKSPACE = A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE;
            ENGINE_NUMERICAL_NOTE = A::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE;
            MATMUL_COMP_TYPE = A::CUDNN_ATTR_MATMUL_COMP_TYPE;
            OPERATION_MATMUL_ADESC = A::CUDNN_ATTR_OPERATION_MATMUL_ADESC;
            OPERATION_MATMUL_BDESC = A::CUDNN_ATTR_OPERATION_MATMUL_BDESC;
            OPERATION_MATMUL_CDESC = A::CUDNN_ATTR_OPERATION_MATMUL_CDESC;
            OPERATION_MATMUL_DESC = A::CUDNN_ATTR_OPERATION_MATMUL_DESC;
            REDUCTION_OPERATOR = A::CUDNN_ATTR_REDUCTION_OPERATOR;
            REDUCTION_COMP_TYPE = A::CUDNN_ATTR_REDUCTION_COMP_TYPE;
            OPERATION_REDUCTION_XDESC = A::CUDNN_ATTR_OPERATION_REDUCTION_XDESC;
            OPERATION_REDUCTION_YDESC = A::CUDNN_ATTR_OPERATION_REDUCTION_YDESC;
            OPERATION_REDUCTION_DESC = A::CUDNN_ATTR_OPERATION_REDUCTION_DESC;
            OPERATION_RESHAPE_XDESC = A::CUDNN_ATTR_OPERATION_RESHAPE_XDESC;
            OPERATION_RESHAPE_YDESC = A::CUDNN_ATTR_OPERATION_RESHAPE_YDESC;
            TYPE_HANDLE = Y::CUDNN_TYPE_HANDLE;
            TYPE_DATA_TYPE = Y::CUDNN_TYPE_DATA_TYPE;
            TYPE_BOOLEAN = Y::CUDNN_TYPE_BOOLEAN;
            TYPE_INT64 = Y::CUDNN_TYPE_INT64;
            TYPE_VOID_PTR = Y::CUDNN_TYPE_VOID_PTR;
            TYPE_HEUR_MODE = Y::CUDNN_TYPE_HEUR_MODE;
            TYPE_NUMERICAL_NOTE = Y::CUDNN_TYPE_NUMERICAL_NOTE;
            TYPE_POINTWISE_MODE = Y::CUDNN_TYPE_POINTWISE_MODE;
            TYPE_BACKEND_DESCRIPTOR = Y::CUDNN_TYPE_BACKEND_DESCRIPTOR;
            TYPE_REDUCTION_OPERATOR_TYPE = Y::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
            ADD = P::CUDNN_POINTWISE_ADD;
            MUL = P::CUDNN_POINTWISE_MUL;
            DIV = P::CUDNN_POINTWISE_DIV;
            SUB = P::CUDNN_POINTWISE_SUB;
            EXP = P::CUDNN_POINTWISE_EXP;
            LOG = P::CUDNN_POINTWISE_LOG;
            IDENTITY = P::CUDNN_POINTWISE_IDENTITY;
            CMP_GT = P::CUDNN_POINTWISE_CMP_GT;
            CMP_GE = P::CUDNN_POINTWISE_CMP_GE;
            GEN_INDEX = P::CUDNN_POINTWISE_GEN_INDEX;
            BINARY_SELECT = P::CUDNN_POINTWISE_BINARY_SELECT;
            REDUCE_ADD = R::CUDNN_REDUCE_TENSOR_ADD;
            REDUCE_MAX = R::CUDNN_REDUCE_TENSOR_MAX;
            HEUR_FALLBACK = H::CUDNN_HEUR_MODE_FALLBACK;
            HEUR_A = H::CUDNN_HEUR_MODE_A;
            NOTE_NONDETERMINISTIC = N::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        }
    }
}
