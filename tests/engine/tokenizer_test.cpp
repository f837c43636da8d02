#include "engine/tokenizer.hpp"

#include "engine/eviction.hpp"
#include "engine/gguf_builder.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using engine::PieceSplitter;
using engine::Token;
using engine::Tokenizer;
using engine_test::error_of;
using engine_test::GgufBuilder;

using Pieces = std::vector<std::string>;

Pieces pieces(std::string_view pre_tokenizer, std::string_view text) {
  Pieces result;
  PieceSplitter::by_name(pre_tokenizer).value().split(text, [&](std::string_view piece) {
    result.emplace_back(piece);
  });
  return result;
}

// What a test changes in the tiny vocabulary: the 256 byte tokens, then `words`, then `specials`.
struct Vocabulary {
  std::string pre = "gpt2";
  std::string model = "gpt2";
  Pieces words = {"he", "ll", "hell", "hello", "\u0120h", "\u0120he", "lo", "el"};
  Pieces merges = {"h e", "l l", "he ll", "hell o", "\u0120 he", "l o", "e l"};
  Pieces specials = {"<|im_start|>", "<|im_end|>", "<|im_end|>!"};
  std::optional<std::uint32_t> bos;
  std::optional<bool> adds_bos = true;  // nothing: the file does not say
  std::optional<std::uint32_t> eos;
  std::size_t surplus_types = 0;
  bool without_byte_zero = false;

  [[nodiscard]] GgufBuilder builder() const {
    Pieces tokens;
    for (const char32_t code : engine::detail::byte_alphabet()) {
      tokens.emplace_back();
      engine::detail::append_utf8(code, tokens.back());
    }
    if (without_byte_zero)
      tokens[0] = "unused";
    tokens.insert(tokens.end(), words.begin(), words.end());
    std::vector<std::int32_t> types(tokens.size() + surplus_types, 1);
    tokens.insert(tokens.end(), specials.begin(), specials.end());
    types.insert(types.end(), specials.size(), 3);
    GgufBuilder result;
    result.text("tokenizer.ggml.model", model)
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", tokens)
        .texts("tokenizer.ggml.merges", merges)
        .numbers("tokenizer.ggml.token_type", types);
    if (bos)
      result.number("tokenizer.ggml.bos_token_id", *bos);
    if (bos && adds_bos)
      result.flag("tokenizer.ggml.add_bos_token", *adds_bos);
    if (eos)
      result.number("tokenizer.ggml.eos_token_id", *eos);
    return result;
  }
  [[nodiscard]] Tokenizer tokenizer() const { return Tokenizer(builder().file()); }
};

constexpr Token kHe = 256;
constexpr Token kHello = 259;
constexpr Token kBlankHe = 261;
constexpr Token kLo = 262;
constexpr Token kImStart = 264;
constexpr Token kImEnd = 265;
constexpr Token kImEndMark = 266;

TEST(CharClass, FollowsUnicode) {
  using engine::detail::char_class;
  using engine::detail::CharClass;
  for (const char32_t c :
       std::u32string_view(U"aZ\u00AA\u00E9\u0416\u4F60\u3042\U00010400\U0003134A")) {
    EXPECT_EQ(char_class(c), CharClass::kLetter) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : std::u32string_view(U"09\u00B2\u00BD\u0660\u2167\u3007\U0001D7FF")) {
    EXPECT_EQ(char_class(c), CharClass::kNumber) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : std::u32string_view(U" \t\n\r\u000B\u0085\u00A0\u2003\u3000")) {
    EXPECT_EQ(char_class(c), CharClass::kSpace) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : std::u32string_view(U"!_\u0301\u200B\u200D\uFF0C\U0001F600\U0010FFFF")) {
    EXPECT_EQ(char_class(c), CharClass::kOther) << static_cast<std::uint32_t>(c);
  }
  EXPECT_EQ(char_class(0), CharClass::kOther);
}

