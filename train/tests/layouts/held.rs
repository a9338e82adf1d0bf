//! A layout is run and held against one rank that trains the same: losses, norms, parameters, validations, and against its plan: memory and
//! traffic.

use super::axes::{AXES, Of, RULES};
use super::config::{BASE, base_of, config, files, placed, tied};
use super::draw::{Layout, number};
use crate::support::oracles::{Tensors, read};
use crate::support::{figures, ledger, open_json};
use crossweave::{Planning, Team, TrainError, Trainer};
use crossweave_mesh::Axis;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Longer than anything here takes but a hang.
const HUNG: Duration = Duration::from_secs(120);

/// The largest distance of losses, norms and parameters in f32 from those of one rank; beyond it, so often what moving each starting weight by a
/// place of its last digit does.
const MOST: f64 = 1e-5;
const ROUNDINGS: f64 = 8.0;
/// In 16 bits, so often what one rank is away from its run in f32. Moments of 8 bits are held by their distance from moments of 32 bits, too: blocks of 256
/// share a scale and begin where a rank's slice does, so that on other slices each moment is rounded by another scale.
const HALVES: f64 = 6.0;
/// Where weights are gathered in 8 bits, of losses alone: a norm behind nearly nothing makes much of its input's rounding. And where gradients of
/// f32 travel in 16.
const QUANTIZED: [f64; 4] = [0.01, f64::INFINITY, 0.01, f64::INFINITY];
const ROUNDED: f64 = 5e-3;

/// What is wrong with a layout.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub what: String,
}

/// How it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is refused, and no rule says why.
    Refused,
    /// It runs, or is refused for something else, and a rule says why it would be.
    Allowed,
    /// It ends with an error or a panic.
    Failed,
    /// It does not end.
    Hung,
    /// Its figures are not those of one rank.
    Far,
    /// Its bits are not those of the same sums in another way.
    Bits,
    /// It holds or moves what its plan does not say.
    Ledger,
}

impl Fault {
    pub fn new(kind: Kind, what: impl Into<String>) -> Fault {
        Fault {
            kind,
            what: what.into(),
        }
    }
}

fn fault<T>(kind: Kind, what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::new(kind, what))
}

/// What a run has come to.
pub struct Ran {
    /// Loss, norm and validation loss, by step.
    pub figures: Vec<[Option<f64>; 3]>,
    pub params: Tensors,
    pub ledger: Value,
}

/// What one rank is away from another run: losses, norms and validations over theirs, parameters over the largest of their tensor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Far(pub [f64; 4]);

impl Far {
    fn between(a: &Ran, b: &Ran) -> Result<Far, String> {
        let mut far = [0.0f64; 4];
        if a.figures.len() != b.figures.len() {
            return Err(format!(
                "{} records, and {}",
                a.figures.len(),
                b.figures.len()
            ));
        }
        for (a, b) in a.figures.iter().zip(&b.figures) {
            for (k, pair) in a.iter().zip(b).enumerate() {
                match pair {
                    (Some(a), Some(b)) => far[k] = far[k].max((a - b).abs() / b.abs().max(1e-3)),
                    (None, None) => {}
                    other => return Err(format!("figure {k}: {other:?}")),
                }
            }
        }
        if !a.params.keys().eq(b.params.keys()) {
            return Err("other parameters".into());
        }
        for (name, (.., theirs)) in &b.params {
            let top = theirs.iter().fold(0.05f64, |m, v| m.max(v.abs()));
            let ours = &a.params[name].2;
            let one =
                ours.iter()
                    .zip(theirs)
                    .fold(0.0f64, |m, (a, b)| match a.is_nan() || b.is_nan() {
                        true => f64::INFINITY,
                        false => m.max((a - b).abs()),
                    });
            far[3] = far[3].max(one / top);
        }
        Ok(Far(far))
    }
    /// Within so much, given what it may be in each.
    fn within(&self, least: [f64; 4], times: f64, of: Far) -> bool {
        let mut each = self.0.iter().zip(of.0).zip(least);
        each.all(|((a, b), least)| *a <= least.max(times * b))
    }
}

