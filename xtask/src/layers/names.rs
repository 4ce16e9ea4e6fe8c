//! What a path stands for, through re-exports, renames and globs: an import is an arrow to the file that defines the name, never to a
//! file that only hands it on.

use super::tree::{Binding, ModuleId, Tree, UsePath};

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Something with this name, defined in the file of a module: an item, or what a macro makes there.
    Item {
        module: ModuleId,
        name: String,
    },
    Module(ModuleId),
    /// Another crate of the workspace, with the name taken from it.
    Crate {
        library: String,
        name: String,
    },
    /// A crate from elsewhere, or nothing that the source shows: a type parameter, a variable, the prelude.
    Outside,
}

/// Follows paths through a package.
pub struct Names<'a> {
    pub tree: &'a Tree,
    /// The libraries of the workspace.
    pub libraries: &'a [String],
}

/// The names that are being followed, so that re-exports in a circle end.
type Following = Vec<(ModuleId, String)>;

impl Names<'_> {
    /// All that `path`, written in `module`, may stand for.
    pub fn resolve(&self, module: ModuleId, path: &UsePath) -> Vec<Target> {
        self.follow(module, path, &mut vec![])
    }

    /// What the macro `name!`, invoked in `module`, may be: macros also come from above by textual scope.
    pub fn resolve_macro(&self, module: ModuleId, name: &str) -> Vec<Target> {
        let mut scopes = self.tree.ancestors(module);
        scopes
            .find_map(|scope| {
                let found = self.lookup(scope, name, &mut vec![]);
                (!found.is_empty()).then_some(found)
            })
            .unwrap_or_default()
    }

    /// Whether `name` stands for something in a module.
    pub fn shows(&self, module: ModuleId, name: &str) -> bool {
        !self.lookup(module, name, &mut vec![]).is_empty()
    }

    fn follow(&self, module: ModuleId, path: &UsePath, following: &mut Following) -> Vec<Target> {
        let Some((first, rest)) = path.segments.split_first() else { return vec![] };
        let mut reached = self.first(module, first, path.absolute, following);
        for segment in rest {
            // Only a module, or a type, has something inside; they share a namespace, so a module leaves no type of that name.
            if reached.iter().any(|target| matches!(target, Target::Module(_))) {
                reached.retain(|target| matches!(target, Target::Module(_)));
            }
            reached = reached
                .into_iter()
                .flat_map(|target| self.inside(target, segment, following))
                .collect();
        }
        if reached.iter().any(|target| *target != Target::Outside) {
            reached.retain(|target| *target != Target::Outside);
        }
        reached.dedup();
        reached
    }

    fn first(
        &self,
        module: ModuleId,
        segment: &str,
        absolute: bool,
        following: &mut Following,
    ) -> Vec<Target> {
        match segment {
            "crate" => return vec![Target::Module(self.tree.root(module))],
            "self" => return vec![Target::Module(module)],
            "super" => return self.parent(module),
            _ => {}
        }
        let found = if absolute { vec![] } else { self.lookup(module, segment, following) };
        if !found.is_empty() {
            return found;
        }
        if let Some((_, root)) = self.tree.library.as_ref().filter(|(name, _)| name == segment) {
            return vec![Target::Module(*root)];
        }
        if self.libraries.iter().any(|library| library == segment) {
            return vec![Target::Crate { library: segment.to_string(), name: String::new() }];
        }
        vec![Target::Outside]
    }

    /// What `segment` stands for after what has been reached.
    fn inside(&self, target: Target, segment: &str, following: &mut Following) -> Vec<Target> {
        match target {
            Target::Module(module) => match segment {
                "self" => vec![target],
                "super" => self.parent(module),
                _ => {
                    let found = self.lookup(module, segment, following);
                    if found.is_empty() {
                        // A macro has made it there, for example a derive: the record of a module.
                        vec![Target::Item { module, name: segment.to_string() }]
                    } else {
                        found
                    }
                }
            },
            Target::Crate { library, name } if name.is_empty() => {
                vec![Target::Crate { library, name: segment.to_string() }]
            }
            // A variant, an associated item, or the inside of another crate.
            reached => vec![reached],
        }
    }

    fn parent(&self, module: ModuleId) -> Vec<Target> {
        self.tree.modules[module].parent.map(Target::Module).into_iter().collect()
    }

    /// What `name` stands for in a module; nothing if the module does not show the name.
    fn lookup(&self, module: ModuleId, name: &str, following: &mut Following) -> Vec<Target> {
        let key = (module, name.to_string());
        if following.contains(&key) {
            return vec![];
        }
        following.push(key);
        let scope = &self.tree.modules[module];
        let mut found = vec![];
        for binding in scope.names.get(name).into_iter().flatten() {
            match binding {
                Binding::Module(module) => found.push(Target::Module(*module)),
                Binding::Item(module) => {
                    found.push(Target::Item { module: *module, name: name.to_string() });
                }
                Binding::Import(path) => found.extend(self.follow(module, path, following)),
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
}
