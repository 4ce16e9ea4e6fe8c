//! Parameters, known through the updates of optimizers.
//!
//! A graph names a tensor, not a parameter: an optimizer takes a tensor out of the graph, and puts another one there in its place. `Fp8Backend` sees both, the one right
//! after the other, and so knows which parameter the new tensor is. Burn 0.22 keeps what makes a tensor a leaf to itself: there no weight is known.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use burn_backend::Shape;

use crate::engine::{Leaf, Name};

/// A parameter, whatever tensors it has been.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WeightId(Name);

#[derive(Default)]
struct Known {
    weights: HashMap<WeightId, Weight>,
    /// Which parameter a leaf is.
    leaves: HashMap<Name, WeightId>,
    /// So many parameters are known before those that are gone are looked for.
    look_at: usize,
}

#[derive(Default)]
struct Weight {
    /// The tensors that it has been, as far as they are there: copies of a model may be of another step.
    leaves: Vec<Leaf>,
    /// Burn's `ParamId`, where a model has been looked at.
    parameter: Option<u64>,
}

/// What a thread has taken out of the graph since it last put something there, or went on with the model.
enum Taken {
    Nothing,
    /// One parameter of this shape.
    Weight(WeightId, Shape),
    /// Several tensors, or one that is no parameter.
    Others,
}

thread_local! {
    static TAKEN: RefCell<Taken> = const { RefCell::new(Taken::Nothing) };
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn insert(&mut self, leaf: &Leaf, id: WeightId) {
        let Self { weights, leaves, look_at } = self;
        // Asked once: it may go meanwhile, and a name that stays behind may become that of something else.
        let mut is_there = |leaf: &Leaf| {
            let is_gone = leaf.is_gone();
            if is_gone {
                leaves.remove(&leaf.name);
            }
            !is_gone
        };
        let weight = weights.entry(id).or_default();
        weight.leaves.retain(&mut is_there);
        weight.leaves.retain(|other| other.name != leaf.name);
        weight.leaves.push(leaf.clone());
        if weights.len() > *look_at {
            weights.retain(|_, weight| {
                weight.leaves.retain(&mut is_there);
                !weight.leaves.is_empty()
            });
            *look_at = 2 * weights.len().max(512);
        }
        leaves.insert(leaf.name, id);
    }
}

/// The parameter that a leaf is, if it has been met before.
pub(crate) fn find(leaf: &Leaf) -> Option<WeightId> {
    let mut known = known();
    let id = known.leaves.get(&leaf.name).copied()?;
    let weight = known.weights.get_mut(&id)?;
    // Gradients of a leaf may be asked for after it was put into the graph.
    let same = weight.leaves.iter_mut().find(|same| same.name == leaf.name);
    same.into_iter().for_each(|same| *same = leaf.clone());
    Some(id)
}

/// The parameter that a leaf is: from now on one of its own, if it has not been met before.
pub(crate) fn meet(leaf: &Leaf) -> WeightId {
    find(leaf).unwrap_or_else(|| {
        let id = WeightId(leaf.name);
        known().insert(leaf, id);
        id
    })
}

/// A parameter that no tensor is yet.
pub(crate) fn loaded() -> WeightId {
    static IDS: AtomicU64 = AtomicU64::new(0);
    WeightId(Name::Loaded(IDS.fetch_add(1, Ordering::Relaxed)))
}

/// From now on a leaf is this parameter.
pub(crate) fn succeed(leaf: &Leaf, id: WeightId) {
    known().insert(leaf, id);
}

/// Whether no tensor is this parameter any more.
pub(crate) fn is_gone(id: WeightId) -> bool {
    known().weights.get(&id).is_none_or(|weight| weight.leaves.iter().all(Leaf::is_gone))
}

/// Notes Burn's id of a parameter.
pub(crate) fn name(leaf: &Leaf, parameter: u64) {
    let id = meet(leaf);
    if let Some(weight) = known().weights.get_mut(&id) {
        weight.parameter = Some(parameter);
    }
}

/// The memory is that of the parameter that the leaf is.
pub(crate) fn lies_in(leaf: &Leaf, memory: &Leaf) {
    if let Some(id) = find(leaf) {
        known().insert(memory, id);
    }
}

/// Burn's id of the parameter that a leaf is, where it has been noted.
pub(crate) fn parameter(leaf: &Leaf) -> Option<u64> {
    let known = known();
    known.weights.get(known.leaves.get(&leaf.name)?)?.parameter
}

/// Notes that this thread takes a tensor out of the graph: a leaf, or one that an operation made.
pub(crate) fn taken(leaf: Option<&Leaf>, shape: Shape) {
    TAKEN.with_borrow_mut(|taken| {
        *taken = match (&taken, leaf.and_then(find)) {
            (Taken::Nothing, Some(id)) => Taken::Weight(id, shape),
            _ => Taken::Others,
        }
    });
}

/// Notes that this thread puts a tensor into the graph: where it took one parameter out right before, of this shape, that is what this is.
pub(crate) fn put(leaf: Option<&Leaf>, shape: &Shape) {
    if let Taken::Weight(id, taken) = TAKEN.replace(Taken::Nothing)
        && let Some(leaf) = leaf
        && taken == *shape
    {
        known().insert(leaf, id);
    }
}

/// Notes that this thread goes on with the model: what it took out of the graph before was not for a successor.
pub(crate) fn go_on() {
    TAKEN.set(Taken::Nothing);
}
