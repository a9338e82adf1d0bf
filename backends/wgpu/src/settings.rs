//! Configuration: what the keys `wgpu.*` say, and which adapters they leave.

use crossweave_plugin::{Code, Error, Host, Result, fail};
use wgpu::{Adapter, AdapterInfo, Backends, DeviceType, Instance, InstanceDescriptor};

/// The keys as they are now; a device keeps what held when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `wgpu.adapter`: index or part of a name; `None` = all.
    pub adapter: Option<String>,
    /// `wgpu.devices`: devices to show, dealt over the adapters.
    pub devices: Option<u32>,
    /// `wgpu.max_binding`: bytes of one binding, at most what the adapter has.
    pub max_binding: Option<u64>,
    /// `wgpu.mem_total`: bytes a device may give; 0 = the adapter says when it is full.
    pub mem_total: u64,
    /// `wgpu.batch`: dispatches recorded before they are handed to the adapter.
    pub batch: u32,
    /// `wgpu.fused`: whether fused ops are answered.
    pub fused: bool,
    /// `wgpu.subgroups`: whether kernels may use subgroup functions.
    pub subgroups: bool,
    /// `wgpu.f16`: whether kernels may use the adapter's halves.
    pub f16: bool,
    /// `wgpu.rounds`: whether the adapter's quotients and roots are taken as they are; `None` = where they were measured to be the nearest.
    pub rounds: Option<bool>,
    /// `wgpu.naive_matmul`: products by the plain kernel, to compare with.
    pub naive_matmul: bool,
}

/// Least `wgpu.max_binding`: two rows of anything a test makes, and still many windows.
const LEAST_BINDING: u64 = 4096;

impl Settings {
    pub fn read(host: &Host) -> Result<Settings> {
        let backend = host.config("wgpu.backend");
        if let Some(b) = backend.as_deref().filter(|b| *b != "vulkan") {
            return fail(
                Code::Invalid,
                format!("wgpu.backend = {b:?}: this build has vulkan"),
            );
        }
        let s = Settings {
            adapter: host.config("wgpu.adapter").filter(|a| !a.is_empty()),
            devices: number(host, "wgpu.devices")?
                .map(|n| ranged("wgpu.devices", n, 1, 4096))
                .transpose()?
                .map(|n| n as u32),
            max_binding: number(host, "wgpu.max_binding")?
                .map(|n| ranged("wgpu.max_binding", n, LEAST_BINDING, u64::MAX))
                .transpose()?,
            mem_total: number(host, "wgpu.mem_total")?.unwrap_or(0),
            batch: number(host, "wgpu.batch")?
                .map(|n| ranged("wgpu.batch", n, 1, 65536))
                .transpose()?
                .unwrap_or(64) as u32,
            fused: flag(host, "wgpu.fused")?.unwrap_or(true),
            subgroups: flag(host, "wgpu.subgroups")?.unwrap_or(true),
            f16: flag(host, "wgpu.f16")?.unwrap_or(true),
            rounds: flag(host, "wgpu.rounds")?,
            naive_matmul: flag(host, "wgpu.naive_matmul")?.unwrap_or(false),
        };
        Ok(s)
    }
}

fn number(host: &Host, key: &str) -> Result<Option<u64>> {
    let Some(text) = host.config(key) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(n) => Ok(Some(n)),
        Err(_) => fail(
            Code::Invalid,
            format!("{key} = {text:?} is not a whole number"),
        ),
    }
}

fn ranged(key: &str, n: u64, least: u64, most: u64) -> Result<u64> {
    if (least..=most).contains(&n) {
        return Ok(n);
    }
    fail(
        Code::Invalid,
        format!("{key} = {n}: give {least} to {most}"),
    )
}

fn flag(host: &Host, key: &str) -> Result<Option<bool>> {
    match host.config(key).as_deref() {
        None => Ok(None),
        Some("1" | "true" | "on") => Ok(Some(true)),
        Some("0" | "false" | "off") => Ok(Some(false)),
        Some(t) => fail(Code::Invalid, format!("{key} = {t:?}: give true or false")),
    }
}

/// The adapters of this machine, best first.
pub(crate) struct Adapters {
    list: Vec<(Adapter, AdapterInfo)>,
}

impl Adapters {
    pub fn find() -> Adapters {
        let instance = Instance::new(InstanceDescriptor {
            backends: Backends::VULKAN,
            // No validation layers: kernels are checked by our own tests, and layers may print.
            flags: wgpu::InstanceFlags::empty(),
            ..InstanceDescriptor::new_without_display_handle()
        });
        let found = crate::ready(instance.enumerate_adapters(Backends::VULKAN)).unwrap_or_default();
        let mut list: Vec<_> = found
            .into_iter()
            .map(|a| {
                let i = a.get_info();
                (a, i)
            })
            .filter(|(a, _)| {
                a.get_downlevel_capabilities()
                    .flags
                    .contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
            })
            .collect();
        list.sort_by_key(|(_, i)| match i.device_type {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu => 2,
            DeviceType::Other => 3,
            DeviceType::Cpu => 4,
        });
        Adapters { list }
    }

    /// Those the settings leave. A software adapter counts only where it was asked for or there is nothing else.
    fn chosen(&self, s: &Settings) -> Result<Vec<&(Adapter, AdapterInfo)>> {
        let Some(want) = &s.adapter else {
            let real: Vec<_> = self
                .list
                .iter()
                .filter(|(_, i)| i.device_type != DeviceType::Cpu)
                .collect();
            return Ok(match real.is_empty() {
                true => self.list.iter().collect(),
                false => real,
            });
        };
        let names: Vec<&str> = self.list.iter().map(|(_, i)| i.name.as_str()).collect();
        let lower = want.to_lowercase();
        let found = match want.parse::<usize>() {
            Ok(i) => self.list.get(i),
            Err(_) => self
                .list
                .iter()
                .find(|(_, i)| i.name.to_lowercase().contains(&lower)),
        };
        match found {
            Some(a) => Ok(vec![a]),
            None => fail(
                Code::Invalid,
                format!("wgpu.adapter = {want:?}: there are {names:?}"),
            ),
        }
    }

    pub fn count(&self, s: &Settings) -> Result<u32> {
        let n = self.chosen(s)?.len() as u32;
        Ok(if n == 0 { 0 } else { s.devices.unwrap_or(n) })
    }

    /// The adapter of device `index`.
    pub fn of(&self, s: &Settings, index: u32) -> Result<&(Adapter, AdapterInfo)> {
        let chosen = self.chosen(s)?;
        if chosen.is_empty() {
            return fail(
                Code::Unsupported,
                "no Vulkan adapter with compute shaders: install the GPU's driver, or a software one (Debian: mesa-vulkan-drivers libvulkan1)",
            );
        }
        let count = s.devices.unwrap_or(chosen.len() as u32);
        if index >= count {
            return fail(
                Code::Invalid,
                format!("device {index}: there are {count} (wgpu.devices)"),
            );
        }
        Ok(chosen[index as usize % chosen.len()])
    }
}

/// As an error of the vendor's side.
pub(crate) fn internal(what: &dyn std::fmt::Display, e: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, format!("{what}: {e}"))
}
