//! crossweave-examples.
