//! The safe face of a plugin: devices, streams, buffers, kernels, communicators.
