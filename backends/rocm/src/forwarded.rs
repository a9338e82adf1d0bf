//! The libraries that forward HIP, HIPRTC and RCCL to CUDA's (`tests/sim/forward.c`), held against the tables of this back end, and their compiler
//! against the real NVRTC, which needs no device. That the calls do what they should is for the simulator of CUDA (`tests/tests/simulated.rs`)
//! and for a device (`ci/gpu forward`).

use crate::hiprtc::{Hiprtc, one_of_each, options};
use crate::{ABOUT, RCCL, hip, hiprtc, lt};
use crossweave_gpu::{Nccl, Settings};
use crossweave_kernels::Dialect;
use libloading::Library;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

/// What a forwarding library forwards to, instead of what it would find.
fn forward_to(lib: &Library, behind: &str) {
    let behind = CString::new(behind).expect("a path");
    // SAFETY: its documented signature; it copies the text.
    unsafe {
        lib.get::<unsafe extern "C" fn(*const c_char)>(b"forward_to")
            .expect("exported")(behind.as_ptr());
    }
}

/// RCCL's functions as that library has them.
fn rccl(file: &Path) -> Result<Nccl, String> {
    let settings = Settings::new(&ABOUT).with("rocm.librccl", file.display().to_string());
    Nccl::open(&settings, &RCCL).map_err(|e| e.message)
}

#[test]
fn every_function_of_the_tables_is_forwarded() {
    let file = crossweave_tests::sim::library("forward", "tables");
    // SAFETY: a library of ours without constructors.
    let lib = unsafe { Library::new(&file) }.expect("it opens");
    // SAFETY: looked up, not called.
    let there = |name: &str| unsafe { lib.get::<*const u8>(name.as_bytes()) }.is_ok();
    let all = [
        hip::Functions::signatures(),
        hiprtc::Functions::signatures(),
        lt::Table::signatures(),
    ]
    .concat();
    let missing: Vec<_> = all.iter().filter(|s| !there(s.name)).collect();
    let missing: Vec<_> = missing.iter().map(|s| s.name).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert!(all.len() > 70 && !there("hipStreamSynchronizeTwice"));
    let cuda = crossweave_tests::sim::library("cuda", "tables");
    forward_to(&lib, &cuda.display().to_string());
    let t = rccl(&file).expect("every function that is not optional").t;
    assert!(t.ncclGetLastError.is_some() && t.ncclCommSplit.is_some());
    assert!(t.ncclMemAlloc.is_some() && t.ncclMemFree.is_some());
    assert!(t.ncclCommRegister.is_some() && t.ncclCommDeregister.is_some());
    // Every number that this back end knows has its name.
    // SAFETY: the function's documented signature; a static text.
    let name = |s: i32| unsafe {
        let f = lib.get::<unsafe extern "C" fn(i32) -> *const c_char>(b"hipGetErrorName");
        CStr::from_ptr(f.expect("exported")(s)).to_string_lossy()
    };
    let known = (1..999).filter(|s| crate::error::meaning(*s) != crossweave_gpu::Meaning::Internal);
    // 1052 and 1053 are HIP's alone, and no number of CUDA's becomes one of them.
    let unnamed: Vec<_> = known.filter(|s| name(*s) == "hipErrorUnknown").collect();
    assert_eq!(unnamed, Vec::<i32>::new());
    assert_eq!(name(719), "hipErrorLaunchFailure");
}

/// Where there is no NCCL the forwarded RCCL is as good as none, so that ranks are carried through pinned memory.
#[test]
fn without_nccl_there_is_no_rccl() {
    let file = crossweave_tests::sim::library("forward", "alone");
    // SAFETY: a library of ours without constructors.
    let lib = unsafe { Library::new(&file) }.expect("it opens");
    forward_to(&lib, "");
    let why = rccl(&file).map(drop).expect_err("nothing is behind it");
    assert!(why.contains("there is no NCCL to forward to (3)"), "{why}");
}

#[test]
fn the_compiler_behind_takes_a_kernel_of_every_family() {
    let folder = crossweave_tests::sim::folder();
    let nvrtc = folder.with_file_name("nvrtc/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    if !nvrtc.exists() {
        let why = format!("no {} (ci/packages)", nvrtc.display());
        return crossweave_tests::tools::missing("nvrtc", &why);
    }
    let file = crossweave_tests::sim::library("forward", "compiler");
    // SAFETY: a library of ours without constructors.
    let lib = unsafe { Library::new(&file) }.expect("it opens");
    forward_to(&lib, &nvrtc.display().to_string());
    std::mem::forget(lib);
    let settings = Settings::new(&ABOUT).with("rocm.libhiprtc", file.display().to_string());
    let hiprtc = Hiprtc::open(&settings).unwrap_or_else(|e| panic!("{}", e.message));
    let compile = |arch: &str, k: &crossweave_kernels::Kernel| {
        let source = k.source(Dialect::Hip);
        hiprtc.compile(&k.entry, &source, &options(arch, 32))
    };
    let kernels = one_of_each(32);
    for k in &kernels {
        let code = compile("forwarded:sm_90a", k).unwrap_or_else(|e| panic!("{}", e.message));
        assert!(code.starts_with(b"\x7fELF"), "{}", k.entry);
    }
    // A device newer than the compiler gets intermediate code, and one that is none is refused.
    let code = compile("forwarded:sm_990", &kernels[0]).expect("intermediate code");
    assert!(String::from_utf8_lossy(&code).contains(".target sm_"));
    assert!(compile("gfx1030", &kernels[0]).is_err());
    assert!(
        hiprtc
            .compile("x", "int x;", &options("forwarded:sm_80", 32))
            .is_err()
    );
}
