//! A layout: a choice of each axis. Drawn by a seed towards what was seen least, and made smaller.

use super::axes::{AXES, Axis, Of, RULES, Rule};
use std::collections::HashSet;

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len() as u64) as usize]
    }
}

/// A choice of each axis, by its number.
pub type Picks = [u8; AXES.len()];

/// How a job is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout {
    pub picks: Picks,
    /// The mesh on which it is resumed, where it is.
    pub then: Picks,
}

/// The number of an axis.
pub fn number(axis: &str) -> usize {
    let at = AXES.iter().position(|a| a.name == axis);
    at.unwrap_or_else(|| panic!("no axis {axis}"))
}

/// The first number in the name of a choice.
fn numbers(name: &str) -> Vec<u64> {
    let parts = name.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|p| p.parse().ok()).collect()
}

impl Layout {
    /// Sequences of a step.
    pub const BATCH: u64 = 12;

    /// One rank, and nothing special.
    pub fn plain() -> Layout {
        let picks = [0; AXES.len()];
        Layout { picks, then: picks }
    }

    /// The name of its choice.
    pub fn pick(&self, axis: &str) -> &'static str {
        let at = number(axis);
        AXES[at].choices[self.picks[at] as usize].name
    }
    pub fn is(&self, axis: &str, choice: &str) -> bool {
        self.pick(axis) == choice
    }
    /// Returns true if it says something of the axis.
    pub fn on(&self, axis: &str) -> bool {
        self.picks[number(axis)] > 0
    }
    /// The number that its choice is, 1 where it is none.
    pub fn n(&self, axis: &str) -> u64 {
        numbers(self.pick(axis)).first().copied().unwrap_or(1)
    }
    /// Query heads, their width, and the inner width.
    pub fn heads(&self) -> [u64; 3] {
        let all = numbers(self.pick("heads"));
        all.try_into().expect("three numbers")
    }
    /// Key-value heads.
    pub fn kv(&self) -> u64 {
        let heads = self.heads()[0];
        match self.pick("kv") {
            "one" => 1,
            "half" if heads.is_multiple_of(2) => heads / 2,
            _ => heads,
        }
    }
    pub fn ranks(&self) -> u64 {
        ["dp", "tp", "cp", "pp"].iter().map(|a| self.n(a)).product()
    }
    /// Ranks of a stage.
    pub fn stage(&self) -> u64 {
        self.ranks() / self.n("pp")
    }
    /// Ranks that have parts of an expert.
    pub fn etp(&self) -> u64 {
        match self.on("etp") {
            true => 1,
            false => self.n("tp"),
        }
    }
    /// Experts of a layer that has some.
    pub fn experts(&self) -> u64 {
        match self.pick("experts") {
            "by layers" => 3,
            _ => 4,
        }
    }
    /// Does a layer have an MLP?
    pub fn has_mlps(&self) -> bool {
        !self.is("experts", "4")
    }
    /// Parts of the batch that are summed by themselves.
    pub fn replicas(&self) -> u64 {
        match self.on("shards") {
            true => self.n("shards"),
            false => self.n("dp"),
        }
    }
    pub fn micro_batches(&self) -> u64 {
        Layout::BATCH / (self.replicas() * self.n("micro"))
    }
    /// Units of the model.
    pub fn units(&self) -> u64 {
        match self.pick("family") {
            // Layers of an encoder and of a decoder, which has an embedding too.
            "t5" => 2 * self.n("layers") + 3,
            _ => self.n("layers") + 2,
        }
    }
    /// Runs of units that a stage has.
    pub fn runs(&self) -> u64 {
        match self.pick("schedule") {
            "interleaved" | "zbv" | "dualpipev" => 2,
            "3 runs" => 3,
            _ => 1,
        }
    }
    /// Ranks that exchange tokens for heads.
    pub fn exchange(&self) -> u64 {
        match self.pick("meeting") {
            "a2a" => self.n("cp"),
            "a2a+p2p" => 2,
            _ => 1,
        }
    }
    /// Equal pieces into which rows are cut.
    pub fn pieces(&self) -> u64 {
        let contiguous = match self.pick("pieces") {
            "auto" => self.is("meeting", "a2a") || self.is("family", "bert"),
            said => said == "contiguous",
        };
        match self.on("cp") && !contiguous {
            true => 2 * self.n("cp"),
            false => self.n("cp"),
        }
    }
    /// The keys of its choices are those of one that runs, or this rule forbids it.
    pub fn broken(&self) -> Option<&'static Rule> {
        RULES.iter().find(|r| (r.broken)(self))
    }
    /// Returns true if every choice has what it asks of others.
    fn is_whole(&self) -> bool {
        AXES.iter().zip(self.picks).all(|(axis, pick)| {
            let needs = axis.choices[pick as usize].needs;
            needs
                .iter()
                .all(|(a, will_do)| will_do.contains(&self.pick(a)))
        })
    }
    /// Returns true if it can be asked for.
    pub fn goes(&self) -> bool {
        self.is_whole() && self.broken().is_none()
    }
    /// The mesh on which it is resumed, as a layout.
    pub fn rest(&self) -> Layout {
        let mut picks = self.then;
        picks[number("resume")] = 0;
        Layout {
            picks,
            then: [0; AXES.len()],
        }
    }
    /// With a choice, and what that asks of others.
    fn turned(mut self, axis: usize, pick: u8, d: &mut Dice) -> Option<Layout> {
        self.picks[axis] = pick;
        for (other, will_do) in AXES[axis].choices[pick as usize].needs {
            if !will_do.contains(&self.pick(other)) {
                let at = number(other);
                let name = d.of(will_do);
                let pick = AXES[at].choices.iter().position(|c| c.name == name)?;
                self = self.turned(at, pick as u8, d)?;
            }
        }
        Some(self)
    }
    /// The axes that it says something of.
    pub fn axes(&self) -> impl Iterator<Item = usize> {
        let picks = self.picks;
        (0..AXES.len()).filter(move |i| picks[*i] > 0)
    }
    /// What one rank alone has of it.
    pub fn alone(&self) -> Layout {
        let mut picks = self.picks;
        for (axis, pick) in AXES.iter().zip(&mut picks) {
            // Shards are as large as their micro-batches, and their sum is divided and rounded as it travels.
            let of_shards = self.on("shards") && ["micro", "divided", "wire"].contains(&axis.name);
            if axis.of != Of::Job && !of_shards {
                *pick = 0;
            }
        }
        Layout {
            picks,
            then: [0; AXES.len()],
        }
    }
    /// The layout of these words.
    pub fn parse(words: &str) -> Layout {
        let leg = |words: &str, mut picks: Picks| {
            let mut left = words.trim();
            while !left.is_empty() {
                let axis = AXES
                    .iter()
                    .position(|a| left.starts_with(&format!("{} ", a.name)));
                let axis = axis.unwrap_or_else(|| panic!("no axis begins {left:?}"));
                let rest = &left[AXES[axis].name.len() + 1..];
                let choices = AXES[axis].choices.iter().enumerate();
                let fits = choices
                    .filter(|(_, c)| rest == c.name || rest.starts_with(&format!("{}, ", c.name)));
                let (pick, choice) = fits
                    .max_by_key(|(_, c)| c.name.len())
                    .unwrap_or_else(|| panic!("no choice begins {rest:?}"));
                picks[axis] = pick as u8;
                left = rest[choice.name.len()..].trim_start_matches(", ");
            }
            picks
        };
        let (first, then) = words.split_once("; then ").unwrap_or((words, ""));
        let mut l = Layout::plain();
        l.picks = leg(first, l.picks);
        if l.on("resume") {
            l.then = leg(then, l.alone().picks);
        }
        l
    }
    /// Its choices in words.
    pub fn words(&self) -> String {
        let of = |picks: &Picks, of: &dyn Fn(usize) -> bool| {
            let named = (0..AXES.len()).filter(|i| picks[*i] > 0 && of(*i));
            let named = named.map(|i| {
                format!(
                    "{} {}",
                    AXES[i].name, AXES[i].choices[picks[i] as usize].name
                )
            });
            named.collect::<Vec<_>>().join(", ")
        };
        let first = of(&self.picks, &|_| true);
        match self.on("resume") {
            true => format!(
                "{first}; then {}",
                of(&self.then, &|i| AXES[i].of != Of::Job)
            ),
            false => first,
        }
    }
}

