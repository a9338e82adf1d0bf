//! The null backend through its C tables: counting, memory, capacity questions, communicators, faults. One process, one instance, so one test.

use crossweave_hal::host::ConfigRead;
use crossweave_hal::{Code, Error, HostServices, LoadError, RawPlugin};
use crossweave_plugin::abi;
use std::ptr::null_mut;

/// Calls a slot and turns its status into a result.
macro_rules! call {
    ($table:expr, $slot:ident, $($a:expr),*) => {{
        let mut e = abi::Error::new();
        // SAFETY: the test keeps the contract: live handles of this plugin, out pointers to live values.
        let s = unsafe { ($table.$slot.unwrap())($($a,)* &mut e) };
        if s < 0 { Err(Error::from_record(s, stringify!($slot), &e)) } else { Ok(s) }
    }};
}

#[test]
fn counts_and_answers_through_the_tables() {
    let host = HostServices::builder()
        .config("null.devices", "3")
        .threads(1)
        .build();

    // A panicking entry is a typed error and leaves no half-made instance.
    host.set_fault("null.init", 9);
    match RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap_err() {
        LoadError::Entry { error, .. } => {
            assert_eq!(error.code, Code::Panic);
            assert_eq!(error.message, "fault point null.init");
        }
        e => panic!("{e}"),
    }
    host.set_fault("null.init", 0);
    let p = RawPlugin::from_static::<crossweave_backend_null::Null>(&host).unwrap();
    assert_eq!((p.name.as_str(), p.vendor.as_str()), ("null", "Crossweave"));
    assert_eq!(p.version, env!("CARGO_PKG_VERSION"));
    let read = |key: &str, value: Option<&str>| ConfigRead {
        key: key.into(),
        value: value.map(Into::into),
    };
    assert_eq!(
        host.config_reads(),
        [
            read("null.devices", Some("3")),
            read("null.mem_total", None)
        ]
    );
    let (d, o, c) = (p.device.unwrap(), p.ops.unwrap(), p.coll.unwrap());

    // R9: the entry may be called again, by the bare function too; the first host's services stay.
    // SAFETY: the generated entry keeps the contract.
    let again = unsafe {
        RawPlugin::from_entry(crossweave_backend_null::entry(), &HostServices::default())
    };
    let mut n = 0u32;
    call!(
        again.unwrap().device.unwrap(),
        device_count,
        p.self_,
        &mut n
    )
    .unwrap();
    assert_eq!(n, 3);

    let mut dev = null_mut();
    let e = call!(d, device_open, p.self_, 3, &mut dev).unwrap_err();
    assert_eq!((e.code, e.at.as_str()), (Code::Invalid, "device_open"));
    assert!(e.message.contains("device 3") && e.message.contains("null.devices"));
    call!(d, device_open, p.self_, 2, &mut dev).unwrap();
    let attr = |key: &str| -> Result<u64, Error> {
        let (mut buf, mut len) = ([0u8; 32], 0);
        let key = abi::Str::new(key);
        call!(d, device_attr, dev, key, null_mut(), 0, &mut len)?;
        call!(
            d,
            device_attr,
            dev,
            key,
            buf.as_mut_ptr().cast(),
            len,
            &mut len
        )?;
        Ok(std::str::from_utf8(&buf[..len as usize])
            .unwrap()
            .parse()
            .unwrap())
    };

    // Optional methods that are not claimed are NULL slots.
    assert!(d.mem_import.is_none() && d.mem_export.is_none() && c.launch_multi.is_none());

    // Memory: page-locked is real, zeroed and aligned; device memory is a number.
    let (mut pin, mut mem, mut at) = (null_mut(), null_mut(), null_mut());
    call!(d, mem_alloc, dev, abi::MEM_HOST_PINNED, 100, 4096, &mut pin).unwrap();
    call!(d, mem_map, pin, &mut at).unwrap();
    assert_eq!(at as usize % 4096, 0);
    // SAFETY: the mapping has 100 bytes.
    assert!(
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), 100) }
            .iter()
            .all(|b| *b == 0)
    );
    call!(d, mem_alloc, dev, abi::MEM_DEVICE, 1 << 39, 0, &mut mem).unwrap();
    assert_eq!(
        call!(d, mem_map, mem, &mut at).unwrap_err().code,
        Code::Unsupported
    );
    assert_eq!(attr("null.bytes").unwrap(), (1 << 39) + 100);
    let e = call!(d, mem_alloc, dev, abi::MEM_DEVICE, 1 << 40, 0, &mut at).unwrap_err();
    assert!(e.code == Code::Oom && e.retryable);
    let e = call!(d, mem_alloc, dev, 77, 1, 0, &mut at).unwrap_err();
    assert_eq!(e.code, Code::Unsupported);

    // NULL handles and pointers are errors, not crashes.
    assert_eq!(
        call!(d, stream_query, null_mut()).unwrap_err().code,
        Code::Invalid
    );
    assert_eq!(
        call!(d, device_count, p.self_, null_mut())
            .unwrap_err()
            .code,
        Code::Invalid
    );
    // SAFETY: destroying NULL does nothing.
    unsafe { (d.mem_free.unwrap())(null_mut()) };

    // Every op of the table prepares and launches.
    let mut stream = null_mut();
    call!(d, stream_create, dev, 0, 0, &mut stream).unwrap();
    let span = abi::Span {
        mem,
        offset: 0,
        bytes: 64,
    };
    for spec in abi::op::OPS {
        let layouts = vec![abi::Layout::contiguous(crossweave_plugin::DType::F32, &[4, 4]); 20];
        let desc = abi::OpDesc {
            size: size_of::<abi::OpDesc>() as u32,
            op: spec.id,
            op_revision: spec.revision,
            n_operands: 20,
            operands: layouts.as_ptr(),
            params: std::ptr::null(),
            params_bytes: 0,
            math_flags: 0,
            reserved: 0,
        };
        let mut plan = abi::OpPlan {
            size: 32,
            tier: 9,
            workspace_bytes: 9,
            est_ns: 9,
            error_class: 0,
        };
        let mut op = null_mut();
        call!(o, op_prepare, dev, &desc, &mut op, &mut plan).unwrap();
        assert_eq!((plan.workspace_bytes, plan.error_class), (0, spec.error));
        for n in [3usize, 20] {
            let spans = vec![span; n];
            call!(
                o,
                op_launch,
                op,
                stream,
                spans.as_ptr(),
                n as u32,
                abi::Span::NULL,
                std::ptr::null(),
                0
            )
            .unwrap();
        }
        // SAFETY: released once.
        unsafe { (o.op_release.unwrap())(op) };
    }
    assert_eq!(
        attr("null.launches").unwrap(),
        2 * abi::op::OPS.len() as u64
    );
    assert_eq!(attr("null.launches.matmul").unwrap(), 2);
    assert_eq!(
        attr("null.launches.nonsense").unwrap_err().code,
        Code::Unsupported
    );

    // Ids: asking the length burns none; a buffer too small is refused with the length.
    let (mut id, mut len) = ([0u8; 8], 0);
    call!(c, unique_id, dev, null_mut(), 0, &mut len).unwrap();
    call!(c, unique_id, dev, null_mut(), 0, &mut len).unwrap();
    assert_eq!(
        call!(c, unique_id, dev, id.as_mut_ptr().cast(), 7, &mut len)
            .unwrap_err()
            .code,
        Code::Invalid
    );
    call!(c, unique_id, dev, id.as_mut_ptr().cast(), 8, &mut len).unwrap();
    assert_eq!((len, u64::from_be_bytes(id)), (8, 0));
    call!(c, unique_id, dev, id.as_mut_ptr().cast(), 8, &mut len).unwrap();
    assert_eq!(u64::from_be_bytes(id), 1);

    // Any world size, no peers needed; a colour below 0 is no member.
    let mut cfg = abi::CommConfig {
        size: size_of::<abi::CommConfig>() as u32,
        rank: 70_000,
        nranks: 100_000,
        flags: 0,
        timeout_ns: 0,
        kv_prefix: abi::Str::EMPTY,
        name: abi::Str::new("dp"),
    };
    let (mut comm, mut child) = (null_mut(), id.as_mut_ptr().cast());
    call!(c, comm_init, dev, id.as_ptr().cast(), 8, &cfg, &mut comm).unwrap();
    call!(c, comm_split, comm, -1, 0, &cfg, &mut child).unwrap();
    assert!(child.is_null());
    cfg.rank = cfg.nranks;
    assert_eq!(
        call!(c, comm_split, comm, 0, 0, &cfg, &mut child)
            .unwrap_err()
            .code,
        Code::Invalid
    );

    // SAFETY: integers, floats and nullable pointers.
    let mut x: abi::CollDesc = unsafe { std::mem::zeroed() };
    x.size = size_of::<abi::CollDesc>() as u32;
    (x.kind, x.dtype, x.reduce, x.count) = (abi::COLL_ALL_REDUCE, 0x0320, abi::RED_AVG, 4);
    (x.send, x.recv) = (span, span);
    let mut sup = abi::CollSupport {
        size: 40,
        tier: 9,
        flags: 9,
        latency_ns: 9,
        bytes_per_s: 9,
        max_bytes: 9,
    };
    call!(c, comm_query, comm, &x, &mut sup).unwrap();
    assert_eq!((sup.tier, sup.max_bytes), (0, 0));
    x.dtype = 0x0120;
    assert_eq!(
        call!(c, comm_query, comm, &x, &mut sup).unwrap_err().code,
        Code::Unsupported
    );
    x.dtype = 0xFF20;
    assert_eq!(
        call!(c, launch, comm, stream, &x, 1).unwrap_err().code,
        Code::Unsupported
    );
    x.dtype = 0x0320;
    call!(c, launch, comm, stream, [x, x].as_ptr(), 2).unwrap();
    assert_eq!(
        (
            attr("null.collectives").unwrap(),
            attr("null.groups").unwrap()
        ),
        (2, 1)
    );
    call!(c, comm_abort, comm).unwrap();
    let e = call!(c, launch, comm, stream, &x, 1).unwrap_err();
    assert!(e.code == Code::Aborted && e.sticky);

    // A host call runs once with success.
    unsafe extern "C" fn note(arg: *mut std::ffi::c_void, s: abi::Status) {
        // SAFETY: the test passes a live counter.
        unsafe { *arg.cast::<i32>() += 1 + s };
    }
    let mut ran = 0i32;
    call!(d, stream_host_call, stream, note, (&raw mut ran).cast()).unwrap();
    assert_eq!(ran, 1);

    // A panic in a slot is an error with its text; the plugin works on.
    host.set_fault("null.copy", 9);
    let e = call!(d, copy, stream, span, span).unwrap_err();
    assert_eq!(
        (e.code, e.at.as_str(), e.message.as_str()),
        (Code::Panic, "copy", "fault point null.copy")
    );
    host.set_fault("null.copy", 0);
    call!(d, copy, stream, span, span).unwrap();
    assert_eq!(attr("null.copied_bytes").unwrap(), 64);
    assert_eq!(
        call!(d, fill, stream, span, 0, 3).unwrap_err().code,
        Code::Invalid
    );

    // SAFETY: each handle is destroyed once.
    unsafe {
        (c.comm_destroy.unwrap())(comm);
        (d.stream_destroy.unwrap())(stream);
        (d.mem_free.unwrap())(mem);
        (d.mem_free.unwrap())(pin);
    }
    assert_eq!(
        (
            attr("null.bytes").unwrap(),
            attr("null.live_allocs").unwrap()
        ),
        (0, 0)
    );
    // SAFETY: as above.
    unsafe { (d.device_close.unwrap())(dev) };
}
