//! Edits of what stands beside declarations: sections, profiles, macros, attributes, packing, assertions, names in function types, bits.

use super::edits::Is::{Allowed, Refused};
use super::edits::{Edit, FREE, MINOR};

const SECTION: &str =
    "/* ------------------------------------------------------------------ crossweave.graph/1\n";
const NEW_CAP: &str = "#define CW_CAP_UNIFIED 1u ";
const SPAN: &str = "  uint64_t bytes;\n} cw_span;";

pub const EDITS: &[Edit] = &[
    // Sections and the header's own words.
    (
        "a section is a comment like others",
        &[(SECTION, "/* crossweave.graph/1\n")],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.crossweave.graph/1 changed"),
    ),
    (
        "an interface as a whole promises something else",
        &[(
            "The host launches a graph only while",
            "The host launches a graph also when",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.crossweave.graph/1 changed"),
    ),
    (
        "the rule of the host's services",
        &[(
            "Any of them may be NULL. A plugin",
            "None of them is NULL. A plugin",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.host-services changed"),
    ),
    (
        "what the low byte of a type is",
        &[(
            "storage bits in the low byte",
            "storage bytes in the low byte",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.element-types changed"),
    ),
    (
        "the header is of another C",
        &[("major 1. C11 and C++17.", "major 1. C23 and C++17.")],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.title changed"),
    ),
    (
        "a section with a rule",
        &[(
            SECTION,
            "/* ---- threads\n * One thread calls everything. */\n/* ---- crossweave.graph/1\n",
        )],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.threads changed"),
    ),
    (
        "a section with a rule, and a new minor",
        &[
            (
                SECTION,
                "/* ---- threads\n * One thread calls everything. */\n/* ---- crossweave.graph/1\n",
            ),
            MINOR,
        ],
        Allowed("a contract changes with a new minor"),
    ),
    (
        "a promise behind the last field",
        &[(
            SPAN,
            "  uint64_t bytes;\n  /* bytes is even. */\n} cw_span;",
        )],
        Refused("the contract of cw_span.end changed"),
    ),
    (
        "a comment less",
        &[(" /* UINT32_MAX = unknown */", "")],
        Refused("the contract of cw_device_info.numa_node changed"),
    ),
    (
        "a comment is about another field",
        &[(
            "  uint64_t caps; /* CW_CAP_* */\n  uint32_t numa_node;",
            "  uint64_t caps;\n  /* CW_CAP_* */ uint32_t numa_node;",
        )],
        Refused("the contract of cw_device_info.caps changed"),
    ),
    (
        "dashes are longer",
        &[(SECTION, "/* ------ crossweave.graph/1\n")],
        Refused("the contract of CROSSWEAVE_PLUGIN_H.crossweave.graph/1 changed"),
    ),
    // Profiles.
    (
        "a profile demands more",
        &[(
            "histogram i32 i32; philox",
            "histogram i32 i32 | i32 i64; philox",
        )],
        Refused("a demand is new and CW_ABI_MINOR is not: profile minimal histogram i32 i64"),
    ),
    (
        "a profile demands more, and a new minor",
        &[
            (
                "histogram i32 i32; philox",
                "histogram i32 i32 | i32 i64; philox",
            ),
            MINOR,
        ],
        Allowed("a new demand is a new minor"),
    ),
    (
        "a profile demands less",
        &[("histogram i32 i32; philox", "philox")],
        Refused("a demand is gone and CW_ABI_MINOR is not new: profile minimal histogram i32 i32"),
    ),
    (
        "a collective more is demanded",
        &[(
            "all_reduce f32 sum; all_gather u8;",
            "all_reduce f32 sum; all_reduce f32 max; all_gather u8;",
        )],
        Refused("a demand is new and CW_ABI_MINOR is not: profile collective all_reduce f32 max"),
    ),
    (
        "what a row of a profile means",
        &[(
            "absent ones left out: `?` may be absent",
            "absent ones left out: `?` is absent",
        )],
        Refused("the contract of CROSSWEAVE_OPS_H.foot changed"),
    ),
    // Macros and what else a compiler is given.
    (
        "a handle is made otherwise",
        &[(
            "#define CW_HANDLE(n) typedef struct n##_impl *n",
            "#define CW_HANDLE(n) typedef void *n",
        )],
        Refused("gone or changed: macro CW_HANDLE [] (n) typedef struct n##_impl *n"),
    ),
    (
        "the entry is hidden",
        &[("visibility(\"default\")", "visibility(\"hidden\")")],
        Refused("gone or changed: macro CW_EXPORT"),
    ),
    (
        "the section of one platform",
        &[("__DATA,__crossweave", "__DATA,__cw")],
        Refused("gone or changed: macro CW_SECTION"),
    ),
    (
        "a platform more, out of the others",
        &[(
            "#elif defined(__APPLE__)\n",
            "#elif defined(__linux__)\n#define CW_SECTION __attribute__((used, section(\".cw\")))\n#elif defined(__APPLE__)\n",
        )],
        Refused(
            "not of the lock: macro CW_SECTION [!(defined(_MSC_VER)) && !(defined(_WIN32)) && defined(__linux__)]",
        ),
    ),
    (
        "an assertion asserts nothing",
        &[(
            "#define CW_ASSERT_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)",
            "#define CW_ASSERT_SIZE(type, bytes) _Static_assert(1, #type)",
        )],
        Refused("gone or changed: macro CW_ASSERT_SIZE [!(defined(__cplusplus))]"),
    ),
    (
        "a new macro",
        &[(
            "#define CW_HANDLE(n)",
            "#define CW_ALL(n) (n)\n#define CW_HANDLE(n)",
        )],
        Allowed(FREE),
    ),
    (
        "a macro is only of some compilers",
        &[(
            "#define CW_COLL_BARRIER 11u\n",
            "#ifdef CW_BARRIERS\n#define CW_COLL_BARRIER 11u\n#endif\n",
        )],
        Refused("gone or changed: define CW_COLL_BARRIER 11u"),
    ),
    (
        "a slot is only of some compilers",
        &[(
            "  void (*event_destroy)(cw_event event);\n",
            "#ifndef CW_LEAN\n  void (*event_destroy)(cw_event event);\n#endif\n",
        )],
        Refused("is declared only where !defined(CW_LEAN)"),
    ),
    (
        "C++ gives names of its own",
        &[("extern \"C\" {", "namespace crossweave {")],
        Refused("namespace crossweave { is declared only where defined(__cplusplus)"),
    ),
    (
        "another header is needed",
        &[(
            "#include <stdint.h>\n",
            "#include <stdint.h>\n#include <sys/types.h>\n",
        )],
        Refused("not of the lock: include [] <sys/types.h>"),
    ),
    (
        "a header less",
        &[("#include <stddef.h>\n", "")],
        Refused("gone or changed: include [] <stddef.h>"),
    ),
    (
        "a name is taken away",
        &[(
            "#define CW_RED_SUM 1u\n",
            "#define CW_RED_SUM 1u\n#undef CW_RED_SUM\n",
        )],
        Refused("not of the lock: directive [] #undef CW_RED_SUM"),
    ),
    // Attributes and packing.
    (
        "a struct is packed",
        &[(
            "typedef struct cw_native {",
            "typedef struct __attribute__((packed)) cw_native {",
        )],
        Refused("not of the lock: attribute cw_native __attribute__ ( ( packed ) )"),
    ),
    (
        "a field is aligned",
        &[(
            "  uint32_t numa_node;",
            "  _Alignas(16) uint32_t numa_node;",
        )],
        Refused("not of the lock: attribute cw_device_info.numa_node _Alignas ( 16 )"),
    ),
    (
        "a struct has an attribute behind it",
        &[("} cw_launch;", "} __attribute__((aligned(64))) cw_launch;")],
        Refused("not of the lock: attribute cw_launch"),
    ),
    (
        "all that follows is packed",
        &[(
            "typedef int32_t cw_status;",
            "#pragma pack(push, 1)\ntypedef int32_t cw_status;",
        )],
        Refused("not of the lock: pragma [] pack(push, 1)"),
    ),
    (
        "a pragma less",
        &[("#pragma section(\".crsswv\", read)\n", "")],
        Refused("gone or changed: pragma [defined(_MSC_VER)]"),
    ),
    (
        "a field is volatile",
        &[("  uint32_t numa_node;", "  volatile uint32_t numa_node;")],
        Refused("not of the lock: attribute cw_device_info.numa_node volatile"),
    ),
    // What is not C of these headers (R3).
    (
        "a bit-field",
        &[("  uint32_t numa_node;", "  uint32_t numa_node : 16;")],
        Refused("not understood"),
    ),
    (
        "a new slot takes a long",
        &[
            (
                "} cw_graph_api;",
                "  cw_status (*more)(cw_stream stream, long n);\n} cw_graph_api;",
            ),
            MINOR,
        ],
        Refused("not understood: there is no type long"),
    ),
    (
        "a new function takes what is left",
        &[
            (
                "} cw_graph_api;",
                "  cw_status (*more)(cw_stream stream, ...);\n} cw_graph_api;",
            ),
            MINOR,
        ],
        Refused("not understood"),
    ),
    (
        "an enum",
        &[(
            "typedef int32_t cw_status;",
            "typedef enum cw_status { OK } cw_status;",
        )],
        Refused("not understood"),
    ),
    // Assertions.
    (
        "an assertion less",
        &[("CW_ASSERT_AT(cw_span, bytes, 16);\n", "")],
        Refused("no longer asserted: AT(cw_span, bytes)"),
    ),
    (
        "an assertion of another place",
        &[(
            "CW_ASSERT_AT(cw_span, bytes, 16);",
            "CW_ASSERT_AT(cw_span, bytes, 8);",
        )],
        Refused("an assertion that is not so: AT(cw_span, bytes, 8)"),
    ),
    (
        "an assertion of another size",
        &[(
            "CW_ASSERT_SIZE(cw_span, 24);",
            "CW_ASSERT_SIZE(cw_span, 32);",
        )],
        Refused("an assertion that is not so: SIZE(cw_span, 32)"),
    ),
    // Names in function types.
    (
        "parameters of the entry change names",
        &[(
            "(*cw_entry_fn)(const cw_host *host, cw_plugin *out,",
            "(*cw_entry_fn)(const cw_host *host, cw_plugin *plugin,",
        )],
        Refused("gone or changed: params cw_entry_fn (host, out, err)"),
    ),
    (
        "parameters of a callback change places",
        &[(
            "(*body)(void *arg, uint64_t begin, uint64_t end)",
            "(*body)(void *arg, uint64_t end, uint64_t begin)",
        )],
        Refused("gone or changed: params cw_host.parallel_for.body (arg, begin, end)"),
    ),
    // Bits.
    (
        "a capability of two bits",
        &[(
            NEW_CAP,
            "#define CW_CAP_FAST 96u\n#define CW_CAP_UNIFIED 1u ",
        )],
        Refused("CW_CAP_FAST is no single bit: 96u"),
    ),
    (
        "a capability of a bit of its own",
        &[(
            NEW_CAP,
            "#define CW_CAP_FAST 32u\n#define CW_CAP_UNIFIED 1u ",
        )],
        Allowed(FREE),
    ),
    (
        "a flag of no bit",
        &[(
            "#define CW_COLLF_ACC_F32 1u",
            "#define CW_COLLF_PLAIN 0u\n#define CW_COLLF_ACC_F32 1u",
        )],
        Refused("CW_COLLF_PLAIN is no single bit: 0u"),
    ),
    (
        "a type of other bits than its name",
        &[(
            "#define CW_DT_F4E2M1 0x0904u",
            "#define CW_DT_F6E2M3 0x0B08u\n#define CW_DT_F4E2M1 0x0904u",
        )],
        Refused("the low byte of CW_DT_F6E2M3 is not its bits: 0x0B08u"),
    ),
    (
        "a new type",
        &[(
            "#define CW_DT_F4E2M1 0x0904u",
            "#define CW_DT_F6E2M3 0x0B06u\n#define CW_DT_F4E2M1 0x0904u",
        )],
        Allowed(FREE),
    ),
];
