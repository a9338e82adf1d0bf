//! The CPU device and its in-process collective.
