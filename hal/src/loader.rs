//! Finds plugins, checks them, opens them: manifest first, then the library, then the entry call, then the tables.
//!
//! A plugin that was asked for and does not fit is an error with the reason, never a silent other back end. Libraries are opened
//! `RTLD_NOW | RTLD_LOCAL` (two vendors export the same names) and are never closed.

use crate::error::Error;
use crate::host::HostServices;
use crate::manifest::Manifest;
use crossweave_abi as abi;
use crossweave_abi::{CollectiveApi, DeviceApi, EntryFn, GraphApi, Handle, OpsApi, Str};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The ABI major this host speaks: the number in the entry symbol's name.
pub const ABI_MAJOR: u32 = 1;
/// The symbol a layer exports.
pub const LAYER_NAME: &str = "crossweave_layer_v1";
/// The least minor of a plugin this host accepts.
pub const MIN_PLUGIN_MINOR: u32 = 0;

/// Why a plugin cannot be used. Every text names the file and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error(
        "no plugin named {name:?}: looked for {file} in {dirs}; found there: {found}; fix: give --plugin PATH, or set CROSSWEAVE_PLUGIN_PATH to its directory"
    )]
    NotFound {
        name: String,
        file: String,
        dirs: String,
        found: String,
    },
    #[error("plugin {}: no such file; fix: correct the path", path.display())]
    Missing { path: PathBuf },
    #[error("plugin {}: cannot be read: {why}; fix: name a plugin that this user can read", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("plugin {}: not a complete shared library ({why}); fix: rebuild or copy it again", path.display())]
    NotObject { path: PathBuf, why: String },
    #[error("plugin {}: no manifest: section {} is missing; fix: build it with export_plugin! or CW_MANIFEST", path.display(), abi::MANIFEST_SECTION)]
    NoManifest { path: PathBuf },
    #[error("plugin {}: bad manifest in section {}: {why}; fix: build it with export_plugin! or CW_MANIFEST", path.display(), abi::MANIFEST_SECTION)]
    BadManifest { path: PathBuf, why: String },
    #[error("plugin {}: built for ABI {theirs}, this host speaks ABI {ABI_MAJOR}.{}; fix: install the plugin's build for ABI {ABI_MAJOR}", path.display(), abi::ABI_MINOR)]
    AbiMajor { path: PathBuf, theirs: String },
    #[error("plugin {}: needs the library {library}, which cannot be opened ({why}); fix: install it, or put its directory on the loader's path", path.display())]
    Needs {
        path: PathBuf,
        library: String,
        why: String,
    },
    #[error("plugin {}: the system cannot open it: {why}; fix: rebuild it for this system", path.display())]
    Open { path: PathBuf, why: String },
    #[error("plugin {}: the symbol {symbol} is missing though its manifest states ABI {ABI_MAJOR}; fix: export it", path.display())]
    NoEntry { path: PathBuf, symbol: &'static str },
    #[error("plugin {who}: {} failed: {error}", abi::ENTRY_NAME)]
    Entry { who: String, error: Error },
    #[error(
        "plugin {who}: host 1.{} and plugin 1.{plugin} do not fit: {why}; fix: install builds of one release",
        abi::ABI_MINOR
    )]
    Version {
        who: String,
        plugin: u32,
        why: String,
    },
    #[error(
        "plugin {who}: the entry function filled no usable plugin table: {why}; fix: return the table of the header"
    )]
    BadTable { who: String, why: String },
    #[error(
        "plugin {who}: the interface {interface} is missing; every plugin provides it; fix: return it from get_interface"
    )]
    NoInterface {
        who: String,
        interface: &'static str,
    },
    #[error("plugin {who}: the mandatory slot {slot} of {interface} is NULL; fix: implement it")]
    MissingSlot {
        who: String,
        interface: &'static str,
        slot: &'static str,
    },
}

impl From<LoadError> for Error {
    fn from(e: LoadError) -> Error {
        use crate::error::Code;
        match e {
            LoadError::Entry { who, error } => Error {
                at: format!("load plugin {who}"),
                ..error
            },
            e => {
                let code = match e {
                    LoadError::AbiMajor { .. } | LoadError::Version { .. } => Code::Version,
                    _ => Code::Invalid,
                };
                Error::new(code, "load", e.to_string())
            }
        }
    }
}

