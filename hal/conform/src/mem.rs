//! `mem.*`: what memory holds, what may write it, and what is refused. Every area lies between sentinels that each read looks at.

use crate::case::{Case, Check, Demanded, Effort, pass, pass_with, refused, skip};
use crate::ctx::{Area, Ctx, Pinned, Rig, Rng};
use crossweave_abi as abi;
use crossweave_abi::Span;

/// The group's cases; those of [`Effort::Big`] allocate beyond 4 GiB.
pub fn cases(effort: Effort) -> Vec<Case> {
    let m = Demanded::MINIMAL;
    let mut v = vec![
        Case::new("mem.alloc.sizes", alloc_sizes).demanded(m),
        Case::new("mem.alloc.alignment", alignment).demanded(m),
        Case::new("mem.alloc.kinds", kinds).demanded(m),
        Case::new("mem.alloc.unknown_kind", unknown_kind).demanded(m),
        Case::new("mem.alloc.disjoint", disjoint).demanded(m),
        Case::new("mem.alloc.beyond_memory", oom).demanded(m),
        Case::new("mem.info.free_goes_down_and_up", free_reading),
        Case::new("mem.info.each_device_has_its_own", own_reading),
        Case::new("mem.map", map).demanded(m),
        Case::new("mem.map.device_memory", map_device).demanded(m),
        Case::new("mem.copy.sizes", copy_sizes).demanded(m),
        Case::new("mem.copy.every_two_kinds", copy_kinds).demanded(m),
        Case::new("mem.copy.unequal_lengths", copy_unequal).demanded(m),
        Case::new("mem.copy_2d", copy_2d).demanded(m),
        Case::new("mem.copy_2d.does_not_fit", copy_2d_bad),
        Case::new("mem.fill.patterns", fill_patterns).demanded(m),
        Case::new("mem.fill.refused_patterns", fill_bad).demanded(m),
        Case::new("mem.span.out_of_bounds", out_of_bounds),
        Case::new("mem.import_host_pointer", import),
        Case::new("mem.export", export),
        Case::new("mem.copy_peer", copy_peer),
        Case::new("mem.peer_access", peer_access),
    ];
    if effort == Effort::Big {
        v.push(Case::new("mem.copy.beyond_4_gib", copy_big).limit(300));
    }
    v
}

fn alloc_sizes(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    for kind in [abi::MEM_DEVICE, abi::MEM_HOST_PINNED] {
        for bytes in [
            0u64,
            1,
            2,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            (1 << 20) + 1,
            3 << 22,
        ] {
            let m = dev
                .alloc(kind, bytes, 0)
                .map_err(|r| format!("{bytes} bytes of kind {kind}: {r}"))?;
            drop(m);
        }
    }
    // The last byte is there.
    let rig = ctx.rig()?;
    for bytes in [1u64, 65, 4097, (1 << 20) + 1] {
        let m = rig.dev.alloc(abi::MEM_DEVICE, bytes, 0)?;
        rig.stream.fill(m.whole(), 7, 1)?;
        let p = rig.pinned(bytes)?;
        p.put(0, &vec![0; bytes as usize]);
        rig.stream.copy(p.mem.span(0, bytes), m.whole())?;
        rig.stream.finish()?;
        if p.get(0, bytes).iter().any(|b| *b != 7) {
            return Err(format!("not all of {bytes} bytes hold what was written"));
        }
    }
    pass()
}

fn alignment(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let own = u64::from(dev.info()?.align.max(1));
    if !own.is_power_of_two() {
        return Err(format!("device_info states an alignment of {own}"));
    }
    // Only mapped memory shows its address.
    for align in [0u64, 1, 8, 64, 256, 4096, 65536] {
        for bytes in [1u64, 100, 5000] {
            let m = match dev.alloc(abi::MEM_HOST_PINNED, bytes, align) {
                Ok(m) => m,
                Err(r) if align > 4096 && r.unsupported() => continue,
                Err(r) => return Err(format!("{bytes} bytes aligned to {align}: {r}")),
            };
            let at = m.map()? as u64;
            let want = if align == 0 { own.min(64) } else { align };
            if !at.is_multiple_of(want) {
                return Err(format!("{bytes} bytes aligned to {align} lie at {at:#x}"));
            }
        }
    }
    match dev.alloc(abi::MEM_DEVICE, 64, 3) {
        Ok(_) => Err("an alignment of 3 was accepted".into()),
        Err(r) if r.status == abi::E_INVALID || r.unsupported() => pass(),
        Err(r) => Err(format!("an alignment of 3: {r}, and not INVALID")),
    }
}

