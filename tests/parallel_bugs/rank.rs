//! What a program of the corpus sees: one rank, its groups and two buffers, with a short verb for every collective. Every verb is
//! `#[track_caller]`, so that the call site a verdict names is the line of the program.

use crossweave_collectives::Collectives;
use crossweave_hal::{
    Bootstrap, Buffer, Collective, Counts, DType, Device, Error, Reduce, Result, Stream, Tag,
};
use crossweave_mesh::{Axis, Channel, GroupKey, Mesh};
use crossweave_tests::system::{Signal, send_to_self};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of each of the two buffers: beyond what any MPI sends without its receiver.
pub const ROOM: u64 = 2 << 20;

/// The axes of all ranks.
pub const WORLD: &[Axis] = &[Axis::Dp, Axis::Tp];

/// The second communicator over all ranks.
pub fn second() -> GroupKey {
    GroupKey::over(WORLD).on(Channel::Gather)
}

/// Which group of ranks an op is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All ranks.
    World,
    /// All ranks again, by a second communicator.
    Second,
    /// With four ranks in a grid, the rows {0, 1} and {2, 3}.
    Row,
    /// With four ranks in a grid, the columns {0, 2} and {1, 3}.
    Column,
}

/// One rank of a program.
pub struct Rank {
    /// This rank.
    pub rank: u32,
    /// What the ops run on unless said otherwise.
    pub stream: Stream,
    /// A second stream.
    pub side: Stream,
    /// Its groups.
    pub mesh: Mesh,
    /// Where ranks find each other when they join a group.
    pub boot: Arc<dyn Bootstrap>,
    /// Is this rank a process?
    process: bool,
    /// When each rank's host last began to wait.
    waits: Option<Arc<Mutex<Vec<Instant>>>>,
    a: Buffer,
    b: Buffer,
    // Last, so that the device outlives every handle above.
    pub device: Device,
}

/// How a rank on a thread leaves without a word, as a killed process does.
pub struct Killed;

