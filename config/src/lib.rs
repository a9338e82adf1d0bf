//! crossweave-config.
