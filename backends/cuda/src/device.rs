//! What CUDA's libraries are to the process and to a device, beside what every GPU has.

use crate::cudnn::{Cudnn, OnDevice};
use crate::lt;
use crate::modules::Compiler;
use crossweave_gpu::lt::{Library, OnDevice as Products};
use crossweave_gpu::{self as gpu, Settings, lock};
use crossweave_plugin::{Code, Host, Result, fail};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

/// The compiler and the vendor's libraries, each opened when first asked for.
pub(crate) struct Libraries {
    settings: Settings,
    pub compiler: Compiler,
    pub lt: Arc<Library>,
    dnn: Mutex<Option<Arc<Cudnn>>>,
}

impl Libraries {
    pub(crate) fn new(host: Host, settings: &Settings) -> Libraries {
        Libraries {
            settings: settings.clone(),
            compiler: Compiler::new(host, settings),
            lt: Arc::new(Library::new(host, settings, "cublaslt", lt::open)),
            dnn: Mutex::new(None),
        }
    }

    /// The library for attention, opened once.
    pub(crate) fn cudnn(&self) -> Result<Arc<Cudnn>> {
        match self.settings.get("cuda.cudnn") {
            None | Some("auto") => {}
            Some("off") => return fail(Code::Unsupported, "cuda.cudnn = off"),
            Some(v) => return fail(Code::Invalid, format!("cuda.cudnn = {v}: auto or off")),
        }
        let mut slot = lock(&self.dnn);
        if let Some(lib) = &*slot {
            return Ok(lib.clone());
        }
        let lib = Arc::new(Cudnn::open(&self.settings)?);
        *slot = Some(lib.clone());
        Ok(lib)
    }
}

/// A device with what CUDA's libraries keep for it.
pub(crate) struct Dev {
    gpu: Arc<gpu::Dev>,
    pub libs: Arc<Libraries>,
    /// What cuBLASLt keeps for this device.
    pub lt: Arc<Products>,
    /// What cuDNN keeps for this device.
    pub dnn: OnDevice,
}

impl Deref for Dev {
    type Target = Arc<gpu::Dev>;

    fn deref(&self) -> &Arc<gpu::Dev> {
        &self.gpu
    }
}

impl Dev {
    pub(crate) fn new(gpu: Arc<gpu::Dev>, libs: &Arc<Libraries>) -> Dev {
        Dev {
            lt: Arc::new(Products::new(&gpu, &libs.lt)),
            gpu,
            libs: libs.clone(),
            dnn: OnDevice::default(),
        }
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let Ok(_in) = self.gpu.enter_anyway() else {
            return;
        };
        self.dnn.close();
    }
}
