//! The driver as this process has it, and an open device: its primary context, its facts, and whether it is lost.

use crate::cudnn::{Cudnn, OnDevice};
use crate::driver::{
    Driver, Handle, NO_DEVICE, PEER_ALREADY_ENABLED, SUCCESS, Status, TOO_MANY_PEERS, attr,
};
use crate::error::{self, Meaning};
use crate::library::{self, DRIVER};
use crate::lt::{Choice, Lt, Problem};
use crate::modules::{Compiler, Modules};
use crate::settings::Settings;
use crossweave_plugin::{Code, Error, Host, Result, fail};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is guarded is replaced whole, so a panic elsewhere leaves it usable.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver, opened once.
pub(crate) struct Api {
    pub driver: Driver,
    /// As `12080`.
    pub version: i32,
    /// The file it came from.
    pub file: String,
    pub host: Host,
    pub settings: Settings,
    pub compiler: Compiler,
    lt: Mutex<Option<Arc<Lt>>>,
    dnn: Mutex<Option<Arc<Cudnn>>>,
    /// That products go without the library has been said.
    slow_products: AtomicBool,
    /// Devices visible.
    pub count: u32,
    devices: Mutex<BTreeMap<u32, Weak<Dev>>>,
}

impl Api {
    /// Opens and initialises the driver.
    pub fn open(host: Host, settings: &Settings) -> Result<Arc<Api>> {
        let opened = library::open(settings, &DRIVER)?;
        let driver = Driver::of(opened.lib)?;
        let failed = |f: &str, s: Status| {
            let e = error::error(&driver, f, s);
            let message = format!(
                "the CUDA driver ({}) does not start: {}",
                opened.name, e.message
            );
            Error { message, ..e }
        };
        // SAFETY: plain calls; the out pointers live for them.
        let (count, version) = unsafe {
            let (mut count, mut version) = (0, 0);
            match (driver.cuInit)(0) {
                SUCCESS => match (driver.cuDeviceGetCount)(&mut count) {
                    SUCCESS | NO_DEVICE => {}
                    s => return Err(failed("cuDeviceGetCount", s)),
                },
                NO_DEVICE => {}
                s => return Err(failed("cuInit", s)),
            }
            (driver.cuDriverGetVersion)(&mut version);
            (count, version)
        };
        Ok(Arc::new(Api {
            driver,
            version,
            file: opened.name,
            host,
            settings: settings.clone(),
            compiler: Compiler::new(host, settings),
            lt: Mutex::new(None),
            dnn: Mutex::new(None),
            slow_products: AtomicBool::new(false),
            count: count.max(0) as u32,
            devices: Mutex::default(),
        }))
    }

    /// The library for matrix products, opened once.
    pub fn lt(&self) -> Result<Arc<Lt>> {
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
    pub fn cudnn(&self) -> Result<Arc<Cudnn>> {
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

    /// The device, shared by all who opened it.
    pub fn device(self: &Arc<Self>, index: u32) -> Result<Arc<Dev>> {
        if index >= self.count {
            let have = match self.count {
                0 => "the CUDA driver sees none; check nvidia-smi and CUDA_VISIBLE_DEVICES"
                    .to_string(),
                n => format!("there are {n}"),
            };
            return fail(Code::Invalid, format!("device {index}: {have}"));
        }
        let mut devices = lock(&self.devices);
        if let Some(d) = devices.get(&index).and_then(Weak::upgrade) {
            return Ok(d);
        }
        let d = Arc::new(Dev::open(self, index)?);
        devices.insert(index, Arc::downgrade(&d));
        Ok(d)
    }
}

/// What kernels and allocations need to know of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub major: u32,
    pub minor: u32,
    pub sm_count: u32,
    pub warp: u32,
    pub shared_optin: u32,
    pub max_pitch: u64,
    /// Streams can wait for and write words of memory.
    pub mem_ops: bool,
    /// Memory can be exported as a file descriptor.
    pub posix_fd: bool,
    pub numa: Option<u32>,
}

/// A device with its primary context, which is kept as found: retained while open, current only inside a call (R7).
pub(crate) struct Dev {
    pub api: Arc<Api>,
    pub index: u32,
    pub ordinal: i32,
    pub ctx: Handle,
    pub facts: Facts,
    pub modules: Modules,
    /// The library's handle for this device.
    lt: Mutex<Option<(Arc<Lt>, Handle)>>,
    /// Algorithms by problem; `None`: the library has none.
    pub choices: Mutex<HashMap<Problem, Option<Choice>>>,
    /// Devices whose memory kernels here may touch.
    peers: Mutex<Vec<i32>>,
    /// What cuDNN keeps for this device.
    pub dnn: OnDevice,
    /// The status that ended the device, or 0.
    lost: AtomicI32,
    /// The function that first met it.
    lost_at: Mutex<String>,
}

/// The device's context is current on this thread while this lives; what was current before is so again afterwards.
pub(crate) struct Entered<'a>(&'a Driver);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut old = Handle::NULL;
        // SAFETY: pops what `Dev::enter` pushed on this thread.
        unsafe { (self.0.cuCtxPopCurrent_v2)(&mut old) };
    }
}

