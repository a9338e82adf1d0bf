//! The table of `data`: text, mixtures, examples and given batches.

use crate::json::Json;
use crate::schema::*;

const CARGO: Table = Table {
    doc: "sources of locked packages as cargo unpacked them: the same text on every machine, nothing downloaded",
    overlay: None,
    fields: &[
        texts("packages", "", "names of packages in the lock file")
            .example("[\"serde\"]")
            .required(),
        text(
            "lock",
            "\"Cargo.lock\"",
            "the lock file; relative to the working directory",
        ),
        texts("extensions", "[\"rs\"]", "file name extensions to read"),
    ],
};
const CARGO_SOURCE: Table = Table {
    doc: "sources of locked packages",
    overlay: None,
    fields: &[Field {
        default: Default::Required,
        ..optional_section("cargo_sources", &CARGO)
    }],
};
const INDEXED: Table = Table {
    doc: "a Megatron dataset that is already tokenised",
    overlay: None,
    fields: &[
        text("indexed", "", "path prefix of PREFIX.bin and PREFIX.idx")
            .example("\"corpus/pile\"")
            .required(),
    ],
};
/// One source of a mixture.
const PART: Table = Table {
    doc: "a source of a mixture and its share",
    overlay: None,
    fields: &[
        texts(
            "files",
            "",
            "globs of this source; relative to the working directory",
        ),
        text(
            "indexed",
            "",
            "in place of files: path prefix of a Megatron dataset",
        )
        .example("\"corpus/pile\""),
        positive(
            "weight",
            "",
            "share of the samples that come from this source; the weights need not add up to 1",
        )
        .required(),
        text("field", "", "as data.field, for this source only").example("\"content\""),
    ],
};
const SOURCE_FORMS: &[Form] = &[
    Form {
        name: "globs",
        kind: Kind::Texts,
    },
    Form {
        name: "indexed",
        kind: Kind::Section(&INDEXED),
    },
    Form {
        name: "cargo_sources",
        kind: Kind::Section(&CARGO_SOURCE),
    },
    Form {
        name: "mixture",
        kind: Kind::List(&PART),
    },
];
const TRAIN: Forms = Forms {
    doc: "text to train on: a glob, a list of globs (rows of JSON, .parquet, .arrow, .csv, .tsv, .tab, .psv: a document a row; other text: a document a file; gzip and zstd are read through), {\"indexed\": PREFIX}, {\"cargo_sources\": {...}}, or a mixture [{\"files\": GLOB, \"weight\": 0.7}, ...]",
    forms: SOURCE_FORMS,
    pick: pick_source,
};
const VALIDATION: Forms = Forms {
    doc: "text to validate on, in the forms of data.train; absent = split off by validation_fraction or split",
    forms: SOURCE_FORMS,
    pick: pick_source,
};

fn pick_source(value: &Json) -> Result<usize, (String, String)> {
    let how = "write a glob, a list of globs, {\"indexed\": PREFIX}, {\"cargo_sources\": {\"packages\": [...]}}, or a mixture [{\"files\": GLOB, \"weight\": 0.7}, ...]";
    match value {
        Json::Object(members) => {
            let has = |key: &str| members.iter().any(|m| m.key == key);
            match (has("indexed"), has("cargo_sources"), has("files")) {
                (true, false, false) => Ok(1),
                (false, true, false) => Ok(2),
                (false, false, true) => Err((
                    "a source of a mixture stands in a list".into(),
                    "write [{\"files\": GLOB, \"weight\": 0.7}, ...], or the glob alone".into(),
                )),
                _ => Err((
                    "wanted exactly one of indexed, cargo_sources".into(),
                    how.into(),
                )),
            }
        }
        Json::List(items) => {
            let objects = items.iter().filter(|i| matches!(i.value, Json::Object(_)));
            match objects.count() {
                0 => Ok(0),
                n if n == items.len() => Ok(3),
                _ => Err((
                    "a list of globs and of sources with weights at once".into(),
                    "write every element as {\"files\": GLOB, \"weight\": 0.7}".into(),
                )),
            }
        }
        Json::Text(_) => Ok(0),
        other => Err((
            format!("wanted text sources, got {}", other.describe()),
            how.into(),
        )),
    }
}

