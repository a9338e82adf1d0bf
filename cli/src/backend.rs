//! Choosing the back end: linked ones by name, others from a plugin file or the plugin path.

use crate::args::BackendArgs;
use crate::error::{CliError, Result};
use crate::layers;
use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_null::Null;
use crossweave_hal::loader::{Found, discover, file_name, find, load, search_dirs};
use crossweave_hal::{Carrier, Device, HostServices, LoadError, Plugin, RawPlugin, abi};
use crossweave_mesh::JobStore;
use std::path::PathBuf;
use std::sync::Arc;

/// Names of the back ends that are part of this program.
pub const LINKED: [&str; 2] = ["cpu", "null"];

/// Where plugins are looked for: `CROSSWEAVE_PLUGIN_PATH`, then beside this program.
pub fn plugin_dirs() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    search_dirs(
        std::env::var_os("CROSSWEAVE_PLUGIN_PATH").as_deref(),
        program.as_deref(),
    )
}

/// Cores this process may use.
pub fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// What the user sets for plugins: `CROSSWEAVE_PLUGIN_OPTIONS="key=value;key=value"`. The keys are in each plugin's README.
fn plugin_options() -> Vec<(String, String)> {
    let text = std::env::var("CROSSWEAVE_PLUGIN_OPTIONS").unwrap_or_default();
    let pairs = text.split(';').map(str::trim).filter(|p| !p.is_empty());
    pairs
        .filter_map(|p| match p.split_once('=') {
            Some((key, value)) => Some((key.trim().to_string(), value.trim().to_string())),
            None => {
                eprintln!(
                    "warning: CROSSWEAVE_PLUGIN_OPTIONS: {p:?} is not key=value; it changes nothing"
                );
                None
            }
        })
        .collect()
}

