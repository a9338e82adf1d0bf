//! One file a family.

mod bloom;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod gpt_neox;
mod llama;
mod mistral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod sizes;

use crate::Family;

/// Every family, in the order they are listed to people.
#[rustfmt::skip]
pub const FAMILIES: &[&Family] = &[
    &gpt2::FAMILY,
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &olmo2::FAMILY,
    &gpt_neox::FAMILY,
    &bloom::FAMILY,
    &glm4::FAMILY,
];
