// Sets of GGUF files: NAME-00001-of-0000N.gguf with split.no, split.count and split.tensors.count,
// as ggml's gguf-split writes them. split.no counts from 0, the names from 1.
#include <cstdio>
#include <optional>

#include "model/gguf_parser.h"
#include "model/gguf_text.h"

namespace kvasir {
namespace {

using internal::GgufComplaint;
using internal::Printable;

struct ShardName {
  std::string stem;  // everything before -00001-of-0000N.gguf
  int number = 0;    // from 1
  int count = 0;
};

bool AllDigits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::optional<ShardName> ParseShardName(const std::string& path) {
  constexpr size_t kTail = sizeof("-00001-of-00002.gguf") - 1;
  if (path.size() <= kTail) return std::nullopt;
  const std::string tail = path.substr(path.size() - kTail);
  const std::string number = tail.substr(1, 5);
  const std::string count = tail.substr(10, 5);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" ||
      !AllDigits(number) || !AllDigits(count)) {
    return std::nullopt;
  }
  return ShardName{path.substr(0, path.size() - kTail), std::stoi(number), std::stoi(count)};
}

std::string ShardPath(const ShardName& name, int number) {
  char tail[32];
  std::snprintf(tail, sizeof(tail), "-%05d-of-%05d.gguf", number, name.count);
  return name.stem + tail;
}

}  // namespace

Result<GgufFile> GgufParser::OpenOne(const std::string& path, int shard) {
  KVASIR_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  auto held = std::make_shared<MappedFile>(std::move(mapped));
  KVASIR_ASSIGN_OR_RETURN(GgufFile file, ParseOne(held->bytes(), path));
  for (GgufTensor& tensor : file.tensors_) tensor.shard = shard;
  file.shards_.push_back(std::move(held));
  file.BuildIndex();
  return file;
}

Status GgufParser::CheckShard(const GgufFile& shard, int number, int count) {
  KVASIR_ASSIGN_OR_RETURN(const std::optional<int64_t> said_count,
                          shard.Int("split.count", 1, kGgufMaxShards));
  KVASIR_ASSIGN_OR_RETURN(const std::optional<int64_t> said_number,
                          shard.Int("split.no", 0, kGgufMaxShards - 1));
  if (said_count.value_or(1) != count) {
    return DataLoss(shard.Complaint(
        "split.count",
        std::to_string(said_count.value_or(1)) + " where its name says " + std::to_string(count)));
  }
  if (said_number.value_or(-1) != number - 1) {
    return DataLoss(shard.Complaint(
        "split.no", std::to_string(said_number.value_or(-1)) + " where its name says " +
                        std::to_string(number - 1) + " (counted from 0)"));
  }
  return Status::Ok();
}

Status GgufParser::Append(GgufFile& set, GgufFile shard) {
  for (GgufTensor& tensor : shard.tensors_) {
    if (set.FindTensor(tensor.name) != nullptr) {
      return DataLoss(GgufComplaint(shard.path_, tensor.offset, Printable(tensor.name),
                                    "the tensor stands in two shards"));
    }
    set.tensors_.push_back(std::move(tensor));
  }
  if (set.tensors_.size() > kGgufMaxTensors) {
    return DataLoss(
        GgufComplaint(shard.path_, 8, "tensor count",
                      "the shards together have more than " + std::to_string(kGgufMaxTensors)));
  }
  set.file_bytes_ += shard.file_bytes_;
  set.shards_.push_back(shard.shards_.front());
  set.BuildIndex();
  return Status::Ok();
}

Result<GgufFile> GgufParser::OpenSet(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(GgufFile given, OpenOne(path, 0));
  KVASIR_ASSIGN_OR_RETURN(const std::optional<int64_t> split,
                          given.Int("split.count", 0, kGgufMaxShards));
  const std::optional<ShardName> name = ParseShardName(path);
  const int count = static_cast<int>(split.value_or(0));
  if (count <= 1 && (!name || name->count <= 1)) return given;
  if (!name) {
    return DataLoss(given.Complaint(
        "split.count", "this is one of " + std::to_string(count) +
                           " shards, but its name does not end in -00001-of-0000N.gguf"));
  }
  if (name->number < 1 || name->number > name->count || name->count > kGgufMaxShards) {
    return DataLoss(given.Complaint("split.no", "the name says shard " +
                                                    std::to_string(name->number) + " of " +
                                                    std::to_string(name->count) + " (limit " +
                                                    std::to_string(kGgufMaxShards) + ")"));
  }
  KVASIR_RETURN_IF_ERROR(CheckShard(given, name->number, name->count));
  // The keys are the first shard's, so start over from it if another was given.
  std::optional<GgufFile> set;
  for (int number = 1; number <= name->count; ++number) {
    const std::string shard_path = ShardPath(*name, number);
    auto shard = OpenOne(shard_path, number - 1);
    if (!shard.ok() && shard.status().code() == StatusCode::kNotFound) {
      return NotFound(shard_path + ": shard " + std::to_string(number) + " of " +
                      std::to_string(name->count) + " is missing (asked for by " + path + ")");
    }
    if (!shard.ok()) return shard.status();
    KVASIR_RETURN_IF_ERROR(CheckShard(*shard, number, name->count));
    if (!set) {
      set.emplace(std::move(*shard));
    } else {
      KVASIR_RETURN_IF_ERROR(Append(*set, std::move(*shard)));
    }
  }
  set->shard_count_ = name->count;
  KVASIR_ASSIGN_OR_RETURN(const std::optional<int64_t> tensors,
                          set->Int("split.tensors.count", 0, kGgufMaxTensors));
  if (tensors && static_cast<uint64_t>(*tensors) != set->tensors_.size()) {
    return DataLoss(
        set->Complaint("split.tensors.count", std::to_string(*tensors) + " where the shards have " +
                                                  std::to_string(set->tensors_.size())));
  }
  return std::move(*set);
}

Result<GgufFile> GgufParser::ParseAlone(std::span<const std::byte> bytes, const std::string& name) {
  KVASIR_ASSIGN_OR_RETURN(GgufFile file, ParseOne(bytes, name));
  file.BuildIndex();
  KVASIR_ASSIGN_OR_RETURN(const std::optional<int64_t> split,
                          file.Int("split.count", 0, kGgufMaxShards));
  if (split.value_or(1) > 1) {
    return DataLoss(file.Complaint(
        "split.count", "one shard of " + std::to_string(*split) + " cannot be read alone"));
  }
  return file;
}

}  // namespace kvasir
