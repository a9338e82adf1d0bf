//! Logits, loss and gradients of a model that lies over a mesh: what a step of training makes of the rows, gathered as one rank would have it.
//!
//! Logits are those of whole rows, as samples take them. The gradients are read where a step leaves them: the momentum of an SGD that has begun
//! at zero is the gradient itself, and a parameter's momentum is put together from all ranks as its values are, whatever cuts them. So pieces of
//! rows, stages and ZeRO's shards are those of a run. Dropout is off, and no parameter changes.

use super::{Asked, Both, Found, Probe, Probed};
use crate::backend::{self, host_device};
use crate::computes::Computes;
use crate::events::Events;
use crate::gate::{Shared, StoreBoot};
use crate::job::{Job, spec};
use crate::layout::{Layout, sized};
use crate::model::Source;
use crate::prepared::comm_timeout;
use crate::processes::{Processes, ended};
use crate::rank::panicked;
use crate::ranks::{LocalRanks, Ranks, numbered};
use crate::request::Request;
use crate::start::start;
use crate::surroundings::Surroundings;
use crate::threads::failed;
use crate::train_error::{Result, TrainError};
use crate::{setup, shared_layers};
use crossweave_config::{Config, Given};
use crossweave_data::Remark;
use crossweave_engine::optimizers::{Optimizer, ParamGroups, Sgd};
use crossweave_engine::{Devices, Engine, Links, MicroBatch, RankSpec, StateKind, prepare};
use crossweave_hal::{Carrier, DType, HostServices};
use crossweave_mesh::{Axis, Islands, Place};
use crossweave_nn::Predicts;

use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The mesh over which a model is probed.
#[derive(Clone, Debug)]
pub struct OverMesh {
    /// Ranks of the job, or of this process by back end. `None`: those of the mesh.
    pub ranks: Option<Ranks>,
    /// Keys of a config, `key.path=value`: those of `mesh` and `zero_optimization`, and `model.recompute`.
    pub sets: Vec<String>,
    /// Who watches the processes of the job.
    pub events: Arc<dyn Events>,
}

/// Sections and keys that a probe takes.
const KEYS: [&str; 3] = ["mesh.", "zero_optimization.", "model.recompute"];

/// As [`super::probe`], of a model that lies over a mesh of ranks: threads of this process, or processes of a launcher. What is found comes back in
/// the process of rank 0.
///
/// # Errors
/// As [`super::probe`]; a mesh that the model or its rows are not cut over, by its key; a rank or a process that fails.
pub fn probe_over(
    what: &Probe,
    over: &OverMesh,
    around: &Surroundings,
    remark: impl Fn(&Remark),
) -> Result<Option<Probed>> {
    let request = request(what, over, around)?;
    let processes = Processes::join(over.ranks.as_ref(), &[], around, &over.events)?;
    let first = processes.as_ref().is_none_or(Processes::first);
    let remark = |r: &Remark| {
        if first {
            remark(r);
        }
    };
    let mut found = None;
    let here = || -> Result<()> {
        let probing = Probing::begin(what, &request, processes.as_ref(), remark)?;
        found = probing.ranks(processes.as_ref())?;
        match &processes {
            Some(p) => p.done(0),
            None => Ok(()),
        }
    };
    let end = catch_panic(here);
    ended(processes, end)?;
    Ok(found)
}

fn catch_panic(work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked(0)))
}

/// A run of one step on the rows of the probe, with the keys that are laid over it.
fn request(what: &Probe, over: &OverMesh, around: &Surroundings) -> Result<Request> {
    let other = |set: &&String| !KEYS.iter().any(|key| set.starts_with(key));
    if let Some(set) = over.sets.iter().find(other) {
        let key = set.split('=').next().unwrap_or_default();
        return Err(TrainError::refused(
            format!("{key}: a probe has no such key"),
            "set keys of mesh and zero_optimization, or model.recompute",
        ));
    }
    let dtype = match what.compute {
        DType::Bf16 => "bf16",
        _ => "f32",
    };
    let text = json!({
        "model": {"hf": what.model.display().to_string()},
        "data": {"tokens": what.inputs.display().to_string(), "key": "input_ids"},
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "run": {"steps": 1, "dtype": dtype},
    });
    Ok(Request {
        text: Some(text.to_string()),
        sets: over.sets.clone(),
        ranks: over.ranks.clone(),
        backend: what.backend.clone(),
        ..Request::new(what.model.clone(), around.clone(), over.events.clone())
    })
}

