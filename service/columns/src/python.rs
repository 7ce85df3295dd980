//! What Python sees.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::DataType;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::create_exception;
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBytes, PyCapsule, PyDict, PyIterator, PyList, PyRange, PySequence, PySlice, PyString,
};

use crate::arrays::row_type;
use crate::buffers::{type_of, with_bytes};
use crate::decoder::{Decoded, MOST_UNPACKED};
use crate::frames::{Node, VERSIONS};
use crate::json_columns::Documents;
use crate::{buffers, decoder, frames, json_columns, rows};

create_exception!(
    kunicorn_columns,
    MalformedResponse,
    PyValueError,
    "Frame that cannot be read, so nothing in it is believed."
);

/// What a response says about one partition.
#[pyclass(frozen, get_all, module = "kunicorn_columns")]
struct Part {
    topic_id: Py<PyBytes>,
    topic: Py<PyString>,
    partition: i32,
    error: i16,
    high_watermark: i64,
    last_stable_offset: i64,
    log_start: i64,
    leader_id: i32,
    leader_epoch: i32,
    diverging_epoch: i32,
    diverging_end: i64,
    preferred_replica: i32,
    first_row: usize,
    rows: usize,
    next_offset: i64,
    bytes: usize,
    last_epoch: i32,
    damage: String,
    damage_offset: i64,
    incomplete: bool,
}

impl Part {
    fn new(part: decoder::Part, topic_id: Py<PyBytes>, topic: Py<PyString>) -> Self {
        let frames::Leaders {
            leader_id,
            leader_epoch,
            diverging_epoch,
            diverging_end,
            preferred_replica,
        } = part.leaders;
        Self {
            topic_id,
            topic,
            partition: part.partition,
            error: part.error,
            high_watermark: part.watermarks.high,
            last_stable_offset: part.watermarks.last_stable,
            log_start: part.watermarks.log_start,
            leader_id,
            leader_epoch,
            diverging_epoch,
            diverging_end,
            preferred_replica,
            first_row: part.first_row,
            rows: part.rows,
            next_offset: part.next_offset,
            bytes: part.bytes,
            last_epoch: part.last_epoch,
            damage_offset: part.damage.map_or(-1, |_| part.next_offset),
            damage: part
                .damage
                .map_or_else(String::new, |damage| damage.to_string()),
            incomplete: part.incomplete,
        }
    }
}

/// Rows that follow one another: a sequence of messages, and columns. None is copied when they are cut or joined.
#[pyclass(frozen, sequence, module = "kunicorn_columns")]
struct Rows(rows::Rows);

impl Rows {
    fn listed<'py, T>(
        &self,
        py: Python<'py>,
        of: impl Fn(&Arc<rows::Table>, usize, i32) -> T,
    ) -> PyResult<Bound<'py, PyList>>
    where
        T: IntoPyObject<'py>,
    {
        // Their number is said ahead, which the iterator over several tables cannot.
        let mut each = self.0.each();
        let known = (0..self.0.len()).map(|_| {
            let (table, row, epoch) = each.next().expect("fewer rows than were counted");
            of(table, row, epoch)
        });
        PyList::new(py, known)
    }
}

