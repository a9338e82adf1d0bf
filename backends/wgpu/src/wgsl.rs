//! WGSL text: the module around a kernel's body. Only what the body uses is written, so that modules stay short and equal ones meet in the
//! pipeline cache.
//!
//! All storage is `array<u32>`, bound read-write: operands are pieces of a few large buffers, and WebGPU forbids one buffer to be read-only
//! and writable in one dispatch. Halves that are only loaded are `array<vec2<f16>>` where the adapter has that type ([`Bind::halves`]; of the
//! accessors they have the `ld`). For a bind named `x` there are (indices count elements from the operand's start):
//!
//! | accessor | for | what |
//! |---|---|---|
//! | `ld_x(i) -> f32`, `st_x(i, v)` | f32, bf16, f16 | convert; stores round to nearest even |
//! | `ld2_x(i) -> vec2<f32>`, `st2_x(i, a, b)` | bf16, f16, f32 | elements `i`, `i + 1`; one word where `i` falls on a word |
//! | `ld4_x(i) -> vec4<f32>`, `st4_x(i, v)` | bf16, f16, f32 | elements `i` to `i + 3` |
//! | `ldu_x(i) -> u32`, `stu_x(i, v)` | i32, u32, u8, i8 (sign extended), 16-bit raw | integers |
//! | `idx_x(i) -> i32` | i32, i64 | an index; what does not fit an i32 is -2147483648 |
//! | `ldb_x(i) -> vec2<u32>`, `stb_x(i, v)` | any | the element's bits, low word first |
//! | `off_x() -> u32` | any | elements from the binding's start (i64: words) |
//! | `wd_x(w) -> u32`, `sw_x(w, v)` | any | word `w` of the binding |
//! | `put_x(w, bits, mask)` | any | atomically replaces the masked bits of word `w` |
//! | `grow_x(w, n)` | any | atomically adds `n` to word `w` |
//! | `stu2_x(i, a, b)`, `stu4_x(i, a, b, c, d)` | 16 bits, 8 bits | raw elements that may make a word |
//!
//! A store of an element smaller than a word merges by compare-and-exchange, so neighbours may be written by other invocations; `st2_x` and
//! `st4_x` write whole words where they can. Parameters: `param(k) -> u32`, `paramf(k) -> f32`; launch-time words: `dyn_word(k)`,
//! `dyn_f32(k)`. Functions of [`crate::math`] are there by name.

use crate::kernel::{Access, Bind, DYN_WORDS, Facts};
use crate::math;
use crossweave_plugin::DType;
use std::fmt::Write;

/// Words of the parameter block: offsets of the binds, parameters, launch-time words; whole vec4s.
pub fn block_words(binds: usize, params: usize) -> usize {
    (binds + params + DYN_WORDS).next_multiple_of(4)
}

/// A function that may be written into a module.
struct Function {
    name: String,
    text: String,
}

/// The module around `body`. Marks the binds that need the atomic alias.
pub fn module(binds: &mut [Bind], params: usize, body: &str, facts: &Facts) -> String {
    let mut library: Vec<Function> = vec![];
    let mut add = |name: String, text: String| library.push(Function { name, text });
    for (k, b) in binds.iter().enumerate() {
        accessors(k, b, facts, &mut add);
    }
    let first = binds.len();
    add(
        "word_of_block".into(),
        "fn word_of_block(k: u32) -> u32 { return cw_block[k >> 2u][k & 3u]; }".into(),
    );
    add(
        "param".into(),
        format!("fn param(k: u32) -> u32 {{ return word_of_block(k + {first}u); }}"),
    );
    add(
        "paramf".into(),
        "fn paramf(k: u32) -> f32 { return bitcast<f32>(param(k)); }".into(),
    );
    let dynamic = first + params;
    add(
        "dyn_word".into(),
        format!("fn dyn_word(k: u32) -> u32 {{ return word_of_block(k + {dynamic}u); }}"),
    );
    add(
        "dyn_f32".into(),
        "fn dyn_f32(k: u32) -> f32 { return bitcast<f32>(dyn_word(k)); }".into(),
    );
    let rounding = match facts.rounds {
        true => math::ROUNDING,
        false => math::MENDED,
    };
    for (name, text) in math::LIBRARY.iter().chain(rounding) {
        add((*name).into(), (*text).into());
    }
    // What is called by what is written, until nothing new is.
    let mut used = vec![false; library.len()];
    let mut text = String::new();
    let mut look = vec![body.to_string()];
    while let Some(t) = look.pop() {
        for (f, u) in library.iter().zip(&mut used) {
            if !*u && calls(&t, &f.name) {
                *u = true;
                look.push(f.text.clone());
            }
        }
    }
    for (f, u) in library.iter().zip(&used) {
        if *u {
            text.push_str(&f.text);
            text.push('\n');
        }
    }
    let mut head = String::new();
    if binds.iter().any(|b| b.halves) {
        head.push_str("enable f16;\n");
    }
    let blocks = block_words(binds.len(), params) / 4;
    let _ = writeln!(
        head,
        "@group(0) @binding(0) var<uniform> cw_block: array<vec4<u32>, {blocks}>;"
    );
    let mut at = 1;
    for b in binds.iter() {
        let word = if b.halves { "vec2<f16>" } else { "u32" };
        for w in 0..b.windows {
            let name = &b.name;
            let _ = writeln!(
                head,
                "@group(0) @binding({at}) var<storage, read_write> cw_{name}_{w}: array<{word}>;"
            );
            at += 1;
        }
    }
    for b in binds.iter_mut() {
        let name = &b.name;
        b.atomic = ["put", "grow"].iter().any(|f| {
            let f = format!("{f}_{name}");
            calls(&text, &f) || calls(body, &f)
        });
        for w in 0..if b.atomic { b.windows } else { 0 } {
            let _ = writeln!(
                head,
                "@group(0) @binding({at}) var<storage, read_write> cw_{name}_a{w}: array<atomic<u32>>;"
            );
            at += 1;
        }
    }
    format!("{head}{text}{body}")
}

