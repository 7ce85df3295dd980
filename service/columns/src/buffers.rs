//! The bytes and the type of a Python object, and the bytes of columns, which are counted as long as anybody has them.
//! The one place with unsafe code: Rust cannot know what Python's threads do, what a capsule holds, nor that Arrow reads a
//! buffer no longer than it keeps its owner.

use std::mem::size_of;
use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_schema::DataType;
use arrow_schema::ffi::FFI_ArrowSchema;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

/// Hand the object's bytes to `read`, without a copy.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, read: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        // They never change.
        return Ok(read(bytes.as_bytes()));
    }
    let buffer = PyUntypedBuffer::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("bytes with gaps between them"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: the pointer is not null, and `buffer` keeps the memory in its place until `read` has returned: while it is
    // exported, a bytearray refuses to be resized. Nobody writes into it meanwhile, which `Decoder.decode` and
    // `JsonReader.read` demand of their caller; a copy would cost as much as decoding.
    let bytes = unsafe { slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    Ok(read(bytes))
}

/// The type that an object of pyarrow's is, or has; None where Arrow for Rust knows no such type.
pub fn type_of(object: &Bound<'_, PyAny>) -> PyResult<Option<DataType>> {
    let capsule = object.call_method0("__arrow_c_schema__")?;
    let schema = capsule
        .cast::<PyCapsule>()?
        .pointer_checked(Some(c"arrow_schema"))?;
    // SAFETY: a capsule of that name has such a schema, which lives as long as the capsule does.
    let schema = unsafe { schema.cast::<FFI_ArrowSchema>().as_ref() };
    Ok(DataType::try_from(schema).ok())
}

/// An eighth of a column may be spare.
const MOST_SPARE: usize = 8;

/// Bytes of columns that are alive in this process.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes of columns that somebody has: the decoder's caller, a handler, or pyarrow on behalf of either.
pub fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// So many bytes, which count as held for as long as this is there.
pub struct Held(usize);

impl Held {
    /// Count them.
    pub fn new(bytes: usize) -> Self {
        HELD.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A column's memory, which counts.
struct Counted<T> {
    of: Vec<T>,
    _held: Held,
}

/// What columns without a byte share.
static EMPTY: LazyLock<Buffer> = LazyLock::new(Buffer::default);

/// The vector as a buffer, without a copy. It counts as held until the last slice of it is gone.
pub fn counted<T: ArrowNativeType + RefUnwindSafe>(mut of: Vec<T>) -> Buffer {
    if of.is_empty() {
        return EMPTY.clone();
    }
    // It has grown by doubling: what is spare would be kept, and count, as long as the rows do.
    if of.capacity() - of.len() > of.len() / MOST_SPARE {
        of.shrink_to_fit();
    }
    let length = of.len() * size_of::<T>();
    let held = Held::new(of.capacity() * size_of::<T>());
    let owner = Arc::new(Counted { of, _held: held });
    let start = NonNull::from(owner.of.as_slice()).cast::<u8>();
    // SAFETY: the vector's memory begins at `start` and has `length` bytes that are written. It neither moves nor changes:
    // the buffer keeps its owner, and nobody else has that.
    unsafe { Buffer::from_custom_allocation(start, length, owner) }
}
