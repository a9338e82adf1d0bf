//! The config as plain structs: one field per key of the tables, named as in the file.
//!
//! The tables decide what is valid; these structs only carry the result. A test walks the tables
//! and fails when a key has no field here.

pub use crate::settings_data::*;
pub use crate::settings_optim::*;
/// Spelt in lower case.
pub use crossweave_plan::Recompute;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The whole file with defaults filled in. `None` = not given and solved later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The model; needed to train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// The data; needed to train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// Layout of the ranks.
    pub mesh: Mesh,
    /// Length, output and execution.
    pub run: Run,
    /// A teacher; `None` = none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distill: Option<Distill>,
    /// Reductions between the ranks of a job of several back ends.
    pub collectives: CollectiveSettings,
    /// The algorithms of sums between processes.
    #[serde(default)]
    pub communication: Communication,
    /// Sequences of one optimizer step, over all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_batch_size: Option<u64>,
    /// Sequences of one forward pass on one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_micro_batch_size_per_gpu: Option<u64>,
    /// Forward passes per optimizer step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_accumulation_steps: Option<u64>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning-rate schedule; `None` = constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
    /// Largest global gradient norm; 0 = no clipping.
    pub gradient_clipping: f64,
    /// Steps between printed lines.
    pub steps_per_print: u64,
    /// Sharding over data-parallel ranks.
    pub zero_optimization: Zero,
    /// bfloat16 compute.
    pub bf16: Bf16,
    /// float16 compute.
    pub fp16: Fp16,
    /// The keeping of recomputed activations.
    pub activation_checkpointing: Activation,
    /// The reading and writing of offloaded state.
    pub aio: Aio,
    /// The writing of checkpoints.
    pub checkpoint: CheckpointSettings,
    /// Types of what is accumulated.
    pub data_types: DataTypes,
    /// Type of gradients on the wire: `fp32`, `fp16`, `bf16` or `bfp16`; `None` = float32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication_data_type: Option<String>,
    /// The way in which the gradients of the data-parallel ranks are put together: averaged
    /// (`mean`) or added (`sum`).
    pub gradient_allreduce_op: String,
    /// Divide gradients before the reduction.
    pub prescale_gradients: bool,
    /// Divisor before the reduction, unless `prescale_gradients`; 1 = the number of ranks.
    pub gradient_predivide_factor: f64,
    /// Print where the time of a step goes.
    pub wall_clock_breakdown: bool,
    /// Faults that are made on purpose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<crate::Fault>,
    /// The same as `run.seed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// The section `communication`: algorithms of sums between processes (ADR 0154).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Communication {
    /// One algorithm, or one of each kind.
    pub algorithm: Algorithms,
    /// The axes of the mesh whose groups they are for; none: every group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<String>,
}

/// The key `communication.algorithm`: a word, or one for each kind of sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Algorithms {
    /// One for all kinds.
    All(String),
    /// One for each kind.
    Each(AlgorithmOfKinds),
}

impl Default for Algorithms {
    fn default() -> Algorithms {
        Algorithms::All("auto".into())
    }
}

/// The object form of `communication.algorithm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmOfKinds {
    /// The algorithm of sums that every rank gets.
    pub all_reduce: String,
    /// The algorithm of sums of which each rank gets a block.
    pub reduce_scatter: String,
}

/// `collectives`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveSettings {
    /// In which order reductions over several islands add.
    pub order: ReduceOrder,
}

/// `collectives.order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReduceOrder {
    /// By rank.
    Rank,
    /// Inside islands first.
    Plan,
}

/// `model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Model {
    /// Load a folder in Hugging Face layout.
    Hf(HfModel),
    /// Start a new model.
    New(NewModel),
}

/// A new model of one of the families.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewModel {
    /// Name of the family.
    pub family: String,
    /// The preset the dimensions came from; `None` once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Initial weights.
    pub init: Init,
    /// Activations recomputed.
    pub recompute: Recompute,
    /// Type of the weights in the exported folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_dtype: Option<Dtype>,
    /// Experts in the place of MLPs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe: Option<crossweave_family::Moe>,
    /// The keys of the family, named as in Hugging Face's `config.json`.
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}

