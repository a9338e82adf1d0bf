//! The null backend as a plugin.
