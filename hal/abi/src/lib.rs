//! Mirror of the C header: layouts, ids and the op table; no logic.
