//! Layers that stay in high precision, by the names that they have in a model.

use burn_fp8_core::NamedWeight;
use burn_fp8_core::text::shown;

use super::Fp8Config;
use crate::Fp8Error;

impl Fp8Config {
    /// The same configuration, whose filter leaves the weights of these names in high precision, too.
    pub(crate) fn excepting(
        self,
        all: Weights,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Fp8Error> {
        let mut excepted = Vec::new();
        for name in names {
            let name = name.as_ref();
            let is_part = |path: &str| format!(".{path}.").contains(&format!(".{name}."));
            let found = all.found.iter().filter(|weight| is_part(&weight.path));
            let before = excepted.len();
            excepted.extend(found.cloned());
            if excepted.len() == before {
                let paths = all.found.iter().map(|weight| weight.path.clone());
                let reason =
                    format!("no weight is called {name:?}; there are {}", some_names(paths));
                return Err(Fp8Error::Invalid { what: "a filter's exceptions", reason });
            }
        }
        Ok(Self { filter: self.filter.except(excepted), ..self })
    }
}

/// The first names, and how many more there are.
fn some_names(names: impl Iterator<Item = String>) -> String {
    const SHOWN: usize = 10;
    const MAX_NAME: usize = 80;
    let mut names = names.map(|name| format!("`{}`", shown(&name, MAX_NAME)));
    let first: Vec<_> = names.by_ref().take(SHOWN).collect();
    match names.count() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The weights of a model, as a visitor comes by.
#[derive(Default)]
pub(crate) struct Weights {
    /// The names and the types of the containers that the visitor is in.
    path: Vec<[String; 2]>,
    found: Vec<NamedWeight>,
}

impl Weights {
    pub(crate) fn enter(&mut self, name: &str, container_type: &str) {
        self.path.push([name, container_type].map(String::from));
    }

    pub(crate) fn exit(&mut self) {
        self.path.pop();
    }

    /// Takes a parameter of this shape, if it is the weight of products.
    pub(crate) fn take(&mut self, id: u64, shape: &[usize]) {
        let container = self.path.last().map_or("", |[_, container]| container);
        let &[rows, columns] = shape else { return };
        if container == "Struct:Fp8State" {
            return;
        }
        let shape = match container {
            // Where it multiplies, as a head that shares it, it is transposed.
            "Struct:Embedding" => [columns, rows],
            _ => [rows, columns],
        };
        let path: Vec<_> = self.path.iter().map(|[name, _]| &name[..]).collect();
        self.found.push(NamedWeight { path: path.join("."), id, shape });
    }
}
