//! Documents of Parquet and Arrow tables: one row, one document, out of one column of strings.

use super::Column;
use crate::error::{DataError, Result};
use crate::guard;
use crate::spec::Rows;
use arrow_array::cast::AsArray;
use arrow_array::{Array, NullArray, RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use crossweave_files as files;
use parquet::basic::{ConvertedType, Type as Physical};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;
use std::io::{BufReader, Read, Seek};
use std::path::Path;
use std::sync::Arc;

/// Takes each document of a column, in order, and each null that is left out.
type Eat<'a> = &'a mut dyn FnMut(Option<&str>) -> Result<()>;

/// Reads a Parquet file.
pub(crate) fn parquet(path: &Path, from: Column<'_>, eat: Eat<'_>) -> Result<()> {
    guarded(path, || {
        let (file, _) = files::open(path).map_err(DataError::io("open", path))?;
        let reader = SerializedFileReader::new(file).map_err(|e| damaged(path, &e))?;
        let schema = reader.metadata().file_metadata().schema();
        let (columns, field) = (schema.get_fields(), from.name);
        let Some((column, within)) = found(columns, field) else {
            let names = columns.iter().map(|c| c.name().to_string());
            return Err(no_column(path, field, names.collect()));
        };
        let leaf = within.iter().try_fold(column, |at, name| {
            let inner = if at.is_primitive() {
                &[]
            } else {
                at.get_fields()
            };
            inner.iter().find(|c| c.name() == *name)
        });
        let Some(leaf) = leaf else {
            return Err(not_text(path, field, kind_of(column)));
        };
        if !leaf.is_primitive() || leaf.get_physical_type() != Physical::BYTE_ARRAY {
            return Err(not_text(path, field, kind_of(leaf)));
        }
        let one = Type::group_type_builder(schema.name()).with_fields(vec![Arc::clone(column)]);
        let one = one.build().map_err(|e| damaged(path, &e))?;
        let rows = reader
            .get_row_iter(Some(one))
            .map_err(|e| damaged(path, &e))?;
        for (number, row) in rows.enumerate() {
            let row = row.map_err(|e| damaged(path, &e))?;
            let whole = row.get_column_iter().next().map(|(_, value)| value);
            let value = within.iter().fold(whole, |at, name| member(at?, name));
            match value {
                Some(Field::Str(text)) => eat(Some(text))?,
                Some(Field::Bytes(bytes)) => match std::str::from_utf8(bytes.data()) {
                    Ok(text) => eat(Some(text))?,
                    Err(_) => return Err(bad_row(path, field, number, "is not UTF-8")),
                },
                _ if from.skip_null => eat(None)?,
                _ => return Err(bad_row(path, field, number, "has no value")),
            }
        }
        Ok(())
    })
}

/// The column of a name, or that of its first part with the names of the fields within it.
fn found<'a, 'n>(columns: &'a [Arc<Type>], name: &'n str) -> Option<(&'a Arc<Type>, Vec<&'n str>)> {
    let of = |name: &str| columns.iter().find(|c| c.name() == name);
    let within = || {
        let (first, rest) = name.split_once('.')?;
        Some((of(first)?, rest.split('.').collect()))
    };
    of(name).map(|c| (c, vec![])).or_else(within)
}

/// A member of a group; null of null.
fn member<'a>(of: &'a Field, name: &str) -> Option<&'a Field> {
    match of {
        Field::Group(row) => row
            .get_column_iter()
            .find(|(n, _)| *n == name)
            .map(|(_, f)| f),
        _ => None,
    }
}

/// Reads an Arrow file, or a stream as Hugging Face datasets writes it.
pub(crate) fn arrow(path: &Path, from: Column<'_>, eat: Eat<'_>) -> Result<()> {
    guarded(path, || {
        let mut number = 0;
        for batch in batches(path)? {
            let batch = batch.map_err(|e| damaged(path, &e))?;
            rows(path, from, &batch, &mut number, eat)?;
        }
        Ok(())
    })
}

/// The record batches of an Arrow file or stream.
pub(super) fn batches(path: &Path) -> Result<Box<dyn RecordBatchReader>> {
    let (file, _) = files::open(path).map_err(DataError::io("open", path))?;
    let mut file = BufReader::new(file);
    let mut magic = [0; 6];
    let io = || DataError::io("read", path);
    file.read_exact(&mut magic).map_err(io())?;
    file.rewind().map_err(io())?;
    Ok(match &magic == b"ARROW1" {
        true => Box::new(FileReader::try_new(file, None).map_err(|e| damaged(path, &e))?),
        false => Box::new(StreamReader::try_new(file, None).map_err(|e| damaged(path, &e))?),
    })
}

/// The column of a name, or that of fields within fields, with the columns around it.
fn column_of<'a>(
    batch: &'a RecordBatch,
    name: &str,
) -> Option<(&'a dyn Array, Vec<&'a dyn Array>)> {
    if let Some(column) = batch.column_by_name(name) {
        return Some((&**column, vec![]));
    }
    let (first, rest) = name.split_once('.')?;
    let (mut at, mut around) = (&**batch.column_by_name(first)?, vec![]);
    for name in rest.split('.') {
        let inner = at.as_struct_opt()?.column_by_name(name)?;
        around.push(at);
        at = &**inner;
    }
    Some((at, around))
}

