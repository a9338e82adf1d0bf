//! The graphs on the real library without a device: since 9.11 it builds plans for a device that is described to it. Graphs, heuristics and the
//! compilation of the engines' kernels are real; only loading and launching them is not done.
//!
//! `pip download nvidia-cudnn-cu12`, unpack it into `target/cudnn`, then
//! `cargo test --release -p crossweave-backend-cuda --lib -- --ignored --nocapture the_real_library`. The driver and cuBLASLt that the library asks
//! for are stubs made here.

use super::plan::{On, Plan};
use super::shape::{BACKWARD, FORWARD, Places};
use super::{Cudnn, Desc, Problem, id};
use crate::{ABOUT, Settings};
use libloading::os::unix::Library;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

pub(super) const ENGINEHEUR_DEVICEPROP: i32 = 204;
pub(super) const EXECUTION_PLAN_DEVICEPROP: i32 = 407;
const DEVICEPROP: i32 = 38;
const DEVICEPROP_JSON: i32 = 2702;
const TYPE_CHAR: i32 = 24;

/// A device as the library describes one.
fn described(lib: &Arc<Cudnn>, arch: u32) -> On {
    let (sms, shared) = match arch {
        80 => (108, 166_912),
        90 => (132, 232_448),
        _ => (148, 232_448),
    };
    let text = format!(
        concat!(
            r#"{{"version":1,"cudaDeviceId":0,"deviceVer":{arch}0,"driverVer":13000,"maxGridSize":[2147483647,65535,65535],"#,
            r#""maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{sms},"smCountOrigin":0,"warpSize":32,"#,
            r#""maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{shared},"oversizedSharedMemoryPerBlock":0,"#,
            r#""reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"#,
            r#""maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,"#,
            r#""memClockRateKHz":2619000,"memoryBusWidth":5120,"l2CacheSize":52428800,"totalGlobalMem":85000000000,"deviceName":"described"}}"#,
        ),
        arch = arch,
        sms = sms,
        shared = shared
    );
    let d = Desc::new(lib, DEVICEPROP, "a device")
        .and_then(|d| d.set(DEVICEPROP_JSON, TYPE_CHAR, format!("{text}\0").as_bytes()))
        .and_then(Desc::done)
        .expect("a description the library takes");
    On::Described(d)
}

/// A library that only has to be there, by the name the real one is found by. What is not given a body fails.
fn stub(dir: &Path, file: &str, mut names: Vec<String>, bodies: &[(&str, &str)]) -> Library {
    names.extend(bodies.iter().map(|b| b.0.to_string()));
    names.sort();
    names.dedup();
    let mut c = String::new();
    for name in names {
        let body = bodies.iter().find(|(n, _)| *n == name).map(|b| b.1);
        writeln!(c, "int {name}{}", body.unwrap_or("(void) { return 100; }")).unwrap();
    }
    let (from, to) = (dir.join(format!("{file}.c")), dir.join(file));
    std::fs::write(&from, c).unwrap();
    let run = Command::new("cc")
        .args(["-w", "-shared", "-fPIC", &format!("-Wl,-soname,{file}")])
        .arg("-o")
        .args([&to, &from])
        .output()
        .expect("a C compiler (cc)");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    let flags = libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL;
    // SAFETY: a library of ours without constructors.
    unsafe { Library::open(Some(&to), flags) }.unwrap()
}

/// Names that the library's files ask of another one.
fn asked(lib: &Path, prefix: &[u8]) -> Vec<String> {
    let mut all = std::collections::BTreeSet::new();
    for file in [
        "graph",
        "ops",
        "engines_precompiled",
        "engines_runtime_compiled",
        "engines_tensor_ir",
        "heuristic",
    ] {
        let Ok(bytes) = std::fs::read(lib.join(format!("libcudnn_{file}.so.9"))) else {
            continue;
        };
        for word in bytes.split(|b| !b.is_ascii_alphanumeric() && *b != b'_') {
            let rest = word.strip_prefix(prefix).unwrap_or_default();
            if word.len() < 64 && rest.first().is_some_and(u8::is_ascii_uppercase) {
                all.insert(String::from_utf8_lossy(word).into_owned());
            }
        }
    }
    all.into_iter().collect()
}

