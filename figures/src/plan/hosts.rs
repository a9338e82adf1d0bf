//! What the ranks of each host send in a step, to one another and to other hosts, by the algorithms that carry collectives between
//! processes (`crossweave_hosts`): one rank a process. The length of a call is the mean of those of its kind and purpose.

use super::RankFigures;
use crate::choice::choice;
use crate::job::Job;
use crate::train_error::{Result, TrainError};
use crossweave_hal::CollectiveLine;
use crossweave_hosts::{Call, Choice, Hosts, Kind, Sent};
use crossweave_mesh::spread::{notes, numbered};
use crossweave_mesh::{Axis, AxisSet, Topology, TopologyError};
use serde::Serialize;
use std::collections::BTreeMap;

type Counted<T> = std::result::Result<T, TopologyError>;

/// The bytes that the hosts of a job send in a step.
#[derive(Clone, Debug, Serialize)]
pub struct OfHosts {
    /// Ranks of each host.
    pub ranks: Vec<usize>,
    /// The bytes by axis of the mesh.
    pub axes: Vec<AxisOverHosts>,
    /// The bytes over all axes together.
    #[serde(flatten)]
    pub all: SentByHosts,
    /// Groups that say much and lie on several hosts.
    pub notes: Vec<String>,
}

/// The bytes that the hosts of a job send over an axis in a step.
#[derive(Clone, Debug, Serialize)]
pub struct AxisOverHosts {
    /// The axis; `tie` of stages that share a unit.
    pub axis: String,
    /// The ranks along the axis.
    pub ranks: u32,
    /// Hosts on which a group lies, at most.
    pub hosts: usize,
    /// The bytes that are sent over it.
    #[serde(flatten)]
    pub sent: SentByHosts,
}

/// Bytes that the ranks of each host send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SentByHosts {
    /// The bytes to ranks of the same host.
    pub within: Vec<u64>,
    /// The bytes to ranks of other hosts.
    pub between: Vec<u64>,
}

impl SentByHosts {
    fn none(hosts: usize) -> SentByHosts {
        SentByHosts {
            within: vec![0; hosts],
            between: vec![0; hosts],
        }
    }

    fn add(&mut self, host: usize, times: u64, sent: Sent) {
        self.within[host] += times * sent.within;
        self.between[host] += times * sent.between;
    }

    /// Those of the host that sends most to others; of several the first.
    pub fn most(&self) -> Sent {
        let all = self.within.iter().zip(&self.between).rev();
        let most = all.max_by_key(|(_, between)| **between);
        most.map_or(Sent::default(), |(within, between)| Sent {
            within: *within,
            between: *between,
        })
    }
}

/// Ranks that do a collective together: those of each of the group's hosts, and which hosts of the job these are.
struct Together {
    hosts: Hosts,
    of_job: Vec<usize>,
}

impl Together {
    fn of(hosts: &Hosts, ranks: &[u32]) -> Together {
        let ranks: Vec<usize> = ranks.iter().map(|r| *r as usize).collect();
        let group = hosts.some(&ranks);
        let of_job = group.ranks.iter().map(|own| hosts.of(ranks[own[0]]));
        Together {
            of_job: of_job.collect(),
            hosts: group,
        }
    }
}

/// The counting of a job.
struct Counting<'a> {
    hosts: &'a Hosts,
    mesh: Topology,
    choice: Choice,
    /// The figures of each stage.
    stages: &'a [RankFigures],
    axes: BTreeMap<(String, u32), (usize, SentByHosts)>,
}

impl OfHosts {
    /// Those of a job of which each stage's figures are known.
    ///
    /// # Errors
    /// A mesh that has no such groups.
    pub fn of(hosts: &Hosts, job: &Job, stages: &[RankFigures]) -> Result<OfHosts> {
        let mut counting = Counting {
            hosts,
            mesh: job.resolved.mesh,
            choice: choice(&job.resolved.settings.communication),
            stages,
            axes: BTreeMap::new(),
        };
        let refused =
            |e: TopologyError| TrainError::refused(format!("{}: {}", e.key, e.what), e.fix);
        counting.count().map_err(refused)?;
        let mut all = SentByHosts::none(hosts.count());
        for (_, sent) in counting.axes.values() {
            for host in 0..hosts.count() {
                let (within, between) = (sent.within[host], sent.between[host]);
                all.add(host, 1, Sent { within, between });
            }
        }
        let axis = |((axis, ranks), (hosts, sent))| AxisOverHosts {
            axis,
            ranks,
            hosts,
            sent,
        };
        let node = job
            .resolved
            .settings
            .zero_optimization
            .zero_hpz_partition_size as u32;
        Ok(OfHosts {
            ranks: hosts.ranks.iter().map(Vec::len).collect(),
            notes: notes(&counting.mesh, node, &numbered(hosts)).map_err(refused)?,
            axes: counting.axes.into_iter().map(axis).collect(),
            all,
        })
    }
}

