//! Whole parameters from the slices of the ranks, and back: the memory of parameters by their placement, what gathers and releases of
//! the plan are over it, and the ways of parameters that rest on the host.

use super::Job;
use super::quantized::Slices;
use crossweave_flat::Flat;
use crossweave_flat::Residency;
use crossweave_plan::StepId;
use crossweave_program::{
    Brought, Builder, Code, CollectiveKind, DType, GroupId, Life, MemId, Member, MemoryDecl,
    MemorySpace, On, Place, Tag, Traffic, View,
};

/// Where the parameters of a unit are, in all the forms that a rank has them in.
#[derive(Clone, Debug)]
pub struct ParamMemory {
    /// All parameters in compute type, from here on: what blocks read, while it is there.
    pub whole: Option<Place>,
    /// f32 values of what is owned and updated on the device; nothing of what the host updates where parameters have 16 bits.
    pub value: Place,
    /// What the host updates of the slice, in compute type, where no whole keeps it: it stays, or comes for each gather.
    pub shard: Option<MemId>,
    /// This rank's part of its node's copy of the whole (ZeRO++ hpZ).
    pub secondary: Option<MemId>,
    /// What this rank holds of the base: its slice, or all of it in the whole.
    pub base: Option<Place>,
    /// The base's part of the node's copy.
    pub base_secondary: Option<MemId>,
    /// Where the host brings the parameters that it has updated; `None` where they rest with it.
    pub arrives: Option<Place>,
}

impl ParamMemory {
    /// Declares it for unit `u`.
    pub fn declare(b: &mut Builder, u: usize, f: &Flat) -> ParamMemory {
        let p = &f.place;
        let compute = p.compute;
        let transient = p.residency == Residency::Transient;
        let (plain, owned) = (compute == DType::F32, f.owned_len());
        let based = f.base_is_sharded() && f.base.numel() > 0;
        let always = Life::Always { turns: 1 };
        let mut declare = |what: &str, elements: u64, dtype: DType, tag, life| {
            b.memory(MemoryDecl {
                name: format!("{what}.{u}"),
                bytes: dtype.bytes(elements),
                dtype,
                tag,
                home: MemorySpace::Device,
                life,
            })
        };
        let room = f.length() + f.base_length();
        let kept = (!transient).then(|| declare("param", room, compute, Tag::Param, always));
        let value = match kept {
            Some(mem) if plain => Place {
                mem,
                at: 4 * f.owned.start,
            },
            _ if p.away && f.host == owned => {
                declare("value", 0, DType::F32, Tag::Param, always).into()
            }
            // The only copy of a parameter is its value, whatever it is read as.
            None if plain => {
                let all = owned + f.base_behind();
                declare("value", all, DType::F32, Tag::Param, always).into()
            }
            _ => declare("master", owned - f.host, DType::F32, Tag::Master, always).into(),
        };
        let comes = f.host + f.base_comes();
        let shard = match transient {
            true if p.away && comes > 0 => Some(declare(
                "shard",
                comes,
                compute,
                Tag::Param,
                Life::Transient,
            )),
            true if !p.away && f.host > 0 && !plain => {
                Some(declare("shard", f.host, compute, Tag::Param, always))
            }
            _ => None,
        };
        // One rank alone shows its values as the whole, with no copy.
        let shown = f.shown().then(|| match shard {
            Some(mem) if p.away => mem.into(),
            _ => value,
        });
        let whole = match (kept, shown) {
            (Some(mem), _) => Some(mem.into()),
            (None, Some(place)) => Some(place),
            (None, None) if room > 0 => {
                Some(declare("whole", room, compute, Tag::Comm, Life::Slot).into())
            }
            _ => None,
        };
        let parts = u64::from(p.secondary);
        let mut copy = |what: &str, elements: u64| {
            declare(what, elements / parts, compute, Tag::Param, always)
        };
        let hierarchical = transient && parts > 1;
        let secondary = hierarchical.then(|| copy("secondary", f.layout.padded()));
        let base_secondary =
            (hierarchical && based).then(|| copy("base secondary", f.base.padded()));
        let base = match based {
            false => whole.filter(|_| !f.base_is_sharded()).map(|w| Place {
                at: w.at + compute.bytes(f.base_at),
                ..w
            }),
            true if f.base_behind() > 0 => Some(Place {
                at: value.at + compute.bytes(f.base_at),
                ..value
            }),
            true if p.away => shard.map(|mem| Place {
                mem,
                at: compute.bytes(f.host),
            }),
            true => {
                let n = f.base.slice_len();
                Some(declare("base", n, compute, Tag::Param, always).into())
            }
        };
        ParamMemory {
            whole,
            value,
            shard,
            secondary,
            base,
            base_secondary,
            arrives: arrives(f, kept, value, shard),
        }
    }
}

