//! What a bug is: a program, and the verdict it must get. Call sites are markers in the source, so that a verdict's line numbers are
//! held against the real ones whatever is inserted above them.

use crate::parallel_bugs::rank::Rank;
use crossweave_hal::Result;

/// What kind of sentence a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ranks met in one slot of a group with ops that do not fit each other.
    Mismatch,
    /// One rank has left an op out.
    Missing,
    /// One rank has an op more than the others.
    Extra,
    /// Ranks wait for each other in a circle.
    Deadlock,
    /// Ranks wait for one whose program has ended.
    Ended,
    /// A rank returned an error, panicked or was killed.
    Failed,
    /// A wait was longer than the timeout.
    Timeout,
    /// A call that cannot be right on its own: refused where it is made.
    Refused,
    /// A message that the other end, which has ended, has not taken.
    Unmatched,
    /// Work that nobody waited for.
    Unwaited,
}

/// What must be said.
pub struct Verdict {
    /// Its kind.
    pub kind: Kind,
    /// The ranks it names as the cause.
    pub ranks: &'static [u32],
    /// Ops it names.
    pub ops: &'static [&'static str],
    /// Call sites it names, as markers: `// @name` stands in the source on the line above the call.
    pub sites: &'static [&'static str],
    /// Further words: what differs, the group, what a rank said.
    pub words: &'static [&'static str],
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// On threads and in processes.
    Both,
    /// In processes only: the reason is beside the bug.
    Processes,
}

/// One bug.
pub struct Bug {
    /// Its name: that of the function.
    pub name: &'static str,
    /// Ranks; four are a grid of two rows and two columns.
    pub ranks: u32,
    /// The time limit of each collective, in milliseconds; 0 = long.
    pub timeout_ms: u64,
    /// Where it runs.
    pub runs: Where,
    /// What each rank does.
    pub program: fn(&mut Rank) -> Result<()>,
    /// What must be said of it.
    pub verdict: Verdict,
}

/// A program that looks wrong and is right: it must end well and in silence.
pub struct Right {
    /// Its name: that of the function.
    pub name: &'static str,
    /// Ranks; four are a grid of two rows and two columns.
    pub ranks: u32,
    /// What each rank does.
    pub program: fn(&mut Rank) -> Result<()>,
}

/// `bug!(name, ranks, Kind, ranks named, ops, sites)`, then what is unusual about it.
macro_rules! bug {
    ($name:ident, $ranks:expr, $kind:ident, $odd:expr, $ops:expr, $sites:expr $(, $field:ident: $value:expr)* $(,)?) => {{
        #[allow(unused_mut)]
        let mut b = $crate::parallel_bugs::bug::Bug {
            name: stringify!($name),
            ranks: $ranks,
            timeout_ms: 0,
            runs: $crate::parallel_bugs::bug::Where::Both,
            program: $name,
            verdict: $crate::parallel_bugs::bug::Verdict {
                kind: $crate::parallel_bugs::bug::Kind::$kind,
                ranks: $odd,
                ops: $ops,
                sites: $sites,
                words: &[],
            },
        };
        $( bug!(@set b, $field, $value); )*
        b
    }};
    (@set $b:ident, words, $value:expr) => { $b.verdict.words = $value; };
    (@set $b:ident, $field:ident, $value:expr) => { $b.$field = $value; };
}
pub(crate) use bug;

/// `right!(name, ranks)`.
macro_rules! right {
    ($name:ident, $ranks:expr) => {
        $crate::parallel_bugs::bug::Right {
            name: stringify!($name),
            ranks: $ranks,
            program: $name,
        }
    };
}
pub(crate) use right;
