// Sidecar: what has been learnt about a model once, kept beside it.
//
// The file is NAME.kvasir.json for NAME.gguf, or, where that folder cannot be written,
// $XDG_CACHE_HOME/kvasir/<fingerprint>.kvasir.json (XDG_CACHE_HOME being $HOME/.cache if unset).
// JSON: {"format": "kvasir-sidecar", "version": 1, "fingerprint": "<16 hex digits>", "sections":
// {NAME: {"version": N, "data": ...}}}. A file that is missing, broken, of another model or another
// version counts as empty; deleting it is always safe, since every section can be found again.
//
// A file that would be written over is kept: what another model left (its file had this name
// before) goes where that model looks for it, its file in the cache folder; what another version
// left, or what cannot go there, becomes NAME.kvasir.json.old.
//
// Both files are read; of a section that stands in both, the one in the file written last counts.
//
// Stores write a new file and rename it, so a reader sees the old or the new one; of two processes
// that store at the same moment the later wins, whole. One thread at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"

namespace kvasir {

class Sidecar {
 public:
  // Reads what is there. complaint() says why a file that exists was not used, else "".
  Sidecar(const std::string& model_path, uint64_t fingerprint);

  // Null if the section is absent or of another version. Valid until the next Store.
  const nlohmann::json* Find(const std::string& section, int version) const;
  // Keeps the other sections, those that another process stored meanwhile too. What cannot be
  // written beside the model goes to the cache folder; kUnavailable with both reasons if that fails
  // as well: the data is then kept in memory only, and written with the next Store that succeeds.
  Status Store(const std::string& section, int version, nlohmann::json data);

  // Reads again: what other processes stored meanwhile, and over it what this one did.
  void Refresh();

  const std::string& path() const { return path_; }  // read from or last written to; may be ""
  const std::string& complaint() const { return complaint_; }

  // Where a model's file is looked for and written, in that order.
  static std::string Beside(const std::string& model_path);
  static std::string InCache(uint64_t fingerprint);  // "" without a home

 private:
  struct Foreign {
    bool is = false;                // of another version or model
    std::optional<uint64_t> model;  // this other model, in a file of this version
  };
  // The file's sections, none if it is not used.
  nlohmann::json Read(const std::string& path, Foreign* foreign);
  std::string Text() const;         // the whole file
  std::string WriteCached() const;  // "" or why not
  void KeepForeign() const;

  std::string model_path_;
  uint64_t fingerprint_;
  std::string path_, complaint_;
  Foreign beside_is_;
  nlohmann::json sections_;
  nlohmann::json own_;  // of them, those stored by this object
};

}  // namespace kvasir
