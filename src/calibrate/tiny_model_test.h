// For tests: a random model of two layers, loaded.
#pragma once

#include <memory>

#include "base/check.h"
#include "base/parallel.h"
#include "model/model.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir::testing {

inline std::unique_ptr<Model> LoadTinyLlama(const TempFolder& folder, uint64_t seed,
                                            Executor& executor) {
  TinyLlama shape;
  shape.seed = seed;
  shape.type = shape.v_type = WeightType::kQ8_0;
  const std::string path = folder / "tiny.gguf";
  MakeTinyLlama(shape).Write(path);
  auto model = Model::Load(path, executor);
  KVASIR_CHECK(model.ok());
  return std::move(model).value();
}

}  // namespace kvasir::testing
