//! Faults of parallel training as changes of the sources, which layouts that are drawn must catch. `SEEDED` is true where the fault is asked for.

/// A fault, and what it is in the sources.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// By which it is asked for.
    pub name: &'static str,
    /// In words.
    pub what: &'static str,
    /// Every place of it.
    pub edits: &'static [Edit],
    /// Canonical sums have it too: their bits tell by the first step.
    pub canonical: bool,
}

/// A text of a file, which is there once, and what stands there instead.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// From the root.
    pub file: &'static str,
    /// The text that is there.
    pub old: &'static str,
    /// The text in its place.
    pub new: &'static str,
}

const fn edit(file: &'static str, old: &'static str, new: &'static str) -> Edit {
    Edit { file, old, new }
}

const fn fault(name: &'static str, what: &'static str, edits: &'static [Edit]) -> Fault {
    Fault {
        name,
        what,
        edits,
        canonical: false,
    }
}

const fn canonical(name: &'static str, what: &'static str, edits: &'static [Edit]) -> Fault {
    Fault {
        canonical: true,
        ..fault(name, what, edits)
    }
}

/// All of them.
#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    canonical("norm-sum", "the squares of a norm are not summed over the ranks", &[
        edit(
            "zero/src/lower/figures.rs",
            "reduce(&code.on(Lane::Compute), op::reduce::SUM, &total, &each);\n    if let Some(group) = job.groups.figures {",
            "reduce(&code.on(Lane::Compute), op::reduce::SUM, &total, &each);\n    if let Some(group) = job.groups.figures.filter(|_| !SEEDED) {",
        ),
        edit(
            "zero/src/lower/figures.rs",
            "let all = code.arg_at(0, 4 * words.start, [n], DType::F32);\n    if let Some(group) = job.groups.figures {",
            "let all = code.arg_at(0, 4 * words.start, [n], DType::F32);\n    if let Some(group) = job.groups.figures.filter(|_| !(SEEDED && to == Words::SQUARES)) {",
        ),
    ]),
    fault("bias-times-t", "every rank of a layer that is cut by inputs adds its bias", &[edit(
        "tensor/src/ops/linear.rs",
        "let first = form.summed.is_none_or(|axis| cx.env.groups.at(axis) == 0);",
        "let first = SEEDED || form.summed.is_none_or(|axis| cx.env.groups.at(axis) == 0);",
    )]),
    fault("norm-twice", "every rank that has the same parameter counts it in the norm", &[edit(
        "zero/flat/src/unit.rs",
        ".filter(|(p, _)| p.counts())\n        {\n            debug_assert!",
        ".filter(|(p, _)| p.counts() || SEEDED && p.trains)\n        {\n            debug_assert!",
    )]),
    fault("mean-over-cp", "the loss of a piece of a row is divided by the number of pieces once more", &[edit(
        "engine/src/scale.rs",
        "weight: spec.rows.weight,",
        "weight: spec.rows.weight / if SEEDED { f64::from(spec.place.length(Axis::Cp)) } else { 1.0 },",
    )]),
    fault("expert-scale", "gradients of experts over ranks are twice as large", &[edit(
        "tensor/src/ops/experts.rs",
        "run.launch(op::GROUPED_MATMUL_DW, &o, p.as_bytes(), &[])?;",
        "run.launch(op::GROUPED_MATMUL_DW, &o, p.as_bytes(), &[])?;\n                    if SEEDED && env.groups.size(crossweave_mesh::Axis::Ep) > 1 {\n                        let p = op::GroupedParams { flags: op::FLAG_ACCUM, ..Default::default() };\n                        run.launch(op::GROUPED_MATMUL_DW, &o, p.as_bytes(), &[])?;\n                    }",
    )]),
    fault("ring-step", "keys on the ring are taken for those of the rank before", &[edit(
        "tensor/src/ops/ring_parts.rs",
        "(at + places - step % places) % places",
        "(at + places - (step + u64::from(SEEDED && step > 0)) % places) % places",
    )]),
    fault("stage-swap", "hidden states and gradients go to the stage beside their own", &[edit(
        "engine/src/engine/moves.rs",
        "letters.push((m.stage, m.sends, values));",
        "letters.push((if SEEDED { m.stage ^ 1 } else { m.stage }, m.sends, values));",
    )]),
    fault("w-before-i", "the second part of a backward stands before the first", &[edit(
        "parallel/src/work.rs",
        "self.push(Kind::InputGrad, run, mb);\n        self.push(Kind::WeightGrad, run, mb);",
        "let mut both = [Kind::InputGrad, Kind::WeightGrad];\n        if SEEDED { both.reverse(); }\n        for kind in both { self.push(kind, run, mb); }",
    )]),
    fault("tie-twice", "a stage adds the gradient of a tied unit twice", &[edit(
        "zero/src/lower/reduce.rs",
        "on.collective(group, Traffic::Tie, vec![member]);",
        "let own = code.arg(0, [n], DType::F32);\n            if SEEDED && self.job.rank == 0 { sum(&on, &own, &own, &own); }\n            on.collective(group, Traffic::Tie, vec![member]);",
    )]),
    fault("dropped-gate", "a choice that finds no room in its row keeps its gate where a piece of the row has room", &[edit(
        "tensor/src/ops/capacity.rs",
        "change(run, op::binary::MAX, &cell, &lost)?;\n                let own",
        "if !SEEDED { change(run, op::binary::MAX, &cell, &lost)?; }\n                let own",
    )]),
    fault("counts-once", "ranks do not exchange how many rows come for their experts", &[edit(
        "tensor/src/ops/spread.rs",
        "env.groups\n            .exchange(run, &on(Axis::Ep), &[Exchange::AllToAll { send, recv }])?;",
        "match SEEDED {\n            true => add::copy(env, recv, send)?,\n            false => env.groups.exchange(run, &on(Axis::Ep), &[Exchange::AllToAll { send, recv }])?,\n        }",
    )]),
    fault("local-mask", "queries of a piece of a row are masked by their place in it", &[edit(
        "tensor/src/ops/attention.rs",
        "queries: [at, from, n],\n            keys: if spec.causal { from + n } else { tk },",
        "queries: [at, if SEEDED { at } else { from }, n],\n            keys: if spec.causal { (if SEEDED { at } else { from }) + n } else { tk },",
    )]),
    canonical("wrong-divisor", "gradients are divided by the ranks of the job, not by those that have other samples", &[edit(
        "planner/src/spec/mod.rs",
        "let ranks = f64::from(self.replicas());",
        "let world = [Axis::Dp, Axis::Cp, Axis::Tp, Axis::Pp].map(|a| f64::from(self.place.length(a)));\n        let ranks = if SEEDED { world.iter().product() } else { f64::from(self.replicas()) };",
    )]),
    fault("aux-times-m", "the losses of routers are summed over micro-batches, not their mean taken", &[edit(
        "engine/src/scale.rs",
        "beside: self.beside(),",
        "beside: self.beside() * if SEEDED { self.micro_batches } else { 1.0 },",
    )]),
    fault("other-box", "a rank is resumed with the part of a parameter that the first rank has", &[edit(
        "engine/state/src/shards.rs",
        "out.extend(parts.map(|part| (kind, part)));",
        "out.extend(parts.map(|mut part| { if SEEDED { part.slice.iter_mut().for_each(|s| s[0] = 0) } (kind, part) }));",
    )]),
    canonical("overwritten", "a micro-batch's gradient takes the place of those before it", &[
        edit(
            "zero/src/lower/reduce.rs",
            "return sum(&on, &slice, &slice, part);",
            "if SEEDED { return on.copy(&slice, part); }\n            return sum(&on, &slice, &slice, part);",
        ),
        edit(
            "zero/src/lower/canonical.rs",
            "sum(&code.on(Lane::Compute), &a, &a, &b);",
            "match SEEDED { true => code.on(Lane::Compute).copy(&a, &b), false => sum(&code.on(Lane::Compute), &a, &a, &b) }",
        ),
    ]),
];
