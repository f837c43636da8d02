#include "engine/tokenizer.hpp"

#include "engine/unicode_ranges.hpp"

#include <functional>
#include <iterator>
#include <queue>
#include <tuple>

namespace engine {

namespace detail {

CharClass char_class(char32_t c) noexcept {
  const auto in = [c](const auto& ranges) {
    const auto next =
        std::upper_bound(ranges.begin(), ranges.end(), c,
                         [](char32_t x, const CodePointRange& r) { return x < r.first; });
    return next != ranges.begin() && c <= std::prev(next)->last;
  };
  // The property White_Space.
  if ((c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
      (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
      c == 0x3000) {
    return CharClass::kSpace;
  }
  if (in(kLetterRanges))
    return CharClass::kLetter;
  return in(kNumberRanges) ? CharClass::kNumber : CharClass::kOther;
}

std::pair<char32_t, std::size_t> decode_utf8(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80)
    return {first, 1};
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size)
    return {0xFFFD, 1};
  char32_t code = first & (0x7FU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U)
      return {0xFFFD, 1};
    code = code << 6U | (byte(i) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kSmallest{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[size] || code > 0x10FFFF || is_surrogate)
    return {0xFFFD, 1};
  return {code, size};
}

void append_utf8(char32_t code, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6U);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12U);
    put(0x80 | (code >> 6U & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18U);
    put(0x80 | (code >> 12U & 0x3F));
    put(0x80 | (code >> 6U & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::array<char32_t, 256> byte_alphabet() noexcept {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 256;
  for (char32_t b = 0; b < 256; ++b) {
    const bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    alphabet[b] = is_printable ? b : next++;
  }
  return alphabet;
}

}  // namespace detail

std::string chat_prompt(std::string_view user, std::string_view system) {
  std::string text;
  const auto add = [&](std::string_view role, std::string_view content) {
    text.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
  };
  if (!system.empty())
    add("system", system);
  add("user", user);
  return text + "<|im_start|>assistant\n";
}

std::optional<PieceSplitter> PieceSplitter::by_name(std::string_view name) {
  if (name == "gpt2" || name == "gpt-2")
    return PieceSplitter(false, 0);
  if (name == "smollm")
    return PieceSplitter(false, 1);
  if (name == "llama-bpe" || name == "llama3")
    return PieceSplitter(true, 3);
  if (name == "qwen2")
    return PieceSplitter(true, 1);
  return std::nullopt;
}

PieceSplitter::PieceSplitter(bool is_llama, std::size_t max_digits)
    : is_llama_(is_llama), max_digits_(max_digits) {}

void PieceSplitter::read(std::string_view text) {
  chars_.clear();
  for (std::size_t offset = 0; offset < text.size();) {
    const auto [code, length] = detail::decode_utf8(text.substr(offset));
    chars_.push_back({code, detail::char_class(code), offset});
    offset += length;
  }
  chars_.push_back({0, Class::kOther, text.size()});
}

std::size_t PieceSplitter::run(std::size_t i, Class c) const {
  while (is(i, c))
    ++i;
  return i;
}

std::size_t PieceSplitter::contraction(std::size_t i, bool ignore_case) const {
  if (chars_[i].code != '\'')
    return i;
  const auto letter = [&](std::size_t k) {
    const char32_t code = k < limit_ ? chars_[k].code : 0;
    return ignore_case && code >= 'A' && code <= 'Z' ? code + 32 : code;
  };
  const char32_t a = letter(i + 1);
  const char32_t b = letter(i + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd')
    return i + 2;
  if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l'))
    return i + 3;
  return i;
}

std::size_t PieceSplitter::blanks(std::size_t i) const {
  const std::size_t end = run(i, Class::kSpace);
  return end < limit_ && end > i + 1 ? end - 1 : end;
}

std::size_t PieceSplitter::gpt2_piece(std::size_t i) const {
  if (const std::size_t end = contraction(i, false); end != i)
    return end;
  const std::size_t start = chars_[i].code == ' ' ? i + 1 : i;
  for (const Class c : {Class::kLetter, Class::kNumber, Class::kOther}) {
    if (is(start, c))
      return run(start, c);
  }
  return blanks(i);
}

std::size_t PieceSplitter::llama_piece(std::size_t i) const {
  if (const std::size_t end = contraction(i, true); end != i)
    return end;
  if (is(i, Class::kLetter))
    return run(i, Class::kLetter);
  if (is(i, Class::kNumber))
    return std::min(run(i, Class::kNumber), i + max_digits_);
  if (!is_newline(i) && is(i + 1, Class::kLetter))
    return run(i + 1, Class::kLetter);
  const std::size_t start = chars_[i].code == ' ' ? i + 1 : i;
  if (is(start, Class::kOther)) {
    std::size_t end = run(start, Class::kOther);
    while (is_newline(end))
      ++end;
    return end;
  }
  for (std::size_t end = run(i, Class::kSpace); end > i; --end) {
    if (is_newline(end - 1))
      return end;
  }
  return blanks(i);
}

Tokenizer::Tokenizer(const GgufFile& file)
    : tokens_(file.get<std::vector<std::string>>("tokenizer.ggml.tokens")) {
  if (const auto& kind = file.get<std::string>("tokenizer.ggml.model"); kind != "gpt2") {
    file.fail("tokenizer " + kind + " is not supported (gpt2, byte-level BPE, is)");
  }
  const auto pre = file.get_or<std::string>("tokenizer.ggml.pre", "gpt2");
  splitter_ = PieceSplitter::by_name(pre);
  if (!splitter_) {
    file.fail("pre-tokenizer " + pre + " is not supported (smollm, gpt2, llama-bpe, qwen2 are)");
  }
  std::unordered_map<std::string_view, Token> ids;
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    ids.emplace(tokens_[i], static_cast<Token>(i));
  const auto find = [&](std::string_view text) {
    const auto found = ids.find(text);
    return found == ids.end() ? kNone : found->second;
  };
  const auto alphabet = detail::byte_alphabet();
  for (std::size_t b = 0; b < 256; ++b) {
    std::string text;
    detail::append_utf8(alphabet[b], text);
    byte_tokens_[b] = find(text);
    bytes_.emplace(alphabet[b], static_cast<char>(b));
  }
  const bool is_llama3 = pre == "llama-bpe" || pre == "llama3";
  read_special_tokens(file, is_llama3);
  if (is_llama3) {
    for (Token token = 0; token < static_cast<Token>(tokens_.size()); ++token) {
      std::string bytes;
      append_bytes(token, bytes);
      whole_pieces_.emplace(std::move(bytes), token);
    }
  }
  const auto& merges = file.get<std::vector<std::string>>("tokenizer.ggml.merges");
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const std::size_t blank = merge.find(' ');
    if (blank == std::string_view::npos)
      file.fail("merge \"" + merges[rank] + "\" has no blank");
    const Token left = find(merge.substr(0, blank));
    const Token right = find(merge.substr(blank + 1));
    const Token merged = find(std::string(merge.substr(0, blank)).append(merge.substr(blank + 1)));
    if (left == kNone || right == kNone || merged == kNone) {
      file.fail("merge \"" + merges[rank] + "\" is of tokens that are not in the vocabulary");
    }
    merges_.emplace(pair_key(left, right), Merge{rank, merged});
  }
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<Token> result;
  std::size_t begin = 0;
  for (std::size_t i = 0; parse_special && i < text.size();) {
    const Token special = special_at(text.substr(i));
    if (special == kNone) {
      ++i;
      continue;
    }
    encode_text(text.substr(begin, i - begin), result);
    result.push_back(special);
    i += tokens_[static_cast<std::size_t>(special)].size();
    begin = i;
  }
  encode_text(text.substr(begin), result);
  return result;
}

std::vector<Token> Tokenizer::encode_start(std::string_view text) const {
  std::vector<Token> result = encode(text);
  if (bos_ != kNone)
    result.insert(result.begin(), bos_);
  return result;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string result;
  for (const Token token : tokens)
    append_bytes(token, result);
  return result;
}

std::uint64_t Tokenizer::pair_key(Token left, Token right) noexcept {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
}

void Tokenizer::append_bytes(Token token, std::string& result) const {
  const std::string_view text = tokens_.at(static_cast<std::size_t>(token));
  if (is_special_[static_cast<std::size_t>(token)]) {
    result += text;
    return;
  }
  for (std::size_t i = 0; i < text.size();) {
    const auto [code, length] = detail::decode_utf8(text.substr(i));
    const auto found = bytes_.find(code);
    if (found != bytes_.end()) {
      result.push_back(found->second);
    } else {
      result.append(text.substr(i, length));
    }
    i += length;
  }
}

void Tokenizer::read_special_tokens(const GgufFile& file, bool is_llama3) {
  is_special_.resize(tokens_.size());
  const auto* types = file.find<std::vector<std::int64_t>>("tokenizer.ggml.token_type");
  if (types != nullptr && types->size() != tokens_.size()) {
    file.fail("there are " + std::to_string(tokens_.size()) + " tokens but " +
              std::to_string(types->size()) + " token types");
  }
  for (std::size_t i = 0; types != nullptr && i < tokens_.size(); ++i) {
    // Unknown, control and user-defined tokens.
    is_special_[i] = (*types)[i] >= 2 && (*types)[i] <= 4 && !tokens_[i].empty();
    if (!is_special_[i])
      continue;
    const auto token = static_cast<Token>(i);
    special_by_first_[static_cast<unsigned char>(tokens_[i][0])].push_back(token);
    for (const char* end : {"<|im_end|>", "<|eot_id|>", "<|endoftext|>"}) {
      if (tokens_[i] == end)
        ends_.push_back(token);
    }
  }
  const auto length = [&](Token t) { return tokens_[static_cast<std::size_t>(t)].size(); };
  for (std::vector<Token>& specials : special_by_first_) {  // the longest wins
    std::stable_sort(specials.begin(), specials.end(),
                     [&](Token a, Token b) { return length(a) > length(b); });
  }
  const auto read_id = [&](const std::string& key) {
    const auto id = file.get_or<std::int64_t>(key, kNone);
    if (id < kNone || id >= static_cast<std::int64_t>(tokens_.size())) {
      file.fail("metadata key " + key + " is no token of the vocabulary");
    }
    return static_cast<Token>(id);
  };
  ends_.push_back(read_id("tokenizer.ggml.eos_token_id"));
  // Files that do not say leave it to the kind of tokenizer: Llama 3 was trained with it.
  if (file.get_or<bool>("tokenizer.ggml.add_bos_token", is_llama3)) {
    bos_ = read_id("tokenizer.ggml.bos_token_id");
  }
}

Token Tokenizer::special_at(std::string_view text) const {
  for (const Token token : special_by_first_[static_cast<unsigned char>(text[0])]) {
    if (text.starts_with(tokens_[static_cast<std::size_t>(token)]))
      return token;
  }
  return kNone;
}

void Tokenizer::encode_text(std::string_view text, std::vector<Token>& result) const {
  PieceSplitter splitter = *splitter_;
  splitter.split(text, [&](std::string_view piece) {
    const auto whole = whole_pieces_.find(std::string(piece));
    if (whole != whole_pieces_.end()) {
      result.push_back(whole->second);
    } else {
      encode_piece(piece, result);
    }
  });
}

void Tokenizer::encode_piece(std::string_view piece, std::vector<Token>& result) const {
  struct Node {
    Token token;
    std::size_t previous;
    std::size_t next;
  };
  std::vector<Node> nodes;
  for (const char c : piece) {
    const Token token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token != kNone)
      nodes.push_back({token, nodes.size() - 1, nodes.size() + 1});
  }
  using Candidate = std::tuple<std::size_t, std::size_t, std::uint64_t>;  // rank, left, pair
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](std::size_t left) {
    if (left >= nodes.size() || nodes[left].next >= nodes.size())
      return;
    const std::uint64_t pair = pair_key(nodes[left].token, nodes[nodes[left].next].token);
    const auto found = merges_.find(pair);
    if (found != merges_.end())
      heap.emplace(found->second.rank, left, pair);
  };
  for (std::size_t i = 0; i < nodes.size(); ++i)
    consider(i);
  for (; !heap.empty(); heap.pop()) {
    const auto [rank, left, pair] = heap.top();
    Node& node = nodes[left];
    if (node.token == kNone || node.next >= nodes.size() ||
        pair_key(node.token, nodes[node.next].token) != pair) {
      continue;
    }
    node.token = merges_.at(pair).merged;
    nodes[node.next].token = kNone;
    node.next = nodes[node.next].next;
    if (node.next < nodes.size())
      nodes[node.next].previous = left;
    consider(left);
    consider(node.previous);
  }
  for (const Node& node : nodes) {
    if (node.token != kNone)
      result.push_back(node.token);
  }
}

}  // namespace engine
