//! The page of `crossweave estimate`: every figure beside its formula.

use crate::counts::show_count;
use crate::figures::estimate::{
    AxisTraffic, CutMesh, Estimate, Largest, LedgerOfRank, ModelWithExperts, PlaceOfRanks, Scaling,
    StagesOfStates, TimeOfRun,
};
use crossweave_words::Size;
use serde_json::json;
use std::fmt::{Result, Write};

/// Writes the page of an estimate.
pub fn page(e: &Estimate) -> String {
    let mut o = String::new();
    // Writing into a string cannot fail.
    let _ = write(&mut o, e);
    o.truncate(o.trim_end().len());
    o
}

/// A model with experts in three lines.
pub fn of_experts(m: &ModelWithExperts) -> String {
    let kind = match m.experts.residual {
        true => "beside their MLP",
        false => "in place of their MLP",
    };
    format!(
        "{}: {} parameters in {} layers x {} ({} published)\n  dense {}, experts {}: layers with {} of them, {kind}\n  {:.2} times fewer than {} ({})\nParameters alone: what ranks hold and send is estimated of a config.",
        m.model.name,
        m.model.params,
        m.model.layers,
        m.model.hidden,
        show_count(m.model.published),
        show_count(m.dense as f64),
        show_count(m.experts.params as f64),
        json!(m.experts.layers),
        m.standard.times,
        m.standard.name,
        show_count(m.standard.params),
    )
}

fn write(o: &mut String, e: &Estimate) -> Result {
    head(o, e)?;
    states(o, &e.states, &e.place, e.ledger.capacity.device.is_some())?;
    if let Some(note) = &e.place.note {
        writeln!(o, "\nnote: {note}")?;
    }
    ledger(o, &e.ledger, e.activations.kept)?;
    fits(o, &e.ledger, &e.place)?;
    traffic(o, e.traffic.as_deref().unwrap_or_default())?;
    let moved = &e.offload_traffic;
    if moved.device_to_host > 0 {
        writeln!(
            o,
            "offload moves {} out and {} back each step   = {}",
            Size(moved.device_to_host),
            Size(moved.host_to_device),
            moved.formula
        )?;
    }
    if let Some(advice) = &e.advice {
        writeln!(o, "\nadvice: {}", advice.why)?;
        let rates = advice.rates.as_ref();
        if let Some(r) = rates.filter(|r| r.comm_over_compute > 0.0) {
            writeln!(
                o,
                "  communication over computation {:.3} = {}",
                r.comm_over_compute, r.formula
            )?;
        }
    }
    if let Some(l) = &e.largest {
        largest(o, l, e.ledger.capacity.device.unwrap_or(0))?;
    }
    let Some(times) = &e.times else { return Ok(()) };
    if let Some(t) = &times.time {
        time(o, t, e.place.ranks)?;
        if let Some(Some(s)) = &times.scaling {
            scaling(o, s)?;
        }
    }
    Ok(())
}

/// The model, and the bytes of its states.
fn head(o: &mut String, e: &Estimate) -> Result {
    let (m, each) = (&e.model, &e.states.accounting);
    let shape = m.shape;
    writeln!(
        o,
        "{}: {} parameters; {} layers x {}, {} heads, vocabulary {}, sequences of {}",
        m.name,
        show_count(m.params as f64),
        shape.layers,
        shape.hidden,
        shape.heads,
        shape.vocab,
        shape.seq
    )?;
    if let Some(exact) = m.params_of_shape {
        let bytes = exact.saturating_mul(each.bytes_per_param);
        writeln!(
            o,
            "  counted from the shape: {exact} parameters in {} units, {} of states",
            m.units,
            Size(bytes)
        )?;
    }
    if let Some(t) = &e.teacher {
        writeln!(
            o,
            "  beside a teacher of {} parameters: {}",
            t.params, t.note
        )?;
    }
    writeln!(
        o,
        "weights {}, model states {} ({} accounting: {} B/param)",
        Size(e.states.components[0].bytes),
        Size(e.states.model_states.bytes),
        each.name,
        each.bytes_per_param
    )?;
    for c in &e.states.components {
        let bytes = Size(c.bytes);
        writeln!(o, "  {:<10} {bytes:>12}   = {}", c.what, c.formula)?;
    }
    Ok(())
}