/// Does the text call the function?
fn calls(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| text[at + name.len()..].starts_with('(') && !text[..at].ends_with(word))
}

fn accessors(k: usize, b: &Bind, facts: &Facts, add: &mut dyn FnMut(String, String)) {
    let x = &b.name;
    let mut f = |name: &str, args: &str, result: &str, body: String| {
        let result = match result {
            "" => String::new(),
            r => format!(" -> {r}"),
        };
        add(
            format!("{name}_{x}"),
            format!("fn {name}_{x}({args}){result} {{ {body} }}"),
        );
    };
    f("off", "", "u32", format!("return word_of_block({k}u);"));
    let words = facts.max_binding / 4;
    // The windows of a split operand, by the word's index.
    let pick = |one: &dyn Fn(u32) -> String, tail: &str| {
        if b.windows == 1 {
            return format!("{}{tail}", one(0).replace('@', "w"));
        }
        let mut s = format!("let q = w / {words}u; let r = w % {words}u; switch q {{ ");
        for i in 0..b.windows {
            let case = if i + 1 == b.windows {
                "default".to_string()
            } else {
                format!("case {i}u")
            };
            let _ = write!(s, "{case}: {{ {} }} ", one(i).replace('@', "r"));
        }
        s + "}" + tail
    };
    let load = |i: u32| format!("return cw_{x}_{i}[@];");
    if b.halves {
        f("hw", "w: u32", "vec2<f16>", pick(&load, ""));
        f(
            "ld",
            "i: u32",
            "f32",
            format!(
                "let e = i + off_{x}(); let p = hw_{x}(e >> 1u); return f32(select(p.x, p.y, (e & 1u) == 1u));"
            ),
        );
        f(
            "ld2",
            "i: u32",
            "vec2<f32>",
            format!(
                "let e = i + off_{x}(); let p = vec2<f32>(hw_{x}(e >> 1u)); if (e & 1u) == 0u {{ return p; }} \
                 return vec2<f32>(p.y, f32(hw_{x}((e >> 1u) + 1u).x));"
            ),
        );
        four(x, &mut f);
        return;
    }
    f("wd", "w: u32", "u32", pick(&load, ""));
    let store = |i: u32| format!("cw_{x}_{i}[@] = v;");
    f("sw", "w: u32, v: u32", "", pick(&store, ""));
    if b.access == Access::ReadWrite {
        let merge = |i: u32| {
            format!(
                "var old = atomicLoad(&cw_{x}_a{i}[@]); loop {{ \
                 let got = atomicCompareExchangeWeak(&cw_{x}_a{i}[@], old, (old & ~mask) | (v & mask)); \
                 if got.exchanged {{ break; }} old = got.old_value; }}"
            )
        };
        f("put", "w: u32, v: u32, mask: u32", "", pick(&merge, ""));
        let sum = |i: u32| format!("atomicAdd(&cw_{x}_a{i}[@], v);");
        f("grow", "w: u32, v: u32", "", pick(&sum, ""));
    }
    let bits = b.dtype.bits();
    match bits {
        64 => {
            f(
                "ldb",
                "i: u32",
                "vec2<u32>",
                format!("let w = 2u * i + off_{x}(); return vec2<u32>(wd_{x}(w), wd_{x}(w + 1u));"),
            );
            f(
                "stb",
                "i: u32, v: vec2<u32>",
                "",
                format!("let w = 2u * i + off_{x}(); sw_{x}(w, v.x); sw_{x}(w + 1u, v.y);"),
            );
            f(
                "idx",
                "i: u32",
                "i32",
                format!(
                    "let v = ldb_{x}(i); let s = bitcast<i32>(v.x); \
                     return select(-2147483647 - 1, s, v.y == bitcast<u32>(s >> 31u));"
                ),
            );
        }
        32 => {
            f(
                "ldu",
                "i: u32",
                "u32",
                format!("return wd_{x}(i + off_{x}());"),
            );
            f(
                "stu",
                "i: u32, v: u32",
                "",
                format!("sw_{x}(i + off_{x}(), v);"),
            );
            f(
                "idx",
                "i: u32",
                "i32",
                format!("return bitcast<i32>(ldu_{x}(i));"),
            );
            f(
                "ldb",
                "i: u32",
                "vec2<u32>",
                format!("return vec2<u32>(ldu_{x}(i), 0u);"),
            );
            f(
                "stb",
                "i: u32, v: vec2<u32>",
                "",
                format!("stu_{x}(i, v.x);"),
            );
        }
        _ => {
            let per = 32 / bits;
            let (shift, low) = (per.trailing_zeros(), per - 1);
            let mask = (1u64 << bits) - 1;
            let raw = format!(
                "let e = i + off_{x}(); let s = (e & {low}u) * {bits}u; let v = (wd_{x}(e >> {shift}u) >> s) & {mask}u;"
            );
            let last = match b.dtype {
                DType::I8 => "return bitcast<u32>(bitcast<i32>(v << 24u) >> 24u);".to_string(),
                _ => "return v;".to_string(),
            };
            f("ldu", "i: u32", "u32", format!("{raw} {last}"));
            f(
                "stu",
                "i: u32, v: u32",
                "",
                format!(
                    "let e = i + off_{x}(); let s = (e & {low}u) * {bits}u; put_{x}(e >> {shift}u, (v & {mask}u) << s, {mask}u << s);"
                ),
            );
            f(
                "ldb",
                "i: u32",
                "vec2<u32>",
                format!("return vec2<u32>(ldu_{x}(i) & {mask}u, 0u);"),
            );
            f(
                "stb",
                "i: u32, v: vec2<u32>",
                "",
                format!("stu_{x}(i, v.x);"),
            );
            // A whole word where the elements are one, else one by one.
            let names = &["a", "b", "c", "d"][..per as usize];
            let args: String = names.iter().map(|n| format!(", {n}: u32")).collect();
            let parts = |text: &dyn Fn(usize, &str) -> String| {
                names
                    .iter()
                    .enumerate()
                    .map(|(k, n)| text(k, n))
                    .collect::<Vec<_>>()
            };
            let word =
                parts(&|k, n| format!("(({n} & {mask}u) << {}u)", k * bits as usize)).join(" | ");
            let each = parts(&|k, n| format!("stu_{x}(i + {k}u, {n});")).join(" ");
            f(
                &format!("stu{per}"),
                &format!("i: u32{args}"),
                "",
                format!(
                    "let e = i + off_{x}(); if (e & {low}u) == 0u {{ sw_{x}(e >> {shift}u, {word}); }} else {{ {each} }}"
                ),
            );
        }
    }
    let (of_bits, to_bits) = match b.dtype {
        DType::F32 => {
            f(
                "ld",
                "i: u32",
                "f32",
                format!("return bitcast<f32>(ldu_{x}(i));"),
            );
            f(
                "st",
                "i: u32, v: f32",
                "",
                format!("stu_{x}(i, bitcast<u32>(v));"),
            );
            f(
                "ld2",
                "i: u32",
                "vec2<f32>",
                format!("return vec2<f32>(ld_{x}(i), ld_{x}(i + 1u));"),
            );
            f(
                "st2",
                "i: u32, a: f32, b: f32",
                "",
                format!("st_{x}(i, a); st_{x}(i + 1u, b);"),
            );
            four(x, &mut f);
            return;
        }
        DType::Bf16 => ("f32_of_bf16", "bf16_of_f32"),
        DType::F16 => ("f32_of_f16", "f16_of_f32"),
        _ => return,
    };
    f(
        "ld",
        "i: u32",
        "f32",
        format!("return {of_bits}(ldu_{x}(i));"),
    );
    f(
        "st",
        "i: u32, v: f32",
        "",
        format!("stu_{x}(i, {to_bits}(v));"),
    );
    f(
        "ld2",
        "i: u32",
        "vec2<f32>",
        format!(
            "let e = i + off_{x}(); let lo = wd_{x}(e >> 1u); \
             if (e & 1u) == 0u {{ return vec2<f32>({of_bits}(lo & 65535u), {of_bits}(lo >> 16u)); }} \
             return vec2<f32>({of_bits}(lo >> 16u), {of_bits}(wd_{x}((e >> 1u) + 1u) & 65535u));"
        ),
    );
    f(
        "st2",
        "i: u32, a: f32, b: f32",
        "",
        format!("stu2_{x}(i, {to_bits}(a), {to_bits}(b));"),
    );
    four(x, &mut f);
}

fn four(x: &str, f: &mut dyn FnMut(&str, &str, &str, String)) {
    f(
        "ld4",
        "i: u32",
        "vec4<f32>",
        format!("return vec4<f32>(ld2_{x}(i), ld2_{x}(i + 2u));"),
    );
    f(
        "st4",
        "i: u32, v: vec4<f32>",
        "",
        format!("st2_{x}(i, v.x, v.y); st2_{x}(i + 2u, v.z, v.w);"),
    );
}