fn kinds(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    dev.alloc(abi::MEM_DEVICE, 64, 0)?;
    dev.alloc(abi::MEM_HOST_PINNED, 64, 0)?;
    match dev.alloc(abi::MEM_SYMMETRIC, 64, 0) {
        Ok(_) => pass_with("device, pinned, symmetric"),
        Err(r) if r.unsupported() => pass_with("device, pinned"),
        Err(r) => Err(format!(
            "symmetric memory: {r}, and neither OK nor UNSUPPORTED"
        )),
    }
}

fn unknown_kind(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    for kind in [0u32, 4, 99, u32::MAX] {
        match dev.alloc(kind, 64, 0) {
            Ok(_) => return Err(format!("memory of kind {kind} was given out")),
            Err(r) if r.unsupported() => {}
            Err(r) => return Err(format!("memory kind {kind}: {r}, and not UNSUPPORTED")),
        }
    }
    pass()
}

/// Areas do not overlap: each keeps its own pattern.
fn disjoint(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let mut rng = ctx.rng();
    let mut all = Vec::new();
    for i in 0..24u64 {
        let bytes = rng.bytes(1 + rng.clone().below(3000) + i);
        all.push((rig.area_of(&bytes)?, bytes));
    }
    for (i, (a, bytes)) in all.iter().enumerate() {
        if a.read(&rig)? != *bytes {
            return Err(format!("allocation {i} was changed by writing another"));
        }
    }
    pass()
}

/// More than there is fails as OOM, and the device works on.
fn oom(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let total = rig.dev.info()?.mem_total;
    for bytes in [
        total.saturating_mul(2).saturating_add(1 << 40),
        1 << 62,
        u64::MAX - 4096,
    ] {
        match rig.dev.alloc(abi::MEM_DEVICE, bytes, 0) {
            Ok(_) => {
                return Err(format!(
                    "{bytes} bytes were given out by a device that states {total}"
                ));
            }
            Err(r) if r.status == abi::E_OOM => {
                if r.sticky() {
                    return Err(format!("{bytes} bytes: OOM is marked sticky"));
                }
            }
            Err(r) if r.status == abi::E_INVALID && bytes > 1 << 61 => {}
            Err(r) => return Err(format!("{bytes} bytes: {r}, and not OOM")),
        }
    }
    let bytes = ctx.rng().bytes(5000);
    match rig.area_of(&bytes)?.read(&rig)? == bytes {
        true => pass(),
        false => Err("the device does not work on after OOM".into()),
    }
}

fn free_reading(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let bytes = 64u64 << 20;
    let before = dev.info()?;
    if before.mem_free > before.mem_total {
        return Err(format!(
            "{} of {} bytes are free",
            before.mem_free, before.mem_total
        ));
    }
    if before.mem_total == 0 || before.mem_total == u64::MAX {
        return skip("the device states no amount of memory");
    }
    let m = match dev.alloc(abi::MEM_DEVICE, bytes, 0) {
        Ok(m) => m,
        Err(r) if r.status == abi::E_OOM => return skip("no 64 MiB are free"),
        Err(r) => return Err(r.into()),
    };
    let held = dev.info()?.mem_free;
    drop(m);
    let after = dev.info()?.mem_free;
    if held.saturating_add(bytes / 2) > before.mem_free && before.mem_free > bytes {
        // Drivers that page lazily, or that others use too, may not show it.
        return skip(format!(
            "mem_free went from {} to {held} with 64 MiB taken",
            before.mem_free
        ));
    }
    match after.saturating_add(bytes / 2) > before.mem_free {
        true => pass(),
        false => Err(format!(
            "mem_free was {} and is {after} after the memory was freed",
            before.mem_free
        )),
    }
}

