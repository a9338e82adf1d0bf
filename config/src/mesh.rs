//! `mesh`: the axes over which ranks are laid out, and the number of ranks they make.

use crate::resolve::Resolver;
use crate::settings::{Mesh, Settings};
use crossweave_axes::{Axis, Topology, TopologyError};
use crossweave_family::{ModelSpec, split};

impl Mesh {
    /// Ranks of all axes but dp, and with it where it is given. Experts add none: they are carved from these.
    pub(crate) fn product(&self) -> u64 {
        let axes = [self.pp, self.dp.unwrap_or(1), self.cp, self.tp];
        axes.iter().fold(1, |n, a| n.saturating_mul((*a).max(1)))
    }

    /// The mesh of `ranks` ranks: `dp` is what the other axes leave of them.
    ///
    /// # Errors
    /// Axes that do not divide the ranks, experts that do not divide a stage, an order that is none; with the key and what to set.
    pub fn topology(&self, ranks: u64) -> Result<Topology, TopologyError> {
        let size = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let given = [
            (Axis::Pp, Some(self.pp)),
            (Axis::Cp, Some(self.cp)),
            (Axis::Tp, Some(self.tp)),
            (Axis::Ep, Some(self.ep)),
            (Axis::Etp, self.etp),
        ];
        let lengths = given.into_iter().filter_map(|(a, n)| Some((a, size(n?))));
        let mesh = Topology::fill_data(&lengths.collect::<Vec<_>>(), size(ranks))?;
        let other = |dp: &u64| *dp != u64::from(mesh.length(Axis::Dp)) && !self.is_elastic();
        if let Some(dp) = self.dp.filter(other) {
            let others = [Axis::Pp, Axis::Cp, Axis::Tp];
            let long = others.into_iter().filter(|a| mesh.length(*a) > 1);
            let times: String = long
                .map(|a| format!(" times {a} {}", mesh.length(a)))
                .collect();
            return Err(TopologyError {
                key: "mesh.dp".into(),
                what: format!("mesh.dp {dp}{times} is not the number of ranks, {ranks}"),
                fix: format!("set it to \"auto\", or run with --ranks {}", self.product()),
            });
        }
        mesh.ordered(&self.axes()?)
    }

    /// `mesh.order`, read.
    fn axes(&self) -> Result<Vec<Axis>, TopologyError> {
        let each = self.order.split(',').map(|a| a.trim().parse());
        each.collect::<Result<_, _>>()
            .map_err(|what| TopologyError {
                key: "mesh.order".into(),
                what,
                fix: "list pp, dp, cp and tp, e.g. \"pp,dp,cp,tp\"".into(),
            })
    }
}

impl Resolver<'_> {
    /// The mesh of all ranks there are, over which the layers of a new model can be cut, and its data-parallel ranks. Where it is refused, one that comes near, so that what depends on it is still looked at.
    pub(crate) fn mesh(
        &mut self,
        s: &mut Settings,
        ranks: u64,
        spec: Option<&ModelSpec>,
    ) -> (Topology, u64) {
        let may = spec.map_or(Ok(()), |m| split::check(m.model(), s.mesh.tp));
        if let Err(e) = may {
            self.error("mesh.tp", e.what, e.fix);
        }
        let may = spec.map_or(Ok(()), |m| split::experts(m.model(), s.mesh.ep));
        if let Err(e) = may {
            self.error("mesh.ep", e.what, e.fix);
        }
        let etp = s.mesh.etp.unwrap_or(s.mesh.tp);
        let may = spec.map_or(Ok(()), |m| split::parts_of_experts(m.model(), etp));
        if let Err(e) = may {
            self.error("mesh.etp", e.what, e.fix);
        }
        let dense = spec.is_some_and(|m| m.model().routed().next().is_none());
        if dense && s.mesh.etp.is_some_and(|n| n > 1) {
            let what = "the model has no experts that ranks could have parts of";
            let fix = "remove it, or put experts into the model with model.moe";
            self.error("mesh.etp", what, fix);
        }
        let mesh = s.mesh.topology(ranks).unwrap_or_else(|e| {
            self.error(&e.key, e.what, e.fix);
            let rest = s.mesh.product() / s.mesh.dp.unwrap_or(1).max(1);
            let dp = u32::try_from(ranks / rest.max(1)).unwrap_or(1).max(1);
            Topology::new(&[(Axis::Dp, dp)]).unwrap_or_else(|_| Topology::one())
        });
        let data = mesh.length(Axis::Dp).into();
        s.mesh.dp = Some(data);
        (mesh, data)
    }

    /// Holds the keys of slices against the ranks that share parameters: those that share a second copy of them are a part of these.
    pub(crate) fn slices(&mut self, s: &Settings, ranks: u64) {
        self.reductions(s, ranks);
        let zero = &s.zero_optimization;
        let node = zero.zero_hpz_partition_size;
        if node > 1 && (zero.stage != 3 || !ranks.is_multiple_of(node)) {
            let what = format!(
                "{node} ranks share a second copy of the parameters; that needs stage 3 (it is {}) and a number that divides the {ranks} ranks",
                zero.stage
            );
            let fix = "set it to 1, or to the ranks of a node";
            self.error("zero_optimization.zero_hpz_partition_size", what, fix);
        }
    }
}