/// The part that a run has in holding a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum As {
    /// Nothing: the layout as it is.
    Told,
    /// Each starting weight is moved by a place of its last digit, in the type that computes.
    Moved,
    /// Moments have 32 bits where they have 8.
    Wide,
}

/// A folder of files and runs, with what one rank has come to.
pub struct Lab {
    pub folder: tempfile::TempDir,
    seed: u64,
    runs: u64,
    known: HashMap<(Layout, As), Rc<Ran>>,
    /// Runs that were compared by bits.
    pub by_bits: u64,
    /// Runs whose plans were compared.
    pub planned: u64,
}

/// How a run is begun.
struct Begun<'a> {
    config: &'a Value,
    ranks: u64,
    resume: Option<&'a Path>,
    out: PathBuf,
    /// Bits of the digits by which each starting weight is moved, where it is.
    moved: Option<u32>,
}

impl Lab {
    pub fn new(seed: u64) -> Lab {
        let folder = tempfile::tempdir().expect("a folder");
        files(folder.path());
        Lab {
            folder,
            seed,
            runs: 0,
            known: HashMap::new(),
            by_bits: 0,
            planned: 0,
        }
    }

    pub fn trainer(&self, l: &Layout) -> Trainer {
        let config = placed(&config(l, self.seed), self.folder.path());
        Trainer::from_config(config).ranks(Team::Threads(l.ranks() as u32))
    }

