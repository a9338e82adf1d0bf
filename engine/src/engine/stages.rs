//! A forward for rank 0, which samples, that other ranks run with it: of the stages of a pipeline, or because blocks communicate. It goes along
//! the first data-parallel ranks, and what the last stage made back to rank 0. It is not the steady state: the host waits for each message, whose shape comes before it.

use super::Engine;
use super::gather::OUTSIDE;
use super::moves::staged;
use crate::error::{Error, Result};
use crate::upload::{Cuts, unfit_rows};
use crossweave_hal::{DType, Tag};
use crossweave_planner as planner;
use crossweave_state::Request;
use crossweave_tensor::Batch;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Engine {
    /// What each head makes of `tokens` and their images, which other ranks compute with rank 0: it calls this while all others serve.
    pub(super) fn logits_together(
        &mut self,
        tokens: &[i32],
        images: &[f32],
        (shape, continues): ([u64; 2], bool),
    ) -> Result<Vec<Vec<f32>>> {
        if !self.state.together().is_leading() {
            return Err(Error::Invalid(
                "logits that several ranks compute: rank 0 asks for them between lead and done_reading, while the others serve".into(),
            ));
        }
        if let Some(why) = unfit_rows(&self.blocks.units, tokens, images, shape) {
            return Err(Error::Invalid(why));
        }
        let asked = self.state.together();
        let asked = asked.ask(&self.ways(), Request::Forward { shape, continues });
        asked.map_err(|e| self.error("logits", e))?;
        let made = self.forward_together(Some((tokens, images)), (shape, continues))?;
        Ok(made.unwrap_or_default())
    }

    /// One forward with dropout off, by the ranks that see the same samples as rank 0 and those whom their blocks communicate with; the
    /// others help to put units together. What the heads made is given to rank 0.
    pub(super) fn forward_together(
        &mut self,
        given: Option<(&[i32], &[f32])>,
        (shape, continues): ([u64; 2], bool),
    ) -> Result<Option<Vec<Vec<f32>>>> {
        let [batch, seq] = shape;
        let words = crate::upload::images(&self.blocks.units).map_or(0, |i| i.words());
        let (tokens, images) = given.unzip();
        let tokens = tokens.map(|t| t.iter().map(|id| id.to_le_bytes()).collect());
        let images = images.map(|x| x.iter().map(|x| x.to_le_bytes()).collect());
        let to_all = |own, n| {
            let words = self.words_to_all(own, n);
            words.map_err(|e| self.error("rows of a forward", e))
        };
        let tokens = to_all(tokens, batch * seq)?.into_iter();
        let images = to_all(images, batch * words)?.into_iter();
        let tokens: Vec<i32> = tokens.map(i32::from_le_bytes).collect();
        let images: Vec<f32> = images.map(f32::from_le_bytes).collect();
        let mut data = self.ids(&tokens, None, &images, (shape, Cuts::none()))?;
        data.continues = continues;
        let made = self.run_together(&data);
        made.map_err(|e| self.error("a forward of several ranks", e))
    }

    fn run_together(&mut self, data: &Batch) -> Tensors<Option<Vec<Vec<f32>>>> {
        if !planner::joins_forward(&self.lowered.spec, &self.lowered.facts) {
            for u in self.legs().into_iter().flat_map(|l| l.units) {
                self.gather_for_eval(u)?;
                self.release_after_eval(u)?;
            }
            return Ok(None);
        }
        let mut flow = vec![];
        for leg in self.legs() {
            if let Some(from) = leg.before {
                let peers = &staged(&self.pipe)?.peers;
                flow = peers.receive_flow(self.groups.mesh(), from)?;
            }
            flow = self.run_units(leg.units, flow, data)?;
            if let Some(to) = leg.after {
                let made = std::mem::take(&mut flow);
                let peers = &staged(&self.pipe)?.peers;
                peers.send_flow(self.groups.mesh(), &made, to)?;
            }
        }
        let [stage, last] = match &self.pipe {
            Some(p) => [p.peers.stage(), p.peers.last()],
            None => [0, 0],
        };
        let mesh = self.groups.mesh();
        if stage != last {
            let peers = &staged(&self.pipe)?.peers;
            return match stage {
                0 => peers.receive_values(mesh, last).map(|v| Some(vec![v])),
                _ => Ok(None),
            };
        }
        if stage == 0 {
            let first = self.lowered.spec.place.is_first();
            let heads = flow.iter().map(|t| self.host_values(t));
            let heads = heads.collect::<Tensors<_>>()?;
            return Ok(Some(heads).filter(|_| first));
        }
        let [made] = &flow[..] else {
            return crossweave_tensor::shape_error(format!(
                "the last unit returned {} values, and over stages one is sent to the first",
                flow.len()
            ));
        };
        let values = self.host_values(made)?;
        staged(&self.pipe)?.peers.send_values(mesh, &values, 0)?;
        Ok(None)
    }

    /// Words of 32 bits from rank 0 to every rank.
    fn words_to_all(&self, own: Option<Vec<[u8; 4]>>, n: u64) -> Tensors<Vec<[u8; 4]>> {
        if n == 0 {
            return Ok(vec![]);
        }
        let stream = self.lanes.reductions();
        let b = self.device().alloc(stream, 4 * n, Tag::Activation)?;
        if let Some(words) = own {
            stream.write(b.all(), words.as_flattened())?;
        }
        {
            let mut mesh = self.groups.mesh().borrow_mut();
            let all = mesh.group(self.lowered.spec.everyone())?;
            all.broadcast(stream, b.all(), DType::I32, 0, OUTSIDE)?;
        }
        let mut all = vec![[0u8; 4]; n as usize];
        stream.read(b.all(), all.as_flattened_mut())?;
        Ok(all)
    }
}
