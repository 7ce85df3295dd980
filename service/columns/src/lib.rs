//! Kafka's Fetch responses, and JSON, to Arrow columns, without a Python object for each record.
//!
//! What each name promises is written in `kunicorn/columns/decoding.py`. The modules that read what a broker has sent
//! have no unsafe code, which the compiler sees to; `buffers` has three lines, to borrow a buffer and a type of Python's and
//! to lend columns to Arrow.

#![deny(unsafe_code)]

#[forbid(unsafe_code)]
mod arrays;
#[forbid(unsafe_code)]
mod batches;
#[allow(unsafe_code)]
mod buffers;
#[forbid(unsafe_code)]
mod codecs;
#[forbid(unsafe_code)]
mod columns;
#[forbid(unsafe_code)]
mod decoder;
#[forbid(unsafe_code)]
mod frames;
#[forbid(unsafe_code)]
mod json;
#[forbid(unsafe_code)]
mod json_columns;
mod python;
#[forbid(unsafe_code)]
mod reading;
#[forbid(unsafe_code)]
mod rows;

pub use python::kunicorn_columns;
