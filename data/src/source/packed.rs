//! Files as they are packed: plain, by gzip or by zstd, read as one stream of the bytes inside.

use crate::error::{DataError, Result};
use crossweave_files as files;
use flate2::bufread::GzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// The packing of a file of text.
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

    /// Returns the number of bytes that the file says that it holds, of one member or frame; gzip
    /// counts them modulo 2^32.
    pub(crate) fn declared(self, path: &Path) -> Result<Option<u64>> {
        let read = |mut file: File, len: u64| -> io::Result<Option<u64>> {
            let mut end = [0; 18];
            Ok(match self {
                Packing::Plain => None,
                Packing::Gzip if len < end.len() as u64 => None,
                Packing::Gzip => {
                    file.seek(SeekFrom::End(-4))?;
                    file.read_exact(&mut end[..4])?;
                    Some(u64::from(u32::from_le_bytes([
                        end[0], end[1], end[2], end[3],
                    ])))
                }
                Packing::Zstd => {
                    let n = file.read(&mut end)?;
                    zstd::zstd_safe::get_frame_content_size(&end[..n]).unwrap_or(None)
                }
            })
        };
        let (file, len) = files::open(path).map_err(DataError::io("open", path))?;
        read(file, len).map_err(DataError::io("read", path))
    }

    /// The bytes inside what `from` gives.
    pub(crate) fn unpack<'a>(self, from: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Packing::Plain => Box::new(from),
            Packing::Gzip => Box::new(Members(Some(GzDecoder::new(BufReader::new(from))))),
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

/// The contents of all members of a gzip file. Zeros behind a member are skipped, as gzip(1) does:
/// devices and archivers fill up with them.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        while let Some(member) = &mut self.0 {
            match member.read(to)? {
                0 => self.0 = self.next()?,
                n => return Ok(n),
            }
        }
        Ok(0)
    }
}

impl<R: BufRead> Members<R> {
    /// The member behind the one that has ended.
    fn next(&mut self) -> io::Result<Option<GzDecoder<R>>> {
        let Some(mut from) = self.0.take().map(GzDecoder::into_inner) else {
            return Ok(None);
        };
        loop {
            let ahead = from.fill_buf()?;
            let zeros = ahead.iter().take_while(|b| **b == 0).count();
            match (ahead.get(zeros), zeros) {
                (None, 0) => return Ok(None),
                (Some(0x1f), 0) => return Ok(Some(GzDecoder::new(from))),
                (Some(_), 0) => {
                    return Err(io::Error::other("bytes that are no gzip follow its end"));
                }
                _ => from.consume(zeros),
            }
        }
    }
}

/// The bytes of a file as it is read, passed to `eat` on the way.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn zip(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = vec![];
        Packing::Gzip.unpack(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn members_follow_each_other_with_or_without_zeros_between() {
        let (one, two) = (zip(b"one "), zip(&b"two ".repeat(50_000)));
        let all = [&b"one "[..], &b"two ".repeat(50_000)].concat();
        assert_eq!(read(&[&one[..], &two].concat()).unwrap(), all);
        assert_eq!(
            read(&[&one[..], &[0; 70_000], &two, &[0; 512]].concat()).unwrap(),
            all
        );
        assert_eq!(read(&[zip(b""), one.clone()].concat()).unwrap(), b"one ");
        let trash = read(&[&one[..], &[0; 5], b"trash"].concat()).unwrap_err();
        assert!(trash.to_string().contains("no gzip"), "{trash}");
        assert!(read(&two[..two.len() - 9]).is_err());
    }
}
