//! The Rust mirror against the header: every field's place and type, every function's signature, every constant.

use super::headers;
use super::parse::{Header, Ty};
use super::rules::number;
use crossweave_abi as abi;
use std::any::type_name_of_val;
use std::collections::BTreeMap;

/// `cw_device_info` → `DeviceInfo` with its module.
fn rust_struct(c: &str) -> String {
    let camel: String = c
        .trim_start_matches("cw_")
        .split('_')
        .map(|w| w[..1].to_uppercase() + &w[1..])
        .collect();
    let module = match camel.as_str() {
        "Host" | "Plugin" | "DeviceApi" | "OpsApi" | "CollectiveApi" | "GraphApi" => "api",
        _ => "types",
    };
    format!("crossweave_abi::{module}::{camel}")
}

/// How Rust prints the mirror of a C type.
fn rust_type(h: &Header, ty: &Ty) -> String {
    match ty {
        Ty::Array(t, n) => format!("[{}; {n}]", rust_type(h, t)),
        Ty::Ptr { to, konst } => {
            let kind = if *konst { "const" } else { "mut" };
            let void = **to == Ty::Named("void".into());
            format!(
                "*{kind} {}",
                if void {
                    "core::ffi::c_void".into()
                } else {
                    rust_type(h, to)
                }
            )
        }
        Ty::Fn { ret, params, .. } => {
            let p: Vec<String> = params.iter().map(|p| rust_type(h, p)).collect();
            let ret = match **ret == Ty::Named("void".into()) {
                true => String::new(),
                false => format!(" -> {}", rust_type(h, ret)),
            };
            format!("unsafe extern \"C\" fn({}){ret}", p.join(", "))
        }
        Ty::Named(n) => match n.as_str() {
            "char" | "uint8_t" => "u8".into(),
            "int32_t" | "cw_status" => "i32".into(),
            "uint32_t" => "u32".into(),
            "int64_t" => "i64".into(),
            "uint64_t" => "u64".into(),
            "double" => "f64".into(),
            n if h.handles.iter().any(|x| x == n) => "*mut core::ffi::c_void".into(),
            n => rust_struct(n),
        },
    }
}

/// A mirrored struct: C name, size, `(field, offset, type)`.
type Mirrored = (&'static str, usize, Vec<(String, usize, &'static str)>);

macro_rules! mirrored {
    ($($c:literal $t:ident { $($f:ident)* })*) => {
        vec![$({
            // SAFETY: integers, floats, nullable pointers and optional functions: zero is a value.
            let v: abi::$t = unsafe { std::mem::zeroed() };
            // A trailing underscore only avoids a Rust keyword.
            ($c, size_of::<abi::$t>(), vec![$((
                stringify!($f).trim_end_matches('_').to_owned(), std::mem::offset_of!(abi::$t, $f), type_name_of_val(&v.$f),
            )),*])
        }),*]
    };
}

fn all() -> Vec<Mirrored> {
    mirrored! {
        "cw_error" Error { size code vendor_code flags peer_rank where_ message }
        "cw_str" Str { ptr len }
        "cw_span" Span { mem offset bytes }
        "cw_native" Native { size type_ value bytes }
        "cw_host" Host { size abi_minor min_plugin_minor reserved ctx log config_get kv_set kv_get parallel_for spawn now_ns fault_point }
        "cw_plugin" Plugin { size abi_minor min_host_minor reserved name version vendor self_ get_interface shutdown }
        "cw_device_info" DeviceInfo { size kind mem_total mem_free caps numa_node align uuid name pci_bus_id arch }
        "cw_device_api" DeviceApi { size minor device_count device_open device_close device_info device_attr mem_alloc mem_free mem_map
            mem_import mem_export stream_create stream_destroy stream_query stream_sync event_create event_destroy event_record
            event_query event_sync event_elapsed stream_wait_event stream_host_call stream_wait_value stream_write_value copy copy_2d
            copy_peer fill peer_access }
        "cw_layout" Layout { size dtype rank flags shape stride }
        "cw_op_desc" OpDesc { size op op_revision n_operands operands params params_bytes math_flags reserved }
        "cw_op_plan" OpPlan { size tier workspace_bytes est_ns error_class }
        "cw_ops_api" OpsApi { size minor op_prepare op_launch op_release }
        "cw_coll_desc" CollDesc { size kind dtype reduce root peer count send recv send_counts send_offsets recv_counts recv_offsets
            scale scale_dev flags reserved seq }
        "cw_launch" Launch { size n comm stream descs }
        "cw_coll_support" CollSupport { size tier flags latency_ns bytes_per_s max_bytes }
        "cw_comm_config" CommConfig { size rank nranks flags timeout_ns kv_prefix name }
        "cw_collective_api" CollectiveApi { size minor unique_id comm_init comm_split comm_query comm_async_error comm_abort comm_destroy
            launch launch_multi mem_register mem_unregister topology }
        "cw_graph_api" GraphApi { size minor capture_begin capture_end graph_launch graph_release }
    }
}

