//! What the keys of `data` ask of each other: fields, lengths, shares, examples.

use crate::resolve::Resolver;
use crate::settings::{DataFormat, LossOn, TextData, TextSource};

impl Resolver<'_> {
    pub(crate) fn text(&mut self, data: &mut TextData, longest: Option<u64>, seed: u64) {
        data.seed = Some(data.seed.unwrap_or(seed));
        let older = data.jsonl_field.take();
        if let (Some(field), Some(older)) = (&data.field, &older)
            && field != older
        {
            let what = format!("data.field is {field:?} and data.jsonl_field is {older:?}");
            self.error("data.jsonl_field", what, "keep one of them");
        }
        let given = data.field.take().or(older);
        self.sources(data);
        self.examples(data, given.is_some());
        // Examples have fields of their own.
        let text = matches!(data.format, None | Some(DataFormat::Text));
        data.field = text.then(|| given.unwrap_or_else(|| "text".into()));
        data.seq_len = data.seq_len.or(longest);
        if let (Some(seq), Some(longest)) = (data.seq_len, longest)
            && seq > longest
        {
            self.error(
                "data.seq_len",
                format!("samples of {seq} tokens do not fit a model of {longest} positions"),
                format!(
                    "set it to {longest} or less, or raise n_positions / max_position_embeddings"
                ),
            );
        }
        let ways = usize::from(data.validation.is_some())
            + usize::from(data.validation_fraction.is_some())
            + usize::from(data.split.is_some());
        if ways > 1 {
            let path = if data.split.is_some() {
                "data.split"
            } else {
                "data.validation_fraction"
            };
            self.error(
                path,
                "more than one of validation, validation_fraction and split is given",
                "keep one of them",
            );
        }
        if let Some(split) = &data.split {
            let weights: Option<Vec<f64>> = split
                .split(',')
                .map(|w| {
                    w.trim()
                        .parse()
                        .ok()
                        .filter(|x: &f64| *x >= 0.0 && x.is_finite())
                })
                .collect();
            let good = weights.is_some_and(|w| w.len() <= 3 && w.first().is_some_and(|x| *x > 0.0));
            if !good {
                self.error(
                    "data.split",
                    format!("wanted up to three weights, the first above 0, got {split:?}"),
                    "write e.g. \"969,30,1\"",
                );
            }
        }
    }

    /// Each source of a mixture names its data in one way.
    fn sources(&mut self, data: &TextData) {
        let both = [
            ("data.train", Some(&data.train)),
            ("data.validation", data.validation.as_ref()),
        ];
        for (key, source) in both {
            let Some(TextSource::Mixture(parts)) = source else {
                continue;
            };
            for (i, part) in parts.iter().enumerate() {
                let path = format!("{key}[{i}]");
                match (&part.files, &part.indexed) {
                    (Some(_), None) => {}
                    (None, Some(_)) if part.field.is_some() => self.error(
                        &format!("{path}.field"),
                        "a tokenised dataset has no fields",
                        "remove it",
                    ),
                    (None, Some(_)) => {}
                    (Some(_), Some(_)) => self.error(
                        &path,
                        "files and indexed are both given",
                        "make two sources of it, each with its weight",
                    ),
                    (None, None) => self.error(
                        &path,
                        "a source without files",
                        "add \"files\": GLOB, or \"indexed\": PREFIX",
                    ),
                }
            }
        }
    }

    /// Keys that only examples have, and keys that examples have no use for. `field`: one is given.
    fn examples(&mut self, data: &mut TextData, field: bool) {
        let text = matches!(data.format, None | Some(DataFormat::Text));
        if text {
            if data.loss_on == Some(LossOn::Completion) {
                let what = "text has no completion: every token of a document counts";
                let fix = "set data.format to that of the examples, or remove it";
                self.error("data.loss_on", what, fix);
            } else if data.loss_on.take().is_some() {
                let what = "has no effect: every token of text counts anyway";
                self.warn("data.loss_on", what, "remove it");
            }
            of_text(self, data);
            if data.chat_template.is_some() {
                let what = "only messages are written by a template";
                let fix = "set data.format to that of the messages, or remove it";
                self.error("data.chat_template", what, fix);
            }
            return;
        }
        data.loss_on = data.loss_on.or(Some(LossOn::Completion));
        let fields = match data.format {
            Some(DataFormat::ShareGpt) => "conversations",
            Some(DataFormat::Alpaca) => "instruction, input and output",
            Some(DataFormat::Tokens) => "input_ids and labels",
            Some(DataFormat::PromptCompletion) => "prompt and completion",
            _ => "messages",
        };
        if data.format == Some(DataFormat::Tokens) && data.chat_template.is_some() {
            let what = "only messages are written by a template";
            self.error("data.chat_template", what, "remove it");
        }
        if field {
            let what = format!("the fields of these examples are {fields}");
            self.error("data.field", what, "remove it, or rename the fields");
        }
        let sources = [
            ("data.train", Some(&data.train)),
            ("data.validation", data.validation.as_ref()),
        ];
        for (key, source) in sources {
            match source {
                None | Some(TextSource::Globs(_)) => {}
                Some(TextSource::Mixture(parts)) => {
                    for (i, part) in parts.iter().enumerate() {
                        if part.field.is_some() {
                            let what = format!("the fields of these examples are {fields}");
                            self.error(&format!("{key}[{i}].field"), what, "remove it");
                        }
                        if part.indexed.is_some() {
                            let what = "a tokenised dataset does not say which tokens count";
                            self.error(
                                &format!("{key}[{i}].indexed"),
                                what,
                                "name the .jsonl files",
                            );
                        }
                    }
                }
                Some(_) => self.error(
                    key,
                    format!("examples with {fields} are read from files of JSON lines"),
                    "name the .jsonl files, or set data.format to text",
                ),
            }
        }
        for (path, slot) in [
            ("data.reset_attention_mask", &mut data.reset_attention_mask),
            ("data.reset_position_ids", &mut data.reset_position_ids),
        ] {
            if slot.take() == Some(true) {
                let what = match data.pack {
                    Some(true) => "has no effect: data.pack keeps the examples of a row apart",
                    _ => "has no effect: an example is a row of its own",
                };
                self.warn(path, what, "remove it");
            }
        }
        let [ends, begins] = match data.format {
            Some(DataFormat::PromptCompletion) => return,
            Some(DataFormat::Tokens) => ["the tokens of a row are all there are"; 2],
            _ => [
                "the chat template writes what ends a turn",
                "the chat template writes what begins a text",
            ],
        };
        if data.append_eod.take().is_some() {
            let what = format!("has no effect: {ends}");
            self.warn("data.append_eod", what, "remove it");
        }
        if data.add_bos.take().is_some() {
            let what = format!("has no effect: {begins}");
            self.warn("data.add_bos", what, "remove it");
        }
    }
}

/// Keys of examples that text has no use for.
fn of_text(r: &mut Resolver<'_>, data: &mut TextData) {
    if data.pack == Some(true) {
        let what = "text fills its rows anyway, and has no examples to keep apart";
        let fix = "remove it; data.reset_attention_mask keeps the documents of a row apart";
        r.error("data.pack", what, fix);
    }
    if data.on_long.take().is_some() {
        let what = "has no effect: documents of any length are cut into samples";
        r.warn("data.on_long", what, "remove it");
    }
}
