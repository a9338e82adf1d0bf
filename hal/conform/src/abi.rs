//! `abi.*`: what a plugin must keep so that hosts and plugins of other ages fit: negotiation, sizes, unknown values, records, and what
//! its file shows of itself.

use crate::case::{Case, Check, Demanded, pass, pass_with, skip};
use crate::ctx::Ctx;
use crate::raw::{status_name, text};
use crossweave_abi as abi;
use crossweave_abi::Str;
use crossweave_hal::HostServices;
use crossweave_hal::manifest::Manifest;
use object::{Object, ObjectSymbol};
use std::ffi::c_void;

mod unknown;

/// The group's cases.
pub fn cases() -> Vec<Case> {
    let m = Demanded::MINIMAL;
    vec![
        Case::new("abi.manifest.agrees_with_the_entry", manifest),
        Case::new("abi.file.exported_symbols", exported),
        Case::new("abi.file.no_executable_stack", stack),
        Case::new("abi.file.no_allocator_of_its_own", allocator),
        Case::new("abi.names_are_text", names).demanded(m),
        Case::new("abi.entry.twice", entry_twice),
        Case::new(
            "abi.entry.newer_host_requirement_is_refused",
            newer_requirement,
        ),
        Case::new("abi.entry.null_host_and_out", entry_null),
        Case::new("abi.entry.smaller_plugin_table", smaller_plugin),
        Case::new("abi.entry.larger_host_table", larger_host),
        Case::new("abi.tables_state_their_size", table_sizes).demanded(m),
        Case::new("abi.tables_are_the_same_every_time", same_tables),
        Case::new("abi.unknown_interface", unknown_interface).demanded(m),
        Case::new("abi.no_write_past_smaller_struct", smaller_info).demanded(m),
        Case::new("abi.larger_out_struct", larger_info).demanded(m),
        Case::new("abi.null_error_record", null_record).demanded(m),
        Case::new("abi.smaller_error_record", smaller_record),
        Case::new("abi.error_record_on_failure_only", record_rules).demanded(m),
        Case::new("abi.unknown_attribute", unknown::unknown_attr),
        Case::new("abi.attribute_length", unknown::attr_length),
        Case::new("abi.unknown_flags", unknown::unknown_flags),
        Case::new("abi.unknown_op", unknown::unknown_op),
        Case::new("abi.op_descriptor_tail", unknown::op_tail),
        Case::new("abi.op_larger_descriptor", unknown::op_larger),
        Case::new("abi.unknown_collective", unknown::unknown_coll),
        Case::new("abi.unknown_descriptor_tail", unknown::coll_tail),
        Case::new("abi.two_hosts", two_hosts).alone(),
    ]
}

fn manifest(ctx: &Ctx) -> Check {
    let Some(file) = &ctx.file else {
        return skip("linked: no file");
    };
    let m = Manifest::read(file).map_err(|e| e.to_string())?;
    let p = &ctx.plugin;
    let mut wrong = vec![];
    if m.name != p.raw.name {
        wrong.push(format!(
            "name {:?} in the file, {:?} at the entry",
            m.name, p.raw.name
        ));
    }
    if m.vendor != p.raw.vendor {
        wrong.push(format!(
            "vendor {:?} in the file, {:?} at the entry",
            m.vendor, p.raw.vendor
        ));
    }
    for (id, there) in [
        (abi::IFACE_DEVICE, true),
        (abi::IFACE_OPS, p.ops.is_some()),
        (abi::IFACE_COLLECTIVE, p.coll.is_some()),
        (abi::IFACE_GRAPH, p.raw.graph.is_some()),
    ] {
        // A manifest need not list interfaces; when it does, the list is true.
        if !m.interfaces.is_empty() && m.interfaces.iter().any(|i| i == id) != there {
            wrong.push(format!(
                "{id} is {} the file's list and {}",
                if there { "not in" } else { "in" },
                if there { "offered" } else { "not offered" }
            ));
        }
    }
    match wrong.is_empty() {
        true => pass_with(format!("abi {}.{}", m.abi_major, m.abi_minor)),
        false => Err(wrong.join("; ")),
    }
}

fn bytes(ctx: &Ctx) -> Result<Option<Vec<u8>>, String> {
    match &ctx.file {
        None => Ok(None),
        Some(f) => std::fs::read(f).map(Some).map_err(|e| e.to_string()),
    }
}

