//! Holds what was said against what must be said: the kind of sentence, the ranks it blames, ops, and the lines of the call sites.

use crate::parallel_bugs::bug::{Kind, Verdict};
use crate::parallel_bugs::bugs::SOURCES;
use crate::parallel_bugs::launch::{self, Ended, Run};

/// What starts the line in which a child says why it fails.
pub const SAYS: &str = "verdict: ";
/// What a rank's words about another's end begin with where they come to its own last op.
pub const WHERE: &str = "; it was in ";
/// What starts the line in which it says how long that took, in microseconds since its last rank began to wait.
pub const TOOK: &str = "verdict after us: ";
/// What starts the line in which a child says that all went well.
pub const WELL: &str = "all is well";

/// File and line of the call under a marker.
pub fn line(marker: &str) -> String {
    let wanted = format!("// @{marker}");
    let mut found = vec![];
    for (file, text) in SOURCES {
        for (i, l) in text.lines().enumerate() {
            if l.trim() == wanted {
                found.push(format!("{file}:{}", i + 2));
            }
        }
    }
    match &found[..] {
        [one] => one.clone(),
        _ => panic!(
            "the marker {wanted:?} stands in {} places: {found:?}",
            found.len()
        ),
    }
}

/// Words of which one must be said, by kind.
fn words(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Mismatch => &["differ at", "as collective", " sends ", "missed", "extra"],
        // What is missing shows once somebody has gone on; until then, that the ranks are at different ops.
        Kind::Missing => &["missed", "as collective"],
        Kind::Extra => &["extra", "too many", "as collective"],
        Kind::Deadlock => &["deadlock of"],
        Kind::Ended => &["has ended", "has left", "has aborted"],
        Kind::Timeout => &["did not come to", "did not get to"],
        Kind::Unmatched => &["never comes to send", "never received"],
        Kind::Unwaited => &["without having waited for"],
        // What these say is in the bug's own words.
        Kind::Failed | Kind::Refused => &[""],
    }
}

/// The ranks of the first "rank 2", "ranks 0 and 1" or "ranks 0, 1, 2" of a sentence.
fn blamed(sentence: &str) -> Vec<u32> {
    let Some((_, rest)) = sentence.split_once("rank") else {
        return vec![];
    };
    let mut all = vec![];
    for word in rest.trim_start_matches('s').split_whitespace() {
        let digits: String = word.chars().take_while(char::is_ascii_digit).collect();
        match digits.parse() {
            Ok(n) => all.push(n),
            Err(_) if word == "and" => continue,
            Err(_) => break,
        }
        let ends = !word.ends_with(',') && !rest.contains(&format!("{digits} and "));
        if ends {
            break;
        }
    }
    all
}

/// Everything that is wrong with what was said; nothing when it is right.
fn faults(v: &Verdict, e: &Ended) -> Vec<String> {
    let mut wrong = vec![];
    if e.hung {
        wrong.push("it hangs".to_string());
    }
    if e.code == Some(0) {
        wrong.push("it ends with success".to_string());
    }
    let said = e.text.lines().filter_map(|l| l.split_once(SAYS));
    let mut said: Vec<String> = said.map(|(_, s)| s.to_string()).collect();
    if v.kind == Kind::Failed {
        // The failed rank says why, the others where it left them: one job, one message.
        said = vec![said.join("; ")];
    }
    let Some(first) = said.first() else {
        wrong.push("no verdict".to_string());
        return wrong;
    };
    // A process whose launcher was quick may not have printed; a process that has must have printed all of it.
    let best = said
        .iter()
        .map(|s| sentence(v, s))
        .min_by_key(Vec::len)
        .unwrap_or_default();
    if !best.is_empty() {
        wrong.extend(best);
        wrong.push(format!("said: {first}"));
    }
    wrong
}

/// How long each rank's words took, in microseconds.
fn took(e: &Ended) -> Vec<u64> {
    let all = e.text.lines().filter_map(|l| l.split_once(TOOK));
    all.filter_map(|(_, n)| n.trim().parse().ok()).collect()
}

/// Is this rank among those a sentence speaks of (`rank 2`, `ranks 0, 1 and 2`)?
fn mentions(said: &str, rank: u32) -> bool {
    let listed = |list: &str| {
        let words = list.split([' ', ',', ':', ';']).filter(|w| !w.is_empty());
        let mut numbers = words.take_while(|w| *w == "and" || w.parse::<u32>().is_ok());
        numbers.any(|w| w.parse() == Ok(rank))
    };
    ["rank ", "ranks "]
        .iter()
        .any(|word| said.split(word).skip(1).any(listed))
}

