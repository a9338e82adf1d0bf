//! Matrix products by cuBLASLt's interface, which hipBLASLt has too under names and numbers of its own: a vendor gives its functions and its
//! numbers, and what is asked of them stands here once.

mod product;
mod shape;

use crate::device::Dev;
use crate::lock;
use crate::runtime::Handle;
use crate::settings::Settings;
use crossweave_plugin::{Code, Error, Host, Result, fail};
use product::Choice;
pub use product::Product;
use shape::Problem;
use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// `CUDA_R_32F`, `HIP_R_32F`.
pub const R_32F: u32 = 0;
/// `CUDA_R_16F`, `HIP_R_16F`.
pub const R_16F: u32 = 2;
/// `CUDA_R_16BF`, `HIP_R_16BF`.
pub const R_16BF: u32 = 14;
/// `CUBLASLT_EPILOGUE_BIAS`, `HIPBLASLT_EPILOGUE_BIAS`.
pub const EPILOGUE_BIAS: u32 = 4;

/// The functions, by their names without what all of a library's begin with.
#[allow(missing_docs)]
pub struct Functions {
    pub create: unsafe extern "C" fn(*mut Handle) -> i32,
    pub destroy: unsafe extern "C" fn(Handle) -> i32,
    pub desc_create: unsafe extern "C" fn(*mut Handle, u32, u32) -> i32,
    pub desc_destroy: unsafe extern "C" fn(Handle) -> i32,
    pub desc_set: Set,
    pub layout_create: unsafe extern "C" fn(*mut Handle, u32, u64, u64, i64) -> i32,
    pub layout_destroy: unsafe extern "C" fn(Handle) -> i32,
    pub layout_set: Set,
    pub pref_create: unsafe extern "C" fn(*mut Handle) -> i32,
    pub pref_destroy: unsafe extern "C" fn(Handle) -> i32,
    pub pref_set: Set,
    pub heuristic: Heuristic,
    pub matmul: Matmul,
}

/// `…SetAttribute`: of what, which, its value, the value's bytes.
pub type Set = unsafe extern "C" fn(Handle, u32, *const c_void, usize) -> i32;
/// `…MatmulAlgoGetHeuristic`.
pub type Heuristic = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    i32,
    *mut c_void,
    *mut i32,
) -> i32;
/// `…Matmul`.
pub type Matmul = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    *const c_void,
    Handle,
    *mut c_void,
    Handle,
    *const c_void,
    *mut c_void,
    usize,
    Handle,
) -> i32;

/// A library's own numbers.
pub struct Numbers {
    /// What the names of its functions begin with.
    pub prefix: &'static str,
    /// f32 products, and those that may round to TF32.
    pub compute: [u32; 2],
    /// The operation that transposes.
    pub op_t: i32,
    /// Attributes of a product: first and second transposed.
    pub trans: [u32; 2],
    /// Attribute of a product.
    pub epilogue: u32,
    /// Attributes of a product: the bias's address and type.
    pub bias: [u32; 2],
    /// Attributes of a layout: how many, and elements from one to the next.
    pub batch: [u32; 2],
    /// Attribute of a preference: bytes of scratch.
    pub pref_workspace: u32,
    /// Attribute of a preference, with the value by which partial sums are added in the type of the accumulation: never in that of the output,
    /// never in the order of arrival.
    pub pref_reductions: Option<(u32, u32)>,
    /// Attribute of a preference: alignment of the first operand, before those of the others. Without it a library is given aligned operands only.
    pub pref_align: Option<u32>,
    /// Words of an algorithm.
    pub algo: usize,
    /// Statuses by which it says that it has nothing for a problem.
    pub nothing: [i32; 2],
    /// What another status means.
    pub code: fn(i32) -> Code,
}

