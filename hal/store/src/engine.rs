//! What callers hold: a ticket per transfer. What engines are: something that takes pieces.

use crate::piece::Piece;
use crate::{Block, Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Moves pieces. Dropping it finishes what it has.
pub(crate) trait Engine: Send + Sync {
    /// Takes pieces; never blocks on the disk.
    fn submit(&self, pieces: Vec<Piece>);
    /// `io_uring`, `threads` or `nowhere`.
    fn name(&self) -> &'static str;
}

/// Every piece is over as soon as it comes; nothing is moved. What a rehearsal has in place of a disk.
pub(crate) struct Nowhere;

impl Engine for Nowhere {
    fn submit(&self, pieces: Vec<Piece>) {
        for piece in pieces {
            let bytes = piece.bytes() as i64;
            piece.answer(bytes);
        }
    }
    fn name(&self) -> &'static str {
        "nowhere"
    }
}

/// A transfer that failed, and the block it was for.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// The block; its bytes are undefined after a read. `None` when the engine could not give it back.
    pub block: Option<Box<Block>>,
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} of {} bytes)", self.index(), self.bytes())
    }
}

impl From<Failed> for Error {
    fn from(f: Failed) -> Error {
        f.error
    }
}

type Answer = (Option<Block>, Result<()>);

/// The engine's end of a ticket.
pub(crate) struct Reply(SyncSender<Answer>);

impl Reply {
    pub fn send(self, block: Option<Block>, how: Result<()>) {
        // A ticket that was dropped has nobody to tell; the block returns to its pool.
        let _ = self.0.send((block, how));
    }
}

/// A transfer under way. Dropping it does not stop the transfer; the block then returns to its pool by itself.
pub struct Ticket(Receiver<Answer>);

pub(crate) fn ticket() -> (Reply, Ticket) {
    let (tx, rx) = sync_channel(1);
    (Reply(tx), Ticket(rx))
}

impl Ticket {
    /// Waits until the transfer is over.
    pub fn wait(self) -> std::result::Result<Block, Failed> {
        match self.0.recv() {
            Ok((Some(block), Ok(()))) => Ok(block),
            Ok((block, Err(error))) => Err(Failed {
                error,
                block: block.map(Box::new),
            }),
            Ok((None, Ok(()))) | Err(_) => Err(Failed {
                error: Error::Closed("it ended under a transfer".into()),
                block: None,
            }),
        }
    }
}
