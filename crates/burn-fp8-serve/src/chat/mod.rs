//! Conversations as the text that a model was trained on.

mod compile;
mod conditions;
mod environment;
mod filters;
mod json;
mod operators;
mod source;
mod text;
mod values;

use std::path::Path;

use anyhow::{Context, Result};
use minijinja::{Environment, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::tokens::{read_file, read_json};

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Its text.
    pub content: String,
}

impl Message {
    /// A message of this role.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// Steps of a template, and some more for each message: templates of the hub take some hundred for a message.
const FUEL: u64 = 50_000;
const FUEL_OF_A_MESSAGE: u64 = 2_000;

/// Bytes of stack for each step. A list in a list takes a step, and what prints, compares or frees such a value calls
/// itself at each depth.
const STACK_OF_A_STEP: u64 = 1_024;

/// Steps of any template, at most: their stack takes 512 MiB of addresses. With a template like that of Qwen3, 4,000 messages are rendered.
const MOST_STEPS: u64 = 1 << 19;

/// The chat template of a model.
#[derive(Debug)]
pub struct Chat {
    environment: Environment<'static>,
    template: String,
    /// `bos_token` and the like, by their names.
    special: Vec<(String, String)>,
}

impl Chat {
    /// Reads `chat_template.jinja` of a folder, or what `tokenizer_config.json` has: none where there is neither.
    ///
    /// # Errors
    /// Where a file is damaged, the template is none, or it has what would not come out as in transformers: the construct is named.
    pub fn load(folder: &Path) -> Result<Option<Self>> {
        let config = read_json(folder, "tokenizer_config.json")?.unwrap_or_default();
        let template = match read_file(folder, "chat_template.jinja")? {
            Some(template) => template,
            None => match template_of(&config) {
                Some(template) => template.to_owned(),
                None => return Ok(None),
            },
        };
        let mut special = special_tokens(&config);
        // What older models have instead.
        let others = read_json(folder, "special_tokens_map.json")?.unwrap_or_default();
        for (name, text) in special_tokens(&others) {
            if !special.iter().any(|(known, _)| *known == name) {
                special.push((name, text));
            }
        }
        Self::new(template, special).map(Some)
    }

    fn new(template: String, special: Vec<(String, String)>) -> Result<Self> {
        let template = source::prepared(&template);
        let checked = apart(FUEL, || compile::check(&template))?;
        checked.context("the chat template cannot be read")?;
        Ok(Self { environment: environment::environment(), template, special })
    }

    /// The text of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// What the template raises; where it runs for too long, or its text is too long.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let special: Value = self.special.iter().cloned().collect();
        // As transformers gives them.
        let (tools, documents) = ((), ());
        let values =
            context! { messages, tools, documents, add_generation_prompt => true, ..special };
        self.render_with(messages.len(), values)
    }

    /// The text of a template with these values.
    fn render_with(&self, messages: usize, values: Value) -> Result<String> {
        let of_messages = FUEL_OF_A_MESSAGE.saturating_mul(messages as u64);
        let steps = FUEL.saturating_add(of_messages).min(MOST_STEPS);
        let rendered = apart(steps, || {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(steps));
            environment::bound_text(&mut environment);
            compile::run(&environment, &self.template, values, steps)
        })?;
        rendered.context("the chat template refuses this conversation")
    }
}

