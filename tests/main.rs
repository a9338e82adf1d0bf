//! Every integration test of this crate in one program, so that what it needs is linked once.

#[path = "parallel_bugs/main.rs"]
mod parallel_bugs;
#[path = "seeded/main.rs"]
mod seeded;

mod tests {
    mod attack_plugins;
    mod checker;
    mod explore;
    mod fallbacks;
    mod hal;
    mod linker;
    mod mpi;
    mod mpi_algorithms;
    mod mpi_hosts;
    mod mpi_ranks;
    mod mpi_wrong;
    mod optimizers;
    mod pipeline_plans;
    mod quantized_gather;
    mod ranks_without_collectives;
    mod simulated;
    mod tidy;
}
