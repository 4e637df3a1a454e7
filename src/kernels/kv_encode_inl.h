// Rotation, encoding and the preparation of queries for i8 and i4, over a vector type V; compiled
// once per instruction set, everything in an unnamed namespace. Gives the bits of quant/hadamard.h
// and quant/kv_codec.h. Nothing here calls an inline function of a shared header.
//
// V gives besides what attention_inl.h asks for: GetSome(p, n) (zeros past n), Butterflies(x) (all
// rounds of the rotation within a register), ToInt (nearest even), PutBytes (the low byte of kLanes
// integers), MaxMagnitude, Largest, NearestEntry, TableValue, ...
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_int.h"
#include "quant/hadamard.h"
#include "quant/kv_codec.h"

namespace kvasir::internal {
namespace {

template <class V>
void RotateVectors(float* x, int dim) {
  const int block = dim & -dim;
  if (block < 16) {
    Rotate(x, dim);
    return;
  }
  for (int i = 0; i < dim; i += V::kLanes) V::Put(x + i, V::Butterflies(V::Get(x + i)));
  for (int width = V::kLanes; width < block; width *= 2) {
    for (int i = 0; i < dim; i += 2 * width) {
      for (int j = i; j < i + width; j += V::kLanes) {
        const typename V::F a = V::Get(x + j);
        const typename V::F b = V::Get(x + j + width);
        V::Put(x + j, V::Add(a, b));
        V::Put(x + j + width, V::Sub(a, b));
      }
    }
  }
  const typename V::F norm = V::Set(HadamardNorm(block));
  for (int i = 0; i < dim; i += V::kLanes) V::Put(x + i, V::Mul(V::Get(x + i), norm));
}

template <class V>
uint32_t LargestMagnitude(const float* x, int n) {
  typename V::I bits = V::ZeroInt();
  for (int i = 0; i < n; i += V::kLanes) bits = V::MaxMagnitude(bits, V::GetSome(x + i, n - i));
  return V::Largest(bits);
}

inline float FromBits(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, sizeof(f));
  return f;
}

// codes: room for n rounded up to 16.
template <class V>
uint16_t EncodeI8Vectors(const float* x, int n, int8_t* codes) {
  const uint32_t most = LargestMagnitude<V>(x, n);
  if (most >= kInfinityBits) {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
    return kKvNanScale;
  }
  const uint16_t half = ScaleFor(FromBits(most), 127.0F);
  const float scale = V::HalfToFloat(half);
  const typename V::F inverse = V::Set(scale == 0 ? 0.0F : 1.0F / scale);
  const typename V::F top = V::Set(127.0F);
  const typename V::F bottom = V::Set(-127.0F);
  for (int i = 0; i < n; i += V::kLanes) {
    const typename V::F y = V::Mul(V::GetSome(x + i, n - i), inverse);
    V::PutBytes(codes + i, V::ToInt(V::Min(V::Max(y, bottom), top)));
  }
  return half;
}

// codes: room for 32.
template <class V>
uint16_t EncodeI4Vectors(const float* x, int n, uint8_t* codes) {
  constexpr int kVectors = 32 / V::kLanes;
  constexpr int kParts = 16 / V::kLanes;
  typename V::F value[kVectors];
  typename V::I bits = V::ZeroInt();
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    value[i] = V::GetSome(x + i * V::kLanes, n - i * V::kLanes);
    bits = V::MaxMagnitude(bits, value[i]);
  }
  const uint32_t most = V::Largest(bits);
  if (most >= kInfinityBits) {
    __builtin_memset(codes, 0, static_cast<size_t>(n));
    return kKvNanScale;
  }
  float m = 0;
  for (int i = 0; i < n; ++i) {
    uint32_t b;
    __builtin_memcpy(&b, x + i, sizeof(b));
    if ((b & 0x7FFFFFFFu) == most) {
      m = x[i];
      break;
    }
  }
  uint16_t best = 0;
  float least = 0;
  bool first = true;
  for (const float a : kKvI4Tries) {
    const uint16_t half = V::FloatToFiniteHalf(m * a);
    const float scale = V::HalfToFloat(half);
    const typename V::F inverse = V::Set(scale == 0 ? 0.0F : 1.0F / scale);
    const typename V::F minus = V::Set(-scale);
    typename V::I code[kVectors];
    typename V::F parts[kParts];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      code[i] = V::NearestEntry(V::Mul(value[i], inverse));
      typename V::F off = V::Fma(minus, V::TableValue(code[i]), value[i]);
      off = V::KeepFirst(off, n - i * V::kLanes, V::Zero());
      parts[i % kParts] = V::Fma(off, off, i < kParts ? V::Zero() : parts[i % kParts]);
    }
    const float error = V::FoldParts(parts);
    if (first || error < least) {
      best = half;
      least = error;
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        V::PutBytes(reinterpret_cast<int8_t*>(codes) + i * V::kLanes, code[i]);
      }
    }
    first = false;
  }
  return best;
}

