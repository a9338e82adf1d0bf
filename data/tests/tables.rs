//! Rows of JSON as Arrow and Parquet tables: strings, whole numbers, lists and groups of fields, each of which may be null.

use arrow_array::builder::{ListBuilder, make_builder};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, StructArray, make_array};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
use serde_json::Value;

const NULL: &Value = &Value::Null;

/// Names of the fields of these rows, each once.
fn fields<'a>(rows: &[&'a Value]) -> Vec<&'a str> {
    let mut all: Vec<&str> = vec![];
    for row in rows.iter().filter_map(|r| r.as_object()) {
        let new = row.keys().filter(|k| !all.contains(&k.as_str()));
        let new: Vec<&str> = new.map(String::as_str).collect();
        all.extend(new);
    }
    all
}

fn of<'a>(rows: &[&'a Value], name: &str) -> Vec<&'a Value> {
    rows.iter().map(|r| r.get(name).unwrap_or(NULL)).collect()
}

/// Returns the members of all these lists, in order.
fn members<'a>(lists: &[&'a Value]) -> Vec<&'a Value> {
    lists
        .iter()
        .filter_map(|l| l.as_array())
        .flatten()
        .collect()
}

/// A file of Arrow, or a stream of it.
pub fn arrow(rows: &[Value], stream: bool) -> Vec<u8> {
    let rows: Vec<&Value> = rows.iter().collect();
    let columns = fields(&rows)
        .into_iter()
        .map(|f| (f, column(&of(&rows, f))));
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    arrow_bytes(&batch, stream)
}

/// The bytes of an Arrow file, or of a stream.
pub fn arrow_bytes(batch: &RecordBatch, stream: bool) -> Vec<u8> {
    if stream {
        let mut to = arrow_ipc::writer::StreamWriter::try_new(vec![], &batch.schema()).unwrap();
        to.write(batch).unwrap();
        return to.into_inner().unwrap();
    }
    let mut to = arrow_ipc::writer::FileWriter::try_new(vec![], &batch.schema()).unwrap();
    to.write(batch).unwrap();
    to.into_inner().unwrap()
}

fn column(values: &[&Value]) -> ArrayRef {
    match values.iter().find(|v| !v.is_null()) {
        Some(Value::Number(_)) => {
            std::sync::Arc::new(values.iter().map(|v| v.as_i64()).collect::<Int64Array>())
        }
        Some(Value::Array(_)) => {
            let within = column(&members(values));
            // Null is an empty list here.
            let ends = values.iter().scan(0, |end, v| {
                *end += v.as_array().map_or(0, Vec::len) as i32;
                Some(*end)
            });
            let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
            let empty = ListBuilder::new(make_builder(within.data_type(), 0)).finish();
            let list = empty.into_data().into_builder().len(values.len());
            let list = list.buffers(vec![offsets.into()]);
            make_array(list.child_data(vec![within.to_data()]).build().unwrap())
        }
        Some(Value::Object(_)) => {
            let each = fields(values)
                .into_iter()
                .map(|f| (f, column(&of(values, f))));
            std::sync::Arc::new(StructArray::try_from(each.collect::<Vec<_>>()).unwrap())
        }
        _ => std::sync::Arc::new(values.iter().map(|v| v.as_str()).collect::<StringArray>()),
    }
}

/// The type of a column of Parquet.
enum Kind {
    Text,
    Whole,
    List(Box<Kind>),
    Group(Vec<(String, Kind)>),
}

impl Kind {
    fn of(values: &[&Value]) -> Kind {
        let member = |f: &str| (f.to_string(), Kind::of(&of(values, f)));
        match values.iter().find(|v| !v.is_null()) {
            Some(Value::Number(_)) => Kind::Whole,
            Some(Value::Array(_)) => Kind::List(Box::new(Kind::of(&members(values)))),
            Some(Value::Object(_)) => Kind::Group(fields(values).into_iter().map(member).collect()),
            _ => Kind::Text,
        }
    }

