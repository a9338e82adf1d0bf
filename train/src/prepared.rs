//! A job as this process has it: on its back ends, with its folder, before its ranks start. What is made of it, such as a record, takes it from
//! here.

use crate::backend;
use crate::computes::Computes;
use crate::events::{Event, Reported};
use crate::job::open::Reads;
use crate::job::{Feed, Job, spec};
use crate::layout::Layout;
use crate::origin::Origin;
use crate::ranks::LocalRanks;
use crate::resume::Resume;
use crate::session::Session;
use crate::trace::TraceSpec;
use crate::train_error::Result;
use crossweave_checkpoint::step_dir;
use crossweave_claim::Claim;
use crossweave_engine::{Devices, Links, RankSpec};
use crossweave_hal::{Bootstrap, Carrier, Device, HostServices};
use crossweave_mesh::Islands;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A job on the back ends of this process; shared by its ranks by reference.
pub struct Run {
    /// What every rank has in common.
    pub job: Job,
    /// What its steps read.
    pub reads: Reads,
    /// The ranks' shares of the work.
    pub layout: Layout,
    /// The ranks of this process, and their back ends.
    pub local_ranks: LocalRanks,
    /// What carries the collectives between processes, or between the back ends of this one.
    pub carrier: Option<Carrier>,
    /// Which ranks share a library of collectives, where they do not all.
    pub islands: Option<Islands>,
    /// The back ends, with the ranks that each computes.
    pub computes: Vec<Computes>,
    /// Host services of the back ends.
    pub host: HostServices,
    /// Output folder.
    pub out: PathBuf,
    /// Held by the process that writes there.
    pub claim: Option<Arc<Claim>>,
    /// The checkpoint from which the run continues.
    pub resume: Resume,
    /// The file of its timeline.
    pub trace: Option<TraceSpec>,
    /// Who runs it, for its record.
    pub origin: Origin,
    /// Which steps are reported, and who watches.
    pub reported: Reported,
}

impl Run {
    /// Reports what happens to who watches the run.
    pub fn on(&self, event: Event<'_>) {
        self.reported.events.on(event);
    }

    /// Is the output folder still this job's? Asked before each file of it is written or replaced.
    ///
    /// # Errors
    /// Another process has taken it over, or its lock was removed.
    pub fn check_claim(&self) -> Result<()> {
        Ok(self.claim.as_deref().map_or(Ok(()), Claim::check)?)
    }

    /// Gives up what this process has claimed: a rank that was left behind keeps the job.
    pub fn release(&self) {
        if let Some(claim) = &self.claim {
            claim.release();
        }
        if let Some(trace) = &self.trace {
            trace.release();
        }
    }

    /// Opens the device of a rank of this process.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    pub fn device(&self, rank: u32) -> Result<Device> {
        self.outfit(self.local_ranks.device(rank)?, rank)
    }

    /// The same beside the job: see [`LocalRanks::device_apart`].
    ///
    /// # Errors
    /// As [`Run::device`].
    pub fn device_apart(&self, rank: u32) -> Result<Device> {
        self.outfit(self.local_ranks.device_apart(rank)?, rank)
    }

    fn outfit(&self, device: Device, rank: u32) -> Result<Device> {
        if let Some(carrier) = &self.carrier {
            device.carry(carrier);
        }
        if self.job.resolved.settings.run.allow_host_ops {
            backend::allow_host_ops(&device, &self.host, rank)?;
        }
        Ok(device)
    }

    /// What rank `rank` is to do.
    pub fn rank_spec(&self, rank: u32) -> RankSpec {
        spec(&self.job, &self.layout.division, self.job.place(rank))
    }

    /// How a rank reaches the others, which it meets by `boot`.
    pub fn links<'a>(&self, boot: &'a dyn Bootstrap) -> Links<'a> {
        Links {
            islands: self.islands.clone(),
            // By default long enough for a peer that writes a large checkpoint on a slow disk; a rank that fails aborts the others at once.
            timeout: Some(comm_timeout(self.job.resolved.settings.run.comm_timeout_s)),
            ..Links::new(boot)
        }
    }

    /// The batches of a rank.
    pub fn feed(&self, rank: u32) -> Feed {
        let reads = (&self.reads.batches, self.reads.validation.as_ref());
        Feed::new(
            &self.job,
            reads,
            &self.layout.division,
            self.job.place(rank),
        )
    }

    /// A rank on its devices, to be given its values.
    ///
    /// # Errors
    /// As [`Session::new`].
    pub fn session(&self, rank: u32, devices: Devices, links: Links<'_>) -> Result<Session<'_>> {
        let layout = &self.layout;
        let (place, dry) = (self.job.place(rank), layout.dry(rank));
        let feed = self.feed(rank);
        Session::new(
            &self.job,
            (&layout.division, dry),
            place,
            feed,
            devices,
            links,
        )
    }

    /// The folder of the checkpoint behind so many steps.
    pub fn checkpoint(&self, steps: u64) -> PathBuf {
        self.out.join("checkpoints").join(step_dir(steps))
    }

    /// `config.json` of the trained model.
    pub fn hf_config(&self) -> serde_json::Value {
        let tokenizer = self.reads.corpus.tokenizer();
        self.job.source.hf_config(tokenizer.and_then(|t| t.eod()))
    }
}

/// `run.comm_timeout_s`; what is beyond any clock is for ever.
pub fn comm_timeout(seconds: f64) -> Duration {
    let forever = Duration::from_secs(u32::MAX.into());
    let asked = Duration::try_from_secs_f64(seconds).unwrap_or(forever);
    asked.clamp(Duration::from_millis(1), forever)
}
