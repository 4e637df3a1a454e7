// GGUF v2 and v3 reader (format: ggml's docs/gguf.md). The file is memory-mapped and hostile until
// checked: every count, length and offset is checked against the file's size before anything is
// read or allocated by it, so a refusal costs no more memory than the file's own size in keys.
// Shards (-00001-of-0000N.gguf) are opened together and look like one file; the name of any of them
// opens the set, and the keys are those of the first.
//
// A refusal is one line, `FILE: offset N: field 'x': what is wrong`: kDataLoss for a broken file,
// kUnimplemented for a well-formed kind that is not served, kNotFound for a missing file or shard.
// The file must not be changed in place while it is open (replace it by renaming another over it).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "env/mapped_file.h"
#include "quant/weight_type.h"

namespace kvasir {

// What a file may hold at most. Real files have about 40 keys, a thousand tensors and 300,000
// tokens.
inline constexpr uint64_t kGgufMaxKeys = 65536;
inline constexpr uint64_t kGgufMaxTensors = 65536;
inline constexpr uint64_t kGgufMaxKeyBytes = 65535;  // the format's own limit
inline constexpr uint64_t kGgufMaxNameBytes = 255;   // of a tensor; ggml's own limit is 63
inline constexpr uint64_t kGgufMaxArray = uint64_t{1} << 24;
inline constexpr uint64_t kGgufMaxDim = (uint64_t{1} << 31) - 1;
inline constexpr uint64_t kGgufMinAlignment = 8, kGgufMaxAlignment = 65536;  // powers of two
inline constexpr int kGgufMaxShards = 1000;

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view GgufTypeName(GgufType type);  // "uint32", "string", ...

struct GgufArray {
  GgufType element = GgufType::kU8;  // never kArray: nested arrays are refused
  uint64_t count = 0;
  std::span<const std::byte> raw;  // the elements as they lie in the file, lengths already checked
  std::vector<std::string_view> Strings() const;  // element must be kString
  std::vector<double> Numbers() const;            // any numeric element or bool
  std::vector<int64_t> Integers()
      const;  // integral elements or bool; a uint64 above 2^63-1 becomes 2^63-1
};

// Integers widen to int64/uint64, floats to double.
using GgufValue = std::variant<int64_t, uint64_t, double, bool, std::string_view, GgufArray>;

struct GgufKey {
  std::string_view name;
  GgufType type = GgufType::kU8;
  GgufValue value;
  uint64_t offset = 0;  // of the value in the file
};

struct GgufTensor {
  std::string_view name;
  std::vector<int64_t> dims;  // as in the file: dims[0] is the row length
  WeightType type = WeightType::kF32;
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // absolute, in its shard
  int shard = 0;
  int64_t columns() const { return dims.empty() ? 0 : dims[0]; }
  int64_t rows() const;  // product of the others
};

class GgufFile {
 public:
  static Result<GgufFile> Open(const std::string& path);
  // For fuzzing and tests: parse bytes that outlive the result. `name` stands in messages.
  static Result<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& name);

  uint32_t version() const { return version_; }
  const std::string& path() const { return path_; }
  const std::vector<GgufKey>& keys() const { return keys_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  uint64_t file_bytes() const { return file_bytes_; }  // of all shards
  int shards() const { return shard_count_; }

  const GgufKey* Find(std::string_view name) const;  // null if absent
  const GgufTensor* FindTensor(std::string_view name) const;

  // Typed look-ups: absent -> nullopt; present with another type or out of [low, high] -> kDataLoss
  // naming key and offset.
  Result<std::optional<int64_t>> Int(std::string_view name, int64_t low, int64_t high) const;
  Result<std::optional<double>> Float(std::string_view name) const;
  Result<std::optional<bool>> Bool(std::string_view name) const;
  Result<std::optional<std::string_view>> String(std::string_view name) const;
  Result<std::optional<GgufArray>> Array(std::string_view name, GgufType element) const;

  // For messages: "FILE: offset N: field 'name': what", with N where the key's value or the tensor
  // stands (where the keys begin, if it is absent).
  std::string Complaint(std::string_view name, const std::string& what) const;

  // Drops a tensor's pages from memory after it was packed.
  void Forget(const GgufTensor& tensor) const;
  // A tensor will be read now and so many bytes behind it next: the disk works ahead.
  void WillRead(const GgufTensor& tensor, uint64_t ahead) const;

 private:
  GgufFile() = default;
  friend class GgufParser;
  void BuildIndex();
  std::string path_;
  uint32_t version_ = 0;
  int shard_count_ = 1;
  uint64_t file_bytes_ = 0;
  std::vector<GgufKey> keys_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> keys_by_name_, tensors_by_name_;
  std::vector<std::shared_ptr<MappedFile>> shards_;  // empty after Parse of bytes
};

}  // namespace kvasir
