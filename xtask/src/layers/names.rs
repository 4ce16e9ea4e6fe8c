//! What a path stands for, through re-exports, renames and globs.

use super::source::{Binding, Kind, Mention, Source};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Something with this name, defined in the file of a module, or handed on there from elsewhere.
    Item {
        module: usize,
        name: String,
    },
    Module(usize),
    /// Another crate, or nothing that the source shows: a type parameter, a variable, the prelude.
    Outside,
}

/// Follows paths through a package.
pub struct Names<'a>(pub &'a Source);

/// The names that are being followed, so that re-exports in a circle end.
type Following = Vec<(usize, String)>;

impl Names<'_> {
    /// All that a mention may stand for.
    pub fn resolve(&self, mention: &Mention) -> Vec<Target> {
        match (mention.kind, &mention.path[..]) {
            (Kind::Macro, [name]) => self.of_macro(mention.module, name),
            (_, path) => self.follow(mention.module, path, &mut vec![]),
        }
    }

    /// What the macro `name!`, invoked in a module, may be: macros also come from above by textual scope.
    fn of_macro(&self, module: usize, name: &str) -> Vec<Target> {
        let own = self.lookup(module, name, &mut vec![]);
        let above = self.0.ancestors(module).skip(1).map(|above| (above, format!("{name}!")));
        std::iter::once(own)
            .chain(above.map(|(above, name)| self.lookup(above, &name, &mut vec![])))
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    fn follow(&self, module: usize, path: &[String], following: &mut Following) -> Vec<Target> {
        let Some((first, rest)) = path.split_first() else { return vec![] };
        let mut reached = self.first(module, first, following);
        for segment in rest {
            // Only a module, or a type, has something inside; they share a namespace, so a module leaves no type of that name.
            if reached.iter().any(|target| matches!(target, Target::Module(_))) {
                reached.retain(|target| matches!(target, Target::Module(_)));
            }
            let inside = |target| self.inside(target, segment, following);
            reached = reached.into_iter().flat_map(inside).collect();
        }
        reached
    }

    fn first(&self, module: usize, segment: &str, following: &mut Following) -> Vec<Target> {
        let found = match segment {
            "crate" => return vec![Target::Module(self.0.root(module))],
            "self" => return vec![Target::Module(module)],
            "super" => return self.parent(module),
            _ => self.lookup(module, segment, following),
        };
        match self.0.library.as_ref().filter(|(name, _)| name == segment) {
            _ if !found.is_empty() => found,
            Some((_, root)) => vec![Target::Module(*root)],
            None => vec![Target::Outside],
        }
    }

    /// What `segment` stands for after what has been reached.
    fn inside(&self, target: Target, segment: &str, following: &mut Following) -> Vec<Target> {
        match target {
            Target::Module(_) if segment == "self" => vec![target],
            Target::Module(module) if segment == "super" => self.parent(module),
            Target::Module(module) => match self.lookup(module, segment, following) {
                // A macro has made it there, for example a derive: the record of a module.
                found if found.is_empty() => {
                    vec![Target::Item { module, name: segment.to_string() }]
                }
                found => found,
            },
            // A variant, an associated item, or the inside of another crate.
            reached => vec![reached],
        }
    }

    fn parent(&self, module: usize) -> Vec<Target> {
        self.0.modules[module].parent.map(Target::Module).into_iter().collect()
    }

    /// What `name` stands for in a module; nothing if the module does not show the name.
    fn lookup(&self, module: usize, name: &str, following: &mut Following) -> Vec<Target> {
        let key = (module, name.to_string());
        if following.contains(&key) {
            return vec![];
        }
        following.push(key);
        let scope = &self.0.modules[module];
        let item = |module| Target::Item { module, name: name.to_string() };
        let mut found = vec![];
        for binding in scope.names.get(name).into_iter().flatten() {
            match binding {
                Binding::Module(module) => found.push(Target::Module(*module)),
                Binding::Item(module) => found.push(item(*module)),
                Binding::Import(path) => {
                    let reached = self.follow(module, path, following);
                    // Whoever takes it here needs this file, too; but the root shows what all crates may take.
                    let is_handed_on = reached.iter().any(|target| self.is_foreign(target, module));
                    found.extend((is_handed_on && scope.parent.is_some()).then(|| item(module)));
                    found.extend(reached);
                }
            }
        }
        if found.is_empty() {
            for glob in &scope.globs {
                for target in self.follow(module, glob, following) {
                    if let Target::Module(inside) = target {
                        found.extend(self.lookup(inside, name, following));
                    }
                }
            }
        }
        following.pop();
        found
    }

    /// Whether something lies neither in a module nor below it.
    fn is_foreign(&self, target: &Target, module: usize) -> bool {
        match target {
            Target::Item { module: defining, .. } => {
                !self.0.ancestors(*defining).any(|above| above == module)
            }
            Target::Outside => true,
            Target::Module(_) => false,
        }
    }
}
