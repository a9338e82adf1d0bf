//! Files as they are packed: plain, by gzip or by zstd, read as one stream of the bytes inside.

use crate::error::{DataError, Result};
use crossweave_files as files;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How a file of text is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Not at all.
    Plain,
    /// RFC 1952, of one or more members.
    Gzip,
    /// RFC 8878, of one or more frames.
    Zstd,
}

impl Packing {
    /// The bytes inside the file at `path`.
    pub(crate) fn open(self, path: &Path) -> Result<Box<dyn Read>> {
        let (file, _) = files::open(path).map_err(DataError::io("open", path))?;
        self.unpack(file).map_err(|e| self.broken(path, e))
    }

    /// The bytes inside what `from` gives.
    pub(crate) fn unpack<'a>(self, from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Packing::Plain => Box::new(from),
            Packing::Gzip => Box::new(flate2::read::MultiGzDecoder::new(from)),
            Packing::Zstd => Box::new(zstd::stream::read::Decoder::new(from)?),
        })
    }

    /// An error while reading: the system's own, or of what is packed.
    pub(crate) fn broken(self, path: &Path, e: io::Error) -> DataError {
        let kind = match self {
            Packing::Gzip if e.raw_os_error().is_none() => "gzip file",
            Packing::Zstd if e.raw_os_error().is_none() => "zstd file",
            _ => return DataError::io("read", path)(e),
        };
        DataError::Binary {
            path: path.into(),
            what: format!("a damaged {kind} ({e})"),
            fix: "fetch it again, or exclude it (data.exclude)".into(),
        }
    }
}

/// The bytes of a file as it is read, told to `eat` on the way.
pub(crate) struct Tap<F> {
    pub(crate) file: File,
    pub(crate) eat: F,
}

impl<F: FnMut(&[u8])> Read for Tap<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(to)?;
        (self.eat)(&to[..n]);
        Ok(n)
    }
}
