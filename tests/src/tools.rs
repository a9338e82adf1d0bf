//! Tools of the system that tests use where they are installed. Where one is missing its tests say
//! so and pass, unless `CROSSWEAVE_TESTS_REQUIRE` names it: then they fail by its name. `ci/test`
//! sets that variable to everything it can install.

use std::process::Command;

/// The variable that names the tools whose absence is a failure, separated by commas.
pub const REQUIRE: &str = "CROSSWEAVE_TESTS_REQUIRE";

/// Both MPI families, by the word that ends the name of their launcher.
pub const MPI: [&str; 2] = ["openmpi", "mpich"];

/// Reports that tool `name` (`build`, `mpi`, `wgpu`, `nvrtc`, `hip`, `cann`, `hosts`) is missing, `why` with the command that
/// installs it. The test that calls it is to return.
///
/// # Panics
/// When `CROSSWEAVE_TESTS_REQUIRE` names the tool.
pub fn missing(name: &str, why: &str) {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    if let Err(refused) = judge(&required, name, why) {
        panic!("{refused}");
    }
    println!("skipped: {why}");
}

/// The MPI families whose launchers are installed; the others are reported by [`missing`].
pub fn mpi_families() -> Vec<&'static str> {
    let installed = |family: &&str| {
        let launcher = format!("mpirun.{family}");
        let answered = Command::new(&launcher).arg("--version").output().is_ok();
        if !answered {
            missing(
                "mpi",
                &format!("no {launcher} here (apt-get install openmpi-bin mpich)"),
            );
        }
        answered
    };
    MPI.into_iter().filter(installed).collect()
}

/// The folder with AMD's headers of HIP: the system's (Debian's `libamdhip64-dev`, HIP 5.2), or the one that `CROSSWEAVE_HIP_HEADERS` names, a
/// newer version's.
pub fn hip_headers() -> std::path::PathBuf {
    let named = std::env::var_os("CROSSWEAVE_HIP_HEADERS");
    named.unwrap_or_else(|| "/usr/include".into()).into()
}

fn judge(required: &str, name: &str, why: &str) -> Result<(), String> {
    match required.split(',').any(|tool| tool.trim() == name) {
        true => Err(format!("{why}: {REQUIRE}={required} refuses to skip")),
        false => Ok(()),
    }
}

/// The folder with `acl/inc` and `hccl/inc` of CANN's headers: the one that `CROSSWEAVE_CANN_HEADERS` names, or what `ci/packages` has
/// unpacked of the wheel `torch-npu`. They are looked at, never copied.
pub fn cann_headers() -> Option<std::path::PathBuf> {
    let named = std::env::var_os("CROSSWEAVE_CANN_HEADERS").map(std::path::PathBuf::from);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let fetched = root.join("target/cann/torch_npu/include/third_party");
    named.or_else(|| fetched.is_dir().then_some(fetched))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_tool_fails_by_its_name_and_others_are_skipped() {
        let refused = judge("mpi,hip", "hip", "no clang-15 here").unwrap_err();
        assert_eq!(
            refused,
            "no clang-15 here: CROSSWEAVE_TESTS_REQUIRE=mpi,hip refuses to skip"
        );
        judge("mpi,hip", "wgpu", "no Vulkan adapter").unwrap();
        judge("", "mpi", "no mpirun.mpich here").unwrap();
        judge("hipster", "hip", "no clang-15 here").unwrap();
    }
}