/// One symbol, so that two plugins in one process never meet. Names that the toolchain exports by itself are known.
fn exported(ctx: &Ctx) -> Check {
    let Some(bytes) = bytes(ctx)? else {
        return skip("linked: no file");
    };
    let file = object::File::parse(&*bytes).map_err(|e| e.to_string())?;
    let allowed = |n: &str| {
        let n = n
            .strip_prefix('_')
            .filter(|_| cfg!(target_os = "macos"))
            .unwrap_or(n);
        n == abi::ENTRY_NAME
            || n == "crossweave_layer_v1"
            || matches!(
                n,
                "_init" | "_fini" | "__bss_start" | "_edata" | "_end" | "rust_eh_personality"
            )
    };
    let mut others: Vec<String> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition() && s.is_global())
        .filter_map(|s| s.name().ok().map(str::to_owned))
        .filter(|n| !n.is_empty() && !allowed(n))
        .collect();
    others.sort();
    match others.len() {
        0 => pass(),
        n => Err(format!(
            "{n} symbols besides {} are exported ({}): hide them (-fvisibility=hidden)",
            abi::ENTRY_NAME,
            others[..n.min(4)].join(", ")
        )),
    }
}

fn stack(ctx: &Ctx) -> Check {
    let Some(bytes) = bytes(ctx)? else {
        return skip("linked: no file");
    };
    use object::read::elf::{FileHeader, ProgramHeader};
    let Ok(header) = object::elf::FileHeader64::<object::Endianness>::parse(&*bytes) else {
        return skip("not a 64-bit ELF file");
    };
    let endian = header.endian().map_err(|e| e.to_string())?;
    let segments = header
        .program_headers(endian, &*bytes)
        .map_err(|e| e.to_string())?;
    let stack = segments
        .iter()
        .find(|s| s.p_type(endian) == object::elf::PT_GNU_STACK);
    match stack {
        Some(s) if s.p_flags(endian) & object::elf::PF_X == 0 => pass(),
        Some(_) => Err("it asks for an executable stack: link with -z noexecstack".into()),
        None => Err(
            "it does not say that its stack need not be executable: link with -z noexecstack"
                .into(),
        ),
    }
}

fn allocator(ctx: &Ctx) -> Check {
    let Some(bytes) = bytes(ctx)? else {
        return skip("linked: no file");
    };
    let file = object::File::parse(&*bytes).map_err(|e| e.to_string())?;
    let names = [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "posix_memalign",
        "_Znwm",
        "_ZdlPv",
    ];
    let own: Vec<String> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition())
        .filter_map(|s| s.name().ok().map(str::to_owned))
        .filter(|n| names.contains(&n.as_str()))
        .collect();
    if !own.is_empty() {
        return Err(format!(
            "it replaces {} for the whole process",
            own.join(", ")
        ));
    }
    match file.sections().count() {
        0 => Err("its file has no sections".into()),
        _ => pass(),
    }
}

fn names(ctx: &Ctx) -> Check {
    let p = &ctx.plugin.raw;
    let odd = |s: &str| s.is_empty() || s.chars().any(char::is_control);
    if odd(&p.name)
        || p.name
            .chars()
            .any(|c| c.is_whitespace() || c.is_uppercase())
    {
        return Err(format!("the name {:?} is not one lower-case word", p.name));
    }
    if odd(&p.version) || odd(&p.vendor) {
        return Err(format!(
            "version {:?}, vendor {:?}: text is wanted",
            p.version, p.vendor
        ));
    }
    let info = ctx.device()?.info()?;
    for (what, t) in [
        ("name", &info.name[..]),
        ("pci_bus_id", &info.pci_bus_id),
        ("arch", &info.arch),
    ] {
        if !t.contains(&0) {
            return Err(format!("the device's {what} has no end within its field"));
        }
    }
    if text(&info.name).is_empty() {
        return Err("the device has no name".into());
    }
    pass_with(format!("{} {} by {}", p.name, p.version, p.vendor))
}

/// A plugin table of `size` bytes of which the last are poison.
fn plugin_table(size: u32) -> (Vec<u64>, *mut abi::Plugin) {
    let mut store = vec![0xA5A5_A5A5_A5A5_A5A5u64; 64];
    let at = store.as_mut_ptr().cast::<abi::Plugin>();
    // SAFETY: 512 bytes, aligned to 8.
    unsafe {
        std::ptr::write_bytes(at.cast::<u8>(), 0, size as usize);
        (*at).size = size;
    }
    (store, at)
}

