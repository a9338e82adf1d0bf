//! Back ends of GPUs on the simulators of their run times (`tests/sim`): cases of the kit, training to the CPU's losses, and bugs of back ends, each
//! of which the kit must name where the simulator is at its worst. *Executed against simulator*: nothing here says anything of a device.

use crossweave_tests::{built, sim, system::within};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A job that hangs fails its test.
const HUNG: Duration = Duration::from_secs(600);

/// A back end, its simulator, and the keys that name libraries which the simulator is.
struct Vendor {
    name: &'static str,
    skin: &'static str,
    keys: &'static [&'static str],
}

const CUDA: Vendor = Vendor {
    name: "cuda",
    skin: "cuda",
    keys: &[
        "cuda.libcuda",
        "cuda.libnvrtc",
        "cuda.libcublaslt",
        "cuda.libcudnn",
        "cuda.libnccl",
    ],
};
const ROCM: Vendor = Vendor {
    name: "rocm",
    skin: "hip",
    keys: &["rocm.libamdhip64", "rocm.libhipblaslt", "rocm.librccl"],
};

/// The ROCm back end on libraries that forward its calls to CUDA's.
const FORWARDED: Vendor = Vendor {
    name: "rocm",
    skin: "forward",
    keys: &[
        "rocm.libamdhip64",
        "rocm.libhiprtc",
        "rocm.libhipblaslt",
        "rocm.librccl",
    ],
};

const ASCEND: Vendor = Vendor {
    name: "ascend",
    skin: "acl",
    keys: &[
        "ascend.libascendcl",
        "ascend.libnnopbase",
        "ascend.libopapi",
        "ascend.libhccl",
    ],
};

/// A back end on a simulator.
struct Simulated {
    program: PathBuf,
    options: String,
    /// `CW_SIM`: how streams run.
    mode: &'static str,
    /// What calls are forwarded to.
    forward: Option<PathBuf>,
}

impl Simulated {
    fn new(v: &Vendor, mode: &'static str) -> Simulated {
        Simulated::on(v, &sim::library(v.skin, "suite"), v.name, mode)
    }

    /// Compiled kernels are kept for the next test, by their sources, in the folder `kernels`.
    fn on(v: &Vendor, library: &Path, kernels: &str, mode: &'static str) -> Simulated {
        Simulated {
            program: built::plugins().join("crossweave"),
            options: Simulated::options(v, library, kernels),
            mode,
            forward: None,
        }
    }

    /// Several vendors in one job.
    fn all(vendors: &[&Vendor], mode: &'static str) -> Simulated {
        let of = |v: &&Vendor| Simulated::options(v, &sim::library(v.skin, "suite"), v.name);
        let options: Vec<String> = vendors.iter().map(of).collect();
        Simulated {
            program: built::plugins().join("crossweave"),
            options: options.join(";"),
            mode,
            forward: None,
        }
    }

    fn options(v: &Vendor, library: &Path, kernels: &str) -> String {
        let cache = sim::folder().join(format!("kernels-{kernels}"));
        let libraries = v.keys.iter().map(|k| format!("{k}={}", library.display()));
        let mut options: Vec<String> = libraries.collect();
        // Ascend has operators, and compiles nothing.
        if v.name != ASCEND.name {
            options.push(format!("{}.cache_dir={}", v.name, cache.display()));
        }
        options.join(";")
    }

    fn command(&self, dir: &Path, args: &[&str]) -> Command {
        let mut c = Command::new(&self.program);
        c.current_dir(dir).args(args);
        c.env("CROSSWEAVE_PLUGIN_OPTIONS", &self.options);
        c.env("CW_SIM", self.mode);
        c.envs(self.forward.iter().map(|f| ("CW_FORWARD", f)));
        c
    }

    /// What the kit says of these cases.
    fn conform(&self, v: &Vendor, ranks: &str, only: &[&str]) -> Output {
        let mut args = vec!["conform", v.name, "--quick", "--ranks", ranks, "-v"];
        args.extend(["--case-limit", "60s"]);
        args.extend(only.iter().flat_map(|o| ["--only", *o]));
        within(HUNG, &mut self.command(Path::new("."), &args))
    }

    /// The losses of a run.
    fn train(&self, job: &Job, ranks: &str, sets: &[&str]) -> Vec<f64> {
        let out = format!("{ranks}{}{}", sets.join(""), self.mode);
        let out: String = out.chars().filter(char::is_ascii_alphanumeric).collect();
        let mut args = vec!["train", "config.json", "--ranks", ranks, "--out", &out];
        args.extend(sets.iter().flat_map(|s| ["--set", *s]));
        let o = within(HUNG, &mut self.command(job.dir.path(), &args));
        let said = String::from_utf8_lossy(&o.stderr);
        assert!(o.status.success(), "{args:?}: {said}");
        let text = std::fs::read_to_string(job.dir.path().join(&out).join("metrics.jsonl"));
        let each = text.expect("metrics").lines().map(String::from).collect();
        let each: Vec<String> = each;
        let loss = |l: &String| serde_json::from_str::<serde_json::Value>(l).ok()?["loss"].as_f64();
        each.iter().filter_map(loss).collect()
    }
}

