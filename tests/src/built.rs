//! What lies in the folder of the build: the binary and the back ends as plugin files.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the binary and every plugin of the workspace, unless that is done, and returns the folder
/// they lie in (`target/<profile>`). The packages are always built by the one command of the alias
/// `plugins`, since cargo chooses the features of shared dependencies by the packages that are built
/// together: another selection would compile them a second time.
///
/// # Panics
/// When the build fails.
pub fn plugins() -> PathBuf {
    plugins_and(&[])
}

/// The same, with these packages of the workspace besides.
pub fn plugins_and(packages: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test program has a path");
    // `target/<profile>/deps/suite-…`
    let profile = test.ancestors().nth(2).expect("target/<profile>");
    let target = profile.parent().expect("the target folder");
    let mut build = cargo();
    build.args(["plugins", "--quiet", "--locked", "--target-dir"]);
    build.arg(target);
    build.args(packages.iter().flat_map(|name| ["--package", *name]));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.output().expect("cargo starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "cargo plugins: {said}");
    profile.to_path_buf()
}

/// The library `name` among them.
pub fn plugin(name: &str) -> PathBuf {
    plugins().join(file_name(name))
}

/// What a library called `name` is called as a file.
pub fn file_name(name: &str) -> String {
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    format!("{prefix}{name}{suffix}")
}

/// Cargo, in the root of the workspace, without the variable by which the gate asks test programs
/// for their times: build scripts read it too, and would make cargo compile everything again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    cargo.current_dir(root).env_remove("RUSTC_BOOTSTRAP");
    cargo
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_binary_and_the_plugins_lie_in_one_folder() {
        let folder = super::plugins();
        for name in ["null", "cpu", "mpi", "cuda", "rocm", "ascend", "wgpu"] {
            let file = super::file_name(&format!("crossweave_{name}"));
            assert!(folder.join(&file).is_file(), "{file}");
        }
        let binary = format!("crossweave{}", std::env::consts::EXE_SUFFIX);
        assert!(folder.join(binary).is_file());
    }
}
