// kvasir inspect MODEL
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/kv_flags.h"
#include "apps/model_path.h"
#include "base/units.h"
#include "kvcache/kv_layout.h"
#include "model/gguf.h"
#include "model/model.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kArrayShown = 4;      // elements of an array
constexpr size_t kStringShown = 4096;  // bytes of a string in JSON; the text form shows 100

const char* TypeName(GgufType type) {
  constexpr const char* kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                    "bool", "string", "array", "u64", "i64", "f64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "?";
}

Json ArrayJson(const GgufArray& array) {
  Json out = {
      {"element", TypeName(array.element)}, {"count", array.count}, {"first", Json::array()}};
  if (array.element == GgufType::kString) {
    const std::vector<std::string_view> strings = array.Strings();
    for (size_t i = 0; i < std::min(kArrayShown, strings.size()); ++i) {
      out["first"].push_back(strings[i].substr(0, kStringShown));
    }
  } else {
    const std::vector<double> numbers = array.Numbers();
    for (size_t i = 0; i < std::min(kArrayShown, numbers.size()); ++i)
      out["first"].push_back(numbers[i]);
  }
  return out;
}

Json ValueJson(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value)) return ArrayJson(*array);
  if (const auto* text = std::get_if<std::string_view>(&value))
    return text->substr(0, kStringShown);
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::get<bool>(value);
}

Json FileJson(const GgufFile& file) {
  Json out = {
      {"path", file.path()}, {"gguf_version", file.version()}, {"file_bytes", file.file_bytes()}};
  out["metadata"] = Json::object();
  for (const GgufKey& key : file.keys()) {
    out["metadata"][std::string(key.name)] = {{"type", TypeName(key.type)},
                                              {"value", ValueJson(key.value)}};
  }
  out["tensors"] = Json::array();
  uint64_t parameters = 0, bytes = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    uint64_t elements = 1;
    for (const int64_t dim : tensor.dims) elements *= static_cast<uint64_t>(dim);
    parameters += elements;
    bytes += tensor.bytes;
    out["tensors"].push_back({{"name", tensor.name},
                              {"dims", tensor.dims},
                              {"type", GetWeightType(tensor.type).name},
                              {"bytes", tensor.bytes},
                              {"offset", tensor.offset},
                              {"shard", tensor.shard}});
  }
  out["parameters"] = parameters;
  out["tensor_bytes"] = bytes;
  return out;
}

Json ConfigJson(const ModelConfig& c) {
  return {{"architecture", c.architecture},
          {"name", c.name},
          {"layers", c.layers},
          {"hidden", c.hidden},
          {"ff", c.ff},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"k_dim", c.k_dim},
          {"v_dim", c.v_dim},
          {"vocab", c.vocab},
          {"context", c.context},
          {"rope_base", c.rope_base},
          {"tied_output", c.tied_output}};
}

std::string Trimmed(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

Json LayoutJson(const KvLayout& layout, const KvFlags& kv, int context) {
  return {{"k_type", kv.type_k()},
          {"v_type", kv.type_v()},
          {"block_tokens", layout.block_tokens()},
          {"block_bytes", layout.block_bytes()},
          {"bytes_per_token", layout.bytes_per_token()},
          {"bytes_per_context", layout.bytes_per_token() * context},
          {"layers", Trimmed(layout.Describe())}};
}

// Text from a file that is not trusted: no control characters reach the terminal.
std::string Printable(const Json& value, size_t limit) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > limit) text = text.substr(0, limit) + "...";
  return text;
}

std::string Indented(const std::string& lines) {
  std::string text = "  ";
  for (const char c : lines) text += c == '\n' ? "\n  " : std::string(1, c);
  return text;
}

