//! What clients have told about their streams, on the thread of a session: a server runs all operations of a session on one thread of its own,
//! each within the stream of the client's thread that it comes from.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use burn_backend::{Shape, StreamId};
use burn_fp8_core::{GemmRole, Scaling};

use super::Identity;
use crate::config::Fp8Config;
use crate::report::{Report, is_tracing, trace};

/// The most tensors that are remembered by their memory.
const MOST: usize = 1 << 16;

#[derive(Default)]
struct Session {
    /// What holds outside of scopes; `None`: the default of the process.
    config: Option<Fp8Config>,
    streams: HashMap<StreamId, Stream>,
    /// Where operands of several matrices lie that were multiplied by one plain matrix, and how many rows or columns the result has from that.
    by_plain: HashSet<(usize, usize)>,
}

/// What holds for the operations of one thread of the client.
#[derive(Default)]
pub(crate) struct Stream {
    /// The configurations of the scopes that it is in, the innermost one last.
    pub(crate) scopes: Vec<Fp8Config>,
    /// In how many backward passes it is.
    pub(crate) backward: usize,
    /// What its traces have seen so far, the innermost one last.
    pub(crate) traces: Vec<Report>,
    /// What was transposed last, in a backward pass.
    transposed: Option<Identity>,
}

thread_local! {
    static SESSION: RefCell<Session> = RefCell::default();
}

/// A product of the backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gradient {
    pub(super) role: GemmRole,
    /// Whether the saved operand, of several matrices, was multiplied by a plain matrix.
    pub(super) by_plain: bool,
}

/// Sets what holds for this session outside of scopes.
pub(crate) fn set_config(config: Fp8Config) {
    SESSION.with_borrow_mut(|session| session.config = Some(config));
}

/// Changes what holds for the current stream.
pub(crate) fn change<R>(change: impl FnOnce(&mut Stream) -> R) -> R {
    SESSION.with_borrow_mut(|session| {
        let id = StreamId::current();
        let stream = session.streams.entry(id).or_default();
        let result = change(stream);
        if stream.is_empty() {
            session.streams.remove(&id);
        }
        result
    })
}

impl Stream {
    /// Ends a backward pass.
    pub(crate) fn end_backward(&mut self) {
        self.backward -= 1;
        self.transposed = None;
    }

    fn is_empty(&self) -> bool {
        self.backward == 0 && self.scopes.is_empty() && self.traces.is_empty()
    }
}

/// Notes a transposed tensor: in a backward pass it is the operand of the next product that is no output gradient.
pub(super) fn transposed(identity: impl FnOnce() -> Identity) {
    change(|stream| {
        if stream.backward > 0 {
            stream.transposed = Some(identity());
        }
    });
}

/// Which product of a backward pass that of these two is, if it is one; the result has so many rows and columns. Autodiff transposes one operand right
/// before it multiplies.
pub(super) fn gradient([lhs, rhs]: [Identity; 2], [rows, columns]: [usize; 2]) -> Option<Gradient> {
    let transposed = change(|stream| stream.transposed.take())?;
    let (role, saved) = match [lhs == transposed, rhs == transposed] {
        [false, true] => (GemmRole::GradInput, (rhs.memory, rows)),
        [true, false] => (GemmRole::GradWeight, (lhs.memory, columns)),
        _ => return None,
    };
    let by_plain = SESSION.with_borrow(|session| session.by_plain.contains(&saved));
    Some(Gradient { role, by_plain })
}

/// Remembers an operand of several matrices that is multiplied by one plain matrix: in its backward pass a batch is multiplied, and yet the filter has to
/// decide as it did here. Memory is used again: one that is multiplied by several matrices is forgotten.
pub(super) fn remember(operands: [&Identity; 2], shapes: [&Shape; 2]) {
    let matrices = |shape: &Shape| shape.iter().rev().skip(2).product::<usize>();
    let [one, other] = shapes.map(|shape| matrices(shape) == 1);
    let [rows, columns] = [(0, 2), (1, 1)].map(|(at, from_end)| {
        let shape = shapes[at];
        shape[shape.num_dims() - from_end]
    });
    SESSION.with_borrow_mut(|session| {
        for (is_one, by_one, saved) in
            [(one, other, (operands[0].memory, columns)), (other, one, (operands[1].memory, rows))]
        {
            match (is_one, by_one) {
                (false, true) => {
                    if session.by_plain.len() == MOST {
                        session.by_plain.clear();
                    }
                    session.by_plain.insert(saved);
                }
                (false, false) => {
                    session.by_plain.remove(&saved);
                }
                (true, _) => {}
            }
        }
    });
}

/// Runs products with the configuration that holds for the current stream, and records them where it is traced.
pub(super) fn run<R>(run: impl FnOnce() -> R) -> R {
    let (config, traced) = SESSION.with_borrow(|session| {
        let stream = session.streams.get(&StreamId::current());
        let scope = stream.and_then(|stream| stream.scopes.last().copied());
        let traced = stream.is_some_and(|stream| !stream.traces.is_empty());
        (scope.or(session.config).unwrap_or_else(Fp8Config::current), traced)
    });
    if let Scaling::Delayed(_) = config.recipe.scaling {
        panic!("{}", NO_DELAYED);
    }
    let run = || config.scope(run);
    // Attention consists of products that come here as well.
    if !traced || is_tracing() {
        return run();
    }
    let (result, report) = trace(run);
    change(|stream| stream.traces.iter_mut().for_each(|trace| trace.add(report.clone())));
    result
}

/// Why a device refuses delayed scaling.
pub(crate) const NO_DELAYED: &str = "delayed scaling needs a place for the histories of each product, and a served device sees products without the layers that they \
    belong to: give it another recipe, such as Recipe::current(), or train with nn::Fp8Linear on Device::flex()";
