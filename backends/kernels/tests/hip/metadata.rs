//! What a code object says of its kernels: the note of the AMDGPU metadata (MessagePack, as the LLVM documentation of the target has it).

use object::{Object, ObjectSection};

/// A value of MessagePack, as far as the metadata uses it.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Nothing,
    Bool(bool),
    Int(i64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    fn get(&self, key: &str) -> Option<&Value> {
        let Value::Map(m) = self else { return None };
        let at = |k: &Value| matches!(k, Value::Text(t) if t == key);
        m.iter().find(|(k, _)| at(k)).map(|(_, v)| v)
    }
    fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(t) => Some(t),
            _ => None,
        }
    }
    fn number(&self, key: &str) -> Option<u32> {
        match self.get(key)? {
            Value::Int(i) => u32::try_from(*i).ok(),
            _ => None,
        }
    }
    fn list(&self, key: &str) -> &[Value] {
        match self.get(key) {
            Some(Value::List(l)) => l,
            _ => &[],
        }
    }
}

/// Bytes still to read; `None` from any of these: they end too early, or hold what the metadata does not use.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (now, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(now)
    }
    /// A number of `n` bytes, the largest first.
    fn size(&mut self, n: usize) -> Option<u64> {
        let b = self.take(n)?;
        Some(b.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
    }
    fn value(&mut self) -> Option<Value> {
        let tag = self.size(1)? as u8;
        Some(match tag {
            0..=0x7f => Value::Int(i64::from(tag)),
            0x80..=0x8f => self.map(u64::from(tag & 15))?,
            0x90..=0x9f => self.array(u64::from(tag & 15))?,
            0xa0..=0xbf => self.string(u64::from(tag & 31))?,
            0xc0 => Value::Nothing,
            0xc2 | 0xc3 => Value::Bool(tag == 0xc3),
            0xcc..=0xcf => Value::Int(i64::try_from(self.size(1 << (tag - 0xcc))?).ok()?),
            0xd0..=0xd3 => {
                let bytes = 1usize << (tag - 0xd0);
                let unused = 64 - 8 * bytes as u32;
                Value::Int((self.size(bytes)? << unused) as i64 >> unused)
            }
            0xd9..=0xdb => {
                let n = self.size(1 << (tag - 0xd9))?;
                self.string(n)?
            }
            0xdc | 0xdd => {
                let n = self.size(2 << (tag - 0xdc))?;
                self.array(n)?
            }
            0xde | 0xdf => {
                let n = self.size(2 << (tag - 0xde))?;
                self.map(n)?
            }
            0xe0.. => Value::Int(i64::from(tag as i8)),
            _ => return None,
        })
    }
    fn string(&mut self, n: u64) -> Option<Value> {
        let b = self.take(usize::try_from(n).ok()?)?;
        Some(Value::Text(String::from_utf8(b.to_vec()).ok()?))
    }
    fn array(&mut self, n: u64) -> Option<Value> {
        Some(Value::List(
            (0..n).map(|_| self.value()).collect::<Option<_>>()?,
        ))
    }
    fn map(&mut self, n: u64) -> Option<Value> {
        let pair = |r: &mut Self| Some((r.value()?, r.value()?));
        Some(Value::Map(
            (0..n).map(|_| pair(self)).collect::<Option<_>>()?,
        ))
    }
}

/// What the metadata says of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub entry: String,
    pub vector_registers: u32,
    pub scalar_registers: u32,
    /// Registers that were moved out of the way: vector ones to memory, scalar ones to lanes of a vector register or to memory.
    pub vector_spills: u32,
    pub scalar_spills: u32,
    /// Bytes of memory of a thread's own.
    pub scratch: u32,
    /// Bytes of shared memory that is not asked for at launch.
    pub shared: u32,
    /// Most threads of a block.
    pub threads: u32,
    /// Threads of a wave.
    pub wave: u32,
    /// Whether the scratch memory is not bounded (recursion, calls by pointers).
    pub unbounded: bool,
    /// Bytes of its parameters: those of the source, then what the compiler added.
    pub all_params: u32,
    /// `(offset, bytes)` of the parameters of the source.
    pub params: Vec<(u32, u32)>,
}

fn kernel(k: &Value) -> Option<Kernel> {
    let args = k.list(".args").iter();
    Some(Kernel {
        entry: k.text(".name")?.to_string(),
        vector_registers: k.number(".vgpr_count")?,
        scalar_registers: k.number(".sgpr_count")?,
        vector_spills: k.number(".vgpr_spill_count")?,
        scalar_spills: k.number(".sgpr_spill_count")?,
        scratch: k.number(".private_segment_fixed_size")?,
        shared: k.number(".group_segment_fixed_size")?,
        threads: k.number(".max_flat_workgroup_size")?,
        wave: k.number(".wavefront_size")?,
        unbounded: k.get(".uses_dynamic_stack") == Some(&Value::Bool(true)),
        all_params: k.number(".kernarg_segment_size")?,
        params: args
            .filter(|a| {
                a.text(".value_kind")
                    .is_none_or(|w| !w.starts_with("hidden_"))
            })
            .map(|a| Some((a.number(".offset")?, a.number(".size")?)))
            .collect::<Option<_>>()?,
    })
}

/// The kernels of a code object.
pub fn kernels(code: &[u8]) -> Result<Vec<Kernel>, String> {
    const METADATA: u32 = 32;
    let elf = object::File::parse(code).map_err(|e| format!("not an ELF file: {e}"))?;
    let note = elf.section_by_name(".note").ok_or("no notes")?;
    let mut rest = note.data().map_err(|e| format!("notes: {e}"))?;
    while let Some((head, after)) = rest.split_at_checked(12) {
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let (name, bytes) = (word(0) as usize, word(4) as usize);
        let (start, end) = (name.next_multiple_of(4), bytes.next_multiple_of(4));
        let body = after.get(start..start + bytes).ok_or("a note is cut off")?;
        if word(8) == METADATA && after.starts_with(b"AMDGPU\0") {
            let root = Reader(body).value().ok_or("metadata is not understood")?;
            let all = root.list("amdhsa.kernels").iter();
            let all: Option<Vec<Kernel>> = all.map(kernel).collect();
            return all.ok_or_else(|| format!("a kernel lacks a figure: {root:?}"));
        }
        rest = after.get(start + end..).unwrap_or(&[]);
    }
    Err("no metadata among the notes".into())
}

/// What the compiler calls itself.
pub fn compiler(code: &[u8]) -> Option<String> {
    let elf = object::File::parse(code).ok()?;
    let words = elf.section_by_name(".comment")?.data().ok()?;
    let words = String::from_utf8_lossy(words);
    let named = words.split('\0').find(|w| w.contains("clang"))?;
    Some(named.trim().to_string())
}

#[test]
fn values_are_read_and_what_is_cut_off_is_not() {
    // {"a": [1, -2, 300, true], "b": "x"}, with sizes in several widths.
    let bytes = [
        0x82, 0xa1, b'a', 0xdc, 0, 4, 1, 0xd0, 0xfe, 0xcd, 1, 44, 0xc3, 0xa1, b'b', 0xd9, 1, b'x',
    ];
    let v = Reader(&bytes).value().unwrap();
    let ints = [1, -2, 300].map(Value::Int);
    assert_eq!(v.list("a"), [&ints[..], &[Value::Bool(true)]].concat());
    assert_eq!(v.text("b"), Some("x"));
    for n in 0..bytes.len() {
        assert_eq!(Reader(&bytes[..n]).value(), None, "{n} bytes");
    }
}
