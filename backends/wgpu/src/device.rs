//! An open device: the adapter's queue, the pipelines compiled for it, the bind groups made for its buffers, and its first failure.

use crate::kernel::{Facts, Pass};
use crate::measure::measure;
use crate::ready;
use crate::reaper::{Reaper, Stage};
use crate::settings::{Settings, internal};
use crossweave_plugin::{Code, Error, Host, Info, Result, abi};
use crossweave_words::Size;
use std::any::Any;
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wgpu::{
    Adapter, AdapterInfo, BindGroup, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, BufferDescriptor, BufferUsages,
    ComputePipeline, ComputePipelineDescriptor, DeviceDescriptor, ErrorFilter, Features, Limits,
    PipelineCompilationOptions, PipelineLayout, PipelineLayoutDescriptor, ShaderModuleDescriptor,
    ShaderSource, ShaderStages,
};

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first failure that no call can answer for: it is every later call's answer.
#[derive(Default)]
pub(crate) struct Fault {
    set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Fault {
    pub fn set(&self, e: Error) {
        let mut slot = lock(&self.error);
        slot.get_or_insert(e.sticky());
        self.set.store(true, Release);
    }
    pub fn get(&self) -> Option<Error> {
        if !self.set.load(Acquire) {
            return None;
        }
        lock(&self.error).clone()
    }
    /// Runs what may panic (wgpu does when a device is lost while somebody waits for it): that is the device's failure, and the thread goes on.
    pub fn contain(&self, what: &str, f: impl FnOnce()) {
        if let Err(p) = catch_unwind(AssertUnwindSafe(f)) {
            let text = panic_text(p);
            self.set(Error::new(Code::Panic, format!("{what} panicked: {text}")));
        }
    }
}

/// What a panic said. The payload is not dropped: one whose own `drop` panics must not take the thread with it.
pub(crate) fn panic_text(p: Box<dyn Any + Send>) -> String {
    let text = p
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or(p.downcast_ref::<String>().cloned());
    std::mem::forget(p);
    text.unwrap_or_else(|| "no text".into())
}

/// What `device_attr` answers.
#[derive(Default)]
pub(crate) struct Counts {
    pub ids: AtomicU64,
    pub bytes: AtomicU64,
    pub pipelines: AtomicU64,
    pub groups: AtomicU64,
    pub launches: AtomicU64,
    pub dispatches: AtomicU64,
    pub submits: AtomicU64,
    pub encode_ns: AtomicU64,
    pub compile_ns: AtomicU64,
}

/// A compiled pass and the layout of its bindings.
pub(crate) struct Pipeline {
    pub pipeline: ComputePipeline,
    pub layout: BindGroupLayout,
}

type Layouts = HashMap<u32, (BindGroupLayout, PipelineLayout)>;

/// What all handles of an open device share.
pub(crate) struct Shared {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: Limits,
    pub facts: Facts,
    /// The adapter takes subnormal numbers for zeros.
    flushes: bool,
    pub mem_total: u64,
    pub batch: u32,
    pub counts: Counts,
    pub fault: Arc<Fault>,
    pub reaper: Reaper,
    pub stage: Arc<Stage>,
    pub info: AdapterInfo,
    /// By the text of the module.
    pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
    layouts: Mutex<Layouts>,
    groups: Mutex<HashMap<Box<[u64]>, BindGroup>>,
}

/// More bind groups than any step has: from here on they are not worth keeping.
const MOST_GROUPS: usize = 1 << 15;

/// An open device.
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    index: u32,
}

