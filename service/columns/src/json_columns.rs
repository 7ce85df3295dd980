//! Documents of JSON to a column of structs, as pyarrow's reader makes it of them. What that reader refuses, and what not
//! every reader takes alike, is not read here: a field that is there twice, a number that does not fit, and a type that
//! is written as a text.

use std::collections::HashSet;

use arrow_buffer::{ArrowNativeType, BooleanBufferBuilder, Buffer, NullBufferBuilder};
use arrow_data::ArrayData;
use arrow_schema::DataType::{
    Boolean, Float32, Float64, Int8, Int16, Int32, LargeUtf8, List, Struct, UInt8, UInt16, UInt32,
    Utf8,
};
use arrow_schema::{ArrowError, DataType, Fields};

use crate::json::{Scanner, Shapes, Text};

/// Structs, lists and structs in lists that are within one another in a type.
const DEEPEST: usize = 32;

/// Bytes of documents that are looked at before the first of them is read: what stays in the processor's cache, and
/// what it costs at most that none of them is read here.
const TOGETHER: usize = 32 << 10;

/// Whether documents are read to the type.
pub fn is_read(kind: &DataType) -> bool {
    matches!(kind, DataType::Struct(_)) && Column::of(kind, 0, 0).is_some()
}

/// Where documents stand in a text, by the buffers of Arrow's `large_binary`.
pub struct Documents<'a> {
    /// All of them, and what else there is.
    pub text: &'a [u8],
    /// Eight bytes each: where one begins, and where the last one ends.
    pub offsets: &'a [u8],
    /// A bit each, which is set where one is there; empty where all are.
    pub valid: &'a [u8],
    /// Index of the first.
    pub first: usize,
    /// How many there are.
    pub rows: usize,
}

impl Documents<'_> {
    /// Where the document begins, or behind the last one, where that ends. None where the buffers say nothing of it.
    fn at(&self, row: usize) -> Option<usize> {
        let (each, _) = self.offsets.as_chunks();
        let offset = each.get(self.first.checked_add(row)?)?;
        usize::try_from(i64::from_le_bytes(*offset)).ok()
    }

    fn is_there(&self, row: usize) -> Option<bool> {
        let index = self.first.checked_add(row)?;
        Some(self.valid.is_empty() || self.valid.get(index / 8)? >> (index % 8) & 1 == 1)
    }
}

/// A struct for each document, null for `null` and where there is none. None where one of them is not read here.
pub fn read(documents: &Documents, kind: &DataType) -> Option<Result<ArrayData, ArrowError>> {
    // Room for more rows than there are could not be had.
    documents.at(documents.rows)?;
    let mut column = Column::of(kind, documents.rows, 0)?;
    let mut row = 0;
    while row < documents.rows {
        let start = documents.at(row)?;
        let first = row;
        while row < documents.rows && documents.at(row)?.saturating_sub(start) < TOGETHER {
            row += 1;
        }
        let end = documents.at(row)?.checked_sub(start)?;
        let text = Text::of(documents.text.get(start..)?, end)?;
        for each in first..row {
            if !documents.is_there(each)? {
                column.append_null();
                continue;
            }
            let mut scanner = Scanner::new(&text, documents.at(each)?.checked_sub(start)?);
            column.append(&mut scanner)?;
            if !scanner.ends_at(documents.at(each + 1)?.checked_sub(start)?) {
                return None;
            }
        }
    }
    Some(column.finish())
}

/// A column that grows, and what is below it.
struct Column {
    /// Of each row whether it is there: they say how many there are.
    nulls: NullBufferBuilder,
    rows: usize,
    kind: DataType,
    values: Values,
}

/// Numbers in the widest of their kind, and offsets in 64 bits, are made narrow at the end: by then all of them fit.
// A byte of its own says which it is: without that it is worked out from a capacity, for each value.
#[repr(u8)]
enum Values {
    Bool(BooleanBufferBuilder),
    Integer(Vec<u64>),
    Float(Vec<f64>),
    Text {
        ends: Vec<usize>,
        data: Vec<u8>,
    },
    List {
        ends: Vec<usize>,
        items: Box<Column>,
    },
    Struct {
        columns: Vec<Column>,
        shapes: Shapes,
    },
}

