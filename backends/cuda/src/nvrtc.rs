//! NVRTC: device code from source, at run time, for the architecture that is there.

use crossweave_gpu::library::{self, Wanted};
use crossweave_gpu::{Handle, Settings, lock, text};
use crossweave_plugin::{Code, Error, Result, fail};
#[cfg(test)]
use cudarc::nvrtc::sys as bindings;
use std::ffi::{CString, c_char};
use std::sync::Mutex;

pub(crate) const WANTED: Wanted = Wanted {
    what: "NVRTC, the CUDA compiler for run time",
    key: "cuda.libnvrtc",
    names: &[
        "libnvrtc.so.12",
        "libnvrtc.so.13",
        "libnvrtc.so.11.2",
        "libnvrtc.so",
        "nvrtc64_120_0.dll",
        "nvrtc64_130_0.dll",
    ],
    fix: "install it (Debian and Ubuntu: cuda-nvrtc; Python: nvidia-cuda-nvrtc-cu12)",
};

crossweave_gpu::table! {
    /// The compiler.
    Table {
        fn nvrtcVersion(*mut i32, *mut i32) -> i32;
        fn nvrtcGetErrorString(i32) -> *const c_char;
        fn nvrtcCreateProgram(*mut Handle, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char) -> i32;
        fn nvrtcDestroyProgram(*mut Handle) -> i32;
        fn nvrtcCompileProgram(Handle, i32, *const *const c_char) -> i32;
        fn nvrtcGetCUBINSize(Handle, *mut usize) -> i32;
        fn nvrtcGetCUBIN(Handle, *mut c_char) -> i32;
        fn nvrtcGetPTXSize(Handle, *mut usize) -> i32;
        fn nvrtcGetPTX(Handle, *mut c_char) -> i32;
        fn nvrtcGetProgramLogSize(Handle, *mut usize) -> i32;
        fn nvrtcGetProgramLog(Handle, *mut c_char) -> i32;
    } optional {
        fn nvrtcGetNumSupportedArchs(*mut i32) -> i32;
        fn nvrtcGetSupportedArchs(*mut i32) -> i32;
    }
}

/// What is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `sm_90a`, or `compute_90` for code that the driver finishes.
    pub name: String,
    /// Compute capability the code may count on, as `major * 10 + minor`.
    pub arch: u32,
}

/// The target for a device of `arch`, by the compiler's list of what it knows (empty: it does not say).
pub(crate) fn target(
    arch: u32,
    known: &[i32],
    full_name: impl Fn(u32) -> String,
) -> Option<Target> {
    if known.is_empty() || known.contains(&(arch as i32)) {
        return Some(Target {
            name: full_name(arch),
            arch,
        });
    }
    // A device newer than the compiler: intermediate code of the newest older architecture, which the driver translates.
    let older = known
        .iter()
        .copied()
        .filter(|k| *k > 0 && (*k as u32) < arch)
        .max()?;
    Some(Target {
        name: format!("compute_{older}"),
        arch: older as u32,
    })
}

pub(crate) struct Nvrtc {
    t: Table,
    pub version: (i32, i32),
    pub file: String,
    known: Vec<i32>,
    /// Old versions do not take two compilations at once.
    one: Mutex<()>,
}

impl Nvrtc {
    pub(crate) fn open(settings: &Settings) -> Result<Nvrtc> {
        let opened = library::open(settings, &WANTED)?;
        let t = Table::of(&opened)?;
        let (mut major, mut minor, mut known) = (0, 0, vec![]);
        // SAFETY: out pointers live for the calls; the list has the length the library asked for.
        unsafe {
            (t.nvrtcVersion)(&mut major, &mut minor);
            if let (Some(count), Some(list)) =
                (t.nvrtcGetNumSupportedArchs, t.nvrtcGetSupportedArchs)
            {
                let mut n = 0;
                if count(&mut n) == 0 && n > 0 {
                    known = vec![0; n as usize];
                    if list(known.as_mut_ptr()) != 0 {
                        known.clear();
                    }
                }
            }
        }
        Ok(Nvrtc {
            t,
            version: (major, minor),
            file: opened.name,
            known,
            one: Mutex::new(()),
        })
    }

