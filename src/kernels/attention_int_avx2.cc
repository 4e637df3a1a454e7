// Attention over i8 and i4 with AVX2: everything as 16-bit integers, whose pair products
// (vpmaddwd) are exact. Of 4 codes in 32 bits, plus 128 each, the even ones and the odd ones become
// 16 bits by a mask and a shift, so the products of a token (of V: a channel) stay in its own lane:
// the factors lie as (0, 2), (1, 3), and sums start with -128 times the sum of the factors.
#include "kernels/attention_int_inl.h"
#include "kernels/attention_vec8_inl.h"
#include "kernels/kv_encode_inl.h"

namespace kvasir::internal {
namespace {

struct IntVec8 : Vec8 {
  using I = __m256i;
  struct Pair {
    __m256i even, odd;
  };
  using Key = Pair;    // 8 tokens, 4 channels each
  using Value = Pair;  // 8 channels, 4 tokens each
  using Dots = __m256i;
  using ValueSums = __m256i;
  using Weight = uint64_t;
  static constexpr int kPairRows = 1;
  // With one factor, its product and N pairs in registers besides the sums.
  static constexpr int KeyColumns(KvType type, int rows) {
    if (type == KvType::kI8) return rows == 1 ? 4 : rows <= 4 ? 2 : 1;
    return rows == 1 ? 2 : 1;
  }
  static constexpr int ValueColumns(int rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }
  static constexpr int I4Halves(int rows) { return rows <= 4 ? 2 : 1; }

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
  template <int kHalf>  // 0: low, 1: high
  static __m256i HalfOf(__m256i both) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_load_si128(reinterpret_cast<const __m128i*>(kI4Tables.bytes)));
    const __m256i half = kHalf == 0 ? both : _mm256_srli_epi16(both, 4);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(half, _mm256_set1_epi8(15)));
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
    return {_mm256_and_si256(bytes, _mm256_set1_epi16(0xFF)), _mm256_srli_epi16(bytes, 8)};
  }
  static Pair WidenSigned(__m256i bytes) {
    return Widen(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)));
  }
  static __m256i LoadWhole(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static __m256i Broadcast(const void* p, int pair) {
    int32_t two;
    std::memcpy(&two, static_cast<const std::byte*>(p) + pair * sizeof(two), sizeof(two));
    return _mm256_set1_epi32(two);
  }
  static void AddProducts(__m256i& sums, const Pair& wide, __m256i even, __m256i odd) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(wide.even, even));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(wide.odd, odd));
  }
  // Codes 0 1 2 3 of each 64 bits to 0 2 1 3.
  static __m128i EvenFirst(__m128i shorts) {
    return _mm_shufflehi_epi16(_mm_shufflelo_epi16(shorts, 0xD8), 0xD8);
  }
  static int32_t Total(I x) {
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1));
    return _mm_cvtsi128_si32(t);
  }
  static Dots Start(const int32_t* init, int) {
    return _mm256_set1_epi32(init[0]);
  }
  template <KvType kType, bool kSplit>
  static void LoadKey(const std::byte* p, const std::byte*, Key* key) {
    const __m256i both = LoadWhole(p);
    if constexpr (kType == KvType::kI8) {
      key[0] = Widen(both);
    } else {
      key[0] = Widen(HalfOf<0>(both));
      key[1] = Widen(HalfOf<1>(both));
    }
  }
  static void AddKey(Dots& dots, const Key& key, const uint64_t* code) {
    AddProducts(dots, key, Broadcast(code, 0), Broadcast(code, 1));
  }
  static F DotsToFloat(Dots dots) {
    return _mm256_cvtepi32_ps(dots);
  }
  static void PutQueryCodes(I code, std::byte* out, size_t stride, int quads, int32_t* sums) {
    static_assert(int64_t{128} * kIntQueryMost * kI8Group <= INT32_MAX);
    sums[0] -= 128 * Total(code);
    alignas(16) std::byte shorts[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(shorts), EvenFirst(ToShorts(code)));
    for (int q = 0; q < 2 && q < quads; ++q, out += stride) std::memcpy(out, shorts + q * 8, 8);
  }

  // Values.
  template <KvType kType>
  static void StoreWeights(const F* w, F inverse, bool bad, Weight* out, int32_t* init) {
    I sum = ZeroInt();
    for (int i = 0; i < kIntSubSpan / kLanes; ++i) {
      const I code = bad ? ZeroInt() : ToInt(Mul(w[i], inverse));
      sum = _mm256_add_epi32(sum, code);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * 2), EvenFirst(ToShorts(code)));
    }
    *init = -128 * Total(sum);
  }
  static Pair LoadWeight(const Weight* p) {
    return {Broadcast(p, 0), Broadcast(p, 1)};
  }
  static ValueSums StartValues(int32_t init) {
    return _mm256_set1_epi32(init);
  }
  static Value LoadValue(const std::byte* p) {
    return WidenSigned(LoadWhole(p));
  }
  static __m256i LoadBytes(const std::byte* p, int n) {
    alignas(32) std::byte whole[32] = {};
    std::memcpy(whole, p, static_cast<size_t>(n < kLanes ? n : kLanes) * 4);
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(whole));
  }
  static Value LoadValuePart(const std::byte* p, int n) {
    return WidenSigned(LoadBytes(p, n));
  }
  template <bool kPart, int kFirst, int kHalves>
  static void LoadValueHalves(const std::byte* p, int n, Value* value) {
    const __m256i both = kPart ? LoadBytes(p, n) : LoadWhole(p);
    value[0] = Widen(HalfOf<kFirst>(both));
    if constexpr (kHalves == 2) value[1] = Widen(HalfOf<1>(both));
  }
  template <KvType kType>
  static void AddValue(ValueSums& sums, const Value& value, const Pair& weight) {
    AddProducts(sums, value, weight.even, weight.odd);
  }
  static void AddSums(ValueSums& sums, ValueSums more) {
    sums = _mm256_add_epi32(sums, more);
  }
  static F ValuesToFloat(ValueSums sums) {
    return _mm256_cvtepi32_ps(sums);
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
