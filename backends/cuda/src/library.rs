//! Opening vendor libraries at run time, and the macro that declares a library's functions once: the table itself, how it is filled, and a
//! test that holds every signature against public bindings (ADR 0036).

use crate::settings::Settings;
use crossweave_plugin::{Code, Error, Result, fail};
use libloading::Library;
use std::path::Path;

/// Where NVIDIA's installers put libraries that the system's loader may not know.
const PLACES: [&str; 4] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
    "/usr/lib/wsl/lib",
];

/// A library of the vendor.
pub(crate) struct Wanted {
    /// What it is, for messages.
    pub what: &'static str,
    /// Configuration key that names its file.
    pub key: &'static str,
    /// File names, the most telling first.
    pub names: &'static [&'static str],
    /// What to do when it is missing.
    pub fix: &'static str,
}

pub(crate) const DRIVER: Wanted = Wanted {
    what: "CUDA driver",
    key: "cuda.libcuda",
    names: &["libcuda.so.1", "libcuda.so", "nvcuda.dll"],
    fix: "install NVIDIA's driver (in a container: start it with the GPU runtime)",
};

/// A library that was found. It stays open until the process ends: vendor run times do not take being closed.
pub(crate) struct Opened {
    pub lib: &'static Library,
    /// The name it was opened by.
    pub name: String,
}

/// Every name to try, in order: the configured file alone, else each name in the configured folders, the system's, and the vendor's.
pub(crate) fn candidates(w: &Wanted, file: Option<&str>, folders: Option<&str>) -> Vec<String> {
    if let Some(f) = file {
        return vec![f.to_string()];
    }
    let own = cfg!(windows);
    let names = || w.names.iter().filter(|n| n.ends_with(".dll") == own);
    let within = |dir: &str| {
        names()
            .map(|n| Path::new(dir).join(n).display().to_string())
            .collect::<Vec<_>>()
    };
    let mut all = vec![];
    for dir in folders.unwrap_or("").split(':').filter(|d| !d.is_empty()) {
        all.extend(within(dir));
    }
    all.extend(names().map(|n| n.to_string()));
    for dir in PLACES.iter().filter(|_| !own) {
        all.extend(within(dir));
    }
    all
}

/// Opens it: the file that its key names, else the first candidate there is.
pub(crate) fn open(settings: &Settings, w: &Wanted) -> Result<Opened> {
    let all = candidates(w, settings.get(w.key), settings.get("cuda.library_path"));
    let mut why = None;
    for name in &all {
        // SAFETY: running a vendor library's constructors is what opening it is for.
        match unsafe { Library::new(name) } {
            Ok(lib) => {
                return Ok(Opened {
                    lib: Box::leak(Box::new(lib)),
                    name: name.clone(),
                });
            }
            // A file that is there and does not load says more than the next one that is not there.
            Err(e) => {
                let text = std::error::Error::source(&e).map_or(e.to_string(), |s| s.to_string());
                if Path::new(name).exists() || why.is_none() {
                    why = Some(text);
                }
            }
        }
    }
    fail(
        Code::Unsupported,
        format!(
            "no {}: looked for {}; {}, or name the file in {} or its folder in cuda.library_path ({})",
            w.what,
            shorten(&all),
            w.fix,
            w.key,
            why.unwrap_or_default()
        ),
    )
}

/// The names without their folders, once each, and the folders after them: a list of twenty paths helps nobody.
fn shorten(all: &[String]) -> String {
    let (mut names, mut dirs) = (vec![], vec![]);
    for path in all.iter().map(Path::new) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !names.contains(&name) {
            names.push(name);
        }
        if let Some(d) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            let d = d.display().to_string();
            if !dirs.contains(&d) {
                dirs.push(d);
            }
        }
    }
    let mut text = names.join(", ");
    if !dirs.is_empty() {
        text.push_str(&format!(" (also in {})", dirs.join(", ")));
    }
    text
}

/// One function of a library.
pub(crate) fn symbol<T: Copy>(lib: &Library, what: &str, name: &str) -> Result<T> {
    // SAFETY: the caller's table gives the name its type, which `check` of that table holds against public bindings.
    match unsafe { lib.get::<T>(name.as_bytes()) } {
        Ok(s) => Ok(*s),
        Err(_) => Err(Error::new(
            Code::Unsupported,
            format!("this {what} lacks {name}; install a newer one"),
        )),
    }
}

