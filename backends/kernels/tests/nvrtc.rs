//! Every kernel template through the vendor's compiler to machine code, without a device: registers, spills and shared memory held to a committed
//! budget, and the kernels' parameters, as the compiled code states them, held against the argument structs.
//! A run compiles every fourth kernel for one architecture, and all for all of them with `CROSSWEAVE_KERNELS=all` (`common/compiled.rs`).
//!
//! The compiler is `libnvrtc.so.12` in `target/nvrtc/` (`ci/packages` fetches it). Where it is not there, the test says so and passes.
//! `BUDGET` is rewritten with `cargo test --release -p crossweave-kernels --test suite -- --ignored nvrtc::rewrite`.

use crate::budget::{Form, Row, Table};
use crate::compiled::{self, Kept, chosen};
use crossweave_kernels::{
    Dialect, Facts, Family, Kernel, arch_name, every_kernel, options, source,
};
use libloading::Library;
use object::{Object, ObjectSection};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const ARCHS: [u32; 3] = [80, 90, 100];
const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/budget.tsv");
const FORM: Form = Form {
    title: "kernel\tparameter bytes\tfor sm_80, sm_90a, sm_100: registers/spilled bytes/stack bytes/static shared bytes",
    columns: &["sm_80", "sm_90a", "sm_100"],
    figures: &["registers", "spilled bytes", "stack bytes", "shared bytes"],
};
const REWRITE: &str =
    "cargo test --release -p crossweave-kernels --test suite -- --ignored nvrtc::rewrite";
/// Kernels of a module: enough that the prelude is no cost, few enough that modules share the processors.
const MODULE: usize = 16;

fn library() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let file = target.join("nvrtc/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
    file.exists().then_some(file)
}

type Program = *mut c_void;

/// The compiler, as far as it is needed.
struct Nvrtc(Library);

impl Nvrtc {
    fn version(&self) -> String {
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function's documented signature, given two words to write.
        let rc = unsafe { self.0.get::<Version>(b"nvrtcVersion").unwrap()(&mut major, &mut minor) };
        assert_eq!(rc, 0, "nvrtcVersion");
        format!("nvrtc {major}.{minor}")
    }

    /// Machine code and the compiler's words.
    fn compile(&self, text: &str, arch: &str) -> Result<(Vec<u8>, String), String> {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Get = unsafe extern "C" fn(Program, *mut u8) -> c_int;
        let (src, name) = (CString::new(text).unwrap(), c"kernels.cu");
        let mut words: Vec<CString> = options(arch)
            .into_iter()
            .map(|o| CString::new(o).unwrap())
            .collect();
        words.push(c"--ptxas-options=-v".into());
        let list: Vec<*const c_char> = words.iter().map(|w| w.as_ptr()).collect();
        // SAFETY: the functions' documented signatures; buffers have the sizes asked for; the program is destroyed once.
        unsafe {
            let get = |s: &[u8]| -> Get { *self.0.get::<Get>(s).unwrap() };
            let size = |s: &[u8]| -> Size { *self.0.get::<Size>(s).unwrap() };
            let mut p: Program = std::ptr::null_mut();
            let create = self.0.get::<Create>(b"nvrtcCreateProgram").unwrap();
            let rc = create(
                &mut p,
                src.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            );
            assert_eq!(rc, 0, "nvrtcCreateProgram");
            let compile = self.0.get::<Compile>(b"nvrtcCompileProgram").unwrap();
            let rc = compile(p, list.len() as c_int, list.as_ptr());
            let read = |n: &[u8], g: &[u8]| {
                let mut bytes = 0;
                assert_eq!(size(n)(p, &mut bytes), 0);
                let mut v = vec![0u8; bytes];
                assert_eq!(get(g)(p, v.as_mut_ptr()), 0);
                v
            };
            let log = read(b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog");
            let log = String::from_utf8_lossy(&log)
                .trim_end_matches('\0')
                .to_string();
            let code = match rc {
                0 => Ok(read(b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN")),
                _ => Err(format!("nvrtc {rc}:\n{log}")),
            };
            let destroy = self
                .0
                .get::<unsafe extern "C" fn(*mut Program) -> c_int>(b"nvrtcDestroyProgram")
                .unwrap();
            destroy(&mut p);
            code.map(|c| (c, log))
        }
    }
}

/// What the compiled code and the assembler say of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    registers: u32,
    spills: u32,
    stack: u32,
    shared: u32,
    /// Bytes of parameters.
    params: u32,
}

/// The number before `what`.
fn before(line: &str, what: &str) -> Option<u32> {
    let at = line.find(what)?;
    line[..at].split_whitespace().last()?.parse().ok()
}

fn figures(log: &str, code: &[u8]) -> BTreeMap<String, Figures> {
    let mut out: BTreeMap<String, Figures> = BTreeMap::new();
    let mut now = String::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            now = rest.split('\'').next().unwrap_or("").into();
            continue;
        }
        if now.is_empty() {
            continue;
        }
        let f = out.entry(now.clone()).or_default();
        if let Some(n) = before(line, " bytes stack frame") {
            f.stack = n;
            f.spills = before(line, " bytes spill stores").unwrap_or(0)
                + before(line, " bytes spill loads").unwrap_or(0);
        }
        if line.contains(" registers") {
            f.registers = before(line, " registers").unwrap_or(0);
            f.shared = before(line, " bytes smem").unwrap_or(0);
        }
    }
    for (name, params) in parameters(code) {
        out.entry(name).or_default().params = params;
    }
    out
}

