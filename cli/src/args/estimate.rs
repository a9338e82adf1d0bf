//! Flags of `crossweave estimate`.

use super::positive;
use crate::figures::count;
use clap::{Args, ValueEnum};

/// Bytes per parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AccountingName {
    /// 16-bit weights and gradients, f32 master and moments: 2 + 2 + 4 + 4 + 4
    Mixed,
    /// everything f32: 4 + 4 + 0 + 4 + 4
    Fp32,
    /// 16-bit weights, f32 gradients, master and moments, as this engine's bf16: 2 + 4 + 4 + 4 + 4
    MixedF32Grads,
}

/// Where states rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HomeName {
    /// on the device
    None,
    /// in the host's memory
    Host,
    /// in files on fast storage
    Nvme,
}

/// Activations kept for the backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KeepName {
    /// all of them
    All,
    /// all but the attention core
    Selective,
    /// all, with an attention that stores no scores
    Flash,
    /// each layer's input; the layer is recomputed
    Inputs,
}

/// Flags of `estimate`.
#[derive(Clone, Debug, Args)]
pub struct EstimateArgs {
    /// A preset or a number of parameters (gpt2-xl, 7.5B, 1T), a config file, or a Hugging Face folder
    #[arg(
        value_name = "MODEL|CONFIG.json|HFDIR",
        required_unless_present = "devices"
    )]
    pub model: Option<String>,
    /// Show the devices that are known by name, with their memory and rates
    #[arg(long)]
    pub devices: bool,
    /// Ranks states are sharded over; default: nodes x ranks of a node, else the config's, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub ranks: Option<u64>,
    /// Nodes the ranks are on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub nodes: Option<u64>,
    /// Ranks of a node; default: the device profile's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub ranks_per_node: Option<u64>,
    /// ZeRO stage of the ledger; default: the config's, else the first that fits
    #[arg(long, value_name = "0..3", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub stage: Option<u8>,
    /// Bytes per parameter; default: the config's, else mixed
    #[arg(long, value_enum)]
    pub accounting: Option<AccountingName>,
    /// Device by name (`crossweave estimate --devices` lists them); default: the one that the config's back end has here
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Memory of a device: 32GB, 80GiB
    #[arg(long, value_name = "BYTES", value_parser = crossweave_words::size)]
    pub device_memory: Option<u64>,
    /// Memory of a node's host
    #[arg(long, value_name = "BYTES", value_parser = crossweave_words::size)]
    pub host: Option<u64>,
    /// Storage of a node
    #[arg(long, value_name = "BYTES", value_parser = crossweave_words::size)]
    pub nvme: Option<u64>,
    /// Where the optimizer's states rest; default: the config's, else the nearest that fits
    #[arg(long, value_enum)]
    pub offload_optimizer: Option<HomeName>,
    /// Where parameter shards rest (stage 3); default: the config's, else the nearest that fits
    #[arg(long, value_enum)]
    pub offload_param: Option<HomeName>,
    /// Activations kept for the backward; default: the config's, else inputs
    #[arg(long, value_enum)]
    pub keep: Option<KeepName>,
    /// Sequences of a micro-batch on a rank; default: the config's, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub batch: Option<u64>,
    /// Micro-batches of a step on a rank (gradient accumulation); default: the config's, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub micro_batches: Option<u64>,
    /// Layers, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub layers: Option<u64>,
    /// Width, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub hidden: Option<u64>,
    /// Attention heads, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub heads: Option<u64>,
    /// Vocabulary, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub vocab: Option<u64>,
    /// Tokens of a sequence, instead of the model's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub seq: Option<u64>,
    /// Time of a step and of a run, and how throughput scales
    #[arg(long)]
    pub time: bool,
    /// Tokens of the run: 300B
    #[arg(long, value_name = "COUNT", value_parser = count)]
    pub tokens: Option<u64>,
    /// Sustained TFLOP/s of a device, instead of the profile's
    #[arg(long, value_name = "T", value_parser = positive)]
    pub tflops: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
