//! crossweave-zero.