/// Asks the kit and wants every case to hold.
fn holds(s: &Simulated, v: &Vendor, ranks: &str, only: &[&str]) {
    let o = s.conform(v, ranks, only);
    let said = String::from_utf8_lossy(&o.stdout);
    let passed = said.lines().filter(|l| l.starts_with("PASS")).count();
    assert!(o.status.success(), "{} {}: {said}", v.name, s.mode);
    assert!(passed >= only.len(), "{}: {said}", v.name);
    assert!(said.contains("executed against simulator"), "{said}");
}

/// A case or two of each group, of ops one of each kind of kernel.
const SAMPLE: &[&str] = &[
    "abi.tables_state_their_size",
    "life.threads_end_with_their_owner",
    "mem.copy.*",
    "mem.fill.patterns",
    "order.cross_stream_event",
    "order.stream_is_in_order",
    "order.op.arrays_are_read_before_return",
    "op.binary.add.f32",
    "op.cumsum.f32",
    "op.softmax_fwd.f32",
    "op.embedding_fwd.f32.by_i32",
    "coll.all_reduce.f32.sum.*",
    "coll.send_recv.u8.*",
    "fault.missing_rank_is_named.*",
    "leak.event",
];

#[test]
fn a_sample_of_the_kit_holds_on_the_simulator_of_cuda() {
    holds(&Simulated::new(&CUDA, "late=3"), &CUDA, "2", SAMPLE);
}

#[test]
fn a_sample_of_the_kit_holds_on_the_simulator_of_rocm() {
    holds(&Simulated::new(&ROCM, "lazy"), &ROCM, "2", SAMPLE);
}

#[test]
fn a_sample_of_the_kit_holds_on_the_simulator_of_ascend() {
    let mut cases = SAMPLE.to_vec();
    // The core composes it.
    cases.retain(|c| !c.contains("embedding"));
    cases.extend([
        "op.*_norm_*.f32",
        "op.attention_fwd.bf16",
        "op.attention_bwd.bf16",
        "op.activation_bwd.gelu_erf.f16",
        "op.swiglu_bwd.f32",
        "op.rope.interleaved.f32",
        "op.matmul.*f32*",
        "op.sort_pairs.*",
        "op.philox.*",
        "op.scatter_add_rows.*",
    ]);
    holds(&Simulated::new(&ASCEND, "lazy"), &ASCEND, "2", &cases);
}

#[test]
#[ignore = "an hour: cargo test --release -p crossweave-tests --test suite every_case_on -- --ignored"]
fn every_case_on_the_simulators_holds() {
    for v in [&CUDA, &ROCM, &ASCEND] {
        for mode in ["", "late=7", "lazy"] {
            holds(&Simulated::new(v, mode), v, "1,2,3,4,6,8", &["*"]);
        }
    }
}

/// A folder with a model and its text.
struct Job {
    dir: tempfile::TempDir,
}

const GPT2: &str =
    r#"{"family": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}"#;
const LLAMA: &str = r#"{"family": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 16}"#;

impl Job {
    fn new(model: &str) -> Job {
        let dir = tempfile::tempdir().expect("a folder");
        let config = format!(
            r#"{{"model": {model}, "data": {{"train": "text.txt", "tokenizer": "bytes"}},
              "run": {{"steps": 3, "threads_per_rank": 1}}, "train_batch_size": 4, "gradient_clipping": 1.0,
              "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-2, "weight_decay": 0.1}}}}}}"#
        );
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        let words = (0..4000u32).map(|i| format!("word{} ", i * i % 97));
        let text: String = words.collect();
        std::fs::write(dir.path().join("text.txt"), text).expect("written");
        Job { dir }
    }
}

const ZERO3: &str = "zero_optimization.stage=3";
const PP2: &str = "mesh.pp=2";
const TP2: &str = "mesh.tp=2";
const OFFLOAD: &str = "zero_optimization.offload_optimizer.device=cpu";

/// Ranks, and what is set.
type Run = (u32, &'static [&'static str]);

/// These runs follow the CPU's losses.
fn follow(v: &Vendor, mode: &'static str, model: &str, runs: &[Run]) {
    let named: Vec<_> = runs
        .iter()
        .map(|(n, sets)| (format!("{}:{n}", v.name), *sets))
        .collect();
    follows(&Simulated::new(v, mode), model, &named);
}

