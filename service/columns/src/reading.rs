//! Reading of bytes that are not trusted: every length is checked against what is left before it counts.

use std::fmt;

/// Why bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// So many bytes announced, so many left.
    Short(i64, usize),
    /// So many items, of this name, announced; so many bytes left.
    Items(i64, &'static str, usize),
    /// A variable-length integer of more than so many bits.
    Bits(u32),
    /// So many bytes behind a record's end.
    BehindRecord(usize),
    /// So many bytes behind the last record.
    BehindRecords(usize),
    /// A header's name that is null.
    NoName,
    /// Offsets that do not ascend within their batch.
    Order,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(size, left) => {
                write!(f, "{size} bytes announced where {left} are left")
            }
            Self::Items(number, what, left) => {
                write!(f, "{number} {what} announced where {left} bytes are left")
            }
            Self::Bits(bits) => write!(f, "a variable-length integer of more than {bits} bits"),
            Self::BehindRecord(left) => write!(f, "{left} bytes behind a record's end"),
            Self::BehindRecords(left) => write!(f, "{left} bytes behind the last record"),
            Self::NoName => f.write_str("a header without a name"),
            Self::Order => f.write_str("offsets that do not ascend"),
        }
    }
}

/// A place in bytes that moves on with each read.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// At the beginning of these bytes.
    pub fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Number of bytes that are not read yet.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next bytes.
    #[inline]
    pub fn take(&mut self, size: i64) -> Result<&'a [u8], Unreadable> {
        let split = usize::try_from(size)
            .ok()
            .and_then(|size| self.rest.split_at_checked(size));
        let Some((taken, rest)) = split else {
            return Err(Unreadable::Short(size, self.rest.len()));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Unreadable::Short(N as i64, self.rest.len()));
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// An integer of one byte.
    #[inline]
    pub fn int8(&mut self) -> Result<i8, Unreadable> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    /// An integer of two bytes, the highest first.
    #[inline]
    pub fn int16(&mut self) -> Result<i16, Unreadable> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    /// An integer of four bytes, the highest first.
    #[inline]
    pub fn int32(&mut self) -> Result<i32, Unreadable> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// An integer of eight bytes, the highest first.
    #[inline]
    pub fn int64(&mut self) -> Result<i64, Unreadable> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    #[inline]
    fn variable(&mut self, bits: u32) -> Result<u64, Unreadable> {
        let [first] = self.array()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        let mut shift = 7;
        while shift < bits {
            let [byte] = self.array()?;
            let part = u64::from(byte & 0x7f);
            if shift + 7 > bits && part >> (bits - shift) != 0 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
            shift += 7;
        }
        Err(Unreadable::Bits(bits))
    }

    /// A variable-length integer (protocol buffers' varint). One of more than 32 bits is refused: Kafka's own reader
    /// drops them (`ByteUtils.readUnsignedVarint`), and no writer makes them.
    #[inline]
    pub fn unsigned(&mut self) -> Result<u32, Unreadable> {
        // `variable` has seen that no bit is higher.
        self.variable(32).map(|value| value as u32)
    }

    /// A variable-length integer of 32 bits whose lowest bit is the sign (zigzag).
    #[inline]
    pub fn signed(&mut self) -> Result<i32, Unreadable> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i32 ^ -((value & 1) as i32))
    }

    /// The same of 64 bits.
    #[inline]
    pub fn signed_long(&mut self) -> Result<i64, Unreadable> {
        let value = self.variable(64)?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Bytes behind a signed variable length; none where that is negative, as Kafka reads it.
    #[inline]
    pub fn nullable(&mut self) -> Result<Option<&'a [u8]>, Unreadable> {
        let size = self.signed()?;
        if size < 0 {
            return Ok(None);
        }
        self.take(i64::from(size)).map(Some)
    }

    /// Bytes behind an unsigned length that counts one more, 0 being null (KIP-482).
    pub fn compact(&mut self) -> Result<Option<&'a [u8]>, Unreadable> {
        match self.unsigned()? {
            0 => Ok(None),
            size => self.take(i64::from(size) - 1).map(Some),
        }
    }

    /// Number of items of a compact array, null counted as none. Each takes a byte at least.
    pub fn count(&mut self) -> Result<u32, Unreadable> {
        let number = self.unsigned()?.saturating_sub(1);
        if number as usize > self.left() {
            return Err(Unreadable::Items(i64::from(number), "items", self.left()));
        }
        Ok(number)
    }

    /// Tagged fields (KIP-482): each is handed on with its tag.
    pub fn tags(&mut self, mut found: impl FnMut(u32, &'a [u8])) -> Result<(), Unreadable> {
        for _ in 0..self.unsigned()? {
            let tag = self.unsigned()?;
            let size = self.unsigned()?;
            found(tag, self.take(i64::from(size))?);
        }
        Ok(())
    }
}