/// A plugin after its entry call: names and copies of its tables (R1). The safe objects are built on it.
#[derive(Clone)]
pub struct RawPlugin {
    /// Short name.
    pub name: String,
    /// The plugin's own version.
    pub version: String,
    /// Who makes it.
    pub vendor: String,
    /// The file, `None` when linked.
    pub path: Option<PathBuf>,
    /// The ABI minor in effect: the smaller of the two sides'.
    pub abi_minor: u32,
    /// `crossweave.device/1`; the loader refuses a plugin without it.
    pub device: Option<DeviceApi>,
    /// `crossweave.ops/1`.
    pub ops: Option<OpsApi>,
    /// `crossweave.collective/1`.
    pub coll: Option<CollectiveApi>,
    /// `crossweave.graph/1`.
    pub graph: Option<GraphApi>,
    /// The services of the host that it was started with.
    pub(crate) host: HostServices,
    /// Passed to the functions that take `self`.
    pub self_: Handle,
    /// Asks for further interfaces by id.
    pub get_interface: unsafe extern "C" fn(Handle, Str) -> *const std::ffi::c_void,
    /// Quiesces the plugin's threads.
    pub shutdown: Option<unsafe extern "C" fn(Handle, abi::ErrPtr) -> abi::Status>,
    /// Cells of the collectives that a layer hides.
    pub(crate) mask: crate::mask::Mask,
}
// SAFETY: `self_` is an opaque token that R7 lets every thread pass.
unsafe impl Send for RawPlugin {}
// SAFETY: as above.
unsafe impl Sync for RawPlugin {}

impl std::fmt::Debug for RawPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} by {}", self.name, self.version, self.vendor)?;
        self.path
            .iter()
            .try_for_each(|p| write!(f, " ({})", p.display()))
    }
}

/// File name of the plugin `name` on this system.
pub fn file_name(name: &str) -> String {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    format!("{DLL_PREFIX}crossweave_{name}{DLL_SUFFIX}")
}

/// Directories to look in, in order: those of `CROSSWEAVE_PLUGIN_PATH` (its value is given: only the command line reads the
/// environment), then the directory of the running program.
pub fn search_dirs(plugin_path: Option<&OsStr>, program: Option<&Path>) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = plugin_path.map_or(Vec::new(), |v| {
        std::env::split_paths(v)
            .filter(|p| !p.as_os_str().is_empty())
            .collect()
    });
    dirs.extend(program.and_then(Path::parent).map(Path::to_path_buf));
    dirs
}

/// A candidate file and what its manifest says.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name in the file name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What it says of itself, or why it cannot be used.
    pub manifest: Result<Manifest, LoadError>,
}

