//! The byte alphabet of GPT-2's vocabulary: every byte is written as one visible character. Bytes that are visible in
//! Latin-1 stand for themselves, the other 68 take U+0100 onwards in ascending order.
use std::sync::OnceLock;

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

pub fn to_chars() -> &'static [char; 256] {
    static TABLE: OnceLock<[char; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = ['\0'; 256];
        let mut spare = 0x100u32;
        for byte in 0..=255u8 {
            table[byte as usize] = if stands_for_itself(byte) {
                byte as char
            } else {
                spare += 1;
                char::from_u32(spare - 1).expect("U+0100..U+0143 are characters")
            };
        }
        table
    })
}

pub fn to_byte(symbol: char) -> Option<u8> {
    static TABLE: OnceLock<[Option<u8>; 0x144]> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = [None; 0x144];
        for (byte, symbol) in to_chars().iter().enumerate() {
            table[*symbol as usize] = Some(byte as u8);
        }
        table
    });
    table.get(symbol as usize).copied().flatten()
}

/// The bytes a vocabulary entry stands for; characters outside the alphabet stand for their own UTF-8.
pub fn decode(token: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(token.len());
    for symbol in token.chars() {
        match to_byte(symbol) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(symbol.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// Writes `text` in the byte alphabet.
pub fn encode_into(text: &str, out: &mut String) {
    let table = to_chars();
    out.clear();
    out.extend(text.bytes().map(|byte| table[byte as usize]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=255u8 {
            assert_eq!(to_byte(to_chars()[byte as usize]), Some(byte));
        }
        assert_eq!(to_chars()[b' ' as usize], 'Ġ');
        assert_eq!(to_chars()[b'\n' as usize], 'Ċ');
        assert_eq!(decode("Ġone世"), " one世".as_bytes());
    }
}
