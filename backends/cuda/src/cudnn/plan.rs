//! From a graph to a plan that can be launched: the engine that heuristics name first and that can be built, kept for the device by problem, and
//! the launch. Addresses are bound in descriptors that are kept too, so that a step that repeats itself makes none.

#[cfg(test)]
use super::deviceless;
use super::graph::{Graph, Source};
use super::shape::{ALIGNED, Why};
use super::{Cudnn, Desc, Problem, id, sdpa};
use crate::device::Dev;
use crossweave_gpu::{Handle, Lane, lock};
use crossweave_plugin::{Code, Error, OpRequest, Result, fail};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

/// Most operands of an attention op.
const OPERANDS: usize = 9;
/// Sets of addresses kept of one prepared op; a program that binds ever new ones starts over.
const BOUND: usize = 4096;
/// Most MiB of workspace where the configuration does not say.
const MOST: u64 = 512;

/// A finished plan. Descriptors that led to it are gone.
pub(crate) struct Plan {
    exec: Desc,
    lib: Arc<Cudnn>,
    /// Bytes of the workspace that the engine has; ours come after them.
    engine: u64,
    pub workspace: u64,
    feeds: Vec<(i64, Source)>,
    /// Numbers that the launch reads; in the order of the feeds.
    values: Vec<u32>,
}

