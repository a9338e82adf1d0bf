//! `crossweave estimate`: memory, traffic and time of a model as a page or JSON, and the table of devices.

use crate::args::{AccountingName, EstimateArgs, HomeName, KeepName};
use crate::error::Result;
use crate::figures::estimate::{
    BytesPerParam, Dims, Estimation, Hardware, Home, Keep, Ranks, Training, estimate, with_experts,
};
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::{device_table, estimate_page};
use serde_json::json;

/// Runs the command.
///
/// # Errors
/// A model, device or size nobody knows.
pub fn run(args: &EstimateArgs, around: &Surroundings) -> Result<()> {
    if args.devices {
        match args.json {
            true => say!("{:#}", device_table::list()),
            false => say!("{}", device_table::table()),
        }
        return Ok(());
    }
    if let Some(m) = args.model.as_deref().and_then(with_experts) {
        match args.json {
            true => say!("{:#}", json!(m)),
            false => say!("{}", estimate_page::of_experts(&m)),
        }
        return Ok(());
    }
    // Unless `--devices` is given, the parser demands a model.
    let model = args.model.as_deref().unwrap_or_default();
    let found = estimate(model, &asked(args), around)?;
    match args.json {
        true => say!("{:#}", json!(found)),
        false => say!("{}", estimate_page::page(&found)),
    }
    Ok(())
}

fn asked(args: &EstimateArgs) -> Estimation {
    let home = |name: HomeName| match name {
        HomeName::None => Home::Device,
        HomeName::Host => Home::Host,
        HomeName::Nvme => Home::Nvme,
    };
    Estimation {
        ranks: Ranks {
            ranks: args.ranks,
            nodes: args.nodes,
            of_node: args.ranks_per_node,
        },
        machine: Hardware {
            device: args.device.clone(),
            device_memory: args.device_memory,
            host: args.host,
            nvme: args.nvme,
            tflops: args.tflops,
        },
        training: Training {
            stage: args.stage,
            accounting: args.accounting.map(|name| match name {
                AccountingName::Mixed => BytesPerParam::Mixed,
                AccountingName::Fp32 => BytesPerParam::Fp32,
                AccountingName::MixedF32Grads => BytesPerParam::MixedF32Grads,
            }),
            offload_optimizer: args.offload_optimizer.map(home),
            offload_param: args.offload_param.map(home),
            keep: args.keep.map(|name| match name {
                KeepName::All => Keep::All,
                KeepName::Selective => Keep::Selective,
                KeepName::Flash => Keep::Flash,
                KeepName::Inputs => Keep::Inputs,
            }),
            batch: args.batch,
            micro_batches: args.micro_batches,
        },
        dims: Dims {
            layers: args.layers,
            hidden: args.hidden,
            heads: args.heads,
            vocab: args.vocab,
            seq: args.seq,
        },
        time: args.time,
        tokens: args.tokens,
    }
}