impl Counting<'_> {
    fn count(&mut self) -> Counted<()> {
        for (stage, figures) in (0..).zip(self.stages) {
            for line in &figures.moved.collectives {
                let pp = Axis::Pp.name();
                match &*line.kind {
                    "send" if line.group == pp => self.messages(stage, line)?,
                    _ => self.collective(stage, line)?,
                }
            }
        }
        Ok(())
    }

    fn axis(&mut self, line: &CollectiveLine, hosts: usize) -> &mut SentByHosts {
        let none = || (0, SentByHosts::none(self.hosts.count()));
        let key = (line.group.clone(), line.ranks);
        let axis = self.axes.entry(key).or_insert_with(none);
        axis.0 = axis.0.max(hosts);
        &mut axis.1
    }

    /// Returns the bytes that a stage sends to others.
    fn messages(&mut self, stage: u32, line: &CollectiveLine) -> Counted<()> {
        let steps = self.stages[stage as usize].plan.steps.iter();
        let gradients = line.tag == "activation_grad";
        let all = steps.map(|s| s.op.messages());
        let all = all.filter(|(grad, _)| *grad == gradients);
        let to: Vec<u32> = all
            .flat_map(|(_, messages)| messages.into_iter().filter(|m| m.sends))
            .map(|m| m.stage)
            .collect();
        let each = line.bytes / (to.len() as u64).max(1);
        for group in self.mesh.groups(Axis::Pp.into())? {
            let hosts = Together::of(self.hosts, &group.ranks).hosts.count();
            let host = |stage: u32| {
                let rank = group.ranks.get(stage as usize);
                rank.map_or(0, |r| self.hosts.of(*r as usize))
            };
            let from = host(stage);
            let away = to.iter().filter(|s| host(**s) != from).count() as u64;
            let sent = Sent {
                within: (to.len() as u64 - away) * each,
                between: away * each,
            };
            self.axis(line, hosts).add(from, 1, sent);
        }
        Ok(())
    }

    /// Counts a collective that every group of a stage does alike; a group over stages is counted at the first of them.
    fn collective(&mut self, stage: u32, line: &CollectiveLine) -> Counted<()> {
        let Some((kind, elements)) = carried(line) else {
            return Ok(());
        };
        let width = line.bytes / line.elements.max(1);
        let calls = line.calls.max(1);
        let longer = elements % calls;
        let chosen = self.choice.of_group(&line.group);
        for ranks in self.groups(stage, line)? {
            let group = Together::of(self.hosts, &ranks);
            let axis = self.axis(line, group.hosts.count());
            for (times, elements) in [
                (calls - longer, elements / calls),
                (longer, elements / calls + 1),
            ] {
                let call = Call {
                    kind,
                    elements,
                    width,
                    sum: width.max(4),
                    by: match kind {
                        Kind::ReduceScatter => chosen.reduce_scatter,
                        _ => chosen.all_reduce,
                    },
                };
                let sent = group.hosts.sent(call);
                for (host, sent) in group.of_job.iter().zip(sent) {
                    axis.add(*host, times, sent);
                }
            }
        }
        Ok(())
    }

    /// The groups that do what a line of a stage says.
    fn groups(&self, stage: u32, line: &CollectiveLine) -> Counted<Vec<Vec<u32>>> {
        let of_stage = |r: &u32| self.mesh.place(*r).at(Axis::Pp);
        if line.group == "tie" {
            let ties = |s: &RankFigures| s.moved.collectives.iter().any(|l| l.group == "tie");
            let tied = (0..).zip(self.stages).filter(|(_, s)| ties(s));
            let tied: Vec<usize> = tied.map(|(s, _)| s).take(line.ranks as usize).collect();
            if tied.first() != Some(&(stage as usize)) {
                return Ok(vec![]);
            }
            let all = self.mesh.groups(Axis::Pp.into())?.into_iter();
            let members = |g: crossweave_mesh::Group| tied.iter().map(|s| g.ranks[*s]).collect();
            return Ok(all.map(members).collect());
        }
        // `dp.cp`, or `dp.node` of runs of its members.
        let names = line.group.split('.').filter_map(|n| n.parse::<Axis>().ok());
        let axes = AxisSet::of(&names.collect::<Vec<_>>());
        let all = self.mesh.groups(axes)?.into_iter();
        let counted = |ranks: &Vec<u32>| match axes.contains(Axis::Pp) {
            true => stage == 0,
            false => ranks.first().map(of_stage) == Some(stage),
        };
        let parts = all.flat_map(|g| {
            let parts = g.ranks.chunks((line.ranks as usize).max(1));
            parts.map(<[u32]>::to_vec).collect::<Vec<_>>()
        });
        Ok(parts.filter(counted).collect())
    }
}

/// The kind of a line, and the elements of all its calls; none of what moves nothing, or has been counted where it is sent.
fn carried(line: &CollectiveLine) -> Option<(Kind, u64)> {
    let (n, wire) = (u64::from(line.ranks), line.wire_elements);
    Some(match &*line.kind {
        "all_reduce" => (Kind::AllReduce, line.elements),
        "reduce_scatter" => (Kind::ReduceScatter, line.elements),
        "all_gather" | "all_gather_v" => (Kind::AllGather, line.elements),
        "all_to_all" => (Kind::AllToAll, line.elements),
        // Pieces of any lengths, taken as even: what a rank sends to the others, and as much as to one of them to itself.
        "all_to_all_v" => (Kind::AllToAll, wire * n / (n - 1).max(1)),
        "send" => (Kind::Ring, line.elements),
        _ => return None,
    })
}
