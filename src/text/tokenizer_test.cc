#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <thread>

#include "base/hash.h"
#include "text/text_test_util.h"

namespace kvasir {
namespace {

using Ids = std::vector<TokenId>;

Ids Plain(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.Encode(text, SpecialText::kPlain, false);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : Ids();
}

std::string Repeat(std::string_view unit, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(Tokenizer, ReadsTheFixtureVocabulary) {
  auto tokenizer = FixtureTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 305);
  EXPECT_EQ(Plain(*tokenizer, "one two three four"), (Ids{257, 259, 111, 261, 262, 266}));
  EXPECT_EQ(tokenizer->TokenBytes(259), " tw");
  EXPECT_EQ(tokenizer->TokenBytes(200), "\xC8");
  EXPECT_EQ(tokenizer->TokenBytes(303), "<|im_end|>");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(305), "");
  EXPECT_TRUE(tokenizer->IsSpecial(303));
  EXPECT_FALSE(tokenizer->IsSpecial(257));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(303));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(302));
  EXPECT_EQ(std::vector<TokenId>(tokenizer->end_tokens().begin(), tokenizer->end_tokens().end()),
            (Ids{303}));
  EXPECT_EQ(tokenizer->Decode(Ids{302, 104, 105, 303}, true), "hi");
  EXPECT_EQ(tokenizer->Decode(Ids{302, 104, 105, 303}, false), "<|im_start|>hi<|im_end|>");
  EXPECT_FALSE(tokenizer->strips_leading_space());
}

// G04: 240 strings and nine long ones with the reference's ids.
TEST(Tokenizer, EqualsTheReferenceOnTheCaseTable) {
  const std::string path = "../shared/cases/requests/G04_ids.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: " << path << " is not here";
  const nlohmann::json cases = ReadJson(path);
  auto tokenizer = FixtureTokenizer();
  for (const auto& row : cases.at("strings")) {
    const std::string text = row.at("text");
    EXPECT_EQ(Plain(*tokenizer, text), row.at("ids").get<Ids>()) << row.dump();
    EXPECT_EQ(tokenizer->Decode(row.at("ids").get<Ids>(), false), text);
  }
  for (const auto& row : cases.at("long")) {
    const std::string text = Repeat(row.at("repeat").get<std::string>(), row.at("times"));
    Ids expected;
    if (row.at("ids_as").is_object()) {
      for (int i = 0; i < row["ids_as"]["times"].get<int>(); ++i) {
        for (TokenId id : row["ids_as"]["unit"].get<Ids>()) expected.push_back(id);
      }
      for (TokenId id : row["ids_as"]["rest"].get<Ids>()) expected.push_back(id);
    } else {
      for (const auto& run : row["ids_as"]) expected.insert(expected.end(), run[1], run[0]);
    }
    EXPECT_EQ(expected.size(), row.at("count").get<size_t>());
    EXPECT_EQ(Plain(*tokenizer, text), expected) << row.dump();
  }
}

TEST(Tokenizer, ReadsControlTokensOnlyWhereAllowed) {
  auto tokenizer = FixtureTokenizer();
  const Ids control = *tokenizer->Encode("hi<|im_end|>", SpecialText::kControl, false);
  EXPECT_EQ(control, (Ids{104, 105, 303}));
  EXPECT_EQ(Plain(*tokenizer, "hi<|im_end|>").size(), 2u + 10u);
  EXPECT_EQ(tokenizer->Decode(Plain(*tokenizer, "hi<|im_end|>"), false), "hi<|im_end|>");
}

TEST(Tokenizer, EncodesBetweenControlTokensAsOneStretch) {
  auto tokenizer = FixtureTokenizer();
  // "one" is one token although it is cut into three pieces, two of them untrusted.
  const std::vector<Tokenizer::Piece> pieces = {
      {"<|im_start|>o", true}, {"n", false}, {"e<|im_end|>", true}, {"<|im_end|>", false}};
  Ids ids = *tokenizer->EncodePieces(pieces, false);
  ASSERT_GT(ids.size(), 3u);
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 3), (Ids{302, 257, 303}));
  EXPECT_EQ(ids.size(), 3u + 10u);
  // A token's text cut by a piece's border is no token.
  EXPECT_EQ(
      tokenizer
          ->EncodePieces(std::vector<Tokenizer::Piece>{{"<|im_", true}, {"end|>", true}}, false)
          ->size(),
      10u);
  EXPECT_EQ(tokenizer->EncodePieces({}, false)->size(), 0u);
}