#[pymethods]
impl Rows {
    /// The schema and the array, as capsules; as often as it is asked for, without a copy of the rows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        // The interface lets a producer of one schema pass over what is asked for.
        drop(requested_schema);
        let array = match self.0.segments.as_slice() {
            [] => ArrayData::new_empty(&row_type(self.0.timestamp_types)),
            [one] => py.detach(|| one.data()).map_err(bug)?,
            _ => {
                return Err(PyValueError::new_err(
                    "rows of several answers: take `batch`",
                ));
            }
        };
        capsules(py, &array)
    }

    /// The columns as a `pyarrow.RecordBatch`; only rows of several answers are copied. Imports pyarrow.
    #[getter]
    fn batch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let pyarrow = py.import("pyarrow")?;
        let batch_of = |rows: rows::Rows| pyarrow.call_method1("record_batch", (Rows(rows),));
        if self.0.segments.len() < 2 {
            return batch_of(self.0.clone());
        }
        if self.0.in_crumbs() {
            return batch_of(py.detach(|| self.0.copied()));
        }
        let parts = self.0.pieces().map(batch_of);
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let pool = PyDict::new(py);
        pool.set_item("memory_pool", pool_of_copies(py)?)?;
        pyarrow.call_method("concat_batches", (parts,), Some(&pool))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(&self, index: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let length = isize::try_from(self.0.len())?;
        if let Ok(slice) = index.cast::<PySlice>() {
            let cut = slice.indices(length)?;
            if cut.step != 1 {
                return Err(PyValueError::new_err("rows are cut into consecutive ones"));
            }
            // Python has brought both into the rows' bounds.
            let first = usize::try_from(cut.start)?;
            let found = self.0.cut(first, cut.slicelength, None);
            return Ok(Bound::new(py, Rows(found))?.into_any());
        }
        let index: isize = index.extract()?;
        let index = if index < 0 { index + length } else { index };
        match usize::try_from(index) {
            Ok(index) if index < self.0.len() => {
                let (segment, row) = self.0.at(index);
                let (table, epoch) = (Arc::clone(&segment.table), segment.epoch);
                Ok(Bound::new(py, Message { table, row, epoch })?.into_any())
            }
            _ => Err(PyIndexError::new_err("rows index out of range")),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.messages(py)?.try_iter()
    }

    /// So many rows from an index on, written in that leader epoch.
    fn cut(&self, first: usize, rows: usize, epoch: i32) -> Self {
        Self(self.0.cut(first, rows, Some(epoch)))
    }

    /// These, and behind them those of the others.
    fn joined(&self, others: Vec<PyRef<'_, Rows>>) -> Self {
        let mut found = self.0.clone();
        for each in others {
            found.extend(&each.0);
        }
        Self(found)
    }

    /// The rows but those at these offsets.
    fn without(&self, offsets: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut passed = HashSet::new();
        for each in offsets.try_iter()? {
            passed.insert(each?.extract()?);
        }
        Ok(Self(self.0.without(&passed)))
    }

    /// The same rows, which keep no others in memory.
    fn apart(&self) -> Self {
        Self(self.0.apart())
    }

    /// One for each row, which reads what it is asked for.
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let message = |table: &Arc<rows::Table>, row, epoch| Message {
            table: Arc::clone(table),
            row,
            epoch,
        };
        self.listed(py, message)
    }

    /// All values.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.listed(py, |table, row, _| {
            table.value(row).map(|value| PyBytes::new(py, value))
        })
    }

    /// All keys.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.listed(py, |table, row, _| {
            table.key(row).map(|key| PyBytes::new(py, key))
        })
    }

    /// All offsets, ascending; a range where there are no gaps.
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some((first, last)) = self.0.ends() {
            let rows = i64::try_from(self.0.len())?;
            if last - first != rows - 1 {
                return Ok(self
                    .listed(py, |table, row, _| table.offset(row))?
                    .into_any());
            }
            return Ok(
                PyRange::new(py, isize::try_from(first)?, isize::try_from(last + 1)?)?.into_any(),
            );
        }
        Ok(PyRange::new(py, 0, 0)?.into_any())
    }

    /// Offsets of the first and of the last row, of which there is one.
    fn ends(&self) -> PyResult<(i64, i64)> {
        self.0
            .ends()
            .ok_or_else(|| PyIndexError::new_err("no rows"))
    }

    /// Milliseconds since 1970; None where the producer has set none.
    fn timestamps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.listed(py, |table, row, _| {
            Some(table.timestamp(row).0).filter(|time| *time >= 0)
        })
    }

    /// Bytes of each value.
    fn value_sizes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.listed(py, |table, row, _| table.value_size(row))
    }

    /// Bytes of all values.
    fn value_bytes(&self) -> usize {
        self.0.value_bytes()
    }

    /// Bytes of these rows in the columns, with their share of what their tables take.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }
}

/// Reads columns of JSON documents to structs.
#[pyclass(frozen, module = "kunicorn_columns")]
struct JsonReader(DataType);

#[pymethods]
impl JsonReader {
    /// Of that type of pyarrow's; None where documents are not read to it here.
    #[staticmethod]
    fn of(kind: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let kind = type_of(kind)?.filter(json_columns::is_read);
        Ok(kind.map(Self))
    }

