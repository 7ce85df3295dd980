//! Rows as somebody looks at them: cut, joined and read one by one, without a copy. Python's side is `python`.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::ArrowError;

use crate::columns::Columns;

/// Places of the columns among the children of a response's array.
const TOPIC: usize = 0;
const PARTITION: usize = 1;
const OFFSET: usize = 2;
const TIMESTAMP: usize = 3;
const KEY: usize = 4;
const VALUE: usize = 5;
const HEADERS: usize = 6;

/// A column of bytes or text.
struct Strings {
    ends: ScalarBuffer<i32>,
    data: Buffer,
    nulls: Option<NullBuffer>,
}

impl Strings {
    fn new(column: &ArrayData) -> Self {
        Self {
            ends: ScalarBuffer::new(column.buffers()[0].clone(), 0, column.len() + 1),
            data: column.buffers()[1].clone(),
            nulls: column.nulls().cloned(),
        }
    }

    #[inline]
    fn get(&self, row: usize) -> Option<&[u8]> {
        match &self.nulls {
            Some(nulls) if nulls.is_null(row) => None,
            _ => Some(&self.data[at(self.ends[row])..at(self.ends[row + 1])]),
        }
    }

    #[inline]
    fn size(&self, row: usize) -> usize {
        at(self.ends[row + 1]) - at(self.ends[row])
    }

    fn bytes(&self, first: usize, rows: usize) -> usize {
        at(self.ends[first + rows]) - at(self.ends[first])
    }
}

/// An end of 32 bits as an index: the columns begin at 0.
#[inline]
fn at(end: i32) -> usize {
    end.try_into().expect("an end below 0")
}

/// From which row on the broker, and not the producer, has set the times.
pub type Stamps = Vec<(usize, bool)>;

/// All rows of one response. Whoever has a row of it keeps all of them in memory.
pub struct Table {
    data: ArrayData,
    topic: ScalarBuffer<i32>,
    topics: Strings,
    partition: ScalarBuffer<i32>,
    offset: ScalarBuffer<i64>,
    timestamp: ScalarBuffer<i64>,
    key: Strings,
    value: Strings,
    headers: Headers,
    stamps: Stamps,
}

struct Headers {
    ends: ScalarBuffer<i32>,
    nulls: Option<NullBuffer>,
    names: Strings,
    values: Strings,
}

impl Table {
    /// The columns as `Columns::finish` has made them.
    pub fn new(data: ArrayData, stamps: Stamps) -> Self {
        let rows = data.len();
        let column = |place: usize| &data.child_data()[place];
        let plain = |place: usize| column(place).buffers()[0].clone();
        let headers = column(HEADERS);
        let pairs = &headers.child_data()[0];
        Self {
            topic: ScalarBuffer::new(plain(TOPIC), 0, rows),
            topics: Strings::new(&column(TOPIC).child_data()[0]),
            partition: ScalarBuffer::new(plain(PARTITION), 0, rows),
            offset: ScalarBuffer::new(plain(OFFSET), 0, rows),
            timestamp: ScalarBuffer::new(plain(TIMESTAMP), 0, rows),
            key: Strings::new(column(KEY)),
            value: Strings::new(column(VALUE)),
            headers: Headers {
                ends: ScalarBuffer::new(headers.buffers()[0].clone(), 0, rows + 1),
                nulls: headers.nulls().cloned(),
                names: Strings::new(&pairs.child_data()[0]),
                values: Strings::new(&pairs.child_data()[1]),
            },
            stamps,
            data,
        }
    }

    fn has_timestamp_types(&self) -> bool {
        self.data.child_data().len() > HEADERS + 1
    }

    /// Name of the topic; what is no text was none when it was placed.
    pub fn topic(&self, row: usize) -> &str {
        let name = self.topics.get(at(self.topic[row])).unwrap_or_default();
        std::str::from_utf8(name).expect("a topic that is no text")
    }

    /// Number of the partition.
    pub fn partition(&self, row: usize) -> i32 {
        self.partition[row]
    }

    /// Place in the partition.
    #[inline]
    pub fn offset(&self, row: usize) -> i64 {
        self.offset[row]
    }