impl Dev {
    fn open(api: &Arc<Api>, index: u32) -> Result<Dev> {
        let d = &api.driver;
        let check = |f: &str, s: Status| match s {
            SUCCESS => Ok(()),
            s => Err(error::error(d, f, s)),
        };
        let (mut ordinal, mut ctx) = (0, Handle::NULL);
        // SAFETY: the index is one the driver counted; out pointers live for the calls.
        unsafe {
            check("cuDeviceGet", (d.cuDeviceGet)(&mut ordinal, index as i32))?;
            check(
                "cuDevicePrimaryCtxRetain",
                (d.cuDevicePrimaryCtxRetain)(&mut ctx, ordinal),
            )?;
        }
        let ask = |which: u32| {
            let mut v = 0;
            // SAFETY: as above; an attribute the driver does not know is an error and leaves 0.
            match unsafe { (d.cuDeviceGetAttribute)(&mut v, which, ordinal) } {
                SUCCESS => v,
                _ => 0,
            }
        };
        let some = |which: u32| ask(which).max(0) as u32;
        let numa = {
            let mut v = -1;
            // SAFETY: as above.
            let s = unsafe { (d.cuDeviceGetAttribute)(&mut v, attr::HOST_NUMA, ordinal) };
            (s == SUCCESS && v >= 0).then_some(v as u32)
        };
        let words = d.cuStreamWaitValue64_v2.is_some() && d.cuStreamWriteValue64_v2.is_some();
        let facts = Facts {
            major: some(attr::MAJOR),
            minor: some(attr::MINOR),
            sm_count: some(attr::SM_COUNT),
            warp: some(attr::WARP),
            shared_optin: some(attr::SHARED_OPTIN).max(some(attr::SHARED_PER_BLOCK)),
            max_pitch: u64::from(some(attr::MAX_PITCH)),
            mem_ops: words && (ask(attr::MEM_OPS) != 0 || ask(attr::MEM_OPS_V1) != 0),
            posix_fd: ask(attr::POSIX_FD) != 0,
            numa,
        };
        Ok(Dev {
            api: api.clone(),
            index,
            ordinal,
            ctx,
            facts,
            modules: Modules::default(),
            lt: Mutex::new(None),
            choices: Mutex::default(),
            peers: Mutex::default(),
            dnn: OnDevice::default(),
            lost: AtomicI32::new(0),
            lost_at: Mutex::default(),
        })
    }

    pub fn driver(&self) -> &Driver {
        &self.api.driver
    }

