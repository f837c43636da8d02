// Policies that score what is cached, on one layer of an 8B model: 8 KV heads of 4 query heads,
// head_dim 128, 4096 tokens in f32.
//
//   policy/<name> select ...     scores from K and V of a prompt, and what stays
//   policy/Knorm step ...        a token more, and one that goes
//   policy/TriAttention event .. the same from statistics of queries
//   .../naive                    the same with Eigen: every array formed; TriAttention as it is
//                                published, with a cosine for each distance, band and key

#include "bench/common.hpp"
#include "kvevict/policies/key_geometry.hpp"
#include "kvevict/policies/lagkv.hpp"
#include "kvevict/policies/triattention.hpp"
#include "kvevict/views/contiguous_view.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace {

using kvevict_bench::best_slots;
using kvevict_bench::Work;

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;
using Eigen::Index;

constexpr kvevict::CacheShape kShape{
    .num_layers = 1, .num_q_heads = 32, .num_kv_heads = 8, .head_dim = 128};
constexpr std::size_t kTokens = 4096;
constexpr std::size_t kBudget = kTokens / 10;
constexpr double kKeyBytes = 4.0 * 8 * kTokens * 128;

struct Cache {
  std::vector<float> keys = kvevict_bench::normal_values(8 * kTokens * 128, 1);
  std::vector<float> values = kvevict_bench::normal_values(8 * kTokens * 128, 2);

  [[nodiscard]] kvevict::views::ContiguousView view() {
    using kvevict::views::Tensor;
    constexpr auto kType = kvevict::ElementType::kF32;
    return {kShape, Tensor::hnd(keys.data(), kType, kTokens, 8, 128),
            Tensor::hnd(values.data(), kType, kTokens, 8, 128), kTokens};
  }
  [[nodiscard]] static ConstMap head(const std::vector<float>& rows, std::size_t h) {
    return {rows.data() + h * kTokens * 128, static_cast<Index>(kTokens), 128};
  }
};

/// `policy` has seen kTokens tokens and whatever else it wants.
template <class P>
void add_select(const std::string& name, std::shared_ptr<P> policy, Cache& cache,
                const Work& work) {
  kvevict_bench::add(name, kvevict_bench::isa_name(kvevict::kernels::best().isa), work,
                     [policy, &cache] { benchmark::DoNotOptimize(policy->select(cache.view())); });
}
/// Each time it is a prompt of its own, since some remember what they made of a key.
template <class P>
void add_of_cache(const std::string& name, const typename P::Options& options, Cache& cache,
                  const Work& work) {
  const auto policy = std::make_shared<P>(options, kShape);
  kvevict_bench::add(name, kvevict_bench::isa_name(kvevict::kernels::best().isa), work,
                     [policy, &cache] {
                       policy->reset();
                       policy->begin(kTokens);
                       policy->append(kTokens);
                       policy->end_prefill(cache.view());
                       benchmark::DoNotOptimize(policy->select(cache.view()));
                     });
}
void add_naive(const std::string& name, Cache& cache,
               Eigen::VectorXf (*score)(Cache&, std::size_t)) {
  kvevict_bench::add(name, "naive", {}, [&cache, score] {
    for (std::size_t h = 0; h < 8; ++h)
      benchmark::DoNotOptimize(best_slots(score(cache, h), kBudget));
  });
}

Eigen::VectorXf knorm(Cache& cache, std::size_t h) {
  return -Cache::head(cache.keys, h).rowwise().norm();
}

// A token comes to a full cache and one goes, in each head: norms that are remembered.
void add_knorm_step(const std::string& name, Cache& cache) {
  const auto policy =
      std::make_shared<kvevict::Knorm>(kvevict::Knorm::Options{.budget = kTokens - 1}, kShape);
  policy->append(kTokens - 1);
  kvevict_bench::add(name, kvevict_bench::isa_name(kvevict::kernels::best().isa), {},
                     [policy, &cache] {
                       policy->append(1);
                       policy->apply(policy->select(cache.view()));
                     });
  const auto norms = std::make_shared<std::vector<std::vector<float>>>(8);
  for (std::size_t h = 0; h < 8; ++h) {
    const Eigen::VectorXf all = -knorm(cache, h);
    (*norms)[h].assign(all.begin(), all.end() - 1);
  }
  kvevict_bench::add(name, "naive", {}, [norms, &cache] {
    for (std::size_t h = 0; h < 8; ++h) {
      std::vector<float>& all = (*norms)[h];
      all.push_back(Cache::head(cache.keys, h).row(kTokens - 1).norm());
      all.erase(std::max_element(all.begin(), all.end()));
    }
  });
}

Eigen::VectorXf key_difference(Cache& cache, std::size_t h) {
  const ConstMap keys = Cache::head(cache.keys, h);
  const RowMatrix unit = keys.rowwise().normalized();
  const Eigen::VectorXf mean = unit.colwise().mean().normalized();
  return -(unit * mean);
}

// Each partition of 128 against the one behind it; the newest one scores best.
Eigen::VectorXf lag_deviation(Cache& cache, std::size_t h) {
  constexpr Index kLag = 128;
  constexpr Index kLast = static_cast<Index>(kTokens) - kLag;
  Eigen::VectorXf scores = Eigen::VectorXf::Constant(static_cast<Index>(kTokens), 2.0F);
  for (Index first = 0; first < kLast; first += kLag) {
    Eigen::VectorXf sum = Eigen::VectorXf::Zero(kLag);
    for (const std::vector<float>* rows : {&cache.keys, &cache.values}) {
      const ConstMap all = Cache::head(*rows, h);
      const RowMatrix next = all.middleRows(first + kLag, kLag);
      const Eigen::RowVectorXf low = next.colwise().minCoeff();
      const Eigen::RowVectorXf range = next.colwise().maxCoeff() - low;
      RowMatrix scaled = all.middleRows(first, kLag).rowwise() - low;
      scaled.array().rowwise() /= range.array();
      const Eigen::VectorXf mean = scaled.rowwise().mean();
      Eigen::ArrayXf deviation =
          ((scaled.colwise() - mean).rowwise().squaredNorm() / 127.0F).cwiseSqrt().array();
      deviation = (deviation - deviation.maxCoeff()).exp();
      sum += (deviation / deviation.sum()).matrix();
    }
    scores.segment(first, kLag) = sum;
  }
  return scores;
}

