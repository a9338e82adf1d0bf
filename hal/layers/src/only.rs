//! Leaves of a plugin what a profile asks for, and nothing else: every other op, type and collective is refused,
//! optional slots and interfaces are not there. What trains inside it trains on every plugin that the profile
//! calls fit.

use crate::call::{Call, OpFacts, collective_name};
use crate::wrap::Layer;
use crossweave_abi::profile::{coll_need, op_need};
use crossweave_abi::{CollDesc, CollectiveApi, DType, DeviceApi, Profile, Status};
use crossweave_plugin::{Code, Error, Result};

/// The layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    profile: Profile,
    half: DType,
}

impl Only {
    /// Reads `minimal`, `train`, `moe` or `collective-only`; with `:f16` the 16-bit float is that, else bf16.
    ///
    /// # Errors
    /// Another name or type.
    pub fn parse(text: &str) -> std::result::Result<Only, String> {
        let (name, half) = text.split_once(':').unwrap_or((text, "bf16"));
        let profile = Profile::by_name(name).ok_or_else(|| {
            let names = Profile::ALL.map(Profile::name).join(", ");
            format!("no profile is called {name:?}; there are {names}")
        })?;
        let half = match half {
            "bf16" => DType::Bf16,
            "f16" => DType::F16,
            other => return Err(format!("{other:?} is no 16-bit float; write bf16 or f16")),
        };
        Ok(Only { profile, half })
    }

    fn has(&self, o: &OpFacts) -> bool {
        let types: Option<Vec<DType>> = o
            .operands
            .iter()
            .filter(|l| l.present())
            .map(|l| DType::from_id(l.dtype))
            .collect();
        types
            .and_then(|t| op_need(o.op, &t, self.half))
            .is_some_and(|least| self.profile.asks(least))
    }
}

fn carries(d: &CollDesc) -> bool {
    coll_need(d.kind, d.dtype, d.reduce, d.flags)
}

fn beyond(name: &str) -> Result<Status> {
    let why = format!("{name} in these types is not of the profile (layer only)");
    Err(Error::new(Code::Unsupported, why))
}

impl Layer for Only {
    fn name(&self) -> &'static str {
        "only"
    }

    fn trim(&self, device: &mut DeviceApi, coll: &mut Option<CollectiveApi>) {
        *device = DeviceApi {
            device_attr: None,
            mem_import: None,
            mem_export: None,
            event_elapsed: None,
            stream_host_call: None,
            stream_wait_value: None,
            stream_write_value: None,
            copy_peer: None,
            peer_access: None,
            ..*device
        };
        *coll = match self.profile.asks_collectives() {
            false => None,
            true => coll.map(|c| CollectiveApi {
                comm_split: None,
                launch_multi: None,
                mem_register: None,
                mem_unregister: None,
                topology: None,
                ..c
            }),
        };
    }

    fn around(&self, call: &Call<'_>, next: &mut dyn FnMut() -> Status) -> Result<Status> {
        match call {
            Call::Prepare { op, .. } if !self.has(op) => beyond(op.name()),
            Call::CommQuery { desc, .. } if !carries(desc) => beyond(collective_name(desc.kind)),
            Call::Collective { members, .. } => match members.iter().find(|m| !carries(&m.desc)) {
                Some(m) => beyond(collective_name(m.desc.kind)),
                None => Ok(next()),
            },
            _ => Ok(next()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossweave_abi::{Layout, op};

    fn of(id: u32, types: &[DType]) -> OpFacts {
        OpFacts {
            op: id,
            revision: 1,
            operands: types.iter().map(|t| Layout::contiguous(*t, &[2])).collect(),
            params: vec![],
            math_flags: 0,
        }
    }

    #[test]
    fn a_profile_is_left_and_nothing_else() {
        let (small, train) = (
            Only::parse("minimal").unwrap(),
            Only::parse("train:f16").unwrap(),
        );
        let half = of(op::UNARY, &[DType::F16; 2]);
        assert!(!small.has(&half) && train.has(&half));
        assert!(!train.has(&of(op::UNARY, &[DType::Bf16; 2])));
        assert!(small.has(&of(op::UNARY, &[DType::F32; 2])));
        assert!(!train.has(&of(op::ADD, &[DType::F32; 3])));
        assert!(Only::parse("big").unwrap_err().contains("minimal, train"));
        assert!(Only::parse("train:f8").unwrap_err().contains("bf16 or f16"));
    }
}
