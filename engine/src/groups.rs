//! Communication inside blocks: what a block exchanges over an axis goes to the group of the mesh there.

use crossweave_hal::{Collective, CommTag, Device, Event, Reduce, Stream};
use crossweave_mesh::{Axis, Channel, GroupKey, Mesh, Part};
use crossweave_tensor::ops::balance::COUNTS;
use crossweave_tensor::ops::capacity::CHOICES;
use crossweave_tensor::{
    Error, Exchange, Groups, Lane, Link, Numbers, Result, Run, Tensor, check_exchange,
    read_numbers, shape_error, without_room,
};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The tag of the ledger for what layers exchange.
const LAYERS: CommTag = "activation";
/// The same for the first unit of a model, which looks up tokens, and for the last, which makes logits.
const ENDS: [CommTag; 2] = ["table", "head"];
/// The same for the loss over rows of the vocabulary that ranks have.
const LOSS: CommTag = "loss";
/// The op of a block that sums that loss.
const LOSS_OP: &str = "cross_entropy";
/// The same for rows that go to the ranks of their experts and come back, and for what is counted of them.
const EXPERTS: CommTag = "experts";

/// Numbers that the forward of a block has read of the device, in order: what it exchanges.
pub(crate) type Answers = Vec<Arc<[i32]>>;

/// The groups of one rank's mesh, for the blocks it runs. Each axis a block communicates on must be a group of the mesh; what it exchanges
/// on [`Lane::Beside`] has a communicator of its own ([`Channel::Blocks`]).
pub struct MeshGroups {
    mesh: RefCell<Mesh>,
    /// What blocks exchange something for at the moment.
    about: Cell<CommTag>,
    /// The units by their names, and the one whose block runs.
    units: Vec<Arc<str>>,
    unit: Cell<usize>,
    /// Numbers that the block was given, those of a forward before this one among them, and how many of them it has asked for.
    answers: RefCell<Answers>,
    asked: Cell<usize>,
    /// Rows that have come to the experts of the block that runs, and as many as would have if all ranks had as many.
    came: Cell<Option<[u64; 2]>>,
    /// Nothing is computed: numbers that follow from data are planned ones.
    rehearses: Cell<bool>,
    beside: Option<Beside>,
}

/// The stream beside that of the blocks.
struct Beside {
    stream: Stream,
    began: Event,
    done: Event,
    /// What is read or written there until the blocks' stream waits: given back to the pool before, its memory would be used again.
    held: RefCell<Vec<Tensor>>,
}

impl MeshGroups {
    /// Takes the mesh; one thread drives it.
    pub fn new(mesh: Mesh) -> MeshGroups {
        MeshGroups {
            mesh: RefCell::new(mesh),
            about: Cell::new(LAYERS),
            units: vec![],
            unit: Cell::new(0),
            answers: RefCell::default(),
            asked: Cell::new(0),
            came: Cell::default(),
            rehearses: Cell::new(false),
            beside: None,
        }
    }

    /// The same with a stream of `device` for what blocks exchange beside their own.
    ///
    /// # Errors
    /// The device has no further stream.
    pub fn with_beside(mesh: Mesh, device: &Device) -> Result<MeshGroups> {
        let stream = device.stream("blocks", 1)?;
        let (began, done) = (stream.event()?, stream.event()?);
        Ok(MeshGroups {
            beside: Some(Beside {
                stream,
                began,
                done,
                held: RefCell::default(),
            }),
            ..MeshGroups::new(mesh)
        })
    }

    /// The same for blocks of units of these names.
    pub(crate) fn of_units<'u>(self, names: impl Iterator<Item = &'u str>) -> MeshGroups {
        MeshGroups {
            units: names.map(Arc::from).collect(),
            ..self
        }
    }

    /// From now on the block of unit `u` communicates. `answers`: what it was given when it ran before.
    pub(crate) fn serve(&self, u: usize, answers: Answers) {
        self.about.set(match u {
            0 => ENDS[0],
            u if u + 1 == self.units.len() => ENDS[1],
            _ => LAYERS,
        });
        self.unit.set(u);
        self.came.set(None);
        self.answers.replace(answers);
        self.asked.set(0);
    }

    /// The numbers that the block was given.
    pub(crate) fn answers(&self) -> Answers {
        self.answers.take()
    }

    /// From now on nothing is read of the device.
    pub(crate) fn rehearse(&self) {
        self.rehearses.set(true);
    }

    /// An error of the block that runs; where the device has no memory, with the rows that have come to its experts.
    pub(crate) fn with_rows(&self, e: Error) -> Error {
        match (self.came.get(), self.units.get(self.unit.get())) {
            (Some(rows), Some(name)) => without_room(e, name, rows),
            _ => e,
        }
    }

    fn tag(&self, on: &Link) -> CommTag {
        match on.op {
            LOSS_OP => LOSS,
            COUNTS | CHOICES => EXPERTS,
            _ if [Axis::Ep, Axis::Etp].contains(&on.axis) => EXPERTS,
            _ => self.about.get(),
        }
    }

    /// The mesh, for everything blocks do not do.
    pub fn mesh(&self) -> &RefCell<Mesh> {
        &self.mesh
    }
}

