//! One rank of a communicator.

use super::device::{Joining, missing};
use super::handles::{Comm, Stream};
use super::{Raw, Refusal};
use crossweave_abi as abi;
use crossweave_abi::{CollDesc, CollectiveApi, Handle, Span};

impl Comm {
    fn table(&self) -> Raw<&CollectiveApi> {
        self.dev()
            .0
            .p
            .coll
            .as_ref()
            .ok_or_else(|| missing("launch"))
    }

    /// Would it take this? `None` = not claimed.
    ///
    /// # Errors
    /// What is not a refusal.
    pub fn claims(&self, desc: &CollDesc) -> Raw<Option<abi::CollSupport>> {
        let f = slot!(self.table()?, comm_query);
        let mut out = abi::CollSupport {
            size: size_of::<abi::CollSupport>() as u32,
            tier: 0,
            flags: 0,
            latency_ns: 0,
            bytes_per_s: 0,
            max_bytes: 0,
        };
        // SAFETY: live handles and structs; operands are not looked at.
        let asked = self.dev().0.p.call("comm_query", |e| unsafe {
            f(self.handle(), desc, &mut out, e)
        });
        match asked {
            Ok(_) => Ok(Some(out)),
            Err(r) if r.unsupported() => Ok(None),
            Err(r) => Err(r),
        }
    }

    /// Enqueues a group.
    ///
    /// # Errors
    /// The plugin's.
    pub fn launch(&self, s: &Stream, group: &[CollDesc]) -> Raw<()> {
        let f = slot!(self.table()?, launch);
        // SAFETY: as `Stream::copy`.
        self.dev()
            .0
            .p
            .call("launch", |e| unsafe {
                f(
                    self.handle(),
                    s.handle(),
                    group.as_ptr(),
                    group.len() as u32,
                    e,
                )
            })
            .map(|_| ())
    }

    /// `true` = ready, `false` = connecting.
    ///
    /// # Errors
    /// Its failure.
    pub fn health(&self) -> Raw<bool> {
        let f = slot!(self.table()?, comm_async_error);
        // SAFETY: a live communicator.
        let s = self
            .dev()
            .0
            .p
            .call("comm_async_error", |e| unsafe { f(self.handle(), e) })?;
        Ok(s == abi::OK)
    }

    /// Marks and releases.
    ///
    /// # Errors
    /// The plugin's.
    pub fn abort(&self) -> Raw<()> {
        let f = slot!(self.table()?, comm_abort);
        // SAFETY: a live communicator.
        self.dev()
            .0
            .p
            .call("comm_abort", |e| unsafe { f(self.handle(), e) })
            .map(|_| ())
    }

    /// Splits; `None` = the slot is not there, `Some(None)` = no member.
    ///
    /// # Errors
    /// The plugin's.
    pub fn split(&self, color: i32, key: i32, cfg: &Joining<'_>) -> Raw<Option<Option<Comm>>> {
        let Some(f) = self.table()?.comm_split else {
            return Ok(None);
        };
        let mut h: Handle = std::ptr::null_mut();
        let cfg = cfg.raw();
        // SAFETY: a live communicator and live structs.
        let done = self.dev().0.p.call("comm_split", |e| unsafe {
            f(self.handle(), color, key, &cfg, &mut h, e)
        });
        match done {
            Err(r) if r.unsupported() => Ok(None),
            Err(r) => Err(r),
            Ok(_) => Ok(Some(
                (!h.is_null()).then(|| Comm::new(self.dev().clone(), h)),
            )),
        }
    }
}

/// A descriptor with nothing set but its size.
pub fn coll_desc(kind: u32, dtype: u32, reduce: u32, count: u64) -> CollDesc {
    CollDesc {
        size: size_of::<CollDesc>() as u32,
        kind,
        dtype,
        reduce,
        root: 0,
        peer: 0,
        count,
        send: Span::NULL,
        recv: Span::NULL,
        send_counts: std::ptr::null(),
        send_offsets: std::ptr::null(),
        recv_counts: std::ptr::null(),
        recv_offsets: std::ptr::null(),
        scale: 1.0,
        scale_dev: Span::NULL,
        flags: 0,
        reserved: 0,
        seq: 0,
    }
}
