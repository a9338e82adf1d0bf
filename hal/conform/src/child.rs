//! The child's side: loads the plugin, runs the cases it was given, and reports the start and end of each as a line of JSON.

use crate::case::{Case, Check, Effort, Verdict, registry, skip};
use crate::ctx::{Ctx, case_seed};
use crate::local_ranks::{FileKv, RankThreads, Team};
use crate::raw::Plugin;
use crossweave_abi as abi;
use crossweave_abi::EntryFn;
use crossweave_hal::loader::load;
use crossweave_hal::manifest::Manifest;
use crossweave_hal::{HostServices, LoadError, RawPlugin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What is tested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// A back end that is part of this program.
    Linked(String),
    /// A plugin file.
    File(PathBuf),
}

impl Target {
    /// As a person would write it.
    pub fn text(&self) -> String {
        match self {
            Target::Linked(name) => name.clone(),
            Target::File(path) => path.display().to_string(),
        }
    }
}

/// A child's work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// What is tested.
    pub target: Target,
    /// Configuration the host gives the plugin.
    pub config: BTreeMap<String, String>,
    /// Layers around the plugin, the first next to it, as the command line names them.
    #[serde(default)]
    pub layers: Vec<String>,
    /// The run's seed.
    pub seed: u64,
    /// Devices to use; empty = those there are, at most two.
    pub devices: Vec<u32>,
    /// Numbers of ranks the registry is made for.
    pub ranks: Vec<u32>,
    /// How much is tried.
    pub effort: Effort,
    /// Ids, in order. Empty: only tell what the plugin is.
    pub cases: Vec<String>,
    /// The ranks are processes: how many, and the folder they meet in.
    pub team: Option<(u32, PathBuf)>,
    /// Which of them this is, where no launcher says so.
    pub rank: Option<u32>,
}

/// A line from a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "at", rename_all = "lowercase")]
pub enum Line {
    /// The plugin is loaded.
    Hello(Box<Hello>),
    /// It cannot be.
    Broken {
        /// Why.
        why: String,
        /// The machine lacks something, as opposed to the plugin.
        environment: bool,
    },
    /// A case begins.
    Begin {
        /// Which.
        id: String,
    },
    /// And ends.
    End {
        /// Which.
        id: String,
        /// What it found, or why it fails.
        found: Result<Verdict, String>,
    },
    /// All are done.
    Done,
}

/// What a plugin says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Who makes it.
    pub vendor: String,
    /// The minor in effect.
    pub minor: u32,
    /// Ids of the interfaces it offers.
    pub interfaces: Vec<String>,
    /// Names of its devices.
    pub devices: Vec<String>,
    /// Whether every one of them computes on the processors of this machine. Older scorecards do not say it.
    #[serde(default)]
    pub on_processors: bool,
    /// SHA-256 of its file; empty when it is linked.
    pub sha256: String,
}

/// `cw_device_info.kind` of a processor.
const KIND_CPU: u32 = 1;

/// Begins every line of the protocol: what a plugin prints itself is passed over.
pub const MARK: &str = "@conform ";

/// Where lines go. Standard output is put aside for the protocol; what the plugin prints goes to the error output.
struct Pipe(std::fs::File);

impl Pipe {
    #[cfg(unix)]
    fn take() -> std::io::Result<Pipe> {
        use std::os::fd::FromRawFd;
        // SAFETY: descriptors 1 and 2 of this process; the copy is ours alone.
        unsafe {
            let own = libc::dup(1);
            if own < 0 || libc::dup2(2, 1) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Pipe(std::fs::File::from_raw_fd(own)))
        }
    }

    fn say(&mut self, line: &Line) {
        let Ok(text) = serde_json::to_string(line) else {
            return;
        };
        // A parent that is gone has nobody to tell.
        let _ = self.0.write_all(format!("{MARK}{text}\n").as_bytes());
    }
}

/// Ends this process when the parent has ended: its side of standard input closes then. The parent sends a byte first, so that an input
/// that is not from it (a launcher gives its own to one rank) is left alone.
fn end_with_parent() {
    let byte = || {
        let mut b = [0u8; 1];
        loop {
            match std::io::stdin().read(&mut b) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                got => return matches!(got, Ok(1)),
            }
        }
    };
    std::thread::spawn(move || {
        if byte() {
            while byte() {}
            #[cfg(unix)]
            // SAFETY: a signal to this process. By no gentler way: what a plugin does at an exit may take for ever.
            unsafe {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
        }
        // Threads are counted: this one is there to the end.
        loop {
            std::thread::park();
        }
    });
}