fn host(ctx: &Ctx, change: impl FnOnce(&mut abi::Host)) -> &'static abi::Host {
    let mut h = ctx.host.table();
    change(&mut h);
    // R9: the plugin may keep it.
    Box::leak(Box::new(h))
}

fn entry_twice(ctx: &Ctx) -> Check {
    let h = host(ctx, |_| ());
    for _ in 0..3 {
        let (_store, out) = plugin_table(size_of::<abi::Plugin>() as u32);
        // SAFETY: live tables of the stated sizes.
        ctx.plugin
            .call("entry", |e| unsafe { (ctx.plugin.entry)(h, out, e) })?;
        // SAFETY: filled by the entry.
        let p = unsafe { *out };
        let Some(get) = p.get_interface else {
            return Err("the second answer has no get_interface".into());
        };
        // SAFETY: as the loader does.
        let t = unsafe { get(p.self_, Str::new(abi::IFACE_DEVICE)) };
        if t.is_null() {
            return Err("the second answer offers no device interface".into());
        }
    }
    ctx.device()?;
    pass()
}

fn newer_requirement(ctx: &Ctx) -> Check {
    let h = host(ctx, |h| {
        h.abi_minor = 900;
        h.min_plugin_minor = 900;
    });
    let (_store, out) = plugin_table(size_of::<abi::Plugin>() as u32);
    // SAFETY: live tables of the stated sizes.
    match ctx
        .plugin
        .call("entry", |e| unsafe { (ctx.plugin.entry)(h, out, e) })
    {
        Err(r) if r.status == abi::E_VERSION => {
            if !r.message.contains("900") || !r.message.chars().any(|c| c == '0') {
                return Err(format!(
                    "the message {:?} does not carry both numbers",
                    r.message
                ));
            }
            pass_with(r.message)
        }
        Err(r) => Err(format!("{r}, and not VERSION")),
        Ok(_) => {
            Err("a host that needs plugin 1.900 was accepted (min_plugin_minor is ignored)".into())
        }
    }
}

fn entry_null(ctx: &Ctx) -> Check {
    let h = host(ctx, |_| ());
    // SAFETY: NULL out pointer: INVALID is asked for.
    let r = ctx.plugin.call("entry", |e| unsafe {
        (ctx.plugin.entry)(h, std::ptr::null_mut(), e)
    });
    match r {
        Err(r) if r.status == abi::E_INVALID => pass(),
        Err(r) => Err(format!("NULL out: {r}, and not INVALID")),
        Ok(_) => Err("a NULL plugin table was accepted".into()),
    }
}

/// A host that knows only the first fields: the rest is not written.
fn smaller_plugin(ctx: &Ctx) -> Check {
    let h = host(ctx, |_| ());
    let size = std::mem::offset_of!(abi::Plugin, shutdown) as u32;
    let (store, out) = plugin_table(size);
    // SAFETY: as stated by its size.
    let r = ctx
        .plugin
        .call("entry", |e| unsafe { (ctx.plugin.entry)(h, out, e) });
    let tail = &store[size as usize / 8..];
    if tail.iter().any(|w| *w != 0xA5A5_A5A5_A5A5_A5A5) {
        return Err(format!(
            "a plugin table of {size} bytes was written beyond them"
        ));
    }
    r?;
    pass()
}

/// A host of a later minor has more services: what lies behind the known ones is not looked at.
fn larger_host(ctx: &Ctx) -> Check {
    let mut words = vec![0xDEAD_BEEF_DEAD_BEEFu64; 32];
    let h = host(ctx, |_| ());
    // SAFETY: 256 bytes, of which the first are the table.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(h).cast::<u8>(),
            words.as_mut_ptr().cast::<u8>(),
            size_of::<abi::Host>(),
        );
    }
    let words: &'static mut [u64] = words.leak();
    let at = words.as_mut_ptr().cast::<abi::Host>();
    // SAFETY: as above.
    unsafe {
        (*at).size = 256;
        (*at).abi_minor = 7;
    }
    let (_store, out) = plugin_table(size_of::<abi::Plugin>() as u32);
    // SAFETY: live tables of the stated sizes.
    ctx.plugin
        .call("entry", |e| unsafe { (ctx.plugin.entry)(at, out, e) })?;
    ctx.device()?;
    pass()
}

