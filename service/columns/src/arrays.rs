//! A table's columns as an Arrow array, for whoever asks for one. docs/columns.md is their written contract.

use std::sync::{Arc, LazyLock};

use arrow_buffer::{ArrowNativeType, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, Fields, TimeUnit};

use crate::rows::{Finished, Headers, Strings};

// Made once: types of its own would take as much as all else of a small answer's array.
static HEADER: LazyLock<DataType> = LazyLock::new(|| {
    DataType::Struct(Fields::from(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ]))
});
static HEADERS: LazyLock<DataType> =
    LazyLock::new(|| DataType::List(Arc::new(Field::new("item", HEADER.clone(), false))));
static TIMESTAMP: LazyLock<DataType> =
    LazyLock::new(|| DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())));
static ROW: LazyLock<DataType> = LazyLock::new(|| DataType::Struct(Fields::from(fields())));
static STAMPED_ROW: LazyLock<DataType> = LazyLock::new(|| {
    let mut columns = fields();
    columns.push(Field::new("timestamp_type", DataType::Int32, false));
    DataType::Struct(Fields::from(columns))
});

fn fields() -> Vec<Field> {
    vec![
        Field::new("topic", topic_type(), false),
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("timestamp", TIMESTAMP.clone(), true),
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("headers", HEADERS.clone(), true),
    ]
}

fn topic_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The columns' names, types, and whether there may be nulls.
pub fn row_type(timestamp_types: bool) -> DataType {
    if timestamp_types {
        STAMPED_ROW.clone()
    } else {
        ROW.clone()
    }
}

/// The columns, as an array of structures. They are shared, not copied.
pub fn array_of(columns: &Finished) -> Result<ArrayData, ArrowError> {
    let rows = columns.offset.len();
    let topic = ArrayData::builder(topic_type())
        .len(rows)
        .add_buffer(columns.topic.inner().clone())
        .add_child_data(strings(&columns.topics, DataType::Utf8)?)
        .build()?;
    let timestamp = ArrayData::builder(TIMESTAMP.clone())
        .len(rows)
        .nulls(columns.timed.clone())
        .add_buffer(columns.timestamp.inner().clone())
        .build()?;
    let row = ArrayData::builder(row_type(columns.kinds.is_some()))
        .len(rows)
        .add_child_data(topic)
        .add_child_data(plain(DataType::Int32, &columns.partition)?)
        .add_child_data(plain(DataType::Int64, &columns.offset)?)
        .add_child_data(timestamp)
        .add_child_data(strings(&columns.key, DataType::Binary)?)
        .add_child_data(strings(&columns.value, DataType::Binary)?)
        .add_child_data(headers(&columns.headers)?);
    match &columns.kinds {
        Some(kinds) => row.add_child_data(plain(DataType::Int32, kinds)?).build(),
        None => row.build(),
    }
}

fn plain<T: ArrowNativeType>(
    data_type: DataType,
    of: &ScalarBuffer<T>,
) -> Result<ArrayData, ArrowError> {
    ArrayData::builder(data_type)
        .len(of.len())
        .add_buffer(of.inner().clone())
        .build()
}

fn strings(of: &Strings, data_type: DataType) -> Result<ArrayData, ArrowError> {
    ArrayData::builder(data_type)
        .len(of.ends.len() - 1)
        .nulls(of.nulls.clone())
        .add_buffer(of.ends.inner().clone())
        .add_buffer(of.data.clone())
        .build()
}

fn headers(of: &Headers) -> Result<ArrayData, ArrowError> {
    let pairs = ArrayData::builder(HEADER.clone())
        .len(of.names.ends.len() - 1)
        .add_child_data(strings(&of.names, DataType::Utf8)?)
        .add_child_data(strings(&of.values, DataType::Binary)?)
        .build()?;
    ArrayData::builder(HEADERS.clone())
        .len(of.ends.len() - 1)
        .nulls(of.nulls.clone())
        .add_buffer(of.ends.inner().clone())
        .add_child_data(pairs)
        .build()
}