/// Memory of one device is not charged to another.
fn own_reading(ctx: &Ctx) -> Check {
    let [a, b, ..] = ctx.devices.as_slice() else {
        return skip("one device");
    };
    let devs = [ctx.plugin.open(*a)?, ctx.plugin.open(*b)?];
    let bytes = 64u64 << 20;
    let read =
        || -> Result<[u64; 2], String> { Ok([devs[0].info()?.mem_free, devs[1].info()?.mem_free]) };
    let mut seen = false;
    for (own, other) in [(0, 1), (1, 0)] {
        let before = read()?;
        let m = match devs[own].alloc(abi::MEM_DEVICE, bytes, 0) {
            Ok(m) => m,
            Err(r) if r.status == abi::E_OOM => return skip("no 64 MiB are free"),
            Err(r) => return Err(r.into()),
        };
        let held = read()?;
        drop(m);
        let after = read()?;
        // What went down and came up again by it; others may use the devices too.
        let taken = |d: usize| {
            let went = before[d].saturating_sub(held[d]);
            went.min(after[d].saturating_sub(held[d])) >= bytes / 2
        };
        seen |= taken(own);
        if taken(other) && !taken(own) {
            return Err(format!(
                "64 MiB of device {own} are missing from the free memory of device {other}, and not from its own"
            ));
        }
    }
    match seen {
        true => pass(),
        false => skip("mem_free does not show 64 MiB"),
    }
}

fn map(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let m = dev.alloc(abi::MEM_HOST_PINNED, 4096, 0)?;
    let (a, b) = (m.map()?, m.map()?);
    if a != b || a.is_null() {
        return Err(format!("two maps of one memory gave {a:?} and {b:?}"));
    }
    let p = Pinned::new(&dev, 4096)?;
    let bytes = ctx.rng().bytes(4096);
    p.put(0, &bytes);
    match p.get(0, 4096) == bytes {
        true => pass(),
        false => Err("mapped memory does not hold what the host wrote".into()),
    }
}

fn map_device(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let unified = dev.info()?.caps & abi::CAP_UNIFIED != 0;
    let m = dev.alloc(abi::MEM_DEVICE, 4096, 0)?;
    match (m.map(), unified) {
        (Ok(at), true) if !at.is_null() => pass_with("unified memory"),
        (Ok(_), true) => Err("mem_map answered OK and no address".into()),
        (Ok(_), false) => Err("device memory was mapped without CW_CAP_UNIFIED".into()),
        (Err(r), false) if r.unsupported() => pass_with("refused"),
        (Err(r), true) => Err(format!("CW_CAP_UNIFIED is stated, and {r}")),
        (Err(r), false) => Err(format!("{r}, and not UNSUPPORTED")),
    }
}

fn copy_sizes(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let mut rng = ctx.rng();
    // From nothing to beyond the pieces in which transfers are staged.
    let sizes = [0u64, 1, 2, 3, 4, 7, 8, 63, 64, 65, 255, 1000, 4097];
    let mut sizes = [&sizes[..], &[(1 << 20) + 3, (4 << 20) + 7]].concat();
    if ctx.effort != Effort::Quick {
        sizes.extend([(17 << 20) + 1, (65 << 20) + 5]);
    }
    for n in sizes {
        for (to, from) in [(0u64, 0u64), (1, 0), (0, 1), (5, 3), (4, 8)] {
            let bytes = rng.bytes(n);
            let (dst, src) = (rig.area_at(n, to)?, rig.area_at(n, from)?);
            src.write(&rig, &bytes)?;
            let what = |e: String| format!("{n} bytes from +{from} to +{to}: {e}");
            rig.stream
                .copy(dst.span(), src.span())
                .map_err(|r| what(r.into()))?;
            if dst.read(&rig).map_err(what)? != bytes {
                return Err(what("arrived changed".into()));
            }
            if src.read(&rig)? != bytes {
                return Err(what("the source was changed".into()));
            }
            if n > 1 << 16 {
                break;
            }
        }
    }
    pass()
}

fn copy_kinds(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let mut rng = ctx.rng();
    let kinds = [abi::MEM_DEVICE, abi::MEM_HOST_PINNED];
    for to in kinds {
        for from in kinds {
            let bytes = rng.bytes(10_001);
            let dst = Area::new(&rig, to, 10_001, 7)?;
            let src = Area::new(&rig, from, 10_001, 2)?;
            src.write(&rig, &bytes)?;
            rig.stream.copy(dst.span(), src.span())?;
            if dst
                .read(&rig)
                .map_err(|e| format!("kind {from} to {to}: {e}"))?
                != bytes
            {
                return Err(format!(
                    "a copy from kind {from} to kind {to} arrived changed"
                ));
            }
            if to != from {
                continue;
            }
            // From one part of a memory to another.
            rig.stream.copy(dst.part(6001, 4000), dst.part(10, 4000))?;
            let mut want = bytes;
            want.copy_within(10..4010, 6001);
            if dst.read(&rig)? != want {
                return Err(format!(
                    "a copy within a memory of kind {to} arrived changed"
                ));
            }
        }
    }
    pass()
}

