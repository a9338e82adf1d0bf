//! Every kernel template through the compiler of AMD's devices to machine code, without a device: registers, spills, scratch and shared memory
//! held to a committed budget; parameters, block sizes, wave width and shared memory, as the compiled code states them, held against the launches.
//!
//! The compiler is clang with the vendor's device libraries, which is what `hipcc` calls and HIPRTC holds. Where it is not installed (Debian 12:
//! `apt-get install clang-15 lld-15 rocm-device-libs`) the tests say so and pass, unless `CROSSWEAVE_TESTS_REQUIRE` names `hip`, as in `ci/test`.
//! `BUDGET` is rewritten with `cargo test --release -p crossweave-kernels --test suite -- --ignored hip::rewrite`.

mod metadata;

use crate::budget::{Form, Table};
use crate::compiled::{self, Kept, chosen};
use crossweave_kernels::{Dialect, Facts, Family, Kernel, Launch, hip_options, source, survey};
use crossweave_plugin::Code;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An architecture, and the threads of its waves.
struct Target {
    name: &'static str,
    wave: u32,
}

/// Instinct MI200, the MI300 generation, and Radeon RX 6000. The compiler is older than gfx942, MI300's final name: gfx940 has its instructions.
/// It knows gfx1100 too, but its device libraries do not.
const TARGETS: [Target; 3] = [
    Target {
        name: "gfx90a",
        wave: 64,
    },
    Target {
        name: "gfx940",
        wave: 64,
    },
    Target {
        name: "gfx1030",
        wave: 32,
    },
];

const BUDGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/budget_hip.tsv");
const FORM: Form = Form {
    title: "kernel\tparameter bytes\tfor gfx90a, gfx940, gfx1030 by clang 15: vector registers/scalar registers/spilled vector registers/spilled scalar registers/scratch bytes/static shared bytes",
    columns: &["gfx90a", "gfx940", "gfx1030"],
    figures: &[
        "vector registers",
        "scalar registers",
        "spilled vector registers",
        "spilled scalar registers",
        "scratch bytes",
        "shared bytes",
    ],
};
const REWRITE: &str =
    "cargo test --release -p crossweave-kernels --test suite -- --ignored hip::rewrite";
const NEEDED: &str = "clang-15 lld-15 rocm-device-libs";
/// The version whose figures the budget has.
const VERSION: &str = "clang version 15.";
/// Kernels of a module: enough that the prelude is no cost, few enough that modules share the processors.
const MODULE: usize = 16;
/// What no AMD device has the shared memory for: the beginnings of the refusals. The core composes these of smaller ops.
const TOO_LARGE: [&str; 3] = [
    "attention_bwd: heads of 256 need ",
    "attention_varlen_bwd: heads of 256 need ",
    "attention_ext_bwd: heads of 256 need ",
];

/// The compiler, once it and all it needs were found.
struct Compiler {
    program: &'static str,
    /// Its own words, of which what it compiled is kept by.
    version: String,
    libraries: PathBuf,
}

impl Compiler {
    fn find() -> Result<Compiler, String> {
        let program = "clang-15";
        let run = Command::new(program).arg("--print-prog-name=lld").output();
        let out = run.map_err(|e| format!("{program}: {e}"))?;
        // The whole path where there is one, else the bare name.
        let linker = String::from_utf8_lossy(&out.stdout);
        if !out.status.success() || !Path::new(linker.trim()).is_absolute() {
            return Err(format!("{program} finds no lld"));
        }
        let places = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
        let mut places = places.map(|p| PathBuf::from(format!("/usr/lib/{p}/amdgcn/bitcode")));
        places.sort();
        let libraries = places.into_iter().find(|p| p.join("ocml.bc").exists());
        let version = Command::new(program).arg("--version").output();
        let version = version.map_err(|e| format!("{program}: {e}"))?.stdout;
        Ok(Compiler {
            program,
            version: String::from_utf8_lossy(&version).into_owned(),
            libraries: libraries.ok_or("no device libraries (amdgcn/bitcode/ocml.bc)")?,
        })
    }

    /// Where it is not installed: says so, or fails where somebody counts on it.
    fn or_skip() -> Option<Compiler> {
        Compiler::find()
            .inspect_err(|why| {
                let why = format!("{why} (apt-get install {NEEDED})");
                crossweave_tests::tools::missing("hip", &why);
            })
            .ok()
    }

