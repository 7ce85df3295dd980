//! Columns as they grow, row by row.
//!
//! Offsets have 32 bits: the caller adds less than 2 GiB (`MOST_UNPACKED`), and no column takes more bytes than its
//! rows had in their batches.

use std::collections::HashMap;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, LazyLock};

use arrow_buffer::{ArrowNativeType, NullBufferBuilder, ScalarBuffer};

use crate::batches::Record;
use crate::buffers::counted;
use crate::reading::Unreadable;
use crate::rows::{self, Stamps, Table};

/// In place of a header's name that is not UTF-8, as `Record.headers` has it.
const NO_TEXT: &[u8] = "\u{fffd}".as_bytes();

/// Ends of a column without rows, which such columns share.
static NO_ENDS: LazyLock<ScalarBuffer<i32>> = LazyLock::new(|| vec![0].into());

/// Binary or text, of varying length.
struct Strings {
    ends: Vec<i32>,
    data: Vec<u8>,
    valid: NullBufferBuilder,
}

/// Lengths of a `Strings` to go back to.
#[derive(Clone, Copy)]
struct StringsMark {
    rows: usize,
    bytes: usize,
}

impl Strings {
    fn new() -> Self {
        Self {
            ends: vec![0],
            data: Vec::new(),
            valid: NullBufferBuilder::new(0),
        }
    }

    #[inline]
    fn push(&mut self, value: Option<&[u8]>) {
        match value {
            Some(bytes) => {
                self.data.extend_from_slice(bytes);
                self.valid.append_non_null();
            }
            None => self.valid.append_null(),
        }
        self.ends.push(end(self.data.len()));
    }

    fn mark(&self) -> StringsMark {
        StringsMark {
            rows: self.valid.len(),
            bytes: self.data.len(),
        }
    }

    fn truncate(&mut self, mark: StringsMark) {
        self.ends.truncate(mark.rows + 1);
        self.data.truncate(mark.bytes);
        self.valid.truncate(mark.rows);
    }

    fn finish(self) -> rows::Strings {
        let none = self.ends.len() == 1;
        rows::Strings {
            nulls: self.valid.build(),
            ends: if none {
                NO_ENDS.clone()
            } else {
                plain(self.ends)
            },
            data: counted(self.data),
        }
    }
}

/// Lists of headers. As long as no row has any, nothing is kept but the number of rows.
struct Headers {
    rows: usize,
    ends: Vec<i32>,
    valid: NullBufferBuilder,
    names: Strings,
    values: Strings,
}

impl Headers {
    fn new() -> Self {
        Self {
            rows: 0,
            ends: Vec::new(),
            valid: NullBufferBuilder::new(0),
            names: Strings::new(),
            values: Strings::new(),
        }
    }

    #[inline]
    fn push_none(&mut self) {
        self.rows += 1;
        if !self.ends.is_empty() {
            self.ends.push(end(self.names.valid.len()));
            self.valid.append_null();
        }
    }

    fn push(&mut self, number: i32, record: &mut Record<'_>) -> Result<(), Unreadable> {
        self.begin();
        for _ in 0..number {
            let (name, value) = record.header()?;
            let text = std::str::from_utf8(name).map_or(NO_TEXT, str::as_bytes);
            self.names.push(Some(text));
            self.values.push(value);
        }
        self.rows += 1;
        self.ends.push(end(self.names.valid.len()));
        self.valid.append_non_null();
        Ok(())
    }

    fn push_all<'h>(&mut self, pairs: impl Iterator<Item = (&'h str, Option<&'h [u8]>)>) {
        self.begin();
        for (name, value) in pairs {
            self.names.push(Some(name.as_bytes()));
            self.values.push(value);
        }
        self.rows += 1;
        self.ends.push(end(self.names.valid.len()));
        self.valid.append_non_null();
    }

    /// Keep lists from now on, and none for each row before.
    fn begin(&mut self) {
        if self.ends.is_empty() {
            self.ends.resize(self.rows + 1, 0);
            self.valid.append_n_nulls(self.rows);
        }
    }

    fn truncate(&mut self, mark: &Mark) {
        self.rows = mark.rows;
        self.names.truncate(mark.names);
        self.values.truncate(mark.values);
        if !self.ends.is_empty() {
            self.ends.truncate(mark.rows + 1);
            self.valid.truncate(mark.rows);
        }
    }

    fn finish(mut self) -> rows::Headers {
        self.begin();
        rows::Headers {
            ends: plain(self.ends),
            nulls: self.valid.build(),
            names: self.names.finish(),
            values: self.values.finish(),
        }
    }
}

/// Lengths of the columns to go back to.
pub struct Mark {
    rows: usize,
    keys: StringsMark,
    payloads: StringsMark,
    names: StringsMark,
    values: StringsMark,
}

/// All columns of a response.
pub struct Columns {
    names: Vec<Arc<str>>,
    indices: HashMap<Arc<str>, i32>,
    topic: Vec<i32>,
    partition: Vec<i32>,
    offset: Vec<i64>,
    timestamp: Vec<i64>,
    timed: NullBufferBuilder,
    key: Strings,
    value: Strings,
    headers: Headers,
    stamps: Stamps,
    /// Whether each row says whose clock its timestamp is of.
    timestamp_types: bool,
}