fn rows(
    path: &Path,
    from: Column<'_>,
    batch: &RecordBatch,
    number: &mut usize,
    eat: Eat<'_>,
) -> Result<()> {
    let field = from.name;
    let Some((column, around)) = column_of(batch, field) else {
        let schema = batch.schema();
        let names = schema.fields().iter().map(|f| f.name().clone());
        return Err(no_column(path, field, names.collect()));
    };
    // Of a dictionary the rows are places in its values.
    let dictionary = column.as_any_dictionary_opt();
    let texts = dictionary.map_or(column, |d| &**d.values());
    let empty = from.skip_null && column.as_any().is::<NullArray>();
    let text = match texts_of(texts) {
        _ if empty => None,
        None => return Err(not_text(path, field, &column.data_type().to_string())),
        some => some,
    };
    let places = dictionary.filter(|d| !d.values().is_empty());
    let places = places.map(|d| d.normalized_keys());
    for i in 0..column.len() {
        let at = places
            .as_ref()
            .map_or(i, |p| p.get(i).copied().unwrap_or(0));
        let null = around.iter().any(|c| c.is_null(i)) || column.is_null(i) || texts.is_null(at);
        match text.as_ref().filter(|_| !null) {
            None if from.skip_null => eat(None)?,
            None => return Err(bad_row(path, field, *number, "has no value")),
            Some(text) => match text(at) {
                Some(text) => eat(Some(text))?,
                None => return Err(bad_row(path, field, *number, "is not UTF-8")),
            },
        }
        *number += 1;
    }
    Ok(())
}

/// The text at a place of a column of strings, or of bytes, which may be no UTF-8; `None` for other columns.
pub(super) fn texts_of<'a>(
    column: &'a dyn Array,
) -> Option<Box<dyn Fn(usize) -> Option<&'a str> + 'a>> {
    let utf8 = |bytes| std::str::from_utf8(bytes).ok();
    if let Some(c) = column.as_string_opt::<i32>() {
        return Some(Box::new(|i| Some(c.value(i))));
    }
    if let Some(c) = column.as_string_opt::<i64>() {
        return Some(Box::new(|i| Some(c.value(i))));
    }
    if let Some(c) = column.as_string_view_opt() {
        return Some(Box::new(|i| Some(c.value(i))));
    }
    if let Some(c) = column.as_binary_opt::<i32>() {
        return Some(Box::new(move |i| utf8(c.value(i))));
    }
    let c = column.as_binary_opt::<i64>()?;
    Some(Box::new(move |i| utf8(c.value(i))))
}

/// Names the contents of a column of a Parquet file.
fn kind_of(column: &Type) -> &'static str {
    if !column.is_primitive() {
        return match column.get_basic_info().converted_type() {
            ConvertedType::LIST => "lists",
            ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => "maps",
            _ => "structs",
        };
    }
    match column.get_physical_type() {
        Physical::BOOLEAN => "booleans",
        Physical::INT32 | Physical::INT64 => "whole numbers",
        Physical::INT96 => "times",
        Physical::FLOAT | Physical::DOUBLE => "numbers",
        Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => "bytes of a fixed length",
    }
}

/// A damaged table is an error of the file, also where the library that reads it panics.
pub(super) fn guarded(path: &Path, read: impl FnOnce() -> Result<()>) -> Result<()> {
    guard::guarded(read).unwrap_or_else(|why| Err(damaged(path, &why)))
}

pub(super) fn damaged(path: &Path, e: &dyn std::fmt::Display) -> DataError {
    // What was left out of the libraries when they were built is no damage.
    let text = e.to_string();
    if let Some((_, codec)) = text.split_once("Disabled feature at compile time: ") {
        return DataError::Binary {
            path: path.into(),
            what: format!("a table compressed by {codec}, which is not read here"),
            fix: "write it with zstd, snappy, gzip, lz4 or no compression".into(),
        };
    }
    DataError::Binary {
        path: path.into(),
        what: format!("a damaged table ({e})"),
        fix: "fetch it again, or exclude it (data.exclude)".into(),
    }
}

fn no_column(path: &Path, field: &str, names: Vec<String>) -> DataError {
    let shown: Vec<_> = names.iter().map(|n| format!("{n:?}")).take(20).collect();
    let examples = said_of_examples(|name| names.iter().any(|n| n == name));
    DataError::Table {
        path: path.into(),
        reason: format!(
            "has no column {field:?}, but {}{examples}",
            shown.join(", ")
        ),
    }
}

/// Says what rows are of which the field of text is missing, where they have the fields of
/// examples.
pub(super) fn said_of_examples(has: impl Fn(&str) -> bool) -> String {
    Rows::recognised(has).map_or(String::new(), |rows| {
        format!(
            "; these rows are examples: set data.format to {}",
            rows.name()
        )
    })
}

fn not_text(path: &Path, field: &str, kind: &str) -> DataError {
    let kind: String = kind.chars().take(80).collect();
    let kind = kind.trim();
    DataError::Table {
        path: path.into(),
        reason: format!("column {field:?} holds no text but {kind}"),
    }
}

fn bad_row(path: &Path, field: &str, number: usize, what: &str) -> DataError {
    DataError::Table {
        path: path.into(),
        reason: format!("row {} {what} in column {field:?}", number + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_codec_that_is_left_out_is_no_damage() {
        let e = parquet::errors::ParquetError::General(
            "Disabled feature at compile time: brotli".into(),
        );
        let said = damaged(Path::new("a.parquet"), &e).to_string();
        assert!(
            said.contains("compressed by brotli") && !said.contains("damaged"),
            "{said}"
        );
    }
}
