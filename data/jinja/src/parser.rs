//! Statements of a template, from its tokens: what Jinja's parser accepts with the extensions that transformers adds.

use crate::ast::{Expr, For, Kind, LoopId, Macro, MacroId, Special, Stmt, StmtKind, Target, Tree};
use crate::error::{Error, Result, fail};
use crate::lexer::{Lexeme, Token, tokens};
use crate::scope::Name;
use crate::value::Text;
use std::collections::HashMap;

/// The depth to which blocks, parentheses and the like may nest.
const MAX_NESTING: usize = 60;
/// The longest template; the longest that are published have some 40 kB.
const MAX_BYTES: usize = 1 << 18;
/// The most arguments or parameters that have names.
pub(crate) const MAX_NAMED: usize = 255;

/// Names that the language itself sets, with the first numbers of every template.
const KNOWN: [&str; 4] = ["loop", "caller", "varargs", "kwargs"];
/// `loop`
pub(crate) const LOOP: Name = 0;
/// `caller`
pub(crate) const CALLER: Name = 1;
/// `varargs`
pub(crate) const VARARGS: Name = 2;
/// `kwargs`
pub(crate) const KWARGS: Name = 3;

/// The parser: tokens, and what was collected of those before.
pub(crate) struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    tree: Tree,
    names: HashMap<Box<str>, Name>,
    /// For every macro that is open, which special names it uses.
    specials: Vec<Special>,
    /// The number of loops of this macro that are open.
    loops: usize,
}

/// The tree of a template.
///
/// # Errors
/// A text that is no template: the reason, and the line.
pub(crate) fn parse(source: &str) -> Result<Tree> {
    if source.len() > MAX_BYTES {
        return fail(format!(
            "a template of {} bytes: at most {MAX_BYTES} are read",
            source.len()
        ));
    }
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        nesting: 0,
        tree: Tree::default(),
        names: HashMap::new(),
        specials: Vec::new(),
        loops: 0,
    };
    for name in KNOWN {
        parser.name(name);
    }
    let body = parser.statements(&[]);
    let line = parser.line();
    parser.tree.body = body.map_err(|e| e.at(line))?;
    Ok(parser.tree)
}

impl Parser {
    /// The line of the token that comes next.
    pub(crate) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// Returns the token that comes next.
    pub(crate) fn peek(&self) -> &Lexeme {
        &self.tokens[self.at].kind
    }

