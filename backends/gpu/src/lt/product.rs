//! One prepared product: descriptors, the algorithm the library's heuristics chose, and the launch.
//!
//! Two algorithms are kept. The fast ones need operands at multiples of 16 bytes, which only the launch knows: a slice of a flat buffer may start
//! anywhere. Choices are kept for the device by problem, so that a shape is asked for once.

use super::{EPILOGUE_BIAS, Lt, OnDevice, Problem, R_32F, Set};
use crate::lock;
use crate::runtime::Handle;
use crate::stream::Lane;
use crossweave_plugin::{Code, OpRequest, Result, fail};
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// What operands must be aligned to for the first algorithm.
const ALIGNED: u64 = 16;
/// Most scratch an algorithm may ask for: what the library's authors recommend for Hopper and newer, and for older devices.
const WORKSPACE: [u64; 2] = [32 << 20, 8 << 20];

/// An algorithm as the library describes it, as many words as it has of those, and behind them the bytes of scratch, whether it can be used, and more.
pub(crate) type Found = [u64; 16];

/// Algorithms for a problem.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    aligned: Found,
    /// For operands at any address their elements may have; `None`: the library has none.
    any: Option<Found>,
}

/// Descriptors; destroyed with it.
struct Descs {
    lt: Arc<Lt>,
    product: Handle,
    first: Handle,
    second: Handle,
    out: Handle,
}

/// A prepared product.
pub struct Product {
    descs: Descs,
    /// Holds the library's handle.
    _on: Arc<OnDevice>,
    handle: Handle,
    choice: Choice,
    /// The bias's address is part of the descriptor, not of the launch: the one it has, held until the launch has read it.
    bias: Option<Mutex<u64>>,
    alpha: f32,
    beta: f32,
}

impl Descs {
    fn new(lt: &Arc<Lt>, p: &Problem) -> Result<Descs> {
        let mut d = Descs {
            lt: lt.clone(),
            product: Handle::NULL,
            first: Handle::NULL,
            second: Handle::NULL,
            out: Handle::NULL,
        };
        let (f, n) = (&lt.f, lt.n);
        // SAFETY: out pointers live for the calls. What was made is destroyed with `d`, also when a later step fails.
        unsafe {
            let compute = n.compute[usize::from(p.tf32)];
            let s = (f.desc_create)(&mut d.product, compute, R_32F);
            lt.check("MatmulDescCreate", s)?;
            for (at, m, kind) in [
                (&mut d.first, &p.first, p.input),
                (&mut d.second, &p.second, p.input),
                (&mut d.out, &p.out, p.output),
            ] {
                let s = (f.layout_create)(at, kind, m.rows, m.cols, m.ld);
                lt.check("MatrixLayoutCreate", s)?;
                if p.batch > 1 {
                    layout(lt, *at, n.batch[0], &p.batch)?;
                    layout(lt, *at, n.batch[1], &m.step)?;
                }
            }
        }
        for (which, m) in [(n.trans[0], &p.first), (n.trans[1], &p.second)] {
            if m.transposed {
                d.set(which, &n.op_t)?;
            }
        }
        if let Some(kind) = p.bias {
            d.set(n.epilogue, &EPILOGUE_BIAS)?;
            if kind != p.output {
                d.set(n.bias[1], &(kind as i32))?;
            }
        }
        Ok(d)
    }

    fn set<T>(&self, which: u32, value: &T) -> Result<()> {
        // SAFETY: the callers give each attribute the type it has.
        let s = unsafe { set(self.lt.f.desc_set, self.product, which, value) };
        self.lt.check("MatmulDescSetAttribute", s)
    }

    /// The library's first choice for operands aligned to `align` bytes, or `None`.
    fn ask(
        &self,
        handle: Handle,
        p: &Problem,
        most: u64,
        align: Option<u64>,
    ) -> Result<Option<Found>> {
        let (lt, n) = (&self.lt, self.lt.n);
        if p.bias.is_some() {
            // A place of that alignment, so that the choice does not count on more; the launch sets the real one.
            self.set(n.bias[0], &align.unwrap_or(p.widths.1))?;
        }
        let mut pref = Pref(lt, Handle::NULL);
        // SAFETY: out pointers live for the calls; attributes have their types.
        unsafe {
            lt.check("MatmulPreferenceCreate", (lt.f.pref_create)(&mut pref.1))?;
            pref.set(n.pref_workspace, &most)?;
            if let Some((which, in_compute_type)) = n.pref_reductions {
                pref.set(which, &if p.may_split() { in_compute_type } else { 0 })?;
            }
            for i in 0..4 {
                let width = if i < 2 { p.widths.0 } else { p.widths.1 };
                if let Some(first) = n.pref_align {
                    pref.set(first + i, &(align.unwrap_or(width) as u32))?;
                }
            }
            let (mut found, mut count): (Found, i32) = ([0; 16], 0);
            let s = (lt.f.heuristic)(
                handle,
                self.product,
                self.first,
                self.second,
                self.out,
                self.out,
                pref.1,
                1,
                found.as_mut_ptr().cast(),
                &mut count,
            );
            if n.nothing.contains(&s) || (s == 0 && (count < 1 || found[n.algo + 1] as i32 != 0)) {
                return Ok(None);
            }
            lt.check("MatmulAlgoGetHeuristic", s)?;
            Ok(Some(found))
        }
    }
}

