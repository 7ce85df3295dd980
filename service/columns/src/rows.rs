//! Rows as somebody looks at them: cut, joined and read one by one, without a copy. Python's side is `python`.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use arrow_buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::ArrowError;

use crate::arrays::array_of;
use crate::buffers::Held;
use crate::columns::Columns;

/// A column of bytes or text.
pub struct Strings {
    /// One more than rows.
    pub ends: ScalarBuffer<i32>,
    /// All of them, one behind the other.
    pub data: Buffer,
    /// None: there are none.
    pub nulls: Option<NullBuffer>,
}

impl Strings {
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

/// The columns, finished.
pub struct Finished {
    /// Of each row, an index in `topics`.
    pub topic: ScalarBuffer<i32>,
    /// Their names.
    pub topics: Strings,
    /// Of each row.
    pub partition: ScalarBuffer<i32>,
    /// Of each row.
    pub offset: ScalarBuffer<i64>,
    /// Of each row, and whether there is one.
    pub timestamp: ScalarBuffer<i64>,
    /// None: each row has one.
    pub timed: Option<NullBuffer>,
    /// Of each row.
    pub key: Strings,
    /// Of each row.
    pub value: Strings,
    /// Of each row.
    pub headers: Headers,
    /// Whose clock the timestamps are of.
    pub stamps: Stamps,
    /// The same, row by row, where it is asked for as a column.
    pub kinds: Option<ScalarBuffer<i32>>,
}

/// Lists of names and values.
pub struct Headers {
    /// One more than rows.
    pub ends: ScalarBuffer<i32>,
    /// A row without headers is null.
    pub nulls: Option<NullBuffer>,
    /// Of all rows.
    pub names: Strings,
    /// Of all rows.
    pub values: Strings,
}

/// All rows of one response. Whoever has a row of it keeps all of them in memory.
pub struct Table {
    of: Finished,
    array: OnceLock<(ArrayData, Held)>,
    _held: Held,
}

/// What a table takes beside its rows, however few these are: itself, and a dozen buffers with their owners. A contract
/// test holds it against what the allocator says.
const TABLE_BYTES: usize = 3500;

/// What its array takes beside the buffers, which it shares.
const ARRAY_BYTES: usize = 4000;

impl Table {
    /// Of these columns.
    pub fn new(of: Finished) -> Self {
        Self {
            of,
            array: OnceLock::new(),
            _held: Held::new(TABLE_BYTES),
        }
    }

    fn rows(&self) -> usize {
        self.of.offset.len()
    }

    /// All rows as Arrow has them: made for who asks first, as most never do.
    fn array(&self) -> Result<&ArrayData, ArrowError> {
        if let Some((array, _)) = self.array.get() {
            return Ok(array);
        }
        let made = array_of(&self.of)?;
        let (array, _) = self.array.get_or_init(|| (made, Held::new(ARRAY_BYTES)));
        Ok(array)
    }

    fn has_timestamp_types(&self) -> bool {
        self.of.kinds.is_some()
    }

    /// Name of the topic; what is no text was none when it was placed.
    pub fn topic(&self, row: usize) -> &str {
        let name = self
            .of
            .topics
            .get(at(self.of.topic[row]))
            .unwrap_or_default();
        std::str::from_utf8(name).expect("a topic that is no text")
    }

    /// Number of the partition.
    pub fn partition(&self, row: usize) -> i32 {
        self.of.partition[row]
    }

    /// Place in the partition.
    #[inline]
    pub fn offset(&self, row: usize) -> i64 {
        self.of.offset[row]
    }

    /// Milliseconds since 1970, negative where the producer has set none, and whether the broker has set them.
    #[inline]
    pub fn timestamp(&self, row: usize) -> (i64, bool) {
        let behind = self.of.stamps.partition_point(|(first, _)| *first <= row);
        let stamped = behind > 0 && self.of.stamps[behind - 1].1;
        (self.of.timestamp[row], stamped)
    }

    /// The key.
    #[inline]
    pub fn key(&self, row: usize) -> Option<&[u8]> {
        self.of.key.get(row)
    }

    /// The value.
    #[inline]
    pub fn value(&self, row: usize) -> Option<&[u8]> {
        self.of.value.get(row)
    }

    /// Bytes of the value.
    #[inline]
    pub fn value_size(&self, row: usize) -> usize {
        self.of.value.size(row)
    }

    /// Names and values; None where the record has none.
    pub fn headers(&self, row: usize) -> Option<impl Iterator<Item = (&str, Option<&[u8]>)>> {
        let Headers {
            ends,
            nulls,
            names,
            values,
        } = &self.of.headers;
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

    /// Bytes of so many rows: keys, values, headers, what the other columns have beside them, and their share of what the
    /// table takes by itself.
    fn bytes(&self, first: usize, rows: usize) -> usize {
        let share = (TABLE_BYTES * rows).div_ceil(self.rows().max(1));
        let pairs = at(self.of.headers.ends[first])..at(self.of.headers.ends[first + rows]);
        let headers = [&self.of.headers.names, &self.of.headers.values];
        let headers: usize = headers
            .iter()
            .map(|each| each.bytes(pairs.start, pairs.len()))
            .sum();
        self.of.key.bytes(first, rows)
            + self.of.value.bytes(first, rows)
            + headers
            + rows * ROW_BYTES
            + share
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
    pub fn apart(&self) -> Self {
        let all = self.table.bytes(0, self.table.rows());
        if 2 * self.table.bytes(self.first, self.rows) >= all {
            return self.clone();
        }
        let mut columns = Columns::new(self.table.has_timestamp_types());
        self.copy_to(&mut columns);
        Self {
            table: Arc::new(columns.finish()),
            first: 0,
            ..*self
        }
    }

    fn copy_to(&self, columns: &mut Columns) {
        for row in self.first..self.first + self.rows {
            columns.copy_row(&self.table, row);
        }
    }

    /// The columns of these rows alone.
    pub fn data(&self) -> Result<ArrayData, ArrowError> {
        Ok(self.table.array()?.slice(self.first, self.rows))
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
        let rows = table.rows();
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
    pub fn apart(&self) -> Self {
        let mut found = self.none_of();
        for each in &self.segments {
            found.push(each.apart());
        }
        found
    }

    /// Whether they are so many short pieces that each row is best copied: a piece by itself costs what a hundred rows
    /// do, as a filter that drops every other record leaves them. Not where columns would pass their ends of 32 bits.
    pub fn in_crumbs(&self) -> bool {
        self.rows < ROWS_A_PIECE * self.segments.len() && self.bytes() < MOST_COPIED
    }

    /// The same rows, copied one by one into one table, in an epoch that is not known.
    pub fn copied(&self) -> Self {
        let mut columns = Columns::new(self.timestamp_types);
        for each in &self.segments {
            each.copy_to(&mut columns);
        }
        Self::of(columns.finish())
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
            .map(|each| each.table.of.value.bytes(each.first, each.rows))
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