/// The axes of a mesh that cuts the model, and what a rank has of it.
fn mesh(o: &mut String, ranks: u64, m: &CutMesh) -> Result {
    let all = [("pp", m.pp), ("dp", m.dp), ("cp", m.cp), ("tp", m.tp)];
    let long = all.iter().filter(|(_, n)| *n > 1);
    let axes: Vec<String> = long.map(|(a, n)| format!("{a} {n}")).collect();
    writeln!(
        o,
        "\n{ranks} ranks, {}: a rank{} has {} layers and {} of the parameters; ZeRO shards over dp{}",
        axes.join(" x "),
        if m.pp > 1 {
            " of the fullest stage"
        } else {
            ""
        },
        m.layers_on_a_rank,
        show_count(m.params_on_a_rank as f64),
        m.beside()
    )
}

/// Writes the table of bytes that a rank holds and sends at each stage of ZeRO.
fn states(o: &mut String, s: &StagesOfStates, place: &PlaceOfRanks, limited: bool) -> Result {
    let (n, mut kind) = (place.data_ranks, "");
    if let Some(m) = &place.mesh {
        mesh(o, place.ranks, m)?;
        kind = "data-parallel ";
    }
    let plural = if n == 1 { "" } else { "s" };
    writeln!(o, "\nstates on each of {n} {kind}rank{plural}")?;
    writeln!(
        o,
        "  stage        bytes    ratio   formula           volume vs DDP   wire elements{}",
        if limited { "   fits the device" } else { "" }
    )?;
    for r in &s.stages {
        let volume = r.volume_vs_ddp.map(|v| format!("{v:.3}x"));
        let fits = match r.fits {
            Some(true) => "   yes",
            Some(false) => "   no",
            None => "",
        };
        writeln!(
            o,
            "  {:<5} {:>12} {:>7.3}x   {:<16} {:>15} {:>15}{fits}",
            r.stage as u8,
            Size(r.bytes),
            r.ratio,
            r.formula,
            volume.as_deref().unwrap_or("-"),
            show_count(r.wire_elements),
        )?;
    }
    Ok(())
}

/// Every byte of a rank, with the sums of each tier.
fn ledger(o: &mut String, l: &LedgerOfRank, kept: &str) -> Result {
    writeln!(
        o,
        "\nledger of a rank: stage {}, optimizer on {}, parameters on {}, activations kept: {kept}",
        l.stage as u8,
        l.offload_optimizer.name(),
        l.offload_param.name(),
    )?;
    for r in &l.rows {
        let (tier, bytes) = (r.tier.name(), Size(r.bytes));
        writeln!(
            o,
            "  {tier:<7} {:<24} {bytes:>12}   = {}",
            r.what, r.formula
        )?;
    }
    for (tier, total, capacity) in [
        ("device", l.total.device, l.capacity.device),
        ("host", l.total.host, l.capacity.host_per_rank),
        ("nvme", l.total.nvme, l.capacity.nvme_per_rank),
    ] {
        let of = capacity.map(|c| format!("   of {}", Size(c)));
        if total > 0 {
            let of = of.unwrap_or_default();
            writeln!(o, "  {tier:<7} {:<24} {:>12}{of}", "total", Size(total))?;
        }
    }
    Ok(())
}

