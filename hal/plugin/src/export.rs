//! From safe traits to C tables: one generic `extern "C"` function per slot, and the two macros a vendor writes.
//!
//! Every `unsafe` a Rust vendor needs is in this file and its submodules. A handle is a `Box` of the backend's own type; a table is a
//! constant per backend type; errors and panics become the caller's record.

#[macro_use]
pub(crate) mod wire;
mod collective;
mod device;
mod graph;
mod ops;

/// What a layer, which has C tables on both sides, writes its slots with too.
#[doc(hidden)]
pub use wire::{desc, desc_array, guard, timeout};

use crate::{Backend, Code, Collectives, Graphs, Host, Ops, Result, fail};
use crossweave_abi as abi;
use crossweave_abi::{ErrPtr, Handle, Status, Str};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// What [`declare_backend!`](crate::declare_backend) adds to a backend: its names and the place of its one instance.
pub trait Declared: Backend {
    /// Short lower-case name; the file is `libcrossweave_<name>.so`.
    const NAME: &'static str;
    /// Version of the plugin, not of the ABI.
    const VERSION: &'static str;
    /// Who makes it.
    const VENDOR: &'static str;
    /// Calls kept and enqueued again; [`NoGraphs`](crate::NoGraphs) = interface not provided.
    type Graphs: Graphs<Self>;
    /// The instance of this process.
    fn slot() -> &'static Slot<Self>;
}

/// Where a backend's one instance of this process lies. R9 lets every host of a process call the entry function; all get this instance,
/// which keeps the services of the first. It is the one process-wide value the project allows, and only the macro makes one.
pub struct Slot<B: Declared> {
    cell: OnceLock<Instance<B>>,
    making: Mutex<()>,
}

/// A backend with the boundary's own state.
pub struct Instance<B> {
    pub(crate) backend: B,
    pub(crate) host: Host,
    /// An id made to answer "how long": the device's handle and the id.
    parked: Mutex<Option<(usize, Vec<u8>)>>,
}