TEST(DecodeUtf8, TakesValidSequencesAndSingleBadBytes) {
  using engine::detail::decode_utf8;
  using Result = std::pair<char32_t, std::size_t>;
  EXPECT_EQ(decode_utf8("a"), Result(U'a', 1));
  EXPECT_EQ(decode_utf8("\xC3\xA9"), Result(0xE9, 2));
  EXPECT_EQ(decode_utf8("\xE4\xBD\xA0"), Result(0x4F60, 3));
  EXPECT_EQ(decode_utf8("\xF0\x9F\x98\x80"), Result(0x1F600, 4));
  for (const std::string_view bad :
       {"\x80", "\xC3", "\xC3(", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
        "\xF8\x88\x80\x80\x80", "\xF0\x9F\x98"}) {
    EXPECT_EQ(decode_utf8(bad), Result(0xFFFD, 1));
  }
}

TEST(PieceSplitter, Gpt2) {
  EXPECT_EQ(pieces("gpt2", "Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(pieces("gpt2", "I'll don't IT'S"), (Pieces{"I", "'ll", " don", "'t", " IT", "'", "S"}));
  EXPECT_EQ(pieces("gpt2", "a  b   "), (Pieces{"a", " ", " b", "   "}));
  EXPECT_EQ(pieces("gpt2", "in 2024, 3.5%"), (Pieces{"in", " 2024", ",", " 3", ".", "5", "%"}));
  EXPECT_EQ(pieces("gpt2", "a\n\n b"), (Pieces{"a", "\n\n", " b"}));
  EXPECT_EQ(pieces("gpt2", "\tx"), (Pieces{"\t", "x"}));
  EXPECT_EQ(pieces("gpt2", " 's"), (Pieces{" '", "s"}));
  EXPECT_EQ(pieces("gpt2", "'"), (Pieces{"'"}));
  EXPECT_EQ(pieces("gpt2", ""), Pieces{});
}

TEST(PieceSplitter, SmolLMCutsOutEveryDigitFirst) {
  EXPECT_EQ(pieces("smollm", "in 2024,"), (Pieces{"in", " ", "2", "0", "2", "4", ","}));
  EXPECT_EQ(pieces("smollm", "a  2"), (Pieces{"a", "  ", "2"}));
  EXPECT_EQ(pieces("smollm", "x2's"), (Pieces{"x", "2", "'s"}));
  EXPECT_EQ(pieces("smollm", "a '2"), (Pieces{"a", " '", "2"}));
  EXPECT_EQ(pieces("smollm", "a  b"), (Pieces{"a", " ", " b"}));
}

TEST(PieceSplitter, LlamaTakesThreeDigits) {
  EXPECT_EQ(pieces("llama-bpe", "1234567 8"), (Pieces{"123", "456", "7", " ", "8"}));
  EXPECT_EQ(pieces("llama-bpe", "IT'S we'LL"), (Pieces{"IT", "'S", " we", "'LL"}));
  EXPECT_EQ(pieces("llama-bpe", "\tx(y)"), (Pieces{"\tx", "(y", ")"}));
  EXPECT_EQ(pieces("llama-bpe", "a !?\n\nb"), (Pieces{"a", " !?\n\n", "b"}));
  EXPECT_EQ(pieces("llama-bpe", "a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(pieces("llama-bpe", "a  "), (Pieces{"a", "  "}));
  EXPECT_EQ(pieces("llama-bpe", "\r\nx"), (Pieces{"\r\n", "x"}));
}

TEST(PieceSplitter, Qwen2TakesOneDigit) {
  EXPECT_EQ(pieces("qwen2", "12 3"), (Pieces{"1", "2", " ", "3"}));
  EXPECT_EQ(pieces("qwen2", "don'T"), (Pieces{"don", "'T"}));
}

TEST(PieceSplitter, PiecesJoinedAreTheTextWhateverItIs) {
  std::mt19937 random(1);
  const std::string alphabet = "ab'sT 1\n\r\t.,\xC3\xA9\xC2\xA0\xFF";
  for (const char* pre : {"gpt2", "smollm", "llama-bpe", "qwen2"}) {
    for (int trial = 0; trial < 500; ++trial) {
      std::string text;
      for (std::size_t i = random() % 20; i > 0; --i)
        text += alphabet[random() % alphabet.size()];
      std::string joined;
      for (const std::string& piece : pieces(pre, text)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      EXPECT_EQ(joined, text) << pre;
    }
  }
}

TEST(Tokenizer, MergesInTheOrderOfTheList) {
  const Tokenizer tokenizer = Vocabulary().tokenizer();
  EXPECT_EQ(tokenizer.encode("hello"), std::vector<Token>{kHello});
  EXPECT_EQ(tokenizer.encode(" he"), std::vector<Token>{kBlankHe});
  // "el" would come first from the left, but "l l" has the lower rank; "l o" is left over.
  EXPECT_EQ(tokenizer.encode("ello"), (std::vector<Token>{'e', 257, 'o'}));
  EXPECT_EQ(tokenizer.encode("elo"), (std::vector<Token>{'e', kLo}));
  // At equal rank the leftmost pair wins: ll l, not l ll.
  EXPECT_EQ(tokenizer.encode("lll"), (std::vector<Token>{257, 'l'}));
  EXPECT_EQ(tokenizer.encode("hehe"), (std::vector<Token>{kHe, kHe}));
  EXPECT_EQ(tokenizer.encode(""), std::vector<Token>{});
}

TEST(Tokenizer, NeverMergesAcrossPieces) {
  Vocabulary vocabulary;
  vocabulary.words.push_back("1h");
  vocabulary.merges.push_back("1 h");
  EXPECT_EQ(vocabulary.tokenizer().encode("1h"), (std::vector<Token>{'1', 'h'}));
}

TEST(Tokenizer, RecognisesSpecialTokensTheLongestFirst) {
  const Tokenizer tokenizer = Vocabulary().tokenizer();
  EXPECT_EQ(tokenizer.encode("<|im_start|>he<|im_end|>"),
            (std::vector<Token>{kImStart, kHe, kImEnd}));
  EXPECT_EQ(tokenizer.encode("<|im_end|>!<|im_end|>?"),
            (std::vector<Token>{kImEndMark, kImEnd, '?'}));
  EXPECT_EQ(tokenizer.encode("<|im_", true), tokenizer.encode("<|im_", false));
  const std::vector<Token> plain = tokenizer.encode("<|im_end|>", false);
  EXPECT_EQ(plain.size(), 10U);
  EXPECT_EQ(tokenizer.decode(plain), "<|im_end|>");
}

// What FastGen is told: a mark is punctuation with the blank before it too, a blank alone is not.
TEST(TokenLabels, AreThoseOfSpecialTokensAndOfMarks) {
  Vocabulary vocabulary;
  vocabulary.words = {"he", "he.", "\u0120,", ".."};
  vocabulary.merges = {};
  const Tokenizer tokenizer = vocabulary.tokenizer();
  const std::vector<kvevict::TokenLabel> labels = engine::token_labels(tokenizer);
  ASSERT_EQ(labels.size(), 256U + 4 + 3);
  using kvevict::TokenLabel;
  for (const int other : {int{'h'}, int{' '}, int{'-'}, 256, 257})
    EXPECT_EQ(labels[static_cast<std::size_t>(other)], TokenLabel::kOther) << other;
  for (const int mark : {int{'.'}, int{'?'}, int{'\n'}, 258, 259})
    EXPECT_EQ(labels[static_cast<std::size_t>(mark)], TokenLabel::kPunctuation) << mark;
  for (const int special : {260, 261, 262})
    EXPECT_EQ(labels[static_cast<std::size_t>(special)], TokenLabel::kSpecial) << special;
}

TEST(Tokenizer, DecodesWhatItEncodes) {
  const Tokenizer tokenizer = Vocabulary().tokenizer();
  std::string text = "<|im_start|>hello h\xC3\xA9llo\n\xE4\xBD\xA0 <|im_end|>";
  for (int b = 0; b < 256; ++b)
    text.push_back(static_cast<char>(b));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  // One token may be a part of a character.
  const std::vector<Token> accent = tokenizer.encode("\xC3\xA9");
  ASSERT_EQ(accent.size(), 2U);
  EXPECT_EQ(tokenizer.decode({&accent[0], 1}), "\xC3");
}

TEST(Tokenizer, LeavesOutBytesThatTheVocabularyLacks) {
  Vocabulary vocabulary;
  vocabulary.without_byte_zero = true;
  EXPECT_EQ(vocabulary.tokenizer().encode(std::string("he\0h", 4)), (std::vector<Token>{kHe, 'h'}));
}

TEST(Tokenizer, LlamaTakesWholePiecesWithoutMerges) {
  Vocabulary vocabulary;
  vocabulary.merges = {"h e"};
  EXPECT_EQ(vocabulary.tokenizer().encode("hello"), (std::vector<Token>{kHe, 'l', 'l', 'o'}));
  vocabulary.pre = "llama-bpe";
  EXPECT_EQ(vocabulary.tokenizer().encode("hello"), std::vector<Token>{kHello});
  EXPECT_EQ(vocabulary.tokenizer().encode(" he"), std::vector<Token>{kBlankHe});
}

TEST(Tokenizer, BeginAndEnd) {
  Vocabulary vocabulary;
  EXPECT_EQ(vocabulary.tokenizer().encode_start("he"), std::vector<Token>{kHe});
  vocabulary.bos = static_cast<std::uint32_t>(kImStart);
  vocabulary.eos = 'x';
  const Tokenizer tokenizer = vocabulary.tokenizer();
  EXPECT_EQ(tokenizer.encode_start("he"), (std::vector<Token>{kImStart, kHe}));
  EXPECT_EQ(tokenizer.encode("he"), std::vector<Token>{kHe});
  EXPECT_TRUE(tokenizer.is_end('x'));
  EXPECT_TRUE(tokenizer.is_end(kImEnd));
  EXPECT_FALSE(tokenizer.is_end(kImStart));
}

TEST(Tokenizer, BeginsAsTheFileSaysAndElseAsItsKindDoes) {
  Vocabulary vocabulary;
  vocabulary.bos = static_cast<std::uint32_t>(kImStart);
  const auto begins = [&](const char* pre, std::optional<bool> adds_bos) {
    vocabulary.pre = pre;
    vocabulary.adds_bos = adds_bos;
    return vocabulary.tokenizer().encode_start("").size() == 1;
  };
  EXPECT_TRUE(begins("smollm", true));
  EXPECT_FALSE(begins("smollm", false));
  EXPECT_FALSE(begins("smollm", std::nullopt));
  EXPECT_FALSE(begins("llama-bpe", false));
  EXPECT_TRUE(begins("llama-bpe", std::nullopt));
}

TEST(ChatPrompt, IsChatMl) {
  EXPECT_EQ(engine::chat_prompt("Hi"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(engine::chat_prompt("Hi", "Be brief."),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(BadTokenizer, SaysWhatIsWrong) {
  const auto error = [](const Vocabulary& vocabulary) {
    return error_of([&] { (void)vocabulary.tokenizer(); });
  };
  Vocabulary vocabulary;
  vocabulary.pre = "klingon";
  EXPECT_EQ(error(vocabulary),
            "test.gguf: pre-tokenizer klingon is not supported (smollm, gpt2, "
            "llama-bpe, qwen2 are)");
  vocabulary = {};
  vocabulary.model = "llama";
  EXPECT_EQ(error(vocabulary),
            "test.gguf: tokenizer llama is not supported (gpt2, byte-level BPE, is)");
  vocabulary = {};
  vocabulary.merges.push_back("z z");
  EXPECT_EQ(error(vocabulary),
            "test.gguf: merge \"z z\" is of tokens that are not in the vocabulary");
  vocabulary.merges.back() = "zz";
  EXPECT_EQ(error(vocabulary), "test.gguf: merge \"zz\" has no blank");
  vocabulary = {};
  vocabulary.surplus_types = 1;
  EXPECT_EQ(error(vocabulary), "test.gguf: there are 267 tokens but 268 token types");
  vocabulary = {};
  vocabulary.eos = 267;
  EXPECT_EQ(error(vocabulary),
            "test.gguf: metadata key tokenizer.ggml.eos_token_id is no token of the vocabulary");
  EXPECT_EQ(error_of([] { const Tokenizer none(GgufBuilder().file()); }),
            "test.gguf: metadata key tokenizer.ggml.tokens is missing");
}

}  // namespace
