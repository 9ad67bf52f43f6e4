//! Integers in as few bytes as they need: seven bits to a byte, the lowest first.
//!
//! Signed ones are folded (0, -1, 1, -2 …), so that small ones of either sign are short. Reading never panics: what
//! ends too early or is too large is [`Torn`].

/// Bytes that can not be read as what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of rollups can not be read")]
pub struct Torn;

pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)) as u64);
}

pub(super) fn put_wide(out: &mut Vec<u8>, value: i128) {
    let mut value = ((value << 1) ^ (value >> 127)) as u128;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Torn> {
        let (first, rest) = self.0.split_first().ok_or(Torn)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Torn> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Torn)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Most numbers end within eight bytes, which are looked at together.
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Torn> {
        const LAST: u64 = 0x8080_8080_8080_8080;
        let Some(chunk) = self.0.first_chunk::<8>() else { return self.number_slowly() };
        let word = u64::from_le_bytes(*chunk);
        if word & 0x80 == 0 {
            self.0 = &self.0[1..];
            return Ok(word & 0x7f);
        }
        let ends = !word & LAST;
        if ends == 0 {
            return self.number_slowly();
        }
        let end = ends.trailing_zeros() + 1;
        self.0 = self.0.get(end as usize / 8..).ok_or(Torn)?;
        Ok(squeeze(word & (u64::MAX >> (64 - end))))
    }

    #[cold]
    fn number_slowly(&mut self) -> Result<u64, Torn> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return if shift == 63 && byte > 1 { Err(Torn) } else { Ok(value) };
            }
        }
        Err(Torn)
    }

    #[inline]
    pub(super) fn signed(&mut self) -> Result<i64, Torn> {
        self.number().map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Sums are rarely wider than 63 bits: those are read as such.
    #[inline]
    pub(super) fn wide(&mut self) -> Result<i128, Torn> {
        let narrow = *self;
        if let Ok(value) = self.signed() {
            return Ok(i128::from(value));
        }
        *self = narrow;
        self.wide_slowly()
    }

    #[cold]
    fn wide_slowly(&mut self) -> Result<i128, Torn> {
        let mut value = 0_u128;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            value |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                let is_too_large = shift == 126 && byte > 3;
                return if is_too_large {
                    Err(Torn)
                } else {
                    Ok((value >> 1) as i128 ^ -((value & 1) as i128))
                };
            }
        }
        Err(Torn)
    }
}

/// Joins the lower seven bits of each of eight bytes.
#[inline]
fn squeeze(word: u64) -> u64 {
    let word = (word & 0x007f_007f_007f_007f) | (word & 0x7f00_7f00_7f00_7f00) >> 1;
    let word = (word & 0x0000_3fff_0000_3fff) | (word & 0x3fff_0000_3fff_0000) >> 2;
    (word & 0x0000_0000_0fff_ffff) | (word & 0x0fff_ffff_0000_0000) >> 4
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            plain in any::<u64>(), shift in 0_u32..64, signed in any::<i64>(), wide in any::<i128>(), narrow in 0_u32..128,
        ) {
            let (plain, signed, wide) = (plain >> shift, signed >> shift, wide >> narrow);
            // With bytes behind it or without, it is read on different ways.
            let mut bytes = Vec::new();
            put(&mut bytes, plain);
            prop_assert_eq!(Reader(&bytes).number(), Ok(plain));
            bytes.clear();
            put(&mut bytes, plain);
            put_signed(&mut bytes, signed);
            put_wide(&mut bytes, wide);
            let mut reader = Reader(&bytes);
            prop_assert_eq!((reader.number(), reader.signed(), reader.wide()), (Ok(plain), Ok(signed), Ok(wide)));
            prop_assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn extremes_are_read_and_what_is_larger_is_not() {
        for value in [i128::MIN, i128::MAX, 0, i128::from(i64::MIN), i128::from(i64::MAX) + 1] {
            let mut bytes = Vec::new();
            put_wide(&mut bytes, value);
            assert_eq!(Reader(&bytes).wide(), Ok(value));
            bytes.pop();
            assert_eq!(Reader(&bytes).wide(), Err(Torn));
        }
        assert_eq!(Reader(&[0xff; 40]).number(), Err(Torn));
        assert_eq!(Reader(&[0xff; 40]).wide(), Err(Torn));
    }
}
