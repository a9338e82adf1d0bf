//! Classes of equal ranks: those that hold the same sizes, take as many rows and run the same pipeline stage do the same on other data.

use super::{Division, Job};
use crate::job_error::Result;
use crossweave_mesh::{Axis, Place};
use std::collections::BTreeMap;

/// Ranks that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// The first of them, which stands for all.
    pub first: u32,
    /// All of them, in order.
    pub ranks: Vec<u32>,
    /// Sequences of their micro-batch.
    pub rows: u64,
    /// Which sizes they hold, numbered over the job: classes of one number differ in stage or rows alone.
    pub sizes: usize,
}

/// Axes along which the ranks of a stage may hold other sizes.
const CUT: [Axis; 4] = [Axis::Cp, Axis::Tp, Axis::Ep, Axis::Etp];

/// The classes of a job, in the order of their first ranks.
///
/// # Errors
/// As [`Job::units`].
pub fn classes(job: &Job, division: &Division) -> Result<Vec<Class>> {
    let mut held: Vec<Vec<u64>> = vec![];
    let mut sizes_of: BTreeMap<[u32; CUT.len()], usize> = BTreeMap::new();
    let mut index: BTreeMap<(u32, usize, u64), usize> = BTreeMap::new();
    let mut all: Vec<Class> = vec![];
    for rank in 0..job.ranks {
        let place = job.place(rank);
        let cut = CUT.map(|axis| place.at(axis));
        let sizes = match sizes_of.get(&cut) {
            Some(known) => *known,
            None => {
                let own = sizes(job, &place)?;
                let known = held.iter().position(|other| *other == own);
                let known = known.unwrap_or(held.len());
                if known == held.len() {
                    held.push(own);
                }
                sizes_of.insert(cut, known);
                known
            }
        };
        let rows = division.rows_of(job, &place);
        let next = all.len();
        let at = *index
            .entry((place.at(Axis::Pp), sizes, rows))
            .or_insert(next);
        match all.get_mut(at) {
            Some(class) => class.ranks.push(rank),
            None => all.push(Class {
                first: rank,
                ranks: vec![rank],
                rows,
                sizes,
            }),
        }
    }
    Ok(all)
}

/// Elements of each parameter on the rank at a place.
fn sizes(job: &Job, place: &Place) -> Result<Vec<u64>> {
    let units = job.units(place)?;
    let params = units.iter().flat_map(|u| &u.params);
    Ok(params.map(|p| p.local().numel()).collect())
}
