#include "loadgen/http_response.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash.h"
#include "loadgen/http_client.h"

namespace kvasir {
namespace {

// Feeds `text` in pieces of random length drawn from the seed.
template <typename F>
Status FeedInPieces(const std::string& text, Rng* rng, F push) {
  for (size_t at = 0; at < text.size();) {
    const size_t size = 1 + rng->Below(rng->Below(4) == 0 ? 64 : 4);
    KVASIR_RETURN_IF_ERROR(push(std::string_view(text).substr(at, size)));
    at += size;
  }
  return Status::Ok();
}

TEST(HttpResponseParser, ContentLength) {
  HttpResponseParser parser;
  std::string body;
  ASSERT_TRUE(
      parser.Push("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A:  b \r\n\r\nhel", &body).ok());
  EXPECT_TRUE(parser.head_done());
  EXPECT_FALSE(parser.done());
  ASSERT_TRUE(parser.Push("loEXTRA", &body).ok());
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(body, "hello");
  EXPECT_EQ(parser.status(), 200);
  EXPECT_EQ(parser.header("x-a"), "b");
}

TEST(HttpResponseParser, UntilCloseAndCutShort) {
  HttpResponseParser open_end;
  std::string body;
  ASSERT_TRUE(open_end.Push("HTTP/1.0 404 Not Found\r\n\r\nabc", &body).ok());
  EXPECT_FALSE(open_end.done());
  EXPECT_TRUE(open_end.Close().ok());
  EXPECT_EQ(open_end.status(), 404);
  EXPECT_EQ(body, "abc");

  for (const char* cut :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"}) {
    HttpResponseParser parser;
    ASSERT_TRUE(parser.Push(cut, &body).ok());
    EXPECT_EQ(parser.Close().code(), StatusCode::kDataLoss) << cut;
  }
}

TEST(HttpResponseParser, SkipsInformational) {
  HttpResponseParser parser;
  std::string body;
  ASSERT_TRUE(
      parser.Push("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", &body).ok());
  EXPECT_TRUE(parser.done());
  EXPECT_EQ(parser.status(), 204);
}

TEST(HttpResponseParser, RefusesWhatIsNoHttp) {
  const std::vector<std::string> bad = {
      "SSH-2.0-OpenSSH\r\n\r\n",
      "HTTP/1.1 99 x\r\n\r\n",
      "HTTP/1.1 abc x\r\n\r\n",
      "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
      "HTTP/1.1 200 OK\r\nX: " + std::string(HttpResponseParser::kHeadBytesMax, 'a'),
  };
  for (const std::string& text : bad) {
    HttpResponseParser parser;
    std::string body;
    EXPECT_EQ(parser.Push(text, &body).code(), StatusCode::kDataLoss) << text.substr(0, 80);
  }
}

TEST(HttpResponseParser, ChunkedOverRandomSplits) {
  const uint64_t seed = 20261129;
  Rng rng(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    std::string expected;
    std::string wire = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (uint64_t chunks = rng.Below(6); chunks > 0; --chunks) {
      std::string data;
      for (uint64_t n = 1 + rng.Below(200); n > 0; --n) data.push_back("ab\r\n0;"[rng.Below(6)]);
      char size[32];
      std::snprintf(size, sizeof(size), rng.Below(2) != 0 ? "%zx" : "%04zX", data.size());
      wire += std::string(size) + (rng.Below(3) == 0 ? ";name=value" : "") + "\r\n" + data + "\r\n";
      expected += data;
    }
    wire += rng.Below(2) != 0 ? "0\r\n\r\n" : "0\r\nX-Trailer: 1\r\n\r\n";
    HttpResponseParser parser;
    std::string body;
    ASSERT_TRUE(FeedInPieces(wire, &rng, [&](std::string_view piece) {
                  return parser.Push(piece, &body);
                }).ok());
    EXPECT_TRUE(parser.done());
    EXPECT_TRUE(parser.Close().ok());
    EXPECT_EQ(body, expected);
  }
}

TEST(HttpResponseParser, RandomBytesNeverCrash) {
  Rng rng(7);
  const std::string alphabet = "HTTP/1. 20\r\n:;0aContent-Length: Transfer-Encoding: chunked";
  for (int round = 0; round < 2000; ++round) {
    HttpResponseParser parser;
    std::string text = rng.Below(2) != 0 ? "HTTP/1.1 200 OK\r\n" : "";
    for (uint64_t n = rng.Below(120); n > 0; --n)
      text.push_back(alphabet[rng.Below(alphabet.size())]);
    std::string body;
    const Status status =
        FeedInPieces(text, &rng, [&](std::string_view piece) { return parser.Push(piece, &body); });
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss);
    EXPECT_LE(body.size(), text.size());
  }
}

TEST(SseParser, FieldsAndLineEnds) {
  SseParser parser;
  std::vector<std::string> events;
  ASSERT_TRUE(
      parser
          .Push(": comment\n\nevent: x\ndata: one\n\ndata:two\r\ndata:  2\r\n\r\ndata\r\rid: 1\n\n",
                &events)
          .ok());
  EXPECT_EQ(events, (std::vector<std::string>{"one", "two\n 2", ""}));
  EXPECT_FALSE(parser.mid_event());
  ASSERT_TRUE(parser.Push("data: cut", &events).ok());
  EXPECT_TRUE(parser.mid_event());
  EXPECT_EQ(events.size(), 3U);
}

TEST(SseParser, RandomSplitsGiveTheSameEvents) {
  const uint64_t seed = 11;
  Rng rng(seed);
  const char* const line_ends[] = {"\n", "\r\n", "\r"};
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    std::vector<std::string> expected;
    std::string wire;
    for (uint64_t n = rng.Below(8); n > 0; --n) {
      const std::string end = line_ends[rng.Below(3)];
      if (rng.Below(4) == 0) wire += ": ping" + end;
      std::string data;
      for (uint64_t lines = 1 + rng.Below(3); lines > 0; --lines) {
        const std::string line =
            "x" + std::string(rng.Below(20), ':') + std::to_string(rng.Below(1000));
        wire += "data: " + line + end;
        data += (data.empty() ? "" : "\n") + line;
      }
      wire += end;
      expected.push_back(data);
    }
    SseParser parser;
    std::vector<std::string> events;
    ASSERT_TRUE(FeedInPieces(wire, &rng, [&](std::string_view piece) {
                  return parser.Push(piece, &events);
                }).ok());
    EXPECT_EQ(events, expected);
  }
}

