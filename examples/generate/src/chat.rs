//! Conversations as the text that a model was trained on.

use std::path::Path;

use anyhow::{Context, Result};
use jiff::Zoned;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
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

/// Bytes of stack for each step. A list in a list takes a step, and what prints, compares or frees such a value calls itself at each depth.
const STACK_OF_A_STEP: u64 = 1_024;

/// Lists and mappings in each other that JSON is made of, at most.
const DEEPEST: usize = 100;

const NAME: &str = "chat template";

/// The chat template of a model.
#[derive(Debug)]
pub struct Chat {
    environment: Environment<'static>,
    /// `bos_token` and the like, by their names.
    special: Vec<(String, String)>,
}

impl Chat {
    /// Reads `chat_template.jinja` of a folder, or what `tokenizer_config.json` has: none where there is neither.
    ///
    /// # Errors
    /// Where a file is damaged, or the template is none.
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
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", |format: &str| {
            let now = jiff::fmt::strtime::format(format, &Zoned::now());
            now.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment.add_filter("tojson", to_json);
        let added = environment.add_template_owned(NAME, without_marks(&template));
        added.map_err(explain).context("the chat template cannot be read")?;
        Ok(Self { environment, special })
    }

    /// The text of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// What the template raises; where it runs for too long.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let steps = FUEL + FUEL_OF_A_MESSAGE * messages.len() as u64;
        // Pages of a stack that are not touched take no memory.
        let stack = usize::try_from(steps * STACK_OF_A_STEP).unwrap_or(usize::MAX);
        let thread = std::thread::Builder::new().name(NAME.into()).stack_size(stack);
        std::thread::scope(|scope| {
            let rendering = thread.spawn_scoped(scope, || self.render_within(steps, messages));
            let rendering = rendering.context("no thread for the chat template")?;
            rendering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn render_within(&self, steps: u64, messages: &[Message]) -> Result<String> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps));
        let template = environment.get_template(NAME).map_err(explain)?;
        let special: Value = self.special.iter().cloned().collect();
        // As transformers gives them.
        let (tools, documents) = ((), ());
        let values =
            context! { messages, tools, documents, add_generation_prompt => true, ..special };
        template
            .render(values)
            .map_err(explain)
            .context("the chat template refuses this conversation")
    }
}

/// Without the marks around what the model says, `{% generation %}`, which transformers' trainers use: conditions that hold, with the same blanks around them.
fn without_marks(template: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, (tag, after))) =
        rest.split_once("{%").and_then(|(before, after)| Some((before, after.split_once("%}")?)))
    {
        let tag = match tag.trim_matches(['-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        };
        text.extend([before, "{%", &tag, "%}"]);
        rest = after;
    }
    text + rest
}

/// What a template raises is its message alone.
fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python writes it: keys in their order, blanks after commas and colons, none of the escapes that HTML needs.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // A keyword of Python's that changes nothing here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    Ok(Value::from_safe_string(json(value, indent.map(|width| width.min(16)), 0)?))
}

/// At this depth of lists and mappings.
fn json(value: &Value, indent: Option<usize>, depth: usize) -> Result<String, Error> {
    if depth > DEEPEST {
        let reason = format!("lists and mappings are more than {DEEPEST} deep");
        return Err(Error::new(ErrorKind::BadSerialization, reason));
    }
    let is_mapping = value.kind() == ValueKind::Map;
    let [open, close] = match value.kind() {
        ValueKind::Map => ["{", "}"],
        ValueKind::Seq | ValueKind::Iterable => ["[", "]"],
        _ => return serde_json::to_string(value).map_err(unserializable),
    };
    let mut items = vec![];
    for item in value.try_iter()? {
        items.push(match is_mapping {
            true => {
                let key = serde_json::to_string(&item.to_string()).map_err(unserializable)?;
                format!("{key}: {}", json(&value.get_item(&item)?, indent, depth + 1)?)
            }
            false => json(&item, indent, depth + 1)?,
        });
    }
    let line = |depth| indent.map(|width| format!("\n{}", " ".repeat(width * depth)));
    Ok(match (items.is_empty(), line(depth + 1), line(depth)) {
        (false, Some(inner), Some(outer)) => {
            format!("{open}{inner}{}{outer}{close}", items.join(&format!(",{inner}")))
        }
        _ => format!("{open}{}{close}", items.join(", ")),
    })
}

fn unserializable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::BadSerialization, error.to_string())
}

fn explain(error: Error) -> anyhow::Error {
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => "it does not end".into(),
        _ => error.detail().map_or_else(|| error.to_string(), str::to_owned),
    };
    match error.line() {
        Some(line) => anyhow::anyhow!("line {line}: {reason}"),
        None => anyhow::anyhow!(reason),
    }
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
        let golden = include_str!("../tests/golden/chat.json");
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
