//! A library's own collectives, without blocking, on a communicator of the ranks of one group. They are asked for by name, and looked up whether or
//! not they are: a library that lacks one serves everything else.

use super::{Handle, Lib, Request, symbol};
use crossweave_abi::DType;
use crossweave_plugin::{Code, Result, fail};
use std::ffi::{c_int, c_void};

/// A library's communicator.
#[derive(Clone, Copy)]
pub(crate) struct Group(u64);

/// The bytes that go to each rank of a group, or come from it: a number and a place for each, which live until the call that was given them has
/// completed.
#[derive(Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) bytes: *const i32,
    pub(crate) at: *const i32,
}

/// What is asked of a library's own collectives. A call that has been started cannot be cancelled: its memory stays the library's until it has completed.
pub(crate) trait Native: Send + Sync {
    /// Makes a communicator of some processes, which all of them call with one tag, and waits for them without a limit.
    fn group(&self, processes: &[u32], tag: i32) -> Result<Group>;
    /// Ends a communicator on which nothing is under way.
    fn free(&self, g: Group);
    /// Starts adding up, in place.
    ///
    /// # Safety
    /// `count` elements are the library's until the request completes.
    unsafe fn all_reduce(&self, g: Group, at: *mut u8, count: i32, dtype: DType)
    -> Result<Request>;
    /// Starts adding up blocks of `count` elements, of which each rank gets its own.
    ///
    /// # Safety
    /// A block for each rank at `from`, and one at `to`, are the library's until the request completes.
    unsafe fn reduce_scatter(
        &self,
        g: Group,
        from: *const u8,
        to: *mut u8,
        count: i32,
        dtype: DType,
    ) -> Result<Request>;
    /// Starts sending each rank its share.
    ///
    /// # Safety
    /// The shares, and the bytes that they name, are the library's until the request completes.
    unsafe fn all_to_all(
        &self,
        g: Group,
        from: *const u8,
        given: Shares,
        to: *mut u8,
        got: Shares,
    ) -> Result<Request>;
    /// Starts giving every rank `bytes` of this one's.
    ///
    /// # Safety
    /// As [`Native::all_to_all`].
    unsafe fn all_gather(
        &self,
        g: Group,
        from: *const u8,
        bytes: i32,
        to: *mut u8,
        got: Shares,
    ) -> Result<Request>;
}

/// The types of elements that a library adds up, in the order of [`OPEN_MPI`] and [`MPICH`], whose last is the sum.
const TYPES: [DType; 6] = [
    DType::F32,
    DType::F64,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
];
/// Open MPI's objects of types and of the sum, without their prefix.
pub(super) const OPEN_MPI: [&str; 7] = [
    "float", "double", "int32_t", "uint32_t", "int64_t", "uint64_t", "op_sum",
];
/// Those of the MPICH ABI.
pub(super) const MPICH: [c_int; 7] = [
    0x4c00_040a,
    0x4c00_080b,
    0x4c00_0439,
    0x4c00_043d,
    0x4c00_083a,
    0x4c00_083e,
    0x5800_0003,
];
/// The addresses that mean "in place".
pub(super) const OPEN_MPI_IN_PLACE: isize = 1;
pub(super) const MPICH_IN_PLACE: isize = -1;

type Numbers = *const c_int;
type OneOut<H> = unsafe extern "C" fn(H, *mut H) -> c_int;
type Sum<H> = unsafe extern "C" fn(*const c_void, *mut c_void, c_int, H, H, H, *mut H) -> c_int;
type ToAll<H> = unsafe extern "C" fn(
    *const c_void,
    Numbers,
    Numbers,
    H,
    *mut c_void,
    Numbers,
    Numbers,
    H,
    H,
    *mut H,
) -> c_int;
type Gather<H> = unsafe extern "C" fn(
    *const c_void,
    c_int,
    H,
    *mut c_void,
    Numbers,
    Numbers,
    H,
    H,
    *mut H,
) -> c_int;

/// The functions, under their MPI names, and the handles that they take.
pub(super) struct Calls<H> {
    comm_group: OneOut<H>,
    group_incl: unsafe extern "C" fn(H, c_int, Numbers, *mut H) -> c_int,
    group_free: unsafe extern "C" fn(*mut H) -> c_int,
    comm_create_group: unsafe extern "C" fn(H, H, c_int, *mut H) -> c_int,
    comm_free: unsafe extern "C" fn(*mut H) -> c_int,
    iallreduce: Sum<H>,
    ireduce_scatter_block: Sum<H>,
    ialltoallv: ToAll<H>,
    iallgatherv: Gather<H>,
    types: [H; 6],
    sum: H,
    in_place: isize,
}

impl<H: Handle> Calls<H> {
    /// `handles`: those of the types, and of the sum.
    pub(super) fn of(
        l: &libloading::Library,
        in_place: isize,
        handles: [Result<H>; 7],
    ) -> Result<Calls<H>> {
        let [a, b, c, d, e, f, sum] = handles;
        Ok(Calls {
            comm_group: symbol(l, "MPI_Comm_group")?,
            group_incl: symbol(l, "MPI_Group_incl")?,
            group_free: symbol(l, "MPI_Group_free")?,
            comm_create_group: symbol(l, "MPI_Comm_create_group")?,
            comm_free: symbol(l, "MPI_Comm_free")?,
            iallreduce: symbol(l, "MPI_Iallreduce")?,
            ireduce_scatter_block: symbol(l, "MPI_Ireduce_scatter_block")?,
            ialltoallv: symbol(l, "MPI_Ialltoallv")?,
            iallgatherv: symbol(l, "MPI_Iallgatherv")?,
            types: [a?, b?, c?, d?, e?, f?],
            sum: sum?,
            in_place,
        })
    }

