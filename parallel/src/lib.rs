//! crossweave-parallel.
