//! From a kernel's source to a function on a device: the disk cache, the compiler where that has nothing, and modules kept while the device is open.

use crate::cache::{Cache, Key, Recipe};
use crate::device::{Dev, lock};
use crate::driver::Handle;
use crate::nvrtc::{Nvrtc, Target};
use crossweave_kernels::{Dialect, Kernel, arch_name, options};
use crossweave_plugin::{Code, Host, Result, fail};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::settings::Settings;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: u32 = 8;
/// Shared memory a block has without asking.
const SHARED_UNASKED: u32 = 48 << 10;

/// The compiler and its images, one for all devices of the process.
pub(crate) struct Compiler {
    settings: Settings,
    cache: Cache,
    /// `None` until first asked for. A failure is found out anew each time, as a library may be installed meanwhile.
    nvrtc: Mutex<Option<Arc<Nvrtc>>>,
    /// Held while compiling, so that ranks as threads compile each kernel once.
    images: Mutex<HashMap<Key, Arc<Vec<u8>>>>,
}

impl Compiler {
    pub(crate) fn new(host: Host, settings: &Settings) -> Compiler {
        let own = settings
            .get("cuda.cache_dir")
            .filter(|d| *d != "off")
            .map(PathBuf::from);
        let dir = match settings.get("cuda.cache_dir") {
            Some(_) => own,
            None => settings
                .get("cache_dir")
                .map(|d| PathBuf::from(d).join("cuda")),
        };
        Compiler {
            settings: settings.clone(),
            cache: Cache::new(dir, host),
            nvrtc: Mutex::new(None),
            images: Mutex::default(),
        }
    }

    pub(crate) fn nvrtc(&self) -> Result<Arc<Nvrtc>> {
        let mut slot = lock(&self.nvrtc);
        if let Some(n) = &*slot {
            return Ok(n.clone());
        }
        let n = Arc::new(Nvrtc::open(&self.settings)?);
        *slot = Some(n.clone());
        Ok(n)
    }

    fn image(
        &self,
        kernel: &Kernel,
        nvrtc: &Nvrtc,
        target: &Target,
        driver: i32,
    ) -> Result<Arc<Vec<u8>>> {
        let source = kernel.source(Dialect::Cuda);
        let options = options(&target.name);
        let key = Recipe {
            source: &source,
            options: &options,
            compiler: nvrtc.version,
            driver,
            target: &target.name,
        }
        .key();
        let mut images = lock(&self.images);
        if let Some(i) = images.get(&key) {
            return Ok(i.clone());
        }
        let image = match self.cache.get(&key) {
            Some(i) => i,
            None => {
                let name = format!("{}_{}.cu", kernel.family.name(), kernel.entry);
                let i = nvrtc.compile(&name, &source, &options, target)?;
                self.cache.put(&key, &i);
                i
            }
        };
        let image = Arc::new(image);
        images.insert(key, image.clone());
        Ok(image)
    }
}

/// A function of a loaded module; the module stays while the device is open.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub Handle);

/// Modules of a device, by kernel.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<Kernel, Loaded>>,
}

struct Loaded {
    module: Handle,
    function: Function,
    /// Dynamic shared memory the function may use.
    shared: u32,
}

impl Modules {
    /// Called when the device closes, with its context current.
    pub(crate) fn unload(&self, unload: impl Fn(Handle)) {
        for (_, l) in lock(&self.loaded).drain() {
            unload(l.module);
        }
    }
}

impl Dev {
    /// What the compiler makes for this device: kernels are chosen by what that target has.
    pub(crate) fn target(&self) -> Result<Target> {
        let arch = self.facts.major * 10 + self.facts.minor;
        self.api.compiler.nvrtc()?.target(arch, arch_name)
    }

    /// May kernels of warpgroup products be chosen? Only machine code for sm_90a has them: not what a driver finishes for a newer device.
    pub(crate) fn wgmma(&self, target: &Target) -> Result<bool> {
        match self.api.settings.get("cuda.wgmma") {
            None | Some("auto") => Ok(target.name == "sm_90a"),
            Some("off") => Ok(false),
            Some(v) => fail(Code::Invalid, format!("cuda.wgmma = {v}: auto or off")),
        }
    }

    /// The kernel, ready to launch with so much dynamic shared memory.
    pub(crate) fn function(&self, kernel: &Kernel, shared: u32) -> Result<Function> {
        let mut loaded = lock(&self.modules.loaded);
        if let Some(l) = loaded.get_mut(kernel) {
            if shared > l.shared {
                self.allow_shared(l.function, shared)?;
                l.shared = shared;
            }
            return Ok(l.function);
        }
        let nvrtc = self.api.compiler.nvrtc()?;
        let target = self.target()?;
        let image = self
            .api
            .compiler
            .image(kernel, &nvrtc, &target, self.api.version)?;
        let d = self.driver();
        let name = CString::new(kernel.entry.as_str()).map_err(|_| {
            crossweave_plugin::Error::new(Code::Internal, "a kernel's name with a NUL byte")
        })?;
        let _in = self.enter()?;
        let (mut module, mut function) = (Handle::NULL, Handle::NULL);
        // SAFETY: the image is whole (the cache proves it) and PTX ends with a NUL; names live for the calls.
        unsafe {
            let s = (d.cuModuleLoadData)(&mut module, image.as_ptr().cast());
            self.check("cuModuleLoadData", s).map_err(|mut e| {
                let (major, minor) = nvrtc.version;
                let v = self.api.version;
                e.message = format!(
                    "{} (kernel {} for {}, compiled by NVRTC {major}.{minor} for a driver of CUDA {}.{}; where NVRTC is the newer, install one no newer than the driver)",
                    e.message,
                    kernel.entry,
                    target.name,
                    v / 1000,
                    v % 1000 / 10
                );
                e
            })?;
            let s = (d.cuModuleGetFunction)(&mut function, module, name.as_ptr());
            if let Err(e) = self.check("cuModuleGetFunction", s) {
                (d.cuModuleUnload)(module);
                return Err(e);
            }
        }
        let mut l = Loaded {
            module,
            function: Function(function),
            shared: SHARED_UNASKED,
        };
        let allowed = match shared > l.shared {
            true => self.allow_shared(l.function, shared),
            false => Ok(()),
        };
        l.shared = l.shared.max(shared);
        let function = l.function;
        if allowed.is_ok() {
            loaded.insert(kernel.clone(), l);
        } else {
            // SAFETY: loaded above, used by nobody.
            unsafe { (d.cuModuleUnload)(module) };
        }
        allowed.map(|()| function)
    }

    fn allow_shared(&self, f: Function, bytes: u32) -> Result<()> {
        let _in = self.enter()?;
        // SAFETY: the function is of a loaded module.
        let s =
            unsafe { (self.driver().cuFuncSetAttribute)(f.0, MAX_DYNAMIC_SHARED, bytes as i32) };
        self.check("cuFuncSetAttribute", s)
    }
}