    fn run(&mut self, b: Begun<'_>) -> Result<Ran, Fault> {
        let (tell, told) = channel();
        let out = b.out.clone();
        let mut t = Trainer::from_config(b.config.clone())
            .ranks(Team::Threads(b.ranks as u32))
            .out(&out);
        if let Some(run) = b.resume {
            t = t.resume(run);
        }
        let moved = b.moved;
        let thread = std::thread::spawn(move || {
            let train = |mut t: Trainer| -> Result<(), TrainError> {
                if let Some(low) = moved {
                    move_weights(&mut t, low)?;
                }
                t.run().map(drop)
            };
            let _ = tell.send(train(t));
        });
        match told.recv_timeout(HUNG) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return fault(Kind::Failed, e.to_string()),
            Err(RecvTimeoutError::Timeout) => {
                return fault(Kind::Hung, format!("no end after {HUNG:?}"));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let why = thread.join().expect_err("a panic");
                let why = why
                    .downcast_ref::<String>()
                    .cloned()
                    .or(why.downcast_ref::<&str>().map(ToString::to_string));
                return fault(
                    Kind::Failed,
                    format!("a panic: {}", why.unwrap_or_default()),
                );
            }
        }
        let file = |name: &str| out.join("model").join(name);
        let [adapters, model] = ["adapter_model.safetensors", "model.safetensors"].map(file);
        Ok(Ran {
            figures: figures(&out).iter().map(|f| [f.1, f.3, f.4]).collect(),
            params: read(if adapters.exists() { &adapters } else { &model }),
            ledger: ledger(&out),
        })
    }

    fn out(&mut self) -> PathBuf {
        self.runs += 1;
        self.folder.path().join(format!("run-{}", self.runs))
    }

    /// What adapters sit on: a model that was trained for a step.
    fn base(&mut self, l: &Layout) -> Result<(), Fault> {
        let out = self.folder.path().join(base_of(l));
        if !l.on("adapters") || out.exists() {
            return Ok(());
        }
        let mut plain = Layout::plain();
        for axis in BASE {
            plain.picks[number(axis)] = l.picks[number(axis)];
        }
        let mut config = placed(&config(&plain, self.seed), self.folder.path());
        config["run"]["steps"] = json!(1);
        self.run(Begun {
            config: &config,
            ranks: 1,
            resume: None,
            out,
            moved: None,
        })
        .map(drop)
    }

    /// What a layout comes to.
    fn of(&mut self, l: &Layout, how: As) -> Result<Rc<Ran>, Fault> {
        if let Some(known) = self.known.get(&(*l, how)) {
            return Ok(known.clone());
        }
        self.base(l)?;
        let mut first = placed(&config(l, self.seed), self.folder.path());
        if how == As::Wide {
            first["optimizer"]["type"] = json!("AdamW");
        }
        let moved = (how == As::Moved).then(|| digits(l));
        let out = self.out();
        let ran = self.run(Begun {
            config: &first,
            ranks: l.ranks(),
            resume: None,
            out: out.clone(),
            moved,
        });
        let ran = match (ran, l.on("resume")) {
            (Ok(_), true) => {
                let (rest, then) = (l.rest(), self.out());
                let second = placed(&config(&rest, self.seed), self.folder.path());
                let went_on = self.run(Begun {
                    config: &second,
                    ranks: rest.ranks(),
                    resume: Some(&out),
                    out: then.clone(),
                    moved: None,
                });
                let _ = std::fs::remove_dir_all(then);
                went_on
            }
            (ran, _) => ran,
        };
        let _ = std::fs::remove_dir_all(out);
        Ok(Rc::new(ran?))
    }

    /// The same of one that others are held against, which is kept.
    fn kept(&mut self, l: &Layout, how: As) -> Result<Rc<Ran>, Fault> {
        let ran = self.of(l, how)?;
        self.known.insert((*l, how), ran.clone());
        Ok(ran)
    }

    /// Runs a layout and holds it against everything.
    ///
    /// # Errors
    /// The first fault.
    pub fn hold(&mut self, l: &Layout) -> Result<(), Fault> {
        self.base(l)?;
        let checked = match self.trainer(l).check() {
            Ok(checked) => checked,
            Err(e) => return fault(Kind::Refused, e.to_string()),
        };
        let ran = self.of(l, As::Told)?;
        if !l.on("resume") {
            self.ledgers(l, &ran, &checked)?;
        }
        self.near(l, &ran)?;
        if let Some(twin) = twin(l).filter(|t| t != l) {
            let other = self.kept(&twin, As::Told)?;
            self.by_bits += 1;
            same(&ran, &other)
                .or_else(|what| fault(Kind::Bits, format!("{what}, against {}", twin.words())))?;
        }
        Ok(())
    }

    /// Holds it against one rank alone.
    fn near(&mut self, l: &Layout, ran: &Ran) -> Result<(), Fault> {
        let alone = l.alone();
        if alone == *l {
            return Ok(());
        }
        let one = self.kept(&alone, As::Told)?;
        let legs = [*l, l.rest()];
        if l.on("shards") && !legs.iter().any(rounds_on_the_way) {
            self.by_bits += 1;
            return same(ran, &one)
                .or_else(|what| fault(Kind::Bits, format!("{what}, against one rank")));
        }
        let between = |a: &Ran, b: &Ran| Far::between(a, b).or_else(|what| fault(Kind::Far, what));
        let far = between(ran, &one)?;
        if far.within([MOST; 4], 0.0, Far::default()) {
            return Ok(());
        }
        let rounded = l.on("types") || l.is("optimizer", "8 bits");
        let mut of = Far::default();
        if rounded {
            let mut wide = alone;
            wide.picks[number("types")] = 0;
            let how = match l.is("optimizer", "8 bits") {
                true => As::Wide,
                false => As::Told,
            };
            of = self
                .kept(&wide, how)
                .map(|wide| Far::between(&one, &wide))?
                // A step that overflows in float16 is one that f32 takes: from there on they train other weights.
                .unwrap_or_default();
        }
        if !rounded || of.0 == [0.0; 4] {
            let moved = self.kept(&alone, As::Moved)?;
            of = between(&moved, &one)?;
        }
        // By chance one of them may be near: losses of training and of validation are of one kind.
        let losses = of.0[0].max(of.0[2]);
        let of = match l.is("optimizer", "8 bits") {
            false => Far([losses, of.0[1], losses, of.0[3]]),
            // Parameters are far from those of 32 bits, and what that does to one figure may by chance be little.
            true => {
                let figures = losses.max(of.0[1]);
                Far([figures, figures, figures, of.0[3]])
            }
        };
        let times = match (l.pick("optimizer"), l.on("sums")) {
            // Both are far from what has 32 bits, each by its own blocks.
            ("8 bits", _) => 2.0 * ROUNDINGS,
            // Of a matrix that is nearly orthogonal already a small part is its rounding; sums of 16 bits round once more with each micro-batch.
            ("Muon", true) => 2.0 * ROUNDINGS,
            ("Muon", false) | (_, true) => ROUNDINGS,
            _ if rounded => HALVES,
            _ => ROUNDINGS,
        };
        let most = match () {
            _ if legs.iter().any(|l| l.on("quantized")) => QUANTIZED,
            // An optimizer that divides by the size of a gradient makes as much of one that is nearly rounded away.
            _ if l.is("wire", "16 bits") && l.on("optimizer") => {
                [ROUNDED, ROUNDED, ROUNDED, 10.0 * ROUNDED]
            }
            _ if l.is("wire", "16 bits") => [ROUNDED; 4],
            _ => [MOST; 4],
        };
        match far.within(most, times, of) {
            true => Ok(()),
            false => fault(
                Kind::Far,
                format!(
                    "losses, norms, validations, parameters: {far:?}, where {of:?} are expected"
                ),
            ),
        }
    }

    /// Holds its ledgers against its plan: of each class of ranks the first.
    fn ledgers(
        &mut self,
        l: &Layout,
        ran: &Ran,
        checked: &crossweave::Checked,
    ) -> Result<(), Fault> {
        // Rows that come to experts without a capacity follow from data.
        let follows = l.on("experts") && !l.on("capacity") && l.n("ep") * l.etp() > 1;
        if follows {
            return Ok(());
        }
        self.planned += 1;
        let mesh = &checked.resolved.mesh;
        for ranks in &checked.sizes.as_ref().expect("sizes").classes {
            let rank = ranks[0];
            let planned = self.trainer(l).plan(&Planning {
                rank,
                ..Planning::default()
            });
            let planned = planned.or_else(|e| fault(Kind::Refused, format!("planned: {e}")))?;
            let stage = mesh.place(rank).at(Axis::Pp) as usize;
            let said = json!(planned.stages()[stage]);
            let found = &ran.ledger["ranks"][rank as usize];
            let wrong = |what: String| fault(Kind::Ledger, format!("rank {rank}: {what}"));
            for (tag, held) in said["memory"].as_object().expect("tags") {
                if held.get("at_peak").is_none()
                    || ["staging", "total", "checkpoint", "workspace"].contains(&tag.as_str())
                    || tag == "comm" && l.on("checked")
                {
                    continue;
                }
                let got = &found["memory"]["tags"][tag];
                let pair = |v: &Value, a: &str| v[a].as_u64().unwrap_or(0);
                let (got, want) = (
                    [pair(got, "now"), pair(got, "peak")],
                    [pair(held, "bytes"), pair(held, "peak")],
                );
                if got != want {
                    return wrong(format!(
                        "bytes of {tag} now and at most: {got:?}, and planned {want:?}"
                    ));
                }
            }
            if !l.on("validation") {
                let steps = super::config::STEPS;
                let each = lines(&said["collectives"]);
                let first = match &said["collectives_of_first_step"] {
                    Value::Null => each.clone(),
                    v => lines(v),
                };
                let mut want = first;
                for (key, n) in each {
                    let sum = want.entry(key).or_default();
                    sum.iter_mut()
                        .zip(n)
                        .for_each(|(s, n)| *s += (steps - 1) * n);
                }
                let got = lines(&found["collectives"]);
                if got != want {
                    let other = got
                        .iter()
                        .filter(|(k, v)| want.get(*k) != Some(v))
                        .map(|(k, v)| format!("{k}: {v:?}, planned {:?}", want.get(k)));
                    let missing = want
                        .keys()
                        .filter(|k| !got.contains_key(*k))
                        .map(|k| format!("no {k}"));
                    let all: Vec<String> = other.chain(missing).collect();
                    return wrong(all.join("; "));
                }
            }
        }
        Ok(())
    }

    /// Holds a layout that breaks rules: it is refused by the key of one, by all verbs alike.
    ///
    /// # Errors
    /// What is wrong.
    pub fn refused(&mut self, l: &Layout) -> Result<(), Fault> {
        let broken = RULES.iter().filter(|r| (r.broken)(l));
        let keys: Vec<&str> = broken.map(|r| r.key).collect();
        self.base(l)?;
        let checked = self.trainer(l).check().map(drop);
        let planned = self.trainer(l).plan(&Planning::default()).map(drop);
        let out = self.out();
        let trained = self.trainer(l).out(&out).start();
        let _ = std::fs::remove_dir_all(&out);
        for (verb, done) in [("check", checked), ("plan", planned), ("train", trained)] {
            let said = match done {
                Ok(()) => format!("{verb} allows what {keys:?} should refuse"),
                Err(e) => match keys.iter().any(|k| e.to_string().contains(k)) {
                    true => continue,
                    false => format!("{verb} refuses it, and not by {keys:?}: {e}"),
                },
            };
            return fault(Kind::Allowed, said);
        }
        Ok(())
    }
}

