//! Rows of Parquet and Arrow tables as JSON objects of the columns that are read, so that a table of examples is read as its rows written as
//! lines are.

use super::rows::Row;
use super::tables::{batches, damaged, guarded, texts_of};
use super::{Form, SourceFile};
use crate::error::{DataError, Result};
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, NullArray, RecordBatch};
use crossweave_files as files;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use std::path::Path;
use std::sync::Arc;

/// Takes a row, whose line is its number from 1. It says whether it wants another.
pub(crate) type EatRow<'a> = &'a mut dyn FnMut(Row) -> Result<bool>;

/// A value that has no JSON, in words.
type Json = std::result::Result<(), &'static str>;

/// The rows of a table that keeps types, of the columns among `names`.
///
/// # Errors
/// None of the columns; a damaged table; a value that JSON does not have.
pub(crate) fn table_rows(file: &SourceFile, names: &[&str], eat: EatRow<'_>) -> Result<()> {
    match file.form {
        Form::Parquet => parquet_rows(&file.path, names, eat),
        _ => arrow_rows(&file.path, names, eat),
    }
}

fn row(line: u64, text: String) -> Row {
    Row {
        line,
        indent: 0,
        bytes: text.into_bytes(),
    }
}

fn parquet_rows(path: &Path, names: &[&str], eat: EatRow<'_>) -> Result<()> {
    guarded(path, || {
        let (file, _) = files::open(path).map_err(DataError::io("open", path))?;
        let reader = SerializedFileReader::new(file).map_err(|e| damaged(path, &e))?;
        let schema = reader.metadata().file_metadata().schema();
        let read = |c: &&Arc<Type>| names.contains(&c.name());
        let columns: Vec<_> = schema.get_fields().iter().filter(read).cloned().collect();
        if columns.is_empty() {
            let all = schema.get_fields().iter().map(|c| c.name().to_string());
            return Err(no_columns(path, names, all.collect()));
        }
        let some = Type::group_type_builder(schema.name()).with_fields(columns);
        let some = some.build().map_err(|e| damaged(path, &e))?;
        let rows = reader
            .get_row_iter(Some(some))
            .map_err(|e| damaged(path, &e))?;
        for (one, number) in rows.zip(1..) {
            let one = one.map_err(|e| damaged(path, &e))?;
            let mut out = String::new();
            let columns = one
                .get_column_iter()
                .map(|(name, value)| (name.as_str(), value));
            object(&mut out, columns, of_field).map_err(|what| bad_row(path, number, what))?;
            if !eat(row(number, out))? {
                break;
            }
        }
        Ok(())
    })
}

fn arrow_rows(path: &Path, names: &[&str], eat: EatRow<'_>) -> Result<()> {
    guarded(path, || {
        let mut number = 0;
        for batch in batches(path)? {
            let batch: RecordBatch = batch.map_err(|e| damaged(path, &e))?;
            let schema = batch.schema();
            let named = schema.fields().iter().map(|f| f.name().as_str());
            let columns = named.zip(batch.columns());
            let columns: Vec<_> = columns.filter(|(n, _)| names.contains(n)).collect();
            if columns.is_empty() {
                let all = schema.fields().iter().map(|f| f.name().clone());
                return Err(no_columns(path, names, all.collect()));
            }
            for i in 0..batch.num_rows() {
                number += 1;
                let mut out = String::new();
                let each = columns.iter().map(|(name, column)| (*name, *column));
                object(&mut out, each, |out, column| of_cell(out, &**column, i))
                    .map_err(|what| bad_row(path, number, what))?;
                if !eat(row(number, out))? {
                    return Ok(());
                }
            }
        }
        Ok(())
    })
}

fn object<'a, T>(
    out: &mut String,
    members: impl Iterator<Item = (&'a str, T)>,
    mut value: impl FnMut(&mut String, T) -> Json,
) -> Json {
    out.push('{');
    for (i, (name, member)) in members.enumerate() {
        if i > 0 {
            out.push(',');
        }
        text(out, name)?;
        out.push(':');
        value(out, member)?;
    }
    out.push('}');
    Ok(())
}

fn array<T>(
    out: &mut String,
    elements: impl Iterator<Item = T>,
    mut value: impl FnMut(&mut String, T) -> Json,
) -> Json {
    out.push('[');
    for (i, element) in elements.enumerate() {
        if i > 0 {
            out.push(',');
        }
        value(out, element)?;
    }
    out.push(']');
    Ok(())
}

fn text(out: &mut String, text: &str) -> Json {
    out.push_str(&serde_json::to_string(text).map_err(|_| "a text that has no JSON")?);
    Ok(())
}

fn number(out: &mut String, x: f64) -> Json {
    match serde_json::Number::from_f64(x) {
        Some(n) => out.push_str(&n.to_string()),
        None => return Err("a number that is not finite"),
    }
    Ok(())
}

fn whole(out: &mut String, n: impl std::fmt::Display) -> Json {
    out.push_str(&n.to_string());
    Ok(())
}

