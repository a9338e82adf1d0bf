//! Matrix products the BLIS way: pack strips of A and B (converting to f32 or bf16 pairs), then register tiles over the packed strips.
//!
//! K is cut into blocks by K alone and each element sums a block in order of k, then block by block, so the bits depend neither on the
//! threads nor on how the output is cut into tasks.

pub mod elem;
pub mod lane;
pub mod pack;
pub mod selftest;
pub mod tile;

#[cfg(test)]
mod tests;

use crate::team::Team;
use elem::Elem;
use pack::Source;
use std::sync::atomic::{AtomicUsize, Ordering};
use tile::{Block, Isa, Out};

/// Longest block of K: a strip of B (16 or 32 wide) must stay in L1 while strips of A pass by.
const KC: usize = 384;
/// Rows packed at once.
const MCC: usize = 2048;
/// Rows of A a task keeps in L2.
const MC: usize = 96;
/// Columns packed at once; fewer where partial sums must be kept apart from a 16-bit C.
const NC: usize = 3072;
const NC_PARTIAL: usize = 1024;

/// Runs `body(slot, item)` for every item, items dealt out as threads come free, slots below `slots` never shared by two threads.
pub fn each(team: &Team, slots: usize, items: usize, body: &(dyn Fn(usize, usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let slots = slots.min(team.threads()).min(items);
    if slots <= 1 {
        for i in 0..items {
            body(0, i);
        }
        return;
    }
    team.run(slots, &|slot| {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= items {
                break;
            }
            body(slot, i);
        }
    });
}

/// One batch of products `C = alpha A B (+ C) (+ bias)`, planned.
#[derive(Clone)]
pub struct Gemm {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Independent products.
    pub batch: usize,
    /// Factor of the product.
    pub alpha: f32,
    /// Adds to C instead of overwriting it.
    pub accumulate: bool,
    /// Storage of A and B.
    pub operand: Elem,
    /// Elements between rows, columns (of k) and batches of A.
    pub a: [isize; 3],
    /// Elements between columns (of k: second) and batches of B: `[n, k, batch]`.
    pub b: [isize; 3],
    /// Storage of C.
    pub out: Elem,
    /// Elements between rows and batches of C (columns are neighbours).
    pub c: [isize; 2],
    /// Storage and stride of the bias, if any.
    pub bias: Option<(Elem, isize)>,
    isa: Isa,
    kc: usize,
    nc: usize,
    /// Batches computed at a time, each by one thread (1: a product is shared by all threads).
    slots: usize,
}

/// Addresses of one launch; the bias may be null.
#[derive(Clone, Copy)]
pub struct Operands {
    /// C.
    pub c: *mut u8,
    /// A.
    pub a: *const u8,
    /// B.
    pub b: *const u8,
    /// Bias.
    pub bias: *const u8,
    /// [`Gemm::workspace`] bytes, aligned to 64.
    pub workspace: *mut u8,
}
// SAFETY: tasks write disjoint parts; the memory is valid for the launch.
unsafe impl Send for Operands {}
// SAFETY: as above.
unsafe impl Sync for Operands {}

/// Word offsets in a workspace slot.
struct Areas {
    b: usize,
    bias: usize,
    partial: usize,
    words: usize,
}

fn up(n: usize, to: usize) -> usize {
    n.div_ceil(to) * to
}

impl Gemm {
    /// Chooses code and blocks; the public fields say what is computed.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        [batch, m, n, k]: [usize; 4],
        operand: Elem,
        a: [isize; 3],
        b: [isize; 3],
        out: Elem,
        c: [isize; 2],
        bias: Option<(Elem, isize)>,
        alpha: f32,
        accumulate: bool,
        threads: usize,
        isa: Isa,
    ) -> Gemm {
        let blocks = k.div_ceil(KC).max(1);
        let kc = up(k.div_ceil(blocks), 2);
        let nc = if k > kc && out != Elem::F32 {
            NC_PARTIAL
        } else {
            NC
        };
        // A batch of small products goes one product to a thread; big ones are shared.
        let small = m.div_ceil(MC) * n.div_ceil(256) < 2 * threads;
        let slots = if small && batch > 1 {
            threads.min(batch)
        } else {
            1
        };
        Gemm {
            m,
            n,
            k,
            batch,
            alpha,
            accumulate,
            operand,
            a,
            b,
            out,
            c,
            bias,
            isa,
            kc,
            nc,
            slots,
        }
    }

    fn areas(&self) -> Areas {
        let kw = self.kc.div_ceil(self.isa.per_word);
        let a = up(self.m.min(MCC), self.isa.mr) * kw;
        let b = up(a, 16);
        let bias = up(b + up(self.n.min(self.nc), self.isa.nr) * kw, 16);
        let partial = up(bias + if self.bias.is_some() { self.n } else { 0 }, 16);
        let kept = self.k > self.kc && self.out != Elem::F32;
        let words = partial
            + if kept {
                self.m.min(MCC) * self.n.min(self.nc)
            } else {
                0
            };
        Areas {
            b,
            bias,
            partial,
            words: up(words, 16),
        }
    }

    /// Bytes of scratch a launch needs.
    pub fn workspace(&self) -> usize {
        self.areas().words * 4 * self.slots
    }

    /// The same of products that sum any number of terms up to this one's, which follows how sums are cut into blocks.
    pub fn workspace_of_fewer(&self) -> usize {
        let most = Gemm {
            kc: up(self.k.min(KC), 2),
            nc: NC,
            ..self.clone()
        };
        most.workspace()
    }

    /// Name of the instruction set chosen.
    pub fn isa(&self) -> &'static str {
        self.isa.name
    }

    /// Computes all batches.
    ///
    /// # Safety
    /// The operands are valid for the layouts planned and C is nobody else's; the instruction set chosen is there.
    pub unsafe fn run(&self, o: Operands, team: &Team) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        let words = self.areas().words;
        let o = &o;
        let one = |slot: usize, i: usize, each_item: &Deal<'_>| {
            let (o, i): (&Operands, isize) = (o, i as isize);
            let it = Operands {
                c: self.out.at_mut(o.c, i * self.c[1]),
                a: self.operand.at(o.a, i * self.a[2]),
                b: self.operand.at(o.b, i * self.b[2]),
                bias: o.bias,
                workspace: o.workspace.wrapping_add(slot * words * 4),
            };
            // SAFETY: batch `i` of valid operands, and a workspace slot of its own.
            unsafe { self.product(it, each_item) }
        };
        if self.slots > 1 {
            each(team, self.slots, self.batch, &|slot, i| {
                one(slot, i, &|items, body| (0..items).for_each(body))
            });
        } else {
            for i in 0..self.batch {
                one(0, i, &|items, body| {
                    each(team, usize::MAX, items, &|_, i| body(i))
                });
            }
        }
    }

    /// One product of the batch; `deal(items, body)` runs the items of a phase.
    ///
    /// # Safety
    /// The operands hold what the layouts of this product say, the workspace what it asked for; nobody else touches them.
    unsafe fn product(&self, o: Operands, deal: &Deal<'_>) {
        let (mr, nr, per) = (self.isa.mr, self.isa.nr, self.isa.per_word);
        let areas = self.areas();
        let at = Words(o.workspace.cast::<u32>());
        let a = Source {
            p: o.a,
            elem: self.operand,
            si: self.a[0],
            sk: self.a[1],
        };
        let b = Source {
            p: o.b,
            elem: self.operand,
            si: self.b[0],
            sk: self.b[1],
        };
        let bias = match self.bias {
            // SAFETY: the bias has n elements, the area n words.
            Some((e, stride)) => unsafe {
                let to = at.at(areas.bias).cast::<f32>();
                for j in 0..self.n {
                    *to.add(j) = e.get(e.at(o.bias, j as isize * stride));
                }
                to.cast_const()
            },
            None => std::ptr::null(),
        };
        let bias = Floats(bias);
        let kept = self.k > self.kc && self.out != Elem::F32;
        for i0 in (0..self.m).step_by(MCC) {
            let m = MCC.min(self.m - i0);
            for j0 in (0..self.n).step_by(self.nc) {
                let n = self.nc.min(self.n - j0);
                let (a_strips, b_strips) = (m.div_ceil(mr), n.div_ceil(nr));
                let c = Out {
                    p: self.out.at_mut(o.c, i0 as isize * self.c[0] + j0 as isize),
                    elem: self.out,
                    stride: self.c[0],
                };
                let partial = if kept {
                    Out {
                        p: at.at(areas.partial).cast(),
                        elem: Elem::F32,
                        stride: n as isize,
                    }
                } else {
                    c
                };
                // K = 0 still runs once: C becomes (C +) 0 + bias.
                for k0 in (0..self.k.max(1)).step_by(self.kc.max(1)) {
                    let kc = self.kc.min(self.k - k0);
                    let kw = kc.div_ceil(per);
                    let (first, last) = (k0 == 0, k0 + kc >= self.k);
                    // Four strips an item: long enough to be worth a hand-over.
                    let (a_items, b_items) = (a_strips.div_ceil(4), b_strips.div_ceil(4));
                    deal(a_items + b_items, &|item| {
                        let (src, to, r, strips, rows, row0, item) = if item < a_items {
                            (&a, 0, mr, a_strips, m, i0, item)
                        } else {
                            (&b, areas.b, nr, b_strips, n, j0, item - a_items)
                        };
                        for s in 4 * item..strips.min(4 * item + 4) {
                            let rows = r.min(rows - s * r);
                            // SAFETY: strip `s` of the matrix and of its area, written by this item only.
                            unsafe {
                                (self.isa.pack)(
                                    src,
                                    row0 + s * r,
                                    rows,
                                    r,
                                    k0,
                                    kc,
                                    at.at(to + s * r * kw),
                                )
                            }
                        }
                    });
                    let mc = MC / mr * mr;
                    let i_items = m.div_ceil(mc);
                    // Wide blocks re-use A in L2; narrow ones when there are few rows to share out.
                    let wanted = 16usize.div_ceil(i_items);
                    let jc = up(n.div_ceil(wanted), nr).max(4 * nr);
                    let j_items = n.div_ceil(jc);
                    let prev = if !first {
                        Some(partial)
                    } else if self.accumulate {
                        Some(c)
                    } else {
                        None
                    };
                    let ends = Ends {
                        prev,
                        dst: if last { c } else { partial },
                    };
                    deal(i_items * j_items, &|item| {
                        let (i, j) = (item / j_items * mc, item % j_items * jc);
                        let shift = |x: Out| Out {
                            p: x.elem.at_mut(x.p, i as isize * x.stride + j as isize),
                            ..x
                        };
                        let ends = &ends;
                        let block = Block {
                            m: mc.min(m - i),
                            n: jc.min(n - j),
                            kw,
                            a: at.at(i * kw),
                            b: at.at(areas.b + j * kw),
                            alpha: self.alpha,
                            prev: ends.prev.map(shift),
                            bias: bias.shifted(j0 + j, last),
                            dst: shift(ends.dst),
                        };
                        // SAFETY: the block lies in C and the packed areas; no other item has it.
                        unsafe { (self.isa.block)(&block) }
                    });
                }
            }
        }
    }
}

/// Runs the items of a phase and returns when all are done.
type Deal<'a> = dyn Fn(usize, &(dyn Fn(usize) + Sync)) + 'a;

/// Where the sums of a block come from and go to.
struct Ends {
    prev: Option<Out>,
    dst: Out,
}
// SAFETY: items write disjoint blocks.
unsafe impl Sync for Ends {}

/// Packed words shared by the items of a phase.
#[derive(Clone, Copy)]
struct Words(*mut u32);
// SAFETY: items write disjoint strips, and read only in a later phase.
unsafe impl Sync for Words {}
impl Words {
    fn at(&self, i: usize) -> *mut u32 {
        self.0.wrapping_add(i)
    }
}

/// The bias as f32, or null.
struct Floats(*const f32);
// SAFETY: read only.
unsafe impl Sync for Floats {}
impl Floats {
    /// The bias from column `j`, null when there is none or it is not yet time to add it.
    fn shifted(&self, j: usize, wanted: bool) -> *const f32 {
        if wanted && !self.0.is_null() {
            self.0.wrapping_add(j)
        } else {
            std::ptr::null()
        }
    }
}
