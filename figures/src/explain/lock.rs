//! Routes as a file to commit: a later run that goes a worse way, or needs more launches, is reported and fails.

use super::collectives::CollectiveRow;
use super::rows::Row;
use crate::train_error::{Result, TrainError};
use crossweave_hal::RouteKind;
use crossweave_report::whole;
use serde::{Deserialize, Serialize};
use std::path::Path;

const SCHEMA: &str = "crossweave.routes/1";

/// One route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// Op or collective with its types: `matmul bf16`.
    op: String,
    /// Shape, or the group of a collective.
    shape: String,
    /// The way.
    route: String,
    /// Launches of a call.
    launches: u64,
    /// Tier of a native route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tier: Option<u32>,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    schema: String,
    plugin: String,
    config: String,
    /// Sorted.
    pub routes: Vec<Locked>,
}

/// Ways of collectives: native, composed, by the host, none.
const COLLECTIVE: [&str; 4] = ["native", "composed", "by the host", "none"];

impl Locked {
    /// Place in the order of ways, best first; a native op of a better tier is better.
    fn rank(&self) -> Option<(usize, u64, u64)> {
        let at = match RouteKind::by_name(&self.route) {
            Some(r) => r as usize,
            None => COLLECTIVE.iter().position(|c| *c == self.route)?,
        };
        let tier = self.tier.map_or(0, |t| 2 - u64::from(t.min(2)));
        Some((at, tier, self.launches))
    }
    fn way(&self) -> String {
        let tier = match self.tier {
            Some(0) => " (reference)",
            Some(2) => " (tuned)",
            _ => "",
        };
        format!("{}{tier}, {} launches", self.route, self.launches)
    }
}