    /// The library's type of elements.
    fn dtype(&self, dtype: DType) -> Result<H> {
        match TYPES.iter().position(|t| *t == dtype) {
            Some(i) => Ok(self.types[i]),
            None => fail(
                Code::Unsupported,
                format!("the MPI library adds up no {}", dtype.name()),
            ),
        }
    }
}

impl<H: Handle> Lib<H> {
    /// The functions; [`super::Mpi::native`] has said what is missing.
    fn calls(&self) -> Result<&Calls<H>> {
        self.calls.as_ref().map_err(Clone::clone)
    }
}

impl<H: Handle> Native for Lib<H> {
    fn group(&self, processes: &[u32], tag: i32) -> Result<Group> {
        let c = self.calls()?;
        let ranks: Vec<c_int> = processes.iter().map(|p| *p as c_int).collect();
        let (mut all, mut some, mut comm) = (H::down(0), H::down(0), H::down(0));
        // SAFETY: the out parameters live for the calls; the ranks are of the world. A communicator answers errors as its parent does.
        unsafe {
            self.check("MPI_Comm_group", (c.comm_group)(self.world, &mut all))?;
            let n = ranks.len() as c_int;
            let code = (c.group_incl)(all, n, ranks.as_ptr(), &mut some);
            self.check("MPI_Group_incl", code)?;
            let code = (c.comm_create_group)(self.world, some, tag, &mut comm);
            (c.group_free)(&mut some);
            (c.group_free)(&mut all);
            self.check("MPI_Comm_create_group", code)?;
            let code = (self.f.comm_set_errhandler)(comm, self.errors_return);
            self.check("MPI_Comm_set_errhandler", code)?;
        }
        Ok(Group(comm.up()))
    }

    fn free(&self, g: Group) {
        let mut comm = H::down(g.0);
        if let Ok(c) = self.calls() {
            // SAFETY: made by `group`, and freed once. What it answers changes nothing for who has no more use for it.
            unsafe { (c.comm_free)(&mut comm) };
        }
    }

    unsafe fn all_reduce(
        &self,
        g: Group,
        at: *mut u8,
        count: i32,
        dtype: DType,
    ) -> Result<Request> {
        let (c, mut r) = (self.calls()?, H::down(0));
        let of = c.dtype(dtype)?;
        let here = std::ptr::without_provenance(c.in_place as usize);
        // SAFETY: promised by the caller.
        let code =
            unsafe { (c.iallreduce)(here, at.cast(), count, of, c.sum, H::down(g.0), &mut r) };
        self.check("MPI_Iallreduce", code).map(|()| Request(r.up()))
    }

    unsafe fn reduce_scatter(
        &self,
        g: Group,
        from: *const u8,
        to: *mut u8,
        count: i32,
        dtype: DType,
    ) -> Result<Request> {
        let (c, mut r) = (self.calls()?, H::down(0));
        let (of, comm) = (c.dtype(dtype)?, H::down(g.0));
        // SAFETY: promised by the caller.
        let code = unsafe {
            (c.ireduce_scatter_block)(from.cast(), to.cast(), count, of, c.sum, comm, &mut r)
        };
        self.check("MPI_Ireduce_scatter_block", code)
            .map(|()| Request(r.up()))
    }

    unsafe fn all_to_all(
        &self,
        g: Group,
        from: *const u8,
        given: Shares,
        to: *mut u8,
        got: Shares,
    ) -> Result<Request> {
        let (c, mut r) = (self.calls()?, H::down(0));
        // SAFETY: promised by the caller.
        let code = unsafe {
            (c.ialltoallv)(
                from.cast(),
                given.bytes,
                given.at,
                self.byte,
                to.cast(),
                got.bytes,
                got.at,
                self.byte,
                H::down(g.0),
                &mut r,
            )
        };
        self.check("MPI_Ialltoallv", code).map(|()| Request(r.up()))
    }

    unsafe fn all_gather(
        &self,
        g: Group,
        from: *const u8,
        bytes: i32,
        to: *mut u8,
        got: Shares,
    ) -> Result<Request> {
        let (c, mut r) = (self.calls()?, H::down(0));
        // SAFETY: promised by the caller.
        let code = unsafe {
            (c.iallgatherv)(
                from.cast(),
                bytes,
                self.byte,
                to.cast(),
                got.bytes,
                got.at,
                self.byte,
                H::down(g.0),
                &mut r,
            )
        };
        self.check("MPI_Iallgatherv", code)
            .map(|()| Request(r.up()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library stands for an MPI that is older than these calls.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_call_that_a_library_lacks_is_named() {
        // SAFETY: it is open already.
        let l = unsafe { libloading::Library::new("libc.so.6") }.unwrap();
        let e = Calls::of(&l, MPICH_IN_PLACE, MPICH.map(Ok)).err().unwrap();
        assert!(e.message.contains("lacks MPI_Comm_group"), "{e:?}");
    }
}
