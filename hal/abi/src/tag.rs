//! What memory is for: the names under which both sides of a run count it. No part of the C interface.

/// What a piece of memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Tag {
    /// Parameters in their compute dtype.
    Param,
    /// Gradients.
    Grad,
    /// Master copies of parameters.
    Master,
    /// Optimizer moments.
    Moment,
    /// Values kept for or produced by a block.
    Activation,
    /// Buckets and receive buffers of collectives.
    Comm,
    /// Scratch of one op.
    Workspace,
    /// Pinned host memory for transfers, and small device scalars.
    Staging,
}

impl Tag {
    /// All tags, in order.
    pub const ALL: [Tag; 8] = [
        Tag::Param,
        Tag::Grad,
        Tag::Master,
        Tag::Moment,
        Tag::Activation,
        Tag::Comm,
        Tag::Workspace,
        Tag::Staging,
    ];

    /// Lower-case name, as in `ledger.json`.
    pub fn name(self) -> &'static str {
        match self {
            Tag::Param => "param",
            Tag::Grad => "grad",
            Tag::Master => "master",
            Tag::Moment => "moment",
            Tag::Activation => "activation",
            Tag::Comm => "comm",
            Tag::Workspace => "workspace",
            Tag::Staging => "staging",
        }
    }
}
