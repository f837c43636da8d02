#ifndef KVEVICT_CORE_TOKEN_LABEL_HPP_
#define KVEVICT_CORE_TOKEN_LABEL_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/keep_mask.hpp"
#include "kvevict/core/sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

KVEVICT_NAMESPACE_BEGIN

/// What kind of token it is, which only the engine's tokenizer knows.
enum class TokenLabel : std::uint8_t {
  kOther,
  kSpecial,      ///< begin and end of text, roles of a chat; not padding
  kPunctuation,  ///< full stops, commas, line breaks
};

/// The labels of all tokens seen, by position, so that an eviction does not touch them. Memory: 16
/// bytes for each token that has one other than kOther.
class TokenLabels {
 public:
  /// Labels of the newest tokens, in the place of those they have. A token that never got one is
  /// kOther.
  void set_newest(std::span<const TokenLabel> labels) {
    const std::size_t first = length_ - labels.size();
    forget_from(first);
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] == TokenLabel::kOther)
        continue;
      labelled_.push_back({first + i, labels[i]});
      ++count(labels[i]);
    }
  }
  [[nodiscard]] TokenLabel at(std::size_t position) const noexcept {
    const auto found = first_from(position);
    return found != labelled_.end() && found->position == position ? found->label
                                                                   : TokenLabel::kOther;
  }
  /// Tokens seen that are special or punctuation.
  [[nodiscard]] std::size_t num_special() const noexcept { return num_special_; }
  [[nodiscard]] std::size_t num_punctuation() const noexcept { return num_punctuation_; }

  void append(std::size_t count) noexcept { length_ += count; }
  void apply(const KeepMask& /*mask*/) noexcept {}
  void truncate(const Sequence& sequence) noexcept {
    length_ = sequence.length();
    forget_from(length_);
  }
  void reset() noexcept {
    forget_from(0);
    length_ = 0;
  }

 private:
  struct Labelled {
    std::size_t position;
    TokenLabel label;
  };

  [[nodiscard]] std::vector<Labelled>::const_iterator first_from(
      std::size_t position) const noexcept {
    return std::lower_bound(
        labelled_.begin(), labelled_.end(), position,
        [](const Labelled& entry, std::size_t other) { return entry.position < other; });
  }
  [[nodiscard]] std::size_t& count(TokenLabel label) noexcept {
    return label == TokenLabel::kSpecial ? num_special_ : num_punctuation_;
  }
  void forget_from(std::size_t position) noexcept {
    while (!labelled_.empty() && labelled_.back().position >= position) {
      --count(labelled_.back().label);
      labelled_.pop_back();
    }
  }

  std::vector<Labelled> labelled_;  // ascending
  std::size_t length_ = 0;
  std::size_t num_special_ = 0;
  std::size_t num_punctuation_ = 0;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_TOKEN_LABEL_HPP_