/// Where plugins keep what they may make again, such as compiled kernels: `CROSSWEAVE_CACHE`, else the user's folder for such things.
fn cache_dir() -> Option<PathBuf> {
    let folder = |var: &str| {
        std::env::var_os(var)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    folder("CROSSWEAVE_CACHE").or_else(|| {
        folder("XDG_CACHE_HOME")
            .or_else(|| Some(folder("HOME")?.join(".cache")))
            .filter(|d| d.is_absolute())
            .map(|d| d.join("crossweave"))
    })
}

/// Host services for `ranks` ranks on this machine of `threads` threads each (`None`: the cores divided by the ranks). `store`: that of a
/// job of several processes.
pub fn host(ranks: u32, threads: Option<u64>, store: Option<JobStore>) -> HostServices {
    let threads = threads.unwrap_or_else(|| (cores() / u64::from(ranks)).max(1));
    let mut host = HostServices::builder();
    if let Some(store) = store {
        host = host.kv(Arc::new(store));
    }
    host = host.log(|level, target, message| {
        // Errors and warnings; the rest is for a debugger of plugins.
        if level <= 2 {
            eprintln!("{target}: {message}");
        }
    });
    for name in LINKED {
        host = host.config(format!("{name}.devices"), ranks.to_string());
    }
    if let Some(dir) = cache_dir() {
        host = host.config("cache_dir", dir.display().to_string());
    }
    for (key, value) in plugin_options() {
        host = host.config(key, value);
    }
    host.config("cpu.threads", threads.to_string())
        // The dry run measures any model; whether it fits is asked of the device it will run on.
        .config("null.mem_total", (1u64 << 62).to_string())
        .build()
}

/// A linked back end.
fn linked(name: &str, host: &HostServices) -> Option<Result<RawPlugin>> {
    let raw = match name {
        "cpu" => RawPlugin::from_static::<CpuBackend>(host),
        "null" => RawPlugin::from_static::<Null>(host),
        _ => return None,
    };
    Some(raw.map_err(CliError::from))
}

/// The linked back end `name` as a plugin.
///
/// # Errors
/// When it refuses its configuration.
pub fn open_linked(name: &str, host: &HostServices) -> Result<Plugin> {
    match linked(name, host) {
        Some(raw) => Ok(Plugin::new(raw?)),
        None => Err(CliError::refused(
            format!("{name} is not linked into this program"),
            format!("use one of {}", LINKED.join(", ")),
        )),
    }
}

/// The back end that flags and config ask for: the plugin file if one is given, a linked one by name, else a plugin of that name on
/// the plugin path.
///
/// # Errors
/// A name that is nowhere, with what is there; a plugin that cannot be used; a file whose name is not the one asked for; a layer that is none.
pub fn choose(args: &BackendArgs, configured: &str, host: &HostServices) -> Result<Plugin> {
    layers::apply(bare(args, configured, host)?, &args.layers, host)
}

/// The same outside of any layer.
fn bare(args: &BackendArgs, configured: &str, host: &HostServices) -> Result<Plugin> {
    if let Some(path) = &args.plugin {
        let plugin = Plugin::new(load(path, host)?);
        if let Some(name) = args.backend.as_deref().filter(|n| *n != plugin.name()) {
            return Err(CliError::refused(
                format!(
                    "--plugin {} is the back end \"{}\", and --backend asks for \"{name}\"",
                    path.display(),
                    plugin.name()
                ),
                "drop one of the two flags",
            ));
        }
        return Ok(plugin);
    }
    let name = args.backend.as_deref().unwrap_or(configured);
    if let Some(raw) = linked(name, host) {
        return Ok(Plugin::new(raw?));
    }
    let dirs = plugin_dirs();
    let path = find(name, &dirs).map_err(|e| match e {
        LoadError::NotFound { .. } => {
            let mut names: Vec<String> = LINKED.iter().map(|n| n.to_string()).collect();
            // A plugin without ops carries messages for others and computes nothing.
            let computes = |f: &Found| match &f.manifest {
                Ok(m) => m.interfaces.iter().any(|i| i.starts_with("crossweave.ops/")),
                Err(_) => true,
            };
            names.extend(discover(&dirs).into_iter().filter(computes).map(|f| f.name));
            names.sort();
            names.dedup();
            let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
            CliError::refused(
                format!(
                    "no back end named {name:?}: available are {}; looked for {} in {}",
                    names.join(", "),
                    file_name(name),
                    dirs.join(", ")
                ),
                "name one that is available, give --plugin PATH, or set CROSSWEAVE_PLUGIN_PATH to the plugin's folder",
            )
        }
        other => CliError::from(other),
    })?;
    Ok(Plugin::new(load(&path, host)?))
}

/// Lets `device` leave to the linked CPU what it can compute by no other route.
///
/// # Errors
/// When the CPU refuses its configuration.
pub fn allow_host_ops(device: &Device, host: &HostServices, rank: u32) -> Result<()> {
    device.allow_host_ops(&open_device(&open_linked("cpu", host)?, rank)?);
    Ok(())
}

/// Who carries collectives between back ends in one process: the linked CPU's, over pinned memory all of them reach.
///
/// # Errors
/// When it refuses its configuration.
pub fn bridge(host: &HostServices) -> Result<Carrier> {
    Ok(Carrier::open(&open_linked("cpu", host)?)?)
}

/// Why `ranks` ranks of a back end do not use its own collectives: it has none, its devices say that what they need for them is missing
/// (attribute `collective.ready`), or ranks share a device and its collectives do not take that (`collective.shares_device`).
pub fn carried(plugin: &Plugin, ranks: u32) -> Option<String> {
    if !plugin.interfaces().contains(&abi::IFACE_COLLECTIVE) {
        return Some("it has no collectives of its own".into());
    }
    // One that cannot be opened says so when it is used; one that does not know the keys needs nothing and takes anything.
    let device = (ranks > 1).then(|| plugin.open(0).ok()).flatten()?;
    let says = |key: &str| {
        let answer = device.attr(key).ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    if let Some(why) = says("collective.ready").filter(|a| a != "yes") {
        return Some(why);
    }
    let count = plugin.device_count().ok().filter(|n| ranks > *n)?;
    let shares = says("collective.shares_device").is_some_and(|a| a == "no");
    shares.then(|| {
        format!("{ranks} ranks share {count} device(s), which its collectives do not take")
    })
}

/// Opens the device of `rank`: ranks go around the devices there are.
///
/// # Errors
/// When there is no device, or it cannot be opened.
pub fn open_device(plugin: &Plugin, rank: u32) -> Result<Device> {
    let count = count(plugin)?;
    plugin.open(rank % count).map_err(|e| failed(plugin, &e))
}

/// Devices of a back end, at least one.
///
/// # Errors
/// When there is none, or the back end cannot tell.
pub fn count(plugin: &Plugin) -> Result<u32> {
    match plugin.device_count().map_err(|e| failed(plugin, &e))? {
        0 => Err(CliError::refused(
            format!("{} finds no device on this machine", name(plugin)),
            "use --backend cpu, or check the driver",
        )),
        n => Ok(n),
    }
}

/// A back end's failure with its name, which the device layer does not know it by.
fn failed(plugin: &Plugin, e: &crossweave_hal::Error) -> CliError {
    CliError::refused(
        format!("{}: {e}", name(plugin)),
        "use --backend cpu, or check the driver and the plugin",
    )
}

fn name(plugin: &Plugin) -> String {
    match plugin.path() {
        Some(path) => format!("back end {} ({})", plugin.name(), path.display()),
        None => format!("back end {}", plugin.name()),
    }
}