/// Loads what a job names.
///
/// # Errors
/// The loader's.
fn open(
    target: &Target,
    host: &HostServices,
    linked: &dyn Fn(&str) -> Option<EntryFn>,
) -> Result<(RawPlugin, EntryFn), LoadError> {
    match target {
        Target::Linked(name) => {
            let Some(entry) = linked(name) else {
                return Err(LoadError::NotFound {
                    name: name.clone(),
                    file: "a linked back end".into(),
                    dirs: "this program".into(),
                    found: "others".into(),
                });
            };
            // SAFETY: an entry that this program links.
            Ok((unsafe { RawPlugin::from_entry(entry, host) }?, entry))
        }
        Target::File(path) => {
            let raw = load(path, host)?;
            let entry = entry_of(path).map_err(|why| LoadError::Open {
                path: path.clone(),
                why,
            })?;
            Ok((raw, entry))
        }
    }
}

/// The entry symbol of a library that is already open.
pub(crate) fn entry_of(path: &Path) -> Result<EntryFn, String> {
    let full = std::path::absolute(path).map_err(|e| e.to_string())?;
    // SAFETY: the library is open already, so no constructor runs.
    let lib = unsafe { libloading::Library::new(full) }.map_err(|e| e.to_string())?;
    // SAFETY: the symbol's name carries its type and version; the loader never closes the library, so the pointer stays good.
    let entry = unsafe { lib.get::<EntryFn>(abi::ENTRY_NAME.as_bytes()) };
    entry.map(|e| *e).map_err(|e| e.to_string())
}

/// Does this error lie in the machine?
fn environment(e: &LoadError) -> bool {
    matches!(e, LoadError::Unreadable { .. })
}

/// Puts a plugin inside a layer that the command line names.
pub type Around<'a> = &'a dyn Fn(RawPlugin, &str, &HostServices) -> Result<RawPlugin, String>;

/// Runs a job. `linked` gives entries of linked back ends, `around` the layers of a job; `place` is this process's rank when a
/// launcher says so.
///
/// # Errors
/// When the protocol's pipe cannot be had, or the plugin cannot be loaded on a rank that has no word in the protocol.
pub fn serve(
    job: &Job,
    linked: &dyn Fn(&str) -> Option<EntryFn>,
    around: Around<'_>,
    place: Option<u32>,
) -> std::io::Result<()> {
    // A case that panics has failed, and says so in its verdict.
    std::panic::set_hook(Box::new(|_| {}));
    let mut pipe = Pipe::take()?;
    let rank = job.rank.or(place).unwrap_or(0);
    let first = rank == 0;
    if first || job.rank.is_some() {
        end_with_parent();
    }
    let mut say = |line: Line| {
        if first {
            pipe.say(&line);
        }
    };
    let team = job.team.as_ref().map(|(n, dir)| Team {
        rank,
        n: *n,
        launched: job.rank.is_none(),
        kv: Arc::new(FileKv::new(dir.clone())),
    });
    let mut builder = HostServices::builder().log(|level, target, message| {
        if level <= 2 {
            eprintln!("{target}: {message}");
        }
    });
    for (key, value) in &job.config {
        builder = builder.config(key, value);
    }
    if let Some(t) = &team {
        builder = builder.kv(t.kv.clone());
    }
    let host = builder.record_faults().build();
    let threads = crate::life::threads();
    let plugin = open(&job.target, &host, linked)
        .map_err(|e| (e.to_string(), environment(&e)))
        .and_then(|(raw, entry)| {
            let mut layers = job.layers.iter();
            let raw = layers.try_fold(raw, |raw, l| around(raw, l, &host));
            raw.map(|raw| (raw, entry)).map_err(|e| (e, true))
        })
        .and_then(|(raw, entry)| Plugin::new(raw, entry).map_err(|e| (e, false)));
    let plugin = match plugin {
        Ok(p) => Arc::new(p),
        Err((why, _)) if !first => return Err(std::io::Error::other(why)),
        Err((why, environment)) => {
            say(Line::Broken { why, environment });
            return Ok(());
        }
    };
    let (hello, count) = match hello(&plugin, &job.target, job.cases.is_empty()) {
        Ok(x) => x,
        Err(why) if !first => return Err(std::io::Error::other(why)),
        Err(why) => {
            let environment = true;
            say(Line::Broken { why, environment });
            return Ok(());
        }
    };
    say(Line::Hello(Box::new(hello)));
    let (devices, others) = devices(job, count);
    let mut ctx = Ctx {
        plugin,
        host,
        file: match &job.target {
            Target::File(p) => Some(p.clone()),
            Target::Linked(_) => None,
        },
        seed: 0,
        devices,
        others,
        effort: job.effort,
        threads,
        shut: AtomicBool::new(false),
        rank_threads: Mutex::new(RankThreads::default()),
        team,
    };
    let all = registry(&job.ranks, job.effort);
    for (number, id) in job.cases.iter().enumerate() {
        let Some(case) = all.iter().find(|c| c.id == *id) else {
            continue;
        };
        say(Line::Begin { id: id.clone() });
        ctx.seed = case_seed(job.seed, id);
        ctx.plugin.take_slips();
        let mut found = judged(case, &ctx);
        if let (Ok(_), Some(s)) = (&found, ctx.plugin.take_slips().first()) {
            found = Err(s.clone());
        }
        if let Some(team) = &ctx.team {
            found = team.agree(number, found);
        }
        let failed = found.is_err();
        let id = id.clone();
        say(Line::End { id, found });
        if failed && ctx.team.is_some() {
            // What a failure leaves between processes is not worth guessing: the parent starts them anew.
            break;
        }
    }
    ctx.dismiss();
    // Cases may share an open device.
    drop(all);
    say(Line::Done);
    if let Some(f) = ctx
        .plugin
        .raw
        .shutdown
        .filter(|_| !ctx.shut.load(Ordering::Relaxed))
    {
        // SAFETY: all handles are gone; called once.
        unsafe { f(ctx.plugin.raw.self_, std::ptr::null_mut()) };
    }
    Ok(())
}