fn interface(ctx: &Ctx, id: &str) -> *const c_void {
    let p = &ctx.plugin.raw;
    // SAFETY: as the loader does.
    unsafe { (p.get_interface)(p.self_, Str::new(id)) }
}

fn table_sizes(ctx: &Ctx) -> Check {
    for (id, least, known) in [
        (abi::IFACE_DEVICE, 200u32, size_of::<abi::DeviceApi>()),
        (abi::IFACE_OPS, 32, size_of::<abi::OpsApi>()),
        (abi::IFACE_COLLECTIVE, 72, size_of::<abi::CollectiveApi>()),
        (abi::IFACE_GRAPH, 40, size_of::<abi::GraphApi>()),
    ] {
        let t = interface(ctx, id).cast::<u32>();
        if t.is_null() {
            continue;
        }
        // SAFETY: a size-prefixed table.
        let size = unsafe { t.read() };
        if size < least || size > 65536 || !size.is_multiple_of(8) {
            return Err(format!(
                "{id} states a size of {size}; sizeof is {known} here"
            ));
        }
    }
    pass()
}

fn same_tables(ctx: &Ctx) -> Check {
    for id in [
        abi::IFACE_DEVICE,
        abi::IFACE_OPS,
        abi::IFACE_COLLECTIVE,
        abi::IFACE_GRAPH,
    ] {
        if interface(ctx, id) != interface(ctx, id) {
            return Err(format!("{id}: two questions gave two tables"));
        }
    }
    pass()
}

fn unknown_interface(ctx: &Ctx) -> Check {
    for id in [
        "crossweave.device/2",
        "crossweave.device/",
        "crossweave.device/11",
        "crossweave.graph/2",
        "x.nobody.thing/0",
        "",
        "Crossweave.Device/1",
    ] {
        if !interface(ctx, id).is_null() {
            return Err(format!("the interface {id:?} was answered with a table"));
        }
    }
    // Strings are not NUL-terminated: the length counts.
    let p = &ctx.plugin.raw;
    let long = "crossweave.device/1xyz";
    let cut = Str {
        ptr: long.as_ptr(),
        len: 19,
    };
    // SAFETY: 19 bytes of a live string.
    match unsafe { (p.get_interface)(p.self_, cut) }.is_null() {
        false => pass(),
        true => {
            Err("an id that is not NUL-terminated is not found: cw_str carries its length".into())
        }
    }
}

/// Bytes behind a struct that an older host owns stay as they were.
fn smaller_info(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let Some(f) = ctx.plugin.d.device_info else {
        return skip("no slot device_info");
    };
    for size in [16u32, 40, 56, 120] {
        let mut store = vec![0xA5u8; 512];
        store[..4].copy_from_slice(&size.to_le_bytes());
        let mut words = vec![0u64; 64];
        // SAFETY: 512 bytes each.
        unsafe { std::ptr::copy_nonoverlapping(store.as_ptr(), words.as_mut_ptr().cast(), 512) };
        // SAFETY: a struct of the stated size, aligned to 8.
        ctx.plugin
            .call("device_info", |e| unsafe {
                f(dev.handle(), words.as_mut_ptr().cast(), e)
            })
            .map_err(|r| format!("a record of {size} bytes: {r}"))?;
        let after: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if after[size as usize..].iter().any(|b| *b != 0xA5) {
            return Err(format!("device_info wrote beyond a record of {size} bytes"));
        }
        if after[4..8] == [0xA5; 4] {
            return Err(format!(
                "device_info wrote nothing into a record of {size} bytes"
            ));
        }
    }
    pass()
}

/// A newer host's longer record is filled as far as the plugin knows it.
fn larger_info(ctx: &Ctx) -> Check {
    let dev = ctx.device()?;
    let Some(f) = ctx.plugin.d.device_info else {
        return skip("no slot device_info");
    };
    let want = dev.info()?;
    let mut words = vec![0u64; 64];
    words[0] = 400;
    // SAFETY: a struct of 400 bytes, aligned to 8.
    ctx.plugin.call("device_info", |e| unsafe {
        f(dev.handle(), words.as_mut_ptr().cast(), e)
    })?;
    // SAFETY: the first bytes are the record.
    let got = unsafe { words.as_ptr().cast::<abi::DeviceInfo>().read() };
    if words[50..].iter().any(|w| *w != 0) {
        return Err("device_info wrote beyond a record of 400 bytes".into());
    }
    match (got.kind, got.mem_total, got.name) == (want.kind, want.mem_total, want.name) {
        true => pass(),
        false => Err("a longer record is filled differently".into()),
    }
}

