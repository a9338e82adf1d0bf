//! A lawful program, and for each law a mutant of it that breaks that one.

use crossweave_plan::{Lane, StepId};
use crossweave_program::abi::op;
use crossweave_program::axes::{Axis, Place};
use crossweave_program::{
    Brought, Builder, CollectiveKind, DType, Given, HostJob, HostMemory, Instr, Law, Life, Member,
    MemoryDecl, MemorySpace, Program, Scalar, Tag, Traffic, check, check_ranks,
};

const RANKS: u64 = 4;
const EACH: u64 = 8;

/// A gather, what is made of it with the learning rate, and the release: memory in a slot, a temporary, a collective, a step scalar.
fn lawful(rank: u32) -> Program {
    let mut b = Builder::default();
    let place = Place::on(&[(Axis::Dp, RANKS as u32)], rank).unwrap();
    let group = b.group(place.group(&Axis::Dp.into()).unwrap());
    let mut memory = |name: &str, elements, life| {
        b.memory(MemoryDecl {
            name: name.into(),
            bytes: 4 * elements,
            dtype: DType::F32,
            tag: Tag::Param,
            home: MemorySpace::Device,
            life,
        })
    };
    let value = memory("value", EACH, Life::Always { turns: 1 });
    let whole = memory("whole", RANKS * EACH, Life::Slot);
    let args = [whole.into(), value.into()];
    b.call(Some(StepId(0)), "gather", &args, |code| {
        let on = code.on(Lane::Gather);
        code.alloc(0, Lane::Gather);
        let whole = code.arg(0, [RANKS * EACH], DType::F32);
        let own = whole.narrow(0, u64::from(rank) * EACH, EACH);
        on.copy(&own, &code.arg(1, [EACH], DType::F32));
        let member = Member {
            kind: CollectiveKind::AllGather,
            dtype: DType::F32,
            send: Some(own.span()),
            recv: whole.span(),
        };
        on.collective(group, Traffic::Param, vec![member]);
        on.mark();
    });
    b.call(Some(StepId(1)), "decide", &[], |code| code.decide());
    b.call(Some(StepId(1)), "update", &args, |code| {
        let on = code.on(Lane::Compute);
        let rate = code.scalar(Scalar::Given(Given::Rate));
        let whole = code.arg(0, [RANKS * EACH], DType::F32);
        let scaled = on.empty([RANKS * EACH], DType::F32);
        on.map(&[&scaled], &[&whole], &[rate], |x| vec![x[0] * 2.0]);
        let value = code.arg(1, [EACH], DType::F32);
        on.copy(&value, &scaled.narrow(0, 0, EACH));
    });
    b.call(Some(StepId(2)), "release", &[whole.into()], |code| {
        code.free(0);
    });
    b.finish()
}

/// The law that a program breaks.
fn broken(p: &Program) -> Option<Law> {
    check(p, 0..p.calls.len()).err().map(|e| e.law)
}

/// The program with the code of the call `name` changed.
fn mutant(name: &str, change: impl FnOnce(&mut Vec<Instr>)) -> Program {
    let mut p = lawful(0);
    let f = p.fragments.iter_mut().find(|f| f.name == name).unwrap();
    change(&mut f.code);
    p
}

fn without(name: &str, drop: fn(&Instr) -> bool) -> Program {
    mutant(name, |code| {
        let at = code.iter().position(drop).unwrap();
        code.remove(at);
    })
}

#[test]
fn the_program_is_lawful_and_its_ranks_agree() {
    let all: Vec<Program> = (0..RANKS as u32).map(lawful).collect();
    for p in &all {
        check(p, 0..p.calls.len()).unwrap();
    }
    check_ranks(&all.iter().collect::<Vec<_>>()).unwrap();
}

#[test]
fn memory_that_is_not_allocated_is_not_used() {
    let is_alloc = |i: &Instr| matches!(i, Instr::Alloc { .. });
    assert_eq!(broken(&without("gather", is_alloc)), Some(Law::Alive));
    assert_eq!(broken(&without("update", is_alloc)), Some(Law::Alive));
}

#[test]
fn memory_is_not_used_behind_its_free() {
    let early = mutant("gather", |code| code.insert(2, Instr::Free { slot: 0 }));
    assert_eq!(broken(&early), Some(Law::Alive));
}

#[test]
fn memory_is_allocated_and_freed_once() {
    let twice = mutant("gather", |code| code.insert(0, code[0].clone()));
    assert_eq!(broken(&twice), Some(Law::AllocOnce));
    let freed = mutant("release", |code| code.push(code[0].clone()));
    assert_eq!(broken(&freed), Some(Law::AllocOnce));
}

