// Shared by the tests of src/text: the fixtures' vocabulary from testdata.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace kvasir {

// Tests run with the repository root as working directory.
inline nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return file ? nlohmann::json::parse(file) : nlohmann::json();
}

// A vocabulary file of testdata and the spec whose views point into it.
struct Vocabulary {
  explicit Vocabulary(const std::string& path) {
    const nlohmann::json json = ReadJson(path);
    tokens = json.at("tokens").get<std::vector<std::string>>();
    merges = json.value("merges", std::vector<std::string>());
    spec.kinds = json.at("token_type").get<std::vector<uint8_t>>();
    spec.scores = json.value("scores", std::vector<float>());
    spec.bos = json.at("bos_token_id");
    spec.eos = json.at("eos_token_id");
    Refresh();
  }
  // After tokens or merges were changed.
  void Refresh() {
    spec.tokens.assign(tokens.begin(), tokens.end());
    spec.merges.assign(merges.begin(), merges.end());
  }
  std::vector<std::string> tokens, merges;
  TokenizerSpec spec;
};

// 256 bytes, 45 merges, <|bos|> 301, <|im_start|> 302, <|im_end|> 303 (eos), <|pad|> 304.
inline Vocabulary FixtureVocabulary() {
  Vocabulary vocabulary("src/text/testdata/fixture_vocab.json");
  vocabulary.spec.model = "gpt2";
  vocabulary.spec.pre = "gpt-2";
  return vocabulary;
}

inline std::unique_ptr<Tokenizer> FixtureTokenizer(bool add_bos = false) {
  Vocabulary vocabulary = FixtureVocabulary();
  vocabulary.spec.add_bos = add_bos;
  auto made = Tokenizer::FromSpec(vocabulary.spec);
  return made.ok() ? std::move(made).value() : nullptr;
}

}  // namespace kvasir
