// The vector type of attention over i8 and i4 with AVX-512 VNNI (attention_int_inl.h says what it
// must have), for the files that are compiled for it: the codes of K as unsigned bytes, those of q
// as two signed ones (256 high + low); 128 times the sum of q's codes is taken off before the sum
// starts.
#pragma once

#include "kernels/exp_avx512.h"

#include <cstring>

#include "kernels/attention_int_inl.h"
#include "kernels/attention_vec16_inl.h"
#include "kernels/kv_encode_inl.h"

namespace kvasir::internal {
namespace {

struct IntVec16 : Vec16 {
  using I = __m512i;
  using Key = __m512i;
  using Value = __m512i;
  using ValueSums = __m512i;
  using Weight = uint32_t;
  struct Dots {
    __m512i high, low;
  };
  static constexpr int kPairRows = 4;
  static constexpr int KeyColumns(KvType type, int rows) {
    const int most = type == KvType::kI8 ? 12 : 8;
    return most >= 8 * rows ? 8 : most >= 4 * rows ? 4 : most >= 2 * rows ? 2 : 1;
  }
  static constexpr int ValueColumns(int rows) { return rows <= 6 ? 4 : 2; }
  static constexpr int I4Halves(int) { return 2; }

  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F GetSome(const float* p, int n) { return _mm512_maskz_loadu_ps(First(n), p); }
  template <bool kPart>
  static F GetPart(const float* p, int n) {
    return kPart ? GetSome(p, n) : Get(p);
  }
  template <bool kPart>
  static void PutPart(float* p, F x, int n) {
    if constexpr (kPart) {
      _mm512_mask_storeu_ps(p, First(n), x);
    } else {
      Put(p, x);
    }
  }

  // Integers.
  static I ZeroInt() { return _mm512_setzero_si512(); }
  static I ToInt(F x) { return _mm512_cvtps_epi32(x); }
  static I MaxMagnitude(I bits, F x) {
    const I magnitude = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
    return _mm512_max_epu32(bits, magnitude);
  }
  static uint32_t Largest(I bits) { return _mm512_reduce_max_epu32(bits); }
  static void PutBytes(int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }

  // Halves.
  static float HalfToFloat(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
  static uint16_t FloatToFiniteHalf(float f) {
    const float held = f > 65504.0F ? 65504.0F : f < -65504.0F ? -65504.0F : f;
    const __m128i half = _mm_cvtps_ph(_mm_set_ss(held), _MM_FROUND_TO_NEAREST_INT);
    return static_cast<uint16_t>(_mm_cvtsi128_si32(half));
  }
  static void HalvesToFloats(const std::byte* p, float* out) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    _mm256_storeu_ps(out, _mm256_cvtph_ps(h));
  }
  template <bool kSplit>
  static F LoadScales(const std::byte* p, const std::byte* more) {
    if constexpr (kSplit) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(more));
      return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
    } else {
      return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
  }

