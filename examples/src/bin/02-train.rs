//! Trains the config that it is given on two ranks: threads of this process, or the processes that `mpirun -n 2` has started.

use crossweave::surroundings::{Plugins, Surroundings};
use crossweave::{Team, Trainer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = std::env::args().nth(1).ok_or("name a config")?;
    let launcher: std::collections::BTreeMap<String, String> = std::env::vars().collect();
    let launched = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"]
        .iter()
        .any(|v| launcher.contains_key(*v));
    let team = match launched {
        true => Team::Processes(launcher),
        false => Team::Threads(2),
    };
    // The plugin that connects processes lies beside this program.
    let beside = std::env::current_exe()?.with_file_name("");
    let plugins = Plugins {
        folders: vec![beside],
        ..Plugins::default()
    };
    let around = Surroundings {
        plugins,
        ..Surroundings::default()
    };
    let mut trainer = Trainer::from_config(config)
        .surroundings(around)
        .ranks(team);
    for _ in 0..trainer.steps()? {
        let record = trainer.step()?;
        println!("step {} loss {}", record.step, record.loss);
    }
    trainer.save()?;
    trainer.finish()?;
    Ok(())
}