impl Model {
    /// Activations recomputed.
    pub fn recompute(&self) -> Recompute {
        match self {
            Model::Hf(m) => m.recompute,
            Model::New(m) => m.recompute,
        }
    }
    /// Type of the weights in the exported folder, where it is given.
    pub fn save_dtype(&self) -> Option<Dtype> {
        match self {
            Model::Hf(m) => m.save_dtype,
            Model::New(m) => m.save_dtype,
        }
    }
}

/// `{"hf": FOLDER}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HfModel {
    /// Folder with `config.json` and safetensors.
    pub hf: String,
    /// Activations recomputed.
    pub recompute: Recompute,
    /// Type of the weights in the exported folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_dtype: Option<Dtype>,
    /// Adapters that are trained instead of the weights; `None` = the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// The training of the parts of a model with a vision tower; `None` = alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Dropout of residual branches; `None` = the folder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resid_pdrop: Option<f64>,
    /// Dropout of embeddings; `None` = the folder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embd_pdrop: Option<f64>,
    /// Dropout of attention weights; `None` = the folder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attn_pdrop: Option<f64>,
}

/// `model.parts`: a part that is not named is trained as the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// The tower over images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<Part>,
    /// The projector that brings its features to the language model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projector: Option<Part>,
    /// The language model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Part>,
}

/// The training of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// It has gradients and is updated.
    pub train: bool,
    /// Times the schedule's rate.
    pub lr_scale: f64,
}

/// `model.lora`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// Rank of the updates.
    pub r: u64,
    /// Their weight: alpha / r.
    pub alpha: f64,
    /// Dropout of their input.
    pub dropout: f64,
    /// Their weight is alpha / sqrt(r).
    pub rslora: bool,
    /// The modules that are adapted; `None` = the family's: what PEFT chooses, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_modules: Option<TargetModules>,
    /// The stacks of experts that are adapted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target_parameters: Vec<String>,
}

/// `model.lora.target_modules`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetModules {
    /// A regular expression for whole names, or `all-linear`.
    Pattern(String),
    /// Names, or their ends.
    Names(Vec<String>),
}

/// Initial weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Init {
    /// Standard deviation of matrices and embeddings.
    pub std: f64,
    /// Divide by sqrt(2 × layers) for projections into the residual stream.
    pub scale_residual: bool,
}

/// `mesh`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mesh {
    /// Data-parallel ranks; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dp: Option<u64>,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// The switch by which these have pieces of the tokens between attention and MLP.
    #[serde(default)]
    pub sequence_parallel: SequenceParallel,
    /// Pipeline stages.
    pub pp: u64,
    /// The order of forwards and backwards: `1f1b`.
    pub pp_schedule: String,
    /// Runs of units that a stage has, where the schedule leaves a choice; see [`Mesh::runs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pp_chunks: Option<u64>,
    /// Units of each run; see [`Mesh::layers`].
    pub pp_layers: String,
    /// Context-parallel ranks.
    pub cp: u64,
    /// The way in which queries meet the keys of the other context-parallel ranks: `all_gather`, `a2a`, `p2p` or `a2a+p2p`.
    #[serde(default = "all_gather")]
    pub cp_comm: String,
    /// Consecutive context-parallel ranks that exchange heads within a ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cp_inner: Option<u64>,
    /// The way in which the tokens of a row lie on the ranks: `auto`, `zigzag` or `contiguous`.
    #[serde(default = "auto")]
    pub cp_layout: String,
    /// Ranks over which the experts of a layer are spread, carved from those of a stage.
    pub ep: u64,
    /// Planned rows of a rank's experts over balanced ones.
    #[serde(default = "twice")]
    pub ep_room: f64,
    /// Ranks over which each expert's weights are cut; `None` = as `tp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etp: Option<u64>,
    /// Order of the axes; see [`Mesh::topology`].
    pub order: String,
    /// Axes that fit themselves to the ranks that come; of all of them `dp` can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elastic: Vec<String>,
}

fn twice() -> f64 {
    2.0
}

fn all_gather() -> String {
    "all_gather".into()
}

fn auto() -> String {
    "auto".into()
}

/// The value of `mesh.sequence_parallel`: whether ranks that share layers cut hidden states by tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SequenceParallel {
    /// On or off.
    Set(bool),
    /// On where the job allows it, else off.
    Asked(Auto),
}

