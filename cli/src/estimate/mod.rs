//! `crossweave estimate`: memory, traffic and time of a model by name or by size, from formulas alone.

mod page;
mod presets;

pub use presets::{bytes, count};

use crate::args::{AccountingName, EstimateArgs, HomeName, KeepName};
use crate::error::{CliError, Result};
use crate::say::say;
use crossweave_nn::{Gpt2, Llama, Model, rope::RopeScaling};
use crossweave_tensor::{Activation, Builder};
use crossweave_zero::ZeroStage;
use crossweave_zero::estimate::*;
use presets::PRESETS;

/// What is estimated, nothing left open.
struct Job {
    name: String,
    /// As stated, and of each unit of the real model where it is known.
    params: u64,
    units: Vec<u64>,
    shape: Shape,
    accounting: Accounting,
    accounting_name: &'static str,
    ranks: u64,
    nodes: u64,
    device: Option<&'static Profile>,
    device_memory: Option<u64>,
    host: Option<u64>,
    nvme: Option<u64>,
    tokens: Option<f64>,
    batch: u64,
    keep: ActivationCase,
    keep_name: &'static str,
    sustained: f64,
}

/// Runs the command.
///
/// # Errors
/// A model, device or size nobody knows.
pub fn run(args: &EstimateArgs) -> Result<()> {
    let job = job(args)?;
    let figures = page::figures(&job, args);
    if args.json {
        say!("{figures:#}");
    } else {
        say!("{}", page::text(&job, args, &figures));
    }
    Ok(())
}

fn job(args: &EstimateArgs) -> Result<Job> {
    let preset = PRESETS
        .iter()
        .find(|p| p.name.eq_ignore_ascii_case(&args.model));
    let params = match preset {
        Some(p) => p.params,
        None => count(&args.model).map_err(|_| unknown_model(&args.model))?,
    };
    let mut shape = preset.map_or_else(|| Shape::of_params(params), |p| p.shape);
    let given = [args.layers, args.hidden, args.heads, args.vocab, args.seq];
    let slots = [
        &mut shape.layers,
        &mut shape.hidden,
        &mut shape.heads,
        &mut shape.vocab,
        &mut shape.seq,
    ];
    for (slot, value) in slots.into_iter().zip(given) {
        *slot = value.unwrap_or(*slot);
    }
    let changed = given[..4].iter().any(Option::is_some);
    let units = match preset {
        Some(p) if !changed => units(p),
        _ => Vec::new(),
    };
    let chosen = match &args.device {
        None => None,
        Some(name) => Some(device(name)?),
    };
    // A question about nodes without a device is one about the machine the published figures are of.
    let device = chosen.or_else(|| (args.nodes.is_some() || args.time).then(|| &profiles()[0]));
    let per_node = args
        .ranks_per_node
        .or(device.map(|d| d.ranks_per_node))
        .unwrap_or(8);
    let (ranks, nodes) = match (args.ranks, args.nodes) {
        (Some(r), Some(n)) => (r, n),
        (Some(r), None) => (r, r.div_ceil(per_node)),
        (None, Some(n)) => (n * per_node, n),
        (None, None) => (1, 1),
    };
    if nodes > ranks {
        return Err(CliError::refused(
            format!("--nodes {nodes}: more nodes than the {ranks} ranks"),
            "give more --ranks, or fewer nodes",
        ));
    }
    let (accounting, accounting_name) = match args.accounting {
        AccountingName::Mixed => (Accounting::MIXED, "mixed"),
        AccountingName::Fp32 => (Accounting::FP32, "fp32"),
        AccountingName::MixedF32Grads => (Accounting::MIXED_F32_GRADS, "mixed-f32-grads"),
    };
    let (keep, keep_name) = match args.keep {
        KeepName::All => (ActivationCase::Full, "all"),
        KeepName::Selective => (ActivationCase::Selective, "selective"),
        KeepName::Flash => (ActivationCase::Flash, "flash"),
        KeepName::Inputs => (ActivationCase::Recompute, "inputs"),
    };
    Ok(Job {
        name: args.model.clone(),
        params,
        units,
        shape,
        accounting,
        accounting_name,
        ranks,
        nodes,
        device,
        device_memory: args.device_memory.or(device.map(|d| d.memory)),
        host: args.host,
        nvme: args.nvme,
        tokens: args.tokens.map(|t| t as f64).or(preset.map(|p| p.tokens)),
        batch: args.batch,
        keep,
        keep_name,
        sustained: args
            .tflops
            .map(|t| t * 1e12)
            .or(device.map(|d| d.sustained))
            .unwrap_or(0.0),
    })
}

/// The device profile of that name.
///
/// # Errors
/// There is none.
pub fn device(name: &str) -> Result<&'static Profile> {
    profile(&name.to_lowercase()).ok_or_else(|| {
        let known: Vec<_> = profiles().iter().map(|p| p.name).collect();
        CliError::refused(
            format!("--device {name}: no profile of that name"),
            format!("name one of {}, or give --device-memory", known.join(", ")),
        )
    })
}

