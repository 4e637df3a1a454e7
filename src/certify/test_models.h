// For tests: models to certify.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/parallel.h"
#include "model/model.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir::testing {

// Random weights, so sharp attention: sensitive to its cache. Context: 160 tokens.
inline std::unique_ptr<Model> LoadSmallRandom(const TempFolder& folder, Executor& executor) {
  TinyLlama shape;
  shape.context = 160;
  shape.seed = 5;
  const std::string path = folder / "small.gguf";
  MakeTinyLlama(shape).Write(path);
  auto model = Model::Load(path, executor);
  KVASIR_CHECK(model.ok());
  return std::move(model).value();
}

// The trained 260-thousand-parameter model that stands beside the checkout; "" if it is not there.
inline std::string StoriesPath() {
  for (const char* path :
       {"../shared/models/stories260K.gguf", "../../shared/models/stories260K.gguf"}) {
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

}  // namespace kvasir::testing
