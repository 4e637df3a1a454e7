//! What templates find: minijinja's built-ins, the Python methods of pycompat, Hugging Face's functions, and bounded
//! versions of everything whose result can be much larger than what it is given.
use crate::meter;
use crate::python::{self, JsonStyle};
use crate::taint::Taint;
use minijinja::value::{from_args, Kwargs, Rest, ValueKind};
use minijinja::{filters, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static TAINT: RefCell<Option<(Arc<Taint>, char)>> = const { RefCell::new(None) };
}

/// Runs `body` so that replace can mark control tokens that deleting text from a message brings about.
pub fn with_taint<T>(taint: &Arc<Taint>, marker: char, body: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            TAINT.with(|cell| *cell.borrow_mut() = None);
        }
    }
    TAINT.with(|cell| *cell.borrow_mut() = Some((taint.clone(), marker)));
    let _reset = Reset;
    body()
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.into()))
}

pub fn install(env: &mut Environment<'static>) {
    env.set_unknown_method_callback(method);
    env.remove_filter("pprint");
    env.remove_global("debug");
    env.add_function("raise_exception", |text: String| -> Result<Value, Error> { Err(meter::stop(text)) });
    env.add_function("strftime_now", strftime_now);
    env.add_function("namespace", |defaults: Option<Value>| -> Result<Value, Error> {
        if let Some(defaults) = &defaults {
            meter::weigh_data(defaults)?;
        }
        minijinja::functions::namespace(defaults)
    });
    env.add_filter("tojson", tojson);
    env.add_filter("string", |value: &Value| python::str_of(value));
    env.add_filter("replace", |text: &Value, old: &Value, new: &Value| {
        replace(&python::str_of(text), &python::str_of(old), &python::str_of(new), None)
    });
    env.add_filter("join", join);
    env.add_filter("sum", sum);
    env.add_filter("indent", indent);
    env.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        bounded_count(count, &value)?;
        filters::batch(state, value, count, fill)
    });
    env.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        bounded_count(count, &value)?;
        filters::slice(state, value, count, fill)
    });
    env.add_filter("format", |text: &str, arguments: Rest<Value>| -> Result<String, Error> {
        bounded_format(text, &arguments)?;
        minijinja::format_filter(minijinja::FormatStyle::Printf, text, &arguments)
    });
    env.add_filter("list", |state: &State, value: Value| {
        allow_parts(value.as_str().map_or(0, str::len))?;
        filters::list(state, value)
    });
    env.add_filter("split", |text: &Value, by: Option<&Value>, most: Option<i64>| split(text, by, most));
    env.add_filter("lines", |text: &Value| -> Result<Value, Error> {
        let text = python::str_of(text);
        allow_parts(text.matches('\n').count())?;
        Ok(text.lines().map(Value::from).collect())
    });
}

/// A list of `count` entries is about to be made.
fn allow_parts(count: usize) -> Result<(), Error> {
    meter::allow(count.checked_mul(64))
}

fn bounded_count(count: usize, value: &Value) -> Result<(), Error> {
    allow_parts(count)?;
    allow_parts(value.as_str().map_or(0, str::len))
}

fn replace(text: &str, old: &str, new: &str, most: Option<usize>) -> Result<Value, Error> {
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let found = most.map_or(found, |most| found.min(most));
    meter::allow(found.checked_mul(new.len()).and_then(|bytes| bytes.checked_add(text.len())))?;
    let result = most.map_or_else(|| text.replace(old, new), |most| text.replacen(old, new, most));
    // Deleting text between the halves of a control token must not make one out of what a user wrote.
    let result = TAINT.with(|cell| match cell.borrow().as_ref() {
        Some((taint, marker)) if taint.spells_control(&result) && !taint.spells_control(text) && !taint.spells_control(new) => {
            taint.marked(&result, *marker).unwrap_or(result)
        }
        _ => result,
    });
    Ok(Value::from(result))
}