/// The devices of a run, and further ones for ranks that may not share those.
fn devices(job: &Job, count: u32) -> (Vec<u32>, Vec<u32>) {
    match job.devices.is_empty() {
        true => ((0..count.min(2)).collect(), (2..count).collect()),
        false => (job.devices.clone(), vec![]),
    }
}

/// What a case finds, where its ranks have devices enough.
fn judged(case: &Case, ctx: &Ctx) -> Check {
    let ranks = case.ranks.filter(|_| ctx.plugin.coll.is_some());
    let run = catch_unwind(AssertUnwindSafe(|| {
        match ranks.and_then(|n| ctx.crowded(n)) {
            Some(why) => skip(why),
            None => case.judge(ctx),
        }
    }));
    run.unwrap_or_else(|p| Err(panicked(p)))
}

/// A panic of a case, as its verdict.
pub(crate) fn panicked(p: Box<dyn std::any::Any + Send>) -> String {
    let text = match p.downcast_ref::<&str>() {
        Some(s) => s.to_string(),
        None => match p.downcast_ref::<String>() {
            Some(s) => s.clone(),
            None => "without text".into(),
        },
    };
    // Its destructor could panic again.
    std::mem::forget(p);
    format!("the kit panicked: {text}")
}

/// What the plugin says of itself; devices are opened only when that is all that is asked.
fn hello(plugin: &Arc<Plugin>, target: &Target, whole: bool) -> Result<(Hello, u32), String> {
    let mut h = Hello {
        name: plugin.raw.name.clone(),
        version: plugin.raw.version.clone(),
        vendor: plugin.raw.vendor.clone(),
        minor: plugin.raw.abi_minor,
        ..Hello::default()
    };
    let ids = [
        (abi::IFACE_DEVICE, true),
        (abi::IFACE_OPS, plugin.ops.is_some()),
        (abi::IFACE_COLLECTIVE, plugin.coll.is_some()),
        (abi::IFACE_GRAPH, plugin.raw.graph.is_some()),
    ];
    h.interfaces = ids
        .into_iter()
        .filter(|x| x.1)
        .map(|x| x.0.to_string())
        .collect();
    let count = plugin.device_count()?;
    if !whole {
        return Ok((h, count));
    }
    if count == 0 {
        return Err("the plugin finds no device on this machine".into());
    }
    h.on_processors = true;
    for i in 0..count {
        let info = plugin.open(i)?.info()?;
        h.on_processors &= info.kind == KIND_CPU;
        h.devices.push(crate::raw::text(&info.name));
    }
    if let Target::File(path) = target {
        use sha2::Digest;
        let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
        let sum = sha2::Sha256::digest(bytes);
        h.sha256 = sum.iter().map(|b| format!("{b:02x}")).collect();
        if let Ok(m) = Manifest::read(path) {
            for id in m.interfaces {
                if !h.interfaces.contains(&id) {
                    h.interfaces.push(id);
                }
            }
        }
    }
    Ok((h, count))
}
