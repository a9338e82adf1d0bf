//! Buffers of one rank that are used again and again: poison all around, one wait for each collective.

use crate::ctx::{POISON, Pinned};
use crate::local_ranks::Rank;
use crate::raw::{Mem, Stream};
use crossweave_abi as abi;
use crossweave_abi::{CollDesc, Span};

/// Bytes of poison that are looked at on each side of an output.
const EDGE: u64 = 64;

/// Memory for one collective at a time.
pub struct Desk {
    bytes: u64,
    send: Mem,
    recv: Mem,
    up: Pinned,
    down: Pinned,
}

/// What a collective of this desk works on.
pub struct Place {
    /// Bytes of the input.
    pub send: u64,
    /// Bytes of the output.
    pub recv: u64,
    /// Bytes from an aligned place at which both begin.
    pub skew: u64,
    /// Input and output share memory.
    pub in_place: bool,
    /// In place: the shorter of the two begins so many bytes into the longer.
    pub own: u64,
}

impl Place {
    /// Bytes into the whole at which the input begins.
    fn input_at(&self) -> u64 {
        match self.in_place && self.send < self.recv {
            true => self.own,
            false => 0,
        }
    }

    /// And the output.
    fn output_at(&self) -> u64 {
        match self.in_place && self.recv < self.send {
            true => self.own,
            false => 0,
        }
    }
}

impl Desk {
    /// For inputs and outputs of at most `bytes` bytes.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn new(r: &Rank, bytes: u64) -> Result<Desk, String> {
        let all = bytes + 2 * EDGE + 64;
        let d = &r.rig.dev;
        Ok(Desk {
            bytes,
            send: d.alloc(abi::MEM_DEVICE, all, 0)?,
            recv: d.alloc(abi::MEM_DEVICE, all, 0)?,
            up: Pinned::new(d, all)?,
            down: Pinned::new(d, all)?,
        })
    }

    /// Puts `input` down and poisons the output; answers the two spans.
    ///
    /// # Errors
    /// The plugin's, in words.
    pub fn lay(&self, s: &Stream, p: &Place, input: &[u8]) -> Result<(Span, Span), String> {
        assert!(p.send.max(p.recv) <= self.bytes && input.len() as u64 <= p.send);
        let window = |n: u64| n + 2 * EDGE + p.skew;
        let at = EDGE + p.skew + p.input_at();
        let image = {
            let mut v = vec![POISON; (at + p.send + EDGE) as usize];
            v[at as usize..at as usize + input.len()].copy_from_slice(input);
            v
        };
        self.up.put(0, &image);
        let n = image.len() as u64;
        if p.in_place {
            let all = window(p.recv.max(p.send));
            s.fill(self.recv.span(0, all), u64::from(POISON), 1)?;
            let n = n.min(all);
            s.copy(self.recv.span(0, n), self.up.mem.span(0, n))?;
            let (send, recv) = (at, EDGE + p.skew + p.output_at());
            return Ok((self.recv.span(send, p.send), self.recv.span(recv, p.recv)));
        }
        s.fill(self.recv.span(0, window(p.recv)), u64::from(POISON), 1)?;
        s.copy(self.send.span(0, n), self.up.mem.span(0, n))?;
        let span = |m: &Mem, bytes: u64| match bytes {
            0 => Span::NULL,
            _ => m.span(at, bytes),
        };
        Ok((span(&self.send, p.send), span(&self.recv, p.recv)))
    }

    /// Waits and reads the output.
    ///
    /// # Errors
    /// The stream's failure, or that something around the output was written.
    pub fn lift(&self, s: &Stream, p: &Place) -> Result<Vec<u8>, String> {
        let at = EDGE + p.skew + p.output_at();
        // In place the whole is the longer of the two, and only what is around it was nobody's to write.
        let whole = match p.in_place {
            true => p.recv.max(p.send),
            false => p.recv,
        };
        let n = whole + 2 * EDGE + p.skew;
        s.copy(self.down.mem.span(0, n), self.recv.span(0, n))?;
        s.finish()?;
        let image = self.down.get(0, n);
        let (from, to) = (at as usize, (at + p.recv) as usize);
        let (first, end) = ((EDGE + p.skew) as usize, (EDGE + p.skew + whole) as usize);
        if image[..first].iter().any(|b| *b != POISON) {
            return Err("bytes before the output were written".into());
        }
        if image[end..].iter().any(|b| *b != POISON) {
            return Err("bytes behind the output were written".into());
        }
        Ok(image[from..to].to_vec())
    }

    /// The input, after a collective that must not change it.
    ///
    /// # Errors
    /// The stream's failure.
    pub fn input(&self, s: &Stream, p: &Place) -> Result<Vec<u8>, String> {
        let at = EDGE + p.skew;
        s.copy(self.up.mem.span(0, p.send), self.send.span(at, p.send))?;
        s.finish()?;
        Ok(self.up.get(0, p.send))
    }
}

/// Launches a group and says which collective failed.
///
/// # Errors
/// The plugin's, in words.
pub fn launch(r: &Rank, group: &[CollDesc]) -> Result<(), String> {
    r.comm()?.launch(&r.rig.stream, group).map_err(String::from)
}
