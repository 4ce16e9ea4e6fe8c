//! What a configuration says, whatever its method.

use super::method::Method;
use super::patterns::Patterns;
use crate::scheme::Scheme;

/// Which layers are quantized, and how.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) method: Method,
    pub(super) groups: Vec<Group>,
    pub(super) ignored: Patterns,
    /// What a weight's scale is called, behind the name of its layer.
    pub(crate) weight_scale: &'static [&'static str],
    /// What a static scale of activations is called.
    pub(crate) input_scale: &'static [&'static str],
}

/// Layers with one scheme.
#[derive(Debug)]
pub(super) struct Group {
    /// None where it is for all layers.
    pub(super) targets: Option<Patterns>,
    pub(super) scheme: Scheme,
}

impl Group {
    fn targets(&self, is: impl Fn(&Patterns) -> bool) -> bool {
        self.targets.as_ref().is_some_and(is)
    }
}

impl Rules {
    /// The scheme of a layer whose weight is FP8: of the first group that has its name, else of the first with an expression for it, else of the first that
    /// is for the class `Linear` or for all. A file does not say a layer's class; one with an FP8 weight `[out, in]` counts as `Linear`.
    pub(crate) fn scheme(&self, layer: &str) -> Option<Scheme> {
        let named = |group: &&Group| group.targets(|targets| targets.names(layer));
        let matched = |group: &&Group| group.targets(|targets| targets.matches(layer));
        let any = |group: &&Group| {
            group.targets.is_none() || group.targets(|targets| targets.has("Linear"))
        };
        let groups = || self.groups.iter();
        let group = groups().find(named).or_else(|| groups().find(matched));
        group.or_else(|| groups().find(any)).map(|group| group.scheme)
    }

    /// Whether the configuration says that a layer is not quantized.
    pub(crate) fn ignores(&self, layer: &str) -> bool {
        self.ignored.names(layer) || self.ignored.matches(layer)
    }
}
