//! `data` as plain structs: text, examples and given batches.

use serde::{Deserialize, Serialize};

/// `data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
// There is one of these in a process, so the larger variant costs nothing.
#[allow(clippy::large_enum_variant)]
pub enum Data {
    /// Given batches, one a step.
    Tokens(TokenData),
    /// Text.
    Text(TextData),
}

/// Given batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenData {
    /// safetensors file.
    pub tokens: String,
    /// Name of its tensor [steps, batch, tokens].
    pub key: String,
    /// Name of its tensor of labels; `None` = the next tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// The objective; filled in once resolved where it is not the next token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// A document in a row sees nothing of the others in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_attention_mask: Option<bool>,
    /// Positions count from the start of each document in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_position_ids: Option<bool>,
    /// The last token of a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eod_id: Option<u64>,
}

/// Text, tokenised once and cached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextData {
    /// Text to train on.
    pub train: TextSource,
    /// Text to validate on; `None` = split off `train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<TextSource>,
    /// Fraction of the documents held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_fraction: Option<f64>,
    /// Megatron's weights of train, validation, test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// The tokenizer; `None` = the model folder's, else bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
    /// Tokens a sample; filled in once resolved unless the model is a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_len: Option<u64>,
    /// Field of a line, or column of a table, that holds the document; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Older name of `field`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jsonl_field: Option<String>,
    /// The treatment of a row of null; `None` = an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_null: Option<OnNull>,
    /// The form of a row; `None` = a document of text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    /// The tokens of an example that count; filled in once resolved where rows are examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_on: Option<LossOn>,
    /// Rows of `seq_len` tokens hold several examples, which do not see each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<bool>,
    /// The treatment of an example that is longer than a row; `None` = it is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_long: Option<OnLong>,
    /// File of the Jinja template for messages; `None` = the tokenizer folder's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The objective; filled in once resolved where it is not the next token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Share of the tokens that are hidden; filled in once resolved where some are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlm_probability: Option<f64>,
    /// Mean length of the spans that are cut out; filled in once resolved where some are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_noise_span_length: Option<f64>,
    /// The token that stands for a hidden one; `None` = the tokenizer's, or one behind its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_id: Option<u64>,
    /// Samples are pairs of texts, and whether the second follows the first is predicted too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_sentence: Option<bool>,
    /// The token before the first text of a pair; `None` = the tokenizer's, or one behind its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cls_id: Option<u64>,
    /// The token behind each text of a pair; `None` = the tokenizer's, or one behind its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sep_id: Option<u64>,
    /// The token that stands for the first span; `None` = the tokenizer's, or one behind its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sentinel_id: Option<u64>,
    /// End every document with the end-of-document token; `None` = if there is one that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_eod: Option<bool>,
    /// The end-of-document token of a `tokenizer.json`; `None` = the `eos_token` of its folder, else a usual name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eod_token: Option<String>,
    /// Begin every text with what the tokenizer begins one with; `None` = as its own file does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_bos: Option<bool>,
    /// A document in a row sees nothing of the others in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_attention_mask: Option<bool>,
    /// Positions count from the start of each document in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_position_ids: Option<bool>,
    /// Globs of files to leave out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<Vec<String>>,
    /// Seed of the shuffle; filled in once resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Folder of tokenised data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
}

/// `data.objective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The next token.
    Causal,
    /// Tokens that are hidden.
    MaskedLm,
    /// Spans that are cut out.
    SpanCorruption,
}

/// `data.on_null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNull {
    /// It is an error.
    Refuse,
    /// It is left out and counted.
    Skip,
}

/// The treatment of an example that is longer than a row (`data.on_long`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLong {
    /// It is cut and counted.
    Cut,
    /// It is an error.
    Refuse,
}

/// `data.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// Documents, cut into samples of `seq_len` tokens.
    Text,
    /// Examples of `prompt` and `completion`.
    PromptCompletion,
    /// Conversations of `messages`.
    Messages,
    /// Conversations of ShareGPT.
    #[serde(rename = "sharegpt")]
    ShareGpt,
    /// Instructions of Alpaca.
    Alpaca,
    /// Tokens that are made already.
    Tokens,
}

/// `data.loss_on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    /// The completion, or what the assistant says.
    Completion,
    /// Every token.
    All,
}

/// The source of text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TextSource {
    /// File globs; `.jsonl` files hold one document a line.
    Globs(Vec<String>),
    /// `PREFIX.bin` and `PREFIX.idx`.
    Indexed(Indexed),
    /// Sources of locked packages.
    Cargo(CargoSource),
    /// Sources by weight.
    Mixture(Vec<MixtureSource>),
}

/// One source of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixtureSource {
    /// File globs; `None` where `indexed` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    /// Path prefix of a tokenised dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexed: Option<String>,
    /// Share of the samples, over the sum of all weights.
    pub weight: f64,
    /// As [`TextData::field`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// A tokenised dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexed {
    /// Path prefix.
    pub indexed: String,
}

/// `{"cargo_sources": {...}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CargoSource {
    /// The packages.
    pub cargo_sources: CargoSources,
}

/// Sources of locked packages as cargo unpacked them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CargoSources {
    /// Package names.
    pub packages: Vec<String>,
    /// Path of the lock file, relative to the working directory.
    pub lock: String,
    /// File name extensions, without the dot.
    pub extensions: Vec<String>,
}

/// `data.tokenizer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Tokenizer {
    /// `bytes` or `gpt2`.
    BuiltIn(BuiltIn),
    /// A `tokenizer.json`.
    File(TokenizerFile),
    /// The tokenizer of a model.
    Hf(TokenizerHf),
}

/// Tokenizers that need no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuiltIn {
    /// One token per byte.
    Bytes,
    /// GPT-2's byte-pair encoding.
    Gpt2,
}

/// `{"file": PATH}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerFile {
    /// Path of `tokenizer.json`.
    pub file: String,
}

/// `{"hf": FOLDER}` or `{"hf": "org/name"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerHf {
    /// Folder with a `tokenizer.json`, or a model of the hub cache.
    pub hf: String,
}