// Where codes of queries go on the paths that multiply quads of channels (attention_int.h).
template <class V>
struct QuadLayout {
  static float* Scales(const QueryRows& query) {
    return query.packed + QueryQuads(query.k_dim) * 2 * query.n;
  }
  // kLanes codes from channel c on; adds to sums what the sums over keys start with.
  static void Put(const QueryRows& query, int row, int c, typename V::I code, int32_t* sums) {
    const auto stride = static_cast<size_t>(query.n) * 8;
    auto* out = reinterpret_cast<std::byte*>(query.packed) + row * 8;
    V::PutQueryCodes(code, out + static_cast<size_t>(c / 4) * stride, stride,
                     QueryQuads(query.k_dim) - c / 4, sums);
  }
  static void Start(const QueryRows& query, int row, int group, const int32_t* sums) {
    auto* init = reinterpret_cast<int32_t*>(Scales(query) + query.n) + group * 2 * query.n + row;
    init[0] = sums[0];
    init[query.n] = sums[1];
  }
};

template <class V, class Layout>
void PrepareRow(const QueryRows& query, int row) {
  alignas(64) float x[kIntDimMax + 16];
  const int dim = query.k_dim;
  const typename V::F factor = V::Set(query.scale);
  for (int i = 0; i < dim; i += V::kLanes) {
    typename V::F y = V::Mul(V::GetSome(query.rows[row] + i, dim - i), factor);
    if (query.balance != nullptr) y = V::Mul(y, V::GetSome(query.balance + i, dim - i));
    V::Put(x + i, y);
  }
  RotateVectors<V>(x, dim);
  const uint32_t most = LargestMagnitude<V>(x, dim);
  const float amax = FromBits(most);
  const bool bad = most >= kInfinityBits;
  const bool nothing = bad || amax < kIntSmallest;
  const typename V::F inverse = V::Set(nothing ? 0.0F : kIntQueryMost / amax);
  Layout::Scales(query)[row] = bad ? __builtin_nanf("") : nothing ? 0.0F : amax / kIntQueryMost;
  const int group = query.k_type == KvType::kI8 ? kI8Group : kKvI4Group;
  for (int first = 0; first < dim; first += group) {
    int32_t sums[2] = {0, 0};
    const int last = first + group < dim ? first + group : dim;
    for (int c = first; c < last; c += V::kLanes) {
      typename V::F y = V::Mul(V::GetSome(x + c, last - c), inverse);
      if (nothing) y = V::Zero();
      Layout::Put(query, row, c, V::ToInt(y), sums);
    }
    Layout::Start(query, row, first / group, sums);
  }
}

template <class V, class Layout = QuadLayout<V>>
void PrepareVectors(const QueryRows& query) {
  for (int r = 0; r < query.n; ++r) PrepareRow<V, Layout>(query, r);
}

}  // namespace
}  // namespace kvasir::internal
