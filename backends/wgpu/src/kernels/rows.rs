//! One workgroup a row: how its invocations share the columns and add up, by what the adapter has.
//!
//! | adapter | workgroup | sums |
//! |---|---|---|
//! | subgroups of one size, at most 16 | one subgroup | `subgroupAdd`: no workgroup memory, no barrier |
//! | subgroups | 32 to 256 by the row's length | `subgroupAdd`, then the subgroups' sums in order |
//! | none | the same | a tree in workgroup memory |
//!
//! All are the same sums in the same order at every launch. A long row is added up in runs of [`RUN`] columns an invocation, so that the
//! error grows with the square root of neither.

use super::text::Text;
use crate::kernel::Facts;

/// Columns an invocation adds before it adds to its total.
const RUN: u32 = 32;

/// Defines `$wg` (invocations) and `$main` (the head of `fn main`, which knows `row`, `lane` and `sub` and has left where there is no such
/// row: `$groups` is their number). Returns the functions `all_add(v, lane, sub) -> f32` and `all_max`: over all invocations, to all.
pub fn rows(facts: &Facts, columns: u32, t: &mut Text) -> String {
    let head = |extra: &str, size: u32| {
        format!(
            "@compute @workgroup_size({size}) fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, {extra}) {{
  let row = wg.x + wg.y * nwg.x;
  if row >= $groups {{ return; }}"
        )
    };
    if let Some(size) = super::one_small_subgroup(facts) {
        t.set("wg", format!("{size}u")).set(
            "main",
            head("@builtin(subgroup_invocation_id) lane: u32", size) + "\n  let sub = 0u;",
        );
        return "fn all_add(v: f32, lane: u32, sub: u32) -> f32 { return subgroupAdd(v); }
fn all_max(v: f32, lane: u32, sub: u32) -> f32 { return subgroupMax(v); }
"
        .into();
    }
    let most = facts.max_invocations.min(256);
    let mut size = 32;
    while size * 8 < columns && size * 2 <= most {
        size *= 2;
    }
    t.set("wg", format!("{size}u"));
    if facts.subgroup.is_some() {
        t.set(
            "main",
            head(
                "@builtin(local_invocation_index) lane: u32, @builtin(subgroup_id) sub_id: u32, @builtin(num_subgroups) sub_n: u32, \
                 @builtin(subgroup_invocation_id) sub_lane: u32",
                size,
            ) + "
  let sub = sub_id | (sub_n << 10u) | (sub_lane << 20u);",
        );
        let one = |name: &str, reduce: &str, join: &str| {
            format!(
                "fn {name}(v: f32, lane: u32, sub: u32) -> f32 {{
  let part = {reduce}(v);
  if (sub >> 20u) == 0u {{ s_part[sub & 1023u] = part; }}
  workgroupBarrier();
  var all = s_part[0];
  for (var i = 1u; i < ((sub >> 10u) & 1023u); i++) {{ all = {join}; }}
  workgroupBarrier();
  return all;
}}
"
            )
        };
        return format!("var<workgroup> s_part: array<f32, {size}>;\n")
            + &one("all_add", "subgroupAdd", "all + s_part[i]")
            + &one("all_max", "subgroupMax", "max(all, s_part[i])");
    }
    t.set(
        "main",
        head("@builtin(local_invocation_index) lane: u32", size) + "\n  let sub = 0u;",
    );
    let one = |name: &str, join: &str| {
        format!(
            "fn {name}(v: f32, lane: u32, sub: u32) -> f32 {{
  s_part[lane] = v;
  workgroupBarrier();
  for (var half = {}u; half > 0u; half >>= 1u) {{
    if lane < half {{ let a = s_part[lane]; let b = s_part[lane + half]; s_part[lane] = {join}; }}
    workgroupBarrier();
  }}
  let all = s_part[0];
  workgroupBarrier();
  return all;
}}
",
            size / 2
        )
    };
    format!("var<workgroup> s_part: array<f32, {size}>;\n")
        + &one("all_add", "a + b")
        + &one("all_max", "max(a, b)")
}

/// A loop over the row's columns `c` of this invocation that adds up `names`, each by its statement `name += …` in `body`.
pub fn sums(names: &[&str], body: &str) -> String {
    let each = |f: &dyn Fn(&str) -> String| names.iter().map(|n| f(n)).collect::<String>();
    format!(
        "{}for (var c0 = lane; c0 < $d; c0 += $wg * {RUN}u) {{
    {}for (var c = c0; c < min(c0 + $wg * {RUN}u, $d); c += $wg) {{ {body} }}
    {}}}
",
        each(&|n| format!("var sum_{n} = 0.0; ")),
        each(&|n| format!("var {n} = 0.0; ")),
        each(&|n| format!("sum_{n} += {n}; ")),
    )
}
