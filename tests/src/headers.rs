//! Declarations held against a vendor's own headers: assertions that a C++ compiler evaluates.

use std::path::Path;
use std::process::Command;

/// `SIG` a function's result and arguments by class (`P` a pointer, `I4` an integer of four bytes, `F8` a double, `S(n)` a struct by value, `V`
/// nothing), `VAL` a number, `SIZ` the size of a type, `OFF` the place of a field.
const ASSERTIONS: &str = r#"
#include <cstddef>
#include <type_traits>
template <class T> constexpr int cls() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_void_v<U>) return 0;
  else if constexpr (std::is_pointer_v<U> || std::is_null_pointer_v<U>) return 1;
  else if constexpr (std::is_enum_v<U> || std::is_integral_v<U>) return 100 + (int)sizeof(U);
  else if constexpr (std::is_floating_point_v<U>) return 200 + (int)sizeof(U);
  else return 1000 + (int)sizeof(U);
}
template <class F> struct Fn;
template <class R, class... A> struct Fn<R(A...)> {
  template <int r, int... a> static constexpr bool is() {
    if constexpr (sizeof...(A) != sizeof...(a)) return false;
    else return cls<R>() == r && ((cls<A>() == a) && ...);
  }
};
constexpr int S(int n) { return 1000 + n; }
constexpr int V = 0, P = 1, I1 = 101, I2 = 102, I4 = 104, I8 = 108, F4 = 204, F8 = 208;
#define SIG(f, ...) static_assert(Fn<decltype(f)>::template is<__VA_ARGS__>(), "signature of " #f)
#define VAL(e, v) static_assert((long long)(e) == (long long)(v), "number of " #e)
#define SIZ(t, n) static_assert(sizeof(t) == (n), "size of " #t)
#define OFF(t, f, n) static_assert(offsetof(t, f) == (n), "place of " #t "." #f)
"#;

/// Compiles assertions behind `prelude`, which includes the headers in `folders`.
///
/// # Errors
/// The compiler's words, where an assertion fails.
///
/// # Panics
/// Without a C++ compiler (`c++`).
pub fn compile(
    name: &str,
    prelude: &str,
    folders: &[&Path],
    assertions: &str,
) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("crossweave-{}-{name}.cpp", std::process::id()));
    std::fs::write(&file, format!("{prelude}{ASSERTIONS}{assertions}")).expect("written");
    let mut c = Command::new("c++");
    c.args(["-std=c++17", "-fsyntax-only", "-w"]);
    for f in folders {
        c.arg("-isystem").arg(f);
    }
    let out = c.arg(&file).output().expect("a C++ compiler (c++)");
    let _ = std::fs::remove_file(&file);
    match out.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}
