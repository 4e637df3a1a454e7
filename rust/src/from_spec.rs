//! A tokenizer from the raw material of a GGUF file.
use crate::bytelevel;
use crate::error::{data_loss, unimplemented, Result};
use crate::matcher::{Matcher, SpecialToken};
use crate::pretokenizer;
use crate::spm::{self, Spm};
use crate::tokenizer::{ByteBpe, Engine, Tokenizer, FLAG_ENDS, FLAG_SPECIAL};
use ahash::AHashMap;
use tokenizers::models::bpe::BPE;

const UNKNOWN: u8 = 2;
const CONTROL: u8 = 3;
const USER_DEFINED: u8 = 4;
const BYTE: u8 = 6;

/// Control tokens that end a turn although the file names another one as eos; models of the kind emit them.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>", "<|end_of_text|>",
    "<EOT>", "<|end_of_turn|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>",
    "[EOT]", "<|user|>",
];

pub struct Spec<'a> {
    pub model: &'a str,
    pub pre: &'a str,
    pub tokens: Vec<&'a str>,
    pub scores: &'a [f32],
    pub kinds: &'a [u8],
    pub merges: Vec<&'a str>,
    pub bos: i32,
    pub eos: i32,
    pub eot: i32,
    pub unk: i32,
    pub pad: i32,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
}

impl Spec<'_> {
    fn kind(&self, id: usize) -> u8 {
        self.kinds.get(id).copied().unwrap_or(1)
    }

    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 || count > i32::MAX as usize {
            return data_loss(format!("tokenizer.ggml.tokens has {count} entries; 1 to 2^31-1 are possible"));
        }
        for (what, size) in [("token_type", self.kinds.len()), ("scores", self.scores.len())] {
            if size != 0 && size != count {
                return data_loss(format!("tokenizer.ggml.{what} has {size} entries for {count} tokens"));
            }
        }
        let named = [("bos", self.bos), ("eos", self.eos), ("eot", self.eot), ("unknown", self.unk), ("padding", self.pad)];
        for (what, id) in named {
            if id < -1 || id as i64 >= count as i64 {
                return data_loss(format!("tokenizer.ggml.{what}_token_id is {id}; the vocabulary has {count} tokens"));
            }
        }
        Ok(())
    }

    fn specials(&self, kind: u8) -> Result<Option<Matcher>> {
        let chosen = (0..self.tokens.len()).filter(|&id| self.kind(id) == kind);
        Matcher::new(
            chosen
                .map(|id| SpecialToken {
                    id: id as u32,
                    text: self.tokens[id].to_string(),
                    takes_left_space: false,
                    takes_right_space: false,
                })
                .collect(),
        )
    }

    fn flags(&self) -> Vec<u8> {
        (0..self.tokens.len())
            .map(|id| {
                let special = matches!(self.kind(id), CONTROL | UNKNOWN);
                let named = id as i64 == self.eos as i64 || id as i64 == self.eot as i64;
                let turn_end = self.kind(id) == CONTROL && ends_a_turn(self.tokens[id]);
                u8::from(special) * FLAG_SPECIAL + u8::from(named || turn_end) * FLAG_ENDS
            })
            .collect()
    }
}

pub fn ends_a_turn(token: &str) -> bool {
    TURN_ENDS.contains(&token)
}

