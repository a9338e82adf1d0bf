//! From a kernel's source to a function on a device: NVRTC where neither memory nor disk has the image.

use crate::device::Dev;
use crate::nvrtc::{Nvrtc, Target};
use crossweave_gpu::{Function, Images, Own, Recipe, Settings, lock};
use crossweave_kernels::{self as kernels, Dialect, Kernel, arch_name, options};
use crossweave_plugin::{Code, Host, Result, fail};
use std::sync::{Arc, Mutex};

/// The compiler and its images, one for all devices of the process.
pub(crate) struct Compiler {
    settings: Settings,
    images: Images,
    /// `None` until first asked for. A failure is found out anew each time, as a library may be installed meanwhile.
    nvrtc: Mutex<Option<Arc<Nvrtc>>>,
}

impl Compiler {
    pub(crate) fn new(host: Host, settings: &Settings) -> Compiler {
        Compiler {
            settings: settings.clone(),
            images: Images::new(host, settings),
            nvrtc: Mutex::new(None),
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
}

impl Dev {
    /// What the compiler makes for this device: kernels are chosen by what that target has.
    pub(crate) fn target(&self) -> Result<Target> {
        let arch = self.facts.major * 10 + self.facts.minor;
        self.libs.compiler.nvrtc()?.target(arch, arch_name)
    }

    /// May kernels of warpgroup products be chosen? Only machine code for sm_90a has them: not what a driver finishes for a newer device.
    pub(crate) fn wgmma(&self, target: &Target) -> Result<bool> {
        match self.api.settings.get("cuda.wgmma") {
            None | Some("auto") => Ok(target.name == "sm_90a"),
            Some("off") => Ok(false),
            Some(v) => fail(Code::Invalid, format!("cuda.wgmma = {v}: auto or off")),
        }
    }

    /// The op's kernels, ready to launch.
    pub(crate) fn load(&self, op: kernels::Prepared) -> Result<Own> {
        Own::load(op, |kernel, shared| self.kernel(kernel, shared))
    }

    fn kernel(&self, kernel: &Kernel, shared: u32) -> Result<Function> {
        self.function(kernel, shared, || {
            let compiler = &self.libs.compiler;
            let (nvrtc, target) = (compiler.nvrtc()?, self.target()?);
            let source = kernel.source(Dialect::Cuda);
            let options = options(&target.name);
            let version = self.api.rt.version();
            let recipe = Recipe {
                source: &source,
                options: &options,
                compiler: nvrtc.version,
                driver: &version,
                target: &target.name,
            };
            let image = compiler.images.get(&recipe, || {
                let name = format!("{}_{}.cu", kernel.family.name(), kernel.entry);
                nvrtc.compile(&name, &source, &options, &target)
            })?;
            let (major, minor) = nvrtc.version;
            let made = format!(
                "for {}, compiled by NVRTC {major}.{minor} for a driver of CUDA {version}; where NVRTC is the newer, install one no newer than the driver",
                target.name
            );
            Ok((image, made))
        })
    }
}