/// A probe as the ranks of this process have it.
struct Probing {
    inputs: Both,
    /// Labels that count.
    counts: usize,
    job: Job,
    layout: Layout,
    local_ranks: LocalRanks,
    host: HostServices,
    carrier: Option<Carrier>,
    islands: Option<Islands>,
}

impl Probing {
    fn begin(
        what: &Probe,
        request: &Request,
        processes: Option<&Processes>,
        remark: impl Fn(&Remark),
    ) -> Result<Probing> {
        let config = request.read()?;
        let asked = processes.map(|p| p.process_map.world());
        let asked = asked.or(request.ranks.as_ref().map(Ranks::count));
        let ranks = config.ranks(asked.map(u64::from));
        let count = numbered(ranks)?;
        let Asked {
            source,
            inputs,
            counts,
        } = without_dropout(Asked::open(what, &request.around, remark)?)?;
        let job = job_of(&config, ranks, source, &inputs)?;
        let threads = config.settings.run.threads_per_rank;
        let plugins = &request.around.plugins;
        let (crowd, store) = match processes {
            Some(p) => (p.crowd(), Some(p.store.clone())),
            None => (count, None),
        };
        let host = backend::host(plugins, crowd, threads, store);
        let local_ranks = setup::local_ranks(request, &config, processes, count, &host)?;
        let null = backend::open_linked("null", &host)?.open(0)?;
        let dry = sized(&null, &job, &job.units(&job.place(0))?)?;
        let layout = Layout::even(&null, &job, dry)?;
        layout.check_world(&job, &null)?;
        let order = setup::order(&job.resolved);
        let own: Vec<_> = local_ranks.backends().map(Computes::of).collect();
        let (computes, islands) = match processes {
            Some(p) => {
                p.agree(Path::new("probe"), &job.resolved, 0)?;
                setup::meet(p, (&local_ranks, &own), order)?
            }
            None => (own, setup::islands_of(local_ranks.islands(), order)),
        };
        shared_layers::check(&job, &computes)?;
        let carrier = setup::carrier(processes, islands.as_ref(), &host)?;
        Ok(Probing {
            inputs,
            counts,
            job,
            layout,
            local_ranks,
            host,
            carrier,
            islands,
        })
    }

    /// Runs the ranks of this process, each on a thread: what rank 0 has found, where it is here.
    fn ranks(&self, processes: Option<&Processes>) -> Result<Option<Probed>> {
        let store = processes.map(|p| p.store.clone());
        let shared = Arc::new(Shared::new(Arc::default(), store));
        let keys = &self.job.resolved.settings.run;
        if let Some(p) = processes {
            let shared = shared.clone();
            p.watch(move |e| shared.fail(e));
            p.compare(keys.comm_timeout_s);
            p.heartbeat(keys.heartbeat_s);
        }
        let voice = processes.map(Processes::voice);
        let here = self.local_ranks.here();
        let found = Mutex::new(None);
        std::thread::scope(|scope| {
            for rank in here.clone() {
                let (shared, voice, found, n) = (&shared, voice.as_ref(), &found, here.len());
                scope.spawn(move || {
                    let fail = |e| failed(shared, voice, (rank, n), e);
                    let body = AssertUnwindSafe(|| self.rank(rank, shared, &fail));
                    match catch_unwind(body) {
                        Ok(Some(own)) => {
                            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(own);
                        }
                        Ok(None) => {}
                        Err(_) => fail(panicked(rank)),
                    }
                });
            }
        });
        match shared.first_error() {
            Some(e) => Err(e),
            None => {
                let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
                let rows = self.inputs.read.batch;
                Ok(found.map(|f: Found| f.probed(&self.job.source, rows)))
            }
        }
    }

    /// One rank. `fail` receives what goes wrong before the engine ends, which waits for collectives in flight.
    fn rank(&self, rank: u32, shared: &Arc<Shared>, fail: &dyn Fn(TrainError)) -> Option<Found> {
        let boot = StoreBoot::new(&self.host, shared);
        let mut engine = self.engine(rank, &boot).map_err(fail).ok()?;
        shared.register(engine.abort_handles());
        self.found(rank, &mut engine).map_err(fail).ok()?
    }

    /// The rank on its device, with the model's values.
    fn engine(&self, rank: u32, boot: &StoreBoot<'_>) -> Result<Engine> {
        let device = self.local_ranks.device(rank)?;
        if let Some(carrier) = &self.carrier {
            device.carry(carrier);
        }
        let devices = Devices {
            host: host_device(self.local_ranks.plugin(rank), &self.host, rank)?,
            ..Devices::one(&device)
        };
        let timeout = self.job.resolved.settings.run.comm_timeout_s;
        let links = Links {
            islands: self.islands.clone(),
            timeout: Some(comm_timeout(timeout)),
            ..Links::new(boot)
        };
        let place = self.job.place(rank);
        let (units, spec) = (self.job.units(&place)?, self.spec(place));
        let lowered = prepare(&device, &spec, &units, self.layout.dry(rank))?;
        Ok(Engine::new(devices, lowered, units, links)?)
    }

