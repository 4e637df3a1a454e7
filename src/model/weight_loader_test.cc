// Loading never holds two copies of the weights: peak memory of this process, measured by the
// system, while a file larger than everything else here is loaded.
#include "model/weight_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/sanitizer.h"
#include "env/machine.h"
#include "env/thread_pool.h"
#include "model/model.h"
#include "model/testing/temp_folder.h"
#include "model/testing/tiny_llama.h"

namespace kvasir {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// VmHWM of /proc/self/status, bytes; 0 if unreadable.
uint64_t PeakResidentBytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  uint64_t kib = 0;
  while (file >> word) {
    if (word == "VmHWM:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// From here on the peak counts anew; false if the system does not offer it.
bool ResetPeak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

TEST(WeightLoader, NeverHoldsTwoCopies) {
  if (kSanitized)
    GTEST_SKIP() << "SKIPPED: sanitizers keep freed memory and shadow bytes, peaks mean nothing";
  const testing::TempFolder folder;
  testing::TinyLlama shape;
  shape.layers = 8;
  shape.hidden = 512;
  shape.ff = 2048;
  shape.heads = shape.kv_heads = 8;
  shape.k_dim = shape.v_dim = 64;
  shape.vocab = 8192;
  shape.type = shape.v_type = WeightType::kF16;
  testing::MakeTinyLlama(shape).Write(folder / "m.gguf");
  ThreadPool executor(2);
  if (!ResetPeak()) GTEST_SKIP() << "SKIPPED: /proc/self/clear_refs cannot be written here";
  const uint64_t before = ResidentBytes();
  const auto model = Model::Load(folder / "m.gguf", executor);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const uint64_t peak = PeakResidentBytes();
  uint64_t largest = 0;
  for (const GgufTensor& tensor : (*model)->file().tensors())
    largest = std::max<uint64_t>(largest, tensor.bytes);
  const uint64_t weights = (*model)->weight_bytes();
  ASSERT_GT(weights, 60 * kMiB);
  // The packed weights, the tensors of one stacked matrix as the file has them, and some slack.
  const uint64_t limit = before + weights + 2 * largest + 12 * kMiB;
  EXPECT_LT(limit, before + 2 * weights) << "a limit that two copies would keep proves nothing";
  EXPECT_LE(peak, limit) << "before " << before / kMiB << " MiB, weights " << weights / kMiB
                         << " MiB, peak " << peak / kMiB << " MiB";
  // And when all is loaded, the file's pages are gone.
  EXPECT_LE(ResidentBytes(), before + weights + 12 * kMiB);
}

}  // namespace
}  // namespace kvasir
