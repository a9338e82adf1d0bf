//! Values nobody knows, fields of a later minor, lengths that are asked for: refused without a trace, or answered as R1 says.

use crate::case::{Check, pass, pass_with, skip};
use crate::ctx::Ctx;
use crate::raw::coll_desc;
use crossweave_abi as abi;

pub(super) fn unknown_attr(ctx: &Ctx) -> Check {
    if ctx.plugin.d.device_attr.is_none() {
        return skip("no slot device_attr");
    }
    let dev = ctx.device()?;
    match dev.attr("x.nobody.has.this.attribute") {
        Err(r) if r.unsupported() => pass(),
        Err(r) => Err(format!("{r}, and not UNSUPPORTED")),
        Ok(_) => Err("an unknown attribute was answered".into()),
    }
}

/// `cap` 0 asks for the length; an id of a communicator is asked for the same way.
pub(super) fn attr_length(ctx: &Ctx) -> Check {
    let Some(c) = &ctx.plugin.coll else {
        return skip("no collectives: nothing else is asked this way");
    };
    let Some(f) = c.unique_id else {
        return skip("no slot unique_id");
    };
    let dev = ctx.device()?;
    let mut len = 0u64;
    // SAFETY: no bytes at NULL.
    ctx.plugin.call("unique_id", |e| unsafe {
        f(dev.handle(), std::ptr::null_mut(), 0, &mut len, e)
    })?;
    if len == 0 {
        return Err("the length of an id is 0".into());
    }
    let mut short = vec![0xA5u8; len as usize + 16];
    let mut again = 0u64;
    // SAFETY: a buffer with more room than stated.
    let r = ctx.plugin.call("unique_id", |e| unsafe {
        f(
            dev.handle(),
            short.as_mut_ptr().cast(),
            len - 1,
            &mut again,
            e,
        )
    });
    if short[len as usize - 1..].iter().any(|b| *b != 0xA5) {
        return Err("unique_id wrote beyond the capacity it was given".into());
    }
    match r {
        Err(r) if r.status == abi::E_INVALID && again == len || len == 1 => {
            let _ = r;
        }
        Err(r) => {
            return Err(format!(
                "a capacity of {} for {len} bytes: {r}, length {again}",
                len - 1
            ));
        }
        Ok(_) if len == 1 => {}
        Ok(_) => {
            return Err(format!(
                "a capacity of {} for {len} bytes was accepted",
                len - 1
            ));
        }
    }
    let (a, b) = (dev.unique_id()?, dev.unique_id()?);
    match a == b {
        true => Err("two ids are the same".into()),
        false => pass_with(format!("{} bytes", a.len())),
    }
}

pub(super) fn unknown_flags(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let p = &ctx.plugin;
    let mut h = std::ptr::null_mut();
    let mut wrong = vec![];
    let mut ask = |name: &str, r: crate::raw::Raw<i32>| match r {
        Err(r) if r.unsupported() || r.status == abi::E_INVALID => {}
        Err(r) => wrong.push(r.to_string()),
        Ok(_) => wrong.push(format!("{name} took flags that nobody knows")),
    };
    // SAFETY: live handles and out pointers.
    unsafe {
        if let Some(f) = p.d.stream_create {
            ask(
                "stream_create",
                p.call("stream_create", |e| f(dev.handle(), 0, 1 << 30, &mut h, e)),
            );
        }
        if let Some(f) = p.d.event_create {
            ask(
                "event_create",
                p.call("event_create", |e| f(dev.handle(), 1 << 30, &mut h, e)),
            );
        }
    }
    match wrong.is_empty() {
        true => pass(),
        false => Err(wrong.join("; ")),
    }
}

/// An op of the table with its layouts: `fill_strided` of eight f32.
fn op_desc(layouts: &[abi::Layout], params: &abi::op::FillParams) -> Option<abi::OpDesc> {
    let spec = abi::op::by_name("fill_strided")?;
    Some(abi::OpDesc {
        size: size_of::<abi::OpDesc>() as u32,
        op: spec.id,
        op_revision: spec.revision,
        n_operands: layouts.len() as u32,
        operands: layouts.as_ptr(),
        params: std::ptr::from_ref(params).cast(),
        params_bytes: size_of::<abi::op::FillParams>() as u64,
        math_flags: 0,
        reserved: 0,
    })
}

