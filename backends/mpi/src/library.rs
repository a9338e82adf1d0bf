//! One face over the two MPI ABIs there are. Open MPI's handles are pointers, those of MPICH and its kin (Intel MPI, MVAPICH, Cray) are
//! integers fixed by the MPICH ABI initiative; which library is there is found out when it is opened, never when Crossweave is built.
//!
//! Only point-to-point calls on the world and the life of the library are used, a dozen functions whose binary form has not changed since
//! MPI 3.0; everything else is built on them (see `run`, and `channel` for communicators). What a job asks for by name, the library's own
//! collectives, is in `native`.

mod native;

pub(crate) use native::{Group, Native, Shares};

use crossweave_plugin::{Code, Error, Result, fail};
use native::Calls;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A request's handle; spent when the request has completed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request(u64);

/// What the backend asks of an MPI library.
pub(crate) trait Mpi: Send + Sync {
    /// `Open MPI v4.1.4, …` in one line.
    fn version(&self) -> String;
    /// Rank and size in the world.
    fn world(&self) -> (u32, u32);
    /// The highest tag.
    fn highest_tag(&self) -> u32;
    /// Starts a send to a rank of the world.
    ///
    /// # Safety
    /// `len` bytes are readable until the request completes.
    unsafe fn send(&self, to: u32, tag: i32, at: *const u8, len: i32) -> Result<Request>;
    /// Starts a receive from a rank of the world.
    ///
    /// # Safety
    /// `len` bytes are writable until the request completes.
    unsafe fn recv(&self, from: u32, tag: i32, at: *mut u8, len: i32) -> Result<Request>;
    /// Has it completed? With the bytes received, where it `receives`.
    fn test(&self, r: &mut Request, receives: bool) -> Result<Option<i32>>;
    /// Gives a request up.
    fn cancel(&self, r: Request);
    /// Ends MPI in this process; every rank calls it.
    fn finalize(&self) -> Result<()>;
    /// Its own collectives; what it lacks for them.
    fn native(&self) -> Result<&dyn Native>;
}

/// A family's handle.
trait Handle: Copy + Send + Sync + 'static {
    fn up(self) -> u64;
    fn down(x: u64) -> Self;
}
impl Handle for c_int {
    fn up(self) -> u64 {
        self as u32 as u64
    }
    fn down(x: u64) -> c_int {
        x as u32 as c_int
    }
}
/// Open MPI's: the address of an object inside the library.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Object(*mut c_void);
// SAFETY: an opaque token; the library says which calls may share it (MPI_THREAD_MULTIPLE) and `Lib` serialises where it may not.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}
impl Handle for Object {
    fn up(self) -> u64 {
        self.0 as u64
    }
    fn down(x: u64) -> Object {
        Object(x as *mut c_void)
    }
}

/// Larger than the status of either family (24 and 20 bytes) and aligned as both need.
type Status = [u64; 8];
const THREAD_MULTIPLE: c_int = 3;

type OutInt<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type Text = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// The functions, under their MPI names.
struct Table<H> {
    init_thread:
        unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    error_string: unsafe extern "C" fn(c_int, *mut c_char, *mut c_int) -> c_int,
    get_library_version: Text,
    comm_rank: OutInt<H>,
    comm_size: OutInt<H>,
    comm_get_attr: unsafe extern "C" fn(H, c_int, *mut *const c_int, *mut c_int) -> c_int,
    comm_set_errhandler: unsafe extern "C" fn(H, H) -> c_int,
    isend: unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    irecv: unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int,
    test: unsafe extern "C" fn(*mut H, *mut c_int, *mut Status) -> c_int,
    get_count: unsafe extern "C" fn(*const Status, H, *mut c_int) -> c_int,
    cancel: unsafe extern "C" fn(*mut H) -> c_int,
    request_free: unsafe extern "C" fn(*mut H) -> c_int,
}

struct Lib<H> {
    f: Table<H>,
    world: H,
    byte: H,
    errors_return: H,
    calls: Result<Calls<H>>,
    /// Held over every call where the library does not take several threads at once.
    serial: Option<Mutex<()>>,
    rank: u32,
    size: u32,
    highest_tag: u32,
}

