// C ABI of the Rust crate behind src/text. Nothing here unwinds or aborts on bad input: every call
// that can fail returns a kv_code and, unless it is kKvOk, an error text. Strings are bytes with a
// length, not zero-terminated. What a call hands out is owned by the caller and given back with the
// matching kv_*_free (null is allowed there). Handles are immutable: any number of threads may use
// one at the same time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kv_code {
  kKvOk = 0,
  kKvInvalidArgument = 1,
  kKvDataLoss = 2,
  kKvUnimplemented = 3,
  kKvInternal = 4,  // a caught panic
  kKvNotFound = 5,
} kv_code;

typedef struct kv_str {
  const char* data;
  size_t size;
} kv_str;

typedef struct kv_buffer {  // owned bytes
  char* data;
  size_t size;
} kv_buffer;
void kv_buffer_free(kv_buffer buffer);

typedef struct kv_tokenizer kv_tokenizer;

typedef struct kv_tokenizer_spec {
  kv_str model, pre;
  const kv_str* tokens;
  size_t token_count;
  const float* scores;
  size_t score_count;
  const uint8_t* kinds;
  size_t kind_count;
  const kv_str* merges;
  size_t merge_count;
  int32_t bos, eos, eot, unk, pad;
  uint8_t add_bos, add_eos, add_space_prefix;
} kv_tokenizer_spec;

// Views into the tokenizer; valid until it is freed.
typedef struct kv_tokenizer_info {
  int32_t vocab_size;
  int32_t bos, eos;
  uint8_t add_bos, strips_leading_space;
  const char* token_bytes;        // all tokens' bytes, one after the other
  const uint64_t* token_offsets;  // vocab_size + 1
  const uint8_t* token_flags;     // bit 0: control or unknown; bit 1: ends a generation
} kv_tokenizer_info;

typedef struct kv_piece {
  kv_str text;
  uint8_t trusted;  // control tokens are read here
} kv_piece;

typedef struct kv_ids {
  int32_t* data;
  size_t size;
} kv_ids;
void kv_ids_free(kv_ids ids);

kv_code kv_tokenizer_from_spec(const kv_tokenizer_spec* spec, kv_tokenizer** out, kv_buffer* error);
kv_code kv_tokenizer_from_json_file(kv_str path, kv_tokenizer** out, kv_buffer* error);
void kv_tokenizer_free(kv_tokenizer* tokenizer);
kv_tokenizer_info kv_tokenizer_get_info(const kv_tokenizer* tokenizer);
kv_code kv_tokenizer_encode(const kv_tokenizer* tokenizer, const kv_piece* pieces,
                            size_t piece_count, uint8_t add_special, kv_ids* out, kv_buffer* error);

typedef struct kv_template kv_template;

typedef struct kv_rendered {
  kv_buffer text;
  // Byte ranges of `text` that came from the caller's strings and must not be part of a control
  // token: begin, end, ...
  size_t* plain;
  size_t plain_count;  // numbers, so twice the number of ranges
} kv_rendered;
void kv_rendered_free(kv_rendered rendered);

// Keeps its own copies; `tokenizer` may be freed afterwards.
kv_code kv_template_make(kv_str source, const kv_tokenizer* tokenizer, uint64_t fuel,
                         size_t output_bytes_max, uint64_t time_ms, kv_template** out,
                         kv_buffer* error);
void kv_template_free(kv_template* chat_template);
kv_code kv_template_render(const kv_template* chat_template, kv_str context_json, kv_rendered* out,
                           kv_buffer* error);

#ifdef __cplusplus
}
#endif
