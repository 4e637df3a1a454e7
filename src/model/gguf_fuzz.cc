// libFuzzer: any bytes are either refused with one line, or give a file whose keys and tensors may
// be read. Run with src/model/corpus/gguf.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "model/model.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckRefusal(const kvasir::Status& status) {
  Require(status.message().find('\n') == std::string::npos);
  Require(status.message().starts_with("fuzz: "));
}

uint64_t Touch(const kvasir::GgufFile& file) {
  uint64_t sum = 0;
  for (const kvasir::GgufKey& key : file.keys()) {
    Require(file.Find(key.name) == &key);
    if (const auto* text = std::get_if<std::string_view>(&key.value)) {
      for (const char c : *text) sum += static_cast<unsigned char>(c);
    }
    const auto* array = std::get_if<kvasir::GgufArray>(&key.value);
    if (array == nullptr) continue;
    if (array->element == kvasir::GgufType::kString) {
      for (const std::string_view text : array->Strings())
        sum += text.empty() ? 0 : static_cast<unsigned char>(text.back());
    } else {
      sum += array->Numbers().size();
    }
  }
  for (const kvasir::GgufTensor& tensor : file.tensors()) {
    Require(file.FindTensor(tensor.name) == &tensor);
    sum += static_cast<unsigned char>(tensor.data[0]) +
           static_cast<unsigned char>(tensor.data[tensor.bytes - 1]);
  }
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of its own, so that ASan sees reads past the end.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + size);
  const auto file = kvasir::GgufFile::Parse(bytes, "fuzz");
  if (!file.ok()) {
    CheckRefusal(file.status());
    return 0;
  }
  volatile uint64_t sink = Touch(*file);
  (void)sink;
  const auto config = kvasir::ReadModelConfig(*file);
  if (!config.ok()) {
    CheckRefusal(config.status());
    return 0;
  }
  Require(config->cache.size() == static_cast<size_t>(config->layers));
  Require(config->RopeSteps().size() == static_cast<size_t>(config->rope_dims / 2));
  return 0;
}
