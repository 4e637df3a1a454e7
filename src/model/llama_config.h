// The reader of `llama` files: keys and tensors as GGUF converters write them (names: the GGUF
// specification).
#pragma once

#include "base/status.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace kvasir::internal {

Result<ModelConfig> ReadLlamaConfig(const GgufFile& file);

}  // namespace kvasir::internal