pub(super) fn unknown_op(ctx: &Ctx) -> Check {
    if ctx.plugin.ops.is_none() {
        return skip("no ops");
    }
    let dev = ctx.device()?;
    let mut layouts = [abi::Layout::contiguous(abi::DType::F32, &[8])];
    let params = abi::op::FillParams::default();
    let Some(known) = op_desc(&layouts, &params) else {
        return skip("no op fill_strided in the table");
    };
    let mut wrong = vec![];
    let mut ask = |what: &str, d: &abi::OpDesc| {
        // SAFETY: live layouts and parameters.
        match unsafe { dev.prepare(d) } {
            Err(r) if r.unsupported() => {}
            Err(r) => wrong.push(format!("{what}: {r}, and not UNSUPPORTED")),
            Ok(_) => wrong.push(format!("{what} was accepted")),
        }
    };
    ask(
        "op 0x7ffffff0",
        &abi::OpDesc {
            op: 0x7FFF_FFF0,
            ..known
        },
    );
    ask("op 0", &abi::OpDesc { op: 0, ..known });
    ask(
        "revision 99 of an op",
        &abi::OpDesc {
            op_revision: 99,
            ..known
        },
    );
    layouts[0].dtype = 0x7F20;
    let Some(odd) = op_desc(&layouts, &params) else {
        return skip("no op fill_strided in the table");
    };
    ask("dtype 0x7f20", &odd);
    match wrong.is_empty() {
        true => pass(),
        false => Err(wrong.join("; ")),
    }
}

/// `known`, lengthened by 16 bytes whose last word is `tail`.
fn longer<T: Copy>(known: &T, tail: u64) -> Vec<u64> {
    let n = size_of::<T>();
    let mut words = vec![0u64; n / 8 + 2];
    // SAFETY: at least `n` bytes, aligned to 8.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(known).cast::<u8>(),
            words.as_mut_ptr().cast(),
            n,
        )
    };
    // SAFETY: the first field of every sized struct is its size.
    unsafe { words.as_mut_ptr().cast::<u32>().write(n as u32 + 16) };
    let last = words.len() - 1;
    words[last] = tail;
    words
}

/// R1: a descriptor of a newer host with a field set that this plugin has never heard of must be refused.
pub(super) fn op_tail(ctx: &Ctx) -> Check {
    if ctx.plugin.ops.is_none() {
        return skip("no ops");
    }
    let dev = ctx.device()?;
    let layouts = [abi::Layout::contiguous(abi::DType::F32, &[8])];
    let params = abi::op::FillParams::default();
    let Some(known) = op_desc(&layouts, &params) else {
        return skip("no op fill_strided in the table");
    };
    let d = longer(&known, 1);
    // SAFETY: a descriptor of the stated size.
    match unsafe { dev.prepare(&*d.as_ptr().cast()) } {
        Err(r) if r.unsupported() => {}
        Err(r) => {
            return Err(format!(
                "an unknown field of the descriptor: {r}, and not UNSUPPORTED"
            ));
        }
        Ok(_) => return Err("an unknown field of the descriptor was dropped".into()),
    }
    let p = longer(&params, 1);
    let with = abi::OpDesc {
        params: p.as_ptr().cast(),
        params_bytes: p.len() as u64 * 8,
        ..known
    };
    // SAFETY: as above.
    match unsafe { dev.prepare(&with) } {
        Err(r) if r.unsupported() => pass(),
        Err(r) => Err(format!(
            "an unknown field of the parameters: {r}, and not UNSUPPORTED"
        )),
        Ok(_) => Err("an unknown field of the parameters was dropped".into()),
    }
}

