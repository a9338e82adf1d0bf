//! Fields of a recorded call, read with a reason where one is not what it should be.

use serde_json::Value;

pub(crate) fn number<T: TryFrom<i64>>(v: &Value) -> Result<T, String> {
    let n = v
        .as_i64()
        .or_else(|| v.as_u64().map(|n| n as i64))
        .ok_or_else(|| format!("{v} is no number"))?;
    T::try_from(n).map_err(|_| format!("{n} is out of range"))
}

pub(crate) fn word(v: &Value) -> Result<u64, String> {
    v.as_u64().ok_or_else(|| format!("{v} is no number"))
}

pub(crate) fn bytes_of(v: &Value) -> Result<Vec<u8>, String> {
    let t = v.as_str().ok_or("bytes are missing")?.as_bytes();
    let digit = |c: u8| {
        (c as char)
            .to_digit(16)
            .map(|d| d as u8)
            .ok_or("bytes are no hexadecimal digits")
    };
    t.chunks(2)
        .map(|p| Ok(digit(p[0])? << 4 | digit(*p.get(1).ok_or("half a byte")?)?))
        .collect::<Result<_, &str>>()
        .map_err(Into::into)
}

pub(crate) fn list(v: &Value) -> impl Iterator<Item = &Value> {
    v.as_array().into_iter().flatten()
}