impl<B> Instance<B> {
    pub(crate) fn parked(&self) -> MutexGuard<'_, Option<(usize, Vec<u8>)>> {
        // A panic elsewhere cannot leave an `Option` half written.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Declared> Slot<B> {
    /// Empty, until the first entry call.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Slot<B> {
        Slot {
            cell: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    pub(crate) fn get(&self) -> Option<&Instance<B>> {
        self.cell.get()
    }

    /// Initialises once; a failed or panicked attempt leaves the slot empty, so the next host may try again.
    fn get_or_init(&self, host: Host) -> Result<&Instance<B>> {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if self.cell.get().is_none() {
            let backend = B::init(host)?;
            let _ = self.cell.set(Instance {
                backend,
                host,
                parked: Mutex::new(None),
            });
        }
        wire::whole::<B>()
    }
}

/// The tables of a backend type, as constants.
struct Tables<B>(std::marker::PhantomData<B>);
impl<B: Declared> Tables<B> {
    const DEVICE: &'static abi::DeviceApi = &device::table::<B>();
    const OPS: &'static abi::OpsApi = &ops::table::<B>();
    const COLLECTIVE: &'static abi::CollectiveApi = &collective::table::<B>();
    const GRAPH: &'static abi::GraphApi = &graph::table::<B>();
}

/// The least minor of a host this build of the plugin crate works with.
const MIN_HOST_MINOR: u32 = 0;

/// Negotiation of minors: each side states its minor and the least it needs of the other; the smaller minor is in effect.
fn negotiate(host: u32, host_needs: u32, plugin: u32, plugin_needs: u32) -> Result<u32> {
    if plugin < host_needs {
        return fail(
            Code::Version,
            format!(
                "host 1.{host} needs plugin >= 1.{host_needs}, this plugin is 1.{plugin}; rebuild the plugin with a newer crossweave-plugin"
            ),
        );
    }
    if host < plugin_needs {
        return fail(
            Code::Version,
            format!(
                "plugin 1.{plugin} needs host >= 1.{plugin_needs}, this host is 1.{host}; update Crossweave or use an older plugin"
            ),
        );
    }
    Ok(host.min(plugin))
}

/// The entry function of a backend: what `crossweave_plugin_v1` calls, and what a program that links the backend passes to its host.
///
/// # Safety
/// The contract of `crossweave_plugin_v1`: pointers are NULL or size-prefixed structs, live for the call; the host's services live
/// until the process ends (R9).
pub unsafe extern "C" fn entry<B: Declared>(
    host: *const abi::Host,
    out: *mut abi::Plugin,
    e: ErrPtr,
) -> Status {
    // SAFETY: forwarded from the caller; `read_prefix` and `put_sized` stay inside the stated sizes.
    unsafe {
        wire::guard(e, "entry", || {
            let Some(host) = abi::read_prefix::<abi::Host>(host.cast()) else {
                return fail(Code::Invalid, "the host table is NULL or states no size");
            };
            wire::writable(out, "the plugin table")?;
            negotiate(
                host.abi_minor,
                host.min_plugin_minor,
                abi::ABI_MINOR,
                MIN_HOST_MINOR,
            )?;
            B::slot().get_or_init(Host(host))?;
            let table = abi::Plugin {
                size: 0,
                abi_minor: abi::ABI_MINOR,
                min_host_minor: MIN_HOST_MINOR,
                reserved: 0,
                name: Str::new(B::NAME),
                version: Str::new(B::VERSION),
                vendor: Str::new(B::VENDOR),
                self_: std::ptr::null_mut(),
                get_interface: Some(get_interface::<B>),
                shutdown: Some(shutdown::<B>),
            };
            wire::put_sized(out, "the plugin table", table)?;
            Ok(abi::OK)
        })
    }
}

unsafe extern "C" fn get_interface<B: Declared>(_self: Handle, id: Str) -> *const c_void {
    // SAFETY: the host's string lives for the call.
    match unsafe { id.as_str() } {
        Some(abi::IFACE_DEVICE) => std::ptr::from_ref(Tables::<B>::DEVICE).cast(),
        Some(abi::IFACE_OPS) if <B::Ops as Ops<B>>::PROVIDED => {
            std::ptr::from_ref(Tables::<B>::OPS).cast()
        }
        Some(abi::IFACE_COLLECTIVE) if <B::Collectives as Collectives<B>>::PROVIDED => {
            std::ptr::from_ref(Tables::<B>::COLLECTIVE).cast()
        }
        Some(abi::IFACE_GRAPH) if <B::Graphs as Graphs<B>>::PROVIDED => {
            std::ptr::from_ref(Tables::<B>::GRAPH).cast()
        }
        _ => std::ptr::null(),
    }
}

wire::slot!(shutdown(_self: Handle) |b| b.shutdown()?);

/// Text between the ABI version and the vendor's own part of a manifest.
const fn interfaces<B: Declared>() -> &'static str {
    match (
        <B::Ops as Ops<B>>::PROVIDED,
        <B::Collectives as Collectives<B>>::PROVIDED,
    ) {
        (true, true) => "crossweave.device/1,crossweave.ops/1,crossweave.collective/1",
        (true, false) => "crossweave.device/1,crossweave.ops/1",
        (false, true) => "crossweave.device/1,crossweave.collective/1",
        (false, false) => "crossweave.device/1",
    }
}

const fn manifest_parts<B: Declared>(own: &'static str) -> [&'static str; 6] {
    [
        "crossweave-plugin;abi=1.0;interfaces=",
        interfaces::<B>(),
        if <B::Graphs as Graphs<B>>::PROVIDED {
            ",crossweave.graph/1"
        } else {
            ""
        },
        ";",
        own,
        "\0",
    ]
}

/// Bytes of the manifest of `B` whose own part is `own`. For [`export_plugin!`](crate::export_plugin).
pub const fn manifest_len<B: Declared>(own: &'static str) -> usize {
    let parts = manifest_parts::<B>(own);
    let (mut n, mut i) = (0, 0);
    while i < parts.len() {
        n += parts[i].len();
        i += 1;
    }
    n
}

