//! crossweave-tests.