pub fn build(spec: &Spec) -> Result<Tokenizer> {
    spec.check()?;
    let byte_level = match spec.model {
        "gpt2" => true,
        "llama" => false,
        other => {
            return unimplemented(format!("tokenizer.ggml.model '{other}' is not known; known are gpt2, llama"));
        }
    };
    let engine = if byte_level { byte_bpe(spec)? } else { sentence_piece(spec)? };
    let mut bytes = Vec::new();
    let mut offsets = vec![0];
    for (id, token) in spec.tokens.iter().enumerate() {
        match spec.kind(id) {
            CONTROL | USER_DEFINED | UNKNOWN => bytes.extend_from_slice(token.as_bytes()),
            _ if byte_level => bytes.extend(bytelevel::decode(token)),
            BYTE => match spm::byte_of(token) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(token.as_bytes()),
            },
            _ => bytes.extend(spm::decode(token)),
        }
        offsets.push(bytes.len() as u64);
    }
    let one = |wanted: bool, id: i32| if wanted && id >= 0 { vec![id as u32] } else { Vec::new() };
    Ok(Tokenizer {
        engine,
        control: spec.specials(CONTROL)?,
        user_defined: spec.specials(USER_DEFINED)?,
        bytes,
        offsets,
        flags: spec.flags(),
        bos: spec.bos,
        eos: spec.eos,
        add_bos: spec.add_bos && spec.bos >= 0,
        prefix: one(spec.add_bos, spec.bos),
        suffix: one(spec.add_eos, spec.eos),
        strips_leading_space: !byte_level && spec.add_space_prefix,
    })
}

fn byte_bpe(spec: &Spec) -> Result<Engine> {
    let Some(pre) = pretokenizer::by_name(spec.pre) else {
        return unimplemented(format!(
            "tokenizer.ggml.pre '{}' is not known; known are {}",
            spec.pre,
            pretokenizer::KNOWN.join(", ")
        ));
    };
    let ordinary = |id: usize| !matches!(spec.kind(id), CONTROL | USER_DEFINED);
    let mut vocabulary: AHashMap<String, u32> = AHashMap::with_capacity(spec.tokens.len());
    for (id, token) in spec.tokens.iter().enumerate().filter(|&(id, _)| ordinary(id)) {
        vocabulary.insert(token.to_string(), id as u32);
    }
    let mut merges = Vec::with_capacity(spec.merges.len());
    for (rank, merge) in spec.merges.iter().enumerate() {
        // The first space parts the two; pieces are written in the byte alphabet, which has no space.
        let Some((left, right)) = merge.split_once(' ') else {
            return data_loss(format!("tokenizer.ggml.merges[{rank}] has no space between its two pieces"));
        };
        let joined = [left, right].concat();
        if [left, right, joined.as_str()].iter().any(|piece| !vocabulary.contains_key(*piece)) {
            return data_loss(format!("tokenizer.ggml.merges[{rank}] joins pieces that are not in the vocabulary"));
        }
        merges.push((left.to_string(), right.to_string()));
    }
    let unknown = usize::try_from(spec.unk).ok().filter(|&id| ordinary(id)).map(|id| spec.tokens[id].to_string());
    let mut builder = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(pre.ignore_merges);
    if let Some(unknown) = unknown {
        builder = builder.unk_token(unknown);
    }
    match builder.build() {
        Ok(bpe) => Ok(Engine::ByteBpe(Box::new(ByteBpe { pre, bpe }))),
        Err(error) => data_loss(format!("tokenizer.ggml.merges: {error}")),
    }
}

fn sentence_piece(spec: &Spec) -> Result<Engine> {
    if spec.scores.is_empty() {
        return data_loss("tokenizer.ggml.scores is missing; llama vocabularies need it");
    }
    if let Some(id) = spec.scores.iter().position(|score| score.is_nan()) {
        return data_loss(format!("tokenizer.ggml.scores[{id}] is not a number"));
    }
    let mut pieces = AHashMap::with_capacity(spec.tokens.len());
    let mut bytes = [None; 256];
    for (id, token) in spec.tokens.iter().enumerate() {
        match spec.kind(id) {
            CONTROL | UNKNOWN | USER_DEFINED => {}
            BYTE => {
                if let Some(byte) = spm::byte_of(token) {
                    bytes[byte as usize] = Some(id as u32);
                }
            }
            _ => {
                pieces.insert(token.to_string(), (id as u32, spec.scores[id]));
            }
        }
    }
    let unknown = u32::try_from(spec.unk).ok();
    Ok(Engine::Spm(Spm::new(pieces, bytes, unknown, spec.add_space_prefix)))
}