#[test]
fn structs_and_signatures_agree() {
    let h = headers();
    let rust = all();
    let params = crossweave_hal::header::param_structs();
    for s in &h.structs {
        if let Some((_, fields)) = params.iter().find(|p| p.0 == s.name) {
            let want: Vec<_> = fields.iter().map(|(f, _, at)| (*f, *at)).collect();
            let got: Vec<_> = s
                .fields
                .iter()
                .map(|f| (f.name.as_str(), f.offset))
                .collect();
            assert_eq!(got, want, "{}", s.name);
            continue;
        }
        let (_, size, fields) = rust
            .iter()
            .find(|r| r.0 == s.name)
            .unwrap_or_else(|| panic!("{} has no mirror", s.name));
        assert_eq!(s.size, *size, "{}", s.name);
        assert_eq!(s.fields.len(), fields.len(), "{}", s.name);
        for (c, (name, at, ty)) in s.fields.iter().zip(fields) {
            let mut want = rust_type(&h, &c.ty);
            if matches!(c.ty, Ty::Fn { .. }) {
                want = format!("core::option::Option<{want}>");
            }
            assert_eq!(
                (c.name.trim_end_matches('_'), c.offset, want.as_str()),
                (name.as_str(), *at, *ty),
                "{}",
                s.name
            );
        }
    }
    assert_eq!(h.structs.len(), rust.len() + params.len());
}

#[test]
fn constants_agree_both_ways() {
    macro_rules! constants {
        ($($n:ident)*) => { vec![$((format!("CW_{}", stringify!($n)), abi::$n as i64)),*] };
    }
    let mut rust = constants!(OK NOT_READY E_UNSUPPORTED E_INVALID E_OOM E_DEVICE_LOST E_COMM E_TIMEOUT E_ABORTED E_INTERNAL E_PANIC
        E_VERSION ERRF_STICKY ERRF_RETRYABLE ABI_MINOR MEM_DEVICE MEM_HOST_PINNED MEM_SYMMETRIC NATIVE_HOST_POINTER CAP_UNIFIED CAP_HOST_PROGRESS
        CAP_DETERMINISTIC CAP_GRAPHS_PAY CAP_ALIGNED_OPERANDS MATH_DETERMINISTIC MATH_TF32 LAYOUT_CONTIGUOUS LAYOUT_MAY_ALIAS COLL_ALL_REDUCE COLL_REDUCE_SCATTER
        COLL_ALL_GATHER COLL_BROADCAST COLL_REDUCE COLL_ALL_TO_ALL COLL_ALL_TO_ALL_V COLL_ALL_GATHER_V COLL_SEND COLL_RECV
        COLL_BARRIER RED_SUM RED_PROD RED_MIN RED_MAX RED_AVG RED_PREMUL_SUM COLLF_ACC_F32);
    rust.extend(
        abi::DType::ALL.map(|d| (format!("CW_DT_{}", d.name().to_uppercase()), d.id() as i64)),
    );
    rust.extend(
        crossweave_hal::header::op_constants()
            .into_iter()
            .map(|(n, v)| (format!("CW_{n}"), v as i64)),
    );
    rust.extend(
        abi::op::OPS
            .iter()
            .map(|o| (format!("CW_OP_{}", o.name.to_uppercase()), o.id as i64)),
    );
    let rust: BTreeMap<String, i64> = rust.into_iter().collect();
    let c: BTreeMap<String, i64> = headers()
        .defines
        .into_iter()
        .filter(|(n, _)| n != "CW_ENTRY_NAME")
        .map(|(n, v)| (n, number(&v).expect("a number")))
        .collect();
    assert_eq!(c, rust);
}

#[test]
fn the_entry_name_agrees() {
    let entry = headers()
        .defines
        .into_iter()
        .find(|d| d.0 == "CW_ENTRY_NAME");
    assert_eq!(entry.unwrap().1, format!("{:?}", abi::ENTRY_NAME));
}