fn sentence(v: &Verdict, said: &str) -> Vec<String> {
    let mut wrong = vec![];
    let mut need = |what: &str, part: &str| {
        if !said.contains(part) {
            wrong.push(format!("{what} {part:?} is not named"));
        }
    };
    v.ops.iter().for_each(|op| need("op", op));
    v.words.iter().for_each(|w| need("word", w));
    v.sites.iter().for_each(|s| need(s, &line(s)));
    // Of several that end early the first is reported, before the others have ended.
    let several = v.kind == Kind::Failed && v.ranks.len() > 1;
    if !several && !matches!(v.kind, Kind::Deadlock | Kind::Ended) {
        v.ranks
            .iter()
            .filter(|r| !mentions(said, **r))
            .for_each(|r| wrong.push(format!("rank {r} is not named")));
    }
    if !words(v.kind).iter().any(|w| said.contains(w)) {
        wrong.push(format!("no {:?} in {:?}", v.kind, words(v.kind)));
    }
    let blamed = blamed(said);
    let right = match v.ranks {
        // Where several wait for one circle, any of its ways round may be reported.
        many if v.kind == Kind::Deadlock => {
            blamed.len() > 1 && blamed.iter().all(|b| many.contains(b))
        }
        [one] if v.kind == Kind::Failed => {
            let how = [" failed", " died", " panicked", ": ", " has"];
            how.iter().any(|h| said.contains(&format!("rank {one}{h}")))
        }
        [_] => blamed == v.ranks,
        many => !blamed.is_empty() && blamed.iter().all(|b| many.contains(b)),
    };
    if !right {
        wrong.push(format!("blames {blamed:?} instead of {:?}", v.ranks));
    }
    wrong
}

/// Runs all bugs and fails with everything that was not named as it must be.
pub fn all(runs: Vec<Run>, at_once: usize) {
    let mut wrong = vec![];
    let mut deadlocks: Vec<u64> = vec![];
    for (run, ended) in launch::run(runs, at_once) {
        let Some(v) = run.verdict else { continue };
        let faults = self::faults(v, &ended);
        let said = ended.text.lines().filter_map(|l| l.split_once(SAYS));
        let shortest = said.map(|(_, s)| s).min_by_key(|s| sentence(v, s).len());
        println!("{}: {}", run.title(), shortest.unwrap_or("nothing"));
        if v.kind == Kind::Deadlock {
            deadlocks.extend(took(&ended).into_iter().min());
        }
        if !faults.is_empty() {
            wrong.push(format!(
                "{}:\n  {}\n{}",
                run.title(),
                faults.join("\n  "),
                indent(&ended.text)
            ));
        }
    }
    deadlocks.sort_unstable();
    if let (Some(least), Some(most)) = (deadlocks.first(), deadlocks.last()) {
        println!(
            "{} deadlocks named {least} to {most} us after the last rank began to wait, half of them within {} us",
            deadlocks.len(),
            deadlocks[deadlocks.len() / 2]
        );
    }
    assert!(
        wrong.is_empty(),
        "{} bugs:\n\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

/// Runs all right programs and fails with every complaint about one.
pub fn silent(runs: Vec<Run>) {
    let mut wrong = vec![];
    for (run, e) in launch::run(runs, launch::BUSY) {
        let well = e.text.contains(WELL) && !e.text.contains(SAYS) && e.code == Some(0);
        if !well {
            wrong.push(format!(
                "{}: {:?}\n{}",
                run.title(),
                e.code,
                indent(&e.text)
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} right programs:\n\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

fn indent(text: &str) -> String {
    let noise = ["running 1 test", "test child", "test result"];
    text.lines()
        .filter(|l| !l.trim().is_empty() && !noise.iter().any(|n| l.starts_with(n)))
        .map(|l| format!("    | {l}\n"))
        .collect()
}

#[test]
fn the_blamed_are_the_first_ranks_of_a_sentence() {
    assert_eq!(blamed("rank 2 missed it, which ranks 0 and 1 call"), [2]);
    assert_eq!(blamed("ranks 0 and 1 differ at"), [0, 1]);
    assert_eq!(blamed("deadlock of ranks 0, 1, 2: rank 0 waits"), [0, 1, 2]);
    assert!(blamed("nobody").is_empty());
}
