//! A job as its ranks see it: the config with nothing left open, the model, and the length of a sequence.

use crate::documents;
use crate::model::Source;
use crossweave_config::Resolved;
use crossweave_data::Tokenizer;
use crossweave_mesh::{Axis, AxisSet, Place};
use crossweave_planner::Documents;

/// What every rank of a job has in common.
pub struct Job {
    /// The config with nothing left open.
    pub resolved: Resolved,
    /// Ranks.
    pub ranks: u32,
    /// The model.
    pub source: Source,
    /// Predictions in a sequence.
    pub seq_len: u64,
    /// What begins anew behind the last token of a document, where rows hold several.
    pub documents: Option<Documents>,
}

impl Job {
    /// A job of a config on the ranks of its mesh. `tokenizer` knows the token that ends a document; where text was left unread there is none,
    /// and every row is one document.
    pub fn new(
        resolved: Resolved,
        source: Source,
        seq_len: u64,
        tokenizer: Option<&Tokenizer>,
    ) -> Job {
        Job {
            ranks: resolved.mesh.world_size(),
            documents: documents::of(&resolved.data, tokenizer),
            resolved,
            source,
            seq_len,
        }
    }

    /// The place of a rank on the mesh.
    pub fn place(&self, rank: u32) -> Place {
        self.resolved.mesh.place(rank)
    }

    /// Ranks that see other tokens: of each stage, where there are stages.
    pub fn data_ranks(&self) -> u32 {
        self.resolved.mesh.size(AxisSet::DATA)
    }

    /// Ranks over which each layer is cut.
    pub fn tensor_ranks(&self) -> u32 {
        self.resolved.mesh.length(Axis::Tp)
    }

    /// Tokens of a row that the model reads.
    pub fn tokens_per_row(&self) -> u64 {
        self.source.spec.model().tokens_of(self.seq_len)
    }

    /// Predictions of one step over all ranks.
    pub fn tokens_per_step(&self) -> u64 {
        self.resolved.batch.global * self.seq_len
    }
}
