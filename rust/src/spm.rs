//! SentencePiece BPE as Llama's vocabularies use it (SentencePiece's bpe_model): start from characters, join the pair
//! whose piece has the highest score (on equal scores the leftmost), until no pair is a piece. A character that is no
//! piece becomes its UTF-8 bytes' `<0xNN>` tokens, or the unknown token where the vocabulary lacks those.
use ahash::AHashMap;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

pub const SPACE: char = '\u{2581}';

pub struct Spm {
    pieces: AHashMap<String, (u32, f32)>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    pub add_space_prefix: bool,
}

#[derive(Clone, Copy)]
struct Symbol {
    begin: usize,
    size: usize, // 0: joined to its left neighbour
    previous: usize,
    next: usize,
}
const NONE: usize = usize::MAX;

struct Join {
    score: f32,
    left: usize,
    right: usize,
    size: usize,
}
impl PartialEq for Join {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Join {}
impl PartialOrd for Join {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Join {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl Spm {
    pub fn new(
        pieces: AHashMap<String, (u32, f32)>,
        bytes: [Option<u32>; 256],
        unknown: Option<u32>,
        add_space_prefix: bool,
    ) -> Spm {
        Spm { pieces, bytes, unknown, add_space_prefix }
    }

    /// `text` is one stretch between control tokens.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + 16);
        if self.add_space_prefix {
            escaped.push(SPACE);
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut symbols = characters(&escaped);
        let mut joins = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.offer(&escaped, &symbols, right - 1, right, &mut joins);
        }
        while let Some(join) = joins.pop() {
            let (left, right) = (symbols[join.left], symbols[join.right]);
            if left.size == 0 || right.size == 0 || left.size + right.size != join.size {
                continue; // one of the two was joined elsewhere since
            }
            symbols[join.left].size = join.size;
            symbols[join.left].next = right.next;
            symbols[join.right].size = 0;
            if right.next != NONE {
                symbols[right.next].previous = join.left;
                self.offer(&escaped, &symbols, join.left, right.next, &mut joins);
            }
            if left.previous != NONE {
                self.offer(&escaped, &symbols, left.previous, join.left, &mut joins);
            }
        }
        for symbol in symbols.iter().filter(|symbol| symbol.size > 0) {
            self.emit(&escaped[symbol.begin..symbol.begin + symbol.size], out);
        }
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, joins: &mut BinaryHeap<Join>) {
        let begin = symbols[left].begin;
        let size = symbols[left].size + symbols[right].size;
        if let Some(&(_, score)) = self.pieces.get(&text[begin..begin + size]) {
            joins.push(Join { score, left, right, size });
        }
    }

    fn emit(&self, piece: &str, out: &mut Vec<u32>) {
        if let Some(&(id, _)) = self.pieces.get(piece) {
            out.push(id);
        } else if piece.bytes().all(|byte| self.bytes[byte as usize].is_some()) {
            out.extend(piece.bytes().filter_map(|byte| self.bytes[byte as usize]));
        } else if let Some(unknown) = self.unknown {
            out.push(unknown);
        }
    }
}

fn characters(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (begin, character) in text.char_indices() {
        let index = symbols.len();
        symbols.push(Symbol {
            begin,
            size: character.len_utf8(),
            previous: index.wrapping_sub(1),
            next: index + 1,
        });
    }
    if let Some(last) = symbols.last_mut() {
        last.next = NONE;
    }
    symbols
}

/// The byte of a `<0xNN>` token.
pub fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The bytes a vocabulary entry stands for.
pub fn decode(token: &str) -> Vec<u8> {
    token.replace(SPACE, " ").into_bytes()
}
