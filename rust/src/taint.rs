//! Keeps user text from becoming control tokens, whatever a template does with it.
//!
//! Inside every string of the context a marker (a noncharacter that occurs nowhere else) is put before the second
//! character of whatever spells a control token, in any letter case, and of what could be the beginning of one at the
//! string's end. A marker means: the character after it is the user's. It survives trim, +, ~, upper, slices and JSON;
//! after rendering the markers are cut out and their characters are reported, so no control token is read across them.
use crate::error::{invalid, Result};
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

pub struct Taint {
    finder: Option<AhoCorasick>,
    texts: Vec<String>,
}

/// U+FDD0..U+FDEF are noncharacters: for a program's own use, never for text.
fn candidates() -> impl Iterator<Item = char> {
    ('\u{fdd0}'..='\u{fdef}').chain((0..=16).filter_map(|plane| char::from_u32(plane * 0x10000 + 0xfffe)))
}

fn any_string(value: &Value, test: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::String(text) => test(text),
        Value::Array(items) => items.iter().any(|item| any_string(item, test)),
        Value::Object(map) => map.iter().any(|(key, item)| test(key) || any_string(item, test)),
        _ => false,
    }
}

impl Taint {
    pub fn new(texts: Vec<String>) -> std::result::Result<Taint, String> {
        let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let finder = if texts.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder()
                .match_kind(MatchKind::Standard)
                .ascii_case_insensitive(true)
                .build(texts.iter().map(String::as_bytes));
            Some(built.map_err(|error| format!("control tokens cannot be searched: {error}"))?)
        };
        Ok(Taint { finder, texts })
    }

    /// A marker that neither the context nor the template contains.
    pub fn marker(&self, context: &Value, source: &str) -> Result<char> {
        let free = |c: &char| !source.contains(*c) && !any_string(context, &mut |text| text.contains(*c));
        match candidates().find(free) {
            Some(marker) => Ok(marker),
            None => invalid("the messages contain every Unicode noncharacter; leave one out"),
        }
    }

    pub fn spells_control(&self, text: &str) -> bool {
        self.finder.as_ref().is_some_and(|finder| finder.is_match(text))
    }

    /// Where markers go in `text`: byte offsets, ascending.
    fn offsets(&self, text: &str) -> Vec<usize> {
        let Some(finder) = &self.finder else { return Vec::new() };
        let second = |begin: usize, end: usize| {
            let first = text[begin..].chars().next().map_or(1, char::len_utf8);
            if begin + first < end { begin + first } else { begin }
        };
        let mut offsets: Vec<usize> =
            finder.find_overlapping_iter(text).map(|found| second(found.start(), found.end())).collect();
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
        let tail = text.len().saturating_sub(longest);
        for (begin, _) in text.char_indices().skip_while(|&(begin, _)| begin < tail) {
            let rest = &text.as_bytes()[begin..];
            let begins_one = |token: &&String| {
                token.len() > rest.len() && token.as_bytes()[..rest.len()].eq_ignore_ascii_case(rest)
            };
            if self.texts.iter().any(|token| begins_one(&token)) {
                offsets.push(second(begin, text.len()));
            }
        }
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// None: nothing to mark.
    pub fn marked(&self, text: &str, marker: char) -> Option<String> {
        let offsets = self.offsets(text);
        if offsets.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len() + 4 * offsets.len());
        let mut done = 0;
        for offset in offsets {
            out.push_str(&text[done..offset]);
            out.push(marker);
            done = offset;
        }
        out.push_str(&text[done..]);
        Some(out)
    }

    /// Marks every string and key below `value`.
    pub fn mark(&self, value: &mut Value, marker: char) {
        match value {
            Value::String(text) => {
                if let Some(marked) = self.marked(text, marker) {
                    *text = marked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark(item, marker)),
            Value::Object(map) => {
                if map.keys().any(|key| self.marked(key, marker).is_some()) {
                    let entries = std::mem::take(map);
                    map.extend(entries.into_iter().map(|(key, item)| (self.marked(&key, marker).unwrap_or(key), item)));
                }
                map.values_mut().for_each(|item| self.mark(item, marker));
            }
            _ => {}
        }
    }
}

/// Cuts the markers out of a rendered text; gives the byte ranges of the characters they stood before.
pub fn unmark(rendered: &str, marker: char) -> (String, Vec<usize>) {
    let mut text = String::with_capacity(rendered.len());
    let mut plain: Vec<usize> = Vec::new();
    let mut marked = false;
    for c in rendered.chars() {
        if c == marker {
            marked = true;
            continue;
        }
        if marked {
            plain.extend([text.len(), text.len() + c.len_utf8()]);
        }
        marked = false;
        text.push(c);
    }
    (text, plain)
}