/// An exchange as groups have it: sums run in rank order, 16-bit floats in f32, with the same bits on every rank of the axis.
fn collective<'t>(e: &Exchange<'t>) -> Collective<'t> {
    let op = Reduce::Sum;
    match *e {
        Exchange::AllReduce(t) => Collective::AllReduce {
            buf: t.region(),
            dtype: t.dtype(),
            op,
        },
        Exchange::AllGather { send, recv } => Collective::AllGather {
            send: send.region(),
            recv: recv.region(),
            dtype: send.dtype(),
        },
        Exchange::ReduceScatter { send, recv } => Collective::ReduceScatter {
            send: send.region(),
            recv: recv.region(),
            dtype: send.dtype(),
            op,
        },
        Exchange::AllToAll { send, recv } => Collective::AllToAll {
            send: send.region(),
            recv: recv.region(),
            dtype: send.dtype(),
        },
        Exchange::AllToAllV { send, recv, counts } => Collective::AllToAllV {
            send: send.region(),
            recv: recv.region(),
            dtype: send.dtype(),
            counts,
        },
        Exchange::Send { to: peer, what } => Collective::Send {
            buf: what.region(),
            dtype: what.dtype(),
            peer,
        },
        Exchange::Recv { from: peer, what } => Collective::Recv {
            buf: what.region(),
            dtype: what.dtype(),
            peer,
        },
    }
}

/// The group of those that take part.
fn key(on: &Link) -> GroupKey {
    let all = GroupKey::over(on.axis);
    match on.within {
        0 => all,
        n => all.part(Part::Node(n)),
    }
}

impl Groups for MeshGroups {
    fn size(&self, axis: Axis) -> u32 {
        self.mesh.borrow().place().length(axis)
    }
    fn at(&self, axis: Axis) -> u32 {
        self.mesh.borrow().place().at(axis)
    }

    fn exchange(&self, run: &Run<'_>, on: &Link, all: &[Exchange<'_>]) -> Result<()> {
        let [_, ranks] = on.among([self.at(on.axis), self.size(on.axis)]);
        check_exchange(on, ranks, all)?;
        let members: Vec<Collective<'_>> = all.iter().map(collective).collect();
        let mut mesh = self.mesh.borrow_mut();
        if on.lane == Lane::Compute {
            mesh.group(key(on))?
                .group(run.stream(), &members, self.tag(on))?;
            return Ok(());
        }
        let Some(beside) = &self.beside else {
            return shape_error(format!(
                "{} over {}: the rank has no stream beside that of its blocks; its dry run found nothing that is exchanged there",
                on.op, on.axis
            ));
        };
        let group = mesh.group(key(on).on(Channel::Blocks))?;
        run.stream().record_again(&beside.began)?;
        beside.stream.wait(&beside.began)?;
        let read = all.iter().flat_map(Exchange::touched).cloned();
        beside.held.borrow_mut().extend(read);
        group.group(&beside.stream, &members, self.tag(on))?;
        Ok(())
    }

    fn numbers(
        &self,
        run: &Run<'_>,
        make: &dyn Fn() -> Result<Tensor>,
        planned: &dyn Fn() -> Vec<i32>,
    ) -> Result<Numbers> {
        let at = self.asked.replace(self.asked.get() + 1);
        let known = self.answers.borrow().get(at).cloned();
        let all = match known {
            Some(all) => all,
            None => {
                let made = make()?;
                let all = match self.rehearses.get() {
                    true => planned().into(),
                    false => read_numbers(run, &made)?,
                };
                self.answers.borrow_mut().push(all.clone());
                all
            }
        };
        Ok(Numbers {
            all,
            planned: self.rehearses.get(),
        })
    }

    fn came(&self, rows: [u64; 2]) {
        self.came.set(Some(rows));
    }

    fn beside(&self) -> bool {
        self.beside.is_some()
    }

    fn settle(&self, run: &Run<'_>) -> Result<()> {
        let Some(beside) = self.beside.as_ref().filter(|b| !b.held.borrow().is_empty()) else {
            return Ok(());
        };
        beside.stream.record_again(&beside.done)?;
        run.stream().wait(&beside.done)?;
        beside.held.borrow_mut().clear();
        Ok(())
    }
}