impl Column {
    /// Without rows. None where the type is not read here.
    fn of(kind: &DataType, rows: usize, depth: usize) -> Option<Self> {
        if depth > DEEPEST {
            return None;
        }
        let values = match kind {
            Boolean => Values::Bool(BooleanBufferBuilder::new(rows)),
            Float32 | Float64 => Values::Float(Vec::with_capacity(rows)),
            Utf8 | LargeUtf8 => Values::Text {
                ends: vec![0],
                data: Vec::new(),
            },
            List(item) => Values::List {
                ends: vec![0],
                items: Box::new(Self::of(item.data_type(), 0, depth + 1)?),
            },
            Struct(fields) => {
                let names: HashSet<_> = fields.iter().map(|field| field.name()).collect();
                if names.len() < fields.len() {
                    return None;
                }
                let columns = fields
                    .iter()
                    .map(|field| Self::of(field.data_type(), rows, depth + 1));
                Values::Struct {
                    columns: columns.collect::<Option<_>>()?,
                    shapes: Shapes::new(),
                }
            }
            _ if kind.is_integer() => Values::Integer(Vec::with_capacity(rows)),
            _ => return None,
        };
        Some(Self {
            nulls: NullBufferBuilder::new(rows),
            rows: 0,
            kind: kind.clone(),
            values,
        })
    }

    fn append_null(&mut self) {
        self.nulls.append_null();
        self.rows += 1;
        match &mut self.values {
            Values::Bool(of) => of.append(false),
            Values::Integer(of) => of.push(0),
            Values::Float(of) => of.push(0.0),
            Values::Text { ends, data } => ends.push(data.len()),
            Values::List { ends, items } => ends.push(items.rows),
            Values::Struct { columns, .. } => columns.iter_mut().for_each(Self::append_null),
        }
    }

    /// The value that comes next. None where it is not read here: then the column is of no use any more.
    #[inline(always)]
    fn append(&mut self, from: &mut Scanner) -> Option<()> {
        if from.peek()? == b'n' {
            from.word(b"null")?;
            self.append_null();
            return Some(());
        }
        match &mut self.values {
            Values::Bool(of) => {
                let found = from.peek()? == b't';
                from.word(if found { b"true" } else { b"false" })?;
                of.append(found);
            }
            Values::Integer(of) => of.push(integer(from.integer()?, &self.kind)?),
            Values::Float(of) => of.push(float(from.number()?, &self.kind)?),
            Values::Text { ends, data } => {
                from.string()?.push_to(data)?;
                ends.push(reached(data.len(), &self.kind)?);
            }
            Values::List { .. } | Values::Struct { .. } => *from = self.append_nested(*from)?,
        }
        self.nulls.append_non_null();
        self.rows += 1;
        Some(())
    }

    /// Of a list or a struct; it stands behind that. Where a scanner stands is told in registers: in memory each value
    /// would wait for what was written by the one before.
    #[inline(never)]
    fn append_nested<'a>(&mut self, mut from: Scanner<'a>) -> Option<Scanner<'a>> {
        match &mut self.values {
            Values::List { ends, items } => {
                from.expect(b'[')?;
                let mut more = !from.closes(b']')?;
                while more {
                    items.append(&mut from)?;
                    more = from.goes_on(b']')?;
                }
                ends.push(reached(items.rows, &self.kind)?);
            }
            Values::Struct { columns, shapes } => {
                append_fields(columns, shapes, &self.kind, self.rows, &mut from)?;
            }
            _ => return None,
        }
        Some(from)
    }

    fn finish(mut self) -> Result<ArrayData, ArrowError> {
        let array = ArrayData::builder(self.kind.clone())
            .len(self.rows)
            .nulls(self.nulls.finish());
        let wide = matches!(self.kind, LargeUtf8);
        let array = match self.values {
            Values::Bool(mut of) => array.add_buffer(of.finish().into_inner()),
            Values::Integer(of) => array.add_buffer(match self.kind {
                Int8 | UInt8 => narrowed(&of, |each| each as u8),
                Int16 | UInt16 => narrowed(&of, |each| each as u16),
                Int32 | UInt32 => narrowed(&of, |each| each as u32),
                _ => Buffer::from_vec(of),
            }),
            Values::Float(of) => array.add_buffer(match self.kind {
                Float32 => narrowed(&of, |each| each as f32),
                _ => Buffer::from_vec(of),
            }),
            Values::Text { ends, data } => array
                .add_buffer(if wide {
                    narrowed(&ends, |end| end as i64)
                } else {
                    narrowed(&ends, |end| end as i32)
                })
                .add_buffer(Buffer::from_vec(data)),
            Values::List { ends, items } => array
                .add_buffer(narrowed(&ends, |end| end as i32))
                .add_child_data(items.finish()?),
            Values::Struct { columns, .. } => {
                let columns = columns.into_iter().map(Self::finish);
                array.child_data(columns.collect::<Result<_, _>>()?)
            }
        };
        array.build()
    }
}

