//! A vocabulary of any kind: text pieces to ids, ids to bytes.
use crate::bytelevel;
use crate::error::{invalid, Code, Error, Result};
use crate::matcher::{Found, Matcher};
use crate::pretokenizer::PreTokenizer;
use crate::spm::Spm;
use tokenizers::models::bpe::BPE;
use tokenizers::{Model, NormalizedString, Normalizer};

pub struct ByteBpe {
    pub pre: PreTokenizer,
    pub bpe: BPE,
}

pub enum Engine {
    ByteBpe(Box<ByteBpe>),
    Spm(Spm),
    /// A whole tokenizer.json; its special tokens are switched off and handled here.
    Json(Box<tokenizers::Tokenizer>),
}

pub const FLAG_SPECIAL: u8 = 1;
pub const FLAG_ENDS: u8 = 2;

pub struct Tokenizer {
    pub engine: Engine,
    pub control: Option<Matcher>,
    /// Always matched, in plain text too (Json does that by itself).
    pub user_defined: Option<Matcher>,
    pub bytes: Vec<u8>,
    pub offsets: Vec<u64>,
    pub flags: Vec<u8>,
    pub bos: i32,
    pub eos: i32,
    pub add_bos: bool,
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub strips_leading_space: bool,
}

pub struct Piece<'a> {
    pub text: &'a [u8],
    pub trusted: bool,
}

impl Tokenizer {
    pub fn vocab_size(&self) -> usize {
        self.flags.len()
    }

    pub fn token_text(&self, id: i32) -> &[u8] {
        match usize::try_from(id) {
            Ok(id) if id < self.vocab_size() => {
                &self.bytes[self.offsets[id] as usize..self.offsets[id + 1] as usize]
            }
            _ => b"",
        }
    }

    pub fn encode(&self, pieces: &[Piece], add_special: bool) -> Result<Vec<u32>> {
        let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.text.iter().copied()).collect();
        let text = match std::str::from_utf8(&whole) {
            Ok(text) => text,
            Err(error) => {
                let offset = error.valid_up_to();
                return invalid(format!("text is not valid UTF-8 at byte {offset} (0x{:02x})", whole[offset]));
            }
        };
        let mut found = Vec::new();
        if let Some(control) = &self.control {
            let mut begin = 0;
            for piece in pieces {
                let end = begin + piece.text.len();
                if piece.trusted && text.is_char_boundary(begin) && text.is_char_boundary(end) {
                    control.find_all(text, begin, end, &mut found);
                }
                begin = end;
            }
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        let mut done = 0;
        for Found { begin, end, id } in found {
            self.encode_stretch(&text[done..begin], &mut ids)?;
            ids.push(id);
            done = end;
        }
        self.encode_stretch(&text[done..], &mut ids)?;
        if add_special {
            self.add_special(&mut ids);
        }
        Ok(ids)
    }

    fn add_special(&self, ids: &mut Vec<u32>) {
        // A text that already begins with BOS gets no second one.
        let there = !self.prefix.is_empty() && ids.starts_with(&self.prefix);
        if !there {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        if !self.suffix.is_empty() && !ids.ends_with(&self.suffix) {
            ids.extend_from_slice(&self.suffix);
        }
    }

    /// A stretch without control tokens.
    fn encode_stretch(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let Some(user_defined) = &self.user_defined else {
            return self.encode_plain(text, out);
        };
        let mut found = Vec::new();
        user_defined.find_all(text, 0, text.len(), &mut found);
        let mut done = 0;
        for Found { begin, end, id } in found {
            self.encode_plain(&text[done..begin], out)?;
            out.push(id);
            done = end;
        }
        self.encode_plain(&text[done..], out)
    }

    fn encode_plain(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.engine {
            Engine::ByteBpe(engine) => engine.encode(text, out),
            Engine::Spm(engine) => {
                engine.encode(text, out);
                Ok(())
            }
            Engine::Json(engine) => {
                let encoding = engine.encode_fast(text, false).map_err(internal)?;
                out.extend_from_slice(encoding.get_ids());
                Ok(())
            }
        }
    }
}

impl ByteBpe {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        if self.pre.nfc && !text.is_ascii() {
            let mut normalized = NormalizedString::from(text);
            tokenizers::normalizers::unicode::NFC.normalize(&mut normalized).map_err(internal)?;
            return self.encode_normalized(normalized.get(), out);
        }
        self.encode_normalized(text, out)
    }

    fn encode_normalized(&self, text: &str, out: &mut Vec<u32>) -> Result<()> {
        let mut symbols = String::new();
        let mut failed = None;
        self.pre.split(text, &mut |piece| {
            bytelevel::encode_into(piece, &mut symbols);
            match self.bpe.tokenize(&symbols) {
                Ok(tokens) => out.extend(tokens.iter().map(|token| token.id)),
                Err(error) => failed = Some(error),
            }
        });
        failed.map_or(Ok(()), |error| Err(internal(error)))
    }
}

pub fn internal(error: impl std::fmt::Display) -> Error {
    Error { code: Code::Internal, message: format!("tokenizer: {error}") }
}