/// Bits of f32 that the type in which a layout computes has not.
fn digits(l: &Layout) -> u32 {
    match l.pick("types") {
        "bf16" => 16,
        "fp16" => 13,
        _ => 0,
    }
}

/// Moves each weight by a place of its last digit, of a type that lacks so many `low` bits.
fn move_weights(t: &mut Trainer, low: u32) -> Result<(), TrainError> {
    let mut d = super::draw::Dice(5);
    for (name, _) in t.params()? {
        let mut values = t.read(&name)?;
        for v in values.iter_mut().filter(|v| **v != 0.0) {
            let by = d.of(&[0, 1, u32::MAX]) << low;
            *v = f32::from_bits(v.to_bits().wrapping_add(by));
        }
        t.write(&name, &values)?;
    }
    Ok(())
}

/// Calls, elements, bytes and elements on the wire by kind, group and tag, without the few scalars that a run agrees on before its first step.
fn lines(v: &Value) -> BTreeMap<String, [u64; 4]> {
    let mut out: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    for l in v
        .as_array()
        .into_iter()
        .flatten()
        .filter(|l| l["tag"] != "scalar" && l["tag"] != "check")
    {
        let key = format!("{} {} {} {}", l["kind"], l["group"], l["tag"], l["ranks"]);
        let sum = out.entry(key).or_default();
        let fields = ["calls", "elements", "bytes", "wire_elements"];
        for (sum, field) in sum.iter_mut().zip(fields) {
            *sum += l[field].as_u64().expect("a count");
        }
    }
    out
}

