//! A training job that a program drives: it is prepared from a config, its ranks run in this process, and each call asks all of them for the
//! same.

use crate::backend::BackendChoice;
use crate::events::{Events, StepRecord, Unwatched};
use crate::figures::check::{Checked, check};
use crate::figures::estimate::{Estimate, Estimation, estimate_job};
use crate::figures::explain::{Explained, PeakRates, explain};
use crate::figures::plan::{Planned, Planning, plan};
use crate::job_error::Placeable;
use crate::model::OwnUnits;
use crate::processes::{Processes, ended};
use crate::rank::{Answer, Order};
use crate::request::{Continued, Request};
use crate::run::{Started, met};
use crate::summary::Summary;
use crate::surroundings::Surroundings;
use crate::team::Team;
use crate::train_error::{Result, STOPPED, TrainError};
use crossweave_config::nearest;
use crossweave_data::DataSource;
use crossweave_tensor::UnitDecl;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// For rank 0 to read a parameter while the other processes wait.
const READING: Duration = Duration::from_secs(600);

/// Where a config comes from: a file, its text, or a JSON value.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    file: PathBuf,
    text: Option<String>,
}

impl ConfigSource {
    fn text(text: String) -> ConfigSource {
        ConfigSource {
            file: "config".into(),
            text: Some(text),
        }
    }
}

impl From<&Path> for ConfigSource {
    fn from(file: &Path) -> ConfigSource {
        file.to_path_buf().into()
    }
}

impl From<PathBuf> for ConfigSource {
    fn from(file: PathBuf) -> ConfigSource {
        ConfigSource { file, text: None }
    }
}

/// The text of a config where it begins with a brace, else the path of its file.
impl From<&str> for ConfigSource {
    fn from(text: &str) -> ConfigSource {
        match text.trim_start().starts_with('{') {
            true => ConfigSource::text(text.to_string()),
            false => PathBuf::from(text).into(),
        }
    }
}

/// As of `&str`.
impl From<String> for ConfigSource {
    fn from(text: String) -> ConfigSource {
        text.as_str().into()
    }
}

impl From<Value> for ConfigSource {
    fn from(config: Value) -> ConfigSource {
        ConfigSource::text(config.to_string())
    }
}

/// A training job.
///
/// It is described first and begins with the first call that needs its ranks: then the config is read, the data are opened, the run's folder
/// is claimed (`run.out`, else a new one under `runs/`), and each rank starts on a thread. The folder gets what `crossweave train` writes:
/// config, record, metrics, checkpoints and, at the end, the model; the command and a trainer continue each other's runs.
///
/// ```
/// use crossweave::{Team, Trainer};
/// # let out = std::env::temp_dir().join(format!("crossweave-doc-{}", std::process::id()));
/// # let rows = Bigrams;
/// # struct Bigrams;
/// # impl crossweave::DataSource for Bigrams {
/// #     fn seq_len(&self) -> usize { 8 }
/// #     fn rows(&self) -> u64 { 64 }
/// #     fn row(&self, n: u64) -> Result<Vec<u32>, Box<dyn std::error::Error + Send + Sync>> {
/// #         Ok((0..9).map(|i| ((n + i) % 16) as u32).collect())
/// #     }
/// # }
/// let config = r#"{
///     "model": {"family": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": 16},
///     "train_batch_size": 4,
///     "run": {"steps": 3}
/// }"#;
/// let mut trainer = Trainer::from_config(config)
///     .set("run.out", out.display().to_string())
///     .ranks(Team::Threads(2))
///     .data(rows);
/// let first = trainer.step()?;
/// println!("step {}: loss {:.3}", first.step, first.loss);
/// let summary = trainer.run()?;
/// assert_eq!(summary.unwrap().steps, 3);
/// # std::fs::remove_dir_all(out).unwrap();
/// # Ok::<(), crossweave::TrainError>(())
/// ```
///
/// After a failure every further call fails, and says what was first and when. Dropping a trainer ends its ranks; what they have begun to save
/// is finished, and nothing else is written.
pub struct Trainer {
    request: Request,
    /// What was asked for and makes no job.
    refused: Option<TrainError>,
    state: State,
}