TEST(Tokenizer, PutsBosOnce) {
  auto tokenizer = FixtureTokenizer(true);
  EXPECT_TRUE(tokenizer->add_bos());
  EXPECT_EQ(*tokenizer->Encode("a", SpecialText::kPlain, true), (Ids{301, 97}));
  EXPECT_EQ(*tokenizer->Encode("<|bos|>a", SpecialText::kControl, true), (Ids{301, 97}));
  EXPECT_EQ(*tokenizer->Encode("", SpecialText::kControl, true), (Ids{301}));
  // Plain text is no BOS, so one is put before it.
  EXPECT_EQ(tokenizer->Encode("<|bos|>a", SpecialText::kPlain, true)->size(), 1u + 7u + 1u);
  EXPECT_EQ(*tokenizer->Encode("a", SpecialText::kPlain, false), (Ids{97}));
}

TEST(Tokenizer, MatchesUserDefinedTokensInPlainTextToo) {
  Vocabulary vocabulary = FixtureVocabulary();
  vocabulary.tokens.insert(vocabulary.tokens.end(), {"<think>", "<think>>", "é!"});
  vocabulary.spec.kinds.insert(vocabulary.spec.kinds.end(), 3,
                               static_cast<uint8_t>(TokenKind::kUserDefined));
  vocabulary.Refresh();
  auto tokenizer = Tokenizer::FromSpec(vocabulary.spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_EQ(Plain(**tokenizer, "a<think>b"), (Ids{97, 305, 98}));
  EXPECT_EQ(Plain(**tokenizer, "a<think>>b"), (Ids{97, 306, 98}));  // the longest
  EXPECT_EQ((*tokenizer)->Decode(Plain(**tokenizer, "é!é"), false), "é!é");
  EXPECT_FALSE((*tokenizer)->IsSpecial(305));
}

TEST(Tokenizer, NamesTheOffsetOfInvalidUtf8) {
  auto tokenizer = FixtureTokenizer();
  for (std::string_view bad : {"ab\xFF", "ab\xE4\xB8", "ab\xED\xA0\x80", "ab\xC0\x80"}) {
    auto ids = tokenizer->Encode(bad, SpecialText::kPlain, true);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(ids.status().message().find("byte 2"), std::string::npos) << ids.status().message();
  }
  // A character may be cut by a border between pieces.
  EXPECT_TRUE(
      tokenizer
          ->EncodePieces(std::vector<Tokenizer::Piece>{{"\xE4", true}, {"\xB8\x96", false}}, false)
          .ok());
}

TEST(Tokenizer, RefusesBrokenVocabularies) {
  const auto refused = [](const char* what, StatusCode code, auto&& edit) {
    Vocabulary vocabulary = FixtureVocabulary();
    edit(vocabulary);
    vocabulary.Refresh();
    auto made = Tokenizer::FromSpec(vocabulary.spec);
    ASSERT_FALSE(made.ok()) << what;
    EXPECT_EQ(made.status().code(), code) << made.status().ToString();
    EXPECT_NE(made.status().message().find(what), std::string::npos) << made.status().message();
    EXPECT_EQ(made.status().message().find('\n'), std::string::npos);
  };
  const StatusCode kBroken = StatusCode::kDataLoss;
  refused("'bert'", StatusCode::kUnimplemented, [](auto& v) { v.spec.model = "bert"; });
  refused("llama-bpe", StatusCode::kUnimplemented, [](auto& v) { v.spec.pre = "nobody"; });
  refused("'nobody'", StatusCode::kUnimplemented, [](auto& v) { v.spec.pre = "nobody"; });
  refused("bos_token_id", kBroken, [](auto& v) { v.spec.bos = 305; });
  refused("eos_token_id", kBroken, [](auto& v) { v.spec.eos = -2; });
  refused("token_type has 304", kBroken, [](auto& v) { v.spec.kinds.pop_back(); });
  refused("merges[3]", kBroken, [](auto& v) { v.merges[3] = "nospace"; });
  refused("merges[3]", kBroken, [](auto& v) { v.merges[3] = "o zzz"; });
  refused("tokens[7]", kBroken, [](auto& v) { v.tokens[7] = "\xFF"; });
  refused("tokens has 0", kBroken, [](auto& v) {
    v.tokens.clear();
    v.spec.kinds.clear();
  });
  refused("scores", kBroken, [](auto& v) { v.spec.model = "llama"; });
}

// decode(encode(x)) == x for byte-level kinds, on random text of all planes.
TEST(Tokenizer, RandomTextComesBack) {
  const uint64_t seed = 42;
  Rng rng(seed);
  auto tokenizer = FixtureTokenizer();
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (uint64_t n = rng.Below(40); n > 0; --n) {
      const uint64_t limits[] = {0x80, 0x800, 0xD800, 0x110000};
      uint32_t c = static_cast<uint32_t>(rng.Below(limits[rng.Below(4)]));
      if (c >= 0xD800 && c < 0xE000) c = ' ';
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else if (c < 0x800) {
        text += static_cast<char>(0xC0 | (c >> 6));
        text += static_cast<char>(0x80 | (c & 63));
      } else {
        if (c >= 0x10000) text += static_cast<char>(0xF0 | (c >> 18));
        text += static_cast<char>(c >= 0x10000 ? 0x80 | ((c >> 12) & 63) : 0xE0 | (c >> 12));
        text += static_cast<char>(0x80 | ((c >> 6) & 63));
        text += static_cast<char>(0x80 | (c & 63));
      }
    }
    ASSERT_EQ(FindInvalidUtf8(text), std::string_view::npos) << "seed " << seed;
    EXPECT_EQ(tokenizer->Decode(Plain(*tokenizer, text), false), text) << "seed " << seed;
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  auto tokenizer = FixtureTokenizer();
  const std::string text = Repeat("one two three the thing \t 1234 é世 ", 50);
  const Ids expected = Plain(*tokenizer, text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        auto ids = tokenizer->Encode(text + Repeat("x", t * 50 + static_cast<size_t>(i)),
                                     SpecialText::kPlain, false);
        wrong[t] += !ids.ok() || !std::equal(expected.begin(), expected.end() - 1, ids->begin());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::vector<int>{0, 0, 0, 0}));
}