void PrintText(const Json& report) {
  std::cout << Printable(report["path"], 4096) << ": GGUF v" << report["gguf_version"] << ", "
            << FormatSize(report["file_bytes"].get<uint64_t>()) << "\n\nmetadata\n";
  for (const auto& [name, entry] : report["metadata"].items()) {
    std::string value = Printable(entry["value"], 100);
    if (entry["type"] == "array") {
      value = "[" + entry["value"]["count"].dump() + " " +
              entry["value"]["element"].get<std::string>() + "] " +
              Printable(entry["value"]["first"], 90);
    }
    std::cout << "  " << Printable(Json(name), 200) << " = " << value << "\n";
  }
  std::cout << "\ntensors\n";
  for (const Json& tensor : report["tensors"]) {
    std::cout << "  " << Printable(tensor["name"], 200) << " " << tensor["type"].get<std::string>()
              << " " << tensor["dims"].dump() << " " << FormatSize(tensor["bytes"].get<uint64_t>())
              << " at " << tensor["offset"] << "\n";
  }
  std::cout << "\n"
            << report["tensors"].size() << " tensors, " << report["parameters"] << " parameters, "
            << FormatSize(report["tensor_bytes"].get<uint64_t>()) << "\n";
  if (!report.contains("kv")) return;
  const Json& config = report["config"];
  std::cout << "\nmodel\n  " << Printable(config["architecture"], 100) << ": " << config["layers"]
            << " layers, hidden " << config["hidden"] << ", " << config["heads"] << " heads, "
            << config["kv_heads"] << " KV heads of " << config["k_dim"] << "+" << config["v_dim"]
            << ", vocabulary " << config["vocab"] << ", context " << config["context"] << "\n";
  const Json& kv = report["kv"];
  std::cout << "\nKV cache (K " << kv["k_type"].get<std::string>() << ", V "
            << kv["v_type"].get<std::string>() << ", blocks of " << kv["block_tokens"]
            << " tokens)\n"
            << Indented(kv["layers"].get<std::string>()) << "\n  bytes per token "
            << kv["bytes_per_token"].get<double>() << ", per block " << kv["block_bytes"]
            << ", for the whole context "
            << FormatSize(static_cast<uint64_t>(kv["bytes_per_context"].get<double>())) << "\n";
}

// What was read before a failure is kept in the report.
Status FillReport(const std::string& model, const KvFlags& kv, Json* report) {
  KVASIR_ASSIGN_OR_RETURN(const std::string path, ResolveModelPath(model));
  KVASIR_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  *report = FileJson(file);
  KVASIR_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  (*report)["config"] = ConfigJson(config);
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec k_spec, ParseKvTypeSpec(kv.type_k(), "--kv-type-k"));
  KVASIR_ASSIGN_OR_RETURN(const KvTypeSpec v_spec, ParseKvTypeSpec(kv.type_v(), "--kv-type-v"));
  Result<std::vector<KvPair>> types =
      ResolveKvTypes(k_spec, v_spec, static_cast<int>(config.cache.size()));
  if (!types.ok()) return kv.NameFlag(types.status());
  KVASIR_ASSIGN_OR_RETURN(const KvLayout layout,
                          KvLayout::Make(config.cache, kv.block_size, *types));
  (*report)["kv"] = LayoutJson(layout, kv, config.context);
  return Status::Ok();
}

}  // namespace

int InspectCommand(int argc, const char* const* argv) {
  CLI::App app(
      "Metadata, tensors, KV layout and bytes per token of a model file. Reads no weights.",
      "kvasir inspect");
  app.footer(
      "--kv-type auto is shown as f16: what serve takes depends on the weights.\n\nExample:\n  "
      "kvasir inspect demo\n  kvasir inspect model.gguf --json | jq "
      ".kv.bytes_per_token");
  std::string model;
  bool json = false;
  KvFlags kv;
  app.add_option("MODEL", model, "a .gguf file, or demo")->required();
  app.add_flag("--json", json, "as JSON");
  AddKvTypeFlags(&app, &kv);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  if (const Status valid = kv.Validate(); !valid.ok()) return Fail(valid);
  // What auto comes to depends on the weights, which inspect does not read.
  if (kv.is_auto()) kv.kv_type = "f16";

  Json report;
  const Status status = FillReport(model, kv, &report);
  if (!status.ok() && !report.is_null()) report["fault"] = status.message();
  if (json && !report.is_null()) {
    std::cout << report.dump(1, ' ', false, Json::error_handler_t::replace) << std::endl;
  } else if (!report.is_null()) {
    PrintText(report);
  }
  return FinishOutput(status.ok() ? kExitOk : Fail(status));
}

}  // namespace kvasir
