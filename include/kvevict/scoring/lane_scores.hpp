#ifndef KVEVICT_SCORING_LANE_SCORES_HPP_
#define KVEVICT_SCORING_LANE_SCORES_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/lane.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/scoring/score_input.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

KVEVICT_NAMESPACE_BEGIN

/// Scores of one lane of a mask on their way through the stages of a pipeline: arrays of one float
/// for each slot of [first, first + count). The signal makes one array, or one per query head, for
/// each KV head that the lane stands for; stages change them and bring them together into one.
///
/// The arrays lie in scratch buffer 0, the only one of a lane where its scores are wanted; the
/// spare one in buffer 1. Stages may use the buffers from kFirstFree on.
class LaneScores {
 public:
  static constexpr std::size_t kFirstFree = 2;

  /// @param out           [seq_len] where the scores are wanted; as far as it goes, if it is for
  ///                      another lane
  /// @param first_wanted  slots before it will not be read: a signal that scores each token by
  ///                      itself may start there
  LaneScores(const ScoreInput& input, std::size_t lane, std::span<float> out = {},
             std::size_t first_wanted = 0) noexcept
      : input_(input),
        shape_(input.sequence.shape()),
        out_(out),
        lane_(lane),
        first_wanted_(first_wanted),
        heads_per_lane_(shape_.num_layers * shape_.num_kv_heads /
                        shape_.num_lanes(input.sequence.scope())),
        first_head_(lane * heads_per_lane_) {}

  /// Its number in the mask.
  [[nodiscard]] std::size_t lane() const noexcept { return lane_; }
  [[nodiscard]] std::size_t seq_len() const noexcept { return input_.sequence.seq_len(lane_); }
  [[nodiscard]] std::size_t first_wanted() const noexcept { return first_wanted_; }

  /// KV heads that the lane stands for; 0 is the first one.
  [[nodiscard]] std::size_t num_heads() const noexcept { return heads_per_lane_; }
  [[nodiscard]] std::size_t layer(std::size_t head = 0) const noexcept {
    return (first_head_ + head) / shape_.num_kv_heads;
  }
  [[nodiscard]] std::size_t kv_head(std::size_t head = 0) const noexcept {
    return (first_head_ + head) % shape_.num_kv_heads;
  }
  [[nodiscard]] Lane cache(std::size_t head = 0) const {
    return input_.view.lane(layer(head), kv_head(head));
  }

  /// Makes room for `arrays_per_head` arrays of the slots [first, last); their content is
  /// unspecified.
  void start(std::size_t first, std::size_t last, std::size_t arrays_per_head) {
    arrays_per_head_ = arrays_per_head;
    num_arrays_ = arrays_per_head * heads_per_lane_;
    make_room(first, last);
  }
  /// The same for one array, of all KV heads of the lane together.
  void start_one(std::size_t first, std::size_t last) {
    keep_one();
    make_room(first, last);
  }
  /// First slot that has a score, and how many have one. The others score 0.
  [[nodiscard]] std::size_t first() const noexcept { return first_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Arrays now: arrays_per_head() of each KV head in turn, or one for all.
  [[nodiscard]] std::size_t num_arrays() const noexcept { return num_arrays_; }
  [[nodiscard]] std::size_t arrays_per_head() const noexcept { return arrays_per_head_; }
  /// [count()]
  [[nodiscard]] std::span<float> array(std::size_t index) const noexcept {
    return data_.subspan(index * count_, count_);
  }
  /// The KV head, counted in the lane, that array `index` is of.
  [[nodiscard]] std::size_t head_of(std::size_t index) const noexcept {
    return index / arrays_per_head_;
  }
  /// [count()] memory for one more array, overwritten by others that ask for it.
  [[nodiscard]] std::span<float> spare() const { return input_.scratch.floats(1, count_); }

  /// [count()] of array `index`: 0 where a slot holds no token; empty: all do. The first head
  /// speaks for one array of all of them.
  [[nodiscard]] std::span<const std::uint8_t> valid(std::size_t index) const {
    const std::span<const std::uint8_t> valid = cache(head_of(index)).valid;
    return valid.empty() ? valid : valid.subspan(first_, count_);
  }
  /// Sets the scores of a head's slots that hold no token to `score`: 0, or NaN for a stage that
  /// leaves out what is not finite. The first head speaks for one array of all of them.
  void clear_invalid(std::size_t head, float score = 0.0F) const {
    if (head * arrays_per_head_ >= num_arrays_)
      return;
    const auto valid = cache(head).valid;
    for (std::size_t slot = 0; !valid.empty() && slot < count_; ++slot) {
      for (std::size_t i = 0; valid[first_ + slot] == 0 && i < arrays_per_head_; ++i)
        array(head * arrays_per_head_ + i)[slot] = score;
    }
  }

  /// From now on array i is what array i * arrays_per_head() was.
  void keep_one_per_head() noexcept {
    for (std::size_t head = 1; head < heads_per_lane_ && arrays_per_head_ > 1; ++head) {
      const std::span<float> from = array(head * arrays_per_head_);
      std::copy(from.begin(), from.end(), array(head).begin());
    }
    arrays_per_head_ = 1;
    num_arrays_ = heads_per_lane_;
  }
  /// From now on there is array 0 alone.
  void keep_one() noexcept { arrays_per_head_ = num_arrays_ = 1; }
  /// Array 0 is the lane's scores. Throws InvalidArgument where a pipeline made none or left
  /// several, of which the others would have no say.
  void finish() const {
    detail::require(num_arrays_ == 1, "Pipeline", "arrays of a lane", num_arrays_,
                    "must be one: of several a HeadReduction or GroupReduction makes one");
    const std::size_t first = std::min(first_, out_.size());
    const std::span<float> scores = array(0).first(std::min(count_, out_.size() - first));
    const std::span<float> target = out_.subspan(first, scores.size());
    if (target.data() != scores.data())
      std::copy(scores.begin(), scores.end(), target.begin());
    std::fill(out_.begin(), target.begin(), 0.0F);
    std::fill(target.end(), out_.end(), 0.0F);
  }

 private:
  void make_room(std::size_t first, std::size_t last) {
    first_ = first;
    count_ = last - first;
    data_ = num_arrays_ == 1 && last <= out_.size()
                ? out_.subspan(first, count_)
                : input_.scratch.floats(0, num_arrays_ * count_);
  }

  const ScoreInput& input_;
  const CacheShape& shape_;
  std::span<float> out_;
  std::size_t lane_;
  std::size_t first_wanted_;
  std::size_t heads_per_lane_;
  std::size_t first_head_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t arrays_per_head_ = 1;
  std::size_t num_arrays_ = 0;
  std::span<float> data_;
};

KVEVICT_NAMESPACE_END

#endif  // KVEVICT_SCORING_LANE_SCORES_HPP_
