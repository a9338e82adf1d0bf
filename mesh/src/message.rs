//! What the processes of a job send each other through the job's store.

use std::io::{self, Read, Write};

/// Values are small; a length beyond this is no message of ours.
const LONGEST: u32 = 64 << 20;

/// Two numbers in the place of one.
pub(crate) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Kinds of messages. Client to server: KNOCK, HELLO, SET, GET, ACK, FAIL, BYE. Server to client: WELCOME, VALUE, PUSH, FAIL, DEAD,
/// SILENT. Both ways: ASK, ANSWER, BEAT.
pub(crate) mod kind {
    pub const HELLO: u8 = 1;
    pub const SET: u8 = 2;
    pub const GET: u8 = 3;
    pub const VALUE: u8 = 4;
    pub const PUSH: u8 = 5;
    pub const ACK: u8 = 6;
    pub const FAIL: u8 = 7;
    pub const DEAD: u8 = 8;
    pub const BYE: u8 = 9;
    pub const KNOCK: u8 = 10;
    pub const WELCOME: u8 = 11;
    pub const ASK: u8 = 12;
    pub const ANSWER: u8 = 13;
    pub const BEAT: u8 = 14;
    pub const SILENT: u8 = 15;
}

/// One message: a kind, a number (request, rank), a key and a value.
pub(crate) struct Message {
    pub kind: u8,
    pub number: u64,
    pub key: String,
    pub value: Vec<u8>,
}

impl Message {
    pub fn new(kind: u8, number: u64, key: &str, value: &[u8]) -> Message {
        Message {
            kind,
            number,
            key: key.into(),
            value: value.into(),
        }
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![self.kind];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend((self.key.len() as u32).to_le_bytes());
        bytes.extend((self.value.len() as u32).to_le_bytes());
        bytes.extend(self.key.as_bytes());
        bytes.extend(&self.value);
        // One write, so that two threads' messages do not mix and none waits for the next packet.
        to.write_all(&bytes)
    }

    pub fn read(from: &mut impl Read) -> io::Result<Message> {
        let mut head = [0u8; 17];
        from.read_exact(&mut head)?;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let number = u64::from(word(1)) | u64::from(word(5)) << 32;
        let (key, value) = (word(9), word(13));
        if key > LONGEST || value > LONGEST {
            return Err(io::Error::other("not a message of this store"));
        }
        let mut text = vec![0; key as usize];
        from.read_exact(&mut text)?;
        let mut bytes = vec![0; value as usize];
        from.read_exact(&mut bytes)?;
        Ok(Message {
            kind: head[0],
            number,
            key: String::from_utf8(text).map_err(io::Error::other)?,
            value: bytes,
        })
    }
}
