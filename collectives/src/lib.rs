//! crossweave-collectives.
