//! crossweave-benches.
