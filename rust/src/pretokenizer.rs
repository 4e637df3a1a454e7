//! How text is cut before byte-level BPE: the published pattern of each vocabulary kind, under the name that GGUF files
//! give it (tokenizer.ggml.pre). Sources: the `pre_tokenizer` of the models' public tokenizer.json files.
//!
//! All patterns end in `\s+(?!\S)|\s+`: a run of white space keeps its last character back for the word after it. That
//! look-ahead is all that keeps them from a linear-time automaton, so it is done by hand (Stage::keeps_last_space).
use regex::Regex;

/// One cut: matches and what lies between matches become pieces of their own.
pub struct Stage {
    pattern: Regex,
    /// A match of white space alone, unless it ends the text or ends with a line end taken by an earlier alternative,
    /// gives its last character back.
    keeps_last_space: bool,
    newline_alternative: bool,
}

impl Stage {
    fn next_match(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.pattern.find_at(text, from)?;
        let (begin, end) = (found.start(), found.end());
        if !self.keeps_last_space || end == text.len() {
            return Some((begin, end));
        }
        let last = text[begin..end].chars().next_back()?;
        if !last.is_whitespace() || (self.newline_alternative && matches!(last, '\r' | '\n')) {
            return Some((begin, end));
        }
        let kept = end - last.len_utf8();
        Some((begin, if kept > begin { kept } else { end }))
    }
}

pub struct PreTokenizer {
    stages: Vec<Stage>,
    /// BPE takes a whole piece that is in the vocabulary as it is, without replaying merges.
    pub ignore_merges: bool,
    /// Text is brought to Unicode NFC first.
    pub nfc: bool,
}

impl PreTokenizer {
    pub fn split<'t>(&self, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        self.split_from(0, text, emit);
    }

    fn split_from<'t>(&self, stage: usize, text: &'t str, emit: &mut dyn FnMut(&'t str)) {
        if text.is_empty() {
            return;
        }
        let Some(cut) = self.stages.get(stage) else {
            emit(text);
            return;
        };
        let mut done = 0;
        while let Some((begin, end)) = cut.next_match(text, done) {
            if end == begin {
                break; // no pattern here matches the empty string
            }
            self.split_from(stage + 1, &text[done..begin], emit);
            self.split_from(stage + 1, &text[begin..end], emit);
            done = end;
        }
        self.split_from(stage + 1, &text[done..], emit);
    }
}

include!("patterns.rs");
