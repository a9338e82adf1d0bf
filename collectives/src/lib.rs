//! What a communicator needs that is not a vendor's: compositions, rings over sends, islands. Empty so far; the back ends serve every kind.
#![forbid(unsafe_code)]
