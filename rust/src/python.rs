//! Values as Python prints them: str(), repr() and json.dumps(ensure_ascii=False). Hugging Face renders chat templates
//! with Jinja2, so these are what models were trained on.
use minijinja::value::ValueKind;
use minijinja::Value;
use std::fmt::Write;

pub fn str_of(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_string(),
        None if value.is_undefined() => String::new(),
        None => {
            let mut out = String::new();
            repr_into(value, &mut out);
            out
        }
    }
}

fn repr_into(value: &Value, out: &mut String) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number_into(value, out),
        ValueKind::String => repr_string(value.as_str().unwrap_or(""), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr_into(&item, out);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr_into(&key, out);
                out.push_str(": ");
                repr_into(&value.get_item(&key).unwrap_or(Value::UNDEFINED), out);
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || ('\x7f'..='\u{a0}').contains(&c) || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number_into(value: &Value, out: &mut String) {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => out.push_str(&float_repr(number)),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Python's repr(float): the shortest digits that read back, an exponent below 1e-4 and from 1e16 on.
pub fn float_repr(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".into() } else if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{number}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// The indices that value[start:stop:step] takes from `count` entries (Python's slice.indices); step is not 0.
pub fn slice_indices(count: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let count = count as i64;
    let (low, high) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let place = |index: Option<i64>, absent: i64| match index {
        None => absent,
        Some(index) if index < 0 => index.saturating_add(count).max(low),
        Some(index) => index.min(high),
    };
    let (mut at, stop) = if step > 0 {
        (place(start, low), place(stop, high))
    } else {
        (place(start, high), place(stop, low))
    };
    let mut indices = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        indices.push(at as usize);
        at = at.saturating_add(step);
    }
    indices
}

/// json.dumps's options as the templates' tojson takes them.
pub struct JsonStyle {
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

/// An error names a value that JSON has no form for.
pub fn json_into(value: &Value, style: &JsonStyle, level: usize, out: &mut String) -> Result<(), String> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if !number.is_finite() && !value.is_integer() => out.push_str(match number {
                n if n.is_nan() => "NaN",
                n if n > 0.0 => "Infinity",
                _ => "-Infinity",
            }),
            _ => number_into(value, out),
        },
        ValueKind::String => json_string(value.as_str().unwrap_or(""), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            nested(('[', ']'), &items, style, level, out, &mut |item, out| json_into(item, style, level + 1, out))?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter().into_iter().flatten().collect();
            if style.sort_keys {
                keys.sort();
            }
            nested(('{', '}'), &keys, style, level, out, &mut |key, out| {
                json_string(&str_of(key), out);
                out.push_str(&style.key_separator);
                json_into(&value.get_item(key).unwrap_or(Value::UNDEFINED), style, level + 1, out)
            })?;
        }
        kind => return Err(format!("a value of type {kind} has no JSON form")),
    }
    Ok(())
}

fn nested(
    (open, close): (char, char),
    items: &[Value],
    style: &JsonStyle,
    level: usize,
    out: &mut String,
    write: &mut dyn FnMut(&Value, &mut String) -> Result<(), String>,
) -> Result<(), String> {
    let new_line = |level: usize, out: &mut String| {
        if let Some(indent) = style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * level));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(level + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(level, out);
    }
    out.push(close);
    Ok(())
}

fn json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_in_python() {
        let cases = [(1.0, "1.0"), (0.1, "0.1"), (1e16, "1e+16"), (1e15, "1000000000000000.0"), (1e-4, "0.0001"), (1.5e-5, "1.5e-05")];
        for (number, text) in cases {
            assert_eq!(float_repr(number), text);
        }
    }

    #[test]
    fn slices_as_in_python() {
        assert_eq!(slice_indices(0, None, None, -1), Vec::<usize>::new());
        assert_eq!(slice_indices(3, None, None, -1), [2, 1, 0]);
        assert_eq!(slice_indices(3, Some(-1), None, 1), [2]);
        assert_eq!(slice_indices(3, None, Some(-1), 1), [0, 1]);
        assert_eq!(slice_indices(3, Some(5), Some(-9), -2), [2, 0]);
        assert_eq!(slice_indices(5, Some(1), Some(4), 2), [1, 3]);
        assert_eq!(slice_indices(5, Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
    }
}
