//! What it costs to prepare a step, and to interpret one. A model is planned, lowered and checked as a rank of a job does before its first
//! step; the plans of all stages of large jobs are held against each other, those of a few ranks that stand for all beside those of every
//! rank; then a program of small instructions runs on the null device, beside the same calls without a program, so that the difference is
//! what interpreting an instruction costs the host.
//!
//! `cargo run --release -p crossweave-benches --bin planning -- [--layers 96] [--width 12288] [--micro-batches 32] [--ranks 64] [--rounds 5]`

#![forbid(unsafe_code)]

use crossweave_backend_null::Null;
use crossweave_benches::options::{Options, program};
use crossweave_benches::presets::Preset;
use crossweave_benches::process::{Memory, load, mebibytes};
use crossweave_benches::{Fallible, least, median};
use crossweave_engine::optimizers::{Adam, Optimizer, ParamGroups};
use crossweave_engine::{
    PipelineOrder, PipelineSpec, Units, ZeroSpec, ZeroStage, dry_run, plan_for, rehearsal,
};
use crossweave_hal::{
    Buffer, DType, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, Stream, Tag,
    abi::Layout, abi::op,
};
use crossweave_job::spec::alone;
use crossweave_machine::Machine;
use crossweave_mesh::{Axis, Place, Topology};
use crossweave_nn::units;
use crossweave_plan::axes::Representatives;
use crossweave_plan::{Facts, Lane, Plan, check_representatives, check_world};
use crossweave_program::{Builder, Life, MemoryDecl, MemorySpace, Place as Argument};
use std::process::ExitCode;
use std::time::Instant;

/// Instructions of the program that is interpreted.
const INSTRUCTIONS: u32 = 10_000;
/// Elements that each of them touches.
const ELEMENTS: u64 = 256;

const HELP: &str = "\
What it costs the host to plan a step, and to interpret an instruction of it (null device: nothing is computed).

  --layers N          transformer layers (default 96)
  --width N           hidden size, a multiple of 128 (default 12288)
  --micro-batches N   micro-batches of a step (default 32)
  --ranks N           data-parallel ranks, ZeRO stage 3 with quantized gathers (default 64)
  --rounds N          measurements, of which the median is printed (default 5)

Example: planning --layers 96 --micro-batches 32";

fn main() -> ExitCode {
    program(HELP, 0, run)
}

fn ms(began: Instant) -> f64 {
    1e3 * began.elapsed().as_secs_f64()
}

fn run(mut o: Options) -> Fallible<()> {
    let layers = o.number("layers", 96, 1)?;
    let width = o.number("width", 12288, 128)?.next_multiple_of(128);
    let micro_batches = o.number("micro-batches", 32, 1)? as u32;
    let ranks = o.number("ranks", 64, 1)? as u32;
    let rounds = o.number("rounds", 5, 1)?;
    o.done()?;
    let host = HostServices::builder().build();
    let null = Plugin::new(RawPlugin::from_static::<Null>(&host)?);
    let model = Preset {
        name: "planned",
        llama: false,
        layers,
        d: width,
        heads: width / 128,
        seq: 2048,
        vocab: 50257,
        batch: 1,
    };
    let mut spec = alone(DType::Bf16, (1, model.seq), false);
    spec.place = Place::on(&[(Axis::Dp, ranks)], 0)?;
    spec.micro_batches = micro_batches;
    spec.optim = ParamGroups::all(Optimizer::Adam(Adam::default()), 0.01);
    spec.zero = ZeroSpec {
        stage: ZeroStage::Three,
        quantized: true,
        ..ZeroSpec::default()
    };
    let (mut dry_ms, mut plan_ms, mut all_ms, mut mib) = (vec![], vec![], vec![], vec![]);
    let mut steps = 0;
    for _ in 0..rounds {
        let device = null.open(0)?;
        let units = Units::new(units(model.model().model()), &spec.place, &spec.optim)?;
        let memory = Memory::start();
        let began = Instant::now();
        let dry = dry_run(&device, &units, spec.compute, 1, model.seq)?;
        dry_ms.push(ms(began));
        let began = Instant::now();
        steps = plan_for(&device, &spec, &dry)?.0.steps.len();
        plan_ms.push(ms(began));
        let began = Instant::now();
        let _engine = rehearsal(&device, units, &spec, &dry)?;
        all_ms.push(ms(began));
        mib.push(memory.peak_mib());
    }
    println!(
        "{layers} layers of {width}, {micro_batches} micro-batches, {ranks} ranks: a plan of {steps} steps; median of {rounds}, load {:.1}",
        load()
    );
    println!("  dry run of the blocks        {:8.1} ms", median(&dry_ms));
    println!("  plan                         {:8.1} ms", median(&plan_ms));
    println!(
        "  plan, lower, check, allocate {:8.1} ms  {} at the peak",
        median(&all_ms),
        // The first round takes from the system what later ones find.
        mebibytes(mib.iter().copied().fold(0.0, f64::max))
    );
    let device = null.open(0)?;
    let dry = dry_run(
        &device,
        &units(model.model().model()),
        spec.compute,
        1,
        model.seq,
    )?;
    jobs(dry.units.len() as u32, &|place, stages| {
        let mut spec = spec.clone();
        (spec.place, spec.pipeline) = (place, Some(stages));
        plan_for(&device, &spec, &dry)
    })?;
    interpret(&null, rounds)
}

