#include "engine/transformer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace engine {

Rope::Rope(const ModelConfig& config)
    : frequencies_(config.rope_frequencies),
      stride_(config.rope_pairing == RopePairing::kInterleaved ? 2 : 1),
      partner_(config.rope_pairing == RopePairing::kInterleaved ? 1 : frequencies_.size()) {}

std::vector<float> Rope::turn(std::int32_t positions) const {
  std::vector<float> result;
  for (const double frequency : frequencies_) {
    result.push_back(static_cast<float>(std::cos(positions * frequency)));
    result.push_back(static_cast<float>(std::sin(positions * frequency)));
  }
  return result;
}

void Rope::apply(const std::vector<float>& turn, float* row) const noexcept {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    float& a = row[i * stride_];
    float& b = row[i * stride_ + partner_];
    const float cos = turn[2 * i];
    const float sin = turn[2 * i + 1];
    const float turned = a * cos - b * sin;
    b = a * sin + b * cos;
    a = turned;
  }
}

Transformer::Transformer(Model model, std::size_t num_threads)
    : model_(std::move(model)),
      rope_(model_.config()),
      pool_(num_threads),
      scratch_(pool_.num_threads()) {}

KvCache Transformer::make_cache() const {
  const ModelConfig& c = model_.config();
  return {c.num_layers, c.num_kv_heads, c.head_dim};
}

void Transformer::check(std::span<const Token> tokens) const {
  if (tokens.empty())
    throw std::invalid_argument("forward: no tokens");
  for (const Token token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= model_.token_embedding().rows()) {
      throw std::invalid_argument("forward: token " + std::to_string(token) +
                                  " is not in the vocabulary");
    }
  }
}

LogitRows Transformer::forward(std::span<const Token> tokens, KvCache& cache,
                               std::size_t num_logits, StepObserver* observer) {
  const ModelConfig& c = model_.config();
  check(tokens);
  if (num_logits > tokens.size()) {
    throw std::invalid_argument("forward: " + std::to_string(num_logits) + " logits of " +
                                std::to_string(tokens.size()) + " tokens");
  }
  StepObserver nobody;
  StepObserver& seen_by = observer == nullptr ? nobody : *observer;
  embed(tokens);
  turns_.clear();
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    turns_.push_back(rope_.turn(cache.next_position() + static_cast<std::int32_t>(t)));
  }
  for (std::size_t layer = 0; layer < c.num_layers; ++layer) {
    const LayerWeights& w = model_.layer(layer);
    rms_norm(hidden_, w.attention_norm, normed_);
    linear(normed_, w.qkv, qkv_);
    if (w.qkv_bias.size() > 0)
      qkv_.rowwise() += w.qkv_bias;
    append_to_cache(layer, cache);
    attend(layer, cache, seen_by);
    linear(attended_, w.output, block_out_);
    hidden_ += block_out_;

    rms_norm(hidden_, w.feed_forward_norm, normed_);
    linear(normed_, w.gate_up, gate_up_);
    swiglu();
    linear(activated_, w.down, block_out_);
    hidden_ += block_out_;
    const std::size_t wanted = std::min(seen_by.wants_hidden(layer), tokens.size());
    if (wanted > 0) {
      seen_by.on_hidden(layer, {hidden_.bottomRows(index(wanted)).data(), wanted, c.hidden_size});
    }
  }
  cache.set_next_position(cache.next_position() + static_cast<std::int32_t>(tokens.size()));
  rms_norm(hidden_.bottomRows(index(num_logits)), model_.output_norm(), normed_);
  linear(normed_, model_.output(), logits_);
  return {logits_.data(), logits_.rows(), logits_.cols()};
}

void Transformer::close_position_gaps(KvCache& cache) const {
  const std::size_t longest = cache.longest_lane();
  std::vector<float> turn;
  for (std::size_t layer = 0; layer < cache.num_layers(); ++layer) {
    for (std::size_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      KvLane& lane = cache.lane(layer, kv_head);
      std::int32_t last_shift = 0;
      for (std::size_t slot = 0; slot < lane.size(); ++slot) {
        const auto position = static_cast<std::int32_t>(longest - lane.size() + slot);
        const std::int32_t shift = position - lane.positions[slot];
        if (shift == 0)
          continue;
        if (shift != last_shift)
          turn = rope_.turn(shift);
        last_shift = shift;
        rope_.apply(turn, &lane.keys[slot * cache.head_dim()]);
        lane.positions[slot] = position;
      }
    }
  }
  cache.set_next_position(static_cast<std::int32_t>(longest));
}

