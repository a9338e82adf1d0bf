//! What CUDA's libraries are to the process and to a device, beside what every GPU has.

use crate::cudnn::{Cudnn, OnDevice};
use crate::lt::{Choice, Lt, Problem};
use crate::modules::Compiler;
use crossweave_gpu::{self as gpu, Handle, Settings, lock};
use crossweave_plugin::{Code, Host, Result, fail};
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The compiler and the vendor's libraries, each opened when first asked for.
pub(crate) struct Libraries {
    host: Host,
    settings: Settings,
    pub compiler: Compiler,
    lt: Mutex<Option<Arc<Lt>>>,
    dnn: Mutex<Option<Arc<Cudnn>>>,
    /// That products go without the library has been said.
    slow_products: AtomicBool,
}

impl Libraries {
    pub(crate) fn new(host: Host, settings: &Settings) -> Libraries {
        Libraries {
            host,
            settings: settings.clone(),
            compiler: Compiler::new(host, settings),
            lt: Mutex::new(None),
            dnn: Mutex::new(None),
            slow_products: AtomicBool::new(false),
        }
    }

    /// The library for matrix products, opened once.
    pub(crate) fn lt(&self) -> Result<Arc<Lt>> {
        if self.settings.get("cuda.cublaslt") == Some("off") {
            return fail(Code::Unsupported, "cuda.cublaslt = off");
        }
        let mut slot = lock(&self.lt);
        if let Some(lt) = &*slot {
            return Ok(lt.clone());
        }
        let lt = Arc::new(Lt::open(&self.settings)?);
        *slot = Some(lt.clone());
        Ok(lt)
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
    /// The library's handle for this device.
    lt: Mutex<Option<(Arc<Lt>, Handle)>>,
    /// Algorithms by problem; `None`: the library has none.
    pub choices: Mutex<HashMap<Problem, Option<Choice>>>,
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
            gpu,
            libs: libs.clone(),
            lt: Mutex::new(None),
            choices: Mutex::default(),
            dnn: OnDevice::default(),
        }
    }

    /// The library for matrix products with its handle here; `None` where it is not there or not wanted, which is said once.
    pub(crate) fn lt(&self) -> Result<Option<(Arc<Lt>, Handle)>> {
        let mut slot = lock(&self.lt);
        if let Some(lt) = &*slot {
            return Ok(Some(lt.clone()));
        }
        let libs = &self.libs;
        let lt = match libs.lt() {
            Ok(lt) => lt,
            Err(e) => {
                let unasked = libs.settings.get("cuda.cublaslt") != Some("off");
                if unasked && !libs.slow_products.swap(true, Ordering::Relaxed) {
                    let text = format!(
                        "matrix products run on this back end's own kernels, which use no tensor cores: {}",
                        e.message
                    );
                    libs.host.log(2, "cuda", &text);
                }
                return Ok(None);
            }
        };
        let _in = self.enter()?;
        let mut handle = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (lt.t.cublasLtCreate)(&mut handle) };
        lt.check("cublasLtCreate", s)?;
        *slot = Some((lt.clone(), handle));
        Ok(Some((lt, handle)))
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let Ok(_in) = self.gpu.enter_anyway() else {
            return;
        };
        self.dnn.close();
        if let Some((lt, handle)) = lock(&self.lt).take() {
            // SAFETY: made by us, destroyed once; nothing prepared for the device is left, as that keeps it.
            unsafe { (lt.t.cublasLtDestroy)(handle) };
        }
    }
}