fn copy_unequal(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (a, b) = (rig.area(100)?, rig.area_of(&[1; 100])?);
    for (to, from) in [(100u64, 99u64), (50, 100), (0, 1)] {
        match rig.stream.copy(a.part(0, to), b.part(0, from)) {
            Err(r) if r.status == abi::E_INVALID => {}
            Err(r) => return Err(format!("{from} bytes into {to}: {r}, and not INVALID")),
            Ok(()) => return Err(format!("a copy of {from} bytes into {to} was accepted")),
        }
    }
    a.untouched(&rig)?;
    pass()
}

fn copy_2d(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (device, host) = (abi::MEM_DEVICE, abi::MEM_HOST_PINNED);
    rows(ctx, &rig, [device; 2])?;
    for kinds in [[host, device], [device, host], [host; 2]] {
        rows(ctx, &rig, kinds)
            .map_err(|e| format!("kind {} to kind {}: {e}", kinds[1], kinds[0]))?;
    }
    pass()
}

/// Rows into memory of one kind from that of another.
fn rows(ctx: &Ctx, rig: &Rig, [to, from]: [u32; 2]) -> Result<(), String> {
    let mut rng = ctx.rng();
    let near = to == abi::MEM_DEVICE && from == abi::MEM_DEVICE;
    for (width, height, dpitch, spitch) in [
        (5u64, 7u64, 11u64, 6u64),
        (64, 3, 64, 128),
        (1, 100, 2, 3),
        (300, 1, 300, 300),
        (16, 0, 16, 16),
        (0, 4, 8, 8),
        (1000, 40, 1003, 1024),
        // Beyond what a dim of a grid, or a number of 16 bits, may be.
        (5, 70_003, 8, 7),
        (70_001, 3, 70_016, 70_005),
    ] {
        if !near && width * height > 1 << 17 {
            continue;
        }
        let need = |pitch: u64| {
            if height == 0 {
                0
            } else {
                (height - 1) * pitch + width
            }
        };
        let bytes = rng.bytes(need(spitch));
        let src = Area::new(rig, from, need(spitch), 1)?;
        let dst = Area::new(rig, to, need(dpitch), 3)?;
        src.write(rig, &bytes)?;
        let what = |e: String| {
            format!("{height} rows of {width} bytes, pitches {dpitch} and {spitch}: {e}")
        };
        rig.stream
            .copy_2d(dst.span(), dpitch, src.span(), spitch, width, height)
            .map_err(|r| what(r.into()))?;
        let mut want = vec![crate::ctx::POISON; need(dpitch) as usize];
        for r in 0..height {
            let (d, s) = ((r * dpitch) as usize, (r * spitch) as usize);
            want[d..d + width as usize].copy_from_slice(&bytes[s..s + width as usize]);
        }
        if dst.read(rig).map_err(what)? != want {
            return Err(what(
                "rows are wrong, or bytes between them were written".into(),
            ));
        }
    }
    Ok(())
}

fn copy_2d_bad(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let (a, b) = (rig.area(100)?, rig.area_of(&[1; 100])?);
    for (dpitch, spitch, width, height) in [
        (10u64, 10u64, 10u64, 11u64),
        (60, 10, 50, 2),
        (10, u64::MAX / 2, 5, 3),
    ] {
        match rig
            .stream
            .copy_2d(a.span(), dpitch, b.span(), spitch, width, height)
        {
            Err(r) if r.status == abi::E_INVALID || r.unsupported() => {}
            Err(r) => return Err(format!("{r}, and not INVALID")),
            Ok(()) => {
                return Err(format!(
                    "{height} rows of {width} bytes, pitches {dpitch} and {spitch}, were accepted for spans of 100 bytes"
                ));
            }
        }
    }
    a.untouched(&rig)?;
    pass()
}

fn fill_patterns(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    for kind in [abi::MEM_DEVICE, abi::MEM_HOST_PINNED] {
        fills(&rig, kind).map_err(|e| format!("memory of kind {kind}: {e}"))?;
    }
    pass()
}

