//! The jobs whose calls are compared: every feature of a step by itself, and those that meet in the same place together.

use crate::common::*;
use crossweave_engine::optimizers::*;
use crossweave_engine::{
    Documents, Engine, FileSettings, LossScaler, OffloadDevice, OffloadSpec, OptimizerOffload,
    PipelineOrder, PipelineSpec, Precision, RankSpec, Recompute, Rows, ScaleRule, ZeroSpec,
    ZeroStage,
};
use crossweave_hal::DType;
use crossweave_nn::{Lora, ModelSpec, Targets};
use crossweave_tensor::UnitDecl;
use std::path::Path;

/// A job: its name, what is trained, and what every rank is asked to do.
pub struct Job {
    pub name: String,
    pub units: Box<dyn Fn() -> Vec<UnitDecl> + Sync>,
    pub spec: RankSpec,
    /// Done to each rank's engine before its first step.
    pub before: fn(&mut Engine),
    /// Run on the CPU instead of the null device, as graphs.
    pub on_cpu: bool,
    /// Pinned memory is listed by what it is for and its size only: a thread gives it back when it has done.
    pub pinned_in_any_order: bool,
}

const RECOMPUTE: [Recompute; 3] = [Recompute::None, Recompute::Full, Recompute::Selective];
const STAGES: std::ops::Range<u32> = 0..4;

struct Matrix<'a> {
    folder: &'a Path,
    jobs: Vec<Job>,
}

pub fn jobs(folder: &Path) -> Vec<Job> {
    let mut m = Matrix {
        folder,
        jobs: vec![],
    };
    m.stages();
    m.precision();
    m.choices();
    m.hierarchical();
    m.canonical();
    m.optimizers();
    m.pipelines();
    m.adapters();
    m.offload();
    m.inputs();
    m.jobs
}

fn staged(base: RankSpec, stage: u32) -> RankSpec {
    RankSpec {
        zero: ZeroSpec {
            stage: ZeroStage::from_number(stage).unwrap(),
            ..base.zero
        },
        ..base
    }
}

fn nothing(_: &mut Engine) {}

/// A model whose matrices are large enough for 8-bit blocks.
fn larger() -> ModelSpec {
    with(&gpt2(1, 0.0), &[("n_embd", 66), ("n_inner", 130)])
}

fn untied(layers: u64) -> ModelSpec {
    with(&gpt2(layers, 0.0), &[("tie_word_embeddings", false)])
}

fn adam() -> Optimizer {
    Optimizer::Adam(Adam::default())
}

fn muon() -> ParamGroups {
    let muon = Optimizer::Muon(Muon {
        momentum: 0.95,
        nesterov: true,
        ns_steps: 2,
        scale: MuonScale::Spectral,
        extra_scale: 0.2,
    });
    let mut g = ParamGroups::all(muon, 0.1);
    g.fallback = Some(Recipe {
        optimizer: adam(),
        lr_scale: 1.0,
        weight_decay: 0.1,
        ema: None,
    });
    g
}

fn adafactor(beta1: Option<f64>, relative_step: bool) -> Optimizer {
    Optimizer::Adafactor(Adafactor {
        eps: [1e-30, 1e-3],
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1,
        scale_parameter: relative_step,
        relative_step,
        warmup_init: relative_step,
    })
}

fn lamb() -> Optimizer {
    Optimizer::Lamb(Lamb {
        adam: Adam::default(),
        max_coeff: 10.0,
        min_coeff: 0.01,
    })
}

fn sgd(momentum: f64, nesterov: bool) -> Optimizer {
    Optimizer::Sgd(Sgd {
        momentum,
        dampening: 0.1,
        nesterov,
    })
}

/// Groups of several kinds in one unit, and frozen parameters among them.
fn mixture() -> ParamGroups {
    let rule = |patterns: &[&str]| GroupRule {
        patterns: patterns.iter().map(|p| p.to_string()).collect(),
        ..Default::default()
    };
    let mut g = ParamGroups::all(adam(), 0.1);
    g.rules = vec![
        GroupRule {
            frozen: true,
            ..rule(&["*wpe*", "*ln_1.bias", "*h.0.attn.c_attn.*"])
        },
        GroupRule {
            optimizer: Some(lamb()),
            lr_scale: Some(0.5),
            ..rule(&["*mlp.c_fc.weight"])
        },
        GroupRule {
            optimizer: Some(adafactor(None, true)),
            ..rule(&["*mlp.c_proj.weight"])
        },
        GroupRule {
            weight_decay: Some(0.0),
            ..rule(&["*.bias", "*ln*"])
        },
    ];
    g
}

