//! Records of the store's journals: how far are they whole?
//!
//! fjall has a reader of its own. It is private, cuts the file where it stops, and takes damage for
//! the end. A record is a batch, integers little-endian:
//!
//! ```text
//! 1, items u32, number u64
//! 2, kind u8, compression u8, table u64, key length u16, value length u32, stored length u32, key, value
//! ...
//! 3, checksum u64 (XXH3 of the items), "FJL" 3
//! ```
//!
//! The numbers ascend. Zeros follow the last record of a journal that was not opened again since it
//! was made, because the file is made at its full length.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
/// Removes all of a table; we never do.
const CLEAR: u8 = 4;
const TRAILER: &[u8; 4] = b"FJL\x03";

const START_BYTES: usize = 13;

/// The whole records at the start of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) bytes: u64,
    pub(super) records: u64,
    /// Number of the last one.
    last: Option<u64>,
}

impl Extent {
    /// Reads on from here, to the first bytes that are no whole record.
    pub(super) fn extend(mut self, file: &File) -> io::Result<Extent> {
        let mut reader = BufReader::new(FileAt {
            file,
            at: self.bytes,
        });
        loop {
            match read_record(&mut reader, self.last) {
                Ok((bytes, number)) => {
                    self.bytes += bytes;
                    self.records += 1;
                    self.last = Some(number);
                }
                Err(error) if is_end(&error) => return Ok(self),
                Err(error) => return Err(error),
            }
        }
    }

    #[cfg(test)]
    pub(super) fn from_bytes(bytes: u64) -> Extent {
        Extent {
            bytes,
            ..Extent::default()
        }
    }

    /// What lies behind it, up to the last byte that is not zero.
    pub(super) fn rest(self, file: &File) -> io::Result<Rest> {
        let mut bytes = Vec::new();
        let at = self.bytes;
        FileAt { file, at }.read_to_end(&mut bytes)?;
        bytes.truncate(used_length(&bytes));
        let mut rest = Rest {
            bytes: bytes.len() as u64,
            records: 0,
        };
        let (mut at, mut last) = (0, self.last);
        while at + START_BYTES < bytes.len() {
            let may_start = bytes[at] == START && matches!(bytes[at + START_BYTES], ITEM | CLEAR);
            match may_start.then(|| read_record(&mut &bytes[at..], last)) {
                Some(Ok((length, number))) => {
                    rest.records += 1;
                    last = Some(number);
                    at += length as usize;
                }
                _ => at += 1,
            }
        }
        Ok(rest)
    }

    /// Whether only zeros lie behind it.
    pub(super) fn is_all(self, file: &File) -> io::Result<bool> {
        let mut chunk = vec![0; ZEROS.len()];
        let mut at = self.bytes;
        loop {
            let read = file.read_at(&mut chunk, at)?;
            if chunk[..read] != ZEROS[..read] {
                return Ok(false);
            }
            if read == 0 {
                return Ok(true);
            }
            at += read as u64;
        }
    }
}

/// By pieces, because most of a new journal is zeros.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Length without the zeros at the end.
fn used_length(bytes: &[u8]) -> usize {
    let mut pieces = bytes.chunks(ZEROS.len()).enumerate();
    let last = pieces.rfind(|(_, piece)| **piece != ZEROS[..piece.len()]);
    last.map_or(0, |(index, piece)| {
        let byte = piece.iter().rposition(|&byte| byte != 0);
        index * ZEROS.len() + byte.map_or(0, |byte| byte + 1)
    })
}

/// Bytes behind the whole records of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) bytes: u64,
    /// Whole records among them, which no reader reaches that begins at the start.
    pub(super) records: u64,
}

struct FileAt<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FileAt<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Bytes and number of the record that begins here.
fn read_record(from: &mut impl BufRead, previous: Option<u64>) -> io::Result<(u64, u64)> {
    let start: [u8; START_BYTES] = read(from)?;
    let [tag, start @ ..] = &start;
    let items = little_endian(&start[..4]);
    let record = little_endian(&start[4..]);
    // The checksum does not cover the start. No store comes to 2^56 writes.
    let is_next = previous.is_none_or(|previous| record > previous) && record >> 56 == 0;
    if *tag != START || !is_next {
        return Err(not_a_record());
    }
    let mut sum = Xxh3::new();
    let mut bytes = START_BYTES as u64;
    for _ in 0..items {
        bytes += read_item(from, &mut sum)?;
    }
    let end: [u8; 13] = read(from)?;
    if end[0] != END || end[9..] != *TRAILER || little_endian(&end[1..9]) != sum.digest() {
        return Err(not_a_record());
    }
    Ok((bytes + end.len() as u64, record))
}

fn read_item(from: &mut impl BufRead, sum: &mut Xxh3) -> io::Result<u64> {
    let tag: [u8; 1] = read(from)?;
    sum.update(&tag);
    match tag[0] {
        ITEM => {
            let head: [u8; 20] = read(from)?;
            sum.update(&head);
            let length = little_endian(&head[10..12]) + little_endian(&head[16..]);
            read_over(from, length, sum)?;
            Ok(21 + length)
        }
        CLEAR => {
            read_over(from, 8, sum)?;
            Ok(9)
        }
        _ => Err(not_a_record()),
    }
}

fn read<const N: usize>(from: &mut impl BufRead) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads so many bytes without holding them: a damaged length may be any.
fn read_over(from: &mut impl BufRead, mut length: u64, sum: &mut Xxh3) -> io::Result<()> {
    while length > 0 {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let step = bytes
            .len()
            .min(usize::try_from(length).unwrap_or(usize::MAX));
        sum.update(&bytes[..step]);
        from.consume(step);
        length -= step as u64;
    }
    Ok(())
}

/// Integer of at most 8 bytes.
pub(super) fn little_endian(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

fn not_a_record() -> io::Error {
    ErrorKind::InvalidData.into()
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof
    )
}
