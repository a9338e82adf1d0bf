//! crossweave-tensor.