    /// What the compiler writes for a translation unit: a linked code object, or assembly text.
    fn compile(
        &self,
        name: &str,
        text: &str,
        t: &Target,
        assembly: bool,
    ) -> Result<Vec<u8>, String> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hip");
        std::fs::create_dir_all(&dir).unwrap();
        let from = dir.join(format!("{name}-{}.hip", t.name));
        let to = from.with_extension("co");
        std::fs::write(&from, text).unwrap();
        let out = Command::new(self.program)
            .args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output"])
            .arg(format!("--offload-arch={}", t.name))
            .arg(format!(
                "--hip-device-lib-path={}",
                self.libraries.display()
            ))
            .args(hip_options(t.wave))
            .arg("-Werror")
            .arg(if assembly { "-S" } else { "-c" })
            .arg("-o")
            .args([&to, &from])
            .output()
            .map_err(|e| format!("{}: {e}", self.program))?;
        let words = String::from_utf8_lossy(&out.stderr);
        if !out.status.success() {
            return Err(format!("{} for {}: {}\n{words}", name, t.name, out.status));
        }
        let code = std::fs::read(&to).unwrap();
        let _ = std::fs::remove_file(&from);
        let _ = std::fs::remove_file(&to);
        Ok(code)
    }
}

/// A device of this architecture.
fn facts(t: &Target) -> Facts {
    Facts {
        dialect: Dialect::Hip,
        arch: 0,
        sms: 104,
        warp: t.wave,
        shared: 64 << 10,
        wgmma: false,
    }
}

/// What the survey asks of a device: every launch, once what may be refused was.
fn launches(t: &Target) -> Vec<Launch> {
    let (all, refused) = survey(&facts(t));
    for e in &refused {
        assert_eq!(e.code, Code::Unsupported, "{}: {e}", t.name);
        let listed = TOO_LARGE.iter().any(|w| e.message.starts_with(w));
        assert!(listed, "{} refuses what it has room for: {e}", t.name);
    }
    for w in TOO_LARGE {
        let said = refused.iter().any(|e| e.message.starts_with(w));
        assert!(said, "{}: {w}… is no longer refused", t.name);
    }
    all
}

fn key(k: &Kernel) -> String {
    format!("{}/{}", k.family.name(), k.entry)
}

/// The kernels that a target is given, by column; all of them, or those whose turn it is.
fn kernels(whole: bool) -> [BTreeSet<Kernel>; 3] {
    let each: [BTreeSet<Kernel>; 3] = [0, 1, 2].map(|column: usize| {
        let all = launches(&TARGETS[column]);
        all.into_iter().map(|l| l.kernel).collect()
    });
    for (all, family) in each.iter().flat_map(|a| Family::ALL.map(|f| (a, f))) {
        let asked = all.iter().any(|k| k.family == family);
        match family.cuda_only() {
            Some(why) => assert!(!asked, "{} is asked for: {why}", family.name()),
            None => assert!(asked, "no kernel of {}", family.name()),
        }
    }
    [0, 1, 2].map(|column| {
        let turn = |k: &&Kernel| {
            let columns: Vec<usize> = (0..3).filter(|c| each[*c].contains(k)).collect();
            chosen(&key(k), column, &columns, whole)
        };
        each[column].iter().filter(turn).cloned().collect()
    })
}

/// Everything compiled: what the code objects say, by target and kernel.
fn compile_all(
    c: &Compiler,
    each: &[BTreeSet<Kernel>; 3],
) -> [BTreeMap<String, metadata::Kernel>; 3] {
    let mut jobs: Vec<(usize, Family, Vec<Kernel>)> = Vec::new();
    for (column, all) in each.iter().enumerate() {
        for family in Family::ALL {
            let of: Vec<Kernel> = all.iter().filter(|k| k.family == family).cloned().collect();
            jobs.extend(of.chunks(MODULE).map(|k| (column, family, k.to_vec())));
        }
    }
    let (next, out) = (
        AtomicUsize::new(0),
        Mutex::new([const { BTreeMap::new() }; 3]),
    );
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((column, family, kernels)) = jobs.get(i) else {
                        break;
                    };
                    let text = source(Dialect::Hip, *family, kernels);
                    let name = format!("{}-{i}", family.name());
                    let t = &TARGETS[*column];
                    let words = hip_options(t.wave).join(" ");
                    let (code, _) = Kept::of("hip", &[&c.version, t.name, &words, &text])
                        .or_make(|| Ok((c.compile(&name, &text, t, false)?, String::new())))
                        .unwrap_or_else(|e| panic!("{e}"));
                    let version = metadata::compiler(&code).unwrap_or_default();
                    assert!(
                        version.contains(VERSION),
                        "the budget is {VERSION}'s, the compiler says {version:?}"
                    );
                    let said = metadata::kernels(&code).unwrap_or_else(|e| panic!("{name}: {e}"));
                    let mut out = out.lock().unwrap();
                    for k in kernels {
                        let one = said.iter().find(|m| m.entry == k.entry);
                        let one = one.unwrap_or_else(|| panic!("{} is not in its module", k.entry));
                        out[*column].insert(key(k), one.clone());
                    }
                }
            });
        }
    });
    out.into_inner().unwrap()
}

