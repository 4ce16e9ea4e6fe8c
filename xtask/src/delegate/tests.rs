//! Tests of the generator, against burn's sources and against signatures it must refuse.

use syn::{ItemTrait, TraitItemFn, parse_quote};

use super::{
    file, generate,
    method::forward,
    sources,
    traits::{self, HOUSES, Spec},
};
use crate::repository;

fn spec(name: &str) -> &'static Spec {
    HOUSES[0].traits().find(|spec| spec.name == name).unwrap()
}

/// `forward` on a method of `FloatTensorOps`, or the error with all its causes.
fn forwarded(method: &TraitItemFn) -> Result<String, String> {
    forward(&HOUSES[0], spec("FloatTensorOps"), method)
        .map(|method| method.text)
        .map_err(|error| format!("{error:#}"))
}

/// Names of the methods in generated source text.
fn names(text: &str) -> Vec<String> {
    let file = syn::parse_file(text).unwrap();
    let items = file.items.iter().filter_map(|item| match item {
        syn::Item::Impl(item) => Some(&item.items),
        _ => None,
    });
    items
        .flatten()
        .filter_map(|item| match item {
            syn::ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
            _ => None,
        })
        .collect()
}

#[test]
fn every_method_is_forwarded_provided_ones_too_and_intercepted_ones_go_to_the_hook() {
    let house = &HOUSES[0];
    let sources = sources(house, &repository::root()).unwrap();
    let generated = generate(house, &sources).unwrap();
    let mut provided = 0;
    for spec in house.traits() {
        let item = traits::read(&sources[0].folder, spec).unwrap();
        let expected: Vec<_> =
            file::methods(&item).map(|method| method.sig.ident.to_string()).collect();
        let delegation = &generated[&format!("{}.rs", spec.module)];
        assert_eq!(names(&delegation.text), expected, "{}", spec.name);
        assert_eq!(delegation.methods, expected.len(), "{}", spec.name);
        provided += file::methods(&item).filter(|method| method.default.is_some()).count();
    }
    assert!(provided > 200, "only {provided} provided methods: the traits were not read whole");

    // Intercepted methods go to the hook, and no others.
    let calls: usize =
        generated.values().map(|file| file.text.matches("intercept::").count()).sum();
    let imports: usize =
        generated.values().map(|file| file.text.matches("backend::intercept").count()).sum();
    let once = generated["module.rs"].text.matches("intercept::differentiates_once").count();
    assert_eq!(once, house.once.len());
    assert_eq!(calls - imports - once, house.intercepted().count());
    let float = &generated["float.rs"].text;
    assert!(float.contains("intercept::float_matmul::<B>(lhs, rhs)"));
}

#[test]
fn what_only_some_versions_have_stands_under_an_attribute() {
    let [old, new] = ["#[cfg(not(new))]", "#[cfg(new)]"].map(Some);
    let before: ItemTrait = parse_quote! { trait FloatTensorOps<B: Backend> {
        fn both(tensor: FloatTensor<B>);
        fn changed(tensor: FloatTensor<B>);
    } };
    let after: ItemTrait = parse_quote! { trait FloatTensorOps<B: Backend> {
        fn both(tensor: FloatTensor<B>);
        fn changed(tensor: IntTensor<B>);
        fn added(tensor: FloatTensor<B>);
    } };
    let versions = [(before, old), (after, new)];
    let made = file::of_trait(&HOUSES[0], spec("FloatTensorOps"), &versions, "").unwrap();
    assert_eq!(names(&made.text), ["both", "changed", "changed", "added"]);
    assert_eq!(made.text.matches("#[cfg(not(new))]").count(), 1, "{}", made.text);
    assert_eq!(made.text.matches("#[cfg(new)]").count(), 3, "{}", made.text); // with an import
}

#[test]
fn cfg_attributes_reach_the_method_and_its_imports() {
    let method: TraitItemFn = parse_quote! {
        /// Documentation is dropped.
        #[cfg(feature = "distributed")]
        fn float_mark(tensor: FloatTensor<B>, _id: DistributedParamId) -> FloatTensor<B> { tensor }
    };
    let method = forward(&HOUSES[0], spec("FloatTensorOps"), &method).unwrap();
    assert!(method.text.starts_with("# [cfg (feature = \"distributed\")]"), "{}", method.text);
    assert!(method.text.contains("float_mark(tensor, id)"), "{}", method.text);
    let import = &method.imports["burn_backend::distributed::DistributedParamId"];
    assert!(import.as_deref().is_some_and(|cfg| cfg.contains("distributed")));
}

#[test]
fn structs_over_the_backend_are_rewrapped_both_ways() {
    let method: TraitItemFn = parse_quote! {
        fn q_add(lhs: TensorPrimitive<B>, rhs: TensorPrimitive<B>) -> TensorPrimitive<B> { lhs }
    };
    let text = forwarded(&method).unwrap();
    assert!(text.contains("q_add(lhs.rewrap(), rhs.rewrap()).rewrap()"), "{text}");
    assert!(!text.contains("TensorPrimitive < B >"), "{text}");
}

#[test]
fn what_cannot_be_forwarded_is_refused_with_the_reason() {
    let nested = "teach xtask to rewrap that";
    let cases: [(TraitItemFn, &str); 8] = [
        (
            parse_quote! { fn f(tensor: FloatTensor<B>, how: NewOptions) -> FloatTensor<B>; },
            "unknown type `NewOptions`",
        ),
        (parse_quote! { fn f(tensors: Vec<TensorPrimitive<B>>); }, nested),
        (parse_quote! { fn f(tensor: &mut TensorPrimitive<B>); }, nested),
        (parse_quote! { fn f() -> impl Future<Output = TensorPrimitive<B>>; }, nested),
        (parse_quote! { fn f() -> &TensorPrimitive<B>; }, "the result borrows a struct"),
        (parse_quote! { #[deprecated] fn f(); }, "deprecated"),
        (parse_quote! { fn f(&self); }, "takes `self`"),
        (parse_quote! { fn f([a, b]: [usize; 2]); }, "not a name"),
    ];
    for (method, reason) in cases {
        let error = forwarded(&method).unwrap_err();
        assert!(error.contains("FloatTensorOps::f") && error.contains(reason), "{error}");
    }
}

#[test]
fn a_new_supertrait_of_backend_is_refused() {
    let known: ItemTrait = parse_quote! { trait Backend: FloatTensorOps<Self> + Clone + core::fmt::Debug + 'static {} };
    traits::check_supertraits(&HOUSES[0], &known).unwrap();
    let unknown: ItemTrait =
        parse_quote! { trait Backend: FloatTensorOps<Self> + SparseOps<Self> {} };
    assert!(
        traits::check_supertraits(&HOUSES[0], &unknown)
            .unwrap_err()
            .to_string()
            .contains("SparseOps")
    );
}
