// Included by pretokenizer.rs: the table of known kinds.

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

fn plain(pattern: &str) -> Stage {
    Stage { pattern: Regex::new(pattern).expect("our own pattern"), keeps_last_space: false, newline_alternative: false }
}
fn words(pattern: &str, newline_alternative: bool) -> Stage {
    Stage { keeps_last_space: true, newline_alternative, ..plain(pattern) }
}

pub const KNOWN: &[&str] = &["default", "gpt-2", "llama-bpe", "smollm", "qwen2"];

/// None: an unknown name.
pub fn by_name(name: &str) -> Option<PreTokenizer> {
    let (stages, ignore_merges, nfc) = match name {
        "gpt-2" => (vec![words(GPT2, false)], false, false),
        "llama-bpe" => (vec![words(LLAMA3, true)], true, false),
        "qwen2" => (vec![words(QWEN2, true)], false, true),
        "smollm" => (vec![plain(r"\p{N}"), words(GPT2, false)], false, false),
        "default" => (
            vec![
                plain(r"[\p{P}\$\+<=>\^~\|]+"),
                words(GPT2, false),
                plain(r"\p{N}+"),
                plain("[0-9][0-9][0-9]"),
            ],
            false,
            false,
        ),
        _ => return None,
    };
    Some(PreTokenizer { stages, ignore_merges, nfc })
}
