//! One prepared product: descriptors, the algorithm the library's heuristics chose, and the launch.
//!
//! Two algorithms are kept. The fast ones need operands at multiples of 16 bytes, which only the launch knows: a slice of a flat buffer may start
//! anywhere. Choices are kept for the device by problem, so that a shape is asked for once.

use super::{Found, Lt, Problem, id};
use crate::device::Dev;
use crossweave_gpu::{Handle, Lane, lock};
use crossweave_plugin::{Code, OpRequest, Result, fail};
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// What operands must be aligned to for the first algorithm.
const ALIGNED: u64 = 16;
/// Most scratch an algorithm may ask for: what the library's authors recommend for Hopper and newer, and for older devices.
const WORKSPACE: [u64; 2] = [32 << 20, 8 << 20];

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
pub(crate) struct Product {
    descs: Descs,
    /// Its library's handle is destroyed with the device.
    _dev: Arc<Dev>,
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
        let t = &lt.t;
        // SAFETY: out pointers live for the calls. What was made is destroyed with `d`, also when a later step fails.
        unsafe {
            let s = (t.cublasLtMatmulDescCreate)(&mut d.product, p.compute, id::R_32F);
            lt.check("cublasLtMatmulDescCreate", s)?;
            for (at, m, kind) in [
                (&mut d.first, &p.first, p.input),
                (&mut d.second, &p.second, p.input),
                (&mut d.out, &p.out, p.output),
            ] {
                let s = (t.cublasLtMatrixLayoutCreate)(at, kind, m.rows, m.cols, m.ld);
                lt.check("cublasLtMatrixLayoutCreate", s)?;
                if p.batch > 1 {
                    layout(lt, *at, id::LAYOUT_BATCH_COUNT, &p.batch)?;
                    layout(lt, *at, id::LAYOUT_BATCH_STRIDE, &m.step)?;
                }
            }
        }
        for (which, m) in [(id::DESC_TRANSA, &p.first), (id::DESC_TRANSB, &p.second)] {
            if m.transposed {
                d.set(which, &(id::OP_T as i32))?;
            }
        }
        if let Some(kind) = p.bias {
            d.set(id::DESC_EPILOGUE, &id::EPILOGUE_BIAS)?;
            if kind != p.output {
                d.set(id::DESC_BIAS_TYPE, &(kind as i32))?;
            }
        }
        Ok(d)
    }

    fn set<T>(&self, which: u32, value: &T) -> Result<()> {
        let p = std::ptr::from_ref(value).cast();
        // SAFETY: the callers give each attribute the type it has.
        let s = unsafe {
            (self.lt.t.cublasLtMatmulDescSetAttribute)(self.product, which, p, size_of::<T>())
        };
        self.lt.check("cublasLtMatmulDescSetAttribute", s)
    }

    /// The library's first choice for operands aligned to `align` bytes, or `None`.
    fn ask(
        &self,
        handle: Handle,
        p: &Problem,
        most: u64,
        align: Option<u64>,
    ) -> Result<Option<Found>> {
        let (lt, t) = (&self.lt, &self.lt.t);
        if p.bias.is_some() {
            // A place of that alignment, so that the choice does not count on more; the launch sets the real one.
            self.set(id::DESC_BIAS_POINTER, &align.unwrap_or(p.widths.1))?;
        }
        let mut pref = Pref(lt, Handle::NULL);
        // SAFETY: out pointers live for the calls; attributes have their types.
        unsafe {
            lt.check(
                "cublasLtMatmulPreferenceCreate",
                (t.cublasLtMatmulPreferenceCreate)(&mut pref.1),
            )?;
            pref.set(id::PREF_WORKSPACE, &most)?;
            pref.set(id::PREF_REDUCTIONS, &p.reductions())?;
            for i in 0..4 {
                let width = if i < 2 { p.widths.0 } else { p.widths.1 };
                pref.set(id::PREF_ALIGN_A + i, &(align.unwrap_or(width) as u32))?;
            }
            let mut found = Found {
                algo: [0; 8],
                workspace: 0,
                state: 0,
                waves: 0.0,
                reserved: [0; 4],
            };
            let mut n = 0;
            let s = (t.cublasLtMatmulAlgoGetHeuristic)(
                handle,
                self.product,
                self.first,
                self.second,
                self.out,
                self.out,
                pref.1,
                1,
                &mut found,
                &mut n,
            );
            // NOT_SUPPORTED, INVALID_VALUE: it has nothing for this problem.
            if matches!(s, 7 | 15) || (s == 0 && (n < 1 || found.state != 0)) {
                return Ok(None);
            }
            lt.check("cublasLtMatmulAlgoGetHeuristic", s)?;
            Ok(Some(found))
        }
    }
}