    /// Milliseconds since 1970, negative where the producer has set none, and whether the broker has set them.
    #[inline]
    pub fn timestamp(&self, row: usize) -> (i64, bool) {
        let behind = self.stamps.partition_point(|(first, _)| *first <= row);
        let stamped = behind > 0 && self.stamps[behind - 1].1;
        (self.timestamp[row], stamped)
    }

    /// The key.
    #[inline]
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        self.key.get(row)
    }

    /// The value.
    #[inline]
    pub fn value(&self, row: usize) -> Option<&[u8]> {
        self.value.get(row)
    }

    /// Bytes of the value.
    #[inline]
    pub fn value_size(&self, row: usize) -> usize {
        self.value.size(row)
    }

    /// Names and values; None where the record has none.
    pub fn headers(&self, row: usize) -> Option<impl Iterator<Item = (&str, Option<&[u8]>)>> {
        let Headers {
            ends,
            nulls,
            names,
            values,
        } = &self.headers;
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        let pairs = at(ends[row])..at(ends[row + 1]);
        Some(pairs.map(|pair| {
            let name = names.get(pair).unwrap_or_default();
            let name = std::str::from_utf8(name).expect("a header's name that is no text");
            (name, values.get(pair))
        }))
    }

    /// Bytes of so many rows: keys, values, headers, and what the other columns have beside them.
    fn bytes(&self, first: usize, rows: usize) -> usize {
        let pairs = at(self.headers.ends[first])..at(self.headers.ends[first + rows]);
        let headers = [&self.headers.names, &self.headers.values];
        let headers: usize = headers
            .iter()
            .map(|each| each.bytes(pairs.start, pairs.len()))
            .sum();
        self.key.bytes(first, rows) + self.value.bytes(first, rows) + headers + rows * ROW_BYTES
    }
}

/// What a row has in the columns beside its bytes: topic, partition, offset, time, and three ends.
pub const ROW_BYTES: usize = 4 + 4 + 8 + 8 + 3 * 4;

/// Rows that are copied one by one for what it takes to hand one piece of a table to pyarrow.
const ROWS_A_PIECE: usize = 100;

/// Bytes of rows above which they are not copied into one table: its columns have ends of 32 bits.
const MOST_COPIED: usize = 1 << 30;

/// Rows of one table that follow one another.
#[derive(Clone)]
pub struct Segment {
    /// All that were decoded with them.
    pub table: Arc<Table>,
    /// Index in the table of the first one.
    pub first: usize,
    /// How many.
    pub rows: usize,
    /// The leader epoch that they were written in; -1 where it is unknown.
    pub epoch: i32,
}

impl Segment {
    /// Whether that one is the next rows of the same table: what was cut and joined again is no copy.
    fn goes_on_with(&self, behind: &Self) -> bool {
        Arc::ptr_eq(&self.table, &behind.table)
            && self.epoch == behind.epoch
            && self.first + self.rows == behind.first
    }

    /// The same rows, in a table of their own where theirs is mostly others'.
    pub fn apart(&self) -> Result<Self, ArrowError> {
        let all = self.table.bytes(0, self.table.data.len());
        if 2 * self.table.bytes(self.first, self.rows) >= all {
            return Ok(self.clone());
        }
        let mut columns = Columns::new(self.table.has_timestamp_types());
        self.copy_to(&mut columns);
        Ok(Self {
            table: Arc::new(columns.finish()?),
            first: 0,
            ..*self
        })
    }

    fn copy_to(&self, columns: &mut Columns) {
        for row in self.first..self.first + self.rows {
            columns.copy_row(&self.table, row);
        }
    }

    /// The columns of these rows alone.
    pub fn data(&self) -> ArrayData {
        self.table.data.slice(self.first, self.rows)
    }
}

/// Rows that follow one another, of one table or of several.
#[derive(Clone, Default)]
pub struct Rows {
    /// None is empty.
    pub segments: Vec<Segment>,
    /// Whether their columns have the timestamps' types.
    pub timestamp_types: bool,
    rows: usize,
}

impl Rows {
    /// All rows of that table, in an epoch that is not known.
    pub fn of(table: Table) -> Self {
        let rows = table.data.len();
        let mut found = Self {
            timestamp_types: table.has_timestamp_types(),
            ..Self::default()
        };
        found.push(Segment {
            table: Arc::new(table),
            first: 0,
            rows,
            epoch: -1,
        });
        found
    }

