//! Positions, aborted transactions and cuts: what of a response becomes rows. The same rules in plain Python, which tests
//! hold against these, are `kunicorn/columns/reference.py`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::batches::{Batch, Damage, NoBatch};
use crate::codecs::Unpacker;
use crate::columns::Columns;
use crate::frames::{Aborted, FIRST_WITH_IDS, Frame, Leaders, NOTHING_SAID, PartitionFrame};
use crate::frames::{Node, Watermarks};
use crate::reading::Unreadable;
use crate::rows::Table;

/// Largest limit in bytes: a response's columns hold less than twice that, and their offsets have 32 bits.
pub const MOST_UNPACKED: i64 = (1 << 30) - 1;

/// A topic that has places.
pub struct Topic {
    /// What tells it apart.
    pub id: Vec<u8>,
    /// Its name.
    pub name: Arc<str>,
}

/// Where a partition is read, and what was last heard of it.
struct Place {
    topic: Arc<Topic>,
    offset: i64,
    watermarks: Option<Watermarks>,
}

/// What a response says about one partition.
pub struct Part {
    /// As placed.
    pub topic: Arc<Topic>,
    /// Number of the partition.
    pub partition: i32,
    /// Kafka's error code.
    pub error: i16,
    /// See there.
    pub watermarks: Watermarks,
    /// See there.
    pub leaders: Leaders,
    /// Index of its first row.
    pub first_row: usize,
    /// Number of its rows.
    pub rows: usize,
    /// Offset to fetch next.
    pub next_offset: i64,
    /// Bytes of its rows' keys, values and headers.
    pub bytes: usize,
    /// Leader epoch of the last batch read.
    pub last_epoch: i32,
    /// What is wrong at the next offset.
    pub damage: Option<Damage>,
    /// Whether the first batch is cut short.
    pub incomplete: bool,
}

impl Part {
    fn new(frame: &PartitionFrame<'_>, place: &Place, first_row: usize) -> Self {
        Self {
            topic: Arc::clone(&place.topic),
            partition: frame.partition,
            error: frame.error,
            watermarks: frame.watermarks,
            leaders: frame.leaders,
            first_row,
            rows: 0,
            next_offset: place.offset,
            bytes: 0,
            last_epoch: -1,
            damage: None,
            incomplete: false,
        }
    }

    /// Whether the caller has to hear of it, watermarks apart.
    fn is_news(&self, offset: i64) -> bool {
        let read = self.rows > 0 || self.next_offset != offset;
        let wrong = self.error != 0 || self.damage.is_some() || self.incomplete;
        read || wrong || self.leaders != NOTHING_SAID
    }
}

/// One response, decoded.
pub struct Decoded {
    /// Milliseconds for which the broker has held it back.
    pub throttle_ms: i32,
    /// Kafka's error code for all of it.
    pub error: i16,
    /// The fetch session's number.
    pub session_id: i32,
    /// Partitions of which there is news.
    pub parts: Vec<Part>,
    /// Brokers.
    pub nodes: Vec<Node>,
    /// Rows of all parts.
    pub rows: Table,
    /// What goes on in the same body; 0 where all was decoded.
    pub more: usize,
}

/// Knows the next offset of each partition.
pub struct Decoder {
    read_committed: bool,
    limit: usize,
    cut_at: usize,
    timestamp_types: bool,
    places: HashMap<Vec<u8>, HashMap<i32, Place>>,
    ids: HashMap<Arc<str>, Arc<Topic>>,
    unpacker: Unpacker,
}

impl Decoder {
    /// Without places. `limit`: bytes that a batch may come to, at most `MOST_UNPACKED`. `cut_at`: bytes of batches
    /// that a call ends behind, at most `limit`.
    pub fn new(read_committed: bool, limit: usize, cut_at: usize, timestamp_types: bool) -> Self {
        Self {
            read_committed,
            limit,
            cut_at: cut_at.min(limit),
            timestamp_types,
            places: HashMap::new(),
            ids: HashMap::new(),
            unpacker: Unpacker::new(limit),
        }
    }