/// Declares a table of functions under their own names. `optional` ones may be missing. In tests, `check()` compares arity and the size of
/// every argument and result with the function of that name in `bindings`, which the module imports for its tests.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident of $what:literal
        { $( fn $f:ident($($a:ty),* $(,)?) -> $r:ty; )* }
        optional { $( fn $of:ident($($oa:ty),* $(,)?) -> $or:ty; )* }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $( pub $f: unsafe extern "C" fn($($a),*) -> $r, )*
            $( #[allow(dead_code)] pub $of: Option<unsafe extern "C" fn($($oa),*) -> $or>, )*
        }
        impl $name {
            /// Looks every function up.
            pub(crate) fn of(lib: &libloading::Library) -> crossweave_plugin::Result<$name> {
                Ok($name {
                    $( $f: crate::library::symbol(lib, $what, stringify!($f))?, )*
                    $( $of: crate::library::symbol(lib, $what, stringify!($of)).ok(), )*
                })
            }
            #[cfg(test)]
            pub(crate) fn check() -> usize {
                use crate::library::shape::{Shape, hole};
                let mut n = 0;
                $(
                    let theirs = (bindings::$f as unsafe fn($(hole!($a)),*) -> _).shape();
                    let ours = (vec![$(size_of::<$a>()),*], size_of::<$r>());
                    assert_eq!(ours, theirs, stringify!($f));
                    n += 1;
                )*
                $(
                    let theirs = (bindings::$of as unsafe fn($(hole!($oa)),*) -> _).shape();
                    let ours = (vec![$(size_of::<$oa>()),*], size_of::<$or>());
                    assert_eq!(ours, theirs, stringify!($of));
                    n += 1;
                )*
                n
            }
        }
    };
}
pub(crate) use table;

/// Sizes of a function's arguments and result, for the tests of the tables.
#[cfg(test)]
pub(crate) mod shape {
    /// A type that the compiler is to find out.
    macro_rules! hole {
        ($t:ty) => {
            _
        };
    }
    pub(crate) use hole;

    pub(crate) trait Shape {
        fn shape(&self) -> (Vec<usize>, usize);
    }
    macro_rules! shapes {
        ($($x:ident)*) => {
            impl<R, $($x),*> Shape for unsafe fn($($x),*) -> R {
                fn shape(&self) -> (Vec<usize>, usize) {
                    (vec![$(size_of::<$x>()),*], size_of::<R>())
                }
            }
        };
    }
    shapes!();
    shapes!(A);
    shapes!(A B);
    shapes!(A B C);
    shapes!(A B C D);
    shapes!(A B C D E);
    shapes!(A B C D E F);
    shapes!(A B C D E F G);
    shapes!(A B C D E F G H);
    shapes!(A B C D E F G H I);
    shapes!(A B C D E F G H I J);
    shapes!(A B C D E F G H I J K);
    shapes!(A B C D E F G H I J K L M N O P);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_file_is_the_only_one_tried() {
        assert_eq!(
            candidates(&DRIVER, Some("/x/libcuda.so.9"), Some("/y")),
            ["/x/libcuda.so.9"]
        );
    }

    #[test]
    #[cfg(unix)]
    fn configured_folders_come_before_the_systems_and_the_vendors_last() {
        let all = candidates(&DRIVER, None, Some("/a::/b"));
        assert_eq!(
            &all[..3],
            ["/a/libcuda.so.1", "/a/libcuda.so", "/b/libcuda.so.1"]
        );
        assert_eq!(&all[4..6], ["libcuda.so.1", "libcuda.so"]);
        assert!(
            all[6..]
                .iter()
                .all(|p| PLACES.iter().any(|d| p.starts_with(d)))
        );
        assert!(!all.iter().any(|p| p.ends_with(".dll")));
    }

    #[test]
    fn what_is_missing_is_named_with_where_it_was_looked_for_and_the_fix() {
        let w = Wanted {
            what: "library of nothing",
            key: "cuda.libnothing",
            names: &["libnothing-at-all.so.1"],
            fix: "install nothing",
        };
        let e = open(&Settings::default(), &w)
            .err()
            .map(|e| (e.code, e.message));
        let (code, text) = e.expect("it cannot be there");
        assert_eq!(code, Code::Unsupported);
        for part in [
            "no library of nothing",
            "libnothing-at-all.so.1",
            "/usr/local/cuda/lib64",
            "install nothing",
            "cuda.libnothing",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert_eq!(text.matches("libnothing-at-all.so.1:").count(), 1, "{text}");
    }
}
