//! What a table of keys is made of. One table serves parsing, defaults, docs, `config schema`
//! and `config explain`; the tables themselves are data in the modules next to this one.

use crate::json::Member;

/// A JSON object with known keys.
pub struct Table {
    /// The keys, in the order they are documented.
    pub fields: &'static [Field],
    /// The purpose of the section, in one line.
    pub doc: &'static str,
    /// Values that replace the defaults, computed from what was given (model presets).
    pub overlay: Option<Overlay>,
}

/// Given the members of an object, a label ("preset tiny") and `(key, JSON text)` defaults.
pub type Overlay = fn(&[Member]) -> Option<(String, Vec<(&'static str, String)>)>;

/// One key.
pub struct Field {
    /// Its name in the file.
    pub key: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// Its value when not given; of a key without effect, and of a refused one, the value that it
    /// has in the other program then.
    pub default: Default,
    /// One line: meaning, unit, and how it relates to the system the key comes from.
    pub doc: &'static str,
    /// The origin of the name.
    pub source: Source,
    /// The meaning of `"auto"`.
    pub auto: Auto,
    /// `null` means "the default", as in DeepSpeed, whose own default it is.
    pub null_default: bool,
    /// Says if a continuation of a run may have another value; `None` = as the section around it
    /// says, and the whole file says [`Resume::Same`].
    pub resume: Option<Resume>,
    /// Each process of a job may have a value of its own; else all of them have one.
    pub per_process: bool,
    /// Other names by which the key is read.
    pub names: &'static [Name],
    /// Words of other programs for the same thing, which an unknown key's error translates. One with a dot means it in that section
    /// alone: `mesh.data`.
    pub words: &'static [&'static str],
    /// An example of its value, as JSON; empty = one that follows from its kind.
    pub example: &'static str,
    /// The reason for which another value than the default has no effect; empty = it has one.
    pub moot: &'static str,
    /// The condition under which its numbers are read at all, beside that of the section around it.
    pub read: Read,
}

/// The class of a key on resume: it may change, or it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The continuation has the value that the run was begun with.
    Same,
    /// It may have another: the key does not change what is computed, or only how long.
    Free,
}

