//! Documents that share a row: where they end is read off the tokens on the host, and goes to the device beside them.

/// What begins anew behind the token that ends a document (Megatron's `--reset-attention-mask` and `--reset-position-ids`). A row always begins
/// a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Documents {
    /// The last token of a document; an id that no token has leaves every row one document.
    pub end: i32,
    /// Attention keeps within documents.
    pub attention: bool,
    /// Positions count from the start of the document.
    pub positions: bool,
}

impl Documents {
    /// Does the document end with token `i`?
    fn ends(&self, i: usize, id: i32, t: usize) -> bool {
        id == self.end || (i + 1).is_multiple_of(t)
    }

    /// Cumulative lengths of the documents, row by row of `t` tokens. A row may have as many documents as tokens, so it always gets one number
    /// more than tokens, and shapes never change: behind its last document come empty ones.
    pub fn lengths<'a>(
        &'a self,
        tokens: &'a [i32],
        t: usize,
    ) -> impl Iterator<Item = i32> + use<'a> {
        tokens.chunks(t.max(1)).flat_map(move |row| {
            let ids = row.iter().enumerate();
            let ends = ids.filter_map(move |(i, id)| self.ends(i, *id, t).then_some(i as i32 + 1));
            let rest = std::iter::repeat(row.len() as i32);
            std::iter::once(0).chain(ends).chain(rest).take(t + 1)
        })
    }

    /// The position of every token in its document.
    pub fn positions<'a>(
        &'a self,
        tokens: &'a [i32],
        t: usize,
    ) -> impl Iterator<Item = i32> + use<'a> {
        tokens.iter().enumerate().scan(0, move |next, (i, id)| {
            let here = *next;
            *next = match self.ends(i, *id, t) {
                true => 0,
                false => here + 1,
            };
            Some(here)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Documents = Documents {
        end: 9,
        attention: true,
        positions: true,
    };

    fn both(tokens: &[i32], t: usize) -> (Vec<i32>, Vec<i32>) {
        let (l, p) = (END.lengths(tokens, t), END.positions(tokens, t));
        (l.collect(), p.collect())
    }

    #[test]
    fn documents_end_with_their_token_and_with_the_row() {
        // The second row begins anew though no document ended.
        let (l, p) = both(&[1, 9, 2, 3, 4, 5, 9, 9], 4);
        assert_eq!(l, [0, 2, 4, 4, 4, 0, 3, 4, 4, 4]);
        assert_eq!(p, [0, 1, 0, 1, 0, 1, 2, 0]);
        // A document a token: as many as there can be.
        let (l, p) = both(&[9, 9, 9], 3);
        assert_eq!((l, p), (vec![0, 1, 2, 3], vec![0, 0, 0]));
        // No end: the rows themselves.
        let (l, p) = both(&[1, 2, 3, 4, 5, 6], 3);
        assert_eq!(l, [0, 3, 3, 3, 0, 3, 3, 3]);
        assert_eq!(p, [0, 1, 2, 0, 1, 2]);
        assert_eq!(both(&[], 4), (vec![], vec![]));
    }
}