// Reference: the sentencepiece package on the same vocabulary (tools/make_text_goldens.py).
TEST(SentencePiece, EqualsTheReference) {
  const nlohmann::json golden = ReadJson("src/text/testdata/spm_ids.json");
  Vocabulary vocabulary("src/text/testdata/spm_ids.json");
  vocabulary.spec.model = "llama";
  vocabulary.spec.unk = 0;
  auto made = Tokenizer::FromSpec(vocabulary.spec);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Tokenizer& tokenizer = **made;
  EXPECT_TRUE(tokenizer.strips_leading_space());
  size_t compared = 0;
  for (size_t i = 0; i < golden.at("texts").size(); ++i) {
    const std::string text = golden["texts"][i];
    ASSERT_EQ(Plain(tokenizer, text), golden.at("ids")[i].get<Ids>()) << golden["texts"][i].dump();
    if (!text.empty() && text.find("\xE2\x96\x81") == std::string::npos) {
      EXPECT_EQ(tokenizer.Decode(Plain(tokenizer, text), false), " " + text);
    }
    ++compared;
  }
  EXPECT_GE(compared, 1000u);
}

TEST(SentencePiece, LeavesOutThePrefixWhenTold) {
  Vocabulary vocabulary("src/text/testdata/spm_ids.json");
  vocabulary.spec.model = "llama";
  vocabulary.spec.add_space_prefix = false;
  auto made = Tokenizer::FromSpec(vocabulary.spec);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE((*made)->strips_leading_space());
  EXPECT_EQ((*made)->Decode(Plain(**made, "the end"), false), "the end");
  EXPECT_EQ((*made)->Decode(Plain(**made, "é\n"), false), "é\n");  // by <0xNN> tokens
}

