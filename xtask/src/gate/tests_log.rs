//! What test programs print, read line by line: their closing lines, what failed, what took longest.

/// How many of the slowest tests are named.
const SLOWEST: usize = 10;

/// The lines that are kept, and their sums.
#[derive(Debug, Default)]
pub struct Log {
    program: String,
    kind: &'static str,
    counts: [usize; 3],
    closing: Vec<String>,
    slowest: Vec<(f64, String)>,
}

impl Log {
    /// Takes the next line.
    pub fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // `Running unittests src/lib.rs (target/release/deps/plan-0123)`, from cargo; then the
            // package, from `xtask timed`, since every integration test program is called `suite`.
            ["Running", "unittests", ..] => self.kind = ", unit tests",
            ["Running", ..] => self.kind = "",
            ["Testing", package] => self.program = format!("{package}{}", self.kind),
            ["Doc-tests", name] => self.program = format!("{name}, documents"),
            ["test", "result:", ..] => self.result(line, &words),
            // `test NAME ... ok <0.123s>`
            ["test", name, .., verdict, time] if time.starts_with('<') => {
                self.one(line, name, verdict, seconds(time));
            }
            ["test", name, .., verdict] => self.one(line, name, verdict, None),
            _ if line.starts_with("error: ") && !line.contains("target") => {
                self.closing.push(line.to_string());
            }
            _ => {}
        }
    }

    fn result(&mut self, line: &str, words: &[&str]) {
        let of = |what: &str| {
            let at = words.iter().position(|w| w.trim_end_matches(';') == what);
            let count = at.and_then(|i| words.get(i.checked_sub(1)?));
            count.and_then(|n| n.parse().ok()).unwrap_or(0)
        };
        let found = ["passed", "failed", "ignored"].map(of);
        for (sum, n) in self.counts.iter_mut().zip(found) {
            *sum += n;
        }
        // A program without a test of its kind says nothing.
        if found != [0; 3] {
            self.closing.push(line.to_string());
        }
    }

    fn one(&mut self, line: &str, name: &str, verdict: &str, time: Option<f64>) {
        if verdict == "FAILED" {
            self.closing.push(line.to_string());
        }
        let Some(time) = time else { return };
        let at = self.slowest.partition_point(|(t, _)| *t >= time);
        if at < SLOWEST {
            let name = format!("{}: {name}", self.program);
            self.slowest.insert(at, (time, name));
            self.slowest.truncate(SLOWEST);
        }
    }

    /// How many tests passed.
    pub fn passed(&self) -> usize {
        self.counts[0]
    }

    /// The slowest tests, then the closing lines.
    pub fn closing(&self) -> String {
        let mut out = String::new();
        if !self.slowest.is_empty() {
            out.push_str("\n== slowest tests\n");
        }
        for (time, name) in &self.slowest {
            out.push_str(&format!("{time:>7.1} s  {name}\n"));
        }
        if !self.closing.is_empty() {
            out.push_str("\n== closing lines\n");
        }
        for line in &self.closing {
            out.push_str(line);
            out.push('\n');
        }
        out
    }

    /// `P passed, F failed, I ignored`.
    pub fn sum(&self) -> String {
        let [passed, failed, ignored] = self.counts;
        format!("{passed} passed, {failed} failed, {ignored} ignored")
    }
}

fn seconds(time: &str) -> Option<f64> {
    let time = time.strip_prefix('<')?.strip_suffix("s>")?;
    time.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
     Running unittests src/lib.rs (target/release/deps/crossweave_plan-0a1b)
     Testing crossweave-plan
running 2 tests
test laws::quick ... ok <0.001s>
test laws::slow ... ok <3.250s>
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 3.25s
     Running tests/main.rs (target/release/deps/suite-77ff)
     Testing crossweave-engine
test walk::wrong ... FAILED <1.500s>
test walk::asleep ... ignored
test result: FAILED. 0 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 1.50s
   Doc-tests crossweave_plan
test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: 1 target failed:
";

    #[test]
    fn times_closing_lines_and_sums_are_read() {
        let mut log = Log::default();
        PRINTED.lines().for_each(|line| log.take(line));
        assert_eq!(log.sum(), "2 passed, 1 failed, 2 ignored");
        assert_eq!(log.passed(), 2);
        let text = log.closing();
        let slow: Vec<&str> = text.lines().skip(2).take(3).collect();
        assert_eq!(
            slow,
            [
                "    3.2 s  crossweave-plan, unit tests: laws::slow",
                "    1.5 s  crossweave-engine: walk::wrong",
                "    0.0 s  crossweave-plan, unit tests: laws::quick",
            ]
        );
        // Two closing lines and the test that failed; the empty program says nothing.
        let closing: Vec<&str> = text
            .lines()
            .skip_while(|l| !l.contains("closing"))
            .collect();
        assert_eq!(closing.len(), 4, "{text}");
        assert!(closing[2].starts_with("test walk::wrong"));
    }

    #[test]
    fn no_more_than_ten_are_named_and_the_slowest_are() {
        let mut log = Log::default();
        for i in 0..40 {
            log.take(&format!("test t{i} ... ok <{}.000s>", (i * 7) % 40));
        }
        let text = log.closing();
        assert_eq!(text.matches(" s  ").count(), 10);
        assert!(text.contains("39.0 s") && text.contains("30.0 s") && !text.contains("29.0 s"));
    }
}
