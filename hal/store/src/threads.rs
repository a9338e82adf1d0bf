//! The engine of threads: each takes a piece and moves it with plain system calls until it is over.

use crate::engine::Engine;
use crate::piece::{Next, Piece};
use crate::{Layer, lock};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    came: Condvar,
    layer: Arc<dyn Layer>,
}

pub(crate) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    pub fn new(count: u32, layer: Arc<dyn Layer>) -> std::io::Result<Threads> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            came: Condvar::new(),
            layer,
        });
        let mut engine = Threads {
            shared: shared.clone(),
            threads: vec![],
        };
        for i in 0..count {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("store-{i}"));
            engine.threads.push(thread.spawn(move || work(&shared))?);
        }
        Ok(engine)
    }
}

impl Engine for Threads {
    fn submit(&self, pieces: Vec<Piece>) {
        lock(&self.shared.queue).pieces.extend(pieces);
        self.shared.came.notify_all();
    }
    fn name(&self) -> &'static str {
        "threads"
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.came.notify_all();
        for t in self.threads.drain(..) {
            let _ = t.join();
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = lock(&shared.queue);
        let piece = loop {
            if let Some(p) = queue.pieces.pop_front() {
                break p;
            }
            if queue.closed {
                return;
            }
            queue = shared
                .came
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(queue);
        run(piece, shared.layer.as_ref());
    }
}

fn run(mut piece: Piece, layer: &dyn Layer) {
    loop {
        let write = piece.transfer.write;
        let got = match piece.request(layer) {
            Err(code) => i64::from(code),
            Ok((fd, at, bytes)) => {
                let offset = piece.offset as libc::off_t;
                // SAFETY: the descriptor is open and the memory live while the piece's transfer is; no other piece has this range.
                let n = unsafe {
                    match write {
                        true => libc::pwrite(fd, at.cast(), bytes as usize, offset),
                        false => libc::pread(fd, at.cast(), bytes as usize, offset),
                    }
                };
                match n {
                    -1 => -i64::from(
                        std::io::Error::last_os_error()
                            .raw_os_error()
                            .unwrap_or(libc::EIO),
                    ),
                    n => n as i64,
                }
            }
        };
        match piece.answer(got) {
            Next::Over => return,
            Next::Again(p, pause) => {
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                piece = p;
            }
        }
    }
}
