//! A chat template: Jinja as Hugging Face's apply_chat_template reads it, within limits.
use crate::error::{data_loss, invalid, Code, Error, Result};
use crate::filters;
use crate::guard;
use crate::meter::{Limits, Running};
use crate::python;
use crate::taint::{self, Taint};
use crate::tokenizer::Tokenizer;
use minijinja::machinery::{make_string_output, Vm};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

const NAME: &str = "chat template";

pub struct Template {
    env: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    taint: Arc<Taint>,
    limits: Limits,
}

pub struct Rendered {
    pub text: String,
    /// Byte ranges (begin, end, begin, ...) that are user text and part of no control token.
    pub plain: Vec<usize>,
}

/// Hugging Face's {% generation %} only marks what the assistant wrote, for training.
fn without_generation_tags(source: &str) -> String {
    let tag = |pattern: &str| regex::Regex::new(pattern).expect("our own pattern");
    let opened = tag(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})").replace_all(source, "${1}if true${2}");
    tag(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})").replace_all(&opened, "${1}endif${2}").into_owned()
}

fn message(error: &minijinja::Error, limits: &Limits) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("{NAME}: takes more than {} steps", limits.fuel);
    }
    let line = error.line().filter(|&line| line > 0).map_or(String::new(), |line| format!(" (line {line})"));
    let detail = error.detail().map_or(String::new(), |detail| format!(": {detail}"));
    format!("{NAME}: {}{detail}{line}", error.kind())
}

impl Template {
    pub fn new(source: &str, tokenizer: &Tokenizer, limits: Limits) -> Result<Template> {
        let text = |id| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned();
        let control = tokenizer.control.as_ref().map_or(Vec::new(), |control| {
            control.tokens().iter().map(|token| token.text.clone()).collect()
        });
        let taint = Arc::new(Taint::new(control).or_else(data_loss)?);
        let mut env = Environment::new();
        env.set_fuel(Some(limits.fuel.saturating_mul(guard::FUEL_FACTOR).min(isize::MAX as u64)));
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_formatter(|out, _, value| {
            out.write_str(&python::str_of(value)).map_err(minijinja::Error::from)?;
            crate::meter::tick(0)
        });
        guard::install(&mut env);
        filters::install(&mut env);
        let source = without_generation_tags(source);
        if let Err(error) = guard::compile(NAME, &source) {
            return invalid(message(&error, &limits));
        }
        Ok(Template { env, source, bos: text(tokenizer.bos), eos: text(tokenizer.eos), taint, limits })
    }

    fn context(&self, json: &str) -> Result<(Value, char)> {
        let mut context: serde_json::Value = match serde_json::from_str(json) {
            Ok(context) => context,
            Err(error) => return invalid(format!("{NAME}: the context is not JSON: {error}")),
        };
        let marker = self.taint.marker(&context, &self.source)?;
        self.taint.mark(&mut context, marker);
        let Some(members) = context.as_object_mut() else {
            return invalid(format!("{NAME}: the context is not a JSON object"));
        };
        if let Some(name) = members.keys().find(|name| name.starts_with('\u{1}')) {
            return invalid(format!("{NAME}: '{}' is no name of a variable", name.escape_debug()));
        }
        // The template's own: nobody may pass other ones in.
        members.insert("bos_token".into(), self.bos.clone().into());
        members.insert("eos_token".into(), self.eos.clone().into());
        Ok((Value::from_serialize(&context), marker))
    }

    pub fn render(&self, json: &str) -> Result<Rendered> {
        let (context, marker) = self.context(json)?;
        let instructions = guard::compile(NAME, &self.source).or_else(|error| invalid(message(&error, &self.limits)))?;
        let mut out = String::new();
        let running = Running::start(self.limits);
        filters::with_taint(&self.taint, marker, || {
            let blocks = BTreeMap::new();
            let mut output = make_string_output(&mut out);
            Vm::new(&self.env)
                .eval(&instructions, context, &blocks, &mut output, AutoEscape::None)
                .map(|_| ())
                .map_err(|error| Error {
                    code: Code::InvalidArgument,
                    message: running.stopped().unwrap_or_else(|| message(&error, &self.limits)),
                })
        })?;
        drop(running);
        if out.len() > self.limits.value_bytes_max {
            return invalid(format!("{NAME}: writes more than {} bytes", self.limits.value_bytes_max));
        }
        let (text, plain) = taint::unmark(&out, marker);
        Ok(Rendered { text, plain })
    }
}