    /// One step of an SGD whose momentum is the gradient.
    fn spec(&self, place: Place) -> RankSpec {
        let of_job = spec(&self.job, &self.layout.division, place);
        let family = self.job.source.spec.family();
        let some = self.counts < self.inputs.labels.len();
        let momentum = Optimizer::Sgd(Sgd {
            momentum: 0.5,
            dampening: 0.0,
            nesterov: false,
        });
        let mut rows = of_job.rows;
        rows.labelled = some || family.predicts() != Predicts::Next || family.sees();
        RankSpec {
            rows,
            optim: ParamGroups::all(momentum, 0.0),
            clip: 0.0,
            ..of_job
        }
    }

    /// What rank 0 finds, with the help of all.
    fn found(&self, rank: u32, engine: &mut Engine) -> Result<Option<Found>> {
        start(&self.job.source, engine)?;
        let Both { read, images, .. } = &self.inputs;
        let shape = [read.batch, read.seq];
        let mut heads = vec![];
        match rank {
            0 => {
                engine.lead();
                heads = engine.logits_of(&read.ids, &images.0, shape)?;
                engine.done_reading()?;
            }
            _ => engine.serve_reads()?,
        }
        let rows = self.rows_of(engine.spec());
        if engine.spec().rows.labelled {
            let all = self.inputs.labels.len() as u64;
            engine.count_targets(self.counts as u64, all)?;
        }
        engine.step(&[rows], 0.0)?;
        let figures = engine.metrics()?;
        if rank > 0 {
            engine.serve_reads()?;
            return Ok(None);
        }
        engine.lead();
        let params = engine.params();
        let trained = params.iter().filter(|p| p.group.trains());
        let grads = trained.map(|p| {
            let values = engine.read(&p.name, StateKind::Moment1);
            Ok((p.name.clone(), values?))
        });
        let grads = grads.collect::<Result<_>>()?;
        engine.done_reading()?;
        Ok(Some(Found {
            params,
            heads,
            loss: figures.map_or(f64::NAN, |m| m.loss),
            grads,
        }))
    }

    /// The rows that a rank trains on: an equal part of all, by its place along the data-parallel axis.
    fn rows_of(&self, spec: &RankSpec) -> MicroBatch<'_> {
        let Both {
            trained,
            labels,
            images,
            ..
        } = &self.inputs;
        let at = u64::from(spec.place.at(Axis::Dp)) * spec.rows.batch;
        let part = |n: usize| {
            let row = n / trained.batch as usize;
            row * at as usize..row * (at + spec.rows.batch) as usize
        };
        MicroBatch {
            tokens: &trained.ids[part(trained.ids.len())],
            targets: &labels[part(labels.len())],
            lengths: &[],
            images: &images.0[part(images.0.len())],
            first_sequence: at,
        }
    }
}

/// The same with nothing that is dropped.
fn without_dropout(asked: Asked) -> Result<Asked> {
    let Asked {
        mut source,
        inputs,
        counts,
    } = asked;
    let spec = source.spec.with_dropout([Some(0.0); 3]);
    source.spec = spec.map_err(|(_, e)| TrainError::refused(e.what, "please report it"))?;
    if let Some(lora) = &mut source.lora {
        lora.dropout = 0.0;
    }
    source.reads(inputs.columns)?;
    source.spec = source.spec.seeing(inputs.images.1);
    Ok(Asked {
        source,
        inputs,
        counts,
    })
}

/// The job of one step over the rows, on the ranks of the config's mesh.
fn job_of(config: &Config, ranks: u64, source: Source, inputs: &Both) -> Result<Job> {
    let given = Given {
        batch: Some(inputs.trained.batch),
        steps: Some(1),
        width: Some(source.width()),
        ..Given::default()
    };
    let resolved = config.resolve_given(ranks, given)?;
    let mesh = &resolved.mesh;
    let staged = mesh.length(Axis::Pp) > 1;
    if staged && source.spec.model().head.pair.is_some_and(|p| p.labelled) {
        return Err(TrainError::refused(
            "mesh.pp: the answers of a second head are not sent from stage to stage outside of training",
            "set it to 1, or leave next_sentence_label out",
        ));
    }
    Ok(Job::new(resolved, source, inputs.trained.seq, None))
}
