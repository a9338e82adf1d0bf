//! What is to be predicted (`data.objective`): it must be what the model predicts, and its keys must be those of it.

use crate::resolve::Resolver;
use crate::settings::{Data, DataFormat, Objective, Settings};
use crossweave_family::{Family, Predicts};

/// Share of the tokens that are hidden where nothing is said, BERT's and T5's.
pub const MLM_PROBABILITY: f64 = 0.15;
/// Mean length of a span that is cut out where nothing is said, T5's.
pub const MEAN_NOISE_SPAN_LENGTH: f64 = 3.0;

impl Objective {
    /// Returns the objective for which the models of a family are made.
    pub fn of(family: &Family) -> Objective {
        match family.predicts() {
            Predicts::Next => Objective::Causal,
            Predicts::Hidden => Objective::MaskedLm,
            Predicts::Spans => Objective::SpanCorruption,
        }
    }

    /// As in a config.
    pub fn name(self) -> &'static str {
        match self {
            Objective::Causal => "causal",
            Objective::MaskedLm => "masked_lm",
            Objective::SpanCorruption => "span_corruption",
        }
    }
}

impl Data {
    /// Returns the objective, where the data name one.
    pub fn objective(&self) -> Option<Objective> {
        match self {
            Data::Text(d) => d.objective,
            Data::Tokens(d) => d.objective,
        }
    }
}

impl Resolver<'_> {
    /// No text is drawn of a model that does not continue one.
    pub(crate) fn sampled(&mut self, s: &mut Settings) {
        let objective = s.data.as_ref().and_then(Data::objective);
        if matches!(objective, None | Some(Objective::Causal)) || s.run.generate.tokens == 0 {
            return;
        }
        let path = "run.generate.tokens";
        if self.is_given(path) {
            let what = "has no effect: this model does not continue a text";
            self.warn(path, what, "set it to 0, or remove it");
        }
        s.run.generate.tokens = 0;
    }

    /// `family`: that of the model, where it is known.
    pub(crate) fn objective(&mut self, data: &mut Data, family: Option<&'static Family>) {
        let own = family.map(Objective::of);
        if let (Some(given), Some(own), Some(f)) = (data.objective(), own, family)
            && given != own
        {
            let what = format!(
                "a {} model predicts by {:?}, and {:?} is asked for",
                f.name,
                own.name(),
                given.name()
            );
            self.error("data.objective", what, "remove it, or name another model");
        }
        let Some(objective) = data.objective().or(own) else {
            return;
        };
        // A run of what most runs do says nothing of it.
        let said = (objective != Objective::Causal).then_some(objective);
        let (masks, resets) = match data {
            Data::Tokens(d) => {
                d.objective = d.objective.or(said);
                (vec![], [d.reset_attention_mask, d.reset_position_ids])
            }
            Data::Text(d) => {
                d.objective = d.objective.or(said);
                let masked = objective == Objective::MaskedLm;
                let spans = objective == Objective::SpanCorruption;
                let share = masked || spans;
                if share {
                    d.mlm_probability = d.mlm_probability.or(Some(MLM_PROBABILITY));
                }
                if spans {
                    let mean = d.mean_noise_span_length;
                    d.mean_noise_span_length = mean.or(Some(MEAN_NOISE_SPAN_LENGTH));
                }
                if share && !matches!(d.format, None | Some(DataFormat::Text)) {
                    let what = "examples say themselves which of their tokens are predicted, each from those before it";
                    let fix = "set data.format to text, or name a model that predicts next tokens";
                    self.error("data.format", what, fix);
                }
                let pairs = d.next_sentence == Some(true);
                let ends = [("data.cls_id", d.cls_id), ("data.sep_id", d.sep_id)];
                for (path, given) in ends.into_iter().filter(|_| !pairs) {
                    if given.is_some() {
                        let what = "stands around pairs of texts, and samples are none";
                        self.error(path, what, "set data.next_sentence to true, or remove it");
                    }
                }
                let keys = [
                    (
                        "data.mlm_probability",
                        d.mlm_probability.is_some() && !share,
                    ),
                    (
                        "data.mean_noise_span_length",
                        d.mean_noise_span_length.is_some() && !spans,
                    ),
                    ("data.mask_id", d.mask_id.is_some() && !masked),
                    ("data.next_sentence", pairs && !masked),
                    ("data.sentinel_id", d.sentinel_id.is_some() && !spans),
                ];
                (
                    keys.to_vec(),
                    [d.reset_attention_mask, d.reset_position_ids],
                )
            }
        };
        for (path, _) in masks.into_iter().filter(|(_, given)| *given) {
            let what = format!("has no meaning for the objective {:?}", objective.name());
            self.error(path, what, "remove it");
        }
        if objective == Objective::Causal {
            return;
        }
        for (path, given) in [
            ("data.reset_attention_mask", resets[0]),
            ("data.reset_position_ids", resets[1]),
        ] {
            if given == Some(true) {
                let what = "ends of documents are read off tokens that may be hidden";
                self.error(path, what, "remove it");
            }
        }
    }
}
