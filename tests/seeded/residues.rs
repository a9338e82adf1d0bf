//! Defects at the end of a tile, by rule: the last index of a dim goes wrong where its size is R beyond a multiple of W
//! (`last_of_residue:OP:OPERAND:DIM:W:R`), for every dim of every op, every width and every residue of interest. The op's case of
//! residues must name each where the dim is smaller than a tile, and where it is one tile and the residue.

use crate::seeded::frame::{named, wrapped_cpu};
use crate::seeded::sizes::{Changing, sizes};
use crossweave_conform::Effort;
use crossweave_conform::op::{SizeOf, Trials, WIDTHS, residues_of, sizes_of_ops};
use std::collections::BTreeMap;

/// The residue of a width, in a size below it or behind one whole tile.
#[derive(Clone, Copy)]
struct End {
    width: usize,
    residue: usize,
    behind: bool,
}

impl End {
    fn all() -> Vec<End> {
        let of = |width: usize| residues_of(width).map(|residue| (width, residue));
        let each = WIDTHS.into_iter().flat_map(of);
        let both = |(width, residue)| {
            [false, true].map(|behind| End {
                width,
                residue,
                behind,
            })
        };
        each.flat_map(both).collect()
    }

    /// The one size of a dim that it is about.
    fn size(self) -> usize {
        let least = match self.residue {
            0 => self.width,
            r => r,
        };
        least + if self.behind { self.width } else { 0 }
    }

    fn defect(self, s: &SizeOf) -> String {
        let place = format!("{}:{}:{}", s.op, s.operand, s.dim);
        format!("last_of_residue:{place}:{}:{}", self.width, self.residue)
    }
}

/// What no trial of its size names, and what no trial has such a size for; of so many.
fn swept(all: &[SizeOf]) -> ([Vec<String>; 2], usize) {
    let plugin = Changing::new();
    let mut cases: BTreeMap<&str, Vec<&SizeOf>> = BTreeMap::new();
    all.iter()
        .for_each(|s| cases.entry(&s.residues).or_default().push(s));
    let [mut lost, mut untried] = [vec![], vec![]];
    for (case, own) in cases {
        let trials = Trials::of(case, Effort::Default).expect("a case of residues");
        let clean = trials.hold(plugin.with(""), None).err();
        assert_eq!(clean, None, "{case} without a defect");
        for (s, end) in own
            .iter()
            .flat_map(|s| End::all().into_iter().map(move |e| (s, e)))
        {
            let (bug, n) = (end.defect(s), end.size());
            let such = |shape: &[usize]| {
                let dim = shape.len().checked_sub(s.dim);
                dim.is_some_and(|d| shape[d] == n)
            };
            match trials.hold(plugin.with(&bug), Some((s.operand, &such))) {
                Err(_) => {}
                Ok(0) => untried.push(format!("{bug} of {n}")),
                Ok(many) => lost.push(format!("{bug}: {many} trials of {case} of {n} hold")),
            }
        }
        println!("{case}: {} lost, {} untried", lost.len(), untried.len());
    }
    ([lost, untried], End::all().len() * all.len())
}

#[test]
fn a_sample_of_what_is_wrong_at_the_end_of_a_tile_is_named() {
    let all = sizes_of_ops(Effort::Default, "");
    // Prime steps, so that ops, dims, widths and residues all come; attention, which takes longest, in the sweep only.
    let quick = all.iter().filter(|s| !s.op.starts_with("attention"));
    let ends = End::all().into_iter().step_by(7).cycle();
    let plugin = wrapped_cpu();
    let each = quick
        .step_by(19)
        .zip(ends)
        .map(|(s, end)| named(&plugin, (&end.defect(s), &s.residues)));
    let lost: Vec<String> = each.filter_map(Result::err).collect();
    assert_eq!(lost, Vec::<String>::new(), "defects that were not named");
}

#[test]
#[ignore = "minutes: cargo test --release -p crossweave-tests --test suite end_of_every_tile -- --ignored --nocapture"]
fn what_is_wrong_at_the_end_of_every_tile_is_named() {
    let ([lost, untried], all) = swept(&sizes(Effort::Default));
    println!("no trial has such a size: {untried:#?}");
    // Of one dim that is always as long as another, of lengths of segments, of positions behind the last.
    assert!(untried.len() * 20 < all, "{} of {all}", untried.len());
    // What does not change: a softmax of one number, a key that is not seen, a number that is drawn twice.
    let tried = all - untried.len();
    println!("{} of {tried} are not named", lost.len());
    assert!(
        lost.len() * 50 < tried,
        "{} of {tried}: {lost:#?}",
        lost.len()
    );
}