/// Bytes of parameters of every kernel of a cubin: the end of the last parameter named in its `.nv.info`.
fn parameters(code: &[u8]) -> Vec<(String, u32)> {
    const KPARAM_INFO: u8 = 0x17;
    const CBANK_PARAM_SIZE: u8 = 0x19;
    let elf = object::File::parse(code).expect("a cubin is an ELF file");
    let mut out = Vec::new();
    for s in elf.sections() {
        let Some(name) = s.name().ok().and_then(|n| n.strip_prefix(".nv.info.")) else {
            continue;
        };
        let d = s.data().unwrap();
        let u16_at = |i: usize| u16::from_le_bytes([d[i], d[i + 1]]) as u32;
        let (mut i, mut ends, mut stated) = (0, 0, None);
        while i + 4 <= d.len() {
            let (form, attr, size) = (d[i], d[i + 1], u16_at(i + 2));
            // Form 4 has a value of `size` bytes after it; the others fit the two bytes.
            if form == 4 {
                if attr == KPARAM_INFO {
                    let at = i + 4;
                    let (offset, bits) = (u16_at(at + 6), u16_at(at + 10));
                    // The size stands in the upper fourteen bits of the last word.
                    ends = ends.max(offset + (bits >> 2));
                }
                i += size as usize;
            } else if attr == CBANK_PARAM_SIZE {
                stated = Some(size);
            }
            i += 4;
        }
        assert!(
            stated.is_none_or(|s| s == ends),
            "{name}: parameters end at {ends}, the kernel states {stated:?}"
        );
        out.push((name.to_string(), ends));
    }
    out
}

/// A device of this architecture.
fn facts(arch: u32) -> Facts {
    Facts {
        dialect: Dialect::Cuda,
        arch,
        sms: 132,
        warp: 32,
        shared: if arch >= 90 { 227 << 10 } else { 163 << 10 },
        wgmma: arch == 90,
    }
}

fn key(k: &Kernel) -> String {
    format!("{}/{}", k.family.name(), k.entry)
}

/// The kernels that an architecture is given, by column; all of them, or those whose turn it is.
fn kernels(all: bool) -> [BTreeSet<Kernel>; 3] {
    let each = ARCHS.map(|arch| every_kernel(&facts(arch)).unwrap().into_iter().collect());
    let each: &[BTreeSet<Kernel>; 3] = &each;
    [0, 1, 2].map(|column| {
        let turn = |k: &&Kernel| {
            let columns: Vec<usize> = (0..3).filter(|c| each[*c].contains(k)).collect();
            chosen(&key(k), column, &columns, all)
        };
        each[column].iter().filter(turn).cloned().collect()
    })
}

/// Everything compiled: figures by family and entry, one column an architecture.
fn compile_all(file: &Path, each: &[BTreeSet<Kernel>; 3]) -> BTreeMap<String, [Figures; 3]> {
    // SAFETY: the vendor's compiler library, which has constructors of its own.
    let nvrtc = Nvrtc(unsafe { Library::new(file) }.unwrap());
    let version = nvrtc.version();
    let mut jobs: Vec<(usize, Family, Vec<Kernel>)> = Vec::new();
    for (column, kernels) in each.iter().enumerate() {
        for family in Family::ALL {
            let of: Vec<Kernel> = kernels
                .iter()
                .filter(|k| k.family == family)
                .cloned()
                .collect();
            jobs.extend(of.chunks(MODULE).map(|c| (column, family, c.to_vec())));
        }
    }
    let (next, out) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                while let Some((column, family, kernels)) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let text = source(Dialect::Cuda, *family, kernels);
                    let arch = arch_name(ARCHS[*column]);
                    let words = options(&arch).join(" ");
                    let (code, log) = Kept::of("nvrtc", &[&version, &words, &text])
                        .or_make(|| nvrtc.compile(&text, &arch))
                        .unwrap_or_else(|e| panic!("{} for {arch}: {e}", family.name()));
                    let found = figures(&log, &code);
                    let mut out = out.lock().unwrap();
                    for k in kernels {
                        let f = found
                            .get(&k.entry)
                            .unwrap_or_else(|| panic!("{} is not in its module", k.entry));
                        // It would wait after every product; the figures do not show it.
                        assert!(
                            !log.contains("serialized"),
                            "products of warpgroups do not overlap:\n{log}"
                        );
                        // Every kernel has some: none means that the assembler's words were not understood.
                        assert!(
                            f.registers > 0,
                            "{} for {arch}: no registers in\n{log}",
                            k.entry
                        );
                        out.entry(key(k)).or_insert([Figures::default(); 3])[*column] = *f;
                    }
                }
            });
        }
    });
    out.into_inner().unwrap()
}

