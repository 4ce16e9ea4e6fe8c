//! A template as jinja2 reads it, run by minijinja.
//!
//! minijinja reads templates and runs statements as jinja2 does, but its operators, attributes and texts of values are not Python's, and cannot be replaced. So
//! what it reads is written anew before it is compiled: an operator becomes a call of a function that no template can name, and what it would do otherwise than
//! jinja2 is refused.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, anyhow, bail};
use minijinja::machinery::ast::{
    self, BinOp, BinOpKind, Call, CallArg, CallBlock, CompareOpKind, Const, EmitExpr, EmitRaw,
    Expr, Filter, FilterBlock, ForLoop, GetAttr, IfCond, IfExpr, List, Macro, Map, Set, SetBlock,
    Spanned, Stmt, Template, Test, UnaryOp, UnaryOpKind, Var, WithBlock,
};
use minijinja::machinery::{CodeGenerator, Span, Vm, WhitespaceConfig, make_string_output, parse};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::conditions::{is_filter, is_test};
use super::source::{check_literal, is_bare};

const NAME: &str = "chat template";

/// Statements and operators of a template in each other, at most: who writes and compiles them calls itself for each.
const DEEPEST_SOURCE: usize = 200;

/// Reads a template, and refuses what would not come out as in jinja2.
///
/// # Errors
/// With the line and the construct.
pub(super) fn check(source: &str) -> Result<()> {
    rewritten(source).map(drop)
}

/// The text of a template that `prepared` wrote, in an environment with fuel for this many steps.
pub(super) fn run(
    environment: &Environment<'_>,
    source: &str,
    values: Value,
    steps: u64,
) -> Result<String> {
    let (tree, late) = rewritten(source)?;
    if let Some(name) =
        late.iter().find(|name| values.get_attr(name).is_ok_and(|value| !value.is_undefined()))
    {
        bail!(
            "{name} is used in a block before it is set: jinja2 has nothing for it there, this program what it was given"
        );
    }
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    let done =
        Vm::new(environment).eval(&instructions, values, &blocks, &mut output, AutoEscape::None);
    done.map_err(|error| match error.kind() {
        ErrorKind::OutOfFuel => anyhow!("it takes more than {steps} steps"),
        _ => explain(error),
    })?;
    drop(output);
    Ok(text)
}

fn explain(error: Error) -> anyhow::Error {
    let reason = error.detail().map_or_else(|| error.to_string(), str::to_owned);
    match error.line() {
        Some(line) => anyhow!("line {line}: {reason}"),
        None => anyhow!(reason),
    }
}

/// What is run, and the names that are set after a block used them.
fn rewritten(source: &str) -> Result<(Stmt<'_>, BTreeSet<&str>)> {
    let blanks =
        WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let tree = parse(source, NAME, Default::default(), blanks).map_err(explain)?;
    let mut rewriter = Rewriter {
        source,
        macros: BTreeMap::new(),
        arguments: None,
        depth: 0,
        frames: vec![Frame::default()],
        late: BTreeSet::new(),
        loops: vec![],
    };
    rewriter.find_macros(&tree, 0);
    Ok((rewriter.statement(&tree)?, rewriter.late))
}

/// Statements that have variables of their own.
#[derive(Default)]
struct Frame<'a> {
    /// Names that are used or set here.
    own: BTreeSet<&'a str>,
    /// Names that frames in this one used before.
    inner: BTreeSet<&'a str>,
}

struct Rewriter<'a> {
    source: &'a str,
    /// For each macro the names of its arguments, and how many of the last have defaults.
    macros: BTreeMap<&'a str, (Vec<&'a str>, usize)>,
    /// Those of the macro that is being written.
    arguments: Option<Vec<&'a str>>,
    depth: usize,
    frames: Vec<Frame<'a>>,
    late: BTreeSet<&'a str>,
    /// For the statements around, whether they are a loop that may be left here, and how often it is.
    loops: Vec<Option<usize>>,
}

fn line(span: Span) -> u16 {
    span.start_line
}

fn name_of<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// A call of one of the functions of `environment.rs`.
fn call<'a>(function: &'a str, arguments: Vec<Expr<'a>>, span: Span) -> Expr<'a> {
    let expr = Expr::Var(Spanned::new(Var { id: function }, span));
    Expr::Call(Spanned::new(
        Call { expr, args: arguments.into_iter().map(CallArg::Pos).collect() },
        span,
    ))
}