impl Lock {
    /// The lock of what was found.
    pub fn of((plugin, config): (&str, &str), ops: &[Row], colls: &[CollectiveRow]) -> Lock {
        let mut routes: Vec<Locked> = ops
            .iter()
            .filter_map(|r| {
                let h = r.how.as_ref().ok()?;
                Some(Locked {
                    op: format!("{} {}", r.op, r.types),
                    shape: r.shape.clone(),
                    route: h.route.name().into(),
                    launches: h.launches,
                    tier: h.tier.filter(|_| h.route == RouteKind::Native),
                })
            })
            .collect();
        routes.extend(
            colls
                .iter()
                .filter(|c| c.launches_per_call.is_some() || c.route.starts_with("by"))
                .map(|c| {
                    let route = match c.native {
                        true => 0,
                        false if c.route.starts_with("by") => 2,
                        false if c.route.starts_with("none") => 3,
                        false => 1,
                    };
                    Locked {
                        op: c.what.clone(),
                        shape: format!("{} of {}, {}", c.group, c.ranks, c.count),
                        route: COLLECTIVE[route].into(),
                        launches: c.launches_per_call.unwrap_or(0),
                        tier: None,
                    }
                }),
        );
        routes.sort_by(|a, b| (&a.op, &a.shape, a.rank()).cmp(&(&b.op, &b.shape, b.rank())));
        // Of one op and shape that goes several ways the worst one counts.
        routes.reverse();
        routes.dedup_by(|a, b| (&a.op, &a.shape) == (&b.op, &b.shape));
        routes.reverse();
        Lock {
            schema: SCHEMA.into(),
            plugin: plugin.to_string(),
            config: config.to_string(),
            routes,
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or is none.
    pub fn read(path: &Path) -> Result<Lock> {
        let text = crossweave_files::read_text(path, crossweave_files::TABLE)
            .map_err(TrainError::io("read the lock", path))?;
        let bad = |why: String| {
            TrainError::refused(
                format!("{}: {why}", path.display()),
                "write it anew with --write-lock",
            )
        };
        let lock: Lock =
            serde_json::from_str(&text).map_err(|e| bad(format!("no lock of routes: {e}")))?;
        if lock.schema != SCHEMA {
            return Err(bad(format!(
                "its schema is {:?}, and this program reads {SCHEMA:?}",
                lock.schema
            )));
        }
        match lock.routes.iter().find(|r| r.rank().is_none()) {
            Some(r) => Err(bad(format!(
                "{} {}: no route is called {:?}",
                r.op, r.shape, r.route
            ))),
            None => Ok(lock),
        }
    }

    /// Writes it, whole or not at all, a line a route so that a diff is readable.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        TrainError::not_a_file("--write-lock", path)?;
        let io = |e: std::io::Error| TrainError::io("write", path)(e);
        let json = |v: &dyn Fn() -> serde_json::Result<String>| v().map_err(std::io::Error::from);
        let mut text = String::from("{\n");
        for (key, value) in [
            ("schema", &self.schema),
            ("plugin", &self.plugin),
            ("config", &self.config),
        ] {
            let value = json(&|| serde_json::to_string(value)).map_err(io)?;
            text += &format!(" \"{key}\": {value},\n");
        }
        let lines = self
            .routes
            .iter()
            .map(|r| json(&|| serde_json::to_string(r)));
        let lines: Vec<String> = lines.collect::<std::io::Result<_>>().map_err(io)?;
        text += &format!(" \"routes\": [\n  {}\n ]\n}}\n", lines.join(",\n  "));
        whole::write(path, text).map_err(io)
    }

    /// What `now` is against this.
    pub fn compare(&self, now: &Lock) -> Difference {
        let mut d = Difference::default();
        for r in &now.routes {
            let was = self
                .routes
                .iter()
                .find(|l| (&l.op, &l.shape) == (&r.op, &r.shape));
            // A shape that is new is held against the worst way the same op had in any.
            let of_op = self
                .routes
                .iter()
                .filter(|l| l.op == r.op)
                .max_by_key(|l| l.rank().map(|k| (k.0, k.1)));
            let (Some(then), exact) = (was.or(of_op), was.is_some()) else {
                d.new.push(format!("{} {}: {}", r.op, r.shape, r.way()));
                continue;
            };
            let key = |l: &Locked| {
                let k = l.rank().unwrap_or((usize::MAX, 0, 0));
                if exact { k } else { (k.0, k.1, 0) }
            };
            let line = format!("{} {}: was {}, is {}", r.op, r.shape, then.way(), r.way());
            match key(r).cmp(&key(then)) {
                std::cmp::Ordering::Greater => d.worse.push(line),
                std::cmp::Ordering::Less if exact => d.better.push(line),
                _ => {}
            }
        }
        let gone = |l: &&Locked| {
            now.routes
                .iter()
                .all(|r| (&r.op, &r.shape) != (&l.op, &l.shape))
        };
        d.gone = self
            .routes
            .iter()
            .filter(gone)
            .map(|l| format!("{} {}", l.op, l.shape))
            .collect();
        if self.plugin != now.plugin {
            d.other = Some(format!(
                "the lock is of {}, these are routes of {}",
                self.plugin, now.plugin
            ));
        }
        d
    }
}

/// How routes have changed, a line each.
#[derive(Debug, Default)]
pub struct Difference {
    /// Routes that are worse.
    pub worse: Vec<String>,
    /// Routes that are better.
    pub better: Vec<String>,
    /// Calls that were not there.
    pub new: Vec<String>,
    /// Calls that are not there any more.
    pub gone: Vec<String>,
    /// What else is not as it was: the back end or the config.
    pub other: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(routes: &[(&str, &str, &str, u64, Option<u32>)]) -> Lock {
        let one =
            |(op, shape, route, launches, tier): &(&str, &str, &str, u64, Option<u32>)| Locked {
                op: (*op).into(),
                shape: (*shape).into(),
                route: (*route).into(),
                launches: *launches,
                tier: *tier,
            };
        Lock {
            schema: SCHEMA.into(),
            plugin: "p".into(),
            config: "c".into(),
            routes: routes.iter().map(one).collect(),
        }
    }

    #[test]
    fn worse_is_a_later_route_a_lower_tier_or_more_launches() {
        let then = lock(&[
            ("a", "2", "native", 1, Some(1)),
            ("b", "2", "primitives", 5, None),
        ]);
        for worse in [
            ("a", "2", "elementwise_program", 1, None),
            ("a", "2", "native", 1, Some(0)),
            ("b", "2", "primitives", 6, None),
            ("b", "2", "host", 2, None),
            // A new shape of a known op.
            ("a", "4", "wider", 4, None),
        ] {
            let d = then.compare(&lock(&[worse]));
            assert_eq!((d.worse.len(), d.better.len()), (1, 0), "{worse:?} {d:?}");
        }
        for same in [
            ("a", "4", "native", 1, Some(1)),
            ("b", "4", "primitives", 50, None),
            ("b", "2", "primitives", 5, None),
        ] {
            let d = then.compare(&lock(&[same]));
            assert_eq!((d.worse.len(), d.better.len()), (0, 0), "{same:?} {d:?}");
        }
        let d = then.compare(&lock(&[
            ("a", "2", "native", 1, Some(2)),
            ("b", "2", "mixed", 9, None),
            ("c", "2", "host", 2, None),
        ]));
        assert_eq!(
            (d.worse.len(), d.better.len(), d.new.len()),
            (0, 2, 1),
            "{d:?}"
        );
    }
}