fn null_record(ctx: &Ctx) -> Check {
    let null = std::ptr::null_mut();
    let p = &ctx.plugin;
    let mut n = 0;
    let mut h = null;
    // SAFETY: "the error record may be NULL".
    unsafe {
        if let Some(f) = p.d.device_count {
            let s = f(p.raw.self_, &mut n, std::ptr::null_mut());
            if s != abi::OK {
                return Err(format!("device_count without a record: {}", status_name(s)));
            }
        }
        if let Some(f) = p.d.device_open {
            let s = f(p.raw.self_, u32::MAX, &mut h, std::ptr::null_mut());
            if s != abi::E_INVALID {
                return Err(format!(
                    "device_open of a device that is not there, without a record: {}",
                    status_name(s)
                ));
            }
        }
        if let Some(f) = p.d.stream_query {
            f(null, std::ptr::null_mut());
        }
    }
    pass()
}

/// A shorter record is filled as far as it goes, with its text ended.
fn smaller_record(ctx: &Ctx) -> Check {
    let Some(f) = ctx.plugin.d.device_open else {
        return skip("no slot device_open");
    };
    for size in [16u32, 24, 72, 100] {
        let mut words = vec![0xA5A5_A5A5_A5A5_A5A5u64; 80];
        words[0] = u64::from(size) | (u64::from(0xA5A5_A5A5u32) << 32);
        let mut h = std::ptr::null_mut();
        // SAFETY: a record of the stated size.
        let s = unsafe {
            f(
                ctx.plugin.raw.self_,
                u32::MAX,
                &mut h,
                words.as_mut_ptr().cast(),
            )
        };
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if bytes[size as usize..].iter().any(|b| *b != 0xA5) {
            return Err(format!(
                "an error record of {size} bytes was written beyond them"
            ));
        }
        if bytes[4..8] != s.to_le_bytes() {
            return Err(format!(
                "an error record of {size} bytes does not carry the status"
            ));
        }
        if size > 72 && !bytes[72..size as usize].contains(&0) {
            return Err(format!(
                "the message in an error record of {size} bytes has no end"
            ));
        }
    }
    pass()
}

/// Success leaves the record alone, failure fills it: the kit watches every call; here are some of both kinds.
fn record_rules(ctx: &Ctx) -> Check {
    let rig = ctx.rig()?;
    let a = rig.area(100)?;
    rig.stream.fill(a.span(), 1, 1)?;
    rig.stream.finish()?;
    let e = rig.dev.event()?;
    rig.stream.record(&e)?;
    rig.stream.wait(&e)?;
    rig.stream.finish()?;
    let mut said = vec![];
    for r in [
        ctx.plugin.open(u32::MAX).err(),
        rig.dev.alloc(99, 64, 0).err(),
        rig.stream.fill(a.span(), 0, 3).err(),
    ]
    .into_iter()
    .flatten()
    {
        if r.message.trim().is_empty() {
            return Err(format!("{} failed without a word", r.slot));
        }
        said.push(r.slot);
    }
    match said.is_empty() {
        false => pass(),
        true => Err("three wrong calls were all accepted".into()),
    }
}

/// R9: a second host in one process gets an answer, and devices opened through it work.
fn two_hosts(ctx: &Ctx) -> Check {
    let other = HostServices::builder().build();
    // SAFETY: the entry of a plugin that is loaded.
    let raw = unsafe { crossweave_hal::RawPlugin::from_entry(ctx.plugin.entry, &other) };
    let raw = raw.map_err(|e| e.to_string())?;
    let second = crate::raw::Plugin::new(raw, ctx.plugin.entry)?;
    let second = std::sync::Arc::new(second);
    let rig = ctx.rig()?;
    let theirs = crate::Rig::on(second.open(ctx.devices[0])?)?;
    let bytes = ctx.rng().bytes(3000);
    let (a, b) = (rig.area_of(&bytes)?, theirs.area_of(&bytes)?);
    match a.read(&rig)? == bytes && b.read(&theirs)? == bytes {
        true => pass(),
        false => Err("two hosts disturb each other".into()),
    }
}
