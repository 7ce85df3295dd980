//! The Fetch response as a frame (FetchResponse.json, versions 12 to 18): all but the record batches, which stay bytes.

use crate::reading::{Reader, Unreadable};

/// Version from which topics are named by their ids (KIP-516).
pub const FIRST_WITH_IDS: i64 = 13;
/// The first and the last version that are read.
pub const VERSIONS: std::ops::RangeInclusive<i64> = 12..=18;

const DIVERGING_EPOCH: u32 = 0;
const CURRENT_LEADER: u32 = 1;
const NODE_ENDPOINTS: u32 = 0;
const UUID_BYTES: i64 = 16;

/// High watermark, last stable offset and the log's start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Where what all replicas have ends.
    pub high: i64,
    /// Where what is decided about ends.
    pub last_stable: i64,
    /// Where the log begins.
    pub log_start: i64,
}

/// What a partition's part says about leaders; -1 where it says nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Leaders {
    /// The leader now (KIP-951).
    pub leader_id: i32,
    /// Its epoch.
    pub leader_epoch: i32,
    /// The last epoch that log and consumer share (KIP-595).
    pub diverging_epoch: i32,
    /// Where that ends.
    pub diverging_end: i64,
    /// The replica to fetch from instead (KIP-392).
    pub preferred_replica: i32,
}

/// Leaders of which nothing is said.
pub const NOTHING_SAID: Leaders = Leaders {
    leader_id: -1,
    leader_epoch: -1,
    diverging_epoch: -1,
    diverging_end: -1,
    preferred_replica: -1,
};

/// A transaction that was aborted.
#[derive(Clone, Copy)]
pub struct Aborted {
    /// Whose it was.
    pub producer_id: i64,
    /// Where it began.
    pub first_offset: i64,
}

/// One partition's part of a response, its records not looked at.
pub struct PartitionFrame<'a> {
    /// The topic's id from version 13 on, its name in version 12.
    pub topic: &'a [u8],
    /// Number of the partition.
    pub partition: i32,
    /// Kafka's error code.
    pub error: i16,
    /// See there.
    pub watermarks: Watermarks,
    /// See there.
    pub leaders: Leaders,
    /// Transactions aborted in what the records span.
    pub aborted: Vec<Aborted>,
    /// Record batches one after the other.
    pub records: &'a [u8],
}

/// A broker: number, host, port.
pub type Node = (i32, String, i32);

/// A whole response.
pub struct Frame<'a> {
    /// Milliseconds for which the broker has held it back.
    pub throttle_ms: i32,
    /// Kafka's error code for all of it.
    pub error: i16,
    /// The fetch session's number.
    pub session_id: i32,
    /// In the broker's order.
    pub partitions: Vec<PartitionFrame<'a>>,
    /// Brokers that partitions are now led by.
    pub nodes: Vec<Node>,
}

impl<'a> Frame<'a> {
    /// Read a response from behind its correlation id; bytes behind its end are passed over.
    pub fn read(body: &'a [u8], version: i64) -> Result<Self, Unreadable> {
        let reader = &mut Reader::new(body);
        reader.tags(|_, _| ())?;
        let (throttle_ms, error, session_id) = (reader.int32()?, reader.int16()?, reader.int32()?);
        let mut partitions = Vec::new();
        for _ in 0..reader.count()? {
            let topic = if version >= FIRST_WITH_IDS {
                reader.take(UUID_BYTES)?
            } else {
                reader.compact()?.unwrap_or_default()
            };
            for _ in 0..reader.count()? {
                partitions.push(partition(reader, topic)?);
            }
            reader.tags(|_, _| ())?;
        }
        let mut endpoints = None;
        reader.tags(|tag, field| {
            if tag == NODE_ENDPOINTS {
                endpoints = Some(field);
            }
        })?;
        let nodes = endpoints.map_or(Ok(Vec::new()), nodes)?;
        Ok(Self {
            throttle_ms,
            error,
            session_id,
            partitions,
            nodes,
        })
    }
}

fn partition<'a>(
    reader: &mut Reader<'a>,
    topic: &'a [u8],
) -> Result<PartitionFrame<'a>, Unreadable> {
    let (partition, error) = (reader.int32()?, reader.int16()?);
    let watermarks = Watermarks {
        high: reader.int64()?,
        last_stable: reader.int64()?,
        log_start: reader.int64()?,
    };
    let mut aborted = Vec::new();
    for _ in 0..reader.count()? {
        let (producer_id, first_offset) = (reader.int64()?, reader.int64()?);
        reader.tags(|_, _| ())?;
        aborted.push(Aborted {
            producer_id,
            first_offset,
        });
    }
    let preferred_replica = reader.int32()?;
    let records = reader.compact()?.unwrap_or_default();
    Ok(PartitionFrame {
        topic,
        partition,
        error,
        watermarks,
        leaders: leaders(reader, preferred_replica)?,
        aborted,
        records,
    })
}

/// What the partition's tagged fields say; what a later version adds to them is passed over.
fn leaders(reader: &mut Reader<'_>, preferred_replica: i32) -> Result<Leaders, Unreadable> {
    let (mut diverging, mut current) = (None, None);
    reader.tags(|tag, field| match tag {
        DIVERGING_EPOCH => diverging = Some(field),
        CURRENT_LEADER => current = Some(field),
        _ => (),
    })?;
    let mut said = Leaders {
        preferred_replica,
        ..NOTHING_SAID
    };
    if let Some(field) = diverging {
        let reader = &mut Reader::new(field);
        (said.diverging_epoch, said.diverging_end) = (reader.int32()?, reader.int64()?);
    }
    if let Some(field) = current {
        let reader = &mut Reader::new(field);
        (said.leader_id, said.leader_epoch) = (reader.int32()?, reader.int32()?);
    }
    Ok(said)
}

fn nodes(field: &[u8]) -> Result<Vec<Node>, Unreadable> {
    let reader = &mut Reader::new(field);
    let mut found = Vec::new();
    for _ in 0..reader.count()? {
        let number = reader.int32()?;
        let host = String::from_utf8_lossy(reader.compact()?.unwrap_or_default()).into_owned();
        let port = reader.int32()?;
        // The rack, which nobody asks for.
        reader.compact()?;
        reader.tags(|_, _| ())?;
        found.push((number, host, port));
    }
    Ok(found)
}