impl Plan {
    /// The first of the heuristics' engines that can be built within `most` bytes. `Err` says why there is none.
    pub(crate) fn build(lib: &Arc<Cudnn>, on: &On, p: &Problem, most: u64) -> Result<Plan> {
        let g = sdpa::graph(lib, p)?;
        let ops: Vec<Handle> = g.ops.iter().map(|o| o.raw).collect();
        let d = on.graph(Desc::new(lib, id::OPERATIONGRAPH, "the graph")?)?;
        let whole = d
            .set(id::OPERATIONGRAPH_OPS, id::TYPE_BACKEND_DESCRIPTOR, &ops)?
            .done()?;
        let mut last = None;
        for mode in [id::HEUR_A, id::HEUR_FALLBACK] {
            let configs = match heuristics(lib, on, &whole, mode) {
                Ok(c) => c,
                Err(e) => {
                    last.get_or_insert(e);
                    continue;
                }
            };
            for c in &configs {
                match Plan::of(lib, on, p, &g, c, most) {
                    Ok(plan) => return Ok(plan),
                    Err(e) => {
                        last.get_or_insert(e);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::new(Code::Unsupported, "no engine has this graph")))
    }

    fn of(
        lib: &Arc<Cudnn>,
        on: &On,
        p: &Problem,
        g: &Graph,
        config: &Desc,
        most: u64,
    ) -> Result<Plan> {
        if p.deterministic && varies(lib, config)? {
            return fail(Code::Unsupported, "the engine's bits vary");
        }
        let d = on.plan(Desc::new(lib, id::EXECUTION_PLAN, "the plan")?)?;
        let exec = d.desc(id::EXECUTION_PLAN_ENGINE_CONFIG, config)?.done()?;
        let mut bytes = [0i64];
        exec.get(
            id::EXECUTION_PLAN_WORKSPACE_SIZE,
            id::TYPE_INT64,
            &mut bytes,
        )?;
        let engine = (bytes[0].max(0) as u64).next_multiple_of(256);
        let workspace = engine + g.scratch;
        if workspace > most {
            return fail(
                Code::Unsupported,
                format!(
                    "a workspace of {} MiB, cuda.cudnn_workspace allows {}",
                    workspace >> 20,
                    most >> 20
                ),
            );
        }
        let values = g
            .feeds
            .iter()
            .filter_map(|(_, s)| match s {
                Source::Value(v) => Some(*v),
                _ => None,
            })
            .collect();
        Ok(Plan {
            exec,
            lib: lib.clone(),
            engine,
            workspace,
            feeds: g.feeds.clone(),
            values,
        })
    }

    /// Addresses bound to the plan's tensors.
    fn bind(&self, addresses: &[u64], scratch: u64) -> Result<Desc> {
        let mut values = self.values.iter();
        let (mut ids, mut at) = (vec![], vec![]);
        for (i, s) in &self.feeds {
            ids.push(*i);
            at.push(match s {
                Source::Operand(n) => addresses.get(*n).copied().unwrap_or(0),
                Source::Scratch(o) => scratch + self.engine + o,
                Source::Value(_) => values
                    .next()
                    .map_or(0, |v| std::ptr::from_ref(v) as usize as u64),
            });
        }
        Desc::new(&self.lib, id::VARIANT_PACK, "the addresses")?
            .set(id::VARIANT_PACK_UNIQUE_IDS, id::TYPE_INT64, &ids)?
            .set(id::VARIANT_PACK_DATA_POINTERS, id::TYPE_VOID_PTR, &at)?
            .set(id::VARIANT_PACK_WORKSPACE, id::TYPE_VOID_PTR, &[scratch])?
            .done()
    }
}

/// What a plan is made for: a device that is there.
pub(crate) enum On {
    Handle(Handle),
    /// A device that is described: plans for it are made without one (`tests`).
    #[cfg(test)]
    Described(Desc),
}

impl On {
    fn graph(&self, d: Desc) -> Result<Desc> {
        match self {
            On::Handle(h) => d.set(id::OPERATIONGRAPH_HANDLE, id::TYPE_HANDLE, &[*h]),
            #[cfg(test)]
            On::Described(_) => Ok(d),
        }
    }
    fn plan(&self, d: Desc) -> Result<Desc> {
        match self {
            On::Handle(h) => d.set(id::EXECUTION_PLAN_HANDLE, id::TYPE_HANDLE, &[*h]),
            #[cfg(test)]
            On::Described(p) => d.desc(deviceless::EXECUTION_PLAN_DEVICEPROP, p),
        }
    }
    fn heuristics(&self, d: Desc) -> Result<Desc> {
        match self {
            On::Handle(_) => Ok(d),
            #[cfg(test)]
            On::Described(p) => d.desc(deviceless::ENGINEHEUR_DEVICEPROP, p),
        }
    }
}

/// Engines with their settings, the best first.
fn heuristics(lib: &Arc<Cudnn>, on: &On, graph: &Desc, mode: i32) -> Result<Vec<Desc>> {
    let d = on.heuristics(Desc::new(lib, id::ENGINEHEUR, "the heuristics")?)?;
    let d = d
        .desc(id::ENGINEHEUR_OPERATION_GRAPH, graph)?
        .number(id::ENGINEHEUR_MODE, id::TYPE_HEUR_MODE, mode)?
        .done()?;
    let kind = id::TYPE_BACKEND_DESCRIPTOR;
    let n = d.get::<Handle>(id::ENGINEHEUR_RESULTS, kind, &mut [])?;
    let mut all = vec![];
    for _ in 0..n {
        all.push(Desc::new(lib, id::ENGINECFG, "an engine's settings")?);
    }
    // The library fills descriptors that are there.
    let mut raw: Vec<Handle> = all.iter().map(|c| c.raw).collect();
    let n = d.get(id::ENGINEHEUR_RESULTS, kind, &mut raw)?;
    all.truncate(n);
    Ok(all)
}

/// Does the library say that an engine's results differ from run to run?
fn varies(lib: &Arc<Cudnn>, config: &Desc) -> Result<bool> {
    let engine = Desc::new(lib, id::ENGINE, "an engine")?;
    config.get(
        id::ENGINECFG_ENGINE,
        id::TYPE_BACKEND_DESCRIPTOR,
        &mut [engine.raw],
    )?;
    let mut notes = [-1i32; 16];
    let n = engine.get(
        id::ENGINE_NUMERICAL_NOTE,
        id::TYPE_NUMERICAL_NOTE,
        &mut notes,
    )?;
    Ok(notes[..n.min(16)].contains(&id::NOTE_NONDETERMINISTIC))
}

/// The handle of a device, and the stream it was last given.
struct Opened {
    lib: Arc<Cudnn>,
    handle: Handle,
    stream: Handle,
}

/// What a device keeps: the handle, plans by problem, and how often which kernels were chosen.
#[derive(Default)]
pub(crate) struct OnDevice {
    opened: Mutex<Option<Opened>>,
    plans: Mutex<HashMap<Problem, std::result::Result<Arc<Plan>, String>>>,
    chosen: Mutex<Chosen>,
}

/// Attention ops prepared, by what does them.
#[derive(Default)]
struct Chosen {
    library: u64,
    own: BTreeMap<String, u64>,
}

impl OnDevice {
    /// Called when the device closes, with its context current: nothing prepared is left.
    pub(crate) fn close(&self) {
        lock(&self.plans).clear();
        if let Some(o) = lock(&self.opened).take() {
            // SAFETY: made by us, destroyed once.
            unsafe { (o.lib.t.cudnnDestroy)(o.handle) };
        }
    }

    /// One line: how many attention ops were prepared with which kernels.
    pub(crate) fn chosen(&self) -> String {
        let c = lock(&self.chosen);
        let mut text = format!("{} by cuDNN", c.library);
        for (which, n) in &c.own {
            // Writing into a string cannot fail.
            let _ = write!(text, "; {n} by {which}");
        }
        text
    }

    /// The handle, made when first asked for.
    fn open(&self, dev: &Dev) -> Result<(Arc<Cudnn>, Handle)> {
        let mut slot = lock(&self.opened);
        if let Some(o) = &*slot {
            return Ok((o.lib.clone(), o.handle));
        }
        let lib = dev.libs.cudnn()?;
        let _in = dev.enter()?;
        let mut handle = Handle::NULL;
        // SAFETY: the out pointer lives for the call.
        let s = unsafe { (lib.t.cudnnCreate)(&mut handle) };
        lib.check("cudnnCreate", s)?;
        *slot = Some(Opened {
            lib: lib.clone(),
            handle,
            stream: Handle::NULL,
        });
        Ok((lib, handle))
    }
}

/// A prepared attention.
pub(crate) struct Attention {
    problem: Problem,
    /// How many times the plan runs, each time over as many batches.
    parts: i64,
    bound: Mutex<HashMap<[u64; OPERANDS + 1], Desc>>,
    plan: Arc<Plan>,
    dev: Arc<Dev>,
}

impl Drop for Attention {
    fn drop(&mut self) {
        // A plan that goes unloads what it loaded.
        let _in = self.dev.enter_anyway();
        lock(&self.bound).clear();
    }
}

impl Attention {
    /// `None`: our own kernels, of the family `own`, do it, and the device keeps why.
    pub(crate) fn prepare(
        dev: &Arc<Dev>,
        o: &OpRequest<'_>,
        own: &str,
    ) -> Result<Option<(Attention, u64)>> {
        let on = &dev.dnn;
        let found = Attention::of(dev, o);
        let why = match found {
            Ok(a) => {
                lock(&on.chosen).library += 1;
                let bytes = a.plan.workspace;
                return Ok(Some((a, bytes)));
            }
            Err(Refused::Shape(why)) => why.to_string(),
            Err(Refused::Library(why)) => why,
            Err(Refused::Error(e)) => return Err(e),
        };
        let which = format!("own kernels ({own}): {why}");
        *lock(&on.chosen).own.entry(which).or_default() += 1;
        Ok(None)
    }

    fn of(dev: &Arc<Dev>, o: &OpRequest<'_>) -> std::result::Result<Attention, Refused> {
        let f = &dev.facts;
        let arch = f.major * 10 + f.minor;
        // Before the library is opened, which maps a gigabyte: is it a shape for it at all?
        Problem::of(o, arch, usize::MAX)??;
        let (lib, handle) = dev.dnn.open(dev).map_err(|e| match dev.alive() {
            Ok(()) if e.code != Code::Invalid => Refused::Library(e.message),
            Ok(()) => Refused::Error(e),
            Err(lost) => Refused::Error(lost),
        })?;
        let problem = Problem::of(o, arch, lib.version)??;
        let most = dev.api.settings.get("cuda.cudnn_workspace");
        let most = match most.map(str::parse::<u64>) {
            None => MOST << 20,
            Some(Ok(mib)) if mib < 1 << 40 => mib << 20,
            Some(_) => {
                return Err(Refused::Error(Error::new(
                    Code::Invalid,
                    format!(
                        "cuda.cudnn_workspace = {}: wanted a number of MiB",
                        most.unwrap_or_default()
                    ),
                )));
            }
        };
        let Some((problem, parts)) = problem.parted(most) else {
            return Err(Refused::Shape(
                "scores of one sequence beyond cuda.cudnn_workspace",
            ));
        };
        let lse = problem.b as u64 * problem.h as u64 * problem.tq as u64 * 4;
        if parts > 1 && !lse.is_multiple_of(ALIGNED) {
            return Err(Refused::Shape(
                "parts whose log-sum-exp is not at multiples of 16 bytes",
            ));
        }
        let mut plans = lock(&dev.dnn.plans);
        let plan = match plans.get(&problem) {
            Some(p) => p.clone(),
            None => {
                let _in = dev.enter()?;
                // The handle is used by one thread at a time.
                let _one = lock(&dev.dnn.opened);
                let made = Plan::build(&lib, &On::Handle(handle), &problem, most);
                // What a lost device says is no property of the shape.
                dev.alive()?;
                let made = made.map(Arc::new).map_err(|e| e.message);
                plans.insert(problem.clone(), made.clone());
                made
            }
        };
        Ok(Attention {
            problem,
            parts,
            bound: Mutex::default(),
            plan: plan.map_err(Refused::Library)?,
            dev: dev.clone(),
        })
    }

    /// Does it take these addresses?
    pub(crate) fn takes(&self, addresses: &[u64]) -> bool {
        addresses.iter().all(|a| a % ALIGNED == 0)
    }

    /// Addresses in the op's order.
    pub(crate) fn launch(&self, s: &Lane<'_>, addresses: &[u64], scratch: u64) -> Result<()> {
        let dev = &self.dev;
        let _in = dev.enter()?;
        let mut key = [0; OPERANDS + 1];
        for part in 0..self.parts as u64 {
            for (i, a) in addresses.iter().enumerate().take(OPERANDS) {
                key[i] = a + part * self.problem.b as u64 * self.problem.step(i);
            }
            key[OPERANDS] = scratch;
            let mut bound = lock(&self.bound);
            if !bound.contains_key(&key) {
                if bound.len() >= BOUND {
                    bound.clear();
                }
                let pack = self.plan.bind(&key[..OPERANDS], scratch)?;
                bound.insert(key, pack);
            }
            let Some(pack) = bound.get(&key) else {
                return fail(Code::Internal, "addresses that were bound are gone");
            };
            self.execute(s, pack)?;
        }
        Ok(())
    }

    fn execute(&self, s: &Lane<'_>, pack: &Desc) -> Result<()> {
        let mut slot = lock(&self.dev.dnn.opened);
        let Some(o) = &mut *slot else {
            return fail(Code::Internal, "the handle of cuDNN is gone");
        };
        let t = &o.lib.t;
        // SAFETY: the handle and the plan are of this device, whose context is current; operands and workspace live until the stream has
        // passed the launch, and the numbers behind by-value tensors as long as the plan.
        unsafe {
            let lane = s.raw();
            if o.stream != lane {
                o.lib
                    .check("cudnnSetStream", (t.cudnnSetStream)(o.handle, lane))?;
                o.stream = lane;
            }
            let status = (t.cudnnBackendExecute)(o.handle, self.plan.exec.raw, pack.raw);
            o.lib.check("cudnnBackendExecute", status)
        }
        .map_err(|e| match s.query() {
            // The driver knows more of a device that is lost.
            Err(lost) if lost.code == Code::DeviceLost => lost,
            _ => e,
        })
    }
}

/// Why there is no plan.
enum Refused {
    Shape(Why),
    Library(String),
    /// Nothing of the shape's.
    Error(Error),
}

impl From<Why> for Refused {
    fn from(why: Why) -> Refused {
        Refused::Shape(why)
    }
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Error(e)
    }
}
