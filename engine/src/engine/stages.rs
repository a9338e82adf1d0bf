//! A forward for rank 0, which samples, that other ranks run with it: of the stages of a pipeline, or because blocks communicate. It goes along
//! the first data-parallel ranks, and what the last stage made back to rank 0. It is not the steady state: the host waits for each message, whose shape comes before it.

use super::Engine;
use super::gather::OUTSIDE;
use super::moves::staged;
use crate::error::{Error, Result};
use crossweave_hal::{DType, Tag};
use crossweave_planner as planner;
use crossweave_state::Request;
use crossweave_tensor::{Batch, Tensor};
use std::sync::Arc;

type Tensors<T> = std::result::Result<T, crossweave_tensor::Error>;

impl Engine {
    /// Logits of `tokens` that other ranks compute with rank 0, which calls this while all others serve.
    pub(super) fn logits_together(
        &mut self,
        tokens: &[i32],
        batch: u64,
        seq: u64,
    ) -> Result<Vec<f32>> {
        if !self.state.together().is_leading() {
            return Err(Error::Invalid(
                "logits that several ranks compute: rank 0 asks for them between lead and done_reading, while the others serve".into(),
            ));
        }
        if tokens.len() as u64 != batch * seq {
            return Err(Error::Invalid(format!(
                "{} token ids for {batch} x {seq}",
                tokens.len()
            )));
        }
        let asked = self.state.together();
        let asked = asked.ask(&self.ways(), Request::Forward(batch, seq));
        let made = asked.and_then(|()| self.forward_together(Some(tokens), batch, seq));
        let made = made.map_err(|e| self.error("logits", e))?;
        Ok(made.unwrap_or_default())
    }

    /// One forward with dropout off, by the ranks that see the same samples as rank 0 and those whom their blocks communicate with; the
    /// others help to put units together. What the last unit made is given to rank 0.
    pub(super) fn forward_together(
        &mut self,
        tokens: Option<&[i32]>,
        batch: u64,
        seq: u64,
    ) -> Tensors<Option<Vec<f32>>> {
        let data = Batch {
            tokens: Some(self.tokens_to_all(tokens, batch, seq)?),
            ..Batch::default()
        };
        if !planner::joins_forward(&self.lowered.spec, &self.lowered.facts) {
            for u in self.own_units() {
                self.gather_for_eval(u)?;
                self.release_after_eval(u)?;
            }
            return Ok(None);
        }
        let [stage, last] = match &self.pipe {
            Some(p) => [p.peers.stage(), p.peers.last()],
            None => [0, 0],
        };
        let flow = match stage {
            0 => vec![],
            _ => staged(&self.pipe)?
                .peers
                .receive_flow(self.groups.mesh(), stage - 1)?,
        };
        let flow = self.run_own(flow, &data)?;
        let mesh = self.groups.mesh();
        if stage < last {
            let peers = &staged(&self.pipe)?.peers;
            peers.send_flow(mesh, &flow, stage + 1)?;
            return match stage {
                0 => peers.receive_values(mesh, last).map(Some),
                _ => Ok(None),
            };
        }
        let [made] = &flow[..] else {
            return crossweave_tensor::shape_error(format!(
                "the last unit returned {} values, expected 1",
                flow.len()
            ));
        };
        let values = self.host_values(made)?;
        if stage == 0 {
            return Ok(Some(values).filter(|_| self.lowered.spec.place.is_first()));
        }
        staged(&self.pipe)?.peers.send_values(mesh, &values, 0)?;
        Ok(None)
    }

    /// Token ids from rank 0, which has them, to every rank.
    fn tokens_to_all(&self, tokens: Option<&[i32]>, batch: u64, seq: u64) -> Tensors<Tensor> {
        let stream = self.lanes.reductions();
        let b = self
            .device()
            .alloc(stream, 4 * batch * seq, Tag::Activation)?;
        if let Some(ids) = tokens {
            let bytes: Vec<u8> = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
            stream.write(b.all(), &bytes)?;
        }
        {
            let mut mesh = self.groups.mesh().borrow_mut();
            let all = mesh.group(self.lowered.spec.everyone())?;
            all.broadcast(stream, b.all(), DType::I32, 0, OUTSIDE)?;
        }
        Ok(Tensor::dense(Arc::new(b), 0, [batch, seq], DType::I32))
    }
}
