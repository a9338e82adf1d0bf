//! crossweave-xtask.