/// Where the host brings updated parameters: to the values, to the slice, or into its place in the whole that stays.
fn arrives(f: &Flat, kept: Option<MemId>, value: Place, shard: Option<MemId>) -> Option<Place> {
    let dtype = f.place.compute;
    let in_whole = |mem| Place {
        mem,
        at: dtype.bytes(f.owned.start),
    };
    match (f.place.away, shard) {
        (true, _) => None,
        (false, _) if dtype == DType::F32 => Some(value),
        (false, Some(mem)) => Some(mem.into()),
        (false, None) => kept.map(in_whole),
    }
}

/// Which gather it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The slices of all ranks that share the flat.
    All,
    /// The copies of the own node.
    Node,
    /// The slices of all, outside the training step: the ledger counts it apart.
    Outside,
}

/// Writes the steps of a plan that make parameters whole.
pub struct Params<'a> {
    /// The job.
    pub job: &'a Job,
    /// The flat of each unit.
    pub flats: &'a [Flat],
    /// The memory of each unit's parameters.
    pub memory: &'a [ParamMemory],
}

/// A fragment's parameters while they are being bound.
#[derive(Default)]
struct Args(Vec<Place>);

impl Args {
    fn bind(&mut self, place: Option<Place>) -> Option<usize> {
        place.map(|p| {
            self.0.push(p);
            self.0.len() - 1
        })
    }
}

/// One of the two flats of a unit in a gather: that of the trained parameters, or the base.
struct Side<'v> {
    /// The whole of it.
    whole: View<'v>,
    /// Elements of a slice.
    each: u64,
    /// This rank's part of its node's copy.
    secondary: Option<View<'v>>,
}

