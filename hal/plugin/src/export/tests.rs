//! The boundary's own rules, without a backend: negotiation, the error record, sized structs.

use super::wire::*;
use super::{MIN_HOST_MINOR, negotiate};
use crate::{Code, Error, fail};
use crossweave_abi as abi;

fn cut(b: &[u8]) -> &str {
    let n = b.iter().position(|x| *x == 0).expect("text ends");
    std::str::from_utf8(&b[..n]).unwrap()
}

#[test]
fn negotiation_names_both_versions() {
    assert_eq!(negotiate(4, 2, 3, MIN_HOST_MINOR), Ok(3));
    assert_eq!(negotiate(1, 0, 3, 1), Ok(1));
    let e = negotiate(4, 2, 0, 0).unwrap_err();
    assert_eq!(e.code, Code::Version);
    assert!(
        e.message
            .contains("host 1.4 needs plugin >= 1.2, this plugin is 1.0")
    );
    let e = negotiate(0, 0, 3, 1).unwrap_err();
    assert_eq!(e.code, Code::Version);
    assert!(
        e.message
            .contains("plugin 1.3 needs host >= 1.1, this host is 1.0")
    );
}

#[test]
fn a_panic_becomes_a_record_with_its_text() {
    let mut e = abi::Error::new();
    // SAFETY: a live record.
    let s = unsafe { guard(&mut e, "copy", || panic!("row {}", 7)) };
    assert_eq!((s, e.code), (abi::E_PANIC, abi::E_PANIC));
    assert_eq!((cut(&e.where_), cut(&e.message)), ("copy", "row 7"));
    assert_eq!(e.size, 512);
}

#[test]
fn flags_peer_and_long_text_arrive() {
    let mut e = abi::Error::new();
    let text = "ä".repeat(400);
    // SAFETY: a live record.
    let s = unsafe {
        guard(&mut e, "launch", || {
            Err(Error::new(Code::Comm, text)
                .peer(crate::GroupRank(3))
                .sticky()
                .retryable())
        })
    };
    assert_eq!(s, abi::E_COMM);
    assert_eq!(e.peer_rank, 3);
    assert_eq!(e.flags, abi::ERRF_STICKY | abi::ERRF_RETRYABLE);
    // 440 bytes hold 219 two-byte characters and the NUL; never half a character.
    assert_eq!(cut(&e.message), "ä".repeat(219));
}

#[test]
fn a_short_record_is_not_overrun_and_a_missing_one_is_fine() {
    #[repr(C)]
    struct Guarded {
        e: abi::Error,
        beyond: [u8; 16],
    }
    let mut g = Guarded {
        e: abi::Error::new(),
        beyond: [0xEE; 16],
    };
    g.e.size = 100;
    g.e.message = [0xEE; 440];
    let body = || fail(Code::Invalid, "x".repeat(200));
    // SAFETY: the record states 100 bytes and has them.
    let s = unsafe { guard(&mut g.e, "copy", body) };
    assert_eq!(s, abi::E_INVALID);
    assert_eq!(g.e.size, 100);
    assert_eq!(g.e.message[27], 0);
    assert!(g.e.message[28..].iter().all(|b| *b == 0xEE));
    assert!(g.beyond.iter().all(|b| *b == 0xEE));
    // SAFETY: NULL is allowed.
    assert_eq!(
        unsafe { guard(std::ptr::null_mut(), "copy", body) },
        abi::E_INVALID
    );
}

#[test]
fn descriptors_of_other_ages() {
    // A longer struct whose tail is zero reads; a set bit in the tail is refused.
    let mut long = [0u8; 200];
    long[..4].copy_from_slice(&200u32.to_ne_bytes());
    let p = long.as_ptr().cast::<abi::CollDesc>();
    // SAFETY: 200 live bytes, as stated; `desc` reads unaligned copies.
    assert!(unsafe { desc(p, "collective") }.is_ok());
    long[199] = 1;
    let p = long.as_ptr().cast::<abi::CollDesc>();
    // SAFETY: as above.
    assert_eq!(
        unsafe { desc(p, "collective") }.unwrap_err().code,
        Code::Unsupported
    );
    // SAFETY: NULL is allowed.
    let e = unsafe { desc(std::ptr::null::<abi::CollDesc>(), "collective") }.unwrap_err();
    assert_eq!(e.code, Code::Invalid);
    // An out struct of an older host gets its own length and not a byte more.
    let mut words = [0xEEEE_EEEE_EEEE_EEEEu64; 5];
    words[0] = 16;
    let out = words.as_mut_ptr().cast::<abi::CollSupport>();
    let x = abi::CollSupport {
        size: 0,
        tier: 2,
        flags: 9,
        latency_ns: 9,
        bytes_per_s: 9,
        max_bytes: 9,
    };
    // SAFETY: the struct states 16 bytes.
    unsafe { put_sized(out, "the answer", x) }.unwrap();
    assert_eq!(words[..2], [16 | (2 << 32), 9]);
    assert!(words[2..].iter().all(|w| *w == 0xEEEE_EEEE_EEEE_EEEE));
}

#[test]
fn a_length_is_asked_with_capacity_zero() {
    let (mut len, mut buf) = (0u64, [0u8; 4]);
    // SAFETY: NULL with capacity 0.
    unsafe { put_bytes(std::ptr::null_mut(), 0, &mut len, "id", b"abcd") }.unwrap();
    assert_eq!(len, 4);
    // SAFETY: three writable bytes are stated.
    let e = unsafe { put_bytes(buf.as_mut_ptr().cast(), 3, &mut len, "id", b"abcd") }.unwrap_err();
    assert_eq!((e.code, buf), (Code::Invalid, [0; 4]));
    // SAFETY: four writable bytes.
    unsafe { put_bytes(buf.as_mut_ptr().cast(), 4, &mut len, "id", b"abcd") }.unwrap();
    assert_eq!(&buf, b"abcd");
}