fn table(all: &[BTreeMap<String, metadata::Kernel>; 3]) -> Table {
    let mut out = Table::new();
    for (column, kernels) in all.iter().enumerate() {
        for (name, k) in kernels {
            let row = out.entry(name.clone()).or_insert_with(|| FORM.row());
            row.params = k.params.iter().map(|(_, bytes)| bytes).sum();
            row.columns[column] = vec![
                k.vector_registers,
                k.scalar_registers,
                k.vector_spills,
                k.scalar_spills,
                k.scratch,
                k.shared,
            ];
        }
    }
    out
}

/// What a launch gives that the compiled kernel does not take.
fn misfits(t: &Target, l: &Launch, k: &metadata::Kernel) -> Vec<String> {
    let mut out = Vec::new();
    let mut want = |fine: bool, what: String| {
        if !fine {
            out.push(format!("{} for {}: {what}", k.entry, t.name));
        }
    };
    let bytes = l.args.len() as u32;
    want(
        k.params == [(0, bytes)],
        format!(
            "takes parameters at {:?}, the launch passes {bytes} bytes",
            k.params
        ),
    );
    want(
        k.all_params <= 4096,
        format!("{} bytes of parameters with the hidden ones", k.all_params),
    );
    let threads: u32 = l.block.iter().product();
    want(
        threads <= k.threads,
        format!(
            "blocks of {threads} threads, compiled for {} at most",
            k.threads
        ),
    );
    want(
        k.wave == t.wave,
        format!("waves of {}, planned for {}", k.wave, t.wave),
    );
    let (shared, most) = (k.shared + l.shared, facts(t).shared);
    want(
        shared <= most,
        format!("{shared} bytes of shared memory, a block has {most}"),
    );
    want(!k.unbounded, "scratch memory without a bound".into());
    out
}

