// Any bytes as floats through every codec: finite values, or NaN for all of the group.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "quant/float16.h"
#include "quant/hadamard.h"
#include "quant/kv_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;  // NOLINT(google-build-using-namespace): a fuzz target
  const int n = static_cast<int>(std::min<size_t>(size / 4, 1024));
  if (n == 0) return 0;
  std::vector<float> x(static_cast<size_t>(n));
  std::memcpy(x.data(), data, x.size() * 4);
  for (int rotated = 0; rotated < 2; ++rotated) {
    const bool bad = std::any_of(x.begin(), x.end(), [](float f) { return !std::isfinite(f); });
    std::vector<int8_t> i8(x.size());
    std::vector<uint8_t> codes(x.size());
    KVASIR_CHECK(std::isnan(F16ToF32(EncodeI8(x.data(), n, i8.data()))) == bad);
    for (const int8_t code : i8) KVASIR_CHECK(code >= -127 && (!bad || code == 0));
    KVASIR_CHECK(std::isnan(F16ToF32(EncodeE4M3(x.data(), n, codes.data()))) == bad);
    for (const uint8_t code : codes) KVASIR_CHECK(!std::isnan(E4M3ToF32(code)));
    const int group = std::min(n, 32);
    const float scale = F16ToF32(EncodeI4(x.data(), group, codes.data()));
    KVASIR_CHECK(std::isfinite(scale) || std::isnan(scale));
    for (int i = 0; i < group; ++i) KVASIR_CHECK(codes[static_cast<size_t>(i)] < 16);
    Rotate(x.data(), n);
  }
  return 0;
}
