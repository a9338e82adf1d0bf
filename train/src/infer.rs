//! One rank that does not train: opens a model for probes and samples, and draws tokens from its logits.

use crate::backend::{open_device, open_linked};
use crate::job::spec::alone;
use crate::model::Source;
use crate::start::start;
use crate::train_error::{Result, TrainError};
use crossweave_data::Tokenizer;
use crossweave_engine::{Devices, Engine, Links, Units, dry_run, prepare};
use crossweave_hal::{Bootstrap, DType, HostServices, Plugin};
use crossweave_nn::Predicts;
use std::time::Duration;

/// A single rank has nobody to meet.
pub struct Alone;

impl Bootstrap for Alone {
    fn set(&self, _: &str, _: &[u8]) -> crossweave_hal::Result<()> {
        Ok(())
    }
    fn get(&self, key: &str, _: Duration) -> crossweave_hal::Result<Vec<u8>> {
        Err(crossweave_hal::Error::invalid(
            "bootstrap",
            format!("one rank asked for {key}"),
        ))
    }
}

/// Opens `source` on one device, for batches of `batch` sequences of `seq` tokens, with its starting values.
///
/// # Errors
/// Shapes that do not fit; weights that cannot be read; the device.
pub fn open(
    source: &Source,
    plugin: &Plugin,
    host: &HostServices,
    compute: DType,
    batch: u64,
    seq: u64,
) -> Result<Engine> {
    let null = open_linked("null", host)?.open(0)?;
    let family = source.spec.family();
    let labelled = family.predicts() != Predicts::Next || family.sees();
    let spec = alone(compute, (batch, seq), labelled);
    let units = Units::new(source.units(), &spec.place, &spec.optim)
        .map_err(crossweave_engine::Error::from)?;
    let dry = dry_run(&null, &units, compute, batch, seq)?;
    let device = open_device(plugin, 0)?;
    let lowered = prepare(&device, &spec, &units, &dry)?;
    let mut engine = Engine::new(Devices::one(&device), lowered, units, Links::new(&Alone))?;
    start(source, &mut engine)?;
    Ok(engine)
}

/// Does the model continue a text?
///
/// # Errors
/// One that predicts hidden tokens or spans.
pub fn continues(source: &Source) -> Result<()> {
    let family = source.spec.family();
    match family.predicts() {
        Predicts::Next if !family.sees() => Ok(()),
        Predicts::Next => Err(TrainError::refused(
            format!(
                "a {} model continues a text with images, which no prompt has",
                family.name
            ),
            "`crossweave probe` gives its logits",
        )),
        Predicts::Hidden | Predicts::Spans => Err(TrainError::refused(
            format!("a {} model does not continue a text", family.name),
            "`crossweave probe` gives its logits",
        )),
    }
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Tokens at most; the end-of-document token ends the text earlier.
    pub tokens: u64,
    /// 0 = always the likeliest.
    pub temperature: f64,
    /// Draw from this many of the likeliest; 0 = from all.
    pub top_k: u64,
    /// Seed of the draw.
    pub seed: u64,
}

/// Continues `prompt`; returns the continuation only. The whole context is computed again for every token.
///
/// # Errors
/// A prompt the tokenizer cannot encode; the device; logits that are not numbers.
pub fn continue_text(
    engine: &mut Engine,
    source: &Source,
    tokenizer: &Tokenizer,
    prompt: &str,
    draw: Draw,
) -> Result<String> {
    continues(source)?;
    let model = source.spec.model();
    let (vocab, longest) = (model.vocab as usize, model.positions as usize);
    let (own, begin) = (
        tokenizer.encode(prompt.as_bytes())?.tokens,
        tokenizer.begin(),
    );
    // As documents and prompts of training begin, and not twice.
    let begin = begin.iter().filter(|_| !own.starts_with(begin));
    let mut text: Vec<i32> = begin.chain(&own).map(|t| *t as i32).collect();
    if text.is_empty() {
        // A document begins behind the end of another one; without such a token, behind a line break.
        let first = match tokenizer.eod().filter(|e| (*e as usize) < vocab) {
            Some(eod) => eod as i32,
            None => tokenizer
                .encode(b"\n")?
                .tokens
                .first()
                .map_or(0, |t| *t as i32),
        };
        text.push(first);
    }
    let mut random = SplitMix(draw.seed);
    let mut new = vec![];
    for _ in 0..draw.tokens {
        let context = &text[text.len().saturating_sub(longest)..];
        let logits = engine.logits(context, 1, context.len() as u64)?;
        let last = &logits[logits.len().saturating_sub(vocab)..];
        // Ids beyond the tokenizer's are padding of the embedding and name nothing.
        let named = &last[..last.len().min(tokenizer.vocab_size())];
        let token = choose(named, draw, &mut random)?;
        if Some(token) == tokenizer.eod() {
            break;
        }
        text.push(token as i32);
        new.push(token);
    }
    Ok(tokenizer.decode(&new))
}

fn choose(logits: &[f32], draw: Draw, random: &mut SplitMix) -> Result<u32> {
    if logits.is_empty() || logits.iter().any(|l| l.is_nan()) {
        return Err(TrainError::refused(
            "the model's logits are not numbers",
            "check the weights; was the run stopped by a non-finite loss?",
        ));
    }
    // Equal logits keep the order of their ids, so that a draw does not depend on the sort.
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    });
    if draw.temperature <= 0.0 {
        return Ok(order[0]);
    }
    if draw.top_k > 0 {
        order.truncate(draw.top_k as usize);
    }
    let top = f64::from(logits[order[0] as usize]);
    let weights: Vec<f64> = order
        .iter()
        .map(|t| ((f64::from(logits[*t as usize]) - top) / draw.temperature).exp())
        .collect();
    let mut left = random.unit() * weights.iter().sum::<f64>();
    for (token, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left <= 0.0 {
            return Ok(*token);
        }
    }
    Ok(order[0])
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(temperature: f64, top_k: u64) -> Draw {
        Draw {
            tokens: 1,
            temperature,
            top_k,
            seed: 7,
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        let mut r = SplitMix(1);
        assert_eq!(
            choose(&[0.0, 2.0, 2.0, -1.0], draw(0.0, 0), &mut r).unwrap(),
            1
        );
        assert_eq!(choose(&[0.0, 2.0, 3.0], draw(0.7, 1), &mut r).unwrap(), 2);
        assert!(choose(&[0.0, f32::NAN], draw(0.0, 0), &mut r).is_err());
    }

    #[test]
    fn draws_follow_the_softmax_and_the_seed() {
        let logits = [0.0f32, (3.0f32).ln()];
        let count = |seed| {
            let mut r = SplitMix(seed);
            (0..4000)
                .filter(|_| choose(&logits, draw(1.0, 0), &mut r).unwrap() == 1)
                .count()
        };
        assert!((count(1) as f64 / 4000.0 - 0.75).abs() < 0.03);
        assert_eq!(count(5), count(5));
    }
}
