//! Tests of the generator, against burn's sources and against signatures it must refuse.

use syn::{ItemTrait, TraitItemFn, parse_quote};

use super::{
    file::{self, Imports},
    generate,
    method::{Form, forward},
    sources,
    traits::{self, BURNS, Spec, TRAITS},
};

fn spec(name: &str) -> &'static Spec {
    TRAITS.iter().find(|spec| spec.name == name).unwrap()
}

/// `forward` on a method of `FloatTensorOps`, or the error with all its causes.
fn forwarded(method: &TraitItemFn) -> Result<String, String> {
    forward(0, spec("FloatTensorOps"), method)
        .map(|method| method.text)
        .map_err(|error| format!("{error:#}"))
}

/// The names of the methods in generated text that one version of Burn keeps, after the trait that is implemented.
fn kept(text: &str, burn: usize) -> Vec<(String, String)> {
    let (mut name, mut found) = (String::new(), Vec::new());
    let (mut is_dropped, mut dropped_until) = (false, None);
    for line in text.lines().filter(|line| !line.is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if dropped_until.is_some() {
            // What fills several lines ends where it began.
            dropped_until = dropped_until.filter(|until| indent != *until);
        } else if line.starts_with("#[cfg(") && line.contains("burn-0-23") {
            is_dropped = Some(line) != BURNS[burn].cfg;
        } else if std::mem::take(&mut is_dropped)
            || line.starts_with("burn_") && line != format!("{}! {{", BURNS[burn].only)
        {
            dropped_until = (!line.ends_with(';')).then_some(indent);
        } else if let Some((_, rest)) = line.split_once("> ").filter(|_| line.starts_with("impl")) {
            name = rest.split(['<', ' ']).next().unwrap().to_string();
        } else if let Some(rest) = line.trim_start_matches("unsafe ").strip_prefix("fn ") {
            let method = rest.split(['(', '<']).next().unwrap();
            found.push((name.clone(), method.to_string()));
        }
    }
    found
}

#[test]
fn every_method_of_every_version_is_forwarded_provided_ones_too() {
    let sources = sources().unwrap();
    let text = file::format(&generate(&sources).unwrap()).unwrap();
    for (burn, source) in sources.iter().enumerate() {
        let (mut expected, mut provided) = (Vec::new(), 0);
        for spec in TRAITS.iter().filter(|spec| spec.burns.contains(&burn)) {
            let item = traits::read(&source.folder, spec).unwrap();
            for method in file::methods(&item) {
                expected.push((spec.name.to_string(), method.sig.ident.to_string()));
                provided += usize::from(method.default.is_some());
            }
        }
        expected.sort_unstable();
        let mut kept = kept(&text, burn);
        kept.sort_unstable();
        assert_eq!(kept, expected, "{}", BURNS[burn].package);
        assert!(provided > 200, "only {provided} provided methods: traits were not read whole");
    }
}

#[test]
fn methods_go_where_the_tables_say() {
    let method: TraitItemFn = parse_quote! {
        fn linear_x_backward(weight: FloatTensor<B>, output_grad: FloatTensor<B>) -> FloatTensor<B>;
    };
    let of = |burn, name, method| forward(burn, spec(name), method).unwrap();
    let old = of(0, "ModuleOps", &method);
    let hook = "intercept :: linear_x_backward :: < B > (weight , output_grad)".replace(' ', "");
    assert!(old.text.replace(' ', "").contains(&hook), "{}", old.text);
    let once = "intercept::differentiates_once::<B>(&output_grad, \"linear_x_backward\")";
    assert!(old.text.contains(once), "{}", old.text);
    assert_eq!(of(1, "ModuleOps", &method).form, Form::Line("intercepted"));

    let method: TraitItemFn = parse_quote! {
        fn avg_pool1d_backward(x: FloatTensor<B>, grad: FloatTensor<B>) -> FloatTensor<B>;
    };
    assert_eq!(of(0, "ModuleOps", &method).form, Form::Line("once grad"));
    assert_eq!(of(2, "ModuleOps", &method).form, Form::Line("plain"));
    let method: TraitItemFn =
        parse_quote! { fn dequantize(tensor: QuantizedTensor<B>) -> FloatTensor<B>; };
    assert_eq!(of(0, "QTensorOps", &method).form, Form::Line("intercepted"));
    let method: TraitItemFn =
        parse_quote! { fn q_neg(tensor: QuantizedTensor<B>) -> TensorPrimitive<B>; };
    assert_eq!(of(0, "QTensorOps", &method).form, Form::Line("flowing tensor"));
    let method: TraitItemFn = parse_quote! {
        fn q_sort_with_indices(_tensor: QuantizedTensor<B>, dim: usize) -> (QuantizedTensor<B>, IntTensor<B>);
    };
    let own = of(0, "QTensorOps", &method);
    assert_eq!(own.form, Form::Line("requantized tensor"));
    assert!(own.text.contains("(tensor : QuantizedTensor < Self >"), "{}", own.text);
    let borrowed: TraitItemFn = parse_quote! { fn q_shown(tensor: &QuantizedTensor<B>) -> bool; };
    let error = forward(0, spec("QTensorOps"), &borrowed).unwrap_err();
    assert!(format!("{error:#}").contains("intercept the method"), "{error:#}");
}