/// How often each choice, and each two axes, were seen.
pub struct Seen {
    pub choices: Vec<Vec<u64>>,
    pub pairs: Vec<Vec<u64>>,
}

impl Seen {
    pub fn new() -> Seen {
        let n = AXES.len();
        let choices = AXES.iter().map(|a| vec![0; a.choices.len()]);
        Seen {
            choices: choices.collect(),
            pairs: vec![vec![0; n]; n],
        }
    }
    pub fn count(&mut self, l: &Layout) {
        for (counts, pick) in self.choices.iter_mut().zip(l.picks) {
            counts[pick as usize] += 1;
        }
        for i in l.axes() {
            for j in l.axes().filter(|j| *j != i) {
                self.pairs[i][j] += 1;
            }
        }
    }
}

/// What a run keeps when it is resumed, beside what is trained.
const KEPT: [&str; 3] = ["divided", "wire", "sums"];

/// Returns true of an axis whose choice is that of the whole run.
fn of_run(axis: &Axis) -> bool {
    axis.of == Of::Job || KEPT.contains(&axis.name)
}

/// Draws layouts.
pub struct Draws {
    pub dice: Dice,
    pub seen: Seen,
    /// Choices that every layout has.
    always: Layout,
    drawn: HashSet<Layout>,
    /// Tries of each two axes since the last layout that has both, and the key by which they are refused.
    pub never: Vec<Vec<(u32, &'static str)>>,
}

/// Tries after which two axes are taken not to go together.
pub const TRIES: u32 = 200;
/// Two axes that were seen together less often are drawn together more.
pub const FEW: u64 = 10;
/// Choices of which one is drawn beside them, the least seen.
const RARE: usize = 8;

impl Draws {
    pub fn new(seed: u64, always: Layout) -> Draws {
        let n = AXES.len();
        Draws {
            dice: Dice(seed),
            seen: Seen::new(),
            always,
            drawn: HashSet::new(),
            never: vec![vec![(0, ""); n]; n],
        }
    }