  // The table of i4.
  static I TableBytes() {  // entry + 128
    return _mm512_broadcast_i32x4(
        _mm_load_si128(reinterpret_cast<const __m128i*>(kI4Tables.bytes)));
  }
  static void Halves(I both, I out[2]) {
    const I mask = _mm512_set1_epi8(15);
    out[0] = _mm512_shuffle_epi8(TableBytes(), _mm512_and_si512(both, mask));
    out[1] = _mm512_shuffle_epi8(TableBytes(), _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
  }
  static F TableValue(I code) {
    return _mm512_permutexvar_ps(code, _mm512_load_ps(kI4Tables.entries));
  }
  // How many middles between entries lie below x.
  static I NearestEntry(F x) {
    const F middles = _mm512_load_ps(kI4Tables.middles);
    I code = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int step = 8; step > 0; step /= 2) {
      const I probe = _mm512_add_epi32(code, _mm512_set1_epi32(step - 1));
      const __mmask16 above =
          _mm512_cmp_ps_mask(x, _mm512_permutexvar_ps(probe, middles), _CMP_GT_OQ);
      code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(step));
    }
    return code;
  }
  static float FoldParts(const F parts[1]) {
    const __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256(parts[0]), _mm512_extractf32x8_ps(parts[0], 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // Rounds of the Hadamard butterfly at distances 1, 2, 4, 8: sum in the lower lane, difference in
  // the upper one.
  static F Round(F x, F swapped, __mmask16 upper) {
    return _mm512_mask_sub_ps(_mm512_add_ps(x, swapped), upper, swapped, x);
  }
  static F Butterflies(F x) {
    x = Round(x, _mm512_permute_ps(x, 0xB1), 0xAAAA);
    x = Round(x, _mm512_permute_ps(x, 0x4E), 0xCCCC);
    x = Round(x, _mm512_shuffle_f32x4(x, x, 0xB1), 0xF0F0);
    return Round(x, _mm512_shuffle_f32x4(x, x, 0x4E), 0xFF00);
  }

  // Scores.
  static Dots Start(const int32_t* init, int stride) {
    return {_mm512_set1_epi32(init[0]), _mm512_set1_epi32(init[stride])};
  }
  template <KvType kType, bool kSplit>
  static void LoadKey(const std::byte* p, const std::byte* more, Key* key) {
    __m512i both;
    if constexpr (kSplit) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(more));
      both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    } else {
      both = _mm512_loadu_si512(p);
    }
    if constexpr (kType == KvType::kI8) {
      key[0] = both;
    } else {
      Halves(both, key);
    }
  }
  static void AddKey(Dots& dots, Key key, const uint64_t* code) {
    int32_t half[2];
    std::memcpy(half, code, sizeof(half));
    dots.high = _mm512_dpbusd_epi32(dots.high, key, _mm512_set1_epi32(half[0]));
    dots.low = _mm512_dpbusd_epi32(dots.low, key, _mm512_set1_epi32(half[1]));
  }
  static F DotsToFloat(const Dots& dots) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(dots.high, 8), dots.low));
  }
  // Codes of 16 channels: at most `quads` quads, 8 bytes each: 4 high bytes, 4 low ones. Adds to
  // sums what the sums over keys start with.
  static void PutQueryCodes(I code, std::byte* out, size_t stride, int quads, int32_t* sums) {
    const I high = _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8);
    const I low = _mm512_sub_epi32(code, _mm512_slli_epi32(high, 8));
    sums[0] -= 128 * _mm512_reduce_add_epi32(high);
    sums[1] -= 128 * _mm512_reduce_add_epi32(low);
    alignas(16) std::byte bytes[2][16];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes[0]), _mm512_cvtepi32_epi8(high));
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes[1]), _mm512_cvtepi32_epi8(low));
    for (int q = 0; q < 4 && q < quads; ++q, out += stride) {
      std::memcpy(out, bytes[0] + q * 4, 4);
      std::memcpy(out + 4, bytes[1] + q * 4, 4);
    }
  }

  // Values.
  template <KvType kType>
  static void StoreWeights(const F* w, F inverse, bool bad, Weight* out, int32_t* init) {
    const __mmask16 keep = bad ? 0 : 0xFFFF;
    I sum = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const I code = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(w[i], inverse));
      sum = _mm512_add_epi32(sum, code);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 4), _mm512_cvtepi32_epi8(code));
    }
    *init = kType == KvType::kI8 ? 0 : -128 * _mm512_reduce_add_epi32(sum);
  }
  static __m512i LoadWeight(const Weight* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  static ValueSums StartValues(int32_t init) {
    return _mm512_set1_epi32(init);
  }
  static Value LoadValue(const std::byte* p) {
    return _mm512_loadu_si512(p);
  }
  static Value LoadValuePart(const std::byte* p, int n) {
    return _mm512_maskz_loadu_epi32(First(n), p);
  }
  template <bool kPart, int kFirst, int kHalves>
  static void LoadValueHalves(const std::byte* p, int n, Value* value) {
    static_assert(kFirst == 0 && kHalves == 2);
    Halves(kPart ? LoadValuePart(p, n) : LoadValue(p), value);
  }
  template <KvType kType>
  static void AddValue(ValueSums& sums, Value value, __m512i weight) {
    sums = kType == KvType::kI8 ? _mm512_dpbusd_epi32(sums, weight, value)
                                : _mm512_dpbusd_epi32(sums, value, weight);
  }
  static void AddSums(ValueSums& sums, ValueSums more) {
    sums = _mm512_add_epi32(sums, more);
  }
  static F ValuesToFloat(ValueSums sums) {
    return _mm512_cvtepi32_ps(sums);
  }
};

}  // namespace
}  // namespace kvasir::internal
