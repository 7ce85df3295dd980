//! Record batches of magic 2 (`DefaultRecordBatch.java`, `DefaultRecord.java`): the checksum always reckoned, every
//! length checked.

use std::fmt;

use crate::codecs::Refused;
use crate::columns::Columns;
use crate::reading::{Reader, Unreadable};

/// Base offset and length of a batch; the length counts what is behind them.
const LENGTH_END: usize = 12;
const MAGIC: usize = 16;
const CRC_END: usize = 21;
const HEADER: usize = 61;
/// The shortest length that a message of magic 0 has.
const OLD_HEADER: i32 = 14;
const MAGIC_READ: u8 = 2;
/// Bytes: length, attributes, two differences, key's and value's length, number of headers.
const SMALLEST_RECORD: usize = 7;
const CODEC: i16 = 0x07;
const LOG_APPEND_TIME: i16 = 0x08;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;
const ABORT: i16 = 0;

/// Why a batch cannot be read, and so the partition from there on.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// A length that no batch has.
    Length(i32),
    /// A format that is not read.
    Magic(u8),
    /// Bytes that are not those that the producer's checksum was reckoned of.
    Checksum,
    /// A base offset, and what it is from there to the last.
    Offsets(i64, i32),
    /// Data that do not unpack; and the limit.
    Packed(Refused, usize),
    /// A record that does not parse.
    Record(Unreadable),
    /// A transaction's marker that does not parse.
    Marker(Unreadable),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a length of {length} bytes"),
            Self::Magic(magic) => write!(f, "magic {magic}, where {MAGIC_READ} is read"),
            Self::Checksum => f.write_str("wrong checksum"),
            Self::Offsets(base, delta) => {
                write!(f, "offsets from {base} on, the last one {delta} behind")
            }
            Self::Packed(Refused::Unknown(codec), _) => write!(f, "unknown codec {codec}"),
            Self::Packed(Refused::Broken(name), _) => write!(f, "{name} does not unpack"),
            Self::Packed(Refused::TooLarge, limit) => {
                write!(f, "unpacks to more than {limit} bytes")
            }
            Self::Record(reason) => write!(f, "a record does not parse: {reason}"),
            Self::Marker(reason) => write!(f, "a marker does not parse: {reason}"),
        }
    }
}

/// Why there is no batch.
#[derive(Clone, Copy, Debug)]
pub enum NoBatch {
    /// The bytes end inside of it, as a broker may cut them.
    CutShort,
    /// It cannot be read.
    Damaged(Damage),
}

impl From<Damage> for NoBatch {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

/// A batch whose checksum is right, its records not read yet.
pub struct Batch<'a> {
    base_offset: i64,
    /// The last offset that it spans, whether compaction has left the record or not.
    pub last_offset: i64,
    /// Epoch of the leader that wrote it.
    pub leader_epoch: i32,
    attributes: i16,
    base_timestamp: i64,
    max_timestamp: i64,
    /// Whose it is; negative where the producer has no number.
    pub producer_id: i64,
    count: i32,
    /// Its records as they came.
    pub packed: &'a [u8],
}

impl<'a> Batch<'a> {
    /// The batch at the beginning of the records, and the records behind it.
    pub fn read(records: &'a [u8]) -> Result<(Self, &'a [u8]), NoBatch> {
        let reader = &mut Reader::new(records);
        let (Ok(base_offset), Ok(length)) = (reader.int64(), reader.int32()) else {
            return Err(NoBatch::CutShort);
        };
        if length < OLD_HEADER {
            return Err(Damage::Length(length).into());
        }
        if reader.take(i64::from(length)).is_err() {
            return Err(NoBatch::CutShort);
        }
        let (whole, rest) = records.split_at(records.len() - reader.left());
        if whole[MAGIC] != MAGIC_READ {
            return Err(Damage::Magic(whole[MAGIC]).into());
        }
        if whole.len() < HEADER {
            return Err(Damage::Length(length).into());
        }
        // All of the header is there, so `?` cannot tell of bytes that are missing.
        let found = Self::header(base_offset, whole).map_err(|_| Damage::Length(length))??;
        Ok((found, rest))
    }

    fn header(base_offset: i64, whole: &'a [u8]) -> Result<Result<Self, Damage>, Unreadable> {
        let reader = &mut Reader::new(&whole[LENGTH_END..]);
        let leader_epoch = reader.int32()?;
        reader.int8()?;
        // The bits are what is compared.
        let checksum = reader.int32()? as u32;
        if crc32c::crc32c(&whole[CRC_END..]) != checksum {
            return Ok(Err(Damage::Checksum));
        }
        let (attributes, last_delta) = (reader.int16()?, reader.int32()?);
        let (base_timestamp, max_timestamp) = (reader.int64()?, reader.int64()?);
        let producer_id = reader.int64()?;
        // Producer's epoch and first sequence number: for brokers.
        reader.take(6)?;
        let count = reader.int32()?;
        let last_offset = base_offset.checked_add(i64::from(last_delta));
        let Some(last_offset) =
            last_offset.filter(|last| base_offset >= 0 && last_delta >= 0 && *last < i64::MAX)
        else {
            return Ok(Err(Damage::Offsets(base_offset, last_delta)));
        };
        Ok(Ok(Self {
            base_offset,
            last_offset,
            leader_epoch,
            attributes,
            base_timestamp,
            max_timestamp,
            producer_id,
            count,
            packed: &whole[HEADER..],
        }))
    }

