//! What is asked of a job before it runs and of what it leaves: figures, probes, texts and checkpoints, as values.

use super::{Heard, Job, Scratch, names};
use crossweave::backend::BackendChoice;
use crossweave::exports::{self, Form, Weights};
use crossweave::figures::estimate::{Estimation, Hardware, Ranks as AskedRanks, estimate};
use crossweave::figures::probe::{OverMesh, Probe, probe, probe_over};
use crossweave::ranks::Ranks;
use crossweave::surroundings::{Caches, Surroundings};
use crossweave::{Draw, Model, PeakRates, Planned, Planning, TrainError};
use crossweave_checkpoint::{Dtype, write_safetensors};
use crossweave_hal::DType;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

impl Job<'_> {
    fn planned(&self, rank: u32, device: Option<&str>) -> Result<Planned, TrainError> {
        let device = device.map(Into::into);
        let what = Planning {
            rank,
            device,
            ..Planning::default()
        };
        self.trainer(None, Heard::default()).plan(&what)
    }

    /// The figures of a step of a rank.
    pub fn plan_of(&self, rank: u32) -> Value {
        json!(self.planned(rank, None).expect("a plan").figures)
    }

    /// The figures of a step of rank 0 on a device.
    pub fn plan_on(&self, device: &str) -> Value {
        json!(self.planned(0, Some(device)).expect("a plan").figures)
    }

    /// The figures of a step of rank 0.
    pub fn plan(&self) -> Value {
        self.plan_of(0)
    }

    /// What a step of the job sends between hosts: `H`, or `HxR`.
    pub fn plan_over(&self, hosts: &str) -> Value {
        let what = Planning {
            hosts: Some(hosts.parse().expect("hosts")),
            ..Planning::default()
        };
        let planned = self.trainer(None, Heard::default()).plan(&what);
        json!(planned.expect("a plan").figures.hosts)
    }

    /// Is not planned, for all of `parts`.
    #[track_caller]
    pub fn unplanned(&self, parts: &[&str]) {
        let planned = self.planned(0, None);
        names(&planned.expect_err("is planned"), parts);
    }

    /// The routes of a step, with peaks of the device in TFLOP/s and GB/s where it gives no estimate.
    pub fn routes(&self, peaks: Option<(f64, f64)>) -> Result<Value, TrainError> {
        let peaks = PeakRates {
            tflops: peaks.map(|p| p.0),
            gbps: peaks.map(|p| p.1),
        };
        let found = self.trainer(None, Heard::default()).explain(peaks)?;
        let routes = json!(found.found);
        found.all_routed()?;
        Ok(routes)
    }

    /// The routes of a step.
    pub fn explain(&self) -> Value {
        self.routes(None).expect("routes")
    }
}

impl Scratch {
    /// Writes logits, loss and gradients of a model of this folder for the inputs of a file; what is remarkable about the model.
    ///
    /// # Errors
    /// As of the library.
    pub fn probe(
        &self,
        model: &Path,
        inputs: &Path,
        compute: DType,
        out: &str,
    ) -> Result<String, TrainError> {
        let what = Probe {
            model: self.dir.path().join(model),
            inputs: self.dir.path().join(inputs),
            compute,
            backend: BackendChoice::default(),
        };
        let remarks = RefCell::new(String::new());
        let found = probe(&what, &Surroundings::default(), |r| {
            *remarks.borrow_mut() += &format!("{r}\n");
        })?;
        write_safetensors(&self.path(out), found.tensors, &[])?;
        Ok(remarks.into_inner())
    }

    /// The same of a model over a mesh of ranks.
    ///
    /// # Errors
    /// As of the library.
    pub fn probe_over(
        &self,
        model: &Path,
        inputs: &Path,
        (ranks, sets): (&str, &[&str]),
        out: &str,
    ) -> Result<(), TrainError> {
        let what = Probe {
            model: self.dir.path().join(model),
            inputs: self.dir.path().join(inputs),
            compute: DType::F32,
            backend: BackendChoice::default(),
        };
        let over = OverMesh {
            ranks: Some(Ranks::parse(ranks).expect("ranks")),
            sets: sets.iter().map(ToString::to_string).collect(),
            events: Arc::new(Heard::default()),
        };
        let found = probe_over(&what, &over, &Surroundings::default(), |_| {})?;
        let found = found.expect("rank 0 is here");
        write_safetensors(&self.path(out), found.tensors, &[])?;
        Ok(())
    }

    /// What a config of this folder needs, on so many ranks of a device.
    pub fn estimate(&self, config: &str, ranks: Option<u64>, device: Option<&str>) -> Value {
        let what = Estimation {
            ranks: AskedRanks {
                ranks,
                ..AskedRanks::default()
            },
            machine: Hardware {
                device: device.map(Into::into),
                ..Hardware::default()
            },
            ..Estimation::default()
        };
        let config = self.path(config).display().to_string();
        json!(estimate(&config, &what, &Surroundings::default()).expect("an estimate"))
    }

    /// The likeliest continuation of a prompt by a model of this folder.
    ///
    /// # Errors
    /// As of the library.
    pub fn generate(&self, model: &str, prompt: &str, tokens: u64) -> Result<String, TrainError> {
        let draw = Draw {
            tokens,
            temperature: 0.0,
            top_k: 0,
            seed: 1,
        };
        Model::open(self.path(model))?.generate(prompt, draw)
    }

    /// Asserts that a run's checkpoints are whole.
    pub fn verify(&self, run: &str) {
        let found = crossweave_checkpoint::verify(self.path(run), None).expect("whole files");
        assert!(found.contains("ok"), "{found}");
    }

    /// What is known of the checkpoints of a run.
    pub fn inspect(&self, run: &str) -> Value {
        crossweave_checkpoint::inspect_json(self.path(run)).expect("checkpoints")
    }

    /// Writes the newest checkpoint of a run for other ranks.
    ///
    /// # Errors
    /// As of the library.
    pub fn reshard(
        &self,
        run: &str,
        out: &str,
        ranks: u32,
        stage: Option<u8>,
    ) -> Result<exports::Resharded, TrainError> {
        exports::for_ranks(&self.path(run), &self.path(out), ranks, stage)
    }

    /// Writes the model of a run's newest checkpoint, in f32; with `merge` its adapters are added to it.
    ///
    /// # Errors
    /// As of the library.
    pub fn export(
        &self,
        run: &str,
        out: &str,
        merge: bool,
    ) -> Result<exports::Exported, TrainError> {
        self.export_as(run, out, Dtype::F32, merge)
    }

    /// The same in another type.
    ///
    /// # Errors
    /// As of the library.
    pub fn export_as(
        &self,
        run: &str,
        out: &str,
        dtype: Dtype,
        merge: bool,
    ) -> Result<exports::Exported, TrainError> {
        let from = (&*self.path(run), &Caches::default());
        let weights = Weights::Trained;
        let form = Form {
            dtype,
            merge,
            weights,
        };
        exports::as_model(from, &self.path(out), form, &|_| ())
    }
}

/// Writes a file of `input_ids` with these rows.
pub fn write_ids(path: &Path, rows: &[Vec<u32>]) {
    let ids = rows
        .iter()
        .flatten()
        .flat_map(|t| i64::from(*t).to_le_bytes());
    let bytes: Vec<u8> = ids.collect();
    let shape = vec![rows.len(), rows[0].len()];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, shape, &bytes);
    let all = [("input_ids", view.unwrap())];
    safetensors::serialize_to_file(all, None, path).unwrap();
}
