//! What a new plugin is made of: the examples and the vendor side of the ABI, as they are in this tree, carried by the binary.

use crate::args::Lang;

/// A file of a new project: where it goes and what it says.
pub struct File {
    /// Path in the project.
    pub path: &'static str,
    /// Text in this tree.
    pub text: &'static str,
    /// Rewritten for the plugin's name; the rest is copied as it is.
    pub own: bool,
}

/// Files of one folder of this tree, under another folder of the project.
macro_rules! files {
    ($own:literal, $to:literal, $from:literal: $($name:literal)*) => {
        &[$(File {
            path: concat!($to, $name),
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../", $from, $name)),
            own: $own,
        }),*]
    };
}

/// A manifest that stands without the workspace it comes from.
macro_rules! manifest {
    ($name:literal, $dependencies:literal) => {
        File {
            path: concat!("vendor/", $name, "/Cargo.toml"),
            text: concat!(
                "# Crossweave's vendor side, as it came with the binary that made this project; yours to replace by a newer one.\n",
                "[package]\nname = \"", $name, "\"\nversion = \"", env!("CARGO_PKG_VERSION"), "\"\nedition = \"2024\"\n",
                "license = \"Apache-2.0\"\npublish = false\n\n[dependencies]\n", $dependencies
            ),
            own: false,
        }
    };
}

/// The way from the project to a back end that is fast.
const GUIDE: &[File] = files!(false, "", "docs/": "write-a-backend.md");

const C: &[&[File]] = &[
    files!(true, "", "examples/c-plugin/": "Makefile" "README.md" ".gitignore" "ci/conform"
        ".github/workflows/conformance.yml" "src/plugin.h" "src/device.c" "src/ops.c" "src/fused.c"
        "src/collectives.c" "tests/fused.c"),
    GUIDE,
    files!(false, "include/", "hal/include/": "crossweave_plugin.h" "crossweave_ops.h"),
    files!(false, "include/", "": "LICENSE"),
];

const RUST: &[&[File]] = &[
    files!(true, "", "examples/rust-plugin/":
        "Cargo.toml" "README.md" ".gitignore" "ci/conform" ".github/workflows/conformance.yml" "src/lib.rs" "src/collectives.rs" "src/memory.rs" "src/queue.rs" "src/view.rs" "src/ops.rs"
        "src/kernels/mod.rs" "src/kernels/index.rs" "src/kernels/matmul.rs" "src/kernels/moves.rs" "src/kernels/order.rs"
        "src/kernels/pointwise.rs" "src/kernels/random.rs" "src/kernels/reduce.rs" "src/kernels/softmax.rs"),
    GUIDE,
    files!(false, "vendor/crossweave-abi/src/", "hal/abi/src/":
        "api.rs" "consts.rs" "dtype.rs" "lib.rs" "profile.rs" "read.rs" "tag.rs" "types.rs" "op/mod.rs" "op/params.rs" "op/revision.rs"),
    files!(false, "vendor/crossweave-plugin/src/", "hal/plugin/src/":
        "awake.rs" "backend.rs" "collective.rs" "error.rs" "export.rs" "host.rs" "lib.rs" "operand.rs" "rank.rs" "export/collective.rs" "export/device.rs" "export/graph.rs" "export/ops.rs"
        "export/tests.rs" "export/wire.rs" "op/mod.rs" "op/adamw.rs" "op/embedding.rs" "op/lines.rs" "op/norm.rs" "op/operands.rs" "op/program.rs" "op/rope.rs"),
    &[
        manifest!("crossweave-abi", ""),
        manifest!(
            "crossweave-plugin",
            "crossweave-abi = { path = \"../crossweave-abi\" }\n"
        ),
    ],
    files!(false, "vendor/", "": "LICENSE"),
];

/// All files of a project, in a language.
pub fn of(lang: Lang) -> impl Iterator<Item = &'static File> {
    let parts = match lang {
        Lang::C => C,
        Lang::Rust => RUST,
    };
    parts.iter().flat_map(|p| p.iter())
}
