//! The tables of ACL and HCCL against Huawei's own headers, where they are (`ci/packages` fetches them): every function's arity and the width and kind
//! of each argument, every number, and the layout of what is passed by address. A wrong signature, a swapped number and a moved field must each
//! fail. aclnn's operators have no header to be had: only that each is declared once is looked at.

use crate::{acl, aclnn, error, hccl};
use crossweave_gpu::library::shape::Signature;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const PRELUDE: &str =
    "#include <acl/acl.h>\n#include <acl/acl_rt.h>\n#include <third_party/hccl/inc/hccl/hccl.h>\n";

fn compile(name: &str, root: &Path, assertions: &str) -> Result<(), String> {
    let above = root.join("..");
    let folders = [root.join("acl/inc"), root.join("hccl/inc"), above];
    let folders: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    crossweave_tests::headers::compile(name, PRELUDE, &folders, assertions)
}

fn signature(s: &Signature) -> String {
    let classes = match s.name {
        // A union of four bytes, by value.
        "HcclSetConfig" => "I4, I4, S(4)".into(),
        _ => s.classes.join(", "),
    };
    format!("SIG({}, {classes});\n", s.name)
}

fn numbers() -> String {
    let mut t = String::new();
    for (v, name) in hccl::WORDS.iter().enumerate() {
        let _ = writeln!(t, "VAL({}, {v});", name.to_string_lossy());
    }
    for (name, v) in error::numbers() {
        let _ = writeln!(t, "VAL({name}, {v});");
    }
    for (name, v) in [
        ("ACL_SUCCESS", 0),
        ("ACL_ERROR_REPEAT_INITIALIZE", 100002),
        ("ACL_MEMCPY_HOST_TO_DEVICE", acl::copy::HOST_TO_DEVICE),
        ("ACL_MEMCPY_DEVICE_TO_HOST", acl::copy::DEVICE_TO_HOST),
        ("ACL_MEMCPY_DEVICE_TO_DEVICE", acl::copy::DEVICE_TO_DEVICE),
        ("ACL_MEM_MALLOC_HUGE_FIRST", acl::HUGE_FIRST),
        ("ACL_HBM_MEM", acl::HBM),
        (
            "(ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE)",
            acl::EVENT_FLAGS as i32,
        ),
        ("ACL_EVENT_RECORDED_STATUS_COMPLETE", acl::EVENT_COMPLETE),
        (
            "(ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC)",
            acl::STREAM_FLAGS as i32,
        ),
        ("ACL_STREAM_STATUS_COMPLETE", acl::STREAM_COMPLETE),
        ("ACL_CALLBACK_BLOCK", acl::CALLBACK_BLOCK),
        ("ACL_OPT_DETERMINISTIC", acl::OPT_DETERMINISTIC),
        ("ACL_HOST_REG_PINNED", acl::HOST_REG_PINNED as i32),
        ("ACL_FLOAT", 0),
        ("ACL_FLOAT16", 1),
        ("ACL_INT32", 3),
        ("ACL_UINT8", 4),
        ("ACL_INT16", 6),
        ("ACL_INT64", 9),
        ("ACL_BOOL", 12),
        ("ACL_BF16", 27),
        ("ACL_FORMAT_ND", 2),
        ("HCCL_DETERMINISTIC", 0),
        ("HCCL_SEND", 0),
        ("HCCL_RECV", 1),
        ("HCCL_REDUCE_SUM", 0),
        ("HCCL_REDUCE_PROD", 1),
        ("HCCL_REDUCE_MAX", 2),
        ("HCCL_REDUCE_MIN", 3),
    ] {
        let _ = writeln!(t, "VAL({name}, {v});");
    }
    let types = [
        "INT8", "UINT8", "INT32", "UINT32", "INT64", "UINT64", "FP16", "FP32", "FP64", "BFP16",
    ];
    for (nccl, name) in types.iter().enumerate() {
        let v = hccl::number(nccl as u32);
        let _ = writeln!(t, "VAL(HCCL_DATA_TYPE_{name}, {v});");
    }
    t
}

fn layouts() -> String {
    let (size, at) = hccl::item_layout();
    let mut t = format!(
        "SIZ(HcclRootInfo, {});\nSIZ(HcclSendRecvItem, {size});\n",
        hccl::ROOT_INFO
    );
    t += "SIZ(aclrtUuid, 16);\n";
    for (field, at) in ["sendRecvType", "buf", "count", "dataType", "remoteRank"]
        .iter()
        .zip(at)
    {
        let _ = writeln!(t, "OFF(HcclSendRecvItem, {field}, {at});");
    }
    t
}

#[test]
fn every_signature_number_and_layout_is_that_of_huaweis_headers() {
    let Some(root) = crossweave_tests::tools::cann_headers() else {
        let why = "target/cann holds none of CANN's headers (ci/packages fetches them), and CROSSWEAVE_CANN_HEADERS names none";
        return crossweave_tests::tools::missing("cann", why);
    };
    let all = [acl::Functions::signatures(), hccl::Functions::signatures()].concat();
    assert!(all.len() > 45, "{} functions", all.len());
    let text: String = all.iter().map(signature).collect();
    let text = text + &numbers() + &layouts();
    compile("cann", &root, &text).unwrap_or_else(|e| panic!("{e}"));

    // What is wrong is found: an argument of another width, one too many, two numbers swapped, a field elsewhere.
    let wrong = "SIG(aclrtMemcpyAsync, I4, P, I4, P, I8, I4, P);\nSIG(aclrtFree, I4, P, P);\nVAL(ACL_FLOAT16, 27);\nVAL(ACL_BF16, 1);\n\
                 OFF(HcclSendRecvItem, count, 8);\nSIZ(HcclRootInfo, 128);\n";
    let said = compile("cann-controls", &root, wrong).expect_err("six wrong assertions");
    for what in [
        "signature of aclrtMemcpyAsync",
        "signature of aclrtFree",
        "number of ACL_FLOAT16",
        "number of ACL_BF16",
        "place of HcclSendRecvItem.count",
        "size of HcclRootInfo",
    ] {
        assert!(said.contains(what), "{what} is not found: {said}");
    }
}

#[test]
fn an_operator_is_declared_once() {
    let names: BTreeSet<&str> = aclnn::NAMES.iter().copied().collect();
    assert_eq!(names.len(), aclnn::NAMES.len());
}
