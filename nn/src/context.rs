//! Context parallelism: the rows of a batch are cut over the ranks of `mesh.cp`, so that of each row a rank has some of the tokens. Everything
//! but attention looks at tokens one by one and needs nothing; here is how queries meet the keys of the other ranks.
//!
//! | | before attention | the attention | behind it |
//! |---|---|---|---|
//! | [`Meeting::Gather`] | keys and values of all ranks are gathered | own queries, all keys | nothing |
//! | [`Meeting::Heads`] | tokens are exchanged for heads | all queries and keys of some heads | heads are exchanged for tokens |
//! | [`Meeting::Ring`] | the same among `inner` ranks | the queries that are then here; keys go around the others | the same |
//!
//! A key-value head whose queries are on several ranks after the exchange goes to each of them; what they make of its gradient is added in
//! rank order.

use crossweave_tensor::{AttentionSpec, Axis, Cx, Meeting, Result, Var};

/// The dims of the tokens and of the heads of `[B, T, heads width]`.
const TOKENS: usize = 1;
const HEADS: usize = 2;

/// Returns true if other ranks have the other tokens of the batch's rows.
fn cuts_rows(cx: &Cx<'_>) -> bool {
    cx.env.batch.cut_over.contains(Axis::Cp)
}

/// Queries, keys and values as attention takes them, and which heads they are.
///
/// # Errors
/// Heads that the ranks do not divide; the ranks; the device.
pub fn meet(
    cx: &mut Cx<'_>,
    [q, k, v]: [Var; 3],
    spec: AttentionSpec,
) -> Result<([Var; 3], AttentionSpec)> {
    if !cuts_rows(cx) {
        return Ok(([q, k, v], spec));
    }
    if cx.env.batch.rows.meeting == Meeting::Gather {
        let [k, v] = [
            cx.gather_again(k, Axis::Cp, TOKENS)?,
            cx.gather_again(v, Axis::Cp, TOKENS)?,
        ];
        return Ok(([q, k, v], spec));
    }
    let Some(ranks) = exchanging(cx) else {
        return Ok(([q, k, v], spec));
    };
    let own = exchanged(spec, ranks.into());
    let copies = own.kv_heads * u64::from(ranks) / spec.kv_heads;
    let [mut k, mut v] = [k, v];
    if copies > 1 {
        k = cx.repeat_heads(k, spec.kv_heads, copies)?;
        v = cx.repeat_heads(v, spec.kv_heads, copies)?;
    }
    let within = within(cx, ranks);
    let mut to_heads = |x: Var| cx.all_to_all_within(x, Axis::Cp, within, [HEADS, TOKENS]);
    let all = [to_heads(q)?, to_heads(k)?, to_heads(v)?];
    Ok((all, own))
}

/// The ranks that exchange tokens for heads; none where a rank would do so with itself.
fn exchanging(cx: &Cx<'_>) -> Option<u32> {
    let ranks = cx.env.groups.size(Axis::Cp).into();
    let ranks = cx.env.batch.rows.meeting.exchange(ranks);
    (cuts_rows(cx) && ranks > 1).then_some(ranks as u32)
}

/// So many ranks as the tape names them: 0 for all of the axis.
fn within(cx: &Cx<'_>, ranks: u32) -> u32 {
    match ranks == cx.env.groups.size(Axis::Cp) {
        true => 0,
        false => ranks,
    }
}

/// The heads of a rank behind the exchange: equal numbers of query heads, and of each key-value head as many copies as let each rank have those
/// of its queries.
fn exchanged(spec: AttentionSpec, ranks: u64) -> AttentionSpec {
    let all = spec.kv_heads * ranks / common(spec.kv_heads, ranks);
    AttentionSpec {
        heads: spec.heads / ranks,
        kv_heads: all / ranks,
        split: spec.split.union(Axis::Cp.into()),
        ..spec
    }
}

/// The greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => common(b, a % b),
    }
}

/// The result of attention, as the tokens of the rows lie on the ranks.
///
/// # Errors
/// The ranks; the device.
pub fn part(cx: &mut Cx<'_>, y: Var) -> Result<Var> {
    match exchanging(cx) {
        Some(ranks) => cx.all_to_all_within(y, Axis::Cp, within(cx, ranks), [TOKENS, HEADS]),
        None => Ok(y),
    }
}