enum State {
    /// Nothing has begun.
    Described,
    /// Its ranks are there.
    Begun(Box<Begun>),
    /// They have failed.
    Failed { step: u64, first: String },
    /// The run is at its end.
    Ended,
}

/// A job whose ranks are at work.
struct Begun {
    // Before the processes, over which its ranks speak.
    job: Started,
    processes: Option<Processes>,
    /// Steps done, those before a resume included; 0 until the trainer has begun ([`Trainer::start`]).
    done: u64,
    /// Parameters read so far, the same on every process.
    reads: u64,
}

/// By which a run is asked to stop, from any thread.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// Asks the run to stop after its step. What is unsaved is saved by the end of the run.
    pub fn stop(&self) {
        self.0.store(true, SeqCst);
    }
}

impl Trainer {
    /// A job of a config: the path of its file, its text, or a JSON value.
    pub fn from_config(config: impl Into<ConfigSource>) -> Trainer {
        let ConfigSource { file, text } = config.into();
        let request = Request {
            text,
            ..Request::new(file, Surroundings::default(), Arc::new(Unwatched))
        };
        Trainer {
            request,
            refused: None,
            state: State::Described,
        }
    }

    /// Sets a key of the config: `set("run.steps", 20)`.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Trainer {
        let value: Value = value.into();
        self.request.sets.push(format!("{key}={value}"));
        self
    }

    /// Trains on the ranks of `team`.
    pub fn ranks(mut self, team: Team) -> Trainer {
        if let Err(e) = team.lay(&mut self.request) {
            self.refused.get_or_insert(e);
        }
        self
    }

    /// Trains on rows of the program, in place of the data of the config. They come in the order of their numbers. Sequences held back for
    /// validation are the config's, and so there are none.
    pub fn data(mut self, rows: impl DataSource + 'static) -> Trainer {
        self.request.given.rows = Some(Arc::new(rows));
        self
    }

    /// Changes the units that the config's model declares: a block may be another, or a unit be added. `change` is called for each rank and
    /// gives every one the same.
    pub fn units(
        mut self,
        change: impl Fn(Vec<UnitDecl>) -> Vec<UnitDecl> + Send + Sync + 'static,
    ) -> Trainer {
        let change: OwnUnits = Arc::new(change);
        self.request.given.units = Some(change);
        self
    }

    /// Writes to `folder`, in place of `run.out` or of the folder of the run that is continued.
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.request.out = Some(folder.into());
        self
    }

    /// Computes on the back end of `choice`, in place of the config's, within its layers.
    pub fn backend(mut self, choice: BackendChoice) -> Trainer {
        self.request.backend = choice;
        self
    }

    /// Writes a timeline of all ranks to `file`.
    pub fn trace(mut self, file: impl Into<PathBuf>) -> Trainer {
        self.request.trace = Some(file.into());
        self
    }

    /// Continues the run in a folder, in place unless [`Trainer::out`] names another, from its newest checkpoint; or goes
    /// on from one of its checkpoints (`RUN/checkpoints/step-00000100`), in another folder.
    pub fn resume(mut self, folder: impl Into<PathBuf>) -> Trainer {
        self.request.resume = Some(Continued::Run(folder.into()));
        self
    }

    /// Continues the run in the output folder from its newest checkpoint, or begins one there: the same program, started again, goes on.
    pub fn resume_auto(mut self) -> Trainer {
        self.request.resume = Some(Continued::Own);
        self
    }

    /// Takes the output folder over from a job of another host that is lost. Without this it is refused, since whether that job lives cannot be
    /// seen from here; should it live, it notices before it writes anything more, and ends.
    pub fn take_over(mut self) -> Trainer {
        self.request.take_over = true;
        self
    }

    /// Reports what happens to `events`, from whichever thread it happens on.
    pub fn events(mut self, events: impl Events + 'static) -> Trainer {
        self.request.events = Arc::new(events);
        self
    }

    /// What lies around the job: where plugins are, caches, a launcher's variables. By default nothing: only back ends that are linked are
    /// found, nothing is cached outside of the run's folder, and no launcher has started this process.
    pub fn surroundings(mut self, around: Surroundings) -> Trainer {
        let launcher = std::mem::take(&mut self.request.around.launcher);
        self.request.around = around;
        if self.request.around.launcher.is_empty() {
            self.request.around.launcher = launcher;
        }
        self
    }

    /// Checks that the job can be trained here: its config, model, data, back ends and plans are looked at as they are before a run, and what
    /// they come to is given back. No folder is made but that of tokens, and no rank starts.
    ///
    /// ```
    /// use crossweave::{ErrorCode, Trainer};
    /// let config = r#"{
    ///     "model": {"family": "gpt2", "n_embd": 10, "n_head": 3},
    ///     "data": {"train": "corpus/*.txt"},
    ///     "optimiser": {"type": "AdamW"}
    /// }"#;
    /// let wrong = Trainer::from_config(config).check().unwrap_err();
    /// let faults = wrong.faults();
    /// assert_eq!(faults[0].code, ErrorCode::Config);
    /// assert_eq!((faults[0].key(), faults[0].line()), (Some("optimiser"), Some(4)));
    /// assert_eq!(faults[0].fix(), Some("did you mean \"optimizer\"?"));
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with the config and its files: [`TrainError::faults`] has each fault with code, key, line and fix. Back ends or
    /// ranks that are named beside the config and are not there.
    pub fn check(&self) -> Result<Checked> {
        self.described()?;
        check(&self.request)
    }

    /// Rehearses the step of a rank on a device without memory: what it holds (bytes, between steps and at the most), what it sends (bytes and
    /// calls of a step, by axis of the mesh), its plan, and whether it fits its device. Nothing of the data is read.
    ///
    /// # Errors
    /// A config that is wrong, a plan that breaks a law; a rank or a device that is not there.
    pub fn plan(&self, what: &Planning) -> Result<Planned> {
        self.described()?;
        plan(&self.request, what)
    }

    /// Finds the route of every op and collective of a step on the job's back end: how it is computed, by how many launches, and in how many
    /// nanoseconds where that can be estimated. Nothing is trained.
    ///
    /// # Errors
    /// A config that is wrong; a back end that cannot be used.
    pub fn explain(&self, peak: PeakRates) -> Result<Explained> {
        self.described()?;
        explain(&self.request, peak)
    }

    /// Estimates by formulas alone what a rank holds and sends (bytes), and where it is asked for the time of a step and of the run (seconds);
    /// `what` replaces what the config says.
    ///
    /// # Errors
    /// A config that is wrong; a device or a size that nobody knows.
    pub fn estimate(&self, what: &Estimation) -> Result<Estimate> {
        self.described()?;
        estimate_job(&self.request, what)
    }

    /// Prepares the job and starts its ranks, unless that is done.
    ///
    /// # Errors
    /// As [`Trainer::check`]; a folder that another job writes to or that holds a run; a process of the job that has failed.
    pub fn start(&mut self) -> Result<()> {
        self.begun().map(|_| ())
    }

    /// Steps of the whole run.
    ///
    /// # Errors
    /// As [`Trainer::start`].
    pub fn steps(&mut self) -> Result<u64> {
        Ok(self.begun()?.job.run.reads.steps)
    }

    /// Steps done, those before a resume included; 0 until the trainer has begun ([`Trainer::start`]).
    pub fn done(&self) -> u64 {
        match &self.state {
            State::Begun(begun) => begun.done,
            _ => 0,
        }
    }

    /// The folder of the run.
    ///
    /// # Errors
    /// As [`Trainer::start`].
    pub fn folder(&mut self) -> Result<PathBuf> {
        Ok(self.begun()?.job.run.out.clone())
    }

    /// By which the run is asked to stop.
    ///
    /// # Errors
    /// As [`Trainer::start`].
    pub fn stop_handle(&mut self) -> Result<StopHandle> {
        Ok(StopHandle(self.begun()?.job.stop.clone()))
    }

    /// One optimizer step, with the validation and the checkpoint that the config wants behind it. The record is the same on every process
    /// but for its times.
    ///
    /// # Errors
    /// As [`Trainer::start`]; what keeps a rank from the step, or another rank; all steps are done; the run was asked to stop.
    pub fn step(&mut self) -> Result<StepRecord> {
        match self.ask(Order::Step)? {
            Answer::Step(Some(record)) => {
                if let State::Begun(begun) = &mut self.state {
                    begun.done = record.step;
                }
                Ok(record)
            }
            _ => Err(self.over()),
        }
    }

    /// All steps that are left, and the end of the run: see [`Trainer::finish`]. Steps follow each other without a wait.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn run(mut self) -> Result<Option<Summary>> {
        self.ask(Order::Steps)?;
        self.finish()
    }

    /// The mean loss of the sequences that the config holds back, in nats per token.
    ///
    /// # Errors
    /// As [`Trainer::start`]; none are held back.
    pub fn evaluate(&mut self) -> Result<f64> {
        match self.ask(Order::Validate)? {
            Answer::Loss(Some(loss)) => Ok(loss),
            _ => Err(TrainError::refused(
                "the job holds no sequences back",
                "set data.validation or data.validation_fraction",
            )),
        }
    }

    /// Saves a checkpoint of the state behind the steps done; its folder, once it is whole.
    ///
    /// # Errors
    /// As [`Trainer::start`]; the disk; no step is done since the start.
    pub fn save(&mut self) -> Result<PathBuf> {
        let begun = self.begun()?;
        if begun.done == begun.job.run.resume.step {
            return Err(TrainError::refused(
                "nothing is trained yet that could be saved",
                "do a step first",
            ));
        }
        match self.ask(Order::Save)? {
            Answer::Saved(folder) => Ok(folder),
            _ => Err(unanswered()),
        }
    }

    /// The values of a parameter, on every process.
    ///
    /// # Errors
    /// As [`Trainer::start`]; a parameter that is not there.
    pub fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        self.size_of(name)?;
        let Answer::Values(own) = self.ask(Order::Read(name.into()))? else {
            return Err(unanswered());
        };
        let State::Begun(begun) = &mut self.state else {
            return Err(unanswered());
        };
        begun.reads += 1;
        let key = format!("values {}", begun.reads);
        let Some(p) = &begun.processes else {
            return own.ok_or_else(unanswered);
        };
        let bytes: Vec<u8> = own.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
        let all = p.tell(&key, &bytes, READING)?;
        let word = |b: &[u8; 4]| f32::from_le_bytes(*b);
        Ok(all.as_chunks::<4>().0.iter().map(word).collect())
    }

    /// Gives a parameter new values. Moments of the optimizer stay as they are.
    ///
    /// # Errors
    /// As [`Trainer::start`]; a parameter that is not there; a number of values that is not the parameter's.
    pub fn write(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let numel = self.size_of(name)?;
        if values.len() as u64 != numel {
            return Err(TrainError::refused(
                format!(
                    "{name} has {numel} elements, and {} values are given",
                    values.len()
                ),
                "give each element its value",
            ));
        }
        self.ask(Order::Write(name.into(), values.into()))?;
        Ok(())
    }

    /// Names and shapes of the parameters.
    ///
    /// # Errors
    /// As [`Trainer::start`].
    pub fn params(&mut self) -> Result<Vec<(String, Vec<u64>)>> {
        let units = self.begun()?.job.run.job.source.units();
        let all = units.into_iter().flat_map(|u| u.params);
        Ok(all.map(|p| (p.name, p.shape.dims().to_vec())).collect())
    }

    /// The end of the run, before all of its steps or behind them. What is unsaved is saved; where all steps are done the model is written,
    /// and its record is completed in every case. The summary is that of the process of rank 0.
    ///
    /// # Errors
    /// As [`Trainer::step`]; a file that cannot be written.
    pub fn finish(mut self) -> Result<Option<Summary>> {
        self.begun()?;
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Begun(begun) => {
                let Begun { job, processes, .. } = *begun;
                let (end, summary) = match job.end(processes.as_ref()) {
                    Ok(summary) => (Ok(()), summary),
                    Err(e) => (Err(e), None),
                };
                match ended(processes, end) {
                    // The process of rank 0 has the summary of a run that was asked to stop.
                    Ok(()) | Err(TrainError::Elsewhere { code: STOPPED }) => Ok(summary),
                    Err(e) => Err(e),
                }
            }
            _ => Err(unanswered()),
        }
    }

    /// Refuses what was asked for and makes no job.
    fn described(&self) -> Result<()> {
        let Some(e) = &self.refused else {
            return Ok(());
        };
        let (what, fix) = e.parts();
        Err(TrainError::refused(what, fix.unwrap_or_default()))
    }

    /// What has begun, or begins now.
    fn begun(&mut self) -> Result<&mut Begun> {
        if matches!(self.state, State::Described) {
            self.begin()?;
        }
        match &mut self.state {
            State::Begun(begun) => Ok(begun),
            State::Failed { step, first } => Err(TrainError::Failed {
                step: *step,
                first: first.clone(),
            }),
            State::Described | State::Ended => Err(unanswered()),
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.described()?;
        let processes = met(&self.request)?;
        match Started::begin(&self.request, processes.as_ref()) {
            Ok(job) => {
                let done = job.run.resume.step;
                self.state = State::Begun(Box::new(Begun {
                    job,
                    processes,
                    done,
                    reads: 0,
                }));
                Ok(())
            }
            Err(e) => Err(self.failed(0, e, processes)),
        }
    }

    /// Asks every rank for the same.
    fn ask(&mut self, order: Order) -> Result<Answer> {
        let begun = self.begun()?;
        let answer = begun.job.ask(&order, begun.processes.as_ref());
        match answer {
            Ok(answer) => Ok(answer),
            Err(e) => {
                let State::Begun(begun) = std::mem::replace(&mut self.state, State::Ended) else {
                    return Err(e);
                };
                let Begun {
                    job,
                    processes,
                    done,
                    ..
                } = *begun;
                drop(job);
                Err(self.failed(done + 1, e, processes))
            }
        }
    }

    /// A failure in a step, or before the first (0), as this process and the others hear of it. What follows fails by it.
    fn failed(&mut self, step: u64, e: TrainError, processes: Option<Processes>) -> TrainError {
        let first = match e.is_silent() {
            true => "another process of the job has failed".to_string(),
            false => e.to_string(),
        };
        let e = match processes {
            Some(p) => match p.end(Err(e)) {
                Err(e) if !e.is_silent() => e,
                _ => TrainError::Failed {
                    step,
                    first: first.clone(),
                },
            },
            None if step == 0 => return e,
            None => e,
        };
        self.state = State::Failed { step, first };
        e
    }

    /// Why there is no further step.
    fn over(&self) -> TrainError {
        match &self.state {
            State::Begun(begun) if begun.job.stop.load(SeqCst) => TrainError::refused(
                format!(
                    "the run was asked to stop, and has after step {}",
                    begun.done
                ),
                "finish it; a later trainer resumes it",
            ),
            State::Begun(begun) if begun.done < begun.job.run.reads.steps => TrainError::refused(
                format!(
                    "the validation loss has stopped falling, and the run has ended after step {} (run.stop_after)",
                    begun.done
                ),
                "finish it, or set run.stop_after to more validations",
            ),
            State::Begun(begun) => TrainError::refused(
                format!("all {} steps of the run are done", begun.done),
                "finish it, or set run.steps to more",
            ),
            _ => unanswered(),
        }
    }

    /// Elements of a parameter.
    fn size_of(&mut self, name: &str) -> Result<u64> {
        let all = self.params()?;
        let Some((_, shape)) = all.iter().find(|(n, _)| n == name) else {
            let names = all.iter().map(|(n, _)| n.as_str());
            let near = match nearest(name, names) {
                Some(n) => format!("did you mean {n}?"),
                None => "`params` lists them".to_string(),
            };
            return Err(TrainError::refused(
                format!("the model has no parameter {name:?}"),
                near,
            ));
        };
        Ok(shape.iter().product())
    }
}

/// A call that the states of a trainer leave no room for.
fn unanswered() -> TrainError {
    TrainError::refused(
        "the run is at its end, and nothing more can be asked of its ranks",
        "make another trainer that resumes it",
    )
}