/// One function or object of the library.
fn symbol<T: Copy>(lib: &libloading::Library, name: &str) -> Result<T> {
    // SAFETY: the caller's table gives the name its type, as the MPI standard declares it.
    match unsafe { lib.get::<T>(name.as_bytes()) } {
        Ok(s) => Ok(*s),
        Err(e) => fail(
            Code::Unsupported,
            format!("the MPI library lacks {name} (it must be MPI 3.0 or newer): {e}"),
        ),
    }
}

impl<H: Handle> Table<H> {
    fn of(l: &libloading::Library) -> Result<Table<H>> {
        Ok(Table {
            init_thread: symbol(l, "MPI_Init_thread")?,
            finalize: symbol(l, "MPI_Finalize")?,
            error_string: symbol(l, "MPI_Error_string")?,
            get_library_version: symbol(l, "MPI_Get_library_version")?,
            comm_rank: symbol(l, "MPI_Comm_rank")?,
            comm_size: symbol(l, "MPI_Comm_size")?,
            comm_get_attr: symbol(l, "MPI_Comm_get_attr")?,
            comm_set_errhandler: symbol(l, "MPI_Comm_set_errhandler")?,
            isend: symbol(l, "MPI_Isend")?,
            irecv: symbol(l, "MPI_Irecv")?,
            test: symbol(l, "MPI_Test")?,
            get_count: symbol(l, "MPI_Get_count")?,
            cancel: symbol(l, "MPI_Cancel")?,
            request_free: symbol(l, "MPI_Request_free")?,
        })
    }
}

/// Names under which the families' libraries are installed, most telling first.
const OPEN_MPI: [&str; 2] = ["libmpi.so.40", "libmpi.so.80"];
const MPICH: [&str; 3] = ["libmpich.so.12", "libmpi.so.12", "libmpi_cray.so.12"];

/// Opens the library: `path` if one is named, else the first of the `family` (`openmpi`, `mpich` or none given) that is installed, and
/// starts MPI.
///
/// `join`: no launcher of MPI has started the processes; it connects them first.
pub(crate) fn open(
    path: Option<&str>,
    family: Option<&str>,
    join: Option<&dyn Fn() -> Result<()>>,
) -> Result<Box<dyn Mpi>> {
    let names: Vec<&str> = match (path, family) {
        (Some(p), _) => vec![p],
        (None, Some("openmpi")) => OPEN_MPI.to_vec(),
        (None, Some("mpich")) => MPICH.to_vec(),
        (None, None) => OPEN_MPI
            .into_iter()
            .chain(MPICH)
            .chain(["libmpi.so"])
            .collect(),
        (None, Some(other)) => {
            return fail(
                Code::Invalid,
                format!("mpi.family = {other:?}: must be openmpi or mpich"),
            );
        }
    };
    let mut why = vec![];
    for name in &names {
        match load(name) {
            Ok(lib) => return start(lib, name, join),
            Err(e) => why.push(e),
        }
    }
    let install = match family {
        _ if join.is_some() => {
            "install MPICH (Debian: apt-get install libmpich12): Open MPI cannot connect processes that its own launcher has not started"
        }
        Some("openmpi") => "install Open MPI (Debian: apt-get install openmpi-bin)",
        Some("mpich") => "install MPICH (Debian: apt-get install mpich)",
        _ => "install Open MPI or MPICH (Debian: apt-get install openmpi-bin, or mpich)",
    };
    fail(
        Code::Unsupported,
        format!(
            "no MPI library found: looked for {}; {install}, or name the library's file in CROSSWEAVE_MPI_LIBRARY ({})",
            names.join(", "),
            why.last().map_or("", String::as_str)
        ),
    )
}