fn follows(s: &Simulated, model: &str, runs: &[(String, &[&str])]) {
    let job = Job::new(model);
    let want = s.train(&job, "cpu:1", &[]);
    assert!(want.len() == 3 && want[2] < want[0], "{want:?}");
    for (ranks, sets) in runs {
        let got = s.train(&job, ranks, sets);
        assert_eq!(got.len(), want.len(), "{ranks} {sets:?}");
        for (a, b) in want.iter().zip(&got) {
            let close = (a - b).abs() <= 1e-4 * a;
            let what = format!("{ranks} {sets:?} {}", s.mode);
            assert!(close, "{what}: {got:?}, on the CPU {want:?}");
        }
    }
}

/// Their collectives are carried through pinned memory, by functions of the host's on each rank's stream. The simulator frees memory only when all
/// streams of the device stand still, as a driver does: a stream that waits for another rank must not be one that the device sees (ADR 0102).
#[test]
fn ranks_that_share_a_device_train() {
    follow(&CUDA, "devices=1", GPT2, &[(4, &[ZERO3])]);
    follow(&ROCM, "devices=1,lazy", LLAMA, &[(2, &[ZERO3])]);
    follow(&ASCEND, "devices=1,late=3", GPT2, &[(2, &[])]);
}

/// One job on a CPU and two vendors' devices.
#[test]
fn a_job_of_two_vendors_and_a_cpu_trains() {
    let s = Simulated::all(&[&ROCM, &ASCEND], "late=9");
    let ranks = "cpu:2,rocm:1,ascend:1".to_string();
    follows(&s, GPT2, &[(ranks.clone(), &[]), (ranks, &[ZERO3])]);
    // Each pair that shares layers is on one of them.
    let pairs = "rocm:2,ascend:2".to_string();
    follows(&s, GPT2, &[(pairs, &[TP2])]);
}

#[test]
fn gpt2_trains_on_the_simulator_of_cuda() {
    follow(
        &CUDA,
        "late=5",
        GPT2,
        &[(2, &[ZERO3, OFFLOAD]), (2, &[TP2])],
    );
}

#[test]
fn llama_trains_on_the_simulator_of_rocm() {
    follow(
        &ROCM,
        "late=5",
        LLAMA,
        &[(1, &[]), (2, &[PP2]), (2, &[TP2])],
    );
}

#[test]
fn gpt2_and_llama_train_on_the_simulator_of_ascend() {
    follow(&ASCEND, "late=5", GPT2, &[(2, &[ZERO3, OFFLOAD])]);
    follow(&ASCEND, "lazy", LLAMA, &[(2, &[PP2]), (2, &[TP2])]);
}

/// hipBLASLt ends the process of the caller that makes its handle without a device, on the simulator too: it is not asked before there is one.
#[test]
fn hipblaslt_is_left_alone_where_there_is_no_device() {
    let s = Simulated::new(&ROCM, "devices=0");
    let o = within(HUNG, &mut s.command(Path::new("."), &["backends"]));
    let said = String::from_utf8_lossy(&o.stdout);
    assert!(o.status.success(), "{said}");
    assert!(said.contains("the HIP run time sees none"), "{said}");
}

