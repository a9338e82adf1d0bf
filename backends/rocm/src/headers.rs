//! The tables against AMD's own headers: every function's arity and the width and kind of each argument, every number, and the layout of what is
//! read from structs, as assertions that a C++ compiler evaluates. The headers are Debian's `libamdhip64-dev` (HIP 5.2), or those in the folder that
//! `CROSSWEAVE_HIP_HEADERS` names (a newer version's). A wrong signature, a swapped number and a moved field must each fail.

use crate::{hip, hiprtc};
use crossweave_gpu as gpu;
use crossweave_gpu::library::shape::Signature;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const PRELUDE: &str = r#"
#define __HIP_PLATFORM_AMD__ 1
#define __HIP_PLATFORM_HCC__ 1
#define __HIP_DISABLE_CPP_FUNCTIONS__ 1
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
"#;

/// What HIP 5.2 has no name for.
const NEWER: &str = "hipGetDevicePropertiesR0600";

fn headers() -> Option<PathBuf> {
    let folder = crossweave_tests::tools::hip_headers();
    let there = folder.join("hip/hip_runtime_api.h").exists();
    if !there {
        let why = format!(
            "no HIP headers in {} (apt-get install libamdhip64-dev)",
            folder.display()
        );
        crossweave_tests::tools::missing("hip", &why);
    }
    there.then_some(folder)
}

/// Compiles assertions; the compiler's words where one fails.
fn compile(name: &str, folder: &Path, assertions: &str) -> Result<(), String> {
    crossweave_tests::headers::compile(name, PRELUDE, &[folder], assertions)
}

fn signature(s: &Signature) -> String {
    format!("SIG({}, {});\n", s.name, s.classes.join(", "))
}

fn has(folder: &Path, name: &str) -> bool {
    let texts = ["hip/hip_runtime_api.h", "hip/hiprtc.h"].map(|f| folder.join(f));
    let mut texts = texts.iter().filter_map(|f| std::fs::read_to_string(f).ok());
    texts.any(|t| t.contains(name))
}

fn numbers() -> String {
    let mut t = String::new();
    let mut val = |name: &str, v: i64| writeln!(t, "VAL({name}, {v});").unwrap();
    val("hipSuccess", gpu::SUCCESS.into());
    val("hipErrorNoDevice", gpu::NO_DEVICE.into());
    val("hipErrorNotReady", gpu::NOT_READY.into());
    val(
        "hipErrorPeerAccessAlreadyEnabled",
        gpu::PEER_ALREADY_ENABLED.into(),
    );
    val(
        "hipErrorHostMemoryAlreadyRegistered",
        gpu::ALREADY_REGISTERED.into(),
    );
    for (name, v) in [
        ("hipErrorInvalidValue", 1),
        ("hipErrorOutOfMemory", 2),
        ("hipErrorNotInitialized", 3),
        ("hipErrorDeinitialized", 4),
        ("hipErrorInvalidMemcpyDirection", 21),
        ("hipErrorInsufficientDriver", 35),
        ("hipErrorInvalidDevice", 101),
        ("hipErrorInvalidContext", 201),
        ("hipErrorNoBinaryForGpu", 209),
        ("hipErrorECCNotCorrectable", 214),
        ("hipErrorPeerAccessUnsupported", 217),
        ("hipErrorInvalidHandle", 400),
        ("hipErrorIllegalAddress", 700),
        ("hipErrorLaunchTimeOut", 702),
        ("hipErrorAssert", 710),
        ("hipErrorLaunchFailure", 719),
        ("hipErrorNotSupported", 801),
        ("hipErrorStreamCaptureUnsupported", 900),
        ("hipErrorStreamCaptureWrongThread", 908),
        ("hipErrorRuntimeMemory", 1052),
        ("hipErrorRuntimeOther", 1053),
    ] {
        val(name, v);
    }
    val("hipMemcpyDefault", hip::COPY_DEFAULT.into());
    val(
        "hipStreamCaptureModeThreadLocal",
        hip::CAPTURE_THREAD_LOCAL.into(),
    );
    val("hipStreamNonBlocking", gpu::STREAM_NON_BLOCKING.into());
    val("hipEventDisableTiming", gpu::EVENT_NO_TIMES.into());
    val("hipHostMallocPortable", gpu::HOST_PORTABLE.into());
    val("hipHostMallocMapped", gpu::HOST_DEVICE_MAP.into());
    val("hipHostRegisterPortable", gpu::HOST_PORTABLE.into());
    val("hipHostRegisterMapped", gpu::HOST_DEVICE_MAP.into());
    use hip::attr;
    val(
        "hipDeviceAttributeComputeCapabilityMajor",
        attr::MAJOR.into(),
    );
    val(
        "hipDeviceAttributeComputeCapabilityMinor",
        attr::MINOR.into(),
    );
    val("hipDeviceAttributeMaxPitch", attr::MAX_PITCH.into());
    val(
        "hipDeviceAttributeMultiprocessorCount",
        attr::SM_COUNT.into(),
    );
    val(
        "hipDeviceAttributeMaxSharedMemoryPerBlock",
        attr::SHARED_PER_BLOCK.into(),
    );
    val("hipDeviceAttributeWarpSize", attr::WARP.into());
    val("HIPRTC_SUCCESS", 0);
    val("HIPRTC_ERROR_COMPILATION", 6);
    t
}