    /// Begin at the offset, or go on there.
    pub fn place(&mut self, topic_id: &[u8], partition: i32, name: &str, offset: i64) {
        let topic = match self.ids.get(name) {
            Some(known) if known.id == topic_id => Arc::clone(known),
            _ => Arc::new(Topic {
                id: topic_id.to_vec(),
                name: name.into(),
            }),
        };
        self.ids.insert(Arc::clone(&topic.name), Arc::clone(&topic));
        let place = Place {
            topic,
            offset,
            watermarks: None,
        };
        let partitions = self.places.entry(topic_id.to_vec()).or_default();
        partitions.insert(partition, place);
    }

    /// Pass over the partition from now on.
    pub fn forget(&mut self, topic_id: &[u8], partition: i32) {
        let Some(partitions) = self.places.get_mut(topic_id) else {
            return;
        };
        let gone = partitions.remove(&partition);
        if partitions.is_empty() {
            self.places.remove(topic_id);
            // The name may be a topic's by now that was created anew, and has places.
            if let Some(Place { topic, .. }) = gone
                && self
                    .ids
                    .get(&topic.name)
                    .is_some_and(|known| known.id == topic_id)
            {
                self.ids.remove(&topic.name);
            }
        }
    }

    /// Decode a response from behind its correlation id; `first` is an answer's `more`, or 0. Nothing moves where the
    /// frame cannot be read.
    pub fn decode(
        &mut self,
        body: &[u8],
        version: i64,
        first: usize,
    ) -> Result<Decoded, Unreadable> {
        let frame = Frame::read(body, version)?;
        let mut call = Call {
            read_committed: self.read_committed,
            limit: self.limit,
            cut_at: self.cut_at,
            unpacker: &mut self.unpacker,
            columns: Columns::new(self.timestamp_types),
            parts: Vec::new(),
            unpacked: 0,
        };
        let mut more = 0;
        // One more than an index, so that 0 is left to say that nothing is left.
        for (each, number) in frame.partitions.iter().zip(1..) {
            if number < first {
                continue;
            }
            let named = || self.ids.get(&*String::from_utf8_lossy(each.topic));
            let topic_id = if version >= FIRST_WITH_IDS {
                Some(each.topic)
            } else {
                named().map(|topic| topic.id.as_slice())
            };
            let partitions = topic_id.and_then(|id| self.places.get_mut(id));
            let Some(place) = partitions.and_then(|found| found.get_mut(&each.partition)) else {
                continue;
            };
            if call.take(each, place) {
                more = number;
                break;
            }
        }
        let (parts, columns) = (call.parts, call.columns);
        self.unpacker.keep_at_most(self.cut_at);
        Ok(Decoded {
            throttle_ms: frame.throttle_ms,
            error: frame.error,
            session_id: frame.session_id,
            parts,
            nodes: frame.nodes,
            rows: columns.finish(),
            more,
        })
    }
}

/// What one call has taken out of a response so far.
struct Call<'d> {
    read_committed: bool,
    limit: usize,
    cut_at: usize,
    unpacker: &'d mut Unpacker,
    columns: Columns,
    parts: Vec<Part>,
    unpacked: usize,
}