    /// `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.facts.major, self.facts.minor)
    }

    /// Makes the context current for the calls that follow; a lost device says so again.
    pub fn enter(&self) -> Result<Entered<'_>> {
        self.alive()?;
        self.enter_anyway()
    }

    /// The same where things are being released, lost or not.
    pub fn enter_anyway(&self) -> Result<Entered<'_>> {
        // SAFETY: the context lives while `self` does.
        match unsafe { (self.driver().cuCtxPushCurrent_v2)(self.ctx) } {
            SUCCESS => Ok(Entered(self.driver())),
            s => Err(self.failed("cuCtxPushCurrent_v2", s)),
        }
    }

    /// `Err` once the device is lost.
    pub fn alive(&self) -> Result<()> {
        match self.lost.load(Ordering::Acquire) {
            0 => Ok(()),
            s => {
                let at = lock(&self.lost_at).clone();
                let e = error::error(self.driver(), &at, s);
                let message = format!(
                    "the device was lost: {}; start the process again",
                    e.message
                );
                Err(Error { message, ..e })
            }
        }
    }

    /// The error of function `f`; remembers what ends the device.
    pub fn failed(&self, f: &str, status: Status) -> Error {
        if error::meaning(status) == Meaning::Lost && self.lost.load(Ordering::Acquire) == 0 {
            let mut at = lock(&self.lost_at);
            if at.is_empty() {
                *at = f.to_string();
            }
            drop(at);
            let _ = self
                .lost
                .compare_exchange(0, status, Ordering::AcqRel, Ordering::Acquire);
        }
        error::error(self.driver(), f, status)
    }

    /// Turns the status of `f` into a result.
    pub fn check(&self, f: &str, status: Status) -> Result<()> {
        match status {
            SUCCESS => Ok(()),
            s => Err(self.failed(f, s)),
        }
    }

    /// A function that an old driver lacks.
    pub fn optional<T: Copy>(&self, f: Option<T>, name: &str) -> Result<T> {
        f.ok_or_else(|| {
            let v = self.api.version;
            Error::new(
                Code::Unsupported,
                format!(
                    "the CUDA driver ({}.{}) has no {name}",
                    v / 1000,
                    v % 1000 / 10
                ),
            )
        })
    }

    /// The library for matrix products with its handle here; `None` where it is not there or not wanted, which is said once.
    pub fn lt(&self) -> Result<Option<(Arc<Lt>, Handle)>> {
        let mut slot = lock(&self.lt);
        if let Some(lt) = &*slot {
            return Ok(Some(lt.clone()));
        }
        let lt = match self.api.lt() {
            Ok(lt) => lt,
            Err(e) => {
                let unasked = self.api.settings.get("cuda.cublaslt") != Some("off");
                if unasked && !self.api.slow_products.swap(true, Ordering::Relaxed) {
                    let text = format!(
                        "matrix products run on this back end's own kernels, which use no tensor cores: {}",
                        e.message
                    );
                    self.api.host.log(2, "cuda", &text);
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

    /// Makes `other`'s memory reachable from here where the machine can. Bit 0: loads and stores; bit 1: copies without the host.
    pub fn reach(&self, other: &Dev) -> Result<u32> {
        if self.ordinal == other.ordinal {
            return Ok(3);
        }
        let d = self.driver();
        let mut can = 0;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (d.cuDeviceCanAccessPeer)(&mut can, self.ordinal, other.ordinal) };
        self.check("cuDeviceCanAccessPeer", s)?;
        if can == 0 {
            return Ok(0);
        }
        let _in = self.enter()?;
        // SAFETY: both contexts are alive.
        match unsafe { (d.cuCtxEnablePeerAccess)(other.ctx, 0) } {
            SUCCESS | PEER_ALREADY_ENABLED => {
                let mut peers = lock(&self.peers);
                if !peers.contains(&other.ordinal) {
                    peers.push(other.ordinal);
                }
                Ok(3)
            }
            s => match self.failed("cuCtxEnablePeerAccess", s) {
                // More peers than the hardware has room for: copies still go directly.
                e if e.code == Code::Unsupported || s == TOO_MANY_PEERS => Ok(2),
                e => Err(e),
            },
        }
    }

    /// Has `reach` made the other's memory reachable for loads and stores?
    pub fn has_access(&self, other: &Dev) -> bool {
        lock(&self.peers).contains(&other.ordinal)
    }

    /// Free and total bytes.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let _in = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: out pointers live for the call.
        let s = unsafe { (self.driver().cuMemGetInfo_v2)(&mut free, &mut total) };
        self.check("cuMemGetInfo_v2", s)?;
        Ok((free as u64, total as u64))
    }

    /// A text of up to 255 bytes that the driver writes.
    pub fn text(
        &self,
        name: &str,
        f: unsafe extern "C" fn(*mut c_char, i32, i32) -> Status,
    ) -> Result<String> {
        let mut b = [0u8; 256];
        // SAFETY: the driver writes at most the stated length.
        let s = unsafe { f(b.as_mut_ptr().cast(), 255, self.ordinal) };
        self.check(name, s)?;
        Ok(CStr::from_bytes_until_nul(&b)
            .map_or(String::new(), |t| t.to_string_lossy().into_owned()))
    }

    pub fn uuid(&self) -> [u8; 16] {
        let mut id = [0; 16];
        // SAFETY: the out pointer has 16 bytes. A failure leaves zeros, which mean unknown.
        unsafe { (self.driver().cuDeviceGetUuid_v2)(&mut id, self.ordinal) };
        id
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Ok(_in) = self.enter_anyway() {
            // SAFETY: loaded for this device, unloaded once; nothing prepared for it is left, as that keeps the device.
            let unload = |m| unsafe { (self.driver().cuModuleUnload)(m) };
            self.modules.unload(|m| {
                unload(m);
            });
            self.dnn.close();
            if let Some((lt, handle)) = lock(&self.lt).take() {
                // SAFETY: made by us, destroyed once.
                unsafe { (lt.t.cublasLtDestroy)(handle) };
            }
        }
        // SAFETY: gives back what `open` retained; a context others hold stays.
        unsafe { (self.driver().cuDevicePrimaryCtxRelease_v2)(self.ordinal) };
    }
}
