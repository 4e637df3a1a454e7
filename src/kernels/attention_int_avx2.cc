// Attention over i8 and i4 with AVX2: everything as 16-bit integers, whose pair products
// (vpmaddwd) are exact: K and V are widened once for all rows, a query code needs one factor.
#include "kernels/attention_int_inl.h"
#include "kernels/attention_vec8_inl.h"
#include "kernels/kv_encode_inl.h"

namespace kvasir::internal {
namespace {

struct IntVec8 : Vec8 {
  using I = __m256i;
  struct Pair {
    __m256i a, b;
  };
  using Key = Pair;    // tokens 0..3 and 4..7, 4 channels each
  using Value = Pair;  // channels 0..3 and 4..7, 4 tokens each
  using Dots = Pair;   // the two pairs of each, not yet added
  using ValueSums = Pair;
  using Weight = uint64_t;
  static constexpr int kKeySums = 6;
  static constexpr int kPairRows = 1;
  static constexpr int ValueColumns(int rows) { return rows <= 3 ? 2 : 1; }

  static F Min(F a, F b) { return _mm256_min_ps(a, b); }
  static F GetSome(const float* p, int n) {
    if (n >= kLanes) return Get(p);
    alignas(32) float whole[kLanes] = {};
    for (int i = 0; i < n; ++i) whole[i] = p[i];
    return _mm256_load_ps(whole);
  }
  template <bool kPart>
  static F GetPart(const float* p, int n) {
    return kPart ? GetSome(p, n) : Get(p);
  }
  template <bool kPart>
  static void PutPart(float* p, F x, int n) {
    if (!kPart || n >= kLanes) {
      Put(p, x);
      return;
    }
    alignas(32) float whole[kLanes];
    _mm256_store_ps(whole, x);
    for (int i = 0; i < n; ++i) p[i] = whole[i];
  }

  // Integers.
  static I ZeroInt() { return _mm256_setzero_si256(); }
  static I ToInt(F x) { return _mm256_cvtps_epi32(x); }
  static I MaxMagnitude(I bits, F x) {
    const I magnitude = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
    return _mm256_max_epu32(bits, magnitude);
  }
  static uint32_t Largest(I bits) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
  }
  static __m128i ToShorts(I x) {  // values that fit
    return _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  }
  static void PutBytes(int8_t* p, I x) {
    const __m128i shorts = ToShorts(x);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(shorts, shorts));
  }