fn of_field(out: &mut String, field: &Field) -> Json {
    match field {
        Field::Null => whole(out, "null"),
        Field::Bool(b) => whole(out, b),
        Field::Byte(n) => whole(out, n),
        Field::Short(n) => whole(out, n),
        Field::Int(n) => whole(out, n),
        Field::Long(n) => whole(out, n),
        Field::UByte(n) => whole(out, n),
        Field::UShort(n) => whole(out, n),
        Field::UInt(n) => whole(out, n),
        Field::ULong(n) => whole(out, n),
        Field::Float(x) => number(out, f64::from(*x)),
        Field::Double(x) => number(out, *x),
        Field::Str(s) => text(out, s),
        Field::Bytes(b) => text(
            out,
            std::str::from_utf8(b.data()).map_err(|_| "bytes that are not UTF-8")?,
        ),
        Field::Group(row) => {
            let members = row
                .get_column_iter()
                .map(|(name, value)| (name.as_str(), value));
            object(out, members, of_field)
        }
        Field::ListInternal(list) => array(out, list.elements().iter(), of_field),
        Field::MapInternal(map) => {
            let all: Vec<_> = map
                .entries()
                .iter()
                .map(|(k, v)| match k {
                    Field::Str(name) => Ok((name.as_str(), v)),
                    _ => Err("a map whose keys are no strings"),
                })
                .collect::<std::result::Result<_, _>>()?;
            object(out, all.into_iter(), of_field)
        }
        _ => Err("a date, a time or a decimal number"),
    }
}

/// The whole number at a place of a column of such numbers.
fn whole_at(column: &dyn Array, i: usize) -> Option<i128> {
    macro_rules! of {
        ($($kind:ty)*) => {$(
            if let Some(c) = column.as_primitive_opt::<$kind>() {
                return Some(i128::from(c.value(i)));
            }
        )*};
    }
    of!(Int8Type Int16Type Int32Type Int64Type UInt8Type UInt16Type UInt32Type UInt64Type);
    None
}

fn of_cell(out: &mut String, column: &dyn Array, i: usize) -> Json {
    if column.is_null(i) || column.as_any().is::<NullArray>() {
        return whole(out, "null");
    }
    if let Some(d) = column.as_any_dictionary_opt() {
        let at = whole_at(d.keys(), i).and_then(|n| usize::try_from(n).ok());
        let at = at.filter(|at| *at < d.values().len());
        return of_cell(
            out,
            &**d.values(),
            at.ok_or("a place beyond its dictionary")?,
        );
    }
    if let Some(read) = texts_of(column) {
        return text(out, read(i).ok_or("bytes that are not UTF-8")?);
    }
    if let Some(c) = column.as_boolean_opt() {
        return whole(out, c.value(i));
    }
    if let Some(n) = whole_at(column, i) {
        return whole(out, n);
    }
    if let Some(c) = column.as_primitive_opt::<Float32Type>() {
        return number(out, f64::from(c.value(i)));
    }
    if let Some(c) = column.as_primitive_opt::<Float64Type>() {
        return number(out, c.value(i));
    }
    if let Some(c) = column.as_struct_opt() {
        let members = c
            .fields()
            .iter()
            .map(|f| f.name().as_str())
            .zip(c.columns());
        return object(out, members, |out, column| of_cell(out, &**column, i));
    }
    if let Some(c) = column.as_map_opt() {
        let entries = c.value(i);
        let names = texts_of(&**entries.column(0)).ok_or("a map whose keys are no strings")?;
        let all: Vec<&str> = (0..entries.len())
            .map(&names)
            .collect::<Option<_>>()
            .ok_or("bytes that are not UTF-8")?;
        let values = entries.column(1);
        return object(out, all.into_iter().zip(0..), |out, at| {
            of_cell(out, &**values, at)
        });
    }
    let list = column.as_list_opt::<i32>().map(|c| c.value(i));
    let list = list.or_else(|| column.as_list_opt::<i64>().map(|c| c.value(i)));
    let list = list.or_else(|| column.as_fixed_size_list_opt().map(|c| c.value(i)));
    match list {
        Some(list) => array(out, 0..list.len(), |out, at| of_cell(out, &*list, at)),
        None => Err("a date, a time or another value that JSON does not have"),
    }
}

fn no_columns(path: &Path, names: &[&str], all: Vec<String>) -> DataError {
    let shown = |n: &str| format!("{:?}", crossweave_files::clip(n, 40));
    let all: Vec<_> = all.iter().map(|n| shown(n)).take(20).collect();
    let names: Vec<_> = names.iter().map(|n| shown(n)).collect();
    DataError::Table {
        path: path.into(),
        reason: format!(
            "has none of the columns {}, but {}",
            names.join(", "),
            all.join(", ")
        ),
    }
}

fn bad_row(path: &Path, number: u64, what: &str) -> DataError {
    DataError::Table {
        path: path.into(),
        reason: format!("row {number} holds {what}"),
    }
}
