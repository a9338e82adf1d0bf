//! Every kind of edit of the headers, each refused or allowed by a rule of [`super::rules`].

use super::more_edits;
use super::parse::Header;
use super::plugin_header;
use super::rules::{Editorial, violations};

/// What becomes of an edit.
pub enum Is {
    /// The lock says this.
    Refused(&'static str),
    /// It may be made, by this row of the rules.
    Allowed(&'static str),
}
use Is::{Allowed, Refused};

/// A kind of edit, texts that replace others in the headers, and what becomes of it.
pub type Edit = (&'static str, &'static [(&'static str, &'static str)], Is);

pub const MINOR: (&str, &str) = ("#define CW_ABI_MINOR 0u", "#define CW_ABI_MINOR 1u");
const COPY: &str =
    "  cw_status (*copy)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);\n";
const LAST: &str =
    "cw_status (*topology)(cw_comm comm, void *out, uint64_t cap, uint64_t *len, cw_error *err);\n";
const MORE: &str = "cw_status (*topology)(cw_comm comm, void *out, uint64_t cap, uint64_t *len, cw_error *err);\n  cw_status (*more)(cw_comm comm);\n";
const APPENDED: &str = "a struct that states its size grows at its end, with a new minor";
pub const FREE: &str = "what is new is free";
const REVISED: &str = "a new revision of the op";
const MORE_PARAMS: (&str, &str) = (
    "  int64_t first_key;\n",
    "  int64_t first_key;\n  int64_t more;\n",
);
const EXT_FORWARD: (&str, &str) = (
    "Params: cw_attention_ext_params; at launch cw_philox_dyn. Revision 2;",
    "Params: cw_attention_ext_params; at launch cw_philox_dyn. Revision 3;",
);
const EXT_BACKWARD: (&str, &str) = EXT_FORWARD;

const EDITS: &[Edit] = &[
    // Places.
    (
        "two slots change places",
        &[
            ("(*copy)(", "(*gone)("),
            ("(*fill)(", "(*copy)("),
            ("(*gone)(", "(*fill)("),
        ],
        Refused("gone or changed: cw_device_api @200 copy"),
    ),
    (
        "two fields of one type change places",
        &[(
            "  uint64_t mem_total;\n  uint64_t mem_free;",
            "  uint64_t mem_free;\n  uint64_t mem_total;",
        )],
        Refused("cw_device_info @8 mem_total"),
    ),
    (
        "a slot in the middle",
        &[(
            COPY,
            "  cw_status (*set_2d)(cw_stream stream, cw_span dst, cw_error *err);\n  cw_status (*copy)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);\n",
        )],
        Refused("not appended: cw_device_api @200 set_2d"),
    ),
    (
        "a slot in the middle, with a minor",
        &[
            (
                COPY,
                "  cw_status (*set_2d)(cw_stream stream, cw_span dst, cw_error *err);\n  cw_status (*copy)(cw_stream stream, cw_span dst, cw_span src, cw_error *err);\n",
            ),
            MINOR,
        ],
        Refused("gone or changed: cw_device_api @200 copy"),
    ),
    (
        "a slot less",
        &[(COPY, "")],
        Refused("gone or changed: cw_device_api @200 copy"),
    ),
    (
        "a field less, its place kept",
        &[("  uint32_t numa_node;", "  uint32_t unused;")],
        Refused("cw_device_info @32 numa_node"),
    ),
    // Names.
    (
        "a slot's name",
        &[("(*copy_2d)(", "(*copy_rows)(")],
        Refused("cw_device_api @208 copy_2d"),
    ),
    (
        "a field's name",
        &[("  int64_t timeout_ns;", "  int64_t patience_ns;")],
        Refused("timeout_ns"),
    ),
    (
        "a struct's name",
        &[
            ("typedef struct cw_native {", "typedef struct cw_object {"),
            ("} cw_native;", "} cw_object;"),
            ("const cw_native *native", "const cw_object *native"),
            ("cw_native *out", "cw_object *out"),
        ],
        Refused("cw_native"),
    ),
    (
        "a constant's name",
        &[("#define CW_RED_AVG 5u", "#define CW_RED_MEAN 5u")],
        Refused("define CW_RED_AVG 5u"),
    ),
    (
        "names of two parameters of one type change places",
        &[(
            "(*copy)(cw_stream stream, cw_span dst, cw_span src,",
            "(*copy)(cw_stream stream, cw_span src, cw_span dst,",
        )],
        Refused("params cw_device_api.copy (stream, dst, src, err)"),
    ),
    (
        "names of two numbers change places",
        &[(
            "cw_span dst, uint64_t dpitch, cw_span src, uint64_t spitch,",
            "cw_span dst, uint64_t spitch, cw_span src, uint64_t dpitch,",
        )],
        Refused("params cw_device_api.copy_2d"),
    ),
    (
        "a field that was reserved has a name",
        &[(
            "  uint32_t reserved;\n  uint64_t seq;",
            "  uint32_t stream_of;\n  uint64_t seq;",
        )],
        Refused("cw_coll_desc @148 reserved"),
    ),
    // Types.
    (
        "a field is wider",
        &[("  uint32_t numa_node;", "  uint64_t numa_node;")],
        Refused("numa_node : uint32_t"),
    ),
    (
        "a field is narrower",
        &[("  uint64_t est_ns;", "  uint32_t est_ns;")],
        Refused("est_ns : uint64_t"),
    ),
    (
        "a field has a sign",
        &[(
            "  uint32_t rank; /* at most 8",
            "  int32_t rank; /* at most 8",
        )],
        Refused("cw_layout @8 rank : uint32_t"),
    ),
    (
        "a field has no sign",
        &[("  int64_t timeout_ns; /*", "  uint64_t timeout_ns; /*")],
        Refused("timeout_ns : int64_t"),
    ),
    (
        "another float",
        &[(
            "  double scale;\n  cw_span scale_dev;",
            "  float scale;\n  cw_span scale_dev;",
        )],
        Refused("scale : double"),
    ),
    (
        "a slot points at another struct",
        &[(
            "const cw_comm_config *cfg, cw_comm *out,\n                         cw_error",
            "const cw_coll_desc *cfg, cw_comm *out,\n                         cw_error",
        )],
        Refused("cw_collective_api @16 comm_init"),
    ),
    (
        "what is pointed at may be written",
        &[(
            "const cw_coll_desc *descs, uint32_t n,",
            "cw_coll_desc *descs, uint32_t n,",
        )],
        Refused("cw_collective_api @64 launch"),
    ),
    (
        "a struct goes by pointer",
        &[(
            "cw_span dst, uint64_t pattern",
            "cw_span *dst, uint64_t pattern",
        )],
        Refused("cw_device_api @224 fill"),
    ),
    (
        "a slot has a parameter more",
        &[(
            "(*mem_map)(cw_mem mem, void **host_ptr,",
            "(*mem_map)(cw_mem mem, uint32_t flags, void **host_ptr,",
        )],
        Refused("cw_device_api @64 mem_map"),
    ),
    (
        "a slot has a parameter less",
        &[(
            "cw_span workspace,\n                         const void *dyn",
            "const void *dyn",
        )],
        Refused("cw_ops_api @16 op_launch"),
    ),
    (
        "a slot answers something else",
        &[("  void (*event_destroy)(", "  cw_status (*event_destroy)(")],
        Refused("cw_device_api @128 event_destroy"),
    ),
    (
        "a handle is another type",
        &[("CW_HANDLE(cw_graph);", "typedef uint64_t cw_graph;")],
        Refused("handle cw_graph"),
    ),
    (
        "another status type",
        &[("typedef int32_t cw_status;", "typedef int64_t cw_status;")],
        Refused("typedef cw_status : int32_t"),
    ),
    // Sizes.
    (
        "a longer text",
        &[("char message[440]", "char message[4096]")],
        Refused("cw_error @72 message : char[440]"),
    ),
    (
        "a struct passed by value grows",
        &[
            (
                "  uint64_t bytes;\n} cw_span;",
                "  uint64_t bytes;\n  uint64_t stride;\n} cw_span;",
            ),
            MINOR,
        ],
        Refused("leaf cw_span size 24"),
    ),
    (
        "an element of an array inside a struct grows",
        &[
            ("  float imm;\n}", "  float imm;\n  uint32_t more;\n}"),
            MINOR,
        ],
        Refused("embedded cw_program_inst size 28"),
    ),
    (
        "an array inside a struct is longer",
        &[
            ("cw_program_inst insts[64]", "cw_program_inst insts[96]"),
            MINOR,
        ],
        Refused("cw_program_inst[64]"),
    ),
    (
        "a struct no longer states its size",
        &[(
            "typedef struct cw_native { /* an object of the platform: pointer, fd, dma-buf, IPC handle, by `type` */\n  uint32_t size;",
            "typedef struct cw_native {\n  uint32_t version;",
        )],
        Refused("cw_native @0 size"),
    ),
    (
        "a slot behind the last, and the old minor",
        &[(LAST, MORE)],
        Refused("CW_ABI_MINOR did not"),
    ),
    (
        "a slot behind the last, and a new minor",
        &[
            (LAST, MORE),
            (
                "CW_ASSERT_SIZE(cw_collective_api, 104)",
                "CW_ASSERT_SIZE(cw_collective_api, 112)",
            ),
            MINOR,
        ],
        Allowed(APPENDED),
    ),
    (
        "a field behind the last, and a new minor",
        &[
            (
                "  uint64_t seq; /* the host's call number on this communicator */\n",
                "  uint64_t seq; /* the host's call number on this communicator */\n  uint64_t deadline_ns;\n",
            ),
            (
                "CW_ASSERT_SIZE(cw_coll_desc, 160)",
                "CW_ASSERT_SIZE(cw_coll_desc, 168)",
            ),
            MINOR,
        ],
        Allowed(APPENDED),
    ),
    (
        "the minor goes up",
        &[("#define CW_ABI_MINOR 0u", "#define CW_ABI_MINOR 1u")],
        Allowed("a new minor alone breaks nothing"),
    ),
    (
        "elements of an array lie otherwise",
        &[(
            "  uint32_t size;\n  uint32_t kind;\n  uint32_t dtype;\n  uint32_t reduce;",
            "  uint32_t bytes_;\n  uint32_t kind;\n  uint32_t dtype;\n  uint32_t reduce;",
        )],
        Refused(
            "array cw_collective_api.launch.descs : cw_coll_desc every the `size` of the first",
        ),
    ),
    // Values.
    (
        "a constant has another value",
        &[("CW_COLL_BROADCAST 4u", "CW_COLL_BROADCAST 14u")],
        Refused("define CW_COLL_BROADCAST 4u"),
    ),
    (
        "two constants change values",
        &[
            ("CW_RED_MIN 3u", "CW_RED_MIN 44u"),
            ("CW_RED_MAX 4u", "CW_RED_MAX 3u"),
            ("CW_RED_MIN 44u", "CW_RED_MIN 4u"),
        ],
        Refused("define CW_RED_MIN 3u"),
    ),
    (
        "a constant less",
        &[("#define CW_COLL_BARRIER 11u\n", "")],
        Refused("define CW_COLL_BARRIER 11u"),
    ),
    (
        "a value has a second name",
        &[(
            "#define CW_RED_SUM 1u",
            "#define CW_RED_ADD 1u\n#define CW_RED_SUM 1u",
        )],
        Refused("CW_RED_ADD and CW_RED_SUM are one value"),
    ),
    (
        "a second name in another notation",
        &[(
            "#define CW_MEM_DEVICE 1u",
            "#define CW_MEM_LOCAL 0x1u\n#define CW_MEM_DEVICE 1u",
        )],
        Refused("are one value"),
    ),
    (
        "an op's id is used again",
        &[(
            "#define CW_OP_ADD 0x0181u",
            "#define CW_OP_ADD 0x0181u\n#define CW_OP_PLUS 0x0180u",
        )],
        Refused("CW_OP_DROPOUT and CW_OP_PLUS are one value"),
    ),
    (
        "a status is numbered anew",
        &[(
            "CW_E_PANIC        ((cw_status)-9)",
            "CW_E_PANIC        ((cw_status)-11)",
        )],
        Refused("define CW_E_PANIC"),
    ),
    (
        "a new constant with a value of its own",
        &[(
            "#define CW_RED_SUM 1u",
            "#define CW_RED_XOR 7u\n#define CW_RED_SUM 1u",
        )],
        Allowed(FREE),
    ),
    (
        "a new struct",
        &[(
            "typedef struct cw_launch {",
            "typedef struct cw_fresh {\n  uint32_t size;\n  uint32_t flags;\n} cw_fresh;\ntypedef struct cw_launch {",
        )],
        Allowed(FREE),
    ),
    // Entry and manifest.
    (
        "another entry",
        &[("\"crossweave_plugin_v1\"\n", "\"crossweave_plugin\"\n")],
        Refused("CW_ENTRY_NAME"),
    ),
    (
        "another section",
        &[("section(\".crossweave\")", "section(\".cwplugin\")")],
        Refused("manifest CW_SECTION"),
    ),
    (
        "another beginning of the manifest",
        &[(
            "\"crossweave-plugin;abi=1.0;\" text",
            "\"cw;abi=1.0;\" text",
        )],
        Refused("manifest CW_MANIFEST(text)"),
    ),
    (
        "a key of the manifest has another name",
        &[(";needs=libacme", ";requires=libacme")],
        Refused("manifest key needs"),
    ),
    // Ops.
    (
        "operands of an op change places",
        &[(
            "Operands: y:inout f, x:in f.",
            "Operands: x:in f, y:inout f.",
        )],
        Refused("op CW_OP_AXPBY has another signature"),
    ),
    (
        "an operand has another mode",
        &[("coef:in? f32, x:inout* f.", "coef:in? f32, x:out* f.")],
        Refused("op CW_OP_MULTI_SCALE has another signature"),
    ),
    (
        "an operand may be absent",
        &[(
            "Operands: y:out f, a:in f, b:in f.",
            "Operands: y:out f, a:in f, b:in? f.",
        )],
        Refused("op CW_OP_ADD has another signature"),
    ),
    (
        "an operand has more types",
        &[(
            "Operands: dst:out u8, a:in any,",
            "Operands: dst:out any, a:in any,",
        )],
        Refused("op CW_OP_COMPARE has another signature"),
    ),
    (
        "an op has an operand more",
        &[(
            "Operands: y:out f, x:in f, residual:in? f.",
            "Operands: y:out f, x:in f, residual:in? f, bias:in? f.",
        )],
        Refused("op CW_OP_DROPOUT has another signature"),
    ),
    (
        "an op has other parameters",
        &[("Params: cw_clamp_params.", "Params: cw_axpby_params.")],
        Refused("op CW_OP_CLAMP has another signature"),
    ),
    (
        "an op is mandatory",
        &[(
            "Params: cw_dropout_params; at launch cw_philox_dyn. Revision 1; fused, the core can decompose it;",
            "Params: cw_dropout_params; at launch cw_philox_dyn. Revision 1; primitive, mandatory;",
        )],
        Refused("op CW_OP_DROPOUT has another signature"),
    ),
    (
        "an op means something else",
        &[("add: y = a + b, dense;", "add: y = a - b, dense;")],
        Refused("the contract of CW_OP_ADD changed"),
    ),
    (
        "an op means something else in a new revision",
        &[
            ("add: y = a + b, dense;", "add: y = a - b, dense;"),
            (
                "Operands: y:out f, a:in f, b:in f. Params: cw_no_params. Revision 1;",
                "Operands: y:out f, a:in f, b:in f. Params: cw_no_params. Revision 2;",
            ),
        ],
        Allowed(REVISED),
    ),
    (
        "an op has an operand more in a new revision",
        &[(
            "Operands: y:out f, a:in f, b:in f. Params: cw_no_params. Revision 1;",
            "Operands: y:out f, a:in f, b:in f, c:in? f. Params: cw_no_params. Revision 2;",
        )],
        Allowed(REVISED),
    ),
    (
        "the parameters of two ops have a field more in new revisions of both",
        &[MORE_PARAMS, EXT_FORWARD, EXT_BACKWARD],
        Allowed(REVISED),
    ),
    (
        "the parameters of two ops have a field more, and one has no new revision",
        &[MORE_PARAMS, EXT_FORWARD],
        Refused("CW_ABI_MINOR did not"),
    ),
    (
        "a parameter of two ops means something else, and one has no new revision",
        &[
            (
                "Soft cap of the scores, cap tanh(s / cap)",
                "Soft cap of the scores, tanh(s / cap)",
            ),
            EXT_FORWARD,
        ],
        Refused("the contract of cw_attention_ext_params.cap changed"),
    ),
    (
        "a parameter of two ops means something else in new revisions of both",
        &[
            (
                "Soft cap of the scores, cap tanh(s / cap)",
                "Soft cap of the scores, tanh(s / cap)",
            ),
            EXT_FORWARD,
            EXT_BACKWARD,
        ],
        Allowed(REVISED),
    ),
    (
        "the revision goes down",
        &[(
            "Operands: y:out f, a:in f, b:in f. Params: cw_no_params. Revision 1;",
            "Operands: y:out f, a:in f, b:in f. Params: cw_no_params. Revision 0;",
        )],
        Refused("op CW_OP_ADD has another signature"),
    ),
    // Contracts.
    (
        "a slot promises something else",
        &[("Never blocks. kit: fault */", "May block. kit: fault */")],
        Refused("the contract of cw_collective_api.comm_async_error changed"),
    ),
    (
        "a field means something else",
        &[(
            "strides in elements, 0 broadcasts",
            "strides in bytes, 0 broadcasts",
        )],
        Refused("the contract of cw_layout changed"),
    ),
    (
        "a parameter of an op means something else",
        &[(
            "Factor of q.k; 0 means 1/sqrt(D).",
            "Factor of q.k; 0 means 1.",
        )],
        Refused("the contract of cw_attention_params.scale changed"),
    ),
    (
        "a constant means something else",
        &[(
            "/* sum divided by the ranks;",
            "/* sum divided by the ranks less one;",
        )],
        Refused("the contract of CW_RED_AVG changed"),
    ),
    (
        "a rule says something else",
        &[(
            "a longer one whose unknown tail is not all",
            "a longer one whose unknown tail is all",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.R1 changed"),
    ),
    (
        "what holds of all functions is another",
        &[(
            "a destroy function takes NULL and does\n * nothing",
            "a destroy function takes no NULL",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.common changed"),
    ),
    (
        "what holds of all ops is another",
        &[("x / 0 is 0", "x / 0 is -1")],
        Refused("the contract of CROSSWEAVE_OPS_H.head changed"),
    ),
    (
        "a promise is taken back",
        &[(
            "  /* Launches already enqueued stay valid. kit: leak */\n",
            "",
        )],
        Refused("the contract of cw_ops_api.op_release changed"),
    ),
    (
        "a slot promises something else in a new minor",
        &[
            ("Never blocks. kit: fault */", "May block. kit: fault */"),
            MINOR,
        ],
        Allowed("a contract changes with a new minor"),
    ),
    (
        "lines are broken elsewhere",
        &[(
            "a destroy function takes NULL and does\n * nothing",
            "a destroy function takes NULL\n * and does nothing",
        )],
        Allowed("words are compared, not lines"),
    ),
];

fn headers() -> [String; 2] {
    [plugin_header(), crossweave_hal::header::ops_header()]
}

fn parsed(texts: &[String; 2]) -> Result<Vec<String>, String> {
    Ok(Header::parse(&[&texts[0], &texts[1]])?.lock_lines())
}

/// The lock of the headers as they are.
fn today() -> Vec<String> {
    parsed(&headers()).expect("headers as the rules want them")
}

/// The ops header breaks its comments after so many characters: a phrase may go over two lines.
fn replaced(text: &str, from: &str, to: &str) -> Option<String> {
    if text.contains(from) {
        return Some(text.replacen(from, to, 1));
    }
    // The same words with a line's end between any two of them.
    let words: Vec<&str> = from.split(' ').collect();
    (1..words.len()).find_map(|at| {
        let broken = format!("{}\n * {}", words[..at].join(" "), words[at..].join(" "));
        text.contains(&broken)
            .then(|| text.replacen(&broken, to, 1))
    })
}

#[test]
fn every_kind_of_edit_is_refused_or_allowed_by_a_rule() {
    let old = today();
    let mut wrong = vec![];
    let all = || EDITS.iter().chain(more_edits::EDITS);
    for (what, changes, is) in all() {
        let mut texts = headers();
        for (from, to) in *changes {
            let at = (0..2).find_map(|i| replaced(&texts[i], from, to).map(|t| (i, t)));
            let (i, text) =
                at.unwrap_or_else(|| panic!("{what}: the fixture no longer matches: {from}"));
            texts[i] = text;
        }
        let found = match parsed(&texts) {
            Ok(new) => violations(&old, &new, &Editorial::new()).join("\n"),
            Err(why) => why,
        };
        match is {
            Refused(why) if !found.contains(why) => {
                wrong.push(format!("{what}: {found:?}, and not {why:?}"))
            }
            Allowed(rule) if !found.is_empty() => wrong.push(format!("{what} ({rule}): {found}")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let names: std::collections::BTreeSet<&str> = all().map(|e| e.0).collect();
    assert_eq!(names.len(), all().count(), "two edits of one name");
}

/// Words may change when somebody says that they change nothing; the entry is of this change and of no other.
#[test]
fn an_editorial_change_is_of_its_digests() {
    let old = today();
    let mut texts = headers();
    texts[0] = texts[0].replacen(
        "/* sum divided by the ranks;",
        "/* the sum divided by the ranks;",
        1,
    );
    let new = parsed(&texts).expect("a header");
    let found = violations(&old, &new, &Editorial::new());
    let [said] = &found[..] else {
        panic!("{found:?}")
    };
    let line = said.split('`').nth(1).expect("the entry to add");
    let entry = super::editorial(&line.replace("WHY", "an article was missing"));
    assert_eq!(violations(&old, &new, &entry), [""; 0]);
    assert!(
        super::editorial(line.trim_end_matches(" WHY")).is_empty(),
        "no reason is no entry"
    );
    texts[0] = texts[0].replacen("/* the sum divided by the ranks;", "/* the sum;", 1);
    let newest = parsed(&texts).expect("a header");
    assert_eq!(violations(&old, &newest, &entry).len(), 1);
    // One entry after the other leads from the words of an old lock to those of today, and never back.
    let digest = |lock: &[String]| {
        let mut of = lock
            .iter()
            .filter_map(|l| l.strip_prefix("contract CW_RED_AVG "));
        of.next().expect("a contract").to_owned()
    };
    let mut both = entry;
    both.insert(("CW_RED_AVG".into(), digest(&new), digest(&newest)));
    assert_eq!(violations(&old, &newest, &both), [""; 0]);
    assert_eq!(violations(&newest, &old, &both).len(), 1);
}

/// A minor that goes down, which no text of today can show.
#[test]
fn the_minor_does_not_go_down() {
    let old = today();
    let up: Vec<String> = old
        .iter()
        .map(|l| l.replace("CW_ABI_MINOR 0u", "CW_ABI_MINOR 1u"))
        .collect();
    assert_eq!(
        violations(&up, &old, &Editorial::new()),
        ["CW_ABI_MINOR went down"]
    );
}
