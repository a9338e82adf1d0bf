//! Choosing the back end: linked ones by name, others from a plugin file or the plugin path.

use crate::layers;
use crate::surroundings::{OPTIONS, Plugins};
use crate::train_error::{Result, TrainError};
use crossweave_backend_cpu::CpuBackend;
use crossweave_backend_null::Null;
use crossweave_config::nearest;
use crossweave_files::clip;
use crossweave_hal::loader::{Found, discover, file_name, find, load};
use crossweave_hal::{Carrier, Device, HostServices, LoadError, Plugin, RawPlugin, abi};
use crossweave_mesh::JobStore;
use std::path::PathBuf;
use std::sync::Arc;

/// Which back end computes, where it is not left to the config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendChoice {
    /// Its name, in place of `run.backend`.
    pub name: Option<String>,
    /// Its plugin file.
    pub plugin: Option<PathBuf>,
    /// The layers around it, outermost last: `NAME[=SPEC]`.
    pub layers: Vec<String>,
}

/// Names of the back ends that are part of this program.
pub const LINKED: [&str; 2] = ["cpu", "null"];

/// Cores this process may use.
pub fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// Options that a config sets, and by which key.
const BY_CONFIG: [(&str, &str); 2] = [
    ("cpu.threads", "set run.threads_per_rank in the config"),
    (
        "null.mem_total",
        "remove it: the dry run measures any model",
    ),
];

/// What the user sets for plugins, by keys whose syntax [`check_options`] has checked.
pub fn plugin_options(plugins: &Plugins) -> Vec<(String, String)> {
    let pairs = plugins.options.split(';').filter_map(|p| p.split_once('='));
    pairs
        .map(|(k, v)| (k.trim().to_string(), v.trim().to_string()))
        .collect()
}

/// Refuses options that no plugin can be meant by, before anything is done.
///
/// # Errors
/// What is not key=value; a key given twice, of no plugin that is there, or that the config sets.
pub fn check_options(plugins: &Plugins) -> Result<()> {
    check_pairs(&plugins.options, || {
        let found = discover(&plugins.folders).into_iter();
        let names = found.filter_map(|f| f.manifest.ok()).map(|m| m.name);
        names.chain(LINKED.map(String::from)).collect()
    })
}

fn check_pairs(text: &str, plugins: impl FnOnce() -> Vec<String>) -> Result<()> {
    let bad =
        |what: String, fix: String| Err(TrainError::refused(format!("{OPTIONS}: {what}"), fix));
    let mut keys: Vec<&str> = vec![];
    for pair in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
        let shown = clip(pair, 60);
        let Some((key, value)) = pair.split_once('=').map(|(k, v)| (k.trim(), v.trim())) else {
            return bad(
                format!("{shown:?} is not key=value"),
                "write key=value;key=value".into(),
            );
        };
        if key.is_empty() || value.is_empty() {
            let what = if key.is_empty() { "key" } else { "value" };
            return bad(
                format!("{shown:?} has no {what}"),
                "write key=value;key=value".into(),
            );
        }
        if keys.contains(&key) {
            return bad(format!("{key} is given twice"), "keep one of them".into());
        }
        if let Some((_, fix)) = BY_CONFIG.iter().find(|(k, _)| *k == key) {
            return bad(format!("{key} has no effect here"), (*fix).into());
        }
        keys.push(key);
    }
    let own = |key: &&&str| **key != "cache_dir";
    if keys.iter().filter(own).count() == 0 {
        return Ok(());
    }
    let plugins = plugins();
    for key in keys.iter().filter(own) {
        let name = key.split('.').next().unwrap_or_default();
        if !key.contains('.') || !plugins.iter().any(|p| p == name) {
            let near = nearest(name, plugins.iter().map(String::as_str));
            let fix = match near {
                Some(n) if key.contains('.') => {
                    format!("did you mean {n}.{}?", &key[name.len() + 1..])
                }
                _ => format!(
                    "begin a key with the name of its plugin: {}",
                    plugins.join(", ")
                ),
            };
            return bad(
                format!(
                    "unknown key {:?}: no plugin {name:?} is there",
                    clip(key, 60)
                ),
                fix,
            );
        }
    }
    Ok(())
}

/// Refuses options of a plugin that it has not asked for while it was opened.
///
/// # Errors
/// The first such key, with the nearest that it has asked for.
fn check_read(plugin: &str, host: &HostServices, plugins: &Plugins) -> Result<()> {
    let begin = format!("{plugin}.");
    let asked: Vec<String> = host.config_reads().into_iter().map(|r| r.key).collect();
    let known = || {
        asked
            .iter()
            .map(String::as_str)
            .filter(|k| k.starts_with(&begin))
    };
    if known().next().is_none() {
        // It asks later, if at all; then nothing can be said.
        return Ok(());
    }
    for (key, _) in plugin_options(plugins) {
        if key.starts_with(&begin) && !known().any(|k| k == key) {
            let fix = match nearest(&key, known()) {
                Some(n) => format!("did you mean {n}?"),
                None => format!("its keys are {}", known().collect::<Vec<_>>().join(", ")),
            };
            return Err(TrainError::refused(
                format!("{OPTIONS}: {plugin} has no key {:?}", clip(&key, 60)),
                fix,
            ));
        }
    }
    Ok(())
}