fn constant<'a>(value: impl Into<Value>, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value: value.into() }, span))
}

fn binary<'a>(op: BinOpKind, left: Expr<'a>, right: Expr<'a>, span: Span) -> Expr<'a> {
    Expr::BinOp(Spanned::new(BinOp { op, left, right }, span))
}

fn not(expr: Expr<'_>, span: Span) -> Expr<'_> {
    Expr::UnaryOp(Spanned::new(UnaryOp { op: UnaryOpKind::Not, expr }, span))
}

impl<'a> Rewriter<'a> {
    fn find_macros(&mut self, statement: &Stmt<'a>, depth: usize) {
        let bodies: &[&[Stmt<'a>]] = match statement {
            _ if depth > DEEPEST_SOURCE => &[],
            Stmt::Template(s) => &[&s.children],
            Stmt::ForLoop(s) => &[&s.body, &s.else_body],
            Stmt::IfCond(s) => &[&s.true_body, &s.false_body],
            Stmt::WithBlock(s) => &[&s.body],
            Stmt::SetBlock(s) => &[&s.body],
            Stmt::FilterBlock(s) => &[&s.body],
            Stmt::CallBlock(s) => &[&s.macro_decl.body],
            Stmt::Macro(s) => {
                let names = s.args.iter().filter_map(name_of).collect();
                self.macros.insert(s.name, (names, s.defaults.len()));
                &[&s.body]
            }
            _ => &[],
        };
        bodies
            .iter()
            .flat_map(|body| body.iter())
            .for_each(|statement| self.find_macros(statement, depth + 1));
    }

    fn body(&mut self, body: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>> {
        body.iter().map(|statement| self.statement(statement)).collect()
    }

    /// What jinja2 gives variables of its own, with these to begin with.
    fn framed(
        &mut self,
        names: &[&'a str],
        body: &[Stmt<'a>],
        is_loop: bool,
    ) -> Result<Vec<Stmt<'a>>> {
        self.frames.push(Frame::default());
        self.loops.push(is_loop.then_some(0));
        names.iter().for_each(|name| self.set(name));
        let body = self.body(body);
        self.frames.pop();
        body
    }

    /// The same where the crate would give them none.
    fn scope(&mut self, body: &[Stmt<'a>], span: Span) -> Result<Vec<Stmt<'a>>> {
        let body = self.framed(&[], body, false)?;
        self.loops.pop();
        Ok(vec![Stmt::WithBlock(Spanned::new(WithBlock { assignments: vec![], body }, span))])
    }

    fn used(&mut self, name: &'a str) {
        let Some((innermost, around)) = self.frames.split_last_mut() else { return };
        innermost.own.insert(name);
        around
            .iter_mut()
            .filter(|frame| !frame.own.contains(name))
            .for_each(|frame| frame.inner.extend([name]));
    }

    fn set(&mut self, name: &'a str) {
        let Some(frame) = self.frames.last_mut() else { return };
        if frame.own.insert(name) && frame.inner.contains(name) {
            self.late.insert(name);
        }
    }

    /// A loop is left, which the crate cannot do from blocks within it.
    fn leave(&mut self, span: Span) -> Result<()> {
        match self.loops.last_mut() {
            Some(Some(times)) => *times += 1,
            _ => bail!(
                "line {}: break and continue are not known in other blocks of a loop than if",
                line(span)
            ),
        }
        Ok(())
    }

    /// Counts how deep statements and expressions lie in each other while one is written.
    fn within<T>(&mut self, write: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > DEEPEST_SOURCE {
            bail!("more than {DEEPEST_SOURCE} statements, operators or branches lie in each other");
        }
        let written = write(self);
        self.depth -= 1;
        written
    }

    fn statement(&mut self, statement: &Stmt<'a>) -> Result<Stmt<'a>> {
        self.within(|rewriter| rewriter.written_statement(statement))
    }

    fn written_statement(&mut self, statement: &Stmt<'a>) -> Result<Stmt<'a>> {
        let refused = |what: &str, span| {
            bail!("line {}: {{% {what} %}} is not known in chat templates", line(span))
        };
        Ok(match statement {
            Stmt::Template(s) => Stmt::Template(Spanned::new(
                Template { children: self.body(&s.children)? },
                s.span(),
            )),
            Stmt::EmitRaw(s) => Stmt::EmitRaw(Spanned::new(EmitRaw { raw: s.raw }, s.span())),
            Stmt::EmitExpr(s) => {
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr: self.expr(&s.expr)? }, s.span()))
            }
            Stmt::ForLoop(s) => {
                // jinja2 makes tuples of what it unpacks before a condition.
                let is_unpacked = s.filter_expr.is_some() && matches!(s.target, Expr::List(_));
                let walk = if is_unpacked { "tuples " } else { "iter " };
                let walked = call(walk, vec![self.expr(&s.iter)?], s.iter.span());
                let target = target(&s.target)?;
                let filter_expr = s.filter_expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
                let body = self.framed(&names_of(&s.target), &s.body, true)?;
                let left = self.loops.pop().flatten().unwrap_or(0);
                if left > 0 && !s.else_body.is_empty() {
                    bail!(
                        "line {}: break and continue are not known in a loop with else",
                        line(s.span())
                    );
                }
                let else_body = if s.else_body.is_empty() {
                    vec![]
                } else {
                    self.scope(&s.else_body, s.span())?
                };
                Stmt::ForLoop(Spanned::new(
                    ForLoop {
                        target,
                        iter: walked,
                        filter_expr,
                        recursive: s.recursive,
                        body,
                        else_body,
                    },
                    s.span(),
                ))
            }
            Stmt::IfCond(s) => {
                let (expr, true_body, false_body) =
                    (self.expr(&s.expr)?, self.body(&s.true_body)?, self.body(&s.false_body)?);
                Stmt::IfCond(Spanned::new(IfCond { expr, true_body, false_body }, s.span()))
            }
            Stmt::WithBlock(s) => {
                // All values are reckoned before any is assigned.
                let items: Vec<_> =
                    s.assignments.iter().map(|(name, _)| target(name)).collect::<Result<_>>()?;
                let names = Expr::List(Spanned::new(List { items }, s.span()));
                let items: Vec<_> = s
                    .assignments
                    .iter()
                    .map(|(_, value)| self.expr(value))
                    .collect::<Result<_>>()?;
                let assignments = if s.assignments.is_empty() {
                    vec![]
                } else {
                    vec![(names, Expr::List(Spanned::new(List { items }, s.span())))]
                };
                let names: Vec<_> =
                    s.assignments.iter().flat_map(|(name, _)| names_of(name)).collect();
                let body = self.framed(&names, &s.body, false)?;
                self.loops.pop();
                Stmt::WithBlock(Spanned::new(WithBlock { assignments, body }, s.span()))
            }
            Stmt::Set(s) => {
                let expr = self.expr(&s.expr)?;
                names_of(&s.target).into_iter().for_each(|name| self.set(name));
                Stmt::Set(Spanned::new(Set { target: target(&s.target)?, expr }, s.span()))
            }
            Stmt::SetBlock(s) => {
                let filter = s.filter.as_ref().map(|filter| self.expr(filter)).transpose()?;
                let body = self.scope(&s.body, s.span())?;
                names_of(&s.target).into_iter().for_each(|name| self.set(name));
                Stmt::SetBlock(Spanned::new(
                    SetBlock { target: target(&s.target)?, filter, body },
                    s.span(),
                ))
            }
            Stmt::FilterBlock(s) => {
                let filter = call("text ", vec![self.expr(&s.filter)?], s.span());
                Stmt::FilterBlock(Spanned::new(
                    FilterBlock { filter, body: self.scope(&s.body, s.span())? },
                    s.span(),
                ))
            }
            Stmt::Macro(s) => {
                self.set(s.name);
                Stmt::Macro(self.declared(s)?)
            }
            Stmt::CallBlock(s) => {
                let Expr::Call(call) = self.called(&s.call)? else {
                    bail!("line {}: a call block calls no macro", line(s.span()))
                };
                Stmt::CallBlock(Spanned::new(
                    CallBlock { call, macro_decl: self.declared(&s.macro_decl)? },
                    s.span(),
                ))
            }
            Stmt::Continue(s) => {
                self.leave(s.span())?;
                Stmt::Continue(Spanned::new(ast::Continue, s.span()))
            }
            Stmt::Break(s) => {
                self.leave(s.span())?;
                Stmt::Break(Spanned::new(ast::Break, s.span()))
            }
            Stmt::AutoEscape(s) => refused("autoescape", s.span())?,
            Stmt::Block(s) => refused("block", s.span())?,
            Stmt::Import(s) => refused("import", s.span())?,
            Stmt::FromImport(s) => refused("from", s.span())?,
            Stmt::Extends(s) => refused("extends", s.span())?,
            Stmt::Include(s) => refused("include", s.span())?,
            Stmt::Do(s) => refused("do", s.span())?,
        })
    }

    fn declared(&mut self, declared: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>> {
        let names: Vec<_> = declared.args.iter().filter_map(name_of).collect();
        let around = self.arguments.replace(names.clone());
        let args: Vec<_> = declared.args.iter().map(target).collect::<Result<_>>()?;
        let mut body = vec![];
        // One after the other, as a default may name an argument before it; the crate begins with the last.
        for (name, default) in
            declared.args[args.len() - declared.defaults.len()..].iter().zip(&declared.defaults)
        {
            let span = default.span();
            let missing = Expr::Test(Spanned::new(
                Test { name: "undefined", expr: target(name)?, args: vec![] },
                span,
            ));
            let set = Stmt::Set(Spanned::new(
                Set { target: target(name)?, expr: self.expr(default)? },
                span,
            ));
            body.push(Stmt::IfCond(Spanned::new(
                IfCond { expr: missing, true_body: vec![set], false_body: vec![] },
                span,
            )));
        }
        body.extend(self.framed(&names, &declared.body, false)?);
        self.loops.pop();
        self.arguments = around;
        Ok(Spanned::new(
            Macro { name: declared.name, args, defaults: vec![], body },
            declared.span(),
        ))
    }

    fn all(&mut self, all: &[Expr<'a>]) -> Result<Vec<Expr<'a>>> {
        all.iter().map(|expr| self.expr(expr)).collect()
    }

    fn expr(&mut self, expr: &Expr<'a>) -> Result<Expr<'a>> {
        self.within(|rewriter| rewriter.written(expr))
    }

    fn written(&mut self, expr: &Expr<'a>) -> Result<Expr<'a>> {
        let span = expr.span();
        if let Expr::GetAttr(_) | Expr::GetItem(_) | Expr::Slice(_) | Expr::Call(_) = expr {
            self.check_minus(expr)?;
        }
        Ok(match expr {
            Expr::Var(var) => {
                let known = self.arguments.iter().flatten().any(|known| *known == var.id);
                if !known && matches!(var.id, "self" | "super" | "varargs" | "kwargs") {
                    bail!("line {}: {} is not known in chat templates", line(span), var.id);
                }
                self.used(var.id);
                Expr::Var(Spanned::new(Var { id: var.id }, span))
            }
            Expr::Const(constant) => {
                check_literal(self.source, span, &constant.value)?;
                Expr::Const(Spanned::new(Const { value: constant.value.clone() }, span))
            }
            Expr::Slice(s) => {
                let mut arguments = vec![self.expr(&s.expr)?];
                for bound in [&s.start, &s.stop, &s.step] {
                    arguments.push(
                        bound
                            .as_ref()
                            .map_or_else(|| Ok(constant((), span)), |bound| self.expr(bound))?,
                    );
                }
                call("[:]", arguments, span)
            }
            Expr::UnaryOp(s) => match s.op {
                UnaryOpKind::Not => not(self.expr(&s.expr)?, span),
                UnaryOpKind::Neg => call("neg ", vec![self.expr(&s.expr)?], span),
            },
            Expr::BinOp(s) => {
                let (left, right) = (self.expr(&s.left)?, self.expr(&s.right)?);
                match s.op {
                    // The crate would reckon with constants itself, and has `false` for `0 and 1`.
                    BinOpKind::ScAnd | BinOpKind::ScOr => {
                        binary(s.op, call("self ", vec![left], span), right, span)
                    }
                    operator => call(function_of(operator), vec![left, right], span),
                }
            }
            Expr::Compare(s) => {
                let mut left = &s.expr;
                let mut held: Option<Expr<'a>> = None;
                for op in &s.ops {
                    let one = self.compared(op.op, left, &op.expr, span)?;
                    held = Some(match held {
                        Some(before) => binary(BinOpKind::ScAnd, before, one, span),
                        None => one,
                    });
                    left = &op.expr;
                }
                held.ok_or_else(|| anyhow!("line {}: nothing is compared", line(span)))?
            }
            Expr::IfExpr(s) => {
                let false_expr = s.false_expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
                let (test_expr, true_expr) = (self.expr(&s.test_expr)?, self.expr(&s.true_expr)?);
                Expr::IfExpr(Spanned::new(IfExpr { test_expr, true_expr, false_expr }, span))
            }
            Expr::Filter(s) => {
                if !is_filter(s.name) {
                    bail!("line {}: No filter named '{}'.", line(span), s.name);
                }
                let expr = s.expr.as_ref().map(|expr| self.expr(expr)).transpose()?;
                Expr::Filter(Spanned::new(
                    Filter { name: s.name, expr, args: self.given(&s.args, None)? },
                    span,
                ))
            }
            Expr::Test(s) => {
                if !is_test(s.name) {
                    bail!("line {}: No test named '{}'.", line(span), s.name);
                }
                let is_test = |expr: &Expr<'_>| matches!(expr, Expr::Test(_));
                let chained =
                    is_test(&s.expr) || matches!(&s.expr, Expr::UnaryOp(not) if is_test(&not.expr));
                if chained && is_bare(self.source, s.expr.span()) {
                    bail!("line {}: You cannot chain multiple tests with is", line(span));
                }
                if let [CallArg::Pos(Expr::UnaryOp(argument))] = &s.args[..]
                    && matches!(argument.op, UnaryOpKind::Neg)
                {
                    bail!("line {}: a test takes no negative number here", line(span));
                }
                Expr::Test(Spanned::new(
                    Test {
                        name: s.name,
                        expr: self.expr(&s.expr)?,
                        args: self.given(&s.args, None)?,
                    },
                    span,
                ))
            }
            Expr::GetAttr(s) => call(".", vec![self.expr(&s.expr)?, constant(s.name, span)], span),
            Expr::GetItem(s) => {
                call("[]", vec![self.expr(&s.expr)?, self.expr(&s.subscript_expr)?], span)
            }
            Expr::Call(s) => self.called(s)?,
            Expr::List(s) => {
                let items = self.all(&s.items)?;
                // The crate has lists for tuples, but remembers where they began.
                match self.source[span.start_offset as usize..].starts_with('[') {
                    true => Expr::List(Spanned::new(List { items }, span)),
                    false => call("tuple ", items, span),
                }
            }
            Expr::Map(s) => {
                let keys = self
                    .all(&s.keys)?
                    .into_iter()
                    .map(|key| call("key ", vec![key], span))
                    .collect();
                Expr::Map(Spanned::new(Map { keys, values: self.all(&s.values)? }, span))
            }
        })
    }

    fn compared(
        &mut self,
        op: CompareOpKind,
        left: &Expr<'a>,
        right: &Expr<'a>,
        span: Span,
    ) -> Result<Expr<'a>> {
        let (operator, negated) = match op {
            CompareOpKind::Eq => ("==", false),
            CompareOpKind::Ne => ("!=", false),
            CompareOpKind::Lt => ("<", false),
            CompareOpKind::Lte => ("<=", false),
            CompareOpKind::Gt => (">", false),
            CompareOpKind::Gte => (">=", false),
            CompareOpKind::In => ("in ", false),
            CompareOpKind::NotIn => ("in ", true),
        };
        let held = call(operator, vec![self.expr(left)?, self.expr(right)?], span);
        Ok(if negated { not(held, span) } else { held })
    }

    fn called(&mut self, s: &Spanned<Call<'a>>) -> Result<Expr<'a>> {
        let span = s.span();
        let (expr, args) = match &s.expr {
            Expr::GetAttr(attribute) => {
                let (value, name) = (self.expr(&attribute.expr)?, constant(attribute.name, span));
                let mut all = vec![CallArg::Pos(value), CallArg::Pos(name)];
                all.extend(self.given(&s.args, None)?);
                (Expr::Var(Spanned::new(Var { id: "()" }, span)), all)
            }
            Expr::Var(var) if var.id == "loop" => {
                let [CallArg::Pos(walked)] = &s.args[..] else {
                    bail!("line {}: loop takes one value", line(span))
                };
                let walked = call("iter ", vec![self.expr(walked)?], span);
                (self.expr(&s.expr)?, vec![CallArg::Pos(walked)])
            }
            callee => (self.expr(callee)?, self.given(&s.args, name_of(callee))?),
        };
        Ok(Expr::Call(Spanned::new(Call { expr, args }, span)))
    }

    /// Arguments. jinja2 gives an undefined value to a macro as it is; the crate would take the default.
    fn given(
        &mut self,
        arguments: &[CallArg<'a>],
        of: Option<&'a str>,
    ) -> Result<Vec<CallArg<'a>>> {
        let (names, defaults) = of.and_then(|of| self.macros.get(of).cloned()).unwrap_or_default();
        let has_default = |at: usize| at < names.len() && at >= names.len() - defaults;
        let checked = |expr: Expr<'a>, at: usize| {
            let span = expr.span();
            if has_default(at) { call("given ", vec![expr], span) } else { expr }
        };
        let mut written = vec![];
        for (at, argument) in arguments.iter().enumerate() {
            written.push(match argument {
                CallArg::Pos(expr) => CallArg::Pos(checked(self.expr(expr)?, at)),
                CallArg::Kwarg(name, expr) => {
                    let at = names.iter().position(|known| known == name).unwrap_or(usize::MAX);
                    CallArg::Kwarg(name, checked(self.expr(expr)?, at))
                }
                CallArg::PosSplat(expr) | CallArg::KwargSplat(expr) if defaults > 0 => {
                    bail!(
                        "line {}: arguments by * are not known for a macro with defaults",
                        line(expr.span())
                    )
                }
                CallArg::PosSplat(expr) => {
                    let values = call("iter ", vec![self.expr(expr)?], expr.span());
                    CallArg::PosSplat(values)
                }
                CallArg::KwargSplat(expr) => CallArg::KwargSplat(self.expr(expr)?),
            });
        }
        Ok(written)
    }

    /// The crate reads `-a.b` as `(-a).b`.
    fn check_minus(&self, expr: &Expr<'a>) -> Result<()> {
        let inner = match expr {
            Expr::GetAttr(s) => &s.expr,
            Expr::GetItem(s) => &s.expr,
            Expr::Slice(s) => &s.expr,
            Expr::Call(s) => &s.expr,
            _ => return Ok(()),
        };
        match inner {
            Expr::UnaryOp(s)
                if matches!(s.op, UnaryOpKind::Neg) && is_bare(self.source, s.span()) =>
            {
                bail!(
                    "line {}: a minus before what is looked up or called is not known without parentheses: -(a.b)",
                    line(s.span())
                )
            }
            _ => Ok(()),
        }
    }
}

fn function_of(operator: BinOpKind) -> &'static str {
    match operator {
        BinOpKind::Eq => "==",
        BinOpKind::Ne => "!=",
        BinOpKind::Lt => "<",
        BinOpKind::Lte => "<=",
        BinOpKind::Gt => ">",
        BinOpKind::Gte => ">=",
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        BinOpKind::Concat => "~",
        BinOpKind::In => "in ",
        BinOpKind::ScAnd | BinOpKind::ScOr => "self ",
    }
}

/// The names that are set where something is assigned to this.
fn names_of<'a>(target: &Expr<'a>) -> Vec<&'a str> {
    match target {
        Expr::Var(var) => vec![var.id],
        Expr::List(list) => list.items.iter().flat_map(names_of).collect(),
        _ => vec![],
    }
}

/// What is assigned to: names, lists of them, and attributes of namespaces.
fn target<'a>(expr: &Expr<'a>) -> Result<Expr<'a>> {
    let span = expr.span();
    Ok(match expr {
        Expr::Var(var) => Expr::Var(Spanned::new(Var { id: var.id }, span)),
        Expr::List(list) => Expr::List(Spanned::new(
            List { items: list.items.iter().map(target).collect::<Result<_>>()? },
            span,
        )),
        Expr::GetAttr(s) if s.name.starts_with('_') => {
            bail!("line {}: a namespace has no attribute {}", line(span), s.name)
        }
        Expr::GetAttr(s) => {
            Expr::GetAttr(Spanned::new(GetAttr { name: s.name, expr: target(&s.expr)? }, span))
        }
        _ => bail!("line {}: this cannot be assigned to", line(span)),
    })
}