    /// Returns the token after the next one.
    pub(crate) fn second(&self) -> &Lexeme {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.at + 1).min(last)].kind
    }

    /// Takes the next token. The end stays.
    pub(crate) fn next(&mut self) -> Lexeme {
        let kind = self.tokens[self.at].kind.clone();
        if kind != Lexeme::End {
            self.at += 1;
        }
        kind
    }

    /// Returns true if the operator comes next.
    pub(crate) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Lexeme::Op(o) if *o == op)
    }

    /// Returns true if the name comes next.
    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Lexeme::Name(n) if **n == *name)
    }

    /// Takes an operator if it comes next.
    pub(crate) fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        self.at += usize::from(is);
        is
    }

    /// Takes a name if it comes next.
    pub(crate) fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        self.at += usize::from(is);
        is
    }

    /// # Errors
    /// Another token.
    pub(crate) fn expect_op(&mut self, op: &str) -> Result<()> {
        match self.skip_op(op) {
            true => Ok(()),
            false => self.unexpected(&format!("'{op}'")),
        }
    }

    /// # Errors
    /// Another token.
    pub(crate) fn expect_name(&mut self) -> Result<Box<str>> {
        match self.peek() {
            Lexeme::Name(_) => match self.next() {
                Lexeme::Name(name) => Ok(name),
                _ => fail("a name is expected"),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn expect(&mut self, kind: &Lexeme) -> Result<()> {
        match self.peek() == kind {
            true => {
                self.at += 1;
                Ok(())
            }
            false => self.unexpected(&describe(kind)),
        }
    }

    /// # Errors
    /// Always: the next token is not what was expected.
    pub(crate) fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let what = format!("expected {wanted}, got {}", describe(self.peek()));
        Err(Error::new(what).at(self.line()))
    }

    /// The number of a name.
    pub(crate) fn name(&mut self, name: &str) -> Name {
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let id = self.tree.names.len() as Name;
        self.tree.names.push(name.into());
        self.names.insert(name.into(), id);
        id
    }

    /// The number of a name that is read, which may be one of those that a macro takes on its own.
    pub(crate) fn read_name(&mut self, name: &str) -> Name {
        for special in &mut self.specials {
            match name {
                "caller" => special.caller = true,
                "varargs" => special.varargs = true,
                "kwargs" => special.kwargs = true,
                _ => {}
            }
        }
        self.name(name)
    }

    /// Runs a part of the parser one level deeper.
    ///
    /// # Errors
    /// Too many levels.
    pub(crate) fn deeper<T>(&mut self, part: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        if self.nesting >= MAX_NESTING {
            let what = format!("more than {MAX_NESTING} blocks or parentheses within one another");
            return Err(Error::new(what).at(self.line()));
        }
        self.nesting += 1;
        let done = part(self);
        self.nesting -= 1;
        done
    }

    /// Statements up to a tag that begins with one of `ends`, which is taken without its end; without `ends` up to the end of the template.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut out = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Lexeme::Data(text) => out.push(Stmt {
                    line,
                    kind: StmtKind::Data(text),
                }),
                Lexeme::PrintBegin => {
                    let expr = self.tuple(true, &[], false)?;
                    self.expect(&Lexeme::PrintEnd)?;
                    out.push(Stmt {
                        line,
                        kind: StmtKind::Print(expr),
                    });
                }
                Lexeme::BlockBegin => {
                    if matches!(self.peek(), Lexeme::Name(n) if ends.contains(&&**n)) {
                        return Ok(out);
                    }
                    self.deeper(|p| p.statement(ends, &mut out))
                        .map_err(|e| e.at(line))?;
                    self.expect(&Lexeme::BlockEnd)?;
                }
                Lexeme::End if ends.is_empty() => return Ok(out),
                Lexeme::End => {
                    let what = format!(
                        "Unexpected end of template: looking for {}",
                        ends.join(" or ")
                    );
                    return Err(Error::new(what).at(line));
                }
                other => {
                    return Err(Error::new(format!("unexpected {}", describe(&other))).at(line));
                }
            }
        }
    }

    /// The body of a block up to one of `ends`, which is returned.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Stmt>, Box<str>)> {
        self.skip_op(":");
        self.expect(&Lexeme::BlockEnd)?;
        let body = self.statements(ends)?;
        Ok((body, self.expect_name()?))
    }

    /// A statement through the token before its `%}`.
    fn statement(&mut self, ends: &[&str], out: &mut Vec<Stmt>) -> Result<()> {
        let line = self.line();
        let word = match self.peek() {
            Lexeme::Name(_) => self.expect_name()?,
            _ => return self.unexpected("the name of a tag"),
        };
        let kind = match &*word {
            "if" => self.branches()?,
            "for" => StmtKind::For(self.repetition(line)?),
            "set" => self.assignment()?,
            "with" => self.with()?,
            "macro" => {
                let name = self.expect_name()?;
                let name = self.name(&name);
                StmtKind::Macro(self.definition(Some(name), "endmacro")?)
            }
            "call" => self.call_block(line)?,
            "filter" => {
                let piped = Expr::new(line, Kind::Piped)?;
                let filter = self.filters(piped, true)?;
                StmtKind::Filter(filter, self.body(&["endfilter"])?.0)
            }
            "generation" => {
                self.tree.marks = true;
                let open = std::mem::take(&mut self.loops);
                let body = self.body(&["endgeneration"])?.0;
                self.loops = open;
                StmtKind::Generation(body)
            }
            "block" => self.block()?,
            "print" => return self.print(line, out),
            "break" | "continue" if self.loops == 0 => {
                return fail(format!("{word} outside of a loop"));
            }
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            "include" | "import" | "from" | "extends" => {
                return fail(format!(
                    "{{% {word} %}} reads another template, and a chat template stands alone"
                ));
            }
            "autoescape" => {
                return fail("{% autoescape %} is not supported: no text is escaped here");
            }
            _ => {
                let mut what = format!("unknown tag {word:?}");
                if !ends.is_empty() {
                    what += &format!(" (looking for {})", ends.join(" or "));
                }
                return fail(what);
            }
        };
        out.push(Stmt { line, kind });
        Ok(())
    }

    fn branches(&mut self) -> Result<StmtKind> {
        let (mut arms, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let test = self.tuple(false, &[], false)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((test, body));
            match &*end {
                "elif" => {}
                "else" => {
                    otherwise = self.body(&["endif"])?.0;
                    break;
                }
                _ => break,
            }
        }
        Ok(StmtKind::If(arms, otherwise))
    }

    fn repetition(&mut self, line: u32) -> Result<LoopId> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.unexpected("'in'");
        }
        let iter = self.tuple(false, &["recursive"], false)?;
        let test = match self.skip_name("if") {
            true => Some(self.expression()?),
            false => None,
        };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = match &*end {
            "else" => self.body(&["endfor"])?.0,
            _ => Vec::new(),
        };
        self.tree.loops.push(For {
            line,
            target,
            iter,
            test,
            recursive,
            body,
            otherwise,
        });
        Ok(self.tree.loops.len() as LoopId - 1)
    }

    fn assignment(&mut self) -> Result<StmtKind> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[], false)?));
        }
        let filter = match self.is_op("|") {
            true => {
                let piped = Expr::new(self.line(), Kind::Piped)?;
                Some(self.filters(piped, false)?)
            }
            false => None,
        };
        let body = self.body(&["endset"])?.0;
        Ok(StmtKind::SetBlock(target, filter, body))
    }

    fn with(&mut self) -> Result<StmtKind> {
        let mut vars = Vec::new();
        while *self.peek() != Lexeme::BlockEnd {
            if !vars.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_op("=")?;
            vars.push((target, self.expression()?));
        }
        Ok(StmtKind::With(vars, self.body(&["endwith"])?.0))
    }

    /// The parameters and the body of a macro.
    fn definition(&mut self, name: Option<Name>, end: &str) -> Result<MacroId> {
        let mut params: Vec<(Name, Option<Expr>)> = Vec::new();
        let open = std::mem::take(&mut self.loops);
        self.specials.push(Special::default());
        if name.is_some() || self.is_op("(") {
            self.expect_op("(")?;
            while !self.is_op(")") {
                if !params.is_empty() {
                    self.expect_op(",")?;
                }
                if params.len() >= MAX_NAMED {
                    return fail(format!("a macro of more than {MAX_NAMED} parameters"));
                }
                let param = self.expect_name()?;
                let id = self.name(&param);
                let default = match self.skip_op("=") {
                    true => Some(self.expression()?),
                    false if params.iter().any(|p| p.1.is_some()) => {
                        return fail("non-default argument follows default argument");
                    }
                    false if &*param == "caller" => {
                        return fail(
                            "the argument 'caller' of a macro must be omitted or be given a default",
                        );
                    }
                    false => None,
                };
                params.push((id, default));
            }
            self.expect_op(")")?;
        }
        let id = self.tree.macros.len() as MacroId;
        self.tree.macros.push(Macro {
            name,
            params,
            body: Vec::new(),
            special: Special::default(),
        });
        if name.is_some() {
            self.tree.macros[id as usize].body = self.body(&[end])?.0;
            self.tree.macros[id as usize].special = self.specials.pop().unwrap_or_default();
        }
        self.loops = open;
        Ok(id)
    }

    fn call_block(&mut self, line: u32) -> Result<StmtKind> {
        let id = self.definition(None, "endcall")?;
        let call = self.expression()?;
        if !matches!(call.kind, Kind::Call(..)) {
            return Err(Error::new("expected call").at(line));
        }
        let open = std::mem::take(&mut self.loops);
        self.tree.macros[id as usize].body = self.body(&["endcall"])?.0;
        self.tree.macros[id as usize].special = self.specials.pop().unwrap_or_default();
        self.loops = open;
        Ok(StmtKind::Call(call, id))
    }

    fn block(&mut self) -> Result<StmtKind> {
        let name = self.expect_name()?;
        self.skip_name("scoped");
        if self.skip_name("required") {
            return fail("a required block needs a template that extends this one");
        }
        let open = std::mem::take(&mut self.loops);
        let body = self.body(&["endblock"])?.0;
        self.loops = open;
        self.skip_name(&name);
        Ok(StmtKind::Block(body))
    }

    fn print(&mut self, line: u32, out: &mut Vec<Stmt>) -> Result<()> {
        let mut first = true;
        while *self.peek() != Lexeme::BlockEnd {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
            }
            let kind = StmtKind::Print(self.expression()?);
            out.push(Stmt { line, kind });
        }
        Ok(())
    }

    /// Reads the target of an assignment.
    fn target(&mut self, ends: &[&str], attributes: bool) -> Result<Target> {
        let mut all = Vec::new();
        let mut several = false;
        loop {
            if matches!(self.peek(), Lexeme::Name(n) if ends.contains(&&**n)) || self.is_op(")") {
                break;
            }
            all.push(self.one_target(attributes)?);
            match self.skip_op(",") {
                true => several = true,
                false => break,
            }
        }
        match (several, all.len()) {
            (false, 1) => all.pop().map_or_else(|| self.unexpected("a name"), Ok),
            (true, _) => Ok(Target::Tuple(all)),
            (false, _) => self.unexpected("a name"),
        }
    }

    fn one_target(&mut self, attributes: bool) -> Result<Target> {
        if self.skip_op("(") {
            let inner = self.deeper(|p| p.target(&[], attributes))?;
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.expect_name()?;
        if matches!(
            &*name,
            "true" | "false" | "none" | "True" | "False" | "None"
        ) {
            return fail(format!("can't assign to {name}"));
        }
        let id = self.name(&name);
        if attributes && self.skip_op(".") {
            let attr = self.expect_name()?;
            return Ok(Target::Attr(id, Text::fixed(&attr)));
        }
        Ok(Target::Name(id))
    }
}

/// A token in words.
pub(crate) fn describe(kind: &Lexeme) -> String {
    match kind {
        Lexeme::Data(_) => "text".into(),
        Lexeme::PrintBegin => "'{{'".into(),
        Lexeme::PrintEnd => "'}}'".into(),
        Lexeme::BlockBegin => "'{%'".into(),
        Lexeme::BlockEnd => "'%}'".into(),
        Lexeme::Name(name) => {
            let short: String = name.chars().take(40).collect();
            format!("'{short}'")
        }
        Lexeme::Str(_) => "a string".into(),
        Lexeme::Int(_) | Lexeme::Float(_) => "a number".into(),
        Lexeme::Op(op) => format!("'{op}'"),
        Lexeme::End => "the end of the template".into(),
    }
}
