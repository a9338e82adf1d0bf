//! crossweave-engine.