Transformer::Scratch& Transformer::scratch(std::size_t worker, std::size_t size) {
  Scratch& memory = scratch_[worker];
  if (memory.size() < size)
    memory.resize(size);
  return memory;
}

void Transformer::embed(std::span<const Token> tokens) {
  const WeightMatrix& embedding = model_.token_embedding();
  hidden_.resize(index(tokens.size()), index(embedding.cols()));
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    embedding.dequantise(static_cast<std::size_t>(tokens[t]), 1, hidden_.row(index(t)).data());
  }
}

void Transformer::rms_norm(const Eigen::Ref<const Matrix>& x, const Vector& weight,
                           Matrix& out) const {
  out.resize(x.rows(), x.cols());
  for (Eigen::Index t = 0; t < x.rows(); ++t) {
    const float mean = x.row(t).squaredNorm() / static_cast<float>(x.cols());
    const float scale = 1.0F / std::sqrt(mean + model_.config().rms_epsilon);
    out.row(t) = (x.row(t) * scale).cwiseProduct(weight);
  }
}

void Transformer::linear(const Matrix& x, const WeightMatrix& weight, Matrix& out) {
  out.resize(x.rows(), index(weight.rows()));
  if (x.rows() == 0)
    return;  // nobody wants logits
  const std::size_t tile_floats = x.rows() == 1 ? 1U << 12U : 1U << 18U;
  const std::size_t tile_rows = std::max<std::size_t>(tile_floats / weight.cols(), 1);
  pool_.for_ranges(weight.rows(), 16, [&](std::size_t begin, std::size_t end, std::size_t worker) {
    Scratch& tile = scratch(worker, tile_rows * weight.cols());
    for (std::size_t first = begin; first < end; first += tile_rows) {
      const std::size_t count = std::min(tile_rows, end - first);
      weight.dequantise(first, count, tile.data());
      const Eigen::Map<const Matrix> rows(tile.data(), index(count), index(weight.cols()));
      out.middleCols(index(first), index(count)).noalias() = x * rows.transpose();
    }
  });
}

void Transformer::append_to_cache(std::size_t layer, KvCache& cache) {
  const ModelConfig& c = model_.config();
  std::vector<std::size_t> first_slots;
  for (std::size_t kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
    first_slots.push_back(cache.append(layer, kv_head, turns_.size()));
  }
  pool_.for_ranges(turns_.size(), 16, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t t = begin; t < end; ++t) {
      float* row = qkv_.row(index(t)).data();
      // Queries and keys lie side by side, so this turns both.
      for (std::size_t head = 0; head < c.num_q_heads + c.num_kv_heads; ++head) {
        rope_.apply(turns_[t], row + head * c.head_dim);
      }
      for (std::size_t kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
        KvLane& lane = cache.lane(layer, kv_head);
        const std::size_t slot = first_slots[kv_head] + t;
        const float* key = row + c.q_size() + kv_head * c.head_dim;
        std::copy_n(key, c.head_dim, &lane.keys[slot * c.head_dim]);
        std::copy_n(key + c.kv_size(), c.head_dim, &lane.values[slot * c.head_dim]);
        lane.positions[slot] = cache.next_position() + static_cast<std::int32_t>(t);
      }
    }
  });
}