/// Host services for `ranks` ranks on this machine of `threads` threads each (`None`: the cores divided by the ranks). `store`: that of a
/// job of several processes.
pub fn host(
    plugins: &Plugins,
    ranks: u32,
    threads: Option<u64>,
    store: Option<JobStore>,
) -> HostServices {
    let threads = threads.unwrap_or_else(|| (cores() / u64::from(ranks)).max(1));
    let mut host = HostServices::builder();
    if let Some(store) = store {
        host = host.kv(Arc::new(store));
    }
    host = host.log(plugins.log.sink());
    for name in LINKED {
        host = host.config(format!("{name}.devices"), ranks.to_string());
    }
    if let Some(dir) = &plugins.cache {
        host = host.config("cache_dir", dir.display().to_string());
    }
    for (key, value) in plugin_options(plugins) {
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
    Some(raw.map_err(TrainError::from))
}

/// The linked back end `name` as a plugin.
///
/// # Errors
/// When it refuses its configuration.
pub fn open_linked(name: &str, host: &HostServices) -> Result<Plugin> {
    match linked(name, host) {
        Some(raw) => Ok(Plugin::new(raw?)),
        None => Err(TrainError::refused(
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
pub fn choose(
    args: &BackendChoice,
    configured: &str,
    host: &HostServices,
    plugins: &Plugins,
) -> Result<Plugin> {
    let plugin = bare(args, configured, host, &plugins.folders)?;
    check_read(plugin.name(), host, plugins)?;
    layers::apply(plugin, &args.layers, host, &plugins.outputs)
}

/// The same outside of any layer.
fn bare(
    args: &BackendChoice,
    configured: &str,
    host: &HostServices,
    dirs: &[PathBuf],
) -> Result<Plugin> {
    if let Some(path) = &args.plugin {
        let plugin = Plugin::new(load(path, host)?);
        if let Some(name) = args.name.as_deref().filter(|n| *n != plugin.name()) {
            return Err(TrainError::refused(
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
    let name = args.name.as_deref().unwrap_or(configured);
    if let Some(raw) = linked(name, host) {
        return Ok(Plugin::new(raw?));
    }
    let path = find(name, dirs).map_err(|e| match e {
        LoadError::NotFound { .. } => {
            let mut names: Vec<String> = LINKED.iter().map(|n| n.to_string()).collect();
            // A plugin without ops carries messages for others and computes nothing.
            let computes = |f: &Found| match &f.manifest {
                Ok(m) => m.interfaces.iter().any(|i| i.starts_with("crossweave.ops/")),
                Err(_) => true,
            };
            names.extend(discover(dirs).into_iter().filter(computes).map(|f| f.name));
            names.sort();
            names.dedup();
            let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
            TrainError::refused(
                format!(
                    "no back end named {name:?}: available are {}; looked for {} in {}",
                    names.join(", "),
                    file_name(name),
                    dirs.join(", ")
                ),
                "name one that is available, give --plugin PATH, or set CROSSWEAVE_PLUGIN_PATH to the plugin's folder",
            )
        }
        other => TrainError::from(other),
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

/// The device whose kernels run on host memory: another opening of the same back end where that is the CPU, else the linked one.
///
/// # Errors
/// A back end that refuses its configuration.
pub fn host_device(plugin: &Plugin, services: &HostServices, rank: u32) -> Result<Device> {
    match plugin.name() {
        "cpu" | "null" => open_device(plugin, rank),
        _ => open_device(&open_linked("cpu", services)?, rank),
    }
}

/// Devices of a back end, at least one.
///
/// # Errors
/// When there is none, or the back end cannot tell.
pub fn count(plugin: &Plugin) -> Result<u32> {
    match plugin.device_count().map_err(|e| failed(plugin, &e))? {
        0 => {
            // It knows why, and says so when it is asked for the first.
            let why = plugin
                .open(0)
                .err()
                .map_or(String::new(), |e| format!(": {}", e.message));
            Err(TrainError::refused(
                format!("{} finds no device on this machine{why}", name(plugin)),
                "use --backend cpu, or check the driver",
            ))
        }
        n => Ok(n),
    }
}

/// A back end's failure with its name, which the device layer does not know it by.
fn failed(plugin: &Plugin, e: &crossweave_hal::Error) -> TrainError {
    TrainError::refused(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_strictly_as_configs() {
        let check = |text: &str| {
            check_pairs(text, || vec!["cpu".into(), "mpi".into()]).map_err(|e| e.to_string())
        };
        for good in ["", " ; ", "cpu.simd=avx2; mpi.library = x", "cache_dir=/x"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, words) in [
            ("cpu.simd", &["\"cpu.simd\" is not key=value"][..]),
            ("=3", &["has no key"]),
            ("cpu.simd=", &["has no value"]),
            ("cpu.simd=avx2;cpu.simd=auto", &["given twice"]),
            ("cpu.threads=3", &["no effect", "run.threads_per_rank"]),
            (
                "cpuu.simd=auto",
                &["\"cpuu.simd\"", "did you mean cpu.simd?"],
            ),
            ("simd=auto", &["begin a key with", "cpu, mpi"]),
        ] {
            let e = check(bad).unwrap_err();
            for w in [words, &["CROSSWEAVE_PLUGIN_OPTIONS", "fix:"]].concat() {
                assert!(e.contains(w), "{bad}: no {w:?} in {e}");
            }
        }
    }
}
