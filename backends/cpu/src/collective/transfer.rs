//! Moving blocks: one read, many writes, and stores past the caches once the traffic would only flush them.

/// Bytes handled at a time: inputs and outputs of a block stay in the first-level cache.
pub(super) const BLOCK: usize = 8 << 10;

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Through the caches.
    Plain,
    /// Past the caches.
    Streaming,
}

impl Stores {
    /// Streaming when all ranks together touch more than the last cache holds. The size is a usual one, asked from no-one: the crossover
    /// is flat within a factor of two.
    pub(crate) fn for_traffic(bytes: usize) -> Stores {
        const LAST_CACHE: usize = 32 << 20;
        if bytes > LAST_CACHE && streaming_available() {
            Stores::Streaming
        } else {
            Stores::Plain
        }
    }
}

fn streaming_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Copies `bytes` from `src` to every destination, block by block; a destination that is `src` itself is left alone.
///
/// # Safety
/// `src` and every destination hold `bytes` bytes; a destination is `src` or does not overlap it. Null is allowed when `bytes` is 0.
pub(crate) unsafe fn push(src: *const u8, dsts: &[*mut u8], bytes: usize, stores: Stores) {
    let mut at = 0;
    while at < bytes {
        let len = BLOCK.min(bytes - at);
        for dst in dsts {
            if dst.cast_const() != src {
                // SAFETY: forwarded; the block lies inside both.
                unsafe { put(src.add(at), dst.add(at), len, stores) };
            }
        }
        at += len;
    }
    fence(stores);
}

/// Fetches lines for writing before they are written: the core that has read them last keeps a copy that must be called in.
pub(super) fn claim(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a hint, which touches no memory and cannot fault; processors that lack it do nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) at.wrapping_add(line), options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

/// Sends lines just written from this core's cache to the one all cores share, where others find them without asking this core.
pub(super) fn demote(at: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        // SAFETY: a hint, which cannot fault and changes no contents; processors that lack it do nothing.
        unsafe {
            std::arch::asm!("cldemote [{}]", in(reg) at.wrapping_add(line), options(nostack, preserves_flags));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, bytes);
}

/// Makes streamed stores visible before whatever publishes them.
pub(super) fn fence(stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores == Stores::Streaming {
        // SAFETY: an instruction without operands; part of the x86_64 baseline.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = stores;
}

/// Writes one block.
///
/// # Safety
/// Both hold `len` bytes and do not overlap.
pub(super) unsafe fn put(src: *const u8, dst: *mut u8, len: usize, stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores == Stores::Streaming {
        // SAFETY: forwarded; `Streaming` is only chosen where AVX was found.
        unsafe { put_streaming(src, dst, len) };
        return;
    }
    let _ = stores;
    // SAFETY: forwarded.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
}

/// Bytes of what [`put_vector`] writes.
pub(super) const VECTOR: usize = 32;

/// Writes one vector.
///
/// # Safety
/// Both hold [`VECTOR`] bytes; for streaming `dst` is aligned to as many.
#[inline(always)]
pub(super) unsafe fn put_vector<V: Copy>(src: &V, dst: *mut V, stores: Stores) {
    #[cfg(target_arch = "x86_64")]
    if stores == Stores::Streaming {
        use std::arch::x86_64::*;
        // SAFETY: forwarded; `Streaming` is only chosen where AVX was found.
        unsafe {
            let v = std::ptr::from_ref(src).cast::<__m256i>().read_unaligned();
            _mm256_stream_si256(dst.cast(), v);
        }
        return;
    }
    let _ = stores;
    // SAFETY: forwarded.
    unsafe { dst.write_unaligned(*src) };
}

/// Vector by vector: several lines begun at once, or wider vectors, were slower where this was measured.
///
/// # Safety
/// As [`put`], on a processor with AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn put_streaming(src: *const u8, dst: *mut u8, len: usize) {
    use std::arch::x86_64::*;
    let head = dst.align_offset(VECTOR).min(len);
    // SAFETY: `i + VECTOR <= len` throughout, and `dst + head` is aligned as the streaming store demands.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        let mut i = head;
        while i + VECTOR <= len {
            let v = _mm256_loadu_si256(src.add(i).cast());
            _mm256_stream_si256(dst.add(i).cast(), v);
            i += VECTOR;
        }
        std::ptr::copy_nonoverlapping(src.add(i), dst.add(i), len - i);
    }
}