/// Asserts that two runs have the same bits.
fn same(a: &Ran, b: &Ran) -> Result<(), String> {
    for (step, (a, b)) in a.figures.iter().zip(&b.figures).enumerate() {
        for (k, name) in ["loss", "norm", "validation"].iter().enumerate() {
            if a[k].map(f64::to_bits) != b[k].map(f64::to_bits) {
                return Err(format!(
                    "record {step}: the {name} is {:?}, and {:?}",
                    a[k], b[k]
                ));
            }
        }
    }
    for (name, (.., theirs)) in &b.params {
        let ours = a.params.get(name).map(|p| &p.2);
        if ours != Some(theirs) {
            return Err(format!("other bits of {name}"));
        }
    }
    Ok(())
}

/// The same sums in the plainest way, where the bits are promised to be those: docs/determinism.md and docs/pipelines.md.
fn twin(l: &Layout) -> Option<Layout> {
    let mut of = [*l, l.rest()]
        .into_iter()
        .take(1 + usize::from(l.on("resume")))
        .map(|leg| {
            let (several, offloads) = (leg.micro_batches() > 1, leg.on("offload"));
            let sharing = leg.n("dp") * leg.n("cp");
            let whole = leg.on("pp") || leg.on("shards");
            let each = several
                && match leg.pick("reduced") {
                    "auto" if whole => false,
                    "auto" if offloads => leg.n("zero") > 1 || leg.n("zero") == 1 || sharing == 1,
                    "auto" => leg.n("zero") > 1 && sharing > 1,
                    how => how == "micro_batch",
                };
            let split = ["zb-h1", "zbv", "dualpipev"].contains(&leg.pick("schedule"));
            let unlike = (split && (each || leg.on("sums")))
            || rounds_on_the_way(&leg)
            // The host adds up in f32, and of pieces of rows what ranks have summed.
            || (each && offloads && (leg.on("sums") || leg.on("tp")))
            || leg.on("quantized")
            // T5 looks up tokens twice in one table.
            || (leg.on("pp") && (tied(&leg) || l.is("family", "t5")))
            || (leg.on("order") && (leg.on("tp") || leg.on("cp")))
            // Ranks that share experts are others than those that share layers.
            || (leg.on("experts") && (leg.on("tp") || leg.on("ep")));
            if unlike {
                return None;
            }
            let mut plain = leg;
            for (i, axis) in AXES.iter().enumerate() {
                if axis.of == Of::Way || ["pp", "order", "reduced"].contains(&axis.name) {
                    plain.picks[i] = 0;
                }
            }
            plain.then = [0; AXES.len()];
            if each {
                plain.picks[number("zero")] = 2;
                plain.picks[number("reduced")] = 2;
            } else if several {
                plain.picks[number("reduced")] = 1;
            }
            Some(plain)
        });
    let first = of.next().flatten()?;
    let rest = of.next();
    (rest.is_none() || rest == Some(Some(first)))
        .then_some(first)
        .filter(|t| t.goes())
}

