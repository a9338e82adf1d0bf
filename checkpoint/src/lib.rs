//! crossweave-checkpoint.
