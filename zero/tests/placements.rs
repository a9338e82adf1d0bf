//! Placements that a config may ask for, at random.

use crossweave_program::DType;
use crossweave_program::axes::AxisSet;
use crossweave_zero::{Partition, Placement, Residency};
use proptest::prelude::*;

/// Placements of the first rank.
pub fn placements() -> impl Strategy<Value = Placement> {
    let ranks = prop::sample::select(vec![1u32, 2, 3, 4, 6]);
    let residency = prop::sample::select(vec![
        Residency::Resident,
        Residency::Cached,
        Residency::Transient,
        Residency::Transient,
    ]);
    let host = prop::sample::select(vec![0.0, 0.3, 1.0]);
    let flags = prop::array::uniform4(any::<bool>());
    (ranks, residency, host, flags, 1u32..4).prop_map(
        |(ranks, residency, host, [plain, whole, sliced, away], secondary)| {
            let transient = residency == Residency::Transient;
            let away = away && transient;
            Placement {
                owners: AxisSet::DATA,
                ranks,
                rank: 0,
                partition: match whole {
                    true => Partition::WholeParameter,
                    false => Partition::Flat,
                },
                shards: None,
                compute: if plain { DType::F32 } else { DType::Bf16 },
                residency,
                secondary: match transient && ranks.is_multiple_of(secondary) {
                    true => secondary,
                    false => 1,
                },
                sliced: transient || sliced && residency == Residency::Cached,
                host: if away { 1.0 } else { host },
                away,
            }
        },
    )
}