/// The value of a resolved config that lacks the key: it is from before there was one, and tokens were whole.
impl Default for SequenceParallel {
    fn default() -> SequenceParallel {
        SequenceParallel::Set(false)
    }
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// The program chooses the value.
    Auto,
}

/// `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Optimizer steps; `None` is possible for given batches only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Passes over the data, from which `steps` follows once the data are open; `None` once it does, unless the data are given batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Seed of weights, dropout and shuffles; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Compute type; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Steps between validations; 0 = at the end only.
    pub validate_every: u64,
    /// Most sequences of one validation; `None`: as many as there are, or as `validate_batches` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate_sequences: Option<u64>,
    /// The same in batches of `train_batch_size` sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate_batches: Option<u64>,
    /// The checkpoint of the lowest validation loss stays, and the model is written from it.
    pub keep_best: bool,
    /// Validations in a row without a lower loss after which the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<u64>,
    /// The decay of a moving average of the weights; `None` = none is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Output folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out: Option<String>,
    /// Host threads of a rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_per_rank: Option<u64>,
    /// Steps between lines of the log; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_every: Option<u64>,
    /// Steps between checkpoints; 0 = none but the final model.
    pub checkpoint_every: u64,
    /// Checkpoints kept.
    pub keep_last: u64,
    /// Back end.
    pub backend: String,
    /// The sample after training.
    pub generate: Generate,
    /// Write TensorBoard event files.
    pub tensorboard: bool,
    /// MiB of gradients reduced at once.
    pub bucket_mb: f64,
    /// Reduce during the backward pass.
    pub overlap: bool,
    /// The check of ranks against each other: of their `calls`, or of `values` too.
    pub check: String,
    /// The division of the sequences of a step over the ranks; see [`Run::balance`].
    pub balance: String,
    /// The same run twice is bitwise the same.
    pub deterministic: bool,
    /// Logical shards of the batch, over which every sum goes in one tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canonical_shards: Option<u64>,
    /// Seconds a collective waits for a slow rank.
    pub comm_timeout_s: f64,
    /// Seconds without a sign of life after which a process of another host is lost; 0 = never.
    pub heartbeat_s: f64,
    /// Network interfaces by which processes reach one another; none: every address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interface: Vec<String>,
    /// Every op's results are looked at, and the first that is not finite ends the run with its place.
    pub find_nan: bool,
    /// Ops that the device can run by no other route are computed on the host.
    pub allow_host_ops: bool,
    /// Steps that repeat are replayed as graphs of the device: `auto`, `on` or `off`.
    pub graphs: String,
}

/// Compute types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// float32
    F32,
    /// bfloat16
    Bf16,
    /// float16
    F16,
}

/// `run.generate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// Text to continue.
    pub prompt: String,
    /// Tokens to generate; 0 = no sample.
    pub tokens: u64,
    /// 0 = greedy.
    pub temperature: f64,
    /// Draw from the k likeliest; 0 = from all.
    pub top_k: u64,
    /// Seed of the draw; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// `zero_optimization`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zero {
    /// 0 replicas, 1 optimizer states, 2 + gradients, 3 + parameters.
    pub stage: u64,
    /// Gradients of a unit lie in one buffer; always so here.
    pub contiguous_gradients: bool,
    /// Reduce-scatter gradients to their owners.
    pub reduce_scatter: bool,
    /// Elements reduced at once.
    pub reduce_bucket_size: u64,
    /// Gather parameters with one all-gather.
    pub allgather_partitions: bool,
    /// The time at which gradients of several micro-batches are reduced.
    pub reduce_gradients: String,
    /// Elements gathered at once.
    pub allgather_bucket_size: u64,
    /// Reduce while the backward pass goes on; default true (run.overlap).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap_comm: Option<bool>,
    /// The place of parameter shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_param: Option<OffloadParam>,
    /// The place of optimizer states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_optimizer: Option<OffloadOptimizer>,
    /// Elements updated at once when offloading.
    pub sub_group_size: u64,
    /// Elements gathered ahead of use.
    pub stage3_prefetch_bucket_size: u64,
    /// Parameters smaller than this stay gathered.
    pub stage3_param_persistence_threshold: u64,
    /// The blocks that stay gathered.
    pub stage3_persistent_blocks: String,
    /// Upper bound of all persistent parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage3_model_persistence_threshold: Option<u64>,
    /// Gathered elements alive at once.
    pub stage3_max_live_parameters: u64,
    /// Keep a parameter that is reused within so many elements.
    pub stage3_max_reuse_distance: u64,
    /// FSDP's spelling: gather a block again for its backward, or keep it gathered from its forward on.
    pub reshard_after_forward: bool,
    /// Save whole 16-bit weights.
    pub stage3_gather_16bit_weights_on_model_save: bool,
    /// Spread gradient ownership over ranks.
    pub round_robin_gradients: bool,
    /// Ranks of a secondary parameter shard.
    pub zero_hpz_partition_size: u64,
    /// Int8 all-gather of weights.
    pub zero_quantized_weights: bool,
    /// Int4 all-to-all reduction of gradients.
    pub zero_quantized_gradients: bool,
}