/// Opens the file for ever. Globally, because Open MPI's own components look for its symbols there.
fn load(name: &str) -> std::result::Result<&'static libloading::Library, String> {
    #[cfg(unix)]
    let lib = {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: running an MPI library's constructors is what opening it is for.
        unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map(libloading::Library::from)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let lib = unsafe { libloading::Library::new(name) };
    match lib {
        Ok(l) => Ok(Box::leak(Box::new(l))),
        Err(e) => Err(std::error::Error::source(&e).map_or(e.to_string(), |s| s.to_string())),
    }
}

fn start(
    lib: &'static libloading::Library,
    name: &str,
    join: Option<&dyn Fn() -> Result<()>>,
) -> Result<Box<dyn Mpi>> {
    let object = |symbol_name: &str| -> Option<Object> {
        // SAFETY: only the address is taken: the object is its own handle.
        let s = unsafe { lib.get::<*mut c_void>(symbol_name.as_bytes()) }.ok()?;
        // SAFETY: `into_raw` of the address, not of what is stored there.
        let raw = unsafe { s.into_raw() };
        Some(Object(raw.as_raw_ptr()))
    };
    match object("ompi_mpi_comm_world") {
        Some(_) if join.is_some() => fail(
            Code::Unsupported,
            format!(
                "{name} is Open MPI, which cannot connect processes that its own launcher has not started; install MPICH (Debian: apt-get install libmpich12), or start the job with mpirun"
            ),
        ),
        Some(world) => {
            let named = |n: &str| {
                object(n).ok_or_else(|| {
                    Error::new(Code::Unsupported, format!("{name}: Open MPI without {n}"))
                })
            };
            let open = |name: &str| named(&format!("ompi_mpi_{name}"));
            let lib = Lib::start(
                Table::of(lib)?,
                Calls::of(lib, native::OPEN_MPI_IN_PLACE, native::OPEN_MPI.map(open)),
                world,
                named("ompi_mpi_byte")?,
                named("ompi_mpi_errors_return")?,
                0,
            )?;
            Ok(Box::new(lib))
        }
        // The numbers of the MPICH ABI.
        None => {
            let table = Table::of(lib)?;
            if let Some(join) = join {
                join()?;
            }
            let calls = Calls::of(lib, native::MPICH_IN_PLACE, native::MPICH.map(Ok));
            let lib = Lib::start(
                table,
                calls,
                0x4400_0000,
                0x4c00_010d,
                0x5400_0001,
                0x6440_0001,
            )?;
            Ok(Box::new(lib))
        }
    }
}

impl<H: Handle> Lib<H> {
    /// `tag_ub`: the number of the attribute `MPI_TAG_UB`.
    fn start(
        f: Table<H>,
        calls: Result<Calls<H>>,
        world: H,
        byte: H,
        errors_return: H,
        tag_ub: c_int,
    ) -> Result<Lib<H>> {
        let mut provided = 0;
        // SAFETY: MPI-2 allows NULL for both arguments; called once in a process, by `MpiBackend`.
        let code = unsafe {
            (f.init_thread)(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                THREAD_MULTIPLE,
                &mut provided,
            )
        };
        let mut lib = Lib {
            f,
            world,
            byte,
            errors_return,
            calls,
            serial: (provided < THREAD_MULTIPLE).then(Mutex::default),
            rank: 0,
            size: 0,
            // What every library takes.
            highest_tag: 0x7fff,
        };
        lib.check("MPI_Init_thread", code)?;
        let (mut rank, mut size) = (0, 0);
        let (mut highest, mut there): (*const c_int, c_int) = (std::ptr::null(), 0);
        // SAFETY: MPI is running; the out parameters live for the call.
        unsafe {
            lib.check(
                "MPI_Comm_set_errhandler",
                (lib.f.comm_set_errhandler)(world, errors_return),
            )?;
            lib.check("MPI_Comm_rank", (lib.f.comm_rank)(world, &mut rank))?;
            lib.check("MPI_Comm_size", (lib.f.comm_size)(world, &mut size))?;
            let found = (lib.f.comm_get_attr)(world, tag_ub, &mut highest, &mut there);
            lib.check("MPI_Comm_get_attr", found)?;
            if there != 0 && !highest.is_null() {
                lib.highest_tag = (*highest).max(0x7fff) as u32;
            }
        }
        (lib.rank, lib.size) = (rank as u32, size as u32);
        Ok(lib)
    }

    fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        self.serial
            .as_ref()
            .map(|m| m.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len) = ([0 as c_char; 1024], 0);
        // SAFETY: both families write at most 512 bytes.
        unsafe { (self.f.error_string)(code, text.as_mut_ptr(), &mut len) };
        let text: Vec<u8> = text[..len.clamp(0, 1024) as usize]
            .iter()
            .map(|c| *c as u8)
            .collect();
        let mut e = Error::new(
            Code::Comm,
            format!("{call}: {}", String::from_utf8_lossy(&text)),
        );
        e.vendor_code = code.into();
        Err(e)
    }
}

impl<H: Handle> Mpi for Lib<H> {
    fn version(&self) -> String {
        let (mut text, mut len) = (vec![0 as c_char; 8192 + 1], 0);
        let _one = self.alone();
        // SAFETY: 8192 bytes are the most either family writes.
        unsafe { (self.f.get_library_version)(text.as_mut_ptr(), &mut len) };
        let text: Vec<u8> = text[..len.clamp(0, 8192) as usize]
            .iter()
            .map(|c| *c as u8)
            .collect();
        let text = String::from_utf8_lossy(&text);
        let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().next().map(words).unwrap_or_default()
    }

    fn world(&self) -> (u32, u32) {
        (self.rank, self.size)
    }

    fn highest_tag(&self) -> u32 {
        self.highest_tag
    }

    unsafe fn send(&self, to: u32, tag: i32, at: *const u8, len: i32) -> Result<Request> {
        let mut r = H::down(0);
        let _one = self.alone();
        // SAFETY: the buffer is the caller's promise.
        let code = unsafe {
            (self.f.isend)(
                at.cast(),
                len,
                self.byte,
                to as c_int,
                tag,
                self.world,
                &mut r,
            )
        };
        self.check("MPI_Isend", code).map(|()| Request(r.up()))
    }

    unsafe fn recv(&self, from: u32, tag: i32, at: *mut u8, len: i32) -> Result<Request> {
        let mut r = H::down(0);
        let _one = self.alone();
        // SAFETY: as in `send`.
        let code = unsafe {
            (self.f.irecv)(
                at.cast(),
                len,
                self.byte,
                from as c_int,
                tag,
                self.world,
                &mut r,
            )
        };
        self.check("MPI_Irecv", code).map(|()| Request(r.up()))
    }

    fn test(&self, r: &mut Request, receives: bool) -> Result<Option<i32>> {
        let mut h = H::down(r.0);
        let (mut flag, mut bytes, mut status): (c_int, c_int, Status) = (0, 0, [0; 8]);
        let _one = self.alone();
        // SAFETY: the request is live; the status is larger than either family's.
        let code = unsafe { (self.f.test)(&mut h, &mut flag, &mut status) };
        r.0 = h.up();
        self.check("MPI_Test", code)?;
        if flag == 0 {
            return Ok(None);
        }
        if !receives {
            return Ok(Some(0));
        }
        // SAFETY: the status was just filled.
        unsafe { (self.f.get_count)(&status, self.byte, &mut bytes) };
        Ok(Some(bytes))
    }

    fn cancel(&self, r: Request) {
        let mut h = H::down(r.0);
        let _one = self.alone();
        // SAFETY: the request has not completed, so its handle is live. A send that cannot be cancelled completes behind our back, which
        // is why nobody reuses its memory: the communicator has failed.
        unsafe {
            (self.f.cancel)(&mut h);
            (self.f.request_free)(&mut h);
        }
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: called once, when no communicator is left.
        self.check("MPI_Finalize", unsafe { (self.f.finalize)() })
    }

    fn native(&self) -> Result<&dyn Native> {
        if self.serial.is_some() {
            return fail(
                Code::Unsupported,
                "the MPI library does not take calls of several threads (MPI_THREAD_MULTIPLE)",
            );
        }
        match &self.calls {
            Ok(_) => Ok(self),
            Err(e) => Err(e.clone()),
        }
    }
}
