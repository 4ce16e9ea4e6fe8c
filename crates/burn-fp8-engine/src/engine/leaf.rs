//! What names a tensor while it lasts.

use std::any::Any;
use std::sync::{Arc, Weak};

/// What can be a parameter: a tensor of the graph that no operation made, or the memory of a tensor without a graph.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// What tells it from others.
    pub name: Name,
    /// What all tensors share that are this leaf, and the graph, where gradients are tracked for it.
    pub holders: Weak<dyn Any + Send + Sync>,
    /// Whether a tensor's elements lie there row by row: a transposed one has the name of the other.
    pub is_row_by_row: bool,
    /// The node, where gradients are tracked. The graph lets go of it in `backward`, though perhaps not yet of the holders.
    pub node: Option<Weak<dyn Any + Send + Sync>>,
}

/// What tells a leaf from all others that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// A node of the graph. None is named so again.
    Node(u64),
    /// An address, which no other memory gets as long as somebody knows the holders, and where the tensor begins there.
    Memory(usize, usize),
    /// What a file tells of, until a tensor is found that it is.
    Loaded(u64),
}

impl Leaf {
    /// The memory that tensors share which hold the same `holders` and begin there at the same element.
    pub fn memory<T: Any + Send + Sync>(
        holders: &Arc<T>,
        start: usize,
        is_row_by_row: bool,
    ) -> Self {
        let name = Name::Memory(Arc::as_ptr(holders).addr(), start);
        let holders: Arc<dyn Any + Send + Sync> = holders.clone();
        Self { name, holders: Arc::downgrade(&holders), is_row_by_row, node: None }
    }

    /// Whether a tensor is the only one with its memory.
    pub fn is_single(&self) -> bool {
        self.holders.strong_count() == 1
    }

    /// Whether no tensor is this leaf any more.
    pub fn is_gone(&self) -> bool {
        let is_dropped = |held: &Weak<_>| held.strong_count() == 0;
        is_dropped(&self.holders) || self.node.as_ref().is_some_and(is_dropped)
    }
}
