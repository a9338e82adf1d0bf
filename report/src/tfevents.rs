//! TensorBoard event files: TFRecord framing, masked CRC-32C, and the three protobuf messages a
//! scalar needs. Eighty lines instead of a protobuf compiler and a TensorFlow dependency.

use std::io::{self, Write};

/// Writes scalars as TensorBoard reads them.
pub struct EventWriter<W: Write> {
    out: W,
}

/// The name TensorBoard looks for, dated `start` seconds since 1970.
pub fn file_name(start: f64) -> String {
    format!(
        "events.out.tfevents.{:010}.crossweave",
        start.max(0.0) as u64
    )
}

impl<W: Write> EventWriter<W> {
    /// Starts a file with the version record every reader expects first.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(out: W, wall_time: f64) -> io::Result<Self> {
        let mut writer = EventWriter { out };
        let mut event = Vec::new();
        double(&mut event, 1, wall_time);
        field(&mut event, 3, b"brain.Event:2");
        writer.record(&event)?;
        Ok(writer)
    }

    /// Adds one value of the series `tag`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn scalar(&mut self, step: u64, wall_time: f64, tag: &str, value: f32) -> io::Result<()> {
        // Summary.Value { tag = 1, simple_value = 2 }, inside Summary { value = 1 },
        // inside Event { wall_time = 1, step = 2, summary = 5 }.
        let mut inner = Vec::new();
        field(&mut inner, 1, tag.as_bytes());
        inner.push(2 << 3 | 5);
        inner.extend(value.to_le_bytes());
        let mut summary = Vec::new();
        field(&mut summary, 1, &inner);
        let mut event = Vec::new();
        double(&mut event, 1, wall_time);
        event.push(2 << 3);
        varint(&mut event, step);
        field(&mut event, 5, &summary);
        self.record(&event)
    }

    /// Flushes what is buffered.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn record(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&masked(&length).to_le_bytes())?;
        self.out.write_all(data)?;
        self.out.write_all(&masked(data).to_le_bytes())
    }
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// A length-delimited field.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn double(out: &mut Vec<u8>, number: u8, x: f64) {
    out.push(number << 3 | 1);
    out.extend(x.to_le_bytes());
}

/// CRC-32C (Castagnoli), bit by bit: a record is a hundred bytes.
pub(super) fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |mut crc, byte| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
        crc
    })
}

/// TFRecord stores a rotated and shifted CRC, so that a CRC over data with CRCs stays sound.
pub(super) fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}