  // Halves.
  static float HalfToFloat(uint16_t h) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h))); }
  static uint16_t FloatToFiniteHalf(float f) {
    const float held = f > 65504.0F ? 65504.0F : f < -65504.0F ? -65504.0F : f;
    const __m128i half = _mm_cvtps_ph(_mm_set_ss(held), _MM_FROUND_TO_NEAREST_INT);
    return static_cast<uint16_t>(_mm_cvtsi128_si32(half));
  }
  static void HalvesToFloats(const std::byte* p, float* out) {
    Put(out, LoadScales<false>(p, nullptr));
  }
  template <bool kSplit>
  static F LoadScales(const std::byte* p, const std::byte*) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  // The table of i4.
  static void Halves(__m256i both, __m256i out[2]) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kKvI4Table)));
    const __m256i mask = _mm256_set1_epi8(15);
    out[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(both, mask));
    out[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
  }
  static F TableValue(I code) {
    const F low = _mm256_permutevar8x32_ps(_mm256_load_ps(kI4Tables.entries), code);
    const F high = _mm256_permutevar8x32_ps(_mm256_load_ps(kI4Tables.entries + 8), code);
    return _mm256_blendv_ps(low, high,
                            _mm256_castsi256_ps(_mm256_cmpgt_epi32(code, _mm256_set1_epi32(7))));
  }
  // How many middles between entries lie below x.
  static I NearestEntry(F x) {
    I code = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int i = 0; i < 15; ++i) {
      const F middle = Set(kI4Tables.middles[i]);
      code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(x, middle, _CMP_GT_OQ)));
    }
    return code;
  }
  static float FoldParts(const F parts[2]) {
    const __m256 eight = _mm256_add_ps(parts[0], parts[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // Rounds of the Hadamard butterfly at distances 1, 2, 4; distance 8 is between registers.
  template <int kUpper>
  static F Round(F x, F swapped) {
    return _mm256_blend_ps(_mm256_add_ps(x, swapped), _mm256_sub_ps(swapped, x), kUpper);
  }
  static F Butterflies(F x) {
    x = Round<0xAA>(x, _mm256_permute_ps(x, 0xB1));
    x = Round<0xCC>(x, _mm256_permute_ps(x, 0x4E));
    return Round<0xF0>(x, _mm256_permute2f128_ps(x, x, 1));
  }

  // Scores.
  static Pair Widen(__m256i bytes) {
    return {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes)),
            _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1))};
  }
  // Each 64 bits of a and b hold two partial sums: to 8 sums in order.
  static __m256i AddPairs(const Pair& sums) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums.a, sums.b), 0xD8);
  }
  static void AddProducts(Pair& sums, const Pair& wide, __m256i factor) {
    sums.a = _mm256_add_epi32(sums.a, _mm256_madd_epi16(wide.a, factor));
    sums.b = _mm256_add_epi32(sums.b, _mm256_madd_epi16(wide.b, factor));
  }
  static __m256i Broadcast(const uint64_t* p) {
    int64_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi64x(four);
  }
  static Dots Start(const int32_t*, int) {
    return {ZeroInt(), ZeroInt()};
  }
  template <KvType kType, bool kSplit>
  static void LoadKey(const std::byte* p, const std::byte*, Key* key) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kType == KvType::kI8) {
      key[0] = Widen(_mm256_xor_si256(both, _mm256_set1_epi8(-128)));
    } else {
      __m256i half[2];
      Halves(both, half);
      key[0] = Widen(half[0]);
      key[1] = Widen(half[1]);
    }
  }
  static void AddKey(Dots& dots, const Key& key, const uint64_t* code) {
    AddProducts(dots, key, Broadcast(code));
  }
  static F DotsToFloat(const Dots& dots) {
    return _mm256_cvtepi32_ps(AddPairs(dots));
  }
  static void PutQueryCodes(I code, std::byte* out, size_t stride, int quads, int32_t*) {
    alignas(16) std::byte shorts[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(shorts), ToShorts(code));
    for (int q = 0; q < 2 && q < quads; ++q, out += stride) std::memcpy(out, shorts + q * 8, 8);
  }

  // Values.
  template <KvType kType>
  static void StoreWeights(const F* w, F inverse, bool bad, Weight* out, int32_t* init) {
    for (int i = 0; i < kIntSubSpan / kLanes; ++i) {
      const I code = bad ? ZeroInt() : ToInt(Mul(w[i], inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 2), ToShorts(code));
    }
    *init = 0;
  }
  static __m256i LoadWeight(const Weight* p) {
    return Broadcast(p);
  }
  static ValueSums StartValues(int32_t) {
    return {ZeroInt(), ZeroInt()};
  }
  static Value LoadValue(const std::byte* p) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m256i LoadBytes(const std::byte* p, int n) {
    alignas(32) std::byte whole[32] = {};
    std::memcpy(whole, p, static_cast<size_t>(n < kLanes ? n : kLanes) * 4);
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(whole));
  }
  static Value LoadValuePart(const std::byte* p, int n) {
    return Widen(LoadBytes(p, n));
  }
  template <bool kPart>
  static void LoadValuePair(const std::byte* p, int n, Value* value) {
    __m256i half[2];
    Halves(kPart ? LoadBytes(p, n) : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), half);
    value[0] = Widen(half[0]);
    value[1] = Widen(half[1]);
  }
  template <KvType kType>
  static void AddValue(ValueSums& sums, const Value& value, __m256i weight) {
    AddProducts(sums, value, weight);
  }
  static void AddSums(ValueSums& sums, const ValueSums& more) {
    sums.a = _mm256_add_epi32(sums.a, more.a);
    sums.b = _mm256_add_epi32(sums.b, more.b);
  }
  static F ValuesToFloat(const ValueSums& sums) {
    return _mm256_cvtepi32_ps(AddPairs(sums));
  }
};

}  // namespace

const IntKernels& Avx2Int() {
  static const IntKernels kKernels{
      {6, &IntSpan<IntVec8, 6>, Avx2Attention().fold, Avx2Attention().store},
      &PrepareVectors<IntVec8>,
      &RotateVectors<IntVec8>,
      &EncodeI8Vectors<IntVec8>,
      &EncodeI4Vectors<IntVec8>};
  return kKernels;
}

}  // namespace kvasir::internal