#[test]
fn what_only_some_versions_have_stands_for_them_alone() {
    let before: ItemTrait = parse_quote! { trait FloatTensorOps<B: Backend> {
        fn both(tensor: FloatTensor<B>);
        fn changed(tensor: FloatTensor<B>);
        fn lost(tensor: FloatTensor<B>);
    } };
    let after: ItemTrait = parse_quote! { trait FloatTensorOps<B: Backend> {
        fn both(tensor: FloatTensor<B>);
        fn changed(tensor: IntTensor<B>);
    } };
    let last: ItemTrait = parse_quote! { trait FloatTensorOps<B: Backend> {
        fn both(tensor: FloatTensor<B>);
        fn changed(tensor: IntTensor<B>);
        fn added(tensor: BoolTensor<B>);
    } };
    let mut imports = Imports::new();
    let text =
        file::of_trait(spec("FloatTensorOps"), &[before, after, last], &mut imports).unwrap();
    let text = file::format(&(file::use_lines(&imports) + &text)).unwrap();
    let names = |burn| Vec::from_iter(kept(&text, burn).into_iter().map(|(_, name)| name));
    assert_eq!(names(0), ["both", "changed", "lost"], "{text}");
    assert_eq!(names(1), ["both", "changed"], "{text}");
    assert_eq!(names(2), ["both", "changed", "added"], "{text}");
    let import = "    #[cfg(feature = \"burn-0-23\")]\n    use burn_backend::tensor::BoolTensor;\n";
    assert!(text.contains(import), "{text}");
}

#[test]
fn arguments_that_do_not_fit_a_line_fill_several() {
    let name = "argument".repeat(3);
    let long =
        format!("fn long({name}_a: FloatTensor<B>, {name}_b: FloatTensor<B>, c: FloatTensor<B>);");
    let item: ItemTrait =
        syn::parse_str(&format!("trait FloatTensorOps<B: Backend> {{ {long} }}")).unwrap();
    let [one, two, three] = [item.clone(), item.clone(), item];
    let text = file::of_trait(spec("FloatTensorOps"), &[one, two, three], &mut Imports::new());
    let text = file::format(&text.unwrap()).unwrap();
    let expected = format!(
        "impl<B: Fp8Matmul> FloatTensorOps<Self> for Fp8Backend<B> {{\n    forward! {{ [plain]\n        \
         fn long(\n            {name}_a: FloatTensor<B>, {name}_b: FloatTensor<B>,\n            \
         c: FloatTensor<B>,\n        );\n    }}\n}}\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn cfg_attributes_and_imports_go_with_the_method() {
    let method: TraitItemFn = parse_quote! {
        /// Documentation is dropped.
        #[cfg(feature = "distributed")]
        fn float_mark(tensor: FloatTensor<B>, _id: DistributedParamId) -> FloatTensor<B> { tensor }
    };
    let method = forward(0, spec("FloatTensorOps"), &method).unwrap();
    assert_eq!(method.cfg.as_deref(), Some("#[cfg(feature = \"distributed\")]"));
    assert!(method.text.contains("id : DistributedParamId"), "{}", method.text);
    assert!(method.imports.contains(&"burn_backend::distributed::DistributedParamId".to_string()));
}

#[test]
fn structs_over_the_backend_are_rewrapped_both_ways() {
    let method: TraitItemFn = parse_quote! {
        fn q_add(lhs: TensorPrimitive<B>, rhs: TensorPrimitive<B>) -> TensorPrimitive<B> { lhs }
    };
    let text = forwarded(&method).unwrap();
    assert!(text.contains("B::q_add(lhs.rewrap(), rhs.rewrap()).rewrap()"), "{text}");
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
    traits::check_supertraits(0, &known).unwrap();
    let unknown: ItemTrait =
        parse_quote! { trait Backend: FloatTensorOps<Self> + SparseOps<Self> {} };
    assert!(traits::check_supertraits(0, &unknown).unwrap_err().to_string().contains("SparseOps"));
}