impl Call<'_> {
    /// Take one partition's rows and news; whether the call is cut before the partition's end.
    fn take(&mut self, frame: &PartitionFrame<'_>, place: &mut Place) -> bool {
        let mut part = Part::new(frame, place, self.columns.rows());
        let before = self.columns.bytes();
        let full = frame.error == 0 && self.read(frame, &mut part);
        part.rows = self.columns.rows() - part.first_row;
        part.bytes = self.columns.bytes() - before;
        self.columns.name_rows(&part.topic.name, part.partition);
        let offset = std::mem::replace(&mut place.offset, part.next_offset);
        let told = frame.error == 0 && place.watermarks != Some(frame.watermarks);
        if told {
            place.watermarks = Some(frame.watermarks);
        }
        if told || part.is_news(offset) {
            self.parts.push(part);
        }
        full
    }

    /// Read its batches into the rows; whether the call is cut before their end.
    fn read(&mut self, frame: &PartitionFrame<'_>, part: &mut Part) -> bool {
        let mut aborted = AbortedProducers::new(&frame.aborted);
        let mut rest = frame.records;
        while !rest.is_empty() {
            match self.read_batch(rest, part, &mut aborted) {
                Ok(Some(behind)) => rest = behind,
                Ok(None) => return true,
                Err(NoBatch::CutShort) => {
                    part.incomplete = rest.len() == frame.records.len();
                    return false;
                }
                Err(NoBatch::Damaged(damage)) => {
                    part.damage = Some(damage);
                    return false;
                }
            }
        }
        false
    }

    /// Read one batch, and say what is behind it; None where the call is cut before it.
    fn read_batch<'r>(
        &mut self,
        records: &'r [u8],
        part: &mut Part,
        aborted: &mut AbortedProducers,
    ) -> Result<Option<&'r [u8]>, NoBatch> {
        let (batch, behind) = Batch::read(records)?;
        let some = self.columns.rows() > part.first_row;
        if some && batch.leader_epoch != part.last_epoch {
            return Ok(None);
        }
        if self.is_wanted(&batch, aborted)? && batch.last_offset >= part.next_offset {
            if self.unpacked >= self.cut_at {
                return Ok(None);
            }
            let unpacked = unpack(self.unpacker, &batch, self.limit)?;
            batch.add_rows(unpacked, part.next_offset, &mut self.columns)?;
            self.unpacked += unpacked.len();
        }
        part.next_offset = part.next_offset.max(batch.last_offset + 1);
        part.last_epoch = batch.leader_epoch;
        Ok(Some(behind))
    }

    /// Whether its records count: neither markers, nor aborted where that is minded.
    fn is_wanted(
        &mut self,
        batch: &Batch<'_>,
        aborted: &mut AbortedProducers,
    ) -> Result<bool, Damage> {
        if self.read_committed && batch.producer_id >= 0 {
            aborted.begin(batch.last_offset);
            if batch.is_control() && batch.is_transactional() {
                let unpacked = unpack(self.unpacker, batch, self.limit)?;
                if batch.aborts(unpacked)? {
                    aborted.end(batch.producer_id);
                }
            }
            if batch.is_transactional() && aborted.producers.contains(&batch.producer_id) {
                return Ok(false);
            }
        }
        Ok(!batch.is_control())
    }
}

fn unpack<'a>(
    unpacker: &'a mut Unpacker,
    batch: &Batch<'a>,
    limit: usize,
) -> Result<&'a [u8], Damage> {
    let unpacked = unpacker.unpack(batch.codec(), batch.packed);
    unpacked.map_err(|reason| Damage::Packed(reason, limit))
}

/// Which producers' records are of an aborted transaction, as the batches go by (`CompletedFetch.java`).
struct AbortedProducers {
    producers: HashSet<i64>,
    to_come: Vec<Aborted>,
}

impl AbortedProducers {
    fn new(transactions: &[Aborted]) -> Self {
        let mut to_come = transactions.to_vec();
        // The first one last, where it is taken away.
        to_come.sort_by_key(|each| std::cmp::Reverse(each.first_offset));
        Self {
            producers: HashSet::new(),
            to_come,
        }
    }

    /// Go on to a batch's last offset: what begins up to there has begun.
    fn begin(&mut self, last_offset: i64) {
        while let Some(each) = self.to_come.pop_if(|each| each.first_offset <= last_offset) {
            self.producers.insert(each.producer_id);
        }
    }

    /// The producer's marker has come: what it sends next is of another transaction.
    fn end(&mut self, producer_id: i64) {
        self.producers.remove(&producer_id);
    }
}
