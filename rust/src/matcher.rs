//! Finds the texts of special tokens: leftmost, then longest, as Hugging Face's added vocabulary does.
use crate::error::{data_loss, Result};
use aho_corasick::{AhoCorasick, MatchKind};

#[derive(Clone)]
pub struct SpecialToken {
    pub id: u32,
    pub text: String,
    /// White space before or after is part of the match (Hugging Face's lstrip, rstrip).
    pub takes_left_space: bool,
    pub takes_right_space: bool,
}

pub struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<SpecialToken>,
}

pub struct Found {
    pub begin: usize,
    pub end: usize,
    pub id: u32,
}

impl Matcher {
    /// None if there is nothing to find.
    pub fn new(tokens: Vec<SpecialToken>) -> Result<Option<Matcher>> {
        let tokens: Vec<SpecialToken> = tokens.into_iter().filter(|token| !token.text.is_empty()).collect();
        if tokens.is_empty() {
            return Ok(None);
        }
        let built = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| token.text.as_bytes()));
        match built {
            Ok(automaton) => Ok(Some(Matcher { automaton, tokens })),
            Err(error) => data_loss(format!("special tokens of the vocabulary cannot be searched: {error}")),
        }
    }

    pub fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    /// All matches inside text[from..to], in order. `text` is whole so that stripped white space can be seen; it is taken
    /// only inside from..to.
    pub fn find_all(&self, text: &str, from: usize, to: usize, out: &mut Vec<Found>) {
        let haystack = &text.as_bytes()[from..to];
        let mut done = from;
        for found in self.automaton.find_iter(haystack) {
            let token = &self.tokens[found.pattern().as_usize()];
            let (mut begin, mut end) = (from + found.start(), from + found.end());
            if token.takes_left_space {
                begin = done + text[done..begin].trim_end().len();
            }
            if token.takes_right_space && text.is_char_boundary(to) {
                end = to - text[end..to].trim_start().len();
            }
            // White space that a match took may hide the next one's beginning only if that begins with white space.
            if begin < done {
                continue;
            }
            out.push(Found { begin, end, id: token.id });
            done = end;
        }
    }
}
