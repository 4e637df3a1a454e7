//! Limits on a template's text, checked before minijinja's parser and compiler see it: both recurse once per operator of
//! a chain such as a.b.c or a ~ b ~ c and once per elif, and the compiler computes constant expressions.
use minijinja::machinery::{tokenize, Token, WhitespaceConfig};
use minijinja::{Error, ErrorKind};

pub const SOURCE_BYTES_MAX: usize = 1 << 20;
/// Tokens of one {{ }} or {% %}.
const BLOCK_TOKENS_MAX: usize = 2_000;
const ELIFS_MAX: usize = 500;
/// 'text' * number in a block with literals.
const REPEATS_MAX: u64 = 256;

fn refuse<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

#[derive(Default)]
struct Block {
    tokens: usize,
    products: usize,
    literals: bool,
    largest: u64,
}

impl Block {
    fn check(&self, line: u16) -> Result<(), Error> {
        if self.tokens > BLOCK_TOKENS_MAX {
            return refuse(format!("a block has more than {BLOCK_TOKENS_MAX} tokens (line {line})"));
        }
        let repeats = self.products > 1 || (self.products == 1 && self.largest > REPEATS_MAX);
        if self.literals && repeats {
            return refuse(format!("a text or list is repeated more than {REPEATS_MAX} times in a constant (line {line})"));
        }
        Ok(())
    }

    fn add(&mut self, token: &Token) {
        self.tokens += 1;
        match token {
            Token::Mul => self.products += 1,
            Token::Str(_) | Token::String(_) | Token::BracketOpen => self.literals = true,
            Token::Int(value) => self.largest = self.largest.max(*value),
            Token::Int128(_) => self.largest = u64::MAX,
            _ => {}
        }
    }
}

pub fn check(source: &str) -> Result<(), Error> {
    if source.len() > SOURCE_BYTES_MAX {
        return refuse(format!("the template has {} bytes; the limit is {SOURCE_BYTES_MAX}", source.len()));
    }
    let spaces = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let mut block = Block::default();
    let mut elifs = 0;
    for item in tokenize(source, false, Default::default(), spaces) {
        let (token, span) = item?;
        match token {
            Token::TemplateData(_) => {}
            Token::VariableStart | Token::BlockStart => block = Block::default(),
            Token::VariableEnd | Token::BlockEnd => block.check(span.start_line)?,
            token => {
                elifs += usize::from(block.tokens == 0 && matches!(token, Token::Ident("elif")));
                block.add(&token);
                if block.tokens > BLOCK_TOKENS_MAX {
                    block.check(span.start_line)?;
                }
            }
        }
    }
    if elifs > ELIFS_MAX {
        return refuse(format!("the template has more than {ELIFS_MAX} elif"));
    }
    Ok(())
}
