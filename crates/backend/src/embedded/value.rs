//! Encoding of rows: a leading format byte, then postcard. Keys are built by each seam, big-endian,
//! so that ranges come in order.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Raised if a row changes its shape; readers must still know the older ones.
const FORMAT: u8 = 1;

pub(crate) fn encode<T: Serialize>(seam: &'static str, value: &T) -> Result<Bytes> {
    encode_sized(seam, value, 64)
}

/// As [`encode`], for a value of about `bytes`.
pub(crate) fn encode_sized<T: Serialize>(
    seam: &'static str,
    value: &T,
    bytes: usize,
) -> Result<Bytes> {
    postcard::to_extend(&(FORMAT, value), Vec::with_capacity(bytes))
        .map(Bytes::from)
        .map_err(|error| Error::conflict(seam, error))
}

pub(crate) fn decode<T: DeserializeOwned>(seam: &'static str, bytes: &[u8]) -> Result<T> {
    let (value, rest) = decode_front(seam, bytes)?;
    check_end(seam, rest)?;
    Ok(value)
}

/// Decodes a row that later programs have extended: `None` for a row from before.
pub(crate) fn decode_extended<T: DeserializeOwned, U: DeserializeOwned>(
    seam: &'static str,
    bytes: &[u8],
) -> Result<(T, Option<U>)> {
    let (value, rest) = decode_front(seam, bytes)?;
    if rest.is_empty() {
        return Ok((value, None));
    }
    let (extension, rest) =
        postcard::take_from_bytes(rest).map_err(|error| Error::corrupt(seam, error))?;
    check_end(seam, rest)?;
    Ok((value, Some(extension)))
}

fn check_end(seam: &'static str, rest: &[u8]) -> Result<()> {
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Error::corrupt(seam, "a row has trailing bytes"))
    }
}

/// Decodes the leading part of a row, and leaves the rest.
pub(crate) fn decode_front<'a, T: DeserializeOwned>(
    seam: &'static str,
    bytes: &'a [u8],
) -> Result<(T, &'a [u8])> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => {
            postcard::take_from_bytes(rest).map_err(|error| Error::corrupt(seam, error))
        }
        Some((format, _)) => Err(Error::corrupt(
            seam,
            format!("a row has format {format}; this program supports format {FORMAT}"),
        )),
        None => Err(Error::corrupt(seam, "an empty row")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn encoded_values_are_decoded_unchanged() {
        let bytes = encode("test", &(7u64, "seven")).expect("encodes");
        let decoded_pair: (u64, String) = decode("test", &bytes).expect("decodes");
        assert_eq!(decoded_pair, (7, "seven".to_owned()));
        let (front, _): (u64, _) = decode_front("test", &bytes).expect("decodes");
        assert_eq!(front, 7);
    }

    #[test]
    fn other_formats_and_torn_rows_are_corrupt_not_misread() {
        let good = encode("test", &7u64).expect("encodes").to_vec();
        for bad in [
            vec![],
            vec![FORMAT + 1, 7],
            vec![FORMAT],
            [good, vec![0]].concat(),
        ] {
            let error = decode::<u64>("test", &bad).expect_err("refused");
            assert_eq!(error.kind, Kind::Corrupt, "{bad:?}");
        }
    }
}