/// Every plugin file in the directories, the first of each name, sorted by name. Nothing is loaded. Unreadable directories are empty.
pub fn discover(dirs: &[PathBuf]) -> Vec<Found> {
    let (head, tail) = (file_name(""), std::env::consts::DLL_SUFFIX);
    let head = head.strip_suffix(tail).unwrap_or(&head).to_owned();
    let mut out: Vec<Found> = Vec::new();
    for dir in dirs {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        for path in files.map(|f| f.path()) {
            let file = path.file_name().and_then(OsStr::to_str);
            let name = file.and_then(|f| f.strip_prefix(head.as_str())?.strip_suffix(tail));
            if let Some(name) = name.filter(|n| out.iter().all(|f| f.name != *n)) {
                let name = name.to_owned();
                let manifest = Manifest::read(&path).and_then(|m| check_major(m, &path));
                out.push(Found {
                    name,
                    path,
                    manifest,
                });
            }
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// The file of the plugin `name`: the first directory that has it.
pub fn find(name: &str, dirs: &[PathBuf]) -> Result<PathBuf, LoadError> {
    let file = file_name(name);
    let hit = dirs.iter().map(|d| d.join(&file)).find(|p| p.is_file());
    hit.ok_or_else(|| {
        let join = |v: Vec<String>| match v.is_empty() {
            true => "none".into(),
            false => v.join(", "),
        };
        LoadError::NotFound {
            name: name.into(),
            file,
            dirs: join(dirs.iter().map(|d| d.display().to_string()).collect()),
            found: join(discover(dirs).into_iter().map(|f| f.name).collect()),
        }
    })
}

fn check_major(m: Manifest, path: &Path) -> Result<Manifest, LoadError> {
    if m.abi_major != ABI_MAJOR {
        return Err(LoadError::AbiMajor {
            path: path.into(),
            theirs: format!("{}.{}", m.abi_major, m.abi_minor),
        });
    }
    Ok(m)
}

/// Opens a library for ever.
fn open(file: &OsStr) -> Result<&'static libloading::Library, String> {
    #[cfg(unix)]
    let lib = {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: running a library's constructors is what the user asked for by naming the plugin.
        unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map(libloading::Library::from)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let lib = unsafe { libloading::Library::new(file) };
    let lib = lib.map_err(|e| match std::error::Error::source(&e) {
        Some(s) => s.to_string(),
        None => e.to_string(),
    })?;
    // Never unmapped: handles, tables and threads of the plugin point into it until the process ends.
    Ok(Box::leak(Box::new(lib)))
}

/// Opens the library in `path`, once its manifest fits and what it needs is there.
fn open_checked(path: &Path) -> Result<&'static libloading::Library, LoadError> {
    let m = check_major(Manifest::read(path)?, path)?;
    for need in &m.needs {
        let mut why = Vec::new();
        let there = need
            .split('|')
            .any(|n| open(OsStr::new(n.trim())).map_err(|e| why.push(e)).is_ok());
        if !there {
            return Err(LoadError::Needs {
                path: path.into(),
                library: need.replace('|', " or "),
                why: why.join("; "),
            });
        }
    }
    // A bare file name would be searched for on the system's path instead of here.
    let full = std::path::absolute(path).unwrap_or_else(|_| path.into());
    open(full.as_os_str()).map_err(|why| LoadError::Open {
        path: path.into(),
        why,
    })
}

/// Loads the plugin in `path`.
pub fn load(path: &Path, host: &HostServices) -> Result<RawPlugin, LoadError> {
    let lib = open_checked(path)?;
    // SAFETY: the symbol's name carries its type and major version.
    let entry = unsafe { lib.get::<EntryFn>(abi::ENTRY_NAME.as_bytes()) };
    let Ok(entry) = entry else {
        let symbol = abi::ENTRY_NAME;
        return Err(LoadError::NoEntry {
            path: path.into(),
            symbol,
        });
    };
    // SAFETY: an entry of this name keeps the contract of the header.
    let enter = |host, out, e| unsafe { entry(host, out, e) };
    let mut raw = start(&enter, host, path.display().to_string())?;
    raw.path = Some(path.into());
    Ok(raw)
}

/// Loads the layer in `path` around `inner`. The minor in effect is the least of the three sides', so that no slot or field that one of
/// them does not know slips past it.
pub fn load_layer(
    path: &Path,
    host: &HostServices,
    inner: &RawPlugin,
) -> Result<RawPlugin, LoadError> {
    let lib = open_checked(path)?;
    // SAFETY: the symbol's name carries its type and major version.
    let wrap = unsafe { lib.get::<abi::LayerFn>(LAYER_NAME.as_bytes()) };
    let Ok(wrap) = wrap.map(|w| *w) else {
        let symbol = LAYER_NAME;
        return Err(LoadError::NoEntry {
            path: path.into(),
            symbol,
        });
    };
    let table: &'static abi::Plugin = Box::leak(Box::new(inner.table()));
    // SAFETY: a layer of this name keeps the contract of the header; the table it wraps lives as long as the process.
    let enter = |host, out, e| unsafe { wrap(host, table, out, e) };
    let mut raw = start(&enter, host, path.display().to_string())?;
    raw.abi_minor = raw.abi_minor.min(inner.abi_minor);
    raw.path = inner.path.clone();
    raw.mask = inner.mask.clone();
    Ok(raw)
}

impl RawPlugin {
    /// The plugin as its entry function would fill it in: what a layer wraps. Texts are leaked (R9).
    pub fn table(&self) -> abi::Plugin {
        let text = |s: &str| Str::new(Box::leak(s.to_string().into_boxed_str()));
        abi::Plugin {
            size: size_of::<abi::Plugin>() as u32,
            abi_minor: self.abi_minor,
            min_host_minor: 0,
            reserved: 0,
            name: text(&self.name),
            version: text(&self.version),
            vendor: text(&self.vendor),
            self_: self.self_,
            get_interface: Some(self.get_interface),
            shutdown: self.shutdown,
        }
    }

    /// A backend linked into this program: the same entry function, the same tables.
    pub fn from_static<B: crossweave_plugin::export::Declared>(
        host: &HostServices,
    ) -> Result<RawPlugin, LoadError> {
        // SAFETY: the generated entry keeps the contract.
        unsafe { RawPlugin::from_entry(crossweave_plugin::export::entry::<B>, host) }
    }

    /// A plugin reached by its entry function.
    ///
    /// # Safety
    /// `entry` keeps the contract of `crossweave_plugin_v1` (rules R1-R9) and stays mapped until the process ends.
    pub unsafe fn from_entry(entry: EntryFn, host: &HostServices) -> Result<RawPlugin, LoadError> {
        // SAFETY: promised by the caller.
        let enter = |host, out, e| unsafe { entry(host, out, e) };
        start(&enter, host, "(linked)".into())
    }
}

/// An entry with what makes it sound to call.
type Enter<'a> = dyn Fn(*const abi::Host, *mut abi::Plugin, abi::ErrPtr) -> abi::Status + 'a;

/// Calls the entry and copies the tables.
fn start(entry: &Enter<'_>, host: &HostServices, who: String) -> Result<RawPlugin, LoadError> {
    // R9: the plugin may keep the pointer, so the table lives as long as the process.
    let table: &'static abi::Host = Box::leak(Box::new(host.table()));
    // SAFETY: all-zero is "nothing provided" by R1.
    let mut p: abi::Plugin = unsafe { std::mem::zeroed() };
    p.size = size_of::<abi::Plugin>() as u32;
    let mut e = abi::Error::new();
    let status = entry(table, &mut p, &mut e);
    if status != abi::OK {
        let error = Error::from_record(status, "entry", &e);
        return Err(LoadError::Entry { who, error });
    }
    let version = |why: String| LoadError::Version {
        who: who.clone(),
        plugin: p.abi_minor,
        why,
    };
    if p.min_host_minor > abi::ABI_MINOR {
        return Err(version(format!(
            "it needs host >= 1.{}; update Crossweave",
            p.min_host_minor
        )));
    }
    #[allow(clippy::absurd_extreme_comparisons)]
    if p.abi_minor < MIN_PLUGIN_MINOR {
        return Err(version(format!(
            "this host needs plugin >= 1.{MIN_PLUGIN_MINOR}; update the plugin"
        )));
    }
    let bad = |why: &str| LoadError::BadTable {
        who: who.clone(),
        why: why.into(),
    };
    let text = |s: Str, what: &str| -> Result<String, LoadError> {
        // SAFETY: names are static text of the plugin.
        let t = unsafe { s.as_str() };
        t.map(str::to_owned)
            .ok_or_else(|| bad(&format!("its {what} is not UTF-8")))
    };
    let Some(get) = p.get_interface else {
        return Err(bad("get_interface is NULL"));
    };
    let name = text(p.name, "name")?;
    if name.is_empty() {
        return Err(bad("its name is empty"));
    }
    // SAFETY: `get_interface` answers NULL or a size-prefixed table that lives for ever; `read_prefix` copies it once (R1).
    let (device, ops, coll, graph) = unsafe {
        let at = |id: &'static str| get(p.self_, Str::new(id));
        (
            abi::read_prefix::<DeviceApi>(at(abi::IFACE_DEVICE)),
            abi::read_prefix::<OpsApi>(at(abi::IFACE_OPS)),
            abi::read_prefix::<CollectiveApi>(at(abi::IFACE_COLLECTIVE)),
            abi::read_prefix::<GraphApi>(at(abi::IFACE_GRAPH)),
        )
    };
    let Some(d) = &device else {
        return Err(LoadError::NoInterface {
            who,
            interface: abi::IFACE_DEVICE,
        });
    };
    let missing = missing_device(d)
        .map(|slot| (abi::IFACE_DEVICE, slot))
        .or_else(|| Some((abi::IFACE_OPS, missing_ops(ops.as_ref()?)?)))
        .or_else(|| Some((abi::IFACE_COLLECTIVE, missing_coll(coll.as_ref()?)?)))
        .or_else(|| Some((abi::IFACE_GRAPH, missing_graph(graph.as_ref()?)?)));
    if let Some((interface, slot)) = missing {
        return Err(LoadError::MissingSlot {
            who,
            interface,
            slot,
        });
    }
    Ok(RawPlugin {
        host: host.clone(),
        version: text(p.version, "version")?,
        vendor: text(p.vendor, "vendor")?,
        name,
        path: None,
        #[allow(clippy::unnecessary_min_or_max)]
        abi_minor: p.abi_minor.min(abi::ABI_MINOR),
        device,
        ops,
        coll,
        graph,
        self_: p.self_,
        get_interface: get,
        shutdown: p.shutdown,
        mask: [].into(),
    })
}

/// The first of the listed slots that is NULL.
macro_rules! first_missing {
    ($table:expr; $($slot:ident)*) => {
        None::<&'static str>$(.or($table.$slot.is_none().then_some(stringify!($slot))))*
    };
}

/// The mandatory set is frozen for the interface's major: later slots are optional.
fn missing_device(t: &DeviceApi) -> Option<&'static str> {
    first_missing!(t;
        device_count device_open device_close device_info mem_alloc mem_free mem_map stream_create stream_destroy
        stream_query stream_sync event_create event_destroy event_record event_query event_sync stream_wait_event
        copy copy_2d fill)
}

fn missing_ops(t: &OpsApi) -> Option<&'static str> {
    first_missing!(t; op_prepare op_launch op_release)
}