/// `offload_param`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadParam {
    /// `none`, `cpu` (or `host`), or `nvme`.
    pub device: String,
    /// Folder on the NVMe disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_path: Option<String>,
    /// Page-locked staging.
    pub pin_memory: bool,
}

/// `offload_optimizer`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffloadOptimizer {
    /// `none`, `cpu` (or `host`), or `nvme`.
    pub device: String,
    /// Folder on the NVMe disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_path: Option<String>,
    /// Buffers between nvme and memory.
    pub buffer_count: u64,
    /// All its host memory is page-locked.
    pub pin_memory: bool,
    /// Overlap reads and writes with the update.
    pub pipeline: bool,
    /// Overlap reads with the update.
    pub pipeline_read: bool,
    /// Overlap writes with the update.
    pub pipeline_write: bool,
    /// Fraction of the states that is offloaded.
    pub ratio: f64,
    /// Update on the host beside the next step.
    pub delayed_update: bool,
}

/// `bf16`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bf16 {
    /// Switched on.
    pub enabled: bool,
}

/// `fp16`; see [`crate::LossScale`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fp16 {
    /// Switched on.
    pub enabled: bool,
    /// Fixed scale; 0 = dynamic.
    pub loss_scale: f64,
    /// The dynamic scale starts at 2^this.
    pub initial_scale_power: u64,
    /// Clean steps before the scale doubles.
    pub loss_scale_window: u64,
    /// Overflows before the scale halves.
    pub hysteresis: u64,
    /// A clean step refills the hysteresis.
    pub consecutive_hysteresis: bool,
    /// Floor of the scale.
    pub min_loss_scale: f64,
}

/// `activation_checkpointing`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activation {
    /// Split saved inputs over tensor-parallel ranks.
    pub partition_activations: bool,
    /// Keep saved inputs in host memory.
    pub cpu_checkpointing: bool,
}

/// `aio`; meanings are in the table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aio {
    /// Bytes of one request.
    pub block_size: u64,
    /// Requests the system holds at once.
    pub queue_depth: u64,
    /// Threads, where io_uring is not available.
    pub intra_op_parallelism: u64,
    /// Older name of `intra_op_parallelism`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_count: Option<u64>,
    /// One system call per request.
    pub single_submit: bool,
    /// New requests go in while old ones run.
    pub overlap_events: bool,
    /// `auto`, `io_uring` or `threads`.
    pub engine: String,
}

/// `checkpoint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSettings {
    /// Train on while a checkpoint is written.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    /// The effect on the run of a checkpoint that cannot be written.
    pub on_error: OnSaveError,
    /// File of the secret key that signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sign_key: Option<String>,
    /// File of the public key whose owner must have signed what is resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_key: Option<String>,
}

/// `checkpoint.on_error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSaveError {
    /// The run stops at the next step.
    Stop,
    /// The run goes on without it.
    Warn,
}

/// `data_types`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataTypes {
    /// Type in which gradients are accumulated: `fp32`, `bf16` or `fp16`.
    pub grad_accum_dtype: String,
    /// The compute type once more; `None` = not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param_dtype: Option<String>,
}

/// `distill`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distill {
    /// Folder of the teacher.
    pub teacher: String,
    /// Weight of the teacher's part of the loss.
    pub alpha: f64,
    /// The number by which both logits are divided.
    pub temperature: f64,
    /// Steps in which the teacher is heard; `None` = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_step: Option<u64>,
}
