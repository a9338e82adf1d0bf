//! Element types: 32-bit ids whose low byte is the storage width in bits.

/// Element type. Unknown ids are legal on the wire; [`DType::from_id`] answers `None` for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    I8 = 0x0108,
    U8 = 0x0208,
    I32 = 0x0120,
    U32 = 0x0220,
    I64 = 0x0140,
    U64 = 0x0240,
    F16 = 0x0310,
    Bf16 = 0x0410,
    F32 = 0x0320,
    F64 = 0x0340,
    /// OCP, no infinities.
    F8E4M3 = 0x0508,
    F8E5M2 = 0x0608,
    /// Other bias than OCP: same bits, other values.
    F8E4M3Fnuz = 0x0708,
    F8E5M2Fnuz = 0x0808,
    F4E2M1 = 0x0904,
    /// Block scales.
    F8E8M0 = 0x0A08,
}

impl DType {
    /// All of them, in id order of the header.
    pub const ALL: [DType; 16] = [
        DType::I8,
        DType::U8,
        DType::I32,
        DType::U32,
        DType::I64,
        DType::U64,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F8E4M3Fnuz,
        DType::F8E5M2Fnuz,
        DType::F4E2M1,
        DType::F8E8M0,
    ];

    /// The id on the wire.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The type of an id, if this build knows it.
    pub fn from_id(id: u32) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.id() == id)
    }

    /// Storage width in bits.
    pub const fn bits(self) -> u64 {
        (self as u32 & 0xff) as u64
    }

    /// Bytes of `n` elements (4-bit types pack two to a byte, rounded up).
    pub const fn bytes(self, n: u64) -> u64 {
        (n * self.bits()).div_ceil(8)
    }

    /// Elements in so many bytes, what is left over dropped.
    pub const fn count(self, bytes: u64) -> u64 {
        (bytes * 8) >> self.bits().trailing_zeros()
    }

    /// Is it a floating type?
    pub const fn is_float(self) -> bool {
        (self as u32) >> 8 >= 3
    }

    /// Short lower-case name (`f32`, `bf16`, …).
    pub const fn name(self) -> &'static str {
        match self {
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I64 => "i64",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F8E4M3 => "f8e4m3",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E4M3Fnuz => "f8e4m3fnuz",
            DType::F8E5M2Fnuz => "f8e5m2fnuz",
            DType::F4E2M1 => "f4e2m1",
            DType::F8E8M0 => "f8e8m0",
        }
    }
}
