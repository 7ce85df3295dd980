//! Kafka's Fetch responses to Arrow columns, without a Python object for each record.
//!
//! What each name promises is written in `kunicorn/columns/decoding.py`. The modules that read what a broker has sent
//! have no unsafe code, which the compiler sees to; `buffers` has two lines, to borrow a buffer of Python's and to lend
//! columns to Arrow.

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
mod python;
#[forbid(unsafe_code)]
mod reading;
#[forbid(unsafe_code)]
mod rows;

pub use python::kunicorn_columns;
