//! What goes in and comes out: texts, conversations, JSON.

use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use burn_fp8::Fp8Matmul;
use burn_fp8_serve::{Cache, Chat, Decoder, Message, Options, Outcome, Tokens, Writer, generate};
use clap::ValueEnum;
use examples_common::print;
use serde_json::json;

use crate::args::Write;

/// The tokens of a conversation that went through the model, and their keys and values.
struct Seen<B: Fp8Matmul> {
    tokens: Vec<u32>,
    cache: Cache<B>,
}

/// A model, ready to write.
pub struct Talk<'a, B: Fp8Matmul> {
    decoder: &'a Decoder<B>,
    tokens: &'a Tokens,
    options: Options,
    args: &'a Write,
    /// Set by Ctrl-C, and while nothing is written.
    interrupted: Arc<AtomicBool>,
}

impl<'a, B: Fp8Matmul> Talk<'a, B> {
    /// From here on Ctrl-C ends what is being written; a second one, or one while nothing is, ends the program.
    pub fn new(
        decoder: &'a Decoder<B>,
        tokens: &'a Tokens,
        options: Options,
        args: &'a Write,
    ) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(true));
        let flag = interrupted.clone();
        let handler = move || {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        };
        ctrlc::set_handler(handler).context("cannot listen to Ctrl-C")?;
        Ok(Self { decoder, tokens, options, args, interrupted })
    }

    /// Continues the prompts, or holds a conversation.
    pub fn run(&self, chat: Option<&Chat>) -> Result<()> {
        match chat {
            Some(chat) => self.converse(chat),
            None => self.complete(),
        }
    }

    fn complete(&self) -> Result<()> {
        let encode = |prompt: &String| self.tokens.encode(prompt, true);
        let prompts = self.args.prompt.iter().map(encode).collect::<Result<Vec<_>>>()?;
        let names: Vec<&str> = self.args.prompt.iter().map(String::as_str).collect();
        if let [name] = names[..] {
            self.show(name)?;
        }
        let (outcome, texts, _) = self.write(&prompts, None)?;
        if self.args.json {
            return print(&self.json(&names, &texts, &outcome));
        }
        if names.len() > 1 {
            for (name, text) in names.iter().zip(&texts) {
                print(&format!("{name}{text}\n\n"))?;
            }
        }
        Ok(())
    }

    fn converse(&self, chat: &Chat) -> Result<()> {
        let mut messages: Vec<Message> =
            self.args.system.iter().map(|text| Message::new("system", text)).collect();
        if let Some(prompt) = self.args.prompt.first() {
            messages.push(Message::new("user", prompt));
            let (text, outcome, _) = self.answer(chat, &messages, None)?;
            return match self.args.json {
                true => print(&self.json(&[prompt], &[text], &outcome)),
                false => Ok(()),
            };
        }
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            eprintln!("a line each; an empty one, or Ctrl-D, ends the conversation");
        }
        let mut seen = None;
        loop {
            if is_terminal {
                print("> ")?;
            }
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                return Ok(());
            }
            messages.push(Message::new("user", line));
            let (text, outcome, new) = self.answer(chat, &messages, seen.take())?;
            if self.args.json {
                print(&self.json(&[line], std::slice::from_ref(&text), &outcome))?;
            }
            messages.push(Message::new("assistant", text));
            seen = Some(new);
        }
    }

    /// Writes what follows a conversation, and gives its text, how it came about, and what the model has seen.
    fn answer(
        &self,
        chat: &Chat,
        messages: &[Message],
        seen: Option<Seen<B>>,
    ) -> Result<(String, Outcome, Seen<B>)> {
        // Templates write what a text begins with.
        let prompt = self.tokens.encode(&chat.render(messages)?, false)?;
        let seen = seen.map(|Seen { tokens, mut cache }| {
            let same = tokens.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
            // Something must go through the model, for logits.
            cache.truncate(same.min(prompt.len().saturating_sub(1)));
            cache
        });
        let (outcome, texts, cache) = self.write(std::slice::from_ref(&prompt), seen)?;
        let mut tokens = prompt;
        tokens.extend(&outcome.rows[0].tokens);
        // The last token was written and not seen.
        tokens.truncate(cache.length());
        let text = texts.into_iter().next().context("there is no answer")?;
        Ok((text, outcome, Seen { tokens, cache }))
    }

    /// Prints one text as it grows, and speeds at the end.
    fn write(
        &self,
        prompts: &[Vec<u32>],
        seen: Option<Cache<B>>,
    ) -> Result<(Outcome, Vec<String>, Cache<B>)> {
        self.interrupted.store(false, Ordering::SeqCst);
        // An answer begins anew; a text goes on.
        let writer = |prompt: &Vec<u32>| {
            let before = if self.args.chat { &[][..] } else { prompt };
            Writer::new(self.tokens, &self.args.stop, before)
        };
        let mut writers = prompts.iter().map(writer).collect::<Result<Vec<_>>>()?;
        let alone = prompts.len() == 1;
        let take = |row: usize, token: u32| {
            let new = writers[row].push(token)?;
            if alone {
                self.show(&new)?;
            }
            Ok(!writers[row].stopped() && !self.interrupted.load(Ordering::SeqCst))
        };
        let (outcome, cache) = generate(self.decoder, prompts, &self.options, seen, take)?;
        self.interrupted.store(true, Ordering::SeqCst);
        for writer in &mut writers {
            let rest = writer.finish();
            if alone {
                self.show(&rest)?;
            }
        }
        if alone {
            self.show("\n")?;
        }
        let [prefill, decode] = [outcome.prefill, outcome.decode];
        let new: usize = outcome.rows.iter().map(|row| row.tokens.len()).sum();
        // The first token of a row belongs to the prompt: alone it says nothing.
        let speed = match decode.tokens {
            0 => String::new(),
            _ => format!(", {:.1} a second", decode.per_second()),
        };
        let cache_type = outcome.cache.to_possible_value().expect("none is hidden");
        let cache_type = cache_type.get_name();
        let products = match outcome.kernels.is_empty() {
            true => "none in FP8".to_owned(),
            false => outcome.kernels.join(", "),
        };
        eprintln!(
            "prompt: {} tokens, {:.1} a second; new: {new} tokens{speed}; cache: {:.1} MB in {cache_type}; products: {products}",
            prefill.tokens,
            prefill.per_second(),
            outcome.cache_bytes as f64 / 1e6,
        );
        let texts = writers.iter().map(|writer| writer.text().to_owned()).collect();
        Ok((outcome, texts, cache))
    }

    /// Prints where there is no JSON to come.
    fn show(&self, text: &str) -> Result<()> {
        if self.args.json { Ok(()) } else { print(text) }
    }

    fn json(&self, prompts: &[&str], texts: &[String], outcome: &Outcome) -> String {
        let rows = prompts.iter().zip(texts).zip(&outcome.rows).map(|((prompt, text), row)| {
            json!({ "prompt": prompt, "text": text, "tokens": row.tokens, "ended": row.ended })
        });
        let object = json!({
            "rows": rows.collect::<Vec<_>>(),
            "prefill": outcome.prefill,
            "decode": outcome.decode,
            "weight_bytes": self.decoder.bytes(),
            "cache_bytes": outcome.cache_bytes,
            "cache": outcome.cache,
            "kernels": outcome.kernels,
        });
        format!("{object}\n")
    }
}
