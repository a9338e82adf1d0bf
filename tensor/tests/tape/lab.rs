//! A block's forward and backward on the linked CPU backend, and central finite differences of it.

use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{DType, HostServices, Plugin, RawPlugin, Stream, Tag};
use crossweave_tensor::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// A repeatable stream of numbers in [-1, 1).
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    pub fn many(&mut self, n: u64) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
    /// At least 0.1 from zero, for functions with a kink there.
    pub fn away(&mut self, n: u64) -> Vec<f32> {
        self.many(n).iter().map(|v| v + 0.1 * v.signum()).collect()
    }
}

/// One block to check: shapes of parameters and inputs, and what else it may touch.
pub struct Case<'a> {
    pub params: &'a [&'a [u64]],
    pub inputs: &'a [&'a [u64]],
    pub tokens: Option<(&'a [u64], &'a [i64])>,
    pub targets: Option<(&'a [u64], &'a [i64])>,
    pub segments: Option<(&'a [u64], &'a [i32])>,
    pub positions: Option<(&'a [u64], &'a [i32])>,
    pub groups: &'a dyn Groups,
    pub key: RngKey,
    pub keep: Keep,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Case {
            params: &[],
            inputs: &[],
            tokens: None,
            targets: None,
            segments: None,
            positions: None,
            groups: &NoGroups,
            key: RngKey::default(),
            keep: Keep::All,
        }
    }
}

/// What a run of a block gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub out: Vec<f32>,
    pub params: Vec<Vec<f32>>,
    pub inputs: Vec<Option<Vec<f32>>>,
    pub held: u64,
}

pub struct Lab {
    stream: Stream,
}

impl Lab {
    pub fn new() -> Lab {
        let host = HostServices::builder().threads(2).build();
        let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("the linked backend loads");
        let device = Plugin::new(raw).open(0).expect("device 0 opens");
        let stream = device.stream("tape", 0).expect("a stream");
        Lab { stream }
    }

    /// Forward and, from `dout`, backward; parameters and their gradients lie end to end in one buffer each, as a unit's do.
    pub fn run(
        &self,
        case: &Case<'_>,
        params: &[Vec<f32>],
        inputs: &[Vec<f32>],
        dout: Option<&[f32]>,
        f: &dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>,
    ) -> Result<Outcome> {
        let cache = RefCell::new(KernelCache::default());
        let run = Run::new(&self.stream, &Decompositions, &cache);
        let flat = |values: &[Vec<f32>]| -> Result<Vec<Tensor>> {
            let bytes: Vec<u8> = values
                .iter()
                .flatten()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            let b = Arc::new(run.device().alloc_state(bytes.len() as u64, Tag::Param)?);
            run.stream()
                .write(b.region(0, bytes.len() as u64), &bytes)?;
            let mut at = 0;
            Ok(case
                .params
                .iter()
                .map(|s| {
                    let t = Tensor::dense(b.clone(), at, *s, DType::F32);
                    at += t.extent();
                    t
                })
                .collect())
        };
        let weights = flat(params)?;
        // Gradients start as rubbish: the first write of a step must overwrite.
        let rubbish: Vec<Vec<f32>> = params.iter().map(|p| vec![f32::NAN; p.len()]).collect();
        let views = flat(&rubbish)?;
        let written: Vec<Rc<Cell<bool>>> = views.iter().map(|_| Rc::default()).collect();
        let grads = GradSink::new(&views, &written);
        let ids = |t: Option<(&[u64], &[i64])>| t.map(|(s, v)| run.from_i64(s, v)).transpose();
        let words = |t: Option<(&[u64], &[i32])>| -> Result<Option<Tensor>> {
            let Some((shape, values)) = t else {
                return Ok(None);
            };
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let t = run.empty(shape, DType::I32)?;
            run.stream().write(t.region(), &bytes)?;
            Ok(Some(t))
        };
        let batch = Batch {
            tokens: ids(case.tokens)?,
            targets: ids(case.targets)?,
            ignores: false,
            segments: words(case.segments)?,
            positions: words(case.positions)?,
            ..Batch::default()
        };
        let env = Env {
            run: &run,
            groups: case.groups,
            params: &weights,
            consts: &[],
            grads: &grads,
            batch: &batch,
            key: case.key,
            training: true,
        };
        let mut cx = Cx::new(&env);
        let given = case
            .inputs
            .iter()
            .zip(inputs)
            .map(|(s, v)| run.from_f32(*s, v))
            .collect::<Result<Vec<_>>>()?;
        let vars: Vec<Var> = given.iter().map(|t| cx.input(t.clone())).collect();
        let out = f(&mut cx, &vars)?;
        let y = cx.val(out)?.clone();
        let values = run.to_f32(&y)?;
        let shape = *y.shape();
        drop(y);
        let tape = cx.finish(case.keep);
        let held = tape.held_bytes();
        let Some(dout) = dout else {
            return Ok(Outcome {
                out: values,
                params: vec![],
                inputs: vec![],
                held,
            });
        };
        let d = run.from_f32(shape, dout)?;
        let back = tape.backward(&env, &[out], vec![Some(d)], &vars)?;
        for (t, v) in given.iter().zip(inputs) {
            assert_eq!(&run.to_f32(t)?, v, "an input of the block was overwritten");
        }
        let read = |t: &Tensor, w: &Cell<bool>| {
            if w.get() {
                run.to_f32(t)
            } else {
                Ok(vec![0.0; t.numel() as usize])
            }
        };
        Ok(Outcome {
            out: values,
            params: views
                .iter()
                .zip(&written)
                .map(|(t, w)| read(t, w))
                .collect::<Result<_>>()?,
            inputs: back
                .iter()
                .map(|t| t.as_ref().map(|t| run.to_f32(t)).transpose())
                .collect::<Result<_>>()?,
            held,
        })
    }