/// # Safety
/// The attribute has the type of `value`.
unsafe fn layout<T>(lt: &Lt, at: Handle, which: u32, value: &T) -> Result<()> {
    let p = std::ptr::from_ref(value).cast();
    // SAFETY: promised by the caller.
    let s = unsafe { (lt.t.cublasLtMatrixLayoutSetAttribute)(at, which, p, size_of::<T>()) };
    lt.check("cublasLtMatrixLayoutSetAttribute", s)
}

struct Pref<'a>(&'a Lt, Handle);
impl Pref<'_> {
    /// # Safety
    /// The attribute has the type of `value`.
    unsafe fn set<T>(&self, which: u32, value: &T) -> Result<()> {
        let p = std::ptr::from_ref(value).cast();
        // SAFETY: promised by the caller.
        let s = unsafe {
            (self.0.t.cublasLtMatmulPreferenceSetAttribute)(self.1, which, p, size_of::<T>())
        };
        self.0.check("cublasLtMatmulPreferenceSetAttribute", s)
    }
}
impl Drop for Pref<'_> {
    fn drop(&mut self) {
        if self.1 != Handle::NULL {
            // SAFETY: made by us, destroyed once.
            unsafe { (self.0.t.cublasLtMatmulPreferenceDestroy)(self.1) };
        }
    }
}

impl Drop for Descs {
    fn drop(&mut self) {
        let t = &self.lt.t;
        // SAFETY: made by us, destroyed once; launches already queued do not read them.
        unsafe {
            for m in [self.first, self.second, self.out] {
                if m != Handle::NULL {
                    (t.cublasLtMatrixLayoutDestroy)(m);
                }
            }
            if self.product != Handle::NULL {
                (t.cublasLtMatmulDescDestroy)(self.product);
            }
        }
    }
}

impl Product {
    /// The product with its workspace, or `None` where the library is not there or does not take the layout.
    pub(crate) fn prepare(dev: &Arc<Dev>, o: &OpRequest<'_>) -> Result<Option<(Product, u64)>> {
        let Some(p) = Problem::of(o)? else {
            return Ok(None);
        };
        let Some((lt, handle)) = dev.lt()? else {
            return Ok(None);
        };
        let _in = dev.enter()?;
        let descs = Descs::new(&lt, &p)?;
        let known = lock(&dev.choices).get(&p).copied();
        let choice = match known {
            Some(c) => c,
            None => {
                let most = WORKSPACE[usize::from(dev.facts.major < 9)];
                let aligned = descs.ask(handle, &p, most, Some(ALIGNED))?;
                let c = match aligned {
                    None => None,
                    Some(aligned) => Some(Choice {
                        aligned,
                        any: descs.ask(handle, &p, most, None)?,
                    }),
                };
                lock(&dev.choices).insert(p, c);
                c
            }
        };
        let Some(choice) = choice else {
            return Ok(None);
        };
        let workspace = choice
            .aligned
            .workspace
            .max(choice.any.map_or(0, |a| a.workspace)) as u64;
        let product = Product {
            descs,
            _dev: dev.clone(),
            handle,
            choice,
            bias: p.bias.map(|_| Mutex::new(0)),
            alpha: f32::from_bits(p.alpha),
            beta: f32::from(u8::from(p.accumulate)),
        };
        Ok(Some((product, workspace)))
    }

    /// Does it take operands at any address?
    pub(crate) fn any(&self) -> bool {
        self.choice.any.is_some()
    }

    /// Does it take these? Addresses in the op's order.
    pub(crate) fn takes(&self, addresses: &[u64]) -> bool {
        self.any() || aligned(addresses)
    }

    /// Addresses in the op's order: C, A, B, bias.
    pub(crate) fn launch(&self, s: &Lane<'_>, addresses: &[u64], scratch: u64) -> Result<()> {
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
                    d.set(id::DESC_BIAS_POINTER, &of(3))?;
                    *now = of(3);
                }
                Some(now)
            }
            None => None,
        };
        let pointer = |a: u64| a as usize as *const c_void;
        // SAFETY: operands and workspace live until the stream has passed the launch; alpha and beta are read before the call returns.
        let status = unsafe {
            (lt.t.cublasLtMatmul)(
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
                &algo.algo,
                pointer(scratch).cast_mut(),
                algo.workspace,
                s.raw(),
            )
        };
        lt.check("cublasLtMatmul", status)
    }
}

fn aligned(addresses: &[u64]) -> bool {
    addresses.iter().all(|a| a % ALIGNED == 0)
}
