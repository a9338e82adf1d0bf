//! Canonical sums: what the number of logical shards asks of the other keys.

use crate::resolve::Resolver;
use crate::settings::Settings;

const KEY: &str = "run.canonical_shards";

impl Resolver<'_> {
    /// Gradients are reduced for each micro-batch where a rank has a slice of them, or where they leave for the host.
    pub(crate) fn reductions(&mut self, s: &Settings, ranks: u64) {
        let zero = &s.zero_optimization;
        let optimizer = zero.offload_optimizer.as_ref();
        let leave = optimizer.is_some_and(|o| o.device != "none" && o.ratio > 0.0)
            && (zero.stage == 1 || ranks == 1);
        if zero.reduce_gradients == "micro_batch" && zero.stage < 2 && !leave {
            let what = format!(
                "stage {} keeps whole gradients: there is no slice to reduce a micro-batch into",
                zero.stage
            );
            let fix = "set zero_optimization.stage to 2 or 3 (1 will do with offload_optimizer), or this to \"auto\"";
            self.error("zero_optimization.reduce_gradients", what, fix);
        }
    }

    /// Returns the number that the batch is divided by: the logical shards, else the ranks.
    pub(crate) fn replicas(&mut self, s: &Settings, ranks: u64) -> u64 {
        let Some(shards) = s.run.canonical_shards else {
            return ranks;
        };
        if shards < ranks {
            self.error(
                KEY,
                format!("{shards} logical shards on {ranks} ranks leave ranks without one"),
                format!("set it to {ranks} or more, or run on at most {shards} ranks"),
            );
        }
        if shards > MOST {
            self.error(
                KEY,
                format!("{shards} logical shards are more than {MOST}"),
                "every norm is kept by shard: use as many as the most ranks you will run on",
            );
        }
        if s.mesh.pp > 1 {
            self.error(
                KEY,
                "logical shards and pipeline stages together are not available in this build yet",
                "set mesh.pp to 1, or remove it",
            );
        }
        if s.mesh.tp > 1 {
            self.error(
                KEY,
                "a layer that is cut over mesh.tp ranks adds up in another order on another number of them",
                format!("set mesh.tp to 1, or remove {KEY}"),
            );
        }
        if s.mesh.cp > 1 {
            self.error(
                KEY,
                "rows that are cut over mesh.cp ranks add up in another order on another number of them",
                format!("set mesh.cp to 1, or remove {KEY}"),
            );
        }
        if s.mesh.ep > 1 {
            self.error(
                KEY,
                "the gradient of an expert on mesh.ep ranks adds up in another order on another number of them",
                format!("set mesh.ep to 1, or remove {KEY}"),
            );
        }
        if s.data_types.grad_accum_dtype != "fp32" {
            self.error(
                "data_types.grad_accum_dtype",
                "canonical sums go over float32 gradients of logical shards",
                format!("set it to \"fp32\", or remove {KEY}"),
            );
        }
        if !s.communication.keeps_order() {
            self.error(
                "communication.algorithm",
                "it gives up the order of sums, which logical shards fix",
                format!("set it to \"auto\" or \"ordered\", or remove {KEY}"),
            );
        }
        if s.zero_optimization.reduce_gradients == "micro_batch" {
            self.error(
                "zero_optimization.reduce_gradients",
                "canonical sums add the shards of all ranks in one tree, behind the last of them",
                format!("set it to \"auto\" or \"step\", or remove {KEY}"),
            );
        }
        if s.zero_optimization.zero_quantized_weights {
            self.error(
                "zero_optimization.zero_quantized_weights",
                "8-bit gathers round each rank's slice by itself, so that the number of ranks shows in the bits",
                format!("remove it, or remove {KEY}"),
            );
        }
        shards
    }
}

/// Says of shards what `text` says of ranks.
pub(crate) fn of_shards(text: &str) -> String {
    text.replace("the number of ranks", KEY)
        .replace("ranks", "logical shards")
}

/// Figures by logical slice stay small beside the slices themselves.
const MOST: u64 = 4096;