    /// Number of the codec that its records are packed with.
    pub fn codec(&self) -> i16 {
        self.attributes & CODEC
    }

    /// Whether it has a marker of a transaction's end instead of records.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Whether its records are of a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    fn is_stamped(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// Add its records from that offset on to the columns: all of them, or none.
    pub fn add_rows(
        &self,
        unpacked: &[u8],
        from: i64,
        columns: &mut Columns,
    ) -> Result<(), Damage> {
        let mark = columns.mark();
        columns.stamp(self.is_stamped());
        self.parse(unpacked, |offset, timestamp, record| {
            if offset >= from {
                columns.add_row(offset, timestamp, record)
            } else {
                record.skip()
            }
        })
        .map_err(|reason| {
            columns.truncate(mark);
            Damage::Record(reason)
        })?;
        Ok(())
    }

    /// Whether this batch of control is the marker of a transaction aborted (`EndTransactionMarker.java`).
    pub fn aborts(&self, unpacked: &[u8]) -> Result<bool, Damage> {
        let mut first_key: Option<&[u8]> = None;
        self.parse(unpacked, |_, _, record| {
            let key = record.skip_behind_key()?;
            first_key = first_key.or(Some(key.unwrap_or_default()));
            Ok(())
        })
        .map_err(Damage::Record)?;
        let Some(key) = first_key else {
            return Ok(false);
        };
        let reader = &mut Reader::new(key);
        let kind = reader.int16().and_then(|_| reader.int16());
        kind.map(|kind| kind == ABORT).map_err(Damage::Marker)
    }

    /// Hand on each record: offset, milliseconds since 1970 (negative where the producer set none), and the rest, which
    /// must be read to its end.
    #[inline]
    fn parse<'u>(
        &self,
        unpacked: &'u [u8],
        mut each: impl FnMut(i64, i64, &mut Record<'u>) -> Result<(), Unreadable>,
    ) -> Result<(), Unreadable> {
        let reader = &mut Reader::new(unpacked);
        let announced = usize::try_from(self.count).ok();
        if announced.is_none_or(|count| count > reader.left() / SMALLEST_RECORD) {
            let announced = i64::from(self.count);
            return Err(Unreadable::Items(announced, "records", reader.left()));
        }
        let stamped = self.is_stamped().then_some(self.max_timestamp);
        let span = self.last_offset - self.base_offset;
        let mut before = -1;
        for _ in 0..self.count {
            let size = reader.signed()?;
            let mut record = Record(Reader::new(reader.take(i64::from(size))?));
            // Attributes, of which there are none.
            record.0.int8()?;
            let time_delta = record.0.signed_long()?;
            let delta = i64::from(record.0.signed()?);
            // Added as Java adds.
            let timestamp = stamped.unwrap_or(self.base_timestamp.wrapping_add(time_delta));
            if delta <= before || delta > span {
                // What else is wrong with the record is of no matter.
                return Err(Unreadable::Order);
            }
            before = delta;
            each(self.base_offset + delta, timestamp, &mut record)?;
            if record.0.left() > 0 {
                return Err(Unreadable::BehindRecord(record.0.left()));
            }
        }
        match reader.left() {
            0 => Ok(()),
            left => Err(Unreadable::BehindRecords(left)),
        }
    }
}

/// A record from its key on.
pub struct Record<'a>(Reader<'a>);

impl<'a> Record<'a> {
    /// Key or value.
    #[inline]
    pub fn nullable(&mut self) -> Result<Option<&'a [u8]>, Unreadable> {
        self.0.nullable()
    }

    /// Number of headers, behind the value.
    #[inline]
    pub fn headers(&mut self) -> Result<i32, Unreadable> {
        let number = self.0.signed()?;
        if usize::try_from(number).is_ok_and(|number| number <= self.0.left()) {
            return Ok(number);
        }
        let left = self.0.left();
        Err(Unreadable::Items(i64::from(number), "headers", left))
    }

    /// Name and value of the next header.
    #[inline]
    pub fn header(&mut self) -> Result<(&'a [u8], Option<&'a [u8]>), Unreadable> {
        let (name, value) = (self.0.nullable()?, self.0.nullable()?);
        Ok((name.ok_or(Unreadable::NoName)?, value))
    }

    /// Read all of it, and keep the key.
    fn skip_behind_key(&mut self) -> Result<Option<&'a [u8]>, Unreadable> {
        let key = self.nullable()?;
        self.nullable()?;
        for _ in 0..self.headers()? {
            self.header()?;
        }
        Ok(key)
    }

    fn skip(&mut self) -> Result<(), Unreadable> {
        self.skip_behind_key().map(|_| ())
    }
}
