//! Limits of one render, kept per thread while it runs: time, memory, the size and depth of any one value.
use crate::budget;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// JSON contexts nest up to 128 deep (serde_json); templates may wrap them a little more.
const DEPTH_MAX: usize = 200;
const NODE_BYTES: usize = 32;
const WORK_MAX: usize = 50_000_000;
const MACROS_MAX: usize = 1_000;

#[derive(Clone, Copy)]
pub struct Limits {
    pub fuel: u64,
    pub value_bytes_max: usize,
    pub time: Duration,
}

impl Limits {
    /// What the thread may hold more than before the render.
    pub fn held_bytes_max(&self) -> usize {
        self.value_bytes_max.saturating_mul(4)
    }
}

struct Meter {
    limits: Limits,
    deadline: Instant,
    held_before: isize,
    work: usize,
    macros: usize,
    /// The first limit that was passed, or the template's own raise_exception.
    stopped: Option<String>,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Starts metering on this thread; dropping it ends that.
pub struct Running(());

impl Running {
    pub fn start(limits: Limits) -> Running {
        let meter = Meter {
            limits,
            deadline: Instant::now() + limits.time,
            held_before: budget::held_by_thread(),
            work: 0,
            macros: 0,
            stopped: None,
        };
        METER.with(|cell| *cell.borrow_mut() = Some(meter));
        Running(())
    }

    pub fn stopped(&self) -> Option<String> {
        METER.with(|cell| cell.borrow_mut().as_mut().and_then(|meter| meter.stopped.take()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        METER.with(|cell| *cell.borrow_mut() = None);
    }
}

/// Ends the render with this message.
pub fn stop(message: String) -> Error {
    METER.with(|cell| {
        if let Some(meter) = cell.borrow_mut().as_mut() {
            meter.stopped.get_or_insert_with(|| message.clone());
        }
    });
    Error::new(ErrorKind::InvalidOperation, message)
}

fn limits() -> Limits {
    let fallback = Limits { fuel: 0, value_bytes_max: 0, time: Duration::ZERO };
    METER.with(|cell| cell.borrow().as_ref().map_or(fallback, |meter| meter.limits))
}

/// Between any two instructions that cost more than a constant.
pub fn tick(work: usize) -> Result<(), Error> {
    let message = METER.with(|cell| {
        let mut cell = cell.borrow_mut();
        let meter = cell.as_mut()?;
        meter.work = meter.work.saturating_add(work);
        let held = budget::held_by_thread().wrapping_sub(meter.held_before);
        let held_max = meter.limits.held_bytes_max();
        if held > 0 && held as usize > held_max {
            return Some(format!("chat template: uses more than {held_max} bytes of memory"));
        }
        if meter.work > WORK_MAX {
            return Some(format!("chat template: handles more than {WORK_MAX} list entries"));
        }
        if Instant::now() > meter.deadline {
            return Some(format!("chat template: takes longer than {} ms", meter.limits.time.as_millis()));
        }
        None
    });
    message.map_or(Ok(()), |message| Err(stop(message)))
}

pub fn tick_macro() -> Result<(), Error> {
    let count = METER.with(|cell| {
        cell.borrow_mut().as_mut().map_or(0, |meter| {
            meter.macros += 1;
            meter.macros
        })
    });
    if count > MACROS_MAX {
        return Err(stop(format!("chat template: defines more than {MACROS_MAX} macros")));
    }
    tick(0)
}

/// Before an operation that makes a text of about `bytes`.
pub fn allow(bytes: Option<usize>) -> Result<(), Error> {
    let max = limits().value_bytes_max;
    match bytes {
        Some(bytes) if bytes <= max => tick(0),
        _ => Err(stop(format!("chat template: builds a value of more than {max} bytes"))),
    }
}

/// How large a value is written out in full: shared parts count as often as they appear.
pub fn weigh(value: &Value) -> Result<usize, Error> {
    let mut scale = Scale { bytes: 0, nodes: 0, max: limits().value_bytes_max, only_data: false };
    scale.add(value, 0)?;
    tick(scale.nodes)?;
    Ok(scale.bytes)
}

/// As weigh, and refuses anything but data (macros, namespaces, loops): such values could form rings.
pub fn weigh_data(value: &Value) -> Result<(), Error> {
    let mut scale = Scale { bytes: 0, nodes: 0, max: limits().value_bytes_max, only_data: true };
    scale.add(value, 0)?;
    tick(scale.nodes)
}

struct Scale {
    bytes: usize,
    nodes: usize,
    max: usize,
    only_data: bool,
}

/// Types of minijinja's that hold references to other values of the running template.
const RING_MAKERS: &[&str] = &["Namespace", "Macro", "Closure", "Loop", "Module"];

pub fn is_ring_maker(value: &Value) -> bool {
    value.as_object().is_some_and(|object| {
        let name = object.type_name();
        RING_MAKERS.contains(&name.rsplit("::").next().unwrap_or(name))
    })
}

impl Scale {
    fn add(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(stop(format!("chat template: nests values more than {DEPTH_MAX} deep")));
        }
        self.nodes += 1;
        self.bytes += NODE_BYTES + value.as_str().map_or(0, str::len) + value.as_bytes().map_or(0, <[u8]>::len);
        if self.bytes > self.max {
            return Err(stop(format!("chat template: builds a value of more than {} bytes", self.max)));
        }
        if is_ring_maker(value) {
            return if self.only_data {
                Err(stop("chat template: a namespace can hold only data, no namespace, macro or loop".into()))
            } else {
                Ok(())
            };
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.add(&item, depth + 1)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.add(&key, depth + 1)?;
                    self.add(&value.get_item(&key)?, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// After every instruction that makes a value: bounded, and nothing lazy.
pub fn check(value: Value) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        allow(Some(text.len()))?;
        return Ok(value);
    }
    match value.kind() {
        ValueKind::Iterable => {
            let count_max = limits().value_bytes_max / NODE_BYTES;
            let mut items = Vec::new();
            for item in value.try_iter()? {
                if items.len() >= count_max {
                    return Err(stop(format!("chat template: builds a list of more than {count_max} entries")));
                }
                items.push(item);
            }
            let list = Value::from(items);
            weigh(&list)?;
            Ok(list)
        }
        ValueKind::Seq | ValueKind::Map => {
            weigh(&value)?;
            Ok(value)
        }
        _ => {
            tick(0)?;
            Ok(value)
        }
    }
}