fn problem(backward: bool, of: [i64; 6], packed: bool) -> Problem {
    let [b, h, hkv, tq, tk, d] = of;
    let row = |heads: i64| if packed { (h + 2 * hkv) * d } else { heads * d };
    let all = |heads: i64, t: i64| [t * row(heads), d, row(heads)];
    let out = [tq * h * d, d, h * d];
    let (q, kv) = (all(h, tq), all(hkv, tk));
    let Places { q: at_q, k, v, .. } = if backward { BACKWARD } else { FORWARD };
    let mut strides = vec![out; if backward { 9 } else { 5 }];
    (strides[at_q], strides[k], strides[v]) = (q, kv, kv);
    if backward {
        (strides[0], strides[1], strides[2]) = (q, kv, kv);
    }
    Problem {
        backward,
        kind: id::BFLOAT16,
        b,
        h,
        hkv,
        tq,
        tk,
        d,
        causal: true,
        window: 0,
        scale: 0.125f32.to_bits(),
        deterministic: true,
        strides,
    }
}

#[test]
#[ignore = "needs target/cudnn: see the module"]
fn the_real_library_builds_plans_for_every_graph() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir: PathBuf = root.join("target/cudnn/nvidia/cudnn/lib");
    let file = dir.join("libcudnn.so.9");
    assert!(file.exists(), "{} is not there", file.display());
    let made = tempfile::tempdir().unwrap();
    let ok = |name| (name, "() { return 0; }");
    let pointer = |name| (name, "(void **p) { *p = (void *)16; return 0; }");
    let number = |name| (name, "(int *p) { *p = 8; return 0; }");
    let mut driver = asked(&dir, b"cu");
    driver.retain(|n| !n.starts_with("cublas") && !n.starts_with("cudnn"));
    let _driver = stub(
        made.path(),
        "libcuda.so.1",
        driver,
        &[
            ("cuDriverGetVersion", "(int *v) { *v = 13000; return 0; }"),
            pointer("cuLibraryLoadData"),
            pointer("cuLibraryGetKernel"),
            pointer("cuKernelGetFunction"),
            number("cuKernelGetAttribute"),
            number("cuOccupancyMaxPotentialClusterSize"),
            ok("cuKernelSetAttribute"),
            ok("cuLibraryUnload"),
            ok("cuCtxPushCurrent"),
            ok("cuCtxPopCurrent"),
        ],
    );
    let lt = asked(&dir, b"cublasLt");
    let _lt = stub(
        made.path(),
        "libcublasLt.so.12",
        lt,
        &[("cublasLtGetVersion", "(void) { return 120804; }")],
    );
    let settings = Settings::new(&ABOUT).with("cuda.libcudnn", file.display().to_string());
    let lib = Arc::new(Cudnn::open(&settings).unwrap());
    println!("cuDNN {}", lib.version());
    let gpt2 = [4, 12, 12, 1024, 1024, 64];
    let llama = [1, 32, 8, 2048, 2048, 128];
    for arch in [80, 90, 100] {
        let on = described(&lib, arch);
        for backward in [false, true] {
            let base = |of| problem(backward, of, false);
            let all = [
                ("gpt2, packed", problem(backward, gpt2, true)),
                ("llama", base(llama)),
                ("odd lengths", base([2, 4, 4, 1000, 1000, 64])),
                ("fewer queries", base([2, 8, 8, 128, 500, 64])),
                ("heads of 96", base([2, 8, 8, 512, 512, 96])),
                (
                    "window",
                    Problem {
                        window: 256,
                        ..base([2, 8, 8, 1024, 1024, 128])
                    },
                ),
                (
                    "window, fewer queries",
                    Problem {
                        window: 300,
                        ..base([2, 8, 8, 256, 512, 64])
                    },
                ),
                (
                    "no mask, f16",
                    Problem {
                        causal: false,
                        kind: id::HALF,
                        ..base([2, 8, 8, 512, 512, 64])
                    },
                ),
                (
                    "bits that vary",
                    Problem {
                        deterministic: false,
                        ..base(llama)
                    },
                ),
            ];
            for (what, p) in all {
                let plan = Plan::build(&lib, &on, &p, 1 << 30);
                let way = if backward { "backward" } else { "forward" };
                match plan {
                    Ok(plan) => {
                        println!("sm_{arch} {way} {what}: workspace {} bytes", plan.workspace)
                    }
                    Err(e) => panic!("sm_{arch} {way} {what}: {e}"),
                }
            }
        }
    }
}
