//! The whole group against the linked CPU back end, in this process: every claimed cell holds, every mandatory one is claimed.

use super::cases;
use crate::case::{Effort, Outcome, Profile};
use crate::ctx::{Ctx, case_seed};
use crate::local_ranks::RankThreads;
use crate::raw::Plugin;
use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::{HostServices, RawPlugin};
use crossweave_plugin::export::entry;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

#[test]
fn the_cpu_back_end_holds_every_cell_it_claims() {
    let host = HostServices::builder().threads(2).build();
    let raw = RawPlugin::from_static::<CpuBackend>(&host).expect("the linked back end loads");
    let plugin = Plugin::new(raw, entry::<CpuBackend>).expect("it has a device table");
    let mut ctx = Ctx {
        plugin: Arc::new(plugin),
        host,
        file: None,
        seed: 0,
        devices: vec![0],
        others: vec![],
        effort: Effort::Quick,
        threads: None,
        shut: AtomicBool::new(false),
        rank_threads: Mutex::new(RankThreads::default()),
        team: None,
    };
    let (mut failed, mut passed, mut refused) = (Vec::new(), 0, 0);
    for case in cases() {
        ctx.seed = case_seed(1, &case.id);
        let start = std::time::Instant::now();
        let found = case.judge(&ctx);
        let ms = start.elapsed().as_millis();
        match found {
            Ok(v) if v.outcome == Outcome::Refused && case.demanded.by(Profile::Train) => {
                failed.push(format!("{}: demanded and not claimed: {}", case.id, v.note));
            }
            Ok(v) => {
                println!(
                    "{:?} {} {ms} ms {} {:?}",
                    v.outcome, case.id, v.note, v.error
                );
                match v.outcome {
                    Outcome::Refused => refused += 1,
                    _ => passed += 1,
                }
            }
            Err(e) => failed.push(format!("{}: {e}", case.id)),
        }
    }
    assert!(
        failed.is_empty(),
        "{} failed, {passed} passed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(
        passed > 400 && refused > 50,
        "{passed} passed, {refused} refused"
    );
    let slips = ctx.plugin.take_slips();
    assert!(slips.is_empty(), "{slips:?}");
}