const TOKENIZER_FILE: Table = Table {
    doc: "a tokenizer in Hugging Face's format",
    overlay: None,
    fields: &[text("file", "", "path of tokenizer.json")
        .example("\"tokenizer.json\"")
        .required()],
};
const TOKENIZER_HF: Table = Table {
    doc: "the tokenizer of a model in Hugging Face's format",
    overlay: None,
    fields: &[text(
        "hf",
        "",
        "folder with tokenizer.json, or \"org/name\" of a model that `hf download` has put into the hub cache",
    ).example("\"models/gpt2\"")
    .required()],
};
const TOKENIZER: Forms = Forms {
    doc: "\"bytes\", \"gpt2\" (byte-pair encoding, built in), {\"file\": \"tokenizer.json\"} or {\"hf\": \"org/name\"}; absent = the model folder's, else bytes",
    forms: &[
        Form {
            name: "built in",
            kind: Kind::Word(&["bytes", "gpt2"]),
        },
        Form {
            name: "file",
            kind: Kind::Section(&TOKENIZER_FILE),
        },
        Form {
            name: "model",
            kind: Kind::Section(&TOKENIZER_HF),
        },
    ],
    pick: |value| match value {
        Json::Object(members) => Ok(1 + usize::from(members.iter().any(|m| m.key == "hf"))),
        Json::Text(_) => Ok(0),
        other => Err((
            format!("wanted a tokenizer, got {}", other.describe()),
            "write \"bytes\", \"gpt2\", {\"file\": \"tokenizer.json\"} or {\"hf\": \"org/name\"}"
                .into(),
        )),
    },
};

const RESET_MASK: Field = flag(
    "reset_attention_mask",
    "",
    "a document in a row sees nothing of the others in it; absent = a row is one sequence",
)
.megatron();
const RESET_POSITIONS: Field = flag(
    "reset_position_ids",
    "",
    "beside reset_attention_mask: positions count from the start of each document in a row; absent = from the start of the row",
)
.megatron();

const OBJECTIVE: Field = word(
    "objective",
    &["causal", "masked_lm", "span_corruption"],
    "",
    "what is predicted: the next token; tokens that are hidden (BERT); spans that are cut out (T5). Absent = what the model predicts, and another is refused",
)
.auto();

