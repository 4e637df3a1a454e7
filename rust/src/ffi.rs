//! The C ABI's tokenizer half and what both halves share. Layouts and ownership: include/kvasir_text.h.
#![allow(non_camel_case_types)]
use crate::error::{invalid, Code, Error, Result};
use crate::from_spec::Spec;
use crate::tokenizer::{Piece, Tokenizer};
use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct kv_str {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
pub struct kv_buffer {
    pub data: *mut u8,
    pub size: usize,
}

#[repr(C)]
pub struct kv_ids {
    pub data: *mut i32,
    pub size: usize,
}

#[repr(C)]
pub struct kv_piece {
    pub text: kv_str,
    pub trusted: u8,
}

#[repr(C)]
pub struct kv_tokenizer_spec {
    model: kv_str,
    pre: kv_str,
    tokens: *const kv_str,
    token_count: usize,
    scores: *const f32,
    score_count: usize,
    kinds: *const u8,
    kind_count: usize,
    merges: *const kv_str,
    merge_count: usize,
    bos: i32,
    eos: i32,
    eot: i32,
    unk: i32,
    pad: i32,
    add_bos: u8,
    add_eos: u8,
    add_space_prefix: u8,
}

#[repr(C)]
pub struct kv_tokenizer_info {
    vocab_size: i32,
    bos: i32,
    eos: i32,
    add_bos: u8,
    strips_leading_space: u8,
    token_bytes: *const u8,
    token_offsets: *const u64,
    token_flags: *const u8,
}

/// # Safety
/// data[..count] must be readable for 'a (null is allowed if count is 0).
pub unsafe fn view<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, count)
    }
}

impl kv_str {
    /// # Safety
    /// The bytes must live for 'a.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        view(self.data, self.size)
    }
    /// # Safety
    /// As bytes(). `what` stands in the message.
    pub unsafe fn text<'a>(self, what: &str) -> Result<&'a str> {
        match std::str::from_utf8(self.bytes()) {
            Ok(text) => Ok(text),
            Err(error) => invalid(format!("{what} is not valid UTF-8 at byte {}", error.valid_up_to())),
        }
    }
}

/// Gives a vector away; from_owned takes it back.
pub fn to_owned_parts<T>(values: Vec<T>) -> (*mut T, usize) {
    let boxed = values.into_boxed_slice();
    let size = boxed.len();
    (Box::into_raw(boxed) as *mut T, size)
}

/// # Safety
/// (data, size) must come from to_owned_parts, once.
pub unsafe fn free_owned_parts<T>(data: *mut T, size: usize) {
    if !data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(data, size)));
    }
}

pub fn to_buffer(bytes: Vec<u8>) -> kv_buffer {
    let (data, size) = to_owned_parts(bytes);
    kv_buffer { data, size }
}

thread_local! {
    /// Where the last panic of this thread was, for its message.
    static PANIC_PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A caught panic is reported by its error, not on stderr as well.
fn hush_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or(String::new(), |at| {
                let file = at.file().rsplit('/').next().unwrap_or("");
                format!("{file}:{}", at.line())
            });
            PANIC_PLACE.with(|cell| *cell.borrow_mut() = place);
        }));
    });
}

/// Runs `body`; a panic in it becomes an error. Nothing unwinds into the caller.
pub fn guarded<T>(error: *mut kv_buffer, out: *mut T, body: impl FnOnce() -> Result<T>) -> Code {
    hush_panics();
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown panic");
        let place = PANIC_PLACE.with(|cell| cell.take());
        Err(Error { code: Code::Internal, message: format!("internal error in the text library: {what} ({place})") })
    });
    match result {
        Ok(value) => {
            // SAFETY: `out` points to uninitialised or plain storage of the caller's.
            unsafe { out.write(value) };
            Code::Ok
        }
        Err(failure) => {
            let line = failure.message.replace(['\n', '\r'], " ");
            // SAFETY: as above.
            unsafe { error.write(to_buffer(line.into_bytes())) };
            failure.code
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn kv_buffer_free(buffer: kv_buffer) {
    free_owned_parts(buffer.data, buffer.size);
}

#[no_mangle]
pub unsafe extern "C" fn kv_ids_free(ids: kv_ids) {
    free_owned_parts(ids.data, ids.size);
}

unsafe fn texts<'a>(strings: &[kv_str], what: &str) -> Result<Vec<&'a str>> {
    strings.iter().enumerate().map(|(i, string)| string.text(&format!("{what}[{i}]"))).collect()
}

unsafe fn spec_of<'a>(spec: &kv_tokenizer_spec) -> Result<Spec<'a>> {
    let data_loss = |error: Error| Error { code: Code::DataLoss, ..error };
    Ok(Spec {
        model: spec.model.text("tokenizer.ggml.model").map_err(data_loss)?,
        pre: spec.pre.text("tokenizer.ggml.pre").map_err(data_loss)?,
        tokens: texts(view(spec.tokens, spec.token_count), "tokenizer.ggml.tokens").map_err(data_loss)?,
        scores: view(spec.scores, spec.score_count),
        kinds: view(spec.kinds, spec.kind_count),
        merges: texts(view(spec.merges, spec.merge_count), "tokenizer.ggml.merges").map_err(data_loss)?,
        bos: spec.bos,
        eos: spec.eos,
        eot: spec.eot,
        unk: spec.unk,
        pad: spec.pad,
        add_bos: spec.add_bos != 0,
        add_eos: spec.add_eos != 0,
        add_space_prefix: spec.add_space_prefix != 0,
    })
}

#[no_mangle]
pub unsafe extern "C" fn kv_tokenizer_from_spec(
    spec: *const kv_tokenizer_spec,
    out: *mut *mut Tokenizer,
    error: *mut kv_buffer,
) -> Code {
    guarded(error, out, || Ok(Box::into_raw(Box::new(crate::from_spec::build(&spec_of(&*spec)?)?))))
}

#[no_mangle]
pub unsafe extern "C" fn kv_tokenizer_from_json_file(
    path: kv_str,
    out: *mut *mut Tokenizer,
    error: *mut kv_buffer,
) -> Code {
    guarded(error, out, || Ok(Box::into_raw(Box::new(crate::from_json::load(path.text("path")?)?))))
}

#[no_mangle]
pub unsafe extern "C" fn kv_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Box::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn kv_tokenizer_get_info(tokenizer: *const Tokenizer) -> kv_tokenizer_info {
    let tokenizer = &*tokenizer;
    kv_tokenizer_info {
        vocab_size: tokenizer.vocab_size() as i32,
        bos: tokenizer.bos,
        eos: tokenizer.eos,
        add_bos: u8::from(tokenizer.add_bos),
        strips_leading_space: u8::from(tokenizer.strips_leading_space),
        token_bytes: tokenizer.bytes.as_ptr(),
        token_offsets: tokenizer.offsets.as_ptr(),
        token_flags: tokenizer.flags.as_ptr(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn kv_tokenizer_encode(
    tokenizer: *const Tokenizer,
    pieces: *const kv_piece,
    piece_count: usize,
    add_special: u8,
    out: *mut kv_ids,
    error: *mut kv_buffer,
) -> Code {
    guarded(error, out, || {
        let pieces: Vec<Piece> = view(pieces, piece_count)
            .iter()
            .map(|piece| Piece { text: piece.text.bytes(), trusted: piece.trusted != 0 })
            .collect();
        let ids = (*tokenizer).encode(&pieces, add_special != 0)?;
        let (data, size) = to_owned_parts(ids.into_iter().map(|id| id as i32).collect());
        Ok(kv_ids { data, size })
    })
}
