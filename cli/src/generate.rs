//! `crossweave generate`: a prompt and its continuation, the same for the same seed.

use crate::args::GenerateArgs;
use crate::backend::{choose, host};
use crate::error::{CliError, Result};
use crate::infer::{self, Draw};
use crate::say::say;
use crate::surroundings::Surroundings;
use crate::trained;
use crossweave_hal::DType;

/// Runs the command.
///
/// # Errors
/// Arguments out of range; a folder that is neither a model's nor a run's; no tokenizer; the device.
pub fn run(args: &GenerateArgs, around: &Surroundings) -> Result<()> {
    if !args.temperature.is_finite() || args.temperature < 0.0 {
        return Err(CliError::refused(
            format!("--temperature {}: must be 0 or more", args.temperature),
            "0 always takes the likeliest token; 0.8 is usual",
        ));
    }
    let host = host(&around.plugins, 1, None, None);
    let plugin = choose(&(&args.backend).into(), "cpu", &host, &around.plugins)?;
    let model = trained::open(&args.model, &around.caches)?;
    model.remarks.iter().for_each(|r| eprintln!("{r}"));
    let source = &model.source;
    infer::continues(source)?;
    let tokenizer = model.tokenizer(&around.caches)?;
    let mut engine = infer::open(source, &plugin, &host, DType::F32, 1, 1)?;
    let draw = Draw {
        tokens: args.tokens,
        temperature: args.temperature,
        top_k: args.top_k,
        seed: args.seed,
    };
    let text = infer::continue_text(&mut engine, source, &tokenizer, &args.prompt, draw)?;
    say!("{}{text}", args.prompt);
    Ok(())
}
