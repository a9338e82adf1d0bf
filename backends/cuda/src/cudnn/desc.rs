//! A descriptor of the library: attributes are set with their types, it is made final once, and destroyed with its owner.

use super::{Cudnn, id};
use crossweave_gpu::Handle;
use crossweave_plugin::Result;
use std::sync::Arc;

/// A descriptor.
pub(crate) struct Desc {
    lib: Arc<Cudnn>,
    pub(super) raw: Handle,
    what: &'static str,
}

impl Desc {
    /// A descriptor of kind `CUDNN_BACKEND_*_DESCRIPTOR`; `what` names it in errors.
    pub(crate) fn new(lib: &Arc<Cudnn>, kind: i32, what: &'static str) -> Result<Desc> {
        let mut raw = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (lib.t.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        lib.check(&format!("cudnnBackendCreateDescriptor of {what}"), s)?;
        Ok(Desc {
            lib: lib.clone(),
            raw,
            what,
        })
    }

    /// Elements of an attribute whose type `kind` is; each call site gives the Rust type of that size.
    pub(crate) fn set<T>(self, attribute: i32, kind: i32, values: &[T]) -> Result<Desc> {
        // SAFETY: the library reads as many elements of the attribute's type as there are.
        let s = unsafe {
            (self.lib.t.cudnnBackendSetAttribute)(
                self.raw,
                attribute,
                kind,
                values.len() as i64,
                values.as_ptr().cast(),
            )
        };
        self.check("cudnnBackendSetAttribute", attribute, s)?;
        Ok(self)
    }

    /// Sets a value of one of the library's enumerations, all of which are 32 bits wide.
    pub(crate) fn number(self, attribute: i32, kind: i32, v: i32) -> Result<Desc> {
        self.set(attribute, kind, &[v])
    }

    pub(crate) fn long(self, attribute: i32, v: i64) -> Result<Desc> {
        self.set(attribute, id::TYPE_INT64, &[v])
    }

    pub(crate) fn desc(self, attribute: i32, of: &Desc) -> Result<Desc> {
        self.set(attribute, id::TYPE_BACKEND_DESCRIPTOR, &[of.raw])
    }

    pub(crate) fn done(self) -> Result<Desc> {
        // SAFETY: made by us.
        let s = unsafe { (self.lib.t.cudnnBackendFinalize)(self.raw) };
        self.lib
            .check(&format!("cudnnBackendFinalize of {}", self.what), s)?;
        Ok(self)
    }

    /// Up to `to.len()` elements of an attribute; gives how many there are.
    pub(crate) fn get<T>(&self, attribute: i32, kind: i32, to: &mut [T]) -> Result<usize> {
        let mut n = 0;
        let at = match to.is_empty() {
            true => std::ptr::null_mut(),
            false => to.as_mut_ptr().cast(),
        };
        // SAFETY: the library writes at most as many elements as are asked for.
        let s = unsafe {
            (self.lib.t.cudnnBackendGetAttribute)(
                self.raw,
                attribute,
                kind,
                to.len() as i64,
                &mut n,
                at,
            )
        };
        self.check("cudnnBackendGetAttribute", attribute, s)?;
        Ok(n.max(0) as usize)
    }

    fn check(&self, f: &str, attribute: i32, s: i32) -> Result<()> {
        match s {
            0 => Ok(()),
            s => self
                .lib
                .check(&format!("{f} {attribute} of {}", self.what), s),
        }
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made by us, destroyed once.
        unsafe { (self.lib.t.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}
