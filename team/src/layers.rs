//! `--layer NAME[=SPEC]`: a back end inside layers, the first next to it.

use crate::outputs::{Outputs, RECORDING, TIMELINE};
use crate::train_error::{Result, TrainError};
use crossweave_hal::loader::load_layer;
use crossweave_hal::{HostServices, Plugin, RawPlugin};
use crossweave_layers::{Fault, Lacks, Layer, Only, Record, Throttle, Trace, Validate, wrap};
use std::path::Path;

/// Names of the layers that are part of this program.
const LINKED: [&str; 7] = [
    "validate", "trace", "record", "fault", "throttle", "lacks", "only",
];

/// `plugin` inside the layers of `specs`, in their order. `outputs` holds the files that they write.
///
/// # Errors
/// A layer that is none, or whose words are wrong.
pub fn apply(
    plugin: Plugin,
    specs: &[String],
    host: &HostServices,
    outputs: &Outputs,
) -> Result<Plugin> {
    specs.iter().try_fold(plugin, |p, spec| {
        p.layered(|raw| around(raw, spec, host, outputs))
    })
}

/// A loaded plugin inside the layer of `spec`.
///
/// # Errors
/// As [`apply`].
pub fn around(
    raw: RawPlugin,
    spec: &str,
    host: &HostServices,
    outputs: &Outputs,
) -> Result<RawPlugin> {
    let (name, words) = match spec.split_once('=') {
        Some((n, w)) => (n, Some(w)),
        None => (spec, None),
    };
    let refused = |why: String| {
        TrainError::refused(
            format!("--layer {spec}: {why}"),
            "see `crossweave train --help` and docs/layers.md",
        )
    };
    let want = |example: &str| {
        words
            .filter(|w| !w.is_empty())
            .ok_or_else(|| refused(format!("write e.g. {example}")))
    };
    let layer: Box<dyn Layer> = match name {
        "validate" => match words {
            None => Box::new(Validate::default()),
            Some(_) => return Err(refused("validate takes no words".into())),
        },
        "trace" | "record" => {
            // Several processes write several files.
            let path =
                want(&format!("{name}=FILE"))?.replace("%p", &std::process::id().to_string());
            let path = Path::new(&path);
            let (io, option) = (TrainError::io("write", path), format!("--layer {name}"));
            if name == "trace" {
                outputs.claim(&option, path, TIMELINE)?;
                Box::new(Trace::to(path).map_err(io)?)
            } else {
                outputs.claim(&option, path, RECORDING)?;
                Box::new(Record::to(path).map_err(io)?)
            }
        }
        "fault" => Box::new(Fault::parse(want("fault=alloc:3:oom")?).map_err(refused)?),
        "throttle" => Box::new(Throttle::parse(want("throttle=copy:10GB/s")?).map_err(refused)?),
        "only" => Box::new(Only::parse(want("only=minimal")?).map_err(refused)?),
        "lacks" => Box::new(Lacks::parse(want("lacks=attention_bwd")?).map_err(refused)?),
        _ if name.ends_with(std::env::consts::DLL_SUFFIX) => {
            return Ok(load_layer(Path::new(name), host, &raw)?);
        }
        _ => {
            let names = LINKED.join(", ");
            return Err(refused(format!(
                "no layer is called {name:?}; there are {names}, and libraries by their path"
            )));
        }
    };
    Ok(wrap(raw, host, layer))
}
