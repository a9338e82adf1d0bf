//! Suites over several crates are under `tests/`, attacks and oracles beside them; the library itself is empty.