fn layouts(folder: &Path) -> String {
    let mut t = String::new();
    let (size, name) = match has(folder, "hipGetDevicePropertiesR0600") {
        true => hip::prop::R0600,
        false => hip::prop::OLD,
    };
    let mut say = |line: String| writeln!(t, "{line};").unwrap();
    say(format!("SIZ(hipDeviceProp_t, {size})"));
    say(format!("OFF(hipDeviceProp_t, gcnArchName, {name})"));
    say(format!(
        "SIZ(hipDeviceProp_t::gcnArchName, {})",
        hip::prop::NAME
    ));
    t
}

#[test]
fn every_signature_number_and_layout_is_that_of_amds_headers() {
    let Some(folder) = headers() else { return };
    let all = [
        hip::Functions::signatures(),
        hiprtc::Functions::signatures(),
    ]
    .concat();
    let (there, absent): (Vec<_>, Vec<_>) = all.iter().partition(|s| has(&folder, s.name));
    for s in &absent {
        assert!(s.optional, "{} is not in the headers", s.name);
        assert!(s.name == NEWER, "{} is not in the headers", s.name);
    }
    assert!(there.len() > 55, "{} functions", there.len());
    let text: String = there.iter().map(|s| signature(s)).collect();
    let text = text + &numbers() + &layouts(&folder);
    compile("headers", &folder, &text).unwrap_or_else(|e| panic!("{e}"));

    // What is wrong is found: an argument of another width, one too many, two numbers swapped, a field elsewhere.
    let wrong = "SIG(hipMemcpyAsync, I4, P, P, I4, I4, P);\nSIG(hipFree, I4, P, P);\nSIG(hipMalloc, I4, I8, I8);\n\
                 VAL(hipErrorInvalidDevice, 100);\nVAL(hipErrorNoDevice, 101);\n\
                 OFF(hipDeviceProp_t, gcnArchName, 395);\nSIZ(hipUUID, 17);\n";
    let said = compile("controls", &folder, wrong).expect_err("seven wrong assertions");
    for what in [
        "signature of hipMemcpyAsync",
        "signature of hipFree",
        "signature of hipMalloc",
        "number of hipErrorInvalidDevice",
        "number of hipErrorNoDevice",
        "place of hipDeviceProp_t.gcnArchName",
        "size of hipUUID",
    ] {
        assert!(said.contains(what), "{what} is not found: {said}");
    }
}
