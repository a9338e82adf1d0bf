//! Ranks on hosts where no job runs, as they are asked for: `4`, or `4x8` for eight ranks on each of four.

use crate::Hosts;
use std::fmt;
use std::str::FromStr;

/// Hosts of equally many ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The number of hosts.
    pub hosts: u32,
    /// Ranks of each, where that is said.
    pub each: Option<u32>,
}

/// Ranks that cannot be spread so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadError {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub fix: String,
}

impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Spread, String> {
        let wrong =
            || "wanted a number of hosts, or hosts and ranks of each: 4, or 4x8".to_string();
        let number = |text: &str| match text.parse::<u32>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(wrong()),
        };
        let (hosts, each) = match text.split_once('x') {
            None => (number(text)?, None),
            Some((hosts, each)) => (number(hosts)?, Some(number(each)?)),
        };
        hosts.checked_mul(each.unwrap_or(1)).ok_or_else(wrong)?;
        Ok(Spread { hosts, each })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.hosts)?;
        self.each.map_or(Ok(()), |each| write!(f, "x{each}"))
    }
}

impl Spread {
    /// All ranks, where that is said.
    pub fn ranks(self) -> Option<u32> {
        self.each.map(|each| self.hosts * each)
    }

    /// So many ranks on these hosts, numbered host by host.
    ///
    /// # Errors
    /// Other ranks than are said, or ranks that the hosts do not divide.
    pub fn over(self, ranks: u32) -> Result<Hosts, SpreadError> {
        let fix = |hosts: u32| format!("give --hosts {hosts}x{}", ranks / hosts);
        if self.ranks().is_some_and(|all| all != ranks) || !ranks.is_multiple_of(self.hosts) {
            let most = self.hosts.min(ranks);
            // One host takes any ranks.
            let near = (1..=most).rev().find(|h| ranks.is_multiple_of(*h));
            return Err(SpreadError {
                what: format!(
                    "--hosts {self}: the job has {ranks} ranks, which are not so many on each"
                ),
                fix: fix(near.unwrap_or(1)),
            });
        }
        Ok(Hosts::even(self.hosts, ranks / self.hosts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_and_held_against_the_ranks() {
        let read = |text: &str| text.parse::<Spread>();
        assert_eq!(read("4").unwrap().over(8).unwrap(), Hosts::even(4, 2));
        assert_eq!(read("2x3").unwrap().over(6).unwrap(), Hosts::even(2, 3));
        assert_eq!(
            (read("2x3").unwrap().ranks(), read("4").unwrap().ranks()),
            (Some(6), None)
        );
        for bad in ["", "0", "4x", "x4", "4x0", "-1", "70000x70000", "4 x 2"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
        let wrong = read("4").unwrap().over(6).unwrap_err();
        assert_eq!(wrong.fix, "give --hosts 3x2");
        assert!(wrong.what.starts_with("--hosts 4: the job has 6 ranks"));
        assert_eq!(
            read("2x2").unwrap().over(6).unwrap_err().fix,
            "give --hosts 2x3"
        );
        assert_eq!(
            read("9").unwrap().over(5).unwrap_err().fix,
            "give --hosts 5x1"
        );
    }
}