/// The plan of the rank at a place of a pipeline.
type Planned<'a> = &'a dyn Fn(Place, PipelineSpec) -> crossweave_engine::Result<(Plan, Facts)>;

/// Jobs of 16 stages: the plan of each stage, and the plans of all ranks held against each other.
fn jobs(units: u32, plan: Planned<'_>) -> Fallible<()> {
    const STAGES: u32 = 16;
    if units < STAGES {
        return Ok(());
    }
    for ranks in [1024, 4096, 16384] {
        let mesh = Topology::new(&[(Axis::Pp, STAGES), (Axis::Dp, ranks / STAGES)])?;
        let began = Instant::now();
        let stages = PipelineSpec::even(units, STAGES, PipelineOrder::default());
        let plan = |stage| plan(mesh.place(0).stage(stage), stages.clone());
        let plans = (0..STAGES).map(plan).collect::<Result<Vec<_>, _>>()?;
        let planned = ms(began);
        let of = |rank: u32| {
            let (plan, facts) = &plans[mesh.place(rank).at(Axis::Pp) as usize];
            (plan, facts)
        };
        let (memory, began) = (Memory::start(), Instant::now());
        let few = Representatives::of(&mesh);
        let some: Vec<_> = few.numbers().iter().map(|r| of(*r)).collect();
        check_representatives(&few, &some)?;
        let (check, held) = (ms(began), memory.peak_mib());
        print!(
            "{ranks:>6} ranks in {STAGES} stages: plans {planned:.0} ms, held against each other {check:.1} ms, {}",
            mebibytes(held)
        );
        // Beyond this, plans of every rank take gigabytes.
        if ranks <= 4096 {
            let (memory, began) = (Memory::start(), Instant::now());
            let every: Vec<_> = (0..ranks).map(of).collect();
            check_world(&mesh, &every)?;
            let took = ms(began);
            print!(
                "; rank by rank {took:.0} ms, {}",
                mebibytes(memory.peak_mib())
            );
        }
        println!();
    }
    Ok(())
}

/// Kernels, copies and fills in turn, by a program and without one.
fn interpret(null: &Plugin, rounds: u64) -> Fallible<()> {
    let device = null.open(0)?;
    let stream = device.stream("bench", 0)?;
    let bytes = DType::F32.bytes(ELEMENTS);
    let x = device.alloc(&stream, bytes, Tag::Activation)?;
    let y = device.alloc(&stream, bytes, Tag::Activation)?;

    let mut b = Builder::default();
    let declare = |b: &mut Builder, name: &str| -> Argument {
        let memory = MemoryDecl {
            name: name.into(),
            bytes,
            dtype: DType::F32,
            tag: Tag::Activation,
            home: MemorySpace::Device,
            life: Life::Always { turns: 1 },
        };
        b.memory(memory).into()
    };
    let args = [declare(&mut b, "x"), declare(&mut b, "y")];
    b.call(None, "small instructions", &args, |code| {
        let on = code.on(Lane::Compute);
        let view = |i| code.arg(i, [ELEMENTS], DType::F32);
        for i in 0..INSTRUCTIONS {
            match i % 3 {
                0 => on.plain(op::ADD, &[&view(1), &view(1), &view(0)], &[]),
                1 => on.copy(&view(1), &view(0)),
                _ => on.fill(&view(0), 0, 4),
            }
        }
    });
    let mut machine = Machine::new(&device, b.finish())?;

    let layout = Layout::contiguous(DType::F32, &[ELEMENTS]);
    let params = op::NoParams::default();
    let request = OpRequest::new(op::ADD, &[layout; 3], params.as_bytes());
    let add = device.prepare(&request, &NoDecompose)?;
    let region = |b| Buffer::region(b, 0, bytes);
    let calls = |stream: &Stream| -> crossweave_hal::Result<()> {
        for i in 0..INSTRUCTIONS {
            match i % 3 {
                0 => stream.launch(
                    &add,
                    &[Some(region(&y)), Some(region(&y)), Some(region(&x))],
                    &[],
                )?,
                1 => stream.copy(region(&y), region(&x))?,
                _ => stream.fill(region(&x), 0, 4)?,
            }
        }
        Ok(())
    };
    let each = |began: Instant| began.elapsed().as_nanos() as f64 / f64::from(INSTRUCTIONS);
    let (mut by_program, mut by_calls) = (vec![], vec![]);
    for _ in 0..8 * rounds {
        let began = Instant::now();
        machine.run_alone(&stream, None)?;
        by_program.push(each(began));
        let began = Instant::now();
        calls(&stream)?;
        by_calls.push(each(began));
    }
    let (program, calls) = (least(&by_program), least(&by_calls));
    println!(
        "an instruction: {program:.0} ns by the program, {calls:.0} ns as a call; interpreting it takes {:.0} ns",
        (program - calls).max(0.0)
    );
    Ok(())
}
