// Parses the bytes of one GGUF file (one shard of a set) and puts shards together. Internal to the
// reader.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"
#include "model/gguf_cursor.h"

namespace kvasir {

class GgufParser {
 public:
  // One file's bytes; does not look at split keys.
  static Result<GgufFile> ParseOne(std::span<const std::byte> bytes, const std::string& name);

  // Opens `path`, and the other shards if its split keys say there are some.
  static Result<GgufFile> OpenSet(const std::string& path);

  // Refuses bytes that are one shard of several.
  static Result<GgufFile> ParseAlone(std::span<const std::byte> bytes, const std::string& name);

 private:
  GgufParser(std::span<const std::byte> bytes, const std::string& name)
      : cursor_(bytes, name), bytes_(bytes) {}

  void ReadHeader(uint64_t& tensor_count, uint64_t& key_count);
  void ReadKey(GgufKey& key, uint64_t index);
  void ReadValue(GgufKey& key);
  void ReadArray(GgufArray& array);
  void CheckKeyNames();
  uint64_t ReadAlignment();
  void ReadTensor(GgufTensor& tensor, uint64_t index);
  void ReadDims(GgufTensor& tensor);
  void CheckTensorNames();
  void PlaceTensors(uint64_t alignment);
  void CheckOverlap();

  static Result<GgufFile> OpenOne(const std::string& path, int shard);
  static Status CheckShard(const GgufFile& shard, int number, int count);
  static Status Append(GgufFile& set, GgufFile shard);

  internal::GgufCursor cursor_;
  std::span<const std::byte> bytes_;
  GgufFile out_;
  std::vector<uint64_t> info_offsets_;  // where each tensor's header stands
};

}  // namespace kvasir