/// Writes the verdict: the stages at which the job fits the device.
fn fits(o: &mut String, l: &LedgerOfRank, place: &PlaceOfRanks) -> Result {
    let on = match &place.device {
        Some(name) => format!(" ({name})"),
        None => String::new(),
    };
    match (l.fits, place.nodes, place.ranks) {
        (None, ..) => Ok(()),
        (Some(false), ..) => {
            let tier = l.overflow.unwrap_or_default();
            writeln!(o, "fits: no, the {tier} is too small{on}")
        }
        (_, 1, 1) => writeln!(o, "fits: yes, on 1 rank{on}"),
        (_, 1, n) => writeln!(o, "fits: yes, on 1 node of {n} ranks{on}"),
        (_, n, ranks) => {
            let each = ranks.div_ceil(n);
            writeln!(o, "fits: yes, on {n} nodes of {each} ranks{on}")
        }
    }
}

/// Writes the bytes that a rank sends over each axis of the mesh, with the link of that axis.
fn traffic(o: &mut String, rows: &[AxisTraffic]) -> Result {
    if !rows.is_empty() {
        writeln!(o, "\ntraffic of a step: bytes that a rank sends")?;
    }
    for a in rows {
        let axis = format!("{} ({} ranks)", a.axis, a.ranks);
        let link = match (a.link, a.seconds) {
            (Some(link), Some(t)) => format!(", {link} {t:.3} s"),
            _ => String::new(),
        };
        // A formula's fraction of a byte is dropped.
        let bytes = Size(a.bytes as u64);
        writeln!(o, "  {axis:<18} {bytes:>12}{link}   = {}", a.formula)?;
    }
    Ok(())
}

fn largest(o: &mut String, l: &Largest, device: u64) -> Result {
    writeln!(
        o,
        "\nlargest model for {} a device (optimizer on {}, parameters on {})",
        Size(device),
        l.offload_optimizer.name(),
        l.offload_param.name(),
    )?;
    writeln!(o, "  stage   states alone   with activations and windows")?;
    for r in &l.rows {
        writeln!(
            o,
            "  {:<5} {:>14} {:>30}",
            r.stage as u8,
            show_count(r.states_only as f64),
            show_count(r.with_activations as f64)
        )?;
    }
    Ok(())
}

fn time(o: &mut String, t: &TimeOfRun, ranks: u64) -> Result {
    writeln!(
        o,
        "\ntime on {ranks} x {} at {:.1} TFLOP/s each",
        t.device,
        t.sustained_flops / 1e12
    )?;
    let (step, run) = (&t.step, &t.run);
    for (what, flops, formula) in [
        ("model", step.model_flops, step.model_formula),
        ("hardware", step.hardware_flops, step.hardware_formula),
    ] {
        writeln!(o, "  {what:<9} {flops:>10.3e} FLOP a step   = {formula}")?;
    }
    writeln!(
        o,
        "  step {:.3} s, MFU {:.1} %, HFU {:.1} %",
        step.seconds,
        100.0 * step.mfu,
        100.0 * step.hfu
    )?;
    writeln!(
        o,
        "  {} tokens: {:.3e} FLOP, {:.3} years; {:.1} years on one device   = {}",
        show_count(t.tokens),
        run.flops,
        run.years,
        run.device_years,
        run.formula
    )?;
    if let Some(t) = step.transfer_seconds.filter(|t| *t > 0.0) {
        writeln!(
            o,
            "  beside it {t:.3} s of transfers between device and host, which overlap what they can"
        )?;
    }
    Ok(())
}

fn scaling(o: &mut String, s: &Scaling) -> Result {
    writeln!(o, "\nscaling   = {}", s.formula)?;
    writeln!(
        o,
        "  ranks   batch/rank   compute s     comm s     tokens/s"
    )?;
    for r in &s.rows {
        writeln!(
            o,
            "  {:<7} {:>10} {:>11.3} {:>10.3} {:>12.0}",
            r.ranks, r.batch_per_rank, r.compute_seconds, r.comm_seconds, r.tokens_per_second
        )?;
    }
    Ok(())
}