/// # Safety
/// The attribute has the type of `value`.
unsafe fn set<T>(by: Set, at: Handle, which: u32, value: &T) -> i32 {
    // SAFETY: promised by the caller.
    unsafe { by(at, which, std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// # Safety
/// The attribute has the type of `value`.
unsafe fn layout<T>(lt: &Lt, at: Handle, which: u32, value: &T) -> Result<()> {
    // SAFETY: promised by the caller.
    let s = unsafe { set(lt.f.layout_set, at, which, value) };
    lt.check("MatrixLayoutSetAttribute", s)
}

struct Pref<'a>(&'a Lt, Handle);
impl Pref<'_> {
    /// # Safety
    /// The attribute has the type of `value`.
    unsafe fn set<T>(&self, which: u32, value: &T) -> Result<()> {
        // SAFETY: promised by the caller.
        let s = unsafe { set(self.0.f.pref_set, self.1, which, value) };
        self.0.check("MatmulPreferenceSetAttribute", s)
    }
}
impl Drop for Pref<'_> {
    fn drop(&mut self) {
        if self.1 != Handle::NULL {
            // SAFETY: made by us, destroyed once.
            unsafe { (self.0.f.pref_destroy)(self.1) };
        }
    }
}

impl Drop for Descs {
    fn drop(&mut self) {
        let f = &self.lt.f;
        // SAFETY: made by us, destroyed once; launches already queued do not read them.
        unsafe {
            for m in [self.first, self.second, self.out] {
                if m != Handle::NULL {
                    (f.layout_destroy)(m);
                }
            }
            if self.product != Handle::NULL {
                (f.desc_destroy)(self.product);
            }
        }
    }
}

impl Product {
    /// The product with its workspace, or `None` where the library is not there or does not take the layout.
    ///
    /// # Errors
    /// What the library says.
    pub fn prepare(on: &Arc<OnDevice>, o: &OpRequest<'_>) -> Result<Option<(Product, u64)>> {
        let Some(p) = Problem::of(o)? else {
            return Ok(None);
        };
        let Some((lt, handle)) = on.lt()? else {
            return Ok(None);
        };
        let _in = on.dev.enter()?;
        let descs = Descs::new(&lt, &p)?;
        let known = lock(&on.choices).get(&p).copied();
        let choice = match known {
            Some(c) => c,
            None => {
                let most = WORKSPACE[usize::from(on.dev.facts.major < 9)];
                let aligned = descs.ask(handle, &p, most, Some(ALIGNED))?;
                let c = match aligned {
                    None => None,
                    Some(aligned) => Some(Choice {
                        aligned,
                        // Which algorithms take operands at any address, not every library says.
                        any: match lt.n.pref_align {
                            Some(_) => descs.ask(handle, &p, most, None)?,
                            None => None,
                        },
                    }),
                };
                lock(&on.choices).insert(p, c);
                c
            }
        };
        let Some(choice) = choice else {
            return Ok(None);
        };
        let scratch = |f: Found| f[lt.n.algo];
        let workspace = scratch(choice.aligned).max(choice.any.map_or(0, scratch));
        let product = Product {
            descs,
            _on: on.clone(),
            handle,
            choice,
            bias: p.bias.map(|_| Mutex::new(0)),
            alpha: f32::from_bits(p.alpha),
            beta: f32::from(u8::from(p.accumulate)),
        };
        Ok(Some((product, workspace)))
    }

    /// Does it take operands at any address?
    pub fn any(&self) -> bool {
        self.choice.any.is_some()
    }

    /// Does it take these? Addresses in the op's order.
    pub fn takes(&self, addresses: &[u64]) -> bool {
        self.any() || aligned(addresses)
    }

    /// Addresses in the op's order: C, A, B, bias.
    ///
    /// # Errors
    /// What the library says.
    pub fn launch(&self, s: &Lane<'_>, addresses: &[u64], scratch: u64) -> Result<()> {
        let (lt, d) = (&self.descs.lt, &self.descs);
        let of = |i: usize| addresses.get(i).copied().unwrap_or(0);
        let algo = match (aligned(addresses), &self.choice.any) {
            (true, _) => &self.choice.aligned,
            (false, Some(any)) => any,
            (false, None) => {
                return fail(
                    Code::Internal,
                    "a product at addresses it was not prepared for",
                );
            }
        };
        let _in = s.dev.enter()?;
        let _held = match &self.bias {
            Some(held) => {
                let mut now = lock(held);
                if *now != of(3) {
                    *now = 0;
                    d.set(lt.n.bias[0], &of(3))?;
                    *now = of(3);
                }
                Some(now)
            }
            None => None,
        };
        let pointer = |a: u64| a as usize as *const c_void;
        // SAFETY: operands and workspace live until the stream has passed the launch; alpha and beta are read before the call returns.
        let status = unsafe {
            (lt.f.matmul)(
                self.handle,
                d.product,
                (&raw const self.alpha).cast(),
                pointer(of(2)),
                d.first,
                pointer(of(1)),
                d.second,
                (&raw const self.beta).cast(),
                pointer(of(0)),
                d.out,
                pointer(of(0)).cast_mut(),
                d.out,
                algo.as_ptr().cast(),
                pointer(scratch).cast_mut(),
                algo[lt.n.algo] as usize,
                s.raw(),
            )
        };
        lt.check("Matmul", status)
    }
}

fn aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|a| a % ALIGNED == 0)
}
