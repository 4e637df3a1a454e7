// The demo model's tokenizer against the reference's ids (tools/make_text_goldens.py,
// docs/text.md).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/gguf.h"
#include "server/tokenizer_from_gguf.h"

namespace kvasir {
namespace {

std::string DemoModel() {
  if (const char* path = std::getenv("KVASIR_DEMO_MODEL")) return path;
  const char* data = std::getenv("XDG_DATA_HOME");
  const char* home = std::getenv("HOME");
  const std::string base =
      data != nullptr ? data : std::string(home != nullptr ? home : "") + "/.local/share";
  return base + "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

nlohmann::json Golden(const std::string& name) {
  std::ifstream file("src/text/testdata/" + name);
  return nlohmann::json::parse(file);
}

class TokenizerGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = DemoModel();
    if (!std::filesystem::exists(path))
      GTEST_SKIP() << "SKIPPED: the demo model is not here: " << path;
    auto opened = GgufFile::Open(path);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    file_ = std::make_unique<GgufFile>(std::move(opened).value());
  }
  // Has the vocabulary a token for each byte of the text? SmolLM2's lacks six control characters
  // and the lead bytes F1 and F2; the reference drops such bytes, and so do we.
  static bool HasBytes(const Tokenizer& tokenizer, const std::string& text) {
    std::vector<bool> there(256);
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (bytes.size() == 1) there[static_cast<uint8_t>(bytes[0])] = true;
    }
    for (char byte : text) {
      if (!there[static_cast<uint8_t>(byte)]) return false;
    }
    return true;
  }
  // How many texts get other ids or do not come back; the first few are printed.
  static int Differences(const Tokenizer& tokenizer, const nlohmann::json& texts,
                         const nlohmann::json& ids, bool comes_back) {
    int wrong = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      auto got = tokenizer.Encode(text, SpecialText::kPlain, false);
      const auto expected = ids[i].get<std::vector<TokenId>>();
      bool same = got.ok() && *got == expected;
      if (same && comes_back && tokenizer.Decode(*got, false) != text)
        same = !HasBytes(tokenizer, text);
      if (same || ++wrong > 3) continue;
      ADD_FAILURE() << texts[i].dump() << " expected " << ids[i].dump() << " got "
                    << nlohmann::json(got.ok() ? *got : std::vector<TokenId>()).dump();
    }
    return wrong;
  }
  std::unique_ptr<GgufFile> file_;
};

TEST_F(TokenizerGolden, DemoModelEqualsTheReference) {
  auto tokenizer = MakeTokenizer(*file_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const nlohmann::json golden = Golden("smollm2_ids.json");
  ASSERT_GE(golden.at("texts").size(), 2000u);
  EXPECT_EQ(Differences(**tokenizer, golden["texts"], golden["ids"], true), 0);
}

TEST_F(TokenizerGolden, OtherKindsCutAsTheirReference) {
  TokenizerSpec spec;
  spec.model = "gpt2";
  spec.tokens = (**file_->Array("tokenizer.ggml.tokens", GgufType::kString)).Strings();
  spec.merges = (**file_->Array("tokenizer.ggml.merges", GgufType::kString)).Strings();
  for (int64_t kind : (**file_->Array("tokenizer.ggml.token_type", GgufType::kI32)).Integers()) {
    spec.kinds.push_back(static_cast<uint8_t>(kind));
  }
  const nlohmann::json golden = Golden("pre_ids.json");
  for (const auto& [kind, ids] : golden.at("kinds").items()) {
    spec.pre = kind;
    auto tokenizer = Tokenizer::FromSpec(spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    // qwen2 normalises, so its text need not come back as it was.
    EXPECT_EQ(Differences(**tokenizer, golden["texts"], ids, kind != "qwen2"), 0) << kind;
  }
}

TEST_F(TokenizerGolden, DemoModelsTemplateRenders) {
  auto tokenizer = MakeTokenizer(*file_);
  ASSERT_TRUE(tokenizer.ok());
  auto chat_template = MakeChatTemplate(*file_, **tokenizer);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status().ToString();
  auto rendered =
      (*chat_template)
          ->Render(R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true})");
  ASSERT_TRUE(rendered.ok());
  EXPECT_EQ(rendered->text,
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(2));
}

}  // namespace
}  // namespace kvasir
