//! Gradients that leave beside an offloaded optimizer micro-batch by micro-batch: what the host holds of them, what stays on the device,
//! and what is moved, to the byte.

/// A job whose micro-batches leave one by one, as one rank sees it.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    /// Trained elements of each unit that the rank runs.
    pub units: &'a [u64],
    /// Ranks over which each is sharded.
    pub ranks: u64,
    /// The part of a slice that the host updates, from 0 to 1.
    pub ratio: f64,
    /// Micro-batches of a step.
    pub micro_batches: u64,
    /// Bytes of a value on its way: 4, or 2 where parameters or the sum are 16-bit.
    pub wire: u64,
    /// Bytes of a value of the sum: 4, or 2 where `grad_accum_dtype` is 16-bit.
    pub sum: u64,
}

impl Leaving<'_> {
    /// Elements of each unit that the host updates, and that the device does: `h_u = ceil(r ceil(P_u/N))` and the rest.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.units.iter().map(|p| {
            let slice = p.div_ceil(self.ranks.max(1));
            let host = ((slice as f64 * self.ratio).ceil() as u64).min(slice);
            (host, slice - host)
        })
    }

    /// Elements that the host updates.
    fn hosted(&self) -> u64 {
        self.parts().map(|(host, _)| host).sum()
    }

    /// Bytes of the sums, in host memory or in files: `s` times the sum of all `h_u`.
    pub fn sums(&self) -> u64 {
        self.sum * self.hosted()
    }

    /// Page-locked bytes in which gradients arrive for sums in host memory: `2 w` times the largest `h_u`.
    pub fn landings(&self) -> u64 {
        2 * self.wire * self.parts().map(|(host, _)| host).max().unwrap_or(0)
    }

    /// Bytes of gradients on the device between micro-batches: `4` times the sum of all rests.
    pub fn rest(&self) -> u64 {
        4 * self.parts().map(|(_, rest)| rest).sum::<u64>()
    }

    /// Bytes that leave the device in a step: `g w` times the sum of all `h_u`.
    pub fn out(&self) -> u64 {
        self.micro_batches * self.wire * self.hosted()
    }

    /// Bytes that sums in files have read and written of them in a step: each further micro-batch reads the sum and writes it back, and
    /// the update reads it, `g s` each way.
    pub fn files(&self) -> u64 {
        self.micro_batches * self.sums()
    }
}