fn join(values: &Value, joiner: Option<&Value>, named: Kwargs) -> Result<Value, Error> {
    let attribute: Option<String> = named.get("attribute")?;
    named.assert_all_used()?;
    let joiner = joiner.map_or(String::new(), python::str_of);
    join_with(values, &joiner, attribute.as_deref())
}

fn join_with(values: &Value, joiner: &str, attribute: Option<&str>) -> Result<Value, Error> {
    if values.is_undefined() {
        return Ok(Value::from(""));
    }
    if let Some(text) = values.as_str() {
        let count = text.chars().count();
        meter::allow(count.checked_mul(joiner.len()).and_then(|bytes| bytes.checked_add(text.len())))?;
    } else {
        let weight = meter::weigh(values)?;
        meter::allow(values.len().unwrap_or(0).checked_mul(joiner.len()).and_then(|bytes| bytes.checked_add(weight)))?;
    }
    let mut out = String::new();
    let mut first = true;
    let mut push = |part: &str| {
        if !std::mem::take(&mut first) {
            out.push_str(joiner);
        }
        out.push_str(part);
    };
    match values.as_str() {
        Some(text) => text.chars().for_each(|c| push(c.encode_utf8(&mut [0; 4]))),
        None => {
            for item in values.try_iter()? {
                let item = match attribute {
                    Some(name) => item.get_attr(name)?,
                    None => item,
                };
                push(&python::str_of(&item));
            }
        }
    }
    Ok(Value::from(out))
}

fn sum(state: &State, values: Value) -> Result<Value, Error> {
    for item in values.try_iter()? {
        if item.kind() != ValueKind::Number {
            return refuse("sum adds numbers only");
        }
    }
    filters::sum(state, values)
}

fn indent(text: &Value, width: Option<&Value>, first: Option<bool>, blank: Option<bool>, named: Kwargs) -> Result<Value, Error> {
    let named_width: Option<Value> = named.get("width")?;
    let first = first.or(named.get("first")?).unwrap_or(false);
    let blank = blank.or(named.get("blank")?).unwrap_or(false);
    named.assert_all_used()?;
    let filling = match named_width.as_ref().or(width) {
        None => "    ".to_string(),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_string(),
            (None, Some(count)) => {
                meter::allow(Some(count))?;
                " ".repeat(count)
            }
            (None, None) => return refuse("indent: the width is neither a number nor a text"),
        },
    };
    let text = python::str_of(text);
    let lines = text.matches('\n').count() + 1;
    meter::allow(lines.checked_mul(filling.len()).and_then(|bytes| bytes.checked_add(text.len())))?;
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let wanted = if index == 0 { first } else { blank || !line.is_empty() };
        if wanted {
            out.push_str(&filling);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// Widths are at most four digits, and no argument is used more often than there are placeholders.
fn bounded_format(text: &str, arguments: &[Value]) -> Result<(), Error> {
    let digits = text.as_bytes().split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
    if digits > 4 || (text.contains('%') && text.contains('*')) {
        return refuse("format: widths of more than four digits are not available");
    }
    let places = text.matches(['%', '{']).count();
    let mut weight = 10_000usize;
    for argument in arguments {
        weight += meter::weigh(argument)?;
    }
    meter::allow(places.checked_mul(weight).and_then(|bytes| bytes.checked_add(text.len())))
}

fn tojson(value: &Value, indent: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = indent.or(named.get("indent")?);
    let separators: Option<Value> = named.get("separators")?;
    let sort_keys: Option<bool> = named.get("sort_keys")?;
    let _: Option<bool> = named.get("ensure_ascii")?;
    named.assert_all_used()?;
    let indent = match indent {
        Some(indent) if !indent.is_none() && !indent.is_undefined() => match indent.as_usize() {
            Some(count) if count <= 64 && indent.kind() == ValueKind::Number => Some(count),
            _ => return refuse("tojson: indent is a number from 0 to 64"),
        },
        _ => None,
    };
    let mut style = JsonStyle {
        indent,
        item_separator: if indent.is_some() { "," } else { ", " }.into(),
        key_separator: ": ".into(),
        sort_keys: sort_keys.unwrap_or(false),
    };
    if let Some(pair) = separators.filter(|pair| !pair.is_none()) {
        let pair: Vec<String> = pair.try_iter()?.map(|part| python::str_of(&part)).collect();
        let [item, key] = <[String; 2]>::try_from(pair).or_else(|_| refuse("tojson: separators are two texts"))?;
        if item.len() > 64 || key.len() > 64 {
            return refuse("tojson: a separator has more than 64 bytes");
        }
        (style.item_separator, style.key_separator) = (item, key);
    }
    let weight = meter::weigh(value)?;
    // Each entry gets two separators and a line of indentation at most; a character six.
    let per_entry = style.item_separator.len() + style.key_separator.len() + indent.unwrap_or(0) * 16;
    meter::allow((weight / 32).checked_mul(per_entry).and_then(|bytes| bytes.checked_add(weight)))?;
    let mut out = String::new();
    python::json_into(value, &style, 0, &mut out).or_else(|what| refuse(format!("tojson: {what}")))?;
    Ok(Value::from(out))
}

fn split(text: &Value, by: Option<&Value>, most: Option<i64>) -> Result<Value, Error> {
    let text = python::str_of(text);
    let most = most.filter(|&most| most >= 0).map_or(usize::MAX, |most| most as usize);
    let parts: Vec<Value> = match by.filter(|by| !by.is_none()).map(python::str_of) {
        Some(by) if by.is_empty() => return refuse("split: the separator is empty"),
        Some(by) => {
            allow_parts(text.matches(by.as_str()).count())?;
            text.splitn(most.saturating_add(1), by.as_str()).map(Value::from).collect()
        }
        None => {
            allow_parts(text.len() / 2)?;
            split_spaces(&text, most)
        }
    };
    Ok(Value::from(parts))
}

fn split_spaces(text: &str, most: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = if parts.len() == most { None } else { rest.find(char::is_whitespace) };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(Value::from(if end.is_none() { part.trim_end() } else { part }));
        rest = after.trim_start();
    }
    parts
}