/// The same, with zeros behind: the default, which an older plugin accepts.
pub(super) fn op_larger(ctx: &Ctx) -> Check {
    if ctx.plugin.ops.is_none() {
        return skip("no ops");
    }
    let dev = ctx.device()?;
    let layouts = [abi::Layout::contiguous(abi::DType::F32, &[8])];
    let params = abi::op::FillParams::default();
    let Some(known) = op_desc(&layouts, &params) else {
        return skip("no op fill_strided in the table");
    };
    // SAFETY: live layouts and parameters.
    if let Err(r) = unsafe { dev.prepare(&known) } {
        return match r.unsupported() {
            true => skip(r.to_string()),
            false => Err(r.into()),
        };
    }
    let d = longer(&known, 0);
    // SAFETY: a descriptor of the stated size.
    unsafe { dev.prepare(&*d.as_ptr().cast()) }
        .map_err(|r| format!("a longer descriptor whose unknown tail is zero: {r}"))?;
    pass()
}

pub(super) fn unknown_coll(ctx: &Ctx) -> Check {
    if ctx.plugin.coll.is_none() {
        return skip("no collectives");
    }
    alone(ctx, &|r| {
        let comm = r.comm()?;
        let f32 = abi::DType::F32.id();
        for (what, d) in [
            ("kind 77", coll_desc(77, f32, abi::RED_SUM, 4)),
            ("kind 0", coll_desc(0, f32, abi::RED_SUM, 4)),
            (
                "dtype 0x7f20",
                coll_desc(abi::COLL_ALL_REDUCE, 0x7F20, abi::RED_SUM, 4),
            ),
            ("reduce 99", coll_desc(abi::COLL_ALL_REDUCE, f32, 99, 4)),
        ] {
            if comm
                .claims(&d)
                .map_err(|r| format!("{what}: {r}, and not UNSUPPORTED"))?
                .is_some()
            {
                return Err(format!("comm_query claims {what}"));
            }
        }
        let mut d = coll_desc(abi::COLL_ALL_REDUCE, f32, abi::RED_SUM, 4);
        d.flags = 1 << 30;
        if comm.claims(&d).map_err(|r| r.to_string())?.is_some() {
            return Err("comm_query claims a flag that nobody knows".into());
        }
        Ok(())
    })
}

/// Query and launch both refuse a field they have never heard of.
pub(super) fn coll_tail(ctx: &Ctx) -> Check {
    let Some(table) = ctx.plugin.coll else {
        return skip("no collectives");
    };
    alone(ctx, &|r| {
        let comm = r.comm()?;
        let a = r.rig.area_of(&1f32.to_le_bytes())?;
        let b = r.rig.area(4)?;
        let mut d = coll_desc(abi::COLL_ALL_REDUCE, abi::DType::F32.id(), abi::RED_SUM, 1);
        (d.send, d.recv) = (a.span(), b.span());
        let long = longer(&d, 1);
        let at = long.as_ptr().cast::<abi::CollDesc>();
        let mut support = abi::CollSupport {
            size: size_of::<abi::CollSupport>() as u32,
            tier: 0,
            flags: 0,
            latency_ns: 0,
            bytes_per_s: 0,
            max_bytes: 0,
        };
        let p = r.rig.dev.plugin();
        let expect = |what: &str, r: crate::raw::Raw<i32>| match r {
            Err(r) if r.unsupported() => Ok(()),
            Err(r) => Err(format!("{what}: {r}, and not UNSUPPORTED")),
            Ok(_) => Err(format!("{what} dropped an unknown field of the descriptor")),
        };
        if let Some(f) = table.comm_query {
            // SAFETY: a descriptor of the stated size.
            let r = p.call("comm_query", |e| unsafe {
                f(comm.handle(), at, &mut support, e)
            });
            expect("comm_query", r)?;
        }
        if let Some(f) = table.launch {
            // SAFETY: as above.
            let s = p.call("launch", |e| unsafe {
                f(comm.handle(), r.rig.stream.handle(), at, 1, e)
            });
            expect("launch", s)?;
        }
        r.rig.stream.finish()?;
        b.untouched(&r.rig)
    })
}

/// On a communicator of one rank.
fn alone(ctx: &Ctx, f: &(dyn Fn(&crate::Rank) -> Result<(), String> + Sync)) -> Check {
    if ctx.processes() {
        return skip("looked at in one process");
    }
    ctx.ranks(1, &|r| f(r).map(|()| crate::Answer::default()))?;
    pass()
}
