//! A stable sort whose comparison can fail, and need not be an order.

use crate::error::Result;

/// The items in the order of `less`. Merges from below, so that any answers of `less` give some order.
pub(crate) fn sorted<T>(
    mut items: Vec<T>,
    less: &mut dyn FnMut(&T, &T) -> Result<bool>,
) -> Result<Vec<T>> {
    let len = items.len();
    let mut width = 1;
    while width < len {
        let mut out = Vec::with_capacity(len);
        let mut rest = items.into_iter();
        loop {
            let left: Vec<T> = rest.by_ref().take(width).collect();
            let right: Vec<T> = rest.by_ref().take(width).collect();
            if left.is_empty() {
                break;
            }
            let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
            while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
                let next = if less(b, a)? {
                    right.next()
                } else {
                    left.next()
                };
                out.extend(next);
            }
            out.extend(left);
            out.extend(right);
        }
        items = out;
        width *= 2;
    }
    Ok(items)
}