/// Every call of the ROCm back end as CUDA takes it: here on the simulator of CUDA, by `ci/gpu forward` on a device.
#[test]
fn the_rocm_back_end_works_through_calls_forwarded_to_cuda() {
    let library = sim::library(FORWARDED.skin, "suite");
    let mut s = Simulated::on(&FORWARDED, &library, "forwarded", "late=5");
    s.forward = Some(sim::library(CUDA.skin, "suite"));
    let cases = [
        "mem.copy.*",
        "mem.fill.patterns",
        "order.cross_stream_event",
        "op.binary.add.f32",
        "op.matmul.f32*",
        "coll.all_reduce.f32.sum.*",
        "coll.send_recv.u8.*",
        "leak.event",
    ];
    holds(&s, &FORWARDED, "2", &cases);
    let runs: [Run; 2] = [(1, &["run.graphs=on"]), (2, &[ZERO3])];
    follows(&s, GPT2, &runs.map(|(n, sets)| (format!("rocm:{n}"), sets)));
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite every_layout_on -- --ignored"]
fn every_layout_on_the_simulators_follows_the_cpu() {
    let runs: &[Run] = &[
        (1, &[]),
        (1, &[OFFLOAD, "zero_optimization.stage=1"]),
        (2, &[]),
        (2, &["zero_optimization.stage=1"]),
        (2, &["zero_optimization.stage=2"]),
        (2, &[ZERO3]),
        (2, &[ZERO3, OFFLOAD]),
        (2, &[PP2]),
        (4, &[ZERO3]),
        (4, &[PP2, "zero_optimization.stage=1"]),
        (2, &[TP2]),
        (4, &[TP2, ZERO3]),
        (4, &[TP2, PP2]),
    ];
    for v in [&CUDA, &ROCM, &ASCEND] {
        for mode in ["late=11", "lazy"] {
            for model in [GPT2, LLAMA] {
                follow(v, mode, model, runs);
            }
        }
    }
}

/// A bug of a back end, the case that names it, and how the simulator's streams run: at their worst, so that it is no luck. Streams that nobody asks
/// do not overtake those that are asked, however busy the machine; streams that pause between two commands leave others time to come between.
type Bug = (&'static str, &'static str, &'static str);

const BUGS: &[Bug] = &[
    ("missing_synchronisation", "mem.copy.sizes", "lazy"),
    ("missing_event", "order.cross_stream_event", "lazy"),
    ("host_access", "mem.copy.sizes", "late=1"),
    ("out_of_bounds", "mem.copy.sizes", "late=1"),
    ("fill_out_of_bounds", "mem.fill.patterns", "late=1"),
    ("use_after_free", "mem.copy.sizes", "lazy"),
    ("shared_scratch", "order.random_replay", "late=1"),
    ("wrong_direction", "mem.copy.sizes", "late=1"),
    ("wrong_enum", "coll.all_reduce.f32.sum.r2", "late=1"),
    (
        "mismatched_collective",
        "coll.all_reduce.f32.sum.r2",
        "late=1",
    ),
    ("wave_of_32", "op.rms_norm_fwd.f32.sizes", "late=1"),
];

/// Those of a back end over ACL. What is no matter of order is looked for where streams run late, as in `BUGS`.
const ACL_BUGS: &[Bug] = &[
    ("acl_missing_synchronisation", "mem.copy.sizes", "lazy"),
    ("acl_missing_event", "order.cross_stream_event", "lazy"),
    ("acl_host_access", "mem.copy.sizes", "late=1"),
    ("acl_wrong_room", "mem.copy.sizes", "late=1"),
    ("acl_wrong_direction", "mem.copy.sizes", "late=1"),
    ("acl_use_after_free", "mem.copy.sizes", "lazy"),
    ("acl_executor_twice", "leak.op.launches", "late=1"),
    ("acl_ignored_workspace", "op.binary.mul.f32", "late=1"),
    ("acl_freed_workspace", "op.copy_strided.f32", "lazy"),
    ("acl_lost_eps", "op.rms_norm_fwd.f32", "late=1"),
    ("acl_other_gelu", "op.activation_bwd.gelu_erf.f32", "late=1"),
    (
        "acl_causal_from_the_first_key",
        "op.attention_fwd.f32",
        "late=1",
    ),
    ("acl_unstable_sort", "op.sort_pairs.f32.i32", "late=1"),
    ("acl_wrong_enum", "op.cast.f32.from_bf16", "late=1"),
    ("acl_short_id", "coll.all_reduce.f32.sum.r2", "late=1"),
    (
        "acl_mismatched_collective",
        "coll.all_reduce.f32.sum.r2",
        "late=1",
    ),
];

/// Every bug is named by its case, and without a bug the cases hold.
fn named(v: &Vendor, bugs: &[Bug]) {
    let mut lost = vec![];
    for mode in ["lazy", "late=1"] {
        let of = bugs.iter().filter(|b| b.2 == mode).map(|b| b.1);
        let mut cases: Vec<&str> = of.collect();
        cases.sort_unstable();
        cases.dedup();
        holds(&Simulated::new(v, mode), v, "2", &cases);
    }
    for (bug, case, mode) in bugs {
        // A bug of kernels would be in those that are kept.
        let kernels = if bug.starts_with("wave") { bug } else { v.name };
        let library = sim::with_bug(v.skin, bug, "suite");
        let o = Simulated::on(v, &library, kernels, mode).conform(v, "2", &[case]);
        let said = String::from_utf8_lossy(&o.stdout);
        let line = said
            .lines()
            .find(|l| l.starts_with("FAIL") && l.contains(case));
        println!("{bug}: {}", line.unwrap_or("not named"));
        // A case that only takes too long names nothing.
        if line.is_none_or(|l| l.contains("hung")) {
            lost.push(format!("{bug} ({mode}): {said}"));
        }
    }
    assert_eq!(lost, Vec::<String>::new(), "bugs that were not named");
}

#[test]
fn bugs_of_a_back_end_are_named_on_the_simulator() {
    named(&ROCM, BUGS);
}

#[test]
fn bugs_of_a_back_end_over_acl_are_named_on_the_simulator() {
    named(&ASCEND, ACL_BUGS);
}