/// Runs one collective on one of the groups.
#[track_caller]
fn go(mesh: &mut Mesh, stream: &Stream, on: On, c: &[Collective<'_>]) -> Result<()> {
    pick(mesh, on)?.group(stream, c, "corpus")
}

/// The communicator of a group.
fn pick(mesh: &mut Mesh, on: On) -> Result<&mut Collectives> {
    match on {
        On::World => mesh.group(WORLD),
        On::Second => mesh.group(second()),
        On::Row => mesh.group(&[Axis::Tp]),
        On::Column => mesh.group(&[Axis::Dp]),
    }
}

impl Rank {
    /// Takes `mesh`'s place.
    pub fn new(
        device: &Device,
        mesh: Mesh,
        boot: Arc<dyn Bootstrap>,
        process: bool,
    ) -> Result<Rank> {
        let (stream, side) = (device.stream("compute", 0)?, device.stream("side", 0)?);
        let a = device.alloc_state(ROOM, Tag::Staging)?;
        let b = device.alloc_state(ROOM, Tag::Staging)?;
        for x in [&a, &b] {
            stream.fill(x.all(), 0, 4)?;
        }
        stream.sync(None)?;
        Ok(Rank {
            rank: mesh.place().job_rank(),
            stream,
            side,
            mesh,
            boot,
            process,
            waits: None,
            a,
            b,
            device: device.clone(),
        })
    }

    /// The communicator of a group, for what the verbs below do not do.
    pub fn group(&mut self, on: On) -> Result<&mut Collectives> {
        pick(&mut self.mesh, on)
    }

    /// The buffers, for what the verbs below do not do: what is sent, what is received into.
    pub fn parts(&mut self) -> (&mut Mesh, &Stream, &Buffer, &Buffer) {
        (&mut self.mesh, &self.stream, &self.a, &self.b)
    }

    /// Says what the next op on a group is for.
    pub fn about(&mut self, on: On, what: &str) -> Result<&mut Rank> {
        self.group(on)?.about(what);
        Ok(self)
    }

    /// A sum of `n` f32.
    #[track_caller]
    pub fn all_reduce(&mut self, on: On, n: u64) -> Result<()> {
        self.all_reduce_as(on, n, DType::F32, Reduce::Sum)
    }

    /// The same of any type, by any reduction.
    #[track_caller]
    pub fn all_reduce_as(&mut self, on: On, n: u64, dtype: DType, op: Reduce) -> Result<()> {
        let buf = self.a.region(0, dtype.bytes(n));
        let c = [Collective::AllReduce { buf, dtype, op }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// A sum of `n` f32 on the second stream.
    #[track_caller]
    pub fn all_reduce_aside(&mut self, on: On, n: u64) -> Result<()> {
        let (buf, dtype, op) = (self.b.region(0, 4 * n), DType::F32, Reduce::Sum);
        let c = [Collective::AllReduce { buf, dtype, op }];
        go(&mut self.mesh, &self.side, on, &c)
    }

    /// Each rank's part, `n` f32, of a sum.
    #[track_caller]
    pub fn reduce_scatter(&mut self, on: On, n: u64) -> Result<()> {
        let ranks = u64::from(self.group(on)?.size());
        let c = [Collective::ReduceScatter {
            send: self.a.region(0, 4 * n * ranks),
            recv: self.b.region(0, 4 * n),
            dtype: DType::F32,
            op: Reduce::Sum,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 of every rank.
    #[track_caller]
    pub fn all_gather(&mut self, on: On, n: u64) -> Result<()> {
        self.all_gather_as(on, n, DType::F32)
    }

    /// The same of any type.
    #[track_caller]
    pub fn all_gather_as(&mut self, on: On, n: u64, dtype: DType) -> Result<()> {
        let ranks = u64::from(self.group(on)?.size());
        let c = [Collective::AllGather {
            send: self.a.region(0, dtype.bytes(n)),
            recv: self.b.region(0, dtype.bytes(n) * ranks),
            dtype,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 of the root.
    #[track_caller]
    pub fn broadcast(&mut self, on: On, n: u64, root: u32) -> Result<()> {
        let (buf, dtype) = (self.a.region(0, 4 * n), DType::F32);
        let c = [Collective::Broadcast { buf, dtype, root }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// A sum of `n` f32 on the root.
    #[track_caller]
    pub fn reduce(&mut self, on: On, n: u64, root: u32) -> Result<()> {
        let c = [Collective::Reduce {
            buf: self.a.region(0, 4 * n),
            dtype: DType::F32,
            op: Reduce::Sum,
            root,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 to every rank.
    #[track_caller]
    pub fn all_to_all(&mut self, on: On, n: u64) -> Result<()> {
        let ranks = u64::from(self.group(on)?.size());
        let c = [Collective::AllToAll {
            send: self.a.region(0, 4 * n * ranks),
            recv: self.b.region(0, 4 * n * ranks),
            dtype: DType::F32,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `send[r]` f32 to rank `r`, `recv[r]` from it, one behind the other.
    #[track_caller]
    pub fn all_to_all_v(&mut self, on: On, send: &[u64], recv: &[u64]) -> Result<()> {
        let counts = Counts {
            send: send.to_vec(),
            send_at: starts(send),
            recv: recv.to_vec(),
            recv_at: starts(recv),
        };
        let c = [Collective::AllToAllV {
            send: self.a.all(),
            recv: self.b.all(),
            dtype: DType::F32,
            counts: &counts,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `lengths[r]` f32 of every rank `r`.
    #[track_caller]
    pub fn all_gather_v(&mut self, on: On, lengths: &[u64]) -> Result<()> {
        let mine = lengths[self.group(on)?.rank() as usize];
        let counts = Counts {
            recv: lengths.to_vec(),
            recv_at: starts(lengths),
            ..Counts::default()
        };
        let c = [Collective::AllGatherV {
            send: self.a.region(0, 4 * mine),
            recv: self.b.all(),
            dtype: DType::F32,
            counts: &counts,
        }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 to a rank of the group.
    #[track_caller]
    pub fn send(&mut self, on: On, n: u64, peer: u32) -> Result<()> {
        self.send_as(on, n, DType::F32, peer)
    }

    /// The same of any type.
    #[track_caller]
    pub fn send_as(&mut self, on: On, n: u64, dtype: DType, peer: u32) -> Result<()> {
        let buf = self.a.region(0, dtype.bytes(n));
        let c = [Collective::Send { buf, dtype, peer }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 from a rank of the group.
    #[track_caller]
    pub fn recv(&mut self, on: On, n: u64, peer: u32) -> Result<()> {
        let (buf, dtype) = (self.b.region(0, 4 * n), DType::F32);
        let c = [Collective::Recv { buf, dtype, peer }];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// `n` f32 to one rank and from another at once.
    #[track_caller]
    pub fn exchange(&mut self, on: On, n: u64, to: u32, from: u32) -> Result<()> {
        let dtype = DType::F32;
        let c = [
            Collective::Send {
                buf: self.a.region(0, 4 * n),
                dtype,
                peer: to,
            },
            Collective::Recv {
                buf: self.b.region(0, 4 * n),
                dtype,
                peer: from,
            },
        ];
        go(&mut self.mesh, &self.stream, on, &c)
    }

    /// All of a group come here.
    #[track_caller]
    pub fn barrier(&mut self, on: On) -> Result<()> {
        go(&mut self.mesh, &self.stream, on, &[Collective::Barrier])
    }

    /// The host waits for everything on the stream.
    pub fn sync(&self) -> Result<()> {
        if let Some(w) = &self.waits {
            let mut all = w.lock().unwrap_or_else(PoisonError::into_inner);
            all[self.rank as usize] = Instant::now();
        }
        self.stream.sync(None)
    }

    /// From now on this rank notes when its host begins to wait.
    pub fn note_waits(&mut self, waits: &Arc<Mutex<Vec<Instant>>>) {
        self.waits = Some(waits.clone());
    }

    /// The end of a program: its groups are left, with a look at what is left over.
    pub fn close(self) -> Result<()> {
        self.mesh.close()
    }

    /// What follows comes when the others are where they wait: else it is chance which of their calls it meets.
    pub fn let_others_wait(&self) {
        std::thread::sleep(Duration::from_millis(if self.process { 400 } else { 100 }));
    }

    /// `kill -9`; a thread, which the system cannot kill alone, goes without a word.
    pub fn kill(&self) -> Result<()> {
        if self.process {
            send_to_self(Signal::SIGKILL);
            return Err(Error::invalid("kill", "still alive"));
        }
        std::panic::resume_unwind(Box::new(Killed))
    }
}

/// Where pieces of these lengths start when they lie one behind the other.
fn starts(lengths: &[u64]) -> Vec<u64> {
    let mut next = 0;
    let one = |n: &u64| {
        let at = next;
        next += n;
        at
    };
    lengths.iter().map(one).collect()
}
