//! The C ABI's template half. Layouts and ownership: include/kvasir_text.h.
#![allow(non_camel_case_types)]
use crate::error::Code;
use crate::ffi::{free_owned_parts, guarded, kv_buffer, kv_str, kv_buffer_free, to_buffer, to_owned_parts};
use crate::meter::Limits;
use crate::template::Template;
use crate::tokenizer::Tokenizer;
use std::time::Duration;

#[repr(C)]
pub struct kv_rendered {
    text: kv_buffer,
    plain: *mut usize,
    plain_count: usize,
}

#[no_mangle]
pub unsafe extern "C" fn kv_rendered_free(rendered: kv_rendered) {
    kv_buffer_free(rendered.text);
    free_owned_parts(rendered.plain, rendered.plain_count);
}

#[no_mangle]
pub unsafe extern "C" fn kv_template_make(
    source: kv_str,
    tokenizer: *const Tokenizer,
    fuel: u64,
    output_bytes_max: usize,
    time_ms: u64,
    out: *mut *mut Template,
    error: *mut kv_buffer,
) -> Code {
    guarded(error, out, || {
        let limits = Limits { fuel, value_bytes_max: output_bytes_max, time: Duration::from_millis(time_ms) };
        Ok(Box::into_raw(Box::new(Template::new(source.text("chat template")?, &*tokenizer, limits)?)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn kv_template_free(template: *mut Template) {
    if !template.is_null() {
        drop(Box::from_raw(template));
    }
}

#[no_mangle]
pub unsafe extern "C" fn kv_template_render(
    template: *const Template,
    context_json: kv_str,
    out: *mut kv_rendered,
    error: *mut kv_buffer,
) -> Code {
    guarded(error, out, || {
        let rendered = (*template).render(context_json.text("chat template context")?)?;
        let (plain, plain_count) = to_owned_parts(rendered.plain);
        Ok(kv_rendered { text: to_buffer(rendered.text.into_bytes()), plain, plain_count })
    })
}
