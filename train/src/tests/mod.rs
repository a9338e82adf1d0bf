//! What is tested of a job as its ranks get it, from within: the listing of all example configs.

mod listed;
mod listing;
