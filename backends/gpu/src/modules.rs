//! From a kernel's source to a function on a device: images kept in memory and on disk, the vendor's compiler where they have nothing, and
//! modules kept while the device is open.

use crate::cache::{Cache, Key, Recipe};
use crate::device::Dev;
use crate::lock;
use crate::runtime::Handle;
use crate::settings::Settings;
use crossweave_kernels::Kernel;
use crossweave_plugin::{Code, Error, Host, Result};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

/// Shared memory a block has without asking.
const SHARED_UNASKED: u32 = 48 << 10;

/// Machine code of kernels.
pub type Image = Arc<Vec<u8>>;

/// Images of one compiler, for all devices of the process.
pub struct Images {
    cache: Cache,
    /// Held while compiling, so that ranks as threads compile each kernel once.
    images: Mutex<HashMap<Key, Image>>,
}

impl Images {
    /// None yet; `cache_dir` of the settings says where they are kept.
    pub fn new(host: Host, settings: &Settings) -> Images {
        Images {
            cache: Cache::new(host, settings),
            images: Mutex::default(),
        }
    }

    /// The image, compiled where neither memory nor disk has it.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn get(
        &self,
        recipe: &Recipe<'_>,
        compile: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Image> {
        let key = recipe.key();
        let mut images = lock(&self.images);
        if let Some(i) = images.get(&key) {
            return Ok(i.clone());
        }
        let image = match self.cache.get(&key) {
            Some(i) => i,
            None => {
                let i = compile()?;
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
#[derive(Clone, Copy, Debug)]
pub struct Function(pub(crate) Handle);

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
    /// Called when the device closes, while it is current.
    pub(crate) fn unload(&self, unload: impl Fn(Handle)) {
        for (_, l) in lock(&self.loaded).drain() {
            unload(l.module);
        }
    }
}

impl Dev {
    /// The kernel, ready to launch with so much dynamic shared memory. `image` gives its machine code, and what to say of code that does
    /// not load.
    ///
    /// # Errors
    /// What `image` or the driver says.
    pub fn function(
        &self,
        kernel: &Kernel,
        shared: u32,
        image: impl FnOnce() -> Result<(Image, String)>,
    ) -> Result<Function> {
        let mut loaded = lock(&self.modules.loaded);
        if let Some(l) = loaded.get_mut(kernel) {
            if shared > l.shared {
                self.allow_shared(l.function, shared)?;
                l.shared = shared;
            }
            return Ok(l.function);
        }
        let (image, made) = image()?;
        let name = CString::new(kernel.entry.as_str())
            .map_err(|_| Error::new(Code::Internal, "a kernel's name with a NUL byte"))?;
        let _in = self.enter()?;
        let rt = self.rt();
        let (mut module, mut function) = (Handle::NULL, Handle::NULL);
        // SAFETY: the image is whole (the cache proves it) and text ends with a NUL; names live for the calls. What was loaded and is not
        // kept is unloaded once.
        unsafe {
            let o = rt.module(&mut module, image.as_ptr().cast());
            self.check(o).map_err(|mut e| {
                e.message = format!("{} (kernel {} {made})", e.message, kernel.entry);
                e
            })?;
            let o = rt.function(&mut function, module, name.as_ptr());
            let ready = self.check(o).and_then(|()| match shared > SHARED_UNASKED {
                true => self.allow_shared(Function(function), shared),
                false => Ok(()),
            });
            if let Err(e) = ready {
                let _ = rt.module_unload(module);
                return Err(e);
            }
        }
        let function = Function(function);
        let l = Loaded {
            module,
            function,
            shared: shared.max(SHARED_UNASKED),
        };
        loaded.insert(kernel.clone(), l);
        Ok(function)
    }

    fn allow_shared(&self, f: Function, bytes: u32) -> Result<()> {
        let _in = self.enter()?;
        // SAFETY: the function is of a loaded module.
        self.check(unsafe { self.rt().allow_shared(f.0, bytes as i32) })
    }
}