fn optimizers() -> Vec<(&'static str, ParamGroups)> {
    let one = |o| ParamGroups::all(o, 0.1);
    let l2 = Adam {
        l2: true,
        bias_correction: false,
        ..Adam::default()
    };
    vec![
        ("adam", one(Optimizer::Adam(l2))),
        ("adam8bit", one(Optimizer::Adam8bit(Adam::default()))),
        ("lion", one(Optimizer::Lion { betas: [0.9, 0.99] })),
        ("lamb", one(lamb())),
        ("sgd", one(sgd(0.0, false))),
        ("sgd with momentum", one(sgd(0.9, true))),
        ("adafactor", one(adafactor(None, true))),
        ("adafactor with a moment", one(adafactor(Some(0.9), false))),
        ("muon", muon()),
        ("mixture", mixture()),
    ]
}

fn fp16(rule: ScaleRule) -> Precision {
    Precision {
        scaler: Some(LossScaler::new(rule, 65536.0, 2, 2, 1.0)),
        ..Precision::default()
    }
}

impl Matrix<'_> {
    fn add(&mut self, name: impl Into<String>, model: &ModelSpec, spec: RankSpec) -> &mut Job {
        let (name, model) = (name.into(), model.clone());
        let pinned_in_any_order = spec.offload.as_ref().is_some_and(|o| o.optimizer.is_some());
        assert!(
            self.jobs.iter().all(|j| j.name != name),
            "{name} is there twice"
        );
        self.jobs.push(Job {
            name,
            units: Box::new(move || units(&model)),
            spec,
            before: nothing,
            on_cpu: false,
            pinned_in_any_order,
        });
        self.jobs.last_mut().unwrap()
    }

    fn add_lora(&mut self, name: &str, (model, lora): &(ModelSpec, Lora), spec: RankSpec) {
        let with = (model.clone(), lora.clone());
        self.add(name, model, spec).units = Box::new(move || units(&with));
    }

    fn models(&self) -> [(&'static str, ModelSpec); 2] {
        [("gpt2", gpt2(2, 0.1)), ("llama", llama(2))]
    }

    /// Every stage on one rank and several, by recompute, clipping and type in turn.
    fn stages(&mut self) {
        let mut turn = 0;
        for (family, model) in self.models() {
            for ranks in [1, 2, 3] {
                for stage in STAGES {
                    for compute in [DType::F32, DType::Bf16] {
                        turn += 1;
                        let recompute = RECOMPUTE[turn % 3];
                        let clip = [0.0, 0.5][turn / 2 % 2];
                        let micro = 1 + (turn as u32 + stage) % 2;
                        let name = format!(
                            "{family}, {ranks} ranks, stage {stage}, {}, {micro} micro-batches, {recompute:?}, clip {clip}",
                            compute.name()
                        );
                        let base = RankSpec {
                            compute,
                            recompute,
                            clip,
                            ..spec(ranks, micro)
                        };
                        self.add(name, &model, staged(base, stage));
                    }
                }
            }
        }
    }

    /// Loss scaling, wires and sums in 16 bits.
    fn precision(&mut self) {
        let model = gpt2(1, 0.0);
        for stage in STAGES {
            for ranks in [1, 2] {
                let rules = [
                    ScaleRule::Static,
                    ScaleRule::DeepSpeed { consecutive: false },
                    ScaleRule::Megatron,
                    ScaleRule::Torch,
                ];
                let base = RankSpec {
                    compute: DType::F16,
                    clip: [0.5, 0.0][(stage + ranks) as usize % 2],
                    precision: Precision {
                        wire: [DType::F32, DType::F16][stage as usize % 2],
                        predivide: [None, Some(4.0)][ranks as usize % 2],
                        ..fp16(rules[stage as usize])
                    },
                    ..spec(ranks, 2)
                };
                let name = format!("fp16 by rule {stage}, {ranks} ranks, stage {stage}");
                let job = self.add(name, &model, staged(base.clone(), stage));
                if stage == 2 {
                    job.before = |t| t.poison(2);
                }
                for (what, compute, wire, accum) in [
                    ("sums in bf16", DType::Bf16, DType::F32, DType::Bf16),
                    ("a wire of bf16", DType::F32, DType::Bf16, DType::F32),
                    (
                        "wire and sums in bf16",
                        DType::Bf16,
                        DType::Bf16,
                        DType::Bf16,
                    ),
                ] {
                    let s = RankSpec {
                        compute,
                        precision: Precision {
                            wire,
                            accum,
                            ..Precision::default()
                        },
                        ..base.clone()
                    };
                    let name = format!("{what}, {ranks} ranks, stage {stage}");
                    self.add(name, &model, staged(s, stage));
                }
            }
        }
        let s = RankSpec {
            compute: DType::Bf16,
            precision: Precision {
                accum: DType::Bf16,
                ..Precision::default()
            },
            ..spec(2, 3)
        };
        self.add("sums in bf16, untied", &llama(1), staged(s, 3));
    }

    /// What moves gathers, reductions and lanes.
    fn choices(&mut self) {
        let model = gpt2(3, 0.0);
        type Change = fn(&mut RankSpec);
        let changes: [(&str, Change); 10] = [
            ("no prefetch", |s| s.zero.prefetch = 0),
            ("prefetch 9", |s| s.zero.prefetch = 9),
            ("prefetch within 4000 elements", |s| {
                (s.zero.prefetch, s.zero.max_live) = (9, Some(4000));
            }),
            ("no buckets, one lane", |s| {
                (s.zero.bucket_bytes, s.zero.overlap) = (0, false);
            }),
            ("one bucket", |s| {
                (s.zero.bucket_bytes, s.recompute) = (1 << 30, Recompute::Full);
            }),
            ("reuse", |s| s.zero.reuse_within = Some(5000)),
            ("keep", |s| {
                (s.zero.reshard, s.recompute) = (false, Recompute::Selective);
            }),
            ("small units stay", |s| s.zero.persist_below = 100),
            ("all units stay", |s| s.zero.persist_below = 1 << 40),
            ("uneven", |s| s.rows.weight = 1.25),
        ];
        for (k, (what, change)) in changes.into_iter().enumerate() {
            for stage in [0, 1, 2, 3] {
                if stage != 3 && k != 3 && k != 4 && k != 9 {
                    continue;
                }
                let mut s = RankSpec {
                    compute: [DType::F32, DType::Bf16][(k + stage as usize) % 2],
                    clip: [0.0, 0.5][k / 2 % 2],
                    ..staged(spec(2, 2), stage)
                };
                change(&mut s);
                self.add(format!("{what}, stage {stage}"), &model, s);
            }
        }
    }

    /// Secondary shards and quantized gathers.
    fn hierarchical(&mut self) {
        for (family, model) in [("gpt2", gpt2(2, 0.0)), ("untied gpt2", untied(1))] {
            for (compute, quantized, prefetch) in [
                (DType::F32, false, 1),
                (DType::Bf16, false, 2),
                (DType::Bf16, true, 1),
                (DType::F16, true, 0),
            ] {
                let mut s = RankSpec {
                    compute,
                    recompute: Recompute::Full,
                    ..staged(spec(4, 1), 3)
                };
                (s.zero.node, s.zero.quantized, s.zero.prefetch) = (2, quantized, prefetch);
                let name = format!(
                    "{family}, nodes of 2, {}, quantized {quantized}",
                    compute.name()
                );
                self.add(name, &model, s);
            }
            for stage in 1..4 {
                for ranks in [2, 3] {
                    let mut s = RankSpec {
                        compute: DType::Bf16,
                        ..staged(spec(ranks, 2), stage)
                    };
                    (s.zero.quantized, s.zero.overlap) = (true, ranks == 2);
                    let name = format!("{family}, quantized, {ranks} ranks, stage {stage}");
                    self.add(name, &model, s);
                }
            }
        }
    }

    /// Sums over logical shards.
    fn canonical(&mut self) {
        for (family, model) in [("gpt2", gpt2(1, 0.1)), ("llama", llama(1))] {
            for ranks in [1, 2, 3] {
                for stage in STAGES {
                    let turn = (ranks + stage) as usize;
                    let mut s = RankSpec {
                        compute: [DType::F32, DType::Bf16][turn % 2],
                        clip: [0.5, 0.0][turn / 2 % 2],
                        recompute: RECOMPUTE[turn % 3],
                        canonical: Some([3, 4, 5][turn % 3]),
                        rows: Rows::new(2, SEQ),
                        ..staged(spec(ranks, 1 + stage % 2), stage)
                    };
                    s.precision.wire = [DType::F32, DType::Bf16][stage as usize / 2];
                    let name = format!("canonical, {family}, {ranks} ranks, stage {stage}");
                    self.add(name, &model, s);
                }
            }
        }
        for (what, optim) in optimizers() {
            if ["lamb", "adafactor", "muon", "mixture"].contains(&what) {
                let s = RankSpec {
                    canonical: Some(4),
                    rows: Rows::new(2, SEQ),
                    optim,
                    ..staged(spec(2, 1), 2)
                };
                self.add(format!("canonical, {what}"), &gpt2(1, 0.0), s);
            }
        }
        let mut s = RankSpec {
            canonical: Some(4),
            compute: DType::F16,
            precision: fp16(ScaleRule::Torch),
            rows: Rows::new(2, SEQ),
            ..staged(spec(3, 1), 3)
        };
        s.zero.overlap = false;
        self.add("canonical, fp16, one lane", &gpt2(1, 0.0), s);
    }

    /// Every optimizer by stage, type and number of ranks in turn.
    fn optimizers(&mut self) {
        let all = optimizers();
        for (k, (what, optim)) in all.iter().enumerate() {
            let model = match *what {
                "adam8bit" => larger(),
                _ => gpt2(1, 0.0),
            };
            for (stage, ranks) in [(0, 1), (0, 2), (1, 2), (2, 3), (3, 1), (3, 2)] {
                let turn = k + stage as usize + ranks as usize;
                let mut s = RankSpec {
                    compute: [DType::F32, DType::Bf16, DType::F16][turn % 3],
                    clip: [0.5, 0.0][turn / 2 % 2],
                    optim: optim.clone(),
                    ..staged(spec(ranks, 1), stage)
                };
                if s.compute == DType::F16 {
                    s.precision = fp16(ScaleRule::Torch);
                }
                let name = format!(
                    "{what}, {ranks} ranks, stage {stage}, {}, clip {}",
                    s.compute.name(),
                    s.clip
                );
                self.add(name, &model, s);
            }
            if k < 4 {
                let s = RankSpec {
                    optim: optim.clone(),
                    ..staged(spec(2, 1), 2)
                };
                let job = self.add(format!("{what}, scheduled betas"), &model, s);
                job.before = |t| t.schedule_betas(|n| Some([0.9 - 0.01 * n as f64, 0.99]));
            }
        }
        let s = spec(1, 1);
        let job = self.add("diagnostics", &gpt2(1, 0.0), staged(s, 3));
        job.before = Engine::find_nonfinite;
    }

    fn pipelines(&mut self) {
        let mut turn = 0;
        for (family, model) in [("gpt2", gpt2(2, 0.1)), ("llama", llama(2))] {
            for (pp, order) in [
                (2, PipelineOrder::GPipe),
                (2, PipelineOrder::OneFOneB),
                (3, PipelineOrder::OneFOneB),
            ] {
                for stage in STAGES {
                    turn += 1;
                    let ranks = 1 + turn % 2;
                    let s = RankSpec {
                        compute: [DType::F32, DType::Bf16, DType::F16][turn as usize % 3],
                        clip: [0.5, 0.0][turn as usize / 2 % 2],
                        recompute: RECOMPUTE[turn as usize / 2 % 3],
                        pipeline: Some(PipelineSpec::even(units(&model).len() as u32, pp, order)),
                        ..staged(spec(ranks, 4), stage)
                    };
                    let name = format!(
                        "{family}, {pp} {} stages of {ranks} ranks, stage {stage}",
                        order.name()
                    );
                    self.add(name, &model, s);
                }
            }
        }
        // Loss scaling, and figures over stages and ranks.
        let pipeline = |pp| Some(PipelineSpec::even(4, pp, PipelineOrder::OneFOneB));
        let s = RankSpec {
            compute: DType::F16,
            precision: fp16(ScaleRule::Torch),
            pipeline: pipeline(2),
            ..staged(spec(2, 4), 1)
        };
        self.add("pipeline, fp16", &gpt2(2, 0.0), s.clone());
        let s = RankSpec {
            compute: DType::Bf16,
            precision: Precision {
                accum: DType::Bf16,
                wire: DType::Bf16,
                ..Precision::default()
            },
            ..s
        };
        self.add("pipeline, sums in bf16", &gpt2(2, 0.0), s.clone());
        let mut s = RankSpec {
            precision: Precision::default(),
            optim: mixture(),
            ..staged(s, 3)
        };
        (s.zero.quantized, s.zero.overlap) = (true, false);
        self.add("pipeline, quantized, mixture, one lane", &gpt2(2, 0.0), s);
    }

    /// Adapters on a base that stays as it is.
    fn adapters(&mut self) {
        let lora = |dropout, targets| Lora {
            r: 3,
            alpha: 7.0,
            dropout,
            rslora: false,
            targets,
            parameters: vec![],
        };
        let some = ["c_attn", "mlp.c_proj", "lm_head"].map(str::to_string);
        let cases = [
            (
                "gpt2",
                (gpt2(2, 0.1), lora(0.2, Targets::Names(some.into()))),
            ),
            ("llama", (llama(1), lora(0.0, Targets::AllLinear))),
        ];
        for (family, with) in &cases {
            for (ranks, stage) in [(1, 0), (1, 3), (2, 1), (2, 2), (2, 3), (3, 3)] {
                let s = RankSpec {
                    compute: [DType::F32, DType::Bf16][(ranks + stage) as usize % 2],
                    recompute: RECOMPUTE[ranks as usize % 3],
                    ..staged(spec(ranks, 2), stage)
                };
                self.add_lora(
                    &format!("lora, {family}, {ranks} ranks, stage {stage}"),
                    with,
                    s,
                );
            }
            let base = RankSpec {
                compute: DType::Bf16,
                ..staged(spec(2, 1), 3)
            };
            let mut s = base.clone();
            s.zero.node = 2;
            self.add_lora(&format!("lora, {family}, nodes of 2"), with, s.clone());
            s.zero.quantized = true;
            (s.zero.node, s.optim) = (1, muon());
            self.add_lora(&format!("lora, {family}, quantized, muon"), with, s);
            for (tier, params) in [
                (OffloadDevice::Host, true),
                (OffloadDevice::Nvme, true),
                (OffloadDevice::Host, false),
            ] {
                let mut s = RankSpec {
                    offload: self.away(tier),
                    ..base.clone()
                };
                s.offload.as_mut().unwrap().params = params;
                let name = format!("lora, {family}, on {tier:?}, parameters {params}");
                self.add_lora(&name, with, s);
            }
            let s = RankSpec {
                canonical: Some(3),
                rows: Rows::new(2, SEQ),
                ..staged(base.clone(), 2)
            };
            self.add_lora(&format!("lora, {family}, canonical"), with, s);
            let n = units(with).len() as u32;
            let s = RankSpec {
                pipeline: Some(PipelineSpec::even(n, 2, PipelineOrder::OneFOneB)),
                ..staged(spec(1, 2), 1)
            };
            self.add_lora(&format!("lora, {family}, pipeline"), with, s);
        }
    }

    fn away(&self, tier: OffloadDevice) -> Option<OffloadSpec> {
        Some(OffloadSpec {
            optimizer: Some(OptimizerOffload {
                tier,
                ratio: 1.0,
                delayed: false,
                grad_f32: false,
                pin: false,
                group: None,
            }),
            params: false,
            activations: false,
            folder: self.folder.to_path_buf(),
            files: FileSettings {
                block_size: 4096,
                queue_depth: 4,
                buffers: 4,
                ..FileSettings::default()
            },
        })
    }

    fn offload(&mut self) {
        let mut turn = 0usize;
        for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
            for ranks in [1, 2] {
                for stage in STAGES {
                    for part in [1.0, 0.4] {
                        turn += 1;
                        let mut o = self.away(tier).unwrap();
                        let how = o.optimizer.as_mut().unwrap();
                        how.ratio = part;
                        how.delayed = turn.is_multiple_of(4);
                        how.grad_f32 = turn.is_multiple_of(3);
                        how.group = [None, Some(100)][turn / 2 % 2];
                        o.params = stage == 3 && part == 1.0;
                        o.activations = turn.is_multiple_of(5);
                        let compute = [DType::F32, DType::Bf16][turn / 3 % 2];
                        let name = format!(
                            "{tier:?}, {ranks} ranks, stage {stage}, {}, ratio {part}, parameters {}, inputs {}, delayed {}",
                            compute.name(),
                            o.params,
                            o.activations,
                            turn.is_multiple_of(4),
                        );
                        let s = RankSpec {
                            compute,
                            clip: [0.0, 0.5][turn % 2],
                            recompute: match o.activations {
                                true => Recompute::Full,
                                false => RECOMPUTE[turn % 3],
                            },
                            offload: Some(o),
                            ..staged(spec(ranks, 1 + ranks % 2), stage)
                        };
                        let model = [gpt2(1, 0.0), llama(1)][turn / 2 % 2].clone();
                        self.add(name, &model, s);
                    }
                }
            }
        }
        for (what, optim) in optimizers() {
            if ["lion", "sgd", "sgd with momentum", "adam"].contains(&what) {
                for tier in [OffloadDevice::Host, OffloadDevice::Nvme] {
                    let s = RankSpec {
                        compute: DType::F16,
                        precision: fp16(ScaleRule::Torch),
                        optim: optim.clone(),
                        offload: self.away(tier),
                        ..staged(spec(2, 1), 2)
                    };
                    self.add(format!("{what} on {tier:?}, fp16"), &gpt2(1, 0.0), s);
                }
            }
        }
        // Inputs alone; and with what else changes a gather.
        let mut inputs = self.away(OffloadDevice::Host).unwrap();
        (inputs.optimizer, inputs.activations) = (None, true);
        let s = RankSpec {
            recompute: Recompute::Full,
            offload: Some(inputs),
            ..staged(spec(2, 2), 3)
        };
        self.add("inputs in host memory", &gpt2(3, 0.1), s.clone());
        let pipeline = Some(PipelineSpec::even(4, 2, PipelineOrder::OneFOneB));
        let in_stages = RankSpec {
            offload: self.away(OffloadDevice::Host),
            pipeline: pipeline.clone(),
            ..staged(spec(2, 4), 2)
        };
        self.add("pipeline, on Host", &gpt2(2, 0.0), in_stages);
        let in_files = RankSpec {
            offload: self.away(OffloadDevice::Nvme),
            pipeline,
            ..staged(spec(1, 4), 3)
        };
        self.add("pipeline, on Nvme", &gpt2(2, 0.0), in_files);
        let quantized = |params| {
            let mut s = RankSpec {
                compute: DType::Bf16,
                offload: self.away(OffloadDevice::Host),
                ..staged(spec(2, 1), 3)
            };
            (s.zero.quantized, s.zero.node) = (true, 2);
            s.offload.as_mut().unwrap().params = params;
            s
        };
        let (rests, goes) = (quantized(false), quantized(true));
        self.add("quantized, nodes of 2, on Host", &gpt2(2, 0.0), rests);
        self.add(
            "quantized, nodes of 2, parameters on Host",
            &gpt2(2, 0.0),
            goes,
        );
        let s = RankSpec {
            canonical: Some(3),
            rows: Rows::new(2, SEQ),
            offload: self.away(OffloadDevice::Host),
            ..staged(spec(2, 1), 2)
        };
        self.add("canonical, on Host", &gpt2(1, 0.0), s);
        let s = RankSpec {
            optim: mixture_on_host(),
            offload: self.away(OffloadDevice::Host),
            ..staged(spec(2, 1), 1)
        };
        self.add("groups and frozen parameters on Host", &gpt2(1, 0.0), s);
    }

    /// What a batch is made of, and graphs.
    fn inputs(&mut self) {
        let model = gpt2(1, 0.0);
        for (attention, positions) in [(true, true), (true, false), (false, true)] {
            let mut s = staged(spec(2, 2), 2);
            s.rows.documents = Some(Documents {
                end: 9,
                attention,
                positions,
            });
            let name = format!("documents, attention {attention}, positions {positions}");
            self.add(name, &model, s);
        }
        let mut s = staged(spec(2, 2), 1);
        s.rows.labelled = true;
        self.add("labels", &model, s.clone());
        let s = RankSpec {
            pipeline: Some(PipelineSpec::even(3, 2, PipelineOrder::GPipe)),
            ..s
        };
        self.add("labels, pipeline", &model, s);
        for stage in [0, 3] {
            let s = RankSpec {
                recompute: Recompute::Full,
                ..staged(spec(1, 2), stage)
            };
            let job = self.add(format!("graphs, stage {stage}"), &model, s);
            job.on_cpu = true;
        }
    }
}

fn mixture_on_host() -> ParamGroups {
    let mut g = mixture();
    for r in &mut g.rules {
        if r.optimizer.is_some() {
            r.optimizer = Some(Optimizer::Lion { betas: [0.9, 0.99] });
        }
    }
    g
}