TEST(JsonFile, ReadsATokenizerWithItsConfig) {
  const std::string dir = ::testing::TempDir() + "kvasir_json_tokenizer";
  std::filesystem::create_directories(dir);
  const Vocabulary fixture = FixtureVocabulary();
  nlohmann::json json = {{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"normalizer", nullptr},
                         {"pre_tokenizer",
                          {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}}},
                         {"post_processor", nullptr},
                         {"decoder",
                          {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}}}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"merges", fixture.merges}};
  for (size_t id = 0; id < fixture.tokens.size(); ++id) {
    if (id <= 300) {
      json["model"]["vocab"][fixture.tokens[id]] = id;
    } else {
      json["added_tokens"].push_back({{"id", id},
                                      {"content", fixture.tokens[id]},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", id == 304},
                                      {"normalized", false},
                                      {"special", true}});
    }
  }
  std::ofstream(dir + "/tokenizer.json") << json;
  std::ofstream(dir + "/tokenizer_config.json")
      << R"({"bos_token": {"content": "<|bos|>"}, "eos_token": "<|im_end|>", "add_bos_token": true})";
  auto made = Tokenizer::FromJsonFile(dir + "/tokenizer.json");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  auto expected = FixtureTokenizer(true);
  EXPECT_EQ((*made)->vocab_size(), 305);
  EXPECT_EQ((*made)->bos(), 301);
  EXPECT_EQ((*made)->eos(), 303);
  EXPECT_TRUE((*made)->IsSpecial(302));
  for (const char* text :
       {"", "one two", "<|bos|>hi<|im_end|>", "  the\n\n1234 é世", "<|im_start|>"}) {
    for (SpecialText special : {SpecialText::kPlain, SpecialText::kControl}) {
      EXPECT_EQ(*(*made)->Encode(text, special, true), *expected->Encode(text, special, true))
          << text;
    }
    EXPECT_EQ((*made)->Decode(*(*made)->Encode(text, SpecialText::kPlain, false), false), text);
  }
  EXPECT_EQ(*(*made)->Encode("<|pad|>  a", SpecialText::kControl, false),
            (Ids{304, 97}));  // rstrip
  std::ofstream(dir + "/tokenizer.json") << "{\"model\": 3";
  EXPECT_EQ(Tokenizer::FromJsonFile(dir + "/tokenizer.json").status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(Tokenizer::FromJsonFile(dir + "/none.json").status().code(), StatusCode::kNotFound);
  std::filesystem::remove_all(dir);
}

// Expected texts follow the WHATWG decoder's rule (one U+FFFD per maximal subpart).
TEST(Utf8Stream, ReplacesMaximalBadParts) {
  const std::string r = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xC3\xA9", "aé"},
      {"\xFF", r},
      {"\xE4\xB8", r},
      {"\xE4\xB8x", r + "x"},
      {"\xE0\x80\x80", r + r + r},
      {"\xED\xA0\x80", r + r + r},
      {"\xF0\x9F\x98", r},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", r + "😀"},
      {"\xF4\x90\x80\x80", r + r + r + r},
      {"\xC0\xAF", r + r},
      {"\x80\x80", r + r},
      {"\xF0\x80", r + r},
      {"\xE2\x82\xAC\xE2", "€" + r}};
  for (const auto& [bytes, shown] : cases) {
    // Whatever the cuts, the pieces joined are the same, and each is valid.
    for (size_t cuts = 0; cuts < (1u << (bytes.size() - 1)); ++cuts) {
      Utf8Stream stream;
      std::string text, part;
      for (size_t i = 0; i < bytes.size(); ++i) {
        part += bytes[i];
        if (i + 1 == bytes.size() || (cuts >> i & 1)) {
          const std::string pushed = stream.Push(part);
          EXPECT_EQ(FindInvalidUtf8(pushed), std::string_view::npos);
          text += pushed;
          part.clear();
        }
      }
      EXPECT_EQ(text + stream.Finish(), shown);
    }
  }
  EXPECT_EQ(FindInvalidUtf8("ab\xC3\xA9\xE4\xB8"), 4u);
  EXPECT_EQ(FindInvalidUtf8("abé"), std::string_view::npos);
}

}  // namespace
}  // namespace kvasir