    /// A struct for each document; None where one of them is to be read by who says what is wrong with it.
    fn read(
        &self,
        valid: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        text: &Bound<'_, PyAny>,
        first: usize,
        rows: usize,
    ) -> PyResult<Option<Structs>> {
        let py = text.py();
        let found = with_bytes(valid, |valid| {
            with_bytes(offsets, |offsets| {
                with_bytes(text, |text| {
                    let documents = Documents {
                        text,
                        offsets,
                        valid,
                        first,
                        rows,
                    };
                    py.detach(|| json_columns::read(&documents, &self.0))
                })
            })
        })???;
        found
            .transpose()
            .map_err(bug)
            .map(|found| found.map(Structs))
    }
}

/// What was read, once.
#[pyclass(frozen, module = "kunicorn_columns")]
struct Structs(ArrayData);

#[pymethods]
impl Structs {
    /// The schema and the array, as capsules.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        drop(requested_schema);
        capsules(py, &self.0)
    }
}

type Capsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

fn capsules<'py>(py: Python<'py>, array: &ArrayData) -> PyResult<Capsules<'py>> {
    let schema = FFI_ArrowSchema::try_from(array.data_type()).map_err(bug)?;
    Ok((
        PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
        PyCapsule::new_with_value(py, FFI_ArrowArray::new(array), c"arrow_array")?,
    ))
}

/// One row: what `confluent_kafka.Message` is asked for, read when it is asked for.
#[pyclass(frozen, module = "kunicorn_columns")]
struct Message {
    table: Arc<rows::Table>,
    row: usize,
    epoch: i32,
}

/// `TIMESTAMP_CREATE_TIME` and `TIMESTAMP_LOG_APPEND_TIME` of confluent-kafka.
const BY_PRODUCER: i32 = 1;
const BY_BROKER: i32 = 2;

#[pymethods]
impl Message {
    fn topic<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::intern(py, self.table.topic(self.row))
    }

    fn partition(&self) -> i32 {
        self.table.partition(self.row)
    }

    fn offset(&self) -> i64 {
        self.table.offset(self.row)
    }

    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.table.key(self.row).map(|key| PyBytes::new(py, key))
    }

    fn value<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.table
            .value(self.row)
            .map(|value| PyBytes::new(py, value))
    }

    /// Its kind, and milliseconds since 1970; negative where the producer has set none.
    fn timestamp(&self) -> (i32, i64) {
        let (time, by_broker) = self.table.timestamp(self.row);
        (if by_broker { BY_BROKER } else { BY_PRODUCER }, time)
    }

    /// Names and values; None where there are none.
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(headers) = self.table.headers(self.row) else {
            return Ok(None);
        };
        let found = PyList::empty(py);
        for (name, value) in headers {
            found.append((name, value.map(|value| PyBytes::new(py, value))))?;
        }
        Ok(Some(found))
    }

    fn leader_epoch(&self) -> Option<i32> {
        (self.epoch >= 0).then_some(self.epoch)
    }

    /// None: a row is no error.
    fn error(&self) -> Option<i32> {
        None
    }

    /// Bytes of the value.
    fn __len__(&self) -> usize {
        self.table.value_size(self.row)
    }

    fn __repr__(&self) -> String {
        // The value stays out: messages end up in logs.
        let table = &self.table;
        let (topic, partition) = (table.topic(self.row), table.partition(self.row));
        format!("<Message {topic}-{partition}@{}>", table.offset(self.row))
    }
}

/// One Fetch response, decoded.
#[pyclass(frozen, get_all, module = "kunicorn_columns")]
struct Response {
    throttle_ms: i32,
    error: i16,
    session_id: i32,
    partitions: Py<PyAny>,
    nodes: Vec<Node>,
    rows: Py<Rows>,
    more: usize,
}

/// Makes columns of one consumer's Fetch responses, and knows the next offset of each partition.
#[pyclass(module = "kunicorn_columns")]
struct Decoder(decoder::Decoder);

#[pymethods]
impl Decoder {
    #[new]
    #[pyo3(signature = (*, read_committed, max_unpacked, cut_at = MOST_UNPACKED, timestamp_types = false))]
    fn new(
        read_committed: bool,
        max_unpacked: i64,
        cut_at: i64,
        timestamp_types: bool,
    ) -> PyResult<Self> {
        let limit = limit_of("max_unpacked", max_unpacked)?;
        let cut_at = limit_of("cut_at", cut_at)?;
        let decoder = decoder::Decoder::new(read_committed, limit, cut_at, timestamp_types);
        Ok(Self(decoder))
    }