/// A gradient goes to the host, whose thread reads the state from its file, updates it and writes it.
fn hosted() -> Program {
    let mut b = Builder::default();
    let mut memory = |name: &str, life, home| {
        b.memory(MemoryDecl {
            name: name.into(),
            bytes: 4 * EACH,
            dtype: DType::F32,
            tag: Tag::Grad,
            home,
            life,
        })
    };
    let grad = memory("grad", Life::Always { turns: 1 }, MemorySpace::Device);
    let [words, host] = ["words", "host"].map(|n| memory(n, Life::Transient, MemorySpace::Pinned));
    let out = |b: &mut Builder, name: &str, what, to: crossweave_program::MemId| {
        b.call(Some(StepId(0)), name, &[grad.into(), to.into()], |code| {
            code.take(what, 1);
            let [to, from] = [1, 0].map(|i| code.arg(i, [EACH], DType::F32));
            code.on(Lane::CopyOut).copy(&to, &from);
            code.give(what, 1);
        });
    };
    out(&mut b, "grad out", HostMemory::Grad(3), host);
    out(&mut b, "words out", HostMemory::Words, words);
    b.call(Some(StepId(1)), "host", &[], |code| {
        let each = [HostJob::StateIn, HostJob::Update, HostJob::StateOut];
        each.into_iter().for_each(|job| code.host(job, 3));
    });
    b.finish()
}

#[test]
fn the_host_updates_what_it_was_given() {
    assert_eq!(broken(&hosted()), None);
    let without = |name: &str, at: usize| {
        let mut p = hosted();
        let f = p.fragments.iter_mut().find(|f| f.name == name).unwrap();
        f.code.remove(at);
        broken(&p)
    };
    // Without its copy, or without being taken or given.
    assert_eq!(without("grad out", 1), Some(Law::Written));
    assert_eq!(without("grad out", 0), Some(Law::Alive));
    assert_eq!(without("grad out", 2), Some(Law::HostOrder));
    assert_eq!(without("words out", 2), Some(Law::HostOrder));
    // A state that is written and was not updated, or not read; that is updated in memory, and its file is not.
    assert_eq!(without("host", 1), Some(Law::HostOrder));
    assert_eq!(without("host", 0), Some(Law::HostOrder));
    assert_eq!(without("host", 2), Some(Law::Consumed));
    let mut idle = hosted();
    idle.calls.pop();
    assert_eq!(broken(&idle), Some(Law::Consumed));
    let mut twice = hosted();
    let again = twice.calls[0].clone();
    twice.calls.insert(1, again);
    assert_eq!(broken(&twice), Some(Law::HostOrder));
}

/// Gradients of micro-batches are the host's gradient behind the last of them, whose squares come back then and not before.
#[test]
fn parts_of_a_gradient_are_complete_behind_the_last() {
    let program = |given: &[HostMemory], brought: usize| {
        let mut b = Builder::default();
        let mut memory = |name: &str, life, home| {
            b.memory(MemoryDecl {
                name: name.into(),
                bytes: 4 * EACH,
                dtype: DType::F32,
                tag: Tag::Grad,
                home,
                life,
            })
        };
        let grad = memory("grad", Life::Always { turns: 1 }, MemorySpace::Device);
        let host = memory("host", Life::Transient, MemorySpace::Pinned);
        for (k, what) in given.iter().enumerate() {
            b.call(
                Some(StepId(0)),
                "out",
                &[grad.into(), host.into()],
                |code| {
                    code.take(*what, 1);
                    let [to, from] = [1, 0].map(|i| code.arg(i, [EACH], DType::F32));
                    code.on(Lane::CopyOut).copy(&to, &from);
                    code.give(*what, 1);
                    if k == brought {
                        code.bring(3, Brought::Squares, &code.arg(0, [1], DType::F32));
                    }
                },
            );
        }
        let job = |code: &crossweave_program::Code<'_>| code.host(HostJob::StateIn, 3);
        b.call(Some(StepId(1)), "host", &[], job);
        b.finish()
    };
    let (part, last) = (HostMemory::Part(3), HostMemory::Last(3));
    // The state is read and the gradient not used, which is the only thing wrong with the first.
    assert_eq!(
        broken(&program(&[part, part, last], 2)),
        Some(Law::Consumed)
    );
    assert_eq!(
        broken(&program(&[part, part, last], 0)),
        Some(Law::HostOrder)
    );
    assert_eq!(
        broken(&program(&[part, last, part], 9)),
        Some(Law::HostOrder)
    );
    assert_eq!(
        broken(&program(&[part, last, last], 9)),
        Some(Law::HostOrder)
    );
    assert_eq!(broken(&program(&[part, part], 9)), Some(Law::HostOrder));
}

