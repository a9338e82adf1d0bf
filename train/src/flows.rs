//! Arrows of a trace in the order of time. Readers of the format (Perfetto, chrome://tracing) begin an arrow at `s`, lead it on
//! at each `t` and end it at `f`, in the order of their times, and lose what comes before its `s`. Which rank is where in a
//! collective is not known while the ranks write, so the phases are given when their parts are put together.

use serde_json::Value;
use std::collections::HashMap;

/// The points of every arrow of a job, by the arrow's number.
#[derive(Default)]
pub struct Flows {
    points: HashMap<u64, Vec<(f64, u64)>>,
    seen: u64,
    asked: u64,
}

/// The number of the arrow that this event is a point of.
fn arrow(event: &Value) -> Option<u64> {
    let flow = event.get("cat").and_then(Value::as_str) == Some("flow");
    event.get("id").filter(|_| flow)?.as_u64()
}

impl Flows {
    /// Takes note of an event, whose time is the job's. All events of all parts come here first, then to [`Flows::place`] in the
    /// same order.
    pub fn note(&mut self, event: &Value, ts: f64) {
        if let Some(id) = arrow(event) {
            self.points.entry(id).or_default().push((ts, self.seen));
            self.seen += 1;
        }
    }

    /// Between the two.
    pub fn sort(&mut self) {
        for points in self.points.values_mut() {
            points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
    }

    /// Gives a point its phase; false for what is alone, since an arrow has two ends.
    pub fn place(&mut self, event: &mut Value) -> bool {
        let Some(id) = arrow(event) else {
            return true;
        };
        let own = self.asked;
        self.asked += 1;
        let points = self.points.get(&id).map_or(&[][..], Vec::as_slice);
        let Some(at) = points.iter().position(|(_, number)| *number == own) else {
            return false;
        };
        event["ph"] = match at {
            0 => "s",
            n if n + 1 == points.len() => "f",
            _ => "t",
        }
        .into();
        points.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_in_time_begins_and_the_last_ends() {
        let point = |id: u64, ts: f64| json!({"cat": "flow", "ph": "t", "id": id, "ts": ts});
        let mut events = [
            point(1, 30.0),
            point(2, 5.0),
            json!({"cat": "plan", "ts": 1.0}),
            point(1, 10.0),
            point(1, 20.0),
            point(3, 7.0),
            // At one time the order of the file decides, as for its readers.
            point(2, 5.0),
        ];
        let mut flows = Flows::default();
        for e in &events {
            flows.note(e, e["ts"].as_f64().unwrap());
        }
        flows.sort();
        let kept: Vec<bool> = events.iter_mut().map(|e| flows.place(e)).collect();
        let phases: Vec<_> = events.iter().map(|e| e["ph"].as_str()).collect();
        let (s, t, f) = (Some("s"), Some("t"), Some("f"));
        assert_eq!(phases, [f, s, None, s, t, s, f]);
        assert_eq!(kept, [true, true, true, true, true, false, true]);
    }
}