/// The meaning of `"auto"` as the value of a key.
#[derive(Clone, Copy)]
pub enum Auto {
    /// The default.
    Default,
    /// Nothing: it is solved later, or absent.
    Solved,
    /// The default of the argument from which the Hugging Face Trainer would fill it in, as JSON.
    Trainer(&'static str),
    /// A number that follows from the width of the model, as in the Trainer.
    Width(fn(u64) -> u64),
}

/// Another name by which a key is read.
#[derive(Clone, Copy)]
pub enum Name {
    /// A key of the same section.
    Also(&'static str),
    /// A key of the same section that DeepSpeed calls deprecated.
    Deprecated(&'static str),
    /// A switch of the same section that DeepSpeed calls deprecated: `true` stands for `{"device": "cpu"}`.
    Switch(&'static str),
    /// A key of another section, by its whole path.
    Elsewhere(&'static str),
}

impl Name {
    /// The name as a whole path, for the key at `path`.
    pub fn whole(&self, path: &str) -> String {
        match (self, path.rsplit_once('.')) {
            (Name::Elsewhere(whole), _) => (*whole).to_string(),
            (Name::Also(n) | Name::Deprecated(n) | Name::Switch(n), Some((section, _))) => {
                format!("{section}.{n}")
            }
            (Name::Also(n) | Name::Deprecated(n) | Name::Switch(n), None) => (*n).to_string(),
        }
    }
}

/// The condition under which the numbers of a key are read. One that is not read may be any number,
/// as in DeepSpeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Always.
    Always,
    /// Something computes in float16.
    Float16,
    /// The loss scale moves.
    MovingScale,
    /// States or parameters rest on a disk.
    Disk,
}

/// The value of a key that is not given.
pub enum Default {
    /// It must be given.
    Required,
    /// Nothing: solved later, or the feature is off.
    Absent,
    /// This JSON text.
    Json(&'static str),
}

/// The origin of the name of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// DeepSpeed's JSON.
    DeepSpeed,
    /// A Hugging Face `config.json`.
    HuggingFace,
    /// Megatron's options.
    Megatron,
    /// This project.
    Own,
}

impl Source {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Source::DeepSpeed => "DeepSpeed",
            Source::HuggingFace => "Hugging Face",
            Source::Megatron => "Megatron",
            Source::Own => "Crossweave",
        }
    }
}

/// The kinds of values that a key may take.
pub enum Kind {
    /// true or false
    Bool,
    /// A whole number in `min..=max`; `5e8` is one too.
    Int {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A number.
    Float(Range),
    /// Exactly two numbers.
    Pair(Range),
    /// A string; empty is allowed only where `empty` says so.
    Text {
        /// True if "" is a value.
        empty: bool,
    },
    /// One of these words, in any case.
    Word(&'static [&'static str]),
    /// A string or a non-empty list of strings.
    Texts,
    /// An object of this table.
    Section(&'static Table),
    /// A list of objects of this table.
    List(&'static Table),
    /// An object whose keys depend on its `type` key; its `params` follow the chosen table.
    Typed(&'static Typed),
    /// One of several forms of value, picked by looking at it.
    Forms(&'static Forms),
    /// A key of another program that has no effect here; where it asks for something it is a warning with this reason.
    Ignored(&'static str),
    /// A key of another program for something not here; where it asks for something it is an error with this reason.
    Refused(&'static str),
}

/// Bounds of a number.
#[derive(Clone, Copy)]
pub struct Range {
    /// Lower bound.
    pub min: f64,
    /// Upper bound.
    pub max: f64,
    /// True if the lower bound itself is allowed.
    pub min_in: bool,
    /// True if the upper bound itself is allowed.
    pub max_in: bool,
}

impl Range {
    /// Returns true if `x` lies inside.
    pub fn holds(&self, x: f64) -> bool {
        (x > self.min || (self.min_in && x == self.min))
            && (x < self.max || (self.max_in && x == self.max))
    }

    /// In words: `in [0, 1)`.
    pub fn describe(&self) -> String {
        let open = if self.min_in { '[' } else { '(' };
        let close = if self.max_in { ']' } else { ')' };
        if self.min == f64::NEG_INFINITY && self.max < f64::INFINITY {
            let sign = if self.max_in { "<=" } else { "<" };
            return format!("{sign} {}", self.max);
        }
        if self.max == f64::INFINITY {
            let sign = if self.min_in { ">=" } else { ">" };
            if self.min == f64::NEG_INFINITY {
                return "any".into();
            }
            return format!("{sign} {}", self.min);
        }
        format!("in {open}{}, {}{close}", self.min, self.max)
    }
}

/// A section of the form `{"type": NAME, "params": {...}}`.
pub struct Typed {
    /// The purpose of the section.
    pub doc: &'static str,
    /// Names and the table of their parameters.
    pub cases: &'static [(&'static str, &'static Table)],
    /// Keys beside `type` and `params`, the same for every name.
    pub extra: &'static [Field],
    /// Names known elsewhere that are not built yet, to be named as such.
    pub missing: &'static [&'static str],
    /// Words of other programs for `type`, as [`Field::words`].
    pub words: &'static [&'static str],
    /// Says if a continuation may have other `params`; `None` = as the section.
    pub resume_params: Option<Resume>,
}

/// Alternatives, picked by `pick`.
pub struct Forms {
    /// The meaning of the value, in one line.
    pub doc: &'static str,
    /// The alternatives.
    pub forms: &'static [Form],
    /// Index of the form a value means, or what is wrong with it.
    pub pick: fn(&crate::json::Json) -> Result<usize, (String, String)>,
}

/// One alternative of [`Forms`].
pub struct Form {
    /// Name for messages.
    pub name: &'static str,
    /// The kind of value.
    pub kind: Kind,
}

// Short constructors, so that a table reads as a table.

const fn field(key: &'static str, kind: Kind, default: Default, doc: &'static str) -> Field {
    Field {
        key,
        kind,
        default,
        doc,
        source: Source::Own,
        auto: Auto::Default,
        null_default: false,
        resume: None,
        per_process: false,
        names: &[],
        words: &[],
        example: "",
        moot: "",
        read: Read::Always,
    }
}

const fn text_or_absent(default: &'static str) -> Default {
    if default.is_empty() {
        Default::Absent
    } else {
        Default::Json(default)
    }
}

/// A switch.
pub const fn flag(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(key, Kind::Bool, text_or_absent(default), doc)
}

/// A whole number of at least `min`; an empty default means absent.
pub const fn int(key: &'static str, min: u64, default: &'static str, doc: &'static str) -> Field {
    let max = 1 << 53;
    field(key, Kind::Int { min, max }, text_or_absent(default), doc)
}

/// A number >= 0.
pub const fn non_negative(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    let range = Range {
        min: 0.0,
        max: f64::INFINITY,
        min_in: true,
        max_in: false,
    };
    field(key, Kind::Float(range), text_or_absent(default), doc)
}

/// A number > 0.
pub const fn positive(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    let range = Range {
        min: 0.0,
        max: f64::INFINITY,
        min_in: false,
        max_in: false,
    };
    field(key, Kind::Float(range), text_or_absent(default), doc)
}

/// A number < 0.
pub const fn negative(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    let range = Range {
        min: f64::NEG_INFINITY,
        max: 0.0,
        min_in: false,
        max_in: false,
    };
    field(key, Kind::Float(range), text_or_absent(default), doc)
}

/// A probability in [0, 1).
pub const fn probability(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(key, Kind::Float(UNIT), text_or_absent(default), doc)
}

/// A fraction in [0, 1].
pub const fn fraction(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    let range = Range {
        min: 0.0,
        max: 1.0,
        min_in: true,
        max_in: true,
    };
    field(key, Kind::Float(range), text_or_absent(default), doc)
}

const UNIT: Range = Range {
    min: 0.0,
    max: 1.0,
    min_in: true,
    max_in: false,
};

/// Two numbers in [0, 1).
pub const fn pair(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(key, Kind::Pair(UNIT), text_or_absent(default), doc)
}

/// A non-empty string.
pub const fn text(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(
        key,
        Kind::Text { empty: false },
        text_or_absent(default),
        doc,
    )
}

/// A string that may be empty.
pub const fn any_text(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(
        key,
        Kind::Text { empty: true },
        text_or_absent(default),
        doc,
    )
}

/// One word of a list.
pub const fn word(
    key: &'static str,
    words: &'static [&'static str],
    default: &'static str,
    doc: &'static str,
) -> Field {
    field(key, Kind::Word(words), text_or_absent(default), doc)
}

/// A string or a list of strings.
pub const fn texts(key: &'static str, default: &'static str, doc: &'static str) -> Field {
    field(key, Kind::Texts, text_or_absent(default), doc)
}

/// A list of sections, absent when not given.
pub const fn list(key: &'static str, table: &'static Table) -> Field {
    field(key, Kind::List(table), Default::Absent, table.doc)
}

/// A section that is always there: `{}` when not given.
pub const fn section(key: &'static str, table: &'static Table) -> Field {
    field(key, Kind::Section(table), Default::Json("{}"), table.doc)
}

/// A section that is absent when not given.
pub const fn optional_section(key: &'static str, table: &'static Table) -> Field {
    field(key, Kind::Section(table), Default::Absent, table.doc)
}

/// A `{"type", "params"}` section; an empty default means absent.
pub const fn typed(key: &'static str, typed: &'static Typed, default: &'static str) -> Field {
    field(key, Kind::Typed(typed), text_or_absent(default), typed.doc)
}

/// A value of several forms; an empty default means absent.
pub const fn forms(key: &'static str, forms: &'static Forms, default: &'static str) -> Field {
    field(key, Kind::Forms(forms), text_or_absent(default), forms.doc)
}

/// A DeepSpeed key without effect here: a switch that is off there unless [`Field::off`] says otherwise.
pub const fn ignored(key: &'static str, reason: &'static str) -> Field {
    field(key, Kind::Ignored(reason), Default::Json("false"), reason).deepspeed()
}

/// A DeepSpeed key for something that is not here: a switch that is off there unless [`Field::off`] says otherwise.
pub const fn refused(key: &'static str, reason: &'static str) -> Field {
    field(key, Kind::Refused(reason), Default::Json("false"), reason).deepspeed()
}

/// The value of a section with a switch of its own in another program when it is not given.
pub const SWITCH: &str = "{\"enabled\": false}";

impl Field {
    /// The name is DeepSpeed's.
    pub const fn deepspeed(mut self) -> Field {
        self.source = Source::DeepSpeed;
        self
    }

    /// The name is Hugging Face's.
    pub const fn hf(mut self) -> Field {
        self.source = Source::HuggingFace;
        self
    }

    /// The name is this project's.
    pub const fn own(mut self) -> Field {
        self.source = Source::Own;
        self
    }

    /// The name is Megatron's.
    pub const fn megatron(mut self) -> Field {
        self.source = Source::Megatron;
        self
    }

    /// It must be given.
    pub const fn required(mut self) -> Field {
        self.default = Default::Required;
        self
    }

    /// The value that the key has in the other program when not given, as JSON: it asks for nothing. An object asks for nothing where
    /// each of its members does, or where its `enabled` is false.
    pub const fn off(mut self, json: &'static str) -> Field {
        self.default = Default::Json(json);
        self
    }

    /// `null` means "the default".
    pub const fn or_null(mut self) -> Field {
        self.null_default = true;
        self
    }

    /// `"auto"` means "solve it".
    pub const fn auto(mut self) -> Field {
        self.auto = Auto::Solved;
        self
    }

    /// `"auto"` means the default of the Trainer's argument, as JSON.
    pub const fn trainer(mut self, json: &'static str) -> Field {
        self.auto = Auto::Trainer(json);
        self
    }

    /// `"auto"` means this number for the width of the model.
    pub const fn by_width(mut self, rule: fn(u64) -> u64) -> Field {
        self.auto = Auto::Width(rule);
        self
    }

    /// A continuation of a run may have another value; of a section, each of its rows that does not say otherwise.
    pub const fn free(mut self) -> Field {
        self.resume = Some(Resume::Free);
        self
    }

    /// Each process may have a value of its own.
    pub const fn per_process(mut self) -> Field {
        self.per_process = true;
        self
    }

    /// Other names by which the key is read.
    pub const fn names(mut self, names: &'static [Name]) -> Field {
        self.names = names;
        self
    }

    /// Words of other programs that mean it.
    pub const fn words(mut self, words: &'static [&'static str]) -> Field {
        self.words = words;
        self
    }

    /// The program does as the default says, whatever the value, for this reason: another one is a warning.
    pub const fn moot(mut self, why: &'static str) -> Field {
        self.moot = why;
        self
    }

    /// An example of its value, as JSON.
    pub const fn example(mut self, json: &'static str) -> Field {
        self.example = json;
        self
    }

    /// Names the condition under which its numbers are read; of a section, those of all its rows.
    pub const fn read(mut self, when: Read) -> Field {
        self.read = when;
        self
    }
}