#[test]
fn what_stays_is_not_freed() {
    let freed = mutant("gather", |code| code.push(Instr::Free { slot: 1 }));
    assert_eq!(broken(&freed), Some(Law::AllocOnce));
}

/// Whether a reduction adds to its result, or overwrites it, is a parameter.
#[test]
fn a_reduction_that_adds_reads_what_it_adds_to() {
    let sum = |flags: u32| {
        let mut b = Builder::default();
        b.call(None, "sum", &[], |code| {
            let on = code.on(Lane::Compute);
            let (to, from) = (on.empty([1], DType::F32), on.zeros([4], DType::F32));
            let p = op::ReduceParams {
                kind: op::reduce::SUM,
                axes: 1,
                flags,
                ..Default::default()
            };
            on.plain(op::REDUCE, &[&to, &from], p.as_bytes());
        });
        b.finish()
    };
    assert_eq!(broken(&sum(0)), None);
    assert_eq!(broken(&sum(op::FLAG_ACCUM)), Some(Law::Written));
}

#[test]
fn nothing_transient_is_left_at_the_end() {
    let is_free = |i: &Instr| matches!(i, Instr::Free { .. });
    assert_eq!(broken(&without("release", is_free)), Some(Law::Consumed));
    assert_eq!(broken(&without("update", is_free)), Some(Law::Consumed));
}

#[test]
fn what_is_used_lies_in_its_memory() {
    let beyond = mutant("gather", |code| {
        for i in code {
            if let Instr::Copy { to, .. } = i {
                to.at = 4 * RANKS * EACH;
            }
        }
    });
    assert_eq!(broken(&beyond), Some(Law::Bounds));
}

#[test]
fn what_is_read_was_written() {
    let is_copy = |i: &Instr| matches!(i, Instr::Copy { .. });
    let is_collective = |i: &Instr| matches!(i, Instr::Collective { .. });
    let is_kernel = |i: &Instr| matches!(i, Instr::Kernel { .. });
    assert_eq!(broken(&without("gather", is_copy)), Some(Law::Written));
    assert_eq!(
        broken(&without("gather", is_collective)),
        Some(Law::Written)
    );
    assert_eq!(broken(&without("update", is_kernel)), Some(Law::Written));
}

#[test]
fn step_scalars_are_read_when_they_are_decided() {
    let is_decide = |i: &Instr| matches!(i, Instr::Decide);
    assert_eq!(broken(&without("decide", is_decide)), Some(Law::Decided));
}

#[test]
fn a_collective_receives_what_its_ranks_send() {
    let short = mutant("gather", |code| {
        for i in code {
            if let Instr::Collective { members, .. } = i {
                members[0].recv.bytes /= 2;
            }
        }
    });
    assert_eq!(broken(&short), Some(Law::Sizes));
}

#[test]
fn all_ranks_make_the_same_collectives() {
    let is_collective = |i: &Instr| matches!(i, Instr::Collective { .. });
    let (all, less) = (lawful(1), without("gather", is_collective));
    let e = check_ranks(&[&all, &less]).unwrap_err();
    assert_eq!(e.law, Law::SameCollectives);
    let other = mutant("gather", |code| {
        for i in code {
            if let Instr::Collective { members, .. } = i {
                members[0].dtype = DType::I32;
            }
        }
    });
    assert!(check_ranks(&[&all, &other]).is_err());
}

/// The memory, the steps by name, a fragment where it is first called, and what is repeated once.
#[test]
fn a_program_is_written_under_the_steps_of_its_plan() {
    let p = lawful(0);
    let named = |s: Option<StepId>| {
        let n = s.map_or(0, |s| s.0);
        (format!("step {n}"), format!("step {n}"))
    };
    let text = p.text(0..p.calls.len(), &named);
    for line in [
        "memory 1 whole: 128 bytes of f32, param, device, in a slot",
        "group dp: rank 0 of 4",
        "scalar s0: learning rate",
        "step 0",
        "  gather #0(whole, value)",
        "      gather  alloc %0",
        "      gather  copy %1[0..32] to %0[0..32]",
        "      gather  on dp, param: all-gather f32 %0[0..32] to %0[0..128]",
        "              decide",
        "              free %0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}