impl Columns {
    /// Without rows; with the timestamps' types where they are asked for.
    pub fn new(timestamp_types: bool) -> Self {
        Self {
            names: Vec::new(),
            indices: HashMap::new(),
            topic: Vec::new(),
            partition: Vec::new(),
            offset: Vec::new(),
            timestamp: Vec::new(),
            timed: NullBufferBuilder::new(0),
            key: Strings::new(),
            value: Strings::new(),
            headers: Headers::new(),
            stamps: Vec::new(),
            timestamp_types,
        }
    }

    /// Say whether the broker has set the times of the rows that are added from now on.
    pub fn stamp(&mut self, by_broker: bool) {
        let rows = self.rows();
        while self.stamps.pop_if(|(first, _)| *first >= rows).is_some() {}
        if self.stamps.last().is_some_and(|(_, last)| *last) != by_broker {
            self.stamps.push((rows, by_broker));
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.offset.len()
    }

    /// Bytes of keys, values, and headers.
    pub fn bytes(&self) -> usize {
        let headers = self.headers.names.data.len() + self.headers.values.data.len();
        self.key.data.len() + self.value.data.len() + headers
    }

    /// Add a record.
    #[inline]
    pub fn add_row(
        &mut self,
        offset: i64,
        timestamp: i64,
        record: &mut Record<'_>,
    ) -> Result<(), Unreadable> {
        self.offset.push(offset);
        self.timestamp.push(timestamp);
        self.timed.append(timestamp >= 0);
        self.key.push(record.nullable()?);
        self.value.push(record.nullable()?);
        match record.headers()? {
            0 => self.headers.push_none(),
            number => self.headers.push(number, record)?,
        }
        Ok(())
    }

    /// Add a row of a table, which is of that table's partition.
    pub fn copy_row(&mut self, from: &Table, row: usize) {
        let (timestamp, by_broker) = from.timestamp(row);
        self.stamp(by_broker);
        self.offset.push(from.offset(row));
        self.timestamp.push(timestamp);
        self.timed.append(timestamp >= 0);
        self.key.push(from.key(row));
        self.value.push(from.value(row));
        match from.headers(row) {
            Some(pairs) => self.headers.push_all(pairs),
            None => self.headers.push_none(),
        }
        self.name_rows(&Arc::from(from.topic(row)), from.partition(row));
    }

    /// Say of the rows that were added since the last call which partition they are of.
    pub fn name_rows(&mut self, topic: &Arc<str>, partition: i32) {
        if self.rows() == self.topic.len() {
            return;
        }
        let index = match self.indices.get(topic) {
            Some(index) => *index,
            None => {
                let index = end(self.names.len());
                self.names.push(Arc::clone(topic));
                self.indices.insert(Arc::clone(topic), index);
                index
            }
        };
        self.topic.resize(self.offset.len(), index);
        self.partition.resize(self.offset.len(), partition);
    }

    /// Where the columns end now.
    pub fn mark(&self) -> Mark {
        Mark {
            rows: self.rows(),
            keys: self.key.mark(),
            payloads: self.value.mark(),
            names: self.headers.names.mark(),
            values: self.headers.values.mark(),
        }
    }

    /// Take away what was added since, whole rows or not.
    pub fn truncate(&mut self, mark: Mark) {
        self.offset.truncate(mark.rows);
        self.timestamp.truncate(mark.rows);
        self.timed.truncate(mark.rows);
        self.key.truncate(mark.keys);
        self.value.truncate(mark.payloads);
        self.headers.truncate(&mark);
    }

    /// The columns, to be looked at.
    pub fn finish(self) -> Table {
        let kinds = self
            .timestamp_types
            .then(|| kinds(&self.stamps, self.rows()));
        let mut topics = Strings::new();
        for name in &self.names {
            topics.push(Some(name.as_bytes()));
        }
        Table::new(rows::Finished {
            topic: plain(self.topic),
            topics: topics.finish(),
            partition: plain(self.partition),
            offset: plain(self.offset),
            timestamp: plain(self.timestamp),
            timed: self.timed.build(),
            key: self.key.finish(),
            value: self.value.finish(),
            headers: self.headers.finish(),
            stamps: self.stamps,
            kinds: kinds.map(plain),
        })
    }
}

/// Kafka's types of the timestamps, row by row (`TimestampType.java`). The last stamp may be of a batch that was taken
/// away again.
fn kinds(stamps: &Stamps, rows: usize) -> Vec<i32> {
    let mut kinds = Vec::with_capacity(rows);
    let mut by_broker = false;
    for (first, next) in stamps {
        kinds.resize(rows.min(*first), i32::from(by_broker));
        by_broker = *next;
    }
    kinds.resize(rows, i32::from(by_broker));
    kinds
}

fn plain<T: ArrowNativeType + RefUnwindSafe>(of: Vec<T>) -> ScalarBuffer<T> {
    counted(of).into()
}

/// An end in a column, as 32 bits. Less than 2 GiB are added, as the module says.
#[inline]
fn end(length: usize) -> i32 {
    i32::try_from(length).expect("a column of 2 GiB")
}
