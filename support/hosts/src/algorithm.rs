//! The algorithms by which sums go between processes, chosen by kind. `auto` and `ordered` add in rank order and round once, which gives the bits of
//! one process of threads; the others are asked for by name, because they give that order up.

use std::fmt;
use std::str::FromStr;

/// The key under which a carrier of collectives finds the choice of a job, as [`Choice`] writes it.
pub const KEY: &str = "collective.algorithm";

/// The way of a sum between ranks. What is no sum (minima, maxima, products) goes in rank order by every one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// In rank order, by owners or along the hosts: whichever says fewer bytes between hosts.
    #[default]
    Auto,
    /// In rank order by owners, whatever hosts the ranks are on.
    Ordered,
    /// By the library's own calls, in an order that is its affair; 16-bit floats by its calls that move bytes, and one sum in f32.
    Native,
    /// Round a ring, each block beginning behind the rank that owns it.
    Ring,
    /// Up a binomial tree, and down again.
    Tree,
    /// By halves: partners at half the distance each time, and back.
    Halving,
}

impl Algorithm {
    /// All, in the order of the docs.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Auto,
        Algorithm::Ordered,
        Algorithm::Native,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Halving,
    ];

    /// The algorithm of a reduction for which this one was chosen: what is no sum goes in rank order.
    pub fn of_reduction(self, is_sum: bool) -> Algorithm {
        match self {
            Algorithm::Ordered => self,
            _ if is_sum => self,
            _ => Algorithm::Auto,
        }
    }

    /// The word of configs.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::Ordered => "ordered",
            Algorithm::Native => "native",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Halving => "halving",
        }
    }

    /// Has a sum of elements of so many bytes, of floats or not, the bits of the sum in rank order? Sums of integers have no order, and `native`
    /// adds 16-bit floats in rank order.
    pub fn keeps_order(self, width: u64, float: bool) -> bool {
        match self {
            Algorithm::Auto | Algorithm::Ordered => true,
            Algorithm::Native => !float || width == 2,
            Algorithm::Ring | Algorithm::Tree | Algorithm::Halving => !float,
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;
    fn from_str(word: &str) -> Result<Algorithm, String> {
        let hit = Algorithm::ALL.into_iter().find(|a| a.name() == word);
        hit.ok_or_else(|| {
            let names = Algorithm::ALL.map(Algorithm::name).join(", ");
            format!("{word:?} is no algorithm of collectives: {names}")
        })
    }
}

/// The algorithms of a job's sums, by kind, and the axes of the mesh whose groups they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm of sums that every rank gets.
    pub all_reduce: Algorithm,
    /// The algorithm of sums of which each rank gets a block.
    pub reduce_scatter: Algorithm,
    /// The axes, by their names; none: every group.
    pub axes: Vec<String>,
}

impl Choice {
    /// What holds for a group of that name: `dp.cp` lies along the axes dp and cp, and is meant where each of them is.
    pub fn of_group(&self, name: &str) -> Choice {
        let meant = |axis: &str| self.axes.iter().any(|a| a == axis);
        // A second name behind the axes says of which ranks: `dp.node`.
        let mut of = name.split('.').filter(|part| *part != "node");
        match self.axes.is_empty() || of.all(meant) {
            true => Choice {
                axes: vec![],
                ..self.clone()
            },
            false => Choice::default(),
        }
    }

    /// Is nothing else than `auto` asked for?
    pub fn is_auto(&self) -> bool {
        [self.all_reduce, self.reduce_scatter] == [Algorithm::Auto; 2]
    }

    /// Does a kind go by this algorithm?
    pub fn has(&self, algorithm: Algorithm) -> bool {
        [self.all_reduce, self.reduce_scatter].contains(&algorithm)
    }

    /// A number of both algorithms, which ranks hold against each other.
    pub fn number(&self) -> u32 {
        self.all_reduce as u32 | (self.reduce_scatter as u32) << 8
    }

    /// The choice of that number.
    pub fn of_number(number: u32) -> Option<Choice> {
        let of = |byte: u32| Algorithm::ALL.get((byte & 0xff) as usize).copied();
        Some(Choice {
            all_reduce: of(number)?,
            reduce_scatter: of(number >> 8)?,
            axes: vec![],
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, blocks) = (self.all_reduce.name(), self.reduce_scatter.name());
        write!(f, "all_reduce={all} reduce_scatter={blocks}")?;
        match &*self.axes {
            [] => Ok(()),
            axes => write!(f, " axes={}", axes.join(",")),
        }
    }
}

impl FromStr for Choice {
    type Err = String;
    fn from_str(text: &str) -> Result<Choice, String> {
        let mut choice = Choice::default();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("all_reduce", name)) => choice.all_reduce = name.parse()?,
                Some(("reduce_scatter", name)) => choice.reduce_scatter = name.parse()?,
                Some(("axes", names)) => {
                    choice.axes = names.split(',').map(str::to_string).collect();
                }
                _ => return Err(format!("{word:?} is no kind of sum with its algorithm")),
            }
        }
        Ok(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for all_reduce in Algorithm::ALL {
            for reduce_scatter in Algorithm::ALL {
                for axes in [vec![], vec!["dp".to_string(), "cp".to_string()]] {
                    let choice = Choice {
                        all_reduce,
                        reduce_scatter,
                        axes,
                    };
                    assert_eq!(choice.to_string().parse(), Ok(choice.clone()));
                    let group = choice.of_group("dp.cp");
                    assert_eq!(Choice::of_number(group.number()), Some(group));
                }
            }
        }
        for wrong in ["all_reduce=fast", "all_reduce", "gather=ring"] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
        assert_eq!(Choice::of_number(0x700), None);
        assert!("".parse::<Choice>().unwrap().is_auto());
    }

    #[test]
    fn a_choice_of_axes_is_for_their_groups_alone() {
        let choice: Choice = "all_reduce=ring axes=dp,cp".parse().unwrap();
        for (name, meant) in [
            ("dp", true),
            ("dp.cp", true),
            ("dp.node", true),
            ("tp", false),
            ("dp.tp", false),
            ("tie", false),
        ] {
            assert_eq!(choice.of_group(name).is_auto(), !meant, "{name}");
        }
        let all: Choice = "all_reduce=ring".parse().unwrap();
        assert!(all.of_group("tie").has(Algorithm::Ring) && !all.has(Algorithm::Native));
    }

    #[test]
    fn the_order_is_lost_by_floats_alone() {
        let keeps: Vec<[bool; 3]> = Algorithm::ALL
            .map(|a| [(4, true), (2, true), (4, false)].map(|(w, f)| a.keeps_order(w, f)))
            .into();
        let (all, ints) = ([true; 3], [false, false, true]);
        assert_eq!(keeps, [all, all, [false, true, true], ints, ints, ints]);
    }
}