TEST(SseParser, LimitsAnEvent) {
  SseParser parser;
  std::vector<std::string> events;
  EXPECT_EQ(parser.Push("data: " + std::string(SseParser::kEventBytesMax + 1, 'a'), &events).code(),
            StatusCode::kDataLoss);
}

TEST(ParseHttpUrl, Forms) {
  const auto text = [](const char* url) { return ParseHttpUrl(url).value().ToString(); };
  EXPECT_EQ(text("http://127.0.0.1:8080"), "http://127.0.0.1:8080");
  EXPECT_EQ(text("127.0.0.1:8080/"), "http://127.0.0.1:8080");
  EXPECT_EQ(text("http://host/v1/"), "http://host:80");
  EXPECT_EQ(text("http://host:1/a/v1"), "http://host:1/a");
  EXPECT_EQ(text("http://[::1]:99"), "http://[::1]:99");
  EXPECT_EQ(text("[::1]"), "http://[::1]:80");
  for (const char* bad :
       {"", "http://", "https://x", "ftp://x", "x:0", "x:65536", "x:1a", "x:", "x y",
        "http://u:p@x", "[::1", "[::1]x", "[::1]:", "x:99999999999999999999", "x/\r\nEvil: 1"}) {
    EXPECT_EQ(ParseHttpUrl(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace kvasir