impl Device {
    pub(crate) fn open(
        host: &Host,
        settings: &Settings,
        adapter: &(Adapter, AdapterInfo),
        index: u32,
    ) -> Result<Device> {
        let (adapter, info) = adapter;
        let has = adapter.features();
        let limits = adapter.limits();
        let features = has & (Features::SUBGROUP | Features::SHADER_F16);
        let asked = adapter.request_device(&DeviceDescriptor {
            label: Some("crossweave"),
            required_features: features,
            required_limits: limits.clone(),
            // The host keeps a caching allocator of its own: large blocks behind it would be kept twice.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        });
        let (device, queue) = ready(asked)
            .ok_or_else(|| internal(&"device_open", "the adapter did not answer"))?
            .map_err(|e| internal(&format_args!("device_open of {}", info.name), e))?;
        let fault = Arc::new(Fault::default());
        let f = fault.clone();
        device.set_device_lost_callback(move |reason, text| {
            f.set(Error::new(
                Code::DeviceLost,
                format!("the device is lost ({reason:?}): {text}"),
            ));
        });
        let f = fault.clone();
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            let code = match &e {
                wgpu::Error::OutOfMemory { .. } => Code::Oom,
                _ => Code::Internal,
            };
            f.set(Error::new(code, format!("a queued command failed: {e}")));
        }));
        let floats = measure(&device, &queue)?;
        let align = u64::from(limits.min_storage_buffer_offset_alignment).max(4);
        // Byte offsets inside a binding are 32 bits.
        let most = (limits.max_storage_buffer_binding_size).min(1 << 31);
        let binding = settings.max_binding.unwrap_or(most).min(most) / align * align;
        let facts = Facts {
            max_binding: binding,
            align,
            max_storage: limits.max_storage_buffers_per_shader_stage,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            max_invocations: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
            max_groups: limits.max_compute_workgroups_per_dimension,
            subgroup: (settings.subgroups && features.contains(Features::SUBGROUP))
                .then_some((info.subgroup_min_size, info.subgroup_max_size)),
            f16: settings.f16 && features.contains(Features::SHADER_F16),
            rounds: settings.rounds.unwrap_or(floats.rounds),
            fused: settings.fused,
            naive_matmul: settings.naive_matmul,
        };
        let reaper = Reaper::start(host, device.clone(), fault.clone())?;
        Ok(Device {
            shared: Arc::new(Shared {
                device,
                queue,
                limits,
                facts,
                flushes: floats.flushes,
                mem_total: settings.mem_total,
                batch: settings.batch,
                counts: Counts::default(),
                fault,
                reaper,
                stage: Arc::default(),
                info: info.clone(),
                pipelines: Mutex::default(),
                layouts: Mutex::default(),
                groups: Mutex::default(),
            }),
            index,
        })
    }

    pub(crate) fn info(&self) -> Result<Info> {
        let s = &self.shared;
        s.check()?;
        let i = &s.info;
        let given = s.counts.bytes.load(Relaxed);
        let mut uuid = [0u8; 16];
        uuid[..4].copy_from_slice(&i.vendor.to_be_bytes());
        uuid[4..8].copy_from_slice(&i.device.to_be_bytes());
        uuid[12..].copy_from_slice(&self.index.to_be_bytes());
        Ok(Info {
            kind: match i.device_type {
                wgpu::DeviceType::Cpu => 1,
                wgpu::DeviceType::Other => 0,
                _ => 2,
            },
            mem_total: s.mem_total,
            mem_free: s.mem_total.saturating_sub(given),
            caps: abi::CAP_DETERMINISTIC,
            numa_node: u32::MAX,
            align: s.facts.align.max(256) as u32,
            uuid,
            name: i.name.clone(),
            pci_bus_id: i.device_pci_bus_id.clone(),
            arch: format!("{:?} {}", i.backend, i.driver).to_lowercase(),
        })
    }

    /// A counter as decimal text.
    pub(crate) fn attr(&self, key: &str) -> Option<Vec<u8>> {
        let s = &self.shared;
        let c = &s.counts;
        let n = match key {
            "wgpu.pipelines" => c.pipelines.load(Relaxed),
            "wgpu.bind_groups" => c.groups.load(Relaxed),
            "wgpu.launches" => c.launches.load(Relaxed),
            "wgpu.dispatches" => c.dispatches.load(Relaxed),
            "wgpu.submits" => c.submits.load(Relaxed),
            "wgpu.encode_ns" => c.encode_ns.load(Relaxed),
            "wgpu.compile_ns" => c.compile_ns.load(Relaxed),
            "wgpu.bytes" => c.bytes.load(Relaxed),
            "wgpu.max_binding" => s.facts.max_binding,
            "wgpu.rounds" => u64::from(s.facts.rounds),
            "flush_subnormals" => u64::from(s.flushes),
            "wgpu.f16" => u64::from(s.facts.f16),
            _ => return None,
        };
        Some(n.to_string().into_bytes())
    }
}

impl Shared {
    /// `Err` once the device has failed.
    pub fn check(&self) -> Result<()> {
        self.fault.get().map_or(Ok(()), Err)
    }

