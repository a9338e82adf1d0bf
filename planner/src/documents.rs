//! Documents that share a row: where they end is given with the batch or read off the tokens on the host, and goes to the device beside them.

/// The parts of a row that begin anew behind a document (Megatron's `--reset-attention-mask` and `--reset-position-ids`). A row always begins a
/// document. Where a batch brings the cumulative lengths of its documents these say where each ends, and else the token that ends one does.
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

/// The position of every token in its document, by the cumulative lengths of the documents of rows of `t` tokens; 0 behind the last.
pub fn positions_within(lengths: &[i32], t: usize) -> impl Iterator<Item = i32> + use<'_> {
    lengths.chunks(t + 1).flat_map(move |row| {
        let mut documents = row.windows(2).map(|w| w[0]..w[1]).peekable();
        (0..t as i32).map(move |i| {
            while documents.next_if(|d| d.end <= i).is_some() {}
            documents.peek().map_or(0, |d| i - d.start)
        })
    })
}

/// Returns true if `lengths` are cumulative lengths of documents in rows of `t` tokens: of each row `t + 1` numbers that begin with 0 and never
/// descend, none above `t`.
pub fn are_lengths(lengths: &[i32], t: usize) -> bool {
    let fits = |row: &[i32]| {
        row.first() == Some(&0) && row.is_sorted() && row.last().is_some_and(|n| *n as usize <= t)
    };
    lengths.len().is_multiple_of(t + 1) && lengths.chunks(t + 1).all(fits)
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

    #[test]
    fn lengths_that_are_given_say_the_same() {
        let tokens = [1, 9, 2, 3, 4, 5, 9, 9];
        let (l, p) = both(&tokens, 4);
        assert!(are_lengths(&l, 4));
        assert_eq!(positions_within(&l, 4).collect::<Vec<_>>(), p);
        // Behind the last document there are tokens of none.
        let l = [0, 2, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0];
        assert!(are_lengths(&l, 5));
        let p: Vec<i32> = positions_within(&l, 5).collect();
        assert_eq!(p, [0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        for wrong in [
            &[0, 2, 1, 4, 4][..],
            &[1, 2, 3, 4, 4],
            &[0, 2, 3, 4, 5],
            &[0, 4],
            &[-1, 0, 0, 0, 0],
        ] {
            assert!(!are_lengths(wrong, 4), "{wrong:?}");
        }
    }
}