/// The fields of an object in whatever order; a missing one is null. `row`: of the object, and so of its fields.
#[inline(always)]
fn append_fields(
    columns: &mut [Column],
    shapes: &mut Shapes,
    kind: &DataType,
    row: usize,
    from: &mut Scanner,
) -> Option<()> {
    let Struct(fields) = kind else { return None };
    let mut place = Shapes::START;
    let mut last = None;
    let mut found = 0;
    loop {
        let (wanted, behind) = match shapes.follow(place, from) {
            Some(found) => found,
            None => {
                let before = *from;
                let wanted = next_wanted(fields, last, from)?;
                let behind = shapes.learn(place, before, from, wanted, row);
                (wanted, behind)
            }
        };
        let Some(at) = wanted else { break };
        let column = &mut columns[at];
        // It is there twice.
        if column.rows > row {
            return None;
        }
        column.append(from)?;
        (place, last) = (behind, wanted);
        found += 1;
    }
    if found < columns.len() {
        for each in columns.iter_mut().filter(|each| each.rows == row) {
            each.append_null();
        }
    }
    Some(())
}

/// Pass over what is before the value of the next field that is wanted, or before the end of the object and that. `last`:
/// the field before, and none where it stands before the object.
#[cold]
fn next_wanted(fields: &Fields, last: Option<usize>, from: &mut Scanner) -> Option<Option<usize>> {
    let mut more = if last.is_none() {
        from.expect(b'{')?;
        !from.closes(b'}')?
    } else {
        from.goes_on(b'}')?
    };
    // Whoever writes objects has an order: behind a field mostly comes the one that is wanted next.
    let next = last.map_or(0, |last| last + 1);
    while more {
        let name = from.name()?;
        let is = |at: &usize| *name == *fields[*at].name().as_bytes();
        if let Some(at) = (next..fields.len()).find(is).or_else(|| (0..next).find(is)) {
            return Some(Some(at));
        }
        from.skip()?;
        more = from.goes_on(b'}')?;
    }
    Some(None)
}

/// The number in 64 bits, where it is one of the type's.
#[inline(always)]
fn integer((negative, found): (bool, u64), kind: &DataType) -> Option<u64> {
    let spare = 64 - 8 * kind.primitive_width()?;
    if kind.is_unsigned_integer() {
        return (!negative && found << spare >> spare == found).then_some(found);
    }
    let found = if negative {
        0_i64.checked_sub_unsigned(found)?
    } else {
        i64::try_from(found).ok()?
    };
    (found << spare >> spare == found).then_some(found as u64)
}

/// The nearest number of the type, where that is one.
fn float(written: &str, kind: &DataType) -> Option<f64> {
    let found: f64 = written.parse().ok()?;
    let is_one = if *kind == Float32 {
        (found as f32).is_finite()
    } else {
        found.is_finite()
    };
    is_one.then_some(found)
}

/// The end of a row, where the type's offsets reach it.
fn reached(end: usize, kind: &DataType) -> Option<usize> {
    (i32::try_from(end).is_ok() || *kind == LargeUtf8).then_some(end)
}

fn narrowed<T: Copy, N: ArrowNativeType>(of: &[T], each: impl Fn(T) -> N) -> Buffer {
    Buffer::from_vec(of.iter().copied().map(each).collect::<Vec<N>>())
}
