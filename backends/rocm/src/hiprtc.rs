//! HIPRTC: device code from source, at run time, for the architecture that is there and its features.

use crate::hip;
use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{Dev, Function, Handle, Images, Own, Recipe, Settings, lock, text};
use crossweave_kernels::{self as kernels, Dialect, Kernel, hip_options};
use crossweave_plugin::{Code, Error, Host, Result, fail};
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex};

const WANTED: Wanted = Wanted {
    what: "HIPRTC, the HIP compiler for run time",
    key: "rocm.libhiprtc",
    names: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"],
    fix: "install it (ROCm's package hip-runtime-amd)",
};

crossweave_gpu::functions! {
    /// The compiler.
    Functions {
        fn hiprtcVersion(*mut i32, *mut i32) -> i32;
        fn hiprtcGetErrorString(i32) -> *const c_char;
        fn hiprtcCreateProgram(*mut Handle, *const c_char, *const c_char, i32, *mut *const c_char, *mut *const c_char) -> i32;
        fn hiprtcDestroyProgram(*mut Handle) -> i32;
        fn hiprtcCompileProgram(Handle, i32, *mut *const c_char) -> i32;
        fn hiprtcGetCodeSize(Handle, *mut usize) -> i32;
        fn hiprtcGetCode(Handle, *mut c_char) -> i32;
        fn hiprtcGetProgramLogSize(Handle, *mut usize) -> i32;
        fn hiprtcGetProgramLog(Handle, *mut c_char) -> i32;
    } optional {}
}

/// The library, opened once.
pub(crate) struct Hiprtc {
    t: Functions,
    pub version: (i32, i32),
    pub file: String,
    /// Old versions do not take two compilations at once.
    one: Mutex<()>,
}

/// The options for an architecture with waves of `warp` threads.
pub(crate) fn options(arch: &str, warp: u32) -> Vec<String> {
    let mut all = vec![format!("--gpu-architecture={arch}")];
    all.extend(hip_options(warp));
    all
}

impl Hiprtc {
    /// A library of its own since HIP 6, before within the run time.
    pub(crate) fn open(settings: &Settings) -> Result<Hiprtc> {
        let of = |w: &Wanted| {
            let opened = library::open(settings, w)?;
            Functions::of(&opened).map(|t| (t, opened.name))
        };
        let own = of(&WANTED);
        let found = match settings.get(WANTED.key) {
            Some(_) => own,
            None => own.or_else(|e| of(&hip::WANTED).map_err(|_| e)),
        };
        let (t, file) = found?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the out pointers live for the call.
        unsafe { (t.hiprtcVersion)(&mut major, &mut minor) };
        Ok(Hiprtc {
            t,
            version: (major, minor),
            file,
            one: Mutex::new(()),
        })
    }

    fn check(&self, f: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a static text.
        let words = unsafe { text((self.t.hiprtcGetErrorString)(status)) };
        Err(Error {
            vendor_code: i64::from(status),
            ..Error::new(Code::Internal, format!("{f}: {words} ({status})"))
        })
    }

    /// Compiles a whole translation unit; `name` is for messages.
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Vec<u8>> {
        let c = |s: &str| {
            CString::new(s).map_err(|_| Error::new(Code::Internal, "device code with a NUL byte"))
        };
        let (source, file) = (c(source)?, c(name)?);
        let options = options.iter().map(|o| c(o)).collect::<Result<Vec<_>>>()?;
        let mut list: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let _one = lock(&self.one);
        let mut program = Program(self, Handle::NULL);
        let none = std::ptr::null_mut();
        // SAFETY: texts and lists live for the calls; buffers have the lengths the library asked for.
        unsafe {
            let (text, file) = (source.as_ptr(), file.as_ptr());
            let s = (self.t.hiprtcCreateProgram)(&mut program.1, text, file, 0, none, none);
            self.check("hiprtcCreateProgram", s)?;
            let s = (self.t.hiprtcCompileProgram)(program.1, list.len() as i32, list.as_mut_ptr());
            if let Err(e) = self.check("hiprtcCompileProgram", s) {
                let (size, get) = (self.t.hiprtcGetProgramLogSize, self.t.hiprtcGetProgramLog);
                let log = self.read(program.1, size, get).unwrap_or_default();
                let log = String::from_utf8_lossy(&log);
                let log = log.trim_end_matches('\0').trim();
                return fail(
                    Code::Internal,
                    format!("kernel {name}: {}: {log}", e.message),
                );
            }
            self.read(program.1, self.t.hiprtcGetCodeSize, self.t.hiprtcGetCode)
        }
    }