    /// Makes something of the device's; what wgpu reports meanwhile is this call's error and not the device's failure.
    pub fn make<T>(&self, what: &dyn Display, f: impl FnOnce() -> T) -> Result<T> {
        let memory = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let other = self.device.push_error_scope(ErrorFilter::Internal);
        let validation = self.device.push_error_scope(ErrorFilter::Validation);
        let made = f();
        let refused = [
            ready(validation.pop()),
            ready(other.pop()),
            ready(memory.pop()),
        ];
        match refused.into_iter().flatten().flatten().next() {
            None => Ok(made),
            Some(wgpu::Error::OutOfMemory { .. }) => {
                let given = self.counts.bytes.load(Relaxed);
                let text = format!(
                    "{what}: the adapter refused ({} are given out); free memory or ask for less",
                    Size(given)
                );
                Err(Error::new(Code::Oom, text).retryable())
            }
            Some(e) => {
                self.check()?;
                Err(internal(what, e))
            }
        }
    }

    /// A buffer of the adapter's.
    pub fn buffer(&self, what: &dyn Display, size: u64, usage: BufferUsages) -> Result<Buffer> {
        self.make(what, || {
            self.device.create_buffer(&BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        })
    }

    /// The layout of `n` storage bindings behind the parameter block.
    fn layout(&self, n: u32) -> (BindGroupLayout, PipelineLayout) {
        let mut all = lock(&self.layouts);
        let made = all.entry(n).or_insert_with(|| {
            let entry = |binding: u32| BindGroupLayoutEntry {
                binding,
                visibility: ShaderStages::COMPUTE,
                ty: BindingType::Buffer {
                    ty: match binding {
                        0 => BufferBindingType::Uniform,
                        _ => BufferBindingType::Storage { read_only: false },
                    },
                    has_dynamic_offset: binding == 0,
                    min_binding_size: None,
                },
                count: None,
            };
            let entries: Vec<_> = (0..=n).map(entry).collect();
            let group = self
                .device
                .create_bind_group_layout(&BindGroupLayoutDescriptor {
                    label: None,
                    entries: &entries,
                });
            let whole = self
                .device
                .create_pipeline_layout(&PipelineLayoutDescriptor {
                    label: None,
                    bind_group_layouts: &[Some(&group)],
                    immediate_size: 0,
                });
            (group, whole)
        });
        made.clone()
    }

    /// The pass's pipeline, compiled if its text is new.
    pub fn pipeline(&self, pass: &Pass) -> Result<Arc<Pipeline>> {
        if let Some(p) = lock(&self.pipelines).get(&pass.wgsl) {
            return Ok(p.clone());
        }
        self.check()?;
        let began = std::time::Instant::now();
        let made = self.make(&format_args!("compiling {}", pass.label), || {
            let (layout, whole) = self.layout(pass.bindings);
            let module = self.device.create_shader_module(ShaderModuleDescriptor {
                label: Some(&pass.label),
                source: ShaderSource::Wgsl(pass.wgsl.as_str().into()),
            });
            let pipeline = self
                .device
                .create_compute_pipeline(&ComputePipelineDescriptor {
                    label: Some(&pass.label),
                    layout: Some(&whole),
                    module: &module,
                    entry_point: Some("main"),
                    compilation_options: PipelineCompilationOptions {
                        // Kernels write before they read.
                        zero_initialize_workgroup_memory: false,
                        ..Default::default()
                    },
                    cache: None,
                });
            Pipeline { pipeline, layout }
        })?;
        let made = Arc::new(made);
        let took = began.elapsed().as_nanos() as u64;
        self.counts.compile_ns.fetch_add(took, Relaxed);
        self.counts.pipelines.fetch_add(1, Relaxed);
        Ok(lock(&self.pipelines)
            .entry(pass.wgsl.clone())
            .or_insert(made)
            .clone())
    }

    /// The bind group of a key, made if it is new.
    pub fn group(&self, key: &[u64], make: impl FnOnce() -> BindGroup) -> BindGroup {
        let mut all = lock(&self.groups);
        if let Some(g) = all.get(key) {
            return g.clone();
        }
        if all.len() >= MOST_GROUPS {
            all.clear();
        }
        let made = make();
        self.counts.groups.fetch_add(1, Relaxed);
        all.insert(key.into(), made.clone());
        made
    }

    /// Drops the bind groups of a buffer.
    pub fn forget(&self, id: u64) {
        let mut all = lock(&self.groups);
        let gone: Vec<_> = all.extract_if(|key, _| key.contains(&id)).collect();
        drop(all);
        // Outside the lock: a bind group may hold the last reference to other buffers.
        drop(gone);
    }
}
