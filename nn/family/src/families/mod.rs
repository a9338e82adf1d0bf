//! One file a family.

mod arcee;
mod bert;
mod bloom;
mod clip;
mod cohere;
mod cohere2;
mod ernie4_5;
mod exaone4;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt2;
mod gpt_neox;
mod gptj;
mod granite;
mod hunyuan;
mod llama;
mod llava;
mod ministral;
mod ministral3;
mod mistral;
mod mixtral;
mod mt5;
mod nemotron;
mod olmo2;
mod olmo3;
mod opt;
mod phi;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod roberta;
mod seed_oss;
mod sizes;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5;

use crate::{Family, Outer};

/// Every family, in the order they are listed to people.
#[rustfmt::skip]
pub const FAMILIES: &[&Family] = &[
    &gpt2::FAMILY,
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi::FAMILY,
    &phi3::FAMILY,
    &olmo2::FAMILY,
    &gpt_neox::FAMILY,
    &opt::FAMILY,
    &bloom::FAMILY,
    &falcon::FAMILY,
    &stablelm::FAMILY,
    &starcoder2::FAMILY,
    &cohere::FAMILY,
    &cohere2::FAMILY,
    &granite::FAMILY,
    &glm::FAMILY,
    &glm4::FAMILY,
    &arcee::FAMILY,
    &seed_oss::FAMILY,
    &smollm3::FAMILY,
    &ernie4_5::FAMILY,
    &hunyuan::FAMILY,
    &olmo3::FAMILY,
    &exaone4::FAMILY,
    &nemotron::FAMILY,
    &ministral::FAMILY,
    &ministral3::FAMILY,
    &gptj::FAMILY,
    &mixtral::FAMILY,
    &qwen3_moe::FAMILY,
    &bert::FAMILY,
    &roberta::FAMILY,
    &roberta::XLM_ROBERTA,
    &t5::FAMILY,
    &mt5::FAMILY,
];

/// Those that are made of parts, of which only folders are read.
pub const COMPOSED: &[&Family] = &[&llava::FAMILY];

/// Models of which a part is read.
pub const OUTERS: &[Outer] = &[gemma3::OUTER];

/// The family of a part of a composed model, by the key of the part.
pub(crate) fn part_of(key: &str) -> Option<&'static Family> {
    llava::PARTS
        .iter()
        .find(|p| p.0 == key)
        .map(|(_, family)| *family)
}
