//! A tokenizer from Hugging Face's tokenizer.json, with tokenizer_config.json beside it where there is one.
use crate::bytelevel;
use crate::error::{data_loss, unimplemented, Code, Error, Result};
use crate::from_spec::ends_a_turn;
use crate::matcher::{Matcher, SpecialToken};
use crate::spm;
use crate::tokenizer::{Engine, Tokenizer, FLAG_ENDS, FLAG_SPECIAL};
use serde_json::Value;
use std::path::Path;

#[derive(Clone, Copy, PartialEq)]
enum Decoding {
    ByteLevel,
    SentencePiece,
}

fn mentions(node: &Value, kind: &str) -> bool {
    match node {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(kind) || map.values().any(|child| mentions(child, kind))
        }
        Value::Array(items) => items.iter().any(|child| mentions(child, kind)),
        _ => false,
    }
}

fn decoding(json: &Value) -> Result<Decoding> {
    let decoder = json.get("decoder").unwrap_or(&Value::Null);
    if mentions(decoder, "ByteLevel") {
        Ok(Decoding::ByteLevel)
    } else if mentions(decoder, "ByteFallback") || mentions(decoder, "Metaspace") {
        Ok(Decoding::SentencePiece)
    } else {
        unimplemented("tokenizer.json: the decoder is not known; known are ByteLevel, ByteFallback, Metaspace")
    }
}

fn token_bytes(text: &str, decoding: Decoding) -> Vec<u8> {
    match decoding {
        Decoding::ByteLevel => bytelevel::decode(text),
        Decoding::SentencePiece => spm::byte_of(text).map_or_else(|| spm::decode(text), |byte| vec![byte]),
    }
}

/// A token named in tokenizer_config.json: a string or an object with `content`.
fn named_token(config: &Value, name: &str, inner: &tokenizers::Tokenizer) -> i32 {
    let entry = &config[name];
    let text = entry.as_str().or_else(|| entry["content"].as_str());
    text.and_then(|text| inner.token_to_id(text)).map_or(-1, |id| id as i32)
}

fn read(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(|error| Error {
        code: Code::NotFound,
        message: format!("{}: {error}", path.display()),
    })?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error { code: Code::DataLoss, message: format!("{}: {error}", path.display()) })
}

/// What the post-processor puts around a text, learned by looking.
fn frame(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>)> {
    let encoded = |special| match inner.encode("a", special) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => data_loss(format!("tokenizer.json: {error}")),
    };
    let (bare, framed) = (encoded(false)?, encoded(true)?);
    let at = framed.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(0);
    let end = (at + bare.len()).min(framed.len());
    Ok((framed[..at].to_vec(), framed[end..].to_vec()))
}

pub fn load(path: &str) -> Result<Tokenizer> {
    let path = Path::new(path);
    let json = read(path)?;
    let config = path.parent().map(|dir| dir.join("tokenizer_config.json"));
    let config = match config {
        Some(file) if file.exists() => read(&file)?,
        _ => Value::Null,
    };
    let decoding = decoding(&json)?;
    let mut inner: tokenizers::Tokenizer = match serde_json::from_value(json.clone()) {
        Ok(inner) => inner,
        Err(error) => return data_loss(format!("{}: {error}", path.display())),
    };
    inner.with_padding(None);
    if let Err(error) = inner.with_truncation(None) {
        return data_loss(format!("{}: {error}", path.display()));
    }
    let (mut prefix, suffix) = frame(&inner)?;
    let bos = named_token(&config, "bos_token", &inner);
    let eos = named_token(&config, "eos_token", &inner);
    match config["add_bos_token"].as_bool() {
        Some(true) if bos >= 0 && prefix.is_empty() => prefix.push(bos as u32),
        Some(false) if prefix == [bos as u32] => prefix.clear(),
        _ => {}
    }
    inner.set_encode_special_tokens(true);
    assemble(inner, decoding, (bos, eos), (prefix, suffix))
}

fn assemble(
    inner: tokenizers::Tokenizer,
    decoding: Decoding,
    (bos, eos): (i32, i32),
    (prefix, suffix): (Vec<u32>, Vec<u32>),
) -> Result<Tokenizer> {
    let added = inner.get_added_tokens_decoder();
    let vocabulary = inner.get_vocab(true);
    let count = vocabulary.values().max().map_or(0, |&last| last as usize + 1);
    if count == 0 || count > (1 << 24) {
        return data_loss(format!("tokenizer.json: ids up to {count}; 1 to 2^24 tokens are possible"));
    }
    let mut texts: Vec<Option<&str>> = vec![None; count];
    for (text, &id) in &vocabulary {
        texts[id as usize] = Some(text);
    }
    let (mut bytes, mut offsets, mut flags) = (Vec::new(), vec![0], vec![0u8; count]);
    let mut specials = Vec::new();
    for id in 0..count as u32 {
        let text = texts[id as usize].unwrap_or("");
        let ends = id as i32 == eos;
        match added.get(&id) {
            Some(token) => {
                bytes.extend_from_slice(token.content.as_bytes());
                let ends = ends || (token.special && ends_a_turn(&token.content));
                flags[id as usize] = u8::from(token.special) * FLAG_SPECIAL + u8::from(ends) * FLAG_ENDS;
                if token.special {
                    specials.push(SpecialToken {
                        id,
                        text: token.content.clone(),
                        takes_left_space: token.lstrip,
                        takes_right_space: token.rstrip,
                    });
                }
            }
            None => {
                bytes.extend(token_bytes(text, decoding));
                flags[id as usize] = u8::from(ends) * FLAG_ENDS;
            }
        }
        offsets.push(bytes.len() as u64);
    }
    let add_bos = bos >= 0 && prefix.first() == Some(&(bos as u32));
    Ok(Tokenizer {
        control: Matcher::new(specials)?,
        user_defined: None,
        bytes,
        offsets,
        flags,
        bos,
        eos,
        add_bos,
        prefix,
        suffix,
        strips_leading_space: decoding == Decoding::SentencePiece,
        engine: Engine::Json(Box::new(inner)),
    })
}
