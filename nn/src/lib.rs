//! crossweave-nn.
