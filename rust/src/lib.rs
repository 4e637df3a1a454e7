//! The crate behind src/text: a small C ABI (include/kvasir_text.h) over Hugging Face's tokenizers and minijinja.
mod budget;
mod bytelevel;
mod error;
mod ffi;
mod ffi_template;
mod filters;
mod from_json;
mod from_spec;
mod guard;
mod matcher;
mod meter;
mod preflight;
mod pretokenizer;
mod python;
mod spm;
mod taint;
mod template;
mod tokenizer;

#[global_allocator]
static ALLOCATOR: budget::CountingAllocator = budget::CountingAllocator;
