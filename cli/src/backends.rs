//! `crossweave backends`: what is linked and what lies on the plugin path, with its devices. No plugin's code runs in this process unless asked
//! to: what a found plugin's devices are is asked in a process of its own, which a broken driver may take down.

use crate::args::BackendsArgs;
use crate::backend::{LINKED, host, open_linked};
use crate::error::Result;
use crate::figures::probed::probed;
use crate::say::say;
use crate::surroundings::Surroundings;
use crossweave_hal::loader::ABI_MAJOR;
use crossweave_hal::loader::{discover, load};
use crossweave_hal::{Plugin, abi};
use crossweave_words::Size;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Runs the command.
///
/// # Errors
/// A plugin given by `--plugin` that cannot be used; one that is merely found and cannot be used is listed with the reason.
pub fn run(args: &BackendsArgs, around: &Surroundings) -> Result<()> {
    let host = host(&around.plugins, 1, None, None);
    if let Some(path) = &args.probe {
        say!("{}", opened(&Plugin::new(load(path, &host)?))?);
        return Ok(());
    }
    let dirs = &around.plugins.folders;
    let mut list = vec![];
    for name in LINKED {
        list.push(opened(&open_linked(name, &host)?)?);
    }
    if let Some(path) = &args.plugin {
        list.push(opened(&Plugin::new(load(path, &host)?))?);
    }
    for found in discover(dirs) {
        let path = found.path.display().to_string();
        list.push(match found.manifest {
            Ok(m) => {
                // One that only carries messages for others has no device of its own to show, and may start a job when opened.
                let computes = m.interfaces.iter().any(|i| i.starts_with("crossweave.ops/"));
                let (usable, error, own) = match computes.then(|| probed(&found.path, around)) {
                    None => (true, Value::Null, Value::Null),
                    Some(Ok(own)) => (true, Value::Null, own),
                    Some(Err(why)) => (false, Value::from(why), Value::Null),
                };
                json!({
                    "name": m.name, "linked": false, "path": path, "vendor": m.vendor, "version": m.other.get("version"),
                    "abi": format!("{}.{}", m.abi_major, m.abi_minor), "interfaces": m.interfaces, "needs": m.needs,
                    "usable": usable, "error": error, "devices": own["devices"], "no_device": own["no_device"],
                })
            }
            Err(e) => json!({
                "name": found.name, "linked": false, "path": path, "usable": false, "error": e.to_string(), "devices": null,
            }),
        });
    }
    if args.json {
        let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
        say!("{:#}", json!({"backends": list, "searched": dirs}));
        return Ok(());
    }
    page(&list, dirs);
    Ok(())
}

/// The listing for people: each name once, the usable ones first.
fn page(list: &[Value], dirs: &[PathBuf]) {
    let mut names: Vec<&str> = vec![];
    for name in list.iter().filter_map(|b| b["name"].as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let of = |name: &str| {
        list.iter()
            .filter(|b| b["name"] == name)
            .collect::<Vec<_>>()
    };
    let mut all: Vec<(&str, Vec<&Value>)> = names.iter().map(|n| (*n, of(n))).collect();
    // Of several of one name the first is taken, as training does.
    all.sort_by_key(|(_, b)| b[0]["usable"] != true);
    let width = names.iter().map(|n| n.len()).max().unwrap_or(0).max(8);
    for (name, files) in &all {
        print(name, files, width);
    }
    let found = list.iter().any(|b| b["linked"] != true);
    say!();
    if !found {
        say!(
            "no plugins are there: `cargo build --release` builds those that come with Crossweave beside the program"
        );
    }
    let dirs: Vec<String> = dirs.iter().map(|d| d.display().to_string()).collect();
    say!(
        "plugins are looked for in {} (CROSSWEAVE_PLUGIN_PATH, then beside the program); --plugin PATH takes one from elsewhere",
        dirs.join(", ")
    );
    say!("--backend NAME chooses; --json has vendors, versions and interfaces");
}

/// What an opened back end says of itself and its devices.
fn opened(plugin: &Plugin) -> Result<Value> {
    let mut devices = vec![];
    let count = plugin.device_count()?;
    // One that finds none knows why, and says so when it is asked for the first.
    let no_device = match count {
        0 => plugin.open(0).err().map(|e| e.message),
        _ => None,
    };
    for i in 0..count {
        let d = plugin.open(i)?.info()?;
        let kind = match d.kind {
            1 => "cpu",
            2 => "gpu",
            3 => "accelerator",
            _ => "other",
        };
        devices.push(json!({
            "index": i, "name": d.name, "arch": d.arch, "kind": kind, "mem_total": d.mem_total, "mem_free": d.mem_free,
        }));
    }
    Ok(json!({
        "name": plugin.name(), "linked": plugin.path().is_none(),
        "path": plugin.path().map(|p| p.display().to_string()), "vendor": plugin.vendor(), "version": plugin.version(),
        "abi": format!("{}.{}", ABI_MAJOR, abi::ABI_MINOR), "interfaces": plugin.interfaces(), "needs": [],
        "usable": true, "error": null, "devices": devices, "no_device": no_device,
    }))
}

fn print(name: &str, files: &[&Value], width: usize) {
    let first = files[0];
    let place = |b: &Value| b["path"].as_str().unwrap_or("linked in").to_string();
    let under = " ".repeat(width + 1);
    match first["error"].as_str() {
        Some(e) => {
            say!("{name:<width$} cannot be used here: {}", place(first));
            say!("{under}missing: {e}");
            let needs = strings(&first["needs"]);
            if !needs.is_empty() {
                say!("{under}needs: {}", needs.join(", "));
            }
        }
        None => say!("{name:<width$} {}", place(first)),
    }
    let devices = first["devices"].as_array();
    for d in devices.into_iter().flatten() {
        let text = |key: &str| d[key].as_str().unwrap_or("-").to_string();
        // One that has no memory to tell of says so with 0, and the null device with more than there is.
        let memory = match d["mem_total"].as_u64().unwrap_or(0) {
            0 => "memory not known".to_string(),
            n if n >= 1 << 60 => "no limit of memory".to_string(),
            n => Size(n).to_string(),
        };
        say!(
            "{under}device {}: {} ({}, {}), {memory}",
            d["index"],
            text("name"),
            text("kind"),
            text("arch")
        );
    }
    if first["error"].is_null() && devices.is_none_or(|d| d.is_empty()) {
        let ops = strings(&first["interfaces"])
            .iter()
            .any(|i| i.starts_with("crossweave.ops/"));
        match ops {
            true => {
                let why = first["no_device"].as_str().unwrap_or("check the driver");
                say!("{under}finds no device on this machine: {why}");
            }
            false => say!("{under}carries messages between processes; it has no device of its own"),
        }
    }
    for other in &files[1..] {
        say!("{under}also at {}, which --plugin takes", place(other));
    }
}

fn strings(v: &Value) -> Vec<String> {
    let all = v.as_array().into_iter().flatten();
    all.filter_map(|s| s.as_str().map(String::from)).collect()
}