#[test]
fn every_kernel_compiles_within_its_budget() {
    let Some(c) = Compiler::or_skip() else { return };
    let each = kernels(compiled::all());
    let all = compile_all(&c, &each);
    let mut wrong = Vec::new();
    for (t, kernels) in TARGETS.iter().zip(&all) {
        for l in launches(t) {
            let k = kernels.get(&key(&l.kernel));
            wrong.extend(k.into_iter().flat_map(|k| misfits(t, &l, k)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let found = table(&all);
    match std::fs::read_to_string(BUDGET) {
        Ok(text) => {
            let turn = |name: &str, column: usize| each[column].iter().any(|k| key(k) == name);
            let known: BTreeSet<String> = kernels(true).iter().flatten().map(key).collect();
            let budget = FORM.of(&FORM.read(&text), turn, |name| known.contains(name));
            let diff = FORM.differences(&budget, &found);
            assert!(
                diff.is_empty(),
                "kernels outgrew their budget:\n{diff}if that is meant: {REWRITE}"
            );
        }
        Err(e) => panic!("no budget to hold the kernels to: {BUDGET}: {e}; to write it: {REWRITE}"),
    }
    let every = || all.iter().flat_map(|k| k.values());
    println!(
        "{} kernels for {:?}: at most {} vector registers, {} spill to memory",
        found.len(),
        FORM.columns,
        every().map(|k| k.vector_registers).max().unwrap_or(0),
        every().filter(|k| k.vector_spills > 0).count()
    );
}

#[test]
#[ignore = "rewrites the committed budget"]
fn rewrite() {
    let c = Compiler::find().unwrap_or_else(|e| panic!("{e}; apt-get install {NEEDED}"));
    std::fs::write(BUDGET, FORM.write(&table(&compile_all(&c, &kernels(true))))).unwrap();
}

/// Instructions of an entry of assembly text.
fn instructions<'a>(assembly: &'a str, entry: &str) -> Vec<&'a str> {
    let start = format!("{entry}:");
    let lines = assembly.lines().skip_while(|l| !l.starts_with(&start));
    let body = lines.skip(1).take_while(|l| !l.contains("s_endpgm"));
    body.filter_map(|l| l.split_whitespace().next()).collect()
}

/// The source says with `cw_mul` and `cw_add` what is rounded twice, and counts on correct division and roots; of the compiler's options and
/// device libraries that is only true in the instructions.
#[test]
fn numbers_are_rounded_as_the_source_says() {
    let Some(c) = Compiler::or_skip() else { return };
    let mut text = source(Dialect::Hip, Family::Copy, []);
    for (entry, ty, value) in [
        ("cw_twice", "float", "cw_add(cw_mul(x, y), z)"),
        ("cw_twice64", "double", "cw_add64(cw_mul64(x, y), z)"),
        ("cw_once", "float", "x * y + z"),
        ("cw_once64", "double", "x * y + z"),
        ("cw_quotient", "float", "x / y"),
        ("cw_root", "float", "sqrtf(x)"),
    ] {
        text += &format!(
            "extern \"C\" __global__ void {entry}({ty}* o, {ty} x, {ty} y, {ty} z) {{ *o = {value}; }}\n"
        );
    }
    for t in &TARGETS {
        let code = c.compile("rounding", &text, t, true);
        let code = String::from_utf8(code.unwrap_or_else(|e| panic!("{e}"))).unwrap();
        let has = |entry: &str, words: &[&str]| {
            let all = instructions(&code, entry);
            assert!(!all.is_empty(), "{} has no {entry}:\n{code}", t.name);
            all.iter().any(|i| words.iter().any(|w| i.starts_with(w)))
        };
        const FUSED: [&str; 4] = ["v_fma", "v_fmac", "v_mac", "v_mad"];
        for (twice, once) in [("cw_twice", "cw_once"), ("cw_twice64", "cw_once64")] {
            assert!(!has(twice, &FUSED), "{}: {twice} is contracted", t.name);
            assert!(has(twice, &["v_mul_f"]) && has(twice, &["v_add_f"]));
            assert!(has(once, &FUSED), "{}: {once} is not contracted", t.name);
        }
        assert!(has("cw_quotient", &["v_div_fixup_f32"]), "{}", t.name);
        // A root that is rounded correctly mends the instruction's own.
        assert!(has("cw_root", &["v_sqrt_f32"]) && has("cw_root", &FUSED));
        let denormals = code.matches(".amdhsa_float_denorm_mode_32 3").count();
        assert_eq!(denormals, 6, "{}: kernels that keep denormals", t.name);
    }
}

/// A wave's width that is not the target's must not compile: sums over a wave would leave half of it out.
#[test]
fn another_waves_width_does_not_compile() {
    let Some(c) = Compiler::or_skip() else { return };
    let text = source(Dialect::Hip, Family::Copy, []);
    for t in &TARGETS {
        let wrong = Target {
            name: t.name,
            wave: 96 - t.wave,
        };
        let words = c.compile("width", &text, &wrong, false).unwrap_err();
        assert!(words.contains("CW_WARP is not the wave's width"), "{words}");
    }
}

#[test]
fn a_launch_that_does_not_fit_is_seen() {
    let t = &TARGETS[0];
    let l = &launches(t)[0];
    let good = metadata::Kernel {
        entry: l.kernel.entry.clone(),
        vector_registers: 32,
        scalar_registers: 32,
        vector_spills: 0,
        scalar_spills: 0,
        scratch: 0,
        shared: 0,
        threads: 1024,
        wave: 64,
        unbounded: false,
        all_params: l.args.len() as u32,
        params: vec![(0, l.args.len() as u32)],
    };
    assert_eq!(misfits(t, l, &good), [""; 0]);
    let broken: [(&str, fn(&mut metadata::Kernel)); 6] = [
        ("takes parameters at", |k| k.params[0].1 += 8),
        ("with the hidden ones", |k| k.all_params = 5000),
        ("compiled for 1 at most", |k| k.threads = 1),
        ("waves of 32", |k| k.wave = 32),
        ("bytes of shared memory", |k| k.shared = 80 << 10),
        ("without a bound", |k| k.unbounded = true),
    ];
    for (words, spoil) in broken {
        let mut bad = good.clone();
        spoil(&mut bad);
        let said = misfits(t, l, &bad);
        assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    }
}
