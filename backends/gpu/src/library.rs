//! Opening vendor libraries at run time, and the macro that declares a library's functions once: the table itself, how it is filled, and a
//! test that holds every signature against public bindings (ADR 0036).

use crate::settings::Settings;
use crossweave_plugin::{Code, Error, Result, fail};
use libloading::Library;
use std::path::Path;

/// A library of the vendor.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// What it is, for messages.
    pub what: &'static str,
    /// Configuration key that names its file.
    pub key: &'static str,
    /// File names, the most telling first.
    pub names: &'static [&'static str],
    /// What to do when it is missing.
    pub fix: &'static str,
}

/// A library that was found. It stays open until the process ends: vendor run times do not take being closed.
pub struct Opened {
    /// What it is, for messages.
    pub what: &'static str,
    /// Open until the process ends.
    pub lib: &'static Library,
    /// The name it was opened by.
    pub name: String,
}

/// Every name to try, in order: the configured file alone, else each name in the configured folders, the system's, and the vendor's.
fn candidates(settings: &Settings, w: &Wanted) -> Vec<String> {
    if let Some(f) = settings.get(w.key) {
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
    for dir in settings
        .own("library_path")
        .unwrap_or("")
        .split(':')
        .filter(|d| !d.is_empty())
    {
        all.extend(within(dir));
    }
    all.extend(names().map(|n| n.to_string()));
    for dir in settings.vendor().places.iter().filter(|_| !own) {
        all.extend(within(dir));
    }
    all
}

/// Opens it: the file that its key names, else the first candidate there is.
///
/// # Errors
/// `Unsupported`, with its names, where they were looked for, and what to do.
pub fn open(settings: &Settings, w: &Wanted) -> Result<Opened> {
    let all = candidates(settings, w);
    let mut why = None;
    for name in &all {
        // SAFETY: running a vendor library's constructors is what opening it is for.
        match unsafe { Library::new(name) } {
            Ok(lib) => {
                return Ok(Opened {
                    what: w.what,
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
            "no {}: looked for {}; {}, or name the file in {} or its folder in {}.library_path ({})",
            w.what,
            shorten(&all),
            w.fix,
            w.key,
            settings.vendor().name,
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
///
/// # Errors
/// `Unsupported`, with its name, where the library has no such function.
#[doc(hidden)]
pub fn symbol<T: Copy>(o: &Opened, name: &str) -> Result<T> {
    // SAFETY: the caller's table gives the name its type, which `check` of that table holds against public bindings.
    match unsafe { o.lib.get::<T>(name.as_bytes()) } {
        Ok(s) => Ok(*s),
        Err(_) => Err(Error::new(
            Code::Unsupported,
            format!(
                "this {} ({}) lacks {name}; install a newer one",
                o.what, o.name
            ),
        )),
    }
}

/// Declares a table of functions under their own names. `optional` ones may be missing. In tests, `signatures()` says each function as the
/// assertion that a C++ compiler holds against a vendor's header.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident
        { $( fn $f:ident($($a:ty),* $(,)?) -> $r:ty; )* }
        optional { $( fn $of:ident($($oa:ty),* $(,)?) -> $or:ty; )* }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, missing_docs)]
        pub struct $name {
            $( pub $f: unsafe extern "C" fn($($a),*) -> $r, )*
            $( #[allow(dead_code)] pub $of: Option<unsafe extern "C" fn($($oa),*) -> $or>, )*
        }
        impl $name {
            /// Looks every function up.
            pub(crate) fn of(o: &$crate::library::Opened) -> ::crossweave_plugin::Result<$name> {
                Ok($name {
                    $( $f: $crate::library::symbol(o, stringify!($f))?, )*
                    $( $of: $crate::library::symbol(o, stringify!($of)).ok(), )*
                })
            }

            #[cfg(test)]
            #[allow(dead_code)]
            pub(crate) fn signatures() -> Vec<$crate::library::shape::Signature> {
                use $crate::library::shape::{Signature, class};
                vec![
                    $( Signature {
                        name: stringify!($f),
                        optional: false,
                        classes: vec![class::<$r>(), $(class::<$a>()),*],
                    }, )*
                    $( Signature {
                        name: stringify!($of),
                        optional: true,
                        classes: vec![class::<$or>(), $(class::<$oa>()),*],
                    }, )*
                ]
            }
        }
    };
}

/// Declares a table as [`functions!`](crate::functions) does. In tests, `check()` compares arity and the size of every argument and result
/// with the function of that name in `bindings`, which the module imports for its tests.
#[macro_export]
macro_rules! table {
    ($(#[$doc:meta])* $name:ident
        { $( fn $f:ident($($a:ty),* $(,)?) -> $r:ty; )* }
        optional { $( fn $of:ident($($oa:ty),* $(,)?) -> $or:ty; )* }
    ) => {
        $crate::functions! {
            $(#[$doc])* $name
            { $( fn $f($($a),*) -> $r; )* }
            optional { $( fn $of($($oa),*) -> $or; )* }
        }
        #[cfg(test)]
        impl $name {
            pub(crate) fn check() -> usize {
                use $crate::{hole, library::shape::Shape};
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

/// A type that the compiler is to find out.
#[doc(hidden)]
#[macro_export]
macro_rules! hole {
    ($t:ty) => {
        _
    };
}

/// Sizes and classes of a function's arguments and result, for the tests of the tables.
#[doc(hidden)]
pub mod shape {
    use crate::Handle;

    /// A function of a table.
    #[derive(Clone)]
    pub struct Signature {
        /// Its name.
        pub name: &'static str,
        /// A library may lack it.
        pub optional: bool,
        /// Its result, then its arguments: `P` a pointer, `I4` an integer of four bytes, `F4` a float, `V` nothing.
        pub classes: Vec<&'static str>,
    }

    /// How a type is passed.
    pub trait Class {
        /// As a [`Signature`] says it.
        const CLASS: &'static str;
    }

    /// That of a type.
    pub fn class<T: Class>() -> &'static str {
        T::CLASS
    }

    macro_rules! classes {
        ($($t:ty = $c:literal),*) => { $( impl Class for $t { const CLASS: &'static str = $c; } )* };
    }
    classes!(
        () = "V",
        i8 = "I1",
        u8 = "I1",
        i16 = "I2",
        u16 = "I2",
        i32 = "I4",
        u32 = "I4"
    );
    classes!(
        i64 = "I8",
        u64 = "I8",
        isize = "I8",
        usize = "I8",
        f32 = "F4",
        f64 = "F8",
        Handle = "P"
    );
    impl<T> Class for *mut T {
        const CLASS: &'static str = "P";
    }
    impl<T> Class for *const T {
        const CLASS: &'static str = "P";
    }
    impl<R, A> Class for unsafe extern "C" fn(A) -> R {
        const CLASS: &'static str = "P";
    }
    impl<R, A, B, C> Class for unsafe extern "C" fn(A, B, C) -> R {
        const CLASS: &'static str = "P";
    }

    /// A function, of which its sizes are asked.
    pub trait Shape {
        /// Sizes of its arguments, and of its result.
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
    use crate::settings::About;

    const ABOUT: About = About {
        name: "acme",
        keys: &["acme.library_path", "acme.libacme", "cache_dir"],
        places: &["/opt/acme/lib"],
    };
    const WANTED: Wanted = Wanted {
        what: "library of nothing",
        key: "acme.libacme",
        names: &[
            "libnothing-at-all.so.1",
            "libnothing-at-all.so",
            "nothing.dll",
        ],
        fix: "install nothing",
    };

    #[test]
    fn a_configured_file_is_the_only_one_tried() {
        let s = Settings::new(&ABOUT)
            .with("acme.libacme", "/x/libacme.so.9")
            .with("acme.library_path", "/y");
        assert_eq!(candidates(&s, &WANTED), ["/x/libacme.so.9"]);
    }

    #[test]
    #[cfg(unix)]
    fn configured_folders_come_before_the_systems_and_the_vendors_last() {
        let s = Settings::new(&ABOUT).with("acme.library_path", "/a::/b");
        let (one, two) = ("libnothing-at-all.so.1", "libnothing-at-all.so");
        let within = |d: &str| [format!("{d}/{one}"), format!("{d}/{two}")];
        let mut want = within("/a").to_vec();
        want.extend(within("/b"));
        want.extend([one.to_string(), two.to_string()]);
        want.extend(within("/opt/acme/lib"));
        assert_eq!(candidates(&s, &WANTED), want);
    }

    #[test]
    fn what_is_missing_is_named_with_where_it_was_looked_for_and_the_fix() {
        let e = open(&Settings::new(&ABOUT), &WANTED)
            .err()
            .map(|e| (e.code, e.message));
        let (code, text) = e.expect("it cannot be there");
        assert_eq!(code, Code::Unsupported);
        for part in [
            "no library of nothing",
            "libnothing-at-all.so.1",
            "/opt/acme/lib",
            "install nothing",
            "acme.libacme",
            "acme.library_path",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert_eq!(text.matches("libnothing-at-all.so.1:").count(), 1, "{text}");
    }
}