fn fills(rig: &Rig, kind: u32) -> Result<(), String> {
    let pattern = 0x8877_6655_4433_2211u64;
    for size in [1u32, 2, 4, 8] {
        for units in [0u64, 1, 2, 3, 7, 64, 129, 5000, 1_100_003] {
            let n = units * u64::from(size);
            for at in [0u64, u64::from(size)] {
                let a = Area::new(rig, kind, n, at)?;
                // Bits above the pattern are not part of it.
                rig.stream
                    .fill(a.span(), pattern, size)
                    .map_err(|r| format!("{n} bytes of {size}: {r}"))?;
                let word = pattern.to_le_bytes();
                let want: Vec<u8> = (0..n as usize).map(|i| word[i % size as usize]).collect();
                let got = a
                    .read(rig)
                    .map_err(|e| format!("{n} bytes of {size}: {e}"))?;
                if got != want {
                    return Err(format!(
                        "{n} bytes with a pattern of {size} bytes hold another pattern"
                    ));
                }
            }
        }
    }
    Ok(())
}

fn fill_bad(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let a = rig.area(96)?;
    for size in [0u32, 3, 5, 16, u32::MAX] {
        match rig.stream.fill(a.span(), 0, size) {
            Err(r) if r.status == abi::E_INVALID => {}
            Err(r) => return Err(format!("a pattern of {size} bytes: {r}, and not INVALID")),
            Ok(()) => return Err(format!("a pattern of {size} bytes was accepted")),
        }
    }
    a.untouched(&rig)?;
    pass()
}

/// The host checks bounds; a plugin that checks them too must leave everything as it was.
fn out_of_bounds(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let m = rig.dev.alloc(abi::MEM_DEVICE, 4096, 0)?;
    let beyond = |offset: u64, bytes: u64| Span {
        mem: m.handle(),
        offset,
        bytes,
    };
    let empty = |s: Span| rig.stream.fill(s, 0, 1);
    // No byte may be touched by these even if they are accepted: they are empty, or wrap around.
    for s in [beyond(u64::MAX - 8, 16), beyond(1 << 63, 1 << 63)] {
        match empty(s) {
            Err(r) if r.status == abi::E_INVALID => {}
            Err(r) => return Err(format!("a span that wraps around: {r}, and not INVALID")),
            Ok(()) => {
                rig.stream.finish()?;
                return skip("bounds are left to the host");
            }
        }
    }
    pass()
}

fn import(ctx: &Ctx) -> Check {
    if ctx.plugin.d.mem_import.is_none() {
        return skip("no slot mem_import");
    }
    let rig = ctx.rig()?;
    let n = 8192usize;
    let mut home = vec![0u64; n / 8 + 64];
    let bytes = ctx.rng().bytes(n as u64);
    // SAFETY: a part of the vector, which lives until the import is gone.
    let at = unsafe { home.as_mut_ptr().cast::<u8>().add(64) };
    // SAFETY: inside the vector.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, n) };
    let native = |type_: u32| abi::Native {
        size: size_of::<abi::Native>() as u32,
        type_,
        value: [at as u64, 0, 0, 0],
        bytes: n as u64,
    };
    // SAFETY: an unknown type must not be looked into.
    match unsafe { rig.dev.import(&native(0xFFFF_0001)) } {
        Err(r) if r.unsupported() => {}
        Err(r) => return Err(format!("native type 0xffff0001: {r}, and not UNSUPPORTED")),
        Ok(_) => return Err("a native object of unknown type was imported".into()),
    }
    // SAFETY: the vector outlives the memory.
    let m = match unsafe { rig.dev.import(&native(abi::NATIVE_HOST_POINTER)) } {
        Ok(Some(m)) => m,
        Ok(None) => return skip("no slot mem_import"),
        Err(r) if r.unsupported() => return refused("host pointers are not imported"),
        Err(r) => return Err(r.into()),
    };
    let out = rig.area(n as u64)?;
    rig.stream.copy(out.span(), m.whole())?;
    if out.read(&rig)? != bytes {
        return Err("an imported host pointer does not show its bytes".into());
    }
    let other = ctx.rng().bytes(100);
    let src = rig.area_of(&other)?;
    rig.stream.copy(m.span(10, 100), src.span())?;
    rig.stream.finish()?;
    drop(m);
    // The object stays the caller's: it is still there after the handle is gone.
    // SAFETY: inside the vector; no stream uses it any more.
    let seen = unsafe { std::slice::from_raw_parts(at.add(10), 100).to_vec() };
    match seen == other {
        true => pass(),
        false => Err("what a stream wrote to an imported host pointer is not there".into()),
    }
}

