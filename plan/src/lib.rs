//! crossweave-plan.
