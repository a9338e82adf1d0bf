//! Every integration test of this crate in one program, so that the crate is linked once.

#[allow(clippy::too_many_arguments, clippy::type_complexity)]
mod ops;
mod ops_decomposed;
mod ops_native;
mod tape;