    /// Begin at the offset, or go on there.
    fn place(&mut self, topic_id: &[u8], partition: i32, topic: &str, offset: i64) {
        self.0.place(topic_id, partition, topic, offset);
    }

    /// Pass over the partition from now on; nothing where it is not placed.
    fn forget(&mut self, topic_id: &[u8], partition: i32) {
        self.0.forget(topic_id, partition);
    }

    /// Bytes of columns that are alive in this process, whoever decoded them, with the copies that `Rows.batch` made.
    #[staticmethod]
    fn held(py: Python<'_>) -> PyResult<usize> {
        let copied = match POOL.get(py) {
            None => 0,
            Some(pool) => pool
                .bind(py)
                .call_method0("bytes_allocated")?
                .extract::<usize>()?,
        };
        Ok(buffers::held() + copied)
    }

    /// Decode a response, from behind its frame's correlation id, and move the positions on.
    #[pyo3(signature = (body, version, first = 0))]
    fn decode(
        &mut self,
        py: Python<'_>,
        body: &Bound<'_, PyAny>,
        version: i64,
        first: usize,
    ) -> PyResult<Response> {
        if !VERSIONS.contains(&version) {
            let (oldest, newest) = VERSIONS.into_inner();
            return Err(PyValueError::new_err(format!(
                "Fetch v{version} is not read here, only v{oldest} to v{newest}"
            )));
        }
        let decoder = &mut self.0;
        let decoded = with_bytes(body, |bytes| {
            py.detach(|| decoder.decode(bytes, version, first))
        })?;
        match decoded {
            Ok(decoded) => response(py, decoded),
            Err(reason) => Err(MalformedResponse::new_err(format!(
                "the answer to Fetch v{version} cannot be read: {reason}"
            ))),
        }
    }
}

/// A number of bytes that the columns' offsets reach.
fn limit_of(name: &str, bytes: i64) -> PyResult<usize> {
    match usize::try_from(bytes) {
        Ok(limit) if (1..=MOST_UNPACKED).contains(&bytes) => Ok(limit),
        _ => Err(PyValueError::new_err(format!(
            "{name} = {bytes}, where 1 to {MOST_UNPACKED} bytes are possible"
        ))),
    }
}

/// pyarrow's, for copies of rows of several answers: it says how much of them is alive.
static POOL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn pool_of_copies<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let pool = POOL.get_or_try_init(py, || {
        let pyarrow = py.import("pyarrow")?;
        let whole = pyarrow.call_method0("default_memory_pool")?;
        pyarrow
            .call_method1("proxy_memory_pool", (whole,))
            .map(Bound::unbind)
    })?;
    Ok(pool.bind(py).clone())
}

fn response(py: Python<'_>, decoded: Decoded) -> PyResult<Response> {
    // One string a topic, as partitions of the same one follow one another.
    let mut names: HashMap<*const decoder::Topic, (Py<PyBytes>, Py<PyString>)> = HashMap::new();
    let mut partitions = Vec::with_capacity(decoded.parts.len());
    for part in decoded.parts {
        let (id, name) = names
            .entry(std::sync::Arc::as_ptr(&part.topic))
            .or_insert_with(|| {
                let id = PyBytes::new(py, &part.topic.id);
                let name = PyString::new(py, &part.topic.name);
                (id.unbind(), name.unbind())
            });
        let (id, name) = (id.clone_ref(py), name.clone_ref(py));
        partitions.push(Part::new(part, id, name));
    }
    Ok(Response {
        throttle_ms: decoded.throttle_ms,
        error: decoded.error,
        session_id: decoded.session_id,
        partitions: partitions.into_pyobject(py)?.unbind(),
        nodes: decoded.nodes,
        rows: Py::new(py, Rows(rows::Rows::of(decoded.rows)))?,
        more: decoded.more,
    })
}

/// Arrow refuses columns that were made here, which no response brings about.
fn bug(error: arrow_schema::ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Kafka's Fetch responses to Arrow columns, compiled.
#[pymodule]
pub fn kunicorn_columns(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add(
        "MalformedResponse",
        module.py().get_type::<MalformedResponse>(),
    )?;
    module.add_class::<Part>()?;
    module.add_class::<Rows>()?;
    PySequence::register::<Rows>(module.py())?;
    module.add_class::<Message>()?;
    module.add_class::<Response>()?;
    module.add_class::<Decoder>()?;
    module.add_class::<JsonReader>()
}