kvevict::RotaryEmbedding rotary() {
  kvevict::RotaryEmbedding table;
  for (int band = 0; band < 64; ++band)
    table.inv_freq.push_back(std::pow(500000.0, -band / 64.0));
  return table;
}

/// 128 queries for each head, around a centre.
const std::vector<float>& queries() {
  static const std::vector<float> all = [] {
    std::vector<float> values = kvevict_bench::normal_values(32 * 128 * 128, 3);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] += std::sin(static_cast<float>(i / (128 * 128) + i % 128));
    return values;
  }();
  return all;
}

// The published form: for every query head and key, the mean over 17 distances of a cosine for each
// band, and what the mean query leaves out; z-scores, and the largest of the group.
Eigen::VectorXf triattention(Cache& cache, std::size_t h) {
  static const kvevict::RotaryEmbedding table = rotary();
  const Eigen::Map<const Eigen::ArrayXd> inv_freq(table.inv_freq.data(), 64);
  const Eigen::ArrayXf frequency = inv_freq.cast<float>();
  const ConstMap keys = Cache::head(cache.keys, h);
  Eigen::VectorXf best = Eigen::VectorXf::Constant(static_cast<Index>(kTokens), -1e30F);
  for (std::size_t g = 0; g < 4; ++g) {
    const ConstMap rows(queries().data() + (h * 4 + g) * 128 * 128, 128, 128);
    const Eigen::ArrayXf re = rows.leftCols(64).colwise().mean().transpose();
    const Eigen::ArrayXf im = rows.rightCols(64).colwise().mean().transpose();
    const Eigen::ArrayXf length = (re.square() + im.square()).sqrt();
    const Eigen::ArrayXf whole =
        (rows.leftCols(64).array().square() + rows.rightCols(64).array().square())
            .sqrt()
            .colwise()
            .mean()
            .transpose();
    Eigen::VectorXf scores(static_cast<Index>(kTokens));
    for (Index i = 0; i < scores.size(); ++i) {
      const Eigen::ArrayXf x = keys.row(i).head(64).transpose();
      const Eigen::ArrayXf y = keys.row(i).tail(64).transpose();
      const Eigen::ArrayXf key_length = (x.square() + y.square()).sqrt();
      const Eigen::ArrayXf phase =
          y.binaryExpr(x, [](float a, float b) { return std::atan2(a, b); });
      const Eigen::ArrayXf query_phase =
          im.binaryExpr(re, [](float a, float b) { return std::atan2(a, b); });
      Eigen::ArrayXf sum = Eigen::ArrayXf::Zero(64);
      for (int power = 0; power <= 16; ++power) {
        const float distance = std::ldexp(1.0F, power) + static_cast<float>(kTokens);
        sum += (frequency * distance + query_phase - phase).cos();
      }
      scores[i] = (length * key_length * sum / 17.0F + (whole - length) * key_length).sum();
    }
    const float mean = scores.mean();
    const float deviation = std::sqrt((scores.array() - mean).square().mean());
    best = best.cwiseMax(((scores.array() - mean) / std::max(deviation, 1e-6F)).matrix());
  }
  return best;
}

[[maybe_unused]] const bool kRegistered = [] {
  static Cache cache;
  const std::string size = " n=" + std::to_string(kTokens);
  const auto reads = [](double bytes) { return Work{.ceiling = "read", .bytes = bytes}; };
  add_of_cache<kvevict::Knorm>("policy/Knorm select" + size, {.budget = kBudget}, cache,
                               reads(kKeyBytes));
  add_naive("policy/Knorm select" + size, cache, knorm);
  add_knorm_step("policy/Knorm step" + size, cache);
  add_of_cache<kvevict::KeyDiff>("policy/KeyDiff select" + size, {.budget = kBudget}, cache,
                                 reads(2 * kKeyBytes));
  add_naive("policy/KeyDiff select" + size, cache, key_difference);
  add_of_cache<kvevict::LagKVBudget>(
      "policy/LagKV select" + size,
      {.budget = kBudget, .num_sink_tokens = 0, .comparison = kvevict::LagComparison::kScores},
      cache, reads(2 * kKeyBytes));
  add_naive("policy/LagKV select" + size, cache, lag_deviation);

  using kvevict::TriAttention;
  const auto policy = std::make_shared<TriAttention>(TriAttention::Options{.budget = kBudget,
                                                                           .interval = 1,
                                                                           .protect_prompt = false,
                                                                           .num_sink_tokens = 0,
                                                                           .recent_window = 0,
                                                                           .rotary = rotary()},
                                                     kShape);
  policy->begin(kTokens);
  policy->append(kTokens - 128);
  policy->append(128);
  policy->observe_queries(0,
                          {.data = queries().data(),
                           .num_q_heads = 32,
                           .num_rows = 128,
                           .head_stride = 128 * 128,
                           .row_stride = 128},
                          cache.view());
  policy->end_prefill(cache.view());
  add_select("policy/TriAttention event" + size, policy, cache,
             {.ceiling = "read", .bytes = kKeyBytes});
  add_naive("policy/TriAttention event" + size, cache, triattention);
  return true;
}();

}  // namespace