void Transformer::attend(std::size_t layer, const KvCache& cache, StepObserver& observer) {
  const ModelConfig& c = model_.config();
  const std::size_t num_tokens = turns_.size();
  std::size_t longest = 0;
  for (std::size_t kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
    longest = std::max(longest, cache.lane(layer, kv_head).size());
  }
  const std::size_t wanted = std::min(observer.wants_attention_rows(layer), num_tokens);
  attention_.assign(c.num_q_heads * wanted * longest, 0.0F);
  log_sums_.resize(c.num_q_heads * wanted);
  attended_.resize(index(num_tokens), index(c.q_size()));
  const std::size_t num_blocks = (num_tokens + kQueryBlock - 1) / kQueryBlock;
  pool_.for_ranges(
      c.num_q_heads * num_blocks, 1, [&](std::size_t begin, std::size_t end, std::size_t worker) {
        Scratch& scores = scratch(worker, std::min(kQueryBlock, num_tokens) * longest);
        for (std::size_t i = begin; i < end; ++i) {
          const std::size_t q_head = i / num_blocks;
          const std::size_t first = i % num_blocks * kQueryBlock;
          const std::size_t count = std::min(kQueryBlock, num_tokens - first);
          std::array<float, kQueryBlock> log_sums{};
          attend_block(cache.lane(layer, q_head / c.group_size()), q_head, first, count,
                       scores.data(), log_sums.data());
          // The newest `wanted` rows are kept for the observer.
          const std::size_t visible =
              cache.lane(layer, q_head / c.group_size()).size() - (num_tokens - first - count);
          for (std::size_t r = std::max(first, num_tokens - wanted); r < first + count; ++r) {
            const std::size_t kept_row = q_head * wanted + r - (num_tokens - wanted);
            std::copy_n(&scores[(r - first) * visible], visible, &attention_[kept_row * longest]);
            log_sums_[kept_row] = log_sums[r - first];
          }
        }
      });
  if (wanted > 0) {
    observer.on_attention(layer, {attention_.data(), c.num_q_heads, wanted, wanted * longest,
                                  longest, log_sums_.data()});
  }
  const std::size_t queries = std::min(observer.wants_queries(layer), num_tokens);
  if (queries > 0) {
    observer.on_queries(layer, {qkv_.bottomRows(index(queries)).data(), c.num_q_heads, queries,
                                c.head_dim, static_cast<std::size_t>(qkv_.cols())});
  }
}

void Transformer::attend_block(const KvLane& lane, std::size_t q_head, std::size_t first,
                               std::size_t count, float* scores, float* log_sums) {
  const std::size_t head_dim = model_.config().head_dim;
  const Eigen::Index visible = index(lane.size() - (turns_.size() - first - count));
  const auto offset = static_cast<std::ptrdiff_t>(q_head * head_dim);
  const ConstRows queries(qkv_.row(index(first)).data() + offset, index(count), index(head_dim),
                          Eigen::OuterStride<>(qkv_.cols()));
  const Eigen::Map<const Matrix> keys(lane.keys.data(), visible, index(head_dim));
  const Eigen::Map<const Matrix> values(lane.values.data(), visible, index(head_dim));
  Eigen::Map<Matrix> rows(scores, index(count), visible);
  rows.noalias() = queries * keys.transpose();
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (Eigen::Index r = 0; r < rows.rows(); ++r) {
    const Eigen::Index hidden = rows.rows() - 1 - r;  // later tokens of the block
    auto row = rows.row(r).head(visible - hidden).array();
    const float largest = row.maxCoeff();
    row = ((row - largest) * scale).exp();
    const float sum = row.sum();
    row *= 1.0F / sum;
    log_sums[r] = largest * scale + std::log(sum);
    rows.row(r).tail(hidden).setZero();
  }
  Rows out(attended_.row(index(first)).data() + offset, index(count), index(head_dim),
           Eigen::OuterStride<>(attended_.cols()));
  out.noalias() = rows * values;
}

void Transformer::swiglu() {
  const Eigen::Index size = index(model_.config().feed_forward_size);
  activated_.resize(gate_up_.rows(), size);
  pool_.for_ranges(turns_.size(), 16, [&](std::size_t begin, std::size_t end, std::size_t) {
    const auto rows = gate_up_.middleRows(index(begin), index(end - begin)).array();
    const auto gate = rows.leftCols(size);
    activated_.middleRows(index(begin), index(end - begin)) =
        gate / (1.0F + (-gate).exp()) * rows.rightCols(size);
  });
}

}  // namespace engine
