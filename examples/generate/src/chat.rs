//! Conversations as the text that a model was trained on.

use std::path::Path;

use anyhow::{Context, Result, bail};
use jiff::Zoned;
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

/// Steps of a template: conversations of some thousand messages take less.
const FUEL: u64 = 10_000_000;

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
        Self::new(template, special_tokens(&config)).map(Some)
    }

    fn new(template: String, special: Vec<(String, String)>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", raise);
        environment.add_function("strftime_now", |format: &str| {
            let now = jiff::fmt::strtime::format(format, &Zoned::now());
            now.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        environment.add_filter("tojson", to_json);
        let added = environment.add_template_owned(NAME, template);
        added.map_err(explain).context("the chat template cannot be read")?;
        Ok(Self { environment, special })
    }

    /// The text of a conversation, up to where the model's answer begins.
    ///
    /// # Errors
    /// What the template raises; where it runs for too long.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(explain)?;
        let special: Value = self.special.iter().cloned().collect();
        let values = context! { messages, add_generation_prompt => true, ..special };
        template
            .render(values)
            .map_err(explain)
            .context("the chat template refuses this conversation")
    }
}

/// What a template raises is its message alone.
fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python writes it, without the escapes that HTML needs.
fn to_json(value: &Value, options: minijinja::value::Kwargs) -> Result<Value, Error> {
    let failed = |error| Error::new(ErrorKind::BadSerialization, format!("{error}"));
    let indent: Option<usize> = options.get("indent")?;
    // Python's keywords that change nothing here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(value).map_err(failed)?;
    let text = match indent {
        Some(width) => {
            let indent = vec![b' '; width.min(16)];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&indent);
            let mut text = vec![];
            let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
            value.serialize(&mut serializer).map_err(failed)?;
            String::from_utf8(text).expect("JSON is UTF-8")
        }
        None => spaced(&value),
    };
    Ok(Value::from_safe_string(text))
}

/// JSON with a space after each comma and colon.
fn spaced(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            format!("[{}]", items.iter().map(spaced).collect::<Vec<_>>().join(", "))
        }
        Json::Object(items) => {
            let item = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::from(key.clone()), spaced(value))
            };
            format!("{{{}}}", items.iter().map(item).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
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

/// The prompts of a conversation as the model's tokenizer takes them need a template.
pub fn required(chat: Option<Chat>, folder: &Path) -> Result<Chat> {
    match chat {
        Some(chat) => Ok(chat),
        None => bail!(
            "{} has no chat template: the model continues texts; leave out --chat",
            folder.display()
        ),
    }
}