    /// Holds every gradient of `f` to central differences of `sum(out * dout)`, and Keep::Cheap to the same bits as Keep::All.
    pub fn check(
        &self,
        what: &str,
        case: &Case<'_>,
        f: &dyn Fn(&mut Cx<'_>, &[Var]) -> Result<Var>,
    ) {
        let mut r = Rng(what.bytes().map(u64::from).sum());
        let fill = |r: &mut Rng, shapes: &[&[u64]]| -> Vec<Vec<f32>> {
            shapes.iter().map(|s| r.away(s.iter().product())).collect()
        };
        let params = fill(&mut r, case.params);
        let inputs = fill(&mut r, case.inputs);
        let run = |p: &[Vec<f32>], i: &[Vec<f32>], d: Option<&[f32]>| {
            self.run(case, p, i, d, f)
                .unwrap_or_else(|e| panic!("{what}: {e}"))
        };
        let n = run(&params, &inputs, None).out.len() as u64;
        let dout = r.away(n);
        let got = run(&params, &inputs, Some(&dout));
        assert_eq!(
            got,
            run(&params, &inputs, Some(&dout)),
            "{what}: two runs differ"
        );
        let cheap = Case {
            keep: Keep::Cheap,
            ..*case
        };
        let again = self
            .run(&cheap, &params, &inputs, Some(&dout), f)
            .unwrap_or_else(|e| panic!("{what}, Keep::Cheap: {e}"));
        assert_eq!(got.params, again.params, "{what}: Keep::Cheap, parameters");
        assert_eq!(got.inputs, again.inputs, "{what}: Keep::Cheap, inputs");
        assert!(again.held <= got.held, "{what}: Keep::Cheap holds more");
        let loss = |p: &[Vec<f32>], i: &[Vec<f32>]| -> f64 {
            let out = run(p, i, None).out;
            out.iter()
                .zip(&dout)
                .map(|(a, b)| *a as f64 * *b as f64)
                .sum()
        };
        let h = 4e-3f32;
        let slope = |values: &[Vec<f32>], at: (usize, usize), l: &dyn Fn(&[Vec<f32>]) -> f64| {
            let mut v = values.to_vec();
            v[at.0][at.1] += h;
            let (up, a) = (l(&v), v[at.0][at.1] as f64);
            v[at.0][at.1] -= 2.0 * h;
            (up - l(&v)) / (a - v[at.0][at.1] as f64)
        };
        let hold = |name: &str, g: &[f32], want: Vec<f64>| {
            let scale = want.iter().fold(0.1f64, |m, w| m.max(w.abs()));
            for (k, (g, w)) in g.iter().zip(&want).enumerate() {
                assert!(
                    (*g as f64 - w).abs() <= 3e-3 * scale,
                    "{what}: {name}[{k}] is {g}, finite differences say {w}"
                );
            }
        };
        for (p, g) in got.params.iter().enumerate() {
            let want = (0..g.len())
                .map(|k| slope(&params, (p, k), &|v| loss(v, &inputs)))
                .collect();
            hold(&format!("gradient of parameter {p}"), g, want);
        }
        for (i, g) in got.inputs.iter().enumerate() {
            let zero = vec![0.0; inputs[i].len()];
            let g = g.as_ref().unwrap_or(&zero);
            let want = (0..g.len())
                .map(|k| slope(&inputs, (i, k), &|v| loss(&params, v)))
                .collect();
            hold(&format!("gradient of input {i}"), g, want);
        }
    }
}
