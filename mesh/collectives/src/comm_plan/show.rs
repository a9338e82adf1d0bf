//! Plans as text: a line a rank and round.

use super::{Buf, CommPlan, Move, Order, Span};
use std::fmt;

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = match self.home {
            Buf::Data => "data",
            Buf::Out => "out",
            Buf::Scratch => "scratch",
        };
        write!(f, "{home}[{}..{}]", self.at, self.at + self.n)
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Move::Send { span, to } => write!(f, "send {span} to {to}"),
            Move::Recv { span, from } => write!(f, "receive {span} from {from}"),
            Move::Copy { dst, src } => write!(f, "{dst} = {src}"),
            Move::Fold { dst, parts, by } => {
                let parts: Vec<String> = parts.iter().map(Span::to_string).collect();
                let by = match by {
                    Order::Given => "",
                    Order::Vendor => " in the vendor's order",
                };
                write!(f, "{dst} = {}{by}", parts.join(" + "))
            }
        }
    }
}

impl fmt::Display for CommPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.rank_order { ", rank order" } else { "" };
        writeln!(
            f,
            "{} of {} elements over {} ranks{order}",
            self.kind.name(),
            self.count,
            self.size()
        )?;
        for (r, p) in self.ranks.iter().enumerate() {
            for (k, round) in p.rounds.iter().enumerate() {
                let moves: Vec<String> = round.iter().map(Move::to_string).collect();
                writeln!(f, "rank {r} round {k}: {}", moves.join("; "))?;
            }
        }
        Ok(())
    }
}