/// The manifest as bytes, NUL-terminated. For [`export_plugin!`](crate::export_plugin).
pub const fn manifest<B: Declared, const N: usize>(own: &'static str) -> [u8; N] {
    let parts = manifest_parts::<B>(own);
    let mut out = [0; N];
    let (mut at, mut i) = (0, 0);
    while i < parts.len() {
        let bytes = parts[i].as_bytes();
        let mut k = 0;
        while k < bytes.len() {
            out[at] = bytes[k];
            at += 1;
            k += 1;
        }
        i += 1;
    }
    out
}

/// Gives a backend type its name, vendor, version (that of the calling crate) and the place of its one instance, and defines
/// `pub fn entry() -> EntryFn` beside it for programs that link the backend. Once per module.
///
/// ```text
/// crossweave_plugin::declare_backend!(Acme, name = "acme", vendor = "Acme Inc");
/// ```
///
/// `graphs = AcmeGraphs` at the end offers `crossweave.graph/1` by a type that implements [`Graphs`](crate::Graphs).
#[macro_export]
macro_rules! declare_backend {
    ($t:ty, name = $name:expr, vendor = $vendor:expr $(,)?) => {
        $crate::declare_backend!(
            $t,
            name = $name,
            vendor = $vendor,
            graphs = $crate::NoGraphs
        );
    };
    ($t:ty, name = $name:expr, vendor = $vendor:expr, graphs = $graphs:ty $(,)?) => {
        const _: () = {
            static SLOT: $crate::export::Slot<$t> = $crate::export::Slot::new();
            impl $crate::export::Declared for $t {
                const NAME: &'static str = $name;
                const VERSION: &'static str = env!("CARGO_PKG_VERSION");
                const VENDOR: &'static str = $vendor;
                type Graphs = $graphs;
                fn slot() -> &'static $crate::export::Slot<Self> {
                    &SLOT
                }
            }
        };

        /// The plugin's entry function, for a host that links this backend instead of loading its library.
        pub fn entry() -> $crate::abi::EntryFn {
            $crate::export::entry::<$t>
        }
    };
}

/// In a `cdylib`: exports `crossweave_plugin_v1` and the manifest that a host reads without loading the library. The manifest's own
/// part is `key=value;…` with `name` and `vendor`, and `needs=lib1,lib2` for libraries the plugin opens at run time.
///
/// ```text
/// crossweave_plugin::export_plugin!(acme::Acme, manifest = "name=acme;vendor=Acme Inc;needs=libacme.so.3");
/// ```
#[macro_export]
macro_rules! export_plugin {
    ($t:ty, manifest = $m:expr $(,)?) => {
        #[cfg(panic = "abort")]
        compile_error!(
            "a Crossweave plugin must be built with panic = \"unwind\": a panic has to become an error at the boundary"
        );

        #[used]
        #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__crossweave"))]
        #[cfg_attr(windows, unsafe(link_section = ".crsswv"))]
        #[cfg_attr(
            not(any(target_vendor = "apple", windows)),
            unsafe(link_section = ".crossweave")
        )]
        static MANIFEST: [u8; $crate::export::manifest_len::<$t>($m)] =
            $crate::export::manifest::<$t, { $crate::export::manifest_len::<$t>($m) }>($m);

        /// The one symbol a host looks up.
        ///
        /// # Safety
        /// As the header says: pointers are NULL or size-prefixed structs, live for the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn crossweave_plugin_v1(
            host: *const $crate::abi::Host,
            out: *mut $crate::abi::Plugin,
            e: *mut $crate::abi::Error,
        ) -> $crate::abi::Status {
            // The section must survive the linker's removal of unreferenced data.
            ::std::hint::black_box(&MANIFEST);
            // SAFETY: the caller keeps the same contract.
            unsafe { $crate::export::entry::<$t>(host, out, e) }
        }
    };
}

#[cfg(test)]
mod tests;