fn unknown_model(name: &str) -> CliError {
    let known: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
    let near = crossweave_config::nearest(name, known.iter().copied());
    let fix = match near {
        Some(near) => {
            format!("did you mean {near:?}? A number of parameters (7.5B, 1T) is taken too")
        }
        None => format!(
            "name one of {}, or a number of parameters (7.5B, 1T)",
            known.join(", ")
        ),
    };
    CliError::refused(format!("{name}: no model of that name"), fix)
}

/// Parameters of each unit, counted from the declarations of the very model that would be trained.
fn units(p: &presets::Preset) -> Vec<u64> {
    let s = p.shape;
    let mut b = Builder::default();
    match p.llama {
        None => Gpt2 {
            vocab_size: s.vocab,
            n_positions: s.seq,
            n_embd: s.hidden,
            n_layer: s.layers,
            n_head: s.heads,
            n_inner: 4 * s.hidden,
            activation: Activation::GeluTanh,
            layer_norm_epsilon: 1e-5,
            embd_pdrop: 0.0,
            resid_pdrop: 0.0,
            tie_word_embeddings: true,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            initializer_range: 0.02,
        }
        .build(&mut b),
        Some((intermediate_size, num_key_value_heads)) => Llama {
            vocab_size: s.vocab,
            hidden_size: s.hidden,
            intermediate_size,
            num_key_value_heads,
            head_dim: s.hidden / s.heads,
            num_hidden_layers: s.layers,
            num_attention_heads: s.heads,
            max_position_embeddings: s.seq,
            rms_norm_eps: 1e-5,
            rope_theta: 1e4,
            rope_scaling: RopeScaling::None,
            attention_bias: false,
            mlp_bias: false,
            tie_word_embeddings: false,
            initializer_range: 0.02,
        }
        .build(&mut b),
    }
    let units = b.finish();
    let of = |u: &crossweave_tensor::UnitDecl| u.params.iter().map(|p| p.shape.numel()).sum();
    units.iter().map(of).collect()
}

impl Job {
    fn largest_unit(&self) -> u64 {
        let real = self.units.iter().copied().max();
        real.unwrap_or_else(|| self.shape.largest_unit())
    }

    fn activations(&self, shape: &Shape) -> u64 {
        activation_total(shape, self.batch, 1, false, self.keep) as u64
    }

    fn load(&self, stage: ZeroStage, offload: Offload) -> Load {
        Load {
            params: self.params,
            largest_unit: self.largest_unit(),
            ranks: self.ranks,
            stage,
            accounting: self.accounting,
            offload,
            slots: 1,
            bucket: (25 << 20) / self.accounting.grad,
            activations: self.activations(&self.shape),
        }
    }

    /// What one rank may use; what is not stated is not limited.
    fn machine(&self) -> Machine {
        let per_node = self.ranks.div_ceil(self.nodes);
        let part = |bytes: Option<u64>, none| bytes.map_or(none, |b| b / per_node);
        Machine {
            device: self.device_memory.unwrap_or(u64::MAX),
            host: part(self.host, u64::MAX),
            // Storage nobody named is storage nobody has.
            nvme: part(self.nvme, 0),
        }
    }

    /// The stage and offload to show: those asked for, else the first that fits, from no sharding to everything on storage.
    fn choose(&self, args: &EstimateArgs) -> (ZeroStage, Offload) {
        let asked = |h: Option<HomeName>| h.map(HomeName::tier);
        let (optimizer, param) = (asked(args.offload_optimizer), asked(args.offload_param));
        let wanted = args.stage.and_then(|s| ZeroStage::from_number(s.into()));
        let all = [0, 1, 2, 3].into_iter().filter_map(ZeroStage::from_number);
        let stages: Vec<ZeroStage> = all.filter(|s| wanted.is_none_or(|w| w == *s)).collect();
        let machine = self.machine();
        let homes = [
            (Tier::Device, Tier::Device),
            (Tier::Host, Tier::Device),
            (Tier::Host, Tier::Host),
            (Tier::Nvme, Tier::Device),
            (Tier::Nvme, Tier::Host),
            (Tier::Nvme, Tier::Nvme),
        ];
        // Unless the user speaks of host, storage or offload, everything stays on the device.
        let spoken = self.host.is_some() || self.nvme.is_some();
        let mut candidates = Vec::new();
        for (o, p) in homes {
            let o = optimizer.unwrap_or(o);
            let p = param.unwrap_or(p);
            let moves = o != Tier::Device || p != Tier::Device;
            if moves && !spoken && optimizer.is_none() && param.is_none() {
                continue;
            }
            let offload = Offload {
                optimizer: o,
                param: p,
            };
            candidates.extend(stages.iter().map(|s| (*s, offload)));
        }
        let fits = |c: &&(ZeroStage, Offload)| {
            // Parameters rest elsewhere at stage 3 only.
            (c.1.param == Tier::Device || c.0 == ZeroStage::Three)
                && ledger(&self.load(c.0, c.1)).overflow(&machine).is_none()
        };
        let limited = self.device_memory.is_some() || spoken;
        let first = candidates.first().copied();
        let last = candidates.last().copied();
        let chosen = match limited {
            true => candidates.iter().find(fits).copied().or(last),
            // Nothing to fit into: what was asked, or the plain job.
            false => first,
        };
        chosen.unwrap_or((ZeroStage::Zero, Offload::NONE))
    }
}
