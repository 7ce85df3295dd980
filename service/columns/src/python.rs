//! What Python sees.

use std::collections::HashMap;

use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyString};

use crate::buffers::with_bytes;
use crate::decoder::{Decoded, MOST_UNPACKED};
use crate::frames::{Node, VERSIONS};
use crate::{decoder, frames};

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

/// Rows of a response, by Arrow's PyCapsule interface.
#[pyclass(frozen, module = "kunicorn_columns")]
struct Rows(ArrayData);

#[pymethods]
impl Rows {
    /// The schema and the array, as capsules; as often as it is asked for, without a copy of the rows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The interface lets a producer of one schema pass over what is asked for.
        drop(requested_schema);
        let schema = FFI_ArrowSchema::try_from(self.0.data_type()).map_err(bug)?;
        let array = FFI_ArrowArray::new(&self.0);
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }

    fn __len__(&self) -> usize {
        self.0.len()
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
    #[pyo3(signature = (*, read_committed, max_unpacked, timestamp_types = false))]
    fn new(read_committed: bool, max_unpacked: i64, timestamp_types: bool) -> PyResult<Self> {
        match usize::try_from(max_unpacked) {
            Ok(limit) if (1..=MOST_UNPACKED).contains(&max_unpacked) => {
                let decoder = decoder::Decoder::new(read_committed, limit, timestamp_types);
                Ok(Self(decoder))
            }
            _ => Err(PyValueError::new_err(format!(
                "max_unpacked = {max_unpacked}, where 1 to {MOST_UNPACKED} bytes are possible"
            ))),
        }
    }

    /// Begin at the offset, or go on there.
    fn place(&mut self, topic_id: &[u8], partition: i32, topic: &str, offset: i64) {
        self.0.place(topic_id, partition, topic, offset);
    }

    /// Pass over the partition from now on; nothing where it is not placed.
    fn forget(&mut self, topic_id: &[u8], partition: i32) {
        self.0.forget(topic_id, partition);
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
        rows: Py::new(py, Rows(decoded.rows.map_err(bug)?))?,
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
    module.add_class::<Response>()?;
    module.add_class::<Decoder>()
}