    pub(crate) fn target(&self, arch: u32, full_name: impl Fn(u32) -> String) -> Result<Target> {
        target(arch, &self.known, full_name).ok_or_else(|| {
            let (major, minor) = self.version;
            Error::new(
                Code::Unsupported,
                format!(
                    "NVRTC {major}.{minor} ({}) no longer compiles for compute capability {}.{}; install an older one",
                    self.file,
                    arch / 10,
                    arch % 10
                ),
            )
        })
    }

    fn check(&self, f: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a static text.
        let words = unsafe { text((self.t.nvrtcGetErrorString)(status)) };
        Err(Error {
            vendor_code: i64::from(status),
            ..Error::new(Code::Internal, format!("{f}: {words} ({status})"))
        })
    }

    /// Compiles a whole translation unit; `name` is for messages.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        target: &Target,
    ) -> Result<Vec<u8>> {
        let c = |s: &str| {
            CString::new(s).map_err(|_| Error::new(Code::Internal, "device code with a NUL byte"))
        };
        let (source, file) = (c(source)?, c(name)?);
        let options = options.iter().map(|o| c(o)).collect::<Result<Vec<_>>>()?;
        let list: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let _one = lock(&self.one);
        let mut program = Program(self, Handle::NULL);
        let none = std::ptr::null();
        // SAFETY: texts and lists live for the calls; buffers have the lengths the library asked for.
        unsafe {
            let s = (self.t.nvrtcCreateProgram)(
                &mut program.1,
                source.as_ptr(),
                file.as_ptr(),
                0,
                none,
                none,
            );
            self.check("nvrtcCreateProgram", s)?;
            let s = (self.t.nvrtcCompileProgram)(program.1, list.len() as i32, list.as_ptr());
            if s != 0 {
                let log = self.read(
                    program.1,
                    self.t.nvrtcGetProgramLogSize,
                    self.t.nvrtcGetProgramLog,
                )?;
                let log = String::from_utf8_lossy(&log)
                    .trim_end_matches('\0')
                    .trim()
                    .to_string();
                let e = self.check("nvrtcCompileProgram", s);
                return fail(
                    Code::Internal,
                    format!(
                        "kernel {name} for {}: {}",
                        target.name,
                        e.err()
                            .map_or(log.clone(), |e| format!("{}: {log}", e.message))
                    ),
                );
            }
            match target.name.starts_with("compute_") {
                true => self.read(program.1, self.t.nvrtcGetPTXSize, self.t.nvrtcGetPTX),
                false => self.read(program.1, self.t.nvrtcGetCUBINSize, self.t.nvrtcGetCUBIN),
            }
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
            self.check("nvrtc size", size(program, &mut n))?;
            let mut out = vec![0u8; n];
            self.check("nvrtc result", get(program, out.as_mut_ptr().cast()))?;
            Ok(out)
        }
    }
}

struct Program<'a>(&'a Nvrtc, Handle);
impl Drop for Program<'_> {
    fn drop(&mut self) {
        if self.1 != Handle::NULL {
            // SAFETY: made by us, destroyed once.
            unsafe { (self.0.t.nvrtcDestroyProgram)(&mut self.1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_that_of_the_public_bindings() {
        assert_eq!(Table::check(), 13);
    }

    #[test]
    fn a_device_newer_than_the_compiler_gets_code_that_the_driver_finishes() {
        let full = |a: u32| {
            if a == 90 {
                "sm_90a".into()
            } else {
                format!("sm_{a}")
            }
        };
        let known = [50, 80, 90, 100, 120];
        let of = |arch| target(arch, &known, full).map(|t| (t.name, t.arch));
        assert_eq!(of(90), Some(("sm_90a".into(), 90)));
        assert_eq!(of(103), Some(("compute_100".into(), 100)));
        assert_eq!(of(35), None);
        assert_eq!(target(75, &[], full).map(|t| t.name), Some("sm_75".into()));
    }
}