fn method(state: &State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, arguments);
    };
    match name {
        "replace" => {
            let (old, new, most): (&str, &str, Option<i64>) = from_args(arguments)?;
            replace(text, old, new, most.filter(|&most| most >= 0).map(|most| most as usize))
        }
        "join" => {
            let (values,): (&Value,) = from_args(arguments)?;
            join_with(values, text, None)
        }
        "split" => {
            let (by, most, named): (Option<&Value>, Option<i64>, Kwargs) = from_args(arguments)?;
            let most = most.or(named.get("maxsplit")?);
            split(value, by, most)
        }
        "splitlines" => {
            allow_parts(text.matches(['\n', '\r']).count())?;
            unknown_method_callback(state, value, name, arguments)
        }
        "format" => {
            bounded_format(text, arguments)?;
            unknown_method_callback(state, value, name, arguments)
        }
        "count" => {
            let (what,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.matches(what).count()))
        }
        "removeprefix" => {
            let (what,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(what).unwrap_or(text)))
        }
        "removesuffix" => {
            let (what,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(what).unwrap_or(text)))
        }
        _ => unknown_method_callback(state, value, name, arguments),
    }
}

/// datetime.now().strftime(format), as Hugging Face gives it to templates.
fn strftime_now(format: &str) -> Result<String, Error> {
    if format.len() > 256 || format.contains('\0') {
        return refuse("strftime_now: the format has more than 256 bytes or a zero byte");
    }
    if format.is_empty() {
        return Ok(String::new());
    }
    let pattern = std::ffi::CString::new(format).or_else(|_| refuse("strftime_now: the format has a zero byte"))?;
    let mut text = vec![0u8; 16384];
    // SAFETY: all pointers are to live storage of the stated sizes; localtime_r is the thread-safe form.
    let size = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return refuse("strftime_now: no local time");
        }
        libc::strftime(text.as_mut_ptr().cast(), text.len(), pattern.as_ptr(), &parts)
    };
    text.truncate(size);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
