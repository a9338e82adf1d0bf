//! Writes `crossweave_ops.h` from the op table: ids, constants, parameter structs, and what each op does to which operands.

use crossweave_abi as abi;
use crossweave_abi::op::{self, Class, OpSpec};
use crossweave_abi::profile::{self, CollNeed, OpNeed, Profile};
use std::fmt::Write;

/// `MatmulParams` → `cw_matmul_params`.
fn c_struct(rust: &str) -> String {
    let mut out = String::from("cw");
    for c in rust.chars() {
        if c.is_uppercase() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

fn c_type(rust: &str) -> &str {
    match rust {
        "u32" => "uint32_t",
        "i32" => "int32_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "f32" => "float",
        "f64" => "double",
        other => other,
    }
}

/// Names and values of a module's constants.
macro_rules! consts {
    ($($module:ident)::* $prefix:literal: $($name:ident)*) => {{
        use $($module)::* as from;
        [$((concat!($prefix, stringify!($name)), from::$name as u64)),*].to_vec()
    }};
}

/// Every constant of the table that is not an op id: `(name without CW_, value)`.
pub fn op_constants() -> Vec<(&'static str, u64)> {
    [
        consts!(op "": FLAG_ACCUM FLAG_HAS_IGNORE FLAG_CAUSAL FLAG_INVERSE FLAG_INTERLEAVED FLAG_DESCENDING FLAG_MASTER FLAG_IN_ROW),
        consts!(op::class "CLASS_": EXACT CAST ROUNDED TRANSCENDENTAL SUM_SEQUENTIAL SUM_PAIRWISE MATMUL FUSED),
        consts!(op::unary "UNARY_": NEG ABS EXP LOG SQRT RSQRT TANH ERF SIGMOID SIN COS FLOOR),
        consts!(op::binary "BINARY_": ADD SUB MUL DIV MAX MIN POW),
        consts!(op::compare "COMPARE_": EQ NE LT LE GT GE),
        consts!(op::reduce "REDUCE_": SUM SUMSQ MAX MIN PROD),
        consts!(op::philox "PHILOX_": BITS UNIFORM NORMAL),
        consts!(op::activation "ACTIVATION_": GELU_TANH GELU_ERF SILU RELU),
        consts!(op::inst "INST_": CONST SCALAR MOV ADD SUB MUL DIV MAX MIN FMA NEG ABS SQRT RSQRT EXP LOG TANH ERF SIGMOID FLOOR LT SELECT),
        consts!(op "": PROGRAM_MAX_INSTS PROGRAM_MAX_OPERANDS PROGRAM_MAX_REGS),
    ]
    .concat()
}

/// A parameter struct: C name and `(field, Rust type, offset)`.
pub type ParamStruct = (String, Vec<(&'static str, String, usize)>);
/// What a parameter struct and each of its fields mean, in the struct's order.
type Meaning = (&'static str, &'static [&'static str]);

/// Every parameter struct, in the order the header declares them.
pub fn param_structs() -> Vec<ParamStruct> {
    documented().into_iter().map(|(s, _)| s).collect()
}

/// Every parameter struct with its meaning.
fn documented() -> Vec<(ParamStruct, Meaning)> {
    macro_rules! regular {
        ($($name:ident)*) => {
            vec![$((
                (
                    c_struct(stringify!($name)),
                    op::$name::FIELDS.iter().map(|(f, t, at)| (*f, t.to_string(), *at)).collect(),
                ),
                (op::$name::DOC, op::$name::DOCS),
            )),*]
        };
    }
    let mut all: Vec<(ParamStruct, Meaning)> = regular!(NoParams FillParams IotaParams KindParams AxpbyParams ClampParams ReduceParams
        DimParams MatmulParams GroupedParams IndexParams PhiloxParams PhiloxDyn NormParams XentParams AttentionParams AttentionExtParams RopeParams AdamwParams
        AdamwDyn DropoutParams ScaleDyn ProgramInst);
    // These two hold arrays, so they are written by hand in the table too.
    macro_rules! by_hand {
        ($name:ident { $($field:ident: $ty:expr),* }) => {
            all.push((
                (c_struct(stringify!($name)), vec![
                    $((stringify!($field), $ty.to_string(), std::mem::offset_of!(op::$name, $field))),*
                ]),
                (op::$name::DOC, op::$name::DOCS),
            ))
        };
    }
    let insts = format!("cw_program_inst[{}]", op::PROGRAM_MAX_INSTS);
    by_hand!(ProgramParams {
        size: "u32",
        n_insts: "u32",
        writes: "u32",
        flags: "u32",
        insts: insts
    });
    by_hand!(ProgramDyn {
        size: "u32",
        flags: "u32",
        scalars: "f32[8]"
    });
    all
}

/// Text broken into comment lines of at most 118 characters.
fn comment(out: &mut String, text: &str) {
    comment_at(out, "", text);
}

/// The same, indented.
fn comment_at(out: &mut String, indent: &str, text: &str) {
    let mut line = format!("{indent}/*");
    for word in text.split_whitespace() {
        if line.len() + word.len() > 115 {
            let _ = writeln!(out, "{line}");
            line = format!("{indent} *");
        }
        let _ = write!(line, " {}", word.replace("*/", "* /").replace("/*", "/ *"));
    }
    let _ = writeln!(out, "{line} */");
}

fn op_entry(out: &mut String, o: &OpSpec) {
    let class = match o.class {
        Class::Primitive => "primitive, mandatory",
        Class::Fused => "fused, the core can decompose it",
    };
    let dynamic = match o.dynamic {
        "" => String::new(),
        d => format!("; at launch {}", c_struct(d)),
    };
    comment(
        out,
        &format!(
            "{}: {} Operands: {}. Params: {}{dynamic}. Revision {}; {class}; error class {}.",
            o.name,
            o.doc,
            o.operands.join(", "),
            c_struct(o.params),
            o.revision,
            o.error
        ),
    );
    let name = o.name.to_uppercase();
    let _ = writeln!(out, "#define CW_OP_{name} 0x{:04X}u", o.id);
}

/// A row of a profile in words: `cast f32 u8 | f32 i32`.
fn need(n: &OpNeed) -> String {
    let name = op::spec(n.op).map_or("?", |s| s.name);
    format!("{name} {}", n.types)
}

/// A collective of a profile in words: `all_reduce f32 sum`.
fn coll_need(c: &CollNeed) -> String {
    let kind = abi::coll_name(c.kind).unwrap_or("?");
    let words = [
        kind,
        c.dtype.name(),
        abi::red_name(c.reduce).unwrap_or_default(),
    ];
    words.join(" ").trim_end().to_string()
}

/// The rows that profile `p` adds to those below it, in words.
fn profile_rows(p: Profile) -> Vec<String> {
    let own = profile::OPS.iter().filter(|n| n.least == p);
    own.map(need).collect()
}

/// The collectives every profile but `minimal` asks of a plugin that offers collectives, in words.
fn collective_rows() -> Vec<String> {
    profile::COLLECTIVES.iter().map(coll_need).collect()
}

fn profiles(out: &mut String) {
    comment(
        out,
        "Profiles: what `crossweave conform --profile NAME` demands, and all that the core needs to train. A row names an op \
         and the types of its operands, absent ones left out: `?` may be absent, `*` repeats, h is one 16-bit float, bf16 or \
         f16, the same in all rows. Of a row every shape, layout, kind and parameter of the op table is meant. Beside them \
         a profile demands every slot of crossweave.device/1 that is not marked (opt).",
    );
    for p in [Profile::Minimal, Profile::Train] {
        let rows = profile_rows(p).join("; ");
        comment(out, &format!("profile {}: {rows}.", p.name()));
    }
    comment(
        out,
        &format!(
            "train also, of a plugin that has crossweave.collective/1 at all, and collective-only of every one: {}; sends \
             and receives in groups. Everything else is composed of these.",
            collective_rows().join("; ")
        ),
    );
}

/// What holds of all ops, as the rest of the header's first comment.
fn rules(out: &mut String) {
    for (i, rule) in op::RULES.iter().enumerate() {
        let mut line = String::from(" *");
        for word in rule.split_whitespace() {
            if line.len() + word.len() > 115 {
                let _ = writeln!(out, "{line}");
                line = " *  ".into();
            }
            let _ = write!(line, " {word}");
        }
        let end = if i + 1 == op::RULES.len() { " */" } else { "" };
        let _ = writeln!(out, "{line}{end}");
    }
}

/// The text of `hal/include/crossweave_ops.h`.
pub fn ops_header() -> String {
    let mut out = String::from(
        "/* crossweave_ops.h - ids, constants and parameter structs of crossweave.ops/1. Generated from the op table; do not edit.\n",
    );
    rules(&mut out);
    out.push_str(
        "#ifndef CROSSWEAVE_OPS_H\n#define CROSSWEAVE_OPS_H\n#include \"crossweave_plugin.h\"\n\n",
    );
    for (name, value) in op_constants() {
        if name.starts_with("CLASS_") {
            comment(&mut out, op::class::DOCS[value as usize - 1]);
        }
        let _ = writeln!(out, "#define CW_{name} {value}u");
    }
    out.push('\n');
    for ((name, fields), (doc, docs)) in documented() {
        comment(&mut out, doc);
        let _ = writeln!(out, "typedef struct {name} {{");
        for ((field, ty, _), doc) in fields.into_iter().zip(docs) {
            if field != "size" {
                comment_at(&mut out, "  ", doc);
            }
            let (base, dims) = ty.split_once('[').map_or((&*ty, ""), |(b, d)| (b, d));
            let open = if dims.is_empty() { "" } else { "[" };
            let _ = writeln!(out, "  {} {field}{open}{dims};", c_type(base));
        }
        let _ = writeln!(out, "}} {name};");
    }
    out.push('\n');
    for o in op::OPS {
        op_entry(&mut out, o);
    }
    out.push('\n');
    profiles(&mut out);
    out.push_str("#endif\n");
    out
}