fn table(all: &BTreeMap<String, [Figures; 3]>) -> Table {
    let row = |f: &[Figures; 3]| Row {
        params: f.iter().map(|f| f.params).max().unwrap_or(0),
        columns: f
            .iter()
            .map(|f| vec![f.registers, f.spills, f.stack, f.shared])
            .collect(),
    };
    all.iter().map(|(n, f)| (n.clone(), row(f))).collect()
}

/// Argument bytes of every kernel, from the planners: the survey's launches know them.
fn argument_bytes() -> BTreeMap<String, u32> {
    ARCHS
        .into_iter()
        .flat_map(|arch| crossweave_kernels::every_launch(&facts(arch)).unwrap())
        .map(|l| (key(&l.kernel), l.args.len() as u32))
        .collect()
}

#[test]
fn every_kernel_compiles_within_its_budget() {
    let Some(file) = library() else {
        crossweave_tests::tools::missing(
            "nvrtc",
            "target/nvrtc holds no libnvrtc.so.12 (ci/packages fetches it)",
        );
        return;
    };
    let each = kernels(compiled::all());
    let all = compile_all(&file, &each);
    for (name, bytes) in argument_bytes() {
        // Some kernels are for one architecture.
        let built = all.get(&name).into_iter().flatten();
        for f in built.filter(|f| f.registers > 0) {
            assert_eq!(
                f.params, bytes,
                "{name}: the compiled kernel takes {} bytes of parameters, the launch passes {bytes}",
                f.params
            );
        }
    }
    match std::fs::read_to_string(BUDGET) {
        Ok(text) => {
            let turn = |name: &str, column: usize| each[column].iter().any(|k| key(k) == name);
            let known: BTreeSet<String> = kernels(true).iter().flatten().map(key).collect();
            let budget = FORM.of(&FORM.read(&text), turn, |name| known.contains(name));
            let diff = FORM.differences(&budget, &table(&all));
            assert!(
                diff.is_empty(),
                "kernels outgrew their budget:\n{diff}if that is meant: {REWRITE}"
            );
        }
        Err(e) => panic!("no budget to hold the kernels to: {BUDGET}: {e}; to write it: {REWRITE}"),
    }
    let most = all.values().flatten().map(|f| f.registers).max();
    let spilling = all
        .values()
        .filter(|f| f.iter().any(|f| f.spills > 0))
        .count();
    println!(
        "{} kernels for {ARCHS:?}: at most {} registers, {spilling} spill",
        all.len(),
        most.unwrap_or(0)
    );
}

#[test]
#[ignore = "rewrites the committed budget"]
fn rewrite() {
    let file = library().expect("target/nvrtc holds no libnvrtc.so.12 (ci/test fetches it)");
    std::fs::write(
        BUDGET,
        FORM.write(&table(&compile_all(&file, &kernels(true)))),
    )
    .unwrap();
}

#[test]
fn a_budget_reads_back_and_growth_is_seen() {
    let mut all = BTreeMap::new();
    let f = Figures {
        registers: 40,
        spills: 0,
        stack: 8,
        shared: 256,
        params: 96,
    };
    all.insert("point/cw_x".to_string(), [f; 3]);
    let read = FORM.read(&FORM.write(&table(&all)));
    assert_eq!(read, table(&all));
    assert_eq!(FORM.differences(&read, &table(&all)), "");
    let mut more = all.clone();
    more.get_mut("point/cw_x").unwrap()[1].registers = 41;
    more.insert("point/cw_y".into(), [f; 3]);
    let more = table(&more);
    let diff = FORM.differences(&read, &more);
    assert!(diff.contains("+ point/cw_x for sm_90a: registers 40 -> 41"));
    assert!(diff.contains("+ point/cw_y: not in the budget"));
    let diff = FORM.differences(&more, &read);
    assert!(diff.contains("- point/cw_y: in the budget, but no kernel any more"));
    let mut fewer = read.clone();
    fewer.get_mut("point/cw_x").unwrap().columns[2] = FORM.row().columns[2].clone();
    let diff = FORM.differences(&read, &fewer);
    assert!(diff.contains("- point/cw_x for sm_100: in the budget, but not built"));
    // A damaged row is none.
    let cut = FORM.read(FORM.write(&read).trim_end_matches("/256\n"));
    assert_eq!(cut.len(), 0);
}
