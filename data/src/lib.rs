//! crossweave-data.