impl Params<'_> {
    /// The number under which the host's thread knows what it holds of a unit, and of its base.
    fn rooms(&self, u: usize) -> [(u64, u32); 2] {
        let (f, n) = (&self.flats[u], self.flats.len());
        [(f.host, u as u32), (f.base_comes(), (n + u) as u32)]
    }

    /// `ShardIn`: the slice for the next gather comes from the host, into memory that lives until then.
    pub fn shard_in(&self, b: &mut Builder, step: Option<StepId>, u: usize) {
        let f = &self.flats[u];
        let shard = self.memory[u].shard.filter(|_| f.place.away);
        let args: Vec<Place> = shard.into_iter().map(Place::from).collect();
        b.call(step, "shard in", &args, |code| {
            if shard.is_none() {
                return;
            }
            code.alloc(0, self.job.arrives);
            let mut at = 0;
            for (elements, room) in self.rooms(u) {
                if elements > 0 {
                    let to = code.arg_at(0, at, [elements], f.place.compute);
                    code.bring(room, Brought::Params, &to);
                    at += f.place.compute.bytes(elements);
                }
            }
        });
    }

    /// `ParamIn`: what the host made of the parameters, to where the device keeps its slice.
    pub fn param_in(&self, b: &mut Builder, step: Option<StepId>, u: usize) {
        let f = &self.flats[u];
        let to = self.memory[u].arrives.filter(|_| f.host > 0);
        b.call(step, "param in", to.as_slice(), |code| {
            if to.is_some() {
                let to = code.arg(0, [f.host], f.place.compute);
                code.bring(u as u32, Brought::Params, &to);
            }
        });
    }

    /// `Gather`: the parameters of unit `u` whole on this rank. 16-bit values are cast from the own f32 slice first, so that half as
    /// many bytes travel (a quarter where the wire has 8 bits); the slice is cast, or lies already, where the gather wants it, so
    /// nothing is copied twice.
    pub fn gather(&self, b: &mut Builder, step: Option<StepId>, u: usize, from: Source) {
        let (f, m) = (&self.flats[u], &self.memory[u]);
        let mut args = Args::default();
        let [whole, value, shard, base] =
            [m.whole, Some(m.value), m.shard.map(Place::from), m.base].map(|p| args.bind(p));
        let [secondary, base_secondary] =
            [m.secondary, m.base_secondary].map(|mem| args.bind(mem.map(Place::from)));
        let p = &f.place;
        let dtype = p.compute;
        b.call(step, "gather", &args.0, |code| {
            let (true, Some(whole)) = (f.gathers(), whole) else {
                return;
            };
            for (elements, room) in self.rooms(u) {
                if elements > 0 {
                    code.wait_for(room);
                }
            }
            if f.shown() {
                return;
            }
            let on = code.on(self.job.gather);
            if p.residency == Residency::Transient {
                code.alloc(whole, self.job.gather);
            }
            let part = |arg: Option<usize>, elements: u64| {
                arg.map(|i| code.arg(i, [elements / u64::from(p.secondary)], dtype))
            };
            if f.layout.padded() > 0 {
                let side = Side {
                    whole: code.arg(whole, [f.length()], dtype),
                    each: f.owned_len(),
                    secondary: part(secondary, f.layout.padded()),
                };
                if !self.node_whole(&on, u, from, &side) {
                    let send = self.own_slice(code, u, (&side.whole, value, shard));
                    self.all_whole(&on, u, from, &side, &send);
                }
            }
            if let (true, Some(base)) = (f.base_is_sharded() && f.base.numel() > 0, base) {
                let first = dtype.bytes(f.base_at);
                let side = Side {
                    whole: code.arg_at(whole, first, [f.base.padded()], dtype),
                    each: f.base.slice_len(),
                    secondary: part(base_secondary, f.base.padded()),
                };
                if !self.node_whole(&on, u, from, &side) {
                    let held = code.arg(base, [side.each], dtype);
                    let at = u64::from(p.rank) * side.each;
                    let own = side.whole.narrow(0, at, side.each);
                    if p.ranks == 1 || self.job.quantized {
                        on.copy(&own, &held);
                    }
                    self.all_whole(&on, u, from, &side, &held);
                }
            }
            if p.ranks > 1 {
                // Who needs this unit need not wait for the next one, which may be gathered ahead of it.
                on.mark();
            }
            if let (true, Some(shard)) = (p.away, shard) {
                code.free(shard);
            }
        });
    }

    /// The own slice of the trained parameters in compute type: where it lies, or in its place in the whole.
    fn own_slice<'v>(
        &self,
        code: &Code<'_>,
        u: usize,
        (whole, value, shard): (&View<'v>, Option<usize>, Option<usize>),
    ) -> View<'v> {
        let f = &self.flats[u];
        let (dtype, owned) = (f.place.compute, f.owned_len());
        let slice = whole.narrow(0, f.owned.start, owned);
        let shard = shard.filter(|_| f.host > 0);
        let on = code.on(self.job.gather);
        if dtype == DType::F32 {
            let Some(held) = shard.filter(|_| f.place.away).or(value) else {
                return slice;
            };
            let held = code.arg(held, [owned], dtype);
            // It travels from where it is, or is in its place; a rank alone, which shows nothing as the whole, puts it there.
            if f.place.ranks > 1 || f.place.residency != Residency::Transient {
                return held;
            }
            on.copy(&slice, &held);
            return slice;
        }
        // What the host updates lies in 16 bits already; the rest is cast from its values.
        if let Some(i) = shard {
            let here = code.arg(i, [f.host], dtype);
            on.copy(&slice.narrow(0, 0, f.host), &here);
        }
        let rest = owned - f.host;
        if let (true, Some(i)) = (rest > 0, value) {
            let values = code.arg(i, [rest], DType::F32);
            on.cast(&slice.narrow(0, f.host, rest), &values);
        }
        slice
    }

    /// The whole from the copies of the own node, where it is asked for and there are some.
    fn node_whole(&self, on: &On<'_>, u: usize, from: Source, side: &Side<'_>) -> bool {
        match (
            from,
            &side.secondary,
            self.job.groups.of(&self.flats[u]).node,
        ) {
            (Source::Node, Some(part), Some(node)) => {
                all_gather(on, node, Traffic::Param, part, &side.whole);
                true
            }
            _ => false,
        }
    }

    /// The whole from the slices of all ranks, and the node's copy from the whole.
    fn all_whole(&self, on: &On<'_>, u: usize, from: Source, side: &Side<'_>, send: &View<'_>) {
        let p = &self.flats[u].place;
        let Some(group) = self.job.groups.of(&self.flats[u]).gather else {
            return;
        };
        let traffic = match from {
            Source::Outside => (Traffic::Eval, Traffic::Eval),
            Source::All | Source::Node => (Traffic::Param, Traffic::Scale),
        };
        match self.job.quantized {
            true => {
                let slices = Slices {
                    group,
                    rank: p.rank,
                    ranks: p.ranks,
                    each: side.each,
                    traffic,
                };
                slices.gather(on, &side.whole);
            }
            false => all_gather(on, group, traffic.0, send, &side.whole),
        }
        if let Some(part) = &side.secondary {
            let at = u64::from(p.rank % p.secondary) * part.numel();
            on.copy(part, &side.whole.narrow(0, at, part.numel()));
        }
    }

    /// `Release`: the memory of the whole is free; what computes with it runs before it is used again.
    pub fn release(&self, b: &mut Builder, step: Option<StepId>, u: usize) {
        let (f, m) = (&self.flats[u], &self.memory[u]);
        let mem = match f.shown() {
            true => m.shard.filter(|_| f.place.away),
            false => m.whole.map(|w| w.mem),
        };
        let mem = mem.filter(|_| f.place.residency == Residency::Transient);
        let args: Vec<Place> = mem.into_iter().map(Place::from).collect();
        b.call(step, "release", &args, |code| {
            (0..args.len()).for_each(|i| code.free(i));
        });
    }
}

fn all_gather(on: &On<'_>, group: GroupId, traffic: Traffic, send: &View<'_>, recv: &View<'_>) {
    let member = Member {
        kind: CollectiveKind::AllGather,
        dtype: send.dtype(),
        send: Some(send.span()),
        recv: recv.span(),
    };
    on.collective(group, traffic, vec![member]);
}