    fn none_of(&self) -> Self {
        Self {
            timestamp_types: self.timestamp_types,
            ..Self::default()
        }
    }

    fn push(&mut self, segment: Segment) {
        if segment.rows == 0 {
            return;
        }
        self.rows += segment.rows;
        match self.segments.last_mut() {
            Some(last) if last.goes_on_with(&segment) => last.rows += segment.rows,
            _ => self.segments.push(segment),
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Those from `first` on, so many at most; in that epoch, if one is given.
    pub fn cut(&self, first: usize, rows: usize, epoch: Option<i32>) -> Self {
        let (mut skip, mut left) = (first, rows);
        let mut found = self.none_of();
        for each in &self.segments {
            let passed = skip.min(each.rows);
            let taken = left.min(each.rows - passed);
            found.push(Segment {
                table: Arc::clone(&each.table),
                first: each.first + passed,
                rows: taken,
                epoch: epoch.unwrap_or(each.epoch),
            });
            skip -= passed;
            left -= taken;
            if left == 0 {
                break;
            }
        }
        found
    }

    /// These, and those behind them.
    pub fn extend(&mut self, behind: &Self) {
        for each in &behind.segments {
            self.push(each.clone());
        }
    }

    /// The same rows; those whose table is mostly others' in a table of their own.
    pub fn apart(&self) -> Result<Self, ArrowError> {
        let mut found = self.none_of();
        for each in &self.segments {
            found.push(each.apart()?);
        }
        Ok(found)
    }

    /// Whether they are so many short pieces that each row is best copied: a piece by itself costs what a hundred rows
    /// do, as a filter that drops every other record leaves them. Not where columns would pass their ends of 32 bits.
    pub fn in_crumbs(&self) -> bool {
        self.rows < ROWS_A_PIECE * self.segments.len() && self.bytes() < MOST_COPIED
    }

    /// The same rows, copied one by one into one table, in an epoch that is not known.
    pub fn copied(&self) -> Result<Self, ArrowError> {
        let mut columns = Columns::new(self.timestamp_types);
        for each in &self.segments {
            each.copy_to(&mut columns);
        }
        Ok(Self::of(columns.finish()?))
    }

    /// Each segment as rows of its own.
    pub fn pieces(&self) -> impl Iterator<Item = Self> {
        self.segments.iter().map(|each| {
            let mut found = self.none_of();
            found.push(each.clone());
            found
        })
    }

    /// All but those at these offsets.
    pub fn without(&self, offsets: &HashSet<i64>) -> Self {
        let mut found = self.none_of();
        for each in &self.segments {
            let mut first = each.first;
            for row in each.first..each.first + each.rows {
                if offsets.contains(&each.table.offset(row)) {
                    found.push(Segment {
                        first,
                        rows: row - first,
                        ..each.clone()
                    });
                    first = row + 1;
                }
            }
            let rows = each.first + each.rows - first;
            found.push(Segment {
                first,
                rows,
                ..each.clone()
            });
        }
        found
    }

    /// The segment and the table's row at an index below `len`.
    pub fn at(&self, index: usize) -> (&Segment, usize) {
        let mut left = index;
        for each in &self.segments {
            if left < each.rows {
                return (each, each.first + left);
            }
            left -= each.rows;
        }
        panic!("row {index} of {}", self.rows)
    }

    /// Each row: its table, its index there, and its segment's epoch.
    #[inline]
    pub fn each(&self) -> impl Iterator<Item = (&Arc<Table>, usize, i32)> {
        self.segments.iter().flat_map(|each| {
            (each.first..each.first + each.rows).map(move |row| (&each.table, row, each.epoch))
        })
    }

    /// Bytes of these rows in the columns.
    pub fn bytes(&self) -> usize {
        self.segments
            .iter()
            .map(|each| each.table.bytes(each.first, each.rows))
            .sum()
    }

    /// Bytes of all values.
    pub fn value_bytes(&self) -> usize {
        self.segments
            .iter()
            .map(|each| each.table.value.bytes(each.first, each.rows))
            .sum()
    }

    /// Offsets of the first and the last row; None where there are no rows.
    pub fn ends(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.segments.first()?, self.segments.last()?);
        Some((
            first.table.offset(first.first),
            last.table.offset(last.first + last.rows - 1),
        ))
    }
}