    fn declared(&self, name: &str) -> String {
        match self {
            Kind::Text => format!("OPTIONAL BINARY {name} (UTF8);"),
            Kind::Whole => format!("OPTIONAL INT64 {name};"),
            Kind::List(of) => format!(
                "OPTIONAL group {name} (LIST) {{ REPEATED group list {{ {} }} }}",
                of.declared("element")
            ),
            Kind::Group(all) => {
                let all: String = all.iter().map(|(n, k)| k.declared(n)).collect();
                format!("OPTIONAL group {name} {{ {all} }}")
            }
        }
    }

    /// Columns of values that it consists of, without any yet.
    fn leaves(&self) -> Vec<Leaf> {
        match self {
            Kind::Text => vec![Leaf::default()],
            Kind::Whole => vec![Leaf {
                whole: true,
                ..Leaf::default()
            }],
            Kind::List(of) => of.leaves(),
            Kind::Group(all) => all.iter().flat_map(|(_, k)| k.leaves()).collect(),
        }
    }

    /// Adds a value to the first columns of `to`, and gives the others. `at`: its levels of repetition and definition, and how many lists it is in.
    fn add<'l>(&self, v: &Value, at: [i16; 3], to: &'l mut [Leaf]) -> &'l mut [Leaf] {
        let [rep, def, depth] = at;
        let (own, rest) = to.split_at_mut(self.leaves().len());
        let mut nothing = |def| {
            own.iter_mut().for_each(|l| {
                l.rep.push(rep);
                l.def.push(def);
            });
        };
        match (self, v) {
            (_, Value::Null) => nothing(def),
            (Kind::List(_), Value::Array(all)) if all.is_empty() => nothing(def + 1),
            (Kind::List(of), Value::Array(all)) => {
                for (i, v) in all.iter().enumerate() {
                    let rep = if i == 0 { rep } else { depth + 1 };
                    of.add(v, [rep, def + 2, depth + 1], own);
                }
            }
            (Kind::Group(all), v) => {
                let mut own = own;
                for (name, kind) in all {
                    own = kind.add(v.get(name).unwrap_or(NULL), [rep, def + 1, depth], own);
                }
            }
            (_, v) => {
                own[0].rep.push(rep);
                own[0].def.push(def + 1);
                own[0].texts.extend(v.as_str().map(ByteArray::from));
                own[0].wholes.extend(v.as_i64());
            }
        }
        rest
    }
}

/// Values of a column with their levels.
#[derive(Default)]
struct Leaf {
    whole: bool,
    texts: Vec<ByteArray>,
    wholes: Vec<i64>,
    def: Vec<i16>,
    rep: Vec<i16>,
}

/// A file of Parquet, four rows a group.
pub fn parquet(rows: &[Value]) -> Vec<u8> {
    let all: Vec<&Value> = rows.iter().collect();
    let names = fields(&all);
    let kinds: Vec<Kind> = names.iter().map(|f| Kind::of(&of(&all, f))).collect();
    let columns = names.iter().zip(&kinds).map(|(n, k)| k.declared(n));
    let schema = format!("message m {{ {} }}", columns.collect::<String>());
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let how = WriterProperties::builder().build();
    let mut to = SerializedFileWriter::new(vec![], schema.into(), how.into()).unwrap();
    for part in all.chunks(4) {
        let mut group = to.next_row_group().unwrap();
        for (name, kind) in names.iter().zip(&kinds) {
            let mut leaves = kind.leaves();
            for v in of(part, name) {
                kind.add(v, [0, 0, 0], &mut leaves);
            }
            for leaf in leaves {
                let (def, rep) = (Some(&leaf.def[..]), Some(&leaf.rep[..]));
                let mut c = group.next_column().unwrap().unwrap();
                match leaf.whole {
                    true => c.typed::<Int64Type>().write_batch(&leaf.wholes, def, rep),
                    false => c
                        .typed::<ByteArrayType>()
                        .write_batch(&leaf.texts, def, rep),
                }
                .unwrap();
                c.close().unwrap();
            }
        }
        group.close().unwrap();
    }
    to.into_inner().unwrap()
}