    /// Takes a layout as drawn.
    pub fn took(&mut self, l: Layout) -> bool {
        let new = self.drawn.insert(l);
        if new {
            self.seen.count(&l);
        }
        new
    }

    /// The two axes that were drawn together least, of those that may be.
    fn rarest(&mut self) -> [usize; 2] {
        let n = AXES.len();
        let pairs = (0..n).flat_map(|i| (0..i).map(move |j| [i, j]));
        let able = pairs.filter(|[i, j]| self.never[*i][*j].0 < TRIES);
        let mut best: Vec<[usize; 2]> = vec![];
        let mut least = u64::MAX;
        for pair in able {
            let seen = self.seen.pairs[pair[0]][pair[1]];
            if seen < least {
                (least, best) = (seen, vec![]);
            }
            if seen == least {
                best.push(pair);
            }
        }
        self.dice.of(&best)
    }

    /// A choice of an axis: of two the one with fewer ranks, or that was seen less.
    fn any_pick(&mut self, axis: usize) -> u8 {
        let others = AXES[axis].choices.len() as u64 - 1;
        let [one, other] = [0; 2].map(|_| 1 + self.dice.roll(others) as usize);
        let ranks = ["dp", "tp", "cp", "pp"].contains(&AXES[axis].name);
        let seen = &self.seen.choices[axis];
        let first = match ranks {
            true => one <= other,
            false => seen[one] <= seen[other],
        };
        (if first { one } else { other }) as u8
    }

    /// The layout with one of the choices that were seen least, where it goes with these axes.
    fn rare(&mut self, l: Layout, fixed: &[usize]) -> Layout {
        let rows = self.seen.choices.iter().enumerate();
        let others = rows
            .flat_map(|(axis, row)| (1..row.len()).map(move |pick| (row[pick], axis, pick as u8)));
        let mut others: Vec<_> = others.filter(|o| !fixed.contains(&o.1)).collect();
        others.sort_unstable();
        others.truncate(RARE);
        let (_, axis, pick) = self.dice.of(&others);
        let turned = l.turned(axis, pick, &mut self.dice);
        let kept = |t: &Layout| fixed.iter().all(|i| t.picks[*i] == l.picks[*i]) && t.goes();
        turned.filter(kept).unwrap_or(l)
    }

    /// Times of ten that an axis is drawn beside those that a layout has: more where few were seen together.
    fn tenths(&self, axis: usize, fixed: &[usize]) -> u64 {
        let pairs = fixed.iter().filter(|f| **f != axis);
        let least = pairs.map(|f| self.seen.pairs[axis][*f]).min();
        match least {
            Some(n) if n < FEW => 6,
            _ => 3,
        }
    }