/// Do gradients go to the host in 16 bits?
fn rounds_on_the_way(l: &Layout) -> bool {
    l.on("offload") && (l.on("types") || l.on("wire")) && !l.is("wire", "32 bits")
}

/// The config of a layout as a file for `train`, and the command; what is resumed has two.
pub fn written(l: &Layout, lab: &Lab, to: &Path) -> String {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).expect("a folder");
    files(to);
    if l.on("adapters") {
        let base = base_of(l);
        crate::support::copy_dir(&lab.folder.path().join(&base), &to.join(base));
    }
    let mut said = String::new();
    let legs = [
        ("config.json", *l),
        ("rest.json", l.rest()),
        ("alone.json", l.alone()),
    ];
    for (name, leg) in legs
        .into_iter()
        .filter(|(name, _)| l.on("resume") || *name != "rest.json")
    {
        let file = to.join(name);
        let text =
            serde_json::to_string_pretty(&placed(&config(&leg, lab.seed), to)).expect("JSON");
        std::fs::write(&file, text).expect("a file");
        let (out, ranks) = (to.join(name.replace(".json", "")), leg.ranks());
        said += &format!(
            "    cargo run --release -- train {} --ranks {ranks} --out {}",
            file.display(),
            out.display()
        );
        if name == "rest.json" {
            said += &format!(" --resume {}", to.join("config").display());
        }
        said.push('\n');
    }
    assert!(open_json(&to.join("config.json")).is_object());
    said
}