/// Runs on a thread with a stack for this many steps.
fn apart<T: Send>(steps: u64, run: impl FnOnce() -> T + Send) -> Result<T> {
    // Pages of a stack that are not touched take no memory.
    let stack = usize::try_from(steps * STACK_OF_A_STEP).unwrap_or(usize::MAX);
    let thread = std::thread::Builder::new().name("chat template".into()).stack_size(stack);
    std::thread::scope(|scope| {
        let running = thread.spawn_scoped(scope, run).context("no thread for the chat template")?;
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A text, or a list of named ones of which `default` counts.
fn template_of(config: &Json) -> Option<&str> {
    match config.get("chat_template")? {
        Json::String(template) => Some(template),
        Json::Array(templates) => {
            let named = |name: &str| templates.iter().find(|template| template["name"] == name);
            named("default")?["template"].as_str()
        }
        _ => None,
    }
}

/// Texts of special tokens, which a configuration has as such or with details.
fn special_tokens(config: &Json) -> Vec<(String, String)> {
    let text = |value: &Json| value.as_str().or(value["content"].as_str()).map(str::to_owned);
    let tokens =
        config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
    tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates that use what those of the hub use, as transformers renders them: `tests/golden/chat.py`.
    #[test]
    fn templates_are_rendered_as_by_transformers() {
        let golden = include_str!("../../tests/golden/chat.json");
        let golden: Json = serde_json::from_str(golden).expect("JSON");
        let special = special_tokens(&golden["special"]);
        assert_eq!(special.len(), 2);
        let messages: Vec<Message> =
            serde_json::from_value(golden["messages"].clone()).expect("messages");
        let cases = golden["cases"].as_array().expect("cases");
        assert_eq!(cases.len(), 5);
        for case in cases {
            let [name, template, rendered] = ["name", "template", "rendered"]
                .map(|key| case[key].as_str().expect("a text").to_owned());
            let chat = Chat::new(template, special.clone()).expect("a template");
            assert_eq!(chat.render(&messages).expect("a text"), rendered, "{name}");
        }
    }

    /// Each construct comes out as jinja2 has it, or is refused by its name: `tests/golden/templates.py`.
    #[test]
    fn constructs_are_rendered_as_by_jinja2_or_refused() {
        let golden = include_str!("../../tests/golden/templates.json");
        let golden: Golden = serde_json::from_str(golden).expect("JSON");
        let mut wrong = vec![];
        let (mut equal, mut errors, mut refused) = (0, 0, 0);
        for case in &golden.cases {
            let chat = Chat::new(case.template.clone(), vec![]);
            let found = chat.and_then(|chat| chat.render_with(7, golden.context.clone()));
            match (found, &case.rendered, &case.refused) {
                (Ok(found), Some(rendered), None) if found == *rendered => equal += 1,
                (Err(_), None, None) => errors += 1,
                (Err(error), None, Some(word)) if format!("{error:#}").contains(word) => {
                    refused += 1
                }
                (found, rendered, refused) => wrong.push(format!(
                    "{}: {:?}\n found  {found:?}\n jinja2 {rendered:?}, refused {refused:?}",
                    case.name, case.template
                )),
            }
        }
        let all = golden.cases.len();
        assert!(wrong.is_empty(), "{} of {all} are wrong:\n{}", wrong.len(), wrong.join("\n"));
        let readme = include_str!("../../README.md");
        let line = format!(
            "of {all} constructs {equal} come out as there, {errors} are errors in both, and {refused} are refused by name"
        );
        assert!(readme.contains(&line), "README does not say: {line}");
    }

    #[derive(Deserialize)]
    struct Golden {
        context: Value,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        template: String,
        rendered: Option<String>,
        refused: Option<String>,
    }

    #[test]
    fn a_template_sees_what_transformers_gives_it() {
        let render = |template: &str| Chat::new(template.into(), vec![])?.render(&[]);
        let given = "{{ tools is none }}{{ documents is none }}{{ enable_thinking is defined }}";
        assert_eq!(render(given).expect("a text"), "TrueTrueFalse");
        let deep = "{% set ns = namespace(x=[]) %}{% for i in range(4000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
        let error = format!("{:#}", render(deep).expect_err("too deep"));
        assert!(error.contains("100 deep"), "{error}");
    }

    /// Values so deep that a usual stack does not hold the calls which print, compare and free them.
    #[test]
    fn values_as_deep_as_a_template_can_make_them_are_survived() {
        let nested = format!("{}ns.x{}", "[".repeat(20), "]".repeat(20));
        for used in ["{{ ns.x }}", "{{ ns.x == ns.y }}", "{{ ns.x | string | length }}", ""] {
            let deeper = format!("{{% set ns.x = {nested} %}}");
            let template = format!(
                "{{% set ns = namespace(x=[], y=[]) %}}{{% for i in range(800) %}}{deeper}{}{{% endfor %}}{used}",
                deeper.replace("ns.x", "ns.y")
            );
            // Printing may be an error at some depth; what counts is that the process lives.
            let rendered = Chat::new(template, vec![]).expect("a template").render(&[]);
            assert!(!used.is_empty() || rendered.is_ok(), "not so deep: {rendered:?}");
        }
    }

    /// Neither the check nor the run of a template ends the process, however deep it is.
    #[test]
    fn sources_as_deep_as_a_template_can_be_are_refused() {
        let branches = |count| format!("{{% if x %}}{}{{% endif %}}", "{% elif y %}".repeat(count));
        for (template, is_known) in [
            (format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(150)), true),
            (format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(5_000)), false),
            (format!("{{{{ x{} }}}}", "[0]".repeat(5_000)), false),
            (branches(100), true),
            (branches(1_000), false),
        ] {
            let refused = Chat::new(template, vec![]).err();
            assert_eq!(refused.is_none(), is_known, "{refused:?}");
        }
        let endless = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        let error = Chat::new(endless.into(), vec![]).expect("a template").render(&[]);
        assert!(format!("{:#}", error.expect_err("endless")).contains("recursion"));
    }

    /// A text that no memory holds is an error, be it made of others, printed from lists that hold one another twice,
    /// or written piece by piece.
    #[test]
    fn what_takes_all_memory_is_refused() {
        let doubled = |start: &str, more: &str| {
            format!(
                "{{% set ns = namespace(x={start}) %}}{{% for i in range(60) %}}{{% set ns.x = {more} %}}{{% endfor %}}{{{{ ns.x }}}}"
            )
        };
        let long = "{% set a = 'ab ' * 3000000 %}";
        for (template, word) in [
            (doubled("'a'", "ns.x ~ ns.x"), "bytes"),
            (doubled("'a'", "ns.x + ns.x"), "bytes"),
            (doubled("[1]", "ns.x + ns.x"), "values"),
            (doubled("(1, 2)", "ns.x + ns.x"), "values"),
            (doubled("'a' * 10", "ns.x.replace('a', ns.x)"), "bytes"),
            (doubled("'aa'", "[ns.x, ns.x] | join(ns.x)"), "bytes"),
            (doubled("'aa'", "ns.x.join([ns.x, ns.x])"), "bytes"),
            (doubled("'a'", "'{0}{0}'.format(ns.x)"), "bytes"),
            (doubled("'a'", "'%s%s' % (ns.x, ns.x)"), "bytes"),
            (doubled("'a' * 1000000", "[ns.x, ns.x]"), "bytes"),
            (doubled("'a' * 1000000", "{'a': ns.x, 'b': ns.x}"), "bytes"),
            (
                doubled("'a' * 1000000", "[ns.x, ns.x]").replace(" ns.x }}", " ns.x | tojson }}"),
                "bytes",
            ),
            (format!("{long}{{{{ [0, 1, 2, 3, 4] | tojson(indent=a) }}}}"), "bytes"),
            (format!("{long}{{{{ ('\\n' * 10) | indent(a, blank=true) }}}}"), "bytes"),
            (format!("{long}{{% for i in range(1000) %}}{{{{ a }}}}{{% endfor %}}"), "bytes"),
        ] {
            let rendered = Chat::new(template.clone(), vec![]).expect("a template").render(&[]);
            let error = format!("{:#}", rendered.map(|text| text.len()).expect_err(&template));
            assert!(error.contains(word), "{template}: {error}");
        }
    }

    #[test]
    fn a_thousand_messages_are_rendered() {
        let golden = include_str!("../../tests/golden/chat.json");
        let golden: Json = serde_json::from_str(golden).expect("JSON");
        let turns = [("user", "Hi"), ("assistant", "<think>\nhm\n</think>\n\nHello")];
        let turns = turns.into_iter().cycle().take(1_000).chain([("user", "Bye")]);
        let messages: Vec<_> = turns.map(|(role, text)| Message::new(role, text)).collect();
        for case in golden["cases"].as_array().expect("cases") {
            let template = case["template"].as_str().expect("a text").to_owned();
            let chat = Chat::new(template, special_tokens(&golden["special"])).expect("a template");
            let text = chat.render(&messages).expect("a text");
            assert!(text.len() > 5_000 && text.contains("Bye"), "{}: {text}", case["name"]);
        }
    }

    #[test]
    fn a_template_that_takes_too_long_says_how_many_steps_it_had() {
        let template =
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        let chat = Chat::new(template.into(), vec![]).expect("a template");
        let error = format!("{:#}", chat.render(&[]).expect_err("too long"));
        assert!(error.contains("more than 50000 steps"), "{error}");
    }

    #[test]
    fn a_template_may_be_one_of_a_list() {
        let list = r#"{"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]}"#;
        let template = |config: &str| {
            let config: Json = serde_json::from_str(config).expect("JSON");
            template_of(&config).map(str::to_owned)
        };
        assert_eq!(template(list).as_deref(), Some("b"));
        assert_eq!(template(r#"{"chat_template": "c"}"#).as_deref(), Some("c"));
        assert_eq!(template("{}"), None);
        let config = r#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null}"#;
        let tokens = special_tokens(&serde_json::from_str(config).expect("JSON"));
        let expected = [("bos_token", "<s>"), ("eos_token", "</s>")];
        assert_eq!(tokens, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }
}
