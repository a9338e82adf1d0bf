//! What a rank has counted: memory, collectives, and what crossed between islands.

use crate::graphs::GraphCounts;
use crossweave_hal::{BridgeLine, CollectiveLine, MemoryReport};
use serde::{Deserialize, Serialize};

/// Both ledgers of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankLedger {
    /// Rank.
    pub rank: u32,
    /// Bytes by tag.
    pub memory: MemoryReport,
    /// Collectives by kind, group and tag.
    pub collectives: Vec<CollectiveLine>,
    /// What crossed the bridge to ranks of other islands; absent where there is one island.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bridge: Vec<BridgeLine>,
    /// Device allocations made by steps after the second: 0 in a healthy run.
    pub device_allocs_after_step_2: u64,
    /// Steps of the plan replayed as graphs, where that is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<GraphCounts>,
}
