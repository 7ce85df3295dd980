//! The bytes of a Python object. The one place with unsafe code, as Rust cannot know what Python's threads do.

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Hand the object's bytes to `read`, without a copy.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, read: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        // They never change.
        return Ok(read(bytes.as_bytes()));
    }
    let buffer = PyBuffer::<u8>::get(object)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("bytes with gaps between them"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(read(&[]));
    }
    // SAFETY: the pointer is not null, and `buffer` keeps the memory in its place until `read` has returned: while it is
    // exported, a bytearray refuses to be resized. Nobody writes into it meanwhile, which `Decoder.decode` demands of
    // its caller; a copy would cost as much as decoding.
    let bytes = unsafe { slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
    Ok(read(bytes))
}
