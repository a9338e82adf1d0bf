//! What a rank runs on and how it reaches the others: all that is live of its start. What it is to do is data ([`crate::RankSpec`]).

use crossweave_hal::{Bootstrap, Device};
use crossweave_mesh::{Islands, MeshOptions};
use crossweave_store::{EngineKind, Layer, NoFaults, Settings};
use std::sync::Arc;
use std::time::Duration;

/// What a rank runs on.
#[derive(Clone)]
pub struct Devices {
    /// Runs its blocks.
    pub compute: Device,
    /// Runs kernels on host memory, where something is updated there: the `cpu` back end, or another that imports host pointers.
    pub host: Device,
    /// Where what rests in files goes.
    pub files: Files,
}

/// Where what rests in files goes.
#[derive(Clone, Default)]
pub enum Files {
    /// Files of the folder that the specification names.
    #[default]
    Folder,
    /// Nowhere: transfers are counted and nothing is written.
    Nowhere,
    /// Files behind a layer that stands before each transfer (faults, in tests).
    Behind(Arc<dyn Layer>),
}

impl Files {
    /// The settings and the layer by which files are opened.
    pub(crate) fn open(&self, settings: &Settings) -> (Settings, Arc<dyn Layer>) {
        let mut settings = settings.clone();
        if matches!(self, Files::Nowhere) {
            settings.engine = EngineKind::Nowhere;
        }
        match self {
            Files::Behind(layer) => (settings, layer.clone()),
            _ => (settings, Arc::new(NoFaults)),
        }
    }
}

impl Devices {
    /// One device for everything, and files of the folder that the specification names.
    pub fn one(device: &Device) -> Devices {
        Devices {
            compute: device.clone(),
            host: device.clone(),
            files: Files::Folder,
        }
    }

    /// A device that computes nothing for everything, and no files: for a rehearsal.
    pub fn rehearsal(null: &Device) -> Devices {
        Devices {
            files: Files::Nowhere,
            ..Devices::one(null)
        }
    }
}

/// How a rank reaches the others, and how its steps are given to the device.
#[derive(Clone)]
pub struct Links<'a> {
    /// How ranks meet.
    pub boot: &'a dyn Bootstrap,
    /// Which ranks share a library of collectives, in a job of several back ends.
    pub islands: Option<Islands>,
    /// The time limit of each collective.
    pub timeout: Option<Duration>,
    /// Forward and backward steps that repeat are replayed as graphs of the device.
    pub graphs: bool,
}

impl<'a> Links<'a> {
    /// Ranks of one back end that wait for each other as long as it takes; steps are enqueued call by call.
    pub fn new(boot: &'a dyn Bootstrap) -> Links<'a> {
        Links {
            boot,
            islands: None,
            timeout: None,
            graphs: false,
        }
    }

    pub(crate) fn mesh_options(&self) -> MeshOptions {
        MeshOptions {
            timeout: self.timeout,
            islands: self.islands.clone(),
        }
    }
}