const TEXT_DATA: Table = Table {
    doc: "text, tokenised once and cached",
    overlay: None,
    fields: &[
        forms("train", &TRAIN, "").words(&["dataset_path", "data_files", "train_files", "train_file", "dataset", "train_data", "data_path", "data.path", "data.files"]).required(),
        forms("validation", &VALIDATION, "").words(&["validation_file", "valid_data", "val_data", "eval_data"]),
        probability(
            "validation_fraction",
            "",
            "fraction of the documents held out",
        ),
        text(
            "split",
            "",
            "Megatron's form of the same: weights of train, validation, test, e.g. \"969,30,1\"",
        ).example("\"969,30,1\"")
        .megatron(),
        forms("tokenizer", &TOKENIZER, "").example("\"gpt2\"").words(&["tokenizer_name", "tokenizer_path"]),
        int(
            "seq_len",
            1,
            "",
            "tokens a sample; \"auto\" or absent = the model's longest sequence",
        ).words(&["seq_length", "max_seq_length", "max_seq_len", "sequence_length", "block_size", "context_length", "ctx_len", "n_ctx", "max_length", "cutoff_len"])
        .auto(),
        text(
            "field",
            "",
            "field of a row of JSON, or column of a table, that holds the document, with dots a field within fields (meta.text); absent = \"text\"",
        ).example("\"content\"").words(&["text_column", "text_field", "text_key", "dataset_text_field", "content_column"]),
        text("jsonl_field", "", "older name of field").example("\"content\""),
        word(
            "on_null",
            &["refuse", "skip"],
            "",
            "what becomes of a row of JSON or of a table in which the field is null: an error, or it is left out and counted; absent = refuse",
        ),
        word(
            "format",
            &["text", "prompt_completion", "messages", "sharegpt", "alpaca", "tokens"],
            "",
            "what a row of the data is: a document of text; an example with prompt and completion; a conversation with messages of role and content, or with conversations of from and value (sharegpt); an instruction with input and output (alpaca); or input_ids with labels (tokens). An example is a sample of its own; absent = text",
        ),
        word(
            "loss_on",
            &["completion", "all"],
            "",
            "for examples: which tokens count in the loss, those of the completion or of the assistant, or all; absent = completion",
        ).words(&["train_on_inputs"]),
        flag(
            "pack",
            "",
            "for examples: a row of seq_len tokens holds as many as fit, which do not see each other and whose positions each begin with 0; absent = an example is a row of its own, filled up to seq_len",
        ).words(&["packing", "sample_packing"]),
        word(
            "on_long",
            &["cut", "refuse"],
            "",
            "what becomes of an example that is longer than seq_len: it is cut and counted, or it is an error; absent = cut",
        ),
        text(
            "chat_template",
            "",
            "file of the Jinja template that turns messages into text; absent = the one in the tokenizer's folder (chat_template.jinja, or chat_template of tokenizer_config.json)",
        ),
        OBJECTIVE,
        Field {
            kind: Kind::Float(Range {
                min: 0.0,
                max: 1.0,
                min_in: false,
                max_in: false,
            }),
            ..probability(
                "mlm_probability",
                "",
                "masked_lm, span_corruption: share of the tokens that are hidden; absent = 0.15",
            )
        }
        .hf()
        .auto(),
        Field {
            kind: Kind::Float(Range {
                min: 1.0,
                max: f64::INFINITY,
                min_in: true,
                max_in: false,
            }),
            ..positive(
                "mean_noise_span_length",
                "",
                "span_corruption: mean length of a span that is cut out; absent = 3",
            )
        }
        .hf()
        .auto(),
        int(
            "mask_id",
            0,
            "",
            "masked_lm: the token that stands for a hidden one; absent = the tokenizer's [MASK] or <mask>, else an id of its own behind the tokenizer's",
        )
        .auto(),
        flag(
            "next_sentence",
            "",
            "masked_lm: a sample is a pair of texts, of which the second follows the first or is of another sample, and that is predicted too; absent = false",
        )
        .auto(),
        int(
            "cls_id",
            0,
            "",
            "next_sentence: the token before the first text; absent = the tokenizer's [CLS] or <s>, else an id of its own behind the tokenizer's",
        )
        .auto(),
        int(
            "sep_id",
            0,
            "",
            "next_sentence: the token behind each text; absent = the tokenizer's [SEP] or </s>, else an id of its own behind the tokenizer's",
        )
        .auto(),
        int(
            "sentinel_id",
            0,
            "",
            "span_corruption: the token that stands for the first span, those of the others descend from it; absent = the tokenizer's <extra_id_0>, else the last of 100 ids behind the tokenizer's",
        )
        .auto(),
        flag("append_eod", "", "end every document with the tokenizer's end-of-document token; absent = if it has one that fits the vocabulary").auto(),
        text("eod_token", "", "the token of a tokenizer.json that ends a document or completion; absent = eos_token of tokenizer_config.json or special_tokens_map.json beside it, else a usual name such as </s>").example("\"<|endoftext|>\""),
        flag("add_bos", "", "begin every document and prompt with the tokenizer's token for it; absent = as tokenizer.json does, like AutoTokenizer(text); true: with bos_token where it does not").auto(),
        RESET_MASK,
        RESET_POSITIONS,
        texts("exclude", "", "globs of files to leave out").example("\"corpus/*.txt\""),
        int("seed", 0, "", "seed of the shuffle; absent = run.seed").auto(),
        text(
            "cache_dir",
            "",
            "folder of tokenised data; absent = chosen by the command",
        ).free().example("\"cache\""),
    ],
};
const TOKEN_DATA: Table = Table {
    doc: "given batches, one a step",
    overlay: None,
    fields: &[
        text("tokens", "", "safetensors file")
            .example("\"batches.safetensors\"")
            .required(),
        text(
            "key",
            "\"tokens\"",
            "name of its tensor [steps, batch, tokens]",
        ),
        text(
            "labels",
            "",
            "name of its tensor of labels, of the same shape: a token's own label as in transformers, -100 where it does not count; absent = \"labels\" where the file has one, else the tokens. For span_corruption: what the decoder writes, of any length",
        ),
        OBJECTIVE,
        RESET_MASK,
        RESET_POSITIONS,
        int(
            "eod_id",
            0,
            "",
            "the token that ends a document, for reset_attention_mask and reset_position_ids",
        ),
    ],
};
/// `data`.
pub(crate) const DATA: Forms = Forms {
    doc: "what to train on: {\"train\": ...} for text, {\"tokens\": FILE, \"key\": K} for given batches",
    forms: &[
        Form {
            name: "text",
            kind: Kind::Section(&TEXT_DATA),
        },
        Form {
            name: "given batches",
            kind: Kind::Section(&TOKEN_DATA),
        },
    ],
    pick: |value| match value {
        Json::Object(members) => {
            let has = |key: &str| members.iter().any(|m| m.key == key);
            if has("tokens") && has("train") {
                return Err((
                    "both train and tokens are given".into(),
                    "keep train for text, or tokens for given batches".into(),
                ));
            }
            Ok(usize::from(has("tokens")))
        }
        other => Err((
            format!("wanted an object, got {}", other.describe()),
            "write {\"train\": \"corpus/*.txt\"}".into(),
        )),
    },
};
