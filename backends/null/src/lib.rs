//! The device of nothing: does nothing, counts everything.