    /// # Safety
    /// The program is alive, and the two functions belong together.
    unsafe fn read(
        &self,
        program: Handle,
        size: unsafe extern "C" fn(Handle, *mut usize) -> i32,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut n = 0;
        // SAFETY: promised by the caller; the buffer has the length asked for.
        unsafe {
            self.check("hiprtc size", size(program, &mut n))?;
            let mut out = vec![0u8; n];
            self.check("hiprtc result", get(program, out.as_mut_ptr().cast()))?;
            Ok(out)
        }
    }
}

struct Program<'a>(&'a Hiprtc, Handle);
impl Drop for Program<'_> {
    fn drop(&mut self) {
        if self.1 != Handle::NULL {
            // SAFETY: made by us, destroyed once.
            unsafe { (self.0.t.hiprtcDestroyProgram)(&mut self.1) };
        }
    }
}

/// The compiler and its images, one for all devices of the process.
pub(crate) struct Compiler {
    settings: Settings,
    images: Images,
    /// `None` until first asked for. A failure is found out anew each time, as a library may be installed meanwhile.
    hiprtc: Mutex<Option<Arc<Hiprtc>>>,
}

impl Compiler {
    pub(crate) fn new(host: Host, settings: &Settings) -> Compiler {
        Compiler {
            settings: settings.clone(),
            images: Images::new(host, settings),
            hiprtc: Mutex::new(None),
        }
    }

    pub(crate) fn hiprtc(&self) -> Result<Arc<Hiprtc>> {
        let mut slot = lock(&self.hiprtc);
        if let Some(n) = &*slot {
            return Ok(n.clone());
        }
        let n = Arc::new(Hiprtc::open(&self.settings)?);
        *slot = Some(n.clone());
        Ok(n)
    }

    /// The op's kernels on a device, ready to launch.
    pub(crate) fn load(&self, dev: &Dev, op: kernels::Prepared) -> Result<Own> {
        Own::load(op, |kernel, shared| self.kernel(dev, kernel, shared))
    }

    fn kernel(&self, dev: &Dev, kernel: &Kernel, shared: u32) -> Result<Function> {
        dev.function(kernel, shared, || {
            let (hiprtc, arch) = (self.hiprtc()?, &dev.facts.arch);
            let source = kernel.source(Dialect::Hip);
            let options = options(arch, dev.facts.warp);
            let version = dev.rt().version();
            let recipe = Recipe {
                source: &source,
                options: &options,
                compiler: hiprtc.version,
                driver: &version,
                target: arch,
            };
            let image = self.images.get(&recipe, || {
                let name = format!("{}_{}.hip", kernel.family.name(), kernel.entry);
                hiprtc.compile(&name, &source, &options)
            })?;
            let (major, minor) = hiprtc.version;
            let made = format!("for {arch}, compiled by HIPRTC {major}.{minor} for HIP {version}");
            Ok((image, made))
        })
    }
}

/// A kernel of every family, as a device with waves of this width has it.
#[cfg(test)]
pub(crate) fn one_of_each(warp: u32) -> Vec<Kernel> {
    let facts = kernels::Facts {
        dialect: Dialect::Hip,
        arch: 0,
        sms: 60,
        warp,
        shared: 64 << 10,
        wgmma: false,
    };
    let mut of = std::collections::BTreeMap::new();
    for l in kernels::survey(&facts).0 {
        of.entry(l.kernel.family).or_insert(l.kernel);
    }
    let families = kernels::Family::ALL.iter();
    let all = families.filter(|f| f.cuda_only().is_none()).count();
    assert_eq!(of.len(), all, "a kernel of every family that HIP has");
    of.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One kernel of each family through the compiler of Debian's HIP 5.2, which needs no device; the two architectures take turns.
    #[test]
    fn the_real_compiler_takes_a_kernel_of_every_family() {
        let settings = Settings::new(&crate::ABOUT).with("rocm.libhiprtc", "libamdhip64.so.5");
        let hiprtc = match Hiprtc::open(&settings) {
            Ok(h) => h,
            Err(e) => {
                let why = format!("{} (apt-get install libamdhip64-5)", e.message);
                return crossweave_tests::tools::missing("hip", &why);
            }
        };
        let mut compiled = 0;
        for (turn, arch, warp) in [(0, "gfx90a:sramecc+:xnack-", 64), (1, "gfx1030", 32)] {
            for k in one_of_each(warp).iter().skip(turn).step_by(2) {
                let (source, options) = (k.source(Dialect::Hip), options(arch, warp));
                let code = hiprtc
                    .compile(&k.entry, &source, &options)
                    .unwrap_or_else(|e| panic!("{}", e.message));
                assert!(
                    code.starts_with(b"\x7fELF") || code.starts_with(b"__CLANG_OFFLOAD_BUNDLE__")
                );
                compiled += 1;
            }
        }
        assert_eq!(compiled, one_of_each(64).len());
    }
}