fn missing_coll(t: &CollectiveApi) -> Option<&'static str> {
    first_missing!(t; unique_id comm_init comm_query comm_async_error comm_abort comm_destroy launch)
}

fn missing_graph(t: &GraphApi) -> Option<&'static str> {
    first_missing!(t; capture_begin capture_end graph_launch graph_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_name_lists_where_it_looked_and_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file_name("other")), b"junk").unwrap();
        let e = find("acme", &[dir.path().into()]).unwrap_err().to_string();
        for part in [
            "\"acme\"",
            &file_name("acme"),
            "found there: other",
            "--plugin",
            "CROSSWEAVE_PLUGIN_PATH",
        ] {
            assert!(e.contains(part), "{part} not in: {e}");
        }
    }

    #[test]
    fn directories_keep_their_order_and_the_first_file_of_a_name_wins() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for d in [&a, &b] {
            std::fs::write(d.path().join(file_name("x")), b"junk").unwrap();
        }
        let var = std::env::join_paths([a.path(), b.path()]).unwrap();
        let program = b.path().join("crossweave");
        let dirs = search_dirs(Some(&var), Some(&program));
        assert_eq!(dirs, [a.path(), b.path(), b.path()]);
        assert_eq!(find("x", &dirs).unwrap(), a.path().join(file_name("x")));
        let found = discover(&dirs);
        assert_eq!(found.len(), 1);
        assert!(matches!(
            found[0].manifest,
            Err(LoadError::NotObject { .. })
        ));
    }

    #[test]
    fn a_newer_host_requirement_carries_both_numbers() {
        unsafe extern "C" fn entry(
            _: *const abi::Host,
            out: *mut abi::Plugin,
            _: abi::ErrPtr,
        ) -> abi::Status {
            // SAFETY: the host's storage.
            unsafe {
                (*out).abi_minor = 9;
                (*out).min_host_minor = 7;
            }
            abi::OK
        }
        // SAFETY: the entry above keeps the contract.
        let e = unsafe { RawPlugin::from_entry(entry, &HostServices::default()) }.unwrap_err();
        let text = e.to_string();
        assert!(
            text.contains("plugin 1.9") && text.contains("host >= 1.7"),
            "{text}"
        );
        assert_eq!(Error::from(e).code, crate::error::Code::Version);
    }
}