fn export(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.mem_export else {
        return skip("no slot mem_export");
    };
    let rig = ctx.rig()?;
    let m = rig.dev.alloc(abi::MEM_DEVICE, 4096, 0)?;
    let mut out = abi::Native {
        size: size_of::<abi::Native>() as u32,
        type_: 0,
        value: [0; 4],
        bytes: 0,
    };
    // SAFETY: live memory, live out struct.
    let r = ctx.plugin.call("mem_export", |e| unsafe {
        f(m.handle(), 0xFFFF_0001, &mut out, e)
    });
    match r {
        Err(r) if r.unsupported() => pass(),
        Err(r) => Err(format!("native type 0xffff0001: {r}, and not UNSUPPORTED")),
        Ok(_) => Err("memory was exported as an unknown type".into()),
    }
}

fn peers(ctx: &Ctx) -> Result<Option<(Rig, Rig)>, String> {
    let [a, b, ..] = ctx.devices.as_slice() else {
        return Ok(None);
    };
    Ok(Some((
        Rig::on(ctx.plugin.open(*a)?)?,
        Rig::on(ctx.plugin.open(*b)?)?,
    )))
}

fn copy_peer(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.copy_peer else {
        return skip("no slot copy_peer: the host copies through pinned memory");
    };
    let Some((a, b)) = peers(ctx)? else {
        return skip("one device");
    };
    let mut rng = Rng::new(ctx.seed);
    // Both ways, and beyond the pieces in which transfers are staged.
    let sizes = [1u64, 100, 70_001, (4 << 20) + 7];
    for (n, (a, b)) in sizes
        .into_iter()
        .flat_map(|n| [(n, (&a, &b)), (n, (&b, &a))])
    {
        let bytes = rng.bytes(n);
        let src = a.area_of(&bytes)?;
        let dst = b.area_at(n, 3)?;
        // SAFETY: both memories live until the stream has passed.
        let r = ctx.plugin.call("copy_peer", |e| unsafe {
            f(b.stream.handle(), dst.span(), src.span(), e)
        });
        match r {
            Ok(_) => {}
            Err(r) if r.unsupported() => return refused(r.to_string()),
            Err(r) => return Err(r.into()),
        }
        if dst.read(b)? != bytes {
            return Err(format!("{n} bytes arrived changed on another device"));
        }
    }
    pass()
}

fn peer_access(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.peer_access else {
        return skip("no slot peer_access");
    };
    let Some((a, b)) = peers(ctx)? else {
        return skip("one device");
    };
    let (mut flags, mut gbps) = (u32::MAX, u32::MAX);
    // SAFETY: live devices and out pointers.
    ctx.plugin.call("peer_access", |e| unsafe {
        f(a.dev.handle(), b.dev.handle(), &mut flags, &mut gbps, e)
    })?;
    match flags & !3 == 0 && gbps != u32::MAX {
        true => pass_with(format!("flags {flags}, {gbps} Gbit/s")),
        false => Err(format!(
            "flags {flags:#x}, {gbps} Gbit/s: unknown bits or not written"
        )),
    }
}

/// 32-bit counts end here.
fn copy_big(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let n = (1u64 << 32) + 4096;
    let (a, b) = match (
        rig.dev.alloc(abi::MEM_DEVICE, n, 0),
        rig.dev.alloc(abi::MEM_DEVICE, n, 0),
    ) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(r), _) | (_, Err(r)) if r.status == abi::E_OOM => return skip(r.to_string()),
        (Err(r), _) | (_, Err(r)) => return Err(r.into()),
    };
    rig.stream.fill(a.whole(), 0x1122_3344, 4)?;
    rig.stream.fill(b.whole(), 0, 4)?;
    rig.stream.copy(b.whole(), a.whole())?;
    let p = rig.pinned(8192)?;
    rig.stream.copy(p.mem.span(0, 4096), b.span(0, 4096))?;
    rig.stream
        .copy(p.mem.span(4096, 4096), b.span(n - 4096, 4096))?;
    rig.stream.finish()?;
    let want: Vec<u8> = 0x1122_3344u32.to_le_bytes().repeat(2048);
    match p.get(0, 8192) == want {
        true => pass(),
        false => Err("the end of a copy beyond 4 GiB did not arrive".into()),
    }
}