/// The library, opened once for the process; handles are of devices.
pub struct Lt {
    /// Its functions.
    pub f: Functions,
    /// Its numbers.
    pub n: &'static Numbers,
    /// The name of a status, where it has one.
    pub status: Option<unsafe extern "C" fn(i32) -> *const c_char>,
    /// The version, as `12.8.4`; some libraries say it to a handle only.
    pub version: Box<dyn Fn(Handle) -> String + Send + Sync>,
    /// The file it came from.
    pub file: String,
    /// The first version, of which two numbers count, that has these numbers; and what it came with.
    pub oldest: Option<((u32, u32), &'static str)>,
}

impl Lt {
    /// Are its numbers those of [`Lt::n`]?
    fn current(&self, handle: Handle) -> Result<()> {
        let version = (self.version)(handle);
        let mut parts = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let two = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        match self.oldest {
            Some((oldest, with)) if two < oldest => fail(
                Code::Unsupported,
                format!(
                    "{} {version} ({}) has other numbers than {}.{} ({with}) and later",
                    self.n.prefix, self.file, oldest.0, oldest.1
                ),
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn check(&self, f: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a static text.
        let name = self
            .status
            .map_or(String::new(), |n| unsafe { crate::text(n(status)) });
        let code = (self.n.code)(status);
        Err(Error {
            vendor_code: i64::from(status),
            retryable: code == Code::Oom,
            ..Error::new(code, format!("{}{f}: {name} ({status})", self.n.prefix))
        })
    }
}

/// The library of a process, opened when first asked for.
pub struct Library {
    host: Host,
    settings: Settings,
    key: &'static str,
    open: fn(&Settings) -> Result<Lt>,
    lt: Mutex<Option<Arc<Lt>>>,
    /// That products go without it has been said.
    slow: AtomicBool,
}

impl Library {
    /// `key` is the back end's own that turns it off (`cublaslt` of `cuda.cublaslt`).
    pub fn new(
        host: Host,
        settings: &Settings,
        key: &'static str,
        open: fn(&Settings) -> Result<Lt>,
    ) -> Library {
        Library {
            host,
            settings: settings.clone(),
            key,
            open,
            lt: Mutex::new(None),
            slow: AtomicBool::new(false),
        }
    }

    /// The library.
    ///
    /// # Errors
    /// `Unsupported`: it is not there, or not wanted.
    pub fn get(&self) -> Result<Arc<Lt>> {
        if self.off() {
            let vendor = self.settings.vendor().name;
            return fail(Code::Unsupported, format!("{vendor}.{} = off", self.key));
        }
        let mut slot = lock(&self.lt);
        if let Some(lt) = &*slot {
            return Ok(lt.clone());
        }
        let lt = Arc::new((self.open)(&self.settings)?);
        *slot = Some(lt.clone());
        Ok(lt)
    }

    fn off(&self) -> bool {
        self.settings.own(self.key) == Some("off")
    }

    fn missing(&self, e: &Error) {
        if !self.off() && !self.slow.swap(true, Ordering::Relaxed) {
            let text = format!(
                "matrix products run on this back end's own kernels, which use no tensor cores: {}",
                e.message
            );
            self.host.log(2, self.settings.vendor().name, &text);
        }
    }
}

/// The library on a device: its handle there, and the algorithms it chose by problem (`None`: it has none).
pub struct OnDevice {
    dev: Arc<Dev>,
    library: Arc<Library>,
    handle: Mutex<Option<(Arc<Lt>, Handle)>>,
    /// The library was opened here, and is too old.
    refused: Mutex<Option<Error>>,
    choices: Mutex<HashMap<Problem, Option<Choice>>>,
}

impl OnDevice {
    /// Nothing is opened yet.
    pub fn new(dev: &Arc<Dev>, library: &Arc<Library>) -> OnDevice {
        OnDevice {
            dev: dev.clone(),
            library: library.clone(),
            handle: Mutex::default(),
            refused: Mutex::default(),
            choices: Mutex::default(),
        }
    }

    /// The library with its handle here; `None` where it is not there or not wanted, which is said once.
    fn lt(&self) -> Result<Option<(Arc<Lt>, Handle)>> {
        let mut slot = lock(&self.handle);
        if let Some(lt) = &*slot {
            return Ok(Some(lt.clone()));
        }
        let refused = lock(&self.refused).clone();
        let lt = match refused.map_or_else(|| self.library.get(), Err) {
            Ok(lt) => lt,
            Err(e) => {
                self.library.missing(&e);
                return Ok(None);
            }
        };
        let _in = self.dev.enter()?;
        let mut handle = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (lt.f.create)(&mut handle) };
        lt.check("Create", s)?;
        if let Err(e) = lt.current(handle) {
            // SAFETY: made by us, destroyed once.
            unsafe { (lt.f.destroy)(handle) };
            self.library.missing(&e);
            *lock(&self.refused) = Some(e);
            return Ok(None);
        }
        *slot = Some((lt.clone(), handle));
        Ok(Some((lt, handle)))
    }

    /// Version and file, or why there is none.
    pub fn said(&self) -> String {
        match self.library.get().and_then(|_| self.lt()) {
            Ok(Some((lt, handle))) => format!("{} ({})", (lt.version)(handle), lt.file),
            Ok(None) => lock(&self.refused)
                .as_ref()
                .map_or(String::new(), |e| e.message.clone()),
            Err(e) => e.message,
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        let Some((lt, handle)) = lock(&self.handle).take() else {
            return;
        };
        if let Ok(_in) = self.dev.enter_anyway() {
            // SAFETY: made by us, destroyed once; what was prepared with it keeps this.
            unsafe { (lt.f.destroy)(handle) };
        }
    }
}
