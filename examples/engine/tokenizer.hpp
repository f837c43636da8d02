#ifndef KVEVICT_EXAMPLES_ENGINE_TOKENIZER_HPP_
#define KVEVICT_EXAMPLES_ENGINE_TOKENIZER_HPP_

#include "engine/gguf.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

// Byte-level BPE from a GGUF file.
//
// Text goes through three stages: special tokens are cut out; what is between them is split into
// pieces (PieceSplitter: words, numbers, punctuation, blanks); each piece starts as one token for
// each byte, and neighbours are merged in the order of the merge list. Text is not normalised.
namespace engine {

using Token = std::int32_t;

namespace detail {

enum class CharClass : std::uint8_t { kLetter, kNumber, kSpace, kOther };

[[nodiscard]] CharClass char_class(char32_t c) noexcept;

/// The code point at the start of `text` and its length in bytes; a byte that starts no valid
/// UTF-8 sequence counts as one character U+FFFD.
[[nodiscard]] std::pair<char32_t, std::size_t> decode_utf8(std::string_view text) noexcept;

void append_utf8(char32_t code, std::string& text);

/// GPT-2's alphabet: the printable character that stands for each byte in a vocabulary.
[[nodiscard]] std::array<char32_t, 256> byte_alphabet() noexcept;

}  // namespace detail

/// Splits text as a model's regular expression does, written out by hand.
class PieceSplitter {
 public:
  /// @param name  value of tokenizer.ggml.pre; nothing if it is not known
  [[nodiscard]] static std::optional<PieceSplitter> by_name(std::string_view name);

  /// Calls visit(piece) for the pieces of `text`, which joined give `text`.
  template <class Visit>
  void split(std::string_view text, Visit&& visit) {
    read(text);
    const std::size_t size = chars_.size() - 1;
    for (std::size_t begin = 0, end = 0; begin < size; begin = end) {
      // SmolLM cuts the digits out first, so what is before one ends there (2 in "a  2").
      limit_ = size;
      if (!is_llama_ && max_digits_ > 0) {
        limit_ = begin;
        while (limit_ < size && chars_[limit_].is != Class::kNumber)
          ++limit_;
      }
      end = limit_ == begin ? begin + 1 : is_llama_ ? llama_piece(begin) : gpt2_piece(begin);
      visit(text.substr(chars_[begin].offset, chars_[end].offset - chars_[begin].offset));
    }
  }

 private:
  using Class = detail::CharClass;
  struct Char {
    char32_t code;
    Class is;
    std::size_t offset;  // in the text
  };

  PieceSplitter(bool is_llama, std::size_t max_digits);

  void read(std::string_view text);

  [[nodiscard]] bool is(std::size_t i, Class c) const { return i < limit_ && chars_[i].is == c; }
  [[nodiscard]] bool is_newline(std::size_t i) const {
    return i < limit_ && (chars_[i].code == '\r' || chars_[i].code == '\n');
  }
  // End of the run of class c from i on.
  [[nodiscard]] std::size_t run(std::size_t i, Class c) const;
  // 's 't 're 've 'm 'll 'd; the end, or i if there is none.
  [[nodiscard]] std::size_t contraction(std::size_t i, bool ignore_case) const;
  // \s+(?!\S)|\s+ : a blank is left to the word that follows, if there is more than one.
  [[nodiscard]] std::size_t blanks(std::size_t i) const;

  // '(s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  [[nodiscard]] std::size_t gpt2_piece(std::size_t i) const;

  // (?i:'(s|t|re|ve|m|ll|d))|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}
  // | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  [[nodiscard]] std::size_t llama_piece(std::size_t i) const;

  bool is_llama_;
  std::size_t max_digits_;   // in one piece; 0 = any number
  std::vector<Char> chars_;  // of the text, and one behind it
  std::size_t limit_ = 0;    // what is from here on counts as behind the text
};

/// One turn of a conversation in ChatML, ending where the assistant is to answer.
[[nodiscard]] std::string chat_prompt(std::string_view user, std::string_view system = {});

class Tokenizer {
 public:
  /// Throws std::runtime_error, "file: what", unless the file has a tokenizer of this kind.
  explicit Tokenizer(const GgufFile& file);

  /// Tokens in the vocabulary.
  [[nodiscard]] std::size_t size() const noexcept { return tokens_.size(); }
  /// True for tokens that are no text: begin and end, roles of a chat.
  [[nodiscard]] bool is_special(Token token) const {
    return is_special_[static_cast<std::size_t>(token)];
  }
  /// True for the tokens with which a model ends its answer.
  [[nodiscard]] bool is_end(Token token) const {
    return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
  }

  /// Tokens of `text`; nothing is put in front. Special tokens are recognised by their names
  /// unless `parse_special` is false, as it should be for text from strangers. A byte that the
  /// vocabulary lacks (some lack those that valid UTF-8 never has) is left out, as elsewhere.
  [[nodiscard]] std::vector<Token> encode(std::string_view text, bool parse_special = true) const;

  /// The same for the start of a text: with the begin token in front if the file asks for it.
  [[nodiscard]] std::vector<Token> encode_start(std::string_view text) const;

  /// The bytes of the tokens, of special ones their names. A token may end inside a character.
  [[nodiscard]] std::string decode(std::span<const Token> tokens) const;

 private:
  static constexpr Token kNone = -1;
  struct Merge {
    std::size_t rank;
    Token merged;
  };

  static std::uint64_t pair_key(Token left, Token right) noexcept;

  void append_bytes(Token token, std::string& result) const;

  void read_special_tokens(const GgufFile& file, bool is_llama3);

  [[nodiscard]] Token special_at(std::string_view text) const;

  void encode_text(std::string_view text, std::vector<Token>& result) const;

  // Merges neighbours, the lowest rank first and at equal rank the leftmost, until none is left.
  // Tokens form a list through `next` and `previous`; candidates wait in a heap and are dropped
  // when one of their two tokens has changed meanwhile.
  void encode_piece(std::string_view piece, std::vector<Token>& result) const;

  std::vector<std::string> tokens_;  // in the byte alphabet, special ones as they are
  std::optional<PieceSplitter> splitter_;
  std::unordered_map<std::string, Token> whole_pieces_;  // Llama 3 looks for these before merging
  std::array<Token, 256> byte_tokens_{};
  std::unordered_map<char32_t, char> bytes_;
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::array<std::vector<Token>, 256> special_by_first_;  // by the first byte of their names
  std::vector<bool> is_special_;
  std::vector<Token> ends_;
  Token bos_ = kNone;  // if texts start with it
};

}  // namespace engine

#endif  // KVEVICT_EXAMPLES_ENGINE_TOKENIZER_HPP_
