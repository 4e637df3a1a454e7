//! Puts the checks of meter.rs between a template's instructions.
//!
//! minijinja counts instructions, but one instruction may double a string, and sixty of those are an exabyte. Its
//! compiler's output is therefore rewritten: operators that make values are followed by a call that weighs the result,
//! loops and raw text by a tick, so memory and time are bounded whatever a template does. The names of the inserted
//! functions begin with U+0001, which no template can spell (and no context may use, see template.rs).
use crate::meter;
use crate::preflight;
use crate::python;
use minijinja::machinery::{parse, CodeGenerator, Instruction, Instructions, WhitespaceConfig};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value};

const CHECK: &str = "\u{1}check";
const CHECK_DATA: &str = "\u{1}data";
const CONCAT: &str = "\u{1}concat";
const SLICE: &str = "\u{1}slice";
const TICK: &str = "\u{1}tick";
const TICK_MACRO: &str = "\u{1}macro";

pub fn install(env: &mut Environment<'static>) {
    env.add_function(CHECK, |value: Value| meter::check(value));
    env.add_function(CHECK_DATA, |value: Value| -> Result<Value, Error> {
        meter::weigh_data(&value)?;
        Ok(value)
    });
    env.add_function(CONCAT, |left: Value, right: Value| -> Result<Value, Error> {
        let (left, right) = (python::str_of(&left), python::str_of(&right));
        meter::allow(left.len().checked_add(right.len()))?;
        Ok(Value::from(left + &right))
    });
    env.add_function(SLICE, slice);
    env.add_function(TICK, || meter::tick(0));
    env.add_function(TICK_MACRO, meter::tick_macro);
}

/// value[start:stop:step]. minijinja's own gives a lazy list, and panics on ''[::-1].
fn slice(value: Value, start: Value, stop: Value, step: Value) -> Result<Value, Error> {
    let number = |value: Value| match value {
        value if value.is_none() || value.is_undefined() => Ok(None),
        value => i64::try_from(value).map(Some),
    };
    let (start, stop, step) = (number(start)?, number(stop)?, number(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a slice's step is 0"));
    }
    if let Some(text) = value.as_str() {
        meter::allow(text.len().checked_mul(12))?;
        let characters: Vec<char> = text.chars().collect();
        let indices = python::slice_indices(characters.len(), start, stop, step);
        return Ok(Value::from(indices.into_iter().map(|index| characters[index]).collect::<String>()));
    }
    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a {} cannot be sliced", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let indices = python::slice_indices(items.len(), start, stop, step);
    meter::check(Value::from(indices.into_iter().map(|index| items[index].clone()).collect::<Vec<Value>>()))
}

/// How many instructions a check adds to the ones it follows, so that the fuel means the template's own.
pub const FUEL_FACTOR: u64 = 3;

/// Compiles with Hugging Face's white space rules.
pub fn compile<'s>(name: &'s str, source: &'s str) -> Result<Instructions<'s>, Error> {
    preflight::check(source)?;
    let spaces = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let tree = parse(source, name, Default::default(), spaces)?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    if !blocks.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "blocks are not available in chat templates"));
    }
    rewrite(&instructions, name, source)
}

/// What stands before and after an instruction, and what replaces it.
fn guarded<'s>(instruction: &Instruction<'s>) -> Result<Vec<Instruction<'s>>, Error> {
    use Instruction as I;
    let call = |name, arguments| I::CallFunction(name, Some(arguments));
    let itself = instruction.clone();
    Ok(match instruction {
        I::StringConcat => vec![call(CONCAT, 2)],
        I::Slice => vec![call(SLICE, 4)],
        I::Add | I::Mul | I::Pow | I::BuildList(_) | I::BuildMap(_) | I::ApplyFilter(..) | I::EndCapture
        | I::CallFunction(..) | I::CallMethod(..) | I::CallObject(_) => vec![itself, call(CHECK, 1)],
        I::Iterate(_) | I::EmitRaw(_) | I::PerformTest(..) | I::Eq | I::Ne | I::Lt | I::Lte | I::Gt | I::Gte | I::In
        | I::CompareAndPreserve(_) => vec![itself, call(TICK, 0), I::DiscardTop],
        I::SetAttr(_) => vec![I::Swap, call(CHECK_DATA, 1), I::Swap, itself],
        I::BuildMacro(..) => vec![call(TICK_MACRO, 0), I::DiscardTop, itself],
        I::CallBlock(_) | I::LoadBlocks | I::Include(_) | I::ExportLocals => {
            let message = "block, extends, include and import are not available in chat templates";
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        _ => vec![itself],
    })
}

fn target(instruction: &Instruction) -> Option<u32> {
    use Instruction as I;
    match instruction {
        I::Iterate(to) | I::Jump(to) | I::JumpIfFalse(to) | I::JumpIfFalseOrPop(to) | I::JumpIfTrueOrPop(to)
        | I::BuildMacro(_, to, _) => Some(*to),
        _ => None,
    }
}

fn with_target<'s>(instruction: Instruction<'s>, to: u32) -> Instruction<'s> {
    use Instruction as I;
    match instruction {
        I::Iterate(_) => I::Iterate(to),
        I::Jump(_) => I::Jump(to),
        I::JumpIfFalse(_) => I::JumpIfFalse(to),
        I::JumpIfFalseOrPop(_) => I::JumpIfFalseOrPop(to),
        I::JumpIfTrueOrPop(_) => I::JumpIfTrueOrPop(to),
        I::BuildMacro(name, _, flags) => I::BuildMacro(name, to, flags),
        other => other,
    }
}

fn rewrite<'s>(old: &Instructions<'s>, name: &'s str, source: &'s str) -> Result<Instructions<'s>, Error> {
    let mut groups = Vec::new();
    let mut begins = Vec::new(); // where each old instruction's group begins
    let mut at = 0u32;
    while let Some(instruction) = old.get(groups.len() as u32) {
        let group = guarded(instruction)?;
        begins.push(at);
        at += group.len() as u32;
        groups.push(group);
    }
    begins.push(at);
    let mut new = Instructions::new(name, source);
    for (index, group) in groups.into_iter().enumerate() {
        let line = old.get_line(index as u32).unwrap_or(0).min(u16::MAX as usize) as u16;
        for instruction in group {
            let instruction = match target(&instruction) {
                Some(to) => {
                    let to = begins.get(to as usize).copied().unwrap_or(at);
                    with_target(instruction, to)
                }
                None => instruction,
            };
            new.add_with_line(instruction, line);
        }
    }
    Ok(new)
}
