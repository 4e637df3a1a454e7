// Included by pretokenizer.rs: the table of known kinds. The patterns are facts about public models: what the
// `pre_tokenizer` of each kind splits on, as published with the models and in public descriptions of the GGUF `pre`
// names, without `\s+(?!\S)` (see words()). Which kinds are checked against a reference tokenizer: docs/text.md.

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);
const DEEPSEEK_V3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
);
/// Letters of deepseek-llm: scripts with upper and lower case.
const DEEPSEEK_LLM_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}",
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}",
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}",
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}",
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}",
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}",
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}",
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}",
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);
const DEEPSEEK_LLM_SIGNS: &str = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

fn plain(pattern: &str) -> Stage {
    Stage { pattern: Regex::new(pattern).expect("our own pattern"), keeps_last_space: false, newline_alternative: false }
}

/// A pattern whose last alternatives are `\s+(?!\S)|\s+`, written here as `\s+`.
fn words(pattern: &str) -> Stage {
    Stage { keeps_last_space: true, newline_alternative: pattern.contains(r"|\s*[\r\n"), ..plain(pattern) }
}

pub const KNOWN: &[&str] = &[
    "default", "gpt-2", "phi-2", "smollm", "starcoder", "refact", "falcon", "llama-bpe", "llama3", "llama-v3", "dbrx",
    "smaug-bpe", "qwen2", "deepseek-r1-qwen", "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o", "llama4",
];

/// None: an unknown name.
pub fn by_name(name: &str) -> Option<PreTokenizer> {
    let stages = match name {
        "gpt-2" | "phi-2" => vec![words(GPT2)],
        "smollm" | "starcoder" | "refact" => vec![plain(r"\p{N}"), words(GPT2)],
        // What a file without a name means to llama.cpp, which such files were written for.
        "default" => vec![
            plain(r"[\p{P}\$\+<=>\^~\|]+"),
            words(GPT2),
            plain(r"\p{N}+"),
            plain("[0-9][0-9][0-9]"),
        ],
        "falcon" => vec![plain(r"[\p{P}\$\+<=>\^~\|`]+"), words(GPT2), plain("[0-9][0-9][0-9]")],
        "llama-bpe" | "llama3" | "llama-v3" | "dbrx" | "smaug-bpe" => vec![words(CL100K)],
        "qwen2" | "deepseek-r1-qwen" => vec![words(QWEN2)],
        "tekken" => vec![words(TEKKEN)],
        "gpt-4o" | "llama4" => vec![words(O200K)],
        "deepseek-llm" => vec![
            plain(r"[\r\n]"),
            plain(DEEPSEEK_LLM_LETTERS),
            plain(DEEPSEEK_LLM_SIGNS),
            plain(r"\s+$"),
            plain(DEEPSEEK_CJK),
            plain(r"\p{N}"),
        ],
        "deepseek-coder" => vec![
            plain(r"[\r\n]"),
            plain(r"\s?\p{L}+"),
            plain(r"\s?\p{P}+"),
            plain(DEEPSEEK_CJK),
            plain(r"\p{N}"),
        ],
        "deepseek-v3" => vec![
            plain(r"\p{N}{1,3}"),
            plain(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"),
            words(DEEPSEEK_V3),
        ],
        _ => return None,
    };
    Some(PreTokenizer {
        stages,
        ignore_merges: matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "tekken"),
        nfc: matches!(name, "qwen2" | "deepseek-r1-qwen"),
    })
}