    /// With further choices of the axes that `may` be drawn, as far as they go.
    fn filled(
        &mut self,
        mut l: Layout,
        most: u64,
        fixed: &[usize],
        may: impl Fn(&Axis) -> bool,
    ) -> Layout {
        let mut order: Vec<usize> = (0..AXES.len()).filter(|i| may(&AXES[*i])).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.dice.roll(i as u64 + 1) as usize);
        }
        for axis in order {
            let pick = self.any_pick(axis);
            let tenths = self.tenths(axis, fixed);
            if fixed.contains(&axis) || l.picks[axis] > 0 || self.dice.roll(10) >= tenths {
                continue;
            }
            let turned = l.turned(axis, pick, &mut self.dice);
            let kept = |t: &Layout| {
                fixed.iter().all(|i| t.picks[*i] == l.picks[*i]) && l.axes().all(|i| t.picks[i] > 0)
            };
            if let Some(t) = turned.filter(|t| kept(t) && t.goes() && t.ranks() <= most) {
                // What one rank has too is not to change where the mesh alone is drawn.
                if AXES
                    .iter()
                    .enumerate()
                    .all(|(i, a)| may(a) || t.picks[i] == l.picks[i])
                {
                    l = t;
                }
            }
        }
        l
    }

    /// A layout with two axes of which few were seen together; counted.
    pub fn draw(&mut self) -> Layout {
        loop {
            let [i, j] = self.rarest();
            let [a, b] = [i, j].map(|axis| self.any_pick(axis));
            let begun = self.always.turned(i, a, &mut self.dice);
            let begun = begun.and_then(|l| l.turned(j, b, &mut self.dice));
            let kept = |l: &Layout| self.always.axes().all(|k| l.picks[k] > 0);
            let both = |l: &Layout| l.picks[i] > 0 && l.picks[j] > 0 && l.is_whole();
            let begun = begun.filter(|l| both(l) && kept(l));
            let never = &mut self.never[i][j];
            never.0 += 1;
            if let Some(rule) = begun.and_then(|l| l.broken()) {
                never.1 = rule.key;
            }
            let Some(begun) = begun.filter(Layout::goes) else {
                continue;
            };
            let fixed: Vec<usize> = begun.axes().collect();
            let begun = match self.dice.roll(2) {
                0 => self.rare(begun, &fixed),
                _ => begun,
            };
            let fixed: Vec<usize> = begun.axes().collect();
            // Fewer ranks take less time, and show as much.
            let most = match self.dice.roll(6) {
                0 => 8,
                _ => begun.ranks().max(4),
            };
            let mut l = self.filled(begun, most, &fixed, |_| true);
            if l.on("resume") {
                // Shards are as large as their micro-batches.
                let shards = l.on("shards");
                let mut begun = l.alone();
                for axis in KEPT.map(number) {
                    begun.picks[axis] = l.picks[axis];
                }
                let job: Vec<usize> = begun.axes().collect();
                let rest = self.filled(begun, 4, &job, |a| {
                    !of_run(a) && a.name != "resume" && !(shards && a.name == "micro")
                });
                l.then = rest.picks;
                if !rest.goes() {
                    continue;
                }
            }
            if self.took(l) {
                self.never[i][j].0 = 0;
                return l;
            }
        }
    }

    /// A layout that breaks a rule of those with a key.
    pub fn refused(&mut self) -> Layout {
        loop {
            let mut l = Layout::plain();
            for _ in 0..3 + self.dice.roll(6) {
                let axis = self.dice.roll(AXES.len() as u64) as usize;
                let pick = self.any_pick(axis);
                l = l.turned(axis, pick, &mut self.dice).unwrap_or(l);
            }
            l.picks[number("resume")] = 0;
            let keyed = l.broken().is_some_and(|r| !r.key.is_empty());
            if keyed && l.is_whole() && l.ranks() <= 8 {
                return l;
            }
        }
    }
}

/// Layouts that are smaller than this one by a choice, the smallest first.
pub fn smaller(l: &Layout) -> Vec<Layout> {
    let mut all = vec![];
    if l.on("resume") {
        let mut whole = *l;
        whole.picks[number("resume")] = 0;
        whole.then = Layout::plain().picks;
        all.extend([l.rest(), whole]);
        for (i, axis) in AXES.iter().enumerate() {
            for pick in 0..l.then[i] {
                let mut less = *l;
                less.then[i] = pick;
                if of_run(axis) {
                    less.picks[i] = pick;
                }
                all.push(less);
            }
        }
    }
    for i in l.axes() {
        for pick in 0..l.picks[i] {
            let mut less = *l;
            less.picks[i] = pick;
            if of_run(&AXES[i]) && l.on("resume") {
                less.then[i] = pick;
            }
            // What asked for it goes with it.
            for other in 0..AXES.len() {
                if !less.is_whole()
                    && AXES[other].choices[less.picks[other] as usize]
                        .needs
                        .iter()
                        .any(|(a, _)| *a == AXES[i].name)
                {
                    less.picks[other] = 0;
                }
            }
            all.push(less);
        }
    }
    let goes = |l: &Layout| l.goes() && (!l.on("resume") || l.rest().goes());
    all.into_iter().filter(goes).collect()
}
